//! A memory budget that all requests share, for what a single request may need much of, such as
//! decoder windows. An ordinary request takes none of it. A request that needs more than is left
//! waits before its server sends more.
//!
//! A request takes all that it may need in one permit, and only once: so at least one request can
//! always go on. A request that uses several budgets takes them in a fixed order.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of a permit, in bytes.
const UNIT_BYTES: usize = 1024;

/// A memory budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    room: Arc<Semaphore>,
    bytes_max: usize,
}

/// A permit for a part of the budget, which is returned on drop.
#[derive(Debug)]
pub struct MemoryPermit(
    #[expect(dead_code, reason = "held until drop, which returns it")] OwnedSemaphorePermit,
);

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(bytes_max / UNIT_BYTES)), bytes_max }
    }

    /// Waits for a permit. One that is larger than the budget waits until it is the only one.
    pub async fn reserve(&self, bytes: usize) -> MemoryPermit {
        let room = Arc::clone(&self.room).acquire_many_owned(self.units(bytes));
        MemoryPermit(room.await.expect("it is never closed"))
    }

    /// A permit, if there is room for it now.
    pub fn try_reserve(&self, bytes: usize) -> Option<MemoryPermit> {
        Arc::clone(&self.room).try_acquire_many_owned(self.units(bytes)).ok().map(MemoryPermit)
    }

    fn units(&self, bytes: usize) -> u32 {
        let units = u32::try_from(bytes.min(self.bytes_max) / UNIT_BYTES);
        units.expect("a permit is no larger than the budget")
    }

    /// Whether anything is left.
    pub fn has_any(&self) -> bool {
        self.room.available_permits() > 0
    }
}
