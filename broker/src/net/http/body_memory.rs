//! The room that bodies share while they are received.
//!
//! Whoever finds none waits. Where nobody knows yet who sends, that would let a few who send slowly
//! stop everybody: there those give way that have been at it longest. A sender that matters has
//! sent all of it in a moment, from wherever it comes, and behind whichever proxy.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// It is given out in pieces of so many bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// So long a body is left in peace.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// Room for so many bytes.
#[derive(Debug)]
pub(super) struct BodyMemory {
    permits: Semaphore,
    /// So many it has in all.
    permits_max: usize,
    /// Who has some that can be taken back; `None` where all may keep theirs.
    evictable: Option<Mutex<EvictableBodies>>,
}

/// Bodies that are being received. In the order in which they found room at first.
#[derive(Debug, Default)]
struct EvictableBodies {
    bodies: BTreeMap<u64, EvictableBody>,
    next_number: u64,
    /// Pieces that are waited for, those that are free included: whoever is first in the queue is
    /// given these at once, and has them when there are as many as it wants.
    permits_wanted: usize,
    /// Pieces that somebody has.
    permits_taken: usize,
}

#[derive(Debug)]
struct EvictableBody {
    since: Instant,
    permits: usize,
    /// Told when it has to give way.
    evicted: CancellationToken,
}

/// Pieces that a body has.
#[derive(Debug)]
pub(super) struct MemoryPermit<'a> {
    memory: &'a BodyMemory,
    permit: SemaphorePermit<'a>,
}

/// The part of one body.
#[derive(Debug)]
pub(super) struct BodyReservation<'a> {
    memory: &'a BodyMemory,
    permit: Option<MemoryPermit<'a>>,
    /// In [`EvictableBodies`], from the first piece on.
    number: Option<u64>,
    evicted: CancellationToken,
}

impl BodyMemory {
    /// Whoever has a part of it has it for as long as they want.
    pub(super) fn new(bytes_max: usize) -> Self {
        let permits_max = bytes_max.div_ceil(PERMIT_BYTES);
        Self { permits: Semaphore::new(permits_max), permits_max, evictable: None }
    }

    /// Who has been there for longest gives way if others find none.
    pub(super) fn with_eviction(bytes_max: usize) -> Self {
        Self { evictable: Some(Mutex::default()), ..Self::new(bytes_max) }
    }

    /// For a body of which nothing has come yet. When it has to give way `evicted` is cancelled; what
    /// it has is to be dropped then.
    pub(super) fn reservation(&self, end: CancellationToken) -> BodyReservation<'_> {
        BodyReservation { memory: self, permit: None, number: None, evicted: end }
    }

    async fn acquire(&self, pieces: u32) -> MemoryPermit<'_> {
        let taken = |permit| MemoryPermit { memory: self, permit };
        let Some(lent) = &self.evictable else {
            return taken(self.permits.acquire_many(pieces).await.expect("it is never closed"));
        };
        {
            let lent = &mut *lent.lock();
            if let Ok(permit) = self.permits.try_acquire_many(pieces) {
                lent.permits_taken += pieces as usize;
                return taken(permit);
            }
        }
        let wish = WaitingPermits::new(lent, pieces as usize);
        let mut taking = pin!(self.permits.acquire_many(pieces));
        loop {
            let again_at = self.evict_oldest(&mut lent.lock(), Instant::now());
            tokio::select! {
                biased;
                permit = &mut taking => {
                    wish.acquired();
                    return taken(permit.expect("it is never closed"));
                }
                () = sleep_until(again_at) => {}
            }
        }
    }

    /// Has as many give way as is wanted, the oldest first. Returns when to look again.
    fn evict_oldest(&self, lent: &mut EvictableBodies, now: Instant) -> Instant {
        let ending = lent.bodies.values().filter(|body| body.evicted.is_cancelled());
        let ending: usize = ending.map(|body| body.permits).sum();
        let mut free = self.permits_max - lent.permits_taken + ending;
        for body in lent.bodies.values().filter(|body| !body.evicted.is_cancelled()) {
            if free >= lent.permits_wanted {
                break;
            }
            let until = body.since + EVICTION_GRACE;
            if until > now {
                return until;
            }
            body.evicted.cancel();
            free += body.permits;
        }
        now + EVICTION_GRACE
    }
}

/// Pieces that somebody waits for, as long as they do.
struct WaitingPermits<'a> {
    evictable: &'a Mutex<EvictableBodies>,
    permits: usize,
}

impl<'a> WaitingPermits<'a> {
    fn new(evictable: &'a Mutex<EvictableBodies>, permits: usize) -> Self {
        evictable.lock().permits_wanted += permits;
        Self { evictable, permits }
    }

    /// At once, so that nobody sees them as both or neither.
    fn acquired(mut self) {
        let lent = &mut *self.evictable.lock();
        let pieces = std::mem::take(&mut self.permits);
        lent.permits_wanted -= pieces;
        lent.permits_taken += pieces;
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
        self.permit.merge(other.permit.split(all).expect("it has so many"));
    }
}

impl Drop for MemoryPermit<'_> {
    fn drop(&mut self) {
        if let Some(lent) = &self.memory.evictable {
            lent.lock().permits_taken -= self.permit.num_permits();
        }
    }
}

