//! Events to and from sockets of libzmq: what is said in which frames, and what of it can be relied
//! on. `TIDINGS_ZMQ_MESSAGES` is the number of messages of the longest test.

use std::{env, fs};

use tempfile::TempDir;

use crate::support::history::Heard;
use crate::support::process::{Server, run};
use crate::support::publisher::Pipeline;
use crate::support::small_disk::SmallDisk;
use crate::support::talk::Talk;
use crate::support::wait::until;
#[cfg(feature = "libzmq")]
use crate::support::zmq::peer_with;
use crate::support::zmq::{
    COUNTED, Counted, ZmqServer, endpoint, frames, keeps_up, message, next, peer,
};

/// Publishes these of a topic, and waits until all are confirmed.
#[track_caller]
fn publish(server: &Server, topic: &str, payloads: impl Iterator<Item = String>) {
    let mut pipeline = Pipeline::connect(server.address).unwrap();
    for payload in payloads {
        pipeline.send([(topic.to_owned(), payload)]);
        while pipeline.waiting() > 1_000 {
            pipeline.answer().expect("a broker that answers");
        }
    }
    for outcome in pipeline.all_answers() {
        outcome.fate.expect("there is room");
    }
}

/// An event of which the payload says its number.
fn numbered(number: u64) -> String {
    format!("m{number} {}", "x".repeat(100))
}

// PROTOCOL: Z1, Z6, Z9
#[test]
fn messages_become_events_and_events_messages() {
    let zmq = ZmqServer::start(&[]);
    let subscriber = peer(&["sub", &zmq.publish, "lo", "new-url", "hello"]);
    zmq.greet(&subscriber);
    let mut pusher = peer(&["push", &zmq.pull]);
    pusher.write(message(&["log", "one \u{c3}\u{a4}"]));
    pusher.write(message(&["other", "nobody asked for this"]));
    pusher.write(message(&["http://127.0.0.1:9/ source=python"]));
    pusher.write(message(&["log", "  two\t "]));
    pusher.close_stdin();
    let heard = |topic: &str, number: &str, payload: &str| {
        let wanted = vec![topic.to_owned(), number.to_owned(), payload.to_owned()];
        subscriber.line(payload, |line| (frames(line)? == wanted).then_some(()));
    };
    heard("log", "1", "one ä");
    heard("new-url", "1", "http://127.0.0.1:9/ source=python");
    heard("log", "2", "  two\t ");
    assert!(!subscriber.has_printed("nobody asked"));
    pusher.finish().expect_code(0);
    // The same numbers as on the line port.
    let log = Heard::all_of(zmq.server.address, "log", "end").events;
    assert_eq!(log[1], (2, "  two\t ".to_owned()));
}

#[test]
fn nothing_but_what_was_subscribed_to_is_sent() {
    let zmq = ZmqServer::start(&[]);
    // It does not filter what comes, as a SUB socket does.
    let subscriber = peer(&["xsub", &zmq.publish, "lo", "hello"]);
    zmq.greet(&subscriber);
    let witness = peer(&["xsub", &zmq.publish, "", "hello"]);
    zmq.greet(&witness);
    publish(&zmq.server, "other", ["nobody asked for this".to_owned()].into_iter());
    witness.line_with("nobody asked for this");
    publish(&zmq.server, "log", ["behind that".to_owned()].into_iter());
    subscriber.line_with("behind that");
    assert!(!subscriber.has_printed("nobody asked"));
}

// PROTOCOL: Z10
#[test]
fn who_pushes_to_ever_new_topics_leaves_half_of_them_to_others() {
    const TOPICS_MAX: usize = 1_000;
    let zmq = ZmqServer::start(&["--sync=memory"]);
    let mut pusher = peer(&["push", &zmq.pull]);
    for n in 0..TOPICS_MAX {
        pusher.write(message(&[&format!("made-up-{n}"), "x"]));
    }
    pusher.write(message(&["new-url", "last"]));
    let mut talk = Talk::client(zmq.server.address);
    until("the last one", || (next(&mut talk, "new-url") == 2).then_some(()));
    let made_up = talk.ask_lines("TOPIC ls").iter().filter(|it| it.contains("made-up-")).count();
    assert_eq!(made_up, TOPICS_MAX / 2 - 3, "three are always there");
    let line = zmq.server.process.line_with("messages dropped: ");
    assert!(line.contains("a client that can only publish"), "{line}");
    assert!(talk.ask("PUB post-ready x").starts_with("+OK"));
    pusher.write(message(&["post-ready", "x"]));
    until("a topic that is there", || (next(&mut talk, "post-ready") == 3).then_some(()));
}

