//! `EXPLAIN` of keys: why entries are not released.

use tidings_protocol::{Code, KeyRest, Outcome, RetryMode};

use super::bench::{A, AnswerText, Bench, group_command};
use crate::{GroupQuery, Input};

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
                "http://a.org/soon key=a.org delayed due-in=10m failures=0 last=none".to_owned(),
                "http://a.org/late key=a.org delayed due-in=2h failures=0 last=none".to_owned(),
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
    let retry = "http://a.org/now key=a.org delayed due-in=1m failures=1 last=test";
    assert_eq!(failed.lines[0], retry);
    let ok = "a.org waiting=0 delayed=3 scheduled=1 pending because=delay free-in=5001ms";
    assert_eq!(failed.ok, ok);
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
    assert_eq!(bench.why("main").ok, "main waiting=1 queued because=no-credit");
    assert_eq!(bench.why("MAIN").ok, "main waiting=1 queued because=no-credit");
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
            "a.org waiting=2 processing=0 left-ms=5000",
            "b.org waiting=2 processing=0 left-ms=5000",
            "c.org waiting=1 processing=0 left-ms=0",
        ]
    );
    assert_eq!(keys.ok, "crawlers matched=3 listed=3");
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
        ["b.org waiting=1 processing=0 left-ms=30001", "a.org waiting=1 processing=1 left-ms=0",]
    );
}
