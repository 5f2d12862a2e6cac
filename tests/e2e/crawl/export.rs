//! `tidings export` combines the pages that several crawls have stored.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, run_tidings, started_by, tidings_command};

/// Two crawls of different hosts, each with its own data directory and JSON lines file.
fn crawl_two_hosts() -> (TempDir, Origin) {
    let origin = Origin::serve(Site { hosts: 2, pages: 12, ..Site::default() });
    let folder = TempDir::new().unwrap();
    for (host, data) in [(0, "a"), (1, "b")] {
        let jsonl = format!("--jsonl={data}.jsonl");
        let arguments = ["crawl", "--allow-private", "--sqlite", &jsonl, "--data", data];
        run_tidings(folder.path(), &[&arguments[..], &[&origin.url(host, "/p/0")]].concat())
            .expect_code(0);
    }
    (folder, origin)
}

fn read_file_lines(folder: &Path, file: &str) -> Vec<String> {
    fs::read_to_string(folder.join(file)).unwrap().lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn export_merges_two_crawls_by_time() {
    let (folder, _origin) = crawl_two_hosts();
    let folder = folder.path();
    let merged =
        run_tidings(folder, &["export", "a", "b/pages.db", "a.jsonl", "--merge"]).expect_code(0);
    let merged = merged.stdout();
    let expected: BTreeSet<_> =
        [read_file_lines(folder, "a.jsonl"), read_file_lines(folder, "b.jsonl")]
            .concat()
            .into_iter()
            .collect();
    assert_eq!(merged.len(), 48);
    assert_eq!(merged.iter().cloned().collect::<BTreeSet<_>>(), expected);
    let times: Vec<String> = merged
        .iter()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["fetched_at"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    // Without `--merge`, pages keep their order; without an input, the data directory is exported.
    assert_eq!(run_tidings(folder, &["export", "a", "a.jsonl"]).expect_code(0).stdout().len(), 48);
    // Without a delay, two pages may be written to the file in the other order.
    let mut exported = run_tidings(folder, &["export", "--data", "b"]).expect_code(0).stdout();
    let mut stored = read_file_lines(folder, "b.jsonl");
    exported.sort();
    stored.sort();
    assert_eq!(exported, stored);

    let arguments = ["export", "a", "b", "--merge", "--output"];
    let output = run_tidings(folder, &[&arguments[..], &["all.jsonl"]].concat()).expect_code(0);
    assert!(output.stderr().contains("48 records of 48 in all.jsonl"), "{}", output.stderr());
    assert_eq!(read_file_lines(folder, "all.jsonl"), merged);
    let python = Command::new("python3")
        .args(["-m", "json.tool", "--json-lines", "all.jsonl"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(python.success());
    run_tidings(folder, &[&arguments[..], &["all.db", "--format", "sqlite"]].concat())
        .expect_code(0);
    let query = "select count(*), count(distinct url), sum(status = 200) from pages";
    let sqlite3 =
        Command::new("sqlite3").args(["all.db", query]).current_dir(folder).output().unwrap();
    assert_eq!(String::from_utf8(sqlite3.stdout).unwrap(), "48|48|48\n");
    assert_eq!(run_tidings(folder, &["export", "all.db"]).expect_code(0).stdout(), merged);
}

#[test]
fn a_failed_export_is_reported_and_leaves_no_file() {
    let (folder, _origin) = crawl_two_hosts();
    let folder = folder.path();
    run_tidings(folder, &["export", "a", "c", "--output", "out"])
        .expect_code(1)
        .expect_stderr("c: No such file");
    assert!(!folder.join("out").exists());
    run_tidings(folder, &["export", "a", "--output", "b.jsonl"])
        .expect_code(1)
        .expect_stderr("b.jsonl exists already");
    run_tidings(folder, &["export", "a", "--format", "sqlite"]).expect_code(2);

    let export = tidings_command(folder, ["export", "a", "b"]);
    let mut shell = Command::new("bash");
    shell.args(["-c", "\"$0\" \"$@\" | head -1; exit ${PIPESTATUS[0]}"]);
    assert_eq!(
        Process::start(&mut started_by(shell, &export)).finish().expect_code(0).stdout().len(),
        1
    );
}
