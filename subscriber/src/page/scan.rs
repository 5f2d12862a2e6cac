//! Splits a page into tokens, in any pieces, like the tokenizer of the HTML standard, as far as
//! links and the title depend on it.
//!
//! `memchr` skips most bytes. Only a tag at the end of a piece is buffered; of a tag that is too
//! long, only the name counts. It builds no tree. Where the standard needs a tree to decide how
//! text is read, `foreign` contains the necessary part. The result differs from that of a browser
//! only for input that is not written on purpose, such as a `<title>` in a `<frameset>`.

use memchr::memchr;

use super::foreign::Foreign;
use super::found::Found;
use super::raw_text::RawText;
use super::tag::{Name, Place, Tag, is_space, name};
use crate::config::TAG_BYTES_MAX;

/// Reads the text of a page as UTF-8, which may be invalid.
#[derive(Debug)]
pub(super) struct Scanner {
    state: State,
    /// The beginning of an incomplete token, from its `<`; `<= TAG_BYTES_MAX + 1`.
    cut: Vec<u8>,
    foreign: Foreign,
}

#[derive(Debug)]
enum State {
    Text,
    /// After a `<`, before it is known what it opens.
    Opening,
    Tag(Place),
    Comment(Comment),
    /// A bogus comment, a doctype or a processing instruction: up to `>`.
    Bogus,
    /// With the number of `]` before the position, at most two.
    CData(u8),
    RawText(RawText),
    /// After the name of an end tag of a raw text: the rest is ignored up to `>`.
    RawTextEnd(Place),
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

impl Scanner {
    pub(super) fn new() -> Self {
        Self { state: State::Text, cut: Vec::new(), foreign: Foreign::default() }
    }

