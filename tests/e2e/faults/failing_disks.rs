//! Failing disks: a failed sync and damaged files. Also the lock and the file modes of a data
//! directory.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::{Server, run_tidings, started_by};
use crate::support::strace::inject_into_fdatasync;
use crate::support::topic_history::{Delivery, ReceivedEvents, TopicHistory};

const TOPIC: &str = "new-url";

/// Publishes one event and returns its seq, or the code of the rejection.
#[track_caller]
fn publish_one(pipeline: &mut PipelinedPublisher, payload: &str) -> Result<u64, String> {
    pipeline.send([(TOPIC.to_owned(), payload.to_owned())]);
    let outcome = pipeline.read_all_outcomes().pop().expect("an answer");
    outcome.result.map(|seq| seq.expect("the answer to a single publish has its seq"))
}

// PROTOCOL: A9, R5
#[test]
#[ignore = "needs foreign programs"]
fn a_failed_sync_is_final_until_a_restart() {
    for signal in ["TERM", "KILL"] {
        let server = Server::start_with(&["broker"], |command| {
            // Some syncs of the start and of the first events succeed.
            inject_into_fdatasync(command, "error=EIO:when=9+");
        });
        let history = Mutex::new(TopicHistory::new(TOPIC));
        let mut listener = LineConnection::connect_client(server.address);
        assert!(listener.request(&format!("SUB {TOPIC} from=first")).starts_with("+OK"));
        let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
        let mut count = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(line) = listener.try_read_line() {
                    if line.starts_with("-ERR closing") {
                        continue;
                    }
                    let delivery = Delivery::parse(TOPIC, &line);
                    // Unsynced events may be on the disk after all, so no reader may be led past
                    // them.
                    assert!(matches!(delivery, Delivery::Event(..)), "{delivery:?}");
                    history.lock().unwrap().record_delivery(delivery);
                }
            });
            let code = loop {
                let payload = format!("p-{count}");
                match publish_one(&mut pipeline, &payload) {
                    Ok(seq) => history.lock().unwrap().record_confirmation(payload, Some(seq)),
                    Err(code) => break code,
                }
                count += 1;
                assert!(count < 1_000, "no sync failed");
            };
            assert_eq!(code, "sync-failed");
            assert!(count > 0, "some syncs succeeded");
            // It stays final: later publishes do not succeed, either.
            for n in count..count + 20 {
                assert_eq!(
                    publish_one(&mut pipeline, &format!("p-{n}")),
                    Err("sync-failed".to_owned())
                );
            }
            let received = run_nc(server.address, "no promise");
            assert!(received.iter().all(|line| line != FAREWELL), "{received:?}");
            server.process.wait_for_line_with("writing to the disk failed");
            let mut client = LineConnection::connect_client(server.address);
            let shown = client.request_lines(&format!("TOPIC show {TOPIC}")).pop().unwrap();
            assert!(shown.contains(" state=sync-failed"), "{shown}");
            server.process.signal(signal);
        });
        let Server { process, folder, .. } = server;
        process.finish();

        let server = Server::start_in(folder, &["broker"], |_| ());
        let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
        let payload = format!("p-{}", count + 1_000);
        let seq = publish_one(&mut pipeline, &payload).expect("the disk works again");
        let mut history = history.into_inner().unwrap();
        history.record_confirmation(payload, Some(seq));
        history.check_contents(ReceivedEvents::read_all(server.address, TOPIC, "end-1"));
        assert_eq!(run_nc(server.address, "nc-1").last().unwrap(), FAREWELL);
    }
}

/// A topic with several segments. The second one will be damaged.
struct SegmentedTopic {
    folder: TempDir,
    /// Payloads by seq, from 1.
    payloads: Vec<String>,
    segment: PathBuf,
}

const STORED_TOPIC: &str = "stored";

impl SegmentedTopic {
    #[track_caller]
    fn create() -> Self {
        let server = Server::start_broker();
        let created = LineConnection::connect_client(server.address)
            .request("TOPIC create stored retain-bytes=8m");
        assert!(created.starts_with("+OK"), "{created}");
        let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
        let payloads: Vec<_> =
            (1..=4_000).map(|n| format!("p-{n} {}", "x".repeat(1_000))).collect();
        for some in payloads.chunks(100) {
            pipeline.send(some.iter().map(|payload| (STORED_TOPIC.to_owned(), payload.clone())));
            for outcome in pipeline.read_all_outcomes() {
                outcome.result.expect("the disk has space");
            }
        }
        let dir = server.data_dir().join("topics").join(STORED_TOPIC);
        server.process.signal_and_finish("TERM").expect_code(0);
        let mut segments: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        segments.sort();
        assert!(segments.len() >= 4, "{segments:?}");
        Self { folder: server.folder, payloads, segment: segments[1].clone() }
    }

