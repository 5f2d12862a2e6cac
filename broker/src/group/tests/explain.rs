//! Why something does not move, asked of a key.

use tidings_protocol::{Code, Return};

use super::bench::{A, Bench};
use crate::group::{Answer, Input, Show};

impl Bench {
    fn why(&mut self, what: &str) -> Answer {
        self.feed(Input::Show { asked: A.asked(), what: Show::Explain(what.into()) });
        self.answers.pop().unwrap().unwrap()
    }
}

#[test]
fn a_key_is_explained_by_what_is_not_due_yet() {
    let mut bench = Bench::new(&[("delay", "5s"), ("backoff", "1h")]);
    bench.publish("http://a.org/late after=2h");
    bench.publish("http://a.org/soon after=10m prio=3");
    assert_eq!(
        bench.why("A.org"),
        Answer {
            more: vec![
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
    assert!(held.more[0].starts_with("in-flight http://a.org/now member="), "{held:?}");
    assert_eq!(held.more[3], "http://a.org/now every=1h due-in=1h");
    assert_eq!(held.ok, "a.org waiting=0 delayed=2 scheduled=1 pending because=in-flight");
    bench.nack(A, &task.id, Return::Retry { after_ms: Some(60_000) });
    let failed = bench.why("a.org");
    let retry = "http://a.org/now key=a.org delayed due-in=1m failures=1 last=test";
    assert_eq!(failed.more[0], retry);
    let ok = "a.org waiting=0 delayed=3 scheduled=1 pending because=delay free-in=5001ms";
    assert_eq!(failed.ok, ok);
}

#[test]
fn a_key_that_is_no_host_is_looked_for_as_it_is_written() {
    let mut bench = Bench::new(&[("key", "attr:site"), ("delay", "0")]);
    bench.publish("http://a.org/ site=Main after=1h");
    assert_eq!(bench.why("Main").ok, "Main waiting=0 delayed=1 free");
    bench.publish("http://a.org/2 site=main");
    assert_eq!(bench.why("main").ok, "main waiting=1 queued because=no-credit");
    assert_eq!(bench.why("MAIN").ok, "main waiting=1 queued because=no-credit");
    bench.feed(Input::Show { asked: A.asked(), what: Show::Explain("other".into()) });
    assert_eq!(bench.refusal(), Code::NotFound);
}
