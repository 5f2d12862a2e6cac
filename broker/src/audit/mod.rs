//! Audit records: one line of JSON for each connection, login, refusal, publish, and change of
//! permissions, in a file of its own or on standard error.
//!
//! ```text
//!  net ──record(event)──▶ enabled? ──yes──▶ bounded queue ──▶ one thread ──▶ the file
//!        └─record_published──▶ totals by connection, name, topic or job, each second ──▲
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

mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tidings_protocol::{Command, JobAction, ManageCommand};
use tidings_rate_limit::{Rate, RateLimiter, SOURCES_MAX, Source};

pub(crate) use self::record::{AuditEvent, Initiator};
use self::record::{AuditRecord, EventClass};
use self::writer::AuditWriter;
use crate::clock::Clock;

/// Records that wait for the disk, about 300 bytes each.
const QUEUE_RECORDS_MAX: usize = 4_096;

/// Records of events that any client of one source can cause without a login.
const SOURCE_RATE: Rate = Rate { per_minute: 60, burst: 120 };

/// Records of one class for one name and source.
const NAME_RATE: Rate = Rate { per_minute: 600, burst: 600 };

/// Totals at once: one for each topic and job of each connection, about 300 bytes each.
const TOTALS_MAX: usize = 16_384;

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
pub(crate) struct Audit(Option<Box<ActiveAudit>>);

#[derive(Debug)]
struct ActiveAudit {
    clock: Clock,
    queue: writer::AuditQueue,
    thread: Mutex<Option<JoinHandle<()>>>,
    limits: Mutex<RecordLimits>,
    totals: Mutex<PublishTotals>,
}

/// Limits how often events are recorded.
#[derive(Debug)]
struct RecordLimits {
    by_source: RateLimiter<Source>,
    /// The same for logged-in clients; names are hashed with `name_hasher`.
    by_name: RateLimiter<(u64, Source, EventClass)>,
    name_hasher: RandomState,
    /// What was suppressed since the last tick, by source; at most `SOURCES_MAX` entries.
    suppressed: HashMap<Source, Suppressed>,
}

/// The number of suppressed records, and of the events and URLs in them.
#[derive(Debug, Default)]
struct Suppressed {
    count: u64,
    events: u64,
}

/// What was published since the last record of it.
#[derive(Debug, Default)]
struct PublishTotals {
    by_connection: HashMap<u64, ConnectionTotals>,
    /// The number of topics and jobs in the totals of all connections.
    count: usize,
}

#[derive(Debug, Default)]
struct ConnectionTotals {
    /// One for each principal that the connection had: switching between principals does not cause
    /// more records.
    totals: Vec<Totals>,
    /// The total in use, if the current principal is known.
    current: Option<usize>,
}

#[derive(Debug)]
struct Totals {
    initiator: Initiator,
    /// Events by topic. The publisher chooses the names while others wait for the lock, so a lookup
    /// must not be linear.
    topics: BTreeMap<Box<str>, u64>,
    /// URLs by job.
    jobs: BTreeMap<Box<str>, u64>,
}

#[derive(Debug, Clone, Copy)]
enum TotalKind {
    Topic,
    /// Its URLs are counted like events.
    Job,
}

impl Audit {
    /// Opens the file. The error is that of the system.
    pub(crate) fn open(config: Option<&AuditConfig>, clock: Clock) -> io::Result<Self> {
        let Some(config) = config else { return Ok(Self(None)) };
        let (queue, thread) = writer::start(AuditWriter::open(config)?, QUEUE_RECORDS_MAX)?;
        Ok(Self(Some(Box::new(ActiveAudit {
            clock,
            queue,
            thread: Mutex::new(Some(thread)),
            limits: Mutex::new(RecordLimits::new(SOURCES_MAX)),
            totals: Mutex::default(),
        }))))
    }

