//! `--pid-file`: publishes the id of this process and rejects a second one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::terminal::failure::Failure;
use crate::terminal::output::printable;

/// The pid file of this process; removed when dropped.
///
/// A lock on the file decides, not the number in it. The lock ends with the process, so a file that
/// was left behind rejects no start, even if its number is in use by another process.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    _lock: File,
}

impl PidFile {
    /// Locks and writes the file, unless another process holds it.
    pub(crate) fn acquire(path: &Path) -> Result<Self, Failure> {
        let shown = printable(&path.display().to_string(), 500);
        let failed = |error: io::Error| {
            Failure::Usage(format!("cannot write the pid file {shown}: {error}"))
        };
        loop {
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(true).create(true).truncate(false).open(path);
            let mut file = opened.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(already_running(&shown, file)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The previous holder may have removed the file before the lock, and another process
            // created a new one.
            let ours = file.metadata().map_err(failed)?;
            let is_there = fs::metadata(path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
            if !is_there {
                continue;
            }
            file.set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()))
                .map_err(failed)?;
            return Ok(Self { path: path.to_owned(), _lock: file });
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The lock is still held, so the file is ours.
        let _ = fs::remove_file(&self.path);
    }
}

fn already_running(shown: &str, mut file: File) -> Failure {
    let mut text = String::new();
    let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    let pid = pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
    Failure::failed(format!("already running{pid}: {shown} is locked; nothing was started"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_file_rejects_a_start_and_a_stale_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pid");
        // Process 1 always runs.
        fs::write(&path, "1\nand more than that").unwrap();
        let first = PidFile::acquire(&path).unwrap();
        let me = std::process::id();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{me}\n"));
        let refused = PidFile::acquire(&path).unwrap_err().text().unwrap();
        assert!(refused.contains(&format!("already running (pid {me})")), "{refused}");
        drop(first);
        assert!(!path.exists());
        PidFile::acquire(&path).unwrap();
        let nowhere = PidFile::acquire(&folder.path().join("no/x.pid")).unwrap_err();
        assert!(matches!(nowhere, Failure::Usage(_)));
    }
}
