//! Decides which files are complete, and which of them are to be published. No IO and no clock.
//!
//! ```text
//!   Found, Created, ──▶ settling ──time──▶ Inspect ──same──▶ ready ──▶ Publish ──Confirmed──▶ published
//!   ClosedAfterWrite,      ▲                  │               ▲                                  │
//!   MovedIn                └──changed, Busy───┘               └─── another Found or Closed.. ────┘
//! ```
//!
//! A file that was renamed into place is complete if no process has it open for writing. A file that
//! was closed after writing, found by a scan or linked into place is complete when it has not
//! changed for the settle time. A file that was created and is open is complete when it is closed;
//! without a close event, when no process has it open for writing and it has not changed for a
//! minute (`UNCLOSED_QUIET_TIME`). A file is published once, and again only when it was replaced or
//! has changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod interface;
mod next_step;

pub use self::interface::{
    FileEvent, FileStamp, IN_FLIGHT_MAX, NO_ERROR, Observation, RelativePath, TrackerConfig,
    TrackerInput, TrackerOutput,
};
pub use self::next_step::MOVE_DELAY;
use self::next_step::{NextStep, OpenState};

/// The pause before a file that is open for writing is inspected again. It is long, because inotify
/// reports the close anyway where it works.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// An existing file.
#[derive(Debug, Default)]
struct TrackedFile {
    /// As it was published.
    published: Option<FileStamp>,
    /// As it is being published.
    publishing: Option<FileStamp>,
    /// As it will be published next; differs from `published` and `publishing`.
    next: Option<(FileStamp, NextStep)>,
    /// It was removed while it was being published.
    is_gone: bool,
    /// The last scan that saw it.
    scan: u64,
}

#[derive(Debug)]
enum InFlight {
    File(RelativePath),
    Batch { files: u64 },
    Error(RelativePath, &'static str),
}

/// Tracks the files of one directory. Pass in one [`TrackerInput`], take [`TrackerOutput`]s until
/// there are none, and pass in [`TrackerInput::Tick`] at the [`deadline`](Tracker::deadline).
#[derive(Debug)]
pub struct Tracker {
    rules: TrackerConfig,
    files: BTreeMap<RelativePath, TrackedFile>,
    /// The files with `next` at [`NextStep::InspectAt`], by time.
    deadlines: BTreeSet<(Instant, RelativePath)>,
    inspecting: usize,
    /// Files that are [`NextStep::Ready`] and not being published, in this order. May contain files
    /// that no longer are.
    ready: VecDeque<RelativePath>,
    in_flight: BTreeMap<u64, InFlight>,
    last_number: u64,
    /// Nothing is published before this time.
    paused_until: Option<Instant>,
    /// Current errors, and for each the last word that was published or is being published.
    errors: BTreeMap<RelativePath, (&'static str, &'static str)>,
    /// Files with an error that has changed and is not published yet.
    changed_errors: VecDeque<RelativePath>,
    scan: u64,
    is_scanning: bool,
    has_scanned: bool,
    batch: BatchState,
    /// Files that changed or were open during a run with `once`.
    skipped: u64,
    /// The number of files is over the limit.
    is_over_limit: bool,
    outputs: VecDeque<TrackerOutput>,
}

#[derive(Debug, Default)]
struct BatchState {
    number: u64,
    /// Files published since the last batch ended.
    files: u64,
    quiet_since: Option<Instant>,
    is_ending: bool,
}

impl Tracker {
    /// Starts with the files that were published earlier, and the current batch.
    pub fn new(
        rules: TrackerConfig,
        told: impl IntoIterator<Item = (RelativePath, FileStamp)>,
        batch_number: u64,
        batch_files: u64,
    ) -> Self {
        let entry = |stamp| TrackedFile { published: Some(stamp), ..TrackedFile::default() };
        Self {
            rules,
            files: told.into_iter().map(|(name, stamp)| (name, entry(stamp))).collect(),
            deadlines: BTreeSet::new(),
            inspecting: 0,
            ready: VecDeque::new(),
            in_flight: BTreeMap::new(),
            last_number: 0,
            paused_until: None,
            errors: BTreeMap::new(),
            changed_errors: VecDeque::new(),
            scan: 0,
            is_scanning: false,
            has_scanned: false,
            batch: BatchState { number: batch_number, files: batch_files, ..BatchState::default() },
            skipped: 0,
            is_over_limit: false,
            outputs: VecDeque::new(),
        }
    }

