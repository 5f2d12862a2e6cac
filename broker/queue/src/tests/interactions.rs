//! Interactions of several rules; each test covers a former or possible bug.

use tidings_protocol::{
    Code, KeyRest, Outcome, PAYLOAD_BYTES_MAX, RetryMode, Seq, TaskAction, TaskReply,
};

use super::bench::{A, B, Bench, NO_HOLD, topic};
use crate::config::GroupConfig;
use crate::moment::{ClockStamp, Moment};
use crate::{ConnId, Group, Input, Output, Requester};

#[test]
fn pinned_entry_keeps_its_budget() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("scope", "any"), ("max-pages", "1")]);
    bench.join(A, 2);
    bench.publish("http://q.org/");
    let busy = bench.task();
    bench.publish("http://x.org/ job=site");
    let pinned = bench.task();
    bench.join(A, 1);
    bench.nack(A, &pinned.id, RetryMode::OtherUrl { url: "http://x.org/".into() });
    bench.join(B, 1);
    bench.publish("http://z.org/ job=site");
    bench.assert_no_task("the budget allows only the page that A continues with");
    bench.ack(A, &busy.id, Outcome::Done, &[]);
    let task = bench.task();
    assert!(task.payload.ends_with("again=http://x.org/"), "{}", task.payload);
    bench.ack(A, &task.id, Outcome::Failed, &[]);
    assert!(bench.task().payload.starts_with("http://z.org/ "), "the budget is returned");
}

#[test]
fn suspect_waits_while_its_job_has_no_budget() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1s"), ("max-losses", "10")]);
    bench.open("site", &[("scope", "any"), ("max-pages", "1")]);
    bench.join(A, 1);
    bench.publish("http://x.org/ job=site");
    for _ in 0..2 {
        bench.wait(1000);
        bench.feed(Input::Activity { conn: ConnId(1) });
    }
    let suspect = bench.tasks.pop().expect("released a third time").1;
    bench.tasks.clear();
    bench.nack(A, &suspect.id, RetryMode::Counted { after_ms: Some(500) });
    bench.publish("http://z.org/ job=site");
    let other = bench.task();
    bench.join(B, 5);
    bench.wait(900);
    bench.assert_no_task("the suspect is due, but the budget is taken");
    bench.ack(A, &other.id, Outcome::Failed, &[]);
    assert_eq!(bench.task().id.entry, suspect.id.entry);
}

#[test]
fn entries_are_not_pinned_to_a_member_without_credit() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://x.org/");
    let task = bench.task();
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    // A reconnects, answers before it has joined, and disconnects again.
    let requester = Requester { conn: ConnId(9), ..A.requester() };
    let back = RetryMode::OtherUrl { url: "http://x.org/".into() };
    let action = TaskAction::Nack(back);
    let reply = TaskReply { task: task.id, action, rest: NO_HOLD, report: None }.into();
    bench.feed(Input::Reply { requester, reply });
    bench.join(B, 1);
    assert_eq!(bench.task().payload, "http://x.org/");
}

#[test]
fn late_line_of_an_old_connection_keeps_the_new_one() {
    let mut bench = Bench::new(&[("delay", "0")]);
    let on = |conn| Requester { conn: ConnId(conn), ..A.requester() };
    bench.join_on(on(1), 1, None);
    bench.join_on(on(9), 1, None);
    bench.join_on(on(1), 1, None);
    bench.publish("http://a.org/");
    assert_eq!(bench.tasks.pop().expect("sent").0, ConnId(1));
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    assert_eq!(
        bench.tasks.pop().expect("sent again").0,
        ConnId(9),
        "the new connection still exists"
    );
    bench.feed(Input::Disconnected { conn: ConnId(9) });
    bench.join_on(on(10), 1, None);
    assert_eq!(bench.tasks.pop().expect("and again").0, ConnId(10));
}

#[test]
fn tasks_of_a_stopped_member_go_to_others() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "1s")]);
    bench.join(A, 10);
    bench.publish("http://x.org/");
    bench.tasks.clear();
    bench.join(B, 10);
    bench.wait(1000);
    assert_eq!(bench.tasks.pop().expect("released again").0, ConnId(2), "although A had it last");
    bench.wait(60_000);
    assert!(bench.tasks.is_empty() && bench.events.is_empty(), "lost twice, and then kept");
}

#[test]
fn announcement_outlives_a_cancelled_job() {
    for cancelled in [true, false] {
        let mut bench = Bench::new(&[("delay", "0")]);
        bench.open("site", &[("scope", "any"), ("max-pages", "1")]);
        bench.join(A, 1);
        bench.publish("http://a.org/ job=site");
        let task = bench.task();
        bench.publish("http://b.org/ job=site");
        bench.publish("http://b.org/");
        if cancelled {
            bench.cancel("site");
        } else {
            bench.close("site");
        }
        bench.ack(A, &task.id, Outcome::Done, &[]);
        assert_eq!(bench.task().payload, "http://b.org/", "cancelled: {cancelled}");
        let done = &bench.events.last().expect("done").1;
        assert!(done.contains("completed=1 ") && done.contains("found=2"), "{done}");
    }
}

