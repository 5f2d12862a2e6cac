//! Every benchmark runs, and says what it promises to say. No figures: machines differ.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::{Server, run};

/// Runs a benchmark in a directory of its own and returns its JSON.
#[track_caller]
fn bench(arguments: &[&str]) -> Value {
    let folder = TempDir::new().unwrap();
    let ended = run(folder.path(), &[&["bench"], arguments, &["--json"]].concat()).expect_code(0);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "its data are removed");
    serde_json::from_str(&ended.stdout().join("")).unwrap()
}

/// The figures are there, each with one value of each run.
#[track_caller]
fn expect_figures(measured: &Value, keys: &[&str]) {
    for key in keys {
        let figure = &measured[key];
        assert!(figure["p50"].is_number(), "{key} in {measured}");
        assert!(figure["runs"].as_array().is_some_and(|runs| !runs.is_empty()), "{key}");
    }
}

const SHORT: [&str; 4] = ["--seconds", "1", "--runs", "1"];
const MEMORY: [&str; 2] = ["--sync", "memory"];
const COST: [&str; 2] = ["broker_cpus", "broker_peak_mib"];

#[test]
fn fan_out_and_fan_in_count_deliveries() {
    let out = bench(&[&["fan-out", "--subscribers", "3", "--window", "100"], &SHORT[..]].concat());
    let few = ["fan-in", "--publishers", "3", "--subscribers", "2", "--window", "100"];
    let into = bench(&[&few, &SHORT[..], &MEMORY].concat());
    for measured in [&out, &into] {
        expect_figures(measured, &["deliveries_per_second", "publishes_per_second"]);
        expect_figures(measured, &["broker_cpu_us_per_1000_deliveries"]);
        expect_figures(measured, &COST);
    }
    assert_eq!((&out["bench"], &out["subscribers"]), (&"fan-out".into(), &3.into()));
    assert_eq!((&into["bench"], &into["sync"]), (&"fan-in".into(), &"memory".into()));
}

#[test]
fn fan_out_is_compared_with_what_guards_take() {
    let few = ["fan-out", "--subscribers", "3", "--window", "100"];
    let tokens = bench(&[&few, &SHORT[..], &["--tokens"]].concat());
    let both = bench(&[&few, &SHORT[..], &["--tls", "--tokens"]].concat());
    for measured in [&tokens, &both] {
        expect_figures(measured, &["deliveries_per_second", "plain_deliveries_per_second"]);
        expect_figures(measured, &["of_plain", "of_plain_by_cpu", "broker_cpus"]);
    }
    expect_figures(&both, &["aes_mb_per_second", "of_limit", "of_limit_by_cpu"]);
    assert!(tokens["of_limit"].is_null(), "nothing is encrypted: {tokens}");
}

#[test]
fn latency_has_its_quantiles() {
    let few = ["latency", "--rate", "100", "--subscribers", "2"];
    let measured = bench(&[&few, &SHORT[..], &MEMORY].concat());
    expect_figures(&measured, &["p50_us", "p99_us", "p999_us", "max_us"]);
    expect_figures(&measured, &["broker_cpu_us_per_delivery", "broker_peak_mib"]);
}

#[test]
fn idle_subscribers_cost_memory_and_all_hear_of_an_event() {
    let few = ["idle", "--subscribers", "20", "--events", "2"];
    for guard in [&[][..], &["--tls"], &["--tokens"]] {
        let measured = bench(&[&few, &MEMORY[..], guard].concat());
        expect_figures(&measured, &["kib_per_subscriber", "to_all_ms", "broker_cpu_ms_per_event"]);
        assert_eq!(measured["tls"], guard.contains(&"--tls"));
    }
}

#[test]
fn publishes_are_confirmed() {
    let few = ["publish", "--publishers", "2", "--window", "100"];
    let measured = bench(&[&few, &SHORT[..], &MEMORY].concat());
    expect_figures(&measured, &["confirmed_per_second", "broker_cpu_us_per_1000_publishes"]);
    assert!(measured["bare_loop_per_second"].is_null(), "nothing is synced: {measured}");
}

