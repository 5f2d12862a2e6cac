//! What was announced of a directory, over restarts: a small file of lines that only grows, and is written anew when
//! most of it is out of date.
//!
//! ```text
//! tidings-watch 1 topic=file-ready dir=/srv/out
//! + 8123 17 1795290973.246000000 a.pdf #0c1f9a3e    announced: inode, bytes, modified, name
//! - a.pdf #73..                            gone
//! = 3 12 #5d..                             batch 3 has begun, and has 12 files so far; each + is one more
//! @ disk/ #81..                            something is mounted there; - disk/: there is no such directory
//! ```
//!
//! Behind `#` are the first digits of the BLAKE3 of what is before it on the line. Lines of earlier versions have no such
//! word, and earlier versions read lines that have it.
//!
//! A line is written when the broker has confirmed what it says, so nothing is ever missing in the topic because it is
//! here. What is missing here (the end of the file after a crash) is announced again, under the same id. A line that
//! cannot be read counts as missing. Another version is another first word, and is refused.

#![expect(
    clippy::disallowed_methods,
    reason = "syncs no more often than every second, on a thread"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidings_protocol::TopicName;

use super::{
    name::{decode, encode},
    tracker::{Name, Stamp},
};

const MAGIC: &str = "tidings-watch 1";

/// What a power cut may have announced again is what came in this time.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Lines that may be out of date without being worth a rewrite.
const STALE_LINES_MIN: u64 = 10_000;

/// The directory itself; what is below it ends in `/`.
const ROOT: &str = ".";

/// Digits of the checksum of a line.
const SUM_DIGITS: usize = 8;

/// Longer lines are of nobody here: each byte of a path takes three at most.
const LINE_BYTES_MAX: u64 = 3 * 4096 + 200;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process watches this directory for this topic, with this state.
    #[error("{dir} is watched already, by another tidings with the same --data")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// It is of another version or another directory.
    #[error("{} is not a state of this directory that can be read; without it, everything is announced again", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The system says no.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

/// What a state file said when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// What is announced.
    pub told: BTreeMap<Name, Stamp>,
    /// The number of the present batch.
    pub batch_number: u64,
    /// Files in it so far.
    pub batch_files: u64,
    /// Directories on which something is mounted, or was.
    pub mounts: BTreeSet<Name>,
}

/// An open state file. While it is open nobody else opens it.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    head: String,
    file: File,
    lines: u64,
    mounts: BTreeSet<Name>,
    /// Lines to be written.
    unwritten: Vec<u8>,
    unsynced_since: Option<Instant>,
    /// A disk takes its time, and files are announced meanwhile.
    syncing: Option<JoinHandle<io::Result<()>>>,
    /// A write or a sync has failed, so the file has to be written anew before another line.
    is_broken: bool,
    _lock: File,
}

