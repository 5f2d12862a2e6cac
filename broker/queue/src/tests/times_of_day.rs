//! `after=06:00` and `every=06:00`: times that follow the wall clock.

use tidings_protocol::{After, DAY_MS, Outcome};

use super::bench::{A, Bench};
use super::schedules::without_every;
use crate::{GroupQuery, Input, JobOperation};

const HOUR_MS: u64 = 3_600_000;

/// The wall clock at midnight of a day.
const MIDNIGHT: i64 = 20_000 * 86_400_000;

impl Bench {
    /// Sets the wall clock to `hours` after that midnight.
    fn set_clock(&mut self, hours: i64) {
        self.set_clock_ms(hours * 3_600_000);
    }

    fn set_clock_ms(&mut self, ms: i64) {
        self.feed(Input::WallClock { unix_ms: MIDNIGHT + ms });
        // The change is noticed at the next deadline.
        self.feed(Input::Tick);
    }

    #[track_caller]
    fn fetch_now(&mut self, payload: &str) {
        let task = self.task();
        assert_eq!(without_every(&task.payload), payload);
        self.ack(A, &task.id, Outcome::Done, &[]);
        self.assert_no_task("there was one");
    }

    /// Completes two tasks, in any order, and checks that no others exist.
    #[track_caller]
    fn fetch_both(&mut self, one: &str, other: &str) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.sort_by(|(_, a), (_, b)| a.payload.cmp(&b.payload));
        let payloads: Vec<_> = tasks.iter().map(|(_, task)| without_every(&task.payload)).collect();
        assert_eq!(payloads, [one, other]);
        for (_, task) in &tasks {
            self.ack(A, &task.id, Outcome::Done, &[]);
        }
        self.assert_no_task("there were two");
    }

    fn explained(&mut self, what: &str) -> String {
        self.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Explain(what.into()),
        });
        self.answers.last().unwrap().clone().unwrap().lines.join("\n")
    }
}

/// A bench at five in the morning.
fn bench() -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1h"), ("backoff", "0")]);
    bench.join(A, 10);
    bench.set_clock(5);
    bench
}

#[test]
fn after_time_of_day_is_its_next_occurrence() {
    let mut bench = bench();
    bench.publish("http://a.org/ after=06:00");
    bench.publish("http://b.org/ after=05:00:01Z");
    bench.publish("http://c.org/ after=05:00");
    bench.wait(999);
    bench.assert_no_task("a second is not over");
    bench.wait(1);
    bench.fetch_now("http://b.org/");
    bench.wait(HOUR_MS - 1001);
    bench.assert_no_task("it is not six");
    bench.wait(1);
    bench.fetch_now("http://a.org/");
    bench.wait(23 * HOUR_MS - 1);
    bench.assert_no_task("it is not five again yet");
    bench.wait(1);
    bench.fetch_now("http://c.org/");
    assert!(!bench.group.has_wall_clock_dues(), "no due time is left behind");
}

// PROTOCOL: N8
#[test]
fn setting_the_clock_moves_times_of_day_only() {
    let mut bench = bench();
    bench.publish("http://day.org/ after=06:00");
    bench.publish("http://span.org/ after=1h");
    bench.publish("http://every.org/ every=1h");
    bench.fetch_now("http://every.org/");
    bench.set_clock(3);
    bench.wait(HOUR_MS);
    bench.fetch_both("http://every.org/", "http://span.org/");
    bench.publish("http://every.org/ every=0");
    bench.set_clock_ms(6 * 3_600_000 - 1000);
    bench.assert_no_task("a second is missing");
    bench.wait(1000);
    bench.fetch_now("http://day.org/");
}

// PROTOCOL: N8
#[test]
fn times_that_the_clock_skips_are_due_and_repeated_times_come_again() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=06:00");
    bench.fetch_now("http://a.org/");
    bench.set_clock(7);
    bench.fetch_now("http://a.org/");
    // A clock that is set forward by more than a day still causes only one fetch.
    bench.set_clock(5 * 24);
    bench.fetch_now("http://a.org/");
    bench.wait(6 * HOUR_MS - 1);
    bench.assert_no_task("due at six");
    bench.wait(1);
    bench.fetch_now("http://a.org/");
    // A clock that showed a wrong year.
    bench.set_clock(-365 * 24);
    bench.wait(6 * HOUR_MS - 1);
    bench.assert_no_task("it is before six there");
    bench.wait(1);
    bench.fetch_now("http://a.org/");
    bench.wait(DAY_MS);
    bench.fetch_now("http://a.org/");
}

#[test]
fn every_time_of_day_is_daily_and_missed_days_are_merged() {
    let mut bench = bench();
    bench.publish("http://a.org/feed every=06:00 item=7");
    bench.fetch_now("http://a.org/feed item=7");
    bench.wait(HOUR_MS - 1);
    bench.assert_no_task("it is not six");
    for _ in 0..3 {
        bench.wait(1);
        bench.fetch_now("http://a.org/feed item=7");
        bench.wait(DAY_MS - 1);
        bench.assert_no_task("once a day");
    }
    // The same if no time-outs were processed meanwhile.
    bench.now = bench.now + 10 * DAY_MS;
    bench.feed(Input::Tick);
    bench.fetch_now("http://a.org/feed item=7");
    bench.wait(1);
    bench.fetch_now("http://a.org/feed item=7");
}

