//! The frontier: the entries that are not final, the keys behind which they wait, and the order in
//! which the keys release them.
//!
//! ```text
//!              dormant (a slot, perhaps with its text on disk)
//!   admit ──▶  or active ──▶ queue of its key ──▶ ready keys, by class ──▶ lease
//! ```
//!
//! [`Frontier`] owns the entries (dormant and active, with those that a member holds), the keys
//! with their rests, rules and queues, the order of release, the indexes by id and by URL, and the
//! timers of delays and rests. It reads [`Jobs`] and the settings, because they decide which key has its
//! turn ([`Turns`]), and [`Members`], because they decide which key can be served. It knows neither
//! records, topics nor schedules.

mod active_queue;
pub(crate) mod circuit;
pub(crate) mod dormant;
mod entry_changes;
pub(crate) mod entry_text;
mod id_index;
pub(crate) mod key_queue;
pub(crate) mod keys;
pub(crate) mod lane;
mod loading;
mod parts;
pub(crate) mod release_order;
pub(crate) mod rules;
pub(crate) mod runs;
#[cfg(test)]
mod tests;
pub mod texts;
mod turns;
mod url_index;

use hashbrown::HashMap;
use tidings_protocol::UrlKey;

use self::circuit::{Circuit, RequestEnd};
use self::dormant::{DormantAdmission, DormantEntries};
use self::entry_text::{DormantRef, WantedText};
use self::key_queue::KeyState;
use self::keys::{KeyId, Keys};
use self::lane::{Lane, lane_of};
use self::loading::LoadingKeys;
use self::parts::PartRequests;
use self::release_order::{Rank, ReadyClass, ReadyKeys};
pub(crate) use self::turns::{Turns, next_entry};
use crate::config::GroupConfig;
use crate::entry::{Admission, Entry, EntryId, EntryState, JobNumber, Key, PassId, RecordedRest};
use crate::jobs::Jobs;
use crate::leases::Members;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::timers::Timers;

/// Changes that depend on time alone. They happen before anything else is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// A delayed entry is due.
    Due(EntryId),
    /// A key has rested, or can be removed.
    Key(KeyId),
}

/// An active entry and the ids of its keys.
#[derive(Debug)]
pub(crate) struct ActiveEntry {
    /// The entry.
    pub(crate) entry: Entry,
    /// Its key.
    pub(crate) key: KeyId,
    /// The key of its `again` request.
    pub(crate) again_key: Option<KeyId>,
}

impl ActiveEntry {
    /// Returns the key of its next (or current) request.
    pub(crate) fn gate(&self) -> KeyId {
        self.again_key.unwrap_or(self.key)
    }
}

/// An entry that is not final.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnyEntry<'a> {
    Active(&'a ActiveEntry),
    Dormant(DormantRef),
}

/// The entries of a group that are not final, and their keys.
#[derive(Debug)]
pub(crate) struct Frontier {
    /// Active entries: held by a member, delayed, tried before or brought forward.
    active: HashMap<EntryId, Box<ActiveEntry>>,
    /// Sum of their memory costs.
    active_bytes: usize,
    /// The active entries that no member holds, by the fingerprint of their URL and sorted by id.
    /// An announcement brings these forward, together with the dormant ones.
    waiting_by_url: HashMap<u64, Vec<EntryId>>,
    /// Dormant entries, which only wait for their first release.
    dormant: DormantEntries,
    last_entry_id: EntryId,
    keys: Keys,
    /// Keys with waiting entries whose host is down.
    keys_down: usize,
    /// The order of release of the entries that any member may receive, and of those that need a
    /// browser. A key may be in both.
    ready: [ReadyKeys; 2],
    /// Free keys that are not listed as ready, because the text of their next entry is being read;
    /// for each order of release.
    loading: [LoadingKeys; 2],
    wakes: Timers<Wake>,
    /// Further requests of held entries.
    pub(crate) parts: PartRequests,
    rng: fastrand::Rng,
}

