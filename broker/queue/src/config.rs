//! The settings and limits of a group: each with its unit, default and reason.

use tidings_protocol::{
    CanonicalUrl, DAY_MS, GroupSettings, JOB_DONE_TOPIC, KeyKind, PAGE_READY_TOPIC, Payload,
    ProtocolError, Settings, bad_argument,
};

/// Settings and limits of one group. All durations are in ms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// The settings that a client can set.
    pub settings: GroupSettings,
    /// The longest wait after a failure.
    pub backoff_ms_max: u64,
    /// Longest rest that a worker may request once (`not-before`).
    pub not_before_ms_max: u64,
    /// Longest delay that a worker may request (`pace`).
    pub pace_ms_max: u64,
    /// Time after which a job that is open and receives no seeds is closed.
    pub open_ms_max: u64,
    /// Jobs that are not done. Default 100,000: one for each of many domains. A further one is
    /// rejected (`-ERR limit`).
    pub jobs_max: usize,
    /// Finished jobs that are remembered, with their counts. The oldest are evicted first.
    pub finished_jobs_max: usize,
    /// Entries that are not final. At the limit, the group consumes no events and rejects new links
    /// until some entries are final. Default 16 million.
    pub entries_max: usize,
    /// Approximate memory of the entries: 72 bytes for a dormant one, and its text if that is in
    /// memory; about 400 and its text for an active one; 250 for each key. Default 1 GiB. The limit
    /// acts like `entries_max`.
    pub entry_bytes_max: usize,
    /// Schedules (`every=`). A further one is a dead letter.
    pub schedules_max: usize,
    /// Dead entries that are kept for inspection and retry. The oldest are evicted first.
    pub dead_max: usize,
    /// Approximate memory of the dead entries. Default 64 MiB. The limit acts like `dead_max`.
    pub dead_bytes_max: usize,
    /// Entries, keys or schedules that one part of a list looks at. Nothing else happens in the
    /// group meanwhile. An entry counts more if more than a look at it is needed. Default 200,000:
    /// 5 to 15 ms.
    pub looked_at_max: usize,
    /// Dead letters per minute for events that the group cannot use; further ones are only counted.
    pub unkeyed_dead_letters_per_minute: u32,
}

/// How long a `pace` stays in force.
pub const PACE_VALID_MS: u64 = DAY_MS;
const DEFAULT_DELAY_MS: u64 = 1000;

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            settings: GroupSettings::default(),
            backoff_ms_max: 60 * 60 * 1000,
            not_before_ms_max: DAY_MS,
            pace_ms_max: 5 * 60 * 1000,
            open_ms_max: DAY_MS,
            jobs_max: 100_000,
            finished_jobs_max: 10_000,
            entries_max: 16_000_000,
            entry_bytes_max: 1 << 30,
            schedules_max: 100_000,
            dead_max: 10_000,
            dead_bytes_max: 64 << 20,
            looked_at_max: 200_000,
            unkeyed_dead_letters_per_minute: 100,
        }
    }
}

impl GroupConfig {
    /// Applies `key=value` settings, each checked alone.
    pub fn with_settings<'a>(
        &self,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        Ok(Self { settings: self.settings.changed(settings)?, ..self.clone() })
    }

    /// Checks that the settings fit together.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        let has = |name| self.settings.topics.iter().any(|topic| topic.as_str() == name);
        // A group of URLs would find none in these events, and make each a dead letter.
        if has(JOB_DONE_TOPIC) && !self.settings.key.is_own() {
            let text = format!(
                "topics={JOB_DONE_TOPIC}: this topic feeds only groups with key=none or seq"
            );
            return Err(bad_argument(text));
        }
        if has(PAGE_READY_TOPIC) && !self.settings.key.is_own() && self.settings.page_ready {
            return Err(bad_argument(format!(
                "topics={PAGE_READY_TOPIC}: the group would feed itself; set page-ready=off, or \
                 key=none or seq"
            )));
        }
        Ok(())
    }

    /// Returns the delay of a key without any `pace`.
    pub fn delay_of(&self, key: &str) -> u64 {
        match (self.settings.delay_ms, &self.settings.key) {
            (_, key) if key.is_own() => 0,
            (Some(delay_ms), _) => delay_ms,
            (None, KeyKind::Host | KeyKind::Domain) if is_loopback(key) => 0,
            (None, _) => DEFAULT_DELAY_MS,
        }
    }

    /// Returns the longest delay that [`delay_of`](Self::delay_of) returns for any key.
    pub fn longest_delay(&self) -> u64 {
        if self.settings.key.is_own() {
            0
        } else {
            self.settings.delay_ms.unwrap_or(DEFAULT_DELAY_MS)
        }
    }

    /// Returns the key of a URL, if the URL alone decides it.
    pub fn key_of_url<'a>(&self, url: &'a CanonicalUrl<'_>) -> Option<&'a str> {
        match self.settings.key {
            KeyKind::Host => Some(url.host()),
            KeyKind::Domain => Some(url.domain()),
            KeyKind::Attribute(_) | KeyKind::None | KeyKind::Seq => None,
        }
    }

    /// Returns the wait after the `failures`-th failed attempt. It doubles each time, plus up to a
    /// quarter of jitter, so that entries that failed together are not retried together. `chance`
    /// is in 0..1.
    pub fn backoff_after(&self, failures: u32, chance: f64) -> u64 {
        let doublings = failures.saturating_sub(1).min(32);
        let wait_ms =
            self.settings.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_ms_max);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "at most a quarter of a day in ms"
        )]
        let spread_ms = (wait_ms as f64 / 4.0 * chance) as u64;
        wait_ms + spread_ms
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Most tasks that a member may request at once.
pub const CREDIT_MAX: u32 = 10_000;

/// Returns the attribute that is the key of an event in a group of `KeyKind::Attribute`.
pub fn key_attribute<'a>(kind: &KeyKind, payload: &Payload<'a>) -> Option<&'a str> {
    match kind {
        KeyKind::Attribute(name) => payload.attribute(name),
        KeyKind::Host | KeyKind::Domain | KeyKind::None | KeyKind::Seq => None,
    }
}
