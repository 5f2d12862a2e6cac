//! Decides which files are complete, and which of them are to be published. No IO and no clock.
//!
//! ```text
//!   Found, Created, Closed ──▶ settling ──time──▶ Look ──same──▶ ready ──▶ Announce ──Confirmed──▶ told
//!   Placed ────────────────────────▲ ─────────────│──────────────▲                                  │
//!                                  └changed, Busy─┘               ◀───── another Found, Closed ─────┘
//! ```
//!
//! A file that was renamed into place is complete. A file that was closed after writing, found by a
//! scan or linked into place is complete when it has not changed for the settle time. A file that
//! was created and is open is complete when it is closed; without a close event, when no process
//! has it open for writing and it has not changed for a minute (`UNCLOSED`). A file is published
//! once, and again only when it was replaced or has changed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

mod due;
mod interface;

use self::due::{Due, Heard};
pub use self::interface::{
    Announced, IN_FLIGHT_MAX, Input, NO_TROUBLE, Name, Output, Rules, Stamp,
};

/// The pause before a file that is open for writing is inspected again. It is long, because inotify
/// reports the close anyway where it works.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// How a file was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Found,
    Created,
    Closed,
    Placed,
}

/// An existing file.
#[derive(Debug, Default)]
struct Entry {
    /// As it was published.
    told: Option<Stamp>,
    /// As it is being published.
    telling: Option<Stamp>,
    /// As it will be published next; differs from `told` and `telling`.
    next: Option<(Stamp, Due)>,
    /// It was removed while it was being published.
    is_gone: bool,
    /// The last scan that saw it.
    scan: u64,
}

#[derive(Debug)]
enum Flight {
    File(Name),
    Batch { files: u64 },
    Trouble(Name, &'static str),
}

/// Tracks the files of one directory. Pass in one [`Input`], take [`Output`]s until there are none,
/// and pass in [`Input::Tick`] at the [`deadline`](Tracker::deadline).
#[derive(Debug)]
pub struct Tracker {
    rules: Rules,
    entries: BTreeMap<Name, Entry>,
    /// The files with `next` at [`Due::At`], by time.
    deadlines: BTreeSet<(Instant, Name)>,
    /// Files that are being inspected.
    looking: usize,
    /// Files that are [`Due::Ready`] and not being published, in this order. May contain files that
    /// no longer are.
    ready: VecDeque<Name>,
    flights: BTreeMap<u64, Flight>,
    flights_begun: u64,
    /// Nothing is published before this time.
    hold_until: Option<Instant>,
    /// Current errors, and for each the last word that was published or is being published.
    troubles: BTreeMap<Name, (&'static str, &'static str)>,
    /// Files with an error that has changed and is not published yet.
    troubled: VecDeque<Name>,
    scan: u64,
    is_scanning: bool,
    has_scanned: bool,
    batch: Batch,
    /// Files that changed or were open during a run with `once`.
    skipped: u64,
    /// The number of files is over the limit.
    untracked: bool,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Default)]
struct Batch {
    number: u64,
    /// Files published since the last batch ended.
    files: u64,
    quiet_since: Option<Instant>,
    is_ending: bool,
}

impl Tracker {
    /// Starts with the files that were published earlier, and the current batch.
    pub fn new(
        rules: Rules,
        told: impl IntoIterator<Item = (Name, Stamp)>,
        batch_number: u64,
        batch_files: u64,
    ) -> Self {
        let entry = |stamp| Entry { told: Some(stamp), ..Entry::default() };
        Self {
            rules,
            entries: told.into_iter().map(|(name, stamp)| (name, entry(stamp))).collect(),
            deadlines: BTreeSet::new(),
            looking: 0,
            ready: VecDeque::new(),
            flights: BTreeMap::new(),
            flights_begun: 0,
            hold_until: None,
            troubles: BTreeMap::new(),
            troubled: VecDeque::new(),
            scan: 0,
            is_scanning: false,
            has_scanned: false,
            batch: Batch { number: batch_number, files: batch_files, ..Batch::default() },
            skipped: 0,
            untracked: false,
            outputs: VecDeque::new(),
        }
    }

