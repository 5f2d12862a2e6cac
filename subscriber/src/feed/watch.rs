//! A feed that is watched: which of its items are known, and when it is looked at again. Pure; the time is an argument.
//!
//! ```text
//!   items came      ──▶ sooner: towards half of the time from one item to the next
//!   nothing, or 304 ──▶ half as long again
//!   it failed       ──▶ twice as long, for each time in a row
//! ```
//!
//! Never sooner than the publisher asks for, and always within the bounds that were set.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_protocol::{format_ms, parse_ms};

use super::{Entry, Feed, Hints};
use crate::config::{FEED_KNOWN_MAX, FEED_VALIDATOR_BYTES_MAX};

/// What is stored begins with this. Another version is read as if nothing was known, so whoever changes the meaning of a
/// field raises it, and reads the old one where items would be announced again otherwise.
const VERSION: u32 = 1;

const HOUR_MS: u64 = 60 * 60 * 1000;

/// How a feed is watched: `feed=<min>-<max>[,new-only]`, an attribute of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// From one look to the next at least, in ms.
    min_ms: u64,
    /// And at most; `min_ms <= max_ms`.
    max_ms: u64,
    /// What is there at the first look is not announced.
    new_only: bool,
}

/// A `feed=` that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "feed= is <min>-<max>, like 10m-1d, with the smaller one first, and `,new-only` where that is wanted"
)]
pub struct SettingsError;

impl Settings {
    /// With these bounds; the error says that they are in the wrong order, or nothing.
    pub fn new(min: Duration, max: Duration, new_only: bool) -> Result<Self, SettingsError> {
        let (min_ms, max_ms) = (milliseconds(min), milliseconds(max));
        if min_ms == 0 || min_ms > max_ms {
            return Err(SettingsError);
        }
        Ok(Self { min_ms, max_ms, new_only })
    }

    fn within(self, ms: u64) -> u64 {
        ms.clamp(self.min_ms, self.max_ms)
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let (bounds, new_only) = match text.split_once(',') {
            None => (text, false),
            Some((bounds, "new-only")) => (bounds, true),
            Some(_) => return Err(SettingsError),
        };
        let (min, max) = bounds.split_once('-').ok_or(SettingsError)?;
        let duration = |text| parse_ms(text).map(Duration::from_millis).map_err(|_| SettingsError);
        Self::new(duration(min)?, duration(max)?, new_only)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let new_only = if self.new_only { ",new-only" } else { "" };
        write!(f, "{}-{}{new_only}", format_ms(self.min_ms), format_ms(self.max_ms))
    }
}

/// What is known of a feed from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    version: u32,
    known: Known,
    etag: Option<String>,
    last_modified: Option<String>,
    /// When it was read and had something new, in ms since 1970; `None`: it was never read.
    changed_unix_ms: Option<u64>,
    /// From one item to the next, smoothed.
    gap_ms: Option<u64>,
    /// What is adapted; within the bounds.
    interval_ms: u64,
    /// How often the broker has it looked at, as far as is known here.
    scheduled_ms: Option<u64>,
    /// Looks that failed since the last one that did not.
    failures: u32,
    /// Somebody tells of what is new, until then, in ms since 1970; and what was found otherwise was not new yet.
    #[serde(default)]
    pushed_until_unix_ms: Option<u64>,
    /// The next look was brought forward by them.
    #[serde(skip)]
    is_told: bool,
    rest_s: Option<u64>,
    skip_hours: u32,
    skip_days: u8,
}

/// How a look went.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The feed came.
    Read(&'a Feed, Validators<'a>),
    /// 304, or the very bytes of the last time.
    Same,
    /// It did not come, or is no feed.
    Failed,
}

/// What makes the next request conditional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// `ETag`, for `If-None-Match`.
    pub etag: Option<&'a str>,
    /// `Last-Modified`, for `If-Modified-Since`.
    pub last_modified: Option<&'a str>,
}

