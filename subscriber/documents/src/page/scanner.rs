//! Splits a page into tokens, in any pieces, like the tokenizer of the HTML standard, as far as
//! links and the title depend on it.
//!
//! `memchr` skips most bytes. Only a tag at the end of a piece is buffered; of a tag that is too
//! long, only the name counts. It builds no tree. Where the standard needs a tree to decide how
//! text is read, `foreign` contains the necessary part. The result differs from that of a browser
//! only for input that is not written on purpose, such as a `<title>` in a `<frameset>`.

use memchr::memchr;

use super::content_builder::ContentBuilder;
use super::foreign::ForeignContent;
use super::raw_text::RawText;
use super::tag::{HtmlTag, TagName, TagPosition, is_space, tag_name};
use crate::page::TAG_BYTES_MAX;

/// Reads the text of a page as UTF-8, which may be invalid.
#[derive(Debug)]
pub(super) struct PageScanner {
    state: ScanState,
    /// The beginning of an incomplete token, from its `<`; `<= TAG_BYTES_MAX + 1`.
    partial_tag: Vec<u8>,
    foreign: ForeignContent,
}

#[derive(Debug)]
enum ScanState {
    Text,
    /// After a `<`, before it is known what it opens.
    Opening,
    Tag(TagPosition),
    Comment(Comment),
    /// A bogus comment, a doctype or a processing instruction: up to `>`.
    Bogus,
    /// With the number of `]` before the position, at most two.
    CData(u8),
    RawText(RawText),
    /// After the name of an end tag of a raw text: the rest is ignored up to `>`.
    RawTextEnd(TagPosition),
    /// `<plaintext>` has no end.
    PlainText,
}

/// What a `<` opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// It is text.
    Text,
    Tag,
    Comment,
    Bogus,
    CData,
    /// `</>`
    Nothing,
}

/// The position in a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comment {
    /// After `<!--`
    Start,
    /// After `<!---`
    StartDash,
    Text,
    Dash,
    Dashes,
    /// After `--!`
    Bang,
}

impl PageScanner {
    pub(super) fn new() -> Self {
        Self { state: ScanState::Text, partial_tag: Vec::new(), foreign: ForeignContent::default() }
    }

