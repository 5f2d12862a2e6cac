//! The never-list: what nothing may request.

use tidings_protocol::{After, Code, Outcome, RetryMode};

use super::bench::{A, Bench};
use crate::{JobOperation, NeverList};

fn bench() -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("page-ready", "on")]);
    bench.join(A, 10);
    bench
}

impl Bench {
    pub(super) fn never(&mut self, list: &str) {
        self.group.set_never_list(NeverList::parse(list.as_bytes()).unwrap().into());
    }

    fn totals(&self) -> String {
        self.group.view().status().to_string()
    }
}

// PROTOCOL: G15
#[test]
fn events_seeds_and_links_are_refused() {
    let mut bench = bench();
    bench.never("*.a.org\n/private/");
    bench.open("site", &[("scope", "any")]);
    for url in ["http://www.a.org/", "http://b.org/private/x"] {
        for attributes in ["", " job=site", " every=1h"] {
            bench.publish(&format!("{url}{attributes}"));
            let (topic, letter) = bench.events.pop().unwrap();
            assert_eq!(topic, "dead-letter");
            assert!(letter.starts_with("reason=blocked group=crawlers "), "{letter}");
        }
        let (url, after) = (url.into(), After::Ms(0));
        bench.with_job(
            "site",
            JobOperation::Add { url, prio: 0, after, attributes: Box::default() },
        );
        assert_eq!(bench.error_code(), Code::Conflict);
    }
    bench.assert_no_task("refused");
    bench.publish("http://b.org/ job=site");
    let task = bench.task();
    let links =
        [("http://a.org/", false), ("http://b.org/private/", false), ("http://c.org/", false)];
    bench.ack(A, &task.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with(" new=1 known=0 refused=2"), "{}", bench.ok());
    bench.publish("http://d.org/");
    let moved = bench.tasks.pop().unwrap().1;
    bench.ack(A, &moved.id, Outcome::Redirect, &[("http://a.org/", true)]);
    assert!(bench.ok().ends_with(" new=0 known=0 refused=1"), "{}", bench.ok());
}

// PROTOCOL: G15
#[test]
fn what_waits_ends_and_is_counted_as_blocked() {
    let mut bench = bench();
    bench.open("site", &[("scope", "any")]);
    for url in ["http://a.org/", "http://a.org/2 job=site", "http://a.org/3 job=site"] {
        bench.publish(url);
    }
    bench.close("site");
    let first = bench.task();
    bench.never("a.org");
    bench.ack(A, &first.id, Outcome::Done, &[]);
    bench.assert_no_task("all are blocked");
    let (topic, done) = bench.events.last().unwrap();
    assert_eq!(*topic, "job-done");
    assert!(done.contains(" completed=0 ") && done.contains(" blocked=2 "), "{done}");
    assert!(bench.totals().contains(" waiting=0 "), "{}", bench.totals());
}

/// The list may have many patterns, and most links of a page are known.
// PROTOCOL: G15
#[test]
fn known_links_are_not_compared_with_the_list() {
    let mut bench = bench();
    bench.open("site", &[("scope", "any")]);
    bench.publish("http://a.org/ job=site");
    let task = bench.task();
    bench.never("/private/");
    bench.publish("http://b.org/private/ job=site");
    bench.never("");
    bench.publish("http://c.org/private/ job=site");
    bench.never("/private/");
    let links = [("http://b.org/private/", false), ("http://c.org/private/", false)];
    bench.ack(A, &task.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with(" new=0 known=1 refused=1"), "{}", bench.ok());
}

#[test]
fn next_request_of_a_task_is_not_made() {
    let mut bench = bench();
    bench.never("b.org");
    bench.publish("http://a.org/");
    let robots = bench.task();
    bench.nack(A, &robots.id, RetryMode::OtherUrl { url: "http://b.org/robots.txt".into() });
    bench.assert_no_task("on the list");
    assert!(bench.totals().contains(" waiting=0 "), "{}", bench.totals());
    // The page itself is put on the list between its two requests.
    bench.publish("http://c.org/");
    let robots = bench.task();
    bench.never("b.org\n*.c.org");
    bench.nack(A, &robots.id, RetryMode::OtherUrl { url: "http://c.org/".into() });
    bench.assert_no_task("on the list");
}

#[test]
fn schedules_rest_while_their_url_is_on_the_list() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1h");
    let first = bench.task();
    bench.ack(A, &first.id, Outcome::Done, &[]);
    bench.never("a.org");
    let hour_ms = 3_600_000;
    bench.wait(3 * hour_ms);
    bench.assert_no_task("on the list");
    assert!(bench.totals().contains(" scheduled=1 "), "{}", bench.totals());
    bench.never("");
    bench.wait(hour_ms);
    assert!(bench.task().payload.starts_with("http://a.org/ every=1h"));
}

#[test]
fn groups_without_urls_have_no_list() {
    let mut bench = Bench::new(&[("key", "none"), ("delay", "0")]);
    bench.join(A, 10);
    bench.never("a.org\n*/");
    bench.publish("http://a.org/");
    assert_eq!(bench.task().payload, "http://a.org/");
}
