//! The quantities that are limited, and their limits.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_protocol::word_enum;

word_enum! {
    /// What is counted for each source and principal.
    pub enum Quantity {
        /// Connections at once.
        Connections = "connections",
        /// New connections a minute.
        Connects = "connects",
        /// Events published a second.
        Events = "events",
        /// Bytes sent to the broker a second.
        Bytes = "bytes",
        /// Existing topics that it has created since the broker started.
        Topics = "topics",
        /// Existing durable cursors that it has created since then.
        Cursors = "cursors",
        /// Subscriptions of all its connections.
        Subscriptions = "subscriptions",
        /// Existing groups that it has created since then.
        Groups = "groups",
        /// Jobs that it has opened since then and that are not done.
        Jobs = "jobs",
        /// Tasks that its connections may hold at once, over all groups.
        Credit = "credit",
        /// Bytes that wait in the broker for its connections: unfinished lines, unread answers and
        /// tasks, and children of tasks.
        BufferedBytes = "parked",
    }
}

impl Quantity {
    /// Its name after a number.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Connects => "new connections a minute",
            Self::Events => "events a second",
            Self::Bytes => "bytes a second",
            Self::Topics => "topics that it created",
            Self::Cursors => "durable cursors that it created",
            Self::Subscriptions => "subscriptions",
            Self::Groups => "groups that it created",
            Self::Jobs => "unfinished jobs",
            Self::Credit => "tasks at once (credit)",
            Self::BufferedBytes => "bytes waiting for its connections",
        }
    }

    /// Whether it is held, and refused beyond the limit. Otherwise it is a rate, and slows down.
    pub fn is_held(self) -> bool {
        !matches!(self, Self::Connects | Self::Events | Self::Bytes)
    }
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_word(text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("{text} is not a quota; expected one of {names}")
        })
    }
}

/// The limit of each quantity.
#[derive(Clone, PartialEq, Eq)]
pub struct Quota([u64; Quantity::ALL.len()]);

impl Quota {
    /// No limits.
    pub const UNLIMITED: Self = Self([u64::MAX; Quantity::ALL.len()]);

    /// The default for a source: what a few busy programs use, and a twentieth of all there is. An
    /// office behind one address may need more.
    pub(super) fn source_default() -> Self {
        Self::UNLIMITED
            .with(Quantity::Connections, 256)
            .with(Quantity::Connects, 600)
            .with(Quantity::Events, 50_000)
            .with(Quantity::Bytes, 32 << 20)
            .with(Quantity::Topics, 100)
            .with(Quantity::Cursors, 100)
            .with(Quantity::Subscriptions, 10_000)
            .with(Quantity::Groups, 100)
            .with(Quantity::Jobs, 10_000)
            .with(Quantity::Credit, 100_000)
            .with(Quantity::BufferedBytes, 64 << 20)
    }

    /// The default for a principal: a fleet shares a token. Rates are those of its sources.
    pub(super) fn principal_default() -> Self {
        Self::UNLIMITED
            .with(Quantity::Connections, 4_096)
            .with(Quantity::Topics, 250)
            .with(Quantity::Cursors, 1_000)
            .with(Quantity::Subscriptions, 100_000)
            .with(Quantity::Groups, 250)
            .with(Quantity::Jobs, 50_000)
            .with(Quantity::Credit, 1_000_000)
            .with(Quantity::BufferedBytes, 256 << 20)
    }

    /// Sets one limit; `u64::MAX` means unlimited. Rates are at least 1.
    #[must_use]
    pub fn with(mut self, quantity: Quantity, max: u64) -> Self {
        self.0[quantity as usize] = if quantity.is_held() { max } else { max.max(1) };
        self
    }

    /// The limit of a quantity; `u64::MAX` means unlimited.
    pub fn limit(&self, quantity: Quantity) -> u64 {
        self.0[quantity as usize]
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = Quantity::ALL.iter().map(|quantity| (quantity.as_str(), self.limit(*quantity)));
        out.debug_map().entries(each).finish()
    }
}

/// The current limits, which accounts read each time.
#[derive(Debug)]
pub(super) struct LiveQuota([AtomicU64; Quantity::ALL.len()]);

impl LiveQuota {
    pub(super) fn new(quota: &Quota) -> Self {
        Self(quota.0.map(AtomicU64::new))
    }

    /// Replaces the limits, and returns the old ones. What is held already stays.
    pub(super) fn replace(&self, quota: &Quota) -> Quota {
        Quota(std::array::from_fn(|at| self.0[at].swap(quota.0[at], Ordering::Relaxed)))
    }

    /// The limit of a quantity; `u64::MAX` means unlimited.
    pub(super) fn limit(&self, quantity: Quantity) -> u64 {
        self.0[quantity as usize].load(Ordering::Relaxed)
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.0.iter().all(|max| max.load(Ordering::Relaxed) == u64::MAX)
    }
}