/// What follows from a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Items that were not there before, the oldest first.
    pub new: Vec<NewItem>,
    /// When to look again, from now.
    pub next: Duration,
    /// Somebody was going to tell of what is new, and has not.
    pub untold: bool,
}

/// An item that is to be announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// As the feed has it.
    pub id: String,
    /// Absolute, mostly; there is none if the feed has none.
    pub link: Option<String>,
    /// The same for the same item of the same feed, and for no other.
    pub print: Print,
}

/// An item: a hash of its id, and one of its id and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Print {
    id: u64,
    link: u64,
}

impl Print {
    fn of(entry: &Entry) -> Self {
        let mut hasher = blake3::Hasher::new();
        let first = |hasher: &blake3::Hasher| {
            let hash = *hasher.finalize().as_bytes();
            u64::from_be_bytes(hash[..8].try_into().expect("a hash has 32 bytes"))
        };
        hasher.update(entry.id.as_bytes());
        let id = first(&hasher);
        hasher.update(&[0]).update(entry.link.as_deref().unwrap_or_default().as_bytes());
        Self { id, link: first(&hasher) }
    }
}

impl fmt::Display for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.id, self.link)
    }
}

/// Items that are known, those that were seen last at the end; as text, 32 hexadecimal digits each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Known(Vec<Print>);

impl TryFrom<String> for Known {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let print = |digits: &[u8]| {
            let half = |digits| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
            Some(Print { id: half(&digits[..16])?, link: half(digits.get(16..)?)? })
        };
        let prints = text
            .as_bytes()
            .chunks(32)
            .map(|digits| if digits.len() == 32 { print(digits) } else { None });
        prints.collect::<Option<_>>().map(Self).ok_or("prints are 32 hexadecimal digits each")
    }
}

impl From<Known> for String {
    fn from(known: Known) -> Self {
        known.0.iter().map(Print::to_string).collect()
    }
}

impl FromStr for Known {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl Known {
    /// Those of a feed, at most so many, the newest, which stand first in feeds.
    pub fn newest(entries: &[Entry], max: usize) -> Self {
        Self(entries.iter().take(max).rev().map(Print::of).collect())
    }

    /// The same of what somebody delivers who tells what is new. What stands behind everything that is known there is
    /// older, whoever has not known it: learned, and no news.
    pub fn take_delivered(&mut self, entries: &[Entry]) -> Vec<NewItem> {
        let links: HashSet<_> = self.0.iter().map(|print| print.link).collect();
        let oldest = entries.iter().rposition(|entry| links.contains(&Print::of(entry).link));
        let news = oldest.map_or(entries, |oldest| &entries[..oldest]);
        let news: HashSet<_> = news.iter().map(|entry| Print::of(entry).link).collect();
        let mut new = self.take_new(entries);
        new.retain(|item| news.contains(&item.print.link));
        new
    }

    /// Learns of items from somebody else who knows them.
    pub fn learn(&mut self, others: Self) {
        let Self(prints) = others;
        self.remember(&prints.iter().map(|print| print.link).collect(), prints);
    }

    /// The items that are not known, which now they are. One that comes back is known as long as it is remembered, and one
    /// that was edited is the same. Where items of one feed have the same id and different links, they are told apart by both.
    pub fn take_new(&mut self, entries: &[Entry]) -> Vec<NewItem> {
        let mut links_of: HashMap<u64, u64> = HashMap::new();
        let mut ambiguous = HashSet::new();
        let prints: Vec<_> = entries.iter().map(Print::of).collect();
        for print in &prints {
            if *links_of.entry(print.id).or_insert(print.link) != print.link {
                ambiguous.insert(print.id);
            }
        }
        let ids: HashSet<_> = self.0.iter().map(|print| print.id).collect();
        let links: HashSet<_> = self.0.iter().map(|print| print.link).collect();
        let is_known = |print: &Print| {
            links.contains(&print.link) || ids.contains(&print.id) && !ambiguous.contains(&print.id)
        };
        let mut present = HashSet::new();
        let (mut new, mut seen) = (Vec::new(), Vec::new());
        // The newest stand first in feeds.
        for (entry, print) in entries.iter().zip(&prints).rev() {
            if !present.insert(print.link) {
                continue;
            }
            seen.push(*print);
            if !is_known(print) {
                let Entry { id, link, .. } = entry.clone();
                new.push(NewItem { id, link, print: *print });
            }
        }
        self.remember(&present, seen);
        new
    }

