//! An HTTP server for callbacks, written with Python's standard library, that records every
//! request.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::process::Process;

/// A running server; it stops when dropped.
#[derive(Debug)]
pub(crate) struct CallbackServer {
    process: Process,
    pub(crate) port: u16,
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct CallbackRequest {
    pub(crate) path: String,
    /// The body, unchanged.
    pub(crate) body: String,
    /// The time in seconds of a monotonic clock.
    pub(crate) received_at: f64,
    headers: Value,
}

impl CallbackRequest {
    #[track_caller]
    fn parse(line: &str) -> Self {
        let request: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| request[key].as_str().unwrap().to_owned();
        let received_at = request["at"].as_f64().unwrap();
        Self {
            path: text("path"),
            body: text("body"),
            received_at,
            headers: request["headers"].clone(),
        }
    }

    /// The value of a header; fails if the header is missing.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].as_str().unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.get(name).is_some()
    }

    /// Headers and body as an object.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "headers": self.headers, "body": self.body })
    }

    /// The body as JSON; fails if it is not JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl CallbackServer {
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::start_at(0)
    }

    /// Starts a server at the port of an earlier one.
    #[track_caller]
    pub(crate) fn start_at(port: u16) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/callback_server.py");
        let process = Process::start(Command::new("python3").arg(script).arg(port.to_string()));
        let port = process.wait_for_line("port", |line| line.strip_prefix("port ")?.parse().ok());
        Self { process, port }
    }

    /// A URL of this server. `statuses` are the status codes of its responses, in order.
    pub(crate) fn url(&self, statuses: &str, name: &str) -> String {
        format!("http://127.0.0.1:{}/{statuses}/{name}", self.port)
    }

    /// Waits for `count` requests and returns the first `count` of all.
    #[track_caller]
    pub(crate) fn first_requests(&self, count: usize) -> Vec<CallbackRequest> {
        let lines = self.process.wait_for_stdout_lines(count + 1);
        lines[1..=count].iter().map(|line| CallbackRequest::parse(line)).collect()
    }

    /// All requests so far.
    pub(crate) fn requests_so_far(&self) -> Vec<CallbackRequest> {
        let mut requests = Vec::new();
        self.process.find_line(|line| {
            if line.starts_with('{') {
                requests.push(CallbackRequest::parse(line));
            }
            None::<()>
        });
        requests
    }

    /// Waits for `count` requests to paths that end in `name`, and returns them.
    #[track_caller]
    pub(crate) fn first_requests_to(&self, name: &str, count: usize) -> Vec<CallbackRequest> {
        let name = format!("/{name}");
        let mut requests = Vec::new();
        self.process.wait_for_line(&format!("{count} requests for {name}"), |line| {
            let request = line.starts_with('{').then(|| CallbackRequest::parse(line));
            requests.extend(request.filter(|request| request.path.ends_with(&name)));
            (requests.len() >= count).then_some(())
        });
        requests
    }
}
