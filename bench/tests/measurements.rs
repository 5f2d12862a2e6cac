//! Every measurement of `tidings-bench` runs and prints the figures that it documents. Their values
//! are not checked, because machines differ. Needs the program `tidings`, which
//! `cargo test --workspace` builds.

#![expect(clippy::unwrap_used, reason = "tests panic to fail")]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Runs the program in a folder.
#[track_caller]
fn run(folder: &TempDir, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_tidings-bench");
    Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap()
}

/// Runs a measurement in a temporary folder and returns its JSON.
#[track_caller]
fn run_bench(arguments: &[&str]) -> Value {
    let folder = TempDir::new().unwrap();
    let output = run(&folder, &[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "the measurement left files behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that the figures exist, each with one value for each run.
#[track_caller]
fn expect_figures(report: &Value, keys: &[&str]) {
    for key in keys {
        let figure = &report[key];
        assert!(figure["p50"].is_number(), "{key} in {report}");
        assert!(figure["runs"].as_array().is_some_and(|runs| !runs.is_empty()), "{key}");
    }
}

const SHORT_RUN: [&str; 4] = ["--seconds", "1", "--runs", "1"];
const MEMORY_SYNC: [&str; 2] = ["--sync", "memory"];

#[test]
fn fan_in_counts_deliveries() {
    let flags = ["fan-in", "--publishers", "3", "--subscribers", "2", "--window", "100"];
    let report = run_bench(&[&flags, &SHORT_RUN[..], &MEMORY_SYNC].concat());
    expect_figures(&report, &["deliveries_per_second", "publishes_per_second"]);
    expect_figures(&report, &["broker_cpu_us_per_1000_deliveries"]);
    expect_figures(&report, &["broker_cpus", "broker_peak_mib"]);
    assert_eq!((&report["bench"], &report["sync"]), (&"fan-in".into(), &"memory".into()));
}

#[test]
fn subscribers_may_use_server_sent_events() {
    let flags = ["fan-out", "--subscribers", "2", "--window", "100", "--sse"];
    let report = run_bench(&[&flags, &SHORT_RUN[..], &MEMORY_SYNC].concat());
    expect_figures(&report, &["deliveries_per_second", "broker_cpus"]);
    assert_eq!(report["sse"], true);
    let folder = TempDir::new().unwrap();
    let output = run(&folder, &["idle", "--sse", "--tls"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), errors.contains("without --sse")),
        (Some(1), true),
        "{errors}"
    );
}

#[test]
fn latency_reports_quantiles() {
    let flags = ["latency", "--rate", "100", "--subscribers", "2"];
    let report = run_bench(&[&flags, &SHORT_RUN[..], &MEMORY_SYNC].concat());
    expect_figures(&report, &["p50_us", "p99_us", "p999_us", "max_us"]);
    expect_figures(&report, &["broker_cpu_us_per_delivery", "broker_peak_mib"]);
}

#[test]
fn idle_reports_memory_and_delivery_time() {
    let flags = ["idle", "--subscribers", "20", "--events", "2"];
    for guard in [&[][..], &["--tls"], &["--tokens"]] {
        let report = run_bench(&[&flags, &MEMORY_SYNC[..], guard].concat());
        expect_figures(&report, &["kib_per_subscriber", "to_all_ms", "broker_cpu_ms_per_event"]);
        assert_eq!(report["tls"], guard.contains(&"--tls"));
    }
}

#[test]
fn frontier_reports_the_cost_of_waiting_urls_and_of_a_restart() {
    let report = run_bench(&["frontier", "--urls", "2000", "--hosts", "100", "--links", "100"]);
    assert_eq!((&report["bench"], &report["urls"]), (&"frontier".into(), &2000.into()));
    let figures = [
        "links_per_second",
        "release_p99_ms",
        "list_max_ms",
        "broker_us_per_link",
        "broker_mib",
        "restart_s",
    ];
    expect_figures(&report, &figures);
}

#[test]
fn frontier_respects_its_link_rate() {
    let flags = ["--urls", "20000", "--hosts", "100", "--links", "100", "--rate", "20000"];
    let report = run_bench(&[&["frontier"], &flags[..]].concat());
    let rate = report["links_per_second"]["p50"].as_f64().unwrap();
    // The first page of links exists at the start.
    assert!(rate < 20_500.0, "{report}");
}

#[test]
fn replay_reads_retained_events() {
    let flags = ["replay", "--events", "2000", "--runs", "2"];
    let report = run_bench(&[&flags, &MEMORY_SYNC[..]].concat());
    expect_figures(&report, &["replayed_per_second", "broker_peak_mib"]);
}

#[test]
fn connect_counts_connection_cycles() {
    let report = run_bench(&[&["connect"], &SHORT_RUN[..], &MEMORY_SYNC].concat());
    expect_figures(&report, &["cycles_per_second", "broker_cpu_us_per_1000_cycles"]);
}

#[test]
fn a_stalled_subscriber_misses_nothing_silently() {
    let flags = ["stalled", "--subscribers", "3", "--window", "1000", "--seconds", "1"];
    let report = run_bench(&[&flags, &MEMORY_SYNC[..]].concat());
    expect_figures(&report, &["others_kept", "stalled_missed_events", "broker_grown_mib"]);
    let end = report["stalled_end"].as_str().unwrap();
    assert!(["everything", "loss reported"].contains(&end), "{report}");
}

#[test]
fn a_missing_broker_program_is_named() {
    let folder = TempDir::new().unwrap();
    let output = run(&folder, &["connect", "--tidings", "/no/such/tidings"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cannot start /no/such/tidings"), "{errors}");
}

#[test]
fn the_help_names_every_measurement() {
    let folder = TempDir::new().unwrap();
    let output = run(&folder, &["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    for name in ["fan-out", "fan-in", "latency", "idle", "publish", "queue", "frontier", "replay"] {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
    }
    assert!(help.contains("Examples"), "{help}");
}