#[test]
fn successful_fetch_replaces_the_next_time_of_day() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=06:00");
    bench.fetch_now("http://a.org/");
    bench.wait(HOUR_MS);
    bench.fetch_now("http://a.org/");
    bench.wait(HOUR_MS);
    bench.publish("http://a.org/");
    bench.fetch_now("http://a.org/");
    bench.wait(23 * HOUR_MS);
    bench.assert_no_task("a notification has already caused a fetch");
    bench.wait(DAY_MS);
    bench.fetch_now("http://a.org/");
}

#[test]
fn earlier_of_two_times_counts_on_either_clock() {
    let mut bench = bench();
    bench.publish("http://a.org/ after=06:00");
    bench.publish("http://a.org/ after=2h");
    bench.publish("http://b.org/ after=2h");
    bench.publish("http://b.org/ after=06:00");
    bench.publish("http://c.org/ after=06:00");
    bench.publish("http://c.org/ after=10m");
    bench.set_clock(4);
    bench.wait(10 * 60_000);
    bench.fetch_now("http://c.org/");
    bench.wait(HOUR_MS);
    bench.assert_no_task("it is 05:10");
    bench.wait(50 * 60_000);
    bench.fetch_both("http://a.org/", "http://b.org/");
    assert!(!bench.group.has_wall_clock_dues());
}

#[test]
fn first_fetch_may_wait_for_a_time_and_a_new_interval_replaces_it() {
    let mut bench = bench();
    bench.publish("http://a.org/ after=06:00 every=18:00:30");
    bench.wait(HOUR_MS);
    bench.fetch_now("http://a.org/");
    bench.wait(12 * HOUR_MS + 29_000);
    bench.assert_no_task("not yet");
    let explained = bench.explained("http://a.org/");
    assert_eq!(explained, "http://a.org/ every=18:00:30 due-in=1s");
    bench.publish("http://a.org/ every=06:00");
    bench.fetch_now("http://a.org/");
    bench.wait(11 * HOUR_MS + 59 * 60_000 + 31_000 - 1);
    bench.assert_no_task("the first one is gone");
    bench.wait(1);
    bench.fetch_now("http://a.org/");
    bench.publish("http://a.org/ every=2h");
    bench.fetch_now("http://a.org/");
    assert!(!bench.group.has_wall_clock_dues(), "it is not at a time of day any more");
    bench.set_clock(5);
    bench.wait(2 * HOUR_MS);
    bench.fetch_now("http://a.org/");
    bench.publish("http://a.org/ every=06:00");
    bench.fetch_now("http://a.org/");
    bench.publish("http://a.org/ every=0");
    assert!(!bench.group.has_wall_clock_dues());
    assert_eq!(bench.group.state.expiry_count(), 0, "no timer is left behind");
}

#[test]
fn seed_may_wait_for_a_time_unless_purged() {
    let mut bench = bench();
    bench.open("site", &[]);
    let after = After::Time("06:00".parse().unwrap());
    let what = JobOperation::Add {
        url: "http://a.org/".into(),
        prio: 0,
        after,
        attributes: Box::default(),
    };
    bench.feed(Input::JobAction {
        requester: A.requester(),
        name: "site".parse().unwrap(),
        action: what,
    });
    assert_eq!(bench.ok(), "site new=1 known=0");
    bench.set_clock(1);
    bench.wait(5 * HOUR_MS - 1);
    bench.assert_no_task("it is not six");
    bench.wait(1);
    bench.fetch_now("http://a.org/ job=site pass=1 depth=0 number=1");
    bench.publish("http://b.org/ job=site after=06:00");
    assert!(bench.group.has_wall_clock_dues());
    bench.cancel("site");
    assert!(!bench.group.has_wall_clock_dues());
}

#[test]
fn slewed_clock_causes_no_decision() {
    let mut bench = bench();
    bench.publish("http://a.org/ every=06:00");
    bench.fetch_now("http://a.org/");
    let shows = |bench: &Bench, ms| {
        MIDNIGHT + 5 * 3_600_000 + ms + i64::try_from(bench.now.0).unwrap() - 1000
    };
    assert!(!bench.group.is_wall_clock_off(shows(&bench, 999), bench.now));
    assert!(!bench.group.is_wall_clock_off(shows(&bench, -999), bench.now));
    assert!(bench.group.is_wall_clock_off(shows(&bench, 1000), bench.now));
    assert!(bench.group.is_wall_clock_off(shows(&bench, -1000), bench.now));
    bench.wait(DAY_MS * 400);
    assert!(!bench.group.is_wall_clock_off(shows(&bench, 0), bench.now), "whatever passed");
}

#[test]
fn invalid_time_of_day_is_a_dead_letter() {
    let mut bench = bench();
    for (attribute, reason) in [
        ("after=24:00", "reason=bad-after"),
        ("after=6:00", "reason=bad-after"),
        ("every=06:00+01:00", "reason=bad-every"),
        ("every=06", "reason=bad-every"),
    ] {
        bench.publish(&format!("http://a.org/ {attribute}"));
        let (_, letter) = bench.events.pop().expect("a dead letter");
        assert!(letter.starts_with(reason), "{letter}");
    }
}
