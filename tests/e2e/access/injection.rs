//! Injection: names, links, titles, ids, attributes, headers and files full of line ends,
//! separators and terminal escapes, over every transport. None of it becomes another event,
//! attribute or log record, and none reaches a terminal unescaped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidings_protocol::text::is_invisible;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::openssl::hmac;
use crate::support::origin::{Origin, Site, full_response, html_response};
use crate::support::process::{Process, ProcessOutput, Server, run_at, tidings_command};
use crate::support::wait::{time_left, wait_until};
use crate::support::zmq::{message, printed_endpoint, start_peer};

/// Characters that end lines or words for some program, and sequences that act on a terminal.
const UNSAFE_TEXTS: [&str; 24] = [
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\0",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1e",
    "\x07",
    "\x08",
    "\x1b[2J",
    "\x7f",
    "\u{85}",
    "\u{9b}31m",
    "\u{9d}0;x\u{9c}",
    "\u{2028}",
    "\u{2029}",
    "\u{202e}",
    "\u{2066}",
    "\u{200b}",
    "\u{feff}",
    "\u{3000}",
    "\u{a0}",
];

/// What would appear if one of them ended a line or a word.
const FORGED_ATTRIBUTE: &str = "forged=1";
const FORGED_RECORD: &str = "1999-01-01T00:00:00.000000Z ERROR forged";

/// The secret of the webhook.
const SECRET: &str = "a secret of a CMS and of a broker";

const HOOK: &str = "[[hook]]\nname = 'cms'\nsecret-file = 'secret'\nsignature = 'github'\nurl = { pointer = '/url' }\n\
    prefixes = ['http://blog.example/']\ntopic = 'hooked'\n";

/// A value with a forged attribute, a forged log record and a forged JSON record, separated by the
/// mark.
fn hostile_value(mark: &str) -> String {
    format!("v{mark}{FORGED_ATTRIBUTE}{mark}{FORGED_RECORD}{mark}{{\"level\":\"ERROR\"}}{mark}")
}

/// One word of such a value.
fn hostile_word(mark: &str) -> String {
    format!("v{mark}{FORGED_ATTRIBUTE}{mark}v")
}

/// Whether a line may contain the mark. A line end and a tab have a meaning of their own there.
fn fits_in_a_line(mark: &str) -> bool {
    !mark.contains(['\n', '\t'])
}

/// Percent-encodes every byte.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        write!(all, "%{byte:02X}").unwrap();
        all
    })
}

/// A server with all transports and all logs.
struct Target {
    server: Server,
    http: HttpClient,
    pull_endpoint: String,
    /// Number of events that the broker accepted on `inject`.
    published: usize,
}

