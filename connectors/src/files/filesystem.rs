//! Reads metadata of files and directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::directory_watch::WatchSettings;
use super::tracker::{FileStamp, RelativePath};

/// The selected files of the directory, and of those below it if that is set.
pub(super) fn list_files(
    settings: &WatchSettings,
    is_shared: bool,
) -> BTreeMap<RelativePath, FileStamp> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![RelativePath::from([])];
    while let Some(dir) = dirs.pop() {
        // A directory that cannot be read counts as empty.
        let Ok(entries) = fs::read_dir(path_of(&settings.dir, &dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir()
                && settings.recursive
                && settings.name_filter.enters_directory(name.as_bytes())
            {
                dirs.push(join_name(&dir, name.as_bytes(), "/"));
            } else if metadata.is_file() && settings.name_filter.matches(name.as_bytes()) {
                found.insert(join_name(&dir, name.as_bytes(), ""), stamp(&metadata, is_shared));
            }
        }
    }
    found
}

/// Identifies the content of a file.
pub(super) fn stamp(metadata: &Metadata, is_shared: bool) -> FileStamp {
    FileStamp {
        inode: if is_shared { 0 } else { metadata.ino() },
        size: metadata.len(),
        modified_s: metadata.mtime(),
        modified_ns: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
    }
}

/// The path of `name` in a directory, which is empty or ends in `/`.
pub(super) fn join_name(dir: &[u8], name: &[u8], end: &str) -> RelativePath {
    RelativePath::from([dir, name, end.as_bytes()].concat())
}

pub(super) fn path_of(root: &Path, name: &[u8]) -> PathBuf {
    if name.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(name)) }
}

/// Whether this directory is a mount point. `metadata` is that of the directory.
pub(super) fn is_mounted(dir: &Path, metadata: &Metadata) -> bool {
    fs::metadata(dir.join("..")).is_ok_and(|above| above.dev() != metadata.dev())
}

/// Whether the directory is known to be empty.
pub(super) fn is_dir_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

pub(super) fn is_not_found(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The word for an error in events.
pub(super) fn error_word(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "denied",
        _ if is_not_found(error) => "gone",
        _ => "unreadable",
    }
}
