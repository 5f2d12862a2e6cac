//! Settings of a group: each with its unit, default and reason, and the words that set it.

use tidings_protocol::status::{DurationMs, GroupSettingsStatus, KeyDelay};
use tidings_protocol::{
    CanonicalUrl, Code, DEAD_LETTER_TOPIC, DEFAULT_TOPIC, JOB_DONE_TOPIC, Payload, ProtocolError,
    TopicName, duration,
};

/// The part of an event that may not be worked on twice at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// The URL's host, lower case, without scheme and port.
    Host,
    /// The registrable domain, by the public suffix list.
    Domain,
    /// The value of an attribute of the event.
    Attribute(String),
    /// Each event has its own key and identity: no delay, no coalescing.
    None,
}

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
    /// Dead letters per minute for events that the group cannot use; further ones are only counted.
    pub unkeyed_dead_letters_per_minute: u32,
}

/// Longest delay between two requests to a key.
pub const DELAY_MS_MAX: u64 = DAY_MS;
/// Shortest lease.
const LEASE_MS_MIN: u64 = 100;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How long a `pace` stays in force.
pub const PACE_VALID_MS: u64 = DAY_MS;
const DEFAULT_DELAY_MS: u64 = 1000;
const PARALLEL_MAX: u64 = 1000;
const ATTEMPTS_MAX: u64 = 100;
const TOPICS_MAX: usize = 16;

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
            unkeyed_dead_letters_per_minute: 100,
        }
    }
}

