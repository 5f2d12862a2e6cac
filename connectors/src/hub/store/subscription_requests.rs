//! Subscription requests that wait for their verification: the table `wishes`.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::{
    HubLimits, HubStore, RowId, StoreResult, UnixMs, duration_ms, protocol_number, read_protocol,
    read_url,
};
use crate::hub::hub_request::{HubTopic, SubscriptionRequest};

/// Limits of pending requests for one host and for one subscription. A client that sends requests
/// in the name of another uses up only the limit of that host.
pub(super) const REQUESTS_PER_HOST_MAX: u64 = 100;
pub(super) const REQUESTS_PER_SUBSCRIPTION_MAX: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hub) enum RequestOutcome {
    /// Stored; it needs verification.
    Pending(RowId),
    /// A request to unsubscribe without a subscription.
    NotSubscribed,
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hub) enum GrantOutcome {
    /// The subscription was created, renewed or ended.
    Applied,
    /// The request was removed, or a later one was verified first.
    Superseded,
    /// Over the limit of subscriptions, which was lowered since the request was stored.
    Full,
}

impl HubStore {
    /// Stores requests durably: all of them, or none if one exceeds a limit
    /// ([`RequestOutcome::Full`]).
    pub(in crate::hub) fn insert_requests(
        &self,
        requests: &[SubscriptionRequest],
        limits: &HubLimits,
        now: UnixMs,
    ) -> StoreResult<Vec<RequestOutcome>> {
        self.write(true, |transaction| {
            let mut outcomes = Vec::new();
            for request in requests {
                let state = subscription_state(transaction, request)?;
                if request.lease.is_none() && !state.exists() {
                    outcomes.push(RequestOutcome::NotSubscribed);
                    continue;
                }
                if !state.admits(transaction, request, limits)? {
                    transaction.execute(
                        "DELETE FROM wishes WHERE id >= ?1",
                        [first_inserted(&outcomes)],
                    )?;
                    return Ok(vec![RequestOutcome::Full]);
                }
                outcomes.push(RequestOutcome::Pending(insert_request(transaction, request, now)?));
            }
            Ok(outcomes)
        })
    }

    /// The first of the subscriptions that these requests are about, if all of them exist.
    pub(in crate::hub) fn existing_subscription(
        &self,
        requests: &[SubscriptionRequest],
    ) -> StoreResult<Option<RowId>> {
        let sql = "SELECT id FROM subscriptions WHERE callback = ?2 AND kind = ?3
            AND topic = (SELECT id FROM topics WHERE url = ?1)";
        let (connection, mut first) = (self.0.lock(), None);
        let mut statement = connection.prepare_cached(sql)?;
        for SubscriptionRequest { topic, callback, protocol, .. } in requests {
            let key = params![topic.url.as_str(), callback.as_str(), protocol_number(*protocol)];
            let Some(id) = statement.query_row(key, |row| row.get(0)).optional()? else {
                return Ok(None);
            };
            first.get_or_insert(id);
        }
        Ok(first)
    }

    /// Returns a request that is not verified yet.
    pub(in crate::hub) fn pending_request(
        &self,
        id: RowId,
    ) -> StoreResult<Option<SubscriptionRequest>> {
        let sql = "SELECT url, callback, kind, named, secret, lease_ms FROM wishes WHERE id = ?1";
        self.0.lock().prepare_cached(sql)?.query_row([id], read_request).optional()
    }

    /// Applies a verified request, unless it exceeds the limit of subscriptions. Earlier requests
    /// for the same subscription become void.
    pub(in crate::hub) fn grant(
        &self,
        id: RowId,
        limits: &HubLimits,
        now: UnixMs,
    ) -> StoreResult<GrantOutcome> {
        self.write(true, |transaction| {
            let sql =
                "SELECT url, callback, kind, named, secret, lease_ms FROM wishes WHERE id = ?1";
            let Some(request) = transaction.query_row(sql, [id], read_request).optional()? else {
                return Ok(GrantOutcome::Superseded);
            };
            if request.lease.is_some() && !has_free_subscription(transaction, &request, limits)? {
                transaction.execute("DELETE FROM wishes WHERE id = ?1", [id])?;
                return Ok(GrantOutcome::Full);
            }
            let SubscriptionRequest { topic, callback, protocol, lease, secret } = &request;
            let (url, callback, protocol) =
                (topic.url.as_str(), callback.as_str(), protocol_number(*protocol));
            if let Some(lease) = lease {
                transaction.execute(
                    "INSERT INTO topics (url) VALUES (?1) ON CONFLICT DO NOTHING",
                    [url],
                )?;
                transaction.execute(
                    "INSERT INTO subscriptions
                        (topic, callback, kind, named, secret, until_unix_ms, delivered)
                    SELECT id, ?2, ?3, ?4, ?5, ?6, version FROM topics WHERE url = ?1
                    ON CONFLICT DO UPDATE SET named = excluded.named, secret = excluded.secret,
                        until_unix_ms = excluded.until_unix_ms,
                        -- After an expired lease it does not get earlier content.
                        delivered = iif(until_unix_ms <= ?7, excluded.delivered, delivered)",
                    params![
                        url,
                        callback,
                        protocol,
                        topic.verbatim_url,
                        secret,
                        now + duration_ms(*lease),
                        now
                    ],
                )?;
            } else {
                transaction.execute(
                    "DELETE FROM subscriptions WHERE callback = ?2 AND kind = ?3
                    AND topic = (SELECT id FROM topics WHERE url = ?1)",
                    params![url, callback, protocol],
                )?;
            }
            transaction.execute(
                "DELETE FROM wishes WHERE url = ?1 AND callback = ?2 AND kind = ?3 AND id <= ?4",
                params![url, callback, protocol, id],
            )?;
            Ok(GrantOutcome::Applied)
        })
    }

