//! Wishes of whom somebody waits to hear what has become of them.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::RowId;

/// For how long somebody waits at most, for all of its wishes: who is asked meanwhile may be able
/// to do only one thing at a time, and answers when it has been answered.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Wishes that somebody waits for: as long as it does its form is in memory.
const WAITERS_MAX: usize = 64;

/// By their numbers, where it is said.
#[derive(Debug, Default)]
pub(super) struct VerificationWaiters(Mutex<HashMap<RowId, oneshot::Sender<bool>>>);

/// The wishes of one who waits, who need not do so to the end.
#[derive(Debug)]
pub(super) struct PendingOutcomes<'a> {
    waiters: &'a VerificationWaiters,
    ids: Vec<RowId>,
    receivers: Vec<oneshot::Receiver<bool>>,
}

impl VerificationWaiters {
    /// Begins to wait for all of these, none of which is being asked yet. `None`: too many others
    /// wait.
    pub(super) fn wait_for(&self, ids: Vec<RowId>) -> Option<PendingOutcomes<'_>> {
        let mut awaited = self.0.lock();
        if awaited.len() + ids.len() > WAITERS_MAX {
            return None;
        }
        let begin = |id: &RowId| {
            let (sender, receiver) = oneshot::channel();
            awaited.insert(*id, sender);
            receiver
        };
        let receivers = ids.iter().map(begin).collect();
        Some(PendingOutcomes { waiters: self, ids, receivers })
    }

    /// What has become of a wish.
    pub(super) fn resolve(&self, id: RowId, is_granted: bool) {
        if let Some(sender) = self.0.lock().remove(&id) {
            // Whoever waited may be gone.
            let _ = sender.send(is_granted);
        }
    }

    /// Nobody hears anything any more.
    pub(super) fn cancel_all(&self) {
        self.0.lock().clear();
    }
}

impl PendingOutcomes<'_> {
    /// Whether all of them were granted. `None`: nobody knows that yet.
    pub(super) async fn all_granted(mut self) -> Option<bool> {
        let receivers = std::mem::take(&mut self.receivers);
        let all = async {
            let mut all = true;
            for receiver in receivers {
                all &= receiver.await.ok()?;
            }
            Some(all)
        };
        timeout(WAIT_TIMEOUT, all).await.unwrap_or(None)
    }
}

impl Drop for PendingOutcomes<'_> {
    fn drop(&mut self) {
        let mut awaited = self.waiters.0.lock();
        for id in &self.ids {
            awaited.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: B2
    #[tokio::test(start_paused = true)]
    async fn all_outcomes_are_awaited_up_to_a_time_limit() {
        let awaited = VerificationWaiters::default();
        for (second, all) in [(true, true), (false, false)] {
            let outcomes = awaited.wait_for(vec![1, 2]).unwrap();
            awaited.resolve(2, second);
            awaited.resolve(1, true);
            assert_eq!(outcomes.all_granted().await, Some(all));
        }
        let outcomes = awaited.wait_for(vec![3, 4]).unwrap();
        awaited.resolve(3, true);
        assert_eq!(outcomes.all_granted().await, None);
        let outcomes = awaited.wait_for(vec![5]).unwrap();
        awaited.cancel_all();
        assert_eq!(outcomes.all_granted().await, None);
        assert!(awaited.0.lock().is_empty());
    }

    // PROTOCOL: B2
    #[test]
    fn the_number_of_waiters_is_limited() {
        let awaited = VerificationWaiters::default();
        let count = RowId::try_from(WAITERS_MAX).unwrap();
        let outcomes = awaited.wait_for((0..count).collect()).unwrap();
        assert!(awaited.wait_for(vec![count]).is_none());
        drop(outcomes);
        assert!(awaited.wait_for(vec![count]).is_some());
    }
}
