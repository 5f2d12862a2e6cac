//! Verifies the log of a group without changing it.

use std::io;

use tidings_log::{CheckedFile, LogId, SegmentStore, TopicLog, read_lines};
use tidings_protocol::GroupName;
use tidings_queue::record::replay::{FIRST_RECORD, ReplayBase};
use tidings_queue::record::{Decision, GroupRecord};

use super::recovery::invalid;

/// The result for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGroup {
    /// Its name.
    pub name: GroupName,
    /// The files of its log, oldest first. Their "events" are the group's records.
    pub files: Vec<CheckedFile>,
    /// Other problems, as text.
    pub findings: Vec<String>,
    /// Why the next start will reject work for this group; `None` if the group will run.
    pub refusal: Option<String>,
    /// Whether a whole file cannot be read.
    pub has_unreadable_file: bool,
    /// Whether the log is shorter than it was at the last orderly stop.
    pub has_lost_end: bool,
}

impl VerifiedGroup {
    /// Whether any stored data cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.refusal.is_some()
            || self.has_unreadable_file
            || self.has_lost_end
            || self.files.iter().any(CheckedFile::is_damaged)
    }
}

/// Verifies the log of a group.
pub(crate) fn verify_group(store: &SegmentStore, name: GroupName) -> VerifiedGroup {
    let checked = store.check(&LogId::Group(name.clone()));
    let refusal = match checked.log.and_then(|log| find_refusal(&*log)) {
        Ok(refusal) => refusal,
        Err(error) => Some(error.to_string()),
    };
    VerifiedGroup {
        name,
        files: checked.files,
        findings: checked.findings,
        refusal,
        has_unreadable_file: checked.has_unreadable_file,
        has_lost_end: checked.has_lost_end,
    }
}

/// Why the next start will reject work for the group of this log.
fn find_refusal(log: &dyn TopicLog) -> io::Result<Option<String>> {
    let first = log.bounds().first;
    let (mut base, mut is_deleted) = (ReplayBase::new(first <= FIRST_RECORD), false);
    let mut damage = (first > FIRST_RECORD).then(|| format!("records before {first} are gone"));
    read_lines(log, first, |seq, line| {
        match line.and_then(|line| GroupRecord::decode(line).map_err(invalid)) {
            Ok(record) => {
                is_deleted = record.decision == Decision::Deleted;
                base.apply(&record);
            }
            Err(error) => {
                base = ReplayBase::Missing;
                damage.get_or_insert(format!("record {seq}: {error}"));
            }
        }
        Ok(())
    })?;
    if base == ReplayBase::Complete || is_deleted {
        return Ok(None);
    }
    Ok(damage.or_else(|| Some("the log has no complete beginning".to_owned())))
}
