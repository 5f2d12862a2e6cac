//! Nothing is confirmed that is not on the disk: read from the system calls of the real binary. A
//! process that is killed cannot show that, because the system writes what a dead process has
//! handed over.

use std::path::Path;

use fastrand::Rng;

use crate::http::openapi::{hook_config, send_hook};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
use crate::support::strace::{SystemCall, read_trace, trace_command};

/// A broker that was traced, with everything that it did.
struct TracedBroker {
    calls: Vec<SystemCall>,
}

impl TracedBroker {
    /// Runs a broker while `work` talks to it, and stops it.
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
            file = Some(trace_command(command, &folder, &[]));
        });
        work(&server);
        let (process, file) = (server.process.id(), file.expect("it was started"));
        server.process.signal_and_finish("TERM").expect_code(0);
        Self { calls: read_trace(&file, process) }
    }

    fn calls_named(&self, names: &[&str]) -> impl Iterator<Item = &SystemCall> {
        self.calls.iter().filter(move |call| names.contains(&call.name.as_str()))
    }

    /// What was sent to sockets.
    fn socket_writes(&self) -> impl Iterator<Item = &SystemCall> {
        self.calls_named(&["sendto", "sendmsg", "write", "writev"])
            .filter(|call| call.target().starts_with("socket:"))
    }

    /// What came from the same socket before this was sent.
    fn received_before(&self, sent: &SystemCall) -> String {
        self.calls_named(&["recvfrom"])
            .filter(|call| call.target() == sent.target() && call.end_line < sent.start_line)
            .map(|call| unescape(&call.arguments))
            .collect()
    }

    /// Checks that a text was written to a file below a directory, that the file was synced after
    /// that, that its name is on the disk, and all that before `told`.
    #[track_caller]
    fn expect_synced(&self, below: &str, text: &str, told: &SystemCall) {
        let writes: Vec<_> = self
            .calls_named(&["pwrite64", "pwritev", "pwritev2", "write", "writev"])
            .filter(|call| call.target().contains(below) && call.arguments.contains(text))
            .collect();
        let synced = writes.iter().any(|write| {
            self.is_synced(write.target(), write.end_line, told)
                && self.is_name_synced(Path::new(write.target()), told)
        });
        assert!(
            synced,
            "{text:?} was confirmed by {told:?}\nbefore it was synced\nwritten: {writes:#?}\nsyncs: {:#?}",
            self.calls_named(&["fdatasync", "fsync"])
                .filter(|call| call.end_line < told.start_line)
                .last()
        );
    }

    /// Whether a file or directory was synced after a line of the trace and before `told`.
    fn is_synced(&self, place: &str, after: usize, told: &SystemCall) -> bool {
        self.calls_named(&["fdatasync", "fsync"]).any(|sync| {
            sync.target() == place
                && sync.succeeded
                && after < sync.start_line
                && sync.end_line < told.start_line
        })
    }

    /// Whether everything that gave this file its name was followed by a sync of the directory with
    /// that name.
    fn is_name_synced(&self, path: &Path, told: &SystemCall) -> bool {
        path.ancestors().take_while(|path| path.parent().is_some()).all(|path| {
            let (name, parent) = (format!("\"{}\"", path.display()), path.parent().unwrap());
            self.calls_named(&["mkdir", "mkdirat", "rename", "renameat", "renameat2"])
                .filter(|call| call.succeeded && creates_name(call, &name))
                .all(|call| self.is_synced(&parent.display().to_string(), call.end_line, told))
        })
    }
}

/// Whether the call makes something of this name. Paths are relative to the folder where the broker
/// was started.
fn creates_name(call: &SystemCall, name: &str) -> bool {
    let made = call.arguments.rsplit('"').nth(1).unwrap_or_default();
    let made = made.strip_prefix("./").unwrap_or(made);
    !made.is_empty() && name.trim_matches('"').ends_with(&format!("/{made}"))
}

