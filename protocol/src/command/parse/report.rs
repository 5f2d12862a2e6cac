//! Reads what a worker reports about the page of a task: options of `ACK` and `NACK`.

use super::{one_word_up_to, set};
use crate::command::task_report::{STATUS_MAX, TEXT_BYTES_MAX, WORD_BYTES_MAX};
use crate::command::{PageChange, TaskReport};
use crate::error::{ProtocolError, bad_argument};
use crate::text::quote;
use crate::wire::number;

/// The options of a report.
pub(super) const OPTIONS: [&str; 8] =
    ["reason", "error", "status", "ms", "bytes", "changed", "type", "hash"];

/// Reads an option. `false`: it is none of these.
pub(super) fn read_option(
    report: &mut TaskReport,
    key: &str,
    value: &str,
) -> Result<bool, ProtocolError> {
    let word = |bytes_max| one_word_up_to(key, value, bytes_max);
    match key {
        "reason" => set(&mut report.reason, key, word(TEXT_BYTES_MAX)?)?,
        "error" => set(&mut report.error, key, word(TEXT_BYTES_MAX)?)?,
        "status" => {
            let status = number(value).filter(|status| *status <= STATUS_MAX);
            let status = status.ok_or_else(|| {
                bad_argument(format!("status={} should be 0 to {STATUS_MAX}", quote(value)))
            })?;
            set(&mut report.status, key, status)?;
        }
        "ms" => set(&mut report.ms, key, whole(key, value)?)?,
        "bytes" => set(&mut report.bytes, key, whole(key, value)?)?,
        "changed" => {
            let changed = PageChange::from_word(value).ok_or_else(|| {
                bad_argument(format!("changed={} should be new, yes or no", quote(value)))
            })?;
            set(&mut report.changed, key, changed)?;
        }
        "type" => set(&mut report.content_type, key, word(WORD_BYTES_MAX)?)?,
        "hash" => set(&mut report.hash, key, word(WORD_BYTES_MAX)?)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn whole(key: &str, value: &str) -> Result<u64, ProtocolError> {
    let number = number(value);
    number.ok_or_else(|| bad_argument(format!("{key}={} should be a whole number", quote(value))))
}
