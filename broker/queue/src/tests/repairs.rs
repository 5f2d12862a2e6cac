//! Repairs: an operator retries dead entries of finished jobs, and each may add a page to its job.

use tidings_protocol::{EntrySelection, Outcome, RetryMode};

use super::bench::{A, Bench};
use super::operate::{bench_with_one_attempt, selection};
use super::simulation::difference;
use crate::config::GroupConfig;
use crate::moment::{ClockStamp, Moment};
use crate::record::GroupRecord;
use crate::record::replay::Replay;
use crate::{Group, GroupQuery, Input, JobOperation, Operation, TaskMessage};

impl Bench {
    /// The line of the job `site`.
    #[track_caller]
    fn site(&mut self) -> String {
        self.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Job("site".parse().unwrap()),
        });
        self.ok().to_owned()
    }

    /// The job `site` finishes after all its seeds failed.
    fn fail_site(&mut self, settings: &[(&str, &str)], seeds: &[&str]) {
        self.open("site", settings);
        for seed in seeds {
            self.kill(&format!("{seed} job=site"));
        }
        self.close("site");
        let done = self.events.pop().expect("the end of the job is announced").1;
        assert!(done.contains(&format!("failed={} ", seeds.len())), "{done}");
        self.events.clear();
    }

    fn retry_all(&mut self) {
        self.operate(Operation::Retry(EntrySelection::default()));
    }

    fn fail(&mut self, task: &TaskMessage) {
        self.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    }
}

/// The records of a whole snapshot.
pub(super) fn snapshot(bench: &mut Bench) -> Vec<GroupRecord> {
    let stamp = ClockStamp { moment: Moment(0), boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    let (mut kept, at) = (Vec::new(), bench.now);
    bench.group.begin_snapshot(stamp, |decision| kept.push(GroupRecord { at, decision }));
    while !bench.group.continue_snapshot(16, |decision| kept.push(GroupRecord { at, decision })) {}
    kept
}

/// A group with this configuration, restored from the lines of these records.
pub(super) fn replayed(records: &[GroupRecord], has_all: bool, config: GroupConfig) -> Group {
    let group = Group::new("crawlers".parse().unwrap(), 7, config, 1);
    let mut replay = Replay::new(group, has_all);
    for record in records {
        let mut line = String::new();
        record.encode(&mut line);
        replay.apply(&GroupRecord::decode(line.trim_end_matches('\n')).unwrap());
    }
    replay.finish().expect("no record is missing")
}

#[test]
fn repaired_page_counts_in_its_job_and_the_job_ends_once() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    for _ in 0..2 {
        bench.operate(Operation::Retry(selection(&[("job", "site")])));
        assert_eq!(bench.ok(), "crawlers retried=1");
        let task = bench.task();
        assert_eq!(task.payload, "http://a.org/ job=site pass=1 depth=0 number=1 last=yes");
        assert!(bench.site().contains(" failed=0 "));
        let listed = bench.tasks_of(&[("job", "site")]);
        assert!(listed[0].contains(" job=site pass=1 "), "{listed:?}");
        bench.fail(&task);
        assert!(bench.site().contains(" failed=1 "), "the entry is dead again");
        let (_, letter) = bench.events.pop().expect("a dead letter");
        assert!(letter.contains(" job=site pass=1 "), "{letter}");
    }
    bench.retry_all();
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/1", false)]);
    assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "{}", bench.ok());
    let shown = bench.site();
    let counts = " state=done pending=0 queued=0 processing=0 completed=1 redirects=0 failed=0 ";
    assert!(shown.contains(counts) && shown.contains(" found=1 "), "{shown}");
    assert!(bench.events.is_empty(), "nothing else is announced: {:?}", bench.events);
}

#[test]
fn redirect_target_is_part_of_the_repair() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.retry_all();
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Redirect, &[("http://b.org/new", true)]);
    let target = bench.task();
    assert!(target.payload.contains(" job=site pass=1 depth=0 "), "{}", target.payload);
    let shown = bench.site();
    assert!(shown.contains(" redirects=1 failed=0 ") && shown.contains(" found=2 "), "{shown}");
    bench.fail(&target);
    assert!(bench.site().contains(" redirects=1 failed=1 "));
    bench.retry_all();
    let target = bench.task();
    bench.ack(A, &target.id, Outcome::Done, &[]);
    let shown = bench.site();
    assert!(shown.contains(" completed=1 redirects=1 failed=0 "), "{shown}");
    assert!(shown.contains(" found=2 "), "{shown}");
}

