//! Publishes a group's announcements, each exactly once even across crashes.
//!
//! The group records an announcement before it is published, and records its seq afterwards. A
//! start that finds an announcement without a seq cannot know whether it was published. It
//! therefore searches the topic first.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    /// Oldest decision first.
    waiting: VecDeque<Announcement>,
    /// Searches for announcements of earlier starts, by topic.
    searches: BTreeMap<&'static str, TopicSearch>,
    /// The serial and durable mark for which it last asked each topic to wake it.
    wakes_requested: BTreeMap<&'static str, (u64, Seq)>,
}

struct Announcement {
    serial: u64,
    topic: &'static str,
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
        Self {
            topics,
            wake,
            waiting: VecDeque::new(),
            searches: BTreeMap::new(),
            wakes_requested: BTreeMap::new(),
        }
    }

    /// Adds an announcement that was never published.
    pub(super) fn push(&mut self, serial: u64, topic: &'static str, payload: Arc<str>) {
        self.waiting.push_back(Announcement { serial, topic, payload, event: None });
    }

    /// Adds an announcement that may be on its topic already, at `from` or later.
    pub(super) fn push_again(
        &mut self,
        serial: u64,
        topic: &'static str,
        payload: &Arc<str>,
        from: Seq,
    ) -> Result<(), ProtocolError> {
        if !self.searches.contains_key(topic) {
            let opened = self.open(topic)?;
            let until = opened.head();
            let reader = Some(opened.reader(StartAt::Seq(from), Arc::clone(&self.wake)));
            self.searches.insert(topic, TopicSearch { reader, until, payloads: HashMap::new() });
        }
        let search = self.searches.get_mut(topic).expect("the search was inserted above");
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
        let mut searched = true;
        self.searches.values_mut().for_each(|search| searched &= search.advance());
        if !searched {
            return Ok(());
        }
        let published = loop {
            let published = self.publish();
            if !self.settle(&mut sent) {
                break published;
            }
        };
        if self.waiting.is_empty() {
            self.searches.clear();
        }
        published
    }

    /// Removes the announcements that are safe on their topics. Returns whether more may be
    /// published now.
    fn settle(&mut self, sent: &mut impl FnMut(u64, &'static str, Seq)) -> bool {
        let mut may_publish = false;
        // Topics with an announcement that is not safe: their later ones wait for it.
        let mut behind = BTreeSet::new();
        let (wakes, wake) = (&mut self.wakes_requested, &self.wake);
        self.waiting.retain_mut(|first| {
            let event = first.event.as_ref().filter(|_| !behind.contains(first.topic));
            let fate = event.map(|(topic, seq)| (topic.fate(*seq).0, topic, *seq));
            match fate {
                Some((Durability::Durable, _, seq)) => {
                    sent(first.serial, first.topic, seq);
                    may_publish = true;
                    return false;
                }
                // It is published again, or publishing reports why it cannot be.
                Some((Durability::Lost(_), ..)) => (first.event, may_publish) = (None, true),
                Some((Durability::Pending, topic, seq)) => {
                    // A wake-up is valid for one move of the mark, so it must be requested again
                    // for each.
                    let mark = (first.serial, topic.durable());
                    if wakes.insert(first.topic, mark) != Some(mark) {
                        topic.notify_durable(seq, wake);
                    }
                }
                None => {}
            }
            behind.insert(first.topic);
            true
        });
        may_publish
    }

    /// Publishes what is not published, as one batch for each topic. Leaves out a topic that fails,
    /// and returns the first error.
    fn publish(&mut self) -> Result<(), ProtocolError> {
        // Ends of jobs behind an outcome that is not safe come last.
        let mut unpublished = BTreeMap::<(bool, &'static str), Vec<usize>>::new();
        let mut has_pages = false;
        for (at, waiting) in self.waiting.iter().enumerate() {
            has_pages |= waiting.topic == PAGE_READY_TOPIC;
            if waiting.event.is_none() {
                let is_behind = has_pages && waiting.topic == JOB_DONE_TOPIC;
                unpublished.entry((is_behind, waiting.topic)).or_default().push(at);
            }
        }
        let (mut published, mut pages_fail) = (Ok(()), false);
        for ((is_behind, topic), mut batch) in unpublished {
            if is_behind && !pages_fail {
                continue;
            }
            let result = self.publish_on(topic, &mut batch);
            pages_fail |= topic == PAGE_READY_TOPIC && result.is_err();
            published = published.and(result);
        }
        published
    }

    fn publish_on(
        &mut self,
        name: &'static str,
        batch: &mut Vec<usize>,
    ) -> Result<(), ProtocolError> {
        let topic = self.open(name)?;
        if let Some(search) = self.searches.get_mut(name) {
            batch.retain(|at| {
                let waiting = &mut self.waiting[*at];
                let found = search.payloads.remove(&waiting.payload).flatten();
                waiting.event = found.map(|seq| (Arc::clone(&topic), seq));
                found.is_none()
            });
        }
        if batch.is_empty() {
            return Ok(());
        }
        let payloads = batch.iter().map(|at| &*self.waiting[*at].payload);
        let first = topic.append(ConnId::BROKER, payloads)?.start;
        for (seq, at) in (first.0..).zip(batch) {
            self.waiting[*at].event = Some((Arc::clone(&topic), Seq(seq)));
        }
        Ok(())
    }

    fn open(&self, topic: &'static str) -> Result<Arc<Topic>, ProtocolError> {
        let name: TopicName = topic.parse().expect("the group's own topics have valid names");
        self.topics.open(&name)
    }
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
