//! How models are run.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use loom::model::Builder;
use loom::sync::Notify;

use crate::mutants::{self, Mutant};

/// Threads are interrupted at most so often in one run of a model, unless `LOOM_MAX_PREEMPTIONS` says otherwise. Every
/// mutant is found with two.
const PREEMPTIONS_MAX: usize = 3;

/// Runs a model in every order of its threads.
///
/// Of each atomic, loom remembers the last access only. A thread that loads a mark before it stores it would hide the
/// looks of other threads, and orders would be left out; so no code here does.
pub(crate) fn check(model: fn()) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS_MAX);
    builder.check(model);
}

/// Set for the process that runs a model with a fault.
const CHILD: &str = "TIDINGS_MUTANT";

/// Runs a model with a fault present: it must end with a panic that says so. In a process of its own, which runs the test
/// that calls this: when all threads of a model sleep, loom cannot drop them, and aborts.
#[track_caller]
pub(crate) fn finds(mutant: Mutant, model: fn(), message: &str) {
    if env::var_os(CHILD).is_some() {
        mutants::set(mutant);
        return check(model);
    }
    let test = thread::current();
    let test = test.name().expect("a test's thread has its name");
    let program = env::current_exe().expect("a test is a program");
    let run = Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output();
    let run = run.expect("a test can be started");
    let printed = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "the model does not find {mutant:?}");
    assert!(printed.contains(message), "{mutant:?} is found by something else: {printed}");
}

/// What stands for the `Notify` of tokio: one permit, which the next wait takes.
#[derive(Debug, Default)]
pub(crate) struct Permit(Notify);

impl Permit {
    pub(crate) fn wait(&self) {
        self.0.wait();
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Permit {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify();
    }
}
