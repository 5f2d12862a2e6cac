//! Progress of subscribers, which keeps publishers within their window.

/// The number of bytes that each subscriber has received, and the number of subscribers that are
/// below a target.
///
/// A check of the same target is O(1) after the first time: the first check counts the subscribers
/// below it, and later only those that pass it are subtracted.
#[derive(Debug)]
pub(crate) struct ReceivePositions {
    /// Bytes that each subscriber has received.
    pub(crate) received: Vec<u64>,
    /// Number of bytes that all subscribers are to reach.
    target_bytes: u64,
    /// Subscribers below the target.
    behind: usize,
}

impl ReceivePositions {
    pub(crate) fn new(subscribers: usize) -> Self {
        Self { received: vec![0; subscribers], target_bytes: 0, behind: 0 }
    }

    pub(crate) fn add(&mut self, subscriber: usize, bytes: u64) {
        let before = self.received[subscriber];
        let now = before + bytes;
        self.received[subscriber] = now;
        self.behind -= usize::from(before < self.target_bytes && now >= self.target_bytes);
    }

    /// Whether all subscribers have received this number of bytes, which never falls.
    pub(crate) fn all_reached(&mut self, bytes: u64) -> bool {
        if bytes > self.target_bytes {
            self.target_bytes = bytes;
            self.behind = self.received.iter().filter(|&&received| received < bytes).count();
        }
        self.behind == 0
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
        let (mut naive, mut target) = ([0_u64; 5], 0);
        for _ in 0..10_000 {
            let (subscriber, bytes) = (random.usize(..5), random.u64(..100));
            positions.add(subscriber, bytes);
            naive[subscriber] += bytes;
            let slowest = naive.iter().min().copied().unwrap();
            target = target.max((slowest + random.u64(..100)).saturating_sub(50));
            assert_eq!(positions.all_reached(target), slowest >= target, "seed {seed}");
        }
    }
}
