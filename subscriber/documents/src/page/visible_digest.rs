//! The digest of what a reader of a page sees: its text with white space folded, and the targets of
//! its links and images.
//!
//! Many servers change parts of each response that a reader does not see: a form token, a time in a
//! comment, the version of a script. The digest ignores them, and text that the user names.

use super::ignored_text::IgnoredTexts;
use super::tag::is_space;

/// Bytes that are searched for ignored text together.
const SEGMENT_BYTES: usize = 64 * 1024;

/// The digest of a page while it is read. It does not depend on how the page is split.
#[derive(Debug, Default)]
pub(super) struct VisibleDigest {
    hasher: blake3::Hasher,
    /// White space has followed the last word.
    has_pending_space: bool,
    has_text: bool,
    ignored: IgnoredTexts,
    /// The end, if it may contain ignored text; `< SEGMENT_BYTES`.
    unhashed: Vec<u8>,
}

impl VisibleDigest {
    pub(super) fn new(ignored: IgnoredTexts) -> Self {
        Self { ignored, ..Self::default() }
    }

    /// Whether the page has any text.
    pub(super) fn has_text(&self) -> bool {
        self.has_text
    }

    /// Reads the next piece of the text.
    pub(super) fn text(&mut self, mut bytes: &[u8]) {
        while let Some(first) = bytes.first() {
            let is_blank = is_space(*first);
            let end = bytes.iter().position(|byte| is_space(*byte) != is_blank);
            let (run, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if is_blank {
                self.has_pending_space = true;
            } else {
                self.has_text = true;
                if std::mem::take(&mut self.has_pending_space) {
                    self.update(b" ");
                }
                self.update(run);
            }
            bytes = rest;
        }
    }

    /// Adds the target of a link or image, as written.
    pub(super) fn target(&mut self, target: &str) {
        // No URL contains a zero byte.
        self.update(b"\0");
        self.update(target.trim().as_bytes());
        self.update(b"\0");
    }

    fn update(&mut self, mut bytes: &[u8]) {
        if self.ignored.is_empty() {
            self.hasher.update(bytes);
            return;
        }
        while !bytes.is_empty() {
            let room = SEGMENT_BYTES - self.unhashed.len();
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            self.unhashed.extend_from_slice(fits);
            if self.unhashed.len() == SEGMENT_BYTES {
                self.hash_segment();
            }
            bytes = rest;
        }
    }

    fn hash_segment(&mut self) {
        let mut text = std::mem::take(&mut self.unhashed);
        for ignored in &*self.ignored {
            text = ignored.remove_from(&text);
        }
        self.hasher.update(&text);
    }

    pub(super) fn finish(mut self, title: Option<&str>) -> blake3::Hash {
        self.target(title.unwrap_or_default());
        self.hash_segment();
        self.hasher.finalize()
    }
}
