//! Texts outside memory: what a group does with replies that come late, or are damaged.

use proptest::prelude::*;
use tidings_protocol::{Code, Outcome};

use super::bench::{A, Bench, group_command, job_action};
use crate::decide::text_reads::HELD_MAX;
use crate::fuzzing::simulated_pages::TINY;
use crate::moment::{ClockStamp, Moment};
use crate::record::Decision;
use crate::record::snapshot::SnapshotItem;
use crate::texts::{TextError, TextReply, TextRequest};
use crate::{ClientLabel, GroupQuery, Input, JobOperation, Output, Requester};

/// A paged group with this many entries of as many keys, most of them outside memory.
fn paged(entries: usize) -> Bench {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_paging(TINY);
    for n in 0..entries {
        bench.publish(&url(n));
    }
    assert!(bench.pages.bytes() > entries * 20, "most texts are outside memory");
    bench
}

fn url(n: usize) -> String {
    format!("http://h{n}.org/")
}

/// Feeds an input and returns the requests about texts; other outputs are collected.
fn requests(bench: &mut Bench, input: Input) -> Vec<TextRequest> {
    bench.group.handle(input, bench.now);
    let mut requests = Vec::new();
    while let Some(output) = bench.group.poll() {
        requests.extend(bench.take(output));
    }
    requests
}