impl StateFile {
    /// Opens the one of this directory and topic in a folder, which has to be there.
    pub fn open(
        folder: &Path,
        topic: &TopicName,
        dir: &[u8],
    ) -> Result<(Self, Remembered), StateError> {
        let head = format!("{MAGIC} topic={topic} dir={}", encode(dir));
        let digest = blake3::hash(head.as_bytes()).to_hex();
        let path = folder.join(format!("{}.state", &digest[..16]));
        let failed = |source| StateError::Io { path: path.clone(), source };
        let lock = private().create(true).open(path.with_extension("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::InUse { dir: encode(dir) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut file = private().create(true).open(&path).map_err(failed)?;
        let (remembered, lines) = match read(&file, &head).map_err(failed)? {
            Found::Whole(remembered, lines) => (remembered, lines),
            Found::Empty => {
                // A crash may have left a part of it, which was read, and cut off.
                file.seek(SeekFrom::End(0)).map_err(failed)?;
                writeln!(file, "{head}").and_then(|()| sync_folder(folder)).map_err(failed)?;
                (Remembered::default(), 0)
            }
            Found::Foreign => return Err(StateError::Foreign { path }),
        };
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let state = Self {
            path,
            head,
            file,
            lines,
            mounts: remembered.mounts.clone(),
            unwritten: Vec::new(),
            unsynced_since: None,
            syncing: None,
            is_broken: false,
            _lock: lock,
        };
        Ok((state, remembered))
    }

    /// Notes that a file was announced, with the next [`write`](Self::write).
    pub fn remember(&mut self, name: &Name, stamp: Stamp) {
        self.unwritten.extend_from_slice(line(&told(name, stamp)).as_bytes());
        self.lines += 1;
    }

    /// Notes that something is mounted on a directory.
    pub fn note_mount(&mut self, dir: &Name) {
        self.mounts.insert(Arc::clone(dir));
        self.unwritten.extend_from_slice(line(&mount(dir)).as_bytes());
        self.lines += 1;
    }

    /// Notes that a file is gone, or a directory on which something was mounted.
    pub fn forget(&mut self, name: &Name) {
        self.mounts.remove(name);
        self.unwritten.extend_from_slice(line(&format!("- {}", encode(name))).as_bytes());
        self.lines += 1;
    }

    /// Notes that a batch has begun.
    pub fn begin_batch(&mut self, number: u64, files: u64) {
        self.unwritten.extend_from_slice(line(&format!("= {number} {files}")).as_bytes());
        self.lines += 1;
    }

    /// When there is something to write or to sync.
    pub fn due(&self) -> Option<Instant> {
        self.unsynced_since.map(|since| since + SYNC_EVERY)
    }

    /// Writes what was noted, and has it synced when that is due. After a failure everything is written anew, as `now`
    /// gives it: what is to be remembered, and the present batch with its files.
    pub fn write<'a, T: Iterator<Item = (&'a Name, Stamp)>>(
        &mut self,
        now: impl Fn() -> (T, (u64, u64)),
        live: usize,
    ) -> io::Result<()> {
        if !self.unwritten.is_empty() {
            self.unsynced_since.get_or_insert_with(Instant::now);
            let lines = std::mem::take(&mut self.unwritten);
            self.is_broken |= self.file.write_all(&lines).is_err();
        }
        if self.due().is_none_or(|due| Instant::now() < due) {
            return Ok(());
        }
        // What does not succeed is tried again after as long as it would be synced after.
        self.unsynced_since = Some(Instant::now());
        if self.syncing.as_ref().is_some_and(|syncing| !syncing.is_finished()) {
            return Ok(());
        }
        let synced = self.synced();
        if self.must_be_rewritten(live) {
            let (told, batch) = now();
            self.rewrite(told, batch)?;
        } else {
            let file = self.file.try_clone()?;
            self.syncing = Some(thread::spawn(move || file.sync_data()));
        }
        self.unsynced_since = None;
        synced
    }

    /// Writes and syncs what there is.
    pub fn close<'a, T: Iterator<Item = (&'a Name, Stamp)>>(
        mut self,
        now: impl Fn() -> (T, (u64, u64)),
        live: usize,
    ) -> io::Result<()> {
        let lines = std::mem::take(&mut self.unwritten);
        self.is_broken |= self.file.write_all(&lines).is_err();
        // What it says shows in what is done next.
        let _ = self.synced();
        if self.must_be_rewritten(live) {
            let (told, batch) = now();
            return self.rewrite(told, batch);
        }
        self.file.sync_data()
    }

    fn must_be_rewritten(&self, live: usize) -> bool {
        self.is_broken || self.lines > 2 * live as u64 + STALE_LINES_MIN
    }

    /// The end of the last sync. After one that has failed nobody knows what is on the disk.
    fn synced(&mut self) -> io::Result<()> {
        let Some(syncing) = self.syncing.take() else { return Ok(()) };
        let synced =
            syncing.join().unwrap_or_else(|_| Err(io::Error::other("a sync has panicked")));
        self.is_broken |= synced.is_err();
        synced
    }

