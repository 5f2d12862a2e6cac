//! Changes of jobs that run (`JOB set`).

use tidings_protocol::{Code, JobAction, JobCommand, Outcome, PAGE_READY_TOPIC, RetryMode};

use super::bench::{A, Bench};
use crate::commands::job_input;
use crate::fuzzing::simulated_pages::TINY;
use crate::texts::Paging;

impl Bench {
    /// `JOB set site <settings>`
    fn set(&mut self, settings: &[(&str, &str)]) {
        let command = JobCommand::new(JobAction::Set, "site", settings.to_vec());
        match job_input(A.requester(), &command) {
            Ok((_, input)) => self.feed(input),
            Err(error) => self.answers.push(Err(error)),
        }
    }

    /// The job as `JOB show` gives it.
    fn shown(&self) -> String {
        let job = self.group.view().find_job(&"site".parse().unwrap()).unwrap();
        self.group.view().job_status(job).to_string()
    }

    /// Acknowledges the only task with these links.
    #[track_caller]
    fn answer(&mut self, links: &[&str]) {
        let task = self.task();
        let links: Vec<_> = links.iter().map(|url| (*url, false)).collect();
        self.ack(A, &task.id, Outcome::Done, &links);
    }

    /// The URLs that the tasks since the last call are about.
    fn urls(&mut self) -> Vec<String> {
        let tasks = std::mem::take(&mut self.tasks).into_iter();
        tasks.map(|(_, task)| task.payload.split(' ').next().unwrap().to_owned()).collect()
    }
}

/// A job on `http://a.org/` whose first page was fetched and has these links. One more task may be
/// held.
fn bench(settings: &[(&str, &str)], links: &[&str]) -> Bench {
    paged_bench(None, settings, links)
}

fn paged_bench(paging: Option<Paging>, settings: &[(&str, &str)], links: &[&str]) -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("page-ready", "on"), ("parallel", "1000")]);
    if let Some(paging) = paging {
        bench.group.set_paging(paging);
    }
    bench.join(A, 1);
    bench.open("site", settings);
    bench.publish("http://a.org/ job=site");
    bench.close("site");
    bench.answer(links);
    bench
}

// PROTOCOL: J2
#[test]
fn waiting_pages_that_are_excluded_end_and_the_others_are_fetched() {
    let mut bench = bench(&[], &["http://a.org/1", "http://a.org/x", "http://a.org/2"]);
    bench.set(&[("exclude", "/x")]);
    assert!(bench.ok().starts_with("site number=1 pass=1 state=closed "), "{}", bench.ok());
    let first = bench.urls();
    assert_eq!(first, ["http://a.org/1"], "it was released before");
    bench.join(A, 2);
    assert_eq!(bench.urls(), ["http://a.org/2"], "the page between them has ended");
    assert!(bench.shown().contains(" scope=1 "), "{}", bench.shown());
    let (topic, event) = &bench.events[1];
    assert_eq!(*topic, PAGE_READY_TOPIC);
    let expected = "http://a.org/x outcome=scope page=crawlers.0.3 group=crawlers serial=7.2 \
                    in-job=site pass=1 depth=1 number=1";
    assert_eq!(event, expected);
}

#[test]
fn job_is_done_when_a_change_ends_its_last_page() {
    for paging in [None, Some(TINY)] {
        let mut bench = paged_bench(paging, &[], &["http://a.org/1", "http://a.org/x"]);
        bench.set(&[("exclude", "/x")]);
        bench.answer(&[]);
        let (topic, event) = bench.events.last().unwrap();
        assert_eq!(*topic, "job-done", "{event}");
        assert!(event.contains(" completed=2 ") && event.contains(" scope=1 "), "{event}");
    }
}

#[test]
fn many_pages_end_in_several_steps_and_their_key_does_not_rest() {
    let links: Vec<_> = (0..2500).map(|number| format!("http://a.org/x{number}")).collect();
    let links: Vec<_> = links.iter().map(String::as_str).chain(["http://a.org/last"]).collect();
    let mut bench = bench(&[], &links);
    let held = bench.task();
    bench.set(&[("exclude", "/x")]);
    assert!(bench.shown().contains(" scope=0 "), "no member has credit");
    bench.ack(A, &held.id, Outcome::Done, &[]);
    assert!(bench.shown().contains(" scope=1000 "), "{}", bench.shown());
    bench.assert_no_task("other inputs come first");
    assert_eq!(bench.group.deadline(), Some(bench.now), "the rest follows at once");
    bench.wait(0);
    assert_eq!(bench.urls(), ["http://a.org/last"]);
    assert!(bench.shown().contains(" scope=2499 "), "{}", bench.shown());
}

