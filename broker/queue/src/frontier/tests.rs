//! Dormant entries: equivalent to active entries, in less memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use tidings_protocol::{CanonicalUrl, EntrySelection, Outcome, Render, RetryMode};

use super::dormant::DormantEntries;
use super::keys::Keys;
use super::lane::Lane;
use crate::entry::{Admission, EntryId, Key, PassId, with_render};
use crate::fuzzing::dump::difference;
use crate::fuzzing::simulated_pages::{SimulatedPages, TINY};
use crate::moment::{ClockStamp, Moment};
use crate::record::replay::Replay;
use crate::record::snapshot::SnapshotItem;
use crate::record::{Decision, GroupRecord};
use crate::tests::bench::{A, Bench};
use crate::texts::{
    CHUNK_BYTES, MovedText, Paging, TextLocation, TextReply, TextRequest, Texts, text_of,
};
use crate::{Group, GroupConfig, Input, Operation};

/// Texts outside memory. Up to `slow` chunks at once are still being written.
#[derive(Debug, Default)]
struct SlowPages {
    pages: SimulatedPages,
    leaving: VecDeque<TextRequest>,
    slow: usize,
    /// Number of writes that fail first.
    refused: usize,
}

impl SlowPages {
    /// Executes all requests, and returns the texts that must be moved.
    fn exchange(&mut self, texts: &mut Texts) -> Vec<MovedText> {
        let mut moved = texts.sparse_chunk().unwrap_or_default();
        loop {
            let request = match texts.poll_request() {
                Some(TextRequest::Write { chunk, bytes }) => {
                    assert!(bytes.len() <= CHUNK_BYTES);
                    self.leaving.push_back(TextRequest::Write { chunk, bytes });
                    continue;
                }
                Some(read) => read,
                None if self.leaving.len() > self.slow => {
                    self.pages.is_full = self.refused > 0;
                    self.refused = self.refused.saturating_sub(1);
                    self.leaving.pop_front().expect("it is not empty")
                }
                None => return moved,
            };
            match self.pages.execute(request) {
                TextReply::Written { chunk, written } => texts.written(chunk, written.is_ok()),
                TextReply::Read { number, texts: read } => {
                    let all = texts.take_sparse_chunk(number, &read);
                    moved.extend(all.expect("only chunks are read").expect("it is whole"));
                }
            }
        }
    }

