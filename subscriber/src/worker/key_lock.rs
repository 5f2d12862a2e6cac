//! One lock for each key: of several tasks that need the same robots.txt, one fetches it for all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

/// A lock for each key. Holds as many keys as are locked or waited for.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<String, Arc<Lock<()>>>>);

/// Holds the lock of a key, or waits for it, until this is dropped.
#[derive(Debug)]
pub(super) struct KeyLockGuard<'a> {
    locks: &'a KeyLocks,
    key: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl KeyLocks {
    /// Waits until the lock of this key is free, and takes it.
    pub(super) async fn lock(&self, name: String) -> KeyLockGuard<'_> {
        let lock = Arc::clone(self.0.lock().entry(name.clone()).or_default());
        // Created before the wait, so that a cancelled wait leaves no entry in the map.
        let mut guard = KeyLockGuard { locks: self, key: name, guard: None };
        guard.guard = Some(lock.lock_owned().await);
        guard
    }
}

impl Drop for KeyLockGuard<'_> {
    fn drop(&mut self) {
        let mut turns = self.locks.0.lock();
        drop(self.guard.take());
        // While the map is locked, no other task can reach this lock.
        if turns.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn one_task_holds_a_key_at_a_time_and_no_entry_remains() {
        let turns = KeyLocks::default();
        let first = turns.lock("a".to_owned()).now_or_never().unwrap();
        assert!(turns.lock("b".to_owned()).now_or_never().is_some());
        let mut second = Box::pin(turns.lock("a".to_owned()));
        let mut third = Box::pin(turns.lock("a".to_owned()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(second);
        drop(first);
        let third = third.now_or_never().unwrap();
        assert!(turns.lock("a".to_owned()).now_or_never().is_none());
        drop(third);
        assert!(turns.0.lock().is_empty());
    }
}
