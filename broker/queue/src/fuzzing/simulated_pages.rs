//! Texts outside memory for tests and the fuzzer: a map instead of a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Group;
use crate::texts::{Paging, StoredText, TextError, TextReply, TextRequest};

/// Limits that page nearly everything out.
pub(crate) const TINY: Paging =
    Paging { chunk_bytes: 256, chunks_in_memory: 1, dead_bytes_min: 1024 };

/// More than the writes that are under way at once.
const HOLES_MAX: u32 = 8;

/// Chunks by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimulatedPages {
    chunks: BTreeMap<u32, Arc<Vec<u8>>>,
    /// Whether writes fail.
    pub(crate) is_full: bool,
    /// The number of texts that were read.
    pub(crate) texts_read: usize,
}

impl SimulatedPages {
    /// Executes a request.
    pub(crate) fn execute(&mut self, request: TextRequest) -> TextReply {
        match request {
            TextRequest::Write { chunk, .. } if self.is_full => {
                TextReply::Written { chunk, written: Err(TextError::new("the disk is full")) }
            }
            TextRequest::Write { chunk, bytes } => {
                let next = self.chunks.last_key_value().map_or(0, |(number, _)| number + 1);
                // A failed write leaves a hole until its number is used again.
                assert!(chunk < next + HOLES_MAX, "the file has few holes");
                self.chunks.insert(chunk, bytes);
                TextReply::Written { chunk, written: Ok(()) }
            }
            TextRequest::Read { number, texts } => {
                self.texts_read += texts.len();
                TextReply::Read {
                    number,
                    texts: texts.iter().map(|text| self.read(text)).collect(),
                }
            }
        }
    }

    fn read(&self, text: &StoredText) -> Result<Vec<u8>, TextError> {
        let StoredText { chunk, offset, len } = *text;
        let bytes = self.chunks.get(&chunk);
        let range = offset as usize..(offset + len) as usize;
        let text = bytes.and_then(|bytes| bytes.get(range));
        text.map(<[u8]>::to_vec).ok_or_else(|| TextError::new("there is no such text"))
    }

    /// Returns the bytes of all chunks.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.len()).sum()
    }

    /// Changes every byte of all chunks.
    #[cfg(test)]
    pub(crate) fn damage(&mut self) {
        for chunk in self.chunks.values_mut() {
            for byte in Arc::make_mut(chunk).iter_mut() {
                *byte = !*byte;
            }
        }
    }

    /// Reads all texts of a group back to memory, so that it can be compared with another one. It
    /// must have few entries.
    pub(crate) fn read_all(&self, group: &mut Group) {
        for wanted in group.missing_texts(group.state.dormant().iter()) {
            let text = self.read(&group.state.dormant().stored_text(wanted));
            group.state.texts_mut().take_text(wanted, text).expect("the text is there");
        }
    }
}