    /// Checks that a text is unchanged in memory, or outside.
    fn check(&mut self, texts: &mut Texts, place: TextLocation, id: u64) {
        if texts.must_read(place) {
            let number = texts.request(&[(place, text(id).len())]);
            let reply = self.pages.execute(texts.poll_request().expect("it was requested"));
            let TextReply::Read { number: replied, texts: read } = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(replied, number);
            let [Ok(read)] = &read[..] else { panic!("{read:?}") };
            assert_eq!(text_of(id, read), Some(&*text(id)), "text {id}");
            assert_eq!(text_of(id + 1, read), None);
            texts.keep(place, read.clone());
        }
        assert_eq!(texts.get(place), Some(&*text(id)), "text {id}");
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
fn churn(mut texts: Texts, pages: &mut SlowPages, kept_of_ten: u64) -> Texts {
    let mut places = BTreeMap::new();
    for id in 1..TEXTS {
        places.insert(id, texts.put(id, &[&text(id)]));
        let older = id / 2;
        if older % 10 >= kept_of_ten
            && let Some(place) = places.remove(&older)
        {
            texts.remove(place, text(older).len());
        }
        for (id, place, text) in pages.exchange(&mut texts) {
            if places.get(&id) == Some(&place) {
                places.insert(id, texts.put(id, &[&text]));
                texts.remove(place, text.len());
            }
        }
    }
    for (id, place) in &places {
        pages.check(&mut texts, *place, *id);
        texts.forget(*place);
    }
    texts
}

fn paged() -> Texts {
    let mut texts = Texts::default();
    texts.set_paging(Paging::default());
    texts
}

#[test]
fn texts_are_unchanged_in_memory_and_in_the_store() {
    for slow in [0, 1, 3] {
        let mut pages = SlowPages { slow, ..SlowPages::default() };
        let texts = churn(paged(), &mut pages, 9);
        assert!(pages.pages.bytes() > 30 * CHUNK_BYTES, "most texts are in the store");
        assert!(texts.memory_bytes() <= (40 + slow) * CHUNK_BYTES, "too much is in memory");
    }
    churn(Texts::default(), &mut SlowPages::default(), 9);
}

#[test]
fn removed_texts_free_their_room() {
    // A tenth of the older half remains.
    let is_live = |id: &u64| *id > TEXTS / 2 || id.is_multiple_of(10);
    let live: usize = (1..TEXTS).filter(is_live).map(|id| text(id).len()).sum();
    for slow in [0, 3] {
        let mut pages = SlowPages { slow, ..SlowPages::default() };
        let mut texts = paged();
        for _ in 0..3 {
            texts = churn(texts.cleared(), &mut pages, 1);
            let used = pages.pages.bytes();
            assert!(used < 3 * live, "{used} stored bytes for {live}");
        }
    }
    let texts = churn(Texts::default(), &mut SlowPages::default(), 1);
    assert!(texts.memory_bytes() < 3 * live);
}

/// Moving the texts of a chunk that is pinned frees nothing, so it is left alone.
#[test]
fn pinned_chunks_are_not_compacted() {
    let (mut pages, mut texts) = (SlowPages::default(), Texts::default());
    texts.set_paging(TINY);
    let text = [7; 100];
    let put = |id: u64| {
        let place = texts.put(id, &[&text]);
        pages.exchange(&mut texts);
        place
    };
    // Each chunk has two texts.
    let places: Vec<_> = (1..81).map(put).collect();
    let pinned: Vec<_> =
        places.iter().copied().step_by(2).filter(|at| texts.must_read(*at)).collect();
    for place in &pinned {
        texts.pin(*place);
    }
    for place in &places {
        texts.remove(*place, text.len());
    }
    for _ in 0..10 {
        assert_eq!(pages.exchange(&mut texts), []);
    }
    assert_eq!(pages.pages.texts_read, 0, "a pinned chunk was read");
    assert!(texts.has_stored());
    for place in &pinned {
        texts.unpin(*place);
    }
    assert!(!texts.has_stored());
}

#[test]
fn texts_stay_in_memory_when_the_store_is_full() {
    let mut pages = SlowPages { refused: usize::MAX, ..SlowPages::default() };
    assert!(churn(paged(), &mut pages, 9).memory_bytes() > 30 * CHUNK_BYTES);
}

#[test]
fn store_is_used_again_when_it_has_room() {
    let mut pages = SlowPages { refused: 20, ..SlowPages::default() };
    let texts = churn(paged(), &mut pages, 9);
    assert!(pages.pages.bytes() > 30 * CHUNK_BYTES, "most texts are in the store");
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
        steps in proptest::collection::vec(
            (0..3_u64, -1..2_i16, any::<bool>(), any::<bool>(), any::<u16>()),
            1..200,
        ),
        in_order in any::<bool>(),
    ) {
        let (mut keys, mut parked) = (Keys::default(), DormantEntries::default());
        let mut model: BTreeMap<u64, Admission> = BTreeMap::new();
        let mut ids: Vec<u64> = (1..=steps.len() as u64).collect();
        if !in_order {
            ids.reverse();
        }
        let job_of = |lane: u64| (lane > 0).then_some(PassId { number: lane, pass: 1 });
        for (id, (lane, prio, render, removes, pick)) in ids.into_iter().zip(steps) {
            let name: Key = format!("h{}.org", id % 3).into();
            let mut admitted = admission(id, &name, job_of(lane), prio);
            let render = render.then_some(Render::Yes);
            admitted.forwarded = with_render(&admitted.forwarded, render).into();
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
            let lanes = [Lane::Announced, Lane::Job(1), Lane::Job(2)];
            let lanes = lanes.into_iter().flat_map(|lane| [(false, lane), (true, lane)]);
            for (render, lane) in lanes {
                let of_lane = |admitted: &&Admission| {
                    let job = admitted.job.map_or(Lane::Announced, |job| Lane::Job(job.number));
                    (admitted.needs_render(), job) == (render, lane)
                        && admitted.key == *keys[key].name()
                };
                let mut expected: Vec<_> = model.values().filter(of_lane).cloned().collect();
                expected.sort_by_key(|admitted| (std::cmp::Reverse(admitted.prio), admitted.id));
                for admitted in expected {
                    let first = keys[key].dormant.first_of(render, lane).map(|(_, id)| id);
                    prop_assert_eq!(first, Some(admitted.id));
                    prop_assert!(!render || keys[key].has_rendered());
                    prop_assert!(parked.keys_of(lane).contains(&key));
                    prop_assert!(parked.any_of(lane, &keys[key]).is_some());
                    if let Lane::Job(job) = lane {
                        prop_assert_eq!(keys[key].dormant.job_from(render, job), Some(job));
                        prop_assert!(keys[key].has_waiting_of(job));
                    }
                    let glance = parked.find(admitted.id).unwrap();
                    parked.remove(glance, &mut keys[key]);
                }
                prop_assert_eq!(keys[key].dormant.first_of(render, lane), None);
                if let Lane::Job(job) = lane {
                    prop_assert_ne!(keys[key].dormant.job_from(render, job), Some(job));
                }
            }
            prop_assert!(keys[key].dormant.is_empty() && !keys[key].has_rendered());
        }
        prop_assert_eq!(parked.len(), 0);
    }
}

/// A page with many links, a snapshot in small parts while entries are released, added and brought
/// forward, and a restart.
#[test]
fn large_crawl_is_the_same_after_a_restart() {
    for (hosts, render) in [(1, "never"), (700, "never"), (1, "always"), (700, "always")] {
        snapshot_of_a_large_crawl(hosts, render);
    }
}

fn snapshot_of_a_large_crawl(hosts: usize, render: &str) {
    const LINKS: usize = 5000;
    let mut bench = Bench::new(&[("delay", "0")]);
    bench.group.set_paging(TINY);
    bench.join_rendering(A, 1, Some(1));
    bench.open("large", &[("scope", "any"), ("render", render)]);
    bench.publish("http://h0.org/ job=large");
    let url = |n: usize| format!("http://h{}.org/{n}", n % hosts);
    let links: Vec<String> = (0..LINKS).map(url).collect();
    let links: Vec<(&str, bool)> = links.iter().map(|url| (url.as_str(), false)).collect();
    let seed = bench.task();
    bench.ack(A, &seed.id, Outcome::Done, &links);
    let expected: BTreeSet<EntryId> =
        bench.group.state.dormant().iter().map(|glance| glance.id).collect();
    assert!(expected.len() > LINKS - 2, "nearly all are dormant: {}", expected.len());
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
        bench.drain();
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
    again.state.advance(bench.now);
    bench.pages.read_all(&mut bench.group);
    assert!(bench.pages.texts_read > LINKS, "texts are read for the snapshot and for releases");
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
    again.state.advance(bench.now);
    assert_eq!(difference(&again, &bench.group), None);
}

/// They are dormant, too.
#[test]
fn waiting_entries_that_need_a_browser_take_no_more_memory_than_others() {
    let [rendered, others] = ["render=yes", "same=size1"].map(|attribute| {
        let mut bench = Bench::new(&[]);
        for n in 0..1000 {
            bench.publish(&format!("http://h{}.org/{n} {attribute}", n % 50));
        }
        (bench.group.state.dormant().len(), bench.group.state.frontier().bytes())
    });
    assert_eq!(rendered, others);
    assert_eq!(rendered.0, 1000);
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
        assert_eq!(
            queue.dormant.first_of(false, Lane::Announced).map(|(_, first)| first),
            Some(id)
        );
        parked.remove(parked.find(id).unwrap(), queue);
    }
}
