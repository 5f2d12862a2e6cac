//! The hosts, from their own side: who asks them when, whoever is told what.

use std::collections::BTreeMap;

use super::DELAY_MS;
use super::promises::{Kept, Promise, between};
use crate::clock::Moment;

/// All hosts, by name, in true time.
#[derive(Debug, Default)]
pub(super) struct Hosts(BTreeMap<String, Host>);

/// What a host has seen, and what it asked for.
#[derive(Debug, Default)]
struct Host {
    open: u32,
    last_end: Option<Moment>,
    /// Retry-After: a worker was told to stay away until then, and has said so.
    closed_until: Moment,
    /// Crawl-delay: a worker was asked for so many ms between requests, and has said so.
    pace_ms: u64,
}

impl Hosts {
    /// A request begins.
    pub(super) fn begin(&mut self, name: &str, now: Moment) -> Kept {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), Host::default());
        }
        let host = self.0.get_mut(name).expect("it was just put in");
        Promise::OneInFlight.holds(host.open == 0, || format!("{name} is asked twice at once"))?;
        host.open += 1;
        if let Some(end) = host.last_end {
            let rest_ms = DELAY_MS.max(host.pace_ms);
            Promise::DelayKept.holds(now.since(end) >= rest_ms, || {
                format!("{name} rests {rest_ms} ms, and is asked after {}", between(end, now))
            })?;
        }
        Promise::DelayKept.holds(now >= host.closed_until, || {
            format!("{name} is asked {} too early", between(now, host.closed_until))
        })
    }

    /// A request ends.
    pub(super) fn end(&mut self, name: &str, now: Moment) {
        let host = self.0.get_mut(name).expect("a request has begun");
        host.open -= 1;
        host.last_end = Some(now);
    }

    /// The group knows that the host is to be left alone until then.
    pub(super) fn close(&mut self, name: &str, until: Moment) {
        let host = self.0.entry(name.to_owned()).or_default();
        host.closed_until = host.closed_until.max(until);
    }

    /// The group knows the host's own delay.
    pub(super) fn set_pace(&mut self, name: &str, pace_ms: u64) {
        self.0.entry(name.to_owned()).or_default().pace_ms = pace_ms;
    }

    /// What was to last for a time is over, as the wall clock had it.
    pub(super) fn forget_wishes(&mut self) {
        for host in self.0.values_mut() {
            (host.closed_until, host.pace_ms) = (Moment(0), 0);
        }
    }

    /// Whether a request would be welcome.
    pub(super) fn welcomes(&self, name: &str, now: Moment) -> bool {
        self.0.get(name).is_none_or(|host| {
            let rest_ms = DELAY_MS.max(host.pace_ms) + 1;
            let has_rested = host.last_end.is_none_or(|end| now.since(end) >= rest_ms);
            host.open == 0 && has_rested && now > host.closed_until
        })
    }
}
