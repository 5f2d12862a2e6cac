//! Quotas: limits for each source and each principal.
//!
//! Everything that a client can use has a limit for all clients together
//! ([`Limits`](crate::Limits)). Quotas limit the share of one source or principal, so that some is
//! left for others.
//!
//! ```text
//!  a source ────┐
//!               ├──▶ Account: what it holds, what it has created, its rates
//!  a principal ─┘        ▲
//!                        │ includes the usage of
//!                  ConnectionUsage ◀── a connection
//! ```
//!
//! A quantity that is held ([`Quantity::is_held`]) is refused beyond its limit. A rate slows down:
//! a connection that is too fast is not read for a while, so nothing is lost.
//!
//! Addresses of this machine have no quota unless the configuration says so. Principals that may do
//! everything, and the broker's own parts, have none.

mod account;
mod created;
mod quantity;
#[cfg(test)]
mod tests;
mod usage;

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tidings_protocol::{Code, ProtocolError, with_defaults};
use tidings_rate_limit::Source;

use self::account::Account;
pub(crate) use self::created::Created;
use self::quantity::LiveQuota;
pub use self::quantity::{Quantity, Quota};
pub(crate) use self::usage::{ConnectionUsage, Exists};
use crate::clock::Moment;

/// Sources that are remembered only for their rates, about 200 bytes each.
const SOURCES_MAX: usize = 16_384;

with_defaults! {
    /// The quotas of each source and each principal.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct QuotaConfig {
        /// For each source: an IPv4 address, or a /64 network of IPv6.
        pub source: Quota = Quota::source_default(),
        /// For each principal.
        pub principal: Quota = Quota::principal_default(),
        /// Whether addresses of this machine count as sources. Default: no.
        pub counts_loopback: bool = false,
    }
}

/// The accounts of all sources and principals.
///
/// Accounts are independent of each other, and a guard of a map lives within one expression. A
/// connection clones its account from the map, so a write guard and `strong_count` together show
/// that no connection has it.
#[derive(Debug)]
pub(crate) struct Quotas {
    source: Arc<LiveQuota>,
    principal: Arc<LiveQuota>,
    counts_loopback: AtomicBool,
    sources: DashMap<Source, Arc<Account>>,
    /// The number of accounts in `sources` at which those without a connection are evicted.
    sources_max: usize,
    /// Held while a source is added: whether it fits in `sources_max` depends on all others.
    source_insert: Mutex<()>,
    principals: DashMap<Box<str>, Arc<Account>>,
}

/// The usage of a connection, if anything of it is counted.
pub(crate) type Usage = Option<Box<ConnectionUsage>>;

impl Quotas {
    pub(crate) fn new(config: &QuotaConfig) -> Self {
        Self {
            source: Arc::new(LiveQuota::new(&config.source)),
            principal: Arc::new(LiveQuota::new(&config.principal)),
            counts_loopback: AtomicBool::new(config.counts_loopback),
            sources: DashMap::new(),
            sources_max: SOURCES_MAX,
            source_insert: Mutex::default(),
            principals: DashMap::new(),
        }
    }

    /// Replaces the quotas. A client that exceeds a lowered limit keeps what it has and gets no
    /// more; what was not counted when it began is not counted later. Debts at a rate that has
    /// changed are forgotten.
    pub(crate) fn set_limits(&self, config: &QuotaConfig) {
        self.counts_loopback.store(config.counts_loopback, Ordering::Relaxed);
        let before = self.source.replace(&config.source);
        self.sources.iter().for_each(|account| account.reset_changed_rates(&before));
        let before = self.principal.replace(&config.principal);
        self.principals.iter().for_each(|account| account.reset_changed_rates(&before));
    }

    /// Counts a new connection of this address. The error is [`Code::Limit`].
    pub(crate) fn begin_connection(
        &self,
        from: Option<IpAddr>,
        now: Moment,
    ) -> Result<Usage, ProtocolError> {
        let Some(address) = from else { return Ok(None) };
        let is_own = address.to_canonical().is_loopback();
        if is_own && !self.counts_loopback.load(Ordering::Relaxed) || self.source.is_unlimited() {
            return Ok(None);
        }
        let account = self.source_account(address.into(), now);
        account.count_connect(now)?;
        let mut held = None;
        ConnectionUsage::get_or_start(&mut held).set_source(account)?;
        Ok(held)
    }

    /// Counts the connection for this principal from now on, or for none. If that exceeds a limit,
    /// the error is [`Code::Limit`], and the connection stays with its former principal.
    pub(crate) fn assign_principal(
        &self,
        held: &mut Usage,
        name: Option<&str>,
    ) -> Result<(), ProtocolError> {
        let account = name
            .filter(|_| !self.principal.is_unlimited())
            .map(|name| self.principal_account(name));
        if held.is_none() && account.is_none() {
            return Ok(());
        }
        ConnectionUsage::get_or_start(held).set_principal(account)
    }

    fn source_account(&self, source: Source, now: Moment) -> Arc<Account> {
        if let Some(account) = self.sources.get(&source).map(|account| Arc::clone(&account)) {
            return account;
        }
        let _alone = self.source_insert.lock();
        if self.sources.len() >= self.sources_max && !self.sources.contains_key(&source) {
            self.sources.retain(|_, account| has_connection(account) || account.is_needed(now));
            if self.sources.len() >= self.sources_max {
                // A client with many networks is not slowed down by the rate of each.
                self.sources.retain(|_, account| has_connection(account) || account.is_in_use());
            }
        }
        let new =
            || Arc::new(Account::new(format!("the address {source}"), Arc::clone(&self.source)));
        Arc::clone(&self.sources.entry(source).or_insert_with(new))
    }

    fn principal_account(&self, name: &str) -> Arc<Account> {
        if let Some(account) = self.principals.get(name).map(|account| Arc::clone(&account)) {
            return account;
        }
        let new = || Arc::new(Account::new(name.to_owned(), Arc::clone(&self.principal)));
        Arc::clone(&self.principals.entry(name.into()).or_insert_with(new))
    }

    /// Removes accounts that are not needed any more. To be called every second or so.
    pub(crate) fn tick(&self, exists: &Exists<'_>, now: Moment) {
        forget_unused(&self.sources, exists, now);
        forget_unused(&self.principals, exists, now);
    }
}

/// `exists` calls topics and groups, so it is called without a guard, on clones of accounts. Only
/// accounts that have created something are cloned: a clone keeps an account from being evicted.
fn forget_unused<K: Eq + Hash>(
    accounts: &DashMap<K, Arc<Account>>,
    exists: &Exists<'_>,
    now: Moment,
) {
    let idle = accounts.iter().filter(|account| !has_connection(account) && account.has_created());
    let idle: Vec<Arc<Account>> = idle.map(|account| Arc::clone(&account)).collect();
    for account in idle {
        account.forget_deleted(exists, || Arc::strong_count(&account) > 2);
    }
    accounts.retain(|_, account| has_connection(account) || account.is_needed(now));
}

fn has_connection(account: &Arc<Account>) -> bool {
    Arc::strong_count(account) > 1
}

/// The refusal of more than `max`.
fn over_quota(who: &str, quantity: Quantity, max: u64) -> ProtocolError {
    let text = format!("{who} has reached its limit of {max} {}", quantity.noun());
    ProtocolError::new(Code::Limit, text)
}