    /// Removes a request that was declined or not answered.
    pub(in crate::hub) fn remove_request(&self, id: RowId) -> StoreResult<()> {
        self.write(false, |transaction| {
            transaction.execute("DELETE FROM wishes WHERE id = ?1", [id]).map(drop)
        })
    }
}

/// The rows of one subscription.
struct SubscriptionState {
    /// Its requests that wait for their verification.
    pending_requests: u64,
    is_subscribed: bool,
}

fn subscription_state(
    transaction: &Transaction<'_>,
    request: &SubscriptionRequest,
) -> StoreResult<SubscriptionState> {
    let sql = "SELECT
        (SELECT count(*) FROM wishes WHERE url = ?1 AND callback = ?2 AND kind = ?3),
        EXISTS (SELECT 1 FROM subscriptions WHERE callback = ?2 AND kind = ?3
            AND topic = (SELECT id FROM topics WHERE url = ?1))";
    let key = params![
        request.topic.url.as_str(),
        request.callback.as_str(),
        protocol_number(request.protocol)
    ];
    transaction.query_row(sql, key, |row| {
        Ok(SubscriptionState {
            pending_requests: row.get::<_, i64>(0)?.unsigned_abs(),
            is_subscribed: row.get(1)?,
        })
    })
}

/// Whether a subscription for this request may exist: it exists already, or the limit permits one
/// more. This is checked again here because the limit may have been lowered since.
fn has_free_subscription(
    transaction: &Transaction<'_>,
    request: &SubscriptionRequest,
    limits: &HubLimits,
) -> StoreResult<bool> {
    if subscription_state(transaction, request)?.is_subscribed {
        return Ok(true);
    }
    let sql = "SELECT count(*) FROM subscriptions";
    let count: i64 = transaction.query_row(sql, [], |row| row.get(0))?;
    Ok(count.unsigned_abs() < limits.subscriptions_max)
}

impl SubscriptionState {
    fn exists(&self) -> bool {
        self.is_subscribed || self.pending_requests > 0
    }

    /// Whether one more request may be stored. A subscriber can always renew and end its
    /// subscription.
    fn admits(
        &self,
        transaction: &Transaction<'_>,
        request: &SubscriptionRequest,
        limits: &HubLimits,
    ) -> StoreResult<bool> {
        if self.pending_requests >= REQUESTS_PER_SUBSCRIPTION_MAX {
            return Ok(false);
        }
        if self.is_subscribed {
            return Ok(true);
        }
        let sql = "SELECT (SELECT count(*) FROM wishes), (SELECT count(*) FROM subscriptions),
            (SELECT count(*) FROM wishes WHERE host = ?1)";
        let counts: [i64; 3] = transaction.query_row(sql, [request.callback.host()], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?])
        })?;
        let [pending, subscriptions, of_host] = counts.map(i64::unsigned_abs);
        // Each pending request may become a subscription.
        let has_slot =
            request.lease.is_none() || subscriptions + pending < limits.subscriptions_max;
        Ok(pending < limits.pending_requests_max && has_slot && of_host < REQUESTS_PER_HOST_MAX)
    }
}

/// The id of the first request that this call has stored; all from it on are deleted again.
fn first_inserted(outcomes: &[RequestOutcome]) -> RowId {
    let first = outcomes.iter().find_map(|outcome| match outcome {
        RequestOutcome::Pending(id) => Some(*id),
        _ => None,
    });
    first.unwrap_or(RowId::MAX)
}

fn insert_request(
    transaction: &Transaction<'_>,
    request: &SubscriptionRequest,
    now: UnixMs,
) -> StoreResult<RowId> {
    let SubscriptionRequest { topic, callback, protocol, lease, secret } = request;
    transaction.execute(
        "INSERT INTO wishes (url, callback, host, kind, named, secret, lease_ms, asked_unix_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            topic.url.as_str(),
            callback.as_str(),
            callback.host(),
            protocol_number(*protocol),
            topic.verbatim_url,
            secret,
            lease.map(duration_ms),
            now
        ],
    )?;
    Ok(transaction.last_insert_rowid())
}

fn read_request(row: &Row<'_>) -> StoreResult<SubscriptionRequest> {
    let lease: Option<i64> = row.get(5)?;
    Ok(SubscriptionRequest {
        topic: HubTopic { url: read_url(row, 0)?, verbatim_url: row.get(3)? },
        callback: read_url(row, 1)?,
        protocol: read_protocol(row, 2)?,
        lease: lease.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        secret: row.get(4)?,
    })
}