    /// Records an event. The closure is called only if records are written.
    pub(crate) fn record<'a>(&self, record: impl FnOnce() -> (AuditEvent<'a>, Initiator)) {
        let Some(kept) = &self.0 else { return };
        let (what, by) = record();
        if matches!(what, AuditEvent::Disconnected { .. } | AuditEvent::Revoked { .. }) {
            // What the connection published comes before the end of its identity.
            kept.flush_connection(by.conn);
        }
        if kept.admit(&what, &by) {
            kept.write(&what, Some(&by));
        }
    }

    pub(crate) fn record_broker(&self, what: &AuditEvent<'_>) {
        if let Some(kept) = &self.0 {
            kept.write(what, None);
        }
    }

    /// Records an allowed command if it changes something.
    pub(crate) fn record_command(
        &self,
        command: &Command<'_>,
        conn: u64,
        by: impl FnOnce() -> Initiator,
    ) {
        match command {
            Command::Job(ManageCommand { action: JobAction::Add, name: Some(job), .. }) => {
                self.add_to_total(TotalKind::Job, job, 1, conn, by);
            }
            command => {
                if let Some(what) = AuditEvent::for_command(command) {
                    self.record(|| (what, by()));
                }
            }
        }
    }

    /// Records published events, in one total for each topic and second.
    pub(crate) fn record_published(
        &self,
        topic: &str,
        events: u64,
        conn: u64,
        by: impl FnOnce() -> Initiator,
    ) {
        self.add_to_total(TotalKind::Topic, topic, events, conn, by);
    }

    fn add_to_total(
        &self,
        target: TotalKind,
        name: &str,
        events: u64,
        conn: u64,
        by: impl FnOnce() -> Initiator,
    ) {
        let Some(kept) = &self.0 else { return };
        let is_full = {
            let sums = &mut *kept.totals.lock();
            let parts =
                sums.by_connection.entry(conn).or_default().for_initiator(by).counts(target);
            if let Some(sum) = parts.get_mut(name) {
                *sum += events;
                return;
            }
            parts.insert(name.into(), events);
            sums.count += 1;
            sums.count >= TOTALS_MAX
        };
        if is_full {
            kept.flush_all();
        }
    }

    /// The connection may have another principal or transport from now on.
    pub(crate) fn identity_changed(&self, conn: u64) {
        let Some(kept) = &self.0 else { return };
        if let Some(of) = kept.totals.lock().by_connection.get_mut(&conn) {
            of.current = None;
        }
    }

    /// Writes totals, and the counts of suppressed records. To be called every second.
    pub(crate) fn tick(&self) {
        let Some(kept) = &self.0 else { return };
        kept.flush_all();
        let held_back = std::mem::take(&mut kept.limits.lock().suppressed);
        for (source, Suppressed { count, events }) in held_back {
            kept.write(&AuditEvent::Suppressed { from: source.address(), count, events }, None);
        }
    }

    /// Records that were lost since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.0.as_ref().map_or(0, |kept| kept.queue.lost_total())
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
        self.tick();
        kept.queue.close();
        if let Some(thread) = kept.thread.lock().take() {
            // The thread has logged its error.
            let _ = thread.join();
        }
    }
}

impl ConnectionTotals {
    /// The totals of the current principal.
    fn for_initiator(&mut self, by: impl FnOnce() -> Initiator) -> &mut Totals {
        let at = self.current.unwrap_or_else(|| {
            let by = by();
            let known = self.totals.iter().position(|sum| sum.initiator.has_same_identity(&by));
            known.unwrap_or_else(|| {
                let (topics, jobs) = Default::default();
                self.totals.push(Totals { initiator: by, topics, jobs });
                self.totals.len() - 1
            })
        });
        self.current = Some(at);
        &mut self.totals[at]
    }
}

impl Totals {
    fn counts(&mut self, target: TotalKind) -> &mut BTreeMap<Box<str>, u64> {
        match target {
            TotalKind::Topic => &mut self.topics,
            TotalKind::Job => &mut self.jobs,
        }
    }

    fn len(&self) -> usize {
        self.topics.len() + self.jobs.len()
    }
}

impl RecordLimits {
    /// For up to `max` sources, and as many names.
    fn new(max: usize) -> Self {
        Self {
            by_source: RateLimiter::new(max),
            by_name: RateLimiter::new(max),
            name_hasher: RandomState::new(),
            suppressed: HashMap::new(),
        }
    }
}

impl Drop for ActiveAudit {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl ActiveAudit {
    /// Whether the event may be recorded. Otherwise counts it.
    fn admit(&self, what: &AuditEvent<'_>, by: &Initiator) -> bool {
        let (source, now) = (Source::from(by.source), self.clock.now());
        let sources = &mut *self.limits.lock();
        let taken = match what.class() {
            Some(habit) => {
                let name = sources.name_hasher.hash_one(by.name());
                sources.by_name.take((name, source, habit), NAME_RATE, now.0)
            }
            None if what.is_limited_by_source() => {
                sources.by_source.take(source, SOURCE_RATE, now.0)
            }
            None => Ok(()),
        };
        if taken.is_ok() {
            return true;
        }
        let is_known = sources.suppressed.contains_key(&source);
        if is_known || sources.suppressed.len() < SOURCES_MAX {
            let held_back = sources.suppressed.entry(source).or_default();
            held_back.count += 1;
            held_back.events += what.events();
        } else {
            self.queue.count_lost(1);
        }
        false
    }

    fn write(&self, what: &AuditEvent<'_>, by: Option<&Initiator>) {
        self.queue
            .push(AuditRecord { unix_ms: self.clock.unix_ms(), event: what, initiator: by }.line());
    }

    fn flush_connection(&self, conn: u64) {
        let ended = {
            let sums = &mut *self.totals.lock();
            let ended = sums.by_connection.remove(&conn).unwrap_or_default().totals;
            sums.count -= ended.iter().map(Totals::len).sum::<usize>();
            ended
        };
        for sum in &ended {
            self.flush(sum);
        }
    }

    fn flush_all(&self) {
        let sums = std::mem::take(&mut *self.totals.lock());
        for sum in sums.by_connection.values().flat_map(|of| &of.totals) {
            self.flush(sum);
        }
    }

    fn flush(&self, sum: &Totals) {
        let published = sum
            .topics
            .iter()
            .map(|(topic, events)| AuditEvent::Published { topic, events: *events });
        let added =
            sum.jobs.iter().map(|(job, events)| AuditEvent::UrlsAdded { job, events: *events });
        for what in published.chain(added) {
            if self.admit(&what, &sum.initiator) {
                self.write(&what, Some(&sum.initiator));
            }
        }
    }
}
