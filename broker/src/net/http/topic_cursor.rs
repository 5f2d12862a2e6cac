//! The cursor of a stream or a long poll on a topic, and the filter of its events.

use std::sync::Arc;
use std::task::{Context, Waker};

use tidings_protocol::{
    AttributeFilter, CanonicalUrl, Code, HostPattern, Payload, ProtocolError, Seq, StartAt,
    TopicName,
};

use super::error::{HttpResult, bad_request};
use super::request_input::{QueryParams, REPEATABLE};
use crate::net::Shared;
use crate::topic::{EventRun, Fetched, Lag, Reader, WaiterSlot};

/// Selects events by their target and attributes.
#[derive(Debug, Clone, Default)]
pub(super) struct EventFilter {
    /// The target is a URL on this host.
    host: Option<String>,
    /// The target begins with this text, as written or in its canonical form.
    prefix: Option<String>,
    attributes: AttributeFilter,
}

impl EventFilter {
    pub(super) fn from_params(params: &QueryParams) -> HttpResult<Self> {
        let host = params.get("host").map(parse_host).transpose()?;
        let attributes = AttributeFilter::parse(params.all(REPEATABLE))?;
        Ok(Self { host, prefix: params.get("prefix").map(str::to_owned), attributes })
    }

    pub(super) fn matches_all(&self) -> bool {
        self.host.is_none() && self.prefix.is_none() && self.attributes.matches_all()
    }

    pub(super) fn matches(&self, payload: &str) -> bool {
        if !self.attributes.matches(payload) {
            return false;
        }
        if self.host.is_none() && self.prefix.is_none() {
            return true;
        }
        let Some(target) = Payload::parse(payload).target() else { return false };
        let has_prefix = |prefix: &String| {
            target.starts_with(prefix.as_str())
                || CanonicalUrl::parse(target).is_ok_and(|url| url.as_str().starts_with(prefix))
        };
        let is_on = |host: &String| CanonicalUrl::parse(target).is_ok_and(|url| url.host() == host);
        self.host.as_ref().is_none_or(is_on) && self.prefix.as_ref().is_none_or(has_prefix)
    }
}

/// The host as in a canonical URL, which is compared with those of events.
fn parse_host(text: &str) -> HttpResult<String> {
    let host: HostPattern =
        text.parse().map_err(|error| bad_request(format!("host={text}: {error}")))?;
    if host.is_below() {
        return Err(bad_request(format!("host={text}: expected one host, such as example.org")));
    }
    Ok(host.host().to_owned())
}

/// A cursor on a topic. Reading creates no topic: the cursor waits for a topic that does not exist,
/// and begins at its first event when another client creates it.
#[derive(Debug)]
pub(super) struct TopicCursor {
    shared: Arc<Shared>,
    topic: TopicName,
    /// `None` while the topic does not exist.
    reader: Option<Reader>,
    /// The place of this task among those that wait for new topics.
    waiter_slot: Option<WaiterSlot>,
}

/// What [`TopicCursor::next`] returns.
#[derive(Debug)]
pub(super) enum NextEvents {
    /// Consecutive runs, at least one. Those of a read from the disk hold one of the buffers that
    /// all readers share, so the caller copies what it needs.
    Lines(Vec<EventRun>),
    /// These events existed and are gone.
    Lag(Lag),
    /// These seqs are empty.
    Gap(Lag),
    /// No event is available now. The task is woken when one is.
    Empty {
        /// A read from the disk is under way.
        is_reading_disk: bool,
    },
}

impl TopicCursor {
    /// Opens a cursor at `from`, or at new events.
    pub(super) fn open(
        shared: &Arc<Shared>,
        topic: TopicName,
        from: Option<StartAt>,
    ) -> HttpResult<Self> {
        let exists = shared.topics.find(topic.as_str()).is_some();
        let reader = match from {
            // The topic rejects a seq that it has not reached.
            _ if exists => Some(subscribe(shared, &topic, from, Waker::noop())?),
            Some(StartAt::Seq(seq)) if seq > Seq(1) => {
                // The same error as of an existing topic: the seq is from another broker.
                let text = format!(
                    "next is 1; {topic} does not exist, so it has not reached {seq}; use from=first"
                );
                return Err(ProtocolError::new(Code::Conflict, text).into());
            }
            _ => None,
        };
        Ok(Self { shared: Arc::clone(shared), topic, reader, waiter_slot: None })
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.reader.as_ref().map_or(Seq(1), Reader::cursor)
    }

