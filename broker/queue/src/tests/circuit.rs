//! Hosts that do not answer.

use tidings_protocol::{
    DEAD_LETTER_TOPIC, EntrySelection, FailureReason, KeyRest, Outcome, PAGE_READY_TOPIC,
    RetryMode, TaskAction, TaskReport,
};

use super::bench::{A, B, Bench, reply_of};
use crate::{GroupQuery, Input, Operation, TaskMessage};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// How long a page without an answer lets the others of its host go first.
const OTHERS_FIRST_MS: u64 = 15_000;
/// The rests of a host that answered before and is down, until it is given up.
const RESTS_MS: [u64; 8] = [
    MINUTE_MS,
    2 * MINUTE_MS,
    4 * MINUTE_MS,
    8 * MINUTE_MS,
    16 * MINUTE_MS,
    32 * MINUTE_MS,
    HOUR_MS,
    HOUR_MS,
];

impl Bench {
    /// The dead letters since the last look at events.
    fn dead(&self) -> Vec<&str> {
        let events = self.events.iter();
        let dead = events.filter(|(topic, _)| *topic == DEAD_LETTER_TOPIC);
        dead.map(|(_, letter)| letter.as_str()).collect()
    }
}

/// A group with this many URLs of one host that has answered once, and a worker for one task at a
/// time.
fn bench(urls: u32, settings: &[(&str, &str)]) -> Bench {
    let mut bench = never_answered(urls + 1, settings);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.events.clear();
    bench
}

/// The same with a host that has not answered.
fn never_answered(urls: u32, settings: &[(&str, &str)]) -> Bench {
    let settings = [&[("delay", "0"), ("backoff", "1ms")], settings].concat();
    let mut bench = Bench::new(&settings);
    for url in 0..urls {
        bench.publish(&format!("http://a.org/{url}"));
    }
    bench.join(A, 1);
    bench
}

fn nack(bench: &mut Bench, task: &TaskMessage, reason: &str) {
    let back = RetryMode::Counted { after_ms: None };
    let mut reply = reply_of(&task.id, TaskAction::Nack(back), KeyRest::default());
    reply.report = TaskReport::of_reason(Some(reason.into()));
    bench.feed(Input::Reply { requester: A.requester(), reply: reply.into() });
    bench.wait(1);
}

/// Answers this many tasks without an answer of the host.
#[track_caller]
fn unanswered(bench: &mut Bench, tasks: usize) {
    for number in 0..tasks {
        let task = bench.task();
        let reasons = FailureReason::ALL.into_iter().filter(|reason| reason.is_unanswered());
        let reason = reasons.cycle().nth(number).expect("some hosts do not answer");
        nack(bench, &task, reason.as_str());
    }
}

/// A group with a host that is down.
fn down(settings: &[(&str, &str)]) -> Bench {
    let mut bench = bench(20, &[&[("max-attempts", "100")], settings].concat());
    unanswered(&mut bench, 10);
    bench.assert_no_task("the host is down");
    bench
}

/// Waits for the next try, which must come after this rest.
#[track_caller]
fn next_try(bench: &mut Bench, rest_ms: u64) -> TaskMessage {
    bench.wait(rest_ms - 10);
    bench.assert_no_task("the host rests");
    bench.wait(11);
    bench.task()
}

#[track_caller]
fn explain(bench: &mut Bench, what: &str) -> String {
    let query = GroupQuery::Explain(what.to_owned());
    bench.feed(Input::Query { requester: A.requester(), query });
    bench.ok().to_owned()
}

// PROTOCOL: T17
#[test]
fn host_that_does_not_answer_is_tried_after_longer_and_longer_rests() {
    let mut bench = down(&[]);
    for rest_ms in RESTS_MS {
        let task = next_try(&mut bench, rest_ms);
        assert!(bench.events.is_empty(), "nothing is given up: {:?}", bench.events);
        nack(&mut bench, &task, "dns");
    }
    // The entry of the last try waits for its backoff.
    bench.wait(OTHERS_FIRST_MS);
    let dead = bench.dead();
    assert_eq!(dead.len(), 20, "{dead:?}");
    assert!(dead.iter().all(|letter| letter.contains(" reason=down group=crawlers ")), "{dead:?}");
    assert!(bench.group.is_idle());
}

