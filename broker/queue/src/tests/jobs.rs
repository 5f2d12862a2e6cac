//! Jobs in progress: paused, waited for, seeded by command, and limited.

use tidings_protocol::{
    After, Code, JOB_DONE_TOPIC, JobSettings, Outcome, RetryMode, Seq, Settings,
};

use super::bench::{A, B, Bench, topic};
use super::repairs::{replayed, snapshot};
use crate::{ConnId, GroupQuery, Input, JobOperation, Requester};

const HOUR_MS: u64 = 60 * 60 * 1000;

impl Bench {
    fn add(&mut self, name: &str, url: &str) {
        self.with_job(
            name,
            JobOperation::Add {
                url: url.into(),
                prio: 0,
                after: After::Ms(0),
                attributes: Box::default(),
            },
        );
    }

    fn explain(&mut self, what: &str) -> String {
        self.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Explain(what.into()),
        });
        self.answers.last().unwrap().as_ref().unwrap().lines.join("\n")
    }

    /// The newest announcement of a finished job.
    #[track_caller]
    fn done(&mut self) -> String {
        let (topic, payload) = self.events.pop().expect("a job is done");
        assert_eq!(topic, "job-done");
        payload
    }
}

#[test]
fn paused_job_releases_nothing_and_others_continue() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("paused", &[]);
    bench.open("other", &[]);
    bench.publish("http://a.org/1 job=paused");
    bench.publish("http://b.org/1 job=paused");
    bench.with_job("paused", JobOperation::Pause);
    assert!(bench.ok().contains(" state=paused pending=2 queued=0 "), "{}", bench.ok());
    assert!(bench.explain("http://a.org/1").contains("pending because=job-paused"));
    // On the same host, before and after it.
    bench.publish("http://a.org/2 job=other");
    bench.publish("http://a.org/3 job=paused");
    bench.publish("http://a.org/4");
    bench.join(A, 10);
    for _ in 0..2 {
        let task = bench.task();
        assert!(!task.payload.contains("job=paused"), "{}", task.payload);
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    bench.assert_no_task("paused");
    bench.with_job("paused", JobOperation::Resume);
    assert!(bench.ok().contains(" state=open pending=1 queued=2 "), "{}", bench.ok());
    assert_eq!(bench.tasks.len(), 2);
}

#[test]
fn held_job_releases_nothing_before_its_seeds_are_consumed() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    bench.open("site", &[("hold", "yes")]);
    bench.add("site", "http://a.org/1");
    bench.publish("http://b.org/1 job=site");
    bench.assert_no_task("open");
    assert!(bench.explain("http://a.org/1").contains("pending because=job-held"));
    bench.publish("http://a.org/2");
    let other = bench.task();
    assert_eq!(other.payload, "http://a.org/2", "the next one on the same host");
    bench.ack(A, &other.id, Outcome::Done, &[]);
    // Two seeds were published and are not consumed yet.
    let first = bench.next_seq;
    bench.next_seq += 2;
    bench.close("site");
    for seq in [first, first + 1] {
        bench.assert_no_task("a seed is not consumed yet");
        let events = vec![(Seq(seq), format!("http://c.org/{seq} job=site"))];
        let (next, elsewhere) = (Seq(seq + 1), [].into());
        bench.feed(Input::Events { topic: topic(), next, events, foreign_jobs: elsewhere });
    }
    assert_eq!(bench.tasks.len(), 3, "one for each host");
}

#[test]
fn held_job_begins_when_its_group_is_full_or_it_is_abandoned() {
    for forgotten in [false, true] {
        let mut bench = Bench::new(&[("delay", "0")]);
        bench.group.state.config_mut().entries_max = 1;
        bench.join(A, 10);
        bench.open("site", &[("hold", "yes")]);
        bench.publish("http://a.org/1 job=site");
        bench.assert_no_task("open");
        if forgotten {
            bench.wait(23 * HOUR_MS);
            bench.assert_no_task("seeds may still come");
            bench.wait(2 * HOUR_MS);
        } else {
            bench.next_seq += 1; // A seed for which there is no room.
            bench.close("site");
        }
        assert!(bench.task().payload.starts_with("http://a.org/1 job=site"));
    }
}

