//! The account of a source or principal: what it holds and has created, and its rates. Time is an
//! argument.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidings_protocol::{Code, GroupName, JobName, ProtocolError, TopicName};

use super::holding::Exists;
use super::quantity::{CurrentQuota, Quantity, Quota};
use super::too_much;
use crate::clock::Moment;
use crate::cursors::CursorId;
use crate::throttle::{Bucket, Rate};

/// The part of a minute's new connections that may come at once: one in this number.
const CONNECTS_AT_ONCE: u32 = 4;

/// Microseconds that an account may be ahead of its rate.
const AHEAD_US: u64 = 1_000_000;

/// A thing that remains when the connection that created it ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Made {
    Topic(TopicName),
    Cursor(CursorId),
    Group(GroupName),
    Job(GroupName, JobName),
}

impl Made {
    fn quantity(&self) -> Quantity {
        match self {
            Self::Topic(_) => Quantity::Topics,
            Self::Cursor(_) => Quantity::Cursors,
            Self::Group(_) => Quantity::Groups,
            Self::Job(..) => Quantity::Jobs,
        }
    }
}

/// What one source or principal uses.
#[derive(Debug)]
pub(super) struct Account {
    /// The owner, for error texts.
    who: String,
    quota: Arc<CurrentQuota>,
    /// The amount of each [`Quantity`] that its connections hold.
    held: [AtomicU64; Quantity::ALL.len()],
    made: Mutex<HashSet<Made>>,
    pace: Mutex<Pace>,
}

#[derive(Debug, Default)]
struct Pace {
    connects: Bucket,
    events: Meter,
    bytes: Meter,
}

/// How far an account is ahead of a rate. Work is charged after it is done, and paid for by waiting
/// before more is done.
#[derive(Debug, Default)]
struct Meter {
    /// When everything is paid for.
    paid_at_us: u64,
}

impl Meter {
    fn note(&mut self, amount: u64, per_second: u64, now: Moment) {
        if per_second == u64::MAX {
            return;
        }
        let price_us = amount.saturating_mul(1_000_000) / per_second.max(1);
        self.paid_at_us = self.paid_at_us.max(us(now)).saturating_add(price_us);
    }

    /// Milliseconds to wait before more is done; 0: none.
    fn wait_ms(&self, now: Moment) -> u64 {
        self.paid_at_us.saturating_sub(us(now)).saturating_sub(AHEAD_US).div_ceil(1_000)
    }
}

fn us(now: Moment) -> u64 {
    now.0.saturating_mul(1_000)
}

impl Account {
    pub(super) fn new(who: String, quota: Arc<CurrentQuota>) -> Self {
        let (held, made, pace) = Default::default();
        Self { who, quota, held, made, pace }
    }

    /// Counts a new connection.
    pub(super) fn comes(&self, now: Moment) -> Result<(), ProtocolError> {
        let max = self.quota.of(Quantity::Connects);
        let Ok(per_minute) = u32::try_from(max) else { return Ok(()) };
        let rate = Rate { per_minute, burst: per_minute.div_ceil(CONNECTS_AT_ONCE) };
        self.pace.lock().connects.take(rate, 1, now).map_err(|wait_ms| {
            let seconds = wait_ms.div_ceil(1_000);
            let text = format!(
                "{} has more than {max} new connections a minute; try again in {seconds} s",
                self.who
            );
            ProtocolError::new(Code::Limit, text)
        })
    }

    /// Adds to what is held. Adding 0 always succeeds, even if a lowered limit is exceeded already.
    pub(super) fn grow(&self, quantity: Quantity, by: u64) -> Result<(), ProtocolError> {
        if by == 0 {
            return Ok(());
        }
        let (held, max) = (&self.held[quantity as usize], self.quota.of(quantity));
        let more = |had: u64| had.checked_add(by).filter(|sum| *sum <= max);
        match held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(too_much(&self.who, quantity, max)),
        }
    }

    /// Subtracts from what is held.
    pub(super) fn shrink(&self, quantity: Quantity, by: u64) {
        let before = self.held[quantity as usize].fetch_sub(by, Ordering::AcqRel);
        debug_assert!(before >= by, "{quantity:?}: {before} - {by}");
    }

    /// Counts a thing that is about to be created.
    pub(super) fn make(&self, new: &Made, exists: &Exists<'_>) -> Result<(), ProtocolError> {
        let (quantity, made) = (new.quantity(), &mut *self.made.lock());
        let max = self.quota.of(quantity);
        if max == u64::MAX || made.contains(new) {
            return Ok(());
        }
        let is_full = |made: &HashSet<Made>| {
            let of_its_kind = made.iter().filter(|other| other.quantity() == quantity);
            made.len() as u64 >= max && of_its_kind.count() as u64 >= max
        };
        if is_full(made) {
            made.retain(exists);
        }
        if is_full(made) {
            return Err(too_much(&self.who, quantity, max));
        }
        made.insert(new.clone());
        Ok(())
    }

    /// Charges published events and received bytes.
    pub(super) fn note(&self, events: u64, bytes: u64, now: Moment) {
        let is_endless = |quantity| self.quota.of(quantity) == u64::MAX;
        if is_endless(Quantity::Events) && is_endless(Quantity::Bytes) {
            return;
        }
        // Under the lock, so that nothing is charged at an old rate after that was reset.
        let pace = &mut *self.pace.lock();
        pace.events.note(events, self.quota.of(Quantity::Events), now);
        pace.bytes.note(bytes, self.quota.of(Quantity::Bytes), now);
    }

    /// The quota was `before` until now. What is owed is a time at a rate, so it is reset where the
    /// rate has changed.
    pub(super) fn forget_rates_of(&self, before: &Quota) {
        let pace = &mut *self.pace.lock();
        let has_changed = |quantity| self.quota.of(quantity) != before.of(quantity);
        if has_changed(Quantity::Connects) {
            pace.connects = Bucket::default();
        }
        if has_changed(Quantity::Events) {
            pace.events = Meter::default();
        }
        if has_changed(Quantity::Bytes) {
            pace.bytes = Meter::default();
        }
    }

    /// Milliseconds to wait before more is done; 0: none.
    pub(super) fn wait_ms(&self, now: Moment) -> u64 {
        let pace = self.pace.lock();
        pace.events.wait_ms(now).max(pace.bytes.wait_ms(now))
    }

    /// Removes created things that no longer exist, unless a connection has this account: what a
    /// connection [creates](Self::make) is counted before it exists. Under the lock,
    /// `has_connection` knows of each connection that has created something.
    pub(super) fn forget_unless(&self, exists: &Exists<'_>, has_connection: impl FnOnce() -> bool) {
        let mut made = self.made.lock();
        if !has_connection() {
            made.retain(exists);
        }
    }

    /// Whether it holds anything, or has created anything.
    pub(super) fn is_in_use(&self) -> bool {
        self.held.iter().any(|held| held.load(Ordering::Acquire) > 0) || self.has_made()
    }

    /// Whether it has created anything that may still exist.
    pub(super) fn has_made(&self) -> bool {
        !self.made.lock().is_empty()
    }

    /// Whether it differs from a new account.
    pub(super) fn is_wanted(&self, now: Moment) -> bool {
        self.is_in_use() || self.is_owed(now)
    }

    /// Whether it was faster than its rates, so that a new account would forget a debt.
    fn is_owed(&self, now: Moment) -> bool {
        let pace = self.pace.lock();
        let meters = [&pace.events, &pace.bytes];
        pace.connects != Bucket::default() && !pace.connects.is_full(now)
            || meters.iter().any(|meter| meter.paid_at_us > us(now))
    }
}
