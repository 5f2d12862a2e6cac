//! The digest of what a reader of a page sees: its text with white space folded, and the targets of
//! its links and images.
//!
//! Many servers change parts of each response that a reader does not see: a form token, a time in a
//! comment, the version of a script. The digest ignores them, and text that the user names.

use super::ignored_text::IgnoredTexts;
use super::tag::is_space;

/// Bytes that are searched for ignored text together.
const SEGMENT_BYTES: usize = 64 * 1024;
/// Bytes that are hashed together if there is none: BLAKE3 is fast only with many bytes at once.
const BATCH_BYTES: usize = 16 * 1024;

/// The digest of a page while it is read. It does not depend on how the page is split.
#[derive(Debug, Default)]
pub(super) struct VisibleDigest {
    hasher: blake3::Hasher,
    /// White space has followed the last word.
    has_pending_space: bool,
    has_text: bool,
    ignored: IgnoredTexts,
    /// The end; shorter than a segment or batch.
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
            let end = if is_space(*first) {
                self.has_pending_space = true;
                bytes.iter().position(|byte| !is_space(*byte))
            } else {
                self.has_text = true;
                if std::mem::take(&mut self.has_pending_space) {
                    self.update(b" ");
                }
                // Words with single blanks between them are taken as they are.
                let is_single = |at: usize| bytes.get(at + 1).is_some_and(|next| !is_space(*next));
                let is_end = |at: &usize| {
                    let byte = bytes[*at];
                    is_space(byte) && !(byte == b' ' && is_single(*at))
                };
                let end = (0..bytes.len()).find(is_end);
                self.update(&bytes[..end.unwrap_or(bytes.len())]);
                end
            };
            bytes = &bytes[end.unwrap_or(bytes.len())..];
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
        let bytes_max = if self.ignored.is_empty() { BATCH_BYTES } else { SEGMENT_BYTES };
        while !bytes.is_empty() {
            let room = bytes_max - self.unhashed.len();
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            self.unhashed.extend_from_slice(fits);
            if self.unhashed.len() == bytes_max {
                self.hash_segment();
            }
            bytes = rest;
        }
    }

    fn hash_segment(&mut self) {
        for ignored in &*self.ignored {
            self.unhashed = ignored.remove_from(&self.unhashed);
        }
        self.hasher.update(&self.unhashed);
        self.unhashed.clear();
    }

    pub(super) fn finish(mut self, title: Option<&str>) -> blake3::Hash {
        self.target(title.unwrap_or_default());
        self.hash_segment();
        self.hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> blake3::Hash {
        let mut digest = VisibleDigest::default();
        pieces.into_iter().for_each(|piece| digest.text(piece));
        digest.finish(None)
    }

    proptest! {
        #[test]
        fn white_space_is_folded_however_the_text_is_split(
            text in "[ab \n\t]{0,40}",
            size in 1..9_usize,
        ) {
            let words: Vec<_> = text.split_ascii_whitespace().collect();
            let begin = if text.starts_with([' ', '\n', '\t']) && !words.is_empty() { " " } else { "" };
            let folded = format!("{begin}{}", words.join(" "));
            let whole = *blake3::Hasher::new().update(folded.as_bytes()).update(b"\0\0").finalize().as_bytes();
            prop_assert_eq!(digest([text.as_bytes()]), whole);
            prop_assert_eq!(digest(text.as_bytes().chunks(size)), whole);
        }
    }
}
