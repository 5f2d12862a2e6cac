//! A client for the broker's HTTP interface; it runs curl.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::process::{Process, Server};

/// A response, as curl received it.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The header lines; names are in lower case.
    pub(crate) head: Vec<String>,
    pub(crate) body: String,
}

impl HttpResponse {
    /// The body as JSON; fails if it is not JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &&String| line.starts_with(&format!("{name}:"));
        Some(self.head.iter().find(line)?.split_once(':')?.1.trim())
    }
}

/// A request and its response.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HttpExchange {
    pub(crate) method: String,
    /// The path without its query.
    pub(crate) path: String,
    pub(crate) status: u16,
    /// The `Content-Type` of the response.
    pub(crate) content_type: Option<String>,
    pub(crate) body: String,
}

/// Sends requests to one broker and records all exchanges.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pub(crate) base_url: String,
    exchanges: Mutex<BTreeSet<HttpExchange>>,
}

impl HttpClient {
    /// A client for this server; waits until the server has printed its HTTP address.
    #[track_caller]
    pub(crate) fn new(server: &Server) -> Self {
        Self::at(&server.process)
    }

    /// The same for a process that is not a broker.
    #[track_caller]
    pub(crate) fn at(process: &Process) -> Self {
        let base_url = process.wait_for_line("HTTP address", |line| {
            let (_, address) = line.split_once("HTTP").and_then(|(_, at)| at.split_once(" at "))?;
            Some(address.trim_end_matches('/').to_owned())
        });
        Self { base_url, exchanges: Mutex::default() }
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> &str {
        self.base_url.trim_start_matches("http://")
    }

    /// Runs curl with these arguments. `method` must be the method that they produce.
    #[track_caller]
    pub(crate) fn request(&self, method: &str, path: &str, arguments: &[&str]) -> HttpResponse {
        self.try_request(method, path, arguments)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Like `request`, but returns curl's error if there was no response.
    pub(crate) fn try_request(
        &self,
        method: &str,
        path: &str,
        arguments: &[&str],
    ) -> Result<HttpResponse, String> {
        let mut command = self.curl(path);
        let output = command
            .args(["--include", "--max-time", "600", "--request", method])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if text.is_empty() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let got = parse_response(&text);
        self.exchanges.lock().unwrap().insert(HttpExchange {
            method: method.to_owned(),
            path: path.split('?').next().unwrap_or_default().to_owned(),
            status: got.status,
            content_type: got.header("content-type").map(str::to_owned),
            body: got.body.clone(),
        });
        Ok(got)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.request("GET", path, &[])
    }

    /// All events of a topic; none if the topic does not exist.
    #[track_caller]
    pub(crate) fn events(&self, topic: &str) -> Vec<String> {
        let (mut all, mut from) = (Vec::new(), "first".to_owned());
        loop {
            let got = self.get(&format!("/topics/{topic}?from={from}&wait=0"));
            if got.status == 404 {
                return all;
            }
            let page = got.json();
            let events = page["events"].as_array().unwrap_or_else(|| panic!("{page}"));
            if events.is_empty() {
                return all;
            }
            all.extend(events.iter().map(|event| event["payload"].as_str().unwrap().to_owned()));
            from = page["next"].to_string();
        }
    }

    /// Sends a body of lines.
    #[track_caller]
    pub(crate) fn post_lines(&self, path: &str, body: &str) -> HttpResponse {
        self.send_body("POST", path, "text/plain", &[], body)
    }

    /// Sends a JSON body.
    #[track_caller]
    pub(crate) fn send_json(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        self.send_body(method, path, "application/json", &[], body)
    }

    /// Sends a body of this type, with more headers of the form `NAME: VALUE`.
    #[track_caller]
    pub(crate) fn send_body(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        headers: &[&str],
        body: &str,
    ) -> HttpResponse {
        // A file, because a body may be longer than a command-line argument.
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(body.as_bytes()).unwrap();
        let (kind, body) = (format!("content-type: {kind}"), format!("@{}", file.path().display()));
        let mut arguments = vec!["--header", &kind, "--data-binary", &body];
        arguments.extend(headers.iter().flat_map(|header| ["--header", header]));
        self.request(method, path, &arguments)
    }

    /// Starts a request that stays open while others are made; curl prints data as it arrives.
    #[track_caller]
    pub(crate) fn stream(&self, path: &str, arguments: &[&str]) -> Process {
        Process::start(self.curl(path).arg("--no-buffer").args(arguments))
    }

    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--globoff", "--path-as-is"]);
        command.arg(format!("{}{path}", self.base_url));
        command
    }

    /// All exchanges so far.
    pub(crate) fn exchanges(&self) -> BTreeSet<HttpExchange> {
        self.exchanges.lock().unwrap().clone()
    }
}

/// Reads the output of `curl --include`: the last response, after those with a status of 1xx.
#[track_caller]
fn parse_response(text: &str) -> HttpResponse {
    let (head, body) = text.split_once("\r\n\r\n").expect("a head that ends with an empty line");
    let mut lines = head.lines();
    let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    if status < 200 {
        return parse_response(body);
    }
    let lower = |line: &str| match line.split_once(':') {
        Some((name, value)) => format!("{}:{value}", name.to_lowercase()),
        None => line.to_owned(),
    };
    HttpResponse { status, head: lines.map(lower).collect(), body: body.to_owned() }
}
