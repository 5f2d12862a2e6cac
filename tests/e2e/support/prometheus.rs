//! Programs of Prometheus: promtool, the server, and the strict parser of its Python library.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::process::Process;

/// Runs a program with this input, and returns its output. It must succeed.
#[track_caller]
fn run(command: &mut Command, input: &str) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    stdout + &stderr
}

/// Runs promtool, and returns what it prints on both streams. It must succeed.
#[track_caller]
pub(crate) fn promtool(arguments: &[&str], input: &str) -> String {
    run(Command::new("promtool").args(arguments), input)
}

/// Parses `OpenMetrics` strictly; an array of families.
#[track_caller]
pub(crate) fn parse_open_metrics(text: &str) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new(root.join("target/venv/bin/python"));
    let printed = run(python.arg(root.join("tests/e2e/support/openmetrics.py")), text);
    serde_json::from_str(&printed).unwrap()
}

/// The samples of a text that are whole numbers: the name with its labels, and the value.
pub(crate) fn samples(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// A running Prometheus.
pub(crate) struct Prometheus {
    _process: Process,
    url: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it with this configuration.
    #[track_caller]
    pub(crate) fn start(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let mut command = Command::new("prometheus");
        command.current_dir(folder.path()).args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]);
        let process = Process::start(&mut command);
        let url = process.wait_for_line("the address", |line| {
            let (_, address) = line.split_once("address=127.0.0.1:")?;
            let port: u16 = address.split(' ').next()?.parse().ok()?;
            (port != 0).then(|| format!("http://127.0.0.1:{port}"))
        });
        process.wait_for_line_with("Server is ready");
        Self { _process: process, url, _folder: folder }
    }

    /// The series that an expression has now.
    #[track_caller]
    pub(crate) fn query(&self, expression: &str) -> Vec<Value> {
        let printed = promtool(&["query", "-o", "json", "instant", &self.url, expression], "");
        serde_json::from_str(&printed).unwrap()
    }

    /// The alerting rules that it has loaded.
    #[track_caller]
    pub(crate) fn rules(&self) -> Vec<Value> {
        let url = format!("{}/api/v1/rules", self.url);
        let printed = run(Command::new("curl").args(["--silent", "--fail", &url]), "");
        let answer: Value = serde_json::from_str(&printed).unwrap();
        let groups = answer["data"]["groups"].as_array().unwrap();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }
}
