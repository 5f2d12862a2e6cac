//! The state of a watched feed: its known items, and the time of the next fetch. Pure; the time is
//! an argument.
//!
//! A page that names a hub and no feed is watched like a feed. Its versions are its items: each is
//! published once, under the URL of the page.
//!
//! ```text
//!   items arrived   ──▶ sooner: towards half of the time from one item to the next
//!   nothing, or 304 ──▶ the interval grows by half
//!   it failed       ──▶ the interval doubles with each failure in a row
//! ```
//!
//! The interval is never shorter than the publisher asks for, and always within the configured
//! bounds.

mod known_items;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidings_protocol::{format_ms, parse_ms};

pub use self::known_items::{ItemFingerprint, KnownItems, NewItem};
use super::{Feed, PollHints};

/// A watched page that changed this often in a row, in checks triggered by its own announcements,
/// differs in each answer. Such checks announce its versions no more, nor does a scheduled one
/// while a hub reports it.
const FEED_RESTLESS_MAX: u32 = 3;
/// Longer validators (`ETag`, `Last-Modified`) are not kept, so the feed is fetched whole.
const FEED_VALIDATOR_BYTES_MAX: usize = 1024;

/// The version of the stored format. Another version is read as if nothing was known. A change of
/// the meaning of a field must raise it, and must read the old version where items would otherwise
/// be published again.
const FORMAT_VERSION: u32 = 1;

const HOUR_MS: u64 = 60 * 60 * 1000;

/// How a feed is watched: `feed=<min>-<max>[,new-only]`, an attribute of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedSettings {
    /// The least time between two fetches, in ms.
    min_ms: u64,
    /// The longest time; `min_ms <= max_ms`.
    max_ms: u64,
    /// Items of the first fetch are not published.
    new_only: bool,
}

/// An invalid `feed=`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "feed=: expected <min>-<max> with min <= max, such as 10m-1d, optionally followed by ,new-only"
)]
pub struct FeedSettingsError;

impl FeedSettings {
    /// With these bounds. The error says that they are 0 or in the wrong order.
    pub fn new(min: Duration, max: Duration, new_only: bool) -> Result<Self, FeedSettingsError> {
        let (min_ms, max_ms) = (milliseconds(min), milliseconds(max));
        if min_ms == 0 || min_ms > max_ms {
            return Err(FeedSettingsError);
        }
        Ok(Self { min_ms, max_ms, new_only })
    }

    fn clamp(self, ms: u64) -> u64 {
        ms.clamp(self.min_ms, self.max_ms)
    }
}

impl FromStr for FeedSettings {
    type Err = FeedSettingsError;

    fn from_str(text: &str) -> Result<Self, FeedSettingsError> {
        let (bounds, new_only) = match text.split_once(',') {
            None => (text, false),
            Some((bounds, "new-only")) => (bounds, true),
            Some(_) => return Err(FeedSettingsError),
        };
        let (min, max) = bounds.split_once('-').ok_or(FeedSettingsError)?;
        let duration =
            |text| parse_ms(text).map(Duration::from_millis).map_err(|_| FeedSettingsError);
        Self::new(duration(min)?, duration(max)?, new_only)
    }
}

impl fmt::Display for FeedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let new_only = if self.new_only { ",new-only" } else { "" };
        write!(f, "{}-{}{new_only}", format_ms(self.min_ms), format_ms(self.max_ms))
    }
}

/// What is known about a feed from one fetch to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedFeed {
    version: u32,
    known: KnownItems,
    etag: Option<String>,
    last_modified: Option<String>,
    /// When it last had a new item, in ms since 1970; `None`: it was never read.
    changed_unix_ms: Option<u64>,
    /// The smoothed time from one item to the next.
    gap_ms: Option<u64>,
    /// The adaptive interval, within the bounds.
    interval_ms: u64,
    /// The interval of the schedule in the broker, as far as it is known here.
    scheduled_ms: Option<u64>,
    /// Failed fetches in a row.
    failures: u32,
    /// A hub announces changes until then, in ms since 1970. It is removed when a fetch finds a new
    /// item that the hub did not announce.
    #[serde(default)]
    pushed_until_unix_ms: Option<u64>,
    /// A hub has brought this fetch forward.
    #[serde(skip)]
    was_pushed: bool,
    /// It was last read as a page; then `known` is its version.
    #[serde(default)]
    is_page: bool,
    /// This fetch follows from the event of that version.
    #[serde(skip)]
    announced: Option<ItemFingerprint>,
    /// How many such fetches in a row found yet another version. The versions of a page that
    /// differs in each response mean nothing.
    #[serde(default)]
    restless: u32,
    /// Where its URL redirects permanently. The schedule moves when a feed has been read there.
    #[serde(default)]
    moved_to: Option<String>,
    rest_s: Option<u64>,
    skip_hours: u32,
    skip_days: u8,
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug)]
pub enum CheckOutcome<'a> {
    /// A feed was fetched.
    Feed(&'a Feed, Validators<'a>),
    /// A page that is watched for its versions was fetched; this is its version.
    Page(u64, Validators<'a>),
    /// Status 304, or the same bytes as last time.
    NotModified,
    /// The fetch failed, or the document is not a feed.
    Failed,
}

