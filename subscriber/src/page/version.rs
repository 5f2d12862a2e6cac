//! A digest of what a reader of a page sees: its text, with white space folded, and where its links and pictures lead.
//!
//! Many servers write something new into each answer: a token of a form, a time in a comment, the number of a script. The
//! digest is the same for all of these.

use super::tag::is_space;

/// The digest of a page that is being read. Any split of the page gives the same digest.
#[derive(Debug, Default)]
pub(super) struct Seen {
    hasher: blake3::Hasher,
    /// White space has come since the last word.
    blank: bool,
}

impl Seen {
    /// Takes the next piece of the text.
    pub(super) fn text(&mut self, mut bytes: &[u8]) {
        while let Some(first) = bytes.first() {
            let is_blank = is_space(*first);
            let end = bytes.iter().position(|byte| is_space(*byte) != is_blank);
            let (run, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if is_blank {
                self.blank = true;
            } else {
                if std::mem::take(&mut self.blank) {
                    self.hasher.update(b" ");
                }
                self.hasher.update(run);
            }
            bytes = rest;
        }
    }

    /// Takes where a link or a picture leads, as it is written.
    pub(super) fn target(&mut self, target: &str) {
        // No URL contains a zero byte.
        self.hasher.update(b"\0").update(target.trim().as_bytes()).update(b"\0");
    }

    pub(super) fn finish(mut self, title: Option<&str>) -> blake3::Hash {
        self.target(title.unwrap_or_default());
        self.hasher.finalize()
    }
}
