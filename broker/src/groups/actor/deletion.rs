//! The end of a deleted group: removes its log and rejects the remaining commands.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{GroupActor, RETRY_MS};
use crate::groups::message::{GroupMessage, log_failed};
use crate::groups::unknown_group;
use crate::topic::Health;

impl GroupActor {
    /// Completes the deletion, then rejects the remaining commands. The group fails if its log
    /// cannot be written or removed.
    pub(super) async fn finish_deletion(
        &mut self,
        messages: &mut mpsc::UnboundedReceiver<GroupMessage>,
        stop: &CancellationToken,
    ) {
        let mut retry_at = self.clock.now() + RETRY_MS;
        while self.log.durable() < self.appended {
            if self.log.health() == Health::Failed {
                self.failure = Some(log_failed());
                return;
            }
            // The deletion is confirmed only when the name is free again.
            self.flush_and_send_up_to(self.appended - 1);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(message) = messages.recv() => self.defer(message),
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(self.clock.instant(retry_at)) => {
                    self.log.retry();
                    retry_at = self.clock.now() + RETRY_MS;
                }
            }
        }
        if let Some(log) = self.log.segment_log() {
            let cleared = tokio::task::spawn_blocking(move || log.clear()).await;
            if !matches!(cleared, Ok(Ok(()))) {
                // The last record says that the group was deleted, so the next start removes the
                // files. Until then the name cannot be used.
                tracing::error!(group = %self.group.name(), ?cleared, "cannot remove the log of a deleted group; the next start removes it");
                self.flush_and_send();
                self.failure = Some(log_failed());
                return;
            }
        }
        self.job_names.remove_group(self.group.name());
        // The actor receives no message after this.
        self.registry.remove(self.group.name());
        self.reject_commands(&unknown_group(self.group.name()));
        for message in std::mem::take(&mut self.deferred) {
            self.apply_message(message);
        }
        while let Ok(message) = messages.try_recv() {
            self.apply_message(message);
        }
        self.flush_and_send();
    }
}
