//! Who did what: one line of JSON for each time that somebody comes, is let in or refused, publishes, or has rights
//! changed, in a file of its own, or on standard error.
//!
//! ```text
//!  net ──note(what, who)──▶ one look: off? ──no──▶ a bounded queue ──▶ one thread ──▶ the file
//!        └─published──▶ sums, by connection, name, and topic or job, told once a second ──▲
//! ```
//!
//! Nobody waits for the disk here: what finds no room in the queue is counted, and a record says how many there were. What
//! anybody can cause as often as they like is told a few times a minute for each source, then counted likewise; and so is, ten
//! times as often for each name and source, what somebody can who has logged in, sums too: names of topics and jobs are theirs
//! to choose.
//! A token is never in a record, and nothing of what others say can begin one (`escape_json`).

mod file;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tidings_protocol::{Command, Manage};

use self::file::Writer;
use self::record::{Habit, Record};
pub(crate) use self::record::{Party, What};
use crate::clock::Clock;
use crate::throttle::{Rate, SOURCES_MAX, Source, Throttle};

/// Records that wait for the disk, about 300 bytes each.
const WAITING_MAX: usize = 4_096;

/// How much is told of what one source can cause at will.
const AT_WILL: Rate = Rate { per_minute: 60, burst: 120 };

/// How much is told of what one name does from one source, of each kind.
const OF_NAME: Rate = Rate { per_minute: 600, burst: 600 };

/// Connections, and the topics and jobs whose events are summed at once, about 300 bytes each.
const SUMS_MAX: usize = 16_384;

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditConfig {
    /// To standard error, beside the log.
    Stderr,
    /// To the end of this file, which is made if it is not there, for its owner alone.
    File(PathBuf),
}

/// The records of one broker, if it keeps any. Without them everything here is one look at a pointer.
#[derive(Debug, Default)]
pub(crate) struct Audit(Option<Box<Kept>>);

#[derive(Debug)]
struct Kept {
    clock: Clock,
    queue: file::Queue,
    thread: Mutex<Option<JoinHandle<()>>>,
    sources: Mutex<Sources>,
    sums: Mutex<Sums>,
}

/// Who causes what is told only so often.
#[derive(Debug)]
struct Sources {
    told: Throttle<Source>,
    /// The same of whoever has a name, which is hashed with `names`.
    told_of: Throttle<(u64, Source, Habit)>,
    names: RandomState,
    /// What was not told since the last look, by source: `<= SOURCES_MAX` of them.
    held_back: HashMap<Source, HeldBack>,
}

/// Records that were not told, and the events and URLs that they would have told of.
#[derive(Debug, Default)]
struct HeldBack {
    count: u64,
    events: u64,
}

/// What was published since it was told last.
#[derive(Debug, Default)]
struct Sums {
    by_connection: HashMap<u64, OfConnection>,
    /// Parts of all connections.
    count: usize,
}

/// What came by one connection.
#[derive(Debug, Default)]
struct OfConnection {
    /// Of all who were there: one who comes and goes as somebody else is told of no more often.
    sums: Vec<Sum>,
    /// Whose turn it is, if that is known.
    current: Option<usize>,
}

#[derive(Debug)]
struct Sum {
    by: Party,
    /// Events by topic. Who publishes chooses the names, and others wait meanwhile: none is looked for from end to end.
    topics: BTreeMap<Box<str>, u64>,
    /// URLs by job.
    jobs: BTreeMap<Box<str>, u64>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Topic,
    /// Its URLs are as good as events.
    Job,
}

impl Audit {
    /// Opens the file. An error is the system's.
    pub(crate) fn open(config: Option<&AuditConfig>, clock: Clock) -> io::Result<Self> {
        let Some(config) = config else { return Ok(Self(None)) };
        let (queue, thread) = file::start(Writer::open(config)?, WAITING_MAX)?;
        let sources = Sources::new(SOURCES_MAX);
        Ok(Self(Some(Box::new(Kept {
            clock,
            queue,
            thread: Mutex::new(Some(thread)),
            sources: Mutex::new(sources),
            sums: Mutex::default(),
        }))))
    }

