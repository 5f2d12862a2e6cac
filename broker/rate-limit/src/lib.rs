//! Token buckets: rate limits with a burst, for the sources of requests to the broker and for the
//! items of hubs.
//!
//! Pure: time is an argument, in milliseconds on any clock that never goes back, and memory has a
//! limit. This crate depends on nothing but the standard library; `.ci/run` checks this.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// Sources that are counted at once, about 50 bytes each.
pub const SOURCES_MAX: usize = 16_384;

/// Bits of an IPv6 address that name its network: a client that has a network has all addresses in
/// it.
const V6_NETWORK_BITS: u32 = 64;

/// Microseconds are fine enough for the price of one token of a slow bucket.
const US_PER_MS: u64 = 1_000;
const US_PER_MINUTE: u64 = 60_000_000;

/// What is counted as one client: an IPv4 address, or a /64 network of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network =
                    address.to_bits() >> (128 - V6_NETWORK_BITS) << (128 - V6_NETWORK_BITS);
                Ipv6Addr::from_bits(network).into()
            }
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(out),
            IpAddr::V6(network) => write!(out, "{network}/{V6_NETWORK_BITS}"),
        }
    }
}

impl Source {
    /// The address, or the first one of the network.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

/// How fast a bucket fills, and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a minute. At least 1.
    pub per_minute: u32,
    /// Tokens of a full bucket. At least 1; a request for more tokens never succeeds.
    pub burst: u32,
}

impl Rate {
    fn token_us(self) -> u64 {
        US_PER_MINUTE / u64::from(self.per_minute.max(1))
    }

    fn full_us(self) -> u64 {
        self.token_us() * u64::from(self.burst.max(1))
    }
}

/// One bucket, full at first. Its state is the time when it will be full again, in microseconds:
/// the later, the emptier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBucket {
    full_at_us: u64,
}

impl TokenBucket {
    /// Takes this number of tokens, or none. The error is the number of milliseconds after which
    /// there will be enough, if none are taken meanwhile.
    pub fn take(&mut self, rate: Rate, tokens: u32, now_ms: u64) -> Result<(), u64> {
        let at_us = now_ms.saturating_mul(US_PER_MS);
        let price_us = rate.token_us().saturating_mul(tokens.into());
        let full_at_us = self.full_at_us.max(at_us).saturating_add(price_us);
        let over_us = (full_at_us - at_us).saturating_sub(rate.full_us());
        if over_us > 0 {
            return Err(over_us.div_ceil(US_PER_MS));
        }
        self.full_at_us = full_at_us;
        Ok(())
    }

    /// Whether nothing is missing, so that it equals a new one.
    pub fn is_full(self, now_ms: u64) -> bool {
        self.full_at_us <= now_ms.saturating_mul(US_PER_MS)
    }

    /// Returns tokens that were taken in vain.
    pub fn refund(&mut self, rate: Rate, tokens: u32) {
        let price_us = rate.token_us().saturating_mul(tokens.into());
        self.full_at_us = self.full_at_us.saturating_sub(price_us);
    }
}

/// A bucket for each key, as far as it differs from a full one.
#[derive(Debug)]
pub struct RateLimiter<K> {
    buckets: HashMap<K, TokenBucket>,
    /// The largest number of buckets, at least 1.
    max: usize,
}

impl<K: Copy + Eq + Hash> RateLimiter<K> {
    /// Keeps at most `max` buckets; the fullest ones are dropped first.
    pub fn new(max: usize) -> Self {
        Self { buckets: HashMap::new(), max: max.max(1) }
    }

