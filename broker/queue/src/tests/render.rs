//! Tasks that need a browser: which members receive them, and what says that a task needs one.

use tidings_protocol::{Code, Outcome, Render, RetryMode};

use super::bench::{A, B, Bench, group_command};
use super::repairs::{replayed, snapshot};
use super::simulation::difference;
use crate::config::GroupConfig;
use crate::{ConnId, GroupQuery, Input, JobOperation};

impl Bench {
    fn query(&mut self, query: GroupQuery) -> String {
        self.feed(Input::Query { requester: A.requester(), query });
        let answer = self.answers.pop().unwrap().unwrap();
        [answer.lines, vec![answer.ok]].concat().join("\n")
    }

    /// Checks the words of `EXPLAIN` and of the list of tasks for this URL, the only one of its
    /// host, and those of `GROUP show`.
    #[track_caller]
    fn assert_waits(&mut self, url: &str, because: &str, in_group: &str) {
        let why = self.query(GroupQuery::Explain(url.into()));
        assert!(why.contains(&format!(" queued because={because}\n")), "{why}");
        let host = url.split('/').nth(2).unwrap();
        let tasks = group_command(&[("key", host)]).task_query().unwrap();
        let tasks = self.query(GroupQuery::Tasks(tasks));
        assert!(tasks.contains(" state=queued "), "{tasks}");
        let group = self.query(GroupQuery::Group);
        assert!(group.contains(&format!(" {in_group} waiting=")), "{group}");
    }

    /// Takes all tasks: their connections and payloads, sorted.
    fn taken(&mut self) -> Vec<(u64, String)> {
        let tasks = self.tasks.drain(..).map(|(ConnId(conn), task)| (conn, task.payload));
        let mut tasks: Vec<_> = tasks.collect();
        tasks.sort();
        tasks
    }
}

fn task(conn: u64, payload: &str) -> (u64, String) {
    (conn, payload.to_owned())
}

// PROTOCOL: T16
#[test]
fn only_a_member_with_a_browser_receives_a_task_that_needs_one() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 10);
    let url = "http://a.org/";
    bench.publish("http://a.org/ render=yes");
    bench.publish("http://b.org/ render=yes");
    bench.publish("http://a.org/plain");
    bench.publish("http://c.org/ render=auto");
    bench.publish("http://d.org/ render=no");
    let others = ["http://a.org/plain", "http://c.org/ render=auto", "http://d.org/ render=no"];
    assert_eq!(bench.taken(), others.map(|payload| task(1, payload)), "they are not held back");
    bench.assert_waits("http://b.org/", "no-render-member", "render-members=0 render-waiting=1");
    bench.join_rendering(B, 10, Some(1));
    let first = bench.task();
    assert_eq!(first.payload, "http://b.org/ render=yes", "a.org has a request in flight");
    let plain = bench.query(GroupQuery::Explain(url.into()));
    assert!(plain.contains("because=in-flight"), "one task at a time for each host: {plain}");
    bench.join_rendering(B, 10, Some(0));
    bench.publish("http://e.org/ render=yes");
    bench.assert_waits("http://e.org/", "no-render-member", "render-members=0 render-waiting=1");
    bench.join_rendering(B, 10, Some(1));
    bench.assert_waits("http://e.org/", "no-render-credit", "render-members=1 render-waiting=1");
    bench.ack(B, &first.id, Outcome::Done, &[]);
    assert_eq!(bench.task().payload, "http://e.org/ render=yes");
    bench.join_rendering(B, 10, Some(2));
    bench.publish("http://f.org/ render=yes");
    assert_eq!(bench.task().payload, "http://f.org/ render=yes", "a JOIN changes it");
    bench.join(B, 10);
    bench.publish("http://g.org/ render=yes");
    bench.assert_waits("http://g.org/", "no-render-member", "render-members=0 render-waiting=1");
}

#[test]
fn the_credit_of_all_tasks_limits_those_that_need_a_browser() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join_rendering(A, 1, Some(5));
    bench.publish("http://a.org/");
    let plain = bench.task();
    bench.publish("http://b.org/ render=yes");
    bench.assert_waits("http://b.org/", "no-render-credit", "render-members=1 render-waiting=1");
    bench.ack(A, &plain.id, Outcome::Done, &[]);
    assert_eq!(bench.task().payload, "http://b.org/ render=yes");
}

