//! The memory budget of request bodies that are being received.
//!
//! A body waits until memory is free. Bodies of unverified senders can also be evicted, or else a
//! few slow senders could block all others. The oldest body is evicted first: a real sender sends
//! its whole body within a moment, even through a proxy.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Bytes that one permit of the semaphore stands for.
const PERMIT_BYTES: usize = 1 << 10;

/// The age that a body must have before it can be evicted.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// A memory budget for bodies.
#[derive(Debug)]
pub(super) struct BodyMemory {
    permits: Semaphore,
    /// All permits of the semaphore, free or taken.
    permits_max: usize,
    /// The bodies that can be evicted; `None` if bodies are never evicted.
    evictable: Option<Mutex<EvictableBodies>>,
}

/// Bodies that are being received, in the order in which they got their first permit.
#[derive(Debug, Default)]
struct EvictableBodies {
    bodies: BTreeMap<u64, EvictableBody>,
    next_number: u64,
    /// Permits that bodies wait for. They include free ones: the semaphore reserves free permits
    /// for the first in its queue, which gets them when there are enough.
    permits_wanted: usize,
    /// Permits that bodies have.
    permits_taken: usize,
}

#[derive(Debug)]
struct EvictableBody {
    since: Instant,
    permits: usize,
    /// Cancelled when the body must release its memory.
    evicted: CancellationToken,
}

/// The permits of a body; dropping it releases them.
#[derive(Debug)]
pub(super) struct MemoryPermit<'a> {
    memory: &'a BodyMemory,
    permit: SemaphorePermit<'a>,
}

/// The memory of a body that is being received.
#[derive(Debug)]
pub(super) struct BodyReservation<'a> {
    memory: &'a BodyMemory,
    permit: Option<MemoryPermit<'a>>,
    /// Its key in [`EvictableBodies`], from its first permit on.
    number: Option<u64>,
    evicted: CancellationToken,
}

impl BodyMemory {
    /// A budget in which a body keeps its memory as long as it needs it.
    pub(super) fn new(bytes_max: usize) -> Self {
        let permits_max = bytes_max.div_ceil(PERMIT_BYTES);
        Self { permits: Semaphore::new(permits_max), permits_max, evictable: None }
    }

    /// A budget in which the oldest bodies are evicted if another body needs memory.
    pub(super) fn with_eviction(bytes_max: usize) -> Self {
        Self { evictable: Some(Mutex::default()), ..Self::new(bytes_max) }
    }

    /// An empty reservation, for a new body. When `evicted` is cancelled, the caller must drop it.
    pub(super) fn reservation(&self, evicted: CancellationToken) -> BodyReservation<'_> {
        BodyReservation { memory: self, permit: None, number: None, evicted }
    }

    /// Waits for permits, and evicts bodies where that is allowed.
    async fn acquire(&self, permits: u32) -> MemoryPermit<'_> {
        let with_memory = |permit| MemoryPermit { memory: self, permit };
        let Some(evictable) = &self.evictable else {
            let permit = self.permits.acquire_many(permits).await;
            return with_memory(permit.expect("the semaphore is never closed"));
        };
        {
            let evictable = &mut *evictable.lock();
            if let Ok(permit) = self.permits.try_acquire_many(permits) {
                evictable.permits_taken += permits as usize;
                return with_memory(permit);
            }
        }
        let waiting = WaitingPermits::new(evictable, permits as usize);
        let mut acquire = pin!(self.permits.acquire_many(permits));
        loop {
            let retry_at = self.evict_oldest(&mut evictable.lock(), Instant::now());
            tokio::select! {
                biased;
                permit = &mut acquire => {
                    waiting.acquired();
                    return with_memory(permit.expect("the semaphore is never closed"));
                }
                () = sleep_until(retry_at) => {}
            }
        }
    }

    /// Evicts the oldest bodies until their permits suffice for all that wait. Returns when to try
    /// again.
    fn evict_oldest(&self, evictable: &mut EvictableBodies, now: Instant) -> Instant {
        // Evicted bodies still have their permits until they are dropped.
        let evicted = evictable.bodies.values().filter(|body| body.evicted.is_cancelled());
        let evicted: usize = evicted.map(|body| body.permits).sum();
        let mut free = self.permits_max - evictable.permits_taken + evicted;
        for body in evictable.bodies.values().filter(|body| !body.evicted.is_cancelled()) {
            if free >= evictable.permits_wanted {
                break;
            }
            let evictable_at = body.since + EVICTION_GRACE;
            if evictable_at > now {
                return evictable_at;
            }
            body.evicted.cancel();
            free += body.permits;
        }
        now + EVICTION_GRACE
    }
}

/// Counts permits as wanted while a body waits for them.
struct WaitingPermits<'a> {
    evictable: &'a Mutex<EvictableBodies>,
    permits: usize,
}

impl<'a> WaitingPermits<'a> {
    fn new(evictable: &'a Mutex<EvictableBodies>, permits: usize) -> Self {
        evictable.lock().permits_wanted += permits;
        Self { evictable, permits }
    }

    /// Counts the permits as taken instead of wanted, in one step under the lock.
    fn acquired(mut self) {
        let evictable = &mut *self.evictable.lock();
        let permits = std::mem::take(&mut self.permits);
        evictable.permits_wanted -= permits;
        evictable.permits_taken += permits;
    }
}

impl Drop for WaitingPermits<'_> {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.evictable.lock().permits_wanted -= self.permits;
        }
    }
}

impl MemoryPermit<'_> {
    fn merge(&mut self, mut other: Self) {
        let all = other.permit.num_permits();
        self.permit.merge(other.permit.split(all).expect("a permit can be split at its own size"));
    }
}

