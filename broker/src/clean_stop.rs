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
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_log::{Disk, FileSystem, LogEnd};
use tidings_protocol::{GroupName, Seq, TopicName, field, field_number};

/// The file name.
const FILE: &str = "clean-stop";

/// The first line: the kind of file and the version of its format.
const FIRST_LINE: &str = "tidings clean-stop 1";

/// Stands for the directory of the catalog.
const CATALOG: &str = "catalog";

/// Maximum size of a record: enough for a hundred thousand logs.
const BYTES_MAX: u64 = 32 << 20;

/// The ends of the logs of a data directory at the last orderly stop, as far as they are known.
#[derive(Debug)]
pub(crate) struct CleanStop {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    ends: BTreeMap<String, LogEnd>,
    /// A record exists.
    is_present: bool,
}

impl Default for CleanStop {
    fn default() -> Self {
        Self {
            disk: Arc::new(FileSystem),
            dir: PathBuf::new(),
            ends: BTreeMap::new(),
            is_present: false,
        }
    }
}

/// The ends of logs, with their names in the record.
pub(crate) type LogEnds = Vec<(String, LogEnd)>;

/// The name of a topic's log in the record.
pub(crate) fn topic_log(topic: &TopicName) -> String {
    format!("topics/{topic}")
}

/// The name of a group's log in the record.
pub(crate) fn group_log(group: &GroupName) -> String {
    format!("groups/{group}")
}

/// The name of the catalog in the record.
pub(crate) fn catalog_log() -> String {
    CATALOG.to_owned()
}

impl CleanStop {
    /// Reads the record in a data directory, and describes what is wrong with it. An unreadable
    /// record has no ends.
    pub(crate) fn read(disk: Arc<dyn Disk>, dir: &Path) -> (Self, Option<String>) {
        let path = dir.join(FILE);
        let stop = Self { disk, dir: dir.to_owned(), ends: BTreeMap::new(), is_present: true };
        let bytes = match read(&*stop.disk, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return (Self { is_present: false, ..stop }, None);
            }
            bytes => bytes.map_err(|error| error.to_string()),
        };
        match bytes.and_then(|bytes| decode(&bytes)) {
            Ok(ends) => (Self { ends, ..stop }, None),
            Err(problem) => (stop, Some(format!("{}: {problem}", path.display()))),
        }
    }

    /// Whether a record exists, even an unreadable one.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present
    }

    /// The recorded end of a log.
    pub(crate) fn end_of(&self, log: &str) -> Option<&LogEnd> {
        self.ends.get(log)
    }

    /// Records the ends of logs. Earlier ends of other logs stay while their files exist.
    pub(crate) fn replace(&self, ends: LogEnds) -> io::Result<()> {
        let mut all = self.ends.clone();
        all.retain(|log, end| self.disk.open(&self.file_of(log, end)).is_ok());
        all.extend(ends);
        let bytes = encode(&all);
        let (temporary, path) = (self.dir.join(format!("{FILE}.tmp")), self.dir.join(FILE));
        let file = self.disk.create(&temporary)?;
        file.write_at(&mut [IoSlice::new(bytes.as_bytes())], 0)?;
        file.sync_data()?;
        self.disk.rename(&temporary, &path)?;
        self.disk.sync_dir(&self.dir)
    }

    fn file_of(&self, log: &str, end: &LogEnd) -> PathBuf {
        let dir = if log == CATALOG { self.dir.clone() } else { self.dir.join(log) };
        dir.join(&end.file)
    }
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let length = file.len()?;
    if length > BYTES_MAX {
        return Err(io::Error::other(format!("it has {length} bytes; the limit is {BYTES_MAX}")));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn encode(ends: &BTreeMap<String, LogEnd>) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for (log, LogEnd { file, header, bytes, end, next }) in ends {
        let _ =
            writeln!(text, "{log} {file} header={header:08x} bytes={bytes} end={end} next={next}");
    }
    let checksum = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "checksum {checksum:08x}");
    text
}

fn decode(bytes: &[u8]) -> Result<BTreeMap<String, LogEnd>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let (lines, last) = text
        .strip_suffix('\n')
        .and_then(|text| text.rsplit_once('\n'))
        .ok_or("it ends before its checksum does")?;
    let summed = text.get(..=lines.len()).unwrap_or_default();
    if last != format!("checksum {:08x}", crc32c::crc32c(summed.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    let mut lines = lines.lines();
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

    fn end(file: &str, bytes: u64) -> LogEnd {
        LogEnd { file: file.to_owned(), header: 0xa3, bytes, end: Seq(8), next: Seq(9) }
    }

    fn reread(dir: &Path) -> (CleanStop, Option<String>) {
        CleanStop::read(Arc::new(FileSystem), dir)
    }

    #[test]
    fn ends_are_kept_while_their_files_exist() {
        let dir = tempfile::tempdir().unwrap();
        let (stop, problem) = reread(dir.path());
        assert!(problem.is_none() && !stop.is_present());
        std::fs::create_dir_all(dir.path().join("groups/g")).unwrap();
        std::fs::write(dir.path().join("groups/g/1.log"), "").unwrap();
        let of = |log: &str, bytes| (log.to_owned(), end("1.log", bytes));
        stop.replace(vec![of("groups/g", 5), of("topics/t", 6), of("catalog", 7)]).unwrap();
        let (stop, problem) = reread(dir.path());
        assert!(problem.is_none() && stop.is_present());
        assert_eq!(stop.end_of("topics/t"), Some(&end("1.log", 6)));
        stop.replace(vec![of("catalog", 8)]).unwrap();
        let (stop, _) = reread(dir.path());
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
