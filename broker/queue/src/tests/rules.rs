//! The rules of a group, one per test.

use tidings_protocol::{
    CanonicalUrl, Code, EntrySelection, Outcome, Payload, RetryMode, Seq, TaskId,
};

use super::bench::{A, B, Bench, NO_HOLD, topic};
use crate::{ConnId, Input, Operation, Requester};

// PROTOCOL: T5
#[test]
fn answer_counts_once_and_only_from_the_holder() {
    let mut bench = Bench::new(&[]);
    bench.join(A, 1);
    bench.join(B, 0);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.ack(B, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=0"), "{}", bench.ok());
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
    let other_run = TaskId { run: 6, ..task.id };
    bench.touch(A, &other_run, false, NO_HOLD);
    assert_eq!(bench.error_code(), Code::Stale);
}

// PROTOCOL: T4, T8
#[test]
fn lost_task_is_released_to_another_member_after_lease_and_delay() {
    let mut bench = Bench::new(&[("delay", "1s"), ("lease", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let lost = bench.task();
    bench.join(B, 1);
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.wait(11_000);
    bench.assert_no_task("the request may go on until the lease ends, then comes the delay");
    bench.wait(1);
    let again = bench.task();
    assert_eq!((again.id.entry, again.id.attempt), (lost.id.entry, 2));
    bench.ack(A, &lost.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
}

#[test]
fn touch_extends_the_lease() {
    let mut bench = Bench::new(&[("lease", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.wait(9000);
    bench.touch(A, &task.id, false, NO_HOLD);
    bench.wait(9000);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.ok().starts_with(&task.id.to_string()));
}

// PROTOCOL: T9
#[test]
fn reconnected_member_receives_its_tasks_again() {
    let mut bench = Bench::new(&[("lease", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.wait(4000);
    let requester = Requester { conn: ConnId(9), ..A.requester() };
    bench.join_on(requester, 1, None);
    let resent = bench.task();
    assert_eq!((resent.id, resent.lease_ms), (task.id.clone(), 6000));
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.ok().starts_with(&task.id.to_string()));
}

#[test]
fn again_releases_the_next_request_first_to_the_same_member() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 2);
    bench.join(B, 2);
    bench.publish("http://a.org/page");
    let first = bench.task();
    bench.publish("http://a.org/other");
    bench.nack(A, &first.id, RetryMode::OtherUrl { url: "http://a.org/page".into() });
    bench.wait(1000);
    bench.assert_no_task("a request was made: the delay counts");
    bench.wait(1);
    let (conn, second) = bench.tasks.pop().unwrap();
    assert_eq!(conn, ConnId(1), "only this member knows the context");
    assert_eq!(second.payload, "http://a.org/page again=http://a.org/page");
    assert_eq!(second.id.attempt, 2);
    bench.nack(A, &second.id, RetryMode::OtherUrl { url: "http://b.org/robots.txt".into() });
    let third = bench.task();
    assert_eq!(
        third.payload, "http://a.org/page again=http://b.org/robots.txt",
        "another key gates it, which is free"
    );
    bench.wait(1001);
    assert_eq!(bench.task().payload, "http://a.org/other", "its own key is free again");
}

#[test]
fn again_is_limited_and_ends_with_its_member() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/page");
    for _ in 0..8 {
        let task = bench.task();
        bench.nack(A, &task.id, RetryMode::OtherUrl { url: "http://a.org/page".into() });
    }
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::OtherUrl { url: "http://a.org/page".into() });
    assert_eq!(bench.error_code(), Code::Limit);
    bench.nack(A, &task.id, RetryMode::Uncounted { after_ms: None });
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/page", "it starts with its own page");

    bench.ack(A, &task.id, Outcome::Done, &[]);

    bench.join(A, 2);
    bench.publish("http://b.org/page");
    let task = bench.task();
    bench.publish("http://busy.org/");
    bench.tasks.clear();
    bench.join(A, 1);
    bench.join(B, 1);
    bench.nack(A, &task.id, RetryMode::OtherUrl { url: "http://c.org/".into() });
    bench.assert_no_task("for A while it is connected, though only B has room");
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    assert_eq!(bench.task().payload, "http://b.org/page");
}

// PROTOCOL: P3, T1, T7
#[test]
fn failures_back_off_and_end_as_dead_letter() {
    let mut bench = Bench::new(&[("max-attempts", "2"), ("backoff", "1s"), ("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/ item=5");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ item=5", "unknown attributes are forwarded");
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    bench.wait(999);
    bench.assert_no_task("backoff");
    bench.wait(251);
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ last=yes item=5");
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    let (topic, letter) = bench.events.pop().expect("a dead letter");
    assert_eq!(topic, "dead-letter");
    assert!(letter.starts_with("http://a.org/ reason=max-attempts group=crawlers"), "{letter}");
}

// PROTOCOL: T7
#[test]
fn retry_no_makes_an_entry_a_dead_letter_at_once() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/ item=5");
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::Never);
    let (topic, letter) = bench.events.pop().expect("a dead letter");
    assert_eq!(topic, "dead-letter");
    assert!(letter.starts_with("http://a.org/ reason=retry-no group=crawlers"), "{letter}");
    assert!(letter.contains(" failures=1 losses=0 last=test"), "{letter}");
    bench.wait(3_600_000);
    bench.assert_no_task("it is dead");
    bench.feed(Input::Operate {
        requester: A.requester(),
        operation: Operation::Retry(EntrySelection::default()),
    });
    assert_eq!(bench.task().payload, "http://a.org/ item=5");
}

// PROTOCOL: T4
#[test]
fn uncounted_returns_cost_neither_attempt_nor_delay() {
    let mut bench = Bench::new(&[("max-attempts", "1"), ("delay", "1h")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    for _ in 0..5 {
        let task = bench.task();
        bench.nack(A, &task.id, RetryMode::Uncounted { after_ms: None });
    }
    bench.task();
}

// PROTOCOL: T10
#[test]
fn silent_member_receives_nothing_until_it_is_active() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1s")]);
    bench.join(A, 10);
    bench.publish("http://a.org/");
    let lost = bench.task();
    bench.wait(60_000);
    bench.assert_no_task("it would be lost repeatedly until it is a dead letter");
    bench.join(B, 10);
    let (conn, task) = bench.tasks.pop().expect("another member takes it");
    assert_eq!((conn, task.id.attempt), (ConnId(2), 2));
    bench.ack(B, &task.id, Outcome::Done, &[]);
    bench.feed(Input::Disconnected { conn: ConnId(2) });
    bench.publish("http://b.org/");
    bench.assert_no_task("A is still silent");
    bench.ack(A, &lost.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
    assert_eq!(
        bench.task().payload,
        "http://b.org/",
        "a late answer shows that the member is alive"
    );
    bench.wait(60_000);
    bench.publish("http://c.org/");
    bench.assert_no_task("silent again");
    bench.feed(Input::Activity { conn: ConnId(1) });
    assert_eq!(bench.tasks.len(), 2, "the member is alive again");
}

// PROTOCOL: T7
#[test]
fn member_holds_at_most_one_suspect() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1s"), ("max-losses", "3")]);
    bench.join(A, 10);
    bench.publish("http://a.org/");
    bench.publish("http://b.org/");
    // Each time both leases expire, but the member shows that it is alive.
    let lose = |bench: &mut Bench| {
        bench.wait(1000);
        bench.feed(Input::Activity { conn: ConnId(1) });
    };
    lose(&mut bench);
    lose(&mut bench);
    assert_eq!(bench.tasks.len(), 5, "two released three times, but one suspect waits");
    lose(&mut bench);
    let letters = bench.events.iter().filter(|(topic, _)| *topic == "dead-letter").count();
    assert_eq!(letters, 1, "lost three times: a dead letter");
    assert_eq!(bench.tasks.len(), 6, "and the other suspect has its turn");
}

#[test]
fn announcements_alternate_with_jobs() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("scope", "any")]);
    for page in 0..4 {
        bench.publish(&format!("http://job{page}.org/ job=site"));
        bench.publish(&format!("http://announced{page}.org/"));
    }
    bench.join(A, 8);
    let lanes: Vec<bool> =
        bench.tasks.iter().map(|(_, task)| task.payload.contains("announced")).collect();
    assert_eq!(lanes, [true, false, true, false, true, false, true, false]);
}

#[test]
fn jobs_alternate_and_priority_orders_each_job() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("big", &[("scope", "any")]);
    bench.open("small", &[("scope", "any")]);
    for page in 0..4 {
        bench.publish(&format!("http://big{page}.org/ job=big prio={page}"));
    }
    bench.publish("http://small.org/ job=small");
    bench.join(A, 3);
    let urls: Vec<&str> =
        bench.tasks.iter().map(|(_, task)| task.payload.split(' ').next().unwrap()).collect();
    assert_eq!(urls, ["http://big3.org/", "http://small.org/", "http://big2.org/"]);
}

#[test]
fn announcement_brings_a_jobs_url_forward() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.open("site", &[]);
    bench.publish("http://a.org/1 job=site");
    bench.publish("http://a.org/2 job=site");
    bench.publish("http://a.org/3 job=site");
    bench.publish("http://a.org/3");
    bench.join(A, 1);
    let task = bench.task();
    assert!(task.payload.starts_with("http://a.org/3 job=site"), "{}", task.payload);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.wait(1001);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.wait(1001);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.wait(5000);
    bench.assert_no_task("three pages, three requests");
}

#[test]
fn url_announced_while_in_flight_is_fetched_once_more() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.publish("http://a.org/");
    bench.publish("http://a.org/");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.assert_no_task("two announcements while it was in flight are one");
}

