//! `EXPLAIN` of keys: why entries are not released.

use tidings_protocol::{Code, KeyRest, Outcome, RetryMode};

use super::bench::{A, AnswerText, Bench, group_command};
use super::repairs::{replayed, snapshot};
use crate::{GroupQuery, Input, JobOperation, Operation};

impl Bench {
    pub(super) fn why(&mut self, what: &str) -> AnswerText {
        self.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Explain(what.into()),
        });
        self.answers.pop().unwrap().unwrap()
    }

    fn keys(&mut self, settings: &[(&str, &str)]) -> AnswerText {
        let query = group_command(settings).key_query().unwrap();
        self.feed(Input::Query { requester: A.requester(), query: GroupQuery::Keys(query) });
        self.answers.pop().unwrap().unwrap()
    }
}

#[test]
fn explain_lists_delayed_and_scheduled_entries_of_a_key() {
    let mut bench = Bench::new(&[("delay", "5s"), ("backoff", "1h")]);
    bench.publish("http://a.org/late after=2h");
    bench.publish("http://a.org/soon after=10m prio=3");
    assert_eq!(
        bench.why("A.org"),
        AnswerText {
            lines: vec![
                "http://a.org/soon key=a.org delayed because=later due-in=10m failures=0 last=none"
                    .to_owned(),
                "http://a.org/late key=a.org delayed because=later due-in=2h failures=0 last=none"
                    .to_owned(),
            ],
            ok: "a.org waiting=0 delayed=2 free".to_owned(),
        }
    );
    bench.join(A, 1);
    bench.publish("http://a.org/now every=1h");
    let task = bench.task();
    let held = bench.why("a.org");
    assert!(held.lines[0].starts_with("in-flight http://a.org/now member="), "{held:?}");
    assert_eq!(held.lines[3], "http://a.org/now every=1h due-in=1h");
    assert_eq!(held.ok, "a.org waiting=0 delayed=2 scheduled=1 pending because=in-flight");
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: Some(60_000) });
    let failed = bench.why("a.org");
    let retry = "http://a.org/now key=a.org delayed because=retry due-in=1m failures=1 last=test";
    assert_eq!(failed.lines[0], retry);
    let ok = "a.org waiting=0 delayed=3 scheduled=1 pending because=delay free-in=5001ms";
    assert_eq!(failed.ok, ok);
}

#[test]
fn without_keys_the_first_word_of_an_event_is_explained() {
    for key in ["none", "seq"] {
        let mut bench = Bench::new(&[("key", key), ("backoff", "1h"), ("max-attempts", "1")]);
        bench.publish("http://a.org/ outcome=done and more");
        bench.publish("/backup every=1h after=2h");
        let page = bench.why("http://A.org/");
        assert_eq!(page.ok, "http://A.org/ entries=1");
        assert!(page.lines[0].starts_with("http://a.org/ key="), "{page:?}");
        assert!(page.lines[0].ends_with(" queued because=no-members"), "{page:?}");
        let backup = bench.why("/backup");
        assert!(backup.lines[0].contains(" delayed because=later due-in=2h "), "{backup:?}");
        assert_eq!(backup.lines[1], "/backup every=1h due-in=3h");
        bench.join(A, 1);
        let task = bench.task();
        let held = bench.why("http://a.org/");
        assert!(held.lines[0].contains(" processing member="), "{held:?}");
        bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
        let dead = bench.why("http://a.org/");
        assert_eq!(dead.lines, ["http://a.org/ dead because=max-attempts last=test"]);
    }
}

#[test]
fn one_key_is_listed_as_long_as_the_group_knows_it() {
    let mut bench = Bench::new(&[("delay", "5s")]);
    bench.open("docs", &[]);
    for url in ["http://a.org/1", "http://a.org/2 job=docs", "http://b.org/1"] {
        bench.publish(url);
    }
    let two = bench.keys(&[("key", "a.org")]);
    assert_eq!(two.ok, "crawlers matched=1 listed=1");
    assert!(two.lines[0].starts_with("a.org waiting=2 processing=0 "), "{two:?}");
    assert_eq!(bench.keys(&[("key", "a.org"), ("job", "docs")]).lines, two.lines);
    assert_eq!(bench.keys(&[("key", "b.org"), ("job", "docs")]).ok, "crawlers matched=0 listed=0");
    bench.join(A, 1);
    for _ in 0..2 {
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    // Nothing waits for it, but it rests.
    assert_eq!(bench.keys(&[]).lines.len(), 1);
    let [rests] = &bench.keys(&[("key", "b.org")]).lines[..] else { panic!("a known key") };
    assert!(rests.starts_with("b.org waiting=0 ") && rests.contains(" free-in="), "{rests}");
    assert_eq!(bench.keys(&[("key", "c.org")]).ok, "crawlers matched=0 listed=0");
}

#[test]
fn a_finished_url_is_explained_by_its_job() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("docs", &[]);
    bench.publish("http://a.org/1 job=docs");
    bench.publish("http://a.org/2 job=docs");
    bench.join(A, 1);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    for (url, expected) in [("1", "is finished in job docs"), ("3", "does not wait")] {
        let what = format!("http://a.org/{url}");
        bench.feed(Input::Query { requester: A.requester(), query: GroupQuery::Explain(what) });
        let error = bench.answers.pop().unwrap().unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        assert!(error.text.contains(expected), "{error}");
    }
}