    /// Handles an input.
    pub fn handle(&mut self, input: TrackerInput, now: Instant) {
        match input {
            TrackerInput::Observed(seen, name, stamp) => self.observe(seen, name, stamp, now),
            TrackerInput::Opened(name) => self.opened(&name, now),
            TrackerInput::ClosedNoWrite(name) => self.closed_unwritten(&name, now),
            TrackerInput::Removed(name) => self.remove(&name, now),
            TrackerInput::RemovedBelow(directory) => {
                for name in self.below(&directory) {
                    self.remove(&name, now);
                }
                self.errors.retain(|name, _| !name.starts_with(&directory));
            }
            TrackerInput::ScanStarted => {
                self.scan += 1;
                self.is_scanning = true;
                self.is_over_limit = false;
                self.forget_open(now);
            }
            TrackerInput::ScanFinished(unread) => self.end_scan(&unread, now),
            TrackerInput::Inspected(name, stamp) => self.inspected(name, stamp, now),
            TrackerInput::Busy(name) => self.busy(name, now),
            TrackerInput::ErrorChanged(name, word) => self.set_error(name, word),
            TrackerInput::Confirmed(number) => self.confirmed(number, now),
            TrackerInput::Refused(number) => self.refused(number, now),
            TrackerInput::Tick => {}
        }
        self.advance(now);
    }

    /// The next output; check after each input.
    pub fn poll(&mut self) -> Option<TrackerOutput> {
        self.outputs.pop_front()
    }

    /// When [`TrackerInput::Tick`] is due; may change with each input.
    pub fn deadline(&self) -> Option<Instant> {
        let settled = self.deadlines.first().map(|(at, _)| *at);
        let paused = self.paused_until.filter(|_| self.has_ready());
        [settled, paused, self.batch_due()].into_iter().flatten().min()
    }

    /// Whether no file is settling, being inspected, ready or being published.
    pub fn is_idle(&self) -> bool {
        let nothing_comes = self.deadlines.is_empty() && self.inspecting == 0 && !self.is_scanning;
        nothing_comes && self.in_flight.is_empty() && !self.has_ready()
    }

    /// Whether everything that the first scan found is published and its batch has ended.
    pub fn is_done(&self) -> bool {
        let batch_is_over = self.rules.batch_end.is_none() || self.batch.files == 0;
        self.has_scanned && self.is_idle() && batch_is_over
    }

    /// Files that were skipped because they changed or were open during a run with `once`.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Published files, which must be stored across restarts.
    #[cfg(test)]
    pub(crate) fn published(&self) -> impl Iterator<Item = (&RelativePath, FileStamp)> {
        self.files.iter().filter_map(|(name, entry)| Some((name, entry.published?)))
    }

    /// The number of the current batch, and its files so far.
    #[cfg(test)]
    pub(crate) fn batch(&self) -> (u64, u64) {
        (self.batch.number, self.batch.files)
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.changed_errors.is_empty()
    }

    fn below(&self, directory: &[u8]) -> Vec<RelativePath> {
        let from = (Bound::Included(directory), Bound::Unbounded);
        let from = self.files.range::<[u8], _>(from);
        let below = from.take_while(|(name, _)| name.starts_with(directory));
        below.map(|(name, _)| Arc::clone(name)).collect()
    }

    fn entry(&mut self, name: &RelativePath) -> Option<&mut TrackedFile> {
        let is_full = self.files.len() >= self.rules.files_max;
        if is_full && !self.files.contains_key(name) {
            if !std::mem::replace(&mut self.is_over_limit, true) {
                self.set_error(Arc::from([]), Some("too-many-files"));
            }
            return None;
        }
        Some(self.files.entry(Arc::clone(name)).or_default())
    }

