//! The state of the hub across restarts: `hub.db`, an `SQLite` database that only this process
//! uses. Secrets of subscribers are stored only here.
//!
//! A subscription request waits in `wishes` until its callback is verified; then it becomes a
//! subscription. Row ids are never reused, so a task that names a deleted row has no effect.
//!
//! For each topic the newest content is stored, with a rising `version`, until every subscriber has
//! it. `delivered` is the version that a subscriber has. Older versions are discarded.

mod subscription_requests;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tidings_database::digest::{Schema, Table};
use tidings_database::schema_version::{self, BUSY_TIMEOUT};
use tidings_protocol::{CanonicalUrl, MemberId};

pub(super) use self::subscription_requests::{GrantOutcome, RequestOutcome};
use super::hub_request::SubscriberProtocol;

/// The schema, with the digest of each row.
pub const SCHEMA: Schema = Schema {
    file: "hub.db",
    version: 1,
    create: CREATE_TABLES,
    tables: &[
        Table { name: "own", key: "rowid", also: &[] },
        Table { name: "topics", key: "id", also: &[] },
        Table { name: "subscriptions", key: "id", also: &[] },
        Table { name: "wishes", key: "id", also: &[] },
    ],
};

const CREATE_TABLES: &str = "
    CREATE TABLE own (
        member TEXT NOT NULL,
        digest INTEGER
    );
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        url TEXT NOT NULL UNIQUE,
        version INTEGER NOT NULL DEFAULT 0,     -- of the newest content; 0: none yet
        announced INTEGER NOT NULL DEFAULT 0,   -- <= version; its events are durable
        hash BLOB,                              -- of the newest content and its type
        content_type BLOB,
        body BLOB,                              -- NULL once all subscribers have it
        digest INTEGER
    );
    CREATE TABLE subscriptions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        topic INTEGER NOT NULL REFERENCES topics,
        callback TEXT NOT NULL,
        kind INTEGER NOT NULL,
        named TEXT NOT NULL,                    -- the topic as the subscriber wrote it
        secret TEXT,
        until_unix_ms INTEGER NOT NULL,
        delivered INTEGER NOT NULL,             -- <= version of the topic
        given_up INTEGER NOT NULL DEFAULT 0,    -- failed deliveries in a row
        failing_since_unix_ms INTEGER,
        begun INTEGER NOT NULL DEFAULT 0,       -- deliveries, part of the ids of their events
        begun_unix_ms INTEGER,                  -- NULL: none in flight
        digest INTEGER,
        UNIQUE (topic, callback, kind)
    );
    CREATE INDEX waiting ON subscriptions (topic, delivered);
    CREATE INDEX ending ON subscriptions (until_unix_ms);
    CREATE TABLE wishes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        url TEXT NOT NULL,
        callback TEXT NOT NULL,
        host TEXT NOT NULL,                     -- of the callback
        kind INTEGER NOT NULL,
        named TEXT NOT NULL,
        secret TEXT,
        lease_ms INTEGER,                       -- NULL: unsubscribe
        asked_unix_ms INTEGER NOT NULL,
        digest INTEGER
    );
    CREATE INDEX wished ON wishes (url, callback, kind);
    CREATE INDEX wished_of ON wishes (host);";

/// After this time a delivery in flight counts as lost, perhaps together with its group.
const IN_FLIGHT_MS_MAX: i64 = 24 * 3600 * 1000;

/// How long a request may wait for its verification. The attempts of the group take less.
const REQUEST_MS_MAX: i64 = 24 * 3600 * 1000;

/// Id of a subscription request, a subscription or a topic.
pub(super) type RowId = i64;

pub(super) type UnixMs = i64;

type StoreResult<T> = rusqlite::Result<T>;

/// Limits of the store.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// Subscriptions, including expired ones that are not removed yet.
    pub subscriptions_max: u64,
    /// Requests that wait for their verification.
    pub pending_requests_max: u64,
    /// Failed deliveries in a row after which a subscriber is dropped.
    pub failed_deliveries_max: u32,
    /// Time without a successful delivery after which a subscriber is dropped.
    pub failing_max: Duration,
}

