//! `from=-<n>` and `from=last` begin at the newest existing events, wherever seqs are empty or
//! events gone.

use std::path::Path;

use tidings_protocol::TopicSettings;

use super::disk::{expected, keep, named, numbered, open, replay, waker};
use super::faults::until;
use super::*;

type Numbered = Vec<(u64, String)>;

/// Publishes `lives[i]` events in each run of a broker, and kills the process at the end of each
/// run. Returns the events, and the topics of one more run.
fn killed(folder: &Path, limits: &Limits, lives: &[u64]) -> (Numbered, Arc<Topics>) {
    let mut all = Vec::new();
    for count in lives {
        let topics = open(folder, limits);
        let topic = named(&topics, "t");
        let next = topic.head().0;
        if *count > 0 {
            keep(&topic, &numbered(next..next + count));
        }
        all.extend(expected(next..next + count));
        // Reserves seqs, even without events.
        topic.maintain();
        until(|_| topic.tail.lock().watermarks.reserved > topic.head());
    }
    (all, open(folder, limits))
}

/// For each n, reads the newest n events. A range may be missed only if it lies behind the first
/// event.
#[track_caller]
fn check(topic: &Arc<Topic>, all: &[(u64, String)]) {
    for count in 1..=all.len() {
        let wanted = &all[all.len() - count..];
        let (events, missed) = replay(topic, StartAt::Newest(count as u64));
        assert_eq!(events, wanted, "the newest {count}");
        let first = wanted[0].0;
        for range in missed {
            let from: u64 = range.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(range.starts_with("gap ") && from > first, "{count} from {first}: {range}");
        }
    }
    let newest = all.last().cloned();
    assert_eq!(replay(topic, StartAt::Last).0, newest.into_iter().collect::<Vec<_>>());
    // A request for more events than exist returns all.
    let more = StartAt::Newest(all.len() as u64 + 3);
    assert_eq!(replay(topic, more), replay(topic, StartAt::First));
}

#[test]
fn seqs_skipped_by_crashes_do_not_count() {
    for lives in [&[3][..], &[2, 4, 1], &[3, 0, 0], &[0, 2, 0, 3], &[1, 1, 1, 1, 0]] {
        let folder = tempfile::tempdir().unwrap();
        let (mut all, topics) = killed(folder.path(), &Limits::default(), lives);
        let topic = named(&topics, "t");
        check(&topic, &all);
        let next = topic.head().0;
        keep(&topic, &numbered(next..next + 2));
        all.extend(expected(next..next + 2));
        check(&topic, &all);
        topics.close();
    }
}

#[test]
fn a_topic_of_empty_seqs_has_no_newest_event() {
    let folder = tempfile::tempdir().unwrap();
    let (_, topics) = killed(folder.path(), &Limits::default(), &[0, 0]);
    let topic = named(&topics, "t");
    let head = topic.head();
    assert!(head > Seq(1), "seqs were reserved");
    let from = |from| topic.subscribe(Some(from), LineForm::Wire, waker()).cursor();
    assert_eq!(from(StartAt::Last), head);
    assert_eq!(from(StartAt::Newest(1)), Seq(1));
    assert_eq!(replay(&topic, StartAt::Newest(7)), (vec![], vec![format!("gap 1 {}", head.0 - 1)]));
}

#[test]
fn events_lost_on_a_full_disk_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let topics = open(folder.path(), &Limits::default());
    let topic = named(&topics, "t");
    let mut all = Vec::new();
    for _ in 0..3 {
        let next = topic.head().0;
        keep(&topic, &numbered(next..next + 2));
        all.extend(expected(next..next + 2));
        assert_eq!(topic.stats().kept, all.len() as u64);
        topic.hold();
        topic.append(ConnId(1), ["lost", "lost"]).unwrap();
        topic.lose_held();
        assert_eq!(topic.stats().kept, all.len() as u64);
        check(&topic, &all);
    }
    topics.close();
}

#[test]
fn evicted_events_count() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { tail_bytes_max: 4_000, unsynced_bytes_max: 1 << 20, ..Limits::default() };
    let (mut all, topics) = killed(folder.path(), &limits, &[5, 2]);
    let topic = named(&topics, "t");
    for at in 0..60 {
        let next = topic.head().0;
        keep(&topic, &numbered(next..next + 3));
        all.extend(expected(next..next + 3));
        if at % 20 == 10 {
            topic.hold();
            topic.append(ConnId(1), ["lost"]).unwrap();
            topic.lose_held();
        }
    }
    let first_kept = topic.tail.lock().first_kept().0;
    assert!(first_kept > all[10].0, "the tail has evicted nothing");
    check(&topic, &all);
    topics.close();
}

/// A topic with many files, some with gaps. A start reads only the headers of most. Returns its
/// events, as far as they are kept.
fn many_files(folder: &Path) -> (Numbered, Arc<Topics>) {
    let limits = Limits { tail_bytes_max: 20_000, ..Limits::default() };
    let small = TopicSettings { retain_bytes: 1 << 20, ..TopicSettings::default() };
    let topics = open(folder, &limits);
    topics.create(&"t".parse().unwrap(), small, |result| result.unwrap()).unwrap();
    drop(topics);
    let text = "x".repeat(40_000);
    let mut all = Vec::new();
    for count in [20, 7, 1, 14] {
        let topics = open(folder, &limits);
        let topic = named(&topics, "t");
        for _ in 0..count {
            let seq = topic.head().0;
            keep(&topic, &[format!("{seq} {text}")]);
            all.push((seq, seq.to_string()));
        }
        topic.maintain();
        let first = topic.stats().first_kept.0;
        all.retain(|(seq, _)| *seq >= first);
    }
    (all, open(folder, &limits))
}

#[test]
fn files_of_an_earlier_run_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (all, topics) = many_files(folder.path());
    let topic = named(&topics, "t");
    assert!(topic.stats().segments > 5, "{:?}", topic.stats());
    let mut gone = 0;
    for count in (1..all.len() + 6).rev() {
        let (events, missed) = replay(&topic, StartAt::Newest(count as u64));
        let wanted = &all[all.len().saturating_sub(count)..];
        let numbers = |events: &[(u64, String)]| events.iter().map(|e| e.0).collect::<Vec<_>>();
        assert_eq!(numbers(&events), numbers(wanted), "the newest {count}");
        if count > all.len() {
            // A range as long as the missing events, below the oldest event.
            let missing = (count - all.len()) as u64;
            let first = all[0].0;
            assert_eq!(missed[0], format!("lag {} {}", first - missing, first - 1));
            gone += 1;
        } else {
            assert!(missed.iter().all(|range| range.starts_with("gap ")), "{count}: {missed:?}");
        }
    }
    assert_eq!(gone, 5);
    topics.close();
}

#[test]
fn a_topic_in_memory_begins_below_evicted_events() {
    let topic = topic(1 << 20);
    append(&topic, 1, &["a", "b"]);
    topic.tail.lock().mark_lost(Health::Full);
    // What a topic in memory has shown cannot be lost any more.
    assert_eq!(wire(&topic, Some(StartAt::Newest(1))).cursor(), Seq(2));
    let mut tail = topic.tail.lock();
    tail.append("new-url", ConnId(1), ["c", "d"], false, topic.shared.clock.now(), 0);
    tail.mark_lost(Health::Full);
    drop(tail);
    assert_eq!(wire(&topic, Some(StartAt::Newest(1))).cursor(), Seq(2));
    assert_eq!(wire(&topic, Some(StartAt::Last)).cursor(), Seq(2));
}
