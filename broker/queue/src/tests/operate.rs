//! Operator commands: pausing, purging, listing, and handling dead letters.

use tidings_protocol::{Code, EntrySelection, JOB_DONE_TOPIC, Outcome, RetryMode, Seq};

use super::bench::{A, B, Bench, group_command};
use crate::config::GroupConfig;
use crate::{ConnId, GroupQuery, Input, Operation, Output};

impl Bench {
    pub(super) fn operate(&mut self, what: Operation) {
        self.feed(Input::Operate { requester: A.requester(), operation: what });
    }

    pub(super) fn tasks_of(&mut self, settings: &[(&str, &str)]) -> Vec<String> {
        let query = group_command(settings).task_query().unwrap();
        self.feed(Input::Query { requester: A.requester(), query: GroupQuery::Tasks(query) });
        self.answers.last().unwrap().as_ref().unwrap().lines.clone()
    }

    /// Publishes a URL, and fails it until it is dead.
    pub(super) fn kill(&mut self, payload: &str) {
        self.publish(payload);
        let task = self.task();
        self.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    }
}

pub(super) fn selection(settings: &[(&str, &str)]) -> EntrySelection {
    group_command(settings).entry_selection().unwrap()
}

/// A bench with one attempt per entry, in which A works.
pub(super) fn bench_with_one_attempt() -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("max-attempts", "1")]);
    bench.join(A, 10);
    bench
}

#[test]
fn paused_group_accepts_input_and_releases_nothing() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "10s")]);
    bench.join(A, 10);
    bench.publish("http://a.org/1");
    let first = bench.task();
    bench.operate(Operation::Pause);
    assert!(bench.ok().starts_with("crawlers paused=yes members=1 "), "{}", bench.ok());
    bench.publish("http://b.org/1");
    bench.ack(A, &first.id, Outcome::Done, &[]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=0"), "{}", bench.ok());
    bench.wait(60_000);
    bench.join(B, 10);
    bench.assert_no_task("paused");
    bench.operate(Operation::Resume);
    assert!(bench.ok().starts_with("crawlers paused=no "), "{}", bench.ok());
    assert_eq!(bench.task().payload, "http://b.org/1");
}

#[test]
fn leases_expire_while_the_group_is_paused() {
    let mut bench = Bench::new(&[("delay", "0"), ("lease", "10s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.operate(Operation::Pause);
    bench.wait(10_000);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
    bench.assert_no_task("lost, and not released while paused");
}

#[test]
fn purge_drops_waiting_entries_only() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/1 job=site");
    let held = bench.task();
    bench.publish("http://a.org/2 job=site");
    bench.publish("http://a.org/2");
    bench.publish("http://b.org/ after=1h");
    bench.close("site");
    bench.operate(Operation::Purge);
    assert!(bench.ok().contains(" waiting=0 processing=1 "), "{}", bench.ok());
    bench.ack(A, &held.id, Outcome::Done, &[("http://a.org/3", false)]);
    assert!(bench.ok().contains("new=1 "), "what comes later is another matter: {}", bench.ok());
    bench.wait(1001);
    let later = bench.task();
    assert!(later.payload.starts_with("http://a.org/3 "), "{}", later.payload);
    bench.ack(A, &later.id, Outcome::Done, &[]);
    let done = bench.events.pop().expect("done").1;
    assert!(done.contains("completed=2 ") && done.contains("cancelled=1 found=3"), "{done}");
}

#[test]
fn closed_job_is_done_when_all_its_entries_are_purged() {
    let mut bench = Bench::new(&[]);
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.close("site");
    assert!(bench.events.is_empty());
    bench.operate(Operation::Purge);
    assert!(bench.events.pop().expect("done").1.contains("result=done "));
}

// PROTOCOL: G2
#[test]
fn dead_entries_are_kept_with_a_reason_and_retried_or_dropped() {
    let mut bench = bench_with_one_attempt();
    bench.kill("http://a.org/ item=1");
    bench.kill("http://b.org/");
    bench.kill("http://c.org/");
    let dead = bench.tasks_of(&[("state", "dead")]);
    assert_eq!(dead.len(), 3);
    let expected = "1 state=dead key=a.org depth=0 prio=0 attempts=1 losses=0 \
                    reason=max-attempts last=test http://a.org/";
    assert_eq!(dead[0], expected);
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Explain("http://a.org/".into()),
    });
    let explained = bench.answers.last().unwrap().clone().unwrap().lines;
    assert_eq!(explained, ["http://a.org/ dead because=max-attempts last=test"]);
    bench.operate(Operation::Retry(selection(&[("key", "a.org")])));
    assert_eq!(bench.ok(), "crawlers retried=1");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ last=yes item=1", "the same entry with fresh attempts");
    assert_eq!((task.id.entry, task.id.attempt), (1, 2), "with an id that was never used");
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    assert_eq!(bench.tasks_of(&[("state", "dead")]).len(), 3, "dead again");
    bench.operate(Operation::Drop(selection(&[("entry", "2")])));
    assert_eq!(bench.ok(), "crawlers dropped=1");
    bench.operate(Operation::Drop(EntrySelection::default()));
    assert_eq!(bench.ok(), "crawlers dropped=2");
    bench.operate(Operation::Retry(EntrySelection::default()));
    assert_eq!(bench.ok(), "crawlers retried=0");
    bench.assert_no_task("dropped");
}

