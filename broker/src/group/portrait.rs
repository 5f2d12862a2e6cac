//! A dump of a group for comparisons. It does not depend on how the group came to its state, for
//! example on which entries are dormant or which id a key has in memory.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{MemberId, Seq, TopicName};

use crate::clock::Moment;
use crate::group::entry::{Entry, EntryId, JobNumber, JobRef};
use crate::group::key_queue::KeyState;
use crate::group::snapshot::Item;
use crate::group::timers::{Expiry, Wake};
use crate::group::{Group, GroupConfig, Totals};

/// The complete state that decides what a group does next, except random choices.
#[derive(Debug, PartialEq)]
struct Portrait {
    entries: BTreeMap<EntryId, Entry>,
    keys: BTreeMap<String, KeyPortrait>,
    jobs: Vec<JobPortrait>,
    met: BTreeMap<JobRef, BTreeSet<u64>>,
    unheld: BTreeMap<u64, Vec<EntryId>>,
    pinned: BTreeMap<MemberId, BTreeSet<EntryId>>,
    taken: BTreeMap<TopicName, Seq>,
    noted: BTreeSet<JobNumber>,
    schedules: BTreeMap<u128, String>,
    clock_times: String,
    dead: String,
    unsent: BTreeMap<u64, (&'static str, Box<str>)>,
    sent: BTreeMap<&'static str, Seq>,
    wakes: Vec<(Moment, String)>,
    expiries: Vec<(Moment, Expiry)>,
    is_paused: bool,
    totals: Totals,
    last_entry: EntryId,
    since: Option<u64>,
    config: GroupConfig,
}

/// Returns the first difference of two groups; `None` if they are equal.
pub(super) fn difference(left: &Group, right: &Group) -> Option<String> {
    /// Lines that are shown before and after the first difference.
    const SHOWN: usize = 12;
    let (left, right) = (portrait(left), portrait(right));
    if left == right {
        return None;
    }
    let (left, right) = (format!("{left:#?}"), format!("{right:#?}"));
    let at = left.lines().zip(right.lines()).position(|(left, right)| left != right);
    let shown = |text: &str| {
        let from = at.unwrap_or(0).saturating_sub(SHOWN);
        text.lines().skip(from).take(2 * SHOWN).collect::<Vec<_>>().join("\n")
    };
    Some(format!("{}\n======\n{}", shown(&left), shown(&right)))
}

/// Snapshot parts, entries that are not final, held entries, pinned entries.
type JobPortrait = (Vec<Item>, u64, u64, u64);

/// State, requests in flight, waiting entries, next entry, and timer.
type KeyPortrait = (Option<KeyState>, u32, usize, Option<EntryId>, Option<Moment>);

fn portrait(group: &Group) -> Portrait {
    let live = group.live.values().map(|live| live.entry.clone());
    let parked = group.parked.iter().map(|dormant| group.parked_entry(dormant));
    let entries = live.chain(parked).map(|entry| (entry.admitted.id, entry));
    let entries: BTreeMap<_, _> = entries.collect();
    let mut unheld: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, entry) in &entries {
        if let (None, Some(url)) = (entry.lease(), entry.admitted.url_key) {
            assert!(group.waiting_of(url).contains(id), "{id} is not found by its URL");
            unheld.entry(url.print()).or_default().push(*id);
        }
    }
    let keys = group.keys.ids().into_iter().map(|id| {
        let queue = &group.keys[id];
        let next = group.next_of(queue).map(|next| next.entry);
        let key = (queue.state(), queue.busy(), queue.waiting(), next, queue.timer);
        (queue.name().to_string(), key)
    });
    let jobs = group.jobs.iter().map(|job| {
        let mut items = Vec::new();
        job.items(&mut |item| items.push(item));
        items.sort_by_key(|item| format!("{item:?}"));
        (items, job.count(), job.held, job.pinned)
    });
    let wakes = group.wakes.iter().map(|(at, wake)| match wake {
        Wake::Due(id) => (*at, format!("entry {id}")),
        Wake::Key(key) => (*at, format!("key {}", group.keys[*key].name())),
    });
    let mut wakes: Vec<_> = wakes.collect();
    wakes.sort();
    Portrait {
        keys: keys.collect(),
        jobs: jobs.collect(),
        met: met(group, &entries),
        unheld,
        pinned: group.pinned.clone(),
        taken: group.taken.clone(),
        noted: group.noted.clone(),
        schedules: group.schedules.iter().map(|s| (s.url_key.0, format!("{s:?}"))).collect(),
        clock_times: format!("{:?}", group.clock_times().collect::<Vec<_>>()),
        dead: format!("{:?}", group.dead),
        unsent: group.unsent.clone(),
        sent: group.sent.clone(),
        wakes,
        expiries: group.expiries.iter().cloned().collect(),
        is_paused: group.is_paused,
        totals: group.totals,
        last_entry: group.last_entry,
        since: group.since,
        config: group.config.clone(),
        entries,
    }
}

/// Returns the URLs that each pass has seen, including those of dormant entries.
fn met(group: &Group, entries: &BTreeMap<EntryId, Entry>) -> BTreeMap<JobRef, BTreeSet<u64>> {
    let mut met: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for pass in group.seen.passes() {
        let sets = (0..).map_while(|set| group.seen.set(pass, set));
        met.entry(pass).or_default().extend(sets.flatten());
    }
    for admitted in entries.values().map(|entry| &entry.admitted) {
        if let (Some(pass), Some(url)) = (admitted.job, admitted.url_key) {
            met.entry(pass).or_default().insert(url.print());
        }
    }
    met
}
