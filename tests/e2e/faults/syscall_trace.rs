//! Confirmations come after the sync, as the system calls of the real binary show. A kill cannot
//! show that, because the system still writes the data of a dead process.

use std::path::Path;

use fastrand::Rng;

use crate::http::openapi::{hook_config, send_hook};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
use crate::support::strace::{SystemCall, read_trace, trace_command};

/// The system calls of a broker.
struct TracedBroker {
    calls: Vec<SystemCall>,
}

impl TracedBroker {
    /// Traces a broker while `work` uses it, and stops the broker.
    #[track_caller]
    fn run(work: impl FnOnce(&Server)) -> Self {
        Self::run_with(&[], work)
    }

    /// The same, with more flags.
    #[track_caller]
    fn run_with(flags: &[&str], work: impl FnOnce(&Server)) -> Self {
        let mut file = None;
        let server = Server::start_with(&[&["broker"], flags].concat(), |command| {
            let folder = command.get_current_dir().unwrap().to_owned();
            file = Some(trace_command(command, &folder));
        });
        work(&server);
        let (process, file) = (server.process.id(), file.expect("the broker was started"));
        server.process.signal_and_finish("TERM").expect_code(0);
        Self { calls: read_trace(&file, process) }
    }

    fn calls_named(&self, names: &[&str]) -> impl Iterator<Item = &SystemCall> {
        self.calls.iter().filter(move |call| names.contains(&call.name.as_str()))
    }

    /// Calls that write to sockets.
    fn socket_writes(&self) -> impl Iterator<Item = &SystemCall> {
        self.calls_named(&["sendto", "sendmsg", "write", "writev"])
            .filter(|call| call.target().starts_with("socket:"))
    }

    /// The text that the same socket received before this write.
    fn received_before(&self, sent: &SystemCall) -> String {
        self.calls_named(&["recvfrom"])
            .filter(|call| call.target() == sent.target() && call.end_line < sent.start_line)
            .map(|call| unescape(&call.arguments))
            .collect()
    }

    /// Checks that the text was written to a file below a directory, and that the file and its name
    /// were synced, all before `response`.
    #[track_caller]
    fn expect_synced(&self, below: &str, text: &str, response: &SystemCall) {
        let writes: Vec<_> = self
            .calls_named(&["pwrite64", "pwritev", "pwritev2", "write", "writev"])
            .filter(|call| call.target().contains(below) && call.arguments.contains(text))
            .collect();
        let synced = writes.iter().any(|write| {
            self.is_synced(write.target(), write.end_line, response)
                && self.is_name_synced(Path::new(write.target()), response)
        });
        assert!(
            synced,
            "{text:?} was not synced before its confirmation {response:?}\nwritten: {writes:#?}\nsyncs: {:#?}",
            self.calls_named(&["fdatasync", "fsync"])
                .filter(|call| call.end_line < response.start_line)
                .last()
        );
    }

    /// Whether a file or directory was synced after a line of the trace and before `response`.
    fn is_synced(&self, target: &str, after: usize, response: &SystemCall) -> bool {
        self.calls_named(&["fdatasync", "fsync"]).any(|sync| {
            sync.target() == target
                && sync.succeeded
                && after < sync.start_line
                && sync.end_line < response.start_line
        })
    }

    /// Whether the directory was synced after every call that gave this file its name.
    fn is_name_synced(&self, path: &Path, response: &SystemCall) -> bool {
        path.ancestors().take_while(|path| path.parent().is_some()).all(|path| {
            let (name, parent) = (format!("\"{}\"", path.display()), path.parent().unwrap());
            self.calls_named(&["mkdir", "mkdirat", "rename", "renameat", "renameat2"])
                .filter(|call| call.succeeded && creates_name(call, &name))
                .all(|call| self.is_synced(&parent.display().to_string(), call.end_line, response))
        })
    }
}

/// Whether the call creates this name. Its paths are relative to the broker's working directory.
fn creates_name(call: &SystemCall, name: &str) -> bool {
    let made = call.arguments.rsplit('"').nth(1).unwrap_or_default();
    let made = made.strip_prefix("./").unwrap_or(made);
    !made.is_empty() && name.trim_matches('"').ends_with(&format!("/{made}"))
}

/// The text in the arguments of a call, with line ends unescaped.
fn unescape(arguments: &str) -> String {
    let text = arguments.split_once('"').map_or("", |(_, rest)| rest);
    let text = text.rsplit_once('"').map_or("", |(text, _)| text);
    text.replace("\\r", "\r").replace("\\n", "\n")
}

