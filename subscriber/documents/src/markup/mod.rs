//! Reads XML and similar markup leniently, in chunks of any size.
//!
//! Templates write most feeds and sitemaps, and many are not well-formed: a bare `&`, an HTML
//! entity, an element that is never closed, white space before the declaration. None of these stops
//! the reader. It expands only character references, so text does not grow, and it buffers at most
//! one tag.

mod decode;
mod text;
mod unpack;

use std::borrow::Cow;

use quick_xml::events::attributes::Attributes;
use quick_xml::parser::{ElementParser, Parser};

pub(crate) use self::decode::TextDecoder;
pub(crate) use self::text::{ReferenceResolver, plain_text};
pub(crate) use self::unpack::Unpacker;

/// A body that grows more than this many times while it is decoded is a decompression bomb ..
pub(crate) const DECODED_RATIO_MAX: u64 = 250;
/// .. but only from this size on: small pages of one repeated byte are harmless.
pub(crate) const DECODED_RATIO_FROM_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes taken from a decoder at a time.
pub(crate) const DECODED_CHUNK_BYTES: usize = 16 * 1024;
/// Decoded bytes of a document that are parsed before other tasks run: less than a few milliseconds
/// for any content.
pub(crate) const DOCUMENT_STEP_BYTES: usize = 4 * 1024;
/// An XML tag, attributes included. A longer one is invalid and ends the parsing.
const MARKUP_TAG_BYTES_MAX: usize = 64 * 1024;

/// The longest named character reference, including `&` and `;`; numeric ones are shorter.
const REFERENCE_BYTES_MAX: usize = 40;