#[test]
fn answer_for_a_dead_task_is_stale_even_after_a_retry() {
    let mut bench = bench_with_one_attempt();
    bench.publish("http://a.org/");
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    bench.operate(Operation::Retry(EntrySelection::default()));
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.error_code(), Code::Stale);
}

// PROTOCOL: G2
#[test]
fn retried_entry_returns_to_its_pass() {
    let mut bench = bench_with_one_attempt();
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    let seed = bench.task();
    bench.ack(A, &seed.id, Outcome::Done, &[("http://a.org/1", false), ("http://a.org/2", false)]);
    let first = bench.task();
    bench.nack(A, &first.id, RetryMode::Counted { after_ms: None });
    let second = bench.task();
    bench.close("site");
    bench.operate(Operation::Retry(selection(&[("job", "site")])));
    bench.ack(A, &second.id, Outcome::Done, &[]);
    let again = bench.task();
    assert!(again.payload.contains(" job=site pass=1 depth=1"), "{}", again.payload);
    assert!(
        !bench.events.iter().any(|(topic, _)| *topic == "job-done"),
        "the job is not done before"
    );
    bench.ack(A, &again.id, Outcome::Done, &[]);
    let done = &bench.events.last().expect("done").1;
    assert!(done.contains("completed=3 ") && done.contains("failed=0 "), "{done}");
}

// PROTOCOL: G2
#[test]
fn retried_entry_of_a_finished_pass_runs_outside_it() {
    let mut bench = bench_with_one_attempt();
    bench.open("site", &[]);
    bench.kill("http://a.org/ job=site");
    bench.close("site");
    let done = bench.events.pop().expect("done").1;
    assert!(done.contains("failed=1 "), "{done}");
    // This holds while the next pass runs, too.
    bench.open("site", &[]);
    bench.operate(Operation::Retry(selection(&[("job", "site")])));
    assert_eq!(bench.ok(), "crawlers retried=1");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ last=yes");
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/1", false)]);
    assert!(bench.ok().ends_with("refused=1"), "fetched alone: {}", bench.ok());
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Job("site".parse().unwrap()),
    });
    assert!(bench.ok().contains("pass=2 ") && bench.ok().contains("found=0 "), "{}", bench.ok());
}

#[test]
fn retried_entry_of_a_cancelled_pass_runs_outside_it() {
    let mut bench = bench_with_one_attempt();
    bench.open("site", &[("scope", "any")]);
    bench.kill("http://a.org/ job=site");
    bench.publish("http://b.org/ job=site");
    bench.cancel("site");
    let held = bench.task();
    bench.operate(Operation::Retry(EntrySelection::default()));
    assert_eq!(bench.task().payload, "http://a.org/ last=yes");
    bench.ack(A, &held.id, Outcome::Done, &[]);
    assert!(bench.events.last().expect("done").1.contains("failed=1 "));
}

#[test]
fn retried_entry_beyond_the_budget_runs_outside_its_pass() {
    for budget in [("max-pages", "1"), ("max-per-host", "1")] {
        let mut bench = bench_with_one_attempt();
        bench.open("site", &[budget]);
        bench.kill("http://a.org/1 job=site");
        bench.publish("http://a.org/2 job=site");
        let page = bench.task();
        bench.ack(A, &page.id, Outcome::Done, &[]);
        bench.operate(Operation::Retry(EntrySelection::default()));
        assert_eq!(bench.task().payload, "http://a.org/1 last=yes", "{budget:?}");
        bench.close("site");
        let done = &bench.events.last().expect("done").1;
        assert!(done.contains("completed=1 ") && done.contains("failed=1 "), "{done}");
    }
}

// PROTOCOL: G2
#[test]
fn retry_of_a_waiting_url_is_not_queued_twice() {
    let mut bench = bench_with_one_attempt();
    bench.kill("http://a.org/");
    bench.operate(Operation::Pause);
    bench.publish("http://a.org/");
    bench.operate(Operation::Retry(EntrySelection::default()));
    assert_eq!(bench.ok(), "crawlers retried=1");
    bench.operate(Operation::Resume);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.assert_no_task("one URL, one request");
}

// PROTOCOL: G2
#[test]
fn newest_dead_entries_are_kept() {
    let mut bench = bench_with_one_attempt();
    bench.group.state.config_mut().dead_max = 2;
    for host in ["a", "b", "c"] {
        bench.kill(&format!("http://{host}.org/"));
    }
    let kept = bench.tasks_of(&[("state", "dead")]);
    assert!(kept.len() == 2 && kept[1].contains("key=c.org"), "{kept:?}");
    bench.group.state.config_mut().dead_bytes_max = 500;
    bench.kill("http://d.org/");
    let kept = bench.tasks_of(&[("state", "dead")]);
    assert!(kept.len() == 1 && kept[0].contains("key=d.org"), "{kept:?}");
}