// PROTOCOL: C9
#[test]
fn nobody_who_pushes_has_power_over_others_unless_that_was_granted() {
    for (grant, taken) in [(&[][..], false), (&["--grant", "zmq=every"], true)] {
        let zmq = ZmqServer::start(grant);
        let mut pusher = peer(&["push", &zmq.pull]);
        pusher.write(message(&["log", "http://127.0.0.1:9/ every=1h"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ prio=5"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ job=theirs"]));
        pusher.write(message(&["log", "http://127.0.0.1:9/ pushed=1999999999999"]));
        // Who tells of a feed is subscribed to, and what a hub tells goes to all of its
        // subscribers.
        pusher.write(message(&["hub-found", "http://127.0.0.1:9/ hub=http://127.0.0.1:10/ id=1"]));
        pusher.write(message(&["hub", "http://127.0.0.1:9/ host=127.0.0.1 fetch=yes"]));
        pusher.write(message(&["hub-verify", "http://127.0.0.1:9/ host=127.0.0.1"]));
        pusher.write(message(&["job-done", "docs number=1"]));
        pusher.write(message(&["log", "last"]));
        pusher.close_stdin();
        let log = until("what was sent last", || {
            let log = Heard::all_of(zmq.server.address, "log", "end").events;
            let log = log.into_iter().map(|(_, payload)| payload).filter(|it| it != "end");
            Some(log.collect::<Vec<_>>()).filter(|log| log.contains(&"last".to_owned()))
        });
        let wanted = ["http://127.0.0.1:9/ every=1h", "last"];
        assert_eq!(log, wanted[usize::from(!taken)..]);
        let mut talk = Talk::client(zmq.server.address);
        let topics = talk.ask_lines("TOPIC ls").join("\n");
        assert!(!topics.contains("hub"), "{topics}");
        assert_eq!(next(&mut talk, "job-done"), 1);
    }
}

// PROTOCOL: Z7
#[test]
fn what_comes_while_the_disk_is_full_is_published_when_there_is_room() {
    let disk = SmallDisk::mount(24);
    let server = disk.broker_with(&["--zmq-pull=tcp://127.0.0.1:0"]);
    let pull = endpoint(&server.process, "ZeroMQ publishers at ");
    let mut talk = Talk::client(server.address);
    assert!(talk.ask("PUB log before").starts_with("+OK"));
    disk.fill_but(0);
    until("a full disk", || {
        let answer = talk.ask(&format!("PUB log {}", "x".repeat(50_000)));
        answer.starts_with("-ERR full").then_some(())
    });
    let mut pusher = peer(&["push", &pull]);
    for n in 0..100 {
        pusher.write(message(&["log", &format!("pushed-{n}")]));
    }
    server.process.line_with("has no room");
    disk.make_room();
    let arrived = || {
        let log = Heard::all_of(server.address, "log", "end").events;
        log.into_iter().map(|(_, payload)| payload).filter(|it| it.starts_with("pushed-")).count()
    };
    until("the line port to take events", || {
        talk.ask("PUB log x").starts_with("+OK").then_some(())
    });
    until("all that was pushed", || (arrived() >= 100).then_some(()));
    pusher.write(message(&["log", "pushed-afterwards"]));
    until("what is pushed afterwards", || (arrived() >= 101).then_some(()));
}

