//! Memory that all requests share for what one of them alone may take much of: windows of decoders, and the links of
//! large documents. An ordinary page takes none of it. Whoever wants more than is left waits, before its server sends
//! more.
//!
//! A request asks for all that it may need at once, for a window before it asks for its links, and for each of them
//! once: so somebody can always go on.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{LINKS_ROOM_BYTES, WINDOWS_ROOM_BYTES};

/// What is counted, in bytes.
const UNIT_BYTES: usize = 1024;

/// The memory of all.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    windows: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

/// A share of it, until it is dropped.
#[derive(Debug)]
pub struct Share(
    #[expect(dead_code, reason = "held, and given back when it is dropped")] OwnedSemaphorePermit,
);

impl Default for Room {
    fn default() -> Self {
        let room = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Self { windows: room(WINDOWS_ROOM_BYTES), links: room(LINKS_ROOM_BYTES) }
    }
}

impl Room {
    /// For windows of decoders. What is larger than all of it waits until it is alone.
    pub(crate) async fn windows(&self, bytes: usize) -> Share {
        share(&self.windows, bytes.min(WINDOWS_ROOM_BYTES)).await
    }

    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.windows.available_permits() > 0 && self.links.available_permits() > 0
    }

    /// For a document with many links.
    pub(crate) async fn links(&self, bytes: usize) -> Share {
        share(&self.links, bytes.min(LINKS_ROOM_BYTES)).await
    }
}

async fn share(room: &Arc<Semaphore>, bytes: usize) -> Share {
    let units = u32::try_from(bytes / UNIT_BYTES).expect("a share is no larger than the room");
    Share(Arc::clone(room).acquire_many_owned(units).await.expect("it is never closed"))
}