// PROTOCOL: T6
#[test]
fn without_a_job_links_are_not_followed_but_redirects_are() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let task = bench.task();
    let links = [("http://a.org/link", false), ("http://b.org/target", true)];
    bench.ack(A, &task.id, Outcome::Redirect, &links);
    assert!(bench.ok().ends_with("new=1 known=0 refused=1"), "{}", bench.ok());
    assert_eq!(bench.task().payload, "http://b.org/target kind=redirect hops=1");
}

// PROTOCOL: T6
#[test]
fn redirects_end_after_ten_hops() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/0");
    for hop in 1..=10 {
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Redirect, &[(&format!("http://a.org/{hop}"), true)]);
    }
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Redirect, &[("http://a.org/11", true)]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "{}", bench.ok());
}

// PROTOCOL: T1
#[test]
fn redirects_of_a_job_say_which_urls_led_to_them() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/0 job=site chain=forged item=5");
    let mut hashes = Vec::new();
    for hop in 0..3 {
        let task = bench.task();
        let chain = Payload::parse(&task.payload).attribute("chain").map(str::to_owned);
        assert_eq!(chain, (hop > 0).then(|| hashes.join(",")));
        let url_key = CanonicalUrl::key_of(&format!("http://a.org/{hop}"));
        hashes.push(url_key.to_string()[..16].to_owned());
        bench.ack(A, &task.id, Outcome::Redirect, &[(&format!("http://a.org/{}", hop + 1), true)]);
    }
    let task = bench.task();
    assert!(task.payload.contains(" item=5 chain="), "{}", task.payload);
    bench.nack(A, &task.id, RetryMode::Never);
    let (_, letter) = bench.events.pop().expect("a dead letter");
    assert!(letter.ends_with(" item=5"), "{letter}");
    assert!(bench.events.is_empty());
}

