//! Dormant entries: those that only wait for their first release. In a large crawl, most entries
//! are dormant. Each takes a slot here, and its text may be paged out to disk. It becomes an active
//! [`Entry`](crate::entry::Entry) as soon as something happens to it.

use std::hint::black_box;

use hashbrown::{HashMap, HashSet};
use tidings_protocol::UrlKey;

use super::entry_text::{self, DormantRef, EntryText, WantedText};
use super::id_index::IdIndex;
use super::key_queue::KeyQueue;
use super::keys::{FIND_MANY_MAX, KeyId, Keys};
use super::lane::Lane;
use super::runs::{NO_SLOT, PackedLane, SlotId};
#[cfg(test)]
use super::texts::StoredText;
use super::texts::{MovedText, Paging, TextError, TextLocation, TextRequest, Texts};
use super::url_index::UrlIndex;
use crate::entry::{Admission, EntryId, PassId};
use crate::moment::Moment;

/// Approximate memory of an entry without its text, with its places in the indexes.
pub(crate) const SLOT_BYTES: usize = 72;

/// Most entries for which memory is reserved at once.
const RESERVED_MAX: usize = 20_000_000;

/// An entry to store, and the lane that [`DormantEntries::lane_for`] returns for it.
pub(crate) type DormantAdmission<'a> = (&'a Admission, PackedLane);

/// A dormant entry, or a free slot.
#[derive(Debug)]
struct DormantSlot {
    id: EntryId,
    /// The fingerprint of its URL, see [`UrlKey::fingerprint`]; 0 if it has none.
    url_fingerprint: u64,
    text: TextLocation,
    /// Bytes of the text.
    text_len: u32,
    key: KeyId,
    lane: PackedLane,
    /// The previous and the next entry of the same key, lane and priority: `previous` has a smaller
    /// id than `next` once the runs are sorted. In a free slot, `next` is the next free slot.
    previous: SlotId,
    next: SlotId,
    /// Number of the last snapshot that contains the entry, or that had begun before it came.
    snapshot: u32,
}

/// All dormant entries.
#[derive(Debug, Default)]
pub(crate) struct DormantEntries {
    slots: Vec<DormantSlot>,
    /// The first free slot.
    first_free: Option<SlotId>,
    /// The number of used slots.
    len: usize,
    /// The slots of the entries. An active entry has [`NO_SLOT`], so that a walk over all entries
    /// meets it in its place.
    by_id: IdIndex,
    by_url: UrlIndex,
    /// For each lane, the keys with dormant entries of it.
    keys: HashMap<PackedLane, HashSet<KeyId>>,
    texts: Texts,
    /// Number of the last snapshot that began.
    snapshot: u32,
    /// Keys with runs that may be out of order.
    unsorted: Vec<KeyId>,
}

impl DormantEntries {
    /// Pages texts from now on, see [`texts`](super::texts).
    pub(crate) fn set_paging(&mut self, paging: Paging) {
        self.texts.set_paging(paging);
    }

    /// Returns an empty set with the same store.
    pub(super) fn cleared(&mut self) -> Self {
        let by_url = UrlIndex::new(self.by_url.is_deferred());
        Self { texts: self.texts.cleared(), by_url, ..Self::default() }
    }

    /// Reserves memory for `count` entries, within limits, because the number may be damaged.
    pub(super) fn reserve(&mut self, count: usize) {
        self.slots.reserve(count.min(RESERVED_MAX));
    }

    /// Defers the index by URL until [`build_url_index`](Self::build_url_index). Called while no
    /// entry is stored.
    pub(super) fn defer_url_index(&mut self) {
        self.by_url = UrlIndex::new(true);
    }

    /// Builds the deferred index by URL.
    pub(super) fn build_url_index(&mut self) {
        let slots =
            (0..).zip(&self.slots).filter(|(_, slot)| slot.id != 0 && slot.url_fingerprint != 0);
        let slots = slots.map(|(number, slot)| (number, slot.url_fingerprint));
        self.by_url.build(self.len, slots, |slot| slot_at(&self.slots, slot).url_fingerprint);
    }

