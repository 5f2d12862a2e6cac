//! Stores which files of a directory were published, across restarts: a file of lines that is
//! appended to, and rewritten when most lines are out of date.
//!
//! ```text
//! tidings-watch 1 topic=file-ready dir=/srv/out
//! + 8123 17 1795290973.246000000 a.pdf #0c1f9a3e    published: inode, bytes, modified, name
//! - a.pdf #73..                            removed
//!  3 12 #5d..                             batch 3 began with 12 files; each later + is one more
//! @ disk/ #81..                            a mount point; - disk/: the directory is gone
//! ```
//!
//! After `#` stand the first digits of the BLAKE3 hash of the line before it. Lines of earlier
//! versions have no checksum, and earlier versions can read lines that have one.
//!
//! A line is written after the broker has confirmed the event, so the state never claims a file
//! that the topic lacks. A file that the state lacks (lines at the end, after a crash) is published
//! again, under the same id. A line that cannot be read counts as missing. A file of another
//! version has another first word, and is rejected.

#![expect(clippy::disallowed_methods, reason = "syncs at most once a second, on a thread")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidings_protocol::TopicName;

use super::path_encoding::{decode, encode};
use super::tracker::{FileStamp, RelativePath, Tracker};

const MAGIC: &str = "tidings-watch 1";

/// The least time between syncs. A power cut repeats at most the events of this time.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Outdated lines that are tolerated before a rewrite.
const STALE_LINES_MIN: u64 = 10_000;

/// How the root directory is written; other directories end in `/`.
const ROOT: &str = ".";

/// Digits of the checksum of a line.
const CHECKSUM_DIGITS: usize = 8;

/// No line of this format is longer: each byte of a path takes at most three.
const LINE_BYTES_MAX: u64 = 3 * 4096 + 200;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// Another process uses this state file.
    #[error("{dir} is watched already by another tidings process with the same --data")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// It belongs to another version or another directory.
    #[error("{} is not the state of this directory in this version; remove it to publish all files again", .path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
    },
    /// An IO error.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The content of a state file when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SavedState {
    /// Published files.
    pub published: BTreeMap<RelativePath, FileStamp>,
    /// The number of the current batch.
    pub batch_number: u64,
    /// Files in it so far.
    pub batch_files: u64,
    /// Directories that are or were mount points.
    pub mounts: BTreeSet<RelativePath>,
}

/// An open state file. It is locked: no other process can open it.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    header: String,
    file: File,
    lines: u64,
    mounts: BTreeSet<RelativePath>,
    unwritten_lines: Vec<u8>,
    unsynced_since: Option<Instant>,
    /// The sync that runs on a thread, so that publishing does not wait for it.
    running_sync: Option<JoinHandle<io::Result<()>>>,
    /// A write or sync has failed, so the file must be rewritten before the next line.
    is_broken: bool,
    _lock: File,
}

