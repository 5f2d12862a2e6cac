//! How much one may have: whoever comes from one address, and whoever is known by one name.
//!
//! Everything that a peer can have or do at all has a bound for all of them together
//! ([`Limits`](crate::Limits)). Here is what one may have of that, so that others find some left:
//!
//! ```text
//!  an address ──┐
//!               ├──▶ Account: what it has, what it has made, how fast it goes
//!  a principal ─┘        ▲
//!                        │ of each what this connection has is a part
//!                     Holding ◀── a connection
//! ```
//!
//! What is had ([`Quantity::is_held`]) is refused when it would be too much; what is done is slowed down: a connection
//! that goes too fast is not read for a while, so that nothing is lost.
//!
//! Who is on this machine has no address that is counted, unless that is wanted. Who may do everything, and the
//! broker's own parts, are no principals here.

mod account;
mod holding;
mod quantity;
#[cfg(test)]
mod tests;

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tidings_protocol::{Code, ProtocolError};

use self::account::Account;
pub(crate) use self::account::Made;
pub(crate) use self::holding::{Exists, Holding};
use self::quantity::CurrentQuota;
pub use self::quantity::{Quantity, Quota};
use crate::clock::Moment;
use crate::throttle::Source;

/// Addresses that are remembered for nothing but how fast they went, some 200 bytes each.
const SOURCES_MAX: usize = 16_384;

/// How much one may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Who comes from one IPv4 address, or one /64 of IPv6.
    pub source: Quota,
    /// Who is known by one name.
    pub principal: Quota,
    /// Whether addresses of this machine are counted as others. Default: no.
    pub counts_loopback: bool,
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            source: Quota::of_sources(),
            principal: Quota::of_principals(),
            counts_loopback: false,
        }
    }
}

/// The accounts of all addresses and principals.
///
/// An account is independent of the others, and a guard of a map lives in one expression. A connection clones its
/// account from the map, so a guard for writing and `strong_count` tell that no connection has it.
#[derive(Debug)]
pub(crate) struct Quotas {
    source: Arc<CurrentQuota>,
    principal: Arc<CurrentQuota>,
    counts_loopback: AtomicBool,
    sources: DashMap<Source, Arc<Account>>,
    /// Accounts in `sources` at which those that no connection has are evicted.
    sources_max: usize,
    /// Held while an address is added: its place among `sources_max` depends on all others.
    adding: Mutex<()>,
    principals: DashMap<Box<str>, Arc<Account>>,
}

/// What a connection has, if anything of that is counted.
pub(crate) type Held = Option<Box<Holding>>;

impl Quotas {
    pub(crate) fn new(config: &QuotaConfig) -> Self {
        Self {
            source: Arc::new(CurrentQuota::new(&config.source)),
            principal: Arc::new(CurrentQuota::new(&config.principal)),
            counts_loopback: AtomicBool::new(config.counts_loopback),
            sources: DashMap::new(),
            sources_max: SOURCES_MAX,
            adding: Mutex::default(),
            principals: DashMap::new(),
        }
    }

    /// How much one may have from now on. Who has more keeps it and gets no more; what nobody counted when it came is
    /// not counted later. What is owed at a rate that has changed is forgotten.
    pub(crate) fn change(&self, config: &QuotaConfig) {
        self.counts_loopback.store(config.counts_loopback, Ordering::Relaxed);
        let before = self.source.change(&config.source);
        self.sources.iter().for_each(|account| account.forget_rates_of(&before));
        let before = self.principal.change(&config.principal);
        self.principals.iter().for_each(|account| account.forget_rates_of(&before));
    }

    /// A connection comes from there. Refused with [`Code::Limit`].
    pub(crate) fn connect(&self, from: Option<IpAddr>, now: Moment) -> Result<Held, ProtocolError> {
        let Some(address) = from else { return Ok(None) };
        let is_own = address.to_canonical().is_loopback();
        if is_own && !self.counts_loopback.load(Ordering::Relaxed) || self.source.is_endless() {
            return Ok(None);
        }
        let account = self.of_source(address.into(), now);
        account.comes(now)?;
        let mut held = None;
        Holding::account(&mut held).begin_from(account)?;
        Ok(held)
    }

    /// From now on the connection is that of somebody of that name, or of nobody who is counted. Refused with
    /// [`Code::Limit`] if that is too much for them; then it is whose it was before.
    pub(crate) fn assign(&self, held: &mut Held, name: Option<&str>) -> Result<(), ProtocolError> {
        let account =
            name.filter(|_| !self.principal.is_endless()).map(|name| self.of_principal(name));
        if held.is_none() && account.is_none() {
            return Ok(());
        }
        Holding::account(held).belong_to(account)
    }

    fn of_source(&self, source: Source, now: Moment) -> Arc<Account> {
        if let Some(account) = self.sources.get(&source).map(|account| Arc::clone(&account)) {
            return account;
        }
        let _alone = self.adding.lock();
        if self.sources.len() >= self.sources_max && !self.sources.contains_key(&source) {
            self.sources.retain(|_, account| has_connection(account) || account.is_wanted(now));
            if self.sources.len() >= self.sources_max {
                // A client with so many networks is not slowed down by the rate of each.
                self.sources.retain(|_, account| has_connection(account) || account.is_in_use());
            }
        }
        let new =
            || Arc::new(Account::new(format!("the address {source}"), Arc::clone(&self.source)));
        Arc::clone(&self.sources.entry(source).or_insert_with(new))
    }

    fn of_principal(&self, name: &str) -> Arc<Account> {
        if let Some(account) = self.principals.get(name).map(|account| Arc::clone(&account)) {
            return account;
        }
        let new = || Arc::new(Account::new(name.to_owned(), Arc::clone(&self.principal)));
        Arc::clone(&self.principals.entry(name.into()).or_insert_with(new))
    }

    /// Forgets accounts that have nothing any more. To be called every second or so.
    pub(crate) fn tend(&self, exists: &Exists<'_>, now: Moment) {
        tend(&self.sources, exists, now);
        tend(&self.principals, exists, now);
    }
}

/// `exists` asks topics and groups, so it is called without a guard, on clones of accounts. Each of those has made
/// something: a clone of another one would keep it from being evicted.
fn tend<K: Eq + Hash>(accounts: &DashMap<K, Arc<Account>>, exists: &Exists<'_>, now: Moment) {
    let idle = accounts.iter().filter(|account| !has_connection(account) && account.has_made());
    let idle: Vec<Arc<Account>> = idle.map(|account| Arc::clone(&account)).collect();
    for account in idle {
        account.forget_unless(exists, || Arc::strong_count(&account) > 2);
    }
    accounts.retain(|_, account| has_connection(account) || account.is_wanted(now));
}

/// Whether a connection has an account of the map.
fn has_connection(account: &Arc<Account>) -> bool {
    Arc::strong_count(account) > 1
}

/// Somebody may have no more of that.
fn too_much(who: &str, quantity: Quantity, max: u64) -> ProtocolError {
    let text = format!("{who} has {max} {}, the most that one may have", quantity.noun());
    ProtocolError::new(Code::Limit, text)
}
