//! What is wished of the hub, until it is known whether that is meant.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::{Bounds, Id, Outcome, Store, UnixMs, millis, number, read_kind, read_url};
use crate::hub::request::{Topic, Wish};

/// Wishes of one host, and for one subscription, whose verification is to come: whoever wishes in
/// somebody else's name has so many, and all others theirs.
pub(super) const WISHES_OF_HOST: u64 = 100;
pub(super) const WISHES_OF_ONE: u64 = 3;

/// What became of a wish that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hub) enum Heard {
    /// It is to be verified.
    Noted(Id),
    /// There is nothing to end.
    Nothing,
    /// There is no room for it.
    Full,
}

/// What became of one that was shown to be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hub) enum Granted {
    /// What was wished.
    Done,
    /// It was not wished any more, or something later was.
    Void,
    /// There are as many subscriptions as there may be: more than there were to be when it was
    /// heard.
    Full,
}

impl Store {
    /// Notes what is wished, safe from a loss of power; all of it, or nothing where there is no
    /// room for all ([`Heard::Full`]).
    pub(in crate::hub) fn hear(
        &self,
        wishes: &[Wish],
        bounds: &Bounds,
        now: UnixMs,
    ) -> Outcome<Vec<Heard>> {
        self.write(true, |transaction| {
            let mut heard = Vec::new();
            for wish in wishes {
                let known = known(transaction, wish)?;
                if wish.lease.is_none() && !known.is_any() {
                    heard.push(Heard::Nothing);
                    continue;
                }
                if !known.has_room(transaction, wish, bounds)? {
                    transaction.execute("DELETE FROM wishes WHERE id >= ?1", [first_of(&heard)])?;
                    return Ok(vec![Heard::Full]);
                }
                heard.push(Heard::Noted(note(transaction, wish, now)?));
            }
            Ok(heard)
        })
    }

    /// The first of the subscriptions that these wishes are about, if they are there, all of them.
    pub(in crate::hub) fn subscribed(&self, wishes: &[Wish]) -> Outcome<Option<Id>> {
        let sql = "SELECT id FROM subscriptions WHERE callback = ?2 AND kind = ?3
            AND topic = (SELECT id FROM topics WHERE url = ?1)";
        let (connection, mut first) = (self.0.lock(), None);
        let mut statement = connection.prepare_cached(sql)?;
        for Wish { topic, callback, kind, .. } in wishes {
            let key = params![topic.url.as_str(), callback.as_str(), number(*kind)];
            let Some(id) = statement.query_row(key, |row| row.get(0)).optional()? else {
                return Ok(None);
            };
            first.get_or_insert(id);
        }
        Ok(first)
    }

    /// A wish that is still to be verified.
    pub(in crate::hub) fn wish(&self, id: Id) -> Outcome<Option<Wish>> {
        let sql = "SELECT url, callback, kind, named, secret, lease_ms FROM wishes WHERE id = ?1";
        self.0.lock().prepare_cached(sql)?.query_row([id], read_wish).optional()
    }

    /// It has shown that it wants this: so it is, from now on, if there is room. Whatever was
    /// wished before that for the same is void.
    pub(in crate::hub) fn grant(&self, id: Id, bounds: &Bounds, now: UnixMs) -> Outcome<Granted> {
        self.write(true, |transaction| {
            let sql =
                "SELECT url, callback, kind, named, secret, lease_ms FROM wishes WHERE id = ?1";
            let Some(wish) = transaction.query_row(sql, [id], read_wish).optional()? else {
                return Ok(Granted::Void);
            };
            if wish.lease.is_some() && !has_place(transaction, &wish, bounds)? {
                transaction.execute("DELETE FROM wishes WHERE id = ?1", [id])?;
                return Ok(Granted::Full);
            }
            let Wish { topic, callback, kind, lease, secret } = &wish;
            let (url, callback, kind) = (topic.url.as_str(), callback.as_str(), number(*kind));
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
                        -- Whoever begins anew is not told what was before.
                        delivered = iif(until_unix_ms <= ?7, excluded.delivered, delivered)",
                    params![url, callback, kind, topic.named, secret, now + millis(*lease), now],
                )?;
            } else {
                transaction.execute(
                    "DELETE FROM subscriptions WHERE callback = ?2 AND kind = ?3
                    AND topic = (SELECT id FROM topics WHERE url = ?1)",
                    params![url, callback, kind],
                )?;
            }
            transaction.execute(
                "DELETE FROM wishes WHERE url = ?1 AND callback = ?2 AND kind = ?3 AND id <= ?4",
                params![url, callback, kind, id],
            )?;
            Ok(Granted::Done)
        })
    }

    /// It does not want it, or nobody knows.
    pub(in crate::hub) fn forget(&self, id: Id) -> Outcome<()> {
        self.write(false, |transaction| {
            transaction.execute("DELETE FROM wishes WHERE id = ?1", [id]).map(drop)
        })
    }
}