#[test]
fn seeds_and_announced_pages_are_fetched_although_they_are_excluded() {
    let mut bench = bench(&[], &["http://a.org/1", "http://a.org/x"]);
    bench.publish("http://a.org/x");
    bench.publish("http://a.org/x/seed job=site");
    bench.set(&[("exclude", "/x")]);
    bench.answer(&[]);
    let announced = bench.task();
    assert_eq!(announced.payload, "http://a.org/x", "without its job");
    bench.ack(A, &announced.id, Outcome::Done, &[]);
    assert!(bench.task().payload.starts_with("http://a.org/x/seed job=site"));
    assert!(bench.shown().contains(" scope=1 "), "{}", bench.shown());
    let told = bench.events.iter().filter(|(_, event)| event.starts_with("http://a.org/x "));
    assert_eq!(told.count(), 1, "by the worker");
}

#[test]
fn begun_page_makes_no_further_request_when_it_is_excluded() {
    let mut bench = bench(&[], &["http://a.org/x"]);
    let robots = bench.task();
    bench.nack(A, &robots.id, RetryMode::OtherUrl { url: "http://a.org/x".into() });
    let page = bench.task();
    bench.nack(A, &page.id, RetryMode::OtherUrl { url: "http://a.org/x".into() });
    let page = bench.task();
    bench.set(&[("exclude", "/x"), ("max-pages", "5")]);
    bench.nack(A, &page.id, RetryMode::OtherUrl { url: "http://a.org/x".into() });
    bench.assert_no_task("excluded");
    assert!(bench.events.last().unwrap().1.contains(" completed=1 "), "the job is done");
}

#[test]
fn links_are_judged_by_the_new_settings_and_tasks_say_so() {
    let mut bench = bench(&[("include", "/1"), ("max-depth", "1")], &["http://a.org/1"]);
    let task = bench.task();
    assert!(task.payload.ends_with(" number=1"), "{}", task.payload);
    bench.set(&[("include", "/1,/2"), ("max-depth", "none")]);
    bench.ack(A, &task.id, Outcome::Done, &[("http://a.org/2", false), ("http://a.org/3", false)]);
    assert!(bench.ok().ends_with(" new=1 known=0 refused=1"), "{}", bench.ok());
    assert!(bench.task().payload.ends_with(" depth=2 number=1 scope=2"));
    bench.set(&[("include", "none")]);
    bench.join(A, 2);
    bench.publish("http://a.org/seed job=site");
    assert!(bench.task().payload.ends_with(" scope=3"));
}

#[test]
fn lower_depth_ends_pages() {
    let mut bench = bench(&[], &["http://a.org/1"]);
    bench.answer(&["http://a.org/2", "http://a.org/3"]);
    bench.set(&[("max-depth", "1")]);
    bench.answer(&["http://a.org/4"]);
    assert!(bench.ok().ends_with(" new=0 known=0 refused=1"), "{}", bench.ok());
    let (_, done) = bench.events.last().unwrap();
    assert!(done.contains(" completed=3 ") && done.contains(" scope=1 "), "{done}");
}

#[test]
fn lower_budget_ends_the_job_and_a_higher_one_continues_it() {
    let links = ["http://a.org/1", "http://a.org/2", "http://a.org/3"];
    let mut lower = bench(&[], &links);
    lower.set(&[("max-pages", "1")]);
    assert!(lower.shown().contains(" budget=2 "), "all pages are there: {}", lower.shown());
    lower.answer(&[]);
    assert!(lower.events.last().unwrap().1.contains(" completed=2 "));

    let mut higher = bench(&[("max-pages", "2")], &links);
    let held = higher.task();
    higher.join(A, 2);
    higher.assert_no_task("the held page uses the rest of the budget");
    higher.set(&[("max-pages", "3")]);
    assert_eq!(higher.urls(), ["http://a.org/2"]);
    higher.set(&[("max-pages", "none")]);
    higher.ack(A, &held.id, Outcome::Done, &[]);
    assert_eq!(higher.urls(), ["http://a.org/3"]);
}

#[test]
fn budget_of_a_host_counts_from_the_change_that_sets_it() {
    let links = ["http://a.org/1", "http://a.org/2", "http://a.org/3", "http://a.org/4"];
    let mut bench = bench(&[], &links);
    bench.set(&[("max-per-host", "2")]);
    bench.answer(&[]);
    assert!(bench.shown().contains(" budget=0 "), "{}", bench.shown());
    bench.set(&[("max-per-host", "3")]);
    bench.answer(&[]);
    bench.set(&[("max-per-host", "2")]);
    assert!(bench.shown().contains(" budget=1 "), "{}", bench.shown());
    bench.answer(&[]);
    let (_, done) = bench.events.last().unwrap();
    assert!(done.contains(" completed=4 ") && done.contains(" budget=1 "), "{done}");
}

