//! Every work of `tidings-bench` runs and prints the figures that it documents. Their values are
//! not checked, because machines differ. Needs the program `tidings`, which
//! `cargo test --workspace` builds.

#![expect(clippy::unwrap_used, reason = "tests panic to fail")]

use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs one short round in a temporary folder, of Tidings and of the relay.
#[track_caller]
fn run(arguments: &[&str]) -> Output {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidings-bench"));
    command.args(["--quick", "--programs", "tidings,relay"]).args(arguments);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "files are left behind");
    output
}

/// Checks that the table of a work has these figures of all programs.
#[track_caller]
fn expect_figures(work: &str, programs: usize, figures: &[&str]) {
    let output = run(&[work]);
    let (table, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && table.contains(&format!("\n## {work}\n")), "{errors}");
    for figure in figures {
        let row = table.lines().find(|line| line.starts_with(&format!("| {figure} |")));
        let row = row.unwrap_or_else(|| panic!("{figure} is missing in {table}{errors}"));
        let cells = row.split('|').skip(2);
        let values = cells.filter(|cell| cell.contains(|c: char| c.is_ascii_digit()));
        assert_eq!(values.count(), programs, "{row}\n{errors}");
    }
}

#[test]
fn brokers_are_measured_beside_the_relay() {
    let costs = ["broker processors", "broker peak MiB"];
    let fan_out = ["deliveries/s", "publishes/s", "broker us per 1,000"];
    expect_figures("fan-out", 2, &[&fan_out[..], &costs].concat());
    let latency = ["p50 us", "p99 us", "broker us per delivery"];
    expect_figures("latency", 2, &[&latency[..], &costs].concat());
    expect_figures("idle", 2, &["KiB per subscriber"]);
    expect_figures("tasks", 1, &["tasks/s", "broker us per task"]);
}

#[test]
fn a_frontier_is_filled_and_restarted() {
    let figures = ["links/s", "broker MiB with all URLs", "restart to release, s"];
    expect_figures("frontier", 1, &figures);
}

#[test]
fn announced_pages_are_requested() {
    expect_figures("announced", 1, &["host known, p99, ms", "host unknown, p50, ms"]);
}

#[test]
fn a_missing_program_is_named() {
    let output = run(&["fan-out", "--tidings", "/no/such/tidings"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cannot start /no/such/tidings"), "{errors}");
}
