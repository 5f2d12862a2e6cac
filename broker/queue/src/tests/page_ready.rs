//! Events on `page-ready`.

use tidings_protocol::{
    Code, KeyRest, Outcome, PAGE_READY_TOPIC, PageChange, RetryMode, Seq, TaskAction, TaskId,
    TaskReport,
};

use super::bench::{A, Bench, reply_of};
use crate::Input;
use crate::unpublished::{BYTES_MAX, EVENTS_MAX};

fn bench(settings: &[(&str, &str)]) -> Bench {
    let settings = [settings, &[("page-ready", "on"), ("delay", "0"), ("backoff", "0")]].concat();
    let mut bench = Bench::new(&settings);
    bench.join(A, 10);
    bench
}

/// The newest event.
fn event(bench: &mut Bench) -> String {
    let (topic, event) = bench.events.pop().expect("an event");
    assert_eq!(topic, PAGE_READY_TOPIC);
    event
}

fn report(bench: &mut Bench, task: &TaskId, action: TaskAction, report: TaskReport) {
    let mut reply = reply_of(task, action, KeyRest::default());
    reply.report = Some(report.into());
    bench.feed(Input::Reply { requester: A.requester(), reply: reply.into() });
}

#[test]
fn outcome_is_announced_with_what_the_worker_and_the_publisher_said() {
    let mut bench = bench(&[]);
    bench.publish("http://b.org/ item=6");
    let page = TaskReport {
        status: Some(200),
        ms: Some(57),
        bytes: Some(10240),
        changed: Some(PageChange::Yes),
        content_type: Some("text/html".into()),
        hash: Some("5f1e".into()),
        ..TaskReport::default()
    };
    let task = bench.task();
    report(&mut bench, &task.id, TaskAction::Ack(Outcome::Done), page);
    let event = event(&mut bench);
    let page = format!("crawlers.0.{}", task.id.entry);
    assert_eq!(
        event,
        format!(
            "http://b.org/ outcome=done page={page} group=crawlers serial=7.1 status=200 ms=57 \
             bytes=10240 changed=yes type=text/html hash=5f1e item=6"
        )
    );
}

// PROTOCOL: G10
#[test]
fn reports_are_summed_for_the_group_and_the_pass() {
    let mut bench = bench(&[("max-attempts", "2")]);
    bench.open("docs", &[]);
    bench.publish("http://a.org/1 job=docs");
    let page = |status, ms, bytes| TaskReport {
        status: Some(status),
        ms: Some(ms),
        bytes: Some(bytes),
        ..TaskReport::default()
    };
    let task = bench.task();
    let back = RetryMode::Counted { after_ms: None };
    report(&mut bench, &task.id, TaskAction::Nack(back), page(503, 10, 0));
    bench.wait(1);
    let task = bench.task();
    report(&mut bench, &task.id, TaskAction::Ack(Outcome::Done), page(200, 20, 500));
    bench.publish("http://b.org/");
    let task = bench.task();
    report(&mut bench, &task.id, TaskAction::Ack(Outcome::Failed), page(404, 60, 70));
    let of_group = " status-2xx=1 status-4xx=1 status-5xx=1 bytes=570 ms=30 ";
    let shown = bench.group.view().status().to_string();
    assert!(shown.contains(of_group), "{shown}");
    let job = bench.group.view().find_job(&"docs".parse().unwrap()).unwrap();
    let shown = bench.group.view().job_status(job).to_string();
    assert!(shown.ends_with(" status-2xx=1 status-5xx=1 bytes=500 ms=15"), "{shown}");
}

#[test]
fn publisher_cannot_forge_an_outcome() {
    let mut bench = bench(&[]);
    bench.publish("http://a.org/x item=5 outcome=failed page=1 source=s");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    let event = event(&mut bench);
    assert!(event.ends_with(" serial=7.1 item=5 source=s"), "{event}");
    assert!(event.starts_with("http://a.org/x outcome=done page=crawlers.0."), "{event}");
}

#[test]
fn event_of_a_redirect_names_its_target_even_if_it_is_not_followed() {
    let mut bench = bench(&[]);
    for (url, links, location) in [
        ("http://a.org/", &[("HTTP://b.org/a#b", true)][..], " location=http://b.org/a"),
        ("http://c.org/", &[("ftp://b.org/", true)], ""),
        ("http://d.org/", &[("http://b.org/", false)], ""),
    ] {
        bench.publish(&format!("{url} location=forged"));
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Redirect, links);
        let event = event(&mut bench);
        let (_, behind) = event.split_once(" serial=").unwrap();
        let words = behind.split_once(' ').map_or(String::new(), |(_, words)| format!(" {words}"));
        assert_eq!(words, location, "{event}");
        bench.tasks.clear();
    }
    bench.publish("http://e.org/");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[("http://b.org/", true)]);
    assert!(!event(&mut bench).contains("location"));
}