// PROTOCOL: G1
#[test]
fn tasks_are_listed_by_state_key_and_job_up_to_a_limit() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.open("site", &[]);
    bench.join(A, 1);
    bench.publish("http://a.org/1 job=site");
    let held = bench.task();
    bench.publish("http://a.org/2 job=site prio=7");
    bench.publish("http://b.org/");
    bench.publish("http://c.org/ after=1m");
    let tasks = bench.tasks_of(&[]);
    let expected = [
        "1 state=processing key=a.org job=site pass=1 depth=0 prio=0 attempts=0 losses=0 \
         member=00000001 lease-ms=60000 held-ms=0 http://a.org/1",
        "2 state=pending key=a.org job=site pass=1 depth=0 prio=7 attempts=0 losses=0 http://a.org/2",
        "3 state=queued key=b.org depth=0 prio=0 attempts=0 losses=0 http://b.org/",
        "4 state=pending key=c.org depth=0 prio=0 attempts=0 losses=0 due-ms=60000 http://c.org/",
    ];
    assert_eq!(tasks, expected);
    assert_eq!(bench.ok(), "crawlers matched=4 listed=4");
    assert_eq!(bench.tasks_of(&[("job", "site"), ("state", "pending")]), [expected[1]]);
    assert_eq!(bench.tasks_of(&[("key", "b.org")]), [expected[2]]);
    assert_eq!(bench.tasks_of(&[("entry", "4")]), [expected[3]]);
    assert_eq!(bench.tasks_of(&[("limit", "1")]), [expected[0]]);
    assert_eq!(bench.ok(), "crawlers matched=4 listed=1 next=1");
    let what = GroupQuery::Tasks(group_command(&[("job", "other")]).task_query().unwrap());
    bench.feed(Input::Query { requester: A.requester(), query: what });
    assert_eq!(bench.error_code(), Code::NotFound);
    bench.operate(Operation::Pause);
    assert_eq!(bench.tasks_of(&[("state", "queued")]).len(), 0, "nothing waits for credit only");
    bench.ack(A, &held.id, Outcome::Done, &[]);
}

// PROTOCOL: G1
#[test]
fn invalid_task_queries_are_rejected() {
    for setting in [("state", "done"), ("limit", "1001"), ("entry", "x"), ("job", "/"), ("a", "b")]
    {
        assert!(group_command(&[setting]).task_query().is_err(), "{setting:?}");
    }
}

#[test]
fn group_is_deleted_only_when_unused() {
    let mut bench = Bench::new(&[]);
    bench.operate(Operation::Delete { is_forced: false });
    assert_eq!(bench.error_code(), Code::Conflict, "the default group cannot be deleted");
    *bench.group.state.name_mut() = "other".parse().unwrap();
    bench.open("site", &[]);
    bench.operate(Operation::Delete { is_forced: false });
    assert_eq!(bench.error_code(), Code::Conflict, "a job is not done");
    bench.close("site");
    bench.join(A, 1);
    bench.operate(Operation::Delete { is_forced: false });
    assert_eq!(bench.error_code(), Code::Conflict, "A works there");
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.operate(Operation::Delete { is_forced: false });
    assert_eq!(bench.error_code(), Code::Busy, "the end of the job is not published yet");
    bench.feed(Input::Published { serial: 1, topic: JOB_DONE_TOPIC, seq: Seq(1) });
    bench.group.handle(
        Input::Operate {
            requester: A.requester(),
            operation: Operation::Delete { is_forced: false },
        },
        bench.now,
    );
    let outputs: Vec<Output> = std::iter::from_fn(|| bench.group.poll()).collect();
    assert!(matches!(
        outputs[..],
        [Output::Record(_), Output::Deleted, Output::Answer { answer: Ok(_), .. }]
    ));
}

#[test]
fn a_task_of_a_vanished_member_delays_the_deletion_unless_it_is_forced() {
    let mut bench = Bench::new(&[("key", "none"), ("lease", "1m")]);
    *bench.group.state.name_mut() = "other".parse().unwrap();
    bench.join(A, 1);
    bench.publish("/a");
    let task = bench.task();
    bench.operate(Operation::Delete { is_forced: true });
    let error = bench.answers.pop().unwrap().unwrap_err();
    assert!(error.text.contains("1 connected member"), "{error}");
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.wait(20_000);
    bench.operate(Operation::Delete { is_forced: false });
    let error = bench.answers.pop().unwrap().unwrap_err();
    let held = format!("entry {} is held for another 40s by ", task.id.entry);
    assert!(error.code == Code::Conflict && error.text.contains(&held), "{error}");
    bench.operate(Operation::Delete { is_forced: true });
    assert_eq!(bench.ok(), "other");
}

#[test]
fn key_setting_cannot_change_while_dead_entries_have_keys() {
    let mut bench = bench_with_one_attempt();
    bench.kill("http://a.org/");
    bench.wait(1);
    bench.configure(&[("key", "domain")]);
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.operate(Operation::Drop(EntrySelection::default()));
    bench.configure(&[("key", "domain")]);
    assert!(bench.group.config() != &GroupConfig::default() && bench.ok().contains("key=domain"));
}
