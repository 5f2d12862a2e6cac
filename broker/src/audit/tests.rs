use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidings_protocol::{MemberId, Slot};
use tidings_queue::Requester;
use tidings_queue::commands::{group_input, job_input};

use super::writer::TestOutput;
use super::*;
use crate::access::Transport;
use crate::mailbox::ConnId;
use crate::remote::PeerAddr;

/// A disk on which the test lets each write succeed or fail.
#[derive(Debug)]
struct ControlledDisk {
    allowed: mpsc::Receiver<io::Result<()>>,
    written: Arc<Mutex<String>>,
}

impl Write for ControlledDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.allowed.recv().map_err(io::Error::other)??;
        self.written.lock().push_str(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TestOutput for ControlledDisk {}

fn audit_of(writer: AuditWriter, max: usize) -> Audit {
    let (queue, thread) = writer::start(writer, max).unwrap();
    Audit(Some(Box::new(ActiveAudit {
        clock: Clock::new(),
        queue,
        thread: Mutex::new(Some(thread)),
        limits: Mutex::new(RecordLimits::new(9)),
        totals: Mutex::default(),
    })))
}

fn initiator(conn: u64) -> Initiator {
    let peer: SocketAddr = "192.0.2.7:9".parse().unwrap();
    Initiator::unidentified(conn, PeerAddr::Tcp(peer), Transport::Line.as_str())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

/// The records that `record` causes.
fn written_by(record: impl FnOnce(&Audit)) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit");
    let audit = Audit::open(Some(&AuditConfig::File(path.clone())), Clock::new()).unwrap();
    record(&audit);
    audit.close();
    lines(&std::fs::read_to_string(path).unwrap())
}

#[test]
fn disabled_audit_builds_no_record() {
    let audit = Audit::open(None, Clock::new()).unwrap();
    audit.record(|| unreachable!("no record is needed"));
    audit.record_published("t", 1, 1, || unreachable!("no record is needed"));
    audit.close();
}

#[test]
fn events_are_totalled_by_connection_and_topic_before_the_end() {
    let records = written_by(|audit| {
        for _ in 0..1_000_000 {
            audit.record_published("a", 1, 1, || initiator(1));
        }
        audit.record_published("b", 5, 1, || initiator(1));
        audit.record_published("a", 7, 2, || initiator(2));
        audit.record(|| (AuditEvent::Disconnected { why: "left" }, initiator(1)));
    });
    let shown: Vec<_> = records
        .iter()
        .map(|line| {
            format!("{} {} {} {}", line["what"], line["conn"], line["topic"], line["events"])
        })
        .collect();
    assert_eq!(
        shown,
        [
            "\"published\" 1 \"a\" 1000000",
            "\"published\" 1 \"b\" 5",
            "\"left\" 1 null null",
            "\"published\" 2 \"a\" 7",
        ]
    );
}

#[test]
fn records_of_one_source_are_limited_and_counted() {
    let records = written_by(|audit| {
        for conn in 0..1_000 {
            audit.record(|| (AuditEvent::Refused { why: "x" }, initiator(conn)));
        }
        // Another source is still recorded.
        let other: SocketAddr = "192.0.2.8:9".parse().unwrap();
        audit.record(|| {
            (AuditEvent::Connected, Initiator::unidentified(7, PeerAddr::Tcp(other), "line"))
        });
    });
    let count = |what: &str| records.iter().filter(|line| line["what"] == what).count();
    // A minute may pass on a slow machine.
    let refused = count("refused");
    assert!((120..1_000).contains(&refused), "{refused}");
    assert_eq!(count("connected"), 1);
    let held_back: u64 = records
        .iter()
        .filter(|line| line["what"] == "held-back")
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    assert_eq!(u64::try_from(refused).unwrap() + held_back, 1_000);
}

#[test]
fn records_of_one_name_are_limited_and_suppress_no_others() {
    let records = written_by(|audit| {
        let she = || initiator(1).with_name("she".to_owned());
        let pause = Command::parse("GROUP pause docs").unwrap();
        let part = Command::parse("GROUP bump docs prio=1 match=/a after=7").unwrap();
        for at in 0..2_000 {
            audit.record_command(&part, 1, she);
            audit.record_command(&pause, 1, she);
            audit.record(|| (AuditEvent::LoggedIn, she()));
            // A client can use any number of names of topics and jobs.
            audit.add_to_total(TotalKind::Job, &at.to_string(), 2, 1, she);
            audit.record_published(&at.to_string(), 3, 1, she);
        }
        audit.record_command(&pause, 2, || initiator(2).with_name("he".to_owned()));
    });
    let count = |what: &str, who: &str| {
        records.iter().filter(|line| line["what"] == what && line["who"] == who).count()
    };
    let parts = records.iter().filter(|line| line["change"] == "GROUP bump").count();
    assert!((600..2_000).contains(&parts), "{parts}");
    let mut all = 0;
    for what in ["changed", "logged-in", "added", "published"] {
        // A minute may pass on a slow machine.
        let written = count(what, "she") - if what == "changed" { parts } else { 0 };
        assert!((600..2_000).contains(&written), "{what}: {written}");
        all += u64::try_from(written).unwrap();
    }
    assert_eq!(count("changed", "he"), 1);
    let held_back = records.iter().filter(|line| line["what"] == "held-back");
    all += held_back.map(|line| line["count"].as_u64().unwrap()).sum::<u64>();
    all += u64::try_from(parts).unwrap();
    assert_eq!(all, 5 * 2_000);
    let events = records.iter().filter_map(|line| line["events"].as_u64());
    assert_eq!(events.sum::<u64>(), (2 + 3) * 2_000, "no event is missing");
}

#[test]
fn a_change_says_what_it_is_about() {
    let lines = ["GROUP purge x match=/b key=a.test", "GROUP rule x key=b.test block=yes note=why"];
    let records = written_by(|audit| {
        for line in lines {
            audit.record_command(&Command::parse(line).unwrap(), 1, || initiator(1));
        }
    });
    let about =
        |at: usize| ["change", "key", "match", "note"].map(|name| records[at][name].clone());
    assert_eq!(json!(about(0)), json!(["GROUP purge", "a.test", "/b", null]));
    assert_eq!(json!(about(1)), json!(["GROUP rule", "b.test", null, null]));
}

#[test]
fn a_topic_and_a_job_of_the_same_name_have_separate_totals() {
    let records = written_by(|audit| {
        for _ in 0..2 {
            for at in 0..300 {
                audit.record_published(&format!("n{at}"), 1, 1, || initiator(1));
                audit.add_to_total(TotalKind::Job, &format!("n{at}"), 10, 1, || initiator(1));
            }
        }
        // A total is written once, at the end of the connection.
        audit.record(|| (AuditEvent::Disconnected { why: "left" }, initiator(1)));
    });
    for (what, key, events) in [("published", "topic", 2), ("added", "name", 20)] {
        let records = records.iter().filter(|line| line["what"] == what);
        let sums: Vec<_> =
            records.map(|line| (line[key].to_string(), line["events"].as_u64())).collect();
        let names: BTreeMap<_, _> = sums.iter().cloned().collect();
        assert_eq!((sums.len(), names.len()), (300, 300), "{what}");
        assert!(names.values().all(|sum| *sum == Some(events)), "{what}: {names:?}");
    }
}

#[test]
fn switching_principals_keeps_one_total_for_each() {
    let records = written_by(|audit| {
        for _ in 0..1_000 {
            for who in ["she", "he"] {
                audit.identity_changed(1);
                audit.record_published("a", 1, 1, || initiator(1).with_name(who.to_owned()));
                audit.record_published("a", 1, 1, || unreachable!("the principal is known"));
            }
        }
        audit.record(|| (AuditEvent::Disconnected { why: "left" }, initiator(1)));
    });
    let shown: Vec<_> = records.iter().map(|line| (&line["who"], &line["events"])).collect();
    let values = (Value::from("she"), Value::from("he"), Value::from(2_000), Value::Null);
    assert_eq!(shown, [(&values.0, &values.2), (&values.1, &values.2), (&values.3, &values.3)]);
}

#[test]
fn every_change_is_recorded_and_no_unknown_action() {
    // An unknown action is refused with a list of all actions.
    let asked = Requester { conn: ConnId(1), member: MemberId(1), slot: Slot::numbered(1) };
    for verb in ["GROUP", "JOB"] {
        let text = match Command::parse(&format!("{verb} frobnicate x")).unwrap() {
            Command::Group(manage) => group_input(asked, &manage).unwrap_err().text,
            Command::Job(manage) => job_input(asked, &manage).unwrap_err().text,
            other => panic!("{other:?}"),
        };
        let reads = "ls show wait watch tasks keys schedules members rules";
        let reads: Vec<_> = reads.split(' ').collect();
        let there_are = text.split_once(" has ").unwrap().1;
        for action in there_are.split(", ").chain(["frobnicate"]) {
            let line = format!("{verb} {action} x");
            let changes = !reads.contains(&action) && !["add", "frobnicate"].contains(&action);
            assert_eq!(
                AuditEvent::for_command(&Command::parse(&line).unwrap()).is_some(),
                changes,
                "{line}"
            );
        }
    }
    for (line, changes) in [
        ("JOB set x dry=yes", false),
        ("JOB set x after=7", false),
        ("JOB set x dry=no", true),
        ("GROUP purge x dry=yes", false),
        ("GROUP bump x prio=1 after=7", true),
    ] {
        let record = AuditEvent::for_command(&Command::parse(line).unwrap()).is_some();
        assert_eq!(record, changes, "{line}");
    }
}

#[test]
fn a_stuck_disk_blocks_no_caller_and_lost_records_are_counted() {
    const TOLD: u64 = 50;
    let (allow, allowed) = mpsc::channel();
    let written = Arc::new(Mutex::new(String::new()));
    let disk = ControlledDisk { allowed, written: Arc::clone(&written) };
    let audit = audit_of(AuditWriter::to(Box::new(disk)), 10);
    for _ in 0..TOLD {
        // Nothing is written meanwhile, and the loop still ends.
        audit.record_broker(&AuditEvent::Reloaded);
    }
    allow.send(Err(io::Error::other("full"))).unwrap();
    for _ in 0..9 {
        allow.send(Ok(())).unwrap();
    }
    audit.close();
    let written = written.lock().clone();
    let lines = lines(written.trim_start());
    let reloaded = lines.iter().filter(|line| line["what"] == "configuration-reloaded").count();
    let lost = lines.iter().filter(|line| line["what"] == "lost");
    let lost: u64 = lost.map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(u64::try_from(reloaded).unwrap() + lost, TOLD, "{written}");
    assert!(lost >= TOLD - 20, "{lost}");
}

#[test]
fn a_file_is_private_and_continues_on_a_new_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit");
    let config = AuditConfig::File(path.clone());
    let open = || {
        let audit = Audit::open(Some(&config), Clock::new()).unwrap();
        audit.record_broker(&AuditEvent::Started);
        audit
    };
    open().close();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // A process was killed in the middle of a line.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 5]).unwrap();
    let audit = open();
    // Log rotation moves the file away and requests a reopen. Earlier records may still go to the
    // old file.
    audit.record_broker(&AuditEvent::Reloaded);
    audit.reopen();
    audit.close();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(lines(text.split_once('\n').unwrap().1).len() == 2, "{text}");
}