/// What there is of a subscription that somebody wishes for.
struct Known {
    /// Wishes for it whose verification is to come.
    wishes: u64,
    is_subscribed: bool,
}

fn known(transaction: &Transaction<'_>, wish: &Wish) -> Outcome<Known> {
    let sql = "SELECT
        (SELECT count(*) FROM wishes WHERE url = ?1 AND callback = ?2 AND kind = ?3),
        EXISTS (SELECT 1 FROM subscriptions WHERE callback = ?2 AND kind = ?3
            AND topic = (SELECT id FROM topics WHERE url = ?1))";
    let key = params![wish.topic.url.as_str(), wish.callback.as_str(), number(wish.kind)];
    transaction.query_row(sql, key, |row| {
        Ok(Known { wishes: row.get::<_, i64>(0)?.unsigned_abs(), is_subscribed: row.get(1)? })
    })
}

/// Whether there may be a subscription of this wish: it is there, or there are not too many. What
/// was promised when it was heard is not enough, as there may be fewer now.
fn has_place(transaction: &Transaction<'_>, wish: &Wish, bounds: &Bounds) -> Outcome<bool> {
    if known(transaction, wish)?.is_subscribed {
        return Ok(true);
    }
    let sql = "SELECT count(*) FROM subscriptions";
    let count: i64 = transaction.query_row(sql, [], |row| row.get(0))?;
    Ok(count.unsigned_abs() < bounds.subscriptions)
}

impl Known {
    fn is_any(&self) -> bool {
        self.is_subscribed || self.wishes > 0
    }

    /// Whether one more wish may wait. Who has a subscription can always renew and end it.
    fn has_room(
        &self,
        transaction: &Transaction<'_>,
        wish: &Wish,
        bounds: &Bounds,
    ) -> Outcome<bool> {
        if self.wishes >= WISHES_OF_ONE {
            return Ok(false);
        }
        if self.is_subscribed {
            return Ok(true);
        }
        let sql = "SELECT (SELECT count(*) FROM wishes), (SELECT count(*) FROM subscriptions),
            (SELECT count(*) FROM wishes WHERE host = ?1)";
        let counts: [i64; 3] = transaction.query_row(sql, [wish.callback.host()], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?])
        })?;
        let [wishes, subscriptions, of_host] = counts.map(i64::unsigned_abs);
        // Each of those who wait may be one more.
        let has_place = wish.lease.is_none() || subscriptions + wishes < bounds.subscriptions;
        Ok(wishes < bounds.wishes && has_place && of_host < WISHES_OF_HOST)
    }
}

/// The first that was noted of these; all of them are taken back.
fn first_of(heard: &[Heard]) -> Id {
    let noted = heard.iter().find_map(|heard| match heard {
        Heard::Noted(id) => Some(*id),
        _ => None,
    });
    noted.unwrap_or(Id::MAX)
}

fn note(transaction: &Transaction<'_>, wish: &Wish, now: UnixMs) -> Outcome<Id> {
    let Wish { topic, callback, kind, lease, secret } = wish;
    transaction.execute(
        "INSERT INTO wishes (url, callback, host, kind, named, secret, lease_ms, asked_unix_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            topic.url.as_str(),
            callback.as_str(),
            callback.host(),
            number(*kind),
            topic.named,
            secret,
            lease.map(millis),
            now
        ],
    )?;
    Ok(transaction.last_insert_rowid())
}

fn read_wish(row: &Row<'_>) -> Outcome<Wish> {
    let lease: Option<i64> = row.get(5)?;
    Ok(Wish {
        topic: Topic { url: read_url(row, 0)?, named: row.get(3)? },
        callback: read_url(row, 1)?,
        kind: read_kind(row, 2)?,
        lease: lease.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        secret: row.get(4)?,
    })
}