/// A paged group with two jobs, each with entries outside memory, and a snapshot in progress.
fn two_jobs_in_a_snapshot() -> Bench {
    let mut bench = seeded(&JOBS.map(|job| (job, 50, "")));
    let stamp = ClockStamp { moment: Moment(0), boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    bench.group.begin_snapshot(stamp, |_| {});
    bench.answers.clear();
    bench.records.clear();
    bench
}

const JOBS: [&str; 2] = ["old", "new"];

/// The job of each entry that was written to the snapshot; an error for one without its text.
fn saved(bench: &Bench) -> Vec<&str> {
    let parts = bench.records.iter().filter_map(|record| match &record.decision {
        Decision::SnapshotPart(item) => Some(&**item),
        _ => None,
    });
    let entries = parts.flat_map(|item| match item {
        SnapshotItem::Dormant(entries) if !entries.is_empty() => entries,
        other => panic!("{other:?}"),
    });
    let urls = entries.map(|entry| &*entry.text);
    urls.map(|url| url["http://".len()..].split(|c: char| !c.is_alphabetic()).next().unwrap())
        .collect()
}

fn join(credit: u32) -> Input {
    let label = ClientLabel::default();
    Input::Join { requester: A.requester(), credit, render: None, label }
}

/// The member has as many browsers as credit.
fn join_rendering(credit: u32) -> Input {
    let label = ClientLabel::default();
    Input::Join { requester: A.requester(), credit, render: Some(credit), label }
}

fn query(query: GroupQuery) -> Input {
    Input::Query { requester: A.requester(), query }
}

#[test]
fn all_entries_are_released_with_their_texts() {
    let mut bench = paged(500);
    bench.join(A, 500);
    let mut urls: Vec<_> = bench.tasks.iter().map(|(_, task)| task.payload.clone()).collect();
    let mut expected: Vec<_> = (0..500).map(url).collect();
    let url_of = |payload: &String| payload.split(' ').next().unwrap_or_default().to_owned();
    urls = urls.iter().map(url_of).collect();
    urls.sort_unstable();
    expected.sort_unstable();
    assert_eq!(urls, expected);
    assert!(bench.pages.texts_read > 400);
}

#[test]
fn the_oldest_goes_first_whichever_text_is_read_first() {
    let mut bench = Bench::new(&[("key", "none")]);
    bench.group.set_paging(TINY);
    let events: Vec<_> = (0..300).map(|n| format!("/orders/{n:03}")).collect();
    for event in &events {
        bench.publish(event);
    }
    let mut reads = requests(&mut bench, join(300));
    assert!(reads.len() > 1, "several reads at once");
    while let Some(newest) = reads.pop() {
        let reply = bench.pages.execute(newest);
        reads.extend(requests(&mut bench, Input::Texts(reply)));
    }
    let tasks: Vec<_> = bench.tasks.iter().map(|(_, task)| &task.payload).collect();
    assert_eq!(tasks, events.iter().collect::<Vec<_>>());
}

/// With credit for one task, the texts of the next keys are read in advance: the task after that
/// needs no read.
#[test]
fn texts_are_read_in_advance() {
    let mut bench = paged(500);
    bench.join(A, 1);
    let task = bench.task();
    bench.group.handle(join(2), bench.now);
    while let Some(output) = bench.group.poll() {
        if let Output::Task { conn, task } = output {
            bench.tasks.push((conn, task));
        }
    }
    assert_ne!(bench.task().id, task.id);
}

/// Replies come in the opposite order, while another member's commands are handled.
#[test]
fn late_texts_hold_up_only_their_entries() {
    let mut bench = paged(500);
    let mut reads = requests(&mut bench, join(100));
    assert!(bench.tasks.is_empty() && reads.len() > 3, "{reads:?}");
    bench.answers.clear();
    assert_eq!(requests(&mut bench, query(GroupQuery::Group)), []);
    assert!(bench.ok().contains(" waiting=500 processing=0"), "{}", bench.ok());
    let explain = query(GroupQuery::Explain(url(3)));
    reads.extend(requests(&mut bench, explain));
    assert_eq!(bench.answers.len(), 1, "the explanation waits for its text");
    let mut released = 0;
    for read in reads.into_iter().rev() {
        let reply = bench.pages.execute(read);
        bench.feed(Input::Texts(reply));
        assert!(bench.tasks.len() >= released);
        released = bench.tasks.len();
    }
    assert_eq!(released, 100);
    assert!(bench.ok().starts_with("http://h3.org/ entries=1"), "{}", bench.ok());
}

/// A paged group with the jobs `old` and `new`, and these batches of seeds: job, number, and
/// attributes. The last seeds are in memory. Each has its own host, which names job and batch.
fn seeded(seeds: &[(&str, usize, &str)]) -> Bench {
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_paging(TINY);
    for job in JOBS {
        bench.open(job, &[]);
    }
    for (batch, (job, count, attributes)) in seeds.iter().enumerate() {
        for n in 0..*count {
            bench.publish(&format!("http://{job}-{batch}-{n}.org/ job={job}{attributes}"));
        }
    }
    bench
}

/// The job has more keys than may be read at once. It keeps its turn.
#[test]
fn other_lanes_are_released_while_the_reads_of_a_lane_are_used_up() {
    let mut bench = seeded(&[("old", 500, ""), ("new", 4, "")]);
    let reads = requests(&mut bench, join(3));
    assert_eq!(jobs_of_tasks(&bench), ["new"; 3]);
    for read in reads {
        let reply = bench.pages.execute(read);
        bench.feed(Input::Texts(reply));
    }
    bench.join(A, 5);
    assert_eq!(jobs_of_tasks(&bench)[3..], ["old", "new"]);
}

/// Within a job, no entry overtakes one of higher priority that is being read.
#[test]
fn other_lanes_are_released_while_a_lane_waits_for_its_highest_priority() {
    for [render, _] in ORDERS {
        let urgent = format!(" prio=9{render}");
        let mut bench = seeded(&[("old", 20, &urgent), ("old", 10, render), ("new", 3, render)]);
        let reads = requests(&mut bench, join_rendering(50));
        assert_eq!(jobs_of_tasks(&bench), ["new"; 3]);
        for read in reads {
            let reply = bench.pages.execute(read);
            bench.feed(Input::Texts(reply));
        }
        let expected = [["0"; 20].as_slice(), &["1"; 10]].concat();
        assert_eq!(batches_of_tasks(&bench)[3..], expected);
    }
}

/// Entries that need a browser are read and released although the reads of the others of their job
/// are used up. The same the other way round.
#[test]
fn entries_of_one_order_do_not_wait_for_texts_of_the_other() {
    const CREDIT: u32 = 30;
    for [first, second] in ORDERS {
        let mut bench = seeded(&[("old", 500, first)]);
        let publish = |bench: &mut Bench, batch: u32, count: u32| {
            for n in 0..count {
                bench.publish(&format!("http://old-{batch}-{n}.org/ job=old{second}"));
            }
        };
        assert!(!requests(&mut bench, join_rendering(CREDIT)).is_empty());
        bench.tasks.clear();
        publish(&mut bench, 1, 8);
        assert_eq!(batches_of_tasks(&bench), ["1"; 8], "they are in memory");
        bench.feed(join_rendering(0));
        publish(&mut bench, 2, 50);
        let reads = requests(&mut bench, join_rendering(CREDIT));
        let in_memory = bench.tasks.len();
        for read in reads {
            let reply = bench.pages.execute(read);
            bench.feed(Input::Texts(reply));
        }
        assert!(bench.tasks.len() > in_memory, "some were outside memory");
        assert!(batches_of_tasks(&bench)[8..].iter().all(|batch| *batch == "2"));
    }
}

/// The next entry of a host that needs no browser is being read. The one that needs a browser is
/// released meanwhile. The same the other way round.
#[test]
fn a_key_offers_entries_of_one_order_while_a_text_of_the_other_is_read() {
    for [first, second] in ORDERS {
        let mut bench = seeded(&[("old", 20, first)]);
        let reads = requests(&mut bench, join_rendering(40));
        let is_first = |payload: &str| payload.starts_with("http://old-0-0.org/");
        assert!(!bench.tasks.iter().any(|(_, task)| is_first(&task.payload)));
        let explain = query(GroupQuery::Explain("old-0-0.org".into()));
        assert_eq!(requests(&mut bench, explain), []);
        assert!(bench.ok().contains(" queued because=no-"), "{}", bench.ok());
        bench.tasks.clear();
        bench.publish(&format!("http://old-0-0.org/late job=old{second}"));
        let late = bench.task();
        assert!(late.payload.starts_with("http://old-0-0.org/late "), "{}", late.payload);
        for read in reads {
            let reply = bench.pages.execute(read);
            bench.feed(Input::Texts(reply));
        }
        assert!(!bench.tasks.is_empty(), "the texts of other hosts were read");
        bench.tasks.clear();
        bench.ack(A, &late.id, Outcome::Done, &[]);
        let next = bench.task();
        assert!(next.payload.starts_with("http://old-0-0.org/ "), "{}", next.payload);
    }
}

/// Attributes of entries of one order of release, and of those of the other.
const ORDERS: [[&str; 2]; 2] = [["", " render=yes"], [" render=yes", ""]];

/// The batch of each task.
fn batches_of_tasks(bench: &Bench) -> Vec<&str> {
    let payloads = bench.tasks.iter().map(|(_, task)| &*task.payload);
    payloads.map(|payload| payload.split('-').nth(1).unwrap()).collect()
}

/// The job of each task.
fn jobs_of_tasks(bench: &Bench) -> Vec<&str> {
    let payloads = bench.tasks.iter().map(|(_, task)| &*task.payload);
    let jobs = payloads.map(|payload| payload.split(" job=").nth(1).unwrap());
    jobs.map(|job| job.split(' ').next().unwrap()).collect()
}

/// Events and queries that need texts are handled in their order.
#[test]
fn inputs_that_wait_for_texts_keep_their_order() {
    let mut bench = paged(500);
    let tasks =
        || query(GroupQuery::Tasks(group_command(&[("key", "h3.org")]).task_query().unwrap()));
    let first = requests(&mut bench, tasks());
    bench.publish(&format!("{} prio=7", url(3)));
    assert!(bench.group.is_behind(), "the event waits for the query");
    assert_eq!(requests(&mut bench, tasks()), []);
    for read in first {
        let reply = bench.pages.execute(read);
        bench.feed(Input::Texts(reply));
    }
    let lines: Vec<_> = bench.answers.iter().flatten().flat_map(|answer| &answer.lines).collect();
    let prios = lines.iter().map(|line| line.contains(" prio=7 "));
    assert_eq!(prios.collect::<Vec<_>>(), [false, true], "{lines:?}");
    assert!(!bench.group.is_behind());
}

/// Each cancelled job writes the texts of its entries to the snapshot. The outputs about the first
/// one do not wait for the texts of the second one, and those of the second one do for both.
#[test]
fn outputs_wait_only_for_texts_of_their_input_and_earlier_ones() {
    for is_in_order in [true, false] {
        let mut bench = two_jobs_in_a_snapshot();
        let cancel = |name| job_action(name, JobOperation::Cancel);
        let mut reads: Vec<_> =
            JOBS.iter().map(|job| requests(&mut bench, cancel(job)).remove(0)).collect();
        assert!(bench.answers.is_empty() && bench.records.is_empty(), "{:?}", bench.records);
        if !is_in_order {
            reads.reverse();
        }
        let mut answered = Vec::new();
        for read in reads {
            let reply = bench.pages.execute(read);
            assert_eq!(requests(&mut bench, Input::Texts(reply)), []);
            answered.push(bench.answers.len());
            let mut jobs = saved(&bench);
            jobs.dedup();
            assert_eq!(jobs, JOBS[..bench.answers.len()], "the records leave with their texts");
        }
        assert_eq!(answered, if is_in_order { [1, 2] } else { [0, 2] });
        assert!(!bench.group.is_blocked());
    }
}

/// The text of a command is requested when the command arrives, also if it waits for its turn.
#[test]
fn texts_of_waiting_commands_are_read_at_the_same_time() {
    let mut bench = paged(500);
    let explain = |n| query(GroupQuery::Explain(url(n)));
    let mut reads = requests(&mut bench, explain(3));
    reads.extend(requests(&mut bench, explain(4)));
    reads.extend(requests(&mut bench, explain(5)));
    assert_eq!(reads.len(), 3, "{reads:?}");
    bench.answers.clear();
    for (read, answered) in reads.into_iter().zip([1, 2, 3]).rev() {
        assert!(bench.answers.is_empty(), "the first command waits for its text: {answered}");
        let reply = bench.pages.execute(read);
        assert_eq!(requests(&mut bench, Input::Texts(reply)), [], "no text is read twice");
    }
    let urls = bench.answers.iter().flatten().map(|answer| answer.ok.clone());
    let expected = [3, 4, 5].map(|n| format!("{} entries=1", url(n)));
    assert_eq!(urls.collect::<Vec<_>>(), expected);
}

/// Further commands are rejected, and the name that one of them reserves is free again. No event is
/// lost.
#[test]
fn few_commands_wait_for_texts() {
    let mut bench = paged(500);
    let reads = requests(&mut bench, query(GroupQuery::Explain(url(3))));
    bench.publish("http://new.org/");
    for _ in 1..HELD_MAX {
        assert_eq!(requests(&mut bench, query(GroupQuery::Group)), []);
    }
    bench.answers.clear();
    bench.open("late", &[]);
    assert_eq!(bench.error_code(), Code::Limit);
    assert_eq!(bench.job_names.get("late"), Some(&false), "its name is free");
    bench.publish("http://newer.org/");
    assert_eq!(bench.answers.len(), 1, "the others wait");
    for read in reads {
        let reply = bench.pages.execute(read);
        bench.feed(Input::Texts(reply));
    }
    assert_eq!(bench.answers.len(), 1 + HELD_MAX);
    assert_eq!(bench.group.entry_count(), 502);
    bench.open("late", &[]);
    assert!(bench.ok().starts_with("late "), "{}", bench.ok());
}

#[test]
fn damaged_texts_stop_the_group() {
    let mut bench = paged(500);
    bench.pages.damage();
    bench.join(A, 10);
    assert!(bench.tasks.is_empty(), "{:?}", bench.tasks);
    let problem = bench.group.problem().expect("it has stopped").to_string();
    assert!(problem.starts_with("the text of entry "), "{problem}");
    let records = bench.records.len();
    bench.publish("http://x.org/");
    assert_eq!(bench.records.len(), records, "it decides nothing more");
}

#[test]
fn failed_reads_stop_the_group_only_if_their_texts_are_needed() {
    for is_purged in [true, false] {
        let mut bench = paged(500);
        let reads = requests(&mut bench, join(10));
        if is_purged {
            let operation = crate::Operation::Purge;
            let requester: Requester = A.requester();
            assert_eq!(requests(&mut bench, Input::Operate { requester, operation }), []);
        }
        for read in reads {
            let TextRequest::Read { number, texts } = read else { continue };
            let texts = texts.iter().map(|_| Err(TextError::new("input/output error"))).collect();
            bench.feed(Input::Texts(TextReply::Read { number, texts }));
        }
        assert_eq!(bench.group.problem().is_none(), is_purged);
    }
}

proptest! {
    /// No byte of a disk makes a group panic.
    #[test]
    fn arbitrary_replies_do_not_panic(
        replies in proptest::collection::vec(
            (0..12_u64, proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..3)),
            1..12,
        ),
        flips in proptest::collection::vec((any::<u16>(), 1_u8..), 1..4),
    ) {
        let mut bench = paged(60);
        let reads = requests(&mut bench, join(10));
        for read in reads {
            let mut reply = bench.pages.execute(read);
            if let TextReply::Read { texts, .. } = &mut reply {
                for (at, mask) in &flips {
                    let index = usize::from(*at) % texts.len();
                    if let Ok(text) = &mut texts[index] {
                        let at = usize::from(*at) % text.len();
                        text[at] ^= mask;
                    }
                }
            }
            bench.feed(Input::Texts(reply));
        }
        for (number, texts) in replies {
            let texts = texts.into_iter().map(Ok).collect();
            bench.feed(Input::Texts(TextReply::Read { number, texts }));
        }
    }
}
