//! One program for all targets; `TIDINGS_FUZZ_TARGET` says which, and is empty for a list of them.
//! To be started by `fuzz/run`, which knows what libFuzzer needs.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

type Target = (&'static str, fn(&[u8]));

/// A target is a line in one of these.
const CRATES: [&[Target]; 4] = [
    tidings_protocol::fuzzing::TARGETS,
    tidings_broker::fuzzing::TARGETS,
    tidings_subscriber::fuzzing::TARGETS,
    tidings_connectors::fuzzing::TARGETS,
];

static CHOSEN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("TIDINGS_FUZZ_TARGET").unwrap_or_default();
    let targets = || CRATES.into_iter().flatten();
    if let Some((_, target)) = targets().find(|(name, _)| *name == wanted) {
        return *target;
    }
    for (name, _) in targets() {
        println!("{name}");
    }
    std::process::exit(i32::from(!wanted.is_empty()))
});

fuzz_target!(init: LazyLock::force(&CHOSEN), |bytes: &[u8]| CHOSEN(bytes));
