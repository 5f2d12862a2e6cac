//! Puts a new log in the place of a damaged one, which is moved to `<data>/set-aside/`. Nothing is
//! deleted.
//!
//! ```text
//!   1. groups/~g~copy      the new log is written and synced
//!   2. groups/~g~repair    the same under another name: it is complete
//!   3. set-aside/group-g-1795290973246    groups/g, the damaged log, is moved here
//!   4. groups/g            ~g~repair is renamed to this
//! ```
//!
//! An interruption loses nothing. After step 3 the next start, or the next repair, does step 4.
//! Before step 3 the damaged log is still in its place, and the next repair begins again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use tidings_protocol::GroupName;

use super::{LogId, LogPlan, SegmentStore};
use crate::segments::{SegmentLog, SegmentOptions};
use crate::topic_log::TopicLog;

/// Called between any two renames; an error stops the replacement there.
pub type AfterStep<'a> = dyn FnMut() -> io::Result<()> + 'a;

/// The name of the new log's directory while it is written.
fn copy_name(group: &GroupName) -> String {
    format!("~{group}~copy")
}

/// The name of the new log's directory when it is complete, until it is renamed to the group's. No
/// group and no scratch file has such a name.
fn complete_name(group: &GroupName) -> String {
    format!("~{group}~repair")
}

/// The group, if this is the name of its complete new log.
pub(super) fn replaced_group(file_name: &str) -> Option<GroupName> {
    file_name.strip_prefix('~')?.strip_suffix("~repair")?.parse().ok()
}

/// Whether this is the name of an incomplete new log.
pub(super) fn is_copy(file_name: &str) -> bool {
    let name = file_name.strip_prefix('~').and_then(|name| name.strip_suffix("~copy"));
    name.is_some_and(|name| GroupName::new(name).is_ok())
}

impl SegmentStore {
    /// Whether anything has the name of that group's log.
    pub fn has_group(&self, group: &GroupName) -> bool {
        self.disk.list(&self.dir_of(&LogId::Group(group.clone()))).is_ok()
    }

    /// Replaces the log of a group by one that `fill` writes; `fill` must close it. Returns where
    /// the old one is now.
    pub fn replace_log(
        &self,
        group: &GroupName,
        plan: LogPlan,
        unix_ms: i64,
        fill: impl FnOnce(&dyn TopicLog) -> io::Result<()>,
        after_step: &mut AfterStep<'_>,
    ) -> io::Result<PathBuf> {
        self.remove_leftovers(group)?;
        let groups = self.groups_dir();
        let (copy, complete) = (groups.join(copy_name(group)), groups.join(complete_name(group)));
        let id = LogId::Group(group.clone());
        let options = self.options(Arc::clone(&self.disk), &id, plan);
        fill(&SegmentLog::fresh(SegmentOptions { dir: copy.clone(), ..options }))?;
        after_step()?;
        self.rename(&copy, &complete)?;
        after_step()?;
        let aside = self.move_aside(group, unix_ms)?;
        after_step()?;
        self.rename(&complete, &self.dir_of(&id))?;
        after_step()?;
        Ok(aside)
    }

    /// Moves the log of a group away, so that the group does not exist any more. Returns where it
    /// is now.
    pub fn set_log_aside(
        &self,
        group: &GroupName,
        unix_ms: i64,
        after_step: &mut AfterStep<'_>,
    ) -> io::Result<PathBuf> {
        // A later start would otherwise put the leftovers of an earlier repair in the group's
        // place.
        self.remove_leftovers(group)?;
        after_step()?;
        let aside = self.move_aside(group, unix_ms)?;
        after_step()?;
        Ok(aside)
    }

    /// Does the last step of a replacement that was interrupted before it. Returns whether there
    /// was one.
    pub fn finish_replacement(&self, group: &GroupName) -> io::Result<bool> {
        let complete = self.groups_dir().join(complete_name(group));
        match self.rename(&complete, &self.dir_of(&LogId::Group(group.clone()))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }

    /// The newest log of a group that was set aside, or the directory for such logs.
    pub fn newest_aside(&self, group: &GroupName) -> io::Result<PathBuf> {
        let place = self.aside_dir();
        let names = match self.disk.list(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        let prefix = format!("group-{group}-");
        let is_one = |name: &String| {
            name.strip_prefix(&prefix).is_some_and(|rest| rest.parse::<u64>().is_ok())
        };
        let newest = names.into_iter().filter(is_one).max();
        Ok(newest.map_or_else(|| place.clone(), |name| place.join(name)))
    }

    #[expect(clippy::disallowed_methods, reason = "no log that is open is in these directories")]
    fn remove_leftovers(&self, group: &GroupName) -> io::Result<()> {
        for name in [copy_name(group), complete_name(group)] {
            match fs::remove_dir_all(self.groups_dir().join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.disk.sync_dir(&self.groups_dir())
    }

    /// Moves the directory of a group into `set-aside/`, which no start reads.
    fn move_aside(&self, group: &GroupName, unix_ms: i64) -> io::Result<PathBuf> {
        let place = self.aside_dir();
        self.disk.create_dir(&place)?;
        let aside = place.join(format!("group-{group}-{unix_ms}"));
        if self.disk.list(&aside).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.disk.rename(&self.dir_of(&LogId::Group(group.clone())), &aside)?;
        for dir in [&place, &self.groups_dir(), &self.dir] {
            self.disk.sync_dir(dir)?;
        }
        Ok(aside)
    }

    /// Renames a directory among those of groups.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)?;
        self.disk.sync_dir(&self.groups_dir())
    }

    fn groups_dir(&self) -> PathBuf {
        self.dir.join("groups")
    }

    fn aside_dir(&self) -> PathBuf {
        self.dir.join("set-aside")
    }
}
