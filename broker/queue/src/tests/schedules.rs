//! `every=`: URLs that are fetched repeatedly.

use tidings_protocol::{Code, Outcome, RetryMode, ScheduleQuery};

use super::bench::{A, Bench, group_command};
use crate::entry::FORWARDED_BYTES_MAX;
use crate::{GroupQuery, Input, Operation};

const MINUTE_MS: u64 = 60_000;

impl Bench {
    /// Completes the only task with a page, and checks its payload. `payload` leaves out the
    /// interval.
    #[track_caller]
    fn fetch(&mut self, payload: &str) {
        let task = self.task();
        assert_eq!(without_every(&task.payload), payload);
        self.ack(A, &task.id, Outcome::Done, &[]);
    }

    fn explain_url(&mut self, url: &str) -> Option<String> {
        self.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Explain(url.into()),
        });
        self.answers.last().unwrap().clone().ok().map(|answer| answer.lines.join("\n"))
    }
}

pub(super) fn without_every(payload: &str) -> String {
    let words: Vec<_> = payload.split(' ').filter(|word| !word.starts_with("every=")).collect();
    words.join(" ")
}

fn bench() -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1h"), ("backoff", "0")]);
    bench.join(A, 10);
    bench
}

// PROTOCOL: G3
#[test]
fn scheduled_url_is_fetched_at_once_and_then_regularly() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=1m item=7");
    bench.fetch("http://a.org/feed item=7");
    for _ in 0..3 {
        bench.wait(MINUTE_MS - 1);
        bench.assert_no_task("not before its time");
        bench.wait(1);
        bench.fetch("http://a.org/feed item=7");
    }
}

// PROTOCOL: G3
#[test]
fn missed_fetches_are_merged_into_one() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    let slow = bench.task();
    // It was due three times meanwhile.
    bench.wait(3 * MINUTE_MS + 30_000);
    bench.ack(A, &slow.id, Outcome::Done, &[]);
    bench.assert_no_task("missed fetches are not repeated one by one");
    bench.wait(30_000);
    bench.fetch("http://a.org/");
    // The same if no time-outs were processed meanwhile.
    bench.now = bench.now + 10 * MINUTE_MS + 1000;
    bench.feed(Input::Tick);
    bench.fetch("http://a.org/");
    bench.wait(59_000);
    bench.fetch("http://a.org/");
}

// PROTOCOL: G3
#[test]
fn successful_fetch_replaces_only_the_next_scheduled_one() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    bench.fetch("http://a.org/");
    bench.wait(20_000);
    bench.publish("http://a.org/");
    bench.fetch("http://a.org/");
    bench.wait(40_000);
    bench.assert_no_task("a notification has already caused a fetch");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
    // A page of a job does so, too.
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.fetch("http://a.org/ job=site pass=1 depth=0 number=1");
    bench.wait(MINUTE_MS);
    bench.assert_no_task("the job has fetched it");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

#[test]
fn notification_of_a_waiting_url_is_the_same_fetch() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    bench.fetch("http://a.org/");
    bench.join(A, 0);
    bench.wait(MINUTE_MS);
    bench.publish("http://a.org/");
    bench.join(A, 10);
    bench.fetch("http://a.org/");
    bench.assert_no_task("one request for both");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

// PROTOCOL: T1
#[test]
fn later_event_changes_a_waiting_url() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m feed=10m-1d");
    bench.fetch("http://a.org/ feed=10m-1d");
    bench.publish("http://a.org/ after=1h pushed=5 item=x");
    let bytes = bench.group.state.frontier().active_bytes();
    bench.publish("http://a.org/ pushed=1234");
    assert_eq!(bench.group.state.frontier().active_bytes(), bytes + 3);
    bench.fetch("http://a.org/ pushed=1234 item=x feed=10m-1d");
    assert_eq!(bench.group.state.frontier().active_bytes(), 0);
    // The same for a dormant entry, which is never released here.
    bench.join(A, 0);
    bench.wait(MINUTE_MS);
    bench.publish("http://a.org/ pushed=7");
    bench.join(A, 10);
    bench.fetch("http://a.org/ pushed=7 feed=10m-1d");
    // Attributes that do not fit are not added.
    let long = "x".repeat(FORWARDED_BYTES_MAX / 2);
    bench.publish(&format!("http://a.org/ after=1h a={long}"));
    bench.publish(&format!("http://a.org/ b={long}"));
    bench.fetch(&format!("http://a.org/ a={long} feed=10m-1d"));
}

