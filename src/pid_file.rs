//! `--pid-file`: the number of this process for others, and the refusal of a second one.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{failure::Failure, output::printable};

/// A pid file that is this process's; removed when dropped.
///
/// What counts is a lock on the file, which ends with the process however that ends, and not the number in it: a file that
/// was left behind refuses nobody, also if its number is somebody else's by now.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    _lock: File,
}

impl PidFile {
    /// Writes it, unless another process has it.
    pub(crate) fn take(path: &Path) -> Result<Self, Failure> {
        let shown = printable(&path.display().to_string(), 500);
        let failed = |error: io::Error| {
            Failure::Usage(format!("the pid file {shown} cannot be written: {error}"))
        };
        loop {
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(true).create(true).truncate(false).open(path);
            let mut file = opened.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(refusal(&shown, file)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Whoever had it may have removed it between the two, and a third one made another.
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
        // Under the lock, so it is still ours; if somebody else has removed it that is as good.
        let _ = fs::remove_file(&self.path);
    }
}

fn refusal(shown: &str, mut file: File) -> Failure {
    let mut text = String::new();
    let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    let pid = pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
    Failure::failed(format!("it runs already{pid}: {shown} is locked; nothing was started"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it_and_a_stale_one_refuses_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pid");
        // Number 1 runs always.
        fs::write(&path, "1\nand more than that").unwrap();
        let first = PidFile::take(&path).unwrap();
        let me = std::process::id();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{me}\n"));
        let refused = PidFile::take(&path).unwrap_err().text().unwrap();
        assert!(refused.contains(&format!("it runs already (pid {me})")), "{refused}");
        drop(first);
        assert!(!path.exists());
        PidFile::take(&path).unwrap();
        let nowhere = PidFile::take(&folder.path().join("no/x.pid")).unwrap_err();
        assert!(matches!(nowhere, Failure::Usage(_)));
    }
}
