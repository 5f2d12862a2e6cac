//! Limits the concurrent requests to each host, so that a host that does not answer delays only its
//! own callbacks.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Concurrent requests to one host.
const PER_HOST: u32 = 4;

/// How long a callback waits when its host is at the limit. The wait grows with the number of
/// rejections, and reaches the maximum at about a thousand.
const BUSY_MS_MIN: u64 = 2_000;
const BUSY_MS_MAX: u64 = 60_000;
const BUSY_MS_EACH: u64 = 60;

/// Counts the requests to each host.
#[derive(Debug, Default)]
pub(super) struct Hosts(Mutex<HashMap<String, Host>>);

#[derive(Debug, Default)]
struct Host {
    requests: u32,
    /// Rejections, halved with each request that is permitted.
    turned_away: u64,
}

/// A permitted request; it counts until this value is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    hosts: &'a Hosts,
    host: String,
}

impl Hosts {
    /// Permits another request to a host. At the limit, the error is how long to wait in ms; it
    /// grows with the number of rejections.
    pub(super) fn turn(&self, host: &str) -> Result<Turn<'_>, u64> {
        let mut hosts = self.0.lock();
        let load = hosts.entry(host.to_owned()).or_default();
        if load.requests == PER_HOST {
            load.turned_away += 1;
            let busy_ms = BUSY_MS_MIN + load.turned_away * BUSY_MS_EACH;
            return Err(busy_ms.min(BUSY_MS_MAX));
        }
        load.requests += 1;
        load.turned_away /= 2;
        Ok(Turn { hosts: self, host: host.to_owned() })
    }
}

impl Drop for Turn<'_> {
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
        let hosts = Hosts::default();
        let mut permits: Vec<_> = (0..4).map(|_| hosts.turn("a").unwrap()).collect();
        assert!(hosts.turn("a").is_err());
        assert!(hosts.turn("b").is_ok());
        permits.pop();
        permits.push(hosts.turn("a").unwrap());
        assert!(hosts.turn("a").is_err());
        drop(permits);
        assert!(hosts.0.lock().is_empty());
    }

    // PROTOCOL: F7
    #[test]
    fn the_wait_grows_with_the_number_of_rejections() {
        let hosts = Hosts::default();
        let permits: Vec<_> = (0..PER_HOST).map(|_| hosts.turn("a").unwrap()).collect();
        let busy = |hosts: &Hosts| hosts.turn("a").unwrap_err();
        assert!(busy(&hosts) < 3_000);
        let rests: Vec<_> = (0..3_000).map(|_| busy(&hosts)).collect();
        assert!(rests.is_sorted() && rests.last() == Some(&BUSY_MS_MAX));
        drop(permits);
        let _permits: Vec<_> = (0..PER_HOST).map(|_| hosts.turn("a").unwrap()).collect();
        assert!(busy(&hosts) < 3_000);
    }
}