#[test]
fn begun_task_continues_while_its_job_is_paused() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    let robots = bench.task();
    bench.with_job("site", JobOperation::Pause);
    bench.nack(A, &robots.id, RetryMode::OtherUrl { url: "http://a.org/".into() });
    let page = bench.task();
    assert!(page.payload.ends_with("again=http://a.org/"), "{}", page.payload);
    let links = [("http://a.org/1", false), ("http://a.org/2", true)];
    bench.ack(A, &page.id, Outcome::Done, &links);
    assert!(bench.ok().contains("new=2 "), "its links are the job's: {}", bench.ok());
    bench.assert_no_task("its links wait, and so does the redirect at the head of its key");
    bench.publish("http://a.org/other");
    assert_eq!(bench.task().payload, "http://a.org/other", "behind that head");
}

#[test]
fn announcement_is_fetched_although_its_job_is_paused() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    bench.open("site", &[]);
    bench.with_job("site", JobOperation::Pause);
    bench.publish("http://a.org/ job=site");
    bench.assert_no_task("paused");
    bench.publish("http://a.org/");
    let task = bench.task();
    assert_eq!(
        task.payload, "http://a.org/ job=site pass=1 depth=0 number=1",
        "still the job's own"
    );
    bench.close("site");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.done().contains("completed=1 "), "a paused job may end");
}

#[test]
fn next_pass_of_a_paused_job_is_not_paused() {
    let mut bench = Bench::new(&[]);
    bench.open("site", &[]);
    bench.with_job("site", JobOperation::Pause);
    bench.close("site");
    bench.done();
    bench.with_job("site", JobOperation::Resume);
    assert_eq!(bench.error_code(), Code::Conflict, "the job is done");
    bench.join(A, 1);
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.task();
}

#[test]
fn waiters_receive_the_announcement_of_the_end() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("site", &[]);
    let before = bench.answers.len();
    bench.with_job("site", JobOperation::Wait);
    let other = Requester { conn: ConnId(9), ..B.requester() };
    let name = "site".parse().unwrap();
    bench.feed(Input::JobAction { requester: other, name, action: JobOperation::Wait });
    bench.feed(Input::Disconnected { conn: ConnId(9) });
    bench.publish("http://a.org/ job=site");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.answers.len(), before + 1, "the ACK is answered, and nothing else");
    bench.close("site");
    assert_eq!(
        bench.answers.len(),
        before + 3,
        "the waiter is answered, the closed connection is not"
    );
    let answer = bench.answers[before + 2].clone().unwrap().ok;
    assert_eq!(format!("{answer} group=crawlers serial=7.1"), bench.done());
    bench.with_job("site", JobOperation::Wait);
    assert_eq!(bench.ok(), answer, "a later waiter is answered at once");
    bench.with_job("other", JobOperation::Wait);
    assert_eq!(bench.error_code(), Code::NotFound);
}

// PROTOCOL: T1
#[test]
fn tasks_report_the_scope_and_links_within_a_grown_scope_are_admitted() {
    for (scope, link) in [("host", "http://b.org/x"), ("domain", "http://w.b.org/x")] {
        let mut bench = Bench::new(&[("delay", "0")]);
        bench.join(A, 10);
        bench.open("site", &[("scope", scope)]);
        bench.publish("http://a.org/ job=site scope=mine");
        let first = bench.task();
        assert_eq!(first.payload, "http://a.org/ job=site pass=1 depth=0 number=1");
        bench.ack(A, &first.id, Outcome::Done, &[(link, false)]);
        assert!(bench.ok().ends_with("new=0 known=0 refused=1"), "{}", bench.ok());
        bench.publish("http://a.org/moved job=site");
        let moved = bench.task();
        assert!(moved.payload.ends_with(" number=1"), "the same host: {}", moved.payload);
        bench.ack(A, &moved.id, Outcome::Redirect, &[("http://b.org/", true)]);
        let second = bench.task();
        let expected =
            "http://b.org/ job=site pass=1 depth=0 number=1 scope=2 kind=redirect hops=1 chain=";
        assert!(second.payload.starts_with(expected), "{}", second.payload);
        bench.ack(A, &second.id, Outcome::Done, &[(link, false)]);
        assert!(bench.ok().ends_with("new=1 known=0 refused=0"), "{}", bench.ok());
        assert!(bench.task().payload.ends_with(" depth=1 number=1 scope=2"));
    }
}