impl StateFile {
    /// Opens the state of this directory and topic in a folder, which must exist.
    pub fn open(
        folder: &Path,
        topic: &TopicName,
        dir: &[u8],
    ) -> Result<(Self, SavedState), StateFileError> {
        let head = format!("{MAGIC} topic={topic} dir={}", encode(dir));
        let digest = blake3::hash(head.as_bytes()).to_hex();
        let path = folder.join(format!("{}.state", &digest[..16]));
        let failed = |source| StateFileError::Io { path: path.clone(), source };
        let lock =
            private_options().create(true).open(path.with_extension("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StateFileError::InUse { dir: encode(dir) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut file = private_options().create(true).open(&path).map_err(failed)?;
        let (remembered, lines) = match read(&file, &head).map_err(failed)? {
            ReadState::Valid(remembered, lines) => (remembered, lines),
            ReadState::Empty => {
                // A crash may have left part of the header, which was cut off.
                file.seek(SeekFrom::End(0)).map_err(failed)?;
                writeln!(file, "{head}").and_then(|()| sync_folder(folder)).map_err(failed)?;
                (SavedState::default(), 0)
            }
            ReadState::Mismatch => return Err(StateFileError::Mismatch { path }),
        };
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let state = Self {
            path,
            header: head,
            file,
            lines,
            mounts: remembered.mounts.clone(),
            unwritten_lines: Vec::new(),
            unsynced_since: None,
            running_sync: None,
            is_broken: false,
            _lock: lock,
        };
        Ok((state, remembered))
    }

    /// Records a published file; [`write`](Self::write) writes it.
    pub fn record_file(&mut self, name: &RelativePath, stamp: FileStamp) {
        self.record(&file_line(name, stamp));
    }

    /// Records a mount point.
    pub fn record_mount(&mut self, dir: &RelativePath) {
        self.mounts.insert(Arc::clone(dir));
        self.record(&mount_line(dir));
    }

    /// Records that a file or a mount point is gone.
    pub fn record_removal(&mut self, name: &RelativePath) {
        self.mounts.remove(name);
        self.record(&format!("- {}", encode(name)));
    }

    /// Records the beginning of a batch.
    pub fn begin_batch(&mut self, number: u64, files: u64) {
        self.record(&batch_line((number, files)));
    }

    fn record(&mut self, text: &str) {
        self.unwritten_lines.extend_from_slice(with_checksum(text).as_bytes());
        self.lines += 1;
    }

    /// When the next write or sync is due.
    pub fn due(&self) -> Option<Instant> {
        self.unsynced_since.map(|since| since + SYNC_EVERY)
    }

    /// Writes the recorded lines, and starts a sync when it is due. After a failure it rewrites the
    /// file with what is published.
    pub fn write(&mut self, tracker: &Tracker) -> io::Result<()> {
        if !self.unwritten_lines.is_empty() {
            self.unsynced_since.get_or_insert_with(Instant::now);
            let lines = std::mem::take(&mut self.unwritten_lines);
            self.is_broken |= self.file.write_all(&lines).is_err();
        }
        if self.due().is_none_or(|due| Instant::now() < due) {
            return Ok(());
        }
        // A failed write or sync is retried after the same interval.
        self.unsynced_since = Some(Instant::now());
        if self.running_sync.as_ref().is_some_and(|syncing| !syncing.is_finished()) {
            return Ok(());
        }
        let synced = self.join_sync();
        if self.must_be_rewritten(tracker) {
            self.rewrite(tracker)?;
        } else {
            let file = self.file.try_clone()?;
            self.running_sync = Some(thread::spawn(move || file.sync_data()));
        }
        self.unsynced_since = None;
        synced
    }

    /// Writes and syncs everything.
    pub fn close(mut self, tracker: &Tracker) -> io::Result<()> {
        let lines = std::mem::take(&mut self.unwritten_lines);
        self.is_broken |= self.file.write_all(&lines).is_err();
        // A failure sets `is_broken`, which leads to a rewrite.
        let _ = self.join_sync();
        if self.must_be_rewritten(tracker) {
            return self.rewrite(tracker);
        }
        self.file.sync_data()
    }

    fn must_be_rewritten(&self, tracker: &Tracker) -> bool {
        self.is_broken || self.lines > 2 * tracker.tracked() as u64 + STALE_LINES_MIN
    }

    /// The result of the last sync. After a failed sync the content of the disk is unknown.
    fn join_sync(&mut self) -> io::Result<()> {
        let Some(syncing) = self.running_sync.take() else { return Ok(()) };
        let synced =
            syncing.join().unwrap_or_else(|_| Err(io::Error::other("a sync has panicked")));
        self.is_broken |= synced.is_err();
        synced
    }

    fn rewrite(&mut self, tracker: &Tracker) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut output = BufWriter::new(private_options().create(true).truncate(true).open(&new)?);
        writeln!(output, "{}", self.header)?;
        for dir in &self.mounts {
            output.write_all(with_checksum(&mount_line(dir)).as_bytes())?;
        }
        let mut lines = 1 + self.mounts.len() as u64;
        for (name, stamp) in tracker.published() {
            output.write_all(with_checksum(&file_line(name, stamp)).as_bytes())?;
            lines += 1;
        }
        // At the end, because these files are not all of this batch.
        output.write_all(with_checksum(&batch_line(tracker.batch())).as_bytes())?;
        let file = output.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        (self.file, self.lines, self.is_broken) = (file, lines, false);
        sync_folder(self.path.parent().expect("the state file is in a folder"))
    }
}

fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn file_line(name: &RelativePath, stamp: FileStamp) -> String {
    let FileStamp { inode, size, modified_s, modified_ns } = stamp;
    format!("+ {inode} {size} {modified_s}.{modified_ns:09} {}", encode(name))
}

fn mount_line(dir: &RelativePath) -> String {
    format!("@ {}", if dir.is_empty() { ROOT.to_owned() } else { encode(dir) })
}

fn batch_line((number, files): (u64, u64)) -> String {
    format!("= {number} {files}")
}

fn with_checksum(text: &str) -> String {
    format!("{text} {}\n", checksum(text))
}

fn checksum(text: &str) -> String {
    format!("#{}", &blake3::hash(text.as_bytes()).to_hex()[..CHECKSUM_DIGITS])
}

/// The text of a line without its checksum, and whether it has one. `None` if the line is damaged.
fn verify_line(line: &str) -> Option<(&str, bool)> {
    let words = match line.split_once(' ')?.0 {
        "+" => 5,
        "=" => 3,
        "-" | "@" => 2,
        _ => return None,
    };
    let found = line.split(' ').count();
    if found == words + 1 {
        let (text, last) = line.rsplit_once(' ')?;
        return (last == checksum(text)).then_some((text, true));
    }
    // If the space before the checksum is damaged, the checksum looks like the end of a name.
    let before = line.len().checked_sub(CHECKSUM_DIGITS + 2).and_then(|at| line.get(..at));
    let is_joined = before.is_some_and(|before| line.ends_with(&checksum(before)));
    (found == words && !is_joined).then_some((line, false))
}

/// Checks a state file without changing it. Returns the problems, and what could not be checked.
pub fn check(path: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let bytes = fs::read(path)?;
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let head = lines.next().unwrap_or_default();
    let digest = blake3::hash(head.strip_suffix(b"\n").unwrap_or(head)).to_hex();
    if !bytes.is_empty() && path.file_stem().is_none_or(|stem| *stem != digest[..16]) {
        problems.push("the first line does not match the name of the file".to_owned());
    }
    let (mut unchecked, mut remembered) = (0, SavedState::default());
    for (number, line) in (2..).zip(lines) {
        let Some(text) = line.strip_suffix(b"\n") else {
            // A crash cuts a line off, but does not replace its line end by another byte.
            let before = line.split_last().and_then(|(_, line)| std::str::from_utf8(line).ok());
            match before.and_then(verify_line) {
                Some((_, true)) => problems.push(format!("line {number} has no line end")),
                _ => notes.push(format!("line {number} has no line end, as after a crash")),
            }
            continue;
        };
        let line = std::str::from_utf8(text).ok().and_then(verify_line);
        unchecked += u64::from(line.is_some_and(|(_, has_sum)| !has_sum));
        if line.and_then(|(text, _)| apply_line(text, &mut remembered)).is_none() {
            problems.push(format!("line {number} is damaged"));
        }
    }
    if unchecked > 0 {
        notes.push(format!(
            "{unchecked} lines have no checksum (from an earlier version): not checked"
        ));
    }
    Ok((problems, notes))
}

enum ReadState {
    Empty,
    Valid(SavedState, u64),
    Mismatch,
}

/// Reads all lines, and cuts off an incomplete last line.
fn read(file: &File, head: &str) -> io::Result<ReadState> {
    let mut input = BufReader::new(file);
    let (mut remembered, mut lines, mut whole) = (SavedState::default(), 0_u64, 0_u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        let bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\n") else {
            if bytes as u64 == LINE_BYTES_MAX {
                return Ok(ReadState::Mismatch);
            }
            break;
        };
        whole += bytes as u64;
        if lines == 0 && text != head.as_bytes() {
            return Ok(ReadState::Mismatch);
        }
        if lines > 0 {
            let line = std::str::from_utf8(text).ok().and_then(verify_line);
            let applied = line.and_then(|(text, _)| apply_line(text, &mut remembered));
            if applied.is_none() {
                tracing::warn!(
                    line = lines + 1,
                    "skipped a damaged line in the state of a watched directory"
                );
            }
        }
        lines += 1;
    }
    file.set_len(whole)?;
    Ok(if lines == 0 { ReadState::Empty } else { ReadState::Valid(remembered, lines) })
}