// PROTOCOL: T17
#[test]
fn host_that_has_never_answered_is_given_up_after_three_tries() {
    let mut bench = never_answered(20, &[]);
    unanswered(&mut bench, 1);
    for rest_ms in [2000, 4000, 8000] {
        let task = next_try(&mut bench, rest_ms);
        assert!(bench.events.is_empty(), "nothing is given up: {:?}", bench.events);
        assert_eq!(task.payload.ends_with(" last=down"), rest_ms == 8000, "{}", task.payload);
        nack(&mut bench, &task, "connect");
    }
    bench.wait(OTHERS_FIRST_MS);
    let dead = bench.dead();
    assert_eq!(dead.len(), 20, "{dead:?}");
    assert!(dead.iter().all(|letter| letter.contains(" reason=down ")), "{dead:?}");
    for url in ["http://a.org/later", "http://a.org/latest"] {
        bench.publish(url);
    }
    let task = next_try(&mut bench, 16_000 - OTHERS_FIRST_MS);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    // From here on it is a host that has answered.
    unanswered(&mut bench, 2);
}

// PROTOCOL: T17
#[test]
fn pages_that_were_not_requested_are_tried_first() {
    let mut bench = never_answered(4, &[]);
    for wait_ms in [0, 2000, 4000] {
        bench.wait(wait_ms);
        unanswered(&mut bench, 1);
    }
    let task = next_try(&mut bench, 8000);
    assert_eq!(task.payload, "http://a.org/3 last=down");
    bench.ack(A, &task.id, Outcome::Done, &[]);
    // The others, perhaps for a port that is closed, fail on their own.
    bench.wait(OTHERS_FIRST_MS);
    unanswered(&mut bench, 3 * 3 - 1);
    assert_eq!(bench.dead().len(), 3, "{:?}", bench.events);
    assert!(bench.dead()[0].contains(" reason=max-attempts "), "{:?}", bench.events);
}

// PROTOCOL: T17
#[test]
fn page_that_is_alone_on_its_host_waits_for_it() {
    let mut bench = never_answered(1, &[]);
    unanswered(&mut bench, 1);
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" waiting=1 pending because=down free-in=1"), "{explained}");
    assert_eq!(bench.group.view().status().keys_down, 1);
    bench.wait(2000);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert_eq!(bench.group.view().status().keys_down, 0);
}

// PROTOCOL: T17
#[test]
fn any_answer_ends_the_rest_of_a_host() {
    let mut bench = down(&[]);
    let task = next_try(&mut bench, MINUTE_MS);
    nack(&mut bench, &task, "timeout");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    // The count begins again.
    unanswered(&mut bench, 9);
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Failed, &[]);
    unanswered(&mut bench, 10);
    next_try(&mut bench, MINUTE_MS);
}

// PROTOCOL: T17
#[test]
fn failures_while_a_host_is_down_are_no_attempts() {
    let mut bench = bench(10, &[("max-attempts", "2")]);
    bench.join(A, 1);
    // Each URL once, because a retry waits for its backoff.
    bench.configure(&[("backoff", "30s")]);
    unanswered(&mut bench, 10);
    for rest_ms in &RESTS_MS[..6] {
        let task = next_try(&mut bench, *rest_ms);
        assert!(!task.payload.contains("last="), "{}", task.payload);
        nack(&mut bench, &task, "connect");
    }
    assert!(bench.events.is_empty(), "{:?}", bench.events);
    let task = next_try(&mut bench, HOUR_MS);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    // An attempt counts again.
    let task = bench.task();
    assert!(task.payload.contains("last=yes"), "{}", task.payload);
    nack(&mut bench, &task, "connect");
    assert!(bench.events[0].1.contains(" reason=max-attempts "), "{:?}", bench.events);
}

// PROTOCOL: T17
#[test]
fn one_request_tries_a_host_although_several_may_be_made() {
    let mut bench = bench(20, &[("parallel", "4"), ("max-attempts", "100")]);
    bench.join(A, 4);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        tasks.append(&mut bench.tasks);
        let (_, task) = tasks.remove(0);
        nack(&mut bench, &task, "dns");
    }
    // Three requests were made before the host was down. They make its rest no longer.
    assert_eq!((tasks.len(), bench.tasks.len()), (3, 0));
    for (_, task) in &tasks {
        nack(&mut bench, task, "dns");
    }
    let task = next_try(&mut bench, MINUTE_MS - 3);
    nack(&mut bench, &task, "dns");
    next_try(&mut bench, 2 * MINUTE_MS);
}