    fn observe(&mut self, seen: Observation, name: RelativePath, stamp: FileStamp, now: Instant) {
        let (scan, settle) = (self.scan, self.rules.settle);
        let Some(entry) = self.entry(&name) else { return };
        entry.scan = scan;
        entry.is_gone = false;
        let before = entry.next;
        if entry.publishing.or(entry.published) == Some(stamp) {
            // Published or being published like this; changes in between do not matter.
            entry.next = None;
        } else {
            let heard = match (seen, before.map(|(_, due)| due.open_state())) {
                (Observation::Created, _) => OpenState::Created,
                (Observation::ClosedAfterWrite, _) => OpenState::Closed,
                (Observation::MovedIn, _) => OpenState::Unknown,
                // A scan does not change whether the file is open.
                (_, Some(heard @ (OpenState::Created | OpenState::Open(_)))) => heard,
                _ => OpenState::Unknown,
            };
            let at = now + heard.quiet_time(settle);
            let due = match (before.filter(|(next, _)| *next == stamp), seen) {
                (_, Observation::MovedIn) => {
                    NextStep::InspectAt { at: now + MOVE_DELAY, open_state: heard }
                }
                // The content has not changed since.
                (
                    Some((_, NextStep::InspectAt { at: before, .. })),
                    Observation::ClosedAfterWrite,
                ) => NextStep::InspectAt { at: at.min(before), open_state: heard },
                (None, _) | (Some((_, NextStep::InspectAt { .. })), Observation::Created) => {
                    NextStep::InspectAt { at, open_state: heard }
                }
                (Some((_, due)), _) => due,
            };
            entry.next = Some((stamp, due));
        }
        let next = entry.next;
        if before != next {
            self.unschedule(&name, before);
            self.schedule(name, next);
            self.batch.quiet_since = Some(now);
        }
    }

    /// Enters the next step of a file into the queue or the deadlines.
    fn schedule(&mut self, name: RelativePath, next: Option<(FileStamp, NextStep)>) {
        match next {
            Some((_, NextStep::InspectAt { at, .. })) => {
                self.deadlines.insert((at, name));
            }
            Some((_, NextStep::Ready)) => self.ready.push_back(name),
            _ => {}
        }
    }

    fn unschedule(&mut self, name: &RelativePath, next: Option<(FileStamp, NextStep)>) {
        if let Some((_, NextStep::InspectAt { at, .. })) = next {
            self.deadlines.remove(&(at, Arc::clone(name)));
        }
    }

    /// A process has opened the file. The first one after its creation is its writer.
    fn opened(&mut self, name: &RelativePath, now: Instant) {
        let settle = self.rules.settle;
        self.update_next_step(name, |due| match due {
            NextStep::InspectAt { open_state: OpenState::Created, .. } => {
                let heard = OpenState::Open(1);
                NextStep::InspectAt { at: now + heard.quiet_time(settle), open_state: heard }
            }
            NextStep::InspectAt { at, open_state: OpenState::Open(times) } => {
                NextStep::InspectAt { at, open_state: OpenState::Open(times.saturating_add(1)) }
            }
            due => due,
        });
    }

    /// A process that did not write has closed the file.
    fn closed_unwritten(&mut self, name: &RelativePath, now: Instant) {
        let settle = self.rules.settle;
        self.update_next_step(name, |due| match due {
            NextStep::InspectAt { open_state: OpenState::Open(..=1), .. } => {
                let heard = OpenState::Created;
                NextStep::InspectAt { at: now + heard.quiet_time(settle), open_state: heard }
            }
            NextStep::InspectAt { at, open_state: OpenState::Open(times) } => {
                NextStep::InspectAt { at, open_state: OpenState::Open(times - 1) }
            }
            due => due,
        });
    }

    /// Close events may have been lost, so open files count as unknown.
    fn forget_open(&mut self, now: Instant) {
        let settle = self.rules.settle;
        let names: Vec<_> = self.deadlines.iter().map(|(_, name)| Arc::clone(name)).collect();
        for name in names {
            self.update_next_step(&name, |due| match due {
                NextStep::InspectAt { at, open_state: OpenState::Created | OpenState::Open(_) } => {
                    NextStep::InspectAt { at: at.min(now + settle), open_state: OpenState::Unknown }
                }
                due => due,
            });
        }
    }

    fn update_next_step(&mut self, name: &RelativePath, change: impl FnOnce(NextStep) -> NextStep) {
        let Some(entry) = self.files.get_mut(name) else { return };
        let before = entry.next;
        let Some((stamp, due)) = before else { return };
        entry.next = Some((stamp, change(due)));
        let next = entry.next;
        if before != next {
            self.unschedule(name, before);
            self.schedule(Arc::clone(name), next);
        }
    }

