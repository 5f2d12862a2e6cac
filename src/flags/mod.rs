//! Flags that several subcommands share, and the forms of their values.

pub(crate) mod address;
pub(crate) mod arguments;
pub(crate) mod broker;
pub(crate) mod confirmation;
pub(crate) mod own_file;
pub(crate) mod push_table;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args};
use jiff::Timestamp;
use tidings_documents::tracking::TrackingParams;
use tidings_egress::AllowPrivate;
use tidings_protocol::{IpNetworkError, parse_ms};

/// The default data directory.
pub(crate) const DATA_DEFAULT: &str = "./tidings-data";

/// The data directory.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataFlag {
    /// Data directory for topics, groups and pages.db; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    pub(crate) data: PathBuf,
}

/// Changes the help of [`DataFlag`] in a command that only reads the directory.
pub(crate) fn of_existing_data(data: Arg) -> Arg {
    data.help("Data directory of the broker")
}

/// A value that is one word, as the line protocol has it.
pub(crate) fn one_word(text: &str) -> Result<String, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [word] => Ok(word.to_owned()),
        _ => Err("expected one word".to_owned()),
    }
}

/// Private addresses that may be fetched from.
#[derive(Debug, Clone, Args)]
pub(crate) struct AllowPrivateFlag {
    /// Allow private, loopback and link-local addresses: all of them, or only these networks
    #[arg(
        id = "allow_private",
        long = "allow-private",
        value_name = "NET,..",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "all",
        hide_default_value = true,
        value_parser = parse_allow_private,
    )]
    pub(crate) networks: AllowPrivate,
}

/// Parameters that are removed from links.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrackingFlag {
    /// Parameters to remove from links, separated by commas
    ///
    /// NAME removes one, NAME* all with this prefix, and ;NAME one within a path. `default` is the
    /// built-in list, `none` removes nothing.
    #[arg(
        id = "tracking_params",
        long = "tracking-params",
        value_name = "LIST",
        default_value = "default"
    )]
    pub(crate) params: TrackingParams,
}

/// Parses a duration in the format of all Tidings flags: `250ms`, `30s`, `5m`, `2h`, `1d`, `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_ms(text).map(Duration::from_millis).map_err(|error| error.to_string())
}

/// Parses a time such as `2026-12-01T00:00Z`.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "expected a time such as 2026-12-01T00:00Z".to_owned())
}

/// Parses when something ends: after a duration, such as `12h`, or at a time.
pub(crate) fn parse_expiry(text: &str) -> Result<Timestamp, String> {
    let now = Timestamp::now();
    let at = match parse_duration(text) {
        Ok(after) => now.checked_add(after).ok(),
        Err(_) => parse_time(text).ok(),
    };
    let expected = "expected a duration such as 12h, or a time such as 2026-12-01T00:00Z";
    match at {
        Some(at) if at > now => Ok(at),
        Some(_) => Err("is not in the future".to_owned()),
        None => Err(expected.to_owned()),
    }
}

/// Parses a duration from 100 milliseconds to 1 hour.
pub(crate) fn parse_moderate_duration(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(100)..=Duration::from_hours(1);
    let duration = parse_duration(text)?;
    if range.contains(&duration) { Ok(duration) } else { Err("expected 100ms to 1h".to_owned()) }
}

/// The milliseconds of a duration from [`parse_duration`].
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("parse_duration() makes it of a u64 of milliseconds")
}

/// Parses a number of bytes: `65536`, `64k`, `10m`, `1g`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = tidings_protocol::parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected bytes such as 65536, 64k, 10m or 1g".to_owned())
}

/// Parses a name that people choose: letters, digits, `-`, `_` and `.`.
pub(crate) fn parse_plain_name(text: &str) -> Result<String, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&text.len()) && text.chars().all(is_fine) {
        return Ok(text.to_owned());
    }
    Err("expected 1 to 64 letters, digits, -, _ and .".to_owned())
}

/// The value of `--allow-private`.
fn parse_allow_private(text: &str) -> Result<AllowPrivate, String> {
    if text.is_empty() {
        // A variable that is set to an empty text must not allow anything.
        return Ok(AllowPrivate::None);
    }
    text.parse().map_err(|error: IpNetworkError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_duration_or_a_time() {
        let hours = |text: &str| {
            let left = parse_expiry(text).unwrap().duration_since(Timestamp::now());
            (left.as_secs_f64() / 3_600.0).round()
        };
        assert!((hours("12h") - 12.0).abs() < 0.5 && (hours("2d") - 48.0).abs() < 0.5);
        let time = parse_expiry("9000-01-31T00:00Z").unwrap();
        assert_eq!(time.to_string(), "9000-01-31T00:00:00Z");
        for (text, expected) in [
            ("0", "is not in the future"),
            ("2001-01-31T00:00Z", "is not in the future"),
            ("tomorrow", "expected a duration such as 12h, or a time"),
            ("18446744073709551615ms", "expected a duration such as 12h, or a time"),
        ] {
            let refused = parse_expiry(text).unwrap_err();
            assert!(refused.starts_with(expected), "{text}: {refused}");
        }
    }
}
