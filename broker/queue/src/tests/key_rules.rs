//! Rules of an operator for keys.

use tidings_protocol::{Code, GroupAction, GroupCommand, KeyRest, Outcome, RetryMode};

use super::bench::{A, B, Bench, NO_HOLD, Worker};
use super::operate::selection;
use crate::commands::group_input;
use crate::fuzzing::dump;
use crate::fuzzing::simulated_pages::TINY;
use crate::moment::{ClockStamp, Moment};
use crate::record::replay::Replay;
use crate::record::snapshot::SnapshotItem;
use crate::record::{Decision, GroupRecord};
use crate::{ConnId, Group, GroupConfig, Input, JobOperation, Operation};

/// Sends the commands about rules.
const OPERATOR: Worker = Worker(99);

impl Bench {
    fn manage(&mut self, action: GroupAction<'static>, settings: &[(&str, &str)]) {
        let command = GroupCommand::new(action, "crawlers", settings.to_vec());
        match group_input(OPERATOR.requester(), &command) {
            Ok(input) => self.feed(input),
            Err(error) => self.answers.push(Err(error)),
        }
    }

    /// `GROUP rule`
    pub(super) fn rule(&mut self, key: &str, settings: &[(&str, &str)]) {
        self.manage(GroupAction::Rule, &[&[("key", key)], settings].concat());
    }

    fn block(&mut self, key: &str) {
        self.rule(key, &[("block", "yes")]);
    }

    pub(super) fn unrule(&mut self, key: &str) {
        self.manage(GroupAction::Unrule, &[("key", key)]);
    }

    fn rules(&mut self) -> Vec<String> {
        self.manage(GroupAction::Rules, &[]);
        self.answers.last().unwrap().as_ref().unwrap().lines.clone()
    }

    /// The URLs of the tasks since the last call, sorted.
    fn released(&mut self) -> Vec<String> {
        let mut urls: Vec<_> = self.tasks.drain(..).map(|(_, task)| task.payload).collect();
        urls.sort_unstable();
        urls
    }

    fn job(&mut self, name: &str) -> String {
        let query = crate::GroupQuery::Job(name.parse().unwrap());
        self.feed(Input::Query { requester: OPERATOR.requester(), query });
        self.ok().to_owned()
    }
}

fn bench() -> Bench {
    let mut bench = Bench::new(&[]);
    bench.configure(&[("delay", "0"), ("lease", "10s"), ("max-attempts", "2")]);
    bench
}

// PROTOCOL: G16
#[test]
fn the_rule_with_the_longest_name_counts_and_an_exact_one_first() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.rule("*.org", &[("pause", "yes")]);
    bench.rule("*.a.org", &[("parallel", "2")]);
    bench.rule("*.b.a.org", &[("pause", "yes")]);
    bench.rule("c.b.a.org", &[("delay", "1s")]);
    let paused = ["http://org/", "http://x.org/", "http://b.a.org/", "http://d.b.a.org/"];
    let free = ["http://a.com/", "http://a.org/", "http://c.b.a.org/", "http://x.a.org/"];
    // A name that only ends like the one of a rule is not below it.
    for url in paused.iter().chain(&free).chain(&["http://xa.org/"]) {
        bench.publish(url);
    }
    assert_eq!(bench.released(), free);
    bench.check_records();
    bench.unrule("*.b.a.org");
    assert_eq!(bench.released(), ["http://b.a.org/", "http://d.b.a.org/"]);
    bench.unrule("*.org");
    assert_eq!(bench.released(), ["http://org/", "http://x.org/", "http://xa.org/"]);
    bench.check_records();
}

