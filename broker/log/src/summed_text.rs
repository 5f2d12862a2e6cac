//! A small file of lines whose last line is a checksum of the others.

use std::fmt::Write as _;

/// Adds the line with the checksum to lines that each end with a newline.
pub fn with_checksum(mut lines: String) -> String {
    let checksum = crc32c::crc32c(lines.as_bytes());
    let _ = writeln!(lines, "checksum {checksum:08x}");
    lines
}

/// The lines before the checksum, or what is wrong.
pub fn before_checksum(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let (lines, last) = text
        .strip_suffix('\n')
        .and_then(|text| text.rsplit_once('\n'))
        .ok_or("it ends before its checksum does")?;
    let summed = text.get(..=lines.len()).unwrap_or_default();
    if last != format!("checksum {:08x}", crc32c::crc32c(summed.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(lines)
}
