//! The circuit of a key: whether its host answers. A host that is down rests, and then one request
//! tries it.
//!
//! ```text
//!   closed ──requests in a row without an answer──▶ down: rests ──▶ one try
//!     ▲                                                ▲               │
//!     │                                                └─ no answer: ──┤
//!     │                                                   rests longer │
//!     └─────────────────────────── an answer ──────────────────────────┘
//! ```
//!
//! After some failed tries the host is given up: everything that waits for it ends. Entries that
//! come later get one try for each rest, and everything that waits ends if that fails.
//!
//! A host that has answered before is probably back some time. A host that has never answered is
//! probably a wrong name or gone for good. So the two have different [`Patience`].

use crate::entry::EntryId;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// The longest rest: a host that is back after a long outage is noticed within this time.
const REST_MS_MAX: u64 = 60 * 60 * 1000;

/// When a host rests, and how long.
struct Patience {
    /// Requests in a row without an answer, after which the host is down.
    unanswered_max: u8,
    /// The first rest. It doubles with each failed try.
    rest_ms_min: u64,
    /// Failed tries after which the host is given up.
    tries_max: u8,
}

/// More requests than the attempts of three URLs, which may be for another port that is closed. The
/// first rest is long enough for a restart. All rests last 183 minutes, so a page survives an outage
/// of three hours, and a job with a dead host ends.
const ANSWERED: Patience = Patience { unanswered_max: 10, rest_ms_min: 60 * 1000, tries_max: 8 };

/// The rests last 14 seconds: a page survives a short outage, and a wrong name among the seeds does
/// not delay the end of a job by more.
const NEVER_ANSWERED: Patience = Patience { unanswered_max: 1, rest_ms_min: 2000, tries_max: 3 };

/// How long an entry without an answer lets the others of its key go first, which may be for another
/// port that answers. Longer than the rests of a host that has never answered.
pub(crate) const OTHERS_FIRST_MS: u64 = 15_000;

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
    /// Requests in a row without an answer, failed tries included; at most the sum of those of its
    /// [`Patience`].
    pub(crate) unanswered: u8,
    /// When the newest of them ended, or when the host was tried. The rest begins here.
    pub(crate) rests_from: Moment,
    /// The entry with which the host is tried. No other request in flight changes the rest.
    pub(crate) tried: Option<EntryId>,
    /// The host is given up: entries up to this one end.
    pub(crate) given_up: EntryId,
    /// No request of this host has been answered since the group knows it.
    pub(crate) never_answered: bool,
}

impl Circuit {
    fn patience(&self) -> &'static Patience {
        if self.never_answered { &NEVER_ANSWERED } else { &ANSWERED }
    }

    /// Reports whether the host is down.
    pub(crate) fn is_down(&self) -> bool {
        self.unanswered >= self.patience().unanswered_max
    }

    /// Reports whether the host is down after another request without an answer.
    pub(crate) fn is_down_next(&self) -> bool {
        self.unanswered.saturating_add(1) >= self.patience().unanswered_max
    }

    /// Reports whether the host is given up if its next try gets no answer.
    pub(crate) fn is_last_try(&self) -> bool {
        let Patience { unanswered_max, tries_max, .. } = self.patience();
        self.unanswered.saturating_add(1) >= unanswered_max + tries_max
    }

    fn rest_ms(&self) -> u64 {
        let Patience { unanswered_max, rest_ms_min, .. } = self.patience();
        match self.unanswered.checked_sub(*unanswered_max) {
            Some(failed_tries) if !mutants::is(Mutant::TriesTooOften) => {
                (rest_ms_min << failed_tries.min(16)).min(REST_MS_MAX)
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
        if self.unanswered > 0 { self.rests_from + REST_MS_MAX } else { Moment(0) }
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
        let Patience { unanswered_max, tries_max, .. } = self.patience();
        let tries_max = if mutants::is(Mutant::GivesUpEarly) { 2 } else { *tries_max };
        let given_up_at = unanswered_max + tries_max;
        self.tried = None;
        self.rests_from = now;
        self.unanswered = self.unanswered.saturating_add(1).min(given_up_at);
        if self.unanswered == given_up_at && !mutants::is(Mutant::NeverGivesUp) {
            self.given_up = newest;
        }
    }

    /// What is known is forgotten, except that the host has never answered.
    pub(crate) fn reset(&mut self) {
        *self = Self { never_answered: self.never_answered, ..Self::default() };
    }

    /// No request was made for an entry, so the host may be tried at once.
    pub(crate) fn not_requested(&mut self, entry: EntryId, now: Moment) {
        if self.tried == Some(entry) {
            self.tried = None;
            self.rests_from = Moment(now.0.saturating_sub(self.rest_ms()));
        }
    }
}