// PROTOCOL: A5, R1
#[test]
#[ignore = "needs foreign programs"]
fn confirmed_events_were_synced_before() {
    const EVENTS_PER_CONNECTION: usize = 150;
    let topics = ["a", "b", "c"];
    let traced = TracedBroker::run(|server| {
        let mut rng = Rng::with_seed(7);
        let mut pipelines: Vec<_> =
            (0..3).map(|_| PipelinedPublisher::connect(server.address).unwrap()).collect();
        let mut sent_count = 0;
        while sent_count < EVENTS_PER_CONNECTION {
            let burst = rng.usize(1..30).min(EVENTS_PER_CONNECTION - sent_count);
            for (at, pipeline) in pipelines.iter_mut().enumerate() {
                let events = (sent_count..sent_count + burst).map(|n| {
                    let topic = rng.choice(topics).unwrap().to_owned();
                    let payload = format!("<{at}-{n}-{topic}> {}", "x".repeat(rng.usize(..200)));
                    (topic, payload)
                });
                pipeline.send(events);
                let waiting_max = rng.usize(..60);
                while pipeline.pending_count() > waiting_max {
                    pipeline.read_outcomes().unwrap();
                }
            }
            sent_count += burst;
        }
        for pipeline in &mut pipelines {
            pipeline.read_all_outcomes();
        }
    });
    let mut confirmed = 0;
    for response in traced.socket_writes() {
        let text = unescape(&response.arguments);
        let answers = text.lines().filter_map(|line| line.strip_prefix("+OK ")?.split_once(' '));
        let numbers =
            answers.filter_map(|(seq, n)| seq.parse::<u64>().ok().and(n.parse::<usize>().ok()));
        let Some(last) = numbers.max() else { continue };
        let received = traced.received_before(response);
        let published: Vec<_> = received
            .lines()
            .filter_map(|line| line.strip_prefix("PUB ")?.split_once(' '))
            .collect();
        for (topic, payload) in &published[..last] {
            traced.expect_synced(&format!("/topics/{topic}/"), payload, response);
        }
        confirmed += usize::from(last == EVENTS_PER_CONNECTION) * last;
    }
    assert_eq!(
        confirmed,
        3 * EVENTS_PER_CONNECTION,
        "the last response on each connection confirms all its publishes"
    );
}

// PROTOCOL: S10
#[test]
#[ignore = "needs foreign programs"]
fn a_farewell_follows_the_sync_of_its_events() {
    let traced = TracedBroker::run(|server| {
        for n in 0..5 {
            let printed = run_nc(server.address, format!("<one of {n}>\n<two of {n}>"));
            assert_eq!(printed.last().unwrap(), FAREWELL);
        }
    });
    let mut farewells = 0;
    for response in traced.socket_writes().filter(|call| call.arguments.contains(FAREWELL)) {
        let received = traced.received_before(response);
        assert_eq!(received.lines().count(), 2, "{received:?}");
        for line in received.lines() {
            traced.expect_synced("/topics/new-url/", line, response);
        }
        farewells += 1;
    }
    assert_eq!(farewells, 5);
}

// PROTOCOL: H2, W6
#[test]
#[ignore = "needs foreign programs"]
fn events_confirmed_by_http_were_synced_before() {
    let (_folder, config) = hook_config();
    let published = ["/topics/log", "/hooks/h", "/topics/log", "/hooks/h"];
    let traced = TracedBroker::run_with(&["--config", &config], |server| {
        let http = HttpClient::new(server);
        for (n, path) in published.iter().enumerate() {
            let status = match *path {
                "/hooks/h" => {
                    let body = format!(r#"{{"url":"http://a.example/{n}"}}"#);
                    send_hook(&http, "application/json", &body)
                }
                path => http.post_lines(path, &format!("http://a.example/{n}")).status,
            };
            assert_eq!(status, 200, "{path}");
        }
    });
    for (n, path) in published.iter().enumerate() {
        let url = format!("http://a.example/{n}");
        let request = traced
            .calls_named(&["recvfrom"])
            .find(|call| call.arguments.contains(&url))
            .unwrap_or_else(|| panic!("{path} with {url} was read"));
        let response = traced
            .socket_writes()
            .find(|call| call.target() == request.target() && request.end_line < call.start_line)
            .expect("a response was sent");
        assert!(response.arguments.contains("HTTP/1.1 200"), "{response:?}");
        traced.expect_synced("/topics/log/", &url, response);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn catalog_records_are_synced_before_their_confirmation() {
    let commands = [
        ("TOPIC create quick sync=interval retain-bytes=77m", "quick"),
        ("SUB a from=first as=reader", "reader"),
        ("SEEN a 2", "reader"),
        ("TOPIC set quick retain-bytes=78m", "quick"),
        ("SEEN a 3", "reader"),
        ("UNSUB a", ""),
        ("TOPIC forget a cursor=reader", "reader"),
    ];
    let traced = TracedBroker::run(|server| {
        let mut publisher = PipelinedPublisher::connect(server.address).unwrap();
        publisher.send((0..5).map(|n| ("a".to_owned(), n.to_string())));
        publisher.read_all_outcomes();
        let mut client = LineConnection::connect_client(server.address);
        for (command, _) in commands {
            client.send(format!("{command}\n"));
            loop {
                let line = client.read_line();
                assert!(!line.starts_with("-ERR"), "{command}: {line}");
                if line.starts_with("+OK") {
                    break;
                }
            }
        }
    });
    for (command, record) in commands.iter().filter(|(_, record)| !record.is_empty()) {
        let request = traced
            .calls_named(&["recvfrom"])
            .find(|call| unescape(&call.arguments).lines().any(|line| line == *command))
            .expect("the command was read");
        let response = traced
            .socket_writes()
            .find(|call| {
                call.target() == request.target()
                    && request.end_line < call.start_line
                    && call.arguments.contains("+OK")
            })
            .expect("a response was sent");
        let after: Vec<_> = traced
            .calls
            .iter()
            .filter(|call| call.start_line > request.start_line)
            .cloned()
            .collect();
        TracedBroker { calls: after }.expect_synced("/catalog.log", record, response);
    }
}