impl Target {
    #[track_caller]
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("secret"), SECRET).unwrap();
        fs::write(folder.path().join("hooks.toml"), HOOK).unwrap();
        let command = [
            "up",
            "--allow-private",
            "--config",
            "hooks.toml",
            "--hub",
            "http://127.0.0.1:9/",
            "--public-url",
            "http://blog.example/",
            "--hub-rate",
            "100000",
            "--log-lines",
            "--log",
            "debug",
            "--zmq-pull=tcp://127.0.0.1:0",
            "--audit",
            "audit.log",
        ];
        let server = Server::start_in(folder, &command, |_| ());
        let pull_endpoint = printed_endpoint(&server.process, "ZeroMQ publishers at ");
        let http = HttpClient::new(&server);
        Self { http, server, pull_endpoint, published: 0 }
    }

    /// Sends these bytes as a request.
    #[track_caller]
    fn send_raw(&self, bytes: &str) -> String {
        let address: SocketAddr = self.http.authority().parse().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(time_left())).unwrap();
        let _ = stream.write_all(bytes.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Posts an event, which the broker accepts as one event or rejects.
    #[track_caller]
    fn post_event(&mut self, kind: &str, body: &str) {
        let got = self.http.send_body("POST", "/topics/inject", kind, &[], body);
        match got.status {
            200 => {
                assert_eq!(got.json()["seqs"].as_array().unwrap().len(), 1, "{body:?}");
                self.published += 1;
            }
            400 => {}
            other => panic!("{other} to {body:?}"),
        }
    }

    /// Uses the mark in every verb and field of a line, and in a line of a peer.
    #[track_caller]
    fn inject_by_line(&mut self, mark: &str) {
        if !fits_in_a_line(mark) {
            return;
        }
        let word = hostile_word(mark);
        let mut client = LineConnection::connect_client(self.server.address);
        for command in [
            format!("PUB inject http://a.example/ title={word}"),
            format!("PUB inject http://a.example/{word}"),
            format!("PUB inject text {word}"),
        ] {
            if client.request(&command).starts_with("+OK ") {
                self.published += 1;
            }
        }
        for command in [
            format!("HELLO name={word}"),
            format!("SUB {word}"),
            format!("SUB inject as={word}"),
            format!("JOIN {word}"),
            format!("GROUP set {word} delay=1s"),
            format!("JOB open {word}"),
            format!("JOB open name={word}"),
            format!("EXPLAIN {word}"),
            format!("NACK {word} reason={word}"),
            format!("TOPIC show {word}"),
            format!("{word} {word}"),
        ] {
            client.request_lines(&command);
        }
        let mut peer = LineConnection::connect_peer(self.server.address);
        peer.send(format!("said\n{word}\n\x04"));
        peer.read_to_end();
    }

    #[track_caller]
    fn inject_by_http(&mut self, mark: &str) {
        let (value, word) = (hostile_value(mark), hostile_word(mark));
        if fits_in_a_line(mark) {
            self.post_event("text/plain", &format!("http://a.example/ title={word}"));
        }
        let json = "application/json";
        let events = [
            json!(format!("http://a.example/{mark}PUB inject x")),
            json!({"target": format!("http://a.example/{word}"), "attributes": {"title": "v"}}),
            json!({"target": "http://a.example/", "attributes": {"title": word}}),
            json!({"target": "http://a.example/", "attributes": {"title": value}}),
            json!({"target": "http://a.example/", "attributes": {word.clone(): "v"}}),
            json!({"target": "http://a.example/", "attributes": {"id": word}}),
        ];
        for event in events {
            // In an event that is one text, a tab separates words as in a line.
            if event.is_object() || mark != "\t" {
                self.post_event(json, &json!({"events": [event]}).to_string());
            }
        }
        self.http.send_json("POST", "/jobs", &json!({"name": value, "urls": [value]}).to_string());
        self.http.send_json("PUT", &format!("/groups/{}", percent_encoded(&value)), "{}");
        self.http.send_json("PUT", "/groups/inject", &json!({"topics": value}).to_string());
        for path in [
            "/topics/",
            "/groups/",
            "/jobs/",
            "/hooks/",
            "/explain?what=",
            "/topics/inject?from=",
            "/topics?x=",
        ] {
            self.http.get(&format!("{path}{}", percent_encoded(&value)));
        }
        for name in [
            "Last-Event-ID",
            "Idempotency-Key",
            "User-Agent",
            "Origin",
            "X-Forwarded-For",
            "Cookie",
            "Referer",
        ] {
            let head = "POST /topics/inject?wait=0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0";
            self.send_raw(&format!("{head}\r\n{name}: {value}\r\n\r\n"));
        }
        self.send_raw(&format!("GET /topics HTTP/1.1\r\nHost: {value}\r\n\r\n"));
        self.send_raw(&format!(
            "GET /topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tdg_{value}\r\n\r\n"
        ));
        self.send_raw(&format!("GET /{value} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.send_raw(&format!("{value} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }

    #[track_caller]
    fn inject_by_webhook_and_hub(&self, mark: &str) {
        let value = hostile_value(mark);
        let body =
            json!({"url": format!("http://blog.example/{value}"), "title": value, "id": value})
                .to_string();
        let signature = format!("X-Hub-Signature-256: sha256={}", hmac("sha256", SECRET, &body));
        let got =
            self.http.send_body("POST", "/hooks/cms", "application/json", &[&signature], &body);
        assert!(matches!(got.status, 200 | 400 | 422), "{got:?}");
        self.http.send_body("POST", "/hooks/cms", "application/json", &[], &body);
        let form = |path: &str, fields: &[(&str, &str)]| {
            let fields =
                fields.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value)));
            let body = fields.collect::<Vec<_>>().join("&");
            self.http.send_body("POST", path, "application/x-www-form-urlencoded", &[], &body);
        };
        let (topic, back) =
            (format!("http://127.0.0.1:9/{value}"), format!("http://127.0.0.1:9/back{value}"));
        for (topic, back, secret) in
            [(&*topic, "http://127.0.0.1:9/b", "s"), ("http://127.0.0.1:9/a", &back, &value)]
        {
            let mode = ("hub.mode", "subscribe");
            form(
                "/hub",
                &[mode, ("hub.topic", topic), ("hub.callback", back), ("hub.secret", secret)],
            );
        }
        form("/hub", &[("hub.mode", &value), ("hub.lease_seconds", &value)]);
        form("/hub", &[("hub.mode", "publish"), ("hub.url", &topic)]);
        form("/hub/ping", &[("url", &topic)]);
        form(
            "/hub/rsscloud",
            &[
                ("domain", &value),
                ("port", "9"),
                ("path", &value),
                ("protocol", "http-post"),
                ("url1", &topic),
            ],
        );
    }

    /// Creates files with such names.
    #[track_caller]
    fn inject_by_files(&self) -> ProcessOutput {
        let dir = TempDir::new().unwrap();
        let marks: Vec<_> = UNSAFE_TEXTS.iter().filter(|mark| !mark.contains('\0')).collect();
        for mark in &marks {
            File::create(dir.path().join(hostile_value(mark))).unwrap();
        }
        let mut watch = tidings_command(
            self.server.folder.path(),
            ["watch", "--once", "--data", "watched", "--log", "debug"],
        );
        watch.args(["--broker", &self.server.address_text()]).arg(dir.path());
        let finished = Process::start(&mut watch).finish().expect_code(0);
        let events = self.http.events("file-ready");
        let count = events.iter().filter(|event| event.contains(" size=")).count();
        assert_eq!(count, marks.len(), "{events:#?}");
        finished
    }

    #[track_caller]
    fn inject_by_zmq(&mut self) {
        let mut pusher = start_peer(&["push", &self.pull_endpoint]);
        for mark in UNSAFE_TEXTS {
            // A character of a message is one byte there.
            let bytes = |text: &str| text.bytes().map(char::from).collect::<String>();
            pusher.write(message(&[
                "zmq",
                &bytes(&format!("http://a.example/ title={}", hostile_word(mark))),
            ]));
            pusher.write(message(&[&bytes(&hostile_word(mark)), "x"]));
        }
        pusher.write(message(&["zmq", "the-end"]));
        pusher.close_stdin();
        pusher.finish().expect_code(0);
        // Each topic is synced by itself, so only an event of this one comes after the others.
        let events = wait_until("the last message", || {
            let mut events = self.http.events("zmq");
            events.pop_if(|last| last == "the-end").map(|_| events)
        });
        let within = UNSAFE_TEXTS
            .iter()
            .filter(|mark| !mark.contains(char::is_control) || **mark == "\t")
            .count();
        assert_eq!(events.len(), within, "{events:#?}");
    }

    /// Serves a feed in which every field of every item contains a mark.
    #[track_caller]
    fn inject_by_feed(&self) {
        let text = |mark: &str| {
            let mut text = String::new();
            for c in hostile_value(mark).chars() {
                if is_invisible(c) || "<&\"".contains(c) {
                    write!(text, "&#{};", u32::from(c)).unwrap();
                } else {
                    text.push(c);
                }
            }
            text
        };
        let item = |(at, mark): (usize, &&str)| {
            let text = text(mark);
            format!(
                "<item><title>{text}</title><link>/item/{at}?{text}</link><guid>{text}</guid><author>{text}</author></item>"
            )
        };
        // XML has no NUL, not even as a character reference.
        let marks = UNSAFE_TEXTS.iter().filter(|mark| !mark.contains('\0'));
        let items: String = marks.clone().enumerate().map(item).collect();
        let feed = format!(
            "<rss version=\"2.0\"><channel><title>{}</title>{items}</channel></rss>",
            text("\n")
        );
        let origin = Origin::serve_with(Site::default(), move |hit| {
            Some(match &*hit.path {
                "/feed" => full_response("200 OK", "Content-Type: application/rss+xml\r\n", &feed),
                _ => html_response("<title>one\ntwo &#8232; &#133; &#27;[2J forged=1</title>"),
            })
        });
        run_at(&self.server, &["watch-feed", &origin.url(0, "/feed"), "--every", "1h"])
            .expect_code(0);
        let items = wait_until("the items", || {
            let events = self.http.events("post-ready");
            (events.len() >= marks.clone().count()).then_some(events)
        });
        assert_eq!(items.len(), marks.count(), "{items:#?}");
    }

    /// Checks the events of all topics.
    #[track_caller]
    fn check_events(&self) {
        assert_eq!(self.http.events("inject").len(), self.published);
        let topics = self.http.get("/topics").json();
        for topic in topics["topics"].as_array().unwrap_or_else(|| panic!("{topics}")) {
            let topic = topic["topic"]
                .as_str()
                .or_else(|| topic["name"].as_str())
                .unwrap_or_else(|| panic!("{topic}"));
            assert!(topic.bytes().all(|byte| byte.is_ascii_graphic()), "{topic:?}");
            for event in self.http.events(topic) {
                assert!(
                    !event.contains(|c: char| c.is_control() && c != '\t'),
                    "{topic}: {event:?}"
                );
                assert!(
                    !event.starts_with("PUB") && !event.starts_with("1999"),
                    "{topic}: {event:?}"
                );
                let mut words = event.split([' ', '\t']);
                assert!(
                    topic == "zmq" || !words.any(|word| word.starts_with("forged")),
                    "{topic}: {event:?}"
                );
            }
        }
    }
}