fn apply_line(line: &str, remembered: &mut SavedState) -> Option<()> {
    let (kind, rest) = line.split_once(' ')?;
    let mut words = rest.split(' ');
    let mut word = || words.next();
    match kind {
        "+" => {
            let (inode, size) = (word()?.parse().ok()?, word()?.parse().ok()?);
            let (whole, rest) = word()?.split_once('.')?;
            let stamp = FileStamp {
                inode,
                size,
                modified_s: whole.parse().ok()?,
                modified_ns: rest.parse().ok()?,
            };
            remembered.published.insert(RelativePath::from(decode(word()?)), stamp);
            remembered.batch_files += 1;
        }
        "-" => {
            let name = decode(word()?);
            remembered.published.remove(name.as_slice());
            remembered.mounts.remove(name.as_slice());
        }
        "@" => {
            let dir = word()?;
            remembered.mounts.insert(if dir == ROOT { [].into() } else { decode(dir).into() });
        }
        "=" => {
            remembered.batch_number = word()?.parse().ok()?;
            remembered.batch_files = word()?.parse().ok()?;
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tracker::TrackerConfig;

    fn name(text: &[u8]) -> RelativePath {
        RelativePath::from(text)
    }

    fn stamp(n: u64) -> FileStamp {
        FileStamp { inode: n, size: n, modified_s: -1, modified_ns: 5 }
    }

    fn open(folder: &Path) -> Result<(StateFile, SavedState), StateFileError> {
        StateFile::open(folder, &"t".parse().unwrap(), b"/srv/a b")
    }

    fn tracker(told: &BTreeMap<RelativePath, FileStamp>) -> Tracker {
        let rules = TrackerConfig {
            settle: Duration::ZERO,
            batch_end: None,
            once: false,
            retry: Duration::ZERO,
            files_max: 10,
        };
        Tracker::new(rules, told.clone(), 7, 1)
    }

    #[track_caller]
    fn close(state: StateFile, told: &BTreeMap<RelativePath, FileStamp>) {
        state.close(&tracker(told)).unwrap();
    }

    fn path(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.find(|path| path.extension().unwrap() == "state").unwrap()
    }

    #[test]
    fn published_files_are_stored_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, remembered) = open(folder.path()).unwrap();
        assert_eq!(remembered, SavedState::default());
        state.record_file(&name(b"a\n\xff"), stamp(1));
        state.begin_batch(3, 0);
        state.record_file(&name(b"b"), stamp(2));
        state.record_file(&name(b"b"), stamp(3));
        state.record_file(&name(b"c"), stamp(4));
        state.record_removal(&name(b"c"));
        for dir in [b"".as_slice(), b"a b/", b"c/"] {
            state.record_mount(&name(dir));
        }
        state.record_removal(&name(b"c/"));
        assert!(matches!(open(folder.path()), Err(StateFileError::InUse { .. })));
        close(state, &BTreeMap::new());
        let (_, remembered) = open(folder.path()).unwrap();
        let published = [(name(b"a\n\xff"), stamp(1)), (name(b"b"), stamp(3))].into();
        let mounts = [name(b""), name(b"a b/")].into();
        assert_eq!(remembered, SavedState { published, batch_number: 3, batch_files: 3, mounts });
    }

    #[test]
    fn a_line_torn_by_a_crash_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        state.record_file(&name(b"a"), stamp(1));
        state.record_file(&name(b"b"), stamp(2));
        close(state, &BTreeMap::new());
        let whole = fs::read(path(folder.path())).unwrap();
        for length in 0..whole.len() {
            fs::write(path(folder.path()), &whole[..length]).unwrap();
            let (mut state, remembered) = open(folder.path()).unwrap();
            let lines = whole[..length].split(|byte| *byte == b'\n').count() - 1;
            assert_eq!(remembered.published.len(), lines.saturating_sub(1), "{length}");
            state.record_file(&name(b"c"), stamp(3));
            close(state, &BTreeMap::new());
            let (_, remembered) = open(folder.path()).unwrap();
            assert_eq!(remembered.published.get(&name(b"c")), Some(&stamp(3)), "{length}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found_and_old_lines_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        for (n, text) in [(1, "a#1"), (2, "b"), (3, "c c")] {
            state.record_file(&name(text.as_bytes()), stamp(n));
        }
        state.record_removal(&name(b"b"));
        state.begin_batch(2, 0);
        state.record_mount(&name(b"d/"));
        close(state, &BTreeMap::new());
        let path = path(folder.path());
        let none = (Vec::new(), Vec::new());
        assert_eq!(check(&path).unwrap(), none);
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let (problems, notes) = check(&path).unwrap();
            assert!(!problems.is_empty(), "bit {bit}: {notes:?}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        let text = String::from_utf8(whole).unwrap();
        let without = |line| str::rsplit_once(line, " #").map_or(line, |(text, _)| text);
        let old = text.lines().map(without).collect::<Vec<_>>().join("\n") + "\n";
        fs::write(&path, old).unwrap();
        let (problems, notes) = check(&path).unwrap();
        assert!(problems.is_empty() && notes[0].starts_with("6 lines"), "{problems:?} {notes:?}");
        let (_, remembered) = open(folder.path()).unwrap();
        assert_eq!((remembered.published.len(), remembered.batch_number), (2, 2));
    }

    #[test]
    fn the_file_is_rewritten_when_it_grows_or_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        let published: BTreeMap<_, _> = [(name(b"a"), stamp(9))].into();
        state.record_mount(&name(b"b/"));
        for n in 0..=STALE_LINES_MIN + 2 {
            state.record_file(&name(b"a"), stamp(n));
        }
        close(state, &published);
        assert!(fs::metadata(path(folder.path())).unwrap().len() < 200);
        let (mut state, _) = open(folder.path()).unwrap();
        state.is_broken = true;
        state.record_file(&name(b"b"), stamp(1));
        // A sync is due, so the rewrite happens at once.
        state.unsynced_since = Instant::now().checked_sub(SYNC_EVERY);
        state.write(&tracker(&published)).unwrap();
        assert!(!state.is_broken);
        drop(state);
        let (_, remembered) = open(folder.path()).unwrap();
        let mounts = [name(b"b/")].into();
        assert_eq!(remembered, SavedState { published, batch_number: 7, batch_files: 1, mounts });
    }

    #[test]
    fn files_of_another_format_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        for foreign in [b"tidings-watch 2 x\n".to_vec(), vec![b'x'; 20_000]] {
            fs::write(path(folder.path()), &foreign).unwrap();
            assert!(matches!(open(folder.path()), Err(StateFileError::Mismatch { .. })));
            assert_eq!(fs::read(path(folder.path())).unwrap(), foreign);
        }
    }
}
