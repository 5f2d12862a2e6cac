//! The record of an orderly stop: where each log ended.
//!
//! Without it, damage to the last batch of a log looks like a batch that a crash has cut off. A start cuts off
//! such a batch without calling it damage. With the record, everything before the noted end was whole and safe, so what cannot be
//! read there is damage.
//!
//! ```text
//!   <data>/clean-stop      tidings clean-stop 1
//!                          catalog catalog.log header=9f0e6a01 bytes=412 end=9 next=9
//!                          groups/crawlers 00000000000000000001.log header=17.. bytes=9000 end=41 next=41
//!                          topics/new-url 00000000000000000001.log header=a3.. bytes=700 end=8 next=8
//!                          checksum 5d2c0b7e
//! ```
//!
//! `header` is the checksum in the header of the file, `bytes` is where its last batch ends, `end` the number after its last event,
//! `next` the next number to be given. The checksum is CRC-32C of the lines before it.
//!
//! An orderly stop writes the record after it has synced and closed every log: to another name, synced, then
//! renamed. No start removes it, because an old record does no harm. A file only grows: no start, no append and no
//! error cuts it before the noted end. A file that replaces another one has another header, so the record does not apply to it. The
//! record is therefore a lower bound: a log that has grown beyond it since is judged as one without a record.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidings_protocol::{GroupName, Seq, TopicName, field, field_number};

use crate::log::LogEnd;
use crate::log::disk::{Disk, FileSystem};

/// The file's name.
const FILE: &str = "clean-stop";

/// The first line: what it is, and the version of its format.
const FIRST_LINE: &str = "tidings clean-stop 1";

/// What takes the place of a directory for the catalog.
const CATALOG: &str = "catalog";

/// No record is longer: room for a hundred thousand logs.
const BYTES_MAX: u64 = 32 << 20;

/// Where the logs of a data directory ended at the last orderly stop, as far as that is known.
#[derive(Debug)]
pub(crate) struct CleanStop {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    ends: BTreeMap<String, LogEnd>,
    /// There is a record.
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

/// The ends of logs, by what they are called in the record.
pub(crate) type Ends = Vec<(String, LogEnd)>;

/// What the log of a topic is called.
pub(crate) fn of_topic(topic: &TopicName) -> String {
    format!("topics/{topic}")
}

/// What the log of a group is called.
pub(crate) fn of_group(group: &GroupName) -> String {
    format!("groups/{group}")
}

/// What the catalog is called.
pub(crate) fn of_catalog() -> String {
    CATALOG.to_owned()
}

impl CleanStop {
    /// The record in a data directory, and what is wrong with it, in words. One that cannot be read is like none.
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

    /// Whether there is one, even one that cannot be read.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present
    }

    /// Where a log ended.
    pub(crate) fn end_of(&self, log: &str) -> Option<&LogEnd> {
        self.ends.get(log)
    }

    /// Notes where logs end. What is known of other logs stays, as long as their files are there.
    pub(crate) fn replace(&self, ends: Ends) -> io::Result<()> {
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
        return Err(io::Error::other(format!(
            "it has {length} bytes; at most {BYTES_MAX} make sense"
        )));
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
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
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
        return Err("it is of a version that this version of the program cannot read".to_owned());
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
    lines.map(|line| end(line).ok_or_else(|| format!("it makes no sense: {line}"))).collect()
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
    fn ends_come_back_and_those_of_files_that_are_gone_do_not_stay() {
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
                decode(&bytes).expect_err("it is damaged");
            }
            decode(&whole.as_bytes()[..at]).expect_err("it is cut off");
        }
    }
}
