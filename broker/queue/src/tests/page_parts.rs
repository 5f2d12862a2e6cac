//! Requests for the parts of pages that members render.

use tidings_protocol::{Code, Outcome, TaskId};

use super::bench::{A, B, Bench, NO_HOLD};
use crate::Input;
use crate::moment::ClockStamp;

const YES: &str = "yes";

/// A group, and the task of a page that `A` renders.
fn rendering() -> (Bench, TaskId) {
    let mut bench = Bench::new(&[]);
    bench.configure(&[("delay", "0"), ("lease", "10s")]);
    bench.join(A, 10);
    bench.publish("http://page.test/");
    let task = bench.task().id;
    bench.answers.clear();
    (bench, task)
}

/// Starts the next run of the broker.
fn restart(bench: &mut Bench) {
    let stamp = ClockStamp { moment: bench.now, boot_id: 1, uptime_ms: 0, unix_ms: 0 };
    let (run, elapsed_unknown, local_member) = (8, false, None);
    bench.feed(Input::Start { run, since: 1, elapsed_unknown, stamp, local_member });
    bench.answers.clear();
}

// PROTOCOL: T2
#[test]
fn a_part_is_permitted_unless_its_key_is_held_or_its_url_listed() {
    let (mut bench, task) = rendering();
    bench.rule("*.blocked.test", &[("block", YES)]);
    bench.rule("paused.test", &[("pause", YES)]);
    bench.rule("slow.test", &[("delay", "1h")]);
    bench.never("never.test\n*/private/");
    for url in ["http://a.test/x.js", "http://slow.test/x.js", "http://page.test/y.js"] {
        bench.part(A, &task, url);
        assert_eq!(bench.ok(), format!("{task} lease=10000"), "{url}");
    }
    for url in [
        "http://blocked.test/robots.txt",
        "https://www.blocked.test:8443/x.js",
        "http://paused.test/",
        "http://never.test/robots.txt",
        "http://a.test/private/x.js",
    ] {
        bench.part(A, &task, url);
        assert_eq!(bench.error_code(), Code::Conflict, "{url}");
    }
    bench.part(A, &task, "ftp://a.test/");
    assert_eq!(bench.error_code(), Code::BadArgument);
    bench.part(B, &task, "http://a.test/");
    assert_eq!(bench.error_code(), Code::Stale);
    bench.touch(A, &task, true, NO_HOLD);
    bench.part(A, &task, "http://a.test/");
    assert_eq!(bench.error_code(), Code::Conflict, "it has reported the end of its requests");
    bench.check_records();
}

// PROTOCOL: G18
#[test]
fn a_rule_is_answered_when_no_page_with_a_part_of_the_key_is_in_flight() {
    for setting in ["block", "pause"] {
        for end in ["over", "answer", "expiry"] {
            let (mut bench, task) = rendering();
            bench.part(A, &task, "http://cdn.test/robots.txt");
            bench.answers.clear();
            bench.rule("*.cdn.test", &[(setting, YES)]);
            assert_eq!(bench.answers, [], "a request may be in flight");
            bench.rule("xcdn.test", &[(setting, YES)]);
            bench.rule("*.org", &[(setting, YES)]);
            assert_eq!(bench.answers.len(), 2);
            bench.part(A, &task, "http://cdn.test/x.js");
            assert_eq!(bench.error_code(), Code::Conflict, "from the rule on");
            match end {
                "over" => bench.touch(A, &task, true, NO_HOLD),
                "answer" => bench.ack(A, &task, Outcome::Done, &[]),
                _ => bench.wait(10_000),
            }
            assert_eq!(bench.ok(), format!("crawlers key=*.cdn.test {setting}=yes"), "{end}");
            assert!(bench.group.rule_waiters.is_empty());
            bench.check_records();
        }
    }
}

/// The end of an exception blocks its host again.
// PROTOCOL: G18
#[test]
fn the_end_of_a_rule_waits_for_parts_too() {
    let (mut bench, task) = rendering();
    bench.rule("*.test", &[("block", YES)]);
    bench.rule("cdn.test", &[("delay", "0")]);
    bench.part(A, &task, "http://cdn.test/x.js");
    bench.ok();
    bench.answers.clear();
    bench.unrule("cdn.test");
    assert_eq!(bench.answers, []);
    bench.ack(A, &task, Outcome::Done, &[]);
    assert_eq!(bench.ok(), "crawlers key=cdn.test delay=0");
}

/// The end of an exception for the names below a host, which has its own, blocks them again.
// PROTOCOL: G18
#[test]
fn the_end_of_a_rule_for_names_below_waits_for_a_task_with_very_many_hosts() {
    let (mut bench, task) = rendering();
    bench.rule("*.test", &[("block", YES)]);
    bench.rule("cdn.test", &[("delay", "0")]);
    bench.rule("*.cdn.test", &[("delay", "0")]);
    for host in 0..100 {
        bench.part(A, &task, &format!("http://h{host}.org/"));
    }
    bench.answers.clear();
    bench.unrule("*.cdn.test");
    assert_eq!(bench.answers, []);
    bench.ack(A, &task, Outcome::Done, &[]);
    assert_eq!(bench.ok(), "crawlers key=*.cdn.test delay=0");
}

/// The group does not record parts: a task from before a restart may request any key.
// PROTOCOL: G18
#[test]
fn after_a_restart_a_rule_waits_for_the_tasks_from_before() {
    let (mut bench, task) = rendering();
    restart(&mut bench);
    bench.join(B, 1);
    bench.publish("http://other.test/");
    bench.answers.clear();
    bench.rule("cdn.test", &[("block", YES)]);
    assert_eq!(bench.answers, []);
    bench.rule("cdn2.test", &[("delay", "1s")]);
    assert_eq!(bench.answers.len(), 1, "it holds nothing");
    bench.ack(A, &task, Outcome::Done, &[]);
    assert_eq!(bench.ok(), "crawlers key=cdn.test block=yes", "the other task is of this run");
}

/// The keys of such a group are not hosts, so no member requests parts from them.
// PROTOCOL: G18
#[test]
fn after_a_restart_a_rule_for_an_attribute_waits_for_no_other_key() {
    let mut bench = Bench::new(&[("key", "attr:site")]);
    bench.join(A, 1);
    bench.publish("http://page.test/ site=a");
    assert_eq!(bench.tasks.len(), 1);
    restart(&mut bench);
    bench.rule("b", &[("block", YES)]);
    assert_eq!(bench.ok(), "crawlers key=b block=yes");
}

#[test]
fn a_task_with_very_many_hosts_delays_each_rule_that_holds() {
    let (mut bench, task) = rendering();
    for host in 0..100 {
        bench.part(A, &task, &format!("http://h{host}.test/"));
    }
    bench.answers.clear();
    bench.rule("slow.test", &[("delay", "1s")]);
    assert_eq!(bench.ok(), "crawlers key=slow.test delay=1s", "it holds nothing");
    bench.unrule("slow.test");
    assert_eq!(bench.ok(), "crawlers key=slow.test delay=1s");
    bench.answers.clear();
    bench.rule("other.test", &[("block", YES)]);
    assert_eq!(bench.answers, []);
    bench.ack(A, &task, Outcome::Done, &[]);
    assert_eq!(bench.ok(), "crawlers key=other.test block=yes");
}
