//! One program for all fuzz targets. `TIDINGS_FUZZ_TARGET` selects one; if it is empty, the program
//! lists them. Started by `fuzz/run` with the options of libFuzzer.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

type Target = (&'static str, fn(&[u8]));

/// The targets of all crates.
const TARGETS_BY_CRATE: &[&[Target]] = &[
    tidings_protocol::fuzzing::TARGETS,
    tidings_log::fuzzing::TARGETS,
    tidings_broker::fuzzing::TARGETS,
    tidings_queue::fuzzing::TARGETS,
    tidings_documents::fuzzing::TARGETS,
    tidings_browser::fuzzing::TARGETS,
    tidings_subscriber::fuzzing::TARGETS,
    tidings_connectors::fuzzing::TARGETS,
];

static SELECTED: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let selected = std::env::var("TIDINGS_FUZZ_TARGET").unwrap_or_default();
    let targets = || TARGETS_BY_CRATE.iter().copied().flatten();
    if let Some((_, target)) = targets().find(|(name, _)| *name == selected) {
        return *target;
    }
    for (name, _) in targets() {
        println!("{name}");
    }
    std::process::exit(i32::from(!selected.is_empty()))
});

fuzz_target!(init: LazyLock::force(&SELECTED), |bytes: &[u8]| SELECTED(bytes));
