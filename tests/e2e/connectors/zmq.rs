//! Events over sockets of libzmq: their frames, topics and guarantees. `TIDINGS_ZMQ_MESSAGES` is
//! the number of messages of the longest test.

use std::env;
#[cfg(feature = "libzmq")]
use std::fs;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::{Server, run_tidings};
use crate::support::small_disk::SmallDisk;
use crate::support::topic_history::ReceivedEvents;
use crate::support::wait::wait_until;
#[cfg(feature = "libzmq")]
use crate::support::zmq::start_peer_with;
use crate::support::zmq::{
    PROGRESS_INTERVAL, ReceivedRuns, ZmqServer, frames, message, next_seq, printed_endpoint,
    start_peer, wait_for_progress,
};

/// Publishes these events and waits until all are confirmed.
#[track_caller]
fn publish(server: &Server, topic: &str, payloads: impl Iterator<Item = String>) {
    let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
    for payload in payloads {
        pipeline.send([(topic.to_owned(), payload)]);
        while pipeline.pending_count() > 1_000 {
            pipeline.read_outcomes().expect("a broker that answers");
        }
    }
    for outcome in pipeline.read_all_outcomes() {
        outcome.result.expect("the disk has space");
    }
}

/// A payload that contains its number.
fn numbered_payload(number: u64) -> String {
    format!("m{number} {}", "x".repeat(100))
}

// PROTOCOL: Z1, Z6, Z9
#[test]
#[ignore = "needs foreign programs"]
fn messages_are_converted_to_events_and_back() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "lo", "new-url", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    pusher.write(message(&["log", "one \u{c3}\u{a4}"]));
    pusher.write(message(&["other", "not subscribed"]));
    pusher.write(message(&["http://127.0.0.1:9/ source=python"]));
    pusher.write(message(&["log", "  two\t "]));
    pusher.close_stdin();
    let expect_message = |topic: &str, number: &str, payload: &str| {
        let expected = vec![topic.to_owned(), number.to_owned(), payload.to_owned()];
        subscriber.wait_for_line(payload, |line| (frames(line)? == expected).then_some(()));
    };
    expect_message("log", "1", "one ä");
    expect_message("new-url", "1", "http://127.0.0.1:9/ source=python");
    expect_message("log", "2", "  two\t ");
    assert!(!subscriber.has_printed("not subscribed"));
    pusher.finish().expect_code(0);
    // The seqs are those of the line port.
    let log = ReceivedEvents::read_all(zmq.server.address, "log", "end").events;
    assert_eq!(log[1], (2, "  two\t ".to_owned()));
}