#[test]
fn records_contain_no_token() {
    let records = written_by(|audit| {
        let why = "HELLO token=tdg_secret and tdg_other";
        audit.record(|| (AuditEvent::Denied { topic: Some("t"), why }, initiator(1)));
    });
    let line = records[0].to_string();
    assert!(!line.contains("secret") && !line.contains("other"), "{line}");
}

/// Names, topics, URLs and reasons of all kinds: with characters that end lines and strings, that
/// act on terminals, or that look like another field or record.
fn any_text() -> impl Strategy<Value = String> {
    let forged = "a\",\"what\":\"logged-in\",\"x\":\"";
    let record = "\n{\"time\":\"\",\"what\":\"started\"}\n";
    prop_oneof![
        4 => "(\\PC|[\u{0}-\u{9f}\u{2028}\u{2029}\u{202e}\u{feff}\"\\\\]){0,40}",
        1 => any::<String>(),
        1 => prop::sample::select(vec![forged, record, "\\u000a", "\r\n", "\0"]).prop_map(str::to_owned),
    ]
}

fn peer() -> impl Strategy<Value = PeerAddr> {
    let over_tcp = any::<SocketAddr>().prop_map(PeerAddr::Tcp);
    let over_unix = any::<(u32, u32, Option<i32>)>().prop_map(|(uid, gid, pid)| PeerAddr::Unix {
        uid,
        gid,
        pid,
    });
    prop_oneof![over_tcp, over_unix]
}

