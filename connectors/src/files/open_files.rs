//! Finds out which files are open for writing on this machine.
//!
//! For a file that a scan found or that was renamed, this is the only sign that it is unfinished. It
//! sees the processes of this user, or all for root. Files of other processes count as closed.

#![expect(clippy::disallowed_methods, reason = "a snapshot expires after a moment")]

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::tracker::MOVE_DELAY;

/// How long a snapshot is valid, from its start, so that many files found together need one.
const SNAPSHOT_LIFETIME: Duration = MOVE_DELAY;

/// The two bits of `open(2)` with the access mode; 0: read only.
const ACCESS_MODE: u32 = 3;

type FileId = (u64, u64);

/// The last snapshot.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    snapshot: Option<ProcSnapshot>,
}

#[derive(Debug)]
struct ProcSnapshot {
    at: Instant,
    device: u64,
    files: HashSet<FileId>,
}

impl OpenFiles {
    /// Whether a process has the file at this path open for writing.
    pub(super) fn is_open_for_writing(&mut self, path: &Path) -> bool {
        let Ok(file) = fs::symlink_metadata(path) else { return false };
        let device = file.dev();
        let is_fresh = |snapshot: &ProcSnapshot| {
            snapshot.device == device && snapshot.at.elapsed() < SNAPSHOT_LIFETIME
        };
        if !self.snapshot.as_ref().is_some_and(is_fresh) {
            let at = Instant::now();
            let files = scan_proc(device).unwrap_or_default();
            self.snapshot = Some(ProcSnapshot { at, device, files });
        }
        self.snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.files.contains(&(device, file.ino())))
    }
}

/// The files of a device that are open for writing.
fn scan_proc(device: u64) -> io::Result<HashSet<FileId>> {
    let mut files = HashSet::new();
    for process in fs::read_dir("/proc")?.flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // The process may have ended, or belong to another user.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(file) = fs::metadata(descriptor.path()) else { continue };
            if !file.is_file() || file.dev() != device {
                continue;
            }
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            if fs::read_to_string(info).is_ok_and(|info| is_open_to_write(&info)) {
                files.insert((file.dev(), file.ino()));
            }
        }
    }
    Ok(files)
}

/// Parses the content of `/proc/<pid>/fdinfo/<fd>`.
fn is_open_to_write(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & ACCESS_MODE != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn files_open_for_writing_are_found_and_readers_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = File::create(&path).unwrap();
        assert!(OpenFiles::default().is_open_for_writing(&path));
        drop(open);
        let _reader = File::open(&path).unwrap();
        assert!(!OpenFiles::default().is_open_for_writing(&path));
        let _appender = File::options().append(true).open(&path).unwrap();
        assert!(OpenFiles::default().is_open_for_writing(&path));
        assert!(!OpenFiles::default().is_open_for_writing(&folder.path().join("none")));
    }

    #[test]
    fn flags_are_octal() {
        assert!(is_open_to_write("pos:\t0\nflags:\t0100001\nmnt_id:\t9\n"));
        assert!(is_open_to_write("flags:\t02"));
        assert!(!is_open_to_write("flags:\t0100000"));
        assert!(!is_open_to_write("") && !is_open_to_write("flags:\tx"));
    }
}
