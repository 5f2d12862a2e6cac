//! Which connection uses which durable cursor, and the expiry of unused cursors.
//!
//! The [`catalog`](crate::catalog) stores where cursors are; this module has the state that ends
//! with the broker. One connection at a time uses a cursor (`[K3]`), so that two
//! readers never move it past each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidings_protocol::{Code, CursorName, ProtocolError, Seq, TopicName};

use crate::catalog::{Catalog, CatalogRecord};
use crate::clock::Moment;
use crate::limits::Limits;
use crate::mailbox::{ConnId, ConnMessage, Mailbox};

const HOUR_MS: u64 = 60 * 60 * 1000;

/// A cursor in continuous use is touched once a day, so that it does not count as idle when the
/// broker restarts after a long run.
const TOUCH_INTERVAL_MS: i64 = 24 * 60 * 60 * 1000;

/// Identifies a durable cursor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CursorId {
    pub(crate) topic: TopicName,
    pub(crate) cursor: CursorName,
}

/// The durable cursors of a broker.
#[derive(Debug)]
pub(crate) struct Cursors {
    catalog: Catalog,
    idle_ms: i64,
    /// The next time at which to look for expired cursors, as a [`Moment`].
    expire_at: AtomicU64,
    /// Never locked during a write to the catalog.
    uses: Arc<Mutex<HashMap<CursorId, CursorUse>>>,
    /// New cursors that are not stored yet, with the number of pending requests.
    pending: Arc<Mutex<HashMap<CursorId, u32>>>,
}

/// A pending request to store a new cursor. The cursor counts as existing while this value lives.
#[derive(Debug)]
pub(crate) struct PendingCursor {
    id: CursorId,
    all: Arc<Mutex<HashMap<CursorId, u32>>>,
}

impl Drop for PendingCursor {
    fn drop(&mut self) {
        let all = &mut *self.all.lock();
        if let Some(times) = all.get_mut(&self.id) {
            *times -= 1;
            if *times == 0 {
                all.remove(&self.id);
            }
        }
    }
}

#[derive(Debug)]
enum CursorUse {
    /// A connection uses it.
    InUse { conn: ConnId, mailbox: Mailbox },
    /// Its removal is being written.
    Removing,
}

/// A durable cursor, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CursorInfo {
    pub(crate) name: CursorName,
    /// The first seq that was not seen.
    pub(crate) next: Seq,
    pub(crate) in_use: bool,
    /// When it was last moved or used; use is recorded to within a day.
    pub(crate) unix_ms: i64,
}

impl Cursors {
    /// No cursor is in use. None expires in the first hour, so that a subscriber which was
    /// disconnected by the broker's outage can return, and a wrong clock does no harm at once.
    pub(crate) fn new(catalog: Catalog, limits: &Limits) -> Self {
        Self {
            catalog,
            idle_ms: i64::try_from(limits.cursor_idle_ms).unwrap_or(i64::MAX),
            expire_at: AtomicU64::new(HOUR_MS),
            uses: Arc::default(),
            pending: Arc::default(),
        }
    }

    /// Assigns a cursor to a connection, and returns its position; `None` if no cursor of that name
    /// exists yet. With `takeover`, the connection that uses it ends ([`Code::Replaced`]).
    ///
    /// Fails with [`Code::Busy`] if another connection uses it, or if it is being removed.
    pub(crate) fn acquire(
        &self,
        id: &CursorId,
        conn: ConnId,
        mailbox: &Mailbox,
        takeover: bool,
    ) -> Result<Option<Seq>, ProtocolError> {
        let mut used = self.uses.lock();
        match used.get(id) {
            Some(CursorUse::Removing) => return Err(removing_error(id)),
            Some(CursorUse::InUse { conn, .. }) if !takeover => {
                return Err(in_use_error(id, *conn));
            }
            _ => {}
        }
        let before = used.insert(id.clone(), CursorUse::InUse { conn, mailbox: mailbox.clone() });
        let stored = self.catalog.contents().cursor(&id.topic, &id.cursor);
        drop(used);
        if let Some(CursorUse::InUse { mailbox, .. }) = before {
            let text = format!("connection {conn} has taken over cursor {}", id.cursor);
            mailbox.send(ConnMessage::End(ProtocolError::new(Code::Replaced, text)));
        }
        Ok(stored.map(|cursor| cursor.next))
    }