impl<'a> BodyReservation<'a> {
    /// Waits until there is room for so many bytes of it in all.
    pub(super) async fn grow_to(&mut self, bytes: usize) {
        let held = self.permit.as_ref().map_or(0, |pieces| pieces.permit.num_permits());
        let more = bytes.div_ceil(PERMIT_BYTES).saturating_sub(held);
        if more == 0 {
            return;
        }
        let taken = self.memory.acquire(u32::try_from(more).expect("a body is shorter")).await;
        match &mut self.permit {
            Some(held) => held.merge(taken),
            none => *none = Some(taken),
        }
        let Some(lent) = &self.memory.evictable else { return };
        let EvictableBodies { bodies, next_number: next, .. } = &mut *lent.lock();
        let number = *self.number.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        let new =
            || EvictableBody { since: Instant::now(), permits: 0, evicted: self.evicted.clone() };
        bodies.entry(number).or_insert_with(new).permits = held + more;
    }

    /// The body is whole: what it has is its own until that is dropped.
    pub(super) fn into_permit(mut self) -> Option<MemoryPermit<'a>> {
        self.permit.take()
    }
}

impl Drop for BodyReservation<'_> {
    fn drop(&mut self) {
        // First, so that nobody has to give way for what is free already.
        self.permit = None;
        if let (Some(lent), Some(number)) = (&self.memory.evictable, self.number) {
            lent.lock().bodies.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of so many bytes that came so many ms ago.
    async fn body(
        room: &BodyMemory,
        bytes: usize,
        ms_ago: u64,
    ) -> (BodyReservation<'_>, CancellationToken) {
        let end = CancellationToken::new();
        let mut part = room.reservation(end.clone());
        part.grow_to(bytes).await;
        tokio::time::sleep(Duration::from_millis(ms_ago)).await;
        (part, end)
    }

    /// Whether it finds room within that time, while those who are told to give way do.
    async fn grows_within<'a>(
        part: &mut BodyReservation<'a>,
        bytes: usize,
        within: Duration,
        others: &mut Vec<(BodyReservation<'a>, CancellationToken)>,
    ) -> bool {
        let mut growing = pin!(part.grow_to(bytes));
        let until = Instant::now() + within;
        while Instant::now() < until {
            let step = Duration::from_millis(10);
            if tokio::time::timeout(step, &mut growing).await.is_ok() {
                return true;
            }
            others.retain(|(_, end)| !end.is_cancelled());
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_bodies_are_evicted_and_no_more_than_needed() {
        let room = BodyMemory::with_eviction(4 << 10);
        let mut others = Vec::new();
        for ms in [500, 500, 500, 1_500] {
            others.push(body(&room, 1 << 10, ms).await);
        }
        let mut new = room.reservation(CancellationToken::new());
        assert!(grows_within(&mut new, 2 << 10, Duration::from_millis(50), &mut others).await);
        assert_eq!(others.len(), 2);
        drop(others);
        assert_eq!(room.evictable.as_ref().unwrap().lock().bodies.len(), 1);
        assert_eq!(room.evictable.as_ref().unwrap().lock().permits_wanted, 0);
        drop(new);
        assert_eq!(room.permits.available_permits(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn free_memory_is_used_before_a_body_is_evicted() {
        let room = BodyMemory::with_eviction(4 << 10);
        let mut others = Vec::new();
        for ms in [0, 0, 100] {
            others.push(body(&room, 1 << 10, ms).await);
        }
        let mut new = room.reservation(CancellationToken::new());
        assert!(grows_within(&mut new, 2 << 10, EVICTION_GRACE, &mut others).await);
        assert_eq!(others.len(), 2, "one piece was free, and two were wanted");
        drop((others, new));
        let lent = room.evictable.as_ref().unwrap().lock();
        assert_eq!(
            (lent.permits_wanted, lent.permits_taken, room.permits.available_permits()),
            (0, 0, 4)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_evicted_within_the_grace_period() {
        let room = BodyMemory::with_eviction(2 << 10);
        let mut others = vec![body(&room, 2 << 10, 0).await];
        let mut new = room.reservation(CancellationToken::new());
        assert!(!grows_within(&mut new, 1, EVICTION_GRACE * 9 / 10, &mut others).await);
        assert_eq!(room.evictable.as_ref().unwrap().lock().permits_wanted, 0, "it waits no more");
        assert!(grows_within(&mut new, 1, Duration::from_millis(200), &mut others).await);
        assert!(others.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn complete_bodies_and_trusted_bodies_are_not_evicted() {
        let (strangers, trusted) = (BodyMemory::with_eviction(2 << 10), BodyMemory::new(2 << 10));
        let (part, whole) = body(&strangers, 2 << 10, 5_000).await;
        let _kept = part.into_permit();
        let (_part, unfinished) = body(&trusted, 2 << 10, 5_000).await;
        for room in [&strangers, &trusted] {
            let mut new = room.reservation(CancellationToken::new());
            assert!(!grows_within(&mut new, 1, EVICTION_GRACE * 3, &mut Vec::new()).await);
        }
        assert!(!whole.is_cancelled() && !unfinished.is_cancelled());
    }
}