impl GroupConfig {
    /// Applies `key=value` settings, each checked alone. An error changes nothing.
    pub fn with_settings<'a>(
        &self,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut next = self.clone();
        for (name, value) in settings {
            next.set(name, value)?;
        }
        Ok(next)
    }

    /// Checks that the settings fit together.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        // A group of URLs would find none in these events, and make each a dead letter.
        let has_job_done = self.topics.iter().any(|topic| topic.as_str() == JOB_DONE_TOPIC);
        if has_job_done && self.key != KeyKind::None {
            let text =
                format!("topics={JOB_DONE_TOPIC}: this topic feeds only groups with key=none");
            return Err(bad_argument(text));
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ProtocolError> {
        match name {
            "topics" => self.topics = parse_topics(value)?,
            "key" => self.key = parse_key(value)?,
            "parallel" => self.parallel = whole_number(name, value, 1, PARALLEL_MAX)?,
            "delay" => {
                self.delay_ms = match value {
                    "default" => None,
                    _ => Some(duration_within(name, value, 0, DELAY_MS_MAX)?),
                }
            }
            "lease" => self.lease_ms = duration_within(name, value, LEASE_MS_MIN, DAY_MS)?,
            "max-attempts" => self.max_attempts = whole_number(name, value, 1, ATTEMPTS_MAX)?,
            "max-losses" => self.max_losses = whole_number(name, value, 1, ATTEMPTS_MAX)?,
            "backoff" => self.backoff_ms = duration_within(name, value, 0, DAY_MS)?,
            _ => {
                return Err(ProtocolError::new(
                    Code::BadArgument,
                    format!(
                        "unknown setting {name}; the settings are topics, key, parallel, delay, \
                         lease, max-attempts, max-losses, backoff"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns the settings as `name=value` words, in the form that sets them.
    pub fn describe(&self) -> String {
        self.status().to_string()
    }

    /// The settings that a client can set.
    pub fn status(&self) -> GroupSettingsStatus {
        let key = match &self.key {
            KeyKind::Host => "host".to_owned(),
            KeyKind::Domain => "domain".to_owned(),
            KeyKind::Attribute(name) => format!("attr:{name}"),
            KeyKind::None => "none".to_owned(),
        };
        GroupSettingsStatus {
            topics: self.topics.iter().map(ToString::to_string).collect(),
            key,
            parallel: self.parallel.into(),
            delay: self.delay_ms.map_or(KeyDelay::Default, KeyDelay::Ms),
            lease: DurationMs(self.lease_ms),
            max_attempts: self.max_attempts.into(),
            max_losses: self.max_losses.into(),
            backoff: DurationMs(self.backoff_ms),
        }
    }

    /// Returns the delay of a key without any `pace`.
    pub fn delay_of(&self, key: &str) -> u64 {
        match (self.delay_ms, &self.key) {
            (_, KeyKind::None) => 0,
            (Some(delay_ms), _) => delay_ms,
            (None, KeyKind::Host | KeyKind::Domain) if is_loopback(key) => 0,
            (None, _) => DEFAULT_DELAY_MS,
        }
    }

    /// Returns the longest delay that [`delay_of`](Self::delay_of) returns for any key.
    pub fn longest_delay(&self) -> u64 {
        match self.key {
            KeyKind::None => 0,
            _ => self.delay_ms.unwrap_or(DEFAULT_DELAY_MS),
        }
    }

    /// Returns the key of a URL, if the URL alone decides it.
    pub fn key_of_url<'a>(&self, url: &'a CanonicalUrl<'_>) -> Option<&'a str> {
        match self.key {
            KeyKind::Host => Some(url.host()),
            KeyKind::Domain => Some(url.domain()),
            KeyKind::Attribute(_) | KeyKind::None => None,
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

fn parse_topics(value: &str) -> Result<Vec<TopicName>, ProtocolError> {
    let mut topics = Vec::new();
    for name in value.split(',') {
        let topic: TopicName = name.parse()?;
        // A group's own dead letters could become dead letters again.
        if topic.as_str() == DEAD_LETTER_TOPIC {
            return Err(bad_argument(format!(
                "topics={topic}: groups publish on this topic, so it cannot feed one"
            )));
        }
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    if topics.len() > TOPICS_MAX {
        return Err(bad_argument(format!("topics={value}: expected at most {TOPICS_MAX} topics")));
    }
    Ok(topics)
}

fn parse_key(value: &str) -> Result<KeyKind, ProtocolError> {
    match value {
        "host" => Ok(KeyKind::Host),
        "domain" => Ok(KeyKind::Domain),
        "none" => Ok(KeyKind::None),
        _ => match value.strip_prefix("attr:") {
            Some(name) if !name.is_empty() => Ok(KeyKind::Attribute(name.to_owned())),
            _ => Err(bad_argument(format!(
                "key={value}: expected host, domain, attr:<name> or none"
            ))),
        },
    }
}

/// Parses a whole number within bounds.
pub fn whole_number<T: TryFrom<u64>>(
    name: &str,
    value: &str,
    min: u64,
    max: u64,
) -> Result<T, ProtocolError> {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
    value
        .parse::<u64>()
        .ok()
        .filter(|number| is_plain && (min..=max).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            bad_argument(format!("{name}={value}: expected a whole number from {min} to {max}"))
        })
}

/// Parses a duration within bounds, in ms.
pub fn duration_within(name: &str, value: &str, min: u64, max: u64) -> Result<u64, ProtocolError> {
    duration::parse_ms(value).ok().filter(|ms| (min..=max).contains(ms)).ok_or_else(|| {
        bad_argument(format!(
            "{name}={value}: expected a duration from {} to {}, such as 250ms, 30s, 5m, 2h or 1d",
            duration::format_ms(min),
            duration::format_ms(max)
        ))
    })
}

/// Builds a `bad-argument` error.
pub fn bad_argument(text: impl Into<String>) -> ProtocolError {
    ProtocolError::new(Code::BadArgument, text)
}

/// Most tasks that a member may request at once.
pub const CREDIT_MAX: u32 = 10_000;

/// Returns the attribute that is the key of an event in a group of `KeyKind::Attribute`.
pub fn key_attribute<'a>(kind: &KeyKind, payload: &Payload<'a>) -> Option<&'a str> {
    match kind {
        KeyKind::Attribute(name) => payload.attribute(name),
        KeyKind::Host | KeyKind::Domain | KeyKind::None => None,
    }
}
