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

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Everybody's account.
#[derive(Debug)]
pub(crate) struct Quotas {
    source: Arc<CurrentQuota>,
    principal: Arc<CurrentQuota>,
    counts_loopback: AtomicBool,
    sources: Mutex<HashMap<Source, Arc<Account>>>,
    principals: Mutex<HashMap<Box<str>, Arc<Account>>>,
}

/// What a connection has, if anything of that is counted.
pub(crate) type Held = Option<Box<Holding>>;

impl Quotas {
    pub(crate) fn new(config: &QuotaConfig) -> Self {
        Self {
            source: Arc::new(CurrentQuota::new(&config.source)),
            principal: Arc::new(CurrentQuota::new(&config.principal)),
            counts_loopback: AtomicBool::new(config.counts_loopback),
            sources: Mutex::default(),
            principals: Mutex::default(),
        }
    }

    /// How much one may have from now on. Who has more keeps it and gets no more; what nobody counted when it came is
    /// not counted later. What is owed at a rate that has changed is forgotten.
    pub(crate) fn change(&self, config: &QuotaConfig) {
        self.counts_loopback.store(config.counts_loopback, Ordering::Relaxed);
        let before = self.source.change(&config.source);
        for account in self.sources.lock().values() {
            account.forget_rates_of(&before);
        }
        let before = self.principal.change(&config.principal);
        for account in self.principals.lock().values() {
            account.forget_rates_of(&before);
        }
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
        let sources = &mut *self.sources.lock();
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            sources.retain(|_, account| account.is_in_use() || account.is_owed(now));
            if sources.len() >= SOURCES_MAX {
                // Whoever commands so many networks is not held up by how fast each of them is.
                sources.retain(|_, account| account.is_in_use());
            }
        }
        let who = || format!("the address {source}");
        let new = || Arc::new(Account::new(who(), Arc::clone(&self.source)));
        Arc::clone(sources.entry(source).or_insert_with(new))
    }

    fn of_principal(&self, name: &str) -> Arc<Account> {
        let principals = &mut *self.principals.lock();
        if let Some(account) = principals.get(name) {
            return Arc::clone(account);
        }
        let account = Arc::new(Account::new(name.to_owned(), Arc::clone(&self.principal)));
        principals.insert(name.into(), Arc::clone(&account));
        account
    }

    /// Forgets who has nothing any more. To be called every second or so.
    pub(crate) fn tend(&self, exists: &Exists<'_>, now: Moment) {
        let is_wanted = |account: &Arc<Account>| {
            let is_connected = Arc::strong_count(account) > 1;
            if !is_connected {
                account.forget_unless(exists);
            }
            is_connected || account.is_in_use() || account.is_owed(now)
        };
        self.sources.lock().retain(|_, account| is_wanted(account));
        self.principals.lock().retain(|_, account| is_wanted(account));
    }
}

/// Somebody may have no more of that.
fn too_much(who: &str, quantity: Quantity, max: u64) -> ProtocolError {
    let text = format!("{who} has {max} {}, the most that one may have", quantity.noun());
    ProtocolError::new(Code::Limit, text)
}
