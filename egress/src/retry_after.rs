//! Parses `Retry-After`.

use std::time::{Duration, SystemTime};

use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};

/// A longer `Retry-After` is cut to this; the broker limits it again.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// How long the server asks clients to wait, at most a day.
pub fn retry_after(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if !matches!(status.as_u16(), 429 | 503) {
        return None;
    }
    let value = headers.get(RETRY_AFTER)?.as_bytes().trim_ascii();
    parse_retry_after(std::str::from_utf8(value).ok()?, now)
}

/// Parses seconds or an HTTP date; at most a day.
fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More digits than a number holds.
        Err(_) if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() => {
            RETRY_AFTER_MAX
        }
        // A date in the past means no wait.
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?,
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(parse_retry_after("120", now), Some(Duration::from_mins(2)));
        assert_eq!(
            parse_retry_after("Sun, 06 Nov 1994 08:50:07 GMT", now),
            Some(Duration::from_secs(30))
        );
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), None);
        assert_eq!(parse_retry_after("99999999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(parse_retry_after("99999999999999999999999", now), Some(RETRY_AFTER_MAX));
        for nonsense in ["", "-1", "soon", "1.5"] {
            assert_eq!(parse_retry_after(nonsense, now), None, "{nonsense}");
        }
    }
}