    fn remove(&mut self, name: &RelativePath, now: Instant) {
        let Some(entry) = self.files.get_mut(name) else { return };
        self.batch.quiet_since = Some(now);
        let next = entry.next.take();
        if entry.publishing.is_some() {
            entry.is_gone = true;
        } else {
            let entry = self.files.remove(name).expect("the entry was just found");
            if entry.published.is_some() {
                self.outputs.push_back(TrackerOutput::Forget(Arc::clone(name)));
            }
        }
        self.unschedule(name, next);
    }

    fn end_scan(&mut self, unread: &[RelativePath], now: Instant) {
        let is_unread = |name: &[u8]| unread.iter().any(|below| name.starts_with(below));
        let missed =
            self.files.iter().filter(|(name, entry)| entry.scan != self.scan && !is_unread(name));
        for name in missed.map(|(name, _)| Arc::clone(name)).collect::<Vec<_>>() {
            self.remove(&name, now);
        }
        if !self.is_over_limit
            && self.errors.get(&[][..]).is_some_and(|it| it.0 == "too-many-files")
        {
            self.set_error(Arc::from([]), None);
        }
        self.is_scanning = false;
        self.has_scanned = true;
        self.batch.quiet_since = Some(now);
    }

    fn inspected(&mut self, name: RelativePath, stamp: Option<FileStamp>, now: Instant) {
        self.inspecting -= 1;
        let Some(stamp) = stamp else { return self.remove(&name, now) };
        let once = self.rules.once;
        let Some(entry) = self.files.get_mut(&name) else { return };
        match entry.next {
            Some((next, NextStep::Inspecting(_))) if next == stamp => {
                entry.next = Some((stamp, NextStep::Ready));
                self.ready.push_back(name);
            }
            Some((_, NextStep::Inspecting(_))) if once => {
                entry.next = None;
                self.skipped += 1;
            }
            Some((_, NextStep::Inspecting(_))) => {
                self.observe(Observation::Found, name, stamp, now);
            }
            // It has changed in between, and will be inspected again.
            _ => {}
        }
    }

    fn busy(&mut self, name: RelativePath, now: Instant) {
        self.inspecting -= 1;
        let (once, settle) = (self.rules.once, self.rules.settle);
        let Some(entry) = self.files.get_mut(&name) else { return };
        let Some((stamp, NextStep::Inspecting(heard))) = entry.next else { return };
        if once {
            entry.next = None;
            self.skipped += 1;
        } else {
            let at = now + heard.quiet_time(settle).max(BUSY_RETRY);
            let next = Some((stamp, NextStep::InspectAt { at, open_state: heard }));
            entry.next = next;
            self.schedule(name, next);
        }
    }

    fn set_error(&mut self, name: RelativePath, word: Option<&'static str>) {
        let word = word.unwrap_or(NO_ERROR);
        match self.errors.get_mut(&name) {
            Some((now, _)) => *now = word,
            None if word == NO_ERROR => return,
            None => {
                self.errors.insert(Arc::clone(&name), (word, NO_ERROR));
            }
        }
        if !self.changed_errors.contains(&name) {
            self.changed_errors.push_back(name);
        }
    }

    fn confirmed(&mut self, number: u64, now: Instant) {
        match self.in_flight.remove(&number) {
            Some(InFlight::File(name)) => {
                let Some(entry) = self.files.get_mut(&name) else { return };
                entry.published = entry.publishing.take();
                let stamp = entry.published.expect("a file in flight has a stamp");
                self.batch.files += 1;
                self.batch.quiet_since = Some(now);
                self.outputs.push_back(TrackerOutput::Save(Arc::clone(&name), stamp));
                if entry.is_gone {
                    self.remove(&name, now);
                } else if matches!(entry.next, Some((_, NextStep::Ready))) {
                    self.ready.push_back(name);
                }
            }
            Some(InFlight::Batch { files }) => {
                self.outputs.push_back(TrackerOutput::BatchEnded(self.batch.number));
                self.batch.number += 1;
                self.batch.files -= files;
                self.batch.is_ending = false;
            }
            Some(InFlight::Error(..)) | None => {}
        }
    }

