//! The pages of the simulated world: a page's links are decided by its URL alone.

use std::collections::BTreeSet;

pub(super) const HOSTS: u64 = 6;
pub(super) const PAGES: u64 = 12;

pub(super) fn page(host: u64, number: u64) -> String {
    format!("http://h{host}.org/p{number}")
}

pub(super) fn host_of(url: &str) -> String {
    url.split('/').nth(2).unwrap().to_owned()
}

/// A page's links, which only its URL decides: mostly few, so that jobs differ in size.
pub(super) fn links_of(url: &str) -> Vec<String> {
    let hash = fnv(url);
    let count = hash % 4;
    (0..count)
        .map(|link| {
            let target = fnv(&format!("{url} {link}"));
            page(target % HOSTS, target / HOSTS % PAGES)
        })
        .collect()
}

fn fnv(text: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, hash) >> 7
}

/// The naive model of a job: everything that can be reached.
pub(super) fn reachable_from(seed: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::from([seed.to_owned()]);
    let mut frontier = vec![seed.to_owned()];
    while let Some(url) = frontier.pop() {
        for link in links_of(&url) {
            if reached.insert(link.clone()) {
                frontier.push(link);
            }
        }
    }
    reached
}
