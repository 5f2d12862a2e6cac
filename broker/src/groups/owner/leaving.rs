//! The end of a deleted group: removes its log and rejects the remaining commands.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Owner, RETRY_MS};
use crate::groups::letter::{Letter, failed, refuse};
use crate::groups::no_such;
use crate::topic::Health;

impl Owner {
    /// Rejects all waiting and queued commands, because the deletion cannot be completed.
    fn abandon(mut self, mut messages: mpsc::UnboundedReceiver<Letter>) {
        self.give_up();
        messages.close();
        while let Ok(message) = messages.try_recv() {
            self.refuse_letter(message, &failed());
        }
    }

    /// Completes the deletion, then rejects the remaining commands.
    pub(super) async fn leave(
        mut self,
        mut messages: mpsc::UnboundedReceiver<Letter>,
        stop: CancellationToken,
    ) {
        let mut retry_at = self.clock.now() + RETRY_MS;
        while self.log.durable() < self.appended {
            if self.log.health() == Health::Failed {
                return self.abandon(messages);
            }
            // The deletion is confirmed only when the name is free again.
            self.send_up_to(self.appended - 1);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(message) = messages.recv() => self.put_off(message),
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(self.clock.instant(retry_at)) => {
                    self.log.retry();
                    retry_at = self.clock.now() + RETRY_MS;
                }
            }
        }
        if let Some(log) = self.log.store() {
            let cleared = tokio::task::spawn_blocking(move || log.clear()).await;
            if !matches!(cleared, Ok(Ok(()))) {
                // The last record says that the group was deleted, so the next start removes the
                // files. Until then the name cannot be used.
                tracing::error!(group = %self.group.name(), ?cleared, "cannot remove the log of a deleted group; the next start removes it");
                self.send();
                return self.abandon(messages);
            }
        }
        self.job_names.forget(self.group.name());
        // The actor receives no message after this.
        self.registry.remove(self.group.name());
        for (asked, mailbox) in self.watchers.take() {
            refuse([asked].into_iter(), &mailbox, &no_such(self.group.name()));
        }
        for message in std::mem::take(&mut self.backlog) {
            self.open(message);
        }
        while let Ok(message) = messages.try_recv() {
            self.open(message);
        }
        self.send();
    }
}
