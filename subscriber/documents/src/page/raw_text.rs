//! Finds the end of text without markup: RCDATA, raw text and script data of the HTML standard
//! (sections 13.2.5.2 to 13.2.5.4, and their states).

use memchr::{memchr, memchr2};

use super::tag::is_space;

/// Searches for the end tag of such a text, in any split.
#[derive(Debug)]
pub(super) struct RawText {
    /// The name of the element, in lower case.
    name: &'static str,
    step: Step,
    escape: Escape,
}

/// How much of a possible tag or comment was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Text,
    /// `<`
    Less,
    /// `<!` in a script
    Bang,
    /// `<!-` in a script
    BangDash,
    /// `-` in an escaped script
    Dash,
    /// `--` and more in an escaped script
    Dashes,
    /// `</` and this many bytes of the name
    Closing(usize),
    /// `<` and this many bytes of the name, in an escaped script
    Opening(usize),
}

/// Whether a script is inside of a comment, and a nested script inside of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    /// After `<!--`
    Once,
    /// After `<!--` and `<script`
    Twice,
}

impl RawText {
    /// For the text of an element with this name in lower case.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, step: Step::Text, escape: Escape::No }
    }

    /// The name of the element.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Searches for the end tag. Returns the number of bytes up to its name and one more, which is
    /// white space, `/` or `>`.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if self.step == Step::Text {
                let rest = bytes.get(at..)?;
                at += match self.escape {
                    Escape::No => memchr(b'<', rest),
                    _ => memchr2(b'<', b'-', rest),
                }?;
            }
            let ended = self.take(*bytes.get(at)?);
            at += 1;
            if ended {
                return Some(at);
            }
        }
    }

    /// Handles a byte; returns whether it is the one after the end tag's name.
    fn take(&mut self, byte: u8) -> bool {
        let is_script = self.name == "script";
        let ends_name = is_space(byte) || matches!(byte, b'/' | b'>');
        let is_named = |so_far| ends_name && so_far == self.name.len();
        self.step = match (self.step, byte) {
            (Step::Less, b'/') => Step::Closing(0),
            (Step::Less, b'!') if is_script && self.escape == Escape::No => Step::Bang,
            (Step::Bang, b'-') => Step::BangDash,
            (Step::BangDash, b'-') => {
                self.escape = Escape::Once;
                Step::Dashes
            }
            (Step::Dash | Step::Dashes, b'-') => Step::Dashes,
            (Step::Dashes, b'>') => {
                self.escape = Escape::No;
                Step::Text
            }
            (Step::Less, _) if self.escape == Escape::Once && self.goes_on(0, byte) => {
                Step::Opening(1)
            }
            (Step::Opening(so_far), _) if self.goes_on(so_far, byte) => Step::Opening(so_far + 1),
            (Step::Closing(so_far), _) if self.goes_on(so_far, byte) => Step::Closing(so_far + 1),
            (Step::Opening(so_far), _) if is_named(so_far) => {
                self.escape = Escape::Twice;
                Step::Text
            }
            (Step::Closing(so_far), _) if is_named(so_far) => {
                if self.escape != Escape::Twice {
                    return true;
                }
                self.escape = Escape::Once;
                Step::Text
            }
            (_, b'<') => Step::Less,
            (_, b'-') if self.escape != Escape::No => Step::Dash,
            _ => Step::Text,
        };
        false
    }

    fn goes_on(&self, so_far: usize, byte: u8) -> bool {
        self.name.as_bytes().get(so_far) == Some(&byte.to_ascii_lowercase())
    }
}
