//! Who did what: one line of JSON for each time that somebody comes, is let in or refused, publishes, or has rights
//! changed, in a file of its own, or on standard error.
//!
//! ```text
//!  net ──note(what, who)──▶ one look: off? ──no──▶ a bounded queue ──▶ one thread ──▶ the file
//!        └─published──▶ sums, by connection and topic or job, told once a second ──▲
//! ```
//!
//! Nobody waits for the disk here: what finds no room in the queue is counted, and a record says how many there were. What
//! anybody can cause as often as they like is told a few times a minute for each source, then counted likewise.
//! A token is never in a record, and nothing of what others say can begin one (`escape_json`).

mod file;
mod record;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tidings_protocol::{Command, Manage};

use self::file::Writer;
use self::record::Record;
pub(crate) use self::record::{Party, What};
use crate::clock::Clock;
use crate::throttle::{Rate, SOURCES_MAX, Source, Throttle};

/// Records that wait for the disk, about 300 bytes each.
const WAITING_MAX: usize = 4_096;

/// How much is told of what one source can cause at will.
const AT_WILL: Rate = Rate { per_minute: 60, burst: 120 };

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
    /// How much was not told since the last look, by source: `<= SOURCES_MAX` of them.
    held_back: HashMap<Source, u64>,
}

/// What was published since it was told last.
#[derive(Debug, Default)]
struct Sums {
    by_connection: HashMap<u64, Sum>,
    /// Parts of all connections.
    count: usize,
}

#[derive(Debug)]
struct Sum {
    by: Party,
    parts: Vec<Part>,
}

/// So many events, to that.
#[derive(Debug)]
struct Part {
    target: Target,
    name: Box<str>,
    events: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let sources = Sources { told: Throttle::new(SOURCES_MAX), held_back: HashMap::new() };
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
        if what.is_at_will() && !kept.may_tell(by.source) {
            return;
        }
        kept.tell(&what, Some(&by));
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
            let sum = sums
                .by_connection
                .entry(conn)
                .or_insert_with(|| Sum { by: by(), parts: Vec::new() });
            let is_it = |part: &&mut Part| part.target == target && *part.name == *name;
            if let Some(part) = sum.parts.iter_mut().find(is_it) {
                part.events += events;
                return;
            }
            sum.parts.push(Part { target, name: name.into(), events });
            sums.count += 1;
            sums.count >= SUMS_MAX
        };
        if is_full {
            kept.tell_sums();
        }
    }

    /// Whoever is on that connection is another one from here on.
    pub(crate) fn settle(&self, conn: u64) {
        if let Some(kept) = &self.0 {
            kept.tell_sum(conn);
        }
    }

    /// Tells what was summed and held back. To be called every second.
    pub(crate) fn tend(&self) {
        let Some(kept) = &self.0 else { return };
        kept.tell_sums();
        let held_back = std::mem::take(&mut kept.sources.lock().held_back);
        for (source, count) in held_back {
            kept.tell(&What::HeldBack { from: source.address(), count }, None);
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

impl Drop for Kept {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Kept {
    fn may_tell(&self, source: IpAddr) -> bool {
        let source = Source::from(source);
        let sources = &mut *self.sources.lock();
        if sources.told.take(source, AT_WILL, self.clock.now()).is_ok() {
            return true;
        }
        let is_known = sources.held_back.contains_key(&source);
        if is_known || sources.held_back.len() < SOURCES_MAX {
            *sources.held_back.entry(source).or_default() += 1;
        } else {
            self.queue.lose(1);
        }
        false
    }

    fn tell(&self, what: &What<'_>, by: Option<&Party>) {
        self.queue.push(Record { unix_ms: self.clock.unix_ms(), what, by }.line());
    }

    fn tell_sum(&self, conn: u64) {
        let sum = {
            let sums = &mut *self.sums.lock();
            let sum = sums.by_connection.remove(&conn);
            sums.count -= sum.as_ref().map_or(0, |sum| sum.parts.len());
            sum
        };
        if let Some(sum) = sum {
            self.tell_parts(&sum);
        }
    }

    fn tell_sums(&self) {
        let sums = std::mem::take(&mut *self.sums.lock());
        for sum in sums.by_connection.values() {
            self.tell_parts(sum);
        }
    }

    fn tell_parts(&self, sum: &Sum) {
        for Part { target, name, events } in &sum.parts {
            let what = match target {
                Target::Topic => What::Published { topic: name, events: *events },
                Target::Job => What::Added { job: name, events: *events },
            };
            self.tell(&what, Some(&sum.by));
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