#[test]
fn seeds_by_command_equal_seeds_by_event() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    bench.open("site", &[]);
    bench.add("site", "HTTP://A.org:80");
    assert_eq!(bench.ok(), "site new=1 known=0");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ job=site pass=1 depth=0 number=1");
    bench.add("site", "http://a.org/");
    assert_eq!(bench.ok(), "site new=0 known=1");
    bench.with_job(
        "site",
        JobOperation::Add {
            url: "http://b.org/".into(),
            prio: 5,
            after: After::Ms(1000),
            attributes: " item=5".into(),
        },
    );
    assert_eq!(bench.ok(), "site new=1 known=0");
    bench.assert_no_task("not yet");
    bench.wait(1000);
    let later = bench.task();
    assert!(later.payload.ends_with(" item=5"), "{}", later.payload);
    bench.close("site");
    bench.ack(A, &task.id, Outcome::Done, &[("http://b.org/x", false)]);
    assert!(bench.ok().contains("new=1 "), "a seed lets its host in: {}", bench.ok());
    bench.ack(A, &later.id, Outcome::Done, &[]);
    let child = bench.task();
    bench.ack(A, &child.id, Outcome::Done, &[]);
    let done = bench.done();
    assert!(done.contains("completed=3 ") && done.contains("duplicates=1 "), "{done}");
    bench.add("site", "http://c.org/");
    assert_eq!(bench.error_code(), Code::Conflict, "done");
    bench.add("other", "http://c.org/");
    assert_eq!(bench.error_code(), Code::NotFound);
    bench.open("site", &[]);
    bench.add("site", "ftp://c.org/");
    assert_eq!(bench.error_code(), Code::BadArgument);
}

#[test]
fn seeds_by_command_extend_the_open_time_and_respect_the_budget() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("max-pages", "1"), ("scope", "any")]);
    bench.wait(20 * HOUR_MS);
    bench.add("site", "http://a.org/");
    bench.wait(20 * HOUR_MS);
    assert!(bench.events.is_empty(), "a day from the last seed");
    bench.join(A, 1);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.add("site", "http://b.org/");
    assert_eq!(bench.ok(), "site new=1 known=0");
    bench.assert_no_task("the budget is used up");
    bench.close("site");
    assert!(bench.done().contains("budget=1 "));
}

#[test]
fn full_group_rejects_seeds() {
    let mut bench = Bench::new(&[]);
    bench.group.state.config_mut().entries_max = 1;
    bench.open("site", &[]);
    bench.add("site", "http://a.org/1");
    bench.add("site", "http://a.org/2");
    assert_eq!(bench.error_code(), Code::Limit);
}

#[test]
fn full_group_rejects_answers_with_new_links() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[]);
    bench.add("site", "http://a.org/1");
    bench.add("site", "http://a.org/2");
    bench.join(A, 9);
    bench.group.state.config_mut().entries_max = 2;
    let first = bench.task();
    let links = [("http://a.org/2", false), ("http://a.org/3", false), ("http://b.org/", false)];
    let before = bench.records.len();
    bench.ack(A, &first.id, Outcome::Done, &links);
    assert_eq!(bench.error_code(), Code::Limit);
    bench.ack(A, &first.id, Outcome::Redirect, &[("http://a.org/4", true)]);
    assert_eq!((bench.error_code(), bench.records.len()), (Code::Limit, before), "nothing changes");
    // The task is still held. Links that are known or outside the job's scope need no room.
    bench.nack(A, &first.id, RetryMode::Uncounted { after_ms: Some(1000) });
    let second = bench.task();
    bench.ack(A, &second.id, Outcome::Done, &[("http://a.org/1", false), ("http://b.org/", false)]);
    assert!(bench.ok().ends_with(" new=0 known=1 refused=1"), "{}", bench.ok());
    bench.wait(1000);
    let again = bench.task();
    bench.ack(A, &again.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with(" new=1 known=1 refused=1"), "{}", bench.ok());
    let last = bench.task();
    bench.ack(A, &last.id, Outcome::Done, &[]);
    bench.close("site");
    let done = bench.done();
    assert!(done.contains(" completed=3 ") && done.contains(" budget=0 "), "{done}");
}

#[test]
fn empty_job_reports_reason_empty() {
    let mut bench = Bench::new(&[]);
    bench.open("site", &[]);
    bench.close("site");
    assert!(bench.done().starts_with("site number=1 pass=1 result=done reason=empty completed=0 "));
    bench.open("site", &[]);
    bench.publish("http://a.org/ job=site");
    bench.close("site");
    bench.cancel("site");
    assert!(bench.done().contains(" result=cancelled completed=0 "));
}

