//! Spools whole bodies for the sinks that need them: in memory while they are small and the memory
//! limit allows it, otherwise in a file that is removed when its owner is dropped.
//!
//! ```text
//!   <directory>/lock         held while one of the others is made, or removed
//!   <directory>/<n>.lock     held by a process for as long as it lives
//!   <directory>/<n>/         its bodies
//! ```

mod files;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use tidings_egress::http::BodyCopy;
use tokio::sync::oneshot;

use self::files::{BodyFile, SpoolCommand};
use crate::store_error::TroubleReporter;

/// A body that a sink needs whole is in memory up to this size; beyond it, it is in a file, which
/// is written in pieces of this size.
pub(crate) const SPOOL_BYTES_MAX: usize = 64 * 1024;
/// Memory of all such bodies; a body that finds none left goes to a file.
const SPOOLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Hexadecimal digits in the name of a process's directory.
const NAME_DIGITS: usize = 8;

/// The bodies of this process, each kept until all sinks have stored it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spools(Arc<SpoolShared>);

#[derive(Debug)]
struct SpoolShared {
    /// The queue of the thread that owns the files.
    jobs: Sender<SpoolCommand>,
    /// Locked while this process lives; after that, the next process that starts removes the
    /// directory.
    _lock: File,
    /// Bytes of all buffers in memory; `<= SPOOLS_BYTES_MAX`.
    bytes: AtomicUsize,
}

/// One body. Dropping it removes its file.
#[derive(Debug)]
pub struct Spool {
    /// The part that is not in the file.
    buffer: Buffer,
    file: Option<BodyFile>,
    len: u64,
}

/// The end of a body, in memory.
#[derive(Debug)]
struct Buffer {
    shared: Arc<SpoolShared>,
    bytes: Vec<u8>,
    /// Bytes counted in the total of all buffers.
    counted: usize,
}

impl Spools {
    /// Creates a directory of its own in this one (which is created too), and removes those of
    /// processes that have ended.
    pub fn open(directory: &Path) -> io::Result<Self> {
        Self::with_trouble_reporter(directory, None)
    }

    /// Like `open`; also reports trouble to `place` while the disk cannot be written.
    pub(crate) fn with_trouble_reporter(
        directory: &Path,
        place: Option<TroubleReporter>,
    ) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let all = lock_file(&directory.join("lock"))?;
        all.lock()?;
        remove_stale(directory)?;
        let name = format!("{:0NAME_DIGITS$x}", fastrand::u32(..));
        let lock = lock_file(&directory.join(format!("{name}.lock")))?;
        // With a chance of one in billions another process has this name: then this waits for it.
        lock.lock()?;
        let directory = directory.join(name);
        fs::create_dir_all(&directory)?;
        let jobs = files::start(directory, place)?;
        Ok(Self(Arc::new(SpoolShared { jobs, _lock: lock, bytes: AtomicUsize::new(0) })))
    }

    /// An empty body.
    pub fn begin(&self) -> Spool {
        Spool { buffer: Buffer::new(&self.0), file: None, len: 0 }
    }

    /// Stores bytes in a lasting file of the same file system, unless it exists. Returns once the
    /// file is synced. The name never has other content.
    pub(crate) async fn keep(&self, bytes: Vec<u8>, path: PathBuf) -> io::Result<()> {
        let (answer, kept) = oneshot::channel();
        self.0.jobs.send(SpoolCommand::Keep { bytes, path, answer }).map_err(|_| ended())?;
        kept.await.map_err(|_| ended())?
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that writes bodies has ended")
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

/// Removes the directories of processes that have ended: their locks are free. Other names are left
/// alone; a name such as `...lock` would even lead out of the directory.
fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let lock = entry?.path();
        let name = lock.file_name().and_then(|name| name.to_str()?.strip_suffix(".lock"));
        let Some(name) = name.filter(|name| is_spool_name(name)) else { continue };
        if lock_file(&lock)?.try_lock().is_err() {
            continue;
        }
        match fs::remove_dir_all(directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::remove_file(&lock)?,
        }
    }
    Ok(())
}

/// Whether a name has the form of those created here.
fn is_spool_name(name: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == NAME_DIGITS && name.bytes().all(is_digit)
}

impl Spool {
    /// Appends bytes. After an error, or if it was not awaited, the body is unusable.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.try_append(bytes) {
            self.append(bytes).await?;
        }
        Ok(())
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the body from its beginning. Waits for the disk if it is in a file.
    pub fn read(&self) -> io::Result<Box<dyn Read + '_>> {
        let end = self.buffer.as_slice();
        Ok(match &self.file {
            Some(file) => Box::new(File::open(file.path())?.chain(end)),
            None => Box::new(end),
        })
    }

    /// The path of its file, after the whole body is moved there.
    pub async fn path(&mut self) -> io::Result<&Path> {
        if self.file.is_none() || !self.buffer.as_slice().is_empty() {
            self.append(&[]).await?;
        }
        Ok(self.file().expect("it was moved to a file"))
    }

    /// The path of its file, if there is one; the end of the body may still be in memory.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(BodyFile::path)
    }
}

impl BodyCopy for Spool {
    /// Appends bytes if that needs no waiting, which is the usual case.
    fn try_append(&mut self, bytes: &[u8]) -> bool {
        let fits = self.buffer.push(bytes);
        self.len += if fits { bytes.len() as u64 } else { 0 };
        fits
    }

    /// Appends bytes and moves the whole body into its file.
    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let empty = Buffer::new(&self.buffer.shared);
        let mut buffer = mem::replace(&mut self.buffer, empty);
        buffer.bytes.extend_from_slice(bytes);
        let (answer, written) = oneshot::channel();
        let job = SpoolCommand::Write { file: self.file.take(), bytes: buffer, answer };
        self.buffer.shared.jobs.send(job).map_err(|_| ended())?;
        self.file = Some(written.await.map_err(|_| ended())??);
        self.len += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // If the thread has ended, the file is removed here.
            let _ = self.buffer.shared.jobs.send(SpoolCommand::Remove(file));
        }
    }
}

impl Buffer {
    fn new(shared: &Arc<SpoolShared>) -> Self {
        Self { shared: Arc::clone(shared), bytes: Vec::new(), counted: 0 }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bytes if the limits of memory allow it.
    fn push(&mut self, more: &[u8]) -> bool {
        let total = &self.shared.bytes;
        if self.bytes.len() + more.len() > SPOOL_BYTES_MAX {
            return false;
        }
        if total.fetch_add(more.len(), Ordering::Relaxed) + more.len() > SPOOLS_BYTES_MAX {
            total.fetch_sub(more.len(), Ordering::Relaxed);
            return false;
        }
        self.bytes.extend_from_slice(more);
        self.counted += more.len();
        true
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.bytes.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