impl Frontier {
    /// Creates an empty frontier. `seed` seeds the random choices.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            active: HashMap::new(),
            active_bytes: 0,
            waiting_by_url: HashMap::new(),
            dormant: DormantEntries::default(),
            last_entry_id: 0,
            keys: Keys::default(),
            keys_down: 0,
            ready: [ReadyKeys::new(false), ReadyKeys::new(true)],
            loading: Default::default(),
            wakes: Timers::default(),
            parts: PartRequests::default(),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns an empty frontier that pages and defers as this one does, with room for about this
    /// many dormant entries and keys.
    pub(crate) fn cleared(&mut self, dormant: usize, keys: usize) -> Self {
        let mut new = Self::new(self.rng.u64(..));
        new.dormant = self.dormant.cleared();
        new.ready = self.ready.each_ref().map(ReadyKeys::cleared);
        new.dormant.reserve(dormant);
        new.keys.reserve(keys);
        new
    }

    /// A replay begins: what is faster to build at its end is deferred.
    pub(crate) fn begin_replay(&mut self) {
        self.dormant.defer_url_index();
        self.ready.iter_mut().for_each(ReadyKeys::defer);
    }

    /// A replay ends. The caller offers every key.
    pub(crate) fn end_replay(&mut self) {
        self.dormant.build_url_index();
        self.ready.iter_mut().for_each(ReadyKeys::start);
    }

    /// Builds the index of dormant entries by URL, if that was deferred.
    pub(crate) fn build_url_index(&mut self) {
        self.dormant.build_url_index();
    }

    /// Returns the next random number in 0..1 from the seed of the group.
    pub(crate) fn random(&mut self) -> f64 {
        self.rng.f64()
    }

    /// Counts the entries.
    pub(crate) fn len(&self) -> usize {
        self.active.len() + self.dormant.len()
    }

    /// Returns the approximate memory of entries and keys.
    pub(crate) fn bytes(&self) -> usize {
        self.active_bytes + self.dormant.bytes() + self.keys.bytes()
    }

    /// Returns the memory costs of the active entries.
    #[cfg(test)]
    pub(crate) fn active_bytes(&self) -> usize {
        self.active_bytes
    }

    /// Returns the id of the newest entry.
    pub(crate) fn last_id(&self) -> EntryId {
        self.last_entry_id
    }

    /// Returns the id of the next entry.
    pub(crate) fn next_id(&self) -> EntryId {
        self.last_entry_id + 1
    }

    /// No entry up to this one is new.
    pub(crate) fn note_id(&mut self, id: EntryId) {
        self.last_entry_id = self.last_entry_id.max(id);
    }

    /// Restores the id of the newest entry.
    pub(crate) fn restore_last_id(&mut self, id: EntryId) {
        self.last_entry_id = id;
    }

    /// Returns an active entry.
    pub(crate) fn find(&self, id: EntryId) -> Option<&ActiveEntry> {
        self.active.get(&id).map(|live| &**live)
    }

    /// Returns an entry that is active.
    pub(crate) fn get(&self, id: EntryId) -> &ActiveEntry {
        &self.active[&id]
    }

    /// Returns the circuit of the host of an active entry's next (or current) request, if that host
    /// is down.
    pub(crate) fn circuit_down(&self, id: EntryId) -> Option<&Circuit> {
        self.keys[self.get(id).gate()].circuit().filter(|circuit| circuit.is_down())
    }

    /// Counts the keys with waiting entries whose host is down.
    pub(crate) fn keys_down(&self) -> usize {
        self.keys_down
    }

    /// Returns all active entries, in no order.
    pub(crate) fn active(&self) -> impl Iterator<Item = &ActiveEntry> {
        self.active.values().map(|live| &**live)
    }

