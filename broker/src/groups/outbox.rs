//! What a group announces to others: each announcement appears exactly once on its topic, whatever
//! happens in between.
//!
//! An announcement is a record of the group before it is an event, and the number of the event is one
//! after it. What a start finds announced and without a number may be on its topic already, so it
//! looks there first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tidings_protocol::{Fate, ProtocolError, Seq, StartAt, TopicName};
use tokio::sync::Notify;

use crate::mailbox::ConnId;
use crate::topic::{Reader, Topic, Topics};

/// Events that are looked at in one go.
const TURN_MAX: usize = 1024;

/// Announcements on their way.
pub(super) struct Outbox {
    topics: Arc<Topics>,
    wake: Arc<Notify>,
    /// In the order in which they were decided.
    waiting: VecDeque<Announcement>,
    /// Topics in which those of before this start are looked for.
    searches: BTreeMap<&'static str, Search>,
    /// The serial and the durable mark at which it asked to be woken.
    waits_at: Option<(u64, Seq)>,
}

struct Announcement {
    serial: u64,
    topic: &'static str,
    payload: String,
    /// Where it is on its topic.
    event: Option<(Arc<Topic>, Seq)>,
}

struct Search {
    /// `None` once it has seen everything.
    reader: Option<Reader>,
    /// Everything before was there at the start.
    until: Seq,
    /// What is looked for, and where it was found.
    wanted: HashMap<String, Option<Seq>>,
}

impl Outbox {
    pub(super) fn new(topics: Arc<Topics>, wake: Arc<Notify>) -> Self {
        Self { topics, wake, waiting: VecDeque::new(), searches: BTreeMap::new(), waits_at: None }
    }

    /// Announces something; it was never tried.
    pub(super) fn push(&mut self, serial: u64, topic: &'static str, payload: String) {
        self.waiting.push_back(Announcement { serial, topic, payload, event: None });
    }

    /// Announces something that may be on its topic already, from `from` on.
    pub(super) fn push_again(
        &mut self,
        serial: u64,
        topic: &'static str,
        payload: &str,
        from: Seq,
    ) -> Result<(), ProtocolError> {
        if !self.searches.contains_key(topic) {
            let opened = self.open(topic)?;
            let until = opened.head();
            let reader = Some(opened.reader(StartAt::Seq(from), Arc::clone(&self.wake)));
            self.searches.insert(topic, Search { reader, until, wanted: HashMap::new() });
        }
        let search = self.searches.get_mut(topic).expect("it was just begun");
        search.wanted.insert(payload.to_owned(), None);
        self.push(serial, topic, payload.to_owned());
        Ok(())
    }

    /// Goes on as far as it can without waiting. Hands over what is safe on its topic: its serial,
    /// its topic and its number there. Fails if something cannot be published now; it is to be called
    /// again some time later then.
    pub(super) fn advance(
        &mut self,
        mut sent: impl FnMut(u64, &'static str, Seq),
    ) -> Result<(), ProtocolError> {
        let mut searched = true;
        self.searches.values_mut().for_each(|search| searched &= search.advance());
        if !searched {
            return Ok(());
        }
        let published = self.publish();
        while let Some(first) = self.waiting.front_mut()
            && let Some((topic, seq)) = &first.event
        {
            match topic.fate(*seq).0 {
                Fate::Safe => {
                    sent(first.serial, first.topic, *seq);
                    self.waiting.pop_front();
                }
                // It is published again, or why it cannot be is said.
                Fate::Lost(_) => {
                    first.event = None;
                    self.publish()?;
                }
                Fate::Waiting => {
                    // Whoever waits is woken whenever the mark moves, and then waits no more.
                    let mark = (first.serial, topic.durable());
                    if self.waits_at.replace(mark) != Some(mark) {
                        topic.notify_durable(*seq, &self.wake);
                    }
                    break;
                }
            }
        }
        if self.waiting.is_empty() {
            self.searches.clear();
        }
        published
    }

    fn publish(&mut self) -> Result<(), ProtocolError> {
        for at in 0..self.waiting.len() {
            let Announcement { topic: name, payload, event, .. } = &self.waiting[at];
            if event.is_some() {
                continue;
            }
            let topic = self.open(name)?;
            let search = self.searches.get_mut(name);
            let found = search.and_then(|search| search.wanted.remove(payload)).flatten();
            let seq = match found {
                Some(seq) => seq,
                None => topic.append(ConnId::BROKER, [payload.as_str()])?.start,
            };
            self.waiting[at].event = Some((topic, seq));
        }
        Ok(())
    }

    fn open(&self, topic: &'static str) -> Result<Arc<Topic>, ProtocolError> {
        let name: TopicName = topic.parse().expect("the group's own topics have valid names");
        self.topics.open(&name)
    }
}

impl Search {
    /// Whether it has seen everything.
    fn advance(&mut self) -> bool {
        let Some(reader) = &mut self.reader else { return true };
        while reader.cursor() < self.until {
            let before = reader.cursor();
            for event in reader.next_events(TURN_MAX).events {
                if let Some(found) = self.wanted.get_mut(&event.payload) {
                    *found = Some(event.seq);
                }
            }
            if reader.cursor() == before {
                // The disk wakes the group when it has answered.
                return false;
            }
        }
        self.reader = None;
        true
    }
}