/// The text in the arguments of a call, with the line ends as they were.
fn unescape(arguments: &str) -> String {
    let text = arguments.split_once('"').map_or("", |(_, rest)| rest);
    let text = text.rsplit_once('"').map_or("", |(text, _)| text);
    text.replace("\\r", "\r").replace("\\n", "\n")
}

// PROTOCOL: A5, R1
#[test]
fn confirmed_events_were_synced_before() {
    const EACH: usize = 150;
    let topics = ["a", "b", "c"];
    let traced = TracedBroker::run(|server| {
        let mut rng = Rng::with_seed(7);
        let mut pipelines: Vec<_> =
            (0..3).map(|_| PipelinedPublisher::connect(server.address).unwrap()).collect();
        let mut said = 0;
        while said < EACH {
            let burst = rng.usize(1..30).min(EACH - said);
            for (at, pipeline) in pipelines.iter_mut().enumerate() {
                let events = (said..said + burst).map(|n| {
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
            said += burst;
        }
        for pipeline in &mut pipelines {
            pipeline.read_all_outcomes();
        }
    });
    let mut confirmed = 0;
    for told in traced.socket_writes() {
        let text = unescape(&told.arguments);
        let answers = text.lines().filter_map(|line| line.strip_prefix("+OK ")?.split_once(' '));
        let numbers =
            answers.filter_map(|(seq, n)| seq.parse::<u64>().ok().and(n.parse::<usize>().ok()));
        let Some(last) = numbers.max() else { continue };
        let received = traced.received_before(told);
        let published: Vec<_> = received
            .lines()
            .filter_map(|line| line.strip_prefix("PUB ")?.split_once(' '))
            .collect();
        for (topic, payload) in &published[..last] {
            traced.expect_synced(&format!("/topics/{topic}/"), payload, told);
        }
        confirmed += usize::from(last == EACH) * last;
    }
    assert_eq!(
        confirmed,
        3 * EACH,
        "the last answer on each connection tells of all its publishes"
    );
}

// PROTOCOL: S10
#[test]
fn a_farewell_follows_the_sync_of_its_events() {
    let traced = TracedBroker::run(|server| {
        for n in 0..5 {
            let heard = run_nc(server.address, format!("<one of {n}>\n<two of {n}>"));
            assert_eq!(heard.last().unwrap(), FAREWELL);
        }
    });
    let mut farewells = 0;
    for told in traced.socket_writes().filter(|call| call.arguments.contains(FAREWELL)) {
        let received = traced.received_before(told);
        assert_eq!(received.lines().count(), 2, "{received:?}");
        for line in received.lines() {
            traced.expect_synced("/topics/new-url/", line, told);
        }
        farewells += 1;
    }
    assert_eq!(farewells, 5);
}

// PROTOCOL: H2, W6
#[test]
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
        let asked = traced
            .calls_named(&["recvfrom"])
            .find(|call| call.arguments.contains(&url))
            .unwrap_or_else(|| panic!("{path} with {url} was read"));
        let told = traced
            .socket_writes()
            .find(|call| call.target() == asked.target() && asked.end_line < call.start_line)
            .expect("it was answered");
        assert!(told.arguments.contains("HTTP/1.1 200"), "{told:?}");
        traced.expect_synced("/topics/log/", &url, told);
    }
}

#[test]
fn catalog_records_are_synced_before_their_confirmation() {
    let asked = [
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
        for (command, _) in asked {
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
    for (command, record) in asked.iter().filter(|(_, record)| !record.is_empty()) {
        let asked = traced
            .calls_named(&["recvfrom"])
            .find(|call| unescape(&call.arguments).lines().any(|line| line == *command))
            .expect("the command was read");
        let told = traced
            .socket_writes()
            .find(|call| {
                call.target() == asked.target()
                    && asked.end_line < call.start_line
                    && call.arguments.contains("+OK")
            })
            .expect("it was answered");
        let after: Vec<_> = traced
            .calls
            .iter()
            .filter(|call| call.start_line > asked.start_line)
            .cloned()
            .collect();
        TracedBroker { calls: after }.expect_synced("/catalog.log", record, told);
    }
}
