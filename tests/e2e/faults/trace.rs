//! Nothing is confirmed that is not on the disk: read from the system calls of the real binary. A
//! process that is killed cannot show that, because the system writes what a dead process has
//! handed over.

use std::path::Path;

use fastrand::Rng;

use crate::http::openapi::{hooked, send_hook};
use crate::support::http::Http;
use crate::support::nc::nc_all;
use crate::support::process::Server;
use crate::support::publisher::Pipeline;
use crate::support::talk::{FAREWELL, Talk};
use crate::support::trace::{Call, calls, traced};

/// A broker that was traced, with everything that it did.
struct Traced {
    calls: Vec<Call>,
}

impl Traced {
    /// Runs a broker while `work` talks to it, and stops it.
    #[track_caller]
    fn broker(work: impl FnOnce(&Server)) -> Self {
        Self::broker_with(&[], work)
    }

    /// The same, with more flags.
    #[track_caller]
    fn broker_with(flags: &[&str], work: impl FnOnce(&Server)) -> Self {
        let mut file = None;
        let server = Server::start_with(&[&["broker"], flags].concat(), |command| {
            let folder = command.get_current_dir().unwrap().to_owned();
            file = Some(traced(command, &folder, &[]));
        });
        work(&server);
        let (process, file) = (server.process.id(), file.expect("it was started"));
        server.process.finish_by("TERM").expect_code(0);
        Self { calls: calls(&file, process) }
    }

    fn named(&self, names: &[&str]) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| names.contains(&call.name.as_str()))
    }

    /// What was sent to sockets.
    fn sent(&self) -> impl Iterator<Item = &Call> {
        self.named(&["sendto", "sendmsg", "write", "writev"])
            .filter(|call| call.place().starts_with("socket:"))
    }

    /// What came from the same socket before this was sent.
    fn received_before(&self, sent: &Call) -> String {
        self.named(&["recvfrom"])
            .filter(|call| call.place() == sent.place() && call.ended < sent.began)
            .map(|call| text_of(&call.arguments))
            .collect()
    }

    /// Checks that a text was written to a file below a directory, that the file was synced after
    /// that, that its name is on the disk, and all that before `told`.
    #[track_caller]
    fn expect_synced(&self, below: &str, text: &str, told: &Call) {
        let writes: Vec<_> = self
            .named(&["pwrite64", "pwritev", "pwritev2", "write", "writev"])
            .filter(|call| call.place().contains(below) && call.arguments.contains(text))
            .collect();
        let synced = writes.iter().any(|write| {
            self.is_synced(write.place(), write.ended, told)
                && self.has_safe_name(Path::new(write.place()), told)
        });
        assert!(
            synced,
            "{text:?} was confirmed by {told:?}\nbefore it was synced\nwritten: {writes:#?}\nsyncs: {:#?}",
            self.named(&["fdatasync", "fsync"]).filter(|call| call.ended < told.began).last()
        );
    }

    /// Whether a file or directory was synced after a line of the trace and before `told`.
    fn is_synced(&self, place: &str, after: usize, told: &Call) -> bool {
        self.named(&["fdatasync", "fsync"]).any(|sync| {
            sync.place() == place && sync.succeeded && after < sync.began && sync.ended < told.began
        })
    }

    /// Whether everything that gave this file its name was followed by a sync of the directory with
    /// that name.
    fn has_safe_name(&self, path: &Path, told: &Call) -> bool {
        path.ancestors().take_while(|path| path.parent().is_some()).all(|path| {
            let (name, parent) = (format!("\"{}\"", path.display()), path.parent().unwrap());
            self.named(&["mkdir", "mkdirat", "rename", "renameat", "renameat2"])
                .filter(|call| call.succeeded && names(call, &name))
                .all(|call| self.is_synced(&parent.display().to_string(), call.ended, told))
        })
    }
}

/// Whether the call makes something of this name. Paths are relative to the folder where the broker
/// was started.
fn names(call: &Call, name: &str) -> bool {
    let made = call.arguments.rsplit('"').nth(1).unwrap_or_default();
    let made = made.strip_prefix("./").unwrap_or(made);
    !made.is_empty() && name.trim_matches('"').ends_with(&format!("/{made}"))
}

