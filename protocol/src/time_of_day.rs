//! Times of day as people write them: `06:00`, `06:00:30`, `06:00Z`. They are in UTC, which has no
//! daylight saving time.

use std::fmt;
use std::str::FromStr;

use crate::duration::{DurationError, format_ms, parse_ms};
use crate::wire::number;
use crate::{ProtocolError, bad_argument};

/// Milliseconds of a day. To the wall clock of a computer all days have the same length.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A time of day in UTC, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay {
    /// Below 86,400.
    seconds: u32,
}

/// The text is not a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a time of day looks like 06:00 or 18:30:15, in UTC")]
pub struct TimeOfDayError;

impl TimeOfDay {
    /// The time of day at a moment in milliseconds since 1970, rounded down to a second.
    pub fn from_unix_ms(unix_ms: i64) -> Self {
        let seconds = unix_ms.div_euclid(1000).rem_euclid(24 * 60 * 60);
        Self { seconds: u32::try_from(seconds).expect("less than a day") }
    }

    /// The first moment after `unix_ms` at this time of day, in milliseconds since 1970.
    pub fn next_after(self, unix_ms: i64) -> i64 {
        let day_ms = i64::try_from(DAY_MS).expect("a day is short");
        let wait_ms =
            (i64::from(self.seconds) * 1000 - unix_ms.rem_euclid(day_ms)).rem_euclid(day_ms);
        unix_ms.saturating_add(if wait_ms == 0 { day_ms } else { wait_ms })
    }
}

impl FromStr for TimeOfDay {
    type Err = TimeOfDayError;

    fn from_str(text: &str) -> Result<Self, TimeOfDayError> {
        let mut parts = text.strip_suffix('Z').unwrap_or(text).split(':');
        let mut part = |below: u32| {
            let digits = parts.next().filter(|digits| digits.len() == 2)?;
            number(digits).filter(|number| *number < below)
        };
        let (hours, minutes) = (part(24), part(60));
        // Seconds may be missing, but nothing else.
        let seconds = if text.len() > "00:00Z".len() { part(60) } else { Some(0) };
        match (hours, minutes, seconds, parts.next()) {
            (Some(hours), Some(minutes), Some(seconds), None) => {
                Ok(Self { seconds: (hours * 60 + minutes) * 60 + seconds })
            }
            _ => Err(TimeOfDayError),
        }
    }
}

/// `06:00`, or `06:00:30` if it has seconds.
impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minutes, seconds) = (self.seconds / 60, self.seconds % 60);
        write!(f, "{:02}:{:02}", minutes / 60, minutes % 60)?;
        if seconds > 0 { write!(f, ":{seconds:02}") } else { Ok(()) }
    }
}

/// The shortest `every=` of an event, in ms. Each fetch costs a record, and no host wants more.
pub const EVERY_MS_MIN: u64 = 100;

/// When an entry is due: `after=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// After this number of milliseconds: `10m`.
    Ms(u64),
    /// When the wall clock next shows this time: `06:00`.
    Time(TimeOfDay),
}

/// The text is neither a duration nor a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{DurationError}, and {TimeOfDayError}")]
pub struct AfterError;

impl After {
    /// Parses the value of an option or attribute.
    pub fn parse_option(key: &str, value: &str) -> Result<Self, ProtocolError> {
        value.parse().map_err(|error: AfterError| bad_argument(format!("{key}={value}: {error}")))
    }
}

impl FromStr for After {
    type Err = AfterError;

    fn from_str(text: &str) -> Result<Self, AfterError> {
        parse_ms(text)
            .map(Self::Ms)
            .or_else(|_| text.parse().map(Self::Time))
            .map_err(|_| AfterError)
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ms(ms) => f.write_str(&format_ms(*ms)),
            Self::Time(time) => time.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PROTOCOL: N8
    #[test]
    fn a_time_of_day_has_two_digits_each_and_optional_seconds() {
        for (text, seconds, shown) in [
            ("00:00", 0, "00:00"),
            ("06:00", 21_600, "06:00"),
            ("06:00Z", 21_600, "06:00"),
            ("06:00:00", 21_600, "06:00"),
            ("18:30:15Z", 66_615, "18:30:15"),
            ("23:59:59", 86_399, "23:59:59"),
        ] {
            let time: TimeOfDay = text.parse().unwrap();
            assert_eq!((time.seconds, time.to_string().as_str()), (seconds, shown), "{text}");
        }
        for text in [
            "",
            "6:00",
            "06",
            "06:",
            "0600",
            "24:00",
            "06:60",
            "06:00:60",
            "06:00:00:00",
            "06:00z",
            "06:00ZZ",
            "-6:00",
            "+6:00",
            " 06:00",
            "06:0",
            "06:00:",
            "06:00:0",
            "06:00+01:00",
            "06:00.5",
            "noon",
            "06:00:",
            "06:00:Z",
            "٠٦:00",
        ] {
            assert_eq!(text.parse::<TimeOfDay>(), Err(TimeOfDayError), "{text:?}");
        }
    }

    #[test]
    fn after_is_a_duration_or_a_time_of_day() {
        assert_eq!("10m".parse(), Ok(After::Ms(600_000)));
        assert_eq!("0".parse(), Ok(After::Ms(0)));
        assert_eq!("06:00Z".parse::<After>().unwrap().to_string(), "06:00");
        assert_eq!("90s".parse::<After>().unwrap().to_string(), "90s");
        assert_eq!("soon".parse::<After>(), Err(AfterError));
    }

    #[test]
    fn the_next_moment_is_within_a_day_and_not_now() {
        let six: TimeOfDay = "06:00".parse().unwrap();
        let day = 86_400_000;
        for (now, next) in [
            (0, 21_600_000),
            (21_599_999, 21_600_000),
            (21_600_000, 21_600_000 + day),
            (day - 1, 21_600_000 + day),
            (-1, 21_600_000),
            (-day, 21_600_000 - day),
            (i64::MAX, i64::MAX),
        ] {
            assert_eq!(six.next_after(now), next, "{now}");
        }
    }

    proptest! {
        #[test]
        fn the_next_moment_has_that_time_of_day(seconds in 0_u32..86_400, now in -1_i64 << 50..1_i64 << 50) {
            let time = TimeOfDay { seconds };
            let next = time.next_after(now);
            prop_assert_eq!(TimeOfDay::from_unix_ms(next), time);
            prop_assert_eq!(next % 1000, 0);
            prop_assert!(next > now && next <= now + 86_400_000);
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }
    }
}
