//! The record of an orderly stop: where each log ended.
//!
//! Without it, damage to the last batch of a log looks like a batch that a crash has cut off, which
//! a start removes without reporting damage. With the record, everything before the recorded end
//! was whole and durable, so unreadable data there is damage.
//!
//! ```text
//!   <data>/clean-stop:
//!     tidings clean-stop 1
//!     catalog catalog.log header=9f0e6a01 bytes=412 end=9 next=9
//!     groups/crawlers 00000000000000000001.log header=17.. bytes=9000 end=41 next=41
//!     topics/new-url 00000000000000000001.log header=a3.. bytes=700 end=8 next=8
//!     checksum 5d2c0b7e
//! ```
//!
//! `header` is the checksum in the header of the file, `bytes` the offset after its last batch,
//! `end` the seq after its last event, and `next` the next seq to assign. The checksum is CRC-32C
//! of the lines before it.
//!
//! An orderly stop writes the record after it has synced and closed every log: to a temporary file,
//! which is synced and renamed. A start does not remove the record, because an old record stays
//! correct. No start, append or error truncates a file before the recorded end, and a file that
//! replaces another one has another header, so the record does not apply to it. The record is
//! therefore a lower bound: data beyond it is judged as without a record.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_protocol::{Seq, field, field_number};

use crate::disk::{Disk, read_file, replace_file};
use crate::summed_text::{before_checksum, with_checksum};

const FILE: &str = "clean-stop";

/// The first line: the kind of file and the version of its format.
const FIRST_LINE: &str = "tidings clean-stop 1";

/// The name in the record for the catalog's journal. Its file is in the data directory itself.
pub(crate) const CATALOG: &str = "catalog";

/// Maximum size of a record: enough for a hundred thousand logs.
const BYTES_MAX: u64 = 32 << 20;

/// Whether the ends of the logs at the last orderly stop are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StopRecord {
    /// The record does not exist: no broker has stopped there in an orderly way.
    #[default]
    Missing,
    /// There is a record.
    Readable,
    /// The record cannot be read; the text says why. The logs themselves are not damaged by that.
    Damaged(String),
}

/// The end of a log that was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The name of the newest file.
    pub(crate) file: String,
    /// The checksum in the header of that file. A file that replaces it has another checksum.
    pub(crate) header: u32,
    /// The offset after the last batch.
    pub(crate) bytes: u64,
    /// The seq after the last event.
    pub(crate) end: Seq,
    pub(crate) next: Seq,
}

/// The ends of the logs of a data directory at the last orderly stop, as far as they are known, and
/// at this stop.
#[derive(Debug)]
pub(crate) struct CleanStop {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    state: StopRecord,
    ends: LogEnds,
    /// The ends of the logs that were closed since.
    new_ends: Mutex<LogEnds>,
}

/// The ends of logs, by their names in the record.
type LogEnds = BTreeMap<String, LogEnd>;

/// The place of one log in the record.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSlot {
    /// Where the log ended at the last orderly stop, if that is known.
    pub(crate) last: Option<LogEnd>,
    /// The record, and the log's name in it; `None` for a log that is in no record.
    record: Option<(Arc<CleanStop>, String)>,
}

impl LogEnd {
    /// Whether this is the end of that file. `header` is the checksum in its header, if it can be
    /// read.
    pub(crate) fn is_of(&self, file: &Path, header: Option<u32>) -> bool {
        file.ends_with(&self.file) && header.is_none_or(|header| header == self.header)
    }
}

impl StopSlot {
    /// A log that ended there, in a record of its own.
    #[cfg(test)]
    pub(crate) fn after(end: Option<LogEnd>) -> Self {
        let disk = Arc::new(crate::simulation::SimulatedDisk::new(0));
        let record = Arc::new(CleanStop::read(disk, Path::new("")));
        Self { last: end, record: Some((record, "log".to_owned())) }
    }

    /// Where the log ends now, if it was closed.
    #[cfg(test)]
    pub(crate) fn new_end(&self) -> Option<LogEnd> {
        let (record, log) = self.record.as_ref()?;
        record.new_ends.lock().get(log).cloned()
    }

    /// Notes where the log ends now.
    pub(crate) fn set(&self, end: LogEnd) {
        if let Some((record, log)) = &self.record {
            record.new_ends.lock().insert(log.clone(), end);
        }
    }
}

