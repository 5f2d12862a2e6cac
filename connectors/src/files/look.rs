//! Looking at files and directories.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, Metadata},
    io::{self, ErrorKind},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use super::{
    tracker::{Name, Stamp},
    watching::Settings,
};

/// What is there.
pub(super) fn present(settings: &Settings, is_shared: bool) -> BTreeMap<Name, Stamp> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![Name::from([])];
    while let Some(dir) = dirs.pop() {
        // What cannot be read is not there.
        let Ok(entries) = fs::read_dir(below(&settings.dir, &dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && settings.recursive && settings.select.enters(name.as_bytes()) {
                dirs.push(join(&dir, name.as_bytes(), "/"));
            } else if metadata.is_file() && settings.select.takes(name.as_bytes()) {
                found.insert(join(&dir, name.as_bytes(), ""), stamp(&metadata, is_shared));
            }
        }
    }
    found
}

/// What tells this content from another.
pub(super) fn stamp(metadata: &Metadata, is_shared: bool) -> Stamp {
    Stamp {
        inode: if is_shared { 0 } else { metadata.ino() },
        size: metadata.len(),
        modified_s: metadata.mtime(),
        modified_ns: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
    }
}

/// What is called so in a directory, which is empty or ends in `/`.
pub(super) fn join(dir: &[u8], name: &[u8], end: &str) -> Name {
    Name::from([dir, name, end.as_bytes()].concat())
}

/// Where it is.
pub(super) fn below(root: &Path, name: &[u8]) -> PathBuf {
    if name.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(name)) }
}

/// Whether something is mounted on a directory that was found to be so.
pub(super) fn is_mounted(dir: &Path, metadata: &Metadata) -> bool {
    fs::metadata(dir.join("..")).is_ok_and(|above| above.dev() != metadata.dev())
}

/// Whether nothing is in a directory, as far as can be seen.
pub(super) fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether there is no such thing any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Why something cannot be read, as a word.
pub(super) fn word(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "denied",
        _ if is_gone(error) => "gone",
        _ => "unreadable",
    }
}
