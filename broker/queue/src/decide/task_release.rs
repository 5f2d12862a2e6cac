//! Release: which keys are free, which entry each offers, and which member receives it.

use smallvec::SmallVec;
use tidings_protocol::{KeyRest, Outcome, PAGE_READY_TOPIC};

use super::page_event::PageEnd;
use super::prefetch::PREFETCH_BATCH;
use crate::Group;
use crate::dead_letters::DOWN;
use crate::entry::{Admission, Demand, EndReason, EntryId, RecordedRest};
use crate::frontier::entry_text::DormantRef;
use crate::frontier::key_queue::CLOCK_GRAIN_MS;
use crate::frontier::keys::KeyId;
use crate::frontier::lane::Lane;
use crate::frontier::lane::lane_of;
use crate::frontier::next_entry;
use crate::frontier::release_order::ReadyClass;
use crate::jobs::admits_waiting;
use crate::leases::Member;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::Decision;

/// Maximum number of lanes that a release skips because they wait for texts.
const SKIPPED_MAX: usize = 16;

/// Maximum number of entries that one call ends instead of releasing them. The next tick, which is
/// due at once, continues, so that other inputs do not wait for all ends.
const ENDED_MAX: usize = 1000;

impl Group {
    /// Releases while there is a free key and a member with credit for it.
    pub(crate) fn release_all(&mut self, now: Moment) {
        if self.release_from.is_some_and(|from| now < from) {
            return;
        }
        self.release_from = None;
        // For each order of release: texts that must be read, and how many more may be.
        let (mut missing, mut room) = ([Vec::new(), Vec::new()], [None; 2]);
        // Lanes that are skipped because the text of their next entry is being read.
        let mut skipped: [SmallVec<[Lane; SKIPPED_MAX]>; 2] = Default::default();
        let mut ended = 0;
        for released in 0_usize.. {
            if self.state.is_paused() || self.state.unpublished().is_full() {
                break;
            }
            let Some((key, place, render)) = self.state.next_ready(&skipped) else {
                break;
            };
            let members = self.state.leases().members();
            if released.is_multiple_of(PREFETCH_BATCH) {
                let upcoming = self.state.frontier().ready(render).upcoming(place, PREFETCH_BATCH);
                self.prefetch_keys(upcoming);
            }
            let queue = &self.state.frontier().keys()[key];
            let next =
                next_entry(queue, render, self.state.jobs()).expect("a ready key has a next entry");
            let id = next.entry;
            let unread = self.dormant_to_read(id);
            let is_later = match place {
                _ if mutants::is(Mutant::Overtakes) => false,
                ReadyClass::Any(lane, rank) => {
                    // The texts of one priority are read together.
                    let rank = if unread.is_some() { rank.first_of_priority() } else { rank };
                    self.state.frontier().loading(render).is_before(lane, rank)
                }
                ReadyClass::Pinned(_) | ReadyClass::Suspect(_) => false,
            };
            if is_later || unread.is_some() {
                let order = usize::from(render);
                let (missing, skipped) = (&mut missing[order], &mut skipped[order]);
                let mut has_room = || {
                    missing.len() < *room[order].get_or_insert_with(|| self.loading_room(render))
                };
                if let (Some(dormant), ReadyClass::Any(lane, rank)) = (unread, place)
                    && !is_later
                    && has_room()
                {
                    missing.push(self.state.begin_loading(key, (lane, rank), dormant));
                } else if skipped.len() < SKIPPED_MAX {
                    skipped.push(next.lane);
                    if let Lane::Job(job) = next.lane
                        && mutants::is(Mutant::LosesSkipped)
                    {
                        self.state.lose_lane(job);
                    }
                } else {
                    break;
                }
                continue;
            }
            let suspect = matches!(place, ReadyClass::Suspect(_));
            let member = match place {
                ReadyClass::Pinned(pin) => Some(pin.member),
                ReadyClass::Suspect(_) | ReadyClass::Any(..) => {
                    members.choose(queue.last_member(), Demand { suspect, render })
                }
            };
            if let Some(end) = self.end_before_release(key, id) {
                self.end_unreleased(id, end, now);
                ended += 1;
                if ended < ENDED_MAX {
                    continue;
                }
                self.release_from = Some(now);
                break;
            }
            let member = member.expect("a member with free credit was found for this class");
            let conn = members.find(member).and_then(Member::conn);
            let until = now + self.state.config().settings.lease_ms;
            self.commit(Decision::Released { entry: id, member, until }, now);
            self.send_task(id, conn.expect("a member with free credit is connected"), now);
        }
        for missing in missing.iter().flat_map(|missing| missing.chunks(PREFETCH_BATCH)) {
            self.request_texts(missing.to_vec());
        }
    }