    /// Takes one token of `key`. The error is the number of milliseconds after which one can be
    /// taken.
    pub fn take(&mut self, key: K, rate: Rate, now_ms: u64) -> Result<(), u64> {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            return bucket.take(rate, 1, now_ms);
        }
        let mut bucket = TokenBucket::default();
        bucket.take(rate, 1, now_ms)?;
        self.evict(now_ms);
        self.buckets.insert(key, bucket);
        Ok(())
    }

    /// Removes full buckets, which loses nothing, and then those that are nearly full if that is
    /// not enough: the busiest keys are remembered longest. Removes a quarter at a time, so that
    /// one scan serves many insertions.
    fn evict(&mut self, now_ms: u64) {
        if self.buckets.len() < self.max {
            return;
        }
        self.buckets.retain(|_, bucket| !bucket.is_full(now_ms));
        let kept = self.max - self.max.div_ceil(4);
        if self.buckets.len() <= kept {
            return;
        }
        let mut fullest: Vec<(u64, K)> =
            self.buckets.iter().map(|(key, bucket)| (bucket.full_at_us, *key)).collect();
        let surplus = fullest.len() - kept;
        fullest.select_nth_unstable_by_key(surplus - 1, |(full_at_us, _)| *full_at_us);
        for (_, key) in &fullest[..surplus] {
            self.buckets.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate { per_minute: 60, burst: 3 };

    #[test]
    fn a_burst_is_allowed_and_then_one_token_at_a_time() {
        let mut bucket = TokenBucket::default();
        for _ in 0..3 {
            assert_eq!(bucket.take(RATE, 1, 5), Ok(()));
        }
        assert_eq!(bucket.take(RATE, 1, 5), Err(1_000));
        assert_eq!(bucket.take(RATE, 1, 1_004), Err(1), "a refusal costs nothing");
        assert_eq!(bucket.take(RATE, 1, 1_005), Ok(()));
        assert_eq!(bucket.take(RATE, 2, 1_005), Err(2_000));
        assert_eq!(bucket.take(RATE, 4, 1 << 40), Err(1_000), "more than the burst never succeeds");
        assert_eq!(bucket.take(RATE, 3, 1 << 40), Ok(()));
    }

    #[test]
    fn a_source_is_an_address_or_a_network() {
        let source = |address: &str| Source::from(address.parse::<IpAddr>().unwrap());
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }

    #[test]
    fn the_busiest_keys_are_remembered_and_memory_is_bounded() {
        let mut throttle = RateLimiter::new(8);
        for _ in 0..3 {
            assert_eq!(throttle.take(0, RATE, 0), Ok(()));
        }
        for other in 1..1_000 {
            assert_eq!(throttle.take(other, RATE, 0), Ok(()));
            assert!(throttle.buckets.len() <= 8, "{other}");
            assert!(throttle.take(0, RATE, 0).is_err(), "{other}");
        }
        assert_eq!(throttle.take(0, RATE, 60_000), Ok(()));
    }

    proptest! {
        #[test]
        fn no_period_exceeds_the_burst_plus_the_refill(
            per_minute in 1..10_000_u32,
            burst in 1..50_u32,
            steps in prop::collection::vec((0..3_000_u64, 1..4_u32), 1..200),
        ) {
            let rate = Rate { per_minute, burst };
            let (mut bucket, mut now, mut taken) = (TokenBucket::default(), 0, Vec::new());
            for (wait_ms, tokens) in steps {
                now += wait_ms;
                match bucket.take(rate, tokens, now) {
                    Ok(()) => taken.push((now, u64::from(tokens))),
                    Err(later_ms) if tokens <= burst => {
                        let mut late_bucket = bucket;
                        prop_assert!(late_bucket.take(rate, tokens, now + later_ms).is_ok());
                        prop_assert!(later_ms > 0);
                        let mut early_bucket = bucket;
                        let early = now + later_ms - 1;
                        prop_assert!(early_bucket.take(rate, tokens, early).is_err());
                    }
                    Err(_) => {}
                }
            }
            for (first, (from, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for (to, tokens) in &taken[first..] {
                    sum += tokens;
                    // A token is a whole number of microseconds, so a minute may have a few more.
                    let token_us = 60_000_000 / u64::from(per_minute);
                    let filled = (to - from) * 1_000 / token_us;
                    prop_assert!(sum <= u64::from(burst) + filled + 1, "{sum} from {from} to {to}");
                }
            }
        }
    }
}