// PROTOCOL: T6
#[test]
fn only_a_redirect_of_a_job_may_lead_back_to_its_chain() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    let [page, check, other] = ["http://a.org/", "http://a.org/check", "http://a.org/other"];
    let answer = |bench: &mut Bench, from: &str, links: &[(&str, bool)], counts: &str| {
        let task = bench.task();
        assert!(task.payload.starts_with(&format!("{from} job=site ")), "{}", task.payload);
        bench.ack(A, &task.id, Outcome::Redirect, links);
        assert!(bench.ok().ends_with(counts), "{from}, {links:?}: {}", bench.ok());
    };
    bench.publish("http://a.org/ job=site");
    answer(&mut bench, page, &[(check, true)], "new=1 known=0 refused=0");
    // A link, and the page itself.
    answer(&mut bench, check, &[(page, false), (check, true)], "new=0 known=2 refused=0");
    bench.publish("http://a.org/other job=site");
    answer(&mut bench, other, &[(page, true)], "new=0 known=1 refused=0");
    bench.close("site");
    let (_, done) = bench.events.pop().expect("done");
    assert!(done.contains(" redirects=3 ") && done.contains(" found=3"), "{done}");
    // Ten hops at most.
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.close("site");
    for hop in 0..=10 {
        let task = bench.task();
        assert!(hop == 0 || task.payload.contains(&format!(" hops={hop} ")), "{}", task.payload);
        let target = [check, page][hop % 2];
        bench.ack(A, &task.id, Outcome::Redirect, &[(target, true)]);
        bench.check_records();
    }
    assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "{}", bench.ok());
    let (_, done) = bench.events.pop().expect("done");
    assert!(done.contains(" redirects=11 ") && done.contains(" found=11"), "{done}");
}

