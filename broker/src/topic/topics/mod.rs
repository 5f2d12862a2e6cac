//! All topics of a broker, and the state that they share.

mod admission;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, RwLock};
use tidings_concurrent::{NewTopicWaiters, Watermarked};
use tidings_log::{
    CheckedFile, CommitLog, Committers, DiskSpace, LogId, LogPlan, Recovered, Store, TopicLog,
};
use tidings_protocol::{
    Code, DEAD_LETTER_TOPIC, DEFAULT_TOPIC, Durability, JOB_DONE_TOPIC, PAGE_READY_TOPIC,
    ProtocolError, Seq, StartAt, Sync, TopicName, TopicSettings,
};

use super::cold_reads::ColdReads;
use super::dedup_window::{IDS_MAX, dedup_id};
use super::reader::Reader;
use super::tail::{LineForm, Tail};
use super::tail_memory::TailMemory;
use super::watermarks::TopicWatermarks;
use super::{RESERVED_IN_MEMORY, Topic};
use crate::catalog::{Catalog, CatalogRecord};
use crate::clock::Clock;
use crate::limits::Limits;

/// Topics that always exist: the default topic, which is made first, and those on which groups
/// publish.
const FIXED: [&str; 4] = [DEFAULT_TOPIC, JOB_DONE_TOPIC, DEAD_LETTER_TOPIC, PAGE_READY_TOPIC];

/// The fixed topics on which each event of a group must appear exactly once.
const DURABLE_ONLY: [&str; 3] = [JOB_DONE_TOPIC, DEAD_LETTER_TOPIC, PAGE_READY_TOPIC];

/// The seq of a topic's first event.
const FIRST_SEQ: Seq = Seq(1);

/// Number of threads that commit, which is the number of logs that can be synced at once.
const COMMIT_THREADS: usize = 4;

/// The same for commits that wait for other machines: of all that wait at once, most share a message.
const REPLICATED_COMMIT_THREADS: usize = 64;

/// Number of threads that read. Two, so that one long search does not block all other readers.
const READ_THREADS: usize = 2;

/// All topics of a broker.
#[derive(Debug)]
pub struct Topics {
    index: RwLock<TopicIndex>,
    shared: Arc<TopicsShared>,
    defaults: TopicSettings,
    count_max: usize,
    /// Space of the disk at the last maintenance, if it is known.
    disk_space: Arc<Mutex<Option<DiskSpace>>>,
    /// A run of [`maintain`](Self::maintain) has not finished.
    is_maintaining: Arc<AtomicBool>,
    /// A topic is being verified. That can take long, so only one runs at a time and the other
    /// threads stay free for readers.
    is_verifying: Arc<AtomicBool>,
    pub(crate) new_topic_waiters: NewTopicWaiters,
}

/// The state that the topics of a broker share.
#[derive(Debug)]
pub(super) struct TopicsShared {
    pub(super) memory: TailMemory,
    pub(super) catalog: Catalog,
    pub(super) clock: Clock,
    logs: Option<TopicLogs>,
}

/// The logs of topics, and the threads that block on them.
#[derive(Debug)]
struct TopicLogs {
    store: Arc<dyn Store>,
    committers: Arc<Committers>,
    cold: ColdReads,
}

#[derive(Debug, Default)]
struct TopicIndex {
    by_name: HashMap<TopicName, Arc<Topic>>,
    by_id: HashMap<u64, Arc<Topic>>,
    deleting: HashSet<TopicName>,
    next_id: u64,
    /// The broker is stopping.
    closed: bool,
}

impl TopicIndex {
    fn add(&mut self, topic: &Arc<Topic>) {
        self.by_name.insert(topic.name.clone(), Arc::clone(topic));
        self.by_id.insert(topic.id, Arc::clone(topic));
    }
}

impl TopicsShared {
    pub(super) fn commit(&self, topic: &Arc<Topic>) {
        if let Some(logs) = &self.logs {
            logs.committers.enqueue(Arc::clone(topic) as Arc<dyn CommitLog>);
        }
    }

    pub(super) fn cold(&self) -> Option<&ColdReads> {
        self.logs.as_ref().map(|logs| &logs.cold)
    }
}