// PROTOCOL: G16
#[test]
fn keys_of_rules_are_canonical_and_keys_of_the_group() {
    let mut bench = bench();
    for (written, key) in [
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("*.Example.ORG.", "*.example.org"),
        ("127.1", "127.0.0.1"),
        ("[0:0::1]", "[::1]"),
    ] {
        bench.rule(written, &[("pause", "yes")]);
        assert_eq!(bench.ok(), format!("crawlers key={key} pause=yes"));
        bench.unrule(key);
        assert_eq!(bench.ok(), format!("crawlers key={key} pause=yes"));
    }
    let long = "a".repeat(513);
    for wrong in [
        "*",
        "*.",
        "a.*.org",
        "*.*.org",
        "a.org:80",
        "http://a.org/",
        "a.org/x",
        "a@b.org",
        "a b",
        "*.127.0.0.1",
        "a..b",
        "[::1]:80",
        "a.org#x",
        "a%2fb",
        &long,
    ] {
        bench.block(wrong);
        assert_eq!(bench.error_code(), Code::BadArgument, "{wrong}");
    }
    bench.unrule("a.org");
    assert_eq!(bench.error_code(), Code::NotFound);
    bench.configure(&[("key", "domain")]);
    for (key, is_domain) in
        [("a.org", true), ("*.a.org", true), ("*.org", true), ("www.a.org", false)]
    {
        bench.rule(key, &[("delay", "1s")]);
        assert_eq!(bench.answers.last().unwrap().is_ok(), is_domain, "{key}");
    }
    bench.configure(&[("key", "attr:site")]);
    assert_eq!(bench.error_code(), Code::Conflict, "there are rules");
    for key in ["a.org", "*.a.org", "*.org"] {
        bench.unrule(key);
    }
    bench.configure(&[("key", "attr:site")]);
    bench.block("*.x");
    bench.publish("http://a.org/ site=*.x");
    bench.publish("http://a.org/ site=y.x");
    bench.join(A, 10);
    assert_eq!(bench.released(), ["http://a.org/ site=y.x"]);
    bench.unrule("*.x");
    let mut bench = Bench::new(&[("key", "none")]);
    bench.block("a.org");
    assert_eq!(bench.error_code(), Code::Conflict);
}

// PROTOCOL: G16, G19
#[test]
fn a_rule_says_something_and_replaces_the_one_before() {
    let mut bench = bench();
    for wrong in [
        &[][..],
        &[("note", "x")],
        &[("block", "no")],
        &[("block", "1")],
        &[("delay", "2d")],
        &[("parallel", "0")],
        &[("parallel", "1001")],
        &[("pause", "yes"), ("for", "999ms")],
        &[("pause", "yes"), ("reason", "x")],
    ] {
        bench.rule("a.org", wrong);
        assert_eq!(bench.error_code(), Code::BadArgument, "{wrong:?}");
    }
    let (fits, long) = ("n".repeat(200), "n".repeat(201));
    bench.rule("a.org", &[("delay", "0"), ("note", &long)]);
    assert_eq!(bench.error_code(), Code::BadArgument);
    bench.rule("a.org", &[("delay", "0"), ("note", &fits)]);
    assert_eq!(bench.rules(), [format!("a.org delay=0 note={fits}")]);
    bench.rule("b.org", &[("block", "yes"), ("pause", "no"), ("for", "1h"), ("note", "%C3%A9")]);
    bench.rule("a.org", &[("parallel", "3")]);
    bench.wait(1000);
    let b = "b.org block=yes left=3599s note=%C3%A9";
    assert_eq!(bench.rules(), [b, "a.org parallel=3"]);
    assert_eq!(bench.ok(), "crawlers matched=2 listed=2");
    bench.check_records();
}

#[test]
fn delay_and_parallel_of_a_rule_replace_those_of_the_group() {
    let mut bench = bench();
    bench.configure(&[("lease", "1h")]);
    bench.join(A, 10);
    bench.rule("a.org", &[("delay", "5s"), ("parallel", "2")]);
    for n in 0..4 {
        bench.publish(&format!("http://a.org/{n}"));
    }
    let [first, second] = [0, 1].map(|index: usize| bench.tasks[index].1.id.clone());
    assert_eq!(bench.released().len(), 2);
    bench.ack(A, &first, Outcome::Done, &[]);
    bench.assert_no_task("the key rests");
    bench.wait(5000);
    bench.assert_no_task("it rests for 5 s and a millisecond");
    bench.wait(1);
    let third = bench.task();
    // A worker lengthens the delay of a rule, and never shortens it.
    let rest = |pace_ms| KeyRest { pace_ms: Some(pace_ms), ..NO_HOLD };
    bench.touch(A, &second, true, rest(8000));
    bench.wait(8000);
    bench.assert_no_task("a worker wants 8 s");
    bench.wait(1);
    let fourth = bench.task();
    bench.touch(A, &third.id, true, rest(1));
    bench.ack(A, &fourth.id, Outcome::Done, &[]);
    bench.publish("http://a.org/5");
    bench.wait(5000);
    bench.assert_no_task("the rule wants 5 s");
    bench.wait(1);
    let fifth = bench.task();
    bench.ack(A, &fifth.id, Outcome::Done, &[]);
    bench.check_records();
    bench.unrule("a.org");
    bench.wait(5001);
    bench.publish("http://a.org/6");
    let sixth = bench.task();
    bench.publish("http://a.org/7");
    bench.assert_no_task("the group has one request per key");
    bench.ack(A, &sixth.id, Outcome::Done, &[]);
    bench.wait(2);
    assert_eq!(bench.released(), ["http://a.org/7"], "only the pace of the worker is left");
}