impl Drop for MemoryPermit<'_> {
    fn drop(&mut self) {
        if let Some(evictable) = &self.memory.evictable {
            evictable.lock().permits_taken -= self.permit.num_permits();
        }
    }
}

impl<'a> BodyReservation<'a> {
    /// Waits until the body has memory for `bytes` bytes in total.
    pub(super) async fn grow_to(&mut self, bytes: usize) {
        let held = self.permit.as_ref().map_or(0, |held| held.permit.num_permits());
        let more = bytes.div_ceil(PERMIT_BYTES).saturating_sub(held);
        if more == 0 {
            return;
        }
        let more_permits = u32::try_from(more).expect("a body is shorter than 4 TiB");
        let added = self.memory.acquire(more_permits).await;
        match &mut self.permit {
            Some(permit) => permit.merge(added),
            none => *none = Some(added),
        }
        let Some(evictable) = &self.memory.evictable else { return };
        let EvictableBodies { bodies, next_number, .. } = &mut *evictable.lock();
        let number = *self.number.get_or_insert_with(|| {
            *next_number += 1;
            *next_number
        });
        let new =
            || EvictableBody { since: Instant::now(), permits: 0, evicted: self.evicted.clone() };
        bodies.entry(number).or_insert_with(new).permits = held + more;
    }

    /// The body is complete. It keeps its memory until the permit is dropped, and is not evicted.
    pub(super) fn into_permit(mut self) -> Option<MemoryPermit<'a>> {
        self.permit.take()
    }
}

impl Drop for BodyReservation<'_> {
    fn drop(&mut self) {
        // The permits come first, so that no other body is evicted for permits that are free.
        self.permit = None;
        if let (Some(evictable), Some(number)) = (&self.memory.evictable, self.number) {
            evictable.lock().bodies.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of `bytes` bytes that was received `age_ms` ago, and its eviction signal.
    async fn body(
        memory: &BodyMemory,
        bytes: usize,
        age_ms: u64,
    ) -> (BodyReservation<'_>, CancellationToken) {
        let evicted = CancellationToken::new();
        let mut reservation = memory.reservation(evicted.clone());
        reservation.grow_to(bytes).await;
        tokio::time::sleep(Duration::from_millis(age_ms)).await;
        (reservation, evicted)
    }

    /// Whether the body gets memory within `limit`, while evicted bodies of `others` are dropped.
    async fn grows_within<'a>(
        reservation: &mut BodyReservation<'a>,
        bytes: usize,
        limit: Duration,
        others: &mut Vec<(BodyReservation<'a>, CancellationToken)>,
    ) -> bool {
        let mut grow = pin!(reservation.grow_to(bytes));
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            let step = Duration::from_millis(10);
            if tokio::time::timeout(step, &mut grow).await.is_ok() {
                return true;
            }
            others.retain(|(_, evicted)| !evicted.is_cancelled());
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_bodies_are_evicted_and_no_more_than_needed() {
        let memory = BodyMemory::with_eviction(4 << 10);
        let mut others = Vec::new();
        for ms in [500, 500, 500, 1_500] {
            others.push(body(&memory, 1 << 10, ms).await);
        }
        let mut new = memory.reservation(CancellationToken::new());
        assert!(grows_within(&mut new, 2 << 10, Duration::from_millis(50), &mut others).await);
        assert_eq!(others.len(), 2);
        drop(others);
        assert_eq!(memory.evictable.as_ref().unwrap().lock().bodies.len(), 1);
        assert_eq!(memory.evictable.as_ref().unwrap().lock().permits_wanted, 0);
        drop(new);
        assert_eq!(memory.permits.available_permits(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn free_memory_is_used_before_a_body_is_evicted() {
        let memory = BodyMemory::with_eviction(4 << 10);
        let mut others = Vec::new();
        for ms in [0, 0, 100] {
            others.push(body(&memory, 1 << 10, ms).await);
        }
        let mut new = memory.reservation(CancellationToken::new());
        assert!(grows_within(&mut new, 2 << 10, EVICTION_GRACE, &mut others).await);
        assert_eq!(others.len(), 2, "one permit was free, and two were needed");
        drop((others, new));
        let evictable = memory.evictable.as_ref().unwrap().lock();
        assert_eq!(
            (evictable.permits_wanted, evictable.permits_taken, memory.permits.available_permits()),
            (0, 0, 4)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_evicted_within_the_grace_period() {
        let memory = BodyMemory::with_eviction(2 << 10);
        let mut others = vec![body(&memory, 2 << 10, 0).await];
        let mut new = memory.reservation(CancellationToken::new());
        assert!(!grows_within(&mut new, 1, EVICTION_GRACE * 9 / 10, &mut others).await);
        assert_eq!(
            memory.evictable.as_ref().unwrap().lock().permits_wanted,
            0,
            "the body no longer waits"
        );
        assert!(grows_within(&mut new, 1, Duration::from_millis(200), &mut others).await);
        assert!(others.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn complete_bodies_and_trusted_bodies_are_not_evicted() {
        let (unverified, trusted) = (BodyMemory::with_eviction(2 << 10), BodyMemory::new(2 << 10));
        let (reservation, complete) = body(&unverified, 2 << 10, 5_000).await;
        let _permit = reservation.into_permit();
        let (_reservation, incomplete) = body(&trusted, 2 << 10, 5_000).await;
        for memory in [&unverified, &trusted] {
            let mut new = memory.reservation(CancellationToken::new());
            assert!(!grows_within(&mut new, 1, EVICTION_GRACE * 3, &mut Vec::new()).await);
        }
        assert!(!complete.is_cancelled() && !incomplete.is_cancelled());
    }
}
