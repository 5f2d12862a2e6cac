//! What a worker reports about the page of a task, with `ACK` and `NACK`.

use std::borrow::Cow;
use std::fmt;

use crate::FailureReason;
use crate::wire::is_word_char;

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
}

/// The options as words, each with a leading blank: part of a command and of an event.
impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        put_option(f, "reason", to_word(self.reason.as_deref(), TEXT_BYTES_MAX))?;
        put_option(f, "error", to_word(self.error.as_deref(), TEXT_BYTES_MAX))?;
        put_option(f, "status", self.status)?;
        put_option(f, "ms", self.ms)?;
        put_option(f, "bytes", self.bytes)?;
        put_option(f, "changed", self.changed)?;
        put_option(f, "type", to_word(self.content_type.as_deref(), WORD_BYTES_MAX))?;
        put_option(f, "hash", to_word(self.hash.as_deref(), WORD_BYTES_MAX))
    }
}

fn put_option(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
}

/// A text as one word: white space and control characters become `_`. `None` if nothing is left.
fn to_word(text: Option<&str>, bytes_max: usize) -> Option<Cow<'_, str>> {
    let text = text.map(|text| &text[..text.floor_char_boundary(bytes_max)])?;
    // Nearly all texts are one word of ASCII, which takes a third of the time.
    let is_word = text.bytes().all(|byte| byte.is_ascii_graphic());
    let word = if is_word { text.into() } else { text.replace(|c| !is_word_char(c), "_").into() };
    (!text.is_empty()).then_some(word)
}
