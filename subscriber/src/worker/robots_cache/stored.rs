//! The stored form of cached robots data: a line with the version and a time. For a copy, an
//! excerpt of the robots.txt follows, with the rules for this crawler. A value in another form is
//! ignored.

use std::time::Duration;

use bytes::Bytes;

use crate::robots::RobotsRules;

/// How long a copy or an outage stays on disk after its last update: longer than the time after
/// which a missing file is assumed.
const ROBOTS_STORED_FOR: Duration = Duration::from_hours(60 * 24);

/// Raise it to discard values of older versions.
const VERSION: u64 = 1;

/// A value to store for an origin.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::worker) struct RobotsRecord {
    pub(in crate::worker) kind: &'static str,
    pub(in crate::worker) value: Bytes,
    pub(in crate::worker) expires_unix_s: u64,
}

/// The rules of a robots.txt that was read, or of one that does not exist.
#[derive(Debug)]
pub(super) struct StoredCopy {
    pub(super) fetched_unix_s: u64,
    pub(super) rules: RobotsRules,
}

/// An outage: the robots.txt is unreachable.
#[derive(Debug)]
pub(super) struct StoredOutage {
    pub(super) since_unix_s: u64,
}

impl RobotsRecord {
    /// The kind of copies in `crawler.db`.
    pub(in crate::worker) const COPY: &str = "robots";
    /// The kind of outages in `crawler.db`.
    pub(in crate::worker) const OUTAGE: &str = "robots-outage";

    pub(super) fn copy(rules: &RobotsRules, text: &[u8], now_unix_s: u64) -> Self {
        let mut value = format!("{VERSION} {now_unix_s}\n").into_bytes();
        value.extend(rules.excerpt(text));
        Self { kind: Self::COPY, value: value.into(), expires_unix_s: kept_until(now_unix_s) }
    }

    pub(super) fn outage(since_unix_s: u64, now_unix_s: u64) -> Self {
        let value = format!("{VERSION} {since_unix_s}\n").into();
        Self { kind: Self::OUTAGE, value, expires_unix_s: kept_until(now_unix_s) }
    }

    pub(super) fn no_outage() -> Self {
        Self { kind: Self::OUTAGE, value: Bytes::new(), expires_unix_s: 0 }
    }
}

impl StoredCopy {
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (fetched_unix_s, rest) = read_head(value)?;
        Some(Self { fetched_unix_s, rules: RobotsRules::of_excerpt(rest) })
    }
}

impl StoredOutage {
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        read_head(value).map(|(since_unix_s, _)| Self { since_unix_s })
    }
}

fn kept_until(now_unix_s: u64) -> u64 {
    now_unix_s.saturating_add(ROBOTS_STORED_FOR.as_secs())
}

/// The time in the first line, and the bytes after that line.
fn read_head(value: &[u8]) -> Option<(u64, &[u8])> {
    let end = memchr::memchr(b'\n', value)?;
    let head = std::str::from_utf8(&value[..end]).ok()?;
    let (version, time) = head.split_once(' ')?;
    (version.parse() == Ok(VERSION)).then_some(())?;
    Some((time.parse().ok()?, &value[end + 1..]))
}