    /// Whether the cursor exists or is about to be stored.
    pub(crate) fn exists(&self, id: &CursorId) -> bool {
        // In this order: a cursor that has just left `pending` is stored by then.
        self.uses.lock().contains_key(id)
            || self.pending.lock().contains_key(id)
            || self.catalog.contents().cursor(&id.topic, &id.cursor).is_some()
    }

    /// Registers a request to store a new cursor, whichever connection uses it then.
    pub(crate) fn add_pending(&self, id: &CursorId) -> PendingCursor {
        *self.pending.lock().entry(id.clone()).or_default() += 1;
        PendingCursor { id: id.clone(), all: Arc::clone(&self.pending) }
    }

    pub(crate) fn is_used_by(&self, id: &CursorId, conn: ConnId) -> bool {
        matches!(self.uses.lock().get(id), Some(CursorUse::InUse { conn: holder, .. }) if *holder == conn)
    }

    /// Ends the use of a cursor by a connection, unless another one has taken it over.
    pub(crate) fn release(&self, id: &CursorId, conn: ConnId, unix_ms: i64) {
        let mut used = self.uses.lock();
        if matches!(used.get(id), Some(CursorUse::InUse { conn: holder, .. }) if *holder == conn) {
            used.remove(id);
            drop(used);
            self.touch(id, unix_ms);
        }
    }

    /// Renews the time of use, without moving the cursor.
    fn touch(&self, id: &CursorId, unix_ms: i64) {
        let (topic, cursor) = (id.topic.clone(), id.cursor.clone());
        let record = CatalogRecord::Moved { topic, cursor, next: Seq(1), unix_ms };
        // If the write fails, the cursor only expires earlier.
        self.catalog.write(record, |_| {});
    }

    /// Removes a cursor; calls `done` when that is durable.
    ///
    /// Fails with [`Code::NotFound`], and with [`Code::Busy`] while a connection uses it.
    pub(crate) fn forget(
        &self,
        id: CursorId,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) -> Result<(), ProtocolError> {
        {
            let mut used = self.uses.lock();
            match used.get(&id) {
                Some(CursorUse::Removing) => return Err(removing_error(&id)),
                Some(CursorUse::InUse { conn, .. }) => return Err(in_use_error(&id, *conn)),
                None => {}
            }
            if self.catalog.contents().cursor(&id.topic, &id.cursor).is_none() {
                let text = format!("there is no cursor {} on {}", id.cursor, id.topic);
                return Err(ProtocolError::new(Code::NotFound, text));
            }
            used.insert(id.clone(), CursorUse::Removing);
        }
        self.write_forgotten(id, done);
        Ok(())
    }

    /// Writes the removal. The caller has marked the cursor as `Removing`, so that no connection
    /// uses it meanwhile.
    fn write_forgotten(
        &self,
        id: CursorId,
        done: impl FnOnce(Result<(), ProtocolError>) + Send + 'static,
    ) {
        let (topic, cursor) = (id.topic.clone(), id.cursor.clone());
        let used = Arc::clone(&self.uses);
        self.catalog.write(CatalogRecord::Forgotten { topic, cursor }, move |result| {
            used.lock().remove(&id);
            done(result);
        });
    }

    /// The cursors on a topic, sorted by name.
    pub(crate) fn list(&self, topic: &TopicName) -> Vec<CursorInfo> {
        let used = self.uses.lock();
        let contents = self.catalog.contents();
        let show = |(name, cursor): (&CursorName, crate::catalog::StoredCursor)| {
            let id = CursorId { topic: topic.clone(), cursor: name.clone() };
            let held = matches!(used.get(&id), Some(CursorUse::InUse { .. }));
            CursorInfo { name: id.cursor, next: cursor.next, in_use: held, unix_ms: cursor.unix_ms }
        };
        contents.cursors(topic).map(show).collect()
    }