#[test]
fn explain_finds_keys_that_are_not_hosts() {
    let mut bench = Bench::new(&[("key", "attr:site"), ("delay", "0")]);
    bench.publish("http://a.org/ site=Main after=1h");
    assert_eq!(bench.why("Main").ok, "Main waiting=0 delayed=1 free");
    bench.publish("http://a.org/2 site=main");
    assert_eq!(bench.why("main").ok, "main waiting=1 queued because=no-members");
    assert_eq!(bench.why("MAIN").ok, "main waiting=1 queued because=no-members");
    bench.publish("http://a.org/3 site=xn--bcher-kva.example");
    assert!(bench.why("B\u{fc}cher.example").ok.starts_with("xn--bcher-kva.example waiting=1 "));
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Explain("other".into()),
    });
    assert_eq!(bench.error_code(), Code::NotFound);
}

// PROTOCOL: G6
#[test]
fn keys_are_listed_by_remaining_work() {
    let mut bench = Bench::new(&[("delay", "5s")]);
    bench.open("docs", &[]);
    for url in ["http://a.org/1", "http://b.org/1", "http://b.org/2", "http://c.org/1"] {
        bench.publish(url);
    }
    bench.publish("http://a.org/2 job=docs");
    bench.publish("http://d.org/late after=1h");
    let keys = bench.keys(&[]);
    assert_eq!(
        keys.lines,
        [
            "a.org waiting=2 processing=0 left-ms=5000 because=no-members",
            "b.org waiting=2 processing=0 left-ms=5000 because=no-members",
            "c.org waiting=1 processing=0 left-ms=0 because=no-members",
        ]
    );
    assert_eq!(keys.ok, "crawlers matched=3 listed=3");
    assert_eq!(bench.why("d.org").ok, "d.org waiting=0 delayed=1 free");
    let some = bench.keys(&[("limit", "1")]);
    assert_eq!((some.lines.len(), some.ok.as_str()), (1, "crawlers matched=3 listed=1"));
    assert!(some.lines[0].starts_with("a.org "), "{some:?}");
    assert_eq!(bench.keys(&[("job", "docs")]).lines, keys.lines[..1]);

    // Requested rests count, and entries in flight do not count as waiting.
    bench.join(A, 10);
    let mut tasks = std::mem::take(&mut bench.tasks).into_iter().map(|(_, task)| task);
    let of_b = tasks.find(|task| task.payload.starts_with("http://b.org/")).unwrap();
    let hold = KeyRest { pace_ms: Some(30_000), not_before_ms: None };
    bench.touch(A, &of_b.id, true, hold);
    let keys = bench.keys(&[]);
    assert_eq!(
        keys.lines,
        [
            "b.org waiting=1 processing=0 left-ms=30001 because=pace free-in=30001 pace-ms=30000 \
             ended-ms=0",
            "a.org waiting=1 processing=1 left-ms=0 because=in-flight",
        ]
    );
}