/// The text in the arguments of a call, with the line ends as they were.
fn text_of(arguments: &str) -> String {
    let text = arguments.split_once('"').map_or("", |(_, rest)| rest);
    let text = text.rsplit_once('"').map_or("", |(text, _)| text);
    text.replace("\\r", "\r").replace("\\n", "\n")
}

// PROTOCOL: A5, R1
#[test]
fn what_is_confirmed_was_synced_before() {
    const EACH: usize = 150;
    let topics = ["a", "b", "c"];
    let traced = Traced::broker(|server| {
        let mut rng = Rng::with_seed(7);
        let mut pipelines: Vec<_> =
            (0..3).map(|_| Pipeline::connect(server.address).unwrap()).collect();
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
                while pipeline.waiting() > waiting_max {
                    pipeline.answer().unwrap();
                }
            }
            said += burst;
        }
        for pipeline in &mut pipelines {
            pipeline.all_answers();
        }
    });
    let mut confirmed = 0;
    for told in traced.sent() {
        let text = text_of(&told.arguments);
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
fn a_farewell_comes_after_the_sync_of_what_it_confirms() {
    let traced = Traced::broker(|server| {
        for n in 0..5 {
            let heard = nc_all(server.address, format!("<one of {n}>\n<two of {n}>"));
            assert_eq!(heard.last().unwrap(), FAREWELL);
        }
    });
    let mut farewells = 0;
    for told in traced.sent().filter(|call| call.arguments.contains(FAREWELL)) {
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
fn what_http_says_is_kept_was_synced_before() {
    let (_folder, config) = hooked();
    let published = ["/topics/log", "/hooks/h", "/topics/log", "/hooks/h"];
    let traced = Traced::broker_with(&["--config", &config], |server| {
        let http = Http::of(server);
        for (n, path) in published.iter().enumerate() {
            let status = match *path {
                "/hooks/h" => {
                    let body = format!(r#"{{"url":"http://a.example/{n}"}}"#);
                    send_hook(&http, "application/json", &body)
                }
                path => http.post(path, &format!("http://a.example/{n}")).status,
            };
            assert_eq!(status, 200, "{path}");
        }
    });
    for (n, path) in published.iter().enumerate() {
        let url = format!("http://a.example/{n}");
        let asked = traced
            .named(&["recvfrom"])
            .find(|call| call.arguments.contains(&url))
            .unwrap_or_else(|| panic!("{path} with {url} was read"));
        let told = traced
            .sent()
            .find(|call| call.place() == asked.place() && asked.ended < call.began)
            .expect("it was answered");
        assert!(told.arguments.contains("HTTP/1.1 200"), "{told:?}");
        traced.expect_synced("/topics/log/", &url, told);
    }
}

#[test]
fn what_the_catalog_remembers_is_synced_before_it_is_confirmed() {
    let asked = [
        ("TOPIC create quick sync=interval retain-bytes=77m", "quick"),
        ("SUB a from=first as=reader", "reader"),
        ("SEEN a 2", "reader"),
        ("TOPIC set quick retain-bytes=78m", "quick"),
        ("SEEN a 3", "reader"),
        ("UNSUB a", ""),
        ("TOPIC forget a cursor=reader", "reader"),
    ];
    let traced = Traced::broker(|server| {
        let mut publisher = Pipeline::connect(server.address).unwrap();
        publisher.send((0..5).map(|n| ("a".to_owned(), n.to_string())));
        publisher.all_answers();
        let mut client = Talk::client(server.address);
        for (command, _) in asked {
            client.send(format!("{command}\n"));
            loop {
                let line = client.line();
                assert!(!line.starts_with("-ERR"), "{command}: {line}");
                if line.starts_with("+OK") {
                    break;
                }
            }
        }
    });
    for (command, record) in asked.iter().filter(|(_, record)| !record.is_empty()) {
        let asked = traced
            .named(&["recvfrom"])
            .find(|call| text_of(&call.arguments).lines().any(|line| line == *command))
            .expect("the command was read");
        let told = traced
            .sent()
            .find(|call| {
                call.place() == asked.place()
                    && asked.ended < call.began
                    && call.arguments.contains("+OK")
            })
            .expect("it was answered");
        let after: Vec<_> =
            traced.calls.iter().filter(|call| call.began > asked.began).cloned().collect();
        Traced { calls: after }.expect_synced("/catalog.log", record, told);
    }
}
