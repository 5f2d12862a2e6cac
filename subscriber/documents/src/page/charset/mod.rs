//! Finds the encoding of a page: from its byte order mark, the `Content-Type` header, a `<meta>`
//! near its beginning, and otherwise by a guess, in this order (HTML standard, 13.2.3.2).

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED};
use memchr::memmem;

use super::tag::{AttributeValue, Attributes, is_space};

/// Bytes buffered of a page without a declared encoding, from the first that is not ASCII, to guess
/// the encoding. Some hundred words between markup; more does not improve the guess.
const CHARSET_GUESS_BYTES: usize = 16 * 1024;

/// The declared encoding, and the length of the byte order mark.
///
/// `head` is the beginning of the page: `CHARSET_PRESCAN_BYTES`, or all of it. `of_header` is the
/// encoding in the header.
pub fn declared(
    head: &[u8],
    of_header: Option<&'static Encoding>,
) -> Option<(&'static Encoding, usize)> {
    Encoding::for_bom(head).or_else(|| Some((of_header.or_else(|| prescan(head))?, 0)))
}

/// The `charset` parameter of a `Content-Type`; the first one counts.
pub fn from_content_type(value: &str) -> Option<&'static Encoding> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (key, value) = rest.split_once(['=', ';'])?;
        if rest.as_bytes()[key.len()] == b';' {
            rest = value;
            continue;
        }
        let value = value.trim_start();
        let quoted = value.strip_prefix('"').and_then(|value| value.split_once('"'));
        let (value, after) = match quoted {
            Some((value, after)) => (value, after.split_once(';').map_or("", |(_, after)| after)),
            None => value.split_once(';').unwrap_or((value, "")),
        };
        if key.trim().eq_ignore_ascii_case("charset") {
            return from_label(value.trim().trim_matches(['"', '\'']).as_bytes());
        }
        rest = after;
    }
}

/// The encoding in a `<meta>`, or else in an XML declaration.
fn prescan(head: &[u8]) -> Option<&'static Encoding> {
    match head {
        [b'<', 0, b'?', 0, b'x', 0, ..] => Some(UTF_16LE),
        [0, b'<', 0, b'?', 0, b'x', ..] => Some(UTF_16BE),
        _ => from_meta(head).or_else(|| from_xml_declaration(head)),
    }
}

fn from_meta(head: &[u8]) -> Option<&'static Encoding> {
    let mut rest = head;
    loop {
        rest = &rest[memchr::memchr(b'<', rest)? + 1..];
        rest = match rest {
            // The dashes of `<!--` may belong to `-->`, too.
            [b'!', b'-', b'-', ..] => &rest[1 + memmem::find(&rest[1..], b"-->")? + 3..],
            _ if is_meta(rest) => {
                let mut attributes = Attributes::new(&rest[META.len()..]);
                let meta = MetaTag::read(&mut attributes);
                // A tag that extends beyond the head does not count.
                let is_whole = !attributes.rest().is_empty();
                if let Some(encoding) = meta.encoding().filter(|_| is_whole) {
                    return Some(encoding);
                }
                attributes.rest()
            }
            [letter, ..] | [b'/', letter, ..] if letter.is_ascii_alphabetic() => {
                let ends = |byte: &u8| is_space(*byte) || *byte == b'>';
                let mut attributes = Attributes::new(&rest[rest.iter().position(ends)?..]);
                attributes.by_ref().for_each(drop);
                attributes.rest()
            }
            [b'!' | b'?' | b'/', ..] => &rest[memchr::memchr(b'>', rest)? + 1..],
            _ => rest,
        };
    }
}

const META: &[u8] = b"meta";

fn is_meta(rest: &[u8]) -> bool {
    rest.split_at_checked(META.len()).is_some_and(|(name, after)| {
        let ends = after.first().is_some_and(|byte| is_space(*byte) || *byte == b'/');
        name.eq_ignore_ascii_case(META) && ends
    })
}

/// The relevant attributes of a `<meta>`.
#[derive(Default)]
struct MetaTag<'a> {
    http_equiv: Option<AttributeValue<'a>>,
    content: Option<AttributeValue<'a>>,
    charset: Option<AttributeValue<'a>>,
}

impl<'a> MetaTag<'a> {
    fn read(attributes: &mut Attributes<'a>) -> Self {
        let mut meta = Self::default();
        for (name, value) in attributes {
            let attribute = match name.to_ascii_lowercase().as_slice() {
                b"http-equiv" => &mut meta.http_equiv,
                b"content" => &mut meta.content,
                b"charset" => &mut meta.charset,
                _ => continue,
            };
            attribute.get_or_insert(value);
        }
        meta
    }

    fn encoding(&self) -> Option<&'static Encoding> {
        let is_pragma = |it: AttributeValue<'_>| it.bytes().eq_ignore_ascii_case(b"content-type");
        let encoding = match (self.charset, self.content) {
            (Some(charset), _) => from_label(charset.bytes()),
            (None, Some(content)) if self.http_equiv.is_some_and(is_pragma) => {
                from_meta_content(content.bytes())
            }
            _ => None,
        };
        encoding.map(readable)
    }
}