#[test]
fn every_task_is_acknowledged_once() {
    let few = ["queue", "--workers", "3", "--keys", "50", "--credit", "10", "--window", "200"];
    let durable = bench(&[&few, &SHORT[..]].concat());
    let bare = bench(&[&few, &SHORT[..], &MEMORY, &["--size", "33"]].concat());
    for measured in [&durable, &bare] {
        expect_figures(measured, &["tasks_per_second", "broker_cpu_us_per_task"]);
        expect_figures(measured, &COST);
        assert!(measured["tasks_acked_once"]["p50"].as_f64().unwrap() > 0.0, "{measured}");
        assert_eq!((&measured["workers"], &measured["keys"]), (&3.into(), &50.into()));
    }
}

#[test]
fn a_task_that_is_no_url_is_refused() {
    let folder = TempDir::new().unwrap();
    let ended = run(folder.path(), &["bench", "queue", "--size", "32"]).expect_code(1);
    assert!(ended.stderr().contains("a URL of at least 33 bytes"), "{}", ended.stderr());
}

#[test]
fn frontier_says_what_waiting_urls_cost_and_starts_again_with_them() {
    let measured = bench(&["frontier", "--urls", "2000", "--hosts", "100", "--links", "100"]);
    assert_eq!((&measured["bench"], &measured["urls"]), (&"frontier".into(), &2000.into()));
    let figures =
        ["links_per_second", "release_p99_ms", "broker_us_per_link", "broker_mib", "restart_s"];
    expect_figures(&measured, &figures);
}

#[test]
fn frontier_brings_no_more_links_a_second_than_it_is_told() {
    let few = ["--urls", "20000", "--hosts", "100", "--links", "100", "--rate", "20000"];
    let measured = bench(&[&["frontier"], &few[..]].concat());
    let rate = measured["links_per_second"]["p50"].as_f64().unwrap();
    // The first page of links is there at the beginning.
    assert!(rate < 20_500.0, "{measured}");
}

#[test]
fn what_is_kept_is_replayed() {
    let few = ["replay", "--events", "2000", "--runs", "2"];
    let measured = bench(&[&few, &MEMORY[..]].concat());
    expect_figures(&measured, &["replayed_per_second", "broker_peak_mib"]);
}

#[test]
fn connections_come_and_go() {
    let measured = bench(&[&["connect"], &SHORT[..], &MEMORY].concat());
    expect_figures(&measured, &["cycles_per_second", "broker_cpu_us_per_1000_cycles"]);
}

#[test]
fn a_stalled_subscriber_misses_nothing_silently() {
    let few = ["stalled", "--subscribers", "3", "--window", "1000", "--seconds", "1"];
    let measured = bench(&[&few, &MEMORY[..]].concat());
    expect_figures(&measured, &["others_kept", "stalled_missed_events", "broker_grown_mib"]);
    let end = measured["stalled_end"].as_str().unwrap();
    assert!(["everything", "told what is gone"].contains(&end), "{measured}");
}

#[test]
fn a_broker_that_runs_already_is_measured_from_outside() {
    let server = Server::broker();
    let address = server.address.to_string();
    let few = ["fan-out", "--subscribers", "2", "--window", "100", "--broker", &address];
    let measured = bench(&[&few, &SHORT[..]].concat());
    expect_figures(&measured, &["deliveries_per_second"]);
    assert!(measured["broker_cpus"].is_null(), "its process is not known: {measured}");
}

#[test]
fn a_disk_that_is_memory_is_refused_where_figures_are_about_a_disk() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.contains(" /dev/shm tmpfs ") {
        eprintln!("skipped: /dev/shm is no tmpfs here");
        return;
    }
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let ended = run(folder.path(), &["bench", "publish", "--sync", "always"]).expect_code(1);
    assert!(ended.stderr().contains("tmpfs"), "{}", ended.stderr());
}

#[test]
fn a_table_for_people_names_what_was_measured() {
    let folder = TempDir::new().unwrap();
    let few = ["bench", "fan-out", "--subscribers", "2", "--window", "100"];
    let ended = run(folder.path(), &[&few, &SHORT[..]].concat()).expect_code(0);
    let lines = ended.stdout();
    assert!(
        lines[0].starts_with("fan-out, a broker of its own: 1 publisher to 2 subs"),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("broker peak MiB")), "{lines:?}");
}