// PROTOCOL: G3
#[test]
fn failed_fetch_neither_ends_nor_replaces_the_schedule() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    for _ in 0..3 {
        let task = bench.task();
        bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    }
    assert_eq!(bench.events.pop().expect("a dead letter").0, "dead-letter");
    bench.wait(30_000);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Failed, &[]);
    bench.wait(30_000);
    bench.fetch("http://a.org/");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

// PROTOCOL: G3
#[test]
fn every_zero_ends_an_entry_that_only_the_schedule_needs() {
    let mut bench = bench();
    bench.open("site", &[]);
    let fail = |bench: &mut Bench| {
        let task = bench.task();
        bench.nack(A, &task.id, RetryMode::Counted { after_ms: Some(3 * MINUTE_MS) });
    };
    bench.publish("http://a.org/ every=1m");
    fail(&mut bench);
    bench.publish("http://a.org/ every=2m after=1m");
    bench.publish("http://b.org/ every=1d after=5m");
    bench.publish("http://c.org/ every=1m");
    fail(&mut bench);
    bench.publish("http://c.org/ after=2m");
    bench.publish("http://d.org/ job=site");
    fail(&mut bench);
    bench.publish("http://d.org/ every=1m");
    fail(&mut bench);
    for host in ["a", "b", "c", "d"] {
        bench.publish(&format!("http://{host}.org/ every=0"));
    }
    bench.wait(2 * MINUTE_MS);
    bench.fetch("http://c.org/");
    bench.wait(MINUTE_MS);
    let page = bench.task();
    assert!(page.payload.starts_with("http://d.org/ job=site "), "{}", page.payload);
    bench.ack(A, &page.id, Outcome::Done, &[]);
    bench.wait(10 * MINUTE_MS);
    bench.assert_no_task("ended with its schedule");
}

#[test]
fn every_zero_ends_the_schedule_without_a_fetch() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    bench.fetch("http://a.org/");
    bench.publish("http://a.org/ every=0");
    bench.publish("http://never.org/ every=0");
    bench.wait(10 * MINUTE_MS);
    bench.assert_no_task("ended");
    assert_eq!(bench.group.state.expiry_count(), 0, "no timer is left behind");
    assert!(bench.events.is_empty(), "{:?}", bench.events);
}

// PROTOCOL: G3
#[test]
fn new_interval_replaces_the_schedule() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m item=1");
    bench.fetch("http://a.org/ item=1");
    bench.publish("http://a.org/ every=1h item=2");
    bench.fetch("http://a.org/ item=2");
    bench.wait(60 * MINUTE_MS - 1);
    bench.assert_no_task("the first one is gone");
    bench.wait(1);
    bench.fetch("http://a.org/ item=2");
    assert_eq!(bench.group.state.schedules().timers().count(), 1);
}

#[test]
fn after_sets_the_first_fetch() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m after=10m");
    bench.wait(10 * MINUTE_MS);
    bench.fetch("http://a.org/");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

#[test]
fn schedule_belongs_to_the_url_not_to_the_job() {
    let mut bench = bench();
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site every=1m");
    bench.fetch("http://a.org/ job=site pass=1 depth=0 number=1");
    bench.close("site");
    assert_eq!(bench.events.pop().expect("done").0, "job-done");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

// PROTOCOL: G3
#[test]
fn schedules_alternate_with_jobs_and_after_announcements() {
    let mut bench = bench();
    bench.open("site", &[("scope", "any")]);
    bench.publish("http://s.org/ every=1m");
    bench.fetch("http://s.org/");
    bench.join(A, 0);
    bench.wait(MINUTE_MS);
    for page in 0..3 {
        bench.publish(&format!("http://job{page}.org/ job=site"));
        bench.publish(&format!("http://announced{page}.org/"));
    }
    bench.join(A, 4);
    let lanes: Vec<&str> =
        bench.tasks.iter().map(|(_, task)| &task.payload["http://".len()..][..1]).collect();
    assert_eq!(lanes.iter().filter(|lane| **lane == "a").count(), 2, "{lanes:?}");
    assert_eq!(lanes.iter().filter(|lane| **lane == "s").count(), 1, "{lanes:?}");
}

#[test]
fn schedule_survives_purge_and_pause() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    bench.fetch("http://a.org/");
    let operate = |bench: &mut Bench, what| {
        bench.feed(Input::Operate { requester: A.requester(), operation: what });
    };
    operate(&mut bench, Operation::Pause);
    bench.wait(5 * MINUTE_MS);
    bench.assert_no_task("paused");
    operate(&mut bench, Operation::Purge);
    assert!(bench.ok().contains(" scheduled=1 "), "{}", bench.ok());
    operate(&mut bench, Operation::Resume);
    bench.assert_no_task("purged");
    bench.wait(MINUTE_MS);
    bench.fetch("http://a.org/");
}

