//! Tags: their end, name and attributes, as in the tokenizer of the HTML standard (section 13.2.5).

use std::borrow::Cow;

use memchr::memchr;

/// The name of a tag in lower case, as a number. Exact up to 16 bytes, which covers all names that
/// matter here; longer names may collide.
pub(super) type TagName = u128;

/// The number of a name.
pub(super) const fn tag_name(mut text: &[u8]) -> TagName {
    let mut packed: TagName = 0;
    while let [byte, rest @ ..] = text {
        let byte = byte.to_ascii_lowercase();
        // A zero would be lost at the beginning.
        let byte = if byte == 0 { u8::MAX } else { byte };
        packed = packed.rotate_left(8) ^ byte as TagName;
        text = rest;
    }
    packed
}

/// The numbers of `N` names, which are separated by spaces.
pub(super) const fn tag_names<const N: usize>(words: &str) -> [TagName; N] {
    let mut names = [0; N];
    let (mut rest, mut at) = (words.as_bytes(), 0);
    while at < N {
        let mut end = 0;
        while end < rest.len() && rest[end] != b' ' {
            end += 1;
        }
        let (word, after) = rest.split_at(end);
        assert!(!word.is_empty(), "there are fewer names");
        names[at] = tag_name(word);
        rest = if let [_, after @ ..] = after { after } else { after };
        at += 1;
    }
    assert!(rest.is_empty(), "there are more names");
    names
}

/// White space in tags.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c')
}

/// Decodes text; invalid UTF-8 and NUL become U+FFFD.
pub(super) fn decode_text(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    match memchr(0, bytes) {
        Some(_) => Cow::Owned(text.replace('\0', "\u{fffd}")),
        None => text,
    }
}

/// The position in a tag: the states of the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagPosition {
    Name,
    BeforeAttribute,
    Attribute,
    AfterAttribute,
    BeforeValue,
    DoubleQuoted,
    SingleQuoted,
    Unquoted,
    AfterValue,
    /// After a `/` outside of values; if the tag ends here, it is self-closing.
    Slash,
}

impl TagPosition {
    /// Searches for the `>` that ends the tag: the number of bytes including it. Without one,
    /// `self` is the position at the end of the bytes, otherwise the position before the `>`.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let quote = match self {
                Self::DoubleQuoted => b'"',
                Self::SingleQuoted => b'\'',
                _ => {
                    match *bytes.get(at)? {
                        b'>' => return Some(at + 1),
                        byte => *self = self.after(byte),
                    }
                    at += 1;
                    if matches!(self, Self::Name | Self::Attribute | Self::Unquoted) {
                        let is_plain = |byte: &&u8| PLAIN[usize::from(**byte)];
                        at += bytes[at..].iter().take_while(is_plain).count();
                    }
                    continue;
                }
            };
            at += memchr(quote, &bytes[at..])? + 1;
            *self = Self::AfterValue;
        }
    }

    /// The position after a byte that ends neither the tag nor a quoted value.
    fn after(self, byte: u8) -> Self {
        match (byte, self) {
            (b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', _) => match self {
                Self::Attribute | Self::AfterAttribute => Self::AfterAttribute,
                Self::BeforeValue => Self::BeforeValue,
                _ => Self::BeforeAttribute,
            },
            (b'"', Self::BeforeValue) => Self::DoubleQuoted,
            (b'\'', Self::BeforeValue) => Self::SingleQuoted,
            (_, Self::BeforeValue | Self::Unquoted) => Self::Unquoted,
            (b'/', _) => Self::Slash,
            (_, Self::Name) => Self::Name,
            (b'=', Self::Attribute | Self::AfterAttribute) => Self::BeforeValue,
            _ => Self::Attribute,
        }
    }
}

/// Bytes that only continue a name or an unquoted value; most bytes do.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        byte += 1;
    }
    plain
};

/// A complete start tag.
#[derive(Debug)]
pub(super) struct HtmlTag<'a> {
    pub(super) name: TagName,
    pub(super) attributes: Attributes<'a>,
    pub(super) is_self_closing: bool,
}

