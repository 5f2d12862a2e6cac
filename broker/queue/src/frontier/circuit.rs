//! The circuit of a key: whether its host answers. A host that is down rests, and then one request
//! tries it.
//!
//! ```text
//!   closed ──10 requests in a row without an answer──▶ down: rests 1 min ──▶ one try
//!     ▲                                                 ▲                       │
//!     │                                                 └──── no answer: ───────┤
//!     │                                                       rests longer      │
//!     └──────────────────────────────── an answer ──────────────────────────────┘
//! ```
//!
//! After [`TRIES_MAX`] failed tries the host is given up: everything that waits for it ends. Entries
//! that come later get one try for each rest, and everything that waits ends if that fails.

use crate::entry::EntryId;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// Requests in a row without an answer, after which a host is down. More than the attempts of one
/// URL, so that no URL decides it alone.
const UNANSWERED_MAX: u8 = 10;
/// The first rest of a host that is down: long enough for a restart. It doubles with each failed
/// try.
const REST_MS_MIN: u64 = 60 * 1000;
/// The longest rest: a host that is back after a long outage is noticed within this time.
const REST_MS_MAX: u64 = 60 * 60 * 1000;
/// Failed tries after which a host is given up. Their rests last 183 minutes, so a page survives an
/// outage of three hours, and a job with a dead host ends.
const TRIES_MAX: u8 = 8;

/// How a request ended, or what is known about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// No request was made.
    NotMade,
    /// One may have been made. Whether the host answered is unknown.
    Unknown,
    /// The host answered.
    Answered,
    /// The host did not answer.
    Unanswered,
}

/// What a key remembers of requests without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Circuit {
    /// Requests in a row without an answer, failed tries included;
    /// `<= UNANSWERED_MAX + TRIES_MAX`.
    pub(crate) unanswered: u8,
    /// When the newest of them ended, or when the host was tried. The rest begins here.
    pub(crate) rests_from: Moment,
    /// The entry with which the host is tried. No other request in flight changes the rest.
    pub(crate) tried: Option<EntryId>,
    /// The host is given up: entries up to this one end.
    pub(crate) given_up: EntryId,
}

impl Circuit {
    /// Reports whether the host is down.
    pub(crate) fn is_down(&self) -> bool {
        self.unanswered >= UNANSWERED_MAX
    }

    fn rest_ms(&self) -> u64 {
        match self.unanswered.checked_sub(UNANSWERED_MAX) {
            Some(failed_tries) if !mutants::is(Mutant::TriesTooOften) => {
                (REST_MS_MIN << failed_tries).min(REST_MS_MAX)
            }
            _ => 0,
        }
    }

    /// Returns the earliest next try of a host that is down.
    pub(crate) fn next_try(&self) -> Option<Moment> {
        self.is_down().then(|| self.rests_from + self.rest_ms())
    }

    /// Returns when a key that is not in use forgets it. Later than any rest ends.
    pub(crate) fn forgettable_at(&self) -> Moment {
        self.rests_from + REST_MS_MAX
    }

    /// An entry was released. If the host is down, this is the try.
    pub(crate) fn released(&mut self, entry: EntryId, now: Moment) {
        if self.is_down() {
            self.tried = Some(entry);
            self.rests_from = now;
        }
    }

    /// The request of an entry got no answer. `newest` is the newest entry of the group.
    pub(crate) fn unanswered(&mut self, entry: EntryId, newest: EntryId, now: Moment) {
        if self.is_down() && self.tried != Some(entry) {
            // It was made before the host was known to be down.
            return;
        }
        let tries_max = if mutants::is(Mutant::GivesUpEarly) { 2 } else { TRIES_MAX };
        let given_up_at = UNANSWERED_MAX + tries_max;
        self.tried = None;
        self.rests_from = now;
        self.unanswered = (self.unanswered + 1).min(given_up_at);
        if self.unanswered == given_up_at && !mutants::is(Mutant::NeverGivesUp) {
            self.given_up = newest;
        }
    }

    /// No request was made for an entry, so the host may be tried at once.
    pub(crate) fn not_requested(&mut self, entry: EntryId, now: Moment) {
        if self.tried == Some(entry) {
            self.tried = None;
            self.rests_from = Moment(now.0.saturating_sub(self.rest_ms()));
        }
    }
}
