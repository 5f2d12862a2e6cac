//! Disks whose syncs fail.

use std::sync::Mutex;
use std::thread;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
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
        listener.request_ok(&format!("SUB {TOPIC} from=first"));
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