/// All events with these values, and the fields that must contain them.
fn all_events<'a>(
    (name, other): (&'a str, &'a str),
    options: &'a [(&'a str, &'a str)],
    number: u64,
    from: IpAddr,
) -> Vec<(AuditEvent<'a>, Vec<(&'static str, Value)>)> {
    let why = |what| (what, vec![("why", other.into())]);
    let changed = AuditEvent::Changed { verb: "TOPIC", action: other, name: Some(name), options };
    let change = format!("TOPIC {other}");
    vec![
        (AuditEvent::Connected, vec![]),
        why(AuditEvent::Refused { why: other }),
        (AuditEvent::LoggedIn, vec![]),
        why(AuditEvent::LogInFailed { why: other }),
        why(AuditEvent::LimitReached { why: other }),
        (
            AuditEvent::Denied { topic: Some(name), why: other },
            vec![("topic", name.into()), ("why", other.into())],
        ),
        (
            AuditEvent::Published { topic: name, events: number },
            vec![("topic", name.into()), ("events", number.into())],
        ),
        (
            AuditEvent::UrlsAdded { job: name, events: number },
            vec![("name", name.into()), ("events", number.into())],
        ),
        (changed, vec![("name", name.into()), ("change", change.into()), ("match", other.into())]),
        why(AuditEvent::Revoked { why: other }),
        why(AuditEvent::Disconnected { why: other }),
        (AuditEvent::Started, vec![]),
        (AuditEvent::Stopped, vec![]),
        (AuditEvent::Reloaded, vec![]),
        (
            AuditEvent::PrincipalChanged { name, change: "created" },
            vec![("name", name.into()), ("change", "created".into())],
        ),
        (
            AuditEvent::Suppressed { from, count: number, events: 0 },
            vec![("from", from.to_string().into()), ("count", number.into())],
        ),
        (
            AuditEvent::Suppressed { from, count: number, events: 7 },
            vec![("from", from.to_string().into()), ("count", number.into()), ("events", 7.into())],
        ),
        (AuditEvent::Lost { count: number }, vec![("count", number.into())]),
    ]
}