#[test]
fn redirect_to_a_waiting_url_without_a_job_ends_the_repair() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.retry_all();
    let task = bench.task();
    bench.join(A, 1);
    bench.publish("http://b.org/");
    bench.ack(A, &task.id, Outcome::Redirect, &[("http://b.org/", true)]);
    assert!(bench.ok().ends_with("new=0 known=1 refused=0"), "{}", bench.ok());
    assert_eq!(bench.task().payload, "http://b.org/ last=yes");
    let shown = bench.site();
    assert!(shown.contains(" redirects=1 failed=0 ") && shown.contains(" found=1 "), "{shown}");
}

#[test]
fn several_repairs_count_one_by_one() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/", "http://b.org/", "http://c.org/", "http://d.org/"]);
    bench.retry_all();
    assert!(bench.site().contains(" failed=0 "));
    let tasks: Vec<_> = bench.tasks.drain(..).map(|(_, task)| task).collect();
    let [first, second, third, fourth] = &tasks[..] else { panic!("{tasks:?}") };
    bench.ack(A, &first.id, Outcome::Done, &[]);
    bench.ack(A, &second.id, Outcome::Robots, &[]);
    bench.fail(third);
    bench.ack(A, &fourth.id, Outcome::Failed, &[]);
    let shown = bench.site();
    let counts = " completed=1 redirects=0 failed=2 robots=1 ";
    assert!(shown.contains(counts) && shown.contains(" found=4 "), "{shown}");
}

#[test]
fn repair_lost_too_often_is_dead_again() {
    let mut bench =
        Bench::new(&[("delay", "0"), ("lease", "10s"), ("max-attempts", "1"), ("max-losses", "1")]);
    bench.join(A, 1);
    bench.fail_site(&[], &["http://a.org/"]);
    bench.retry_all();
    bench.task();
    bench.wait(10_000);
    let dead = bench.tasks_of(&[("state", "dead"), ("job", "site")]);
    assert!(dead[0].contains(" job=site pass=1 ") && dead[0].contains("max-losses"), "{dead:?}");
    assert!(bench.site().contains(" failed=1 "));
}

#[test]
fn repair_leaves_a_job_that_is_forgotten_deleted_or_reopened() {
    for over in ["opened", "deleted", "forgotten"] {
        let mut bench = bench_with_one_attempt();
        bench.fail_site(&[], &["http://a.org/"]);
        bench.operate(Operation::Pause);
        bench.retry_all();
        match over {
            "opened" => bench.open("site", &[]),
            "deleted" => bench.feed(Input::JobAction {
                requester: A.requester(),
                name: "site".parse().unwrap(),
                action: JobOperation::Delete,
            }),
            _ => {
                bench.group.state.config_mut().finished_jobs_max = 0;
                bench.open("other", &[]);
                bench.close("other");
            }
        }
        bench.operate(Operation::Resume);
        let task = bench.task();
        assert_eq!(task.payload, "http://a.org/ last=yes", "{over}");
        if over == "opened" {
            assert!(bench.tasks_of(&[("job", "site")]).is_empty());
        }
        bench.fail(&task);
        bench.retry_all();
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
        if over == "opened" {
            let shown = bench.site();
            assert!(shown.contains(" pass=2 ") && shown.contains(" found=0 "), "{shown}");
            assert!(shown.contains(" completed=0 redirects=0 failed=0 "), "{shown}");
        }
    }
}

#[test]
fn two_jobs_repair_the_same_url_separately() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.open("other", &[]);
    bench.kill("http://a.org/ job=other");
    bench.close("other");
    bench.operate(Operation::Pause);
    bench.retry_all();
    assert_eq!(bench.ok(), "crawlers retried=2");
    bench.operate(Operation::Resume);
    for name in ["site", "other"] {
        let task = bench.task();
        assert!(task.payload.contains(&format!(" job={name} pass=1 ")), "{}", task.payload);
        bench.ack(A, &task.id, Outcome::Done, &[]);
        let name = name.parse().unwrap();
        bench.feed(Input::Query { requester: A.requester(), query: GroupQuery::Job(name) });
        assert!(bench.ok().contains(" completed=1 redirects=0 failed=0 "), "{}", bench.ok());
    }
}

