//! The events of a group that may not be safe on their topics yet.

use std::collections::VecDeque;
use std::sync::Arc;

/// Events that may wait. At this number, or at `BYTES_MAX`, the group releases nothing: each task
/// that ends adds an event, and a topic may have no room for long.
pub(crate) const EVENTS_MAX: usize = 10_000;
/// Bytes of the events that may wait.
pub(crate) const BYTES_MAX: usize = 64 << 20;

/// The events: serial, topic and payload.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct UnpublishedEvents {
    /// Serials rise.
    events: VecDeque<(u64, &'static str, Arc<str>)>,
    bytes: usize,
}

impl UnpublishedEvents {
    /// Adds an event. Its serial is above those of the others.
    pub(crate) fn insert(&mut self, serial: u64, topic: &'static str, payload: Arc<str>) {
        self.bytes += payload.len();
        self.events.push_back((serial, topic, payload));
    }

    /// All events of a topic up to this serial are safe there.
    pub(crate) fn published(&mut self, topic: &str, upto: u64) {
        self.events.retain(|(serial, on, payload)| {
            let is_safe = *serial <= upto && *on == topic;
            if is_safe {
                self.bytes -= payload.len();
            }
            !is_safe
        });
    }

    /// Iterates over the events in the order of their serials: serial, topic, event.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &'static str, &Arc<str>)> {
        self.events.iter().map(|(serial, topic, payload)| (*serial, *topic, payload))
    }

    /// Reports whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Reports whether the limit is reached, so that nothing is released.
    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= EVENTS_MAX || self.bytes >= BYTES_MAX
    }
}
