//! The address guard where requests begin: for hosts that are addresses, and for every address
//! that a name resolves to. Connections are made to the addresses that were checked, so a name
//! that resolves otherwise a moment later gains nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tidings_protocol::CanonicalUrl;

use crate::address::{AddressRefused, AllowPrivate};

/// The resolver is not asked for hosts that are addresses, so they are checked here.
pub(super) fn check_host(allow: &AllowPrivate, url: &CanonicalUrl) -> Result<(), AddressRefused> {
    url.address().map_or(Ok(()), |address| allow.check(address))
}

/// The system's resolver, without the addresses that may not be asked.
#[derive(Debug)]
pub(super) struct GuardedResolver {
    allow: Arc<AllowPrivate>,
}

impl GuardedResolver {
    pub(super) fn new(allow: AllowPrivate) -> Self {
        Self { allow: Arc::new(allow) }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = Arc::clone(&self.allow);
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut refused = None;
            let mut checked: Vec<SocketAddr> = Vec::new();
            for address in resolved {
                match allow.check(address.ip()) {
                    Ok(()) => checked.push(address),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            match refused {
                Some(error) if checked.is_empty() => Err(error.into()),
                None if checked.is_empty() => {
                    Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into())
                }
                _ => Ok(Box::new(checked.into_iter()) as Addrs),
            }
        })
    }
}