/// The encoding in a `<meta>` after the beginning of the page.
pub(super) fn from_late_meta(mut attributes: Attributes<'_>) -> Option<&'static Encoding> {
    MetaTag::read(&mut attributes).encoding()
}

/// A page that could be read byte by byte is not UTF-16, even if it declares that.
fn readable(encoding: &'static Encoding) -> &'static Encoding {
    match encoding {
        utf_16 if utf_16 == UTF_16LE || utf_16 == UTF_16BE => UTF_8,
        user if user == X_USER_DEFINED => WINDOWS_1252,
        other => other,
    }
}

/// The `charset` in the `content` of a `<meta http-equiv=content-type>`.
fn from_meta_content(content: &[u8]) -> Option<&'static Encoding> {
    const CHARSET: &[u8] = b"charset";
    let mut rest = content;
    loop {
        let at = rest.windows(CHARSET.len()).position(|it| it.eq_ignore_ascii_case(CHARSET))?;
        rest = rest[at + CHARSET.len()..].trim_ascii_start();
        let Some(value) = rest.strip_prefix(b"=") else {
            continue;
        };
        let value = value.trim_ascii_start();
        if let [quote @ (b'"' | b'\''), quoted @ ..] = value {
            return from_label(&quoted[..memchr::memchr(*quote, quoted)?]);
        }
        let ends = |byte: &u8| is_space(*byte) || *byte == b';';
        return from_label(&value[..value.iter().position(ends).unwrap_or(value.len())]);
    }
}

/// The `encoding` of an XML declaration.
fn from_xml_declaration(head: &[u8]) -> Option<&'static Encoding> {
    const ENCODING: &[u8] = b"encoding";
    let skip = |bytes: &'_ [u8]| bytes.iter().position(|byte| *byte > b' ');
    let declaration = head.strip_prefix(b"<?xml")?;
    let declaration = &declaration[..memchr::memchr(b'>', declaration)?];
    let rest = &declaration[memmem::find(declaration, ENCODING)? + ENCODING.len()..];
    let rest = rest[skip(rest)?..].strip_prefix(b"=")?;
    let rest = &rest[skip(rest)?..];
    let [quote @ (b'"' | b'\''), quoted @ ..] = rest else {
        return None;
    };
    from_label(&quoted[..memchr::memchr(*quote, quoted)?]).map(readable)
}

/// Encodings that only serve attacks count as unknown, as if nothing was declared.
fn from_label(label: &[u8]) -> Option<&'static Encoding> {
    Encoding::for_label_no_replacement(label)
}

/// Guesses the encoding of a page without a declaration. Up to the first non-ASCII byte all
/// encodings agree. The bytes after it are buffered until there are enough for a guess.
pub(super) struct EncodingGuess {
    detector: EncodingDetector,
    /// `<= CHARSET_GUESS_BYTES`
    buffered: Vec<u8>,
}

impl EncodingGuess {
    pub(super) fn new() -> Self {
        // No script is run, so a wrong guess cannot enable an attack.
        Self { detector: EncodingDetector::new(Iso2022JpDetection::Allow), buffered: Vec::new() }
    }

    /// Reads the next bytes. Returns how many of them are ASCII and can be read now, and how many
    /// are buffered. The rest needs the encoding.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> (usize, usize) {
        let ascii = if self.buffered.is_empty() { ascii_prefix_bytes(bytes) } else { 0 };
        let room = CHARSET_GUESS_BYTES - self.buffered.len();
        let held = room.min(bytes.len() - ascii);
        self.detector.feed(&bytes[..ascii + held], false);
        self.buffered.extend_from_slice(&bytes[ascii..ascii + held]);
        (ascii, held)
    }

    /// Whether something is buffered.
    pub(super) fn has_non_ascii(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Whether the buffer is full.
    pub(super) fn is_full(&self) -> bool {
        self.buffered.len() == CHARSET_GUESS_BYTES
    }

    /// The encoding, and the buffered bytes. A late `<meta>` counts, too: `late` is one that was
    /// found before, and the buffer is searched for another. `top_level` is the last label of the
    /// host name, in lower case.
    pub(super) fn decide(
        mut self,
        late: Option<&'static Encoding>,
        top_level: Option<&str>,
        is_all: bool,
    ) -> (&'static Encoding, Vec<u8>) {
        let guess_encoding = |detector: &mut EncodingDetector, held: &[u8]| {
            // Browsers use this for an undeclared page of only ASCII.
            if held.is_empty() {
                return WINDOWS_1252;
            }
            detector.feed(&[], is_all);
            detector.guess(top_level.map(str::as_bytes), Utf8Detection::Allow)
        };
        let encoding = late.or_else(|| from_meta(&self.buffered));
        let encoding =
            encoding.unwrap_or_else(|| guess_encoding(&mut self.detector, &self.buffered));
        (encoding, self.buffered)
    }
}

/// The length of the prefix that means the same in all encodings: no byte beyond ASCII, and no
/// escape, which changes the meaning in ISO-2022-JP.
fn ascii_prefix_bytes(bytes: &[u8]) -> usize {
    const ESCAPE: u8 = 0x1b;
    let ascii = Encoding::ascii_valid_up_to(bytes);
    memchr::memchr(ESCAPE, &bytes[..ascii]).unwrap_or(ascii)
}

#[cfg(test)]
mod tests;
