//! The settings of a topic: retention and when an event counts as safe.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::{
    ProtocolError, bad_argument, format_bytes, format_ms, parse_bytes, parse_ms, with_defaults,
    word_enum,
};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

with_defaults! {
    /// The settings of a topic. They are displayed in the form in which they are given:
    /// `sync=always retain-bytes=1g retain-age=30d`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TopicSettings {
        /// When an event counts as safe. Default always.
        pub sync: Sync = Sync::default(),
        /// Maximum bytes of files; beyond it retention removes the oldest segment. Default 1 GiB,
        /// at least [`RETAIN_BYTES_MIN`](Self::RETAIN_BYTES_MIN).
        pub retain_bytes: u64 = 1 << 30,
        /// Age in milliseconds after which events are removed; 0: never. Default 30 days.
        pub retain_age_ms: u64 = 30 * DAY_MS,
    }
}

word_enum! {
    /// When an event of a topic is confirmed.
    #[derive(Default)]
    pub enum Sync {
        /// When it is synced to disk.
        #[default]
        Always = "always",
        /// When it is written; the next sync makes it durable.
        Interval = "interval",
        /// When it is in memory. The topic's events are not written to disk.
        Memory = "memory",
    }
}

impl TopicSettings {
    /// The minimum of `retain-bytes`.
    pub const RETAIN_BYTES_MIN: u64 = 1 << 20;

    /// The keys that [`parse`](Self::parse) knows.
    pub const KEYS: [&str; 3] = ["sync", "retain-bytes", "retain-age"];

    /// Applies `settings` to `base`; what they do not name keeps its value.
    ///
    /// Fails with [`Code::BadArgument`](tidings_protocol::Code::BadArgument) if a key is unknown or
    /// a value is invalid.
    pub fn parse(settings: &[(&str, &str)], base: Self) -> Result<Self, ProtocolError> {
        let mut parsed = base;
        for &(key, value) in settings {
            match key {
                "sync" => parsed.sync = value.parse()?,
                "retain-bytes" => {
                    parsed.retain_bytes = parse_bytes(value)
                        .filter(|bytes| *bytes >= Self::RETAIN_BYTES_MIN)
                        .ok_or_else(|| {
                            bad_argument(format!(
                                "retain-bytes={value} should be a number of bytes from 1m, like \
                                 1073741824, 512m or 1g"
                            ))
                        })?;
                }
                "retain-age" => {
                    parsed.retain_age_ms = parse_ms(value)
                        .map_err(|error| bad_argument(format!("retain-age={value}: {error}")))?;
                }
                _ => {
                    let known = Self::KEYS.join("=, ");
                    return Err(bad_argument(format!(
                        "{key}= is not a setting of a topic; the settings are {known}="
                    )));
                }
            }
        }
        Ok(parsed)
    }
}

impl fmt::Display for TopicSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = format_bytes(self.retain_bytes);
        let age = format_ms(self.retain_age_ms);
        write!(f, "sync={} retain-bytes={bytes} retain-age={age}", self.sync)
    }
}

impl FromStr for Sync {
    type Err = ProtocolError;

    fn from_str(word: &str) -> Result<Self, ProtocolError> {
        Self::from_word(word).ok_or_else(|| {
            bad_argument(format!("sync={word}: expected always, interval or memory"))
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use tidings_protocol::{Code, DURATION_MS_MAX};

    use super::*;

    pub(in crate::catalog) fn any_settings() -> impl Strategy<Value = TopicSettings> {
        let sync = prop::sample::select(Sync::ALL.to_vec());
        let bytes =
            prop_oneof![TopicSettings::RETAIN_BYTES_MIN.., (1..1_u64 << 30).prop_map(|n| n << 20)];
        (sync, bytes, 0..=DURATION_MS_MAX).prop_map(|(sync, retain_bytes, retain_age_ms)| {
            TopicSettings { sync, retain_bytes, retain_age_ms }
        })
    }

    fn parse(settings: &[(&str, &str)]) -> Result<TopicSettings, Code> {
        TopicSettings::parse(settings, TopicSettings::default()).map_err(|error| error.code)
    }

    #[test]
    fn omitted_settings_keep_their_value() {
        assert_eq!(
            TopicSettings::default().to_string(),
            "sync=always retain-bytes=1g retain-age=30d"
        );
        let base = parse(&[("sync", "memory"), ("retain-age", "0")]).unwrap();
        let changed = TopicSettings::parse(&[("retain-bytes", "3m")], base).unwrap();
        assert_eq!(changed.to_string(), "sync=memory retain-bytes=3m retain-age=0");
    }

    #[test]
    fn bytes_are_counted_in_powers_of_1024() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("1024k", 1 << 20),
            ("1m", 1 << 20),
            ("17179869183g", (u64::MAX >> 30) << 30),
        ] {
            assert_eq!(parse(&[("retain-bytes", text)]).unwrap().retain_bytes, bytes, "{text}");
        }
        for text in
            ["", "0", "1048575", "1023k", "17179869184g", "+2m", "-2m", "2 m", "2M", "2mb", "m"]
        {
            assert_eq!(parse(&[("retain-bytes", text)]), Err(Code::BadArgument), "{text:?}");
        }
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_rejected() {
        for setting in
            [("sync", "no"), ("sync", ""), ("retain-age", "5"), ("retain-age", "3651d"), ("x", "1")]
        {
            assert_eq!(parse(&[setting]), Err(Code::BadArgument), "{setting:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_given(settings in any_settings()) {
            let shown = settings.to_string();
            let words: Vec<_> = shown.split(' ').map(|word| word.split_once('=').unwrap()).collect();
            prop_assert_eq!(TopicSettings::parse(&words, TopicSettings::default()), Ok(settings));
        }
    }
}