    /// Returns an entry, active or dormant.
    pub(crate) fn find_any(&self, id: EntryId) -> Option<AnyEntry<'_>> {
        let active = self.find(id).map(AnyEntry::Active);
        active.or_else(|| self.dormant.find(id).map(AnyEntry::Dormant))
    }

    /// Returns the entries with ids above `after`, sorted by their ids.
    pub(crate) fn entries_above(
        &self,
        after: EntryId,
    ) -> impl Iterator<Item = (EntryId, AnyEntry<'_>)> {
        self.dormant.above(after).map(|(id, dormant)| {
            (id, dormant.map_or_else(|| AnyEntry::Active(self.get(id)), AnyEntry::Dormant))
        })
    }

    /// Returns the ids of all active entries, sorted.
    pub(crate) fn active_ids(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.active.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the dormant entries.
    pub(crate) fn dormant(&self) -> &DormantEntries {
        &self.dormant
    }

    /// Returns the texts of dormant entries, and what a snapshot contains of them.
    pub(crate) fn texts_mut(&mut self) -> &mut DormantEntries {
        &mut self.dormant
    }

    /// Returns the keys.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the keys that can be served; with `render`, by a member with a browser.
    pub(crate) fn ready(&self, render: bool) -> &ReadyKeys {
        &self.ready[usize::from(render)]
    }

    /// Returns the key that is released next to one of the members, with the class of its next
    /// entry, and whether that needs a browser. The choice between entries that need one and others
    /// is random, so that both proceed. Of the lanes that are `skipped` in each order of release,
    /// only pinned entries and suspects are released.
    pub(crate) fn next_ready(
        &mut self,
        members: &Members,
        skipped: &[impl AsRef<[Lane]>; 2],
    ) -> Option<(KeyId, ReadyClass, bool)> {
        let next = |render: bool| {
            let order = usize::from(render);
            let (key, class) = self.ready[order].next(members, skipped[order].as_ref())?;
            Some((key, class, render))
        };
        if self.ready[1].is_empty() {
            next(false)
        } else {
            let first = self.rng.bool();
            next(first).or_else(|| next(!first))
        }
    }

    /// Returns the active entries of a URL that no member holds, by its fingerprint, sorted.
    pub(crate) fn waiting_of_url(&self, fingerprint: u64) -> &[EntryId] {
        self.waiting_by_url.get(&fingerprint).map_or(&[], Vec::as_slice)
    }

    /// Returns all waiting entries of a URL, sorted by id.
    pub(crate) fn waiting_entries(&self, url: UrlKey) -> Vec<EntryId> {
        let mut entries = self.waiting_of_url(url.fingerprint()).to_vec();
        entries.extend(self.dormant.of_url(url).map(|dormant| dormant.id));
        entries.sort_unstable();
        entries
    }

    /// Returns the due time of an entry that is not due yet.
    pub(crate) fn pending_due(&self, id: EntryId) -> Option<Moment> {
        let entry = &self.find(id)?.entry;
        (entry.state == EntryState::Delayed).then_some(entry.admitted.due)
    }

    /// Returns when time alone changes something.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.wakes.next()
    }

    /// Returns the next change that is due at `now`.
    pub(crate) fn pop_wake(&mut self, now: Moment) -> Option<Wake> {
        let wake = self.wakes.pop(now)?;
        if let Wake::Key(key) = wake {
            self.keys[key].timer = None;
        }
        Some(wake)
    }

    /// Returns the timers, the earliest first.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn wakes(&self) -> impl Iterator<Item = &(Moment, Wake)> {
        self.wakes.iter()
    }
}