// PROTOCOL: T17
#[test]
fn lost_try_makes_the_rest_no_longer() {
    let mut bench = down(&[("lease", "1s")]);
    next_try(&mut bench, MINUTE_MS);
    bench.wait(MINUTE_MS - 1000);
    bench.assert_no_task("the lost try was a request");
    bench.join(A, 1);
    bench.wait(1000);
    let task = bench.task();
    nack(&mut bench, &task, "dns");
    next_try(&mut bench, 2 * MINUTE_MS);
}

// PROTOCOL: T17
#[test]
fn try_without_a_request_is_repeated_at_once() {
    let mut bench = down(&[]);
    let task = next_try(&mut bench, MINUTE_MS);
    bench.nack(A, &task.id, RetryMode::Uncounted { after_ms: None });
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Trap, &[]);
    let task = bench.task();
    nack(&mut bench, &task, "dns");
    next_try(&mut bench, 2 * MINUTE_MS);
}

// PROTOCOL: T17
#[test]
fn requested_rest_that_is_longer_stays() {
    let mut bench = down(&[]);
    let task = next_try(&mut bench, MINUTE_MS);
    let rest = KeyRest { not_before_ms: Some(HOUR_MS), pace_ms: None };
    bench.touch(A, &task.id, true, rest);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    next_try(&mut bench, HOUR_MS);
}

/// Fails until the host is given up, and everything that waits has ended.
fn give_up(bench: &mut Bench) {
    for rest_ms in RESTS_MS {
        let task = next_try(bench, rest_ms);
        nack(bench, &task, "dns");
    }
    bench.wait(OTHERS_FIRST_MS);
}

// PROTOCOL: T17
#[test]
fn host_that_was_given_up_gets_one_try_an_hour() {
    let mut bench = down(&[]);
    give_up(&mut bench);
    bench.events.clear();
    bench.publish("http://a.org/later prio=5");
    for url in 0..5 {
        bench.publish(&format!("http://a.org/later/{url}"));
    }
    let task = next_try(&mut bench, HOUR_MS - OTHERS_FIRST_MS);
    assert_eq!(task.payload, "http://a.org/later last=down");
    bench.publish("http://a.org/latest");
    nack(&mut bench, &task, "dns");
    bench.wait(OTHERS_FIRST_MS);
    assert_eq!(bench.events.len(), 7, "everything that waited: {:?}", bench.events);
    bench.publish("http://a.org/again");
    let task = next_try(&mut bench, HOUR_MS - OTHERS_FIRST_MS);
    bench.ack(A, &task.id, Outcome::Done, &[]);
    bench.publish("http://a.org/at-once");
    bench.task();
}

// PROTOCOL: T17
#[test]
fn retry_of_an_operator_ends_the_rest() {
    let mut bench = down(&[]);
    give_up(&mut bench);
    bench.events.clear();
    let selection = EntrySelection { entry: Some(7), ..EntrySelection::default() };
    let operation = Operation::Retry(selection);
    bench.feed(Input::Operate { requester: A.requester(), operation });
    assert_eq!(bench.task().id.entry, 7);
}

// PROTOCOL: T17, T7
#[test]
fn job_with_a_dead_host_ends() {
    let mut bench = never_answered(0, &[("page-ready", "on")]);
    bench.open("docs", &[]);
    for url in 0..12 {
        bench.publish(&format!("http://a.org/{url} job=docs"));
    }
    bench.close("docs");
    unanswered(&mut bench, 1);
    for rest_ms in [2000, 4000, 8000] {
        let task = next_try(&mut bench, rest_ms);
        nack(&mut bench, &task, "dns");
    }
    bench.wait(OTHERS_FIRST_MS);
    let outcome = bench.events.iter().filter(|(topic, event)| {
        let is_failed = event.contains(" outcome=failed ") && event.contains(" reason=down ");
        *topic == PAGE_READY_TOPIC && is_failed && event.contains(" gave-up=down in-job=docs ")
    });
    assert_eq!(outcome.count(), 12, "{:?}", bench.events);
    let (_, end) = bench.events.last().expect("the end of the job");
    assert!(end.starts_with("docs ") && end.contains(" failed=12 "), "{end}");
}

