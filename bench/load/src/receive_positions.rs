//! Progress of subscribers, which keeps publishers within their window.

/// The number of bytes that each subscriber has received, and the number of subscribers that are
/// below a target.
///
/// A check of the same target is O(1) after the first time: the first check counts the subscribers
/// below it, and later only those that pass it are subtracted.
#[derive(Debug)]
pub(crate) struct ReceivePositions {
    /// Bytes that each subscriber has received.
    received: Vec<u64>,
    /// Subscribers that have stopped reading and do not count.
    is_excluded: Vec<bool>,
    /// Number of bytes that all subscribers are to reach.
    target_bytes: u64,
    /// Subscribers below the target.
    behind: usize,
}

impl ReceivePositions {
    pub(crate) fn new(subscribers: usize) -> Self {
        Self {
            received: vec![0; subscribers],
            is_excluded: vec![false; subscribers],
            target_bytes: 0,
            behind: 0,
        }
    }

    pub(crate) fn add(&mut self, subscriber: usize, bytes: u64) {
        let before = self.received[subscriber];
        let now = before + bytes;
        self.received[subscriber] = now;
        if before < self.target_bytes && now >= self.target_bytes && !self.is_excluded[subscriber] {
            self.behind -= 1;
        }
    }

    /// Whether all subscribers have received this number of bytes.
    pub(crate) fn all_reached(&mut self, bytes: u64) -> bool {
        if bytes > self.target_bytes {
            self.target_bytes = bytes;
            let is_behind = |(&received, &excluded): (&u64, &bool)| !excluded && received < bytes;
            self.behind =
                self.received.iter().zip(&self.is_excluded).filter(|&each| is_behind(each)).count();
        }
        self.behind == 0 || (bytes < self.target_bytes && self.slowest() >= bytes)
    }

    /// Ignores this subscriber from now on.
    pub(crate) fn exclude(&mut self, subscriber: usize) {
        self.is_excluded[subscriber] = true;
        // The next check counts again.
        self.target_bytes = 0;
        self.behind = 0;
    }

    /// Bytes of the slowest active subscriber.
    fn slowest(&self) -> u64 {
        self.active().min().unwrap_or(u64::MAX)
    }

    /// Bytes of each active subscriber.
    pub(crate) fn active(&self) -> impl Iterator<Item = u64> {
        self.received
            .iter()
            .zip(&self.is_excluded)
            .filter(|(_, excluded)| !**excluded)
            .map(|(&received, _)| received)
    }

    /// Bytes of one subscriber.
    pub(crate) fn received(&self, subscriber: usize) -> u64 {
        self.received[subscriber]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_reached_by_the_slowest_subscriber() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut positions = ReceivePositions::new(5);
        let mut naive = [0_u64; 5];
        for _ in 0..10_000 {
            let (subscriber, bytes) = (random.usize(..5), random.u64(..100));
            positions.add(subscriber, bytes);
            naive[subscriber] += bytes;
            let slowest = naive.iter().min().copied().unwrap();
            let target = (slowest + random.u64(..100)).saturating_sub(50);
            assert_eq!(positions.all_reached(target), slowest >= target, "seed {seed}");
        }
    }

    #[test]
    fn an_excluded_subscriber_is_ignored() {
        let mut positions = ReceivePositions::new(2);
        positions.add(0, 10);
        assert!(!positions.all_reached(10));
        positions.exclude(1);
        assert!(positions.all_reached(10) && !positions.all_reached(11));
        positions.add(1, 100);
        assert!(!positions.all_reached(11));
        positions.add(0, 1);
        assert!(positions.all_reached(11));
    }

    #[test]
    fn without_subscribers_every_position_is_reached() {
        assert!(ReceivePositions::new(0).all_reached(1));
    }
}
