//! Topics: append-only streams of one-line events, each encoded once as what readers receive.
//!
//! ```text
//!   append(run of payloads)         ┌───────────── tail, bounded in bytes ─────────────┐
//!   ─────────────────────▶  evicted │ batch │ batch │   batch   │ batch │ batch │ open │
//!                                   └───▲───────────────▲───────────────────▲──────────┘
//!                                  first_kept        cursor (a reader)     head
//! ```
//!
//! One append is one batch, one lock and one wake-up of each reader that has everything. A reader
//! copies nothing: it takes slices of the same memory. Nothing is ever skipped without a [`Lag`].

mod arena;
mod batch;
mod reader;
mod tail;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::{Mutex, RwLock};
use tidings_protocol::{
    Code, DEAD_LETTER_TOPIC, DEFAULT_TOPIC, Fate, JOB_DONE_TOPIC, ProtocolError, Seq, StartAt,
    TopicName,
};
use tokio::sync::Notify;

use self::reader::Notifies;
use self::tail::Tail;
use crate::clock::Clock;
use crate::config::Limits;
use crate::mailbox::ConnId;

pub(crate) use self::batch::count_lines;
pub(crate) use self::reader::Fetched;
pub use self::reader::{Event, Events, Lag, Reader};
pub(crate) use self::tail::Form;

/// Topics that are always there, whatever else comes into being first: the one of the notifier,
/// which is the first, and those on which groups announce.
const FIXED: [&str; 3] = [DEFAULT_TOPIC, JOB_DONE_TOPIC, DEAD_LETTER_TOPIC];

/// The number of a topic's first event.
const FIRST_SEQ: Seq = Seq(1);

/// All topics of a broker.
#[derive(Debug)]
pub struct Topics {
    index: RwLock<Index>,
    memory: Arc<Memory>,
    count_max: usize,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Index {
    by_name: HashMap<TopicName, Arc<Topic>>,
    /// By [`Topic::id`].
    by_id: Vec<Arc<Topic>>,
}

impl Topics {
    /// No topics but the fixed ones.
    pub fn new(limits: &Limits, clock: Clock) -> Arc<Self> {
        let topics = Arc::new(Self {
            index: RwLock::default(),
            memory: Arc::new(Memory {
                tail_bytes_max: limits.tail_bytes_max,
                tails_bytes_max: limits.tails_bytes_max,
                bytes: AtomicUsize::new(0),
                topics: RwLock::default(),
            }),
            count_max: limits.topics_max.max(FIXED.len()),
            clock,
        });
        for name in FIXED {
            let name = TopicName::new(name).expect("the fixed topics' names are names");
            topics.open(&name).expect("the fixed topics are within the limit");
        }
        topics
    }

    /// The topic of that name, which comes into being if it is new.
    ///
    /// Refused with [`Code::Limit`] if there are too many.
    pub fn open(&self, name: &TopicName) -> Result<Arc<Topic>, ProtocolError> {
        if let Some(topic) = self.find(name.as_str()) {
            return Ok(topic);
        }
        let index = &mut *self.index.write();
        if let Some(topic) = index.by_name.get(name) {
            return Ok(Arc::clone(topic));
        }
        if index.by_id.len() >= self.count_max {
            return Err(ProtocolError::new(
                Code::Limit,
                format!("there are {} topics, and no more are allowed", self.count_max),
            ));
        }
        let topic = Arc::new(Topic {
            name: name.clone(),
            id: index.by_id.len() as u64,
            head: AtomicU64::new(FIRST_SEQ.0),
            bytes: AtomicUsize::new(0),
            tail: Mutex::new(Tail::new()),
            memory: Arc::clone(&self.memory),
            clock: self.clock,
        });
        index.by_name.insert(name.clone(), Arc::clone(&topic));
        index.by_id.push(Arc::clone(&topic));
        self.memory.topics.write().push(Arc::downgrade(&topic));
        Ok(topic)
    }

    /// The topic of that name, if it exists.
    pub fn find(&self, name: &str) -> Option<Arc<Topic>> {
        self.index.read().by_name.get(name).cloned()
    }