// PROTOCOL: C7, T5, T6
#[test]
fn links_are_checked_and_the_job_is_done_once() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[("scope", "host"), ("depth", "1")]);
    bench.publish("http://a.org/ job=site");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ job=site pass=1 depth=0 number=1");
    bench.close("site");
    let links = [
        ("http://a.org/1", false),
        ("http://a.org/1#fragment", false),
        ("http://a.org/", false),
        ("http://elsewhere.org/", false),
        ("ftp://a.org/", false),
    ];
    bench.ack(A, &task.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with("new=1 known=2 refused=2"), "{}", bench.ok());
    let task = bench.task();
    assert!(bench.events.is_empty(), "not done before the last page");
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/2", false)]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "deeper than one link");
    let done = bench.events.pop().expect("done");
    assert_eq!(done.0, "job-done");
    assert!(done.1.starts_with("site number=1 pass=1 result=done completed=2 "), "{}", done.1);
    bench.wait(100_000);
    assert!(bench.events.is_empty(), "announced once");
    bench.publish("http://a.org/late job=site");
    assert!(bench.events.pop().expect("a dead letter").1.contains("reason=finished-job"));
}

#[test]
fn job_waits_for_a_seed_published_before_its_close() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    // The seed has a seq, but the group has not consumed it when the job is closed.
    bench.next_seq = 2;
    bench.close("site");
    assert!(bench.events.is_empty(), "the event with number 1 may be a seed");
    let events = vec![(Seq(1), "http://a.org/ job=site".to_owned())];
    bench.feed(Input::Events { topic: topic(), next: Seq(2), events, foreign_jobs: [].into() });
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.events.pop().expect("done").1.contains("completed=1"));
}

#[test]
fn opening_a_finished_job_starts_the_next_pass() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    for pass in 1..=2 {
        bench.open("site", &[]);
        bench.publish("http://a.org/ job=site");
        bench.close("site");
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
        let done = bench.events.pop().expect("done").1;
        assert!(done.starts_with(&format!("site number=1 pass={pass} ")), "{done}");
    }
}

#[test]
fn budget_is_reserved_at_release_and_returned_without_a_page() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    bench.open("site", &[("scope", "any"), ("max-pages", "2")]);
    for host in ["a", "b", "c", "d"] {
        bench.publish(&format!("http://{host}.org/ job=site"));
    }
    bench.close("site");
    assert_eq!(bench.tasks.len(), 2, "two pages are allowed, so two tasks are released");
    let first = bench.tasks.remove(0).1;
    let second = bench.task();
    bench.ack(A, &first.id, Outcome::Robots, &[]);
    let third = bench.task();
    bench.ack(A, &second.id, Outcome::Done, &[]);
    bench.assert_no_task("the other page is in flight");
    bench.ack(A, &third.id, Outcome::Done, &[]);
    let done = bench.events.pop().expect("done").1;
    assert!(done.contains("completed=2 ") && done.contains("budget=1 "), "{done}");
}

