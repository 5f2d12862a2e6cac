//! What somebody who publishes wants looked at.

use tidings_protocol::{After, Payload, Prio};

use crate::group::{Input, JobAction};

/// A look at a page that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) url: String,
    /// As a page of that job; without one, it is promised to whoever wants it.
    pub(super) job: Option<String>,
    /// The more, the sooner.
    pub(super) prio: i16,
    /// Not before so much time has passed.
    pub(super) after_ms: u64,
}

impl Wish {
    /// What an input wants, all of it.
    pub(super) fn all_of(input: &Input) -> Vec<Self> {
        match input {
            Input::Events { events, .. } => {
                events.iter().filter_map(|(_, payload)| Self::published(payload)).collect()
            }
            Input::WithJob { name, what: JobAction::Add { url, prio, after }, .. } => {
                let (url, job) = (url.to_string(), Some(name.to_string()));
                vec![Self { url, job, prio: *prio, after_ms: in_ms(*after) }]
            }
            _ => Vec::new(),
        }
    }

    fn published(payload: &str) -> Option<Self> {
        let event = Payload::parse(payload);
        let is_end = event.attribute("every") == Some("0");
        let is_change = event.attribute("was").is_some();
        let is_look = |url: &&str| url.starts_with("http") && !is_end && !is_change;
        let url = event.target().filter(is_look)?.to_owned();
        let job = event.attribute("job").map(str::to_owned);
        let after = event.attribute("after").map(|after| after.parse().expect("it is a time"));
        let prio = event.attribute("prio").map(|prio| prio.parse::<Prio>().expect("it is one"));
        let prio = prio.map_or(0, Prio::value);
        Some(Self { url, job, prio, after_ms: after.map_or(0, in_ms) })
    }
}

fn in_ms(after: After) -> u64 {
    match after {
        After::Ms(ms) => ms,
        After::Time(_) => unreachable!("the wall clock says nothing here"),
    }
}