impl Drop for Topics {
    fn drop(&mut self) {
        // A task may still hold a topic, while another process is about to take over the data
        // directory.
        if let Some(logs) = &self.shared.logs {
            logs.committers.abandon();
        }
    }
}

impl Topics {
    /// Opens the topics in the store and the fixed topics. Without a store all topics are in
    /// memory. Logs the findings of the recovery.
    ///
    /// Blocks. Fails if an existing file cannot be read.
    pub(crate) fn start(
        limits: &Limits,
        clock: Clock,
        catalog: Catalog,
        store: Option<Arc<dyn Store>>,
        defaults: TopicSettings,
    ) -> io::Result<Arc<Self>> {
        let threads = |store: &dyn Store| {
            if store.is_replicated() { REPLICATED_COMMIT_THREADS } else { COMMIT_THREADS }
        };
        let logs = store.map(|store| TopicLogs {
            committers: Arc::new(Committers::start(threads(&*store))),
            store,
            cold: ColdReads::start(limits.cold_read_bytes_max, READ_THREADS),
        });
        let shared = TopicsShared { memory: TailMemory::new(limits), catalog, clock, logs };
        let topics = Arc::new(Self {
            index: RwLock::default(),
            shared: Arc::new(shared),
            defaults,
            count_max: limits.topics_max.max(FIXED.len()),
            disk_space: Arc::default(),
            is_maintaining: Arc::default(),
            is_verifying: Arc::default(),
            new_topic_waiters: NewTopicWaiters::default(),
        });
        if let Err(error) = topics.recover() {
            // After a failed start, no thread may write to the files that the next start reads.
            topics.close();
            return Err(error);
        }
        for name in FIXED {
            let name = TopicName::new(name).expect("the names of the fixed topics are valid");
            let topic = topics.open_unchecked(&mut topics.index.write(), &name, None);
            topic.reserve();
        }
        Ok(topics)
    }

    /// Only the fixed topics, in memory.
    pub fn in_memory(limits: &Limits, clock: Clock) -> Arc<Self> {
        let catalog = Catalog::in_memory(limits);
        let defaults = TopicSettings { sync: Sync::Memory, ..TopicSettings::default() };
        Self::start(limits, clock, catalog, None, defaults).expect("nothing is read from disk")
    }

    /// Opens the existing logs, and the topics in memory that have settings.
    fn recover(&self) -> io::Result<()> {
        let Some(TopicLogs { store, .. }) = &self.shared.logs else { return Ok(()) };
        for name in store.topics()? {
            let settings = self.settings_of(&name);
            let plan = self.plan(&name, &settings);
            let (log, recovered) = store.open(&LogId::Topic(name.clone()), plan, IDS_MAX)?;
            for finding in &recovered.findings {
                tracing::warn!(topic = %name, "{finding}");
            }
            if recovered.has_lost_end
                && let Err(error) = log.begin_after_loss()
            {
                // The first event tries it again, and otherwise the next start does.
                tracing::error!(topic = %name, %error, "cannot begin a new log file; the next start tries again");
            }
            let deleted = self.shared.catalog.contents().next_of_deleted(&name);
            if deleted.is_some_and(|next| log.bounds().end <= next) {
                // The broker ended while it was deleting the topic.
                log.clear().map_err(|error| io::Error::other(error.to_string()))?;
                continue;
            }
            self.insert_recovered(&name, settings, log, &recovered);
        }
        let with_settings: Vec<_> =
            self.shared.catalog.contents().with_settings().map(|(name, _)| name.clone()).collect();
        for name in with_settings {
            self.open_unchecked(&mut self.index.write(), &name, None).reserve();
        }
        Ok(())
    }

    fn insert_recovered(
        &self,
        name: &TopicName,
        settings: TopicSettings,
        log: Arc<dyn TopicLog>,
        recovered: &Recovered,
    ) {
        let marks = TopicWatermarks::new(recovered.next, recovered.reserved);
        let mut tail = Tail::new(marks, true, Some(recovered.newest_unix_ms));
        for (first, lines) in &recovered.identified {
            for (seq, payload) in super::payloads(name, *first, lines) {
                if let Some(id) =
                    dedup_id(&payload).filter(|id| tail.dedup_window.find(*id).is_none())
                {
                    tail.dedup_window.add(id, seq, self.shared.memory.ids_max());
                }
            }
        }
        self.insert(&mut self.index.write(), name, settings, tail, Some(log)).reserve();
    }