// PROTOCOL: G17
#[test]
fn what_waits_for_a_blocked_key_ends_and_what_comes_is_refused() {
    let mut bench = bench();
    bench.open("docs", &[("scope", "any")]);
    bench.publish("http://a.org/dormant job=docs");
    bench.publish("http://a.org/later job=docs after=1h");
    bench.publish("http://b.org/ job=docs");
    bench.publish("http://a.org/announced");
    bench.publish("http://a.org/often every=1h");
    bench.block("*.a.org");
    assert_eq!(bench.ok(), "crawlers key=*.a.org block=yes");
    assert!(
        bench.job("docs").contains(" completed=0 redirects=0 failed=0 robots=0 scope=0 blocked=2 ")
    );
    bench.check_records();

    // An event, a seed of a job, a new schedule, and a seed by command.
    for payload in ["http://a.org/1", "http://a.org/2 job=docs", "http://x.a.org/3 every=1d"] {
        bench.publish(payload);
        let (topic, event) = bench.events.pop().unwrap();
        assert_eq!(topic, "dead-letter");
        assert!(event.starts_with("reason=blocked group=crawlers "), "{event}");
        assert!(event.ends_with(payload), "{event}");
    }
    let add = |url: &str| JobOperation::Add {
        url: url.into(),
        prio: 0,
        after: tidings_protocol::After::Ms(0),
        attributes: Box::default(),
    };
    bench.with_job("docs", add("http://a.org/4"));
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.close("docs");

    // Links.
    bench.join(A, 10);
    let task = bench.task();
    assert_eq!(task.payload, "http://b.org/ job=docs pass=1 depth=0 number=1");
    let links = [("http://a.org/5", false), ("http://c.org/", false)];
    bench.ack(A, &task.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with(" new=1 known=0 refused=1"), "{}", bench.ok());
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Redirect, &[("http://a.org/6", true)]);
    assert!(bench.ok().ends_with(" new=0 known=0 refused=1"), "{}", bench.ok());
    assert!(bench.job("docs").contains(" state=done "), "{}", bench.ok());

    // The schedule stays, and may end or change.
    bench.wait(3 * 3_600_000);
    bench.assert_no_task("blocked");
    bench.publish("http://a.org/often every=2h was=1h");
    bench.publish("http://a.org/other every=0");
    assert!(bench.events.iter().all(|(topic, _)| *topic != "dead-letter"), "{:?}", bench.events);
    bench.unrule("*.a.org");
    bench.wait(2 * 3_600_000);
    assert_eq!(bench.released(), ["http://a.org/often every=2h"]);
    bench.check_records();
}