/// What happens to entries.
impl Frontier {
    /// Stores dormant entries. Returns the keys that the caller must refresh.
    pub(crate) fn store_dormant(&mut self, some: &[DormantAdmission<'_>]) -> Vec<KeyId> {
        self.dormant.insert_all(some, &mut self.keys)
    }

    /// Stores an active entry that no member holds.
    pub(crate) fn insert(&mut self, entry: Entry, jobs: &mut Jobs) {
        let key = self.keys.intern(&entry.admitted.key);
        self.insert_for_key(key, entry, jobs);
    }

    /// Stores an active entry of a known key. No member holds the entry.
    pub(crate) fn insert_for_key(&mut self, key: KeyId, entry: Entry, jobs: &mut Jobs) {
        self.index_waiting(entry.admitted.url_key, entry.admitted.id);
        self.dormant.index_active(entry.admitted.id);
        self.insert_unindexed(key, entry, jobs);
    }

    /// Stores an active entry without indexing it by URL: it is released at once, or the caller
    /// indexes it. It is indexed by its id.
    fn insert_unindexed(&mut self, key: KeyId, entry: Entry, jobs: &mut Jobs) {
        let admitted = &entry.admitted;
        let id = admitted.id;
        if let (Some(pass), Some(url)) = (admitted.job, admitted.url_key) {
            jobs.mark_seen(pass, url.fingerprint());
        }
        self.active_bytes += admitted.bytes();
        self.keys[key].add_reference();
        let again = entry.again.as_ref().map(|again| self.keys.intern(&again.key));
        if let Some(again) = again {
            self.keys[again].add_reference();
        }
        self.active.insert(id, Box::new(ActiveEntry { entry, key, again_key: again }));
    }

    /// Removes an active entry. The caller releases its keys.
    pub(crate) fn remove(&mut self, id: EntryId) -> Box<ActiveEntry> {
        let live = self.active.remove(&id).expect("an entry that ends is active");
        self.active_bytes -= live.entry.admitted.bytes();
        self.dormant.unindex_active(id);
        live
    }

    /// An entry that was removed does not need this key any more. The caller refreshes it.
    pub(crate) fn release_key(&mut self, key: KeyId) {
        self.keys[key].drop_reference();
    }

    /// Turns a dormant entry into an active one that is in no queue and not indexed by URL. The
    /// caller refreshes its key.
    pub(crate) fn activate(&mut self, dormant: DormantRef, jobs: &mut Jobs) {
        let queue = &mut self.keys[dormant.key];
        let job = dormant.job();
        let pass = job.and_then(|job| jobs.activate(job, dormant.id, queue.name()));
        let admission = self.dormant.take(dormant, queue, pass);
        self.insert_unindexed(dormant.key, Entry::new(admission), jobs);
    }

    /// Removes a dormant entry. The caller refreshes its key.
    pub(crate) fn remove_dormant(&mut self, dormant: DormantRef) {
        self.dormant.remove(dormant, &mut self.keys[dormant.key]);
    }

    /// Returns a dormant entry as it was admitted.
    pub(crate) fn read_dormant(&self, dormant: DormantRef, job: Option<PassId>) -> Admission {
        self.dormant.read(dormant, &self.keys[dormant.key], job)
    }

    /// Removes an active entry that no member holds from its queue or its timer. Returns the key
    /// that the caller must refresh.
    pub(crate) fn dequeue(&mut self, id: EntryId) -> KeyId {
        let live = self.active.get_mut(&id).expect("an entry that no member holds is active");
        let (entry, gate) = (&mut live.entry, live.again_key.unwrap_or(live.key));
        match entry.state {
            EntryState::Delayed => self.wakes.cancel(entry.admitted.due, Wake::Due(id)),
            EntryState::Waiting => {
                let admitted = &entry.admitted;
                let render = admitted.needs_render();
                self.keys[gate].remove(id, render, lane_of(admitted), admitted.prio);
                entry.state = EntryState::Delayed;
            }
            EntryState::Held(_) => unreachable!("a held entry is in no queue"),
        }
        gate
    }

    /// Queues an entry that is due, or sets a timer for it. Returns the key that the caller must
    /// refresh, and whether the entry was queued; `None` if it is held or queued already.
    pub(crate) fn enqueue(&mut self, id: EntryId, now: Moment) -> Option<(KeyId, bool)> {
        let live = self.active.get_mut(&id)?;
        let gate = live.gate();
        let entry = &mut live.entry;
        if entry.lease().is_some() || entry.state == EntryState::Waiting {
            return None;
        }
        if entry.admitted.due > now && !mutants::is(Mutant::BeforeDue) {
            self.wakes.set(entry.admitted.due, Wake::Due(id));
            // Refreshing keeps the key from being removed until then.
            return Some((gate, false));
        }
        entry.state = EntryState::Waiting;
        // A queued entry no longer needs its due time.
        entry.admitted.due = Moment(0);
        let (lane, prio) = (lane_of(&entry.admitted), entry.admitted.prio);
        let render = entry.admitted.needs_render();
        let queue = &mut self.keys[gate];
        if goes_to_head(entry) {
            queue.push_head(id, render, lane, entry.again.is_some());
        } else {
            queue.push(id, render, lane, prio);
        }
        Some((gate, true))
    }

    /// An entry without a lease is found by its URL from here on.
    pub(crate) fn index_waiting(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url {
            let entries = self.waiting_by_url.entry(url.fingerprint()).or_default();
            if let Err(at) = entries.binary_search(&id) {
                entries.insert(at, id);
            }
        }
    }

    /// An entry is not found by its URL any more.
    pub(crate) fn unindex_waiting(&mut self, url: Option<UrlKey>, id: EntryId) {
        if let Some(url) = url
            && let Some(entries) = self.waiting_by_url.get_mut(&url.fingerprint())
        {
            entries.retain(|entry| *entry != id);
            if entries.is_empty() {
                self.waiting_by_url.remove(&url.fingerprint());
            }
        }
    }

    /// Sorts the entries of a snapshot that came out of order.
    pub(crate) fn sort_runs(&mut self) {
        self.dormant.sort_runs(&mut self.keys);
    }
}

/// What happens to keys.
impl Frontier {
    /// Restores a key of a snapshot.
    pub(crate) fn restore_key(
        &mut self,
        name: &Key,
        state: KeyState,
        config: &GroupConfig,
    ) -> KeyId {
        let key = self.keys.intern(name);
        let queue = &mut self.keys[key];
        queue.restore(state, queue.delay_ms(config));
        key
    }

