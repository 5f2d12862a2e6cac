//! Wishes of whom somebody waits to hear what has become of them.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::Id;

/// For how long somebody waits at most, for all of its wishes: who is asked meanwhile may be able
/// to do only one thing at a time, and answers when it has been answered.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Wishes that somebody waits for: as long as it does its form is in memory.
const AWAITED_MAX: usize = 64;

/// By their numbers, where it is said.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<HashMap<Id, oneshot::Sender<bool>>>);

/// The wishes of one who waits, who need not do so to the end.
#[derive(Debug)]
pub(super) struct Outcomes<'a> {
    awaited: &'a Awaited,
    ids: Vec<Id>,
    receivers: Vec<oneshot::Receiver<bool>>,
}

impl Awaited {
    /// Begins to wait for all of these, none of which is being asked yet. `None`: too many others
    /// wait.
    pub(super) fn begin(&self, ids: Vec<Id>) -> Option<Outcomes<'_>> {
        let mut awaited = self.0.lock();
        if awaited.len() + ids.len() > AWAITED_MAX {
            return None;
        }
        let begin = |id: &Id| {
            let (sender, receiver) = oneshot::channel();
            awaited.insert(*id, sender);
            receiver
        };
        let receivers = ids.iter().map(begin).collect();
        Some(Outcomes { awaited: self, ids, receivers })
    }

    /// What has become of a wish.
    pub(super) fn settle(&self, id: Id, is_granted: bool) {
        if let Some(sender) = self.0.lock().remove(&id) {
            // Whoever waited may be gone.
            let _ = sender.send(is_granted);
        }
    }

    /// Nobody hears anything any more.
    pub(super) fn end(&self) {
        self.0.lock().clear();
    }
}

impl Outcomes<'_> {
    /// Whether all of them were granted. `None`: nobody knows that yet.
    pub(super) async fn all(mut self) -> Option<bool> {
        let receivers = std::mem::take(&mut self.receivers);
        let all = async {
            let mut all = true;
            for receiver in receivers {
                all &= receiver.await.ok()?;
            }
            Some(all)
        };
        timeout(WAIT_MAX, all).await.unwrap_or(None)
    }
}

impl Drop for Outcomes<'_> {
    fn drop(&mut self) {
        let mut awaited = self.awaited.0.lock();
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
    async fn all_are_waited_for_and_not_for_ever() {
        let awaited = Awaited::default();
        for (second, all) in [(true, true), (false, false)] {
            let outcomes = awaited.begin(vec![1, 2]).unwrap();
            awaited.settle(2, second);
            awaited.settle(1, true);
            assert_eq!(outcomes.all().await, Some(all));
        }
        let outcomes = awaited.begin(vec![3, 4]).unwrap();
        awaited.settle(3, true);
        assert_eq!(outcomes.all().await, None);
        let outcomes = awaited.begin(vec![5]).unwrap();
        awaited.end();
        assert_eq!(outcomes.all().await, None);
        assert!(awaited.0.lock().is_empty());
    }

    // PROTOCOL: B2
    #[test]
    fn so_many_are_waited_for_at_once() {
        let awaited = Awaited::default();
        let count = Id::try_from(AWAITED_MAX).unwrap();
        let outcomes = awaited.begin((0..count).collect()).unwrap();
        assert!(awaited.begin(vec![count]).is_none());
        drop(outcomes);
        assert!(awaited.begin(vec![count]).is_some());
    }
}
