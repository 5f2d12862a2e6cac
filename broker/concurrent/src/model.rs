//! Runs loom models, with and without a fault.

use std::process::Command;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::{env, thread};

use loom::model::Builder;
use loom::sync::Notify;

use crate::mutants::{self, Mutant};

/// Maximum number of preemptions in one run of a model, unless `LOOM_MAX_PREEMPTIONS` is set. Two
/// are enough to find every mutant.
const PREEMPTIONS_MAX: usize = 3;

/// Runs a model in every order of its threads.
///
/// loom remembers only the last access to each atomic. If a thread loaded a mark before storing it,
/// the loads of other threads would be hidden and some orders skipped; so no code here does that.
pub(crate) fn check(model: fn()) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS_MAX);
    builder.check(model);
}

/// Set in the process that runs a model with a fault.
const CHILD: &str = "TIDINGS_MUTANT";

/// Runs a model with a fault, and requires a panic with `message`. The model runs in a process of
/// its own, which repeats the calling test: when all threads of a model sleep, loom cannot drop
/// them and aborts.
#[track_caller]
pub(crate) fn assert_finds(mutant: Mutant, model: fn(), message: &str) {
    if env::var_os(CHILD).is_some() {
        mutants::set(mutant);
        return check(model);
    }
    let test = thread::current();
    let test = test.name().expect("a test thread is named after its test");
    let program = env::current_exe().expect("the test program has a path");
    let run = Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output();
    let run = run.expect("a test can be started");
    let printed = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "the model does not find {mutant:?}");
    assert!(printed.contains(message), "{mutant:?} caused another panic: {printed}");
}

/// Stands in for tokio's `Notify`: one permit, which the next wait takes.
#[derive(Debug, Default)]
pub(crate) struct NotifyPermit(Notify);

impl NotifyPermit {
    pub(crate) fn wait(&self) {
        self.0.wait();
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for NotifyPermit {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify();
    }
}
