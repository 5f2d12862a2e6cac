//! The options of `GROUP rule` and `unrule` as typed values.

use super::manage::GroupCommand;
use super::parse::{one_word_up_to, yes_or_no};
use super::settings::{DELAY_MS_MAX, PARALLEL_MAX, duration_within, whole_number};
use crate::duration::DURATION_MS_MAX;
use crate::{ProtocolError, bad_argument};

/// Longest `note=`.
const NOTE_BYTES_MAX: usize = 200;
/// Shortest `for=`.
const FOR_MS_MIN: u64 = 1000;

/// What `GROUP rule` sets for a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSettings {
    /// Nothing is released for the key, and what waits for it ends.
    pub block: bool,
    /// Nothing is released for the key.
    pub pause: bool,
    /// The delay of the key, in ms; `None`: that of the group.
    pub delay_ms: Option<u64>,
    /// Tasks of the key in flight; `None`: as the group.
    pub parallel: Option<u32>,
    /// After this time the rule ends, in ms; `None`: it does not end by itself.
    pub for_ms: Option<u64>,
    /// A note for people.
    pub note: Option<Box<str>>,
}

impl<'a> GroupCommand<'a> {
    /// The key of `rule`, as an operator writes it, and what the rule says.
    pub fn rule(&self) -> Result<(&'a str, RuleSettings), ProtocolError> {
        self.allow_only(&["key", "block", "pause", "delay", "parallel", "for", "note"])?;
        let mut rule = RuleSettings::default();
        for (name, value) in &self.settings {
            match *name {
                "block" => rule.block = yes_or_no(name, value)?,
                "pause" => rule.pause = yes_or_no(name, value)?,
                "delay" => rule.delay_ms = Some(duration_within(name, value, 0, DELAY_MS_MAX)?),
                "parallel" => rule.parallel = Some(whole_number(name, value, 1, PARALLEL_MAX)?),
                "for" => {
                    let ms = duration_within(name, value, FOR_MS_MIN, DURATION_MS_MAX)?;
                    rule.for_ms = Some(ms);
                }
                "note" => rule.note = Some(one_word_up_to(name, value, NOTE_BYTES_MAX)?.into()),
                _ => {}
            }
        }
        let RuleSettings { block, pause, delay_ms, parallel, .. } = rule;
        if !(block || pause || delay_ms.is_some() || parallel.is_some()) {
            let text = "rule needs block=yes, pause=yes, delay=<duration> or parallel=<n>";
            return Err(bad_argument(text));
        }
        Ok((self.required_key()?, rule))
    }

    /// The key of `unrule`, as an operator writes it.
    pub fn unruled_key(&self) -> Result<&'a str, ProtocolError> {
        self.allow_only(&["key"])?;
        self.required_key()
    }

    fn required_key(&self) -> Result<&'a str, ProtocolError> {
        self.setting("key").ok_or_else(|| {
            let action = self.action.as_str();
            bad_argument(format!(
                "{action} needs key=<key>, such as key=example.org or key=*.example.org"
            ))
        })
    }
}