#[test]
fn a_pass_has_a_beginning_and_an_end_which_a_snapshot_keeps() {
    let mut bench = Bench::new(&[]);
    bench.feed(Input::WallClock { unix_ms: 1_000_000 });
    let shown = |bench: &mut Bench| {
        let query = GroupQuery::Job("site".parse().unwrap());
        bench.feed(Input::Query { requester: A.requester(), query });
        let (_, times) = bench.ok().split_once(" opened=").expect("it says when");
        times.split_once(" scope-rule").expect("the settings follow").0.to_owned()
    };
    bench.open("site", &[]);
    bench.wait(500);
    bench.open("site", &[]);
    assert_eq!(shown(&mut bench), "1970-01-01T00:16:40Z", "the same pass");
    bench.wait(500);
    bench.close("site");
    let both = "1970-01-01T00:16:40Z ended=1970-01-01T00:16:41Z";
    assert_eq!(shown(&mut bench), both);
    bench.wait(500);
    let kept = snapshot(&mut bench);
    bench.group = replayed(&kept, false, bench.group.state.config().clone());
    bench.feed(Input::WallClock { unix_ms: 1_001_500 });
    assert_eq!(shown(&mut bench), both);
    bench.open("site", &[]);
    assert_eq!(shown(&mut bench), "1970-01-01T00:16:41.5Z", "the next pass");
}

#[test]
fn only_done_jobs_are_deleted_and_numbers_are_not_reused() {
    let mut bench = Bench::new(&[]);
    bench.open("site", &[]);
    bench.with_job("site", JobOperation::Delete);
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.close("site");
    bench.with_job("site", JobOperation::Delete);
    assert_eq!(bench.ok(), "site");
    bench.with_job("site", JobOperation::Delete);
    assert_eq!(bench.error_code(), Code::NotFound);
    bench.open("site", &[]);
    assert!(bench.ok().starts_with("site number=2 pass=1 "), "{}", bench.ok());
    assert_eq!(bench.group.state.jobs().iter().count(), 1);
}

#[test]
fn pages_beyond_the_host_limit_are_over_budget() {
    let mut bench = Bench::new(&[("delay", "0"), ("parallel", "10")]);
    bench.open("site", &[("scope", "any"), ("max-per-host", "2")]);
    for page in 0..4 {
        bench.publish(&format!("http://a.org/{page} job=site"));
    }
    bench.publish("http://b.org/ job=site");
    bench.close("site");
    bench.join(A, 10);
    assert_eq!(bench.tasks.len(), 3, "two of a.org may be pages, and one of b.org is there");
    let on = |bench: &Bench, host: &str| {
        let tasks = bench.tasks.iter().map(|(_, task)| task);
        tasks.filter(|task| task.payload.contains(host)).cloned().collect::<Vec<_>>()
    };
    let (a, b) = (on(&bench, "a.org"), on(&bench, "b.org"));
    bench.tasks.clear();
    bench.ack(A, &a[0].id, Outcome::Redirect, &[]);
    let third = bench.task();
    assert!(third.payload.contains("a.org"), "the budget was returned without a page");
    bench.ack(A, &a[1].id, Outcome::Done, &[]);
    bench.assert_no_task("the other one is in flight");
    assert!(bench.explain("http://a.org/3").contains("pending because=budget"));
    bench.nack(A, &third.id, RetryMode::OtherUrl { url: "http://a.org/again".into() });
    let again = bench.task();
    assert!(again.payload.contains("again="), "it keeps its part: {}", again.payload);
    bench.ack(A, &again.id, Outcome::Done, &[]);
    bench.ack(A, &b[0].id, Outcome::Done, &[("http://a.org/late", false)]);
    assert!(bench.ok().contains("new=1 "), "{}", bench.ok());
    let done = bench.done();
    assert!(done.contains("completed=3 redirects=1 ") && done.contains("budget=2 "), "{done}");
}

#[test]
fn host_with_used_budget_is_free_for_other_jobs() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("few", &[("max-per-host", "1")]);
    bench.open("all", &[]);
    bench.join(A, 1);
    bench.publish("http://a.org/1 job=few");
    let task = bench.task();
    bench.publish("http://a.org/2 job=few");
    bench.publish("http://a.org/3 job=all");
    bench.publish("http://a.org/4 job=few");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.task().payload.contains("job=all"));
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Job("few".parse().unwrap()),
    });
    assert!(bench.ok().contains("pending=0 queued=0 ") && bench.ok().contains("budget=2 "));
}