    fn settings_of(&self, name: &TopicName) -> TopicSettings {
        self.shared.catalog.contents().settings(name).unwrap_or(self.defaults)
    }

    fn plan(&self, name: &TopicName, settings: &TopicSettings) -> LogPlan {
        let deleted = self.shared.catalog.contents().next_of_deleted(name);
        LogPlan { first: deleted.unwrap_or(FIRST_SEQ), kept_bytes: settings.retain_bytes }
    }

    /// Creates a topic with its own settings; calls `done` when they are safe.
    ///
    /// Fails as [`open`](Self::open) does, and with [`Code::Exists`].
    pub(crate) fn create(
        &self,
        name: &TopicName,
        settings: TopicSettings,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) -> Result<Arc<Topic>, ProtocolError> {
        let index = &mut *self.index.write();
        if index.by_name.contains_key(name) {
            return Err(ProtocolError::new(Code::Exists, format!("topic {name} exists already")));
        }
        if self.shared.logs.is_none() && settings.sync != Sync::Memory {
            let text =
                "this broker has no data directory: use sync=memory, or start it with --data";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        self.check_new(index, name)?;
        let topic = self.open_unchecked(index, name, Some(settings));
        topic.reserve();
        self.shared.catalog.write(CatalogRecord::Settings { topic: name.clone(), settings }, done);
        Ok(topic)
    }

    /// Changes a topic's settings; they take effect when they are safe, and then `done` is called.
    ///
    /// Fails with [`Code::Conflict`] if events would have to move from memory to disk, or back.
    pub(crate) fn configure(
        &self,
        topic: &Arc<Topic>,
        settings: TopicSettings,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) -> Result<(), ProtocolError> {
        let before = topic.settings();
        if (before.sync == Sync::Memory) != (settings.sync == Sync::Memory) {
            let text = "a topic cannot move between memory and disk; delete it and create it again";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        let (topic, name) = (Arc::clone(topic), topic.name().clone());
        self.shared.catalog.write(
            CatalogRecord::Settings { topic: name, settings },
            move |result| {
                if result.is_ok() {
                    *topic.settings.lock() = settings;
                }
                done(result);
            },
        );
        Ok(())
    }

    /// Deletes a topic with its events and cursors; calls `done` when that is safe. Its next seq is
    /// kept.
    ///
    /// Fails with [`Code::Conflict`] for a fixed topic, and with [`Code::Busy`] while it has
    /// readers or events are being written.
    pub(crate) fn delete(
        self: &Arc<Self>,
        topic: &Arc<Topic>,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) -> Result<(), ProtocolError> {
        let name = topic.name().clone();
        if FIXED.contains(&name.as_str()) {
            let text = format!("topic {name} is built in and cannot be deleted");
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        let mut index = self.index.write();
        let next = {
            let tail = &mut *topic.tail.lock();
            if tail.readers > 0 {
                let text =
                    format!("topic {name} has {} readers; disconnect them first", tail.readers);
                return Err(ProtocolError::new(Code::Busy, text));
            }
            if tail.durable() < tail.head {
                let text = format!("events of {name} are being written; try again");
                return Err(ProtocolError::new(Code::Busy, text));
            }
            topic.deleted.store(true, Ordering::Release);
            self.shared.memory.account(topic, tail);
            tail.head
        };
        index.by_name.remove(&name);
        index.by_id.remove(&topic.id);
        index.deleting.insert(name.clone());
        // `check_new` rejects the name while it is being deleted. `done` may run within this call,
        // so no lock is held.
        drop(index);
        let (topics, topic) = (Arc::clone(self), Arc::clone(topic));
        let record = CatalogRecord::Deleted { topic: name.clone(), next };
        self.shared.catalog.write(record, move |result| {
            if let Err(error) = result {
                topics.restore(&topic);
                return done(Err(error));
            }
            let shared = Arc::clone(&topics.shared);
            let clear = move || {
                let cleared = topic.clear();
                topics.index.write().deleting.remove(&name);
                done(cleared);
            };
            match shared.cold() {
                Some(cold) => cold.spawn_blocking(clear),
                None => clear(),
            }
        });
        Ok(())
    }

    /// Restores a topic, because its deletion could not be stored. No event was removed yet.
    fn restore(&self, topic: &Arc<Topic>) {
        let mut index = self.index.write();
        index.deleting.remove(&topic.name);
        index.add(topic);
        let tail = &mut *topic.tail.lock();
        topic.deleted.store(false, Ordering::Release);
        self.shared.memory.account(topic, tail);
    }

    /// Checks every checksum of a topic on a background thread, and calls `done` with the result.
    ///
    /// Fails with [`Code::Busy`] while another topic is verified.
    pub(crate) fn verify(
        &self,
        topic: &Topic,
        done: impl FnOnce(Result<Vec<CheckedFile>, ProtocolError>) + Send + 'static,
    ) {
        let (Some(cold), Some(log)) = (self.shared.cold(), topic.log.clone()) else {
            return done(Ok(Vec::new()));
        };
        if self.is_verifying.swap(true, Ordering::AcqRel) {
            let text = "another topic is being verified; try again when that is done";
            return done(Err(ProtocolError::new(Code::Busy, text)));
        }
        let verifying = Arc::clone(&self.is_verifying);
        cold.spawn_blocking(move || {
            let checked = log.verify();
            verifying.store(false, Ordering::Release);
            done(checked.map_err(|error| ProtocolError::new(Code::Internal, error.to_string())));
        });
    }

    fn open_unchecked(
        &self,
        index: &mut TopicIndex,
        name: &TopicName,
        settings: Option<TopicSettings>,
    ) -> Arc<Topic> {
        if let Some(topic) = index.by_name.get(name) {
            return Arc::clone(topic);
        }
        let settings = settings.unwrap_or_else(|| self.settings_of(name));
        let (deleted, reserved) = {
            let contents = self.shared.catalog.contents();
            (contents.next_of_deleted(name), contents.reserved(name))
        };
        let next = deleted.max(reserved).unwrap_or(FIRST_SEQ).max(FIRST_SEQ);
        let logs = self.shared.logs.as_ref();
        if let Some(logs) = logs.filter(|_| settings.sync != Sync::Memory) {
            let plan = LogPlan { first: next, kept_bytes: settings.retain_bytes };
            let log = logs.store.fresh(&LogId::Topic(name.clone()), plan);
            let tail = Tail::new(TopicWatermarks::new(next, next), true, None);
            return self.insert(index, name, settings, tail, Some(log));
        }
        // Without a data directory nothing survives a restart, so no seq can be assigned twice.
        let reserved = if logs.is_some() { next } else { Seq(u64::MAX) };
        let marks = TopicWatermarks::in_memory(next, reserved, RESERVED_IN_MEMORY);
        self.insert(index, name, settings, Tail::new(marks, false, None), None)
    }

    fn insert(
        &self,
        index: &mut TopicIndex,
        name: &TopicName,
        settings: TopicSettings,
        mut tail: Tail,
        log: Option<Arc<dyn TopicLog>>,
    ) -> Arc<Topic> {
        let is_replicated = self.shared.logs.as_ref().is_some_and(|it| it.store.is_replicated());
        if log.is_some() && (is_replicated || DURABLE_ONLY.contains(&name.as_str())) {
            tail.show_durable_only();
        }
        let id = index.next_id;
        index.next_id += 1;
        let topic = Arc::new(Topic {
            name: name.clone(),
            id,
            has_backpressure: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
            tail_bytes: AtomicUsize::new(0),
            is_durable_only: tail.is_durable_only,
            dedup_ids: AtomicUsize::new(0),
            settings: Mutex::new(settings),
            tail: Watermarked::new(tail),
            log,
            committing: Mutex::default(),
            shared: Arc::clone(&self.shared),
        });
        index.add(&topic);
        self.shared.memory.add(&topic);
        self.new_topic_waiters.wake_all();
        topic
    }

    /// The topic of that name, if it exists.
    pub fn find(&self, name: &str) -> Option<Arc<Topic>> {
        self.index.read().by_name.get(name).cloned()
    }

    /// Creates a reader for `SUB`, and the topic if it does not exist.
    ///
    /// Fails with [`Code::Limit`] if there are too many topics, and with [`Code::Conflict`] if
    /// `from` is beyond the next seq. Such a seq belongs to another broker, or to a topic in memory
    /// before a restart: the subscriber would mistake new events for those that follow it.
    pub(crate) fn subscribe(
        &self,
        name: &TopicName,
        from: Option<StartAt>,
        waker: Waker,
    ) -> Result<Reader, ProtocolError> {
        if let Some(StartAt::Seq(seq)) = from {
            // Checked before the topic is created, so that an error changes nothing.
            let next = self.find(name.as_str()).map_or(FIRST_SEQ, |topic| topic.public_head());
            if seq > next {
                let text = format!(
                    "next is {next}; topic {name} has not reached {seq}: was the broker restarted \
                     without its data? from=first begins at the oldest event kept"
                );
                return Err(ProtocolError::new(Code::Conflict, text));
            }
        }
        let reader = self.open(name)?.subscribe(from, LineForm::Wire, waker);
        if reader.topic().is_deleted() {
            let text = format!("topic {name} was just deleted; subscribe again");
            return Err(ProtocolError::new(Code::Busy, text));
        }
        Ok(reader)
    }

    /// All topics, sorted by name.
    pub fn list(&self) -> Vec<Arc<Topic>> {
        let mut topics: Vec<_> = self.index.read().by_name.values().cloned().collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    /// The commit threads; `None` if all topics are in memory.
    pub(crate) fn committers(&self) -> Option<&Arc<Committers>> {
        self.shared.logs.as_ref().map(|logs| &logs.committers)
    }

    /// Space of the disk, about a second ago.
    pub(crate) fn disk_space(&self) -> Option<DiskSpace> {
        *self.disk_space.lock()
    }

    pub(crate) fn defaults(&self) -> TopicSettings {
        self.defaults
    }

    /// The catalog: everything but events that survives a restart.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.shared.catalog
    }

    /// The default topic, which always exists.
    #[cfg(test)]
    pub(crate) fn default_topic(&self) -> Arc<Topic> {
        self.find(DEFAULT_TOPIC).expect("the default topic is always there")
    }

    /// The state of an event of the topic with this [`Topic::id`], and the seq up to which the
    /// following events share it. All events of a deleted topic had been safe.
    pub(crate) fn fate(&self, id: u64, seq: Seq) -> (Durability, Seq) {
        match self.index.read().by_id.get(&id) {
            Some(topic) => topic.fate(seq),
            None => (Durability::Durable, Seq(u64::MAX)),
        }
    }

    /// The topic with this [`Topic::id`], unless it was deleted.
    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<Topic>> {
        self.index.read().by_id.get(&id).cloned()
    }

    /// Maintains all topics: due syncs, retention, recovery from a full disk. Call it about once a
    /// second. Does not block.
    pub(crate) fn maintain(self: &Arc<Self>) {
        let Some(TopicLogs { store, cold, .. }) = &self.shared.logs else { return };
        if self.is_maintaining.swap(true, Ordering::AcqRel) {
            return;
        }
        let (topics, tending) = (self.list(), Arc::clone(&self.is_maintaining));
        let (store, disk_space) = (Arc::clone(store), Arc::clone(&self.disk_space));
        cold.spawn_blocking(move || {
            let space = store.space().ok();
            *disk_space.lock() = space;
            for topic in topics {
                topic.maintain();
            }
            tending.store(false, Ordering::Release);
        });
    }

    /// Writes all pending events, and records where every topic ends. Blocks.
    pub(crate) fn close(&self) {
        self.index.write().closed = true;
        // Connections may still publish. A seq assigned after the end was recorded would be
        // assigned again.
        let topics = self.list();
        for topic in &topics {
            topic.stop();
        }
        if let Some(logs) = &self.shared.logs {
            logs.committers.close();
        }
        for topic in &topics {
            topic.close();
        }
        if let Some(logs) = &self.shared.logs {
            logs.cold.close();
        }
        self.shared.catalog.close();
    }
}

/// A topic in memory reserves more seqs than a tail can hold of the shortest events.
const _: () = assert!(RESERVED_IN_MEMORY >= 1 << 20);
