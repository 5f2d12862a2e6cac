//! The digest of what a reader of a page sees: its text with white space folded, and the targets of
//! its links and images.
//!
//! Many servers change parts of each response that a reader does not see: a form token, a time in a
//! comment, the version of a script. The digest ignores them.

use super::tag::is_space;

/// The digest of a page while it is read. It does not depend on how the page is split.
#[derive(Debug, Default)]
pub(super) struct VisibleDigest {
    hasher: blake3::Hasher,
    /// White space has followed the last word.
    has_pending_space: bool,
}

impl VisibleDigest {
    /// Reads the next piece of the text.
    pub(super) fn text(&mut self, mut bytes: &[u8]) {
        while let Some(first) = bytes.first() {
            let is_blank = is_space(*first);
            let end = bytes.iter().position(|byte| is_space(*byte) != is_blank);
            let (run, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if is_blank {
                self.has_pending_space = true;
            } else {
                if std::mem::take(&mut self.has_pending_space) {
                    self.hasher.update(b" ");
                }
                self.hasher.update(run);
            }
            bytes = rest;
        }
    }

    /// Adds the target of a link or image, as written.
    pub(super) fn target(&mut self, target: &str) {
        // No URL contains a zero byte.
        self.hasher.update(b"\0").update(target.trim().as_bytes()).update(b"\0");
    }

    pub(super) fn finish(mut self, title: Option<&str>) -> blake3::Hash {
        self.target(title.unwrap_or_default());
        self.hasher.finalize()
    }
}
