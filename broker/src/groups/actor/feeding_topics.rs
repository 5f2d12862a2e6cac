//! Reads events from the feeding topics.

use std::collections::BTreeMap;

use tidings_protocol::{ProtocolError, Seq, StartAt, TopicName};
use tidings_queue::Input;

use super::GroupActor;
use crate::groups::log::RecordMark;
use crate::topic::{Event, Reader};

/// Events of each topic that the actor consumes before it does anything else.
const EVENTS_PER_TURN: usize = 1024;
/// Payload bytes that go into one record, so that every record can be read at once.
const RECORD_EVENT_BYTES_MAX: usize = 1 << 20;

impl GroupActor {
    /// Consumes new events of the feeding topics. Returns whether there may be more.
    pub(super) fn consume_events(&mut self) -> bool {
        let mut more = false;
        let names: Vec<TopicName> = self.readers.keys().cloned().collect();
        for topic in names {
            let Some(reader) = self.readers.get_mut(&topic) else {
                continue;
            };
            if self.group.is_behind() {
                // The replies about its texts wake the actor.
                continue;
            }
            if self.group.is_full() {
                // The group may stay full for long. The memory that read-ahead data takes is better
                // used elsewhere.
                reader.rewind(reader.cursor());
                continue;
            }
            let found = reader.next_events(EVENTS_PER_TURN);
            if let Some(lag) = found.lag {
                tracing::warn!(
                    group = %self.group.name(), %topic, from = %lag.from, to = %lag.to,
                    "events were trimmed before the group could consume them"
                );
            }
            // The disk wakes the actor when it has read the data.
            more |= reader.is_behind() && !reader.waits_for_disk();
            let next = reader.cursor();
            self.feed(&topic, found.events, next);
        }
        more
    }

    /// Allows the topics to trim events that are safe in the group's records.
    pub(super) fn trim_topics(&mut self, safe: RecordMark) {
        while let Some((_, topic, next)) = self.consumed.pop_front_if(|(mark, ..)| *mark <= safe) {
            if let Some(reader) = self.readers.get(&topic) {
                reader.set_consumed(next);
            }
        }
    }

    /// Passes events of a topic to the state machine, in portions, up to `next`.
    fn feed(&mut self, topic: &TopicName, events: Vec<Event>, next: Seq) {
        let (mut portion, mut bytes) = (Vec::new(), 0);
        for event in events {
            bytes += event.payload.len();
            let after = Seq(event.seq.0 + 1);
            portion.push((event.seq, event.payload));
            if bytes > RECORD_EVENT_BYTES_MAX {
                let events = std::mem::take(&mut portion);
                self.consume(topic, after, events);
                bytes = 0;
            }
        }
        if next > self.group.next_to_consume(topic) {
            self.consume(topic, next, portion);
        }
    }

    fn consume(&mut self, topic: &TopicName, next: Seq, events: Vec<(Seq, String)>) {
        let payloads = events.iter().map(|(_, payload)| payload.as_str());
        let elsewhere = self.job_names.jobs_of_other_groups(self.group.name(), payloads);
        let topic = topic.clone();
        self.handle(Input::Events { topic, next, events, foreign_jobs: elsewhere }, None);
    }

    /// The head of each feeding topic.
    pub(super) fn topic_heads(&self) -> BTreeMap<TopicName, Seq> {
        let head = |(name, reader): (&TopicName, &Reader)| (name.clone(), reader.topic().head());
        self.readers.iter().map(head).collect()
    }

    /// Reads the topics in the settings, each from the group's position, and stops reading all
    /// others.
    pub(super) fn follow_topics(&mut self) -> Result<(), ProtocolError> {
        let wanted = self.group.config().settings.topics.clone();
        self.readers.retain(|name, _| wanted.contains(name));
        for name in wanted {
            if self.readers.contains_key(&name) {
                continue;
            }
            let next = self.group.next_to_consume(&name);
            let reader = self.topics.open(&name)?.reader(StartAt::Seq(next), self.wake.clone());
            // Consumes up to the reader's position at once: a job that begins now must not wait for
            // seqs before it.
            self.feed(&name, Vec::new(), reader.cursor());
            self.readers.insert(name, reader);
        }
        self.wake.notify_one();
        Ok(())
    }
}