// PROTOCOL: Z6
#[test]
fn what_is_no_event_is_dropped_and_leaves_its_neighbours_alone() {
    const BURST: usize = 100;
    let zmq = ZmqServer::start(&[]);
    let mut talk = Talk::client(zmq.server.address);
    assert!(talk.ask("TOPIC create log").starts_with("+OK"));
    let mut pusher = peer(&["push", &zmq.pull]);
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
    until("all events", || (next(&mut talk, "log") == 13).then_some(()));
    let heard = Heard::all_of(zmq.server.address, "log", "end");
    let payloads: Vec<_> = heard.events.into_iter().map(|(_, payload)| payload).collect();
    let mut expected: Vec<_> = (1..=wrong.len()).map(|number| format!("m{number}")).collect();
    expected.push("end".to_owned());
    assert_eq!(payloads, expected);
    let topics = talk.ask_lines("TOPIC ls").join("\n");
    assert!(!topics.contains("evil"), "{topics}");
    // None of a burst is forgotten, though nothing behind it is wrong.
    let dropped = |line: &str| {
        let (_, rest) = line.split_once("messages dropped: ")?;
        rest.split_once(';')?.0.parse::<usize>().ok()
    };
    let mut logged = 0;
    zmq.server.process.line("the rest of what was dropped", |line| {
        logged += dropped(line).unwrap_or(0);
        (logged == wrong.len()).then_some(())
    });
    for _ in 0..BURST {
        pusher.write(message(&["log", "a\rb"]));
    }
    pusher.write(message(&["log", "behind the burst"]));
    pusher.close_stdin();
    pusher.finish().expect_code(0);
    until("the burst", || (next(&mut talk, "log") == 15).then_some(()));
    let stderr = zmq.server.process.finish_by("TERM").expect_code(0).stderr();
    assert_eq!(stderr.lines().filter_map(dropped).sum::<usize>(), wrong.len() + BURST, "{stderr}");
    let total = format!("13 published, {} dropped, 0 not confirmed", wrong.len() + BURST);
    assert!(stderr.contains(&total), "{stderr}");
    assert!(!stderr.contains("evil") && !stderr.contains("a record"), "{stderr}");
}

// PROTOCOL: Z3
#[test]
fn a_late_joiner_has_the_rest_from_the_line_port() {
    let zmq = ZmqServer::start(&[]);
    let early = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&early);
    publish(&zmq.server, "t", (1..=500).map(numbered));
    early.line_with("m500 ");
    let subscriber = peer(&["sub", &zmq.publish, "t", "hello"]);
    zmq.greet(&subscriber);
    publish(&zmq.server, "t", (501..=600).map(numbered));
    let first = subscriber.line("an event", |line| {
        let frames = frames(line)?;
        (frames[0] == "t").then(|| frames[1].parse::<u64>().unwrap())
    });
    assert_eq!(first, 501, "PUB keeps nothing for those who come later");
    let mut replay = Talk::client(zmq.server.address);
    replay.send("SUB t from=1\n");
    assert_eq!(replay.line(), "+OK");
    for number in 1..first {
        assert_eq!(replay.line(), format!("MSG t {number} {}", numbered(number)));
    }
    subscriber.line("the last event", |line| (frames(line)?[1] == "600").then_some(()));
}

// PROTOCOL: Z5
#[test]
fn topics_that_come_later_are_sent_from_their_first_event() {
    let zmq = ZmqServer::start(&["--zmq-topics=new*,hello"]);
    let subscriber = peer(&["sub", &zmq.publish, "", "hello"]);
    zmq.greet(&subscriber);
    publish(&zmq.server, "old-topic", ["nobody hears this".to_owned()].into_iter());
    publish(&zmq.server, "new-topic", (1..=3).map(numbered));
    for number in ["1", "2", "3"] {
        subscriber.line("an event", |line| {
            let frames = frames(line)?;
            (frames[0] == "new-topic" && frames[1] == number).then_some(())
        });
    }
    assert!(!subscriber.has_printed("nobody hears"));
}

