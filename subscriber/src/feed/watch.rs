//! A feed that is watched: which of its items are known, and when it is looked at again. Pure; the time is an argument.
//!
//! A page that names a hub and no feed is watched as a feed is. Its versions are its items: each is announced once, under
//! the URL of the page.
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

use super::version::first_u64;
use super::{Entry, Feed, Hints};
use crate::config::{FEED_KNOWN_MAX, FEED_RESTLESS_MAX, FEED_VALIDATOR_BYTES_MAX};

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
    /// It was read as a page last; `known` is its version then.
    #[serde(default)]
    is_page: bool,
    /// This look follows from the announcement of that version.
    #[serde(skip)]
    announced: Option<Print>,
    /// How often in a row such a look has found another version: a page that differs in each answer tells nothing.
    #[serde(default)]
    restless: u32,
    rest_s: Option<u64>,
    skip_hours: u32,
    skip_days: u8,
}

/// How a look went.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The feed came.
    Read(&'a Feed, Validators<'a>),
    /// A page came that is watched for its versions, of which this is one.
    Page(u64, Validators<'a>),
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

/// An item: a hash of its id, and one of its id and its link. Of a page: its version, and the number of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Print {
    id: u64,
    link: u64,
}

impl Print {
    fn of(entry: &Entry) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(entry.id.as_bytes());
        let id = first_u64(hasher.finalize());
        hasher.update(&[0]).update(entry.link.as_deref().unwrap_or_default().as_bytes());
        Self { id, link: first_u64(hasher.finalize()) }
    }

    /// Of a version of a page, and its number: 1 for the first. A version that comes back has another number.
    fn of_version(version: u64, before: Option<Self>) -> Self {
        Self { id: version, link: before.map_or(0, |before| before.link).saturating_add(1) }
    }
}

impl FromStr for Print {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match *Known::from_str(text)?.0 {
            [print] => Ok(print),
            _ => Err("a print is 32 hexadecimal digits"),
        }
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

    /// The version of a page is the only one that is known from now on. Returns it if it is another than before.
    pub fn take_version(&mut self, version: u64) -> Option<Print> {
        let before = self.0.last().copied();
        if before.is_some_and(|before| before.id == version) {
            return None;
        }
        let print = Print::of_version(version, before);
        self.0 = vec![print];
        Some(print)
    }

    /// Learns of a version of a page from another process, unless that is an older one.
    pub fn learn_version(&mut self, other: Self) {
        let number = |known: &Self| known.0.last().map_or(0, |print| print.link);
        if number(&other) > number(self) {
            *self = other;
        }
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

impl NewItem {
    /// The version of a page.
    pub fn of_page(url: &str, print: Print) -> Self {
        Self { id: print.to_string(), link: Some(url.to_owned()), print }
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
            is_page: false,
            announced: None,
            restless: 0,
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

    /// Whether it has ever been read, as a feed or for its versions.
    pub fn was_read(&self) -> bool {
        self.changed_unix_ms.is_some()
    }

    /// Whether it is a page that was read for its versions.
    pub fn is_page(&self) -> bool {
        self.is_page
    }

    /// Looks that failed since the last one that did not.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// What is known.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// This look follows from the announcement of a version.
    pub fn is_announced(&mut self, print: Print) {
        self.announced = Some(print);
    }

    /// Somebody has told that there is something new, and is going to tell so until then; 0: not any more.
    pub fn is_pushed(&mut self, until_unix_ms: u64) {
        self.pushed_until_unix_ms = Some(until_unix_ms).filter(|until| *until > 0);
        self.is_told = true;
    }

    /// Takes note of how a look at this URL went. `rest` is what the server has asked for: `Retry-After`, or how long its
    /// answer is fresh.
    pub fn check(
        &mut self,
        url: &str,
        settings: Settings,
        outcome: Outcome<'_>,
        rest: Duration,
        now_unix_ms: u64,
    ) -> Checked {
        self.pushed_until_unix_ms = self.pushed_until_unix_ms.filter(|until| *until > now_unix_ms);
        self.interval_ms = settings.within(self.interval_ms);
        let (mut new, mut untold) = (Vec::new(), false);
        match outcome {
            Outcome::Read(feed, validators) => {
                self.begins_as(false);
                new = self.known.take_new(&feed.entries);
                self.note(feed.hints, validators);
                untold = self.was_looked_at(settings, &mut new, now_unix_ms);
            }
            Outcome::Page(version, validators) => {
                self.begins_as(true);
                self.is_told |= self.announced.is_some();
                let print = self.take_version(version);
                new.extend(print.map(|print| NewItem::of_page(url, print)));
                self.note(Hints::default(), validators);
                untold = self.was_looked_at(settings, &mut new, now_unix_ms);
            }
            Outcome::Same if self.was_read() => {
                (self.failures, self.restless) = (0, 0);
                self.slow_down(settings);
            }
            Outcome::Same | Outcome::Failed => self.failures = self.failures.saturating_add(1),
        }
        self.is_told = false;
        Checked { new, next: self.next(settings, rest, now_unix_ms), untold }
    }

    /// It came, as a page or as a feed. What was known of the other one counts no more.
    fn begins_as(&mut self, page: bool) {
        if self.is_page != page {
            (self.is_page, self.changed_unix_ms) = (page, None);
            self.known = Known::default();
        }
    }

    /// The version of a page, if it is to be announced.
    fn take_version(&mut self, version: u64) -> Option<Print> {
        let announced = self.announced.take();
        if let Some(announced) = announced.filter(|announced| announced.id == version) {
            // Its hub has delivered it, and perhaps others before.
            self.known.learn_version(Known(vec![announced]));
        }
        let Some(print) = self.known.take_version(version) else {
            self.restless = 0;
            return None;
        };
        match announced {
            // It was announced, and the versions that are known here have higher numbers.
            Some(announced) if announced.id == version => None,
            Some(_) => {
                self.restless = self.restless.saturating_add(1);
                Some(print).filter(|_| self.restless < FEED_RESTLESS_MAX)
            }
            None => {
                let is_told_otherwise = self.pushed_until_unix_ms.is_some();
                Some(print).filter(|_| !is_told_otherwise || self.restless < FEED_RESTLESS_MAX)
            }
        }
    }

    /// It came, with these items that are new. Whether a hub should have told of them and has not.
    fn was_looked_at(
        &mut self,
        settings: Settings,
        new: &mut Vec<NewItem>,
        now_unix_ms: u64,
    ) -> bool {
        // A hub that should have told and has not is not to be relied upon.
        let untold = !new.is_empty()
            && !self.is_told
            && self.was_read()
            && self.pushed_until_unix_ms.take().is_some();
        self.failures = 0;
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
        untold
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
