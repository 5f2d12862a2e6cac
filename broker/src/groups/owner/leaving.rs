//! The end of a group that was deleted: its log goes, and whoever asks for it is told so.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Owner, RETRY_MS};
use crate::groups::letter::{Letter, failed, refuse};
use crate::groups::no_such;
use crate::topic::Health;

impl Owner {
    /// Nobody is answered any more, and whoever has asked is told so.
    fn abandon(mut self, mut letters: mpsc::UnboundedReceiver<Letter>) {
        self.give_up();
        letters.close();
        while let Ok(letter) = letters.try_recv() {
            self.refuse_letter(letter, &failed());
        }
    }

    /// The group was deleted: whoever asks for it from here on is told so.
    pub(super) async fn leave(
        mut self,
        mut letters: mpsc::UnboundedReceiver<Letter>,
        stop: CancellationToken,
    ) {
        let mut retry_at = self.clock.now() + RETRY_MS;
        while self.log.durable() < self.appended {
            if self.log.health() == Health::Failed {
                return self.abandon(letters);
            }
            // That it is gone is not said before its name is free.
            self.send_up_to(self.appended - 1);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(letter) = letters.recv() => self.put_off(letter),
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
                // Its last record says that it is gone, so a start removes what is left. Until then
                // nobody can make one of the name.
                tracing::error!(group = %self.group.name(), ?cleared, "the log of a deleted group stays");
                self.send();
                return self.abandon(letters);
            }
        }
        // Letters are sent with the lock held, so none comes after this.
        self.job_names.forget(self.group.name());
        {
            let mut registry = self.registry.lock();
            registry.groups.remove(self.group.name());
            registry.logs.remove(self.group.name());
        }
        for (asked, mailbox) in self.watchers.take() {
            refuse([asked].into_iter(), &mailbox, &no_such(self.group.name()));
        }
        for letter in std::mem::take(&mut self.backlog) {
            self.open(letter);
        }
        while let Ok(letter) = letters.try_recv() {
            self.open(letter);
        }
        self.send();
    }
}