#[test]
fn announced_url_beyond_the_host_budget_leaves_its_job() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("max-per-host", "1")]);
    bench.join(A, 1);
    bench.publish("http://a.org/1 job=site");
    let task = bench.task();
    bench.publish("http://a.org/2 job=site");
    bench.publish("http://a.org/2");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.task().payload, "http://a.org/2");
}

#[test]
fn entries_beyond_the_time_limit_are_over_budget() {
    let mut bench = Bench::new(&[("delay", "1s"), ("lease", "2h")]);
    bench.open("site", &[("max-time", "1h"), ("scope", "any")]);
    bench.join(A, 10);
    bench.publish("http://a.org/1 job=site");
    let task = bench.task();
    bench.publish("http://a.org/2 job=site");
    bench.publish("http://b.org/ job=site after=2h");
    bench.close("site");
    bench.wait(HOUR_MS - 1);
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Job("site".parse().unwrap()),
    });
    assert!(bench.ok().contains("pending=2 ") && bench.ok().contains("budget=0 "));
    bench.wait(1);
    bench.ack(A, &task.id, Outcome::Done, &[("http://c.org/", false)]);
    let done = bench.done();
    assert!(done.contains("completed=1 ") && done.contains("budget=3 "), "{done}");
    bench.assert_no_task("the job has ended");
    assert_eq!(bench.group.state.expiry_count(), 0, "no timer is left behind");
}

#[test]
fn job_done_before_its_time_limit_leaves_no_timer() {
    let mut bench = Bench::new(&[]);
    bench.open("site", &[("max-time", "1h")]);
    bench.close("site");
    bench.done();
    assert_eq!(bench.group.state.expiry_count(), 0);
    bench.open("site", &[("max-time", "1h")]);
    bench.publish("http://a.org/ job=site");
    bench.wait(HOUR_MS - 1);
    bench.feed(Input::Query {
        requester: A.requester(),
        query: GroupQuery::Job("site".parse().unwrap()),
    });
    assert!(bench.ok().contains("queued=0 ") || bench.ok().contains("budget=0 "), "{}", bench.ok());
    bench.wait(1);
    bench.close("site");
    assert!(bench.done().contains("pass=2 result=done completed=0 "), "each pass has its own time");
}

#[test]
fn urls_beyond_the_depth_are_not_in_the_seen_set() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.open("site", &[("max-depth", "1")]);
    bench.join(A, 1);
    bench.publish("http://a.org/ job=site");
    let seed = bench.task();
    bench.publish("http://a.org/second job=site after=1m");
    bench.ack(A, &seed.id, Outcome::Done, &[("http://a.org/1", false)]);
    let child = bench.task();
    bench.ack(A, &child.id, Outcome::Done, &[("http://a.org/deep", false)]);
    assert!(bench.ok().ends_with("refused=1"), "{}", bench.ok());
    bench.wait(60_000);
    let second = bench.task();
    bench.ack(A, &second.id, Outcome::Done, &[("http://a.org/deep", false)]);
    assert!(bench.ok().ends_with("new=1 known=0 refused=0"), "{}", bench.ok());
}

#[test]
fn event_for_another_groups_job_counts_as_one_without_a_job() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    let take = |bench: &mut Bench, job: &str| {
        let seq = Seq(bench.next_seq);
        bench.next_seq += 1;
        let events = vec![(seq, format!("http://a.org/ job={job} prio=3 item=7"))];
        let (next, elsewhere) = (Seq(bench.next_seq), ["theirs".parse().unwrap()].into());
        bench.feed(Input::Events { topic: topic(), next, events, foreign_jobs: elsewhere });
    };
    take(&mut bench, "theirs");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ item=7");
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/link", false)]);
    assert!(bench.ok().ends_with("refused=1"), "it was fetched without a job");
    take(&mut bench, "nobodys");
    assert!(bench.events.pop().expect("a dead letter").1.contains("reason=unknown-job "));
    bench.open("theirs", &[]);
    take(&mut bench, "theirs");
    assert!(bench.task().payload.contains(" job=theirs "), "the group has a job of that name, too");
}

#[test]
fn job_names_are_reported_to_other_groups() {
    let mut bench = Bench::new(&[]);
    bench.group.state.config_mut().finished_jobs_max = 1;
    bench.open("a", &[]);
    bench.open("b", &[]);
    assert_eq!(bench.job_names, [("a".into(), true), ("b".into(), true)].into());
    bench.close("a");
    bench.close("b");
    assert_eq!(bench.job_names, [("a".into(), false), ("b".into(), true)].into());
    bench.with_job("b", JobOperation::Delete);
    assert_eq!(bench.job_names, [("a".into(), false), ("b".into(), false)].into());
    bench.group.state.config_mut().jobs_max = 0;
    bench.open("c", &[]);
    assert_eq!(bench.job_names.get("c"), Some(&false), "refused");
}