/// Numbers of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubCounts {
    /// Topics with a subscription.
    pub topics: u64,
    /// Subscriptions, including expired ones that are not removed yet.
    pub subscribers: u64,
    /// Requests that wait for their verification.
    pub pending_requests: u64,
}

/// A delivery that is due. It has no `Debug`, because it contains a secret.
#[derive(Clone)]
pub(super) struct DueDelivery {
    /// Version of the content that the subscriber lacks; a newer one may exist.
    pub(super) version: i64,
    pub(super) topic_id: RowId,
    pub(super) callback: CanonicalUrl<'static>,
    /// The topic as the subscriber wrote it.
    pub(super) verbatim_url: String,
    pub(super) protocol: SubscriberProtocol,
    /// The key that signs the content.
    pub(super) secret: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct TopicContent {
    /// Rises with each new content of the topic.
    pub(super) version: i64,
    pub(super) content_type: Option<Vec<u8>>,
    pub(super) body: Bytes,
}

/// The newest version of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredVersion {
    pub(super) topic_id: RowId,
    pub(super) version: i64,
    /// The deliveries to all subscribers have been published.
    pub(super) is_enqueued: bool,
}

#[derive(Debug)]
pub(super) struct HubStore(Mutex<Connection>);

/// Least number of failed deliveries before a subscriber is dropped for the time without a
/// successful one. On a site that publishes seldom, two failures may be two short outages that are
/// far apart.
const FAILED_DELIVERIES_MIN: u32 = 3;

impl HubStore {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // Only the owner may read secrets. SQLite creates its other files with the same mode.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        schema_version::open(path, &SCHEMA, BUSY_TIMEOUT, |_| Ok(()), fill)
            .and_then(|connection| {
                SCHEMA.add_digest_triggers(&connection)?;
                Ok(Self(Mutex::new(connection)))
            })
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The member id of this hub, which never changes: after a restart the hub resumes its tasks at
    /// once.
    pub(super) fn member_id(&self) -> StoreResult<MemberId> {
        let text: String =
            self.0.lock().query_row("SELECT member FROM own", [], |row| row.get(0))?;
        text.parse().map_err(|_| rusqlite::Error::InvalidQuery)
    }