    /// Handles an input.
    pub fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Found(name, stamp) => self.observe(name, stamp, Seen::Found, now),
            Input::Created(name, stamp) => self.observe(name, stamp, Seen::Created, now),
            Input::Opened(name) => self.opened(&name, now),
            Input::ClosedUnwritten(name) => self.closed_unwritten(&name, now),
            Input::Closed(name, stamp) => self.observe(name, stamp, Seen::Closed, now),
            Input::Placed(name, stamp) => self.observe(name, stamp, Seen::Placed, now),
            Input::Gone(name) => self.remove(&name, now),
            Input::GoneBelow(directory) => {
                for name in self.below(&directory) {
                    self.remove(&name, now);
                }
                self.troubles.retain(|name, _| !name.starts_with(&directory));
            }
            Input::ScanBegins => {
                self.scan += 1;
                self.is_scanning = true;
                self.untracked = false;
                self.forget_open(now);
            }
            Input::ScanEnds(unread) => self.end_scan(&unread, now),
            Input::Looked(name, stamp) => self.looked(name, stamp, now),
            Input::Busy(name) => self.busy(name, now),
            Input::Trouble(name, word) => self.trouble(name, word),
            Input::Confirmed(number) => self.confirmed(number, now),
            Input::Refused(number) => self.refused(number, now),
            Input::Tick => {}
        }
        self.pump(now);
    }

    /// The next output; check after each input.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due; may change with each input.
    pub fn deadline(&self) -> Option<Instant> {
        let settled = self.deadlines.first().map(|(at, _)| *at);
        let paused = self.hold_until.filter(|_| self.has_ready());
        [settled, paused, self.batch_due()].into_iter().flatten().min()
    }

    /// Whether no file is settling, being inspected, ready or being published.
    pub fn is_idle(&self) -> bool {
        let nothing_comes = self.deadlines.is_empty() && self.looking == 0 && !self.is_scanning;
        nothing_comes && self.flights.is_empty() && !self.has_ready()
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
    pub fn told(&self) -> impl Iterator<Item = (&Name, Stamp)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name, entry.told?)))
    }

    /// Files that are tracked.
    pub fn tracked(&self) -> usize {
        self.entries.len()
    }

    /// The number of the current batch, and its files so far.
    pub fn batch(&self) -> (u64, u64) {
        (self.batch.number, self.batch.files)
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.troubled.is_empty()
    }

    fn below(&self, directory: &[u8]) -> Vec<Name> {
        let from = (Bound::Included(directory), Bound::Unbounded);
        let from = self.entries.range::<[u8], _>(from);
        let below = from.take_while(|(name, _)| name.starts_with(directory));
        below.map(|(name, _)| Arc::clone(name)).collect()
    }

    fn entry(&mut self, name: &Name) -> Option<&mut Entry> {
        let is_full = self.entries.len() >= self.rules.files_max;
        if is_full && !self.entries.contains_key(name) {
            if !std::mem::replace(&mut self.untracked, true) {
                self.trouble(Arc::from([]), Some("too-many-files"));
            }
            return None;
        }
        Some(self.entries.entry(Arc::clone(name)).or_default())
    }

    fn observe(&mut self, name: Name, stamp: Stamp, seen: Seen, now: Instant) {
        let (scan, settle) = (self.scan, self.rules.settle);
        let Some(entry) = self.entry(&name) else { return };
        entry.scan = scan;
        entry.is_gone = false;
        let before = entry.next;
        if entry.telling.or(entry.told) == Some(stamp) {
            // Published or being published like this; changes in between do not matter.
            entry.next = None;
        } else {
            let heard = match (seen, before.map(|(_, due)| due.heard())) {
                (Seen::Created, _) => Heard::Made,
                (Seen::Closed, _) => Heard::Closed,
                // A scan does not change whether the file is open.
                (_, Some(heard @ (Heard::Made | Heard::Opened(_)))) => heard,
                _ => Heard::Nothing,
            };
            let at = now + heard.quiet(settle);
            let due = match (before.filter(|(next, _)| *next == stamp), seen) {
                (_, Seen::Placed) => Due::Ready,
                // The content has not changed since.
                (Some((_, Due::At { at: before, .. })), Seen::Closed) => {
                    Due::At { at: at.min(before), heard }
                }
                (None, _) | (Some((_, Due::At { .. })), Seen::Created) => Due::At { at, heard },
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
    fn schedule(&mut self, name: Name, next: Option<(Stamp, Due)>) {
        match next {
            Some((_, Due::At { at, .. })) => {
                self.deadlines.insert((at, name));
            }
            Some((_, Due::Ready)) => self.ready.push_back(name),
            _ => {}
        }
    }

    fn unschedule(&mut self, name: &Name, next: Option<(Stamp, Due)>) {
        if let Some((_, Due::At { at, .. })) = next {
            self.deadlines.remove(&(at, Arc::clone(name)));
        }
    }

    /// A process has opened the file. The first one after its creation is its writer.
    fn opened(&mut self, name: &Name, now: Instant) {
        let settle = self.rules.settle;
        self.redue(name, |due| match due {
            Due::At { heard: Heard::Made, .. } => {
                let heard = Heard::Opened(1);
                Due::At { at: now + heard.quiet(settle), heard }
            }
            Due::At { at, heard: Heard::Opened(times) } => {
                Due::At { at, heard: Heard::Opened(times.saturating_add(1)) }
            }
            due => due,
        });
    }

    /// A process that did not write has closed the file.
    fn closed_unwritten(&mut self, name: &Name, now: Instant) {
        let settle = self.rules.settle;
        self.redue(name, |due| match due {
            Due::At { heard: Heard::Opened(..=1), .. } => {
                let heard = Heard::Made;
                Due::At { at: now + heard.quiet(settle), heard }
            }
            Due::At { at, heard: Heard::Opened(times) } => {
                Due::At { at, heard: Heard::Opened(times - 1) }
            }
            due => due,
        });
    }

    /// Close events may have been lost, so open files count as unknown.
    fn forget_open(&mut self, now: Instant) {
        let settle = self.rules.settle;
        let names: Vec<_> = self.deadlines.iter().map(|(_, name)| Arc::clone(name)).collect();
        for name in names {
            self.redue(&name, |due| match due {
                Due::At { at, heard: Heard::Made | Heard::Opened(_) } => {
                    Due::At { at: at.min(now + settle), heard: Heard::Nothing }
                }
                due => due,
            });
        }
    }

    /// Changes the next step of a file.
    fn redue(&mut self, name: &Name, change: impl FnOnce(Due) -> Due) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = entry.next;
        let Some((stamp, due)) = before else { return };
        entry.next = Some((stamp, change(due)));
        let next = entry.next;
        if before != next {
            self.unschedule(name, before);
            self.schedule(Arc::clone(name), next);
        }
    }

    fn remove(&mut self, name: &Name, now: Instant) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        self.batch.quiet_since = Some(now);
        let next = entry.next.take();
        if entry.telling.is_some() {
            entry.is_gone = true;
        } else {
            let entry = self.entries.remove(name).expect("the entry was just found");
            if entry.told.is_some() {
                self.outputs.push_back(Output::Forget(Arc::clone(name)));
            }
        }
        self.unschedule(name, next);
    }

    fn end_scan(&mut self, unread: &[Name], now: Instant) {
        let is_unread = |name: &[u8]| unread.iter().any(|below| name.starts_with(below));
        let missed =
            self.entries.iter().filter(|(name, entry)| entry.scan != self.scan && !is_unread(name));
        for name in missed.map(|(name, _)| Arc::clone(name)).collect::<Vec<_>>() {
            self.remove(&name, now);
        }
        if !self.untracked && self.troubles.get(&[][..]).is_some_and(|it| it.0 == "too-many-files")
        {
            self.trouble(Arc::from([]), None);
        }
        self.is_scanning = false;
        self.has_scanned = true;
        self.batch.quiet_since = Some(now);
    }

    fn looked(&mut self, name: Name, stamp: Option<Stamp>, now: Instant) {
        self.looking -= 1;
        let Some(stamp) = stamp else { return self.remove(&name, now) };
        let once = self.rules.once;
        let Some(entry) = self.entries.get_mut(&name) else { return };
        match entry.next {
            Some((next, Due::Looking(_))) if next == stamp => {
                entry.next = Some((stamp, Due::Ready));
                self.ready.push_back(name);
            }
            Some((_, Due::Looking(_))) if once => {
                entry.next = None;
                self.skipped += 1;
            }
            Some((_, Due::Looking(_))) => self.observe(name, stamp, Seen::Found, now),
            // It has changed in between, and will be inspected again.
            _ => {}
        }
    }

    fn busy(&mut self, name: Name, now: Instant) {
        self.looking -= 1;
        let (once, settle) = (self.rules.once, self.rules.settle);
        let Some(entry) = self.entries.get_mut(&name) else { return };
        let Some((stamp, Due::Looking(heard))) = entry.next else { return };
        if once {
            entry.next = None;
            self.skipped += 1;
        } else {
            let at = now + heard.quiet(settle).max(BUSY_RETRY);
            let next = Some((stamp, Due::At { at, heard }));
            entry.next = next;
            self.schedule(name, next);
        }
    }

    fn trouble(&mut self, name: Name, word: Option<&'static str>) {
        let word = word.unwrap_or(NO_TROUBLE);
        match self.troubles.get_mut(&name) {
            Some((now, _)) => *now = word,
            None if word == NO_TROUBLE => return,
            None => {
                self.troubles.insert(Arc::clone(&name), (word, NO_TROUBLE));
            }
        }
        if !self.troubled.contains(&name) {
            self.troubled.push_back(name);
        }
    }

    fn confirmed(&mut self, number: u64, now: Instant) {
        match self.flights.remove(&number) {
            Some(Flight::File(name)) => {
                let Some(entry) = self.entries.get_mut(&name) else { return };
                entry.told = entry.telling.take();
                let stamp = entry.told.expect("a file in flight has a stamp");
                self.batch.files += 1;
                self.batch.quiet_since = Some(now);
                self.outputs.push_back(Output::Remember(Arc::clone(&name), stamp));
                if entry.is_gone {
                    self.remove(&name, now);
                } else if matches!(entry.next, Some((_, Due::Ready))) {
                    self.ready.push_back(name);
                }
            }
            Some(Flight::Batch { files }) => {
                self.outputs.push_back(Output::BatchEnded(self.batch.number));
                self.batch.number += 1;
                self.batch.files -= files;
                self.batch.is_ending = false;
            }
            Some(Flight::Trouble(..)) | None => {}
        }
    }

    fn refused(&mut self, number: u64, now: Instant) {
        self.hold_until = Some(now + self.rules.retry);
        match self.flights.remove(&number) {
            Some(Flight::File(name)) => {
                let Some(entry) = self.entries.get_mut(&name) else { return };
                let stamp = entry.telling.take().expect("a file in flight has a stamp");
                if entry.is_gone {
                    return self.remove(&name, now);
                }
                if entry.next.is_none() {
                    entry.next = Some((stamp, Due::Ready));
                }
                if matches!(entry.next, Some((_, Due::Ready))) {
                    self.ready.push_back(name);
                }
            }
            Some(Flight::Batch { .. }) => self.batch.is_ending = false,
            Some(Flight::Trouble(name, word)) => {
                if let Some((_, told)) = self.troubles.get_mut(&name) {
                    // Neither the old nor the new word is published, so the next word is published
                    // in any case.
                    *told = "";
                } else if word == NO_TROUBLE {
                    self.troubles.insert(Arc::clone(&name), (NO_TROUBLE, ""));
                }
                if !self.troubled.contains(&name) {
                    self.troubled.push_back(name);
                }
            }
            None => {}
        }
    }

    /// Inspects what is due, and publishes as many files as allowed.
    fn pump(&mut self, now: Instant) {
        while let Some((at, _)) = self.deadlines.first()
            && *at <= now
        {
            let (_, name) = self.deadlines.pop_first().expect("the entry was just found");
            let entry = self.entries.get_mut(&name).expect("a scheduled file is tracked");
            let Some((stamp, Due::At { heard, .. })) = entry.next else {
                panic!("a scheduled file waits for its deadline");
            };
            entry.next = Some((stamp, Due::Looking(heard)));
            let is_closed = heard == Heard::Closed;
            self.looking += 1;
            self.outputs.push_back(Output::Look { name, is_closed });
        }
        if self.hold_until.is_some_and(|until| now < until) {
            return;
        }
        self.hold_until = None;
        while self.flights.len() < IN_FLIGHT_MAX {
            if let Some(name) = self.troubled.pop_front() {
                self.announce_trouble(&name);
            } else if let Some(name) = self.ready.pop_front() {
                self.announce_file(name);
            } else {
                break;
            }
        }
        if self.batch_due().is_some_and(|due| due <= now) {
            let Batch { number, files, .. } = self.batch;
            self.batch.is_ending = true;
            self.announce(Flight::Batch { files }, Announced::Batch { number, files });
        }
    }

    fn announce(&mut self, flight: Flight, announced: Announced) {
        self.flights_begun += 1;
        self.flights.insert(self.flights_begun, flight);
        self.outputs.push_back(Output::Announce(self.flights_begun, announced));
    }

    fn announce_file(&mut self, name: Name) {
        let Some(entry) = self.entries.get_mut(&name) else { return };
        // The version in flight comes first; its confirmation continues with this one.
        if entry.telling.is_some() {
            return;
        }
        let Some((stamp, Due::Ready)) = entry.next else { return };
        entry.next = None;
        entry.telling = Some(stamp);
        self.announce(Flight::File(Arc::clone(&name)), Announced::File(name, stamp));
    }

    fn announce_trouble(&mut self, name: &Name) {
        let Some((word, told)) = self.troubles.get_mut(name) else { return };
        let word = *word;
        if *told != word {
            *told = word;
            self.announce(
                Flight::Trouble(Arc::clone(name), word),
                Announced::Trouble(Arc::clone(name), word),
            );
        }
        if word == NO_TROUBLE {
            self.troubles.remove(name);
        }
    }

    /// When the current batch ends, if nothing happens before.
    fn batch_due(&self) -> Option<Instant> {
        let quiet = if self.rules.once { Duration::ZERO } else { self.rules.batch_end? };
        self.rules.batch_end?;
        let may_end = self.batch.files > 0 && !self.batch.is_ending && self.has_scanned;
        // Nothing is published while the broker refuses events.
        let due = self.batch.quiet_since.filter(|_| may_end && self.is_idle())? + quiet;
        Some(self.hold_until.map_or(due, |until| until.max(due)))
    }
}

#[cfg(test)]
mod tests;