    fn refused(&mut self, number: u64, now: Instant) {
        self.paused_until = Some(now + self.rules.retry);
        match self.in_flight.remove(&number) {
            Some(InFlight::File(name)) => {
                let Some(entry) = self.files.get_mut(&name) else { return };
                let stamp = entry.publishing.take().expect("a file in flight has a stamp");
                if entry.is_gone {
                    return self.remove(&name, now);
                }
                if entry.next.is_none() {
                    entry.next = Some((stamp, NextStep::Ready));
                }
                if matches!(entry.next, Some((_, NextStep::Ready))) {
                    self.ready.push_back(name);
                }
            }
            Some(InFlight::Batch { .. }) => self.batch.is_ending = false,
            Some(InFlight::Error(name, word)) => {
                if let Some((_, told)) = self.errors.get_mut(&name) {
                    // Neither the old nor the new word is published, so the next word is published
                    // in any case.
                    *told = "";
                } else if word == NO_ERROR {
                    self.errors.insert(Arc::clone(&name), (NO_ERROR, ""));
                }
                if !self.changed_errors.contains(&name) {
                    self.changed_errors.push_back(name);
                }
            }
            None => {}
        }
    }

    /// Inspects what is due, and publishes as many files as allowed.
    fn advance(&mut self, now: Instant) {
        while let Some((at, _)) = self.deadlines.first()
            && *at <= now
        {
            let (_, name) = self.deadlines.pop_first().expect("the entry was just found");
            let entry = self.files.get_mut(&name).expect("a scheduled file is tracked");
            let Some((stamp, NextStep::InspectAt { open_state: heard, .. })) = entry.next else {
                panic!("a scheduled file waits for its deadline");
            };
            entry.next = Some((stamp, NextStep::Inspecting(heard)));
            let is_closed = heard == OpenState::Closed;
            self.inspecting += 1;
            self.outputs.push_back(TrackerOutput::Inspect { name, is_closed });
        }
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.paused_until = None;
        while self.in_flight.len() < IN_FLIGHT_MAX {
            if let Some(name) = self.changed_errors.pop_front() {
                self.publish_error(&name);
            } else if let Some(name) = self.ready.pop_front() {
                self.publish_file(name);
            } else {
                break;
            }
        }
        if self.batch_due().is_some_and(|due| due <= now) {
            let BatchState { number, files, .. } = self.batch;
            self.batch.is_ending = true;
            self.publish(InFlight::Batch { files }, FileEvent::Batch { number, files });
        }
    }

    fn publish(&mut self, flight: InFlight, announced: FileEvent) {
        self.last_number += 1;
        self.in_flight.insert(self.last_number, flight);
        self.outputs.push_back(TrackerOutput::Publish(self.last_number, announced));
    }

    fn publish_file(&mut self, name: RelativePath) {
        let Some(entry) = self.files.get_mut(&name) else { return };
        // The version in flight comes first; its confirmation continues with this one.
        if entry.publishing.is_some() {
            return;
        }
        let Some((stamp, NextStep::Ready)) = entry.next else { return };
        entry.next = None;
        entry.publishing = Some(stamp);
        self.publish(InFlight::File(Arc::clone(&name)), FileEvent::File(name, stamp));
    }

    fn publish_error(&mut self, name: &RelativePath) {
        let Some((word, told)) = self.errors.get_mut(name) else { return };
        let word = *word;
        if *told != word {
            *told = word;
            self.publish(
                InFlight::Error(Arc::clone(name), word),
                FileEvent::Error(Arc::clone(name), word),
            );
        }
        if word == NO_ERROR {
            self.errors.remove(name);
        }
    }

    /// When the current batch ends, if nothing happens before.
    fn batch_due(&self) -> Option<Instant> {
        let quiet = if self.rules.once { Duration::ZERO } else { self.rules.batch_end? };
        self.rules.batch_end?;
        let may_end = self.batch.files > 0 && !self.batch.is_ending && self.has_scanned;
        // Nothing is published while the broker refuses events.
        let due = self.batch.quiet_since.filter(|_| may_end && self.is_idle())? + quiet;
        Some(self.paused_until.map_or(due, |until| until.max(due)))
    }
}

#[cfg(test)]
mod tests;
