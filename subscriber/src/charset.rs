//! In which encoding a page is written: its byte order mark, the `Content-Type` header, a `<meta>`
//! near its beginning, and then the likelier of UTF-8 and windows-1252, in this order.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED};

/// The encoding, and how many bytes of a byte order mark to skip.
///
/// `head` is what comes first of a page, `CHARSET_PRESCAN_BYTES` of it or all.
pub fn detect(head: &[u8], content_type: Option<&str>) -> (&'static Encoding, usize) {
    if let Some(marked) = Encoding::for_bom(head) {
        return marked;
    }
    let declared = content_type.and_then(of_content_type).or_else(|| of_meta(head));
    (declared.unwrap_or_else(|| likely(head)), 0)
}

/// The `charset` parameter of a `Content-Type`.
pub(crate) fn of_content_type(value: &str) -> Option<&'static Encoding> {
    value.split(';').skip(1).find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        key.trim().eq_ignore_ascii_case("charset").then(|| of_label(value.as_bytes()))?
    })
}

/// `<meta charset=..>` or `<meta http-equiv content="..; charset=..">` outside of comments.
fn of_meta(head: &[u8]) -> Option<&'static Encoding> {
    let mut rest = head;
    while let Some(at) = memchr::memchr(b'<', rest) {
        rest = &rest[at + 1..];
        if let Some(comment) = rest.strip_prefix(b"!--") {
            rest = &comment[memchr::memmem::find(comment, b"-->")?..];
        } else if rest.len() > 4 && rest[..4].eq_ignore_ascii_case(b"meta") {
            let end = memchr::memchr(b'>', rest).unwrap_or(rest.len());
            if let Some(encoding) = of_meta_tag(&rest[4..end]) {
                // A page in which this could be read is not UTF-16, whatever it says.
                return Some(match encoding {
                    utf_16 if utf_16 == UTF_16LE || utf_16 == UTF_16BE => UTF_8,
                    user if user == X_USER_DEFINED => WINDOWS_1252,
                    other => other,
                });
            }
        }
    }
    None
}

fn of_meta_tag(tag: &[u8]) -> Option<&'static Encoding> {
    const CHARSET: &[u8] = b"charset";
    let mut rest = tag;
    while rest.len() > CHARSET.len() {
        if !rest[..CHARSET.len()].eq_ignore_ascii_case(CHARSET) {
            rest = &rest[1..];
            continue;
        }
        rest = rest[CHARSET.len()..].trim_ascii_start();
        let Some(value) = rest.strip_prefix(b"=") else {
            continue;
        };
        let value = value.trim_ascii_start();
        let value = value.strip_prefix(b"\"").or(value.strip_prefix(b"'")).unwrap_or(value);
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b"\"';/>".contains(byte);
        let end = value.iter().position(ends).unwrap_or(value.len());
        return of_label(&value[..end]);
    }
    None
}

/// Encodings that only serve attacks are taken for unknown, as if nothing had been declared.
fn of_label(label: &[u8]) -> Option<&'static Encoding> {
    Encoding::for_label_no_replacement(label)
}

fn likely(head: &[u8]) -> &'static Encoding {
    match std::str::from_utf8(head) {
        Ok(_) => UTF_8,
        // The cut went through a character.
        Err(error) if error.error_len().is_none() => UTF_8,
        Err(_) => WINDOWS_1252,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_beats_the_header_beats_the_meta_beats_the_guess() {
        let table: &[(&[u8], Option<&str>, &str, usize)] = &[
            (b"\xef\xbb\xbfx", Some("text/html; charset=koi8-r"), "UTF-8", 3),
            (b"\xff\xfex\0", None, "UTF-16LE", 2),
            (b"\xfe\xff\0x", None, "UTF-16BE", 2),
            (b"<meta charset=koi8-r>", Some("text/html; charset=Shift_JIS"), "Shift_JIS", 0),
            (b"x", Some("text/html; Charset = \"utf-16le\""), "UTF-16LE", 0),
            (b"<meta charset=koi8-r>", Some("text/html; charset=nonsense"), "KOI8-R", 0),
            (b"<META  CHARSET = 'koi8-r' >", Some("text/html"), "KOI8-R", 0),
            (
                b"<meta http-equiv=Content-Type content=\"text/html; charset=euc-jp\">",
                None,
                "EUC-JP",
                0,
            ),
            (b"<!-- <meta charset=koi8-r> --><meta charset=gbk>", None, "GBK", 0),
            (b"<meta name=charset><meta charset=gbk>", None, "GBK", 0),
            (b"<metadata charset=gbk", None, "GBK", 0),
            (b"<meta charset=utf-16>", None, "UTF-8", 0),
            (b"<meta charset=x-user-defined>", None, "windows-1252", 0),
            (b"<meta charset=iso-2022-kr>", None, "UTF-8", 0),
            (b"<meta charset", None, "UTF-8", 0),
            (b"<meta charset=", None, "UTF-8", 0),
            (b"<", None, "UTF-8", 0),
            (b"caf\xc3\xa9", None, "UTF-8", 0),
            (b"caf\xc3", None, "UTF-8", 0),
            (b"caf\xe9 x", None, "windows-1252", 0),
            (b"", None, "UTF-8", 0),
        ];
        for &(head, header, name, skip) in table {
            let (encoding, skipped) = detect(head, header);
            assert_eq!((encoding.name(), skipped), (name, skip), "{:?}", head.escape_ascii());
        }
    }
}
