//! Numbers for people. The load generator shares no code with what it measures, so these are its
//! own.

/// A count with its thousands separated: `12,345`.
pub(crate) fn format_count(n: u64) -> String {
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
pub(crate) fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_count(n), if n == 1 { "" } else { "s" })
}