// PROTOCOL: G17
#[test]
fn what_is_in_flight_ends_without_children() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.open("docs", &[("scope", "any")]);
    let urls =
        ["a.org/ack", "b.a.org/fails", "c.a.org/lost", "d.a.org/uncounted", "e.a.org/render"];
    for url in urls {
        bench.publish(&format!("http://{url} job=docs"));
    }
    bench.close("docs");
    let mut ids: Vec<_> = bench.tasks.drain(..).map(|(_, task)| (task.payload, task.id)).collect();
    ids.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let ids: Vec<_> = ids.into_iter().map(|(_, id)| id).collect();
    bench.answers.clear();
    bench.block("*.a.org");
    assert_eq!(bench.answers, [], "requests are in flight");
    bench.ack(A, &ids[0], Outcome::Done, &[("http://c.org/", false), ("http://a.org/x", false)]);
    assert!(bench.ok().ends_with(" new=0 known=0 refused=2"), "{}", bench.ok());
    bench.nack(A, &ids[1], RetryMode::Counted { after_ms: None });
    bench.nack(A, &ids[3], RetryMode::Uncounted { after_ms: None });
    bench.nack(A, &ids[4], RetryMode::NeedsRender);
    assert_eq!(bench.answers.len(), 4);
    bench.check_records();
    bench.wait(10_000);
    assert_eq!(bench.ok(), "crawlers key=*.a.org block=yes", "the last lease is over");
    assert!(bench.job("docs").contains("state=done pending=0 queued=0 processing=0 completed=1 redirects=0 failed=0 robots=0 scope=0 blocked=4 "), "{}", bench.ok());
    bench.assert_no_task("blocked");
    bench.check_records();
}

// PROTOCOL: G17
#[test]
fn a_next_request_to_a_blocked_key_ends_its_entry() {
    let mut bench = bench();
    bench.join(A, 10);
    let again = |url: &str| RetryMode::OtherUrl { url: url.into() };
    bench.publish("http://b.org/1");
    bench.publish("http://c.org/1");
    bench.publish("http://d.org/1");
    let ids: Vec<_> = bench.tasks.drain(..).map(|(_, task)| task.id).collect();
    // This one waits for the key when that is blocked.
    bench.rule("a.org", &[("pause", "yes")]);
    bench.nack(A, &ids[0], again("http://a.org/robots.txt"));
    assert!(bench.why("http://b.org/1").lines[0].contains("pending because=rule rule=a.org"));
    bench.block("a.org");
    bench.check_records();
    bench.nack(A, &ids[1], again("http://a.org/robots.txt"));
    bench.assert_no_task("it has ended");
    bench.nack(A, &ids[2], again("http://c.org/robots.txt"));
    let next = bench.task();
    assert!(next.payload.contains("again=http://c.org/"), "{}", next.payload);
    // The page itself is on a key that is blocked now.
    bench.block("d.org");
    bench.nack(A, &next.id, again("http://d.org/1"));
    bench.assert_no_task("it has ended");
    assert!(bench.group.is_idle());
    bench.check_records();
}

// PROTOCOL: G17
#[test]
fn dead_letters_of_a_blocked_key_are_not_retried() {
    let mut bench = bench();
    bench.configure(&[("max-attempts", "1")]);
    bench.join(A, 10);
    bench.kill("http://a.org/");
    bench.kill("http://b.org/");
    bench.block("a.org");
    bench.operate(Operation::Retry(selection(&[])));
    assert_eq!(bench.ok(), "crawlers retried=1 blocked=1");
    assert_eq!(bench.released(), ["http://b.org/ last=yes"]);
    bench.unrule("a.org");
    bench.operate(Operation::Retry(selection(&[])));
    assert_eq!(bench.ok(), "crawlers retried=1");
    assert_eq!(bench.released(), ["http://a.org/ last=yes"]);
    bench.check_records();
}

// PROTOCOL: G18
#[test]
fn a_rule_is_answered_when_no_request_is_in_flight() {
    let mut bench = bench();
    bench.join(A, 10);
    for setting in ["pause", "block"] {
        bench.publish("http://a.org/1");
        let task = bench.task();
        bench.answers.clear();
        bench.rule("a.org", &[(setting, "yes"), ("note", "x")]);
        assert_eq!(bench.answers, []);
        // Another rule is answered at once, and so is one that does not hold the key.
        bench.rule("b.org", &[(setting, "yes")]);
        bench.rule("*.a.org", &[("delay", "0")]);
        assert_eq!(bench.answers.len(), 1, "*.a.org is about a.org, too");
        bench.touch(A, &task.id, true, NO_HOLD);
        let ok = bench.answers.iter().map(|answer| answer.as_ref().unwrap().ok.clone());
        let ok: Vec<_> = ok.collect();
        let expected = [
            format!("crawlers key=b.org {setting}=yes"),
            format!("{} lease=10000", task.id),
            format!("crawlers key=a.org {setting}=yes note=x"),
            "crawlers key=*.a.org delay=0".to_owned(),
        ];
        assert_eq!(ok, expected);
        bench.ack(A, &task.id, Outcome::Done, &[]);
        bench.unrule("a.org");
        bench.unrule("*.a.org");
    }
}

