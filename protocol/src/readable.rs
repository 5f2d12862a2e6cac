//! Numbers for people: counts, bytes and durations as the command line and the dashboard show them.

use std::time::Duration;

/// A count with its thousands separated: `12,345`.
pub fn format_count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its noun: `1 run`, `2,000 runs`.
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_count(n), if n == 1 { "" } else { "s" })
}

/// A number of bytes with a unit: `512 B`, `3.4 kB`, `12 MB`.
pub fn format_bytes(count: u64) -> String {
    if count < 1000 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let mut value = count as f64 / 1000.0;
    let mut unit = "kB";
    for larger in ["MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {unit}")
}

/// A duration in at most two units: `45 ms`, `2.3 s`, `12 s`, `3m 05s`, `2h 03m`, `4d 01h`.
pub fn format_duration(time: Duration) -> String {
    let (ms, s) = (time.as_millis(), time.as_secs());
    match s {
        _ if ms < 1000 => format!("{ms} ms"),
        ..10 => format!("{s}.{} s", ms % 1000 / 100),
        10..60 => format!("{s} s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {:02}h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit() {
        let shown = [0, 999, 1000, 9_949, 9_950, 12_345, 999_499, 999_500, 10_000_000_000];
        let shown = shown.map(format_bytes).join(" | ");
        assert_eq!(
            shown,
            "0 B | 999 B | 1.0 kB | 9.9 kB | 10 kB | 12 kB | 999 kB | 1.0 MB | 10 GB"
        );
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let shown = [0, 999, 1000, 9_999, 10_000, 59_999, 60_000, 3_599_999, 3_600_000, 90_000_000];
        let shown = shown.map(|ms| format_duration(Duration::from_millis(ms))).join(" | ");
        let expected =
            "0 ms | 999 ms | 1.0 s | 9.9 s | 10 s | 59 s | 1m 00s | 59m 59s | 1h 00m | 1d 01h";
        assert_eq!(shown, expected);
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(format_count),
            ["0", "12", "123", "1,234", "1,234,567"]
        );
    }
}
