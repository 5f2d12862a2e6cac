//! Publishes a group's announcements, each exactly once even across crashes.
//!
//! The group records an announcement before it is published, and records its seq afterwards. A
//! start that finds an announcement without a seq cannot know whether it was published. It
//! therefore searches the topic first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tidings_protocol::{
    Durability, JOB_DONE_TOPIC, PAGE_READY_TOPIC, ProtocolError, Seq, StartAt, TopicName,
};
use tokio::sync::Notify;

use crate::mailbox::ConnId;
use crate::topic::{Reader, Topic, Topics};

/// Events that a search reads at once.
const SEARCH_EVENTS_MAX: usize = 1024;

/// Announcements that are not yet safe on their topics.
pub(super) struct AnnouncementOutbox {
    topics: Arc<Topics>,
    wake: Arc<Notify>,
    queues: BTreeMap<&'static str, TopicQueue>,
}

/// The announcements of one topic.
#[derive(Default)]
struct TopicQueue {
    /// Oldest decision first.
    waiting: VecDeque<Announcement>,
    /// The search for announcements of earlier starts.
    search: Option<TopicSearch>,
    /// The serial and durable mark for which it last asked the topic to wake it.
    wake_requested: Option<(u64, Seq)>,
}

struct Announcement {
    serial: u64,
    payload: Arc<str>,
    /// Its topic and seq, once it was published.
    event: Option<(Arc<Topic>, Seq)>,
}

struct TopicSearch {
    /// `None` when the search is complete.
    reader: Option<Reader>,
    /// The head of the topic at the start; the search ends there.
    until: Seq,
    /// The payloads to find, each with its seq if it was found.
    payloads: HashMap<Arc<str>, Option<Seq>>,
}

impl AnnouncementOutbox {
    pub(super) fn new(topics: Arc<Topics>, wake: Arc<Notify>) -> Self {
        Self { topics, wake, queues: BTreeMap::new() }
    }

    /// Adds an announcement that was never published.
    pub(super) fn push(&mut self, serial: u64, topic: &'static str, payload: Arc<str>) {
        let queue = self.queues.entry(topic).or_default();
        queue.waiting.push_back(Announcement { serial, payload, event: None });
    }

    /// Adds an announcement that may be on its topic already, at `from` or later.
    pub(super) fn push_again(
        &mut self,
        serial: u64,
        topic: &'static str,
        payload: &Arc<str>,
        from: Seq,
    ) -> Result<(), ProtocolError> {
        let search = match &mut self.queues.entry(topic).or_default().search {
            Some(search) => search,
            none => {
                let opened = open(&self.topics, topic)?;
                let until = opened.head();
                let reader = Some(opened.reader(StartAt::Seq(from), Arc::clone(&self.wake)));
                none.insert(TopicSearch { reader, until, payloads: HashMap::new() })
            }
        };
        search.payloads.insert(Arc::clone(payload), None);
        self.push(serial, topic, Arc::clone(payload));
        Ok(())
    }

