//! HTTP requests that wait for the outcome of their verifications.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::RowId;

/// Time limit for all verifications of one HTTP request. A subscriber that handles one request at a
/// time cannot answer the challenge before it has this response.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the verifications that are waited for. Each keeps a form in memory.
const WAITERS_MAX: usize = 64;

/// The senders of outcomes, by the id of the subscription request.
#[derive(Debug, Default)]
pub(super) struct VerificationWaiters(Mutex<HashMap<RowId, oneshot::Sender<bool>>>);

/// The outcomes that one HTTP request waits for. Dropping it cancels the wait.
#[derive(Debug)]
pub(super) struct PendingOutcomes<'a> {
    waiters: &'a VerificationWaiters,
    ids: Vec<RowId>,
    receivers: Vec<oneshot::Receiver<bool>>,
}

impl VerificationWaiters {
    /// Starts to wait for these requests. Their verification must not have started yet. `None`:
    /// over the limit.
    pub(super) fn wait_for(&self, ids: Vec<RowId>) -> Option<PendingOutcomes<'_>> {
        let mut waiters = self.0.lock();
        if waiters.len() + ids.len() > WAITERS_MAX {
            return None;
        }
        let add = |id: &RowId| {
            let (sender, receiver) = oneshot::channel();
            waiters.insert(*id, sender);
            receiver
        };
        let receivers = ids.iter().map(add).collect();
        Some(PendingOutcomes { waiters: self, ids, receivers })
    }

    pub(super) fn resolve(&self, id: RowId, is_granted: bool) {
        if let Some(sender) = self.0.lock().remove(&id) {
            // The receiver may have been dropped.
            let _ = sender.send(is_granted);
        }
    }

    /// Ends all waits without an outcome.
    pub(super) fn cancel_all(&self) {
        self.0.lock().clear();
    }
}

impl PendingOutcomes<'_> {
    /// Whether all requests were granted. `None`: the time limit or the hub ended the wait.
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
        let mut waiters = self.waiters.0.lock();
        for id in &self.ids {
            waiters.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: B2
    #[tokio::test(start_paused = true)]
    async fn all_outcomes_are_awaited_up_to_a_time_limit() {
        let waiters = VerificationWaiters::default();
        for (second, all) in [(true, true), (false, false)] {
            let outcomes = waiters.wait_for(vec![1, 2]).unwrap();
            waiters.resolve(2, second);
            waiters.resolve(1, true);
            assert_eq!(outcomes.all_granted().await, Some(all));
        }
        let outcomes = waiters.wait_for(vec![3, 4]).unwrap();
        waiters.resolve(3, true);
        assert_eq!(outcomes.all_granted().await, None);
        let outcomes = waiters.wait_for(vec![5]).unwrap();
        waiters.cancel_all();
        assert_eq!(outcomes.all_granted().await, None);
        assert!(waiters.0.lock().is_empty());
    }

    // PROTOCOL: B2
    #[test]
    fn the_number_of_waiters_is_limited() {
        let waiters = VerificationWaiters::default();
        let count = RowId::try_from(WAITERS_MAX).unwrap();
        let outcomes = waiters.wait_for((0..count).collect()).unwrap();
        assert!(waiters.wait_for(vec![count]).is_none());
        drop(outcomes);
        assert!(waiters.wait_for(vec![count]).is_some());
    }
}
