//! Fetches that publishers request.

use tidings_protocol::{After, Payload, Prio};

use super::EXCLUDED;
use crate::{Input, JobOperation};

/// A requested fetch of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FetchRequest {
    pub(super) url: String,
    /// The job of the page; `None` for an announcement, which promises a fetch to its publisher.
    pub(super) job: Option<String>,
    /// Priority; higher ones go first.
    pub(super) prio: i16,
    /// Delay before the fetch, in ms.
    pub(super) after_ms: u64,
    /// Its URL is scheduled (`every=`).
    pub(super) is_schedule: bool,
}

impl FetchRequest {
    /// All fetches that an input requests.
    pub(super) fn all_of(input: &Input) -> Vec<Self> {
        match input {
            Input::Events { events, .. } => {
                events.iter().filter_map(|(_, payload)| Self::published(payload)).collect()
            }
            Input::JobAction {
                name, action: JobOperation::Add { url, prio, after, .. }, ..
            } => {
                let (url, job) = (url.to_string(), Some(name.to_string()));
                let after_ms = in_ms(*after);
                vec![Self { url, job, prio: *prio, after_ms, is_schedule: false }]
            }
            _ => Vec::new(),
        }
    }

    fn published(payload: &str) -> Option<Self> {
        let event = Payload::parse(payload);
        let is_end = event.attribute("every") == Some("0");
        let is_change = event.attribute("was").is_some();
        let is_excluded = payload == EXCLUDED;
        let is_look = |url: &&str| url.starts_with("http") && !is_end && !is_change && !is_excluded;
        let url = event.target().filter(is_look)?.to_owned();
        let job = event.attribute("job").map(str::to_owned);
        let after = event.attribute("after").map(|after| after.parse().expect("the time is valid"));
        let prio = event
            .attribute("prio")
            .map(|prio| prio.parse::<Prio>().expect("the priority is valid"));
        let prio = prio.map_or(0, Prio::value);
        let is_schedule = event.attribute("every").is_some();
        Some(Self { url, job, prio, after_ms: after.map_or(0, in_ms), is_schedule })
    }
}

fn in_ms(after: After) -> u64 {
    match after {
        After::Ms(ms) => ms,
        After::Time(_) => unreachable!("the simulation uses no times of day here"),
    }
}
