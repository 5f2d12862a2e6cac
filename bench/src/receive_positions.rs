//! The window: how far publishers may be ahead of the slowest subscriber.

/// Knows how many bytes every subscriber has, and for which of them somebody waits.
///
/// Asking whether everybody has come so far is O(1) after the first time: it counts once who is
/// behind, and then only those who pass the mark.
#[derive(Debug)]
pub(crate) struct ReceivePositions {
    /// Bytes that each subscriber has received.
    received: Vec<u64>,
    /// Who has stopped reading, and is waited for no more.
    is_excluded: Vec<bool>,
    /// The mark that somebody waits for everybody to pass.
    target_bytes: u64,
    /// Subscribers below the mark.
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

    /// Counts what a subscriber has received.
    pub(crate) fn add(&mut self, subscriber: usize, bytes: u64) {
        let before = self.received[subscriber];
        let now = before + bytes;
        self.received[subscriber] = now;
        if before < self.target_bytes && now >= self.target_bytes && !self.is_excluded[subscriber] {
            self.behind -= 1;
        }
    }

    /// Whether everybody has so many bytes.
    pub(crate) fn all_reached(&mut self, bytes: u64) -> bool {
        if bytes > self.target_bytes {
            self.target_bytes = bytes;
            let behind = |(&received, &excluded): (&u64, &bool)| !excluded && received < bytes;
            self.behind =
                self.received.iter().zip(&self.is_excluded).filter(|&each| behind(each)).count();
        }
        self.behind == 0 || (bytes < self.target_bytes && self.slowest() >= bytes)
    }

    /// Waits for this subscriber no more.
    pub(crate) fn exclude(&mut self, subscriber: usize) {
        self.is_excluded[subscriber] = true;
        // Counted anew by the next question.
        self.target_bytes = 0;
        self.behind = 0;
    }

    /// Bytes of the slowest one that is waited for.
    fn slowest(&self) -> u64 {
        self.active().min().unwrap_or(u64::MAX)
    }

    /// What each one has that is waited for.
    pub(crate) fn active(&self) -> impl Iterator<Item = u64> {
        self.received
            .iter()
            .zip(&self.is_excluded)
            .filter(|(_, excluded)| !**excluded)
            .map(|(&received, _)| received)
    }

    /// What this one has.
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
        let mut gate = ReceivePositions::new(5);
        let mut naive = [0_u64; 5];
        for _ in 0..10_000 {
            let (subscriber, bytes) = (random.usize(..5), random.u64(..100));
            gate.add(subscriber, bytes);
            naive[subscriber] += bytes;
            let slowest = naive.iter().min().copied().unwrap();
            let asked = (slowest + random.u64(..100)).saturating_sub(50);
            assert_eq!(gate.all_reached(asked), slowest >= asked, "seed {seed}");
        }
    }

    #[test]
    fn an_excluded_subscriber_is_ignored() {
        let mut gate = ReceivePositions::new(2);
        gate.add(0, 10);
        assert!(!gate.all_reached(10));
        gate.exclude(1);
        assert!(gate.all_reached(10) && !gate.all_reached(11));
        gate.add(1, 100);
        assert!(!gate.all_reached(11));
        gate.add(0, 1);
        assert!(gate.all_reached(11));
    }

    #[test]
    fn without_subscribers_every_position_is_reached() {
        assert!(ReceivePositions::new(0).all_reached(1));
    }
}
