//! Limits the concurrent requests to each host, so that a host that does not answer delays only its
//! own callbacks.

use std::collections::HashMap;

use parking_lot::Mutex;

const REQUESTS_PER_HOST_MAX: u32 = 4;

/// How long a callback waits when its host is at the limit. The wait grows with the number of
/// rejections, and reaches the maximum at about a thousand.
const BUSY_MS_MIN: u64 = 2_000;
const BUSY_MS_MAX: u64 = 60_000;
const BUSY_MS_PER_REJECTION: u64 = 60;

/// Counts the requests to each host.
#[derive(Debug, Default)]
pub(super) struct HostLimits(Mutex<HashMap<String, HostLoad>>);

#[derive(Debug, Default)]
struct HostLoad {
    requests: u32,
    /// Rejections, halved with each request that is permitted.
    rejected: u64,
}

/// A permitted request; it counts until this value is dropped.
#[derive(Debug)]
pub(super) struct HostPermit<'a> {
    hosts: &'a HostLimits,
    host: String,
}

impl HostLimits {
    /// Permits another request to a host. At the limit, the error is how long to wait in ms; it
    /// grows with the number of rejections.
    pub(super) fn acquire(&self, host: &str) -> Result<HostPermit<'_>, u64> {
        let mut hosts = self.0.lock();
        let load = hosts.entry(host.to_owned()).or_default();
        if load.requests == REQUESTS_PER_HOST_MAX {
            load.rejected += 1;
            let busy_ms = BUSY_MS_MIN + load.rejected * BUSY_MS_PER_REJECTION;
            return Err(busy_ms.min(BUSY_MS_MAX));
        }
        load.requests += 1;
        load.rejected /= 2;
        Ok(HostPermit { hosts: self, host: host.to_owned() })
    }
}

impl Drop for HostPermit<'_> {
    fn drop(&mut self) {
        let mut hosts = self.hosts.0.lock();
        let load = hosts.get_mut(&self.host).expect("a permit keeps its host in the map");
        load.requests -= 1;
        if load.requests == 0 {
            hosts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: F7
    #[test]
    fn each_host_has_its_own_limit() {
        let hosts = HostLimits::default();
        let mut permits: Vec<_> = (0..4).map(|_| hosts.acquire("a").unwrap()).collect();
        assert!(hosts.acquire("a").is_err());
        assert!(hosts.acquire("b").is_ok());
        permits.pop();
        permits.push(hosts.acquire("a").unwrap());
        assert!(hosts.acquire("a").is_err());
        drop(permits);
        assert!(hosts.0.lock().is_empty());
    }

    // PROTOCOL: F7
    #[test]
    fn the_wait_grows_with_the_number_of_rejections() {
        let hosts = HostLimits::default();
        let permits: Vec<_> =
            (0..REQUESTS_PER_HOST_MAX).map(|_| hosts.acquire("a").unwrap()).collect();
        let busy = |hosts: &HostLimits| hosts.acquire("a").unwrap_err();
        assert!(busy(&hosts) < 3_000);
        let rests: Vec<_> = (0..3_000).map(|_| busy(&hosts)).collect();
        assert!(rests.is_sorted() && rests.last() == Some(&BUSY_MS_MAX));
        drop(permits);
        let _permits: Vec<_> =
            (0..REQUESTS_PER_HOST_MAX).map(|_| hosts.acquire("a").unwrap()).collect();
        assert!(busy(&hosts) < 3_000);
    }
}