// PROTOCOL: Z2, Z3
#[test]
fn every_loss_shows_in_the_numbers_and_none_is_in_the_replay() {
    let count: u64 =
        env::var("TIDINGS_ZMQ_MESSAGES").map_or(100_000, |text| text.parse().expect("a number"));
    let bytes = usize::try_from(100_000_000 / count).unwrap().max(100);
    let zmq = ZmqServer::start(&["--sync=interval"]);
    let subscriber = peer(&["count", &zmq.publish, "end", "t", "hello"]);
    zmq.greet(&subscriber);
    let mut pipeline = Pipeline::connect(zmq.server.address).unwrap();
    let mut dozer = peer(&["doze", &zmq.publish, "end", "t", "hello"]);
    zmq.greet(&dozer);
    // More than can wait for who does not read, however few there are.
    let payload = |number: u64| format!("m{number} {}", "x".repeat(bytes));
    // Half of them come from either side, and never more than a few before the reader has them:
    // whoever keeps up with what comes loses nothing.
    let half = count / 2;
    for number in 1..=half {
        pipeline.send([("t".to_owned(), payload(number))]);
        if number.is_multiple_of(COUNTED) || number == half {
            while pipeline.waiting() > 0 {
                pipeline.answer().expect("a broker that answers");
            }
        }
        keeps_up(&subscriber, number);
    }
    let mut pusher = peer(&["push", &zmq.pull]);
    for number in half + 1..=count {
        pusher.write(message(&["t", &payload(number)]));
        keeps_up(&subscriber, number);
    }
    pusher.close_stdin();
    pusher.finish().expect_code(0);
    let mut talk = Talk::client(zmq.server.address);
    until("all events", || (next(&mut talk, "t") > count).then_some(()));
    let kept_up = Counted::of(&subscriber, "t", &mut talk);
    assert_eq!(kept_up.lost(count), 0, "{:?}", kept_up.runs);
    dozer.close_stdin();
    let counted = Counted::of(&dozer, "t", &mut talk);
    let lost = counted.lost(count);
    eprintln!(
        "{count} messages: who dozed lost {lost} of them, in {} holes",
        counted.runs.len() - 1
    );
    assert!(lost > 0, "who does not read loses something");
    // What is not in a run is lost, and all of it is in the replay.
    let heard = Heard::all_of(zmq.server.address, "t", "last");
    assert!(heard.gaps.is_empty() && heard.lags.is_empty());
    for (number, text) in &heard.events[..usize::try_from(count).unwrap()] {
        assert_eq!(*text, payload(*number));
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_of_the_start() {
    let zmq = ZmqServer::start(&[]);
    let folder = TempDir::new().unwrap();
    for flag in ["--zmq-pub", "--zmq-pull"] {
        let words = ["up", "--listen", "127.0.0.1:0", flag, &zmq.publish];
        let ended = run(folder.path(), &words).expect_code(1);
        let said = format!("tidings: ZeroMQ: cannot listen on {}: ", zmq.publish);
        let stderr = ended.stderr();
        assert!(stderr.lines().any(|line| line.starts_with(&said)), "{stderr}");
        assert!(ended.stdout().is_empty(), "{:?}", ended.stdout());
    }
}

/// Of the manual of libzmq.
const SECRET_KEY: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";

// PROTOCOL: Z9
#[cfg(feature = "libzmq")]
#[test]
fn with_a_key_only_those_who_know_it_are_talked_to() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, format!("{SECRET_KEY}\n")).unwrap();
    let zmq = ZmqServer::start(&[&format!("--zmq-key={}", file.display())]);
    let public = |command: &mut std::process::Command| {
        command.env("SERVER_KEY", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7");
    };
    let without = peer(&["sub", &zmq.publish, "", "hello"]);
    let subscriber = peer_with(&["sub", &zmq.publish, "t", "hello"], public);
    zmq.greet(&subscriber);
    let mut stranger = peer(&["push", &zmq.pull]);
    stranger.write(message(&["t", "of a stranger"]));
    let mut pusher = peer_with(&["push", &zmq.pull], public);
    pusher.write(message(&["t", "of a friend"]));
    subscriber.line_with("of a friend");
    assert!(!subscriber.has_printed("of a stranger") && !without.has_printed("hello"));
}

#[test]
fn a_key_that_is_none_or_cannot_be_used_is_an_error_of_the_start() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    let wrong = if cfg!(feature = "libzmq") { "of CURVE has 40" } else { "--features libzmq" };
    for (text, reason) in [(Some(&SECRET_KEY[1..]), wrong), (None, "key")] {
        let _ = fs::remove_file(&file);
        text.map_or(Ok(()), |text| fs::write(&file, text)).unwrap();
        let key = file.display().to_string();
        let words =
            ["broker", "--listen=127.0.0.1:0", "--zmq-pub=tcp://127.0.0.1:0", "--zmq-key", &key];
        let stderr = run(folder.path(), &words).expect_code(1).stderr();
        assert!(stderr.contains("tidings: ZeroMQ: ") && stderr.contains(reason), "{stderr}");
    }
}