    pub(super) fn has_subscribers(&self, topic: &str, now: UnixMs) -> StoreResult<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM subscriptions WHERE until_unix_ms > ?2
            AND topic = (SELECT id FROM topics WHERE url = ?1))";
        self.0.lock().query_row(sql, params![topic, now], |row| row.get(0))
    }

    /// Stores the content of a topic. `None`: the topic has no subscription.
    pub(super) fn put_content(
        &self,
        topic: &str,
        content_type: Option<&[u8]>,
        body: &[u8],
    ) -> StoreResult<Option<StoredVersion>> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(content_type.unwrap_or_default()).update(b"\n").update(body);
        let hash = *hasher.finalize().as_bytes();
        self.write(true, |transaction| {
            transaction.execute(
                "UPDATE topics SET version = version + 1, hash = ?2, content_type = ?3, body = ?4
                WHERE url = ?1 AND hash IS NOT ?2",
                params![topic, hash, content_type, body],
            )?;
            let sql = "SELECT id, version, announced FROM topics WHERE url = ?1";
            let read = |row: &Row<'_>| {
                let (topic_id, version, announced): (_, _, i64) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(StoredVersion { topic_id, version, is_enqueued: announced == version })
            };
            transaction.query_row(sql, [topic], read).optional()
        })
    }

    /// Up to `count` subscribers with an id above `after` that lack this version and have no
    /// delivery in flight, each with its callback and its number of deliveries so far. A delivery
    /// in flight will send the newest content anyway.
    pub(super) fn next_recipients(
        &self,
        stored: StoredVersion,
        after: RowId,
        count: u32,
        now: UnixMs,
    ) -> StoreResult<Vec<(RowId, String, i64)>> {
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached(
            "SELECT id, callback, begun FROM subscriptions
            WHERE topic = ?1 AND delivered < ?2 AND id > ?3 AND until_unix_ms > ?4
                AND (begun_unix_ms IS NULL OR begun_unix_ms <= ?6)
            ORDER BY id LIMIT ?5",
        )?;
        let StoredVersion { topic_id, version, .. } = stored;
        let lost_before = now - IN_FLIGHT_MS_MAX;
        let values = params![topic_id, version, after, now, count, lost_before];
        let rows =
            statement.query_map(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        rows.collect()
    }

    /// Records that the events of these deliveries are durable. Skips deliveries that have already
    /// succeeded.
    pub(super) fn mark_in_flight(
        &self,
        ids: &[RowId],
        stored: StoredVersion,
        now: UnixMs,
    ) -> StoreResult<()> {
        self.write(false, |transaction| {
            let mut statement = transaction.prepare_cached(
                "UPDATE subscriptions SET begun = begun + 1, begun_unix_ms = ?2
                WHERE id = ?1 AND delivered < ?3",
            )?;
            ids.iter()
                .try_for_each(|id| statement.execute(params![id, now, stored.version]).map(drop))
        })
    }

    /// Records that the events for all subscribers are durable.
    pub(super) fn mark_enqueued(&self, stored: StoredVersion) -> StoreResult<()> {
        self.write(false, |transaction| {
            transaction.execute(
                "UPDATE topics SET announced = max(announced, ?2) WHERE id = ?1",
                params![stored.topic_id, stored.version],
            )?;
            let condition = "id = ?1";
            drop_unneeded_bodies(transaction, condition, params![stored.topic_id])
        })
    }

    /// The delivery that a subscriber lacks, if its lease has not expired.
    pub(super) fn due_delivery(&self, id: RowId, now: UnixMs) -> StoreResult<Option<DueDelivery>> {
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached(
            "SELECT version, topics.id, callback, named, kind, secret
            FROM subscriptions JOIN topics ON topics.id = topic
            WHERE subscriptions.id = ?1 AND until_unix_ms > ?2 AND delivered < version",
        )?;
        let read = |row: &Row<'_>| {
            let (version, topic_id, verbatim_url, secret) =
                (row.get(0)?, row.get(1)?, row.get(3)?, row.get(5)?);
            let (callback, protocol) = (read_url(row, 2)?, read_protocol(row, 4)?);
            Ok(DueDelivery { version, topic_id, callback, verbatim_url, protocol, secret })
        };
        statement.query_row(params![id, now], read).optional()
    }

    /// The newest content of a topic, if a subscriber lacks it.
    pub(super) fn content(&self, topic_id: RowId) -> StoreResult<Option<TopicContent>> {
        let sql = "SELECT version, content_type, body FROM topics
            WHERE id = ?1 AND body IS NOT NULL";
        let read = |row: &Row<'_>| {
            let (version, content_type) = (row.get(0)?, row.get(1)?);
            Ok(TopicContent { version, content_type, body: row.get::<_, Vec<u8>>(2)?.into() })
        };
        self.0.lock().query_row(sql, [topic_id], read).optional()
    }

    /// Records that a subscriber has this version.
    pub(super) fn mark_delivered(&self, id: RowId, version: i64) -> StoreResult<()> {
        self.write(false, |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE subscriptions SET delivered = max(delivered, ?2), given_up = 0,
                    failing_since_unix_ms = NULL, begun_unix_ms = NULL WHERE id = ?1",
                )?
                .execute(params![id, version])?;
            let condition = "id = (SELECT topic FROM subscriptions WHERE id = ?1)";
            drop_unneeded_bodies(transaction, condition, params![id])
        })
    }

    /// Records a failed attempt; with `is_last` the delivery has failed. Returns whether the
    /// subscriber was dropped for that.
    pub(super) fn record_failure(
        &self,
        id: RowId,
        is_last: bool,
        limits: &HubLimits,
        now: UnixMs,
    ) -> StoreResult<bool> {
        self.write(false, |transaction| {
            transaction.execute(
                "UPDATE subscriptions SET given_up = given_up + ?2,
                failing_since_unix_ms = coalesce(failing_since_unix_ms, ?3),
                begun_unix_ms = iif(?2, NULL, begun_unix_ms) WHERE id = ?1",
                params![id, is_last, now],
            )?;
            if !is_last {
                return Ok(false);
            }
            let dropped = transaction.execute(
                "DELETE FROM subscriptions WHERE id = ?1
                AND (given_up >= ?2 OR given_up >= ?4 AND failing_since_unix_ms <= ?3)",
                params![
                    id,
                    limits.failed_deliveries_max,
                    now - duration_ms(limits.failing_max),
                    FAILED_DELIVERIES_MIN
                ],
            )?;
            Ok(dropped > 0)
        })
    }

    pub(super) fn remove_subscription(&self, id: RowId) -> StoreResult<()> {
        self.write(false, |transaction| {
            transaction.execute("DELETE FROM subscriptions WHERE id = ?1", [id]).map(drop)
        })
    }

    /// Counts the rows.
    pub(super) fn counts(&self) -> StoreResult<HubCounts> {
        let sql = "SELECT (SELECT count(*) FROM topics), (SELECT count(*) FROM subscriptions),
            (SELECT count(*) FROM wishes)";
        self.0.lock().query_row(sql, [], |row| {
            let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok(HubCounts { topics: count(0)?, subscribers: count(1)?, pending_requests: count(2)? })
        })
    }

    /// Deletes what has expired or is not needed. Returns the number of expired subscriptions.
    pub(super) fn remove_expired(&self, now: UnixMs) -> StoreResult<usize> {
        self.write(false, |transaction| {
            let ended = transaction
                .execute("DELETE FROM subscriptions WHERE until_unix_ms <= ?1", [now])?;
            let requested_before = now - REQUEST_MS_MAX;
            transaction
                .execute("DELETE FROM wishes WHERE asked_unix_ms <= ?1", [requested_before])?;
            transaction.execute(
                "DELETE FROM topics WHERE id NOT IN (SELECT topic FROM subscriptions)",
                [],
            )?;
            drop_unneeded_bodies(transaction, "true", [])?;
            Ok(ended)
        })
    }

    /// With `is_safe` the change is durable when this returns. After a power loss the others are
    /// only repeated.
    fn write<T>(
        &self,
        is_safe: bool,
        change: impl FnOnce(&Transaction<'_>) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let mut connection = self.0.lock();
        connection.pragma_update(None, "synchronous", if is_safe { "FULL" } else { "NORMAL" })?;
        let transaction = connection.transaction()?;
        let changed = change(&transaction)?;
        transaction.commit()?;
        Ok(changed)
    }
}