    fn remember(&mut self, present: &HashSet<u64>, seen: Vec<Print>) {
        let kept = FEED_KNOWN_MAX.max(seen.len());
        let known = &mut self.0;
        known.retain(|print| !present.contains(&print.link));
        known.extend(seen);
        known.drain(..known.len().saturating_sub(kept));
    }
}

impl Watched {
    /// Nothing is known yet; looked at every so often at first.
    pub fn new(every: Duration, settings: Settings) -> Self {
        Self {
            version: VERSION,
            known: Known::default(),
            etag: None,
            last_modified: None,
            changed_unix_ms: None,
            gap_ms: None,
            interval_ms: settings.within(milliseconds(every)),
            scheduled_ms: None,
            failures: 0,
            pushed_until_unix_ms: None,
            is_told: false,
            rest_s: None,
            skip_hours: 0,
            skip_days: 0,
        }
    }

    /// What [`Watched::to_bytes`] has written; `None` for another version and for what is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|watched: &Self| watched.version == VERSION)
    }

    /// For a store: JSON, some 32 bytes for each item that is known.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it is made of numbers and strings")
    }

    /// How often the broker has it looked at. Another interval than the one that was asked for last is somebody's wish.
    pub fn is_scheduled(&mut self, every: Duration, settings: Settings) {
        let every_ms = Some(milliseconds(every));
        if self.scheduled_ms != every_ms {
            self.interval_ms = settings.within(milliseconds(every));
            self.scheduled_ms = every_ms;
        }
    }

    /// This is asked of the broker now.
    pub fn reschedule(&mut self, every: Duration) {
        self.scheduled_ms = Some(milliseconds(every));
    }

    /// What the next request is to be conditional on.
    pub fn validators(&self) -> Validators<'_> {
        let (etag, last_modified) = (self.etag.as_deref(), self.last_modified.as_deref());
        Validators { etag, last_modified }
    }

    /// Whether it has ever been read as a feed.
    pub fn was_read(&self) -> bool {
        self.changed_unix_ms.is_some()
    }

    /// Somebody has told that there is something new, and is going to tell so until then; 0: not any more.
    pub fn is_pushed(&mut self, until_unix_ms: u64) {
        self.pushed_until_unix_ms = Some(until_unix_ms).filter(|until| *until > 0);
        self.is_told = true;
    }

    /// Takes note of how a look went. `rest` is what the server has asked for: `Retry-After`, or how long its answer is fresh.
    pub fn check(
        &mut self,
        settings: Settings,
        outcome: Outcome<'_>,
        rest: Duration,
        now_unix_ms: u64,
    ) -> Checked {
        self.pushed_until_unix_ms = self.pushed_until_unix_ms.filter(|until| *until > now_unix_ms);
        let is_told = std::mem::take(&mut self.is_told);
        self.interval_ms = settings.within(self.interval_ms);
        let (mut new, mut untold) = (Vec::new(), false);
        match outcome {
            Outcome::Read(feed, validators) => {
                new = self.known.take_new(&feed.entries);
                if !new.is_empty() && !is_told && self.was_read() {
                    // Nobody told us: whoever should have is not to be relied upon.
                    untold = self.pushed_until_unix_ms.take().is_some();
                }
                self.failures = 0;
                self.note(feed.hints, validators);
                match self.changed_unix_ms {
                    // How often something comes is not known yet.
                    None => {
                        self.changed_unix_ms = Some(now_unix_ms);
                        if settings.new_only {
                            new.clear();
                        }
                    }
                    Some(_) if new.is_empty() => self.slow_down(settings),
                    Some(changed) => self.speed_up(settings, new.len(), changed, now_unix_ms),
                }
            }
            Outcome::Same if self.was_read() => {
                self.failures = 0;
                self.slow_down(settings);
            }
            Outcome::Same | Outcome::Failed => self.failures = self.failures.saturating_add(1),
        }
        Checked { new, next: self.next(settings, rest, now_unix_ms), untold }
    }

    fn note(&mut self, hints: Hints, validators: Validators<'_>) {
        let Hints { rest_s, skip_hours, skip_days } = hints;
        (self.rest_s, self.skip_hours, self.skip_days) = (rest_s, skip_hours, skip_days);
        let short = |text: Option<&str>| {
            text.filter(|text| text.len() <= FEED_VALIDATOR_BYTES_MAX).map(str::to_owned)
        };
        self.etag = short(validators.etag);
        self.last_modified = short(validators.last_modified);
    }

    fn slow_down(&mut self, settings: Settings) {
        if self.pushed_until_unix_ms.is_some() {
            // It is looked at seldom enough, and should it be wanted again is looked at as often as before.
            return;
        }
        self.interval_ms = settings.within(self.interval_ms.saturating_add(self.interval_ms / 2));
    }

    fn speed_up(&mut self, settings: Settings, items: usize, changed: u64, now_unix_ms: u64) {
        let gap_ms = now_unix_ms.saturating_sub(changed) / items as u64;
        let gap_ms = self.gap_ms.map_or(gap_ms, |before| before.midpoint(gap_ms));
        self.gap_ms = Some(gap_ms);
        self.changed_unix_ms = Some(now_unix_ms);
        // At most twice as often at once: a burst of items is no habit.
        let sooner = (gap_ms / 2).max(self.interval_ms / 2);
        self.interval_ms = settings.within(self.interval_ms.min(sooner));
    }

    fn next(&self, settings: Settings, rest: Duration, now_unix_ms: u64) -> Duration {
        let doubled = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let backed_off =
            self.interval_ms.max(self.patience(settings, now_unix_ms)).saturating_mul(doubled);
        let rest_ms = milliseconds(rest).max(self.rest_s.unwrap_or(0).saturating_mul(1000));
        let next = settings.within(backed_off.max(rest_ms));
        let next = settings.within(self.outside_of_skipped(next, settings, now_unix_ms));
        // For people who read schedules.
        let seconds = next - next % 1000;
        Duration::from_millis(settings.within(seconds))
    }

    /// How long to wait while somebody else tells what is new, in ms.
    fn patience(&self, settings: Settings, now_unix_ms: u64) -> u64 {
        let until = self.pushed_until_unix_ms.unwrap_or(0);
        settings.max_ms.min(until.saturating_sub(now_unix_ms))
    }

    /// The first time from then on that is not in an hour or on a day which the publisher wants to be left out.
    fn outside_of_skipped(&self, next_ms: u64, settings: Settings, now_unix_ms: u64) -> u64 {
        let mut next_ms = next_ms;
        // At the latest after a week each hour of it has come by.
        for _ in 0..7 * 24 {
            let hours = now_unix_ms.saturating_add(next_ms) / HOUR_MS;
            // 1970 began on a Thursday.
            let (hour, day) = (hours % 24, (hours / 24 + 3) % 7);
            let is_skipped = self.skip_hours >> hour & 1 == 1 || self.skip_days >> day & 1 == 1;
            if !is_skipped || next_ms >= settings.max_ms {
                break;
            }
            let next_hour = (hours + 1).saturating_mul(HOUR_MS);
            next_ms = next_hour.saturating_sub(now_unix_ms);
        }
        next_ms
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
