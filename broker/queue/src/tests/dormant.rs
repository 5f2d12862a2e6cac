//! Dormant entries: equivalent to active entries, in less memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidings_protocol::{CanonicalUrl, Outcome, RetryMode};

use super::bench::{A, Bench};
use crate::dormant::DormantEntries;
use crate::dump::difference;
use crate::entry::{Admission, EntryId, Key, PassId};
use crate::key_queue::Lane;
use crate::keys::Keys;
use crate::moment::{ClockStamp, Moment};
use crate::record::{Decision, GroupRecord};
use crate::replay::Replay;
use crate::snapshot::SnapshotItem;
use crate::task_list::EntrySelection;
use crate::texts::{CHUNK_BYTES, TextStore, Texts};
use crate::{Group, GroupConfig, Input, Operation};

/// A text store in a map instead of a file. Up to `slow` chunks at once are still being written.
#[derive(Debug, Clone, Default)]
struct MapStore {
    chunks: Arc<Mutex<BTreeMap<u32, Arc<Vec<u8>>>>>,
    leaving: VecDeque<(u32, Arc<Vec<u8>>)>,
    slow: usize,
    /// Number of writes that fail first.
    refused: usize,
}

impl TextStore for MapStore {
    fn write(&mut self, number: u32, chunk: Arc<Vec<u8>>) {
        assert!(chunk.len() <= CHUNK_BYTES);
        self.leaving.push_back((number, chunk));
    }

    fn poll_written(&mut self) -> Option<(u32, io::Result<()>)> {
        let is_on_its_way = self.leaving.len() <= self.slow;
        let (number, chunk) = self.leaving.pop_front_if(|_| !is_on_its_way)?;
        if self.refused > 0 {
            self.refused -= 1;
            return Some((number, Err(io::ErrorKind::StorageFull.into())));
        }
        let chunks = &mut *self.chunks.lock();
        let next = chunks.last_key_value().map_or(0, |(number, _)| number + 1);
        assert!(number <= next, "the file has no holes");
        chunks.insert(number, chunk);
        Some((number, Ok(())))
    }

