//! Limits concurrent requests to one address, across all names that resolve to it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits per address that are kept before unused ones are removed.
const ADDRESS_LIMITS_KEPT: usize = 1024;

/// Permits one request to one address until it is dropped.
#[derive(Debug)]
pub struct AddressPermit(
    #[expect(dead_code, reason = "dropping it returns the permit")] OwnedSemaphorePermit,
);

#[derive(Debug)]
pub(super) struct AddressLimits {
    /// `>= 1`.
    requests_max: usize,
    addresses: Mutex<AddressTable>,
}

#[derive(Debug)]
struct AddressTable {
    /// Permits and waiting requests keep the semaphore of an address alive.
    by_address: HashMap<IpAddr, Weak<Semaphore>>,
    /// Unused entries are removed when the map reaches this size, so the amortised cost is
    /// constant.
    sweep_at: usize,
}

impl AddressLimits {
    pub(super) fn new(requests_max: u32) -> Self {
        let requests_max = usize::try_from(requests_max).unwrap_or(usize::MAX);
        let addresses = AddressTable { by_address: HashMap::new(), sweep_at: ADDRESS_LIMITS_KEPT };
        Self {
            requests_max: requests_max.clamp(1, Semaphore::MAX_PERMITS),
            addresses: Mutex::new(addresses),
        }
    }

    pub(super) async fn permit(&self, address: IpAddr) -> AddressPermit {
        let semaphore = self.addresses.lock().semaphore(address, self.requests_max);
        let permit = semaphore.acquire_owned().await;
        AddressPermit(permit.expect("the semaphore is never closed"))
    }
}

impl AddressTable {
    fn semaphore(&mut self, address: IpAddr, requests_max: usize) -> Arc<Semaphore> {
        if let Some(semaphore) = self.by_address.get(&address).and_then(Weak::upgrade) {
            return semaphore;
        }
        if self.by_address.len() >= self.sweep_at {
            self.by_address.retain(|_, semaphore| semaphore.strong_count() > 0);
            self.sweep_at = (self.by_address.len() * 2).max(ADDRESS_LIMITS_KEPT);
        }
        let semaphore = Arc::new(Semaphore::new(requests_max));
        self.by_address.insert(address, Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[tokio::test]
    async fn each_address_has_its_own_limit() {
        let limits = AddressLimits::new(2);
        let first = limits.permit(address(1)).await;
        let _second = limits.permit(address(1)).await;
        assert!(limits.permit(address(1)).now_or_never().is_none());
        assert!(limits.permit(address(2)).now_or_never().is_some());
        drop(first);
        assert!(limits.permit(address(1)).now_or_never().is_some());
    }

    #[test]
    fn unused_addresses_are_removed() {
        let limits = AddressLimits::new(1);
        let held = limits.permit(address(0)).now_or_never().unwrap();
        for number in 1..10 * u32::try_from(ADDRESS_LIMITS_KEPT).unwrap() {
            limits.permit(address(number)).now_or_never().unwrap();
            assert!(limits.addresses.lock().by_address.len() <= ADDRESS_LIMITS_KEPT);
        }
        assert!(limits.permit(address(0)).now_or_never().is_none());
        drop(held);
        assert!(limits.permit(address(0)).now_or_never().is_some());
    }
}