    /// Runs [`expire`](Self::expire) once an hour. Must be called more often than that.
    pub(crate) fn maintain(&self, now: Moment, unix_ms: i64) {
        if now.0 >= self.expire_at.load(Ordering::Relaxed) {
            self.expire_at.store((now + HOUR_MS).0, Ordering::Relaxed);
            self.expire(unix_ms);
        }
    }

    /// Removes cursors that no connection has used or moved for [`Limits::cursor_idle_ms`]
    /// (`[K6]`).
    pub(crate) fn expire(&self, unix_ms: i64) {
        let (mut idle, mut noted) = (Vec::new(), Vec::new());
        {
            let mut used = self.uses.lock();
            for (topic, cursor, at) in self.catalog.contents().all_cursors() {
                let id = CursorId { topic: topic.clone(), cursor: cursor.clone() };
                let idle_ms = unix_ms.saturating_sub(at.unix_ms);
                match used.get(&id) {
                    Some(CursorUse::InUse { .. }) if idle_ms >= TOUCH_INTERVAL_MS => noted.push(id),
                    // The clock was ahead then, so the time of use is reset to now.
                    _ if idle_ms < 0 => noted.push(id),
                    None if idle_ms >= self.idle_ms => idle.push(id),
                    _ => {}
                }
            }
            used.extend(idle.iter().map(|id| (id.clone(), CursorUse::Removing)));
        }
        for id in noted {
            self.touch(&id, unix_ms);
        }
        for id in idle {
            let CursorId { topic, cursor } = &id;
            tracing::info!(%topic, %cursor, "an unused cursor has expired");
            self.write_forgotten(id, |_| {});
        }
    }
}

fn in_use_error(id: &CursorId, conn: ConnId) -> ProtocolError {
    let text = format!("connection {conn} uses cursor {} on {}", id.cursor, id.topic);
    ProtocolError::new(Code::Busy, text)
}