    fn rewrite<'a>(
        &mut self,
        told: impl Iterator<Item = (&'a Name, Stamp)>,
        (number, files): (u64, u64),
    ) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut output = BufWriter::new(private().create(true).truncate(true).open(&new)?);
        writeln!(output, "{}", self.head)?;
        for dir in &self.mounts {
            output.write_all(line(&mount(dir)).as_bytes())?;
        }
        let mut lines = 1 + self.mounts.len() as u64;
        for (name, stamp) in told {
            output.write_all(line(&self::told(name, stamp)).as_bytes())?;
            lines += 1;
        }
        // Behind them: they are not of this batch alone.
        output.write_all(line(&format!("= {number} {files}")).as_bytes())?;
        let file = output.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        (self.file, self.lines, self.is_broken) = (file, lines, false);
        sync_folder(self.path.parent().expect("it is in a folder"))
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn told(name: &Name, stamp: Stamp) -> String {
    let Stamp { inode, size, modified_s, modified_ns } = stamp;
    format!("+ {inode} {size} {modified_s}.{modified_ns:09} {}", encode(name))
}

fn mount(dir: &Name) -> String {
    format!("@ {}", if dir.is_empty() { ROOT.to_owned() } else { encode(dir) })
}

/// A line of the file, with its checksum.
fn line(text: &str) -> String {
    format!("{text} {}\n", sum(text))
}

/// The checksum of what is before it on a line.
fn sum(text: &str) -> String {
    format!("#{}", &blake3::hash(text.as_bytes()).to_hex()[..SUM_DIGITS])
}

/// What a line says without its checksum, and whether it has one; `None` if it is not as it was written.
fn whole(line: &str) -> Option<(&str, bool)> {
    let words = match line.split_once(' ')?.0 {
        "+" => 5,
        "=" => 3,
        "-" | "@" => 2,
        _ => return None,
    };
    let found = line.split(' ').count();
    if found == words + 1 {
        let (text, last) = line.rsplit_once(' ')?;
        return (last == sum(text)).then_some((text, true));
    }
    // Where the space before a checksum is damaged, it looks like the end of a name.
    let before = line.len().checked_sub(SUM_DIGITS + 2).and_then(|at| line.get(..at));
    let is_joined = before.is_some_and(|before| line.ends_with(&sum(before)));
    (found == words && !is_joined).then_some((line, false))
}

/// Checks a state file without changing it: what is wrong, and what could not be checked, in words.
pub fn check(path: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let bytes = fs::read(path)?;
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let head = lines.next().unwrap_or_default();
    let digest = blake3::hash(head.strip_suffix(b"\n").unwrap_or(head)).to_hex();
    if !bytes.is_empty() && path.file_stem().is_none_or(|stem| *stem != digest[..16]) {
        problems.push("its first line is not the one that its name is made from".to_owned());
    }
    let (mut without, mut remembered) = (0, Remembered::default());
    for (number, line) in (2..).zip(lines) {
        let Some(text) = line.strip_suffix(b"\n") else {
            // A crash cuts a line off. It does not put another byte in the place of its end.
            let before = line.split_last().and_then(|(_, line)| std::str::from_utf8(line).ok());
            match before.and_then(whole) {
                Some((_, true)) => problems.push(format!("line {number} has no end")),
                _ => notes.push(format!("line {number} has no end, as after a crash")),
            }
            continue;
        };
        let line = std::str::from_utf8(text).ok().and_then(whole);
        without += u64::from(line.is_some_and(|(_, has_sum)| !has_sum));
        if line.and_then(|(text, _)| apply(text, &mut remembered)).is_none() {
            problems.push(format!("line {number} is damaged"));
        }
    }
    if without > 0 {
        notes.push(format!(
            "{without} lines have no checksum (from an earlier version): not checked"
        ));
    }
    Ok((problems, notes))
}

/// What a file is found to be.
enum Found {
    Empty,
    Whole(Remembered, u64),
    Foreign,
}

/// Reads all lines; an end without its line end is cut off.
fn read(file: &File, head: &str) -> io::Result<Found> {
    let mut input = BufReader::new(file);
    let (mut remembered, mut lines, mut whole) = (Remembered::default(), 0_u64, 0_u64);
    let mut line = Vec::new();
    loop {
        line.clear();
        let bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\n") else {
            if bytes as u64 == LINE_BYTES_MAX {
                return Ok(Found::Foreign);
            }
            break;
        };
        whole += bytes as u64;
        if lines == 0 && text != head.as_bytes() {
            return Ok(Found::Foreign);
        }
        if lines > 0 {
            let line = std::str::from_utf8(text).ok().and_then(self::whole);
            let applied = line.and_then(|(text, _)| apply(text, &mut remembered));
            if applied.is_none() {
                tracing::warn!(
                    line = lines + 1,
                    "a line of the state of a directory cannot be read"
                );
            }
        }
        lines += 1;
    }
    file.set_len(whole)?;
    Ok(if lines == 0 { Found::Empty } else { Found::Whole(remembered, lines) })
}

