//! How many requests there are to each host: one that does not answer must not be waited for by all others.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Requests to one host at once.
const PER_HOST: u32 = 4;

/// How long what is too much for a host rests: at least, and at most where a thousand others wait for it, too.
const BUSY_MS_MIN: u64 = 2_000;
const BUSY_MS_MAX: u64 = 60_000;
const BUSY_MS_EACH: u64 = 60;

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Hosts(Mutex<HashMap<String, Host>>);

#[derive(Debug, Default)]
struct Host {
    requests: u32,
    /// What was too much since the last one that was not.
    turned_away: u64,
}

/// A request that may be made, for as long as this value lives.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    hosts: &'a Hosts,
    host: String,
}

impl Hosts {
    /// Unless there are enough already: then after so many ms, the more of them there are that want one.
    pub(super) fn turn(&self, host: &str) -> Result<Turn<'_>, u64> {
        let mut hosts = self.0.lock();
        let known = hosts.entry(host.to_owned()).or_default();
        if known.requests == PER_HOST {
            known.turned_away += 1;
            let busy_ms = BUSY_MS_MIN + known.turned_away * BUSY_MS_EACH;
            return Err(busy_ms.min(BUSY_MS_MAX));
        }
        known.requests += 1;
        known.turned_away /= 2;
        Ok(Turn { hosts: self, host: host.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut hosts = self.hosts.0.lock();
        let known = hosts.get_mut(&self.host).expect("it counts this one");
        known.requests -= 1;
        if known.requests == 0 {
            hosts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: F7
    #[test]
    fn a_host_has_so_many_requests_and_others_have_theirs() {
        let hosts = Hosts::default();
        let mut turns: Vec<_> = (0..4).map(|_| hosts.turn("a").unwrap()).collect();
        assert!(hosts.turn("a").is_err());
        assert!(hosts.turn("b").is_ok());
        turns.pop();
        turns.push(hosts.turn("a").unwrap());
        assert!(hosts.turn("a").is_err());
        drop(turns);
        assert!(hosts.0.lock().is_empty());
    }

    // PROTOCOL: F7
    #[test]
    fn where_many_wait_each_asks_seldom() {
        let hosts = Hosts::default();
        let turns: Vec<_> = (0..PER_HOST).map(|_| hosts.turn("a").unwrap()).collect();
        let busy = |hosts: &Hosts| hosts.turn("a").unwrap_err();
        assert!(busy(&hosts) < 3_000);
        let rests: Vec<_> = (0..3_000).map(|_| busy(&hosts)).collect();
        assert!(rests.is_sorted() && rests.last() == Some(&BUSY_MS_MAX));
        drop(turns);
        let _turns: Vec<_> = (0..PER_HOST).map(|_| hosts.turn("a").unwrap()).collect();
        assert!(busy(&hosts) < 3_000);
    }
}
