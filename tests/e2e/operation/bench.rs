//! Every benchmark of `tidings bench` runs and prints the figures that it documents. Their values
//! are not checked, because machines differ. `bench/tests/works.rs` has those of `tidings-bench`.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::{Server, run_tidings};

/// Runs a benchmark in a temporary folder and returns its JSON.
#[track_caller]
fn run_bench(arguments: &[&str]) -> Value {
    let folder = TempDir::new().unwrap();
    let output =
        run_tidings(folder.path(), &[&["bench"], arguments, &["--json"]].concat()).expect_code(0);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "the benchmark left files behind");
    serde_json::from_str(&output.stdout().join("")).unwrap()
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
const COST_KEYS: [&str; 2] = ["broker_cpus", "broker_peak_mib"];

#[test]
fn fan_out_counts_deliveries() {
    let report = run_bench(
        &[&["fan-out", "--subscribers", "3", "--window", "100"], &SHORT_RUN[..]].concat(),
    );
    expect_figures(&report, &["deliveries_per_second", "publishes_per_second"]);
    expect_figures(&report, &["broker_cpu_us_per_1000_deliveries"]);
    expect_figures(&report, &COST_KEYS);
    assert_eq!((&report["bench"], &report["subscribers"]), (&"fan-out".into(), &3.into()));
}

#[test]
#[ignore = "needs foreign programs"]
fn fan_out_compares_tls_and_tokens_with_plain_text() {
    let flags = ["fan-out", "--subscribers", "3", "--window", "100"];
    let tokens = run_bench(&[&flags, &SHORT_RUN[..], &["--tokens"]].concat());
    let both = run_bench(&[&flags, &SHORT_RUN[..], &["--tls", "--tokens"]].concat());
    for report in [&tokens, &both] {
        expect_figures(report, &["deliveries_per_second", "plain_deliveries_per_second"]);
        expect_figures(report, &["of_plain", "of_plain_by_cpu", "broker_cpus"]);
    }
    expect_figures(&both, &["aes_mb_per_second", "of_limit", "of_limit_by_cpu"]);
    assert!(tokens["of_limit"].is_null(), "no limit without encryption: {tokens}");
}

#[test]
fn publish_counts_confirmations() {
    let flags = ["publish", "--publishers", "2", "--window", "100"];
    let report = run_bench(&[&flags, &SHORT_RUN[..], &MEMORY_SYNC].concat());
    expect_figures(&report, &["confirmed_per_second", "broker_cpu_us_per_1000_publishes"]);
    assert!(report["bare_loop_per_second"].is_null(), "no bare loop without syncs: {report}");
}

#[test]
fn queue_acknowledges_every_task_once() {
    let flags = ["queue", "--workers", "3", "--keys", "50", "--credit", "10", "--window", "200"];
    let durable = run_bench(&[&flags, &SHORT_RUN[..]].concat());
    let bare = run_bench(&[&flags, &SHORT_RUN[..], &MEMORY_SYNC, &["--size", "33"]].concat());
    for report in [&durable, &bare] {
        expect_figures(report, &["tasks_per_second", "broker_cpu_us_per_task"]);
        expect_figures(report, &COST_KEYS);
        assert!(report["tasks_acked_once"]["p50"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!((&report["workers"], &report["keys"]), (&3.into(), &50.into()));
    }
}

#[test]
fn a_task_too_short_for_a_url_is_rejected() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["bench", "queue", "--size", "32"])
        .expect_code(1)
        .expect_stderr("a URL of at least 33 bytes");
}

#[test]
fn a_running_broker_is_measured_from_outside() {
    let server = Server::start_broker();
    let address = server.address.to_string();
    let flags = ["fan-out", "--subscribers", "2", "--window", "100", "--broker", &address];
    let report = run_bench(&[&flags, &SHORT_RUN[..]].concat());
    expect_figures(&report, &["deliveries_per_second"]);
    assert!(report["broker_cpus"].is_null(), "the process is unknown: {report}");
}

#[test]
fn disk_benchmarks_reject_a_memory_file_system() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.contains(" /dev/shm tmpfs ") {
        eprintln!("skipped: /dev/shm is not a tmpfs here");
        return;
    }
    let folder = TempDir::new_in("/dev/shm").unwrap();
    run_tidings(folder.path(), &["bench", "publish", "--sync", "always"])
        .expect_code(1)
        .expect_stderr("tmpfs");
}

#[test]
fn the_table_names_the_measurement() {
    let folder = TempDir::new().unwrap();
    let flags = ["bench", "fan-out", "--subscribers", "2", "--window", "100"];
    let output = run_tidings(folder.path(), &[&flags, &SHORT_RUN[..]].concat()).expect_code(0);
    let lines = output.stdout();
    assert!(
        lines[0].starts_with("fan-out, a broker of its own: 1 publisher to 2 subs"),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("broker peak MiB")), "{lines:?}");
}
