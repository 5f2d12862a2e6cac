//! The pages of a pass of a job, from the events on `page-ready`.

#![expect(clippy::disallowed_methods, reason = "waits for the last events with a time limit")]

use std::collections::BTreeMap;
use std::time::Duration;

use tidings_client::{ClientError, Subscriber, SubscriberEvent, Subscription};
use tidings_protocol::status::{PageStatus, TopicStatus};
use tidings_protocol::{
    AttributeFilter, Command, GroupName, JobName, Outcome, PAGE_READY_TOPIC, Seq, StartAt,
    TopicAction, TopicCommand, TopicName,
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
    pub(crate) job: &'a JobName,
    pub(crate) group: &'a GroupName,
    /// The number of the job: another job may have had the same name.
    pub(crate) number: u64,
    pub(crate) pass: u64,
    /// Only pages with `failed` as their newest outcome.
    pub(crate) only_failed: bool,
    /// How many of them the job has counted, if the number is final.
    pub(crate) counted: Option<u64>,
}

/// The pages that are known.
#[derive(Debug)]
pub(crate) struct PassPages {
    /// Each with its newest outcome, sorted by URL.
    pub(crate) pages: Vec<PageStatus>,
    /// The oldest event from which on none is missing; above 1 if older ones are gone.
    pub(crate) known_from: Seq,
    /// Whether there was an event of the pass, also of a page that is not among these.
    pub(crate) has_events: bool,
}

/// Reads the events from the oldest to the newest one.
pub(crate) async fn read(
    broker: &BrokerAddress,
    query: &PassQuery<'_>,
    console: &mut Console,
) -> Result<PassPages, Failure> {
    let failure = |error| manage::failure(broker, error);
    let topic: TopicName = PAGE_READY_TOPIC.parse().expect("a constant that is a name");
    let (connector, connection) = connection::open(broker, "tidings-job").await?;
    let show = Command::Topic(TopicCommand::new(TopicAction::Show, topic.as_str(), Vec::new()));
    let shown = connection.client.request(&show).await.map_err(failure)?;
    let TopicStatus { next, first, kept, .. } = TopicStatus::parse(&shown.ok);
    // Without events, the next one to arrive is a new one.
    let head = if kept == 0 { 0 } else { next.0 - 1 };
    let subscription = Subscription::new(topic).from(StartAt::First).matching(query.filter());
    let mut subscriber = Subscriber::new(connector, subscription).on(connection);
    let mut fold = PassFold::new(query);
    let (mut at, mut events, mut known_from, mut deadline) = (0, 0, first, None);
    while at < head || !fold.is_complete() {
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
                fold.add(&payload);
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
    Ok(PassPages { pages: fold.finish(), known_from, has_events: events > 0 })
}

impl PassQuery<'_> {
    /// Selects the events of the pass.
    fn filter(&self) -> AttributeFilter {
        let Self { job, group, number, pass, .. } = self;
        let conditions = [
            format!("in-job={job}"),
            format!("group={group}"),
            format!("number={number}"),
            format!("pass={pass}"),
        ];
        let conditions = conditions.iter().map(String::as_str);
        AttributeFilter::parse(conditions).expect("names and numbers are words")
    }
}

/// Pages of a pass, each with its newest outcome.
#[derive(Debug)]
struct PassFold<'a> {
    query: &'a PassQuery<'a>,
    /// `<group>.<since>` of the newest event. A group that is deleted and created again has another
    /// `since`, and numbers its jobs from 1 again.
    group: String,
    /// By `page=`, which stays the same when a page is retried.
    pages: BTreeMap<String, PageStatus>,
}

impl<'a> PassFold<'a> {
    fn new(query: &'a PassQuery<'a>) -> Self {
        Self { query, group: String::new(), pages: BTreeMap::new() }
    }

