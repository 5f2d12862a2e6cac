//! Who is called back: a server in Python's standard library that tells what it is told.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::process::Running;

/// Runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    process: Running,
    pub(crate) port: u16,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) path: String,
    /// As it came.
    pub(crate) body: String,
    /// Seconds of some clock.
    pub(crate) at: f64,
    headers: Value,
}

impl Told {
    #[track_caller]
    fn read(line: &str) -> Self {
        let seen: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| seen[key].as_str().unwrap().to_owned();
        let at = seen["at"].as_f64().unwrap();
        Self { path: text("path"), body: text("body"), at, headers: seen["headers"].clone() }
    }

    /// A header, which it has to have.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].as_str().unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.get(name).is_some()
    }

    /// The body as JSON, which it has to be.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Receiver {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/receiver.py");
        let process = Running::start(Command::new("python3").arg(script));
        let port = process.line("port", |line| line.strip_prefix("port ")?.parse().ok());
        Self { process, port }
    }

    /// A URL of it, with the statuses that its answers have, one after the other.
    pub(crate) fn url(&self, statuses: &str, name: &str) -> String {
        format!("http://127.0.0.1:{}/{statuses}/{name}", self.port)
    }

    /// The first `count` requests of all.
    #[track_caller]
    pub(crate) fn told(&self, count: usize) -> Vec<Told> {
        let lines = self.process.stdout_lines(count + 1);
        lines[1..=count].iter().map(|line| Told::read(line)).collect()
    }

    /// Everything so far.
    pub(crate) fn told_so_far(&self) -> Vec<Told> {
        let mut told = Vec::new();
        self.process.printed(|line| {
            if line.starts_with('{') {
                told.push(Told::read(line));
            }
            None::<()>
        });
        told
    }

    /// The first requests for this name.
    #[track_caller]
    pub(crate) fn told_of(&self, name: &str, count: usize) -> Vec<Told> {
        let name = format!("/{name}");
        let mut told = Vec::new();
        self.process.line(&format!("{count} requests for {name}"), |line| {
            let seen = line.starts_with('{').then(|| Told::read(line));
            told.extend(seen.filter(|seen| seen.path.ends_with(&name)));
            (told.len() >= count).then_some(())
        });
        told
    }
}
