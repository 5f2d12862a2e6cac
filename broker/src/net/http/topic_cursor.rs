//! What streams of events and long polls share: where they begin, what they leave out, and events
//! in their turn.

use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use tidings_protocol::{CanonicalUrl, Code, Payload, ProtocolError, Seq, StartAt, TopicName};

use super::error::ErrorResponse;
use super::request_input::QueryParams;
use crate::net::Hub;
use crate::topic::{Fetched, Lag, Reader, WaiterSlot};

/// Which events are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct EventFilter {
    /// Those about a URL on this host.
    host: Option<String>,
    /// Those about a target that begins so.
    prefix: Option<String>,
}

impl EventFilter {
    /// The parameters of it.
    pub(super) const PARAMS: [&str; 2] = ["host", "prefix"];

    pub(super) fn from_params(params: &QueryParams) -> Self {
        let host = params.get("host").map(str::to_ascii_lowercase);
        Self { host, prefix: params.get("prefix").map(str::to_owned) }
    }

    /// Whether everything is wanted.
    pub(super) fn matches_all(&self) -> bool {
        self.host.is_none() && self.prefix.is_none()
    }

    pub(super) fn matches(&self, payload: &str) -> bool {
        if self.matches_all() {
            return true;
        }
        let Some(target) = Payload::parse(payload).target() else { return false };
        let begins = |prefix: &String| {
            target.starts_with(prefix.as_str())
                || CanonicalUrl::parse(target).is_ok_and(|url| url.as_str().starts_with(prefix))
        };
        let is_on = |host: &String| CanonicalUrl::parse(target).is_ok_and(|url| url.host() == host);
        self.host.as_ref().is_none_or(is_on) && self.prefix.as_ref().is_none_or(begins)
    }
}

/// A cursor on a topic that some task follows. Whoever only reads makes no topic: one that is not
/// there is waited for, and followed from its first event when it is.
#[derive(Debug)]
pub(super) struct TopicCursor {
    hub: Arc<Hub>,
    topic: TopicName,
    /// What was asked for, of a topic that is not there yet.
    reader: Option<Reader>,
    /// Among those who wait for new topics.
    waiter_slot: Option<WaiterSlot>,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum NextEvents {
    /// Encoded lines of events from this number on.
    Lines(Seq, Bytes),
    /// These were kept and are gone.
    Lag(Lag),
    /// These never were.
    Gap(Lag),
    /// Nothing at the moment, unless the disk is just asked. The task is woken when there is.
    Empty {
        /// The disk is asked.
        is_reading_disk: bool,
    },
}

impl TopicCursor {
    /// Begins; `from` is what the parameter says, or the number after the last one that is known.
    pub(super) fn open(
        hub: &Arc<Hub>,
        topic: TopicName,
        from: Option<StartAt>,
    ) -> Result<Self, ErrorResponse> {
        let is_there = hub.topics.find(topic.as_str()).is_some();
        let reader = match from {
            // A number beyond the first is of another broker; the topic says so.
            _ if is_there => Some(hub.topics.subscribe(&topic, from, Waker::noop().clone())?),
            Some(StartAt::Seq(seq)) if seq > Seq(1) => {
                let text =
                    format!("next is 1; {topic} has not come to {seq}: there is no such topic");
                return Err(ProtocolError::new(Code::Conflict, text).into());
            }
            _ => None,
        };
        Ok(Self { hub: Arc::clone(hub), topic, reader, waiter_slot: None })
    }

    /// The next number to take.
    pub(super) fn next_seq(&self) -> Seq {
        self.reader.as_ref().map_or(Seq(1), Reader::cursor)
    }

    /// Whether the cursor is where it was to begin, and not below because the disk is asked where
    /// that is.
    pub(super) fn is_start_resolved(&self) -> bool {
        self.reader.as_ref().is_none_or(Reader::is_start_resolved)
    }

    /// The number of the topic, once it is there.
    pub(super) fn topic_id(&self) -> Option<u64> {
        self.reader.as_ref().map(|reader| reader.topic().id())
    }

    /// Takes at most about so many bytes, and at least one batch if there is one.
    pub(super) fn next(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> NextEvents {
        if self.reader.is_none() && self.topic_exists_or_wait(cx) {
            let first = Some(StartAt::First);
            self.reader = self.hub.topics.subscribe(&self.topic, first, cx.waker().clone()).ok();
        }
        let Some(reader) = &mut self.reader else {
            return NextEvents::Empty { is_reading_disk: false };
        };
        reader.set_waker(cx.waker());
        let mut run = None;
        match reader.fetch(bytes_max, 1, |first, lines| run = Some((first, lines))) {
            Fetched::Lag(lag) => NextEvents::Lag(lag),
            Fetched::Gap(gap) => NextEvents::Gap(gap),
            Fetched::Delivered => match run {
                Some((first, lines)) => NextEvents::Lines(first, lines),
                None => NextEvents::Empty { is_reading_disk: reader.waits_for_disk() },
            },
        }
    }

    /// Whether the topic has come into being. If not, the task is woken to look again.
    fn topic_exists_or_wait(&mut self, cx: &Context<'_>) -> bool {
        let topics = &self.hub.topics;
        let look = || topics.find(self.topic.as_str());
        topics.new_topic_waiters.find_or_wait(&mut self.waiter_slot, cx.waker(), look).is_some()
    }
}

impl Drop for TopicCursor {
    fn drop(&mut self) {
        self.hub.topics.new_topic_waiters.leave(self.waiter_slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(query: &str) -> EventFilter {
        let uri = format!("/x?{query}").parse().unwrap();
        EventFilter::from_params(&QueryParams::parse(&uri, &EventFilter::PARAMS).unwrap())
    }

    // PROTOCOL: H6
    #[test]
    fn a_filter_matches_only_the_target() {
        let host = filter("host=Example.org");
        assert!(host.matches("http://example.org/a x=1"));
        assert!(host.matches("https://EXAMPLE.org:8443/"));
        assert!(!host.matches("http://www.example.org/"));
        assert!(!host.matches("http://other.example/ source=example.org"));
        assert!(!host.matches("example.org is up"));
        let prefix = filter("prefix=http://example.org/posts/");
        assert!(prefix.matches("http://example.org/posts/1"));
        assert!(prefix.matches("http://EXAMPLE.org:80/posts/1"), "in its canonical form");
        assert!(!prefix.matches("http://example.org/"));
        assert!(filter("prefix=/srv/").matches("/srv/a.png"));
        assert!(filter("").matches("anything"));
        assert!(!filter("host=a.example&prefix=http://b.example").matches("http://a.example/"));
    }
}
