//! The memory budget that all requests share for the two things that a single request may need much
//! of: decoder windows, and the links of large documents. An ordinary page takes none of it. A
//! request that needs more than is left waits before its server sends more.
//!
//! A request takes all that it may need in one permit, first for a window and then for its links,
//! and each only once: so at least one request can always go on.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Decoder windows of all requests together: three of the zstd format, or six of brotli's usual
/// size.
pub(crate) const WINDOWS_BUDGET_BYTES: usize = 24 * 1024 * 1024;
/// Links of large documents, of all requests together, until they are stored.
pub(crate) const LINKS_BUDGET_BYTES: usize = 24 * 1024 * 1024;

/// The unit of a permit, in bytes.
const UNIT_BYTES: usize = 1024;

/// The memory budget of all requests.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    windows: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

/// A permit for a part of the budget, which is returned on drop.
#[derive(Debug)]
pub struct MemoryPermit(
    #[expect(dead_code, reason = "held until drop, which returns it")] OwnedSemaphorePermit,
);

impl Default for MemoryBudget {
    fn default() -> Self {
        let room = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Self { windows: room(WINDOWS_BUDGET_BYTES), links: room(LINKS_BUDGET_BYTES) }
    }
}

impl MemoryBudget {
    /// A permit for decoder windows. One that is larger than the budget waits until it is the only
    /// one.
    pub(crate) async fn windows(&self, bytes: usize) -> MemoryPermit {
        acquire(&self.windows, bytes.min(WINDOWS_BUDGET_BYTES)).await
    }

    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.windows.available_permits() > 0 && self.links.available_permits() > 0
    }

    /// A permit for the links of a document.
    pub(crate) async fn links(&self, bytes: usize) -> MemoryPermit {
        acquire(&self.links, bytes.min(LINKS_BUDGET_BYTES)).await
    }
}

async fn acquire(room: &Arc<Semaphore>, bytes: usize) -> MemoryPermit {
    let units = u32::try_from(bytes / UNIT_BYTES).expect("a permit is no larger than the budget");
    MemoryPermit(Arc::clone(room).acquire_many_owned(units).await.expect("it is never closed"))
}