    /// Advances as far as possible without waiting. Calls `sent` with serial, topic and seq of each
    /// announcement that is safe on its topic, for each topic in the order of the serials. Fails if
    /// one cannot be published now; call it again later. A topic that fails does not hold back the
    /// others.
    ///
    /// The end of a job is published when the outcomes of its pages are safe, so that a reader of
    /// `job-done` finds all of them on `page-ready`.
    pub(super) fn advance(
        &mut self,
        mut sent: impl FnMut(u64, &'static str, Seq),
    ) -> Result<(), ProtocolError> {
        let mut is_searched = true;
        for search in self.queues.values_mut().filter_map(|queue| queue.search.as_mut()) {
            is_searched &= search.advance();
        }
        if !is_searched {
            return Ok(());
        }
        loop {
            let published = self.publish();
            let mut may_publish = false;
            for (topic, queue) in &mut self.queues {
                may_publish |= queue.settle(&self.wake, |serial, seq| sent(serial, topic, seq));
            }
            if !may_publish {
                return published;
            }
        }
    }

    /// Publishes what is not published, as one batch for each topic. Leaves out a topic that fails,
    /// and returns the first error.
    fn publish(&mut self) -> Result<(), ProtocolError> {
        let outcomes = self.queues.get(PAGE_READY_TOPIC);
        let outcome = outcomes.and_then(|queue| queue.waiting.front()).map(|first| first.serial);
        let (mut published, mut outcomes_fail) = (Ok(()), false);
        // Outcomes come before the ends of jobs in this order.
        for (topic, queue) in self.queues.iter_mut().rev() {
            let is_held = *topic == JOB_DONE_TOPIC && !outcomes_fail;
            let before = outcome.filter(|_| is_held).unwrap_or(u64::MAX);
            let result = queue.publish(&self.topics, topic, before);
            outcomes_fail |= *topic == PAGE_READY_TOPIC && result.is_err();
            published = published.and(result);
        }
        published
    }
}

impl TopicQueue {
    /// Removes the announcements that are safe. Returns whether more may be published now.
    fn settle(&mut self, wake: &Arc<Notify>, mut sent: impl FnMut(u64, Seq)) -> bool {
        let mut may_publish = false;
        while let Some(first) = self.waiting.front_mut()
            && let Some((topic, seq)) = &first.event
        {
            match topic.fate(*seq).0 {
                Durability::Durable => sent(first.serial, *seq),
                // It is published again, or publishing reports why it cannot be.
                Durability::Lost(_) => {
                    first.event = None;
                    return true;
                }
                Durability::Pending => {
                    // A wake-up is valid for one move of the mark, so it must be requested again
                    // for each.
                    let mark = Some((first.serial, topic.durable()));
                    if std::mem::replace(&mut self.wake_requested, mark) != mark {
                        topic.notify_durable(*seq, wake);
                    }
                    return may_publish;
                }
            }
            self.waiting.pop_front();
            may_publish = true;
        }
        if self.waiting.is_empty() {
            self.search = None;
        }
        may_publish
    }

    /// Publishes what is not published and has a serial below `before`, as one batch.
    fn publish(
        &mut self,
        topics: &Topics,
        name: &'static str,
        before: u64,
    ) -> Result<(), ProtocolError> {
        let unpublished = |it: &&mut Announcement| it.event.is_none() && it.serial < before;
        let mut batch: Vec<_> = self.waiting.iter_mut().filter(unpublished).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let topic = open(topics, name)?;
        if let Some(search) = &mut self.search {
            batch.retain_mut(|waiting| {
                let found = search.payloads.remove(&waiting.payload).flatten();
                waiting.event = found.map(|seq| (Arc::clone(&topic), seq));
                found.is_none()
            });
        }
        if batch.is_empty() {
            return Ok(());
        }
        let payloads = batch.iter().map(|waiting| &*waiting.payload);
        let first = topic.append(ConnId::BROKER, payloads)?.start;
        for (seq, waiting) in (first.0..).zip(batch) {
            waiting.event = Some((Arc::clone(&topic), Seq(seq)));
        }
        Ok(())
    }
}

fn open(topics: &Topics, topic: &'static str) -> Result<Arc<Topic>, ProtocolError> {
    let name: TopicName = topic.parse().expect("the group's own topics have valid names");
    topics.open(&name)
}

impl TopicSearch {
    /// Returns whether the search is complete.
    fn advance(&mut self) -> bool {
        let Some(reader) = &mut self.reader else { return true };
        while reader.cursor() < self.until {
            let before = reader.cursor();
            for event in reader.next_events(SEARCH_EVENTS_MAX).events {
                if let Some(found) = self.payloads.get_mut(&*event.payload) {
                    *found = Some(event.seq);
                }
            }
            if reader.cursor() == before {
                // The disk wakes the group when the data has been read.
                return false;
            }
        }
        self.reader = None;
        true
    }
}