    /// Starts a broker and checks that its events are right, the lost ones are reported, and a new
    /// event gets the next seq. `verify` must name the file.
    #[track_caller]
    fn expect_damage_reported(self) {
        let server = Server::start_in(self.folder, &["broker"], |_| ());
        let received = ReceivedEvents::read_all(server.address, STORED_TOPIC, "end-1");
        assert!(!received.lags.is_empty(), "the damage lost no event");
        assert!(received.gaps.is_empty(), "gaps among confirmed events: {:?}", received.gaps);
        let lost: u64 = received.lags.iter().map(|range| range.end() - range.start() + 1).sum();
        let stored = self.payloads.len() as u64;
        assert!(lost < stored / 2, "damage in one of several files lost {lost} of {stored} events");
        for (seq, payload) in &received.events {
            let expected = self.payloads.get(usize::try_from(*seq).unwrap() - 1);
            let expected = expected.map_or("end-1", |payload| payload);
            assert!(payload == expected, "{seq} is {payload:.20}, not {expected:.20}");
        }
        assert_eq!(received.events.last().map(|(seq, _)| *seq), Some(stored + 1));

        let name = self.segment.file_name().unwrap().to_str().unwrap();
        server.process.wait_for_line_with(name);
        let verify = ["topic", "verify", STORED_TOPIC, "--broker", &server.address_text()];
        let verified = run_tidings(server.folder.path(), &verify).expect_code(1);
        let output = [verified.stdout().join("\n"), verified.stderr()].concat();
        assert!(output.contains(name), "{output}");
    }
}

/// Flips one bit of a file.
#[track_caller]
fn flip_bit(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_flipped_bit_is_reported() {
    let stored = SegmentedTopic::create();
    flip_bit(&stored.segment, fs::metadata(&stored.segment).unwrap().len() / 2);
    stored.expect_damage_reported();
}

#[test]
fn an_erased_file_header_is_reported() {
    let stored = SegmentedTopic::create();
    let file = File::options().write(true).open(&stored.segment).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    stored.expect_damage_reported();
}

#[test]
fn a_truncated_file_is_reported() {
    let stored = SegmentedTopic::create();
    let file = File::options().write(true).open(&stored.segment).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    stored.expect_damage_reported();
}

#[test]
fn a_data_directory_in_use_is_rejected_with_the_pid() {
    let server = Server::start_broker();
    for words in [&["broker"][..], &["up"]] {
        let words = [words, &["--listen", "127.0.0.1:0"]].concat();
        let second = run_tidings(server.folder.path(), &words);
        assert!(second.code.is_some_and(|code| code != 0), "{:?}", second.code);
        let stderr = second.stderr();
        let pid = format!("pid {}", server.process.id());
        for part in ["tidings-data is in use", &pid, "--data"] {
            assert!(stderr.contains(part), "{part} in {stderr}");
        }
    }
    // The lock ends with its process, even if that is killed.
    let server = server.restart("KILL", &["broker"]);
    assert!(
        LineConnection::connect_client(server.address).request("PUB a x").starts_with("+OK 1 ")
    );
}

#[test]
fn data_files_are_private_to_their_owner() {
    let server = Server::start_with(&["broker"], |command| {
        // The modes must not depend on the umask.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "umask 0; exec \"$@\"", "sh"]);
        *command = started_by(shell, command);
    });
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("PUB a x").starts_with("+OK"));
    assert!(client.request("SUB a as=reader from=first").starts_with("+OK"));
    let mut unseen = vec![server.data_dir()];
    let mut files = 0;
    while let Some(path) = unseen.pop() {
        let metadata = fs::metadata(&path).unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}: {mode:o}", path.display());
        if metadata.is_dir() {
            unseen.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files += 1;
        }
    }
    assert!(files >= 3, "a lock, a catalog, a segment");
}
