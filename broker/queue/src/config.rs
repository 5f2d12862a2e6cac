//! Settings of a group: each with its unit, default and reason, and the words that set it.

use tidings_protocol::status::{DurationMs, GroupSettingsStatus, KeyDelay};
use tidings_protocol::{
    CanonicalUrl, DAY_MS, DEFAULT_TOPIC, GroupSetting, JOB_DONE_TOPIC, KeyKind, PAGE_READY_TOPIC,
    Payload, ProtocolError, TopicName, bad_argument,
};

/// Settings of one group. All durations are in ms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// Topics that feed the group.
    pub topics: Vec<TopicName>,
    /// What becomes the key of an event.
    pub key: KeyKind,
    /// Tasks in flight per key. One is polite; more is for keys that are not hosts.
    pub parallel: u32,
    /// Time between the end of one request and the start of the next on a key. `None`: 1 s, or 0
    /// for loopback, where the operator disturbs only their own machine.
    pub delay_ms: Option<u64>,
    /// Time after which a task is lost unless the member renews its lease. A crawler ends its
    /// request earlier.
    pub lease_ms: u64,
    /// Failed attempts after which an entry becomes a dead letter.
    pub max_attempts: u32,
    /// Lost leases after which an entry becomes a dead letter.
    pub max_losses: u32,
    /// Wait after the first failure; it doubles with each further one.
    pub backoff_ms: u64,
    /// Whether the final outcome of each URL is an event on `page-ready`.
    pub page_ready: bool,
    /// Whether a key with a host that does not answer rests longer and longer.
    pub circuit: bool,
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
            topics: vec![DEFAULT_TOPIC.parse().expect("the default topic has a valid name")],
            key: KeyKind::Host,
            parallel: 1,
            delay_ms: None,
            lease_ms: 60_000,
            max_attempts: 3,
            max_losses: 4,
            backoff_ms: 2000,
            page_ready: true,
            circuit: true,
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
        let mut next = self.clone();
        for (name, value) in settings {
            next.set(GroupSetting::parse(name, value)?);
        }
        Ok(next)
    }

    /// Applies settings.
    #[must_use]
    pub fn with(&self, settings: Vec<GroupSetting>) -> Self {
        let mut next = self.clone();
        for setting in settings {
            next.set(setting);
        }
        next
    }

    fn set(&mut self, setting: GroupSetting) {
        match setting {
            GroupSetting::Topics(topics) => self.topics = topics,
            GroupSetting::Key(key) => self.key = key,
            GroupSetting::Parallel(parallel) => self.parallel = parallel,
            GroupSetting::DelayMs(delay_ms) => self.delay_ms = delay_ms,
            GroupSetting::LeaseMs(lease_ms) => self.lease_ms = lease_ms,
            GroupSetting::MaxAttempts(attempts) => self.max_attempts = attempts,
            GroupSetting::MaxLosses(losses) => self.max_losses = losses,
            GroupSetting::BackoffMs(backoff_ms) => self.backoff_ms = backoff_ms,
            GroupSetting::PageReady(page_ready) => self.page_ready = page_ready,
            GroupSetting::Circuit(circuit) => self.circuit = circuit,
        }
    }

    /// Checks that the settings fit together.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        let has = |name| self.topics.iter().any(|topic| topic.as_str() == name);
        // A group of URLs would find none in these events, and make each a dead letter.
        if has(JOB_DONE_TOPIC) && !self.key.is_own() {
            let text = format!(
                "topics={JOB_DONE_TOPIC}: this topic feeds only groups with key=none or seq"
            );
            return Err(bad_argument(text));
        }
        if has(PAGE_READY_TOPIC) && !self.key.is_own() && self.page_ready {
            return Err(bad_argument(format!(
                "topics={PAGE_READY_TOPIC}: the group would feed itself; set page-ready=off, or \
                 key=none or seq"
            )));
        }
        Ok(())
    }

    /// Returns the settings as `name=value` words, in the form that sets them.
    pub fn describe(&self) -> String {
        self.status().to_string()
    }

    /// The settings that a client can set.
    pub fn status(&self) -> GroupSettingsStatus {
        GroupSettingsStatus {
            topics: self.topics.iter().map(ToString::to_string).collect(),
            key: self.key.to_string(),
            parallel: self.parallel.into(),
            delay: self.delay_ms.map_or(KeyDelay::Default, KeyDelay::Ms),
            lease: DurationMs(self.lease_ms),
            max_attempts: self.max_attempts.into(),
            max_losses: self.max_losses.into(),
            backoff: DurationMs(self.backoff_ms),
            page_ready: self.page_ready.into(),
            circuit: self.circuit.into(),
        }
    }

    /// Returns the delay of a key without any `pace`.
    pub fn delay_of(&self, key: &str) -> u64 {
        match (self.delay_ms, &self.key) {
            (_, key) if key.is_own() => 0,
            (Some(delay_ms), _) => delay_ms,
            (None, KeyKind::Host | KeyKind::Domain) if is_loopback(key) => 0,
            (None, _) => DEFAULT_DELAY_MS,
        }
    }

    /// Returns the longest delay that [`delay_of`](Self::delay_of) returns for any key.
    pub fn longest_delay(&self) -> u64 {
        if self.key.is_own() { 0 } else { self.delay_ms.unwrap_or(DEFAULT_DELAY_MS) }
    }

    /// Returns the key of a URL, if the URL alone decides it.
    pub fn key_of_url<'a>(&self, url: &'a CanonicalUrl<'_>) -> Option<&'a str> {
        match self.key {
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
        let wait_ms = self.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_ms_max);
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