    /// Adds the next event of the pass. Pages of a deleted group of the same name are dropped.
    fn add(&mut self, event: &str) {
        let page = PageStatus::parse(event);
        // `page=<group>.<since>.<entry>`
        let group = page.page.rsplit_once('.').map_or("", |(group, _)| group);
        if group != self.group {
            self.pages.clear();
            group.clone_into(&mut self.group);
        }
        if self.query.only_failed && page.outcome != Outcome::Failed.as_str() {
            self.pages.remove(&page.page);
        } else {
            self.pages.insert(page.page.clone(), page);
        }
    }

    /// Whether the events of all counted pages were read.
    fn is_complete(&self) -> bool {
        self.query.counted.is_none_or(|counted| self.pages.len() as u64 == counted)
    }

    fn finish(self) -> Vec<PageStatus> {
        let mut pages: Vec<_> = self.pages.into_values().collect();
        pages.sort_by(|a, b| a.url.cmp(&b.url));
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URLs and outcomes that these events leave of pass 2 of job 7, `docs`.
    fn fold(only_failed: bool, events: &[&str]) -> Vec<String> {
        let (job, group) = ("docs".parse().unwrap(), "crawlers".parse().unwrap());
        let (number, pass, counted) = (7, 2, Some(2));
        let query = PassQuery { job: &job, group: &group, number, pass, only_failed, counted };
        let mut fold = PassFold::new(&query);
        let filter = query.filter();
        events.iter().filter(|event| filter.matches(event)).for_each(|event| fold.add(event));
        assert_eq!(fold.is_complete(), fold.pages.len() == 2);
        let pages = fold.finish().into_iter();
        pages.map(|page| format!("{} {}", page.url, page.outcome)).collect()
    }

    const OF_PASS: &str = "group=crawlers in-job=docs pass=2 depth=0 number=7";

    #[test]
    fn the_newest_outcome_of_a_page_counts() {
        let events = [
            ("http://b.org/ outcome=failed page=crawlers.5.1"),
            ("http://c.org/ outcome=done page=crawlers.5.2"),
            ("http://a.org/ outcome=failed page=crawlers.5.3"),
            ("http://b.org/ outcome=done page=crawlers.5.1"),
            ("http://d.org/ outcome=failed page=crawlers.5.4"),
            ("http://d.org/ outcome=done page=crawlers.5.4"),
            ("http://d.org/ outcome=failed page=crawlers.5.4"),
        ]
        .map(|event| format!("{event} {OF_PASS}"));
        let events = events.each_ref().map(String::as_str);
        assert_eq!(fold(true, &events), ["http://a.org/ failed", "http://d.org/ failed"]);
        let all = [
            "http://a.org/ failed",
            "http://b.org/ done",
            "http://c.org/ done",
            "http://d.org/ failed",
        ];
        assert_eq!(fold(false, &events), all);
    }

    #[test]
    fn pages_of_a_deleted_group_do_not_count() {
        let events = [
            "http://a.org/ outcome=failed page=crawlers.5.1",
            "http://b.org/ outcome=failed page=crawlers.5.2",
            "http://a.org/ outcome=done page=crawlers.9.1",
            "http://c.org/ outcome=failed page=crawlers.9.3",
        ]
        .map(|event| format!("{event} {OF_PASS}"));
        let events = events.each_ref().map(String::as_str);
        assert_eq!(fold(true, &events[..3]), [""; 0]);
        assert_eq!(fold(true, &events), ["http://c.org/ failed"]);
        assert_eq!(fold(false, &events), ["http://a.org/ done", "http://c.org/ failed"]);
    }

    #[test]
    fn pages_of_others_do_not_count() {
        let own = format!("http://a.org/ outcome=failed page=crawlers.5.1 {OF_PASS}");
        let mut events = vec![own.clone()];
        for (word, other) in [
            ("group=crawlers", "group=others"),
            ("in-job=docs", "in-job=blog"),
            ("pass=2", "pass=1"),
            ("number=7", "number=6"),
            ("in-job=docs pass=2 depth=0 number=7", "item=5"),
        ] {
            events.push(own.replace(word, other).replace("crawlers.5.1", "crawlers.5.2"));
        }
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        assert_eq!(fold(false, &events), ["http://a.org/ failed"]);
    }
}