#[test]
fn retry_of_a_url_that_waits_without_a_job_repairs_nothing() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.operate(Operation::Pause);
    bench.publish("http://a.org/");
    bench.retry_all();
    assert!(bench.site().contains(" failed=1 "));
    bench.operate(Operation::Resume);
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ last=yes");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.site().contains(" completed=0 redirects=0 failed=1 "));
}

#[test]
fn announcement_of_a_waiting_repair_is_the_same_request() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.operate(Operation::Pause);
    bench.retry_all();
    bench.publish("http://a.org/");
    bench.operate(Operation::Resume);
    let task = bench.task();
    assert!(task.payload.contains(" job=site pass=1 "), "{}", task.payload);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.assert_no_task("one URL, one request");
    assert!(bench.site().contains(" completed=1 redirects=0 failed=0 "));
}

#[test]
fn a_purged_repair_counts_as_cancelled() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/"]);
    bench.operate(Operation::Pause);
    bench.retry_all();
    bench.operate(Operation::Purge);
    let shown = bench.site();
    assert!(shown.contains(" failed=0 ") && shown.contains(" cancelled=1 found=1 "), "{shown}");
}

#[test]
fn dropping_dead_entries_or_cancelling_the_job_keeps_a_repair() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/", "http://b.org/"]);
    bench.operate(Operation::Pause);
    bench.operate(Operation::Retry(selection(&[("key", "a.org")])));
    bench.operate(Operation::Drop(selection(&[("job", "site")])));
    assert_eq!(bench.ok(), "crawlers dropped=1", "the one that was not retried");
    bench.cancel("site");
    bench.operate(Operation::Resume);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    let shown = bench.site();
    assert!(shown.contains(" completed=1 redirects=0 failed=1 "), "{shown}");
    assert!(shown.contains(" cancelled=0 found=2 ") && bench.events.is_empty(), "{shown}");
}

#[test]
fn repairs_keep_to_the_page_budget() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[("max-pages", "1")], &["http://a.org/", "http://b.org/"]);
    bench.retry_all();
    let tasks = [bench.tasks.remove(0).1, bench.task()];
    let repairs = tasks.iter().filter(|task| task.payload.contains(" job=site ")).count();
    assert_eq!(repairs, 1);
    for task in tasks {
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    assert!(bench.site().contains(" completed=1 redirects=0 failed=1 "));
}

#[test]
fn cancelled_job_accepts_no_repair() {
    let mut bench = bench_with_one_attempt();
    bench.open("site", &[]);
    bench.kill("http://a.org/ job=site");
    bench.cancel("site");
    bench.retry_all();
    assert_eq!(bench.task().payload, "http://a.org/ last=yes");
    assert!(bench.site().contains(" state=done ") && bench.ok().contains(" failed=1 "));
}

#[test]
fn a_repair_survives_a_restart_and_a_snapshot() {
    let mut bench = bench_with_one_attempt();
    bench.fail_site(&[], &["http://a.org/", "http://b.org/", "http://c.org/"]);
    bench.join(A, 1);
    bench.retry_all();
    bench.task();
    let again = replayed(&bench.records, true, bench.group.config().clone());
    assert_eq!(difference(&mut bench.group, again, bench.now), None);
    bench.group = replayed(&snapshot(&mut bench), false, GroupConfig::default());
    // One is held and two wait.
    bench.join(A, 10);
    let tasks: Vec<_> = bench.tasks.drain(..).map(|(_, task)| task).collect();
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    bench.fail(&tasks[0]);
    bench.ack(A, &tasks[1].id, Outcome::Done, &[]);
    bench.ack(A, &tasks[2].id, Outcome::Redirect, &[("http://d.org/", true)]);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    let shown = bench.site();
    assert!(shown.contains(" completed=2 redirects=1 failed=1 "), "{shown}");
    assert!(shown.contains(" found=4 "), "{shown}");
}
