//! The account of a source or principal: what it holds and has created, and its rates. Time is an
//! argument.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidings_protocol::{Code, ProtocolError};
use tidings_rate_limit::{Rate, TokenBucket};

use super::created::Created;
use super::over_quota;
use super::quantity::{LiveQuota, Quantity, Quota};
use super::usage::Exists;
use crate::clock::Moment;

/// The part of a minute's new connections that may come at once: one in this number.
const CONNECT_BURST_DIVISOR: u32 = 4;

/// Microseconds that an account may be ahead of its rate.
const RATE_BURST_US: u64 = 1_000_000;

/// What one source or principal uses.
#[derive(Debug)]
pub(super) struct Account {
    /// The owner, for error texts.
    owner: String,
    quota: Arc<LiveQuota>,
    /// The amount of each [`Quantity`] that its connections hold.
    held: [AtomicU64; Quantity::ALL.len()],
    created: Mutex<HashSet<Created>>,
    rates: Mutex<AccountRates>,
}

#[derive(Debug, Default)]
struct AccountRates {
    connects: TokenBucket,
    events: RateMeter,
    bytes: RateMeter,
}

/// How far an account is ahead of a rate. Work is charged after it is done, and paid for by waiting
/// before more is done.
#[derive(Debug, Default)]
struct RateMeter {
    /// When everything is paid for.
    settled_at_us: u64,
}

impl RateMeter {
    fn charge(&mut self, amount: u64, per_second: u64, now: Moment) {
        if per_second == u64::MAX {
            return;
        }
        let price_us = amount.saturating_mul(1_000_000) / per_second.max(1);
        self.settled_at_us = self.settled_at_us.max(micros(now)).saturating_add(price_us);
    }

    /// Milliseconds to wait before more is done; 0: none.
    fn wait_ms(&self, now: Moment) -> u64 {
        self.settled_at_us.saturating_sub(micros(now)).saturating_sub(RATE_BURST_US).div_ceil(1_000)
    }
}

fn micros(now: Moment) -> u64 {
    now.0.saturating_mul(1_000)
}

impl Account {
    pub(super) fn new(owner: String, quota: Arc<LiveQuota>) -> Self {
        let (held, created, rates) = Default::default();
        Self { owner, quota, held, created, rates }
    }

    pub(super) fn count_connect(&self, now: Moment) -> Result<(), ProtocolError> {
        let max = self.quota.limit(Quantity::Connects);
        let Ok(per_minute) = u32::try_from(max) else { return Ok(()) };
        let rate = Rate { per_minute, burst: per_minute.div_ceil(CONNECT_BURST_DIVISOR) };
        self.rates.lock().connects.take(rate, 1, now.0).map_err(|wait_ms| {
            let seconds = wait_ms.div_ceil(1_000);
            let text = format!(
                "{} has more than {max} new connections a minute; try again in {seconds} s",
                self.owner
            );
            ProtocolError::new(Code::Limit, text)
        })
    }

    /// Adds to what is held. Adding 0 always succeeds, even if a lowered limit is exceeded already.
    pub(super) fn grow(&self, quantity: Quantity, by: u64) -> Result<(), ProtocolError> {
        if by == 0 {
            return Ok(());
        }
        let (held, max) = (&self.held[quantity as usize], self.quota.limit(quantity));
        let more = |had: u64| had.checked_add(by).filter(|sum| *sum <= max);
        match held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(over_quota(&self.owner, quantity, max)),
        }
    }

    /// Subtracts from what is held.
    pub(super) fn shrink(&self, quantity: Quantity, by: u64) {
        let before = self.held[quantity as usize].fetch_sub(by, Ordering::AcqRel);
        debug_assert!(before >= by, "{quantity:?}: {before} - {by}");
    }

    /// Counts a thing that is about to be created.
    pub(super) fn create(&self, new: &Created, exists: &Exists<'_>) -> Result<(), ProtocolError> {
        let (quantity, made) = (new.quantity(), &mut *self.created.lock());
        let max = self.quota.limit(quantity);
        if max == u64::MAX || made.contains(new) {
            return Ok(());
        }
        let is_full = |made: &HashSet<Created>| {
            let of_its_kind = made.iter().filter(|other| other.quantity() == quantity);
            made.len() as u64 >= max && of_its_kind.count() as u64 >= max
        };
        if is_full(made) {
            made.retain(exists);
        }
        if is_full(made) {
            return Err(over_quota(&self.owner, quantity, max));
        }
        made.insert(new.clone());
        Ok(())
    }

    /// Charges published events and received bytes.
    pub(super) fn charge(&self, events: u64, bytes: u64, now: Moment) {
        let is_endless = |quantity| self.quota.limit(quantity) == u64::MAX;
        if is_endless(Quantity::Events) && is_endless(Quantity::Bytes) {
            return;
        }
        // Under the lock, so that nothing is charged at an old rate after that was reset.
        let pace = &mut *self.rates.lock();
        pace.events.charge(events, self.quota.limit(Quantity::Events), now);
        pace.bytes.charge(bytes, self.quota.limit(Quantity::Bytes), now);
    }

    /// The quota was `before` until now. What is owed is a time at a rate, so it is reset where the
    /// rate has changed.
    pub(super) fn reset_changed_rates(&self, before: &Quota) {
        let pace = &mut *self.rates.lock();
        let has_changed = |quantity| self.quota.limit(quantity) != before.limit(quantity);
        if has_changed(Quantity::Connects) {
            pace.connects = TokenBucket::default();
        }
        if has_changed(Quantity::Events) {
            pace.events = RateMeter::default();
        }
        if has_changed(Quantity::Bytes) {
            pace.bytes = RateMeter::default();
        }
    }

    /// Milliseconds to wait before more is done; 0: none.
    pub(super) fn wait_ms(&self, now: Moment) -> u64 {
        let pace = self.rates.lock();
        pace.events.wait_ms(now).max(pace.bytes.wait_ms(now))
    }

    /// Removes created things that no longer exist, unless a connection has this account: what a
    /// connection [creates](Self::create) is counted before it exists. Under the lock,
    /// `has_connection` knows of each connection that has created something.
    pub(super) fn forget_deleted(
        &self,
        exists: &Exists<'_>,
        has_connection: impl FnOnce() -> bool,
    ) {
        let mut made = self.created.lock();
        if !has_connection() {
            made.retain(exists);
        }
    }

    /// Whether it holds anything, or has created anything.
    pub(super) fn is_in_use(&self) -> bool {
        self.held.iter().any(|held| held.load(Ordering::Acquire) > 0) || self.has_created()
    }

    /// Whether it has created anything that may still exist.
    pub(super) fn has_created(&self) -> bool {
        !self.created.lock().is_empty()
    }

    /// Whether it differs from a new account.
    pub(super) fn is_needed(&self, now: Moment) -> bool {
        self.is_in_use() || self.is_over_rate(now)
    }

    /// Whether it was faster than its rates, so that a new account would forget a debt.
    fn is_over_rate(&self, now: Moment) -> bool {
        let pace = self.rates.lock();
        let meters = [&pace.events, &pace.bytes];
        pace.connects != TokenBucket::default() && !pace.connects.is_full(now.0)
            || meters.iter().any(|meter| meter.settled_at_us > micros(now))
    }
}