    fn read(&self, number: u32, from: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let chunks = self.chunks.lock();
        let there = &chunks[&number][from..];
        let len = there.len().min(buffer.len());
        buffer[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }
}

/// This many texts fill about 90 chunks.
const TEXTS: u64 = 3000;

/// One of the texts.
fn text(id: u64) -> Vec<u8> {
    let len = 3000 + usize::try_from(id * 7919 % 60_000).unwrap();
    let mut text = vec![id.to_le_bytes()[0]; len];
    text[..8].copy_from_slice(&id.to_le_bytes());
    text
}

/// Adds many texts, removes some, compacts the rest, and checks them.
fn churn(mut texts: Texts, kept_of_ten: u64) -> Texts {
    let mut places = BTreeMap::new();
    for id in 1..TEXTS {
        places.insert(id, texts.put(id, &[&text(id)]));
        let older = id / 2;
        if older % 10 >= kept_of_ten
            && let Some(place) = places.remove(&older)
        {
            texts.remove(place, text(older).len());
        }
        for (id, place, text) in texts.sparse_chunk().unwrap_or_default() {
            if places.get(&id) == Some(&place) {
                places.insert(id, texts.put(id, &[&text]));
                texts.remove(place, text.len());
            }
        }
    }
    for (id, place) in &places {
        assert_eq!(texts.get(*place), text(*id), "text {id}");
    }
    texts
}

#[test]
fn texts_are_unchanged_in_memory_and_in_the_store() {
    for slow in [0, 1, 5] {
        let (map, mut texts) = (MapStore { slow, ..MapStore::default() }, Texts::default());
        texts.set_store(Box::new(map.clone()));
        let texts = churn(texts, 9);
        assert!(map.chunks.lock().len() > 30, "most texts are in the store");
        assert!(texts.memory_bytes() <= (40 + slow) * CHUNK_BYTES, "too much is in memory");
    }
    churn(Texts::default(), 9);
}

#[test]
fn removed_texts_free_their_room() {
    // A tenth of the older half remains.
    let is_live = |id: &u64| *id > TEXTS / 2 || id.is_multiple_of(10);
    let live: usize = (1..TEXTS).filter(is_live).map(|id| text(id).len()).sum();
    for slow in [0, 5] {
        let (map, mut texts) = (MapStore { slow, ..MapStore::default() }, Texts::default());
        texts.set_store(Box::new(map.clone()));
        for _ in 0..3 {
            texts = churn(texts.cleared(), 1);
            let used = map.chunks.lock().len() * CHUNK_BYTES;
            assert!(used < 3 * live, "{used} stored bytes for {live}");
        }
    }
    let texts = churn(Texts::default(), 1);
    assert!(texts.memory_bytes() < 3 * live);
}

#[test]
fn texts_stay_in_memory_when_the_store_is_full() {
    let mut texts = Texts::default();
    texts.set_store(Box::new(MapStore { refused: usize::MAX, ..MapStore::default() }));
    assert!(churn(texts, 9).memory_bytes() > 30 * CHUNK_BYTES);
}

#[test]
fn store_is_used_again_when_it_has_room() {
    let (map, mut texts) = (MapStore { refused: 20, ..MapStore::default() }, Texts::default());
    texts.set_store(Box::new(map.clone()));
    let texts = churn(texts, 9);
    assert!(map.chunks.lock().len() > 30, "most texts are in the store");
    assert!(texts.memory_bytes() <= 40 * CHUNK_BYTES, "too much is in memory");
}

fn admission(id: u64, key: &Key, job: Option<PassId>, prio: i16) -> Admission {
    let text: Box<str> = format!("http://{key}/{}", id % 5).into();
    Admission {
        id,
        url_key: Some(CanonicalUrl::key_of(&text)),
        text,
        key: key.clone(),
        job,
        depth: u32::try_from(id % 4).unwrap(),
        hops: 0,
        redirect: false,
        announced: job.is_none(),
        prio,
        due: Moment(0),
        forwarded: if id.is_multiple_of(2) { " a=b".into() } else { "".into() },
    }
}

proptest! {
    /// Compares with a plain list: the order of each lane, lookups by number and URL, and the
    /// entries that are returned.
    #[test]
    fn dormant_entries_are_returned_unchanged(
        steps in proptest::collection::vec((0..3_u64, -1..2_i16, any::<bool>(), any::<u16>()), 1..200),
        in_order in any::<bool>(),
    ) {
        let (mut keys, mut parked) = (Keys::default(), DormantEntries::default());
        let mut model: BTreeMap<u64, Admission> = BTreeMap::new();
        let mut ids: Vec<u64> = (1..=steps.len() as u64).collect();
        if !in_order {
            ids.reverse();
        }
        let job_of = |lane: u64| (lane > 0).then_some(PassId { number: lane, pass: 1 });
        for (id, (lane, prio, removes, pick)) in ids.into_iter().zip(steps) {
            let name: Key = format!("h{}.org", id % 3).into();
            let admitted = admission(id, &name, job_of(lane), prio);
            let in_lane = job_of(lane).map_or(Lane::Announced, |job| Lane::Job(job.number));
            let packed = DormantEntries::lane_for(&admitted, in_lane, Moment(0)).unwrap();
            parked.insert_all(&[(&admitted, packed)], &mut keys);
            model.insert(id, admitted);
            if removes {
                let picked = *model.keys().nth(usize::from(pick) % model.len()).unwrap();
                let glance = parked.find(picked).unwrap();
                let job = glance.job().map(|number| PassId { number, pass: 1 });
                let out = parked.take(glance, &mut keys[glance.key], job);
                prop_assert_eq!(Some(out), model.remove(&picked));
            }
        }
        parked.sort_runs(&mut keys);
        prop_assert_eq!(parked.len(), model.len());
        for (id, admitted) in &model {
            let found = parked.of_url(admitted.url_key.unwrap()).any(|glance| glance.id == *id);
            prop_assert!(found, "{} is found by its URL", id);
        }
        for key in keys.ids() {
            for lane in [Lane::Announced, Lane::Job(1), Lane::Job(2)] {
                let of_lane = |admitted: &&Admission| {
                    let job = admitted.job.map_or(Lane::Announced, |job| Lane::Job(job.number));
                    job == lane && admitted.key == *keys[key].name()
                };
                let mut expected: Vec<_> = model.values().filter(of_lane).cloned().collect();
                expected.sort_by_key(|admitted| (std::cmp::Reverse(admitted.prio), admitted.id));
                for admitted in expected {
                    let first = keys[key].dormant.first_of(lane).map(|(_, id)| id);
                    prop_assert_eq!(first, Some(admitted.id));
                    let glance = parked.find(admitted.id).unwrap();
                    parked.remove(glance, &mut keys[key]);
                }
            }
            prop_assert!(keys[key].dormant.is_empty());
        }
        prop_assert_eq!(parked.len(), 0);
    }
}

/// A page with many links, a snapshot in small parts while entries are released, added and brought
/// forward, and a restart.
#[test]
fn large_crawl_is_the_same_after_a_restart() {
    for hosts in [1, 700] {
        snapshot_of_a_large_crawl(hosts);
    }
}

fn snapshot_of_a_large_crawl(hosts: usize) {
    const LINKS: usize = 5000;
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_text_store(Box::new(MapStore::default()));
    bench.join(A, 1);
    bench.open("large", &[("scope", "any")]);
    bench.publish("http://h0.org/ job=large");
    let url = |n: usize| format!("http://h{}.org/{n}", n % hosts);
    let links: Vec<String> = (0..LINKS).map(url).collect();
    let links: Vec<(&str, bool)> = links.iter().map(|url| (url.as_str(), false)).collect();
    let seed = bench.task();
    bench.ack(A, &seed.id, Outcome::Done, &links);
    let expected: BTreeSet<EntryId> = bench.group.dormant.iter().map(|glance| glance.id).collect();
    let stamp = ClockStamp { moment: Moment(0), boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    let (mut kept, at) = (Vec::new(), bench.now);
    bench.group.begin_snapshot(stamp, |decision| kept.push(GroupRecord { at, decision }));
    bench.records.clear();
    for turn in 1.. {
        kept.append(&mut bench.records);
        let is_whole =
            bench.group.continue_snapshot(16, |decision| kept.push(GroupRecord { at, decision }));
        if is_whole {
            break;
        }
        let task = bench.task();
        let late = format!("http://h{}.org/late-{turn}", turn % hosts);
        bench.ack(A, &task.id, Outcome::Done, &[(&late, false), ("http://late.org/", false)]);
        // One entry that the snapshot may contain already, and a new one.
        for n in [turn, LINKS - turn].map(|n| n % LINKS) {
            bench.publish(&format!("{} job=large prio=3", url(n)));
        }
    }
    let name = bench.group.name().clone();
    let mut replay = Replay::new(Group::new(name, 0, GroupConfig::default(), 1), false);
    for record in &kept {
        let mut line = String::new();
        record.encode(&mut line);
        replay.apply(&GroupRecord::decode(line.trim_end_matches('\n')).unwrap());
    }
    let mut again = replay.finish().unwrap();
    again.advance(bench.now);
    assert_eq!(difference(&again, &bench.group), None);
    let parked: Vec<_> = kept.iter().filter_map(parked_in).flatten().collect();
    let ids: BTreeSet<EntryId> = parked.iter().map(|admission| admission.id).collect();
    assert_eq!(ids.len(), parked.len(), "no entry is in it twice");
    assert_eq!(ids, expected);
}

/// The dormant entries in a part of a snapshot.
fn parked_in(record: &GroupRecord) -> Option<&[Admission]> {
    match &record.decision {
        Decision::SnapshotPart(item) => match &**item {
            SnapshotItem::Dormant(admissions) => Some(admissions),
            _ => None,
        },
        _ => None,
    }
}

/// The dead entry is dropped because its URL waits. A replay knows that only if the dead entry
/// comes first.
#[test]
fn retry_during_a_snapshot_does_not_wait_twice() {
    let mut bench = Bench::new(&[("max-attempts", "1")]);
    bench.join(A, 1);
    bench.publish("http://x.org/");
    let task = bench.task();
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    bench.join(A, 0);
    bench.publish("http://x.org/");
    let stamp = ClockStamp { moment: Moment(0), boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    let (mut kept, at) = (Vec::new(), bench.now);
    bench.group.begin_snapshot(stamp, |decision| kept.push(GroupRecord { at, decision }));
    bench.records.clear();
    let what = Operation::Retry(EntrySelection::default());
    bench.feed(Input::Operate { requester: A.requester(), operation: what });
    kept.append(&mut bench.records);
    while !bench.group.continue_snapshot(16, |decision| kept.push(GroupRecord { at, decision })) {}
    let name = bench.group.name().clone();
    let mut replay = Replay::new(Group::new(name, 0, GroupConfig::default(), 1), false);
    for record in &kept {
        replay.apply(record);
    }
    let mut again = replay.finish().unwrap();
    again.advance(bench.now);
    assert_eq!(difference(&again, &bench.group), None);
}

/// A large number of purged entries is not written to the snapshot in progress.
#[test]
fn large_purge_abandons_the_snapshot() {
    let mut bench = Bench::new(&[]);
    for n in 0..5000 {
        bench.publish(&format!("http://h{}.org/{n}", n % 50));
    }
    let stamp = ClockStamp { moment: Moment(0), boot_id: 0, uptime_ms: 0, unix_ms: 0 };
    bench.group.begin_snapshot(stamp, |_| {});
    bench.records.clear();
    bench.feed(Input::Operate { requester: A.requester(), operation: Operation::Purge });
    assert!(!bench.group.is_snapshotting());
    let abandoned = Decision::SnapshotPart(Box::new(SnapshotItem::Abandoned));
    let decisions: Vec<_> = bench.records.iter().map(|record| &record.decision).collect();
    assert_eq!(decisions, [&abandoned, &Decision::Purged]);
}

/// Reuses slots for keys in turn: each run must be sorted once, not once per entry.
#[test]
fn unordered_runs_are_sorted_once() {
    const COUNT: u64 = 60_000;
    let (mut keys, mut parked) = (Keys::default(), DormantEntries::default());
    let names: [Key; 2] = ["a.org".into(), "b.org".into()];
    for id in (1..=COUNT).rev() {
        let name = &names[usize::try_from(id % 2).unwrap()];
        let admitted = admission(id, name, None, 0);
        let lane = DormantEntries::lane_for(&admitted, Lane::Announced, Moment(0)).unwrap();
        parked.insert_all(&[(&admitted, lane)], &mut keys);
    }
    parked.sort_runs(&mut keys);
    for id in 1..=COUNT {
        let queue = &mut keys[parked.find(id).unwrap().key];
        assert_eq!(queue.dormant.first_of(Lane::Announced).map(|(_, first)| first), Some(id));
        parked.remove(parked.find(id).unwrap(), queue);
    }
}