#[test]
fn tasks_go_to_the_members_whose_browsers_are_least_busy() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join_rendering(A, 100, Some(2));
    for host in 0..20 {
        bench.publish(&format!("http://plain{host}.org/"));
    }
    bench.tasks.clear();
    bench.join_rendering(B, 100, Some(2));
    for host in 0..4 {
        bench.publish(&format!("http://h{host}.org/ render=yes"));
    }
    let conns: Vec<_> = bench.tasks.iter().map(|(conn, _)| conn.0).collect();
    assert_eq!((conns.len(), conns.iter().filter(|conn| **conn == 1).count()), (4, 2));
}

#[test]
fn neither_class_starves_on_a_host() {
    let mut bench = Bench::new(&[("delay", "0")]);
    for number in 0..40 {
        bench.publish(&format!("http://a.org/{number}"));
        bench.publish(&format!("http://a.org/app/{number} render=yes"));
    }
    bench.join_rendering(A, 1, Some(1));
    let mut rendered = 0;
    for _ in 0..40 {
        let task = bench.task();
        rendered += usize::from(task.payload.ends_with(" render=yes"));
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    assert!((10..=30).contains(&rendered), "{rendered} of 40");
}

#[test]
fn a_job_says_which_pages_are_rendered() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join_rendering(A, 1, Some(1));
    bench.open("docs", &[("scope", "any"), ("render", "/app/*")]);
    bench.publish("http://a.org/app/seed job=docs render=no");
    let seed = bench.task();
    let own = " job=docs pass=1 depth=0 number=1";
    assert_eq!(seed.payload, format!("http://a.org/app/seed{own} render=no"), "its own word");
    let links = [("http://a.org/app/1", false), ("http://a.org/2", false)];
    bench.ack(A, &seed.id, Outcome::Done, &links);
    let mut children = Vec::new();
    for _ in 0..2 {
        let task = bench.task();
        children.push(task.payload.clone());
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    children.sort();
    let own = " job=docs pass=1 depth=1 number=1";
    let [plain, app] = [("/2", Render::No), ("/app/1", Render::Yes)];
    let line = |(path, render)| format!("http://a.org{path}{own} render={render}");
    assert_eq!(children, [plain, app].map(line));
    let shown = bench.query(GroupQuery::Job("docs".parse().unwrap()));
    assert!(shown.ends_with(" render=/app/*"), "{shown}");
    for (rule, word) in [("never", " render=no"), ("auto", " render=auto")] {
        bench.open(rule, &[("render", rule)]);
        bench.publish(&format!("http://{rule}.org/ job={rule}"));
        let task = bench.task();
        assert!(task.payload.ends_with(word), "{}", task.payload);
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    let add = |attributes: &str| JobOperation::Add {
        url: "http://never.org/added".into(),
        prio: 0,
        after: tidings_protocol::After::Ms(0),
        attributes: attributes.into(),
    };
    bench.with_job("never", add(" render=auto"));
    assert!(bench.task().payload.ends_with(" render=auto"));
}

#[test]
fn a_redirect_keeps_the_word_of_its_page_and_not_that_of_the_job() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join_rendering(A, 1, Some(1));
    bench.open("docs", &[("scope", "any"), ("render", "/app/*")]);
    for (seed, target, word) in [
        ("/1", "/app/1", "yes"),
        ("/app/2", "/2", "no"),
        ("/3 render=auto", "/app/3", "auto"),
        ("/4 render=yes", "/target", "yes"),
    ] {
        let (path, attributes) = seed.split_once(' ').unwrap_or((seed, ""));
        bench.publish(&format!("http://a.org{path} job=docs {attributes}"));
        let task = bench.task();
        let target = format!("http://a.org{target}");
        bench.ack(A, &task.id, Outcome::Redirect, &[(&target, true)]);
        let task = bench.task();
        assert!(task.payload.contains(&format!(" render={word} ")), "{seed}: {}", task.payload);
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
}

#[test]
fn the_word_of_a_schedule_holds_for_its_url_in_jobs_too() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join_rendering(A, 1, Some(1));
    bench.publish("http://a.org/ every=1h render=yes");
    let task = bench.task();
    assert!(task.payload.ends_with(" every=1h render=yes"), "{}", task.payload);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.open("docs", &[("render", "never")]);
    bench.publish("http://a.org/ job=docs");
    bench.publish("http://a.org/ render=no");
    let task = bench.task();
    assert!(task.payload.ends_with(" every=1h render=yes"), "{}", task.payload);
}

#[test]
fn other_words_are_refused() {
    let mut bench = Bench::new(&[]);
    bench.publish("http://a.org/ render=perhaps");
    let (_, letter) = bench.events.pop().expect("a dead letter");
    assert!(letter.starts_with("reason=bad-render "), "{letter}");
}

#[test]
fn a_page_that_needs_a_browser_is_returned_uncounted_and_rests() {
    let mut bench = Bench::new(&[("delay", "1s"), ("max-attempts", "2")]);
    bench.join(A, 2);
    bench.publish("http://a.org/ render=auto x=1");
    let first = bench.task();
    bench.nack(A, &first.id, RetryMode::NeedsRender);
    assert_eq!(bench.ok(), first.id.to_string());
    bench.join_rendering(B, 1, Some(1));
    bench.wait(1000);
    bench.assert_no_task("a request was made: the delay counts");
    bench.wait(1);
    let (conn, second) = bench.tasks.pop().unwrap();
    let payload = "http://a.org/ render=yes x=1";
    assert_eq!((conn, &*second.payload), (ConnId(2), payload), "it is not the last attempt");
    bench.nack(B, &second.id, RetryMode::NeedsRender);
    assert_eq!(bench.error_code(), Code::BadArgument, "the task says so already");
    bench.ack(B, &second.id, Outcome::Done, &[]);
    assert!(bench.ok().starts_with(&second.id.to_string()), "it was still held");
    bench.publish("http://a.org/ render=no");
    bench.wait(1001);
    let third = bench.task();
    bench.nack(B, &third.id, RetryMode::NeedsRender);
    assert_eq!(bench.error_code(), Code::BadArgument, "the publisher decides");
}

#[test]
fn an_entry_without_a_url_is_not_rendered() {
    let mut bench = Bench::new(&[("key", "none")]);
    bench.join(A, 1);
    bench.publish("http://a.org/ render=yes");
    let task = bench.task();
    assert_eq!(task.payload, "http://a.org/ render=yes", "the payload is any text");
    bench.nack(A, &task.id, RetryMode::NeedsRender);
    assert_eq!(bench.error_code(), Code::BadArgument);
}

#[test]
fn the_next_request_of_a_task_does_not_wait_for_a_browser_that_is_gone() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join_rendering(A, 2, Some(1));
    bench.publish("http://a.org/ render=yes");
    let again = || RetryMode::OtherUrl { url: "http://a.org/".into() };
    let first = bench.task();
    bench.nack(A, &first.id, again());
    bench.wait(1001);
    let second = bench.task();
    assert_eq!(second.payload, "http://a.org/ again=http://a.org/ render=yes");
    bench.nack(A, &second.id, again());
    bench.join(A, 2);
    bench.join_rendering(B, 1, Some(1));
    bench.wait(1001);
    let (conn, third) = bench.tasks.pop().unwrap();
    assert_eq!((conn, &*third.payload), (ConnId(2), "http://a.org/ render=yes"));
    bench.join(B, 1);
    bench.nack(B, &third.id, again());
    bench.join_rendering(A, 1, Some(1));
    bench.wait(1001);
    assert_eq!(bench.task().payload, "http://a.org/ render=yes", "B could not continue");
}

#[test]
fn the_need_of_a_browser_survives_a_restart_and_a_snapshot() {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.join(A, 9);
    bench.open("docs", &[("scope", "any"), ("render", "/app/*")]);
    bench.publish("http://a.org/app/1 job=docs");
    bench.publish("http://b.org/");
    bench.publish("http://c.org/ render=yes");
    let returned = bench.task();
    bench.nack(A, &returned.id, RetryMode::NeedsRender);
    bench.assert_no_task("no member has a browser");
    let again = replayed(&bench.records, true, bench.group.config().clone());
    assert_eq!(difference(&mut bench.group, again, bench.now), None);
    bench.group = replayed(&snapshot(&mut bench), false, GroupConfig::default());
    bench.join(A, 9);
    bench.assert_no_task("no member has a browser");
    bench.join_rendering(B, 9, Some(9));
    let number = " job=docs pass=1 depth=0 number=1";
    let app = format!("http://a.org/app/1{number} render=yes");
    let all = [app.as_str(), "http://b.org/ render=yes", "http://c.org/ render=yes"];
    assert_eq!(bench.taken(), all.map(|payload| task(2, payload)));
}
