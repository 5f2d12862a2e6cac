//! Reads directories: finds their files, watches them with inotify, and notices mount points.

#![expect(clippy::disallowed_methods, reason = "scans are due by the clock")]

use std::fs::{self, symlink_metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use super::{CHECK_INTERVAL, POLL_INTERVAL, Watcher};
use crate::files::filesystem::{error_word, is_mounted, is_not_found, join_name, path_of};
use crate::files::mounts;
use crate::files::tracker::{Observation, RelativePath, TrackerInput};

/// The result of reading a directory.
enum DirContents {
    /// All entries were read.
    Complete,
    /// A file system that was mounted here is missing.
    Unmounted { is_empty: bool },
}

impl Watcher {
    pub(super) fn scan(&mut self) {
        self.scan_wanted = false;
        self.handle(TrackerInput::ScanStarted);
        let unread = self.walk(RelativePath::from([]));
        self.forget_mounts();
        self.handle(TrackerInput::ScanFinished(unread));
        if self.poll_at.is_some() {
            self.poll_at = Some(Instant::now() + self.settings.poll.unwrap_or(POLL_INTERVAL));
        }
    }

    /// Retries directories that could not be read.
    pub(super) fn retry(&mut self) {
        self.retry_at = None;
        for dir in std::mem::take(&mut self.unreadable) {
            self.walk(dir);
        }
    }

    fn mark_unreadable(&mut self, dir: RelativePath) {
        self.unreadable.insert(dir);
        if !self.settings.tracker.once {
            self.retry_at.get_or_insert_with(|| Instant::now() + CHECK_INTERVAL);
        }
    }

    /// Reads a directory, and those below it if that is set, and watches them. Returns those that
    /// could not be read.
    pub(super) fn walk(&mut self, from: RelativePath) -> Vec<RelativePath> {
        let mut unread = Vec::new();
        let mut dirs = vec![from];
        while let Some(dir) = dirs.pop() {
            let read = self.read_dir(&dir, &mut dirs);
            self.read_notices();
            let is_root = dir.is_empty();
            match read {
                Ok(DirContents::Complete) => {
                    if is_root {
                        self.root.is_unreadable = false;
                    }
                    self.unreadable.remove(&dir);
                    self.handle(TrackerInput::ErrorChanged(dir, None));
                }
                Ok(DirContents::Unmounted { is_empty }) => {
                    if is_empty {
                        self.handle(TrackerInput::ErrorChanged(Arc::clone(&dir), Some("gone")));
                    }
                    unread.push(Arc::clone(&dir));
                    self.mark_unreadable(dir);
                }
                Err(error) if is_root => {
                    self.lose_root(&error);
                    unread.push(dir);
                }
                // It was removed since its name was read.
                Err(error) if is_not_found(&error) => {
                    self.unreadable.remove(&dir);
                    self.handle(TrackerInput::RemovedBelow(dir));
                }
                Err(error) => {
                    self.handle(TrackerInput::ErrorChanged(
                        Arc::clone(&dir),
                        Some(error_word(&error)),
                    ));
                    unread.push(Arc::clone(&dir));
                    self.mark_unreadable(dir);
                }
            }
        }
        unread
    }

    fn read_dir(
        &mut self,
        dir: &RelativePath,
        dirs: &mut Vec<RelativePath>,
    ) -> io::Result<DirContents> {
        let path = self.path(dir);
        let metadata = if dir.is_empty() { fs::metadata(&path) } else { symlink_metadata(&path) }?;
        if !metadata.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let is_mounted = is_mounted(&path, &metadata);
        if is_mounted && self.mounts.insert(Arc::clone(dir)) {
            self.state.iter_mut().for_each(|state| state.record_mount(dir));
        }
        if !dir.is_empty() {
            if self.excluded == Some((metadata.dev(), metadata.ino())) {
                return Ok(DirContents::Complete);
            }
            let is_elsewhere =
                self.root.watched.is_some_and(|(device, _)| device != metadata.dev());
            if is_elsewhere && self.inotify.is_some() && mounts::is_shared(&path) {
                self.start_polling();
            }
        }
        // The watch begins before the listing, so that no change is missed in between.
        if let Some(notices) = &mut self.inotify
            && let Err(error) = notices.add(dir, &path)
        {
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::OutOfMemory => {
                    self.fall_back_to_polling(&error);
                }
                _ => return Err(error),
            }
        }
        let mut is_empty = true;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            is_empty = false;
            let name = entry.file_name();
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                if self.settings.recursive
                    && self.settings.name_filter.enters_directory(name.as_bytes())
                {
                    dirs.push(join_name(dir, name.as_bytes(), "/"));
                }
            } else if kind.is_ok_and(|kind| kind.is_file())
                && self.settings.name_filter.matches(name.as_bytes())
                && let Ok(metadata) = entry.metadata()
                && let Some(stamp) = self.stamp(&metadata)
            {
                let name = join_name(dir, name.as_bytes(), "");
                self.handle(TrackerInput::Observed(Observation::Found, name, stamp));
            }
        }
        let is_unmounted = !is_mounted && self.mounts.contains(dir);
        Ok(if is_unmounted { DirContents::Unmounted { is_empty } } else { DirContents::Complete })
    }

    /// Forgets mount points that no longer exist, as far as that is known.
    fn forget_mounts(&mut self) {
        let (root, unread) = (&self.settings.dir, &self.unreadable);
        let is_hidden = |dir: &RelativePath| unread.iter().any(|above| dir.starts_with(above));
        let is_there = |dir: &RelativePath| match symlink_metadata(path_of(root, dir)) {
            Ok(metadata) => metadata.is_dir(),
            Err(error) => !is_not_found(&error),
        };
        let gone =
            self.mounts.extract_if(.., |dir| !dir.is_empty() && !is_hidden(dir) && !is_there(dir));
        for dir in gone {
            self.state.iter_mut().for_each(|state| state.record_removal(&dir));
        }
    }
}