/// Reads markup.
#[derive(Debug)]
pub(crate) struct MarkupReader {
    decoder: TextDecoder,
    /// Text that is not read yet: less than a tag.
    pending: String,
    state: MarkupState,
    /// How many bytes of an incomplete tag in `pending` were searched for its end ..
    scanned_bytes: usize,
    /// .. and the state of that search.
    tag_parser: ElementParser,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkupState {
    Content,
    /// Until `]]>`.
    Cdata,
    /// Until `-->`.
    Comment,
    /// `<?..>`
    Instruction,
    /// `<!..>` outside of brackets.
    Declaration,
    /// Inside the brackets of a `<!DOCTYPE>`.
    Subset,
    /// Nothing more is read.
    Ended,
}

/// A token of markup. An empty element gives two tokens.
#[derive(Debug)]
pub(crate) enum MarkupToken<'a> {
    Open(MarkupTag<'a>),
    /// The end tag with this name.
    Close(&'a str),
    /// A part of a text, with its references resolved.
    Text(Cow<'a, str>),
}

/// A start tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkupTag<'a> {
    /// As written.
    pub(crate) name: &'a str,
    content: &'a str,
}

impl<'a> MarkupTag<'a> {
    /// The text between `<` and `>`, or `/>`.
    fn new(content: &'a str) -> Self {
        let end = content.find(|c: char| c.is_ascii_whitespace() || c == '/');
        Self { name: &content[..end.unwrap_or(content.len())], content }
    }

    /// The attributes: names as written, values with their references resolved. Invalid ones are
    /// left out.
    pub(crate) fn attributes(self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
        let mut attributes = Attributes::html(self.content, self.name.len());
        attributes.with_checks(false);
        attributes.flatten().map(|attribute| {
            let value = match attribute.value {
                Cow::Borrowed(value) => htmlize::unescape_attribute(value),
                Cow::Owned(value) => Cow::Owned(htmlize::unescape_attribute(&value).into_owned()),
            };
            (attribute.key.0, value)
        })
    }

    /// The value of the first attribute with this name, in any case.
    pub(crate) fn attribute(self, name: &str) -> Option<Cow<'a, str>> {
        self.attributes().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A name without its prefix.
pub(crate) fn local_name(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// The prefix of a name; empty if there is none.
pub(crate) fn name_prefix(name: &str) -> &str {
    name.rsplit_once(':').map_or("", |(prefix, _)| prefix)
}

impl MarkupReader {
    /// For a document with this `Content-Type` header.
    pub(crate) fn new(content_type: Option<&str>) -> Self {
        Self {
            decoder: TextDecoder::new(content_type),
            pending: String::new(),
            state: MarkupState::Content,
            scanned_bytes: 0,
            tag_parser: ElementParser::Outside,
        }
    }

    /// Reads the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(MarkupToken<'_>)) {
        for chunk in bytes.chunks(DECODED_CHUNK_BYTES) {
            if self.is_cut() {
                return;
            }
            self.decoder.decode(chunk, false, &mut self.pending);
            self.read(false, each);
        }
    }

    /// Ends the document.
    pub(crate) fn finish(&mut self, each: &mut dyn FnMut(MarkupToken<'_>)) {
        if !self.is_cut() {
            self.decoder.decode(&[], true, &mut self.pending);
            self.read(true, each);
        }
    }

    /// Whether a tag was too long, and nothing after it was read.
    pub(crate) fn is_cut(&self) -> bool {
        self.state == MarkupState::Ended
    }

    fn read(&mut self, last: bool, each: &mut dyn FnMut(MarkupToken<'_>)) {
        let mut pending = std::mem::take(&mut self.pending);
        let mut done = 0;
        loop {
            let used = self.step(&pending[done..], last, each);
            if used == 0 {
                break;
            }
            done += used;
        }
        if self.is_cut() {
            return;
        }
        pending.drain(..done);
        self.pending = pending;
    }

    /// Reads one token and returns its length in bytes; 0 if it is incomplete.
    fn step(&mut self, text: &str, last: bool, each: &mut dyn FnMut(MarkupToken<'_>)) -> usize {
        match self.state {
            MarkupState::Content => match memchr::memchr(b'<', text.as_bytes()) {
                Some(0) => self.markup(text, last, each),
                Some(at) => emit(&text[..at], each),
                None if last => emit(text, each),
                None => emit(&text[..text.len() - partial_reference_bytes(text)], each),
            },
            MarkupState::Cdata => self.until("]]>", text, last, Some(each)),
            MarkupState::Comment => self.until("-->", text, last, None),
            MarkupState::Instruction => self.until(">", text, last, None),
            MarkupState::Declaration => match memchr::memchr2(b'>', b'[', text.as_bytes()) {
                Some(at) => {
                    let bracket = text.as_bytes()[at] == b'[';
                    self.state = if bracket { MarkupState::Subset } else { MarkupState::Content };
                    at + 1
                }
                None => text.len(),
            },
            MarkupState::Subset => match memchr::memchr(b']', text.as_bytes()) {
                Some(at) => {
                    self.state = MarkupState::Declaration;
                    at + 1
                }
                None => text.len(),
            },
            MarkupState::Ended => 0,
        }
    }

    /// Reads a token that begins with `<`.
    fn markup(&mut self, text: &str, last: bool, each: &mut dyn FnMut(MarkupToken<'_>)) -> usize {
        const COMMENT: &str = "<!--";
        const CHARACTERS: &str = "<![CDATA[";
        let mut next = text[1..].chars();
        match next.next() {
            None if !last => 0,
            Some('!') => {
                for (begin, state) in
                    [(COMMENT, MarkupState::Comment), (CHARACTERS, MarkupState::Cdata)]
                {
                    if text.starts_with(begin) {
                        self.state = state;
                        return begin.len();
                    } else if begin.starts_with(text) && !last {
                        return 0;
                    }
                }
                self.state = MarkupState::Declaration;
                2
            }
            Some('?') => {
                self.state = MarkupState::Instruction;
                2
            }
            Some('/') => self.tag(text, last, each),
            Some(begin) if begin.is_alphabetic() || begin == '_' || begin == ':' => {
                self.tag(text, last, each)
            }
            // Text such as "a < b".
            _ => {
                each(MarkupToken::Text(Cow::Borrowed("<")));
                1
            }
        }
    }

    fn tag(&mut self, text: &str, last: bool, each: &mut dyn FnMut(MarkupToken<'_>)) -> usize {
        let within = text.floor_char_boundary(MARKUP_TAG_BYTES_MAX);
        let Some(end) = self.tag_parser.feed(&text.as_bytes()[self.scanned_bytes..within]) else {
            self.scanned_bytes = within;
            if within < text.len() {
                self.state = MarkupState::Ended;
            }
            return if last { text.len() } else { 0 };
        };
        let end = std::mem::take(&mut self.scanned_bytes) + end;
        self.tag_parser = ElementParser::Outside;
        let content = &text[1..end];
        if let Some(name) = content.strip_prefix('/') {
            each(MarkupToken::Close(name.trim_ascii()));
        } else {
            let (content, is_empty) = match content.strip_suffix('/') {
                Some(content) => (content, true),
                None => (content, false),
            };
            let tag = MarkupTag::new(content);
            each(MarkupToken::Open(tag));
            if is_empty {
                each(MarkupToken::Close(tag.name));
            }
        }
        end + 1
    }

    fn until(
        &mut self,
        end: &str,
        text: &str,
        last: bool,
        each: Option<&mut dyn FnMut(MarkupToken<'_>)>,
    ) -> usize {
        let (inside, used) = match memchr::memmem::find(text.as_bytes(), end.as_bytes()) {
            Some(at) => {
                self.state = MarkupState::Content;
                (&text[..at], at + end.len())
            }
            None if last => (text, text.len()),
            None => {
                let kept = text.floor_char_boundary(text.len().saturating_sub(end.len() - 1));
                (&text[..kept], kept)
            }
        };
        if let Some(each) = each
            && !inside.is_empty()
        {
            each(MarkupToken::Text(Cow::Borrowed(inside)));
        }
        used
    }
}

/// Emits a text and returns its length.
fn emit(text: &str, each: &mut dyn FnMut(MarkupToken<'_>)) -> usize {
    if !text.is_empty() {
        // As in attributes, so that `?a=1&copy=2` is not changed.
        each(MarkupToken::Text(htmlize::unescape_attribute(text)));
    }
    text.len()
}

/// The length of an incomplete reference at the end.
fn partial_reference_bytes(text: &str) -> usize {
    let from = text.floor_char_boundary(text.len().saturating_sub(REFERENCE_BYTES_MAX));
    let tail = &text[from..];
    match tail.rfind('&') {
        Some(at) if !tail[at..].contains(';') => tail.len() - at,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