#[test]
fn job_settings_have_limits_and_aliases() {
    let parse = |settings: &[(&str, &str)]| JobSettings::parse(settings.iter().copied());
    let settings = parse(&[("max-depth", "3"), ("max-per-host", "7"), ("max-time", "2h")]).unwrap();
    let found = (settings.depth_max, settings.host_pages_max, settings.time_ms_max);
    assert_eq!(found, (Some(3), Some(7), Some(2 * HOUR_MS)));
    assert_eq!(parse(&[("depth", "3")]).unwrap(), parse(&[("max-depth", "3")]).unwrap());
    let long = format!("http://a.org/{}", "x".repeat(2_048));
    for wrong in [
        &[("depth", "3"), ("max-depth", "3")][..],
        &[("max-per-host", "0")],
        &[("max-time", "0")],
        &[("max-time", "soon")],
        &[("pages", "1")],
        &[("callback", "ftp://a.org/")],
        &[("callback", "/done")],
        &[("callback", long.as_str())],
    ] {
        assert_eq!(parse(wrong).unwrap_err().code, Code::BadArgument, "{wrong:?}");
    }
}

// PROTOCOL: J1, T6
#[test]
fn patterns_filter_links_but_not_seeds() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 1);
    bench.open("docs", &[("include", "/docs/,*.html$"), ("exclude", "*.pdf$,/docs/old/")]);
    bench.publish("http://a.org/ job=docs");
    bench.close("docs");
    let seed = bench.task();
    bench.ack(A, &seed.id, Outcome::Redirect, &[("http://b.org/moved", true)]);
    let moved = bench.task();
    assert!(moved.payload.starts_with("http://b.org/moved job=docs "), "{}", moved.payload);
    let links = [
        ("http://a.org/docs/1", false),
        ("http://b.org/x.html", false),
        ("http://a.org/x", false),
        ("http://a.org/docs/x.pdf", false),
        ("http://a.org/docs/old/x.html", false),
        ("http://c.org/docs/1", false),
    ];
    bench.ack(A, &moved.id, Outcome::Done, &links);
    assert!(bench.ok().ends_with(" new=2 known=0 refused=4"), "{}", bench.ok());
    // A redirect of a link counts as a link.
    let first = bench.task();
    bench.ack(A, &first.id, Outcome::Redirect, &[("http://a.org/docs/old/1", true)]);
    assert!(bench.ok().ends_with(" new=0 known=0 refused=1"), "{}", bench.ok());
}

#[test]
fn announcement_of_the_end_contains_the_callback() {
    let mut bench = Bench::new(&[]);
    bench.open("docs", &[("callback", "HTTPS://A.org/done?job=1")]);
    let show = GroupQuery::Job("docs".parse().unwrap());
    bench.feed(Input::Query { requester: A.requester(), query: show });
    assert!(bench.ok().ends_with(" callback=https://a.org/done?job=1"), "{}", bench.ok());
    bench.close("docs");
    let [(topic, end)] = bench.events.as_slice() else { panic!("{:?}", bench.events) };
    assert_eq!(*topic, JOB_DONE_TOPIC);
    assert!(end.contains(" found=0 callback=https://a.org/done?job=1 group="), "{end}");
}

#[test]
fn patterns_are_settings_like_others() {
    let mut bench = Bench::new(&[]);
    let settings = [("include", "/a%2C,/b"), ("exclude", "*$")];
    bench.open("docs", &settings);
    let show = GroupQuery::Job("docs".parse().unwrap());
    bench.feed(Input::Query { requester: A.requester(), query: show });
    assert!(bench.ok().ends_with(" include=/a%2C,/b exclude=*$"), "{}", bench.ok());
    bench.open("docs", &settings[..1]);
    assert_eq!(bench.error_code(), Code::Exists);
    bench.open("docs", &settings);
    assert!(bench.ok().starts_with("docs "));
    for wrong in [("include", "x"), ("exclude", "/a,,/b")] {
        assert_eq!(JobSettings::parse([wrong]).unwrap_err().code, Code::BadArgument);
    }
}