impl CleanStop {
    /// Reads the record in a data directory. An unreadable record has no ends.
    pub(crate) fn read(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        let path = dir.join(FILE);
        let (state, ends) = match read_file(&*disk, &path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            bytes => match bytes.map_err(|error| error.to_string()).and_then(|it| decode(&it)) {
                Ok(ends) => (StopRecord::Readable, ends),
                Err(problem) => {
                    let problem = format!("{}: {problem}", path.display());
                    (StopRecord::Damaged(problem), LogEnds::default())
                }
            },
        };
        Self { disk, dir: dir.to_owned(), state, ends, new_ends: Mutex::default() }
    }

    /// Whether a record exists, and can be read.
    pub(crate) fn state(&self) -> &StopRecord {
        &self.state
    }

    pub(crate) fn end_of(&self, log: &str) -> Option<&LogEnd> {
        self.ends.get(log)
    }

    /// The place of a log in the record.
    pub(crate) fn slot(self: &Arc<Self>, log: &str) -> StopSlot {
        let record = Some((Arc::clone(self), log.to_owned()));
        StopSlot { last: self.end_of(log).cloned(), record }
    }

    /// Records the ends of the logs that were closed. Earlier ends of other logs stay while their
    /// files exist.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut all = self.ends.clone();
        all.retain(|log, end| self.disk.open(&self.file_of(log, end)).is_ok());
        all.extend(self.new_ends.lock().clone());
        replace_file(&*self.disk, &self.dir, FILE, encode(&all).as_bytes()).map(drop)
    }

    fn file_of(&self, log: &str, end: &LogEnd) -> PathBuf {
        let dir = if log == CATALOG { self.dir.clone() } else { self.dir.join(log) };
        dir.join(&end.file)
    }
}

fn encode(ends: &LogEnds) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for (log, LogEnd { file, header, bytes, end, next }) in ends {
        let _ =
            writeln!(text, "{log} {file} header={header:08x} bytes={bytes} end={end} next={next}");
    }
    with_checksum(text)
}

fn decode(bytes: &[u8]) -> Result<LogEnds, String> {
    let mut lines = before_checksum(bytes)?.lines();
    if lines.next() != Some(FIRST_LINE) {
        return Err("it has a format version that this program cannot read".to_owned());
    }
    let end = |line: &str| {
        let (log, rest) = line.split_once(' ')?;
        let (file, rest) = rest.split_once(' ')?;
        let end = LogEnd {
            file: file.to_owned(),
            header: u32::from_str_radix(field(rest, "header")?, 16).ok()?,
            bytes: field_number(rest, "bytes")?,
            end: Seq(field_number(rest, "end")?),
            next: Seq(field_number(rest, "next")?),
        };
        Some((log.to_owned(), end))
    };
    lines.map(|line| end(line).ok_or_else(|| format!("it holds an invalid line: {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FileSystem;

    fn end(file: &str, bytes: u64) -> LogEnd {
        LogEnd { file: file.to_owned(), header: 0xa3, bytes, end: Seq(8), next: Seq(9) }
    }

    fn reread(dir: &Path) -> Arc<CleanStop> {
        Arc::new(CleanStop::read(Arc::new(FileSystem), dir))
    }

    #[test]
    fn ends_are_kept_while_their_files_exist() {
        let dir = tempfile::tempdir().unwrap();
        let stop = reread(dir.path());
        assert_eq!(*stop.state(), StopRecord::Missing);
        std::fs::create_dir_all(dir.path().join("groups/g")).unwrap();
        std::fs::write(dir.path().join("groups/g/1.log"), "").unwrap();
        for (log, bytes) in [("groups/g", 5), ("topics/t", 6), ("catalog", 7)] {
            stop.slot(log).set(end("1.log", bytes));
        }
        stop.write().unwrap();
        let stop = reread(dir.path());
        assert_eq!(*stop.state(), StopRecord::Readable);
        assert_eq!(stop.slot("topics/t").last, Some(end("1.log", 6)));
        stop.slot("catalog").set(end("1.log", 8));
        stop.write().unwrap();
        let stop = reread(dir.path());
        let logs: Vec<_> = stop.ends.iter().map(|(log, end)| (log.as_str(), end.bytes)).collect();
        assert_eq!(logs, [("catalog", 8), ("groups/g", 5)]);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let whole = encode(&[("topics/t".to_owned(), end("1.log", 6))].into());
        assert_eq!(decode(whole.as_bytes()).unwrap().len(), 1);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                decode(&bytes).expect_err("damage is an error");
            }
            decode(&whole.as_bytes()[..at]).expect_err("a truncated record is an error");
        }
    }
}