#[test]
fn schedules_have_limits() {
    let mut bench = bench();
    bench.group.state.config_mut().schedules_max = 1;
    bench.publish("http://a.org/ every=99ms");
    bench.publish("http://a.org/ every=noon");
    bench.publish("http://a.org/ every=100ms");
    bench.publish("http://b.org/ every=1h");
    bench.publish("http://a.org/ every=1h");
    let reasons = bench.events.iter().map(|(_, letter)| letter.split(' ').next().unwrap());
    let expected = ["reason=bad-every", "reason=bad-every", "reason=too-many-schedules"];
    assert_eq!(reasons.collect::<Vec<_>>(), expected);
    bench.fetch("http://a.org/");
    bench.fetch("http://a.org/");
    // A full group skips the scheduled fetch.
    bench.group.state.config_mut().entries_max = 0;
    bench.wait(60 * MINUTE_MS);
    bench.assert_no_task("no room");
    bench.group.state.config_mut().entries_max = 10;
    bench.wait(60 * MINUTE_MS);
    assert_eq!(bench.tasks.len(), 1);
}

#[test]
fn explain_shows_the_schedule() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=1m");
    bench.fetch("http://a.org/");
    bench.wait(20_000);
    let explained = bench.explain_url("http://a.org/").unwrap();
    assert_eq!(explained, "http://a.org/ every=1m due-in=40s");
    bench.configure(&[("key", "domain")]);
    assert_eq!(bench.error_code(), Code::Conflict, "a schedule has a key");
    bench.publish("http://a.org/ every=0");
    assert_eq!(bench.explain_url("http://a.org/"), None);
}

// PROTOCOL: G7, G5
#[test]
fn was_zero_adds_a_schedule_and_changes_none() {
    let mut bench = bench();
    for (every, listed) in [("1h", "every=1h"), ("2h", "every=1h")] {
        bench.publish(&format!("http://a.org/ every={every} was=0 feed=1s-{every}"));
        let list = schedules(&mut bench);
        assert!(list[0].contains(listed) && list[0].ends_with(" feed=1s-1h"), "{list:?}");
    }
    bench.fetch("http://a.org/ feed=1s-1h");
    bench.assert_no_task("nothing changed");
}

// PROTOCOL: G5
#[test]
fn schedules_are_listed_by_due_time() {
    let mut bench = bench();
    bench.feed(Input::WallClock { unix_ms: 5 * 60 * 60_000 });
    for (page, every) in [("a.org/3", "3m"), ("a.org/1", "1m"), ("b.org/", "06:00")] {
        bench.publish(&format!("http://{page} every={every} prio=7"));
        bench.fetch(&format!("http://{page}"));
    }
    bench.wait(MINUTE_MS);
    let mut list = |settings: &[(&str, &str)]| {
        let query = group_command(settings).schedule_query().unwrap();
        bench.feed(Input::Query { requester: A.requester(), query: GroupQuery::Schedules(query) });
        let answer = bench.answers.pop().unwrap().unwrap();
        (answer.lines, answer.ok)
    };
    let (first, second) = (
        "http://a.org/1 every=1m due-ms=60000 key=a.org prio=7 entry=4",
        "http://a.org/3 every=3m due-ms=120000 key=a.org prio=7",
    );
    let third = "http://b.org/ every=06:00 due-ms=3540000 key=b.org prio=7";
    let all = vec![first.to_owned(), second.to_owned(), third.to_owned()];
    assert_eq!(list(&[]), (all, "crawlers matched=3 listed=3".to_owned()));
    let one = (vec![first.to_owned()], "crawlers matched=2 listed=1".to_owned());
    assert_eq!(list(&[("key", "a.org"), ("limit", "1")]), one);
    assert_eq!(list(&[("limit", "0")]), (vec![], "crawlers matched=3 listed=0".to_owned()));
    bench.fetch("http://a.org/1");
    bench.publish("http://a.org/3");
    bench.fetch("http://a.org/3");
    let query = ScheduleQuery { key: Some("a.org".into()), ..ScheduleQuery::default() };
    bench.feed(Input::Query { requester: A.requester(), query: GroupQuery::Schedules(query) });
    let answer = bench.answers.pop().unwrap().unwrap();
    assert_eq!(answer.lines[1], format!("{second} skips=yes"), "the URL was fetched meanwhile");
    assert!(group_command(&[("limit", "1001")]).schedule_query().is_err());
    assert!(group_command(&[("state", "due")]).schedule_query().is_err());
}