impl<'a> HtmlTag<'a> {
    /// From the bytes after `<` or `</` up to the `>`, and the position before the `>`.
    pub(super) fn new(bytes: &'a [u8], last: TagPosition) -> Self {
        let ends = |byte: &u8| is_space(*byte) || matches!(byte, b'/' | b'>');
        let (text, rest) = bytes.split_at(bytes.iter().position(ends).unwrap_or(bytes.len()));
        Self {
            name: tag_name(text),
            attributes: Attributes { rest },
            is_self_closing: last == TagPosition::Slash,
        }
    }

    /// For a tag that is too long to be buffered.
    pub(super) fn without_attributes(self) -> Self {
        Self { attributes: Attributes::new(&[]), ..self }
    }

    /// The values of some attributes, in the order of `names`; the first of equal attributes
    /// counts.
    pub(super) fn values<const N: usize>(
        &self,
        names: [&str; N],
    ) -> [Option<AttributeValue<'a>>; N] {
        let mut values = [None; N];
        for (name, value) in self.attributes.clone() {
            let wanted = names.iter().position(|it| name.eq_ignore_ascii_case(it.as_bytes()));
            if let Some(wanted) = wanted {
                values[wanted].get_or_insert(value);
            }
        }
        values
    }

    /// The value of one attribute.
    pub(super) fn value(&self, name: &str) -> Option<AttributeValue<'a>> {
        let [value] = self.values([name]);
        value
    }
}

/// The value of an attribute, as written.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeValue<'a>(&'a [u8]);

impl<'a> AttributeValue<'a> {
    /// The decoded text, as in a browser.
    pub(super) fn text(self) -> Cow<'a, str> {
        let text = decode_text(self.0);
        match memchr(b'&', self.0) {
            Some(_) => Cow::Owned(htmlize::unescape_attribute(text).into_owned()),
            None => text,
        }
    }

    /// Whether it is this word, in any case, with or without white space around it.
    pub(super) fn is(self, word: &str) -> bool {
        self.text().trim_matches(|c: char| c.is_ascii_whitespace()).eq_ignore_ascii_case(word)
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The attributes of a tag, names and values, up to its `>`. An incomplete attribute is left out.
#[derive(Clone, Debug)]
pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// From the bytes after the name of a tag.
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// After the last attribute: the `>` and the bytes after it; empty if there is none.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn attribute(&mut self) -> Option<(&'a [u8], AttributeValue<'a>)> {
        self.skip(|byte| is_space(byte) || byte == b'/');
        // A `=` here belongs to the name.
        let first = usize::from(*self.rest.first()? == b'=');
        if self.rest[0] == b'>' {
            return None;
        }
        let ends = |byte: &u8| is_space(*byte) || matches!(byte, b'/' | b'>' | b'=');
        let end = self.rest[first..].iter().position(ends);
        let name = self.take(first + end.unwrap_or(self.rest.len()))?;
        self.skip(is_space);
        if self.rest.first() != Some(&b'=') {
            return (!self.rest.is_empty()).then_some((name, AttributeValue(&[])));
        }
        self.rest = &self.rest[1..];
        self.skip(is_space);
        let value = if let quote @ (b'"' | b'\'') = *self.rest.first()? {
            let rest = &self.rest[1..];
            let end = memchr(quote, rest);
            self.rest = end.map_or(&[], |end| &rest[end + 1..]);
            &rest[..end?]
        } else {
            let ends = |byte: &u8| is_space(*byte) || *byte == b'>';
            let end = self.rest.iter().position(ends);
            self.take(end.unwrap_or(self.rest.len() + 1))?
        };
        Some((name, AttributeValue(value)))
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) {
        let start = self.rest.iter().position(|byte| !skipped(*byte)).unwrap_or(self.rest.len());
        self.rest = &self.rest[start..];
    }

    /// Takes this many bytes if more follow; otherwise takes nothing, and drops the rest.
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let all = std::mem::take(&mut self.rest);
        (length < all.len()).then(|| {
            self.rest = &all[length..];
            &all[..length]
        })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (&'a [u8], AttributeValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.attribute()
    }
}