/// Makes the next request conditional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// `ETag`, for `If-None-Match`.
    pub etag: Option<&'a str>,
    /// `Last-Modified`, for `If-Modified-Since`.
    pub last_modified: Option<&'a str>,
}

/// What follows from a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// New items, the oldest first.
    pub new: Vec<NewItem>,
    /// The time until the next fetch.
    pub next: Duration,
    /// A hub should have announced these items, and has not.
    pub hub_missed_items: bool,
}

impl WatchedFeed {
    /// Nothing is known yet; `every` is the first interval.
    pub fn new(every: Duration, settings: FeedSettings) -> Self {
        Self {
            version: FORMAT_VERSION,
            interval_ms: settings.clamp(milliseconds(every)),
            ..Self::default()
        }
    }

    /// Reads what [`WatchedFeed::to_bytes`] has written; `None` for another version or damaged
    /// data.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let watched: Self = serde_json::from_slice(bytes).ok()?;
        (watched.version == FORMAT_VERSION).then_some(watched)
    }

    /// JSON for the store, some 32 bytes for each known item.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings serialize")
    }

    /// The interval of the schedule in the broker. If it is not the one that was requested last, a
    /// user has changed it.
    pub fn set_schedule(&mut self, every: Duration, settings: FeedSettings) {
        let every_ms = Some(milliseconds(every));
        if self.scheduled_ms != every_ms {
            self.interval_ms = settings.clamp(milliseconds(every));
            self.scheduled_ms = every_ms;
        }
    }

    /// This interval is requested from the broker now.
    pub fn record_schedule(&mut self, every: Duration) {
        self.scheduled_ms = Some(milliseconds(every));
    }

    /// The validators for the next request.
    pub fn validators(&self) -> Validators<'_> {
        let (etag, last_modified) = (self.etag.as_deref(), self.last_modified.as_deref());
        Validators { etag, last_modified }
    }

    /// Whether it was ever read, as a feed or as a page.
    pub fn was_read(&self) -> bool {
        self.changed_unix_ms.is_some()
    }

    /// Whether it was read as a page.
    pub fn is_page(&self) -> bool {
        self.is_page
    }

    /// Failed fetches in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Where its URL redirects permanently.
    pub fn moved_to(&self) -> Option<&str> {
        self.moved_to.as_deref()
    }

    /// Its URL redirects there, if permanently.
    pub fn set_moved_to(&mut self, target: Option<&str>) {
        self.moved_to = target.map(str::to_owned);
    }

    /// Takes over the items of the URL that redirects here, at the first read.
    pub fn continue_from(&mut self, earlier: Self) {
        if !self.was_read() {
            let Self { known, is_page, changed_unix_ms, gap_ms, .. } = earlier;
            (self.known, self.is_page) = (known, is_page);
            (self.changed_unix_ms, self.gap_ms) = (changed_unix_ms, gap_ms);
        }
    }

    /// The known items.
    pub fn known(&self) -> &KnownItems {
        &self.known
    }

    /// This fetch follows from the event of a version.
    pub fn set_announced(&mut self, print: ItemFingerprint) {
        self.announced = Some(print);
    }

    /// A hub has announced a change, and will announce further ones until this time; 0: no longer.
    pub fn record_push(&mut self, until_unix_ms: u64) {
        self.pushed_until_unix_ms = Some(until_unix_ms).filter(|until| *until > 0);
        self.was_pushed = true;
    }

    /// Records the result of a fetch of this URL. `rest` is the wait that the server asks for:
    /// `Retry-After`, or how long its response is fresh.
    pub fn check(
        &mut self,
        url: &str,
        settings: FeedSettings,
        outcome: CheckOutcome<'_>,
        rest: Duration,
        now_unix_ms: u64,
    ) -> CheckResult {
        self.pushed_until_unix_ms = self.pushed_until_unix_ms.filter(|until| *until > now_unix_ms);
        self.interval_ms = settings.clamp(self.interval_ms);
        let (mut new, mut untold) = (Vec::new(), false);
        match outcome {
            CheckOutcome::Feed(feed, validators) => {
                self.set_is_page(false);
                new = self.known.add_new(&feed.entries);
                let complete = Some(validators).filter(|_| !feed.breaks_off());
                self.save_hints(feed.hints, complete.unwrap_or_default());
                untold = self.record_read(settings, &mut new, now_unix_ms);
            }
            CheckOutcome::Page(version, validators) => {
                self.set_is_page(true);
                self.was_pushed |= self.announced.is_some();
                let print = self.new_version(version);
                new.extend(print.map(|print| NewItem::of_page(url, print)));
                self.save_hints(PollHints::default(), validators);
                untold = self.record_read(settings, &mut new, now_unix_ms);
            }
            CheckOutcome::NotModified if self.was_read() => {
                (self.failures, self.restless) = (0, 0);
                self.slow_down(settings);
            }
            CheckOutcome::NotModified | CheckOutcome::Failed => {
                self.failures = self.failures.saturating_add(1);
            }
        }
        self.was_pushed = false;
        let next = self.next_check(settings, rest, now_unix_ms);
        CheckResult { new, next, hub_missed_items: untold }
    }

    /// Switches between page and feed. The state of the other kind is discarded.
    fn set_is_page(&mut self, page: bool) {
        if self.is_page != page {
            (self.is_page, self.changed_unix_ms) = (page, None);
            self.known = KnownItems::default();
        }
    }

    /// The version of a page, if it is to be published.
    fn new_version(&mut self, version: u64) -> Option<ItemFingerprint> {
        let announced = self.announced.take();
        let is_announced = announced.is_some_and(|announced| announced.id == version);
        // The announced version was published, so another one follows it. But the known one may be
        // older: an answer of a cache.
        if is_announced || !self.known.is_at_version(version) {
            self.known.merge_version(KnownItems(announced.into_iter().collect()));
        }
        let Some(print) = self.known.set_version(version).filter(|_| !is_announced) else {
            self.restless = 0;
            return None;
        };
        self.restless = self.restless.saturating_add(u32::from(announced.is_some()));
        let is_reported = announced.is_some() || self.pushed_until_unix_ms.is_some();
        if is_reported && self.restless >= FEED_RESTLESS_MAX {
            // Only a published version has its own number: the hub may still deliver this one.
            self.known = KnownItems(vec![ItemFingerprint { link: print.link - 1, ..print }]);
            return None;
        }
        Some(print)
    }

    /// Records a successful fetch with these new items. Returns whether a hub should have announced
    /// them and has not.
    fn record_read(
        &mut self,
        settings: FeedSettings,
        new: &mut Vec<NewItem>,
        now_unix_ms: u64,
    ) -> bool {
        // A hub that missed an item is not relied on any more.
        let untold = !new.is_empty()
            && !self.was_pushed
            && self.was_read()
            && self.pushed_until_unix_ms.take().is_some();
        self.failures = 0;
        match self.changed_unix_ms {
            // How often items arrive is not known yet.
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

    fn save_hints(&mut self, hints: PollHints, validators: Validators<'_>) {
        let PollHints { min_interval_s: rest_s, skip_hours, skip_days } = hints;
        (self.rest_s, self.skip_hours, self.skip_days) = (rest_s, skip_hours, skip_days);
        let short = |text: Option<&str>| {
            text.filter(|text| text.len() <= FEED_VALIDATOR_BYTES_MAX).map(str::to_owned)
        };
        self.etag = short(validators.etag);
        self.last_modified = short(validators.last_modified);
    }

    fn slow_down(&mut self, settings: FeedSettings) {
        if self.pushed_until_unix_ms.is_some() {
            // The hub makes the interval long enough. If the hub fails, the old interval applies
            // again.
            return;
        }
        self.interval_ms = settings.clamp(self.interval_ms.saturating_add(self.interval_ms / 2));
    }

    fn speed_up(&mut self, settings: FeedSettings, items: usize, changed: u64, now_unix_ms: u64) {
        let gap_ms = now_unix_ms.saturating_sub(changed) / items as u64;
        let gap_ms = self.gap_ms.map_or(gap_ms, |before| before.midpoint(gap_ms));
        self.gap_ms = Some(gap_ms);
        self.changed_unix_ms = Some(now_unix_ms);
        // At most twice as often at once, because a burst of items says little about the average.
        let sooner = (gap_ms / 2).max(self.interval_ms / 2);
        self.interval_ms = settings.clamp(self.interval_ms.min(sooner));
    }

    fn next_check(&self, settings: FeedSettings, rest: Duration, now_unix_ms: u64) -> Duration {
        let doubled = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let backed_off =
            self.interval_ms.max(self.push_wait_ms(settings, now_unix_ms)).saturating_mul(doubled);
        let rest_ms = milliseconds(rest).max(self.rest_s.unwrap_or(0).saturating_mul(1000));
        let next = settings.clamp(backed_off.max(rest_ms));
        let next = settings.clamp(self.outside_skipped_hours(next, settings, now_unix_ms));
        // Whole seconds, which are easier to read in schedules.
        let seconds = next - next % 1000;
        Duration::from_millis(settings.clamp(seconds))
    }

    /// How long to rely on the hub, in ms.
    fn push_wait_ms(&self, settings: FeedSettings, now_unix_ms: u64) -> u64 {
        let until = self.pushed_until_unix_ms.unwrap_or(0);
        settings.max_ms.min(until.saturating_sub(now_unix_ms))
    }

    /// The first time from then on that is outside the hours and days that the publisher excludes.
    fn outside_skipped_hours(&self, next_ms: u64, settings: FeedSettings, now_unix_ms: u64) -> u64 {
        let mut next_ms = next_ms;
        // Each hour of the week occurs within a week.
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
mod tests;
