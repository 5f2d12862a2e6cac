//! The window: how far publishers may be ahead of the slowest subscriber.

/// Knows how many bytes every subscriber has, and for which of them somebody waits.
///
/// Asking whether everybody has come so far is O(1) after the first time: it counts once who is
/// behind, and then only those who pass the mark.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Bytes that each subscriber has received.
    received: Vec<u64>,
    /// Who has stopped reading, and is waited for no more.
    excluded: Vec<bool>,
    /// The mark that somebody waits for everybody to pass.
    awaited: u64,
    /// Subscribers below the mark.
    behind: usize,
}

impl Gate {
    pub(crate) fn new(subscribers: usize) -> Self {
        Self {
            received: vec![0; subscribers],
            excluded: vec![false; subscribers],
            awaited: 0,
            behind: 0,
        }
    }

    /// Counts what a subscriber has received.
    pub(crate) fn receive(&mut self, subscriber: usize, bytes: u64) {
        let before = self.received[subscriber];
        let now = before + bytes;
        self.received[subscriber] = now;
        if before < self.awaited && now >= self.awaited && !self.excluded[subscriber] {
            self.behind -= 1;
        }
    }

    /// Whether everybody has so many bytes.
    pub(crate) fn all_have(&mut self, bytes: u64) -> bool {
        if bytes > self.awaited {
            self.awaited = bytes;
            let behind = |(&received, &excluded): (&u64, &bool)| !excluded && received < bytes;
            self.behind =
                self.received.iter().zip(&self.excluded).filter(|&each| behind(each)).count();
        }
        self.behind == 0 || (bytes < self.awaited && self.slowest() >= bytes)
    }

    /// Waits for this subscriber no more.
    pub(crate) fn exclude(&mut self, subscriber: usize) {
        self.excluded[subscriber] = true;
        // Counted anew by the next question.
        self.awaited = 0;
        self.behind = 0;
    }

    /// Bytes of the slowest one that is waited for.
    fn slowest(&self) -> u64 {
        self.each().min().unwrap_or(u64::MAX)
    }

    /// What each one has that is waited for.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        self.received
            .iter()
            .zip(&self.excluded)
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
    fn the_gate_opens_when_the_slowest_has_passed() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut gate = Gate::new(5);
        let mut naive = [0_u64; 5];
        for _ in 0..10_000 {
            let (subscriber, bytes) = (random.usize(..5), random.u64(..100));
            gate.receive(subscriber, bytes);
            naive[subscriber] += bytes;
            let slowest = naive.iter().min().copied().unwrap();
            let asked = (slowest + random.u64(..100)).saturating_sub(50);
            assert_eq!(gate.all_have(asked), slowest >= asked, "seed {seed}");
        }
    }

    #[test]
    fn who_has_stopped_reading_is_not_waited_for() {
        let mut gate = Gate::new(2);
        gate.receive(0, 10);
        assert!(!gate.all_have(10));
        gate.exclude(1);
        assert!(gate.all_have(10) && !gate.all_have(11));
        gate.receive(1, 100);
        assert!(!gate.all_have(11));
        gate.receive(0, 1);
        assert!(gate.all_have(11));
    }

    #[test]
    fn with_nobody_to_wait_for_it_is_open() {
        assert!(Gate::new(0).all_have(1));
    }
}