// PROTOCOL: T17
#[test]
fn circuit_can_be_off() {
    let mut bench = bench(20, &[("circuit", "off"), ("max-attempts", "1")]);
    unanswered(&mut bench, 20);
    assert_eq!(bench.events.len(), 20);
    assert!(bench.events[19].1.contains(" reason=max-attempts "));

    let mut bench = down(&[]);
    bench.configure(&[("circuit", "off")]);
    unanswered(&mut bench, 30);
}

// PROTOCOL: T17
#[test]
fn explanation_names_the_next_try() {
    let mut bench = down(&[]);
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" pending because=down free-in=59"), "{explained}");
    bench.join(B, 1);
    next_try(&mut bench, MINUTE_MS);
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" pending because=in-flight"), "{explained}");
}

// PROTOCOL: T17, G16
#[test]
fn host_that_a_rule_pauses_is_not_tried() {
    let mut bench = down(&[]);
    bench.rule("a.org", &[("pause", "yes")]);
    bench.wait(HOUR_MS);
    bench.assert_no_task("a rule pauses the host");
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" because=rule "), "{explained}");
    bench.unrule("a.org");
    let task = bench.task();
    bench.assert_no_task("one request tries the host");
    nack(&mut bench, &task, "dns");
    bench.rule("a.org", &[("pause", "yes"), ("until", "30s")]);
    next_try(&mut bench, 2 * MINUTE_MS);
}

// PROTOCOL: T17, G16
#[test]
fn blocked_host_stays_down() {
    let mut bench = down(&[]);
    bench.rule("a.org", &[("block", "yes")]);
    assert!(bench.group.is_idle() && bench.dead().is_empty(), "{:?}", bench.events);
    bench.unrule("a.org");
    bench.publish("http://a.org/later");
    next_try(&mut bench, MINUTE_MS);
}

// PROTOCOL: T17, G16
#[test]
fn longer_of_the_rest_and_the_delay_of_a_rule_counts() {
    let mut bench = down(&[]);
    bench.rule("a.org", &[("delay", "3m"), ("parallel", "4")]);
    bench.join(A, 4);
    let task = next_try(&mut bench, MINUTE_MS);
    bench.assert_no_task("one request tries the host");
    nack(&mut bench, &task, "dns");
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" because=delay free-in=3m"), "{explained}");
    let task = next_try(&mut bench, 3 * MINUTE_MS);
    nack(&mut bench, &task, "dns");
    let explained = explain(&mut bench, "a.org");
    assert!(explained.contains(" because=down free-in=239999ms"), "{explained}");
    next_try(&mut bench, 4 * MINUTE_MS);
}

// PROTOCOL: T17
#[test]
fn what_waits_for_a_host_that_is_given_up_ends_after_its_delay() {
    let mut bench = down(&[]);
    bench.configure(&[("delay", "20s")]);
    give_up(&mut bench);
    assert!(!bench.group.is_idle());
    bench.wait(20_000);
    assert_eq!(bench.dead().len(), 20, "{:?}", bench.events);
    assert!(bench.group.is_idle());
}

#[test]
fn budget_that_waits_for_another_host_holds_up_no_other_url() {
    let mut bench = Bench::new(&[]);
    bench.configure(&[("delay", "0")]);
    bench.rule("b.org", &[("pause", "yes")]);
    bench.open("docs", &[("max-pages", "1")]);
    bench.publish("http://a.org/1 job=docs");
    bench.publish("http://a.org/2 job=docs");
    bench.close("docs");
    bench.join(A, 10);
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::OtherUrl { url: "http://b.org/robots.txt".to_owned() });
    for url in ["http://a.org/3", "http://a.org/4", "http://a.org/5"] {
        bench.publish(url);
        let task = bench.task();
        assert_eq!(task.payload, url);
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    bench.unrule("b.org");
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::Uncounted { after_ms: None });
    assert!(bench.task().payload.starts_with("http://a.org/1 "));
    bench.check_records();
}