// PROTOCOL: G6, G16
#[test]
fn a_key_that_a_rule_holds_has_times_only_if_the_rule_ends() {
    let mut bench = Bench::new(&[("delay", "5s")]);
    for url in ["http://a.org/1", "http://b.org/1", "http://b.org/2", "http://b.org/3"] {
        bench.publish(url);
    }
    bench.rule("a.org", &[("pause", "yes")]);
    let held = "a.org waiting=1 processing=0 because=rule";
    let free = "b.org waiting=3 processing=0 left-ms=10000 because=no-members";
    assert_eq!(bench.keys(&[]).lines, [held, free], "it takes longest");
    bench.rule("a.org", &[("pause", "yes"), ("for", "2h")]);
    let held = "a.org waiting=1 processing=0 left-ms=7200000 because=rule free-in=7200000";
    assert_eq!(bench.keys(&[]).lines, [held, free]);
    bench.rule("b.org", &[("pause", "yes"), ("for", "3h"), ("delay", "10s")]);
    bench.wait(3_600_000);
    let held = "a.org waiting=1 processing=0 left-ms=3600000 because=rule free-in=3600000";
    let later = "b.org waiting=3 processing=0 left-ms=7220000 because=rule free-in=7200000";
    assert_eq!(bench.keys(&[]).lines, [later, held]);

    // A rest that is longer than the rule counts.
    bench.unrule("a.org");
    bench.join(A, 1);
    let task = bench.task();
    bench.publish("http://a.org/2");
    let rest = KeyRest { pace_ms: None, not_before_ms: Some(60_000) };
    bench.touch(A, &task.id, true, rest);
    for (end, expected) in [("30s", 60_001), ("90s", 90_000)] {
        bench.rule("a.org", &[("pause", "yes"), ("for", end)]);
        let keys = bench.keys(&[("key", "a.org")]);
        let times = format!(" left-ms={expected} because=rule free-in={expected} ");
        assert!(keys.lines[0].contains(&times), "{keys:?}");
    }
    bench.rule("a.org", &[("block", "yes")]);
    let blocked = "a.org waiting=0 processing=0 because=rule ended-ms=0";
    assert_eq!(bench.keys(&[("key", "a.org")]).lines, [blocked]);
}

// PROTOCOL: G6
#[test]
fn a_key_says_what_it_rests_for() {
    let rest = |pace_ms, not_before_ms| KeyRest { pace_ms, not_before_ms };
    for (expected, rest) in [
        ("because=delay free-in=5001", rest(None, None)),
        ("because=delay free-in=5001 pace-ms=4999", rest(Some(4_999), None)),
        ("because=pace free-in=6001 pace-ms=6000", rest(Some(6_000), None)),
        ("because=not-before free-in=9001 pace-ms=6000", rest(Some(6_000), Some(9_000))),
        ("because=delay free-in=5001", rest(None, Some(4_000))),
    ] {
        let mut bench = Bench::new(&[("delay", "5s")]);
        bench.join(A, 1);
        bench.publish("http://a.org/1");
        bench.publish("http://a.org/2");
        let task = bench.task();
        bench.touch(A, &task.id, true, rest);
        let is_expected = |bench: &mut Bench| {
            let keys = bench.keys(&[]);
            assert!(keys.lines[0].contains(&format!(" {expected} ended-ms=0")), "{keys:?}");
        };
        is_expected(&mut bench);
        // A snapshot gives the same.
        bench.group = replayed(&snapshot(&mut bench), false, bench.group.state.config().clone());
        is_expected(&mut bench);
        // The rest goes on.
        bench.configure(&[("delay", "7s")]);
        is_expected(&mut bench);
    }
}

// PROTOCOL: G6
#[test]
fn a_key_says_which_job_or_member_it_waits_for() {
    let mut bench = Bench::new(&[("delay", "0"), ("parallel", "2")]);
    let because = |bench: &mut Bench| {
        let line = bench.keys(&[]).lines.remove(0);
        let explained = bench.why("a.org").ok;
        let word = line.split(" because=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        assert!(explained.contains(&format!(" because={word}")), "{line} | {explained}");
        word
    };
    bench.open("docs", &[("hold", "yes"), ("max-pages", "2")]);
    for page in 0..6 {
        bench.publish(&format!("http://a.org/{page} job=docs"));
    }
    assert_eq!(because(&mut bench), "job-held");
    bench.with_job("docs", JobOperation::Pause);
    assert_eq!(because(&mut bench), "job-paused");
    bench.with_job("docs", JobOperation::Resume);
    bench.open("other", &[]);
    bench.with_job("other", JobOperation::Pause);
    bench.publish("http://a.org/x job=other");
    assert_eq!(because(&mut bench), "job");
    bench.close("docs");
    assert_eq!(because(&mut bench), "no-members");
    bench.join(A, 1);
    assert_eq!(because(&mut bench), "no-credit");
    bench.join(A, 9);
    assert_eq!(because(&mut bench), "in-flight");
    bench.operate(Operation::Pause);
    assert_eq!(because(&mut bench), "group-paused");
}