fn fill(transaction: &Transaction<'_>) -> StoreResult<()> {
    SCHEMA.add_digest_triggers(transaction)?;
    let member = tidings_client::random_member_id().to_string();
    transaction.execute("INSERT INTO own (member) VALUES (?1)", [member]).map(drop)
}

/// Drops content that no subscriber lacks, from the topics that match `condition`.
fn drop_unneeded_bodies(
    transaction: &Transaction<'_>,
    condition: &str,
    values: impl rusqlite::Params,
) -> StoreResult<()> {
    let sql = format!(
        "UPDATE topics SET body = NULL
        WHERE {condition} AND announced = version AND body IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM subscriptions WHERE topic = topics.id AND delivered < version)"
    );
    transaction.prepare_cached(&sql)?.execute(values).map(drop)
}

fn read_url(row: &Row<'_>, column: usize) -> StoreResult<CanonicalUrl<'static>> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| rusqlite::Error::InvalidQuery)
}

fn protocol_number(protocol: SubscriberProtocol) -> i64 {
    match protocol {
        SubscriberProtocol::WebSub => 0,
        SubscriberProtocol::RssCloud => 1,
        SubscriberProtocol::RssCloudPeer => 2,
    }
}

fn read_protocol(row: &Row<'_>, column: usize) -> StoreResult<SubscriberProtocol> {
    Ok(match row.get::<_, i64>(column)? {
        0 => SubscriberProtocol::WebSub,
        1 => SubscriberProtocol::RssCloud,
        2 => SubscriberProtocol::RssCloudPeer,
        _ => return Err(rusqlite::Error::InvalidQuery),
    })
}

fn duration_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests;
