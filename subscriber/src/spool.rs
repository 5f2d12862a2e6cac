//! Bodies that somebody wants to have whole: in memory while they are small and there is room, else
//! in a file that goes with its owner.
//!
//! ```text
//!   <directory>/lock         held while one of the others is made, or removed
//!   <directory>/<n>.lock     held by a process for as long as it lives
//!   <directory>/<n>/         its bodies
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::config::{SPOOL_BYTES_MAX, SPOOLS_BYTES_MAX};

/// Hexadecimal digits in the name of a process's directory.
const NAME_DIGITS: usize = 8;

/// Where bodies are kept until every sink has them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spools(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    /// Says that this process lives; the directory goes with the next one that begins after that.
    _lock: File,
    /// Of all spools, in memory; `<= SPOOLS_BYTES_MAX`.
    bytes: AtomicUsize,
    /// Of the next file.
    number: AtomicU64,
}

/// One body. Dropping it removes its file.
#[derive(Debug)]
pub struct Spool {
    shared: Arc<Shared>,
    memory: Vec<u8>,
    file: Option<(File, PathBuf)>,
    len: u64,
}

impl Spools {
    /// Makes a directory of its own below this one, which is made, too, and removes those of processes
    /// that have ended.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let all = lock_file(&directory.join("lock"))?;
        all.lock()?;
        remove_left(directory)?;
        let name = format!("{:0NAME_DIGITS$x}", fastrand::u32(..));
        let lock = lock_file(&directory.join(format!("{name}.lock")))?;
        // Somebody else's, with a chance of one in billions, is waited for.
        lock.lock()?;
        let directory = directory.join(name);
        fs::create_dir_all(&directory)?;
        let (bytes, number) = (AtomicUsize::new(0), AtomicU64::new(0));
        Ok(Self(Arc::new(Shared { directory, _lock: lock, bytes, number })))
    }

    /// An empty body.
    pub fn begin(&self) -> Spool {
        Spool { shared: Arc::clone(&self.0), memory: Vec::new(), file: None, len: 0 }
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

/// Removes the directories of which nobody holds the lock. What has other names than those that are given here is somebody
/// else's; one of `...lock` would even lead out of the directory.
fn remove_left(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let lock = entry?.path();
        let name = lock.file_name().and_then(|name| name.to_str()?.strip_suffix(".lock"));
        let Some(name) = name.filter(|name| is_own(name)) else { continue };
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

/// Whether a directory has a name as they are given here.
fn is_own(name: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == NAME_DIGITS && name.bytes().all(is_digit)
}

impl Spool {
    /// Adds to its end. After an error it is of no use.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() && !self.fits(bytes.len()) {
            self.move_to_file()?;
        }
        match &mut self.file {
            Some((file, _)) => file.write_all(bytes)?,
            None => self.memory.extend_from_slice(bytes),
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads it from its beginning.
    pub fn read(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(match &self.file {
            Some((_, path)) => Box::new(File::open(path)?),
            None => Box::new(self.memory.as_slice()),
        })
    }

    /// The file that it is in, into which it is moved if it is in memory.
    pub fn path(&mut self) -> io::Result<&Path> {
        if self.file.is_none() {
            self.move_to_file()?;
        }
        Ok(self.file.as_ref().map(|(_, path)| path.as_path()).expect("it was moved to a file"))
    }

    /// The file that it is in, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Takes the room in memory, if there is some.
    fn fits(&self, more: usize) -> bool {
        let fits = self.memory.len() + more <= SPOOL_BYTES_MAX;
        let bytes = &self.shared.bytes;
        if !fits || bytes.fetch_add(more, Ordering::Relaxed) + more <= SPOOLS_BYTES_MAX {
            return fits;
        }
        bytes.fetch_sub(more, Ordering::Relaxed);
        false
    }

    fn move_to_file(&mut self) -> io::Result<()> {
        let number = self.shared.number.fetch_add(1, Ordering::Relaxed);
        let path = self.shared.directory.join(number.to_string());
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let (file, _) = self.file.insert((file, path));
        file.write_all(&self.memory)?;
        self.give_back();
        Ok(())
    }

    fn give_back(&mut self) {
        self.shared.bytes.fetch_sub(self.memory.len(), Ordering::Relaxed);
        self.memory = Vec::new();
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.give_back();
        if let Some((_, path)) = &self.file
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(%error, "a body stays in {}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(spool: &Spool) -> Vec<u8> {
        let mut text = Vec::new();
        spool.read().unwrap().read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn a_small_body_is_in_memory_and_a_large_one_in_a_file_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let spools = Spools::open(directory.path()).unwrap();
        let files = || fs::read_dir(&spools.0.directory).unwrap().count();
        let mut spool = spools.begin();
        spool.write(b"small").unwrap();
        assert_eq!((text(&spool), files()), (b"small".to_vec(), 0));
        let rest = vec![7; SPOOL_BYTES_MAX];
        spool.write(&rest).unwrap();
        assert_eq!((text(&spool), files()), ([b"small".to_vec(), rest].concat(), 1));
        assert_eq!(
            (spool.len(), spools.0.bytes.load(Ordering::Relaxed)),
            (5 + SPOOL_BYTES_MAX as u64, 0)
        );
        drop(spool);
        assert_eq!(files(), 0);
    }

    #[test]
    fn many_bodies_share_the_memory() {
        let directory = tempfile::tempdir().unwrap();
        let spools = Spools::open(directory.path()).unwrap();
        let body = vec![1; SPOOL_BYTES_MAX];
        let bodies: Vec<_> = (0..SPOOLS_BYTES_MAX / SPOOL_BYTES_MAX + 3)
            .map(|_| {
                let mut spool = spools.begin();
                spool.write(&body).unwrap();
                spool
            })
            .collect();
        assert_eq!(bodies.iter().filter(|spool| spool.file.is_some()).count(), 3);
        assert!(bodies.iter().all(|spool| text(spool) == body));
        drop(bodies);
        assert_eq!(spools.0.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_needs_a_file_gets_one() {
        let directory = tempfile::tempdir().unwrap();
        let spools = Spools::open(directory.path()).unwrap();
        let mut spool = spools.begin();
        spool.write(b"a page").unwrap();
        assert_eq!(fs::read(spool.path().unwrap()).unwrap(), b"a page");
        spool.write(b"!").unwrap();
        assert_eq!(text(&spool), b"a page!");
    }

    #[test]
    fn what_others_have_put_there_is_left_alone() {
        let outside = tempfile::tempdir().unwrap();
        let directory = outside.path().join("spools");
        let names =
            ["...lock", "..lock", "x.lock", "0123ABCD.lock", "0123456.lock", "0123456.", "a"];
        fs::create_dir(&directory).unwrap();
        for name in names {
            fs::write(directory.join(name), "").unwrap();
        }
        fs::create_dir(directory.join("x")).unwrap();
        let _spools = Spools::open(&directory).unwrap();
        for name in names.iter().chain(&["x", "lock"]) {
            assert!(directory.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn what_ended_processes_have_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let count = || fs::read_dir(directory.path()).unwrap().count();
        let (ended, living) = (Spools::open(directory.path()), Spools::open(directory.path()));
        let mut body = living.as_ref().unwrap().begin();
        body.write(b"a page").unwrap();
        body.path().unwrap();
        let mut left = ended.unwrap().begin();
        left.write(b"left").unwrap();
        left.path().unwrap();
        // As a killed process leaves it.
        left.file = None;
        drop(left);
        assert_eq!(count(), 5);
        let _next = Spools::open(directory.path()).unwrap();
        assert_eq!(count(), 5);
        assert_eq!(text(&body), b"a page");
    }
}
