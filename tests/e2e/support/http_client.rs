//! The broker's HTTP, asked with curl.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::process::{Process, Server};

/// What curl got.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// Lines of the head, in lower case up to the colon.
    pub(crate) head: Vec<String>,
    pub(crate) body: String,
}

impl HttpResponse {
    /// The body as JSON, which it has to be.
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

/// What was asked, and answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HttpExchange {
    pub(crate) method: String,
    /// Without a query.
    pub(crate) path: String,
    pub(crate) status: u16,
    /// Its `Content-Type`.
    pub(crate) content_type: Option<String>,
    pub(crate) body: String,
}

/// Asks one broker, and remembers which answers it has had to what.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pub(crate) base_url: String,
    exchanges: Mutex<BTreeSet<HttpExchange>>,
}

impl HttpClient {
    /// The HTTP of a server, wherever that is.
    #[track_caller]
    pub(crate) fn new(server: &Server) -> Self {
        let base_url = server.process.wait_for_line("where HTTP is", |line| {
            let (_, address) = line.split_once("HTTP at ")?;
            Some(address.trim_end_matches('/').to_owned())
        });
        Self { base_url, exchanges: Mutex::default() }
    }

    /// Address and port.
    pub(crate) fn authority(&self) -> &str {
        self.base_url.trim_start_matches("http://")
    }

    /// A request as curl makes it of these arguments; `method` is what it will be.
    #[track_caller]
    pub(crate) fn request(&self, method: &str, path: &str, arguments: &[&str]) -> HttpResponse {
        self.try_request(method, path, arguments)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// The same, or what curl says of why there was no answer.
    pub(crate) fn try_request(
        &self,
        method: &str,
        path: &str,
        arguments: &[&str],
    ) -> Result<HttpResponse, String> {
        let mut command = self.curl(path);
        let output = command
            .args(["--include", "--max-time", "60", "--request", method])
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

    /// All events of a topic; none of one that is not there.
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

    /// A body of lines.
    #[track_caller]
    pub(crate) fn post_lines(&self, path: &str, body: &str) -> HttpResponse {
        self.send_body("POST", path, "text/plain", &[], body)
    }

    /// A body of JSON.
    #[track_caller]
    pub(crate) fn send_json(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        self.send_body(method, path, "application/json", &[], body)
    }

    /// A body of that type, with further headers of the form `NAME: VALUE`.
    #[track_caller]
    pub(crate) fn send_body(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        headers: &[&str],
        body: &str,
    ) -> HttpResponse {
        // Longer ones than an argument may be.
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(body.as_bytes()).unwrap();
        let (kind, body) = (format!("content-type: {kind}"), format!("@{}", file.path().display()));
        let mut arguments = vec!["--header", &kind, "--data-binary", &body];
        arguments.extend(headers.iter().flat_map(|header| ["--header", header]));
        self.request(method, path, &arguments)
    }

    /// A request that goes on while others are made; curl prints what comes as it comes.
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

    /// All answers so far.
    pub(crate) fn exchanges(&self) -> BTreeSet<HttpExchange> {
        self.exchanges.lock().unwrap().clone()
    }
}

/// Reads what `curl --include` prints: the last response, after those with a status of 1xx.
#[track_caller]
fn parse_response(text: &str) -> HttpResponse {
    let (head, body) = text.split_once("\r\n\r\n").expect("a head ends");
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
