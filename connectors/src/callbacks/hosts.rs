//! How many requests there are to each host: one that does not answer must not be waited for by all others.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Requests to one host at once.
const PER_HOST: u32 = 4;

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Hosts(Mutex<HashMap<String, u32>>);

/// A request that may be made, for as long as this value lives.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    hosts: &'a Hosts,
    host: String,
}

impl Hosts {
    /// Unless there are enough already.
    pub(super) fn turn(&self, host: &str) -> Option<Turn<'_>> {
        let mut counts = self.0.lock();
        let count = counts.entry(host.to_owned()).or_default();
        if *count == PER_HOST {
            return None;
        }
        *count += 1;
        Some(Turn { hosts: self, host: host.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut counts = self.hosts.0.lock();
        let count = counts.get_mut(&self.host).expect("it counts this one");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_so_many_requests_and_others_have_theirs() {
        let hosts = Hosts::default();
        let mut turns: Vec<_> = (0..PER_HOST).map(|_| hosts.turn("a").unwrap()).collect();
        assert!(hosts.turn("a").is_none());
        assert!(hosts.turn("b").is_some());
        turns.pop();
        turns.push(hosts.turn("a").unwrap());
        assert!(hosts.turn("a").is_none());
        drop(turns);
        assert!(hosts.0.lock().is_empty());
    }
}