#[test]
fn event_of_a_job_is_no_seed_and_comes_before_the_end_of_the_job() {
    let mut bench = bench(&[]);
    bench.open("docs", &[]);
    bench.publish("http://a.org/ job=docs");
    bench.close("docs");
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Robots, &[]);
    assert_eq!(bench.events.len(), 2, "{:?}", bench.events);
    assert!(bench.events[1].1.starts_with("docs number="));
    bench.events.pop();
    let event = event(&mut bench);
    assert!(
        event.contains(" outcome=robots ")
            && event.contains(" in-job=docs pass=1 depth=0 number=1")
    );
    assert!(!event.contains(" job="), "{event}");
}

#[test]
fn attempt_that_is_retried_is_no_outcome_and_the_last_one_is() {
    let mut bench = bench(&[("max-attempts", "2")]);
    bench.publish("http://a.org/");
    let late = TaskReport {
        reason: Some("timeout".into()),
        error: Some("no answer within 30 s".into()),
        ..TaskReport::default()
    };
    let task = bench.task();
    let back = RetryMode::Counted { after_ms: None };
    report(&mut bench, &task.id, TaskAction::Nack(back.clone()), late.clone());
    assert!(bench.events.is_empty());
    bench.wait(1);
    let task = bench.task();
    report(&mut bench, &task.id, TaskAction::Nack(back), late);
    let told = event(&mut bench);
    assert!(
        told.ends_with(
            " serial=7.2 reason=timeout error=no_answer_within_30_s gave-up=max-attempts"
        ),
        "{told}"
    );
    assert!(told.contains(" outcome=failed "), "{told}");
    let (topic, letter) = bench.events.pop().expect("a dead letter");
    assert_eq!(topic, "dead-letter");
    assert!(letter.ends_with(" last=no_answer_within_30_s"), "{letter}");
    assert!(bench.events.is_empty());
}

#[test]
fn entry_that_is_lost_too_often_is_announced() {
    let mut bench = bench(&[("lease", "1s"), ("max-losses", "1")]);
    bench.publish("http://a.org/");
    bench.task();
    bench.wait(1001);
    let event = event(&mut bench);
    assert!(event.contains(" outcome=failed "), "{event}");
    assert!(event.ends_with(" reason=max-losses gave-up=max-losses"), "{event}");
}

#[test]
fn group_without_urls_or_with_the_setting_off_announces_nothing() {
    for setting in [("key", "none"), ("page-ready", "off")] {
        let mut bench = Bench::new(&[("delay", "0"), setting]);
        bench.join(A, 1);
        bench.publish("http://a.org/");
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
        assert!(bench.events.is_empty(), "{setting:?}");
    }
}

#[test]
fn page_ready_feeds_no_group_that_announces_pages() {
    let fed = ("topics", "page-ready");
    for (settings, may) in [
        (&[fed][..], false),
        (&[fed, ("key", "none")], true),
        (&[fed, ("page-ready", "off")], true),
    ] {
        let mut bench = bench(&[]);
        bench.configure(settings);
        if may {
            assert!(bench.ok().contains(" topics=page-ready "), "{}", bench.ok());
        } else {
            assert_eq!(bench.error_code(), Code::BadArgument);
        }
    }
}

#[test]
fn nothing_is_released_while_large_events_wait_for_their_topic() {
    let mut bench = bench(&[]);
    let item = "i".repeat(30_000);
    let upto = BYTES_MAX / item.len() + 1;
    for _ in 0..upto {
        bench.publish(&format!("http://a.org/ item={item}"));
        let Some((_, task)) = bench.tasks.pop() else { break };
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    assert!(bench.events.len() < upto, "{} events wait", bench.events.len());
    bench.feed(Input::Published { serial: 5, topic: PAGE_READY_TOPIC, seq: Seq(5) });
    bench.task();
}

#[test]
fn nothing_is_released_while_many_events_wait_for_their_topic() {
    let mut bench = bench(&[]);
    for _ in 0..EVENTS_MAX {
        bench.publish("http://a.org/");
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    bench.publish("http://a.org/");
    bench.assert_no_task("events wait");
    let why = bench.why("a.org").ok;
    assert!(why.contains("because=unpublished-events"), "{why}");
    bench.feed(Input::Published { serial: 5, topic: PAGE_READY_TOPIC, seq: Seq(5) });
    bench.task();
}
