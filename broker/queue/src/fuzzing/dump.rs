//! A dump of a group for comparisons. It does not depend on how the group came to its state, for
//! example on which entries are dormant or which id a key has in memory.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{MemberId, Seq, TopicName};

use crate::entry::{Entry, EntryId, EntryState, JobNumber, PassId};
use crate::frontier::circuit::Circuit;
use crate::frontier::key_queue::KeyState;
use crate::frontier::rules::KeyRule;
use crate::frontier::{Wake, next_entry};
use crate::jobs::JobTimer;
use crate::moment::Moment;
use crate::record::snapshot::{SnapshotItem, items_of_job};
use crate::state::GroupTotals;
use crate::unpublished::UnpublishedEvents;
use crate::{Group, GroupConfig};

/// The complete state that decides what a group does next, except random choices.
#[derive(Debug, PartialEq)]
struct GroupDump {
    entries: BTreeMap<EntryId, Entry>,
    keys: BTreeMap<String, KeyDump>,
    jobs: Vec<JobDump>,
    seen: BTreeMap<PassId, BTreeSet<u64>>,
    waiting_by_url: BTreeMap<u64, Vec<EntryId>>,
    pinned: BTreeMap<MemberId, BTreeSet<EntryId>>,
    consumed: BTreeMap<TopicName, Seq>,
    completion_pending: Vec<JobNumber>,
    schedules: BTreeMap<u128, String>,
    wall_clock: String,
    dead_letters: String,
    drained: BTreeSet<MemberId>,
    rules: String,
    unpublished: UnpublishedEvents,
    published: BTreeMap<&'static str, Seq>,
    wakes: Vec<(Moment, String)>,
    lease_timers: Vec<(Moment, EntryId)>,
    job_timers: Vec<(Moment, JobTimer)>,
    schedule_timers: BTreeSet<(Moment, u64)>,
    is_paused: bool,
    totals: GroupTotals,
    last_entry_id: EntryId,
    since: Option<u64>,
    config: GroupConfig,
}

/// Returns the first difference of two groups; `None` if they are equal.
pub(crate) fn difference(left: &Group, right: &Group) -> Option<String> {
    /// Lines that are shown before and after the first difference.
    const SHOWN: usize = 12;
    let (left, right) = (dump(left), dump(right));
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
type JobDump = (Vec<SnapshotItem>, u64, u64, u64);

/// State, circuit, requests in flight, waiting entries, next entries, timer, and rule.
type KeyDump = (
    Option<KeyState>,
    Option<Circuit>,
    u32,
    usize,
    [Option<EntryId>; 2],
    Option<Moment>,
    Option<KeyRule>,
);

fn dump(group: &Group) -> GroupDump {
    let live = group.state.frontier().active().map(|live| {
        let mut entry = live.entry.clone();
        if let EntryState::Held(lease) = &mut entry.state {
            // Snapshots lack it.
            lease.began_at = Moment(0);
        }
        entry
    });
    let parked = group.state.dormant().iter().map(|dormant| group.state.dormant_entry(dormant));
    let entries = live.chain(parked).map(|entry| (entry.admitted.id, entry));
    let entries: BTreeMap<_, _> = entries.collect();
    let mut unheld: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, entry) in &entries {
        if let (None, Some(url)) = (entry.lease(), entry.admitted.url_key) {
            assert!(
                group.state.frontier().waiting_entries(url).contains(id),
                "{id} is not found by its URL"
            );
            unheld.entry(url.fingerprint()).or_default().push(*id);
        }
    }
    let keys = group.state.frontier().keys().ids().into_iter().map(|id| {
        let queue = &group.state.frontier().keys()[id];
        let next = [false, true]
            .map(|render| next_entry(queue, render, group.state.jobs()).map(|next| next.entry));
        let (state, circuit) = (queue.state(), queue.circuit().copied());
        let (timer, rule) = (queue.timer(), queue.rule().cloned());
        let key = (state, circuit, queue.in_flight(), queue.waiting(), next, timer, rule);
        (queue.name().to_string(), key)
    });
    let jobs = group.state.jobs().iter().map(|job| {
        let mut items = Vec::new();
        items_of_job(job, &mut |item| items.push(item));
        items.sort_by_key(|item| format!("{item:?}"));
        (items, job.unfinished_count(), job.held, job.pinned)
    });
    let wakes = group.state.frontier().wakes().map(|(at, wake)| match wake {
        Wake::Due(id) => (*at, format!("entry {id}")),
        Wake::Key(key) => (*at, format!("key {}", group.state.frontier().keys()[*key].name())),
    });
    let mut wakes: Vec<_> = wakes.collect();
    wakes.sort();
    GroupDump {
        keys: keys.collect(),
        jobs: jobs.collect(),
        seen: seen_urls(group, &entries),
        waiting_by_url: unheld,
        pinned: group.state.leases().pins().clone(),
        consumed: group.state.consumed().clone(),
        completion_pending: group.state.jobs().completion_pending(),
        schedules: group
            .state
            .schedules()
            .iter()
            .map(|s| (s.url_key.0, format!("{s:?}")))
            .collect(),
        wall_clock: format!("{:?}", group.state.wall_clock_dues().collect::<Vec<_>>()),
        drained: group
            .state
            .leases()
            .members()
            .iter()
            .filter(|(_, member)| member.is_drained())
            .map(|(id, _)| id)
            .collect(),
        rules: format!("{:?}", group.state.frontier().rules()),
        dead_letters: format!("{:?}", group.state.dead_letters()),
        unpublished: group.state.unpublished().clone(),
        published: group.state.published().clone(),
        wakes,
        lease_timers: group.state.leases().expiries().collect(),
        job_timers: group.state.jobs().timers().collect(),
        schedule_timers: schedule_timers_of(group),
        is_paused: group.state.is_paused(),
        totals: group.state.totals(),
        last_entry_id: group.state.frontier().last_id(),
        since: group.state.since(),
        config: group.state.config().clone(),
        entries,
    }
}

/// Returns the timers of schedules, with those that are due and wait for a text.
fn schedule_timers_of(group: &Group) -> BTreeSet<(Moment, u64)> {
    let held = group.reads.held_schedules();
    let held =
        held.filter_map(|url| Some((group.state.schedules().find(url)?.due, url.fingerprint())));
    group.state.schedules().timers().chain(held).collect()
}

/// Returns the URLs that each pass has seen, including those of dormant entries.
fn seen_urls(group: &Group, entries: &BTreeMap<EntryId, Entry>) -> BTreeMap<PassId, BTreeSet<u64>> {
    let mut met: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for pass in group.state.jobs().seen_passes() {
        let sets = (0..).map_while(|set| group.state.jobs().seen_set(pass, set));
        met.entry(pass).or_default().extend(sets.flatten());
    }
    for admitted in entries.values().map(|entry| &entry.admitted) {
        if let (Some(pass), Some(url)) = (admitted.job, admitted.url_key) {
            met.entry(pass).or_default().insert(url.fingerprint());
        }
    }
    met
}
