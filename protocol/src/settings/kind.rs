//! The kinds of values that settings have.

use std::fmt;

use crate::status::JsonType;
use crate::{CONDITIONS_MAX, format_bytes, format_ms};

/// The regular expression of the name of a topic, group or job.
pub const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
/// That of the URL of a page, as one word.
pub const URL: &str = "^https?://[^\\s\\x00-\\x1f\\x7f-\\x9f]+$";
/// That of a URL pattern. It contains no comma, which separates patterns.
pub(super) const URL_PATTERN: &str = "^(/|\\*|http)[^\\s,\\x00-\\x1f\\x7f-\\x9f]*$";
/// That of several of them.
pub const URL_PATTERNS: &str = "^(/|\\*|http)[^\\s\\x00-\\x1f\\x7f-\\x9f]*$";

/// The values that a setting may have. Shown as the range in the specification and in refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number, from the first to the second.
    Number(u64, u64),
    /// A duration, from the first to the second, in milliseconds.
    Duration(u64, u64),
    /// The same, or `default`.
    DurationOrDefault(u64, u64),
    /// A number of bytes, from this one.
    Bytes(u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `yes` or `no`; left out if it is `no`.
    YesNo,
    /// The URL of a page, up to this number of bytes.
    Url(usize),
    /// A trace context.
    Traceparent,
    /// Conditions on the attributes of events: the setting is given once for each; `none` for no
    /// conditions.
    Conditions,
    /// A text.
    Text {
        /// What it may be.
        range: &'static str,
        /// The regular expression of it.
        pattern: &'static str,
    },
    /// Texts with commas between them.
    List {
        /// What they may be.
        range: &'static str,
        /// The regular expression of one.
        pattern: &'static str,
        /// The largest number of texts.
        max: usize,
    },
}

impl Kind {
    /// The words of a setting that is on or off.
    pub const ON_OFF: Self = Self::OneOf(&["on", "off"]);

    /// The type of a value in JSON.
    pub fn json_type(&self) -> JsonType {
        match self {
            Self::Number(..) => JsonType::Integer,
            Self::OneOf(words) => JsonType::OneOf(words),
            Self::YesNo => JsonType::Boolean,
            Self::List { .. } | Self::Conditions => JsonType::Strings,
            _ => JsonType::String,
        }
    }

    /// Whether it may be given several times.
    pub fn repeats(&self) -> bool {
        matches!(self, Self::Conditions)
    }

    /// The texts of a list.
    pub(super) fn split<'a>(&self, words: &'a [String]) -> Vec<&'a str> {
        if self.repeats() {
            return words.iter().map(String::as_str).collect();
        }
        words.iter().flat_map(|word| word.split(',')).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(min, u64::MAX) => write!(f, "{min} to 2^64-1"),
            Self::Number(min, max) if max == u64::from(u32::MAX) => write!(f, "{min} to 2^32-1"),
            Self::Number(min, max) => write!(f, "{min} to {max}"),
            Self::Duration(min, max) => write!(f, "{} to {}", format_ms(min), format_ms(max)),
            Self::DurationOrDefault(min, max) => {
                write!(f, "{}, or default", Self::Duration(min, max))
            }
            Self::OneOf(words) => f.write_str(&words.join(", ")),
            Self::Bytes(min) => {
                let min = format_bytes(min);
                write!(f, "a number from {min}, optionally with k, m or g (of 1024)")
            }
            Self::YesNo => f.write_str("yes, no"),
            Self::Url(bytes_max) => {
                write!(f, "a URL, up to {},{:03} bytes", bytes_max / 1000, bytes_max % 1000)
            }
            Self::Traceparent => f.write_str("a trace context"),
            Self::Conditions => write!(f, "up to {CONDITIONS_MAX} conditions, or none"),
            Self::Text { range, .. } | Self::List { range, .. } => f.write_str(range),
        }
    }
}