    /// A reader for `SUB`, of a topic that comes into being if it is new.
    ///
    /// Refused with [`Code::Limit`] if there are too many, and with [`Code::Conflict`] if `from`
    /// is a number beyond the next one: it is of another run of the broker, or of another broker,
    /// and what came would be taken for what follows it.
    pub(crate) fn subscribe(
        &self,
        name: &TopicName,
        from: Option<StartAt>,
        waker: Waker,
    ) -> Result<Reader, ProtocolError> {
        if let Some(StartAt::Seq(seq)) = from {
            // Before it is made, so that a refusal changes nothing.
            let next = self.find(name.as_str()).map_or(FIRST_SEQ, |topic| topic.head());
            if seq > next {
                let text = format!(
                    "next is {next}; {name} has not come to {seq}: has the broker started anew? \
                     from=first is the oldest event kept"
                );
                return Err(ProtocolError::new(Code::Conflict, text));
            }
        }
        Ok(self.open(name)?.subscribe(from, Form::Wire, waker))
    }

    /// All topics in the order of their names.
    pub fn list(&self) -> Vec<Arc<Topic>> {
        let mut topics = self.index.read().by_id.clone();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    /// The default topic, which always exists.
    pub(crate) fn default_topic(&self) -> Arc<Topic> {
        Arc::clone(&self.index.read().by_id[0])
    }

    /// What has become of an event of the topic with this [`Topic::id`], and up to which number,
    /// exclusive, the same holds for those that follow.
    pub(crate) fn fate(&self, id: u64, seq: Seq) -> (Fate, Seq) {
        let at = usize::try_from(id).expect("an id is an index");
        let durable = self.index.read().by_id[at].durable();
        if seq < durable { (Fate::Safe, durable) } else { (Fate::Waiting, Seq(u64::MAX)) }
    }
}

/// One topic.
#[derive(Debug)]
pub struct Topic {
    name: TopicName,
    id: u64,
    /// The tail's head, for those who only want to know whether there is something new. Written
    /// under the tail's lock, before anybody is woken.
    head: AtomicU64,
    /// The tail's bytes, for comparing tails without their locks.
    bytes: AtomicUsize,
    tail: Mutex<Tail>,
    memory: Arc<Memory>,
    clock: Clock,
}

impl Topic {
    /// Its name.
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// A number that stands for it in this run of the broker.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Appends events, all of them one line without control characters (the protocol has seen to
    /// that), and returns their numbers. Wakes every reader that had everything, once.
    ///
    /// The topic is locked while `payloads` runs.
    pub fn append<'a>(
        &self,
        origin: ConnId,
        payloads: impl IntoIterator<Item = &'a str>,
    ) -> Range<Seq> {
        let (now, unix_ms) = (self.clock.now(), self.clock.unix_ms());
        let (numbers, mut waiting, grown) = {
            let tail = &mut *self.tail.lock();
            let first = tail.head();
            tail.append(self.name.as_str(), origin, payloads, now, unix_ms);
            let head = tail.head();
            if head == first {
                // Who is woken may rely on finding something.
                return first..head;
            }
            self.head.store(head.0, Ordering::Release);
            let grown = self.memory.account(self, tail);
            (first..head, tail.take_waiting(), grown)
        };
        if !waiting.is_empty() {
            for waker in waiting.drain() {
                waker.wake();
            }
            self.tail.lock().give_back(waiting);
        }
        if grown {
            self.memory.relieve();
        }
        numbers
    }

    /// The next number to be given.
    pub fn head(&self) -> Seq {
        Seq(self.head.load(Ordering::Acquire))
    }

    /// The first number that is not yet as safe as the topic promises. Topics are in memory and
    /// promise nothing, so this is the head.
    pub fn durable(&self) -> Seq {
        self.head()
    }

    /// A group's reader, which begins at `from` and takes what is durable. A number beyond the head
    /// begins at the head; one below what is kept begins with a [`Lag`].
    ///
    /// `wake` is notified when there is something to take after there was nothing.
    pub fn reader(self: &Arc<Self>, from: StartAt, wake: Arc<Notify>) -> Reader {
        let waker = Waker::from(Arc::new(Notifies(wake)));
        self.subscribe(Some(from), Form::Wire, waker).keeping()
    }

    /// Whether there is more in memory than there should be because a group has not taken it. Who
    /// publishes waits then: `waker` is woken when that may have changed.
    pub(crate) fn is_held_up(&self, waker: Option<&Waker>) -> bool {
        if self.bytes.load(Ordering::Relaxed) <= self.memory.tail_bytes_max {
            return false;
        }
        let tail = &mut *self.tail.lock();
        let held_up = tail.is_held_up(self.memory.tail_bytes_max);
        if let (true, Some(waker)) = (held_up, waker) {
            tail.wait_to_publish(waker);
        }
        held_up
    }

    /// A group has taken everything before `cursor`: what only it has kept goes.
    fn taken(&self, keeper: usize, cursor: Seq) {
        self.let_go(|tail| tail.taken(keeper, cursor));
    }