    /// Returns the entry if it is dormant and its text must be read before it is released.
    fn dormant_to_read(&self, id: EntryId) -> Option<DormantRef> {
        if !self.state.dormant().has_stored_texts() {
            return None;
        }
        self.state.dormant().find(id).filter(|dormant| self.state.dormant().must_read(*dormant))
    }

    /// Returns why an entry that is next must end and not be released. Its text is in memory. The
    /// only place that decides this.
    fn end_before_release(&self, key: KeyId, id: EntryId) -> Option<EndReason> {
        if self.may_never_be_requested(id) {
            return Some(EndReason::Blocked);
        }
        if self.state.frontier().keys()[key].gives_up(id) {
            return Some(EndReason::Down);
        }
        if self.must_leave_job(id) {
            return Some(EndReason::Budget);
        }
        self.is_out_of_scope(id).then_some(EndReason::Scope)
    }

    /// Ends an entry in place of its release. Nothing was requested for it, so its key does not
    /// rest.
    fn end_unreleased(&mut self, id: EntryId, end: EndReason, now: Moment) {
        if end == EndReason::Down {
            return self.give_up(id, (end, DOWN), None, now);
        }
        let entry = self.view().unreleased(id);
        let job = entry.admitted.job;
        // One that was also announced continues without its job.
        let event = match end {
            EndReason::Scope if !entry.admitted.announced => {
                let end = PageEnd { outcome: Outcome::Scope, ..PageEnd::default() };
                self.page_event(&entry, &end, 1)
            }
            _ => None,
        };
        self.commit(Decision::Ended { entries: vec![id], end }, now);
        if let Some(event) = event {
            self.publish(PAGE_READY_TOPIC, event);
        }
        if let Some(job) = job {
            self.settle_job(job.number, now);
        }
    }

    /// Reports whether the URL of an entry is on the never-list, or that of its next request.
    fn may_never_be_requested(&self, id: EntryId) -> bool {
        if self.never_list.is_empty() || mutants::is(Mutant::AsksNever) {
            return false;
        }
        let entry = self.view().unreleased(id);
        let again = entry.again.as_ref().map(|again| &again.url);
        let mut urls = again.into_iter().chain([&entry.admitted.text]);
        entry.admitted.url_key.is_some() && urls.any(|url| self.never_list.covers_text(url))
    }

    /// Reports whether an entry is next that does not belong to its job any more, because the
    /// settings of the job were changed.
    fn is_out_of_scope(&self, id: EntryId) -> bool {
        if !self.state.jobs().has_changed() {
            return false;
        }
        let number = match self.state.frontier().find(id) {
            Some(live) => live.entry.admitted.job.map(|pass| pass.number),
            None => self.state.dormant().find(id).and_then(|dormant| dormant.job()),
        };
        let job = number.and_then(|number| self.state.jobs().find_changed(number));
        let Some(job) = job else { return false };
        let entry = self.view().unreleased(id);
        let Admission { text, depth, .. } = &entry.admitted;
        !admits_waiting(&job.settings, text, *depth) && !mutants::is(Mutant::IgnoresJobSet)
    }

    /// Reports whether an announced entry is next while its job may not release anything. It is
    /// then released without the job, which has no page left.
    fn must_leave_job(&self, id: EntryId) -> bool {
        // An announced entry that is dormant has no job.
        let Some(live) = self.state.frontier().find(id) else { return false };
        let entry = &live.entry;
        let job = entry.admitted.job.and_then(|job| self.state.jobs().find(job.number));
        lane_of(&entry.admitted) == Lane::Announced
            && entry.again.is_none()
            && job.is_some_and(|job| job.is_blocked_on(&entry.admitted.key))
    }

    /// Limits the rest that a worker requests for a key, and converts it to moments.
    pub(crate) fn capped_rest(&self, hold: KeyRest, now: Moment) -> RecordedRest {
        let not_before_ms =
            hold.not_before_ms.map(|ms| ms.min(self.state.config().not_before_ms_max));
        RecordedRest {
            not_before: not_before_ms.map(|ms| now + ms + CLOCK_GRAIN_MS),
            pace_ms: hold.pace_ms.map(|ms| ms.min(self.state.config().pace_ms_max)),
        }
    }
}