// PROTOCOL: G18
#[test]
fn a_rule_stays_if_its_client_leaves() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.publish("http://a.org/1");
    let task = bench.task();
    bench.answers.clear();
    bench.block("a.org");
    bench.feed(Input::Disconnected { conn: ConnId(OPERATOR.0) });
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: Some(0) });
    assert_eq!(bench.answers.len(), 1, "that of the worker");
    bench.publish("http://a.org/2");
    bench.assert_no_task("blocked");
    assert_eq!(bench.rules(), ["a.org block=yes"]);
}

// PROTOCOL: G18
#[test]
fn a_rule_that_hides_a_block_is_answered_like_it_when_it_ends() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.rule("x.a.org", &[("delay", "0")]);
    bench.block("*.a.org");
    bench.publish("http://x.a.org/1");
    bench.publish("http://x.a.org/2");
    let task = bench.task();
    bench.answers.clear();
    bench.unrule("x.a.org");
    assert_eq!(bench.answers, []);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.ok(), "crawlers key=x.a.org delay=0");
    bench.assert_no_task("blocked");
    assert!(bench.group.is_idle());
    bench.check_records();
}

// PROTOCOL: G16
#[test]
fn a_rule_ends_by_itself() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.rule("*.org", &[("pause", "yes"), ("for", "10s")]);
    bench.rule("b.org", &[("pause", "yes"), ("for", "5s")]);
    // The first end counts no more.
    bench.rule("b.org", &[("pause", "yes"), ("for", "15s")]);
    bench.publish("http://a.org/");
    bench.publish("http://b.org/");
    bench.wait(9_999);
    bench.assert_no_task("paused");
    bench.check_records();
    bench.wait(1);
    assert_eq!(bench.released(), ["http://a.org/"]);
    assert_eq!(bench.rules(), ["b.org pause=yes left=5s"]);
    bench.wait(5_000);
    assert_eq!(bench.released(), ["http://b.org/"]);
    assert_eq!(bench.rules(), [""; 0]);
    bench.check_records();
}

#[test]
fn keys_and_urls_are_explained_by_their_rule() {
    let mut bench = bench();
    bench.rule("*.a.org", &[("pause", "yes")]);
    let because = "pending because=rule rule=*.a.org";
    assert_eq!(bench.why("x.a.org").ok, format!("x.a.org waiting=0 {because}"));
    bench.publish("http://x.a.org/");
    assert_eq!(bench.why("x.a.org").ok, format!("x.a.org waiting=1 {because}"));
    let line = format!("http://x.a.org/ key=x.a.org {because}");
    assert_eq!(bench.why("http://x.a.org/").lines, [line]);
    bench.rule("*.a.org", &[("pause", "yes"), ("for", "2h"), ("note", "slow-disk")]);
    let because = "pending because=rule rule=*.a.org ends-in=2h note=slow-disk";
    assert_eq!(bench.why("x.a.org").ok, format!("x.a.org waiting=1 {because}"));
    bench.rule("*.a.org", &[("block", "yes"), ("note", "abuse-2381")]);
    let because = "blocked because=rule rule=*.a.org note=abuse-2381";
    assert_eq!(bench.why("http://x.a.org/").lines, [format!("http://x.a.org/ {because}")]);
    for key in ["x.a.org", "y.a.org"] {
        assert_eq!(bench.why(key).ok, format!("{key} waiting=0 {because}"));
    }
}