    /// Counts the entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns their approximate memory.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * SLOT_BYTES + self.texts.memory_bytes()
    }

    /// Returns the lane in which an entry can be dormant. It must be due, be no redirect, and have
    /// no job if it was announced.
    pub(crate) fn lane_for(admission: &Admission, lane: Lane, now: Moment) -> Option<PackedLane> {
        let is_special = admission.redirect || (admission.announced && admission.job.is_some());
        if is_special || admission.due > now {
            return None;
        }
        PackedLane::new(lane, admission.needs_render())
    }

    /// Stores entries, each at the end of the run of its key. Their ids must exceed those in their
    /// lanes, or the runs must be sorted before the next release. Returns the keys of those that
    /// are first of their lane and priority.
    ///
    /// Each entry touches several places in memory. Each step is done for the whole batch before
    /// the next step, so that the processor loads several places at a time.
    pub(super) fn insert_all(
        &mut self,
        some: &[DormantAdmission<'_>],
        keys: &mut Keys,
    ) -> Vec<KeyId> {
        let mut first = Vec::new();
        for some in some.chunks(FIND_MANY_MAX) {
            let (mut found, mut slots) = ([None; FIND_MANY_MAX], [NO_SLOT; FIND_MANY_MAX]);
            let found = &mut found[..some.len()];
            keys.find_many(some.iter().map(|(admission, _)| &*admission.key), found);
            for (((admission, lane), key), slot) in some.iter().zip(found).zip(&mut slots) {
                let key = key.unwrap_or_else(|| keys.intern(&admission.key));
                *slot = self.fill_slot(admission, *lane, key);
            }
            let slots = &slots[..some.len()];
            for (slot, (admission, _)) in slots.iter().zip(some) {
                let key = slot_at(&self.slots, *slot).key;
                if self.append(*slot, admission.prio, &mut keys[key]) {
                    first.push(key);
                }
            }
            self.index(slots);
        }
        first
    }

    /// Fills a slot, without indexing it.
    fn fill_slot(&mut self, admission: &Admission, lane: PackedLane, key: KeyId) -> SlotId {
        let (text, text_len) = self.put_text(admission);
        let (id, url) = (admission.id, admission.url_key.map_or(0, UrlKey::fingerprint));
        let (before, after, snapshot) = (NO_SLOT, NO_SLOT, self.snapshot);
        let parked = DormantSlot {
            id,
            url_fingerprint: url,
            text,
            text_len,
            key,
            lane,
            previous: before,
            next: after,
            snapshot,
        };
        if let Some(free) = self.first_free {
            let slot = &mut self.slots[free as usize];
            self.first_free = (slot.next != NO_SLOT).then_some(slot.next);
            *slot = parked;
            return free;
        }
        self.slots.push(parked);
        SlotId::try_from(self.slots.len() - 1).expect("slots have 32-bit numbers")
    }

    /// Appends an entry to its run. Returns whether it is the first there.
    fn append(&mut self, number: SlotId, prio: i16, queue: &mut KeyQueue) -> bool {
        let DormantSlot { id, key, lane, .. } = *slot_at(&self.slots, number);
        let Some(before) = queue.dormant.append(lane, prio, id, number) else {
            self.keys.entry(lane).or_default().insert(key);
            return true;
        };
        self.slots[number as usize].previous = before;
        let before = &mut self.slots[before as usize];
        before.next = number;
        if before.id > id && self.unsorted.last() != Some(&key) {
            self.unsorted.push(key);
        }
        false
    }

    /// Indexes entries by id and URL.
    fn index(&mut self, some: &[SlotId]) {
        let Self { slots, by_id, by_url, .. } = self;
        self.len += some.len();
        for slot in some {
            by_id.insert(slot_at(slots, *slot).id, *slot);
        }
        for slot in some {
            if slot_at(slots, *slot).url_fingerprint != 0 {
                by_url.insert(*slot, |slot| slot_at(slots, slot).url_fingerprint);
            }
        }
    }

    /// Removes an entry that becomes active, and returns it as it was admitted. `job` is the job of
    /// its lane, with its pass.
    pub(super) fn take(
        &mut self,
        dormant: DormantRef,
        queue: &mut KeyQueue,
        job: Option<PassId>,
    ) -> Admission {
        let admission = self.read(dormant, queue, job);
        self.free_slot(dormant, queue);
        self.by_id.set(dormant.id, NO_SLOT);
        admission
    }

    /// Indexes an entry that was never dormant.
    pub(super) fn index_active(&mut self, id: EntryId) {
        self.by_id.insert(id, NO_SLOT);
    }

    /// An active entry has ended.
    pub(super) fn unindex_active(&mut self, id: EntryId) {
        self.by_id.remove(id);
    }

    /// Returns an entry as it was admitted, except that its due time is lost. Its text must be in
    /// memory.
    pub(crate) fn read(
        &self,
        dormant: DormantRef,
        queue: &KeyQueue,
        job: Option<PassId>,
    ) -> Admission {
        self.stored(dormant).admission(dormant, queue.name().clone(), job)
    }

    fn stored(&self, dormant: DormantRef) -> EntryText<'_> {
        let text = self.texts.get(slot_at(&self.slots, dormant.slot).text);
        let text = text.expect("a text is read before its entry is used");
        EntryText::parse(text).expect("texts in memory are whole")
    }

    /// Reports whether any text may have to be read before its entry is used.
    pub(crate) fn has_stored_texts(&self) -> bool {
        self.texts.has_stored()
    }

    /// Reports whether the text of an entry must be read before the entry is used.
    pub(crate) fn must_read(&self, dormant: DormantRef) -> bool {
        self.texts.must_read(slot_at(&self.slots, dormant.slot).text)
    }

    /// Returns the length of what is stored of an entry: its text, and some bytes more.
    pub(crate) fn text_len(&self, dormant: DormantRef) -> usize {
        slot_at(&self.slots, dormant.slot).text_len as usize
    }

    /// Returns where the text of an entry is now.
    pub(crate) fn wanted(&self, dormant: DormantRef) -> WantedText {
        let DormantSlot { text, text_len, .. } = *slot_at(&self.slots, dormant.slot);
        WantedText { dormant, place: text, len: text_len as usize }
    }

    /// Requests texts that must be read. Returns the number of the request.
    pub(crate) fn request_texts(&mut self, wanted: &[WantedText]) -> u64 {
        let texts: Vec<_> = wanted.iter().map(|wanted| (wanted.place, wanted.len)).collect();
        self.texts.request(&texts)
    }

    /// Returns where a text that must be read is stored.
    #[cfg(test)]
    pub(crate) fn stored_text(&self, wanted: WantedText) -> StoredText {
        self.texts.stored(wanted.place, wanted.len)
    }

    /// Takes a text that was read. If its entry has ended or the text has moved, it is not needed.
    pub(crate) fn take_text(
        &mut self,
        wanted: WantedText,
        text: Result<Vec<u8>, TextError>,
    ) -> Result<(), TextError> {
        let WantedText { dormant, place, .. } = wanted;
        let slot = slot_at(&self.slots, dormant.slot);
        if slot.id != dormant.id || slot.text != place || !self.must_read(dormant) {
            return Ok(());
        }
        let text = text?;
        wanted.parse(&text)?;
        self.texts.keep(place, text);
        Ok(())
    }

    /// Drops texts that were read, above a limit. To be called when no need of texts is partly met.
    pub(crate) fn trim_read(&mut self) {
        self.texts.trim_read();
    }

    /// Frees the memory of a text that was read; it remains in its chunk.
    pub(crate) fn forget_text(&mut self, dormant: DormantRef) {
        self.texts.forget(slot_at(&self.slots, dormant.slot).text);
    }

    /// Keeps a text readable until [`unpin_text`](Self::unpin_text), even if its entry ends.
    pub(crate) fn pin_text(&mut self, wanted: WantedText) {
        self.texts.pin(wanted.place);
    }

    /// Ends a pin.
    pub(crate) fn unpin_text(&mut self, wanted: WantedText) {
        self.texts.unpin(wanted.place);
    }

    /// Returns the next request to the owner.
    pub(crate) fn poll_request(&mut self) -> Option<TextRequest> {
        self.texts.poll_request()
    }

    /// Handles the end of a write.
    pub(crate) fn text_written(&mut self, chunk: u32, is_written: bool) {
        self.texts.written(chunk, is_written);
    }

    /// Reports whether writing is so far behind that the group should admit nothing for now.
    pub(crate) fn is_behind(&self) -> bool {
        self.texts.is_behind()
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, dormant: DormantRef, queue: &mut KeyQueue) {
        self.free_slot(dormant, queue);
        self.by_id.remove(dormant.id);
    }

    fn free_slot(&mut self, dormant: DormantRef, queue: &mut KeyQueue) {
        let DormantRef { slot: number, url_fingerprint: url, lane, key, .. } = dormant;
        let DormantSlot { previous: before, next: after, text, text_len, .. } =
            self.slots[number as usize];
        let next = (after != NO_SLOT).then(|| (after, self.slots[after as usize].id));
        queue.dormant.remove((lane, number), before, next);
        if before != NO_SLOT {
            self.slots[before as usize].next = after;
        }
        if after != NO_SLOT {
            self.slots[after as usize].previous = before;
        }
        if !queue.dormant.has_lane(lane)
            && let Some(keys) = self.keys.get_mut(&lane)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.keys.remove(&lane);
            }
        }
        self.texts.remove(text, text_len as usize);
        self.len -= 1;
        if url != 0 {
            self.by_url.remove(url, number);
        }
        self.slots[number as usize].next = self.first_free.replace(number).unwrap_or(NO_SLOT);
        self.slots[number as usize].id = 0;
    }

    /// Returns an entry by its id.
    pub(crate) fn find(&self, id: EntryId) -> Option<DormantRef> {
        self.by_id.find(id).and_then(|slot| self.used_slot(slot))
    }

    /// Returns the ids of all entries above `after`, sorted; `None` stands for an active one.
    pub(super) fn above(
        &self,
        after: EntryId,
    ) -> impl Iterator<Item = (EntryId, Option<DormantRef>)> {
        self.by_id.above(after).map(|(id, slot)| (id, self.used_slot(slot)))
    }

    /// Returns the text of an entry, which must be in memory: its URL, or its payload.
    pub(crate) fn text(&self, dormant: DormantRef) -> &str {
        self.stored(dormant).text
    }

    /// Returns the entries of a URL, in no order.
    pub(crate) fn of_url(&self, url: UrlKey) -> impl Iterator<Item = DormantRef> {
        self.of_fingerprint(url.fingerprint())
    }

    /// Returns the entries of the URL with this fingerprint, in no order.
    pub(crate) fn of_fingerprint(&self, url: u64) -> impl Iterator<Item = DormantRef> {
        let alike = self.by_url.find(url).map(|slot| self.dormant_ref(slot));
        alike.filter(move |dormant| dormant.url_fingerprint == url)
    }

    /// Returns all entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = DormantRef> {
        (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.id != 0)
            .map(|(slot, _)| self.dormant_ref(slot))
    }

    /// Returns the keys with dormant entries of a lane, sorted.
    pub(crate) fn keys_of(&self, lane: Lane) -> Vec<KeyId> {
        let keys = PackedLane::both(lane).filter_map(|lane| self.keys.get(&lane));
        let mut keys: Vec<KeyId> = keys.flatten().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns any dormant entry of a lane and key.
    pub(crate) fn any_of(&self, lane: Lane, queue: &KeyQueue) -> Option<DormantRef> {
        let slot = PackedLane::both(lane).find_map(|lane| queue.dormant.first_slot_of(lane))?;
        Some(self.dormant_ref(slot))
    }

    /// Returns any dormant entry of a key.
    pub(crate) fn any_of_key(&self, queue: &KeyQueue) -> Option<DormantRef> {
        queue.dormant.any_run().map(|run| self.dormant_ref(run.first))
    }

    /// Begins a snapshot, which must contain all current entries.
    pub(crate) fn begin_snapshot(&mut self) {
        self.snapshot = self.snapshot.wrapping_add(1);
    }

    /// Marks an entry as written to the current snapshot. Returns whether it was still missing
    /// there.
    pub(crate) fn mark_in_snapshot(&mut self, dormant: DormantRef) -> bool {
        let slot = &mut self.slots[dormant.slot as usize];
        std::mem::replace(&mut slot.snapshot, self.snapshot) != self.snapshot
    }

    /// Reports whether an entry is still missing in the current snapshot.
    pub(crate) fn is_missing_in_snapshot(&self, dormant: DormantRef) -> bool {
        slot_at(&self.slots, dormant.slot).snapshot != self.snapshot
    }

    /// Returns the entry in a slot; `Err` beyond the last slot.
    pub(crate) fn at_slot(&self, slot: SlotId) -> Result<Option<DormantRef>, ()> {
        let found = self.slots.get(slot as usize).ok_or(())?;
        Ok((found.id != 0).then(|| self.dormant_ref(slot)))
    }

    /// Moves the live texts of one chunk that is mostly dead, or requests them.
    pub(crate) fn compact_texts(&mut self) {
        let texts = self.texts.sparse_chunk().unwrap_or_default();
        self.move_texts(texts);
    }

    /// Moves the live texts of a chunk, if this is the reply to a request for them. Returns whether
    /// it is.
    pub(crate) fn take_sparse_chunk(
        &mut self,
        request: u64,
        bytes: &[Result<Vec<u8>, TextError>],
    ) -> Result<bool, TextError> {
        let Some(texts) = self.texts.take_sparse_chunk(request, bytes) else { return Ok(false) };
        self.move_texts(texts?);
        Ok(true)
    }

    fn move_texts(&mut self, texts: Vec<MovedText>) {
        for (id, place, text) in texts {
            let Some(dormant) = self.find(id) else { continue };
            let slot = dormant.slot as usize;
            if self.slots[slot].text == place {
                let moved = self.texts.put(id, &[&text]);
                self.slots[slot].text = moved;
                self.texts.remove(place, text.len());
            }
        }
    }

    /// Sorts the runs that were stored out of order.
    pub(super) fn sort_runs(&mut self, keys: &mut Keys) {
        let mut unsorted = std::mem::take(&mut self.unsorted);
        unsorted.sort_unstable();
        unsorted.dedup();
        for key in unsorted {
            let runs = keys.get_mut(key).map(|queue| queue.dormant.iter_mut());
            for run in runs.into_iter().flatten() {
                let mut slots = Vec::new();
                let mut slot = run.first;
                while slot != NO_SLOT {
                    slots.push(slot);
                    slot = slot_at(&self.slots, slot).next;
                }
                if slots.is_sorted_by_key(|slot| slot_at(&self.slots, *slot).id) {
                    continue;
                }
                slots.sort_unstable_by_key(|slot| slot_at(&self.slots, *slot).id);
                let ends = [NO_SLOT];
                let after = slots[1..].iter().chain(&ends);
                let before = ends.iter().chain(&slots);
                for ((slot, before), after) in slots.iter().zip(before).zip(after) {
                    let slot = &mut self.slots[*slot as usize];
                    (slot.previous, slot.next) = (*before, *after);
                }
                run.first = slots[0];
                run.last = slots[slots.len() - 1];
                run.first_entry = slot_at(&self.slots, run.first).id;
            }
        }
    }

    /// Loads a slot into the cache (see [`prefetch`](crate::prefetch)).
    pub(crate) fn prefetch(&self, slot: SlotId) {
        black_box(slot_at(&self.slots, slot).text_len);
    }

    /// Loads the text of a slot, its place in the index by URL, and the next slot.
    pub(crate) fn prefetch_text(&self, slot: SlotId) {
        let DormantSlot { url_fingerprint: url, text, next: after, .. } =
            *slot_at(&self.slots, slot);
        self.texts.prefetch(text);
        self.prefetch_url(url);
        if after != NO_SLOT {
            self.prefetch(after);
        }
    }

    /// Loads the place of a URL in the index.
    pub(crate) fn prefetch_url(&self, url: u64) {
        black_box(self.by_url.find(url).next());
    }

    fn used_slot(&self, slot: SlotId) -> Option<DormantRef> {
        (slot != NO_SLOT).then(|| self.dormant_ref(slot))
    }

    fn dormant_ref(&self, slot: SlotId) -> DormantRef {
        let DormantSlot { id, url_fingerprint: url, key, lane, .. } = *slot_at(&self.slots, slot);
        DormantRef { id, url_fingerprint: url, key, lane, slot }
    }

    fn put_text(&mut self, admission: &Admission) -> (TextLocation, u32) {
        let Admission { id, text, forwarded, .. } = admission;
        let (header, len) = entry_text::header_of(admission);
        (self.texts.put(*id, &[&header, text.as_bytes(), forwarded.as_bytes()]), len)
    }
}

fn slot_at(slots: &[DormantSlot], slot: SlotId) -> &DormantSlot {
    &slots[slot as usize]
}
