//! Audit records: one line of JSON for each connection, login, refusal, publish, and change of
//! permissions, in a file of its own or on standard error.
//!
//! ```text
//!  net ──note(what, party)──▶ off? ──no──▶ bounded queue ──▶ one thread ──▶ the file
//!        └─published──▶ totals by connection, name, topic or job, each second ──▲
//! ```
//!
//! No caller waits for the disk. A record that finds the queue full is counted, and a later record
//! reports the count.
//!
//! What any client can cause without a login is recorded a limited number of times a minute for
//! each source, and counted beyond that. What a logged-in client can cause is limited in the same
//! way for each name and source, with ten times the rate. This includes totals, because the client
//! chooses the names of topics and jobs.
//!
//! A record never contains a token, and no text of a client can begin a new record (`escape_json`).

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

/// Records of events that any client of one source can cause without a login.
const AT_WILL: Rate = Rate { per_minute: 60, burst: 120 };

/// Records of one class for one name and source.
const OF_NAME: Rate = Rate { per_minute: 600, burst: 600 };

/// Totals at once: one for each topic and job of each connection, about 300 bytes each.
const SUMS_MAX: usize = 16_384;

/// Where records are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditConfig {
    /// To standard error, together with the log.
    Stderr,
    /// Appended to this file, which is created if needed, readable for its owner only.
    File(PathBuf),
}

/// The audit records of a broker, if it has any. Otherwise each call only checks a pointer.
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

/// Limits how often events are recorded.
#[derive(Debug)]
struct Sources {
    told: Throttle<Source>,
    /// The same for logged-in clients; names are hashed with `names`.
    told_of: Throttle<(u64, Source, Habit)>,
    names: RandomState,
    /// What was suppressed since the last tick, by source; at most `SOURCES_MAX` entries.
    held_back: HashMap<Source, HeldBack>,
}

/// The number of suppressed records, and of the events and URLs in them.
#[derive(Debug, Default)]
struct HeldBack {
    count: u64,
    events: u64,
}

/// What was published since the last record of it.
#[derive(Debug, Default)]
struct Sums {
    by_connection: HashMap<u64, OfConnection>,
    /// The number of topics and jobs in the totals of all connections.
    count: usize,
}

/// The totals of one connection.
#[derive(Debug, Default)]
struct OfConnection {
    /// One for each principal that the connection had: switching between principals does not cause
    /// more records.
    sums: Vec<Sum>,
    /// The total in use, if the current principal is known.
    current: Option<usize>,
}

#[derive(Debug)]
struct Sum {
    by: Party,
    /// Events by topic. The publisher chooses the names while others wait for the lock, so a lookup
    /// must not be linear.
    topics: BTreeMap<Box<str>, u64>,
    /// URLs by job.
    jobs: BTreeMap<Box<str>, u64>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Topic,
    /// Its URLs are counted like events.
    Job,
}

impl Audit {
    /// Opens the file. The error is that of the system.
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

    /// Records an event. The closure is called only if records are written.
    pub(crate) fn note<'a>(&self, record: impl FnOnce() -> (What<'a>, Party)) {
        let Some(kept) = &self.0 else { return };
        let (what, by) = record();
        if matches!(what, What::Left { .. } | What::Revoked { .. }) {
            // What the connection published comes before the end of its identity.
            kept.tell_sum(by.conn);
        }
        if kept.may_tell(&what, &by) {
            kept.tell(&what, Some(&by));
        }
    }

    /// Records an event of the broker itself.
    pub(crate) fn note_own(&self, what: &What<'_>) {
        if let Some(kept) = &self.0 {
            kept.tell(what, None);
        }
    }

    /// Records an allowed command if it changes something.
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

    /// Records published events, in one total for each topic and second.
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

    /// The connection may have another principal or transport from now on.
    pub(crate) fn settle(&self, conn: u64) {
        let Some(kept) = &self.0 else { return };
        if let Some(of) = kept.sums.lock().by_connection.get_mut(&conn) {
            of.current = None;
        }
    }

    /// Writes totals, and the counts of suppressed records. To be called every second.
    pub(crate) fn tend(&self) {
        let Some(kept) = &self.0 else { return };
        kept.tell_sums();
        let held_back = std::mem::take(&mut kept.sources.lock().held_back);
        for (source, HeldBack { count, events }) in held_back {
            kept.tell(&What::HeldBack { from: source.address(), count, events }, None);
        }
    }

    /// Opens the file again after log rotation has moved it away.
    pub(crate) fn reopen(&self) {
        if let Some(kept) = &self.0 {
            kept.queue.reopen();
        }
    }

    /// Writes everything that is left, and waits until it is written.
    pub(crate) fn close(&self) {
        let Some(kept) = &self.0 else { return };
        self.tend();
        kept.queue.close();
        if let Some(thread) = kept.thread.lock().take() {
            // The thread has logged its error.
            let _ = thread.join();
        }
    }
}

impl OfConnection {
    /// The totals of the current principal.
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
    /// For up to `max` sources, and as many names.
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
    /// Whether the event may be recorded. Otherwise counts it.
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
        let ended = {
            let sums = &mut *self.sums.lock();
            let ended = sums.by_connection.remove(&conn).unwrap_or_default().sums;
            sums.count -= ended.iter().map(Sum::len).sum::<usize>();
            ended
        };
        for sum in &ended {
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

/// Counts lost records.
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

/// Shared by callers and the thread that writes.
type SharedLost = Arc<Lost>;