    /// Somebody did something. `record` says what; it is asked only if that is kept.
    pub(crate) fn note<'a>(&self, record: impl FnOnce() -> (What<'a>, Party)) {
        let Some(kept) = &self.0 else { return };
        let (what, by) = record();
        if matches!(what, What::Left { .. } | What::Revoked { .. }) {
            // What was done before comes before.
            kept.tell_sum(by.conn);
        }
        if kept.may_tell(&what, &by) {
            kept.tell(&what, Some(&by));
        }
    }

    /// The broker itself did something.
    pub(crate) fn note_own(&self, what: &What<'_>) {
        if let Some(kept) = &self.0 {
            kept.tell(what, None);
        }
    }

    /// Somebody asked for what a command does, and may. Told if that changes something.
    pub(crate) fn asked(&self, command: &Command<'_>, conn: u64, by: impl FnOnce() -> Party) {
        match command {
            Command::Job(Manage { action: "add", name: Some(job), .. }) => {
                self.sum(Target::Job, job, 1, conn, by);
            }
            command => {
                if let Some(what) = What::asked(command) {
                    self.note(|| (what, by()));
                }
            }
        }
    }

    /// Somebody published so many events. Told with others of the same topic within a second.
    pub(crate) fn published(
        &self,
        topic: &str,
        events: u64,
        conn: u64,
        by: impl FnOnce() -> Party,
    ) {
        self.sum(Target::Topic, topic, events, conn, by);
    }

    fn sum(&self, target: Target, name: &str, events: u64, conn: u64, by: impl FnOnce() -> Party) {
        let Some(kept) = &self.0 else { return };
        let is_full = {
            let sums = &mut *kept.sums.lock();
            let parts = sums.by_connection.entry(conn).or_default().of(by).parts(target);
            if let Some(sum) = parts.get_mut(name) {
                *sum += events;
                return;
            }
            parts.insert(name.into(), events);
            sums.count += 1;
            sums.count >= SUMS_MAX
        };
        if is_full {
            kept.tell_sums();
        }
    }

    /// Whoever is on that connection may be another one from here on, or speak for those who come by another way.
    pub(crate) fn settle(&self, conn: u64) {
        let Some(kept) = &self.0 else { return };
        if let Some(of) = kept.sums.lock().by_connection.get_mut(&conn) {
            of.current = None;
        }
    }

    /// Tells what was summed and held back. To be called every second.
    pub(crate) fn tend(&self) {
        let Some(kept) = &self.0 else { return };
        kept.tell_sums();
        let held_back = std::mem::take(&mut kept.sources.lock().held_back);
        for (source, HeldBack { count, events }) in held_back {
            kept.tell(&What::HeldBack { from: source.address(), count, events }, None);
        }
    }

    /// Opens the file anew: who rotates it has moved it away.
    pub(crate) fn reopen(&self) {
        if let Some(kept) = &self.0 {
            kept.queue.reopen();
        }
    }

    /// Tells everything that is left, and waits until it is written.
    pub(crate) fn close(&self) {
        let Some(kept) = &self.0 else { return };
        self.tend();
        kept.queue.close();
        if let Some(thread) = kept.thread.lock().take() {
            // It has said what went wrong.
            let _ = thread.join();
        }
    }
}

impl OfConnection {
    /// The sum of whoever is there now.
    fn of(&mut self, by: impl FnOnce() -> Party) -> &mut Sum {
        let at = self.current.unwrap_or_else(|| {
            let by = by();
            let known = self.sums.iter().position(|sum| sum.by.is_as(&by));
            known.unwrap_or_else(|| {
                self.sums.push(Sum { by, topics: BTreeMap::new(), jobs: BTreeMap::new() });
                self.sums.len() - 1
            })
        });
        self.current = Some(at);
        &mut self.sums[at]
    }
}

impl Sum {
    fn parts(&mut self, target: Target) -> &mut BTreeMap<Box<str>, u64> {
        match target {
            Target::Topic => &mut self.topics,
            Target::Job => &mut self.jobs,
        }
    }

    fn len(&self) -> usize {
        self.topics.len() + self.jobs.len()
    }
}

impl Sources {
    /// So many of each kind.
    fn new(max: usize) -> Self {
        Self {
            told: Throttle::new(max),
            told_of: Throttle::new(max),
            names: RandomState::new(),
            held_back: HashMap::new(),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Kept {
    /// Whether that is told. If not it is counted.
    fn may_tell(&self, what: &What<'_>, by: &Party) -> bool {
        let (source, now) = (Source::from(by.source), self.clock.now());
        let sources = &mut *self.sources.lock();
        let taken = match what.habit() {
            Some(habit) => {
                let name = sources.names.hash_one(by.who());
                sources.told_of.take((name, source, habit), OF_NAME, now)
            }
            None if what.is_at_will() => sources.told.take(source, AT_WILL, now),
            None => Ok(()),
        };
        if taken.is_ok() {
            return true;
        }
        let is_known = sources.held_back.contains_key(&source);
        if is_known || sources.held_back.len() < SOURCES_MAX {
            let held_back = sources.held_back.entry(source).or_default();
            held_back.count += 1;
            held_back.events += what.events();
        } else {
            self.queue.lose(1);
        }
        false
    }

    fn tell(&self, what: &What<'_>, by: Option<&Party>) {
        self.queue.push(Record { unix_ms: self.clock.unix_ms(), what, by }.line());
    }

    fn tell_sum(&self, conn: u64) {
        let told = {
            let sums = &mut *self.sums.lock();
            let told = sums.by_connection.remove(&conn).unwrap_or_default().sums;
            sums.count -= told.iter().map(Sum::len).sum::<usize>();
            told
        };
        for sum in &told {
            self.tell_parts(sum);
        }
    }

    fn tell_sums(&self) {
        let sums = std::mem::take(&mut *self.sums.lock());
        for sum in sums.by_connection.values().flat_map(|of| &of.sums) {
            self.tell_parts(sum);
        }
    }

    fn tell_parts(&self, sum: &Sum) {
        let published =
            sum.topics.iter().map(|(topic, events)| What::Published { topic, events: *events });
        let added = sum.jobs.iter().map(|(job, events)| What::Added { job, events: *events });
        for what in published.chain(added) {
            if self.may_tell(&what, &sum.by) {
                self.tell(&what, Some(&sum.by));
            }
        }
    }
}

/// Counts what was lost.
#[derive(Debug, Default)]
struct Lost(AtomicU64);

impl Lost {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Shared by those who tell and the thread that writes.
type SharedLost = Arc<Lost>;
