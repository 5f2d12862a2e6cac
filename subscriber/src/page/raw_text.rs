//! Text that holds no markup, up to the end tag of its element: RCDATA, raw text and script data of
//! the HTML standard (sections 13.2.5.2 to 13.2.5.4, and their states).

use memchr::{memchr, memchr2};

use super::tag::is_space;

/// Looks for the end of such a text, in any pieces.
#[derive(Debug)]
pub(super) struct RawText {
    /// Of the element, in lower case.
    name: &'static str,
    step: Step,
    escape: Escape,
}

/// How much of what could mean something has been seen.
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
    /// `</` and so many bytes of the name
    Closing(usize),
    /// `<` and so many bytes of the name, in an escaped script
    Opening(usize),
}

/// Scripts may hide in a comment, and scripts in that from their own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    /// After `<!--`
    Once,
    /// After `<!--` and `<script`
    Twice,
}

impl RawText {
    /// The text in an element of this name in lower case.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, step: Step::Text, escape: Escape::No }
    }

    /// The name of the element.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Looks for the end tag: the bytes up to its name and with the one byte behind, which is white
    /// space, `/` or `>`.
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

    /// Whether the end tag's name ends before this byte.
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