    /// Reads the next piece, and passes on what it contains.
    pub(super) fn feed(&mut self, mut bytes: &[u8], found: &mut Found) {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Text => self.text(bytes, found),
                State::Opening => self.opening(bytes, found),
                State::Tag(place) => {
                    let (end, last) = (place.end(bytes), *place);
                    self.cut_tag(bytes, end, last, found)
                }
                State::RawText(raw) => {
                    let (end, is_title) = (raw.end(bytes), raw.name() == TITLE);
                    self.raw_text(bytes, end, is_title, found)
                }
                State::RawTextEnd(place) => match place.end(bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                State::Comment(comment) => match comment.end(bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                State::Bogus => match memchr(b'>', bytes) {
                    Some(end) => self.end_state(end + 1),
                    None => bytes.len(),
                },
                State::CData(brackets) => match cdata_end(brackets, bytes) {
                    Some(end) => self.end_state(end),
                    None => bytes.len(),
                },
                State::PlainText => {
                    found.text(bytes);
                    bytes.len()
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Returns to text after this many bytes.
    fn end_state(&mut self, taken: usize) -> usize {
        self.state = State::Text;
        taken
    }

    fn text(&mut self, bytes: &[u8], found: &mut Found) -> usize {
        let Some(at) = memchr(b'<', bytes) else {
            found.text(bytes);
            return bytes.len();
        };
        found.text(&bytes[..at]);
        let token = &bytes[at..];
        let Some((opening, length)) = Opening::of(&token[1..], self.foreign.is_inside()) else {
            self.cut.extend_from_slice(token);
            self.state = State::Opening;
            return bytes.len();
        };
        if opening != Opening::Tag {
            self.open(opening);
            return at + 1 + length;
        }
        let mut place = Place::Name;
        let Some(end) = place.end(&token[1 + length..]) else {
            self.cut(token);
            self.state = State::Tag(place);
            return bytes.len();
        };
        let end = 1 + length + end;
        self.tag(&token[..end], place, found);
        at + end
    }

    fn open(&mut self, opening: Opening) {
        self.state = match opening {
            Opening::Text | Opening::Nothing => State::Text,
            Opening::Tag => State::Tag(Place::Name),
            Opening::Comment => State::Comment(Comment::Start),
            Opening::Bogus => State::Bogus,
            Opening::CData => State::CData(0),
        };
    }

    /// Reads byte by byte until the opening is known; these are few.
    fn opening(&mut self, bytes: &[u8], found: &mut Found) -> usize {
        for (taken, byte) in (1..).zip(bytes) {
            self.cut.push(*byte);
            let Some((opening, length)) = Opening::of(&self.cut[1..], self.foreign.is_inside())
            else {
                continue;
            };
            self.open(opening);
            if opening != Opening::Tag {
                // The remaining bytes are read again. They are fewer than before, so this ends.
                let cut = std::mem::take(&mut self.cut);
                self.feed(&cut[1 + length..], found);
            }
            return taken;
        }
        bytes.len()
    }

    /// Buffers the beginning of a tag. One byte over the limit marks a longer tag.
    fn cut(&mut self, bytes: &[u8]) {
        let room = TAG_BYTES_MAX + 1 - self.cut.len();
        self.cut.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    fn cut_tag(
        &mut self,
        bytes: &[u8],
        end: Option<usize>,
        last: Place,
        found: &mut Found,
    ) -> usize {
        let taken = end.unwrap_or(bytes.len());
        self.cut(&bytes[..taken]);
        if end.is_some() {
            let mut tag = std::mem::take(&mut self.cut);
            self.state = State::Text;
            self.tag(&tag, last, found);
            tag.clear();
            self.cut = tag;
        }
        taken
    }

    /// Handles a tag from `<` to `>`, truncated if it is over the limit.
    fn tag(&mut self, bytes: &[u8], last: Place, found: &mut Found) {
        found.end_word();
        if self.foreign.is_empty() && !may_matter(&bytes[1..]) {
            return;
        }
        if let [b'<', b'/', bytes @ ..] = bytes {
            if !self.foreign.is_empty() {
                self.foreign.end(Tag::new(bytes, last).name);
            }
            return;
        }
        let mut tag = Tag::new(&bytes[1..bytes.len().min(TAG_BYTES_MAX)], last);
        if bytes.len() > TAG_BYTES_MAX {
            found.tag_is_too_long(tag.name);
            tag = tag.without_attributes();
        }
        if self.foreign.start(&tag) {
            found.foreign_tag(&tag);
            return;
        }
        if let Some((_, element)) = RAW_TEXTS.iter().find(|(raw, _)| *raw == tag.name) {
            self.state = State::RawText(RawText::new(element));
        } else if tag.name == PLAINTEXT {
            self.state = State::PlainText;
        }
        found.tag(&tag);
    }

    fn raw_text(
        &mut self,
        bytes: &[u8],
        end: Option<usize>,
        is_title: bool,
        found: &mut Found,
    ) -> usize {
        let text = &bytes[..end.unwrap_or(bytes.len())];
        if is_title {
            found.title_text(text);
        }
        if end.is_none() {
            return text.len();
        }
        if is_title {
            found.end_title("</title>".len());
        }
        // The byte after the name is read again, as part of the tag.
        self.state = State::RawTextEnd(Place::Name);
        text.len() - 1
    }
}

/// Elements that contain raw text. `<noframes>` is not one of them for a reader that supports no
/// frames, nor `<noscript>` for one without scripts.
const RAW_TEXTS: [(Name, &str); 7] = [
    (name(b"script"), "script"),
    (name(b"style"), "style"),
    (name(b"title"), TITLE),
    (name(b"textarea"), "textarea"),
    (name(b"iframe"), "iframe"),
    (name(b"noembed"), "noembed"),
    (name(b"xmp"), "xmp"),
];
const TITLE: &str = "title";
const PLAINTEXT: Name = name(b"plaintext");

/// The start tags that matter outside of foreign content.
const MATTERING: [&str; 20] = [
    "a",
    "area",
    "base",
    "body",
    "frame",
    "iframe",
    "image",
    "img",
    "link",
    "math",
    "meta",
    "noembed",
    "plaintext",
    "script",
    "source",
    "style",
    "svg",
    "textarea",
    "title",
    "xmp",
];

/// For each first letter, the lengths of the names in [`MATTERING`] as bits.
const LENGTHS: [u16; 26] = {
    let mut lengths = [0; 26];
    let mut names = MATTERING.as_slice();
    while let [name, rest @ ..] = names {
        lengths[(name.as_bytes()[0] - b'a') as usize] |= 1 << name.len();
        names = rest;
    }
    lengths
};

/// Whether a tag may be one of [`MATTERING`]. The first letter and the length exclude most tags.
fn may_matter(tag: &[u8]) -> bool {
    let letter = tag.first().map_or(0, |first| first.to_ascii_lowercase().wrapping_sub(b'a'));
    let lengths = LENGTHS.get(usize::from(letter)).copied().unwrap_or_default();
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