#[test]
fn task_contains_the_interval() {
    let mut bench = bench();
    for (event, every) in [("every=90m", "90m"), ("every=06:00", "06:00"), ("every=2h", "2h")] {
        bench.publish(&format!("http://a.org/ {event}"));
        let task = bench.task();
        assert_eq!(task.payload, format!("http://a.org/ every={every}"));
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    bench.publish("http://a.org/ every=0");
    bench.publish("http://a.org/");
    assert_eq!(bench.task().payload, "http://a.org/");
}

// PROTOCOL: T1
#[test]
fn task_contains_the_attributes_of_the_schedule() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=1h feed=15m-1d source=me");
    bench.fetch("http://a.org/feed feed=15m-1d source=me");
    bench.publish("http://a.org/feed");
    bench.fetch("http://a.org/feed feed=15m-1d source=me");
    bench.publish("http://a.org/feed item=7 source=hub");
    bench.fetch("http://a.org/feed item=7 source=hub feed=15m-1d");
    // A page of a job replaces a scheduled fetch as well.
    bench.open("site", &[]);
    bench.publish("http://a.org/feed job=site");
    bench.fetch("http://a.org/feed job=site pass=1 depth=0 number=1 feed=15m-1d source=me");
    // So does its redirect target.
    bench.publish("http://a.org/feed");
    let moved = bench.task();
    bench.ack(A, &moved.id, Outcome::Redirect, &[("http://a.org/new", true)]);
    bench.fetch(
        "http://a.org/new kind=redirect hops=1 feed=15m-1d source=me schedule=http://a.org/feed",
    );
    bench.publish("http://a.org/feed every=0");
    bench.publish("http://a.org/feed");
    bench.fetch("http://a.org/feed");
}

// PROTOCOL: T1
#[test]
fn schedule_attributes_that_do_not_fit_are_left_out() {
    let mut bench = bench();
    let (short, long) =
        ("a=".to_owned() + &"x".repeat(10 << 10), "b=".to_owned() + &"y".repeat(30 << 10));
    bench.publish(&format!("http://a.org/ every=1h {long}"));
    bench.fetch(&format!("http://a.org/ {long}"));
    bench.publish(&format!("http://a.org/ {short}"));
    bench.fetch(&format!("http://a.org/ {short}"));
}

/// Intervals of the scheduled URLs, as in `GROUP schedules`.
fn schedules(bench: &mut Bench) -> Vec<String> {
    let query = ScheduleQuery::default();
    bench.feed(Input::Query { requester: A.requester(), query: GroupQuery::Schedules(query) });
    bench.answers.pop().unwrap().unwrap().lines
}

#[track_caller]
fn assert_every_two_hours(bench: &mut Bench, payload: &str) {
    for _ in 0..3 {
        bench.wait(2 * 60 * MINUTE_MS - 1);
        bench.assert_no_task("neither at once nor at the earlier time");
        bench.wait(1);
        let look = bench.task();
        assert_eq!(look.payload, payload);
        bench.ack(A, &look.id, Outcome::Done, &[]);
    }
}

// PROTOCOL: G7
#[test]
fn worker_changes_only_the_interval_unless_it_has_changed() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=1h prio=7 feed=15m-1d source=me");
    let look = bench.task();
    assert_eq!(look.payload, "http://a.org/feed every=1h feed=15m-1d source=me");
    bench.publish("http://a.org/feed every=2h was=1h feed=15m-1d");
    assert_eq!(schedules(&mut bench).len(), 1);
    bench.ack(A, &look.id, Outcome::Done, &[]);
    assert_every_two_hours(&mut bench, "http://a.org/feed every=2h feed=15m-1d source=me");
    let before = schedules(&mut bench);
    assert_eq!(before, ["http://a.org/feed every=2h due-ms=7200000 key=a.org prio=7 feed=15m-1d"]);
    // The schedule no longer has that interval or those bounds, does not exist, or the new value is
    // invalid.
    bench.publish("http://a.org/feed every=3h was=1h feed=15m-1d");
    bench.publish("http://a.org/feed every=3h was=2h feed=10m-1d");
    bench.publish("http://a.org/feed every=3h was=06:00");
    bench.publish("http://a.org/feed every=0 was=1h");
    bench.publish("http://b.org/ every=3h was=2h");
    assert!(bench.events.is_empty(), "{:?}", bench.events);
    bench.publish("http://a.org/feed every=3h was=soon");
    bench.publish("http://a.org/feed every=99ms was=2h");
    assert_eq!(bench.events.len(), 2);
    assert_eq!(schedules(&mut bench), before);
    bench.assert_no_task("no fetch is due");
    bench.feed(Input::WallClock { unix_ms: 5 * 60 * 60_000 });
    bench.publish("http://a.org/feed every=06:00 was=2h feed=15m-1d");
    assert!(schedules(&mut bench)[0].contains(" every=06:00 "));
    bench.publish("http://a.org/feed every=1h was=06:00");
    assert!(schedules(&mut bench)[0].contains(" every=1h "));
    bench.publish("http://a.org/feed every=0 was=1h");
    assert!(schedules(&mut bench).is_empty());
    assert_eq!(bench.group.state.expiry_count(), 0, "no timer is left behind");
}