#[test]
fn announcements_do_not_count_against_a_budget() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("scope", "any"), ("max-pages", "1")]);
    for host in 0..5 {
        bench.publish(&format!("http://h{host}.org/ job=site"));
        bench.publish(&format!("http://h{host}.org/"));
    }
    bench.close("site");
    bench.join(A, 10);
    assert_eq!(bench.tasks.len(), 5, "announced URLs must be fetched");
    let with_job = bench.tasks.iter().filter(|(_, task)| task.payload.contains("job=site"));
    assert_eq!(with_job.count(), 1);
    for (_, task) in std::mem::take(&mut bench.tasks) {
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    let done = &bench.events.last().expect("done").1;
    assert!(done.contains("completed=1 ") && done.contains("budget=4 "), "{done}");
}

#[test]
fn job_does_not_wait_for_a_removed_topic() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[]);
    bench.next_seq = 2;
    bench.close("site");
    assert!(bench.events.is_empty(), "event 1 may be a seed");
    bench.configure(&[("topics", "other")]);
    assert!(bench.events.pop().expect("done").1.starts_with("site "));
}

#[test]
fn dead_letters_follow_the_record_of_consumed_events() {
    let new = || Group::new("crawlers".parse().unwrap(), 7, GroupConfig::default(), 1);
    let (mut group, mut replayed) = (new(), new());
    let events = vec![(Seq(1), "text".into())];
    group.handle(
        Input::Events { topic: topic(), next: Seq(2), events, foreign_jobs: [].into() },
        Moment(5),
    );
    let outputs: Vec<Output> = std::iter::from_fn(|| group.poll()).collect();
    assert!(
        matches!(outputs[..], [Output::Record(_), Output::Record(_), Output::Publish { .. }]),
        "{outputs:?}"
    );
    for output in &outputs {
        if let Output::Record(record) = output {
            replayed.state.replay(record);
        }
    }
    assert_eq!(replayed.state.totals(), group.state.totals());
}

#[test]
fn groups_without_urls_have_no_jobs() {
    let mut bench = Bench::new(&[("key", "none")]);
    bench.open("site", &[]);
    assert_eq!(bench.error_code(), Code::Conflict);
}

#[test]
fn dead_letters_fit_a_payload() {
    let mut bench = Bench::new(&[("key", "none"), ("max-attempts", "1")]);
    bench.join(A, 1);
    bench.publish(&"x".repeat(PAYLOAD_BYTES_MAX));
    let task = bench.task();
    assert_eq!(task.payload.len(), PAYLOAD_BYTES_MAX, "unchanged");
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    assert_eq!(bench.events[0].1.len(), PAYLOAD_BYTES_MAX);
}

// PROTOCOL: T1
#[test]
fn with_key_seq_a_task_names_its_event() {
    let mut bench = Bench::new(&[("key", "seq")]);
    bench.join(A, 1);
    for (seq, payload) in [(1, "some text"), (2, "http://a.org/ every=1h job=x")] {
        bench.publish(payload);
        let task = bench.task();
        assert_eq!(task.payload, format!("{}/{seq} {payload}", topic()));
        bench.nack(A, &task.id, RetryMode::Counted { after_ms: Some(0) });
        let again = bench.task();
        assert_eq!(again.payload, task.payload);
        bench.nack(A, &again.id, RetryMode::Never);
        assert!(bench.events.pop().unwrap().1.ends_with(&format!(" last=test {payload}")));
    }
    bench.publish(&"x".repeat(PAYLOAD_BYTES_MAX));
    assert!(bench.task().payload.len() > PAYLOAD_BYTES_MAX, "unchanged");
}

#[test]
fn key_setting_cannot_change_while_a_host_rests() {
    let mut bench = Bench::new(&[("delay", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.example.org/1");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.configure(&[("key", "domain")]);
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.wait(10_001);
    bench.configure(&[("key", "domain")]);
    assert!(bench.ok().contains("key=domain"));
}

#[test]
fn late_pace_counts_from_the_end_of_the_request() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 2);
    bench.publish("http://a.org/1");
    bench.publish("http://a.org/2");
    let task = bench.task();
    bench.touch(A, &task.id, true, NO_HOLD);
    bench.wait(100);
    bench.touch(A, &task.id, false, KeyRest { not_before_ms: None, pace_ms: Some(5000) });
    bench.wait(4900);
    bench.assert_no_task("five seconds from the end");
    bench.wait(1);
    bench.task();
}

#[test]
fn key_has_one_timer() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.publish("http://a.org/1");
    let task = bench.task();
    for _ in 0..1000 {
        bench.wait(1);
        let hold = KeyRest { not_before_ms: Some(86_400_000), pace_ms: Some(1000) };
        bench.touch(A, &task.id, true, hold);
    }
    for pass in 0..1000 {
        bench.open(&format!("job{pass}"), &[]);
        bench.close(&format!("job{pass}"));
    }
    assert!(
        bench.group.state.frontier().wakes().count() <= 1,
        "{}",
        bench.group.state.frontier().wakes().count()
    );
    assert!(bench.group.state.expiry_count() <= 1, "{}", bench.group.state.expiry_count());
}

