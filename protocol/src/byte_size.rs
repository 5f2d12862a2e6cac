//! Numbers of bytes as people write them: `65536`, `512m`, `1g`.

use crate::wire::number;

/// Units of bytes, largest first, so that [`format_bytes`] finds the shortest text first.
const UNITS: [(&str, u64); 4] = [("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10), ("", 1)];

/// Reads a number of bytes; `None` if it is not one, or too large.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, unit) =
        UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))?;
    number::<u64>(digits)?.checked_mul(*unit)
}

/// The shortest exact text of a number of bytes.
pub fn format_bytes(bytes: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*unit);
    match UNITS.iter().find(fits) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => "0".to_owned(),
    }
}
