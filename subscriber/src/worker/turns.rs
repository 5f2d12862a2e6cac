//! One at a time: of several tasks that need the same robots.txt, one asks for it, and then all know.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

/// Who has which name, and who waits for it. As many names as are held or waited for.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Arc<Lock<()>>>>);

/// Somebody has a name, or waits for it, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: String,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until nobody else has this name.
    pub(super) async fn take(&self, name: String) -> Turn<'_> {
        let lock = Arc::clone(self.0.lock().entry(name.clone()).or_default());
        // Made before it waits, so that nothing is left of it if it is given up.
        let mut turn = Turn { turns: self, name, held: None };
        turn.held = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.0.lock();
        drop(self.held.take());
        // Nobody comes by it while the map is locked.
        if turns.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn one_has_a_name_at_a_time_and_nothing_is_left_of_it() {
        let turns = Turns::default();
        let first = turns.take("a".to_owned()).now_or_never().unwrap();
        assert!(turns.take("b".to_owned()).now_or_never().is_some());
        let mut second = Box::pin(turns.take("a".to_owned()));
        let mut third = Box::pin(turns.take("a".to_owned()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(second);
        drop(first);
        let third = third.now_or_never().unwrap();
        assert!(turns.take("a".to_owned()).now_or_never().is_none());
        drop(third);
        assert!(turns.0.lock().is_empty());
    }
}