#[test]
fn time_limit_counts_from_the_change_that_sets_it() {
    let mut bench = bench(&[("max-time", "10s")], &["http://a.org/1", "http://a.org/2"]);
    bench.wait(9_000);
    bench.set(&[("max-time", "5s")]);
    bench.set(&[("max-pages", "100")]);
    bench.wait(4_000);
    assert!(bench.shown().contains(" budget=0 "), "{}", bench.shown());
    bench.wait(1_000);
    assert!(bench.shown().contains(" budget=1 "), "{}", bench.shown());
    bench.set(&[("max-time", "none")]);
    bench.answer(&["http://a.org/3"]);
    assert!(bench.task().payload.starts_with("http://a.org/3"), "the job goes on");
}

// PROTOCOL: J2
#[test]
fn job_is_opened_again_with_the_settings_with_which_it_was_opened() {
    let mut bench = bench(&[("max-pages", "9")], &["http://a.org/1"]);
    bench.set(&[("max-pages", "5")]);
    bench.open("site", &[("max-pages", "9")]);
    assert!(bench.ok().contains(" state=open "), "{}", bench.ok());
    let job = bench.group.view().find_job(&"site".parse().unwrap()).unwrap();
    assert_eq!(job.settings.pages_max, Some(5), "the change stays");
    bench.open("site", &[("max-pages", "5")]);
    assert_eq!(bench.error_code(), Code::Exists);
}

#[test]
fn wrong_changes_are_rejected() {
    let mut bench = bench(&[], &["http://a.org/1"]);
    let many = vec!["/x"; 65].join(",");
    for wrong in [
        &[][..],
        &[("group", "crawlers")],
        &[("colour", "red")],
        &[("scope", "any")],
        &[("scope", "none")],
        &[("hold", "yes")],
        &[("max-pages", "0")],
        &[("exclude", "x")],
        &[("exclude", &many)],
    ] {
        bench.set(wrong);
        assert_eq!(bench.error_code(), Code::BadArgument, "{wrong:?}");
    }
    let records = bench.records.len();
    bench.answer(&[]);
    bench.set(&[("max-pages", "1")]);
    assert_eq!(bench.error_code(), Code::Conflict, "it is done");
    assert!(bench.records.len() > records);
}

// PROTOCOL: J2
#[test]
fn dry_run_changes_nothing_and_says_what_would_end() {
    let links: Vec<_> = (0..2500).map(|number| format!("http://a.org/x{number}")).collect();
    let others = ["http://a.org/held", "http://a.org/1", "http://a.org/2"];
    let links: Vec<_> = others.into_iter().chain(links.iter().map(String::as_str)).collect();
    for paging in [None, Some(TINY)] {
        let mut bench = paged_bench(paging, &[("max-pages", "10000")], &links);
        let (records, shown) = (bench.records.len(), bench.shown());
        let (mut next, mut sum, mut parts) = (Some("0".to_owned()), [0, 0], 0);
        while let Some(after) = next {
            bench.set(&[("exclude", "/x"), ("max-pages", "1"), ("dry", "yes"), ("after", &after)]);
            let answer = bench.answers.last().unwrap().as_ref().unwrap();
            assert_eq!(answer.lines.len(), 20);
            assert!(answer.lines.iter().all(|url| url.starts_with("http://a.org/x")));
            let value = |name| {
                let words = answer.ok.split(' ').filter_map(|word| word.split_once('='));
                words.into_iter().find(|word| word.0 == name).map(|word| word.1.to_owned())
            };
            sum[0] += value("would-drop").unwrap().parse::<u32>().unwrap();
            sum[1] += value("of").unwrap().parse::<u32>().unwrap();
            (next, parts) = (value("next"), parts + 1);
        }
        assert_eq!((sum, parts), ([2500, 2502], 3));
        assert_eq!((bench.records.len(), bench.shown()), (records, shown));
        let task = bench.task();
        assert!(task.payload.starts_with("http://a.org/held job=site"), "{}", task.payload);
    }
}

#[test]
fn dry_run_is_rejected_as_the_change_would_be() {
    let mut bench = bench(&[], &["http://a.org/1"]);
    for wrong in [
        &[("dry", "yes")][..],
        &[("dry", "maybe"), ("max-pages", "1")],
        &[("dry", "yes"), ("after", "x"), ("max-pages", "1")],
        &[("dry", "yes"), ("scope", "any")],
    ] {
        bench.set(wrong);
        assert_eq!(bench.error_code(), Code::BadArgument, "{wrong:?}");
    }
    bench.set(&[("max-depth", "0"), ("dry", "yes")]);
    assert_eq!(bench.ok(), "site would-drop=0 of=0", "a member holds the only page");
    bench.answer(&[]);
    bench.set(&[("max-depth", "0"), ("dry", "yes")]);
    assert_eq!(bench.error_code(), Code::Conflict);
}