fn removing_error(id: &CursorId) -> ProtocolError {
    let text = format!("cursor {} on {} is being removed; try again", id.cursor, id.topic);
    ProtocolError::new(Code::Busy, text)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const DAY_MS: i64 = 24 * 60 * 60 * 1000;

    fn cursors() -> Cursors {
        let limits = Limits::default();
        Cursors::new(Catalog::in_memory(&limits), &limits)
    }

    fn id(cursor: &str) -> CursorId {
        CursorId { topic: "a".parse().unwrap(), cursor: cursor.parse().unwrap() }
    }

    fn store(cursors: &Cursors, cursor: &str, next: u64, unix_ms: i64) {
        let CursorId { topic, cursor } = id(cursor);
        let record = CatalogRecord::Cursor { topic, cursor, next: Seq(next), unix_ms };
        cursors.catalog.write(record, |result| result.unwrap());
    }

    fn hold(cursors: &Cursors, cursor: &str, conn: u64) -> Result<Option<Seq>, Code> {
        let held = cursors.acquire(&id(cursor), ConnId(conn), &Mailbox::new(), false);
        held.map_err(|error| error.code)
    }

    fn names(cursors: &Cursors) -> Vec<String> {
        cursors.list(&"a".parse().unwrap()).iter().map(|show| show.name.to_string()).collect()
    }

    // PROTOCOL: K3
    #[test]
    fn one_connection_at_a_time_uses_a_cursor() {
        let cursors = cursors();
        assert_eq!(hold(&cursors, "c", 1), Ok(None), "the cursor is new");
        assert_eq!(hold(&cursors, "c", 2), Err(Code::Busy));
        assert_eq!(hold(&cursors, "d", 2), Ok(None), "another one");
        store(&cursors, "c", 7, 0);
        cursors.release(&id("c"), ConnId(2), 5);
        assert_eq!(hold(&cursors, "c", 3), Err(Code::Busy), "connection 2 did not use it");
        cursors.release(&id("c"), ConnId(1), 5);
        assert_eq!(hold(&cursors, "c", 3), Ok(Some(Seq(7))));
        let shown = cursors.list(&id("c").topic);
        let name = id("c").cursor;
        assert_eq!(shown, [CursorInfo { name, next: Seq(7), in_use: true, unix_ms: 5 }]);
    }

    #[test]
    fn a_cursor_exists_from_its_request_until_its_removal() {
        let cursors = cursors();
        assert!(!cursors.exists(&id("c")));
        hold(&cursors, "c", 1).unwrap();
        let (one, other) = (cursors.add_pending(&id("c")), cursors.add_pending(&id("c")));
        assert!(cursors.exists(&id("c")));
        cursors.release(&id("c"), ConnId(1), 0);
        drop(one);
        assert!(cursors.exists(&id("c")), "a pending cursor exists");
        store(&cursors, "c", 7, 0);
        drop(other);
        assert!(cursors.exists(&id("c")), "a stored cursor exists");
        assert!(cursors.pending.lock().is_empty());
        cursors.forget(id("c"), |result| result.unwrap()).unwrap();
        assert!(!cursors.exists(&id("c")));
        drop(cursors.add_pending(&id("c")));
        assert!(!cursors.exists(&id("c")), "a dropped request creates no cursor");
    }

    #[test]
    fn a_takeover_ends_the_former_connection() {
        let (cursors, older, newer) = (cursors(), Mailbox::new(), Mailbox::new());
        cursors.acquire(&id("c"), ConnId(1), &older, true).unwrap();
        cursors.acquire(&id("c"), ConnId(2), &newer, true).unwrap();
        let parcels = older.drain(Waker::noop()).messages;
        let [ConnMessage::End(error)] = parcels.as_slices().0 else { panic!("{parcels:?}") };
        assert_eq!(error.code, Code::Replaced);
        assert!(newer.drain(Waker::noop()).messages.is_empty());
        cursors.release(&id("c"), ConnId(1), 0);
        assert!(cursors.is_used_by(&id("c"), ConnId(2)));
        assert!(!cursors.is_used_by(&id("c"), ConnId(1)));
    }

    #[test]
    fn only_unused_cursors_can_be_removed() {
        let cursors = cursors();
        let forget = |cursor: &str| {
            cursors.forget(id(cursor), |result| result.unwrap()).map_err(|error| error.code)
        };
        assert_eq!(forget("c"), Err(Code::NotFound));
        store(&cursors, "c", 7, 0);
        hold(&cursors, "c", 1).unwrap();
        assert_eq!(forget("c"), Err(Code::Busy));
        cursors.release(&id("c"), ConnId(1), 0);
        assert_eq!(forget("c"), Ok(()));
        assert_eq!(hold(&cursors, "c", 1), Ok(None));
    }

    // PROTOCOL: K6
    #[test]
    fn a_cursor_expires_thirty_days_after_its_last_use() {
        let cursors = cursors();
        let now = 1_000 * DAY_MS;
        store(&cursors, "ahead", 7, now + DAY_MS);
        store(&cursors, "held", 7, now - 100 * DAY_MS);
        store(&cursors, "old", 7, now - 30 * DAY_MS);
        store(&cursors, "young", 7, now - 30 * DAY_MS + 1);
        hold(&cursors, "held", 1).unwrap();
        cursors.maintain(Moment(HOUR_MS - 1), now);
        assert_eq!(
            names(&cursors),
            ["ahead", "held", "old", "young"],
            "none expires in the first hour"
        );
        cursors.maintain(Moment(HOUR_MS), now);
        assert_eq!(names(&cursors), ["ahead", "held", "young"]);
        cursors.release(&id("held"), ConnId(1), now);
        cursors.maintain(Moment(HOUR_MS + 1), now + 30 * DAY_MS);
        assert_eq!(names(&cursors).len(), 3, "once an hour");
        cursors.maintain(Moment(2 * HOUR_MS), now + 30 * DAY_MS - 1);
        assert_eq!(names(&cursors), ["ahead", "held"]);
        cursors.expire(now + 30 * DAY_MS);
        assert!(names(&cursors).is_empty());
        assert_eq!(hold(&cursors, "old", 1), Ok(None));
    }
}
