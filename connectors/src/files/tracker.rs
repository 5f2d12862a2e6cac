//! Which files are complete, and which of them have been announced: decisions only, no IO and no clock.
//!
//! ```text
//!   Found, Created, Closed ──▶ settling ──time──▶ Look ──same──▶ ready ──▶ Announce ──Confirmed──▶ told
//!   Placed ────────────────────────▲ ─────────────│──────────────▲                                  │
//!                                  └changed, Busy─┘               ◀───── another Found, Closed ─────┘
//! ```
//!
//! A file that was renamed into place is complete. One that was closed after writing, that was found by looking, or that
//! was put into place by a link is complete when it has not changed for the settle time. One that was made and is open is
//! complete when it is closed; if that is never heard, when nobody is seen to write and it has not changed for long. It is
//! announced once: again only when it is another one, or has changed.

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

/// How soon a file is looked at again that somebody has open: as seldom as that is no work, as its closing is heard of
/// where the kernel tells.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// How a file has come to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Found,
    Created,
    Closed,
    Placed,
}

/// A file that there is.
#[derive(Debug, Default)]
struct Entry {
    /// As the broker has it.
    told: Option<Stamp>,
    /// As it is on its way to the broker.
    telling: Option<Stamp>,
    /// As it is to be announced next; never what is told or on its way.
    next: Option<(Stamp, Due)>,
    /// Gone while it was on its way.
    is_gone: bool,
    /// The scan that has seen it last.
    scan: u64,
}

#[derive(Debug)]
enum Flight {
    File(Name),
    Batch { files: u64 },
    Trouble(Name, &'static str),
}

/// Keeps track of the files of one directory. Hand in one [`Input`], take [`Output`]s until there are none, and hand
/// in [`Input::Tick`] at the [`deadline`](Tracker::deadline).
#[derive(Debug)]
pub struct Tracker {
    rules: Rules,
    entries: BTreeMap<Name, Entry>,
    /// Those of `next` with [`Due::At`].
    deadlines: BTreeSet<(Instant, Name)>,
    /// Files that are being looked at.
    looking: usize,
    /// Those with [`Due::Ready`] and nothing on its way, in their order, and perhaps some that were.
    ready: VecDeque<Name>,
    flights: BTreeMap<u64, Flight>,
    flights_begun: u64,
    /// Nothing is announced before.
    hold_until: Option<Instant>,
    /// What is in trouble, and what of that the broker knows or is being told.
    troubles: BTreeMap<Name, (&'static str, &'static str)>,
    /// Troubles to be told of.
    troubled: VecDeque<Name>,
    scan: u64,
    is_scanning: bool,
    has_scanned: bool,
    batch: Batch,
    /// Left for another time.
    skipped: u64,
    /// Over the limit.
    untracked: bool,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Default)]
struct Batch {
    number: u64,
    /// Announced since the end of the last one.
    files: u64,
    quiet_since: Option<Instant>,
    is_ending: bool,
}

impl Tracker {
    /// Nothing is known yet but what was announced before: by file, and in the batch of this number.
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

    /// Takes what happens.
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

    /// What is to be done next; may be something after each input.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When a tick is due; may have changed after each input.
    pub fn deadline(&self) -> Option<Instant> {
        let settled = self.deadlines.first().map(|(at, _)| *at);
        let held = self.hold_until.filter(|_| self.has_ready());
        [settled, held, self.batch_due()].into_iter().flatten().min()
    }

    /// Whether nothing is settling, being looked at, waiting or on its way.
    pub fn is_idle(&self) -> bool {
        let nothing_comes = self.deadlines.is_empty() && self.looking == 0 && !self.is_scanning;
        nothing_comes && self.flights.is_empty() && !self.has_ready()
    }

    /// Whether all that the first look has found is announced, and its batch ended.
    pub fn is_done(&self) -> bool {
        let batch_is_over = self.rules.batch_end.is_none() || self.batch.files == 0;
        self.has_scanned && self.is_idle() && batch_is_over
    }

    /// Files that changed while they were looked at, and were left for another time.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// What was announced: all that has to be remembered over restarts.
    pub fn told(&self) -> impl Iterator<Item = (&Name, Stamp)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name, entry.told?)))
    }

    /// Files that are kept track of.
    pub fn tracked(&self) -> usize {
        self.entries.len()
    }

    /// The number of the present batch, and files in it so far.
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
            // Nothing that is not known, whatever it was meanwhile.
            entry.next = None;
        } else {
            let heard = match (seen, before.map(|(_, due)| due.heard())) {
                (Seen::Created, _) => Heard::Made,
                (Seen::Closed, _) => Heard::Closed,
                // To be seen changes nothing in who has it open.
                (_, Some(heard @ (Heard::Made | Heard::Opened(_)))) => heard,
                _ => Heard::Nothing,
            };
            let at = now + heard.quiet(settle);
            let due = match (before.filter(|(next, _)| *next == stamp), seen) {
                (_, Seen::Placed) => Due::Ready,
                // It has not changed since.
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

    /// Enters what is to be done with a file.
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

    /// Somebody has opened it: the one who made it, if nobody has before.
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

    /// Somebody has closed it who has not written to it.
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

    /// Whether files were closed meanwhile nobody may have been told.
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

    /// Changes when a file is looked at.
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
            let entry = self.entries.remove(name).expect("it was just there");
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
            // Something has happened meanwhile, and will be looked at in its turn.
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
                let stamp = entry.told.expect("it was on its way");
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
                let stamp = entry.telling.take().expect("it was on its way");
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
                    // Neither this nor what was before: whatever it is then is news.
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

    /// Has done what is due, and announced as much as may be under way.
    fn pump(&mut self, now: Instant) {
        while let Some((at, _)) = self.deadlines.first()
            && *at <= now
        {
            let (_, name) = self.deadlines.pop_first().expect("it was just there");
            let entry = self.entries.get_mut(&name).expect("what is scheduled is there");
            let Some((stamp, Due::At { heard, .. })) = entry.next else {
                panic!("what is scheduled waits for that");
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
        // What is on its way comes first, and its confirmation brings this back.
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

    /// When the present batch ends if nothing happens until then.
    fn batch_due(&self) -> Option<Instant> {
        let quiet = if self.rules.once { Duration::ZERO } else { self.rules.batch_end? };
        self.rules.batch_end?;
        let may_end = self.batch.files > 0 && !self.batch.is_ending && self.has_scanned;
        // Nothing is announced while the broker refuses.
        let due = self.batch.quiet_since.filter(|_| may_end && self.is_idle())? + quiet;
        Some(self.hold_until.map_or(due, |until| until.max(due)))
    }
}

#[cfg(test)]
mod tests;
