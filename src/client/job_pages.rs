//! Pages and their outcomes, from the events on `page-ready`.

#![expect(clippy::disallowed_methods, reason = "waits for the last events with a time limit")]

use std::time::Duration;

use tidings_client::{ClientError, Subscriber, SubscriberEvent, Subscription};
use tidings_protocol::status::{PageStatus, TopicStatus};
use tidings_protocol::{
    AttributeFilter, CanonicalUrl, Command, GroupName, PAGE_READY_TOPIC, PassName, PassPages, Seq,
    StartAt, TopicAction, TopicCommand, TopicName,
};
use tokio::time::{Instant, timeout_at};

use crate::client::{connection, manage};
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count};

/// How long to wait for events that the counts of a job announce. The group publishes them soon
/// after it has counted the page.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(1);

/// Events between two redraws of the progress.
const EVENTS_PER_REDRAW: u64 = 10_000;

/// The pages to read.
#[derive(Debug)]
pub(crate) struct PassQuery<'a> {
    pub(crate) of: PassName<'a>,
    /// Only pages with `failed` as their newest outcome.
    pub(crate) only_failed: bool,
    /// How many of them the job has counted, if the number is final.
    pub(crate) counted: Option<u64>,
}

impl PassQuery<'_> {
    /// Whether the events of all counted pages were read.
    fn is_complete(&self, found: &PassPages) -> bool {
        self.counted.is_none_or(|counted| found.count() == counted)
    }
}

/// The pages that are known.
#[derive(Debug)]
pub(crate) struct KnownPages {
    /// Each with its newest outcome, sorted by URL.
    pub(crate) pages: Vec<PageStatus>,
    /// The oldest event from which on none is missing; above 1 if older ones are gone.
    pub(crate) known_from: Seq,
    /// Whether there was an event of the pass, also of a page that is not among these.
    pub(crate) has_events: bool,
}

/// Reads the events of a pass.
pub(crate) async fn read(
    broker: &BrokerAddress,
    query: &PassQuery<'_>,
    console: &mut Console,
) -> Result<KnownPages, Failure> {
    let mut found = PassPages::new(query.only_failed);
    let add = |event: Option<&str>| {
        if let Some(event) = event {
            found.add(event);
        }
        query.is_complete(&found)
    };
    let (known_from, events) = scan(broker, query.of.filter(), console, add).await?;
    Ok(KnownPages { pages: found.finish(), known_from, has_events: events > 0 })
}

/// The newest outcome of a page in a group; `None` if no event is kept of it.
pub(crate) async fn newest(
    broker: &BrokerAddress,
    group: &GroupName,
    url: &CanonicalUrl<'_>,
    console: &mut Console,
) -> Result<Option<PageStatus>, Failure> {
    let condition = format!("group={group}");
    let filter = AttributeFilter::parse([condition.as_str()]).expect("a name is a word");
    let mut newest = None;
    let add = |event: Option<&str>| {
        let of_page = event.filter(|event| event.split(' ').next() == Some(url.as_str()));
        newest = of_page.map(PageStatus::parse).or(newest.take());
        true
    };
    scan(broker, filter, console, add).await?;
    Ok(newest)
}

/// Passes each event to `add`, from the oldest to the newest one. `add` returns whether no other is
/// expected, which is also asked without an event. Returns from which event on none is missing, and
/// how many there were.
async fn scan(
    broker: &BrokerAddress,
    filter: AttributeFilter,
    console: &mut Console,
    mut add: impl FnMut(Option<&str>) -> bool,
) -> Result<(Seq, u64), Failure> {
    let failure = |error| manage::failure(broker, error);
    let topic: TopicName = PAGE_READY_TOPIC.parse().expect("a constant that is a name");
    let (connector, connection) = connection::open(broker, "tidings-job").await?;
    let show = Command::Topic(TopicCommand::new(TopicAction::Show, topic.as_str(), Vec::new()));
    let shown = connection.client.request(&show).await.map_err(failure)?;
    let TopicStatus { next, first, kept, .. } = TopicStatus::parse(&shown.ok);
    // Without events, the next one to arrive is a new one.
    let head = if kept == 0 { 0 } else { next.0 - 1 };
    let subscription = Subscription::new(topic).from(StartAt::First).matching(filter);
    let mut subscriber = Subscriber::new(connector, subscription).on(connection);
    let (mut at, mut events, mut known_from, mut deadline) = (0, 0, first, None);
    while at < head || !add(None) {
        let next = subscriber.next();
        let event = if at < head {
            next.await
        } else {
            let until = *deadline.get_or_insert_with(|| Instant::now() + LAST_EVENTS_MAX);
            let Ok(event) = timeout_at(until, next).await else { break };
            event
        };
        match event.map_err(failure)? {
            SubscriberEvent::Event { seq, payload } => {
                add(Some(&payload));
                (at, events) = (seq.0, events + 1);
                if events % EVENTS_PER_REDRAW == 0 {
                    console.progress(&format!("{} events read", format_count(events)));
                }
            }
            SubscriberEvent::Lag { to, .. } => (at, known_from) = (to.0, Seq(to.0 + 1)),
            SubscriberEvent::Gap { to, .. } | SubscriberEvent::Skipped(to) => at = to.0,
            SubscriberEvent::Lost(error) => return Err(failure(error)),
            SubscriberEvent::Refused(error) => return Err(failure(ClientError::Refused(error))),
            SubscriberEvent::Subscribed { .. }
            | SubscriberEvent::Seen(_)
            | SubscriberEvent::Notice(_) => {}
        }
    }
    console.clear_progress();
    Ok((known_from, events))
}