    /// Whether the start is known. While the disk is searched for it, the cursor is below it.
    pub(super) fn is_start_resolved(&self) -> bool {
        self.reader.as_ref().is_none_or(Reader::is_start_resolved)
    }

    pub(super) fn topic_id(&self) -> Option<u64> {
        self.reader.as_ref().map(|reader| reader.topic().id())
    }

    /// Returns about `bytes_max` at most, or what one read from the disk has found, and at least
    /// one batch if there is one.
    pub(super) fn next(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> NextEvents {
        if self.reader.is_none() && self.topic_exists_or_wait(cx) {
            let first = Some(StartAt::First);
            self.reader = subscribe(&self.shared, &self.topic, first, cx.waker()).ok();
        }
        let Some(reader) = &mut self.reader else {
            return NextEvents::Empty { is_reading_disk: false };
        };
        reader.set_waker(cx.waker());
        let mut runs = Vec::new();
        match reader.fetch(bytes_max, 1, |run| runs.push(run)) {
            Fetched::Lag(lag) => NextEvents::Lag(lag),
            Fetched::Gap(gap) => NextEvents::Gap(gap),
            Fetched::Delivered if runs.is_empty() => {
                NextEvents::Empty { is_reading_disk: reader.waits_for_disk() }
            }
            Fetched::Delivered => NextEvents::Lines(runs),
        }
    }

    /// Whether the topic exists. If not, the next new topic wakes the task.
    fn topic_exists_or_wait(&mut self, cx: &Context<'_>) -> bool {
        let topics = &self.shared.topics;
        let find = || topics.find(self.topic.as_str());
        topics.new_topic_waiters.find_or_wait(&mut self.waiter_slot, cx.waker(), find).is_some()
    }
}

/// A client that reads nothing would keep the buffer of a read ahead.
fn subscribe(
    shared: &Shared,
    topic: &TopicName,
    from: Option<StartAt>,
    waker: &Waker,
) -> Result<Reader, ProtocolError> {
    Ok(shared.topics.subscribe(topic, from, waker.clone())?.without_read_ahead())
}

impl Drop for TopicCursor {
    fn drop(&mut self) {
        self.shared.topics.new_topic_waiters.leave(self.waiter_slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_filter(query: &str) -> HttpResult<EventFilter> {
        let uri = format!("/x?{query}").parse().unwrap();
        let params = QueryParams::parse(&uri, &["host", "prefix", REPEATABLE]).unwrap();
        EventFilter::from_params(&params)
    }

    fn filter(query: &str) -> EventFilter {
        try_filter(query).unwrap()
    }

    // PROTOCOL: H6
    #[test]
    fn a_filter_matches_target_and_attributes() {
        let host = filter("host=Example.org");
        assert!(host.matches("http://example.org/a x=1"));
        assert!(host.matches("https://EXAMPLE.org:8443/"));
        assert!(!host.matches("http://www.example.org/"));
        assert!(!host.matches("http://other.example/ source=example.org"));
        assert!(!host.matches("example.org is up"));
        assert!(filter("host=b%C3%BCcher.example").matches("http://b\u{fc}cher.example/"));
        for host in ["http://example.org", "example.org:80", "*.example.org", "a..org", "::1"] {
            assert!(try_filter(&format!("host={host}")).is_err(), "{host}");
        }
        let prefix = filter("prefix=http://example.org/posts/");
        assert!(prefix.matches("http://example.org/posts/1"));
        assert!(prefix.matches("http://EXAMPLE.org:80/posts/1"), "in its canonical form");
        assert!(!prefix.matches("http://example.org/"));
        assert!(filter("prefix=/srv/").matches("/srv/a.png"));
        assert!(filter("").matches("anything"));
        let attributes = filter("where=k=a&host=a.example&where=n!=1");
        assert!(attributes.matches("http://a.example/ k=a"));
        assert!(!attributes.matches("http://a.example/ k=a n=1"));
        assert!(!attributes.matches("http://b.example/ k=a"));
        assert!(!filter("host=a.example&prefix=http://b.example").matches("http://a.example/"));
    }
}