/// Checks that each line is one record and contains no control characters.
#[track_caller]
fn check_log(finished: &ProcessOutput) {
    let mut records = 0;
    for line in finished.stderr().split('\n') {
        assert!(!line.contains(is_invisible), "{line:?}");
        let time = line.split_once(' ').map(|(time, _)| time);
        if time.is_some_and(|time| time.len() == 27 && time.ends_with('Z')) {
            assert!(!line.starts_with("1999"), "{line:?}");
            records += 1;
        } else {
            // Lines of the program that are meant for people. One of them quotes a rejected line
            // after its own words.
            let is_quote = line.starts_with("not a URL: ") || line.starts_with("not fetched: ");
            assert!(is_quote || !line.contains("forged"), "{line:?}");
        }
    }
    assert!(records > 1_000, "{records}");
}

fn is_invisible_except_newline(c: char) -> bool {
    is_invisible(c) && c != '\n'
}

#[test]
#[ignore = "needs foreign programs"]
fn hostile_input_adds_no_event_attribute_or_log_record() {
    let mut target = Target::start();
    for mark in UNSAFE_TEXTS {
        target.inject_by_line(mark);
        target.inject_by_http(mark);
        target.inject_by_webhook_and_hub(mark);
    }
    target.inject_by_zmq();
    target.inject_by_feed();
    let watched = target.inject_by_files();
    assert!(!watched.stderr().contains(is_invisible_except_newline), "{}", watched.stderr());
    target.check_events();
    let Target { server: Server { process, folder, .. }, .. } = target;
    check_log(&process.signal_and_finish("TERM").expect_code(0));
    let audit = fs::read_to_string(folder.path().join("audit.log")).unwrap();
    for line in audit.split_terminator('\n') {
        assert!(!line.contains(is_invisible), "{line:?}");
        let record: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert!(record["what"].is_string(), "{line:?}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn payloads_are_escaped_on_a_terminal_and_verbatim_in_a_pipe() {
    let server = Server::start_broker();
    let marks = UNSAFE_TEXTS.iter().filter(|mark| !mark.contains(char::is_control)).copied();
    let events: Vec<_> = marks.chain(["\t"]).map(|mark| format!("a{mark}b")).collect();
    let mut connection = LineConnection::connect_client(server.address);
    for event in &events {
        connection.request_ok(&format!("PUB inject {event}"));
    }
    let count = events.len().to_string();
    let received = |more_flags: &[&str]| {
        let all = ["sub", "inject", "--from", "first", "--count", &count];
        run_at(&server, &[&all[..], more_flags].concat()).expect_code(0).stdout()
    };
    assert_eq!(received(&[]), events);
    let json = received(&["--json"]);
    for (line, event) in json.iter().zip(&events) {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["payload"], **event);
    }
    assert!(json.concat().contains('\u{202e}'));
    // The same on a terminal, which `script` provides.
    for (more_flags, is_json) in [
        ("--from first", false),
        ("--from first --json", true),
        ("--group seen", false),
        ("--group seen-as-json --json", true),
    ] {
        let (tidings, broker) = (env!("CARGO_BIN_EXE_tidings"), server.address);
        let command =
            format!("{tidings} sub inject --count {count} --broker {broker} {more_flags}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        let seen = Process::start(&mut script).finish().expect_code(0).stdout();
        let shown = seen.concat();
        assert!(
            !shown.contains(|c| is_invisible(c) && !matches!(c, '\r' | '\n' | '\t')),
            "{shown:?}"
        );
        let escaped = if is_json { "\\u202e" } else { "\\u{202e}" };
        assert!(shown.contains(escaped) && shown.contains("a\u{a0}b"), "{more_flags:?}: {shown:?}");
        if is_json {
            // A group delivers in any order, and prints notes before the events.
            let objects = seen.iter().filter(|line| line.starts_with('{'));
            let payload = |line: &String| {
                let event: Value = serde_json::from_str(line).unwrap();
                event["payload"].as_str().unwrap().to_owned()
            };
            let payloads: BTreeSet<_> = objects.map(payload).collect();
            assert_eq!(payloads, events.iter().cloned().collect());
        }
    }
}

#[test]
fn error_messages_of_a_broker_are_escaped() {
    // A server that plays a broker with a hostile answer.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(
            b"Connected.  (PID 1)\r\n-ERR internal \x1b[2J\xc2\x9b31m\xe2\x80\xa8forged\r\n",
        );
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let folder = TempDir::new().unwrap();
    let mut command: Command =
        tidings_command(folder.path(), ["topic", "ls", "--broker", &address.to_string()]);
    let finished = Process::start(&mut command).finish();
    assert_ne!(finished.code, Some(0));
    let output = finished.stderr();
    assert!(!output.is_empty() && !output.contains(is_invisible_except_newline), "{output:?}");
    answering.join().unwrap();
}