#[test]
fn early_fetch_that_changes_the_interval_skips_no_later_fetch() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=1h feed=15m-1d");
    bench.fetch("http://a.org/feed feed=15m-1d");
    bench.wait(10 * MINUTE_MS);
    bench.publish("http://a.org/feed");
    let look = bench.task();
    bench.publish("http://a.org/feed every=30m was=1h feed=15m-1d");
    bench.ack(A, &look.id, Outcome::Done, &[]);
    bench.wait(30 * MINUTE_MS);
    bench.fetch("http://a.org/feed feed=15m-1d");
    // A later notification brings the next fetch forward as usual.
    bench.publish("http://a.org/feed every=1h was=30m feed=15m-1d");
    bench.publish("http://a.org/feed");
    bench.fetch("http://a.org/feed feed=15m-1d");
    bench.wait(60 * MINUTE_MS);
    bench.assert_no_task("the URL was fetched meanwhile");
    bench.wait(60 * MINUTE_MS);
    bench.fetch("http://a.org/feed feed=15m-1d");
}

// PROTOCOL: T1
#[test]
fn redirect_target_receives_the_schedule_attributes() {
    let mut bench = bench();
    bench.publish("http://c.org/ every=5h");
    bench.fetch("http://c.org/");
    bench.publish("http://a.org/feed every=1h feed=15m-1d");
    let moved = |bench: &mut Bench, from: &str, to: &str| {
        let task = bench.task();
        assert_eq!(task.payload, from);
        bench.ack(A, &task.id, Outcome::Redirect, &[(to, true)]);
    };
    moved(&mut bench, "http://a.org/feed every=1h feed=15m-1d", "http://b.org/");
    let of = |every: &str| format!("{every} feed=15m-1d schedule=http://a.org/feed");
    let hop = format!("http://b.org/ kind=redirect hops=1{}", of(" every=1h"));
    moved(&mut bench, &hop, "http://c.org/");
    let look = bench.task();
    // The redirect target has a schedule of its own, which is independent.
    let hop = format!("http://c.org/ kind=redirect hops=2{}", of(" every=1h"));
    assert_eq!(look.payload, hop);
    bench.publish("http://a.org/feed every=2h was=1h feed=15m-1d");
    bench.ack(A, &look.id, Outcome::Done, &[]);
    bench.wait(2 * 60 * MINUTE_MS);
    moved(&mut bench, "http://a.org/feed every=2h feed=15m-1d", "http://b.org/");
    bench.publish("http://a.org/feed every=0");
    moved(
        &mut bench,
        &format!("http://b.org/ kind=redirect hops=1{}", of(" every=2h")),
        "http://d.org/",
    );
    let look = bench.task();
    assert_eq!(look.payload, format!("http://d.org/ kind=redirect hops=2{}", of("")));
}

#[test]
fn new_interval_with_a_first_time_causes_no_earlier_fetch() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=1h feed=15m-1d");
    let look = bench.task();
    // The worker has seen that the URL seldom changes.
    bench.publish("http://a.org/feed every=2h after=2h feed=15m-1d");
    bench.ack(A, &look.id, Outcome::Done, &[]);
    assert_every_two_hours(&mut bench, "http://a.org/feed every=2h feed=15m-1d");
    // A notification in the meantime brings that first time forward.
    bench.publish("http://a.org/feed every=1h after=1h feed=15m-1d");
    bench.wait(30 * MINUTE_MS);
    bench.publish("http://a.org/feed");
    bench.fetch("http://a.org/feed feed=15m-1d");
    bench.wait(90 * MINUTE_MS - 1);
    bench.assert_no_task("the fetch that was due is skipped");
    bench.wait(1);
    bench.fetch("http://a.org/feed feed=15m-1d");
}