    /// Reads the next piece, and passes on what it contains.
    pub(super) fn feed(&mut self, mut bytes: &[u8], found: &mut ContentBuilder) {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                ScanState::Text => self.text(bytes, found),
                ScanState::Opening => self.opening(bytes, found),
                ScanState::Tag(place) => {
                    let (end, last) = (place.end(bytes), *place);
                    self.continue_tag(bytes, end, last, found)
                }
                ScanState::RawText(raw) => {
                    let (end, is_title) = (raw.end(bytes), raw.name() == TITLE);
                    self.raw_text(bytes, end, is_title, found)
                }
                ScanState::RawTextEnd(place) => match place.end(bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                ScanState::Comment(comment) => match comment.end(bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                ScanState::Bogus => match memchr(b'>', bytes) {
                    Some(end) => self.end_state(end + 1),
                    None => bytes.len(),
                },
                ScanState::CData(brackets) => match cdata_end(brackets, bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                ScanState::PlainText => {
                    found.text(bytes);
                    bytes.len()
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Returns to text after this many bytes.
    fn end_state(&mut self, taken: usize) -> usize {
        self.state = ScanState::Text;
        taken
    }

    fn text(&mut self, bytes: &[u8], found: &mut ContentBuilder) -> usize {
        let Some(at) = memchr(b'<', bytes) else {
            found.text(bytes);
            return bytes.len();
        };
        found.text(&bytes[..at]);
        let token = &bytes[at..];
        let Some((opening, length)) = Opening::of(&token[1..], self.foreign.is_inside()) else {
            self.partial_tag.extend_from_slice(token);
            self.state = ScanState::Opening;
            return bytes.len();
        };
        if opening != Opening::Tag {
            self.open(opening);
            return at + 1 + length;
        }
        let mut place = TagPosition::Name;
        let Some(end) = place.end(&token[1 + length..]) else {
            self.buffer_tag(token);
            self.state = ScanState::Tag(place);
            return bytes.len();
        };
        let end = 1 + length + end;
        self.tag(&token[..end], place, found);
        at + end
    }

    fn open(&mut self, opening: Opening) {
        self.state = match opening {
            Opening::Text | Opening::Nothing => ScanState::Text,
            Opening::Tag => ScanState::Tag(TagPosition::Name),
            Opening::Comment => ScanState::Comment(Comment::Start),
            Opening::Bogus => ScanState::Bogus,
            Opening::CData => ScanState::CData(0),
        };
    }

    /// Reads byte by byte until the opening is known; these are few.
    fn opening(&mut self, bytes: &[u8], found: &mut ContentBuilder) -> usize {
        for (taken, byte) in (1..).zip(bytes) {
            self.partial_tag.push(*byte);
            let Some((opening, length)) =
                Opening::of(&self.partial_tag[1..], self.foreign.is_inside())
            else {
                continue;
            };
            self.open(opening);
            if opening != Opening::Tag {
                // The remaining bytes are read again. They are fewer than before, so this ends.
                let cut = std::mem::take(&mut self.partial_tag);
                self.feed(&cut[1 + length..], found);
            }
            return taken;
        }
        bytes.len()
    }

    /// Buffers the beginning of a tag. One byte over the limit marks a longer tag.
    fn buffer_tag(&mut self, bytes: &[u8]) {
        let room = TAG_BYTES_MAX + 1 - self.partial_tag.len();
        self.partial_tag.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    fn continue_tag(
        &mut self,
        bytes: &[u8],
        end: Option<usize>,
        last: TagPosition,
        found: &mut ContentBuilder,
    ) -> usize {
        let taken = end.unwrap_or(bytes.len());
        self.buffer_tag(&bytes[..taken]);
        if end.is_some() {
            let mut tag = std::mem::take(&mut self.partial_tag);
            self.state = ScanState::Text;
            self.tag(&tag, last, found);
            tag.clear();
            self.partial_tag = tag;
        }
        taken
    }

    /// Handles a tag from `<` to `>`, truncated if it is over the limit.
    fn tag(&mut self, bytes: &[u8], last: TagPosition, found: &mut ContentBuilder) {
        found.any_tag(bytes, last);
        if self.foreign.is_empty() && !may_be_relevant(&bytes[1..]) {
            return;
        }
        if let [b'<', b'/', bytes @ ..] = bytes {
            if !self.foreign.is_empty() {
                self.foreign.end(HtmlTag::new(bytes, last).name);
            }
            return;
        }
        let mut tag = HtmlTag::new(&bytes[1..bytes.len().min(TAG_BYTES_MAX)], last);
        if bytes.len() > TAG_BYTES_MAX {
            found.tag_is_too_long(tag.name);
            tag = tag.without_attributes();
        }
        if self.foreign.start(&tag) {
            found.foreign_tag(&tag);
            return;
        }
        if let Some((_, element)) = RAW_TEXTS.iter().find(|(raw, _)| *raw == tag.name) {
            self.state = ScanState::RawText(RawText::new(element));
        } else if tag.name == PLAINTEXT {
            self.state = ScanState::PlainText;
        }
        found.start_tag(&tag);
    }

    fn raw_text(
        &mut self,
        bytes: &[u8],
        end: Option<usize>,
        is_title: bool,
        found: &mut ContentBuilder,
    ) -> usize {
        let text = &bytes[..end.unwrap_or(bytes.len())];
        if is_title {
            found.title_text(text);
        } else {
            found.raw_text(text.len());
        }
        if end.is_none() {
            return text.len();
        }
        if is_title {
            found.end_title("</title>".len());
        }
        // The byte after the name is read again, as part of the tag.
        self.state = ScanState::RawTextEnd(TagPosition::Name);
        text.len() - 1
    }
}

/// Elements that contain raw text. `<noframes>` is not one of them for a reader that supports no
/// frames, nor `<noscript>` for one without scripts.
const RAW_TEXTS: [(TagName, &str); 7] = [
    (tag_name(b"script"), "script"),
    (tag_name(b"style"), "style"),
    (tag_name(b"title"), TITLE),
    (tag_name(b"textarea"), "textarea"),
    (tag_name(b"iframe"), "iframe"),
    (tag_name(b"noembed"), "noembed"),
    (tag_name(b"xmp"), "xmp"),
];
const TITLE: &str = "title";
const PLAINTEXT: TagName = tag_name(b"plaintext");

/// The start tags that matter outside of foreign content.
const RELEVANT_TAGS: &str = "a area base body frame iframe image img link math meta noembed plaintext script source \
    style svg textarea title xmp";

/// For each first letter, the lengths of the names in `RELEVANT_TAGS` as bits.
const RELEVANT_LENGTHS: [u16; 26] = {
    let mut lengths = [0; 26];
    let mut rest = RELEVANT_TAGS.as_bytes();
    while let [letter, ..] = rest {
        let mut length = 1;
        while length < rest.len() && rest[length] != b' ' {
            length += 1;
        }
        lengths[(*letter - b'a') as usize] |= 1 << length;
        let (_, after) = rest.split_at(length);
        rest = if let [_, after @ ..] = after { after } else { after };
    }
    lengths
};

/// Whether a tag may be one of `RELEVANT_TAGS`. The first letter and the length exclude most
/// tags.
fn may_be_relevant(tag: &[u8]) -> bool {
    let letter = tag.first().map_or(0, |first| first.to_ascii_lowercase().wrapping_sub(b'a'));
    let lengths = RELEVANT_LENGTHS.get(usize::from(letter)).copied().unwrap_or_default();
    // Longer than any of these names.
    let ends = |byte: &u8| is_space(*byte) || matches!(byte, b'/' | b'>');
    lengths != 0
        && tag.iter().take(16).position(ends).is_some_and(|length| lengths >> length & 1 == 1)
}

impl Opening {
    /// What the bytes after a `<` open, and how many belong to it; `None` if there are too few.
    fn of(bytes: &[u8], is_foreign: bool) -> Option<(Self, usize)> {
        const CDATA: &[u8] = b"![CDATA[";
        Some(match bytes {
            [] | [b'/' | b'!'] | [b'!', b'-'] => return None,
            [b'a'..=b'z' | b'A'..=b'Z', ..] => (Self::Tag, 0),
            [b'/', b'a'..=b'z' | b'A'..=b'Z', ..] => (Self::Tag, 1),
            [b'/', b'>', ..] => (Self::Nothing, 2),
            [b'!', b'-', b'-', ..] => (Self::Comment, 3),
            [b'!', b'[', ..] if is_foreign => match bytes.get(..CDATA.len()) {
                Some(CDATA) => (Self::CData, CDATA.len()),
                None if CDATA.starts_with(bytes) => return None,
                _ => (Self::Bogus, 1),
            },
            [b'!' | b'?' | b'/', ..] => (Self::Bogus, 1),
            _ => (Self::Text, 0),
        })
    }
}

impl Comment {
    /// Searches for the end of the comment: the number of bytes including it.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if *self == Self::Text {
                at += memchr(b'-', bytes.get(at..)?)?;
            }
            let byte = *bytes.get(at)?;
            at += 1;
            *self = match (*self, byte) {
                (Self::Start | Self::StartDash | Self::Dashes | Self::Bang, b'>') => {
                    return Some(at);
                }
                (Self::Start, b'-') => Self::StartDash,
                (Self::StartDash | Self::Dash | Self::Dashes, b'-') => Self::Dashes,
                (Self::Text | Self::Bang, b'-') => Self::Dash,
                (Self::Dashes, b'!') => Self::Bang,
                _ => Self::Text,
            };
        }
    }
}

/// Searches for `]]>`.
fn cdata_end(brackets: &mut u8, bytes: &[u8]) -> Option<usize> {
    for (taken, byte) in (1..).zip(bytes) {
        match byte {
            b']' => *brackets = (*brackets + 1).min(2),
            b'>' if *brackets == 2 => return Some(taken),
            _ => *brackets = 0,
        }
    }
    None
}