    /// Restores what a key of a snapshot remembers of requests without an answer.
    pub(crate) fn restore_circuit(&mut self, name: &Key, circuit: Circuit) {
        let key = self.keys.intern(name);
        self.keys[key].restore_circuit(circuit);
    }

    /// Requests of a key without an answer do not count any more. The caller refreshes the key.
    pub(crate) fn reset_circuit(&mut self, key: KeyId) {
        self.keys[key].reset_circuit();
    }

    /// A restored task is in flight with a request that has not ended.
    pub(crate) fn restore_in_flight(&mut self, id: EntryId) {
        let gate = self.active[&id].gate();
        self.keys[gate].add_in_flight();
    }

    /// Restarts the rest of a key, because the end of its last request is not known reliably.
    pub(crate) fn restart_rest(&mut self, key: KeyId, now: Moment, config: &GroupConfig) {
        let queue = &mut self.keys[key];
        queue.restart_rest(now, queue.delay_ms(config));
    }

    /// Applies the rest that a worker requests for the key of a task. Returns the key, which the
    /// caller must refresh.
    pub(crate) fn apply_rest(&mut self, id: EntryId, rest: RecordedRest, now: Moment) -> KeyId {
        let gate = self.active[&id].gate();
        self.keys[gate].apply_rest(now, rest);
        gate
    }

    /// Ends the request of a task at its key, which rests if one was made. If the worker had
    /// already reported the end of the request, only the requested rest is applied. Returns the
    /// key, which the caller must refresh.
    pub(crate) fn end_request(
        &mut self,
        id: EntryId,
        rest: RecordedRest,
        end: RequestEnd,
        now: Moment,
        config: &GroupConfig,
    ) -> KeyId {
        let live = &self.active[&id];
        let gate = live.gate();
        let over = live.entry.lease().is_some_and(|lease| lease.request_over);
        self.parts.end(id);
        let queue = &mut self.keys[gate];
        match (over, end) {
            (true, _) => queue.apply_rest(now, rest),
            (false, RequestEnd::NotMade) => {
                queue.request_not_made();
                queue.apply_rest(now, rest);
                queue.not_requested(id, now);
            }
            (false, _) => queue.request_ended(now, queue.delay_ms(config), rest),
        }
        match end {
            RequestEnd::Answered => queue.close_circuit(),
            RequestEnd::Unanswered => queue.unanswered(id, self.last_entry_id, now),
            RequestEnd::NotMade | RequestEnd::Unknown => {}
        }
        gate
    }

    /// Blocks or unblocks all releases of a job.
    pub(crate) fn block(&mut self, job: JobNumber, blocked: bool) {
        self.ready.iter_mut().for_each(|ready| ready.block(job, blocked));
    }

    /// Takes a key out of the ready ones until the text of its next entry was read.
    pub(crate) fn begin_loading(
        &mut self,
        key: KeyId,
        (lane, rank): (Lane, Rank),
        dormant: DormantRef,
    ) -> WantedText {
        let order = usize::from(dormant.needs_render());
        self.ready[order].set_class(key, None, &mut self.rng);
        self.loading[order].begin(key, dormant.id, lane, rank);
        self.dormant.wanted(dormant)
    }

    /// Returns the keys that wait until their next entry is read; with `render`, that which needs a
    /// browser.
    pub(crate) fn loading(&self, render: bool) -> &LoadingKeys {
        &self.loading[usize::from(render)]
    }

    /// The text of an entry was read. Returns whether its key waited for that.
    pub(crate) fn end_loading(&mut self, dormant: DormantRef) -> bool {
        let loading = &mut self.loading[usize::from(dormant.needs_render())];
        let waits = loading.is_of(dormant.key, dormant.id);
        if waits {
            loading.end(dormant.key);
        }
        waits
    }
}

/// Reports whether an entry goes to the head of its key's queue: the target of a redirect, and the
/// next request of a task.
fn goes_to_head(entry: &Entry) -> bool {
    entry.again.is_some() || (entry.admitted.redirect && entry.releases == 0)
}
