//! `GROUP purge` and `GROUP bump` of selected entries.

use tidings_protocol::{Code, GroupAction, GroupCommand};

use super::bench::{A, Bench};
use crate::commands::group_input;
use crate::fuzzing::simulated_pages::TINY;

/// A group with these URLs, and no member.
fn bench(urls: &[&str], settings: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::new(&[&[("delay", "0")], settings].concat());
    for url in urls {
        bench.publish(url);
    }
    bench
}

fn change(bench: &mut Bench, action: GroupAction<'static>, settings: &[(&str, &str)]) {
    let command = GroupCommand::new(action, "crawlers", settings.to_vec());
    match group_input(A.requester(), &command) {
        Ok(input) => bench.feed(input),
        Err(error) => bench.answers.push(Err(error)),
    }
}

/// The URLs of all tasks that a worker gets, in their order.
fn tasks(bench: &mut Bench) -> Vec<String> {
    bench.join(A, 100);
    bench.wait(1);
    let tasks = bench.tasks.drain(..).map(|(_, task)| task.payload);
    tasks.map(|payload| payload.split(' ').next().unwrap().to_owned()).collect()
}

// PROTOCOL: G13
#[test]
fn selected_entries_are_dropped_and_counted_as_cancelled() {
    let urls = ["http://a.org/1 job=docs", "http://b.org/1 job=docs", "http://a.org/2"];
    let mut bench = bench(&[], &[]);
    bench.open("docs", &[]);
    for url in urls {
        bench.publish(url);
    }
    bench.close("docs");
    change(&mut bench, GroupAction::Purge, &[("key", "a.org"), ("job", "docs")]);
    assert_eq!(bench.ok(), "crawlers dropped=1");
    change(&mut bench, GroupAction::Purge, &[("match", "/2$")]);
    assert_eq!(bench.ok(), "crawlers dropped=1");
    assert_eq!(tasks(&mut bench), ["http://b.org/1"]);
    let shown = bench.group.state.jobs().named("docs").expect("the job is open").counts;
    assert_eq!(shown.cancelled, 1);
}

// PROTOCOL: G13
#[test]
fn job_ends_when_the_last_of_it_is_dropped() {
    let mut bench = bench(&[], &[]);
    bench.open("docs", &[]);
    bench.publish("http://a.org/1 job=docs");
    bench.close("docs");
    change(&mut bench, GroupAction::Purge, &[("job", "docs")]);
    let (_, end) = bench.events.last().expect("the end of the job");
    assert!(end.contains(" cancelled=1 "), "{end}");
}

// PROTOCOL: G13
#[test]
fn bumped_entries_are_released_first() {
    let urls = ["http://a.org/1", "http://a.org/2.pdf", "http://a.org/3", "http://a.org/4.pdf"];
    let mut bench = bench(&urls, &[("parallel", "10")]);
    change(&mut bench, GroupAction::Bump, &[("prio", "10"), ("match", "*.pdf$")]);
    assert_eq!(bench.ok(), "crawlers bumped=2");
    change(&mut bench, GroupAction::Bump, &[("prio", "-1"), ("match", "/1$")]);
    let order = ["http://a.org/2.pdf", "http://a.org/4.pdf", "http://a.org/3", "http://a.org/1"];
    assert_eq!(tasks(&mut bench), order);
}

// PROTOCOL: G13
#[test]
fn held_entries_stay_as_they_are() {
    let mut bench = bench(&["http://a.org/1", "http://b.org/1"], &[]);
    bench.join(A, 1);
    let held = bench.task().id.entry;
    change(&mut bench, GroupAction::Purge, &[("match", "/1$")]);
    assert_eq!(bench.ok(), "crawlers dropped=1");
    assert!(bench.group.state.frontier().get(held).entry.lease().is_some());
}

// PROTOCOL: G13
#[test]
fn one_command_changes_a_thousand_entries_with_texts_on_disk() {
    let mut bench = bench(&[], &[]);
    bench.group.set_paging(TINY);
    for number in 0..1003 {
        bench.publish(&format!("http://a.org/{number}"));
    }
    assert!(bench.group.state.dormant().has_stored_texts());
    change(&mut bench, GroupAction::Bump, &[("prio", "3"), ("match", "/*")]);
    let mut bumped = 0;
    while let Some((done, next)) = bench.ok().to_owned().split_once(" next=") {
        bumped += done.strip_prefix("crawlers bumped=").unwrap().parse::<u32>().unwrap();
        change(&mut bench, GroupAction::Bump, &[("prio", "3"), ("match", "/*"), ("after", next)]);
    }
    bumped += bench.ok().strip_prefix("crawlers bumped=").unwrap().parse::<u32>().unwrap();
    assert_eq!(bumped, 1003);
    let mut again = bench.group.state.frontier().active();
    assert!(again.all(|live| live.entry.admitted.prio == 3));
}

// PROTOCOL: G13
#[test]
fn full_group_bumps_nothing() {
    let mut bench = bench(&[], &[]);
    let config = crate::GroupConfig { entries_max: 1, ..bench.group.config().clone() };
    bench.group = crate::Group::new("crawlers".parse().unwrap(), 7, config, 1);
    bench.publish("http://a.org/1");
    change(&mut bench, GroupAction::Bump, &[("prio", "1")]);
    assert_eq!(bench.error_code(), Code::Limit);
    change(&mut bench, GroupAction::Bump, &[("key", "a.org")]);
    assert_eq!(bench.error_code(), Code::BadArgument, "without prio=");
    change(&mut bench, GroupAction::Purge, &[("key", "a.org")]);
    assert_eq!(bench.ok(), "crawlers dropped=1");
}