#[test]
fn reopened_job_waits_for_its_seeds() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.close("site");
    let task = bench.task();
    bench.open("site", &[]);
    assert!(bench.ok().contains("pass=1 state=open"), "{}", bench.ok());
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.events.is_empty(), "the job is open again, so not done");
    bench.close("site");
    assert_eq!(bench.events.len(), 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.cancel("site");
    bench.open("site", &[]);
    assert_eq!(bench.error_code(), Code::Busy);
}

// PROTOCOL: T4
#[test]
fn parallel_limits_requests_per_key() {
    let mut bench = Bench::new(&[("delay", "0"), ("parallel", "2")]);
    bench.join(A, 10);
    for page in 0..4 {
        bench.publish(&format!("http://a.org/{page}"));
    }
    assert_eq!(bench.tasks.len(), 2);
    let first = bench.tasks.remove(0).1;
    bench.ack(A, &first.id, Outcome::Done, &[]);
    assert_eq!(bench.tasks.len(), 2, "one ended, one began");
}

// PROTOCOL: T1, T6
#[test]
fn redirect_of_a_seed_extends_the_scope() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[("scope", "host")]);
    bench.publish("http://old.org/ job=site");
    let seed = bench.task();
    bench.ack(A, &seed.id, Outcome::Redirect, &[("http://new.org/", true)]);
    let home = bench.task();
    let expected =
        "http://new.org/ job=site pass=1 depth=0 number=1 scope=2 kind=redirect hops=1 chain=";
    assert!(home.payload.starts_with(expected), "{}", home.payload);
    let links = [("http://new.org/a", false), ("http://elsewhere.org/", false)];
    bench.ack(A, &home.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with("new=1 known=0 refused=1"), "{}", bench.ok());
    let page = bench.task();
    bench.ack(A, &page.id, Outcome::Redirect, &[("http://elsewhere.org/x", true)]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "only a seed's: {}", bench.ok());
}

#[test]
fn pace_expires_after_a_day() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/1");
    let first = bench.task();
    bench.touch(A, &first.id, true, KeyRest { not_before_ms: None, pace_ms: Some(60_000) });
    bench.ack(A, &first.id, Outcome::Done, &[]);
    bench.wait(24 * 60 * 60 * 1000);
    bench.publish("http://a.org/2");
    bench.publish("http://a.org/3");
    let second = bench.task();
    bench.ack(A, &second.id, Outcome::Done, &[]);
    bench.wait(1001);
    bench.task();
}

// PROTOCOL: T13
#[test]
fn hosts_rest_after_a_reboot_despite_the_wall_clock() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.publish("http://x.org/1");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    // The machine rebooted quickly, but its clock was set forward meanwhile.
    bench.now = bench.now + 3_600_000;
    let stamp = ClockStamp { moment: bench.now, boot_id: 2, uptime_ms: 0, unix_ms: 0 };
    bench.feed(Input::Start { run: 8, since: 8, elapsed_unknown: true, stamp, local_member: None });
    bench.publish("http://x.org/2");
    bench.wait(999);
    bench.assert_no_task("the elapsed time is unknown");
    bench.wait(2);
    bench.task();
}

#[test]
fn key_with_waiting_entries_has_no_expiry_timer() {
    let mut bench = Bench::new(&[]);
    bench.join(A, 1);
    bench.publish("http://x.org/");
    let task = bench.task();
    bench.touch(A, &task.id, true, KeyRest { pace_ms: Some(5000), not_before_ms: None });
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.wait(10_000);
    let key = bench.group.state.frontier().keys().find("x.org").expect("its pace is remembered");
    assert!(bench.group.state.frontier().keys()[key].timer().is_some(), "for a time");
    bench.publish("http://x.org/ after=1h");
    assert_eq!(bench.group.state.frontier().keys()[key].timer(), None);
}

#[test]
fn first_since_number_is_kept() {
    let mut bench = Bench::new(&[]);
    let start = |run, since| {
        let stamp = ClockStamp { moment: Moment(1000), boot_id: 1, uptime_ms: 0, unix_ms: 0 };
        Input::Start { run, since, elapsed_unknown: false, stamp, local_member: None }
    };
    for (run, since) in [(8, 70), (9, 71), (10, 3)] {
        bench.feed(start(run, since));
        bench.join(A, 1);
        assert!(bench.ok().ends_with(" held=0 since=70"), "{}", bench.ok());
    }
}
