//! The thread that owns the files of bodies, so that no task waits for their disk.
//!
//! After a failed write the thread retries with as many bytes as have failed. Until that succeeds
//! the disk is in trouble: pages that need it would be fetched for nothing.

#![expect(clippy::disallowed_methods, reason = "owns the thread, which retries on a full disk")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Buffer;
use crate::spool::SPOOL_BYTES_MAX;
use crate::store_error::{STORE_RETRY, StoreError, TroubleReporter};

/// The file of a body. Dropping it removes it.
#[derive(Debug)]
pub(super) struct BodyFile {
    file: File,
    path: PathBuf,
    len: u64,
}

/// The commands of the thread, served in order. Each body has at most one in flight.
#[derive(Debug)]
pub(super) enum SpoolCommand {
    /// Appends to a file, or to a new one.
    Write { file: Option<BodyFile>, bytes: Buffer, answer: oneshot::Sender<io::Result<BodyFile>> },
    /// Stores a file, which is never removed here.
    Keep { bytes: Vec<u8>, path: PathBuf, answer: oneshot::Sender<io::Result<()>> },
    /// Removes a file in the background.
    Remove(BodyFile),
    /// Blocks like a slow disk, until the sender answers or is dropped.
    #[cfg(test)]
    Wait(Receiver<()>),
}

struct SpoolThread {
    directory: PathBuf,
    /// The number of the next file.
    number: u64,
    place: Option<TroubleReporter>,
    trouble: Option<WriteFailure>,
}

/// A failed write.
struct WriteFailure {
    /// The number of bytes to retry with.
    bytes: u64,
    try_at: Instant,
}

impl BodyFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes these bytes, and gives the file its final name when they are synced.
    fn keep_as(mut self, bytes: &[u8], path: &Path) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_all()?;
        let folder = path.parent().unwrap_or(Path::new("."));
        if !folder.exists() {
            fs::create_dir_all(folder)?;
            File::open(folder.parent().unwrap_or(folder))?.sync_all()?;
        }
        fs::rename(&self.path, path)?;
        File::open(folder)?.sync_all()
    }
}

impl Drop for BodyFile {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            // It has got its final name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::debug!(%error, "cannot remove the body {}", self.path.display());
            }
            Ok(()) => {}
        }
    }
}

/// Starts the thread, which ends when all senders are dropped.
pub(super) fn start(
    directory: PathBuf,
    place: Option<TroubleReporter>,
) -> io::Result<Sender<SpoolCommand>> {
    let (sender, jobs) = channel();
    let thread = SpoolThread { directory, number: 0, place, trouble: None };
    thread::Builder::new().name("spool".to_owned()).spawn(move || thread.run(&jobs))?;
    Ok(sender)
}

impl SpoolThread {
    fn run(mut self, jobs: &Receiver<SpoolCommand>) {
        loop {
            let job = match &self.trouble {
                None => jobs.recv().map_err(RecvTimeoutError::from),
                Some(trouble) => {
                    jobs.recv_timeout(trouble.try_at.saturating_duration_since(Instant::now()))
                }
            };
            match job {
                Ok(SpoolCommand::Write { file, bytes, answer }) => {
                    let written = self.write(file, &bytes);
                    // Before the answer, since the caller may check the total of all buffers.
                    drop(bytes);
                    // The caller may have been aborted: then the file is removed.
                    let _ = answer.send(written);
                }
                Ok(SpoolCommand::Keep { bytes, path, answer }) => {
                    // The caller may be gone.
                    let _ = answer.send(self.keep(&bytes, &path));
                }
                Ok(SpoolCommand::Remove(file)) => drop(file),
                #[cfg(test)]
                Ok(SpoolCommand::Wait(until)) => drop(until.recv()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.retry_if_due();
        }
    }

    fn write(&mut self, file: Option<BodyFile>, bytes: &Buffer) -> io::Result<BodyFile> {
        let more = bytes.as_slice().len() as u64;
        let needed = file.as_ref().map_or(0, |file| file.len) + more;
        let written = file.map_or_else(|| self.create(), Ok).and_then(|mut file| {
            file.file.write_all(bytes.as_slice())?;
            file.len += more;
            Ok(file)
        });
        written.inspect_err(|error| {
            let before = self.trouble.as_ref().map_or(0, |trouble| trouble.bytes);
            self.note_failure(error, needed.max(before));
        })
    }

    fn keep(&mut self, bytes: &[u8], path: &Path) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        self.create().and_then(|file| file.keep_as(bytes, path)).inspect_err(|error| {
            let before = self.trouble.as_ref().map_or(0, |trouble| trouble.bytes);
            self.note_failure(error, before.max(bytes.len() as u64));
        })
    }

    fn create(&mut self) -> io::Result<BodyFile> {
        let path = self.directory.join(self.number.to_string());
        self.number += 1;
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(BodyFile { file, path, len: 0 })
    }

    fn note_failure(&mut self, error: &io::Error, bytes: u64) {
        self.trouble = Some(WriteFailure { bytes, try_at: Instant::now() + STORE_RETRY });
        if let Some(place) = &self.place {
            let error = StoreError { text: error.to_string(), closed: false };
            place.report(&self.directory.display().to_string(), Some(&error));
        }
    }

    /// Retries a failed write if it is due.
    fn retry_if_due(&mut self) {
        let Some(&WriteFailure { bytes, try_at }) = self.trouble.as_ref() else { return };
        if Instant::now() < try_at {
            return;
        }
        if let Err(error) = self.probe(bytes) {
            return self.note_failure(&error, bytes);
        }
        self.trouble = None;
        if let Some(place) = &self.place {
            place.report(&self.directory.display().to_string(), None);
        }
    }

    fn probe(&mut self, bytes: u64) -> io::Result<()> {
        let mut probe = self.create()?;
        let (zeros, mut left) = (vec![0; SPOOL_BYTES_MAX], bytes);
        while left > 0 {
            let piece = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            probe.file.write_all(&zeros[..piece])?;
            left -= piece as u64;
        }
        Ok(())
    }
}