/// `scope=` says that links which were refused may be within the job now.
// PROTOCOL: T1
#[test]
fn the_scope_of_a_job_rises_when_a_block_ends() {
    let mut bench = bench();
    bench.join(A, 10);
    bench.open("docs", &[("scope", "any")]);
    let scope = |bench: &mut Bench, n: u32| {
        bench.publish(&format!("http://b.org/{n} job=docs"));
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
        task.payload.split_once(" scope=").map(|(_, scope)| scope.to_owned())
    };
    bench.rule("a.org", &[("pause", "yes")]);
    bench.unrule("a.org");
    bench.block("*.org.example");
    assert_eq!(scope(&mut bench, 1), None);
    bench.rule("a.org.example", &[("delay", "0")]);
    assert_eq!(scope(&mut bench, 2).as_deref(), Some("1"));
    bench.unrule("*.org.example");
    assert_eq!(scope(&mut bench, 3).as_deref(), Some("2"));
    bench.check_records();
}

/// After a reboot a key that is not known rests for the delay of its rule, because the record of
/// its last request may be lost.
// PROTOCOL: T13
#[test]
fn an_unknown_key_rests_for_the_delay_of_its_rule_after_a_reboot() {
    let mut bench = bench();
    let start = |bench: &mut Bench, run| {
        let stamp =
            ClockStamp { moment: bench.now, boot_id: u128::from(run), uptime_ms: 0, unix_ms: 0 };
        let local_member = Some(A.requester().member);
        bench.feed(Input::Start { run, since: 1, elapsed_unknown: true, stamp, local_member });
    };
    start(&mut bench, 8);
    bench.rule("a.org", &[("delay", "1m")]);
    start(&mut bench, 9);
    bench.rule("b.org", &[("delay", "1m")]);
    bench.join(B, 10);
    bench.publish("http://a.org/");
    bench.publish("http://b.org/");
    let task = bench.task();
    assert_eq!(task.payload, "http://b.org/", "its rule is new");
    bench.ack(B, &task.id, Outcome::Done, &[]);
    bench.check_records();
    bench.wait(60_000);
    bench.assert_no_task("a.org rests");
    bench.wait(1);
    assert_eq!(bench.released(), ["http://a.org/"]);
}

/// A snapshot that was begun before a block contains what the block ends, also if its texts are
/// outside memory.
#[test]
fn a_block_during_a_snapshot_ends_the_same_entries_in_a_replay() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_paging(TINY);
    bench.open("docs", &[("scope", "any")]);
    bench.rule("b.org", &[("delay", "1m")]);
    for n in 0..300 {
        bench.publish(&format!("http://h{}.a.org/{n} job=docs", n % 7));
    }
    let stamp = ClockStamp { moment: bench.now, boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    let mut records = Vec::new();
    let at = bench.now;
    bench.group.begin_snapshot(stamp, |decision| records.push(GroupRecord { at, decision }));
    bench.records.clear();
    bench.block("*.a.org");
    records.append(&mut bench.records);
    let mut is_whole = false;
    while !is_whole {
        bench.drain();
        is_whole = bench
            .group
            .continue_snapshot(50, |decision| records.push(GroupRecord { at, decision }));
    }
    let texts = records.iter().filter(|record| {
        matches!(&record.decision, Decision::SnapshotPart(item) if matches!(&**item, SnapshotItem::Dormant(_)))
    });
    assert!(texts.count() > 100, "they were written before the block");
    let empty = Group::new("crawlers".parse().unwrap(), 0, GroupConfig::default(), 1);
    let mut replay = Replay::new(empty, false);
    for record in &records {
        replay.apply(record);
    }
    let replayed = replay.finish().unwrap();
    bench.group.state.advance(Moment(at.0));
    assert_eq!(dump::difference(&bench.group, &replayed), None);
    assert!(bench.job("docs").contains(" blocked=300 "), "{}", bench.ok());
}

#[test]
fn a_group_has_a_limited_number_of_rules() {
    let mut bench = bench();
    for n in 0..10_000 {
        bench.rule(&format!("h{n}.org"), &[("delay", "1s")]);
    }
    bench.block("one.more.org");
    assert_eq!(bench.error_code(), Code::Limit);
    bench.block("h7.org");
    assert_eq!(bench.ok(), "crawlers key=h7.org block=yes");
    bench.unrule("h8.org");
    bench.block("one.more.org");
    assert_eq!(bench.ok(), "crawlers key=one.more.org block=yes");
}