#[test]
#[ignore = "needs foreign programs"]
fn only_subscribed_topics_are_sent() {
    let zmq = ZmqServer::start(&[]);
    // An XSUB socket does not filter messages itself, as SUB does.
    let subscriber = start_peer(&["xsub", &zmq.pub_endpoint, "lo", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let unfiltered = start_peer(&["xsub", &zmq.pub_endpoint, "", "hello"]);
    zmq.wait_for_subscription(&unfiltered);
    publish(&zmq.server, "other", ["not subscribed".to_owned()].into_iter());
    unfiltered.wait_for_line_with("not subscribed");
    publish(&zmq.server, "log", ["behind that".to_owned()].into_iter());
    subscriber.wait_for_line_with("behind that");
    assert!(!subscriber.has_printed("not subscribed"));
}

// PROTOCOL: Z10
#[test]
#[ignore = "needs foreign programs"]
fn one_publisher_creates_at_most_half_of_the_topics() {
    const TOPICS_MAX: usize = 1_000;
    let zmq = ZmqServer::start(&["--sync=memory"]);
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    for n in 0..TOPICS_MAX {
        pusher.write(message(&[&format!("made-up-{n}"), "x"]));
    }
    pusher.write(message(&["new-url", "last"]));
    let mut connection = LineConnection::connect_client(zmq.server.address);
    wait_until("the last one", || (next_seq(&mut connection, "new-url") == 2).then_some(()));
    let made_up =
        connection.request_lines("TOPIC ls").iter().filter(|it| it.contains("made-up-")).count();
    assert_eq!(made_up, TOPICS_MAX / 2 - 4, "four topics always exist");
    let line = zmq.server.process.wait_for_line_with("messages dropped: ");
    assert!(line.contains("a client that can only publish"), "{line}");
    connection.request_ok("PUB post-ready x");
    pusher.write(message(&["post-ready", "x"]));
    wait_until("an existing topic", || {
        (next_seq(&mut connection, "post-ready") == 3).then_some(())
    });
}

// PROTOCOL: C9
#[test]
#[ignore = "needs foreign programs"]
fn pushed_privileged_attributes_need_a_grant() {
    for (grant, taken) in [(&[][..], false), (&["--grant", "zmq=every"], true)] {
        let zmq = ZmqServer::start(grant);
        let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
        pusher.write(message(&["log", "http://127.0.0.1:9/ every=1h"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ prio=5"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ job=theirs"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ pushed=1999999999999"]));
        // `hub-found` would subscribe at a hub, and `hub` would send to all of its subscribers.
        pusher.write(message(&["hub-found", "http://127.0.0.1:9/ hub=http://127.0.0.1:10/ id=1"]));
        pusher.write(message(&["hub", "http://127.0.0.1:9/ host=127.0.0.1 fetch=yes"]));
        pusher.write(message(&["hub-verify", "http://127.0.0.1:9/ host=127.0.0.1"]));
        pusher.write(message(&["job-done", "docs number=1"]));
        pusher.write(message(&["log", "last"]));
        pusher.close_stdin();
        let log = wait_until("the last message", || {
            let log = ReceivedEvents::read_all(zmq.server.address, "log", "end").events;
            let log = log.into_iter().map(|(_, payload)| payload).filter(|it| it != "end");
            Some(log.collect::<Vec<_>>()).filter(|log| log.contains(&"last".to_owned()))
        });
        let expected = ["http://127.0.0.1:9/ every=1h", "last"];
        assert_eq!(log, expected[usize::from(!taken)..]);
        let mut connection = LineConnection::connect_client(zmq.server.address);
        let topics = connection.request_lines("TOPIC ls").join("\n");
        assert!(!topics.contains("hub"), "{topics}");
        assert_eq!(next_seq(&mut connection, "job-done"), 1);
    }
}

// PROTOCOL: Z7
#[test]
#[ignore = "needs foreign programs"]
fn messages_pushed_on_a_full_disk_are_published_later() {
    let disk = SmallDisk::mount(24);
    let server = disk.start_broker_with(&["--zmq-pull=tcp://127.0.0.1:0"]);
    let pull = printed_endpoint(&server.process, "ZeroMQ publishers at ");
    let mut connection = LineConnection::connect_client(server.address);
    connection.request_ok("PUB log before");
    disk.fill_except(0);
    wait_until("a full disk", || {
        let answer = connection.request(&format!("PUB log {}", "x".repeat(50_000)));
        answer.starts_with("-ERR full").then_some(())
    });
    let mut pusher = start_peer(&["push", &pull]);
    for n in 0..100 {
        pusher.write(message(&["log", &format!("pushed-{n}")]));
    }
    server.process.wait_for_line_with("rejects events for now");
    disk.free_space();
    let arrived = || {
        let log = ReceivedEvents::read_all(server.address, "log", "end").events;
        log.into_iter().map(|(_, payload)| payload).filter(|it| it.starts_with("pushed-")).count()
    };
    wait_until("the line port to take events", || {
        connection.request("PUB log x").starts_with("+OK").then_some(())
    });
    wait_until("all pushed messages", || (arrived() >= 100).then_some(()));
    pusher.write(message(&["log", "pushed-afterwards"]));
    wait_until("a message pushed later", || (arrived() >= 101).then_some(()));
}

// PROTOCOL: Z6
#[test]
#[ignore = "needs foreign programs"]
fn invalid_messages_are_dropped_and_others_are_published() {
    const BURST: usize = 100;
    let zmq = ZmqServer::start(&[]);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    connection.request_ok("TOPIC create log");
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    let long = "y".repeat(61_441);
    let wrong: [&[&str]; 12] = [
        &["log", "a\nPUB evil b"],
        &["log", "a\r\nWARN a record"],
        &["log", "\u{1b}[2J"],
        &["log", "\u{c2}\u{85}"],
        &["log", "\u{ff}"],
        &["log", ""],
        &[""],
        &["log", &long],
        &["lo g", "x"],
        &["log\n", "x"],
        &["", "x"],
        &["log", "1", "x"],
    ];
    for (number, frames) in (1..).zip(wrong) {
        pusher.write(message(frames));
        pusher.write(message(&["log", &format!("m{number}")]));
    }
    wait_until("all events", || (next_seq(&mut connection, "log") == 13).then_some(()));
    let received = ReceivedEvents::read_all(zmq.server.address, "log", "end");
    let payloads: Vec<_> = received.events.into_iter().map(|(_, payload)| payload).collect();
    let mut expected: Vec<_> = (1..=wrong.len()).map(|number| format!("m{number}")).collect();
    expected.push("end".to_owned());
    assert_eq!(payloads, expected);
    let topics = connection.request_lines("TOPIC ls").join("\n");
    assert!(!topics.contains("evil"), "{topics}");
    // All dropped messages of a burst are counted, even if only valid ones follow.
    let dropped = |line: &str| {
        let (_, rest) = line.split_once("messages dropped: ")?;
        rest.split_once(';')?.0.parse::<usize>().ok()
    };
    let mut logged = 0;
    zmq.server.process.wait_for_line("the rest of what was dropped", |line| {
        logged += dropped(line).unwrap_or(0);
        (logged == wrong.len()).then_some(())
    });
    for _ in 0..BURST {
        pusher.write(message(&["log", "a\rb"]));
    }
    pusher.write(message(&["log", "behind the burst"]));
    pusher.close_stdin();
    pusher.finish().expect_code(0);
    wait_until("the burst", || (next_seq(&mut connection, "log") == 15).then_some(()));
    let stderr = zmq.server.process.signal_and_finish("TERM").expect_code(0).stderr();
    assert_eq!(stderr.lines().filter_map(dropped).sum::<usize>(), wrong.len() + BURST, "{stderr}");
    let total = format!("13 published, {} dropped, 0 not confirmed", wrong.len() + BURST);
    assert!(stderr.contains(&total), "{stderr}");
    assert!(!stderr.contains("evil") && !stderr.contains("a record"), "{stderr}");
}

// PROTOCOL: Z3
#[test]
#[ignore = "needs foreign programs"]
fn a_late_subscriber_replays_from_the_line_port() {
    let zmq = ZmqServer::start(&[]);
    let early = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&early);
    publish(&zmq.server, "t", (1..=500).map(numbered_payload));
    early.wait_for_line_with("m500 ");
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    publish(&zmq.server, "t", (501..=600).map(numbered_payload));
    let first = subscriber.wait_for_line("an event", |line| {
        let frames = frames(line)?;
        (frames[0] == "t").then(|| frames[1].parse::<u64>().unwrap())
    });
    assert_eq!(first, 501, "PUB keeps nothing for late subscribers");
    let mut replay = LineConnection::connect_client(zmq.server.address);
    replay.send("SUB t from=1\n");
    assert_eq!(replay.read_line(), "+OK");
    for number in 1..first {
        assert_eq!(replay.read_line(), format!("MSG t {number} {}", numbered_payload(number)));
    }
    subscriber.wait_for_line("the last event", |line| (frames(line)?[1] == "600").then_some(()));
}

// PROTOCOL: Z5
#[test]
#[ignore = "needs foreign programs"]
fn topics_created_later_are_sent_from_their_first_event() {
    let zmq = ZmqServer::start(&["--zmq-topics=new*,hello"]);
    let subscriber = start_peer(&["sub", &zmq.pub_endpoint, "", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    publish(&zmq.server, "old-topic", ["not in --zmq-topics".to_owned()].into_iter());
    publish(&zmq.server, "new-topic", (1..=3).map(numbered_payload));
    for number in ["1", "2", "3"] {
        subscriber.wait_for_line("an event", |line| {
            let frames = frames(line)?;
            (frames[0] == "new-topic" && frames[1] == number).then_some(())
        });
    }
    assert!(!subscriber.has_printed("not in --zmq-topics"));
}

// PROTOCOL: Z2, Z3
#[test]
#[ignore = "needs foreign programs"]
fn every_loss_shows_in_the_seqs_and_the_replay_is_complete() {
    let count: u64 =
        env::var("TIDINGS_ZMQ_MESSAGES").map_or(100_000, |text| text.parse().expect("a number"));
    let bytes = usize::try_from(100_000_000 / count).unwrap().max(100);
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let subscriber = start_peer(&["count", &zmq.pub_endpoint, "end", "t", "hello"]);
    zmq.wait_for_subscription(&subscriber);
    let mut pipeline = PipelinedPublisher::connect(zmq.server.address).unwrap();
    let mut stalling = start_peer(&["doze", &zmq.pub_endpoint, "end", "t", "hello"]);
    zmq.wait_for_subscription(&stalling);
    // Together, more than the buffers of a subscriber that does not read can hold, however few
    // messages there are.
    let payload = |number: u64| format!("m{number} {}", "x".repeat(bytes));
    // Half of the messages come from each side, and only a few before the subscriber has them: a
    // subscriber that keeps up loses nothing.
    let half = count / 2;
    for number in 1..=half {
        pipeline.send([("t".to_owned(), payload(number))]);
        if number.is_multiple_of(PROGRESS_INTERVAL) || number == half {
            while pipeline.pending_count() > 0 {
                pipeline.read_outcomes().expect("a broker that answers");
            }
        }
        wait_for_progress(&subscriber, number);
    }
    let mut pusher = start_peer(&["push", &zmq.pull_endpoint]);
    for number in half + 1..=count {
        pusher.write(message(&["t", &payload(number)]));
        wait_for_progress(&subscriber, number);
    }
    pusher.close_stdin();
    pusher.finish().expect_code(0);
    let mut connection = LineConnection::connect_client(zmq.server.address);
    wait_until("all events", || (next_seq(&mut connection, "t") > count).then_some(()));
    let kept_up = ReceivedRuns::wait_for_end(&subscriber, "t", &mut connection);
    assert_eq!(kept_up.lost_count(count), 0, "{:?}", kept_up.runs);
    stalling.close_stdin();
    let counted = ReceivedRuns::wait_for_end(&stalling, "t", &mut connection);
    let lost = counted.lost_count(count);
    eprintln!(
        "{count} messages: the stalling subscriber lost {lost} of them, in {} gaps",
        counted.runs.len() - 1
    );
    assert!(lost > 0, "a stalling subscriber loses messages");
    // Seqs outside of the runs are lost, and the replay has all of them.
    let received = ReceivedEvents::read_all(zmq.server.address, "t", "last");
    assert!(received.gaps.is_empty() && received.lags.is_empty());
    for (number, text) in &received.events[..usize::try_from(count).unwrap()] {
        assert_eq!(*text, payload(*number));
    }
}

#[test]
fn a_port_in_use_prevents_the_start() {
    let zmq = ZmqServer::start(&[]);
    let folder = TempDir::new().unwrap();
    for flag in ["--zmq-pub", "--zmq-pull"] {
        let words = ["up", "--listen", "127.0.0.1:0", flag, &zmq.pub_endpoint];
        let ended = run_tidings(folder.path(), &words).expect_code(1);
        let expected_error = format!("tidings: ZeroMQ: cannot listen on {}: ", zmq.pub_endpoint);
        let stderr = ended.stderr();
        assert!(stderr.lines().any(|line| line.starts_with(&expected_error)), "{stderr}");
        assert!(ended.stdout().is_empty(), "{:?}", ended.stdout());
    }
}

/// The example key of the manual of libzmq.
#[cfg(feature = "libzmq")]
const SECRET_KEY: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";

// PROTOCOL: Z9
#[cfg(feature = "libzmq")]
#[test]
#[ignore = "needs foreign programs"]
fn a_curve_key_excludes_peers_without_it() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, format!("{SECRET_KEY}\n")).unwrap();
    let zmq = ZmqServer::start(&[&format!("--zmq-key={}", file.display())]);
    let public = |command: &mut std::process::Command| {
        command.env("SERVER_KEY", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7");
    };
    let without = start_peer(&["sub", &zmq.pub_endpoint, "", "hello"]);
    let subscriber = start_peer_with(&["sub", &zmq.pub_endpoint, "t", "hello"], public);
    zmq.wait_for_subscription(&subscriber);
    let mut anonymous = start_peer(&["push", &zmq.pull_endpoint]);
    anonymous.write(message(&["t", "without the key"]));
    let mut pusher = start_peer_with(&["push", &zmq.pull_endpoint], public);
    pusher.write(message(&["t", "with the key"]));
    subscriber.wait_for_line_with("with the key");
    assert!(!subscriber.has_printed("without the key") && !without.has_printed("hello"));
}

#[cfg(feature = "libzmq")]
#[test]
#[ignore = "needs foreign programs"]
fn an_unusable_curve_key_prevents_the_start() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    for (text, reason) in [(Some(&SECRET_KEY[1..]), "CURVE key must have 40"), (None, "key")] {
        let _ = fs::remove_file(&file);
        text.map_or(Ok(()), |text| fs::write(&file, text)).unwrap();
        let key = file.display().to_string();
        let words =
            ["broker", "--listen=127.0.0.1:0", "--zmq-pub=tcp://127.0.0.1:0", "--zmq-key", &key];
        let stderr = run_tidings(folder.path(), &words).expect_code(1).stderr();
        assert!(stderr.contains("tidings: ZeroMQ: ") && stderr.contains(reason), "{stderr}");
    }
}
