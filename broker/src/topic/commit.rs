//! Writes a topic's events to its log: commits, reserved seqs, retention, and the close at
//! shutdown.

use std::sync::Arc;

use tidings_log::{CommitLog, LogError, Retention};
use tidings_protocol::{Code, ProtocolError, Seq, Sync};

use super::tail::Tail;
use super::watermarks::Health;
use super::{RESERVED_IN_MEMORY, Topic};
use crate::catalog::CatalogRecord;

/// Maximum bytes of one commit, so that confirmations arrive regularly.
const COMMIT_BYTES: usize = 1 << 20;

/// Maximum number of files of one topic. Retention removes the oldest beyond it.
const SEGMENTS_MAX: usize = 10_000;

impl Topic {
    /// Queues a commit; a topic without a log reserves more seqs instead.
    pub(super) fn request_commit(self: &Arc<Self>, head: Seq) {
        if self.log.is_some() {
            return self.shared.commit(self);
        }
        let below = Seq(head.0.saturating_add(RESERVED_IN_MEMORY));
        let (topic, name) = (Arc::clone(self), self.name.clone());
        let reserved = move |result: Result<(), ProtocolError>| {
            let mut tail = topic.tail.lock();
            match result {
                Ok(()) => {
                    if tail.watermarks.health == Health::Full {
                        topic.log_room();
                    }
                    tail.set_reserved(below);
                }
                Err(error) => topic.handle_reserve_error(&mut tail, &error),
            }
            topic.publish_watermarks(tail);
        };
        self.shared.catalog.write(CatalogRecord::Reserved { topic: name, below }, reserved);
    }

    /// Handles a failed reservation. A topic in memory accepts events for as long as it has
    /// reserved seqs. `maintain` retries the reservation, not each event.
    fn handle_reserve_error(&self, tail: &mut Tail, error: &ProtocolError) {
        let full = error.code == Code::Full;
        let health = if full { Health::Full } else { Health::Failed };
        if tail.head > tail.watermarks.reserved && tail.watermarks.health != health {
            tracing::error!(topic = %self.name, %error, "cannot reserve seqs; events are rejected until the catalog can be written");
            tail.mark_lost(health);
        }
    }

    /// Reserves seqs before the first event needs one.
    pub(super) fn reserve(self: &Arc<Self>) {
        let head = {
            let tail = &mut *self.tail.lock();
            self.claim_commit(tail).then_some(tail.head)
        };
        if let Some(head) = head {
            self.request_commit(head);
        }
    }

    fn handle_log_error(&self, tail: &mut Tail, error: &LogError) {
        let health = if matches!(error, LogError::Full) { Health::Full } else { Health::Failed };
        let (topic, from) = (&self.name, tail.durable());
        if health == Health::Full {
            tracing::error!(%topic, %from, "the disk is full: events from this seq on are rejected until there is room");
        } else {
            tracing::error!(%topic, %from, %error, "events from this seq on could not be written; further events are rejected");
        }
        tail.mark_lost(health);
    }

    /// Logs the end of what the log has an error about, at a level that is logged by default.
    fn log_room(&self) {
        tracing::warn!(topic = %self.name, "the disk has room again; events are accepted");
    }

    /// Periodic maintenance: due syncs, retention, and whether a full disk has room again.
    pub(super) fn maintain(self: &Arc<Self>) {
        let Some(log) = &self.log else { return self.retry_reservation() };
        let has_room = self.tail.lock().watermarks.health == Health::Full && log.has_room();
        let commit = {
            let tail = &mut *self.tail.lock();
            if has_room && tail.watermarks.health == Health::Full {
                tail.watermarks.health = Health::Good;
                self.log_room();
            }
            tail.watermarks.sync_due |= tail.watermarks.has_unsynced;
            self.claim_commit(tail)
        };
        if commit {
            self.shared.commit(self);
        }
        let settings = self.settings();
        let age_ms = i64::try_from(settings.retain_age_ms).unwrap_or(i64::MAX);
        let now = self.shared.clock.unix_ms();
        let retention = Retention {
            bytes_max: settings.retain_bytes,
            oldest_unix_ms: (age_ms > 0).then(|| now.saturating_sub(age_ms)),
            segments_max: SEGMENTS_MAX,
            keep_from: self.tail.lock().consumed_by_all().unwrap_or(Seq(u64::MAX)),
            removals_max: usize::MAX,
        };
        match log.retain(&retention) {
            Ok(0) | Err(LogError::Broken(_)) => {}
            Ok(removed) => {
                tracing::debug!(topic = %self.name, removed, "retention removed old segments");
            }
            Err(error) => {
                tracing::error!(topic = %self.name, %error, "retention cannot remove old segments");
            }
        }
    }