proptest! {
    #[test]
    fn a_record_is_one_line_of_json_with_the_given_texts(
        (name, other, who) in (any_text(), any_text(), any_text()),
        (peer, number, from, unix_ms) in
            (peer(), any::<u64>(), any::<IpAddr>(), -(1_i64 << 50)..1 << 50),
    ) {
        // Cutting and redacting have tests of their own.
        let is_whole = |text: &str| text.len() < 1_000 && !text.to_ascii_lowercase().contains("token");
        prop_assume!([&name, &other, &who].into_iter().all(|text| is_whole(text)));
        let user = Initiator::unidentified(7, peer, "line").with_name(who.clone());
        let options = [("match", other.as_str())];
        for (what, fields) in all_events((&name, &other), &options, number, from) {
            let initiator = (!matches!(what, AuditEvent::Suppressed { .. })).then_some(&user);
            let line = AuditRecord { unix_ms, event: &what, initiator }.line();
            let json = line.strip_suffix('\n').unwrap();
            prop_assert!(!json.contains(tidings_protocol::text::is_invisible), "{:?}", json);
            let Value::Object(mut read) = serde_json::from_str(json).unwrap() else { panic!("{json}") };
            prop_assert!(read.remove("time").is_some_and(|time| time.is_string()));
            prop_assert!(read.remove("what").is_some_and(|what| what.is_string()));
            let mut wanted = fields;
            if initiator.is_some() {
                wanted.extend([("who", who.as_str().into()), ("from", peer.to_string().into())]);
                let way = if peer.is_unix() { "unix" } else { "line" };
                wanted.extend([("way", way.into()), ("conn", 7.into())]);
            }
            let wanted = wanted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn no_text_begins_a_record_or_acts_on_a_terminal(
        text in "(\\PC|[\u{0}-\u{9f}\u{2028}\u{2029}\u{202e}\"\\\\]){0,40}",
        times in 1_usize..3,
    ) {
        let text = text.repeat(times * 100);
        let what = AuditEvent::Denied { topic: Some(&text), why: &text };
        let by = initiator(1).with_name(text.clone());
        let line = AuditRecord { unix_ms: 0, event: &what, initiator: Some(&by) }.line();
        let json = line.strip_suffix('\n').unwrap();
        prop_assert!(!json.contains(tidings_protocol::text::is_invisible));
        let read: Value = serde_json::from_str(json).unwrap();
        prop_assert_eq!(&read["what"], "denied");
        prop_assert!(line.len() <= 100 + 3 * 6 * 2 * 1_100);
        let why = read["why"].as_str().unwrap().trim_end_matches("..");
        prop_assert!(text.to_ascii_lowercase().contains("token=") || text.starts_with(why));
    }
}
