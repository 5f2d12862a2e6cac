//! What a worker reports about the page of a task, with `ACK` and `NACK`.

use std::fmt;

use bytes::BufMut;

use crate::FailureReason;
use crate::wire::{LineWriter, is_word_char};

/// The longest `reason=` and `error=`, in bytes; longer ones are cut when they are encoded.
pub(super) const TEXT_BYTES_MAX: usize = 512;
/// The longest `type=` and `hash=`, in bytes.
pub(super) const WORD_BYTES_MAX: usize = 128;
/// The largest `status=`.
pub(super) const STATUS_MAX: u16 = 999;

word_enum! {
    /// Whether a page differs from the one that was fetched before.
    pub enum PageChange {
        /// It was not fetched before.
        New = "new",
        /// It differs.
        Yes = "yes",
        /// It is the same.
        No = "no",
    }
}

/// What a worker knows about the page of a task. It is counted and published, and decides only
/// whether the host [answers](Self::is_unanswered). Texts are one word on the wire: white space
/// becomes `_` when they are encoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskReport {
    /// `reason=`: why there is no page, for programs where the worker has a word for it.
    pub reason: Option<String>,
    /// `error=`: the same for people.
    pub error: Option<String>,
    /// `status=`: of the HTTP answer, up to 999.
    pub status: Option<u16>,
    /// `ms=`: how long the request took, in milliseconds.
    pub ms: Option<u64>,
    /// `bytes=`: of the page, without its encoding.
    pub bytes: Option<u64>,
    /// `changed=`.
    pub changed: Option<PageChange>,
    /// `type=`: the media type, without parameters.
    pub content_type: Option<String>,
    /// `hash=`: of the page.
    pub hash: Option<String>,
}

impl TaskReport {
    /// Whether the host did not answer.
    pub fn is_unanswered(&self) -> bool {
        let reason = self.reason.as_deref().and_then(FailureReason::from_word);
        reason.is_some_and(FailureReason::is_unanswered)
    }

    /// A report that consists of a reason. `None` without one.
    pub fn of_reason(reason: Option<String>) -> Option<Box<Self>> {
        reason.map(|reason| Self { reason: Some(reason), ..Self::default() }.into())
    }

    /// Appends the options.
    pub(super) fn encode<'b, B: BufMut>(&self, line: LineWriter<'b, B>) -> LineWriter<'b, B> {
        let text = |text: &Option<String>| to_word(text.as_deref(), TEXT_BYTES_MAX);
        let word = |text: &Option<String>| to_word(text.as_deref(), WORD_BYTES_MAX);
        line.option_if("reason", text(&self.reason))
            .option_if("error", text(&self.error))
            .option_if("status", self.status)
            .option_if("ms", self.ms)
            .option_if("bytes", self.bytes)
            .option_if("changed", self.changed)
            .option_if("type", word(&self.content_type))
            .option_if("hash", word(&self.hash))
    }
}

/// The options as words, each with a leading blank: part of an event.
impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        self.encode(LineWriter::new(&mut words, ""));
        f.write_str(&String::from_utf8_lossy(&words))
    }
}

/// A text as one word: white space and control characters become `_`. `None` if nothing is left.
fn to_word(text: Option<&str>, bytes_max: usize) -> Option<String> {
    let text = text?;
    let text = &text[..text.floor_char_boundary(bytes_max)];
    let word = text.chars().map(|c| if is_word_char(c) { c } else { '_' });
    (!text.is_empty()).then(|| word.collect())
}