#[test]
fn cancelled_job_drops_waiting_entries_and_ends_after_those_in_flight() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/1 job=site");
    bench.publish("http://a.org/2 job=site");
    let task = bench.task();
    bench.cancel("site");
    assert!(bench.events.is_empty(), "one is in flight");
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/3", false)]);
    let done = bench.events.pop().expect("done").1;
    assert!(
        done.contains("result=cancelled completed=1 ") && done.contains("cancelled=1 "),
        "{done}"
    );
    bench.wait(10_000);
    bench.assert_no_task("nothing is left");
}

#[test]
fn empty_job_is_done_at_close_and_abandoned_job_after_a_day() {
    let mut bench = Bench::new(&[]);
    bench.open("empty", &[]);
    bench.close("empty");
    assert!(bench.events.pop().expect("done").1.contains("found=0"));
    bench.open("forgotten", &[]);
    bench.wait(24 * 60 * 60 * 1000);
    assert!(bench.events.pop().expect("done").1.starts_with("forgotten "));
}

#[test]
fn jobs_beyond_the_limit_are_rejected() {
    let mut bench = Bench::new(&[]);
    bench.group.state.config_mut().jobs_max = 2;
    bench.open("a", &[]);
    bench.open("b", &[]);
    bench.open("c", &[]);
    assert_eq!(bench.error_code(), Code::Limit);
    bench.close("a");
    bench.open("c", &[]);
    assert!(bench.ok().starts_with("c number=3 "), "{}", bench.ok());
}

// PROTOCOL: P4
#[test]
fn events_without_a_key_are_dead_letters_up_to_100_per_minute() {
    let mut bench = Bench::new(&[]);
    bench.publish("just some text");
    let letter = bench.events.pop().expect("a dead letter").1;
    assert_eq!(letter, "reason=not-a-url group=crawlers topic=new-url seq=1 just some text");
    for _ in 0..200 {
        bench.publish("mailto:somebody@example.org");
    }
    assert_eq!(bench.events.len(), 99);
    bench.wait(60_000);
    bench.publish("ftp://example.org/");
    assert_eq!(bench.events.len(), 100);
}

#[test]
fn key_stays_with_its_member_unless_much_more_loaded() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 100);
    bench.join(B, 100);
    bench.publish("http://a.org/1");
    let (first_conn, task) = bench.tasks.pop().unwrap();
    bench.publish("http://b.org/");
    let owner = if first_conn == ConnId(1) { A } else { B };
    bench.publish("http://a.org/2");
    bench.tasks.clear();
    bench.ack(owner, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.tasks.pop().unwrap().0, first_conn, "it stays with the first member");
}

// PROTOCOL: T1
#[test]
fn groups_without_keys_accept_any_text_and_coalesce_nothing() {
    let mut bench = Bench::new(&[("key", "none")]);
    bench.join(A, 10);
    bench.publish("same text");
    bench.publish("same text");
    assert_eq!(bench.tasks.len(), 2);
    assert!(bench.tasks.iter().all(|(_, task)| task.payload == "same text"));
}

// PROTOCOL: C3
#[test]
fn settings_out_of_range_change_nothing() {
    let mut bench = Bench::new(&[]);
    let before = bench.group.config().clone();
    for (name, value) in [
        ("lease", "1ms"),
        ("delay", "-1"),
        ("parallel", "0"),
        ("parallel", "+5"),
        ("colour", "red"),
    ] {
        bench.configure(&[("delay", "7s"), (name, value)]);
        assert_eq!(bench.error_code(), Code::BadArgument, "{name}={value}");
        assert_eq!(bench.group.config(), &before);
    }
}

#[test]
fn job_done_feeds_groups_without_keys_and_dead_letter_feeds_none() {
    let done = ("topics", "job-done");
    for settings in [[done, ("key", "none")], [("key", "none"), done]] {
        let mut bench = Bench::new(&[]);
        bench.configure(&settings);
        assert!(bench.ok().contains(" topics=job-done key=none "), "{}", bench.ok());
        bench.configure(&[("key", "host")]);
        assert_eq!(bench.error_code(), Code::BadArgument);
    }
    for settings in
        [&[done][..], &[("key", "host"), done], &[("key", "none"), ("topics", "a,dead-letter")]]
    {
        let mut bench = Bench::new(&[]);
        bench.configure(settings);
        assert_eq!(bench.error_code(), Code::BadArgument, "{settings:?}");
    }
}