    /// In memory: reserves seqs, also after an earlier failure.
    fn retry_reservation(self: &Arc<Self>) {
        let head = {
            let tail = self.tail.lock();
            let wants = tail.watermarks.health != Health::Failed && !self.is_deleted();
            (wants && tail.watermarks.is_reservation_low(tail.head)).then_some(tail.head)
        };
        if let Some(head) = head {
            self.request_commit(head);
        }
    }

    /// Rejects events from now on, because the broker stops.
    pub(super) fn stop(&self) {
        self.tail.lock().watermarks.closed = true;
    }

    /// Called at shutdown, after [`stop`](Self::stop) and after everything was written. Records the
    /// next seq, so that the next start leaves no gap.
    pub(super) fn close(&self) {
        let (head, health) = {
            let tail = self.tail.lock();
            (tail.head, tail.watermarks.health)
        };
        match &self.log {
            Some(log) if health == Health::Good => {
                if let Err(error) = log.close(head) {
                    tracing::error!(topic = %self.name, %error, "the log could not be closed; the next start treats this as a crash");
                }
            }
            Some(_) => {}
            None => {
                let (topic, below) = (self.name.clone(), head);
                self.shared.catalog.write(CatalogRecord::Reserved { topic, below }, |_| {});
            }
        }
    }

    /// Removes the files of a deleted topic.
    pub(super) fn clear(&self) -> Result<(), ProtocolError> {
        // A commit that runs may still write; a later one finds that the topic is deleted.
        let _ended = self.committing.lock();
        let cleared = self.log.as_ref().map_or(Ok(()), |log| log.clear());
        cleared.map_err(|error| ProtocolError::new(Code::Internal, error.to_string()))
    }
}

impl CommitLog for Topic {
    fn commit(self: Arc<Self>) -> Option<usize> {
        let log = self.log.as_ref()?;
        let _running = self.committing.lock();
        let always = self.settings().sync == Sync::Always;
        let (pieces, next, reserve, sync, unsynced) = {
            let tail = &mut *self.tail.lock();
            let head = tail.head;
            if self.is_deleted() || !tail.watermarks.has_work(head) {
                tail.watermarks.is_queued = false;
                return None;
            }
            let pieces = tail.take_pieces(COMMIT_BYTES);
            let due = std::mem::take(&mut tail.watermarks.sync_due);
            let sync = always || due || tail.watermarks.is_reservation_low(head);
            let count = pieces.iter().map(|piece| piece.count).sum();
            let reserve = tail.watermarks.reserve(head, count, always);
            (pieces, tail.watermarks.submitted, reserve, sync, tail.watermarks.has_unsynced)
        };
        let result = match log.append(&pieces, next, reserve) {
            Ok(()) if sync => log.sync().map(Some),
            Ok(()) => Ok(None),
            // The disk has no room for more, but what was appended before must still become
            // durable.
            Err(LogError::Full) if unsynced => log.sync().and(Err(LogError::Full)),
            Err(error) => Err(error),
        };
        let mut tail = self.tail.lock();
        match result {
            Ok(synced) => {
                tail.watermarks.has_unsynced = synced.is_none();
                tail.set_durable(next, synced.map_or(Seq(0), |synced| synced.reserved));
            }
            Err(error) => self.handle_log_error(&mut tail, &error),
        }
        // Updated together with the watermarks: a thread that sees all events durable may rely on
        // no further writes.
        tail.watermarks.is_queued = tail.watermarks.has_work(tail.head);
        let waiting = tail.watermarks.is_queued.then(|| tail.waiting_bytes());
        self.publish_watermarks(tail);
        waiting
    }

    fn waiting_bytes(&self) -> usize {
        self.tail.lock().waiting_bytes()
    }
}