    fn forget_keeper(&self, keeper: usize) {
        self.let_go(|tail| tail.forget_keeper(keeper));
    }

    fn let_go(&self, change: impl FnOnce(&mut Tail)) {
        let publishers = {
            let tail = &mut *self.tail.lock();
            change(tail);
            self.memory.account(self, tail);
            let held_up = tail.is_held_up(self.memory.tail_bytes_max);
            if held_up { Vec::new() } else { tail.take_publishers() }
        };
        for publisher in publishers {
            publisher.wake();
        }
    }

    /// A reader that wakes a task, and takes events in the given form, by default those that
    /// come. The bare form is there from the head on only.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        from: Option<StartAt>,
        form: Form,
        waker: Waker,
    ) -> Reader {
        let cursor = {
            let tail = &mut *self.tail.lock();
            tail.enter(form);
            match form {
                Form::Wire => tail.resolve(from),
                Form::Bare { .. } => tail.head(),
            }
        };
        Reader::new(Arc::clone(self), form, cursor, waker)
    }

    /// Counts for people.
    pub fn show(&self) -> TopicShow {
        let tail = self.tail.lock();
        TopicShow {
            head: tail.head(),
            first_kept: tail.first_kept(),
            bytes: tail.bytes(),
            batches: tail.batches(),
            readers: tail.readers(),
            per_second: tail.rate(self.clock.now()),
        }
    }

    /// The events of encoded lines, of which the first has the number `first`.
    fn decode<'a>(&'a self, first: Seq, encoded: &'a [u8]) -> impl Iterator<Item = Event> + 'a {
        // `MSG <topic> `, then the number, a space, the payload and CRLF.
        let name_end = "MSG ".len() + self.name.as_str().len() + " ".len();
        let lines = encoded.split_inclusive(|byte| *byte == b'\n');
        lines.zip(first.0..).map(move |(line, seq)| {
            let numbered = &line[name_end..line.len() - "\r\n".len()];
            let space = memchr::memchr(b' ', numbered).expect("a space follows the number");
            let payload = String::from_utf8_lossy(&numbered[space + 1..]).into_owned();
            Event { seq: Seq(seq), payload }
        })
    }
}

/// A topic in numbers, for people.
#[derive(Debug, Clone, Copy)]
pub struct TopicShow {
    /// The next number to be given.
    pub head: Seq,
    /// The oldest number kept.
    pub first_kept: Seq,
    /// Bytes of memory of what is kept.
    pub bytes: usize,
    /// Batches kept.
    pub batches: usize,
    /// Readers: subscriptions, peers and groups.
    pub readers: usize,
    /// Events per second, averaged over the last ten seconds or so.
    pub per_second: f64,
}

/// The memory of all tails.
#[derive(Debug)]
struct Memory {
    tail_bytes_max: usize,
    tails_bytes_max: usize,
    /// Sum of the `bytes` of all topics.
    bytes: AtomicUsize,
    topics: RwLock<Vec<Weak<Topic>>>,
}

impl Memory {
    /// Keeps a topic's tail within its own bound and its share in the sum. Returns whether it
    /// has grown. Called with the tail's lock, so that a topic's own figures are never mixed up.
    fn account(&self, topic: &Topic, tail: &mut Tail) -> bool {
        tail.shrink_to(self.tail_bytes_max);
        let bytes = tail.bytes();
        let before = topic.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.bytes.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - bytes, Ordering::Relaxed);
        }
        bytes > before
    }

    /// While all tails together are too much, the longest gives way; one that a group has not taken
    /// cannot (who publishes there waits), so then the next. Tails grow by blocks, so this is
    /// seldom, and may look at all topics. Called without any tail's lock.
    fn relieve(&self) {
        while self.bytes.load(Ordering::Relaxed) > self.tails_bytes_max {
            let mut topics: Vec<Arc<Topic>> =
                self.topics.read().iter().filter_map(Weak::upgrade).collect();
            topics.sort_by_key(|topic| Reverse(topic.bytes.load(Ordering::Relaxed)));
            if !topics.iter().any(|topic| self.relieve_by(topic)) {
                return;
            }
        }
    }

    /// Whether the topic gave some memory back.
    fn relieve_by(&self, topic: &Topic) -> bool {
        let tail = &mut *topic.tail.lock();
        let before = tail.bytes();
        tail.give_way();
        self.account(topic, tail);
        tail.bytes() < before
    }
}

#[cfg(test)]
mod tests;
