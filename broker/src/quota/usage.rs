//! The part of a source's and a principal's usage that one connection has.

use std::collections::HashMap;
use std::sync::Arc;

use tidings_protocol::{GroupName, ProtocolError};

use super::Usage;
use super::account::Account;
use super::created::Created;
use super::quantity::Quantity;
use crate::clock::Moment;

/// Whether a created thing still exists and counts.
pub(crate) type Exists<'a> = dyn Fn(&Created) -> bool + 'a;

/// Milliseconds after which a paused connection computes again how long it must wait: other
/// connections of its account may have published, and limits may have changed.
pub(super) const PAUSE_MS_MAX: u64 = 1_000;

/// What a connection uses; given back when it ends.
#[derive(Debug, Default)]
pub(crate) struct ConnectionUsage {
    source: Option<Arc<Account>>,
    principal: Option<Arc<Account>>,
    /// The amount of each [`Quantity`].
    amounts: [u64; Quantity::ALL.len()],
    credits: HashMap<GroupName, u32>,
    /// Events since the last charge.
    events: u64,
    /// Nothing is read until then.
    paused_until: Option<Moment>,
}

impl ConnectionUsage {
    /// The usage of a connection; begins to count it if nothing was counted so far.
    pub(super) fn get_or_start(held: &mut Usage) -> &mut Self {
        held.get_or_insert_with(|| {
            let mut holding = Box::<Self>::default();
            // The connection itself.
            holding.amounts[Quantity::Connections as usize] = 1;
            holding
        })
    }

    /// Sets the account of its source. To be called first.
    pub(super) fn set_source(&mut self, source: Arc<Account>) -> Result<(), ProtocolError> {
        self.add_to(&source)?;
        self.source = Some(source);
        Ok(())
    }

    /// Sets the account of its principal, and moves all usage there.
    pub(super) fn set_principal(
        &mut self,
        principal: Option<Arc<Account>>,
    ) -> Result<(), ProtocolError> {
        let is_same = match (&self.principal, &principal) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        if let Some(principal) = &principal {
            self.add_to(principal)?;
        }
        if let Some(before) = std::mem::replace(&mut self.principal, principal) {
            self.remove_from(&before);
        }
        Ok(())
    }

    /// Adds all usage to an account, or nothing of it.
    fn add_to(&self, account: &Account) -> Result<(), ProtocolError> {
        for (at, quantity) in Quantity::ALL.into_iter().enumerate() {
            if let Err(error) = account.grow(quantity, self.amounts[at]) {
                for earlier in &Quantity::ALL[..at] {
                    account.shrink(*earlier, self.amounts[*earlier as usize]);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn remove_from(&self, account: &Account) {
        for quantity in Quantity::ALL {
            account.shrink(quantity, self.amounts[quantity as usize]);
        }
    }

    /// Sets the amount of a quantity. An increase beyond the quota is refused, and changes nothing.
    pub(crate) fn set(&mut self, quantity: Quantity, amount: u64) -> Result<(), ProtocolError> {
        let before = self.amounts[quantity as usize];
        if amount > before {
            let more = amount - before;
            if let Some(source) = &self.source {
                source.grow(quantity, more)?;
            }
            if let Some(principal) = &self.principal
                && let Err(error) = principal.grow(quantity, more)
            {
                if let Some(source) = &self.source {
                    source.shrink(quantity, more);
                }
                return Err(error);
            }
        } else if amount < before {
            for account in self.accounts() {
                account.shrink(quantity, before - amount);
            }
        }
        self.amounts[quantity as usize] = amount;
        Ok(())
    }

    /// Adds one, until the connection ends or [`set`](Self::set) changes it.
    pub(crate) fn add(&mut self, quantity: Quantity) -> Result<(), ProtocolError> {
        self.set(quantity, self.amounts[quantity as usize] + 1)
    }

    pub(crate) fn remove(&mut self, quantity: Quantity) {
        let less = self.amounts[quantity as usize].saturating_sub(1);
        // A decrease never fails.
        let _ = self.set(quantity, less);
    }

    pub(crate) fn set_credit(
        &mut self,
        group: &GroupName,
        credit: u32,
    ) -> Result<(), ProtocolError> {
        let before = self.credits.get(group).copied().unwrap_or(0);
        let amount = self.amounts[Quantity::Credit as usize];
        self.set(Quantity::Credit, amount - u64::from(before) + u64::from(credit))?;
        match credit {
            0 => self.credits.remove(group),
            _ => self.credits.insert(group.clone(), credit),
        };
        Ok(())
    }

    /// Counts a thing that is about to be created, unless it exists already.
    pub(crate) fn create(&self, new: &Created, exists: &Exists<'_>) -> Result<(), ProtocolError> {
        if exists(new) {
            return Ok(());
        }
        self.accounts().try_for_each(|account| account.create(new, exists))
    }

    pub(crate) fn count_published(&mut self, events: u64) {
        self.events += events;
    }

    /// Charges the counted events, and the bytes that they came with. Nothing more is read before
    /// [`paused_until`](Self::paused_until).
    pub(crate) fn charge(&mut self, bytes: u64, now: Moment) {
        let events = std::mem::take(&mut self.events);
        self.accounts().for_each(|account| account.charge(events, bytes, now));
        self.resume(now);
    }

    /// Milliseconds to wait before more is done; 0: none.
    pub(crate) fn wait_ms(&self, now: Moment) -> u64 {
        self.accounts().map(|account| account.wait_ms(now)).max().unwrap_or(0)
    }

    /// Nothing is read until then.
    pub(crate) fn paused_until(&self) -> Option<Moment> {
        self.paused_until
    }

    /// Computes until when nothing is read, from what is owed now.
    pub(crate) fn resume(&mut self, now: Moment) {
        let wait_ms = self.wait_ms(now).min(PAUSE_MS_MAX);
        self.paused_until = (wait_ms > 0).then(|| now + wait_ms);
    }

    fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.source.iter().chain(&self.principal).map(Arc::as_ref)
    }
}

impl Drop for ConnectionUsage {
    fn drop(&mut self) {
        for account in self.accounts() {
            self.remove_from(account);
        }
    }
}
