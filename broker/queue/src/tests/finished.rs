//! The states of tasks in lists, from waiting to finished.

use tidings_protocol::{Code, Outcome, RetryMode};

use super::bench::{A, Bench, group_command};
use super::operate::selection;
use crate::Operation;
use crate::finished::{FINISHED_MAX, TEXT_BYTES_MAX};

fn bench() -> Bench {
    let mut bench = Bench::new(&[("delay", "0"), ("max-attempts", "2")]);
    bench.join(A, 1);
    bench
}

/// The entries of lines, with a field of each.
fn field<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    let words = |line: &'a String| line.split(' ').find_map(|word| word.strip_prefix(name));
    lines.iter().map(|line| words(line).unwrap_or("-")).collect()
}

#[test]
fn a_task_is_listed_in_each_of_its_states() {
    let mut bench = bench();
    bench.join(A, 0);
    bench.publish("http://a.org/ after=5s");
    let state = |bench: &mut Bench| field(&bench.tasks_of(&[]), "state=").join(" ");
    assert_eq!(state(&mut bench), "pending");
    bench.wait(5_000);
    assert_eq!(state(&mut bench), "queued");
    bench.join(A, 1);
    let task = bench.task();
    bench.wait(3_000);
    let lines = bench.tasks_of(&[("state", "processing")]);
    assert!(lines[0].ends_with(" member=00000001 lease-ms=57000 held-ms=3000 http://a.org/"));
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: Some(60_000) });
    let lines = bench.tasks_of(&[("state", "retry")]);
    assert!(lines[0].contains(" attempts=1 losses=0 due-ms=60000 "), "{lines:?}");
    assert!(bench.tasks_of(&[("state", "pending")]).is_empty());
    bench.wait(60_000);
    let task = bench.task();
    bench.wait(500);
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    bench.wait(70);
    assert_eq!(state(&mut bench), "dead");
    assert_eq!(
        bench.tasks_of(&[("state", "failed")]),
        ["1 state=failed key=a.org depth=0 prio=0 attempts=2 losses=0 member=00000001 \
          reason=max-attempts last=test held-ms=500 ended-ms=70 http://a.org/"]
    );
    // It is tried again, and stays in the list of what has ended.
    bench.operate(Operation::Retry(selection(&[])));
    let task = bench.task();
    bench.ack(A, &task.id, Outcome::Done, &[]);
    assert!(bench.tasks_of(&[]).is_empty());
    assert_eq!(bench.tasks_of(&[("state", "failed")]).len(), 1);
    let completed = bench.tasks_of(&[("state", "completed")]);
    assert!(completed[0].ends_with(" held-ms=0 ended-ms=0 outcome=done http://a.org/"));
}

#[test]
fn finished_tasks_are_listed_newest_first() {
    let mut bench = bench();
    let outcomes = [Outcome::Done, Outcome::Failed, Outcome::Robots, Outcome::Done];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        bench.publish(&format!("http://h{number}.org/ x=y"));
        let task = bench.task();
        bench.ack(A, &task.id, outcome, &[]);
    }
    let completed = bench.tasks_of(&[("state", "completed")]);
    assert_eq!(field(&completed, "key="), ["h3.org", "h2.org", "h0.org"]);
    assert_eq!(field(&completed, "outcome="), ["done", "robots", "done"]);
    let failed = bench.tasks_of(&[("state", "failed")]);
    assert_eq!(field(&failed, "outcome="), ["failed"]);
    let limited = bench.tasks_of(&[("state", "completed"), ("limit", "1")]);
    assert_eq!(
        (field(&limited, "key="), bench.ok()),
        (vec!["h3.org"], "crawlers matched=3 listed=1")
    );
    let one = bench.tasks_of(&[("state", "completed"), ("key", "h2.org")]);
    assert_eq!((one.len(), bench.ok()), (1, "crawlers matched=1 listed=1"));
    assert!(bench.tasks_of(&[]).is_empty(), "finished tasks are listed only by their state");
    let error = group_command(&[("state", "done")]).task_query().unwrap_err();
    assert_eq!(error.code, Code::BadArgument);
}

#[test]
fn only_the_newest_finished_tasks_are_kept() {
    let mut bench = Bench::new(&[("key", "none")]);
    bench.join(A, 1);
    let long = "é".repeat(TEXT_BYTES_MAX);
    for number in 0..=FINISHED_MAX {
        bench.publish(&format!("{number} {long}"));
        let task = bench.task();
        bench.ack(A, &task.id, Outcome::Done, &[]);
    }
    let listed = bench.tasks_of(&[("state", "completed"), ("limit", "1000")]);
    assert_eq!(bench.ok(), format!("crawlers matched={FINISHED_MAX} listed=1000"));
    assert!(listed[0].contains(&format!(" {FINISHED_MAX} é")), "{}", listed[0]);
    assert!(listed[FINISHED_MAX - 1].contains(" outcome=done 1 é"));
    assert!(listed.iter().all(|line| line.len() < TEXT_BYTES_MAX + 200));
}
