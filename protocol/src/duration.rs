//! Durations as people write them: `250ms`, `30s`, `5m`, `2h`, `1d`, or `0`.

use crate::wire::number;

/// The longest duration on any line: ten years, in milliseconds.
///
/// Sums of a few durations stay far from overflow, so they need no further check.
pub const DURATION_MS_MAX: u64 = 3650 * 24 * 60 * 60 * 1000;

/// The text is not a duration, or it is longer than [`DURATION_MS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a duration is a whole number and a unit, such as 250ms, 30s, 5m, 2h or 1d (at most 3650d), or 0"
)]
pub struct DurationError;

/// Units from the largest, so that [`format_ms`] finds the shortest text first.
const UNITS: [(&str, u64); 5] =
    [("d", 24 * 60 * 60 * 1000), ("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

/// Reads a duration, in milliseconds.
///
/// A number needs a unit, because `5` would mean seconds to some and milliseconds to others; only
/// `0` needs none. Signs, fractions and spaces are refused.
pub fn parse_ms(text: &str) -> Result<u64, DurationError> {
    if text == "0" {
        return Ok(0);
    }
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).ok_or(DurationError)?;
    let (count, unit) = text.split_at(unit_at);
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(DurationError)?;
    number::<u64>(count)
        .and_then(|count| count.checked_mul(*unit_ms))
        .filter(|ms| *ms <= DURATION_MS_MAX)
        .ok_or(DurationError)
}

/// The shortest exact text of a duration in milliseconds: `1500ms`, `2m`, `0`.
pub fn format_ms(ms: u64) -> String {
    match UNITS.iter().find(|(_, unit_ms)| ms.is_multiple_of(*unit_ms)) {
        Some((unit, unit_ms)) if ms > 0 => format!("{}{unit}", ms / unit_ms),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PROTOCOL: N6
    #[test]
    fn units_are_those_of_the_specification() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("3650d", DURATION_MS_MAX),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
    }

    // PROTOCOL: N6
    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "5",
            "00",
            "-1s",
            "+1s",
            "1.5s",
            " 1s",
            "1 s",
            "1S",
            "s",
            "1w",
            "3651d",
            "99999999999999999999ms",
        ] {
            assert_eq!(parse_ms(text), Err(DurationError), "{text:?}");
        }
    }

    #[test]
    fn the_text_is_the_shortest_exact_one() {
        assert_eq!(format_ms(0), "0");
        assert_eq!(format_ms(1500), "1500ms");
        assert_eq!(format_ms(120_000), "2m");
        assert_eq!(format_ms(86_400_000), "1d");
    }

    proptest! {
        #[test]
        fn text_and_value_agree(ms in 0..=DURATION_MS_MAX) {
            prop_assert_eq!(parse_ms(&format_ms(ms)), Ok(ms));
        }
    }
}