fn apply(line: &str, remembered: &mut Remembered) -> Option<()> {
    let (kind, rest) = line.split_once(' ')?;
    let mut words = rest.split(' ');
    let mut word = || words.next();
    match kind {
        "+" => {
            let (inode, size) = (word()?.parse().ok()?, word()?.parse().ok()?);
            let (whole, rest) = word()?.split_once('.')?;
            let stamp = Stamp {
                inode,
                size,
                modified_s: whole.parse().ok()?,
                modified_ns: rest.parse().ok()?,
            };
            remembered.told.insert(Name::from(decode(word()?)), stamp);
            remembered.batch_files += 1;
        }
        "-" => {
            let name = decode(word()?);
            remembered.told.remove(name.as_slice());
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

    fn name(text: &[u8]) -> Name {
        Name::from(text)
    }

    fn stamp(n: u64) -> Stamp {
        Stamp { inode: n, size: n, modified_s: -1, modified_ns: 5 }
    }

    fn open(folder: &Path) -> Result<(StateFile, Remembered), StateError> {
        StateFile::open(folder, &"t".parse().unwrap(), b"/srv/a b")
    }

    #[track_caller]
    fn close(state: StateFile, told: &BTreeMap<Name, Stamp>) {
        let now = || (told.iter().map(|(name, stamp)| (name, *stamp)), (7, 1));
        state.close(now, told.len()).unwrap();
    }

    fn path(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.find(|path| path.extension().unwrap() == "state").unwrap()
    }

    #[test]
    fn what_was_announced_is_remembered_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, remembered) = open(folder.path()).unwrap();
        assert_eq!(remembered, Remembered::default());
        state.remember(&name(b"a\n\xff"), stamp(1));
        state.begin_batch(3, 0);
        state.remember(&name(b"b"), stamp(2));
        state.remember(&name(b"b"), stamp(3));
        state.remember(&name(b"c"), stamp(4));
        state.forget(&name(b"c"));
        for dir in [b"".as_slice(), b"a b/", b"c/"] {
            state.note_mount(&name(dir));
        }
        state.forget(&name(b"c/"));
        assert!(matches!(open(folder.path()), Err(StateError::InUse { .. })));
        close(state, &BTreeMap::new());
        let (_, remembered) = open(folder.path()).unwrap();
        let told = [(name(b"a\n\xff"), stamp(1)), (name(b"b"), stamp(3))].into();
        let mounts = [name(b""), name(b"a b/")].into();
        assert_eq!(remembered, Remembered { told, batch_number: 3, batch_files: 3, mounts });
    }

    #[test]
    fn what_a_crash_has_torn_is_as_if_it_had_not_been_written() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        state.remember(&name(b"a"), stamp(1));
        state.remember(&name(b"b"), stamp(2));
        close(state, &BTreeMap::new());
        let whole = fs::read(path(folder.path())).unwrap();
        for length in 0..whole.len() {
            fs::write(path(folder.path()), &whole[..length]).unwrap();
            let (mut state, remembered) = open(folder.path()).unwrap();
            let lines = whole[..length].split(|byte| *byte == b'\n').count() - 1;
            assert_eq!(remembered.told.len(), lines.saturating_sub(1), "{length}");
            state.remember(&name(b"c"), stamp(3));
            close(state, &BTreeMap::new());
            let (_, remembered) = open(folder.path()).unwrap();
            assert_eq!(remembered.told.get(&name(b"c")), Some(&stamp(3)), "{length}");
        }
    }

    #[test]
    fn every_flipped_bit_is_named_and_lines_without_a_checksum_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        for (n, text) in [(1, "a#1"), (2, "b"), (3, "c c")] {
            state.remember(&name(text.as_bytes()), stamp(n));
        }
        state.forget(&name(b"b"));
        state.begin_batch(2, 0);
        state.note_mount(&name(b"d/"));
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
        assert_eq!((remembered.told.len(), remembered.batch_number), (2, 2));
    }

    #[test]
    fn it_does_not_grow_for_ever_and_mends_itself_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (mut state, _) = open(folder.path()).unwrap();
        let told: BTreeMap<_, _> = [(name(b"a"), stamp(9))].into();
        state.note_mount(&name(b"b/"));
        for n in 0..=STALE_LINES_MIN + 2 {
            state.remember(&name(b"a"), stamp(n));
        }
        close(state, &told);
        assert!(fs::metadata(path(folder.path())).unwrap().len() < 200);
        let (mut state, _) = open(folder.path()).unwrap();
        state.is_broken = true;
        state.remember(&name(b"b"), stamp(1));
        // That is tried as soon as a sync is due.
        state.unsynced_since = Instant::now().checked_sub(SYNC_EVERY);
        let now = || (told.iter().map(|(name, stamp)| (name, *stamp)), (7, 1));
        state.write(now, told.len()).unwrap();
        assert!(!state.is_broken);
        drop(state);
        let (_, remembered) = open(folder.path()).unwrap();
        let mounts = [name(b"b/")].into();
        assert_eq!(remembered, Remembered { told, batch_number: 7, batch_files: 1, mounts });
    }

    #[test]
    fn what_is_something_else_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        for foreign in [b"tidings-watch 2 x\n".to_vec(), vec![b'x'; 20_000]] {
            fs::write(path(folder.path()), &foreign).unwrap();
            assert!(matches!(open(folder.path()), Err(StateError::Foreign { .. })));
            assert_eq!(fs::read(path(folder.path())).unwrap(), foreign);
        }
    }
}
