//! The encoding of the journal: a segment header and batches, as in
//! [segments](crate::format). The topic's name is `catalog`, seqs count records, and a
//! payload is lines of records. A batch takes effect as a whole or not at all.
//!
//! A batch also records what was synced when it was written (*durable*). So invalid data that a
//! later batch declares durable was lost by the disk; other invalid data is what a crash has left.

use memchr::memmem;
use tidings_protocol::{Seq, TopicName};

use super::{InvalidRecord, JournalContents};
use crate::format::{
    BATCH_HEADER, BATCH_MAGIC, BatchHeader, BatchHome, FormatError, SEGMENT_HEADER, SegmentHeader,
};

/// A batch is closed at this payload size.
const BATCH_BYTES: usize = 64 << 10;

/// Stands in the field for the topic's name.
const NAME: &str = "catalog";

/// Appends the header of a file that begins with the record `base`.
pub(super) fn encode_header(base: Seq, unix_ms: i64, out: &mut Vec<u8>) {
    let header = SegmentHeader { topic: name(), base, previous_end: base, reserved: base, unix_ms };
    out.extend_from_slice(&header.encode());
}

fn name() -> TopicName {
    TopicName::new(NAME).expect("the name is valid")
}

/// The address of all batches. The offset is left out.
fn home() -> BatchHome {
    BatchHome::new(&name(), Seq(0))
}

/// Appends records as batches, beginning with the seq `first`, and returns the seq after the last
/// one. Everything before `durable` is safe when these records take effect.
pub(super) fn encode(
    records: impl IntoIterator<Item = impl AsRef<str>>,
    first: Seq,
    durable: Seq,
    unix_ms: i64,
    out: &mut Vec<u8>,
) -> Seq {
    let home = home();
    let mut encode_batch = |first: Seq, count, lines: &str| {
        let header = BatchHeader {
            first,
            count,
            bytes: u32::try_from(lines.len()).expect("a batch is closed long before that size"),
            previous_end: first,
            durable: durable.min(first),
            reserved: first,
            unix_ms,
            crc: crc32c::crc32c(lines.as_bytes()),
            ..BatchHeader::default()
        };
        out.extend_from_slice(&header.encode_at(home, 0));
        out.extend_from_slice(lines.as_bytes());
        header.end()
    };
    let (mut next, mut count, mut lines) = (first, 0, String::new());
    for record in records {
        lines.push_str(record.as_ref());
        lines.push('\n');
        count += 1;
        if lines.len() >= BATCH_BYTES {
            next = encode_batch(next, count, &lines);
            lines.clear();
            count = 0;
        }
    }
    if count == 0 { next } else { encode_batch(next, count, &lines) }
}

/// The result of replaying a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replayed {
    /// The seq of the next record; known from the header, or once a record was read.
    pub(super) next: Option<Seq>,
    /// The offset after the last valid batch.
    pub(super) end: usize,
    /// Data was lost that had been synced, or that was not merely torn off at the end.
    pub(super) damaged: bool,
    /// Descriptions of damage, to be prefixed with the file name.
    pub(super) problems: Vec<String>,
}

/// Applies every valid batch of a file.
///
/// Fails only if the file is of a version that this program does not know, because its meaning may
/// be different then.
pub(super) fn replay(
    bytes: &[u8],
    contents: &mut dyn JournalContents,
) -> Result<Replayed, FormatError> {
    let mut replay = Replay {
        bytes,
        home: home(),
        contents,
        found: Replayed {
            next: None,
            end: SEGMENT_HEADER.min(bytes.len()),
            damaged: false,
            problems: Vec::new(),
        },
    };
    match SegmentHeader::decode(bytes) {
        Ok(header) if header.topic.as_str() == NAME => replay.found.next = Some(header.base),
        Ok(header) => {
            replay.damage(format!("it is not the catalog, but a file of topic {}", header.topic));
        }
        Err(error @ FormatError::Version(_)) => return Err(error),
        Err(error) => replay.damage(error.to_string()),
    }
    replay.run()?;
    Ok(replay.found)
}

struct Replay<'a> {
    bytes: &'a [u8],
    home: BatchHome,
    contents: &'a mut dyn JournalContents,
    found: Replayed,
}

/// A valid batch of the file.
struct Batch<'a> {
    header: BatchHeader,
    records: Result<Vec<&'a str>, InvalidRecord>,
    end: usize,
}

impl<'a> Replay<'a> {
    fn run(&mut self) -> Result<(), FormatError> {
        let mut at = self.found.end;
        loop {
            if let Some(batch) = self.batch_at(at)? {
                at = batch.end;
                self.apply(batch);
                continue;
            }
            let Some((next, batch)) = self.search(at + 1)? else { break };
            if self.found.next.is_some_and(|lost| batch.header.durable <= lost) {
                break;
            }
            self.damage(format!("bytes {at} to {} are not a valid batch", next - 1));
            at = next;
        }
        let rest = self.bytes.get(at..).unwrap_or_default();
        if rest.iter().any(|byte| *byte != 0) {
            let problem = format!("its last {} bytes are an incomplete batch", rest.len());
            self.found.problems.push(problem);
        }
        Ok(())
    }

    fn apply(&mut self, batch: Batch<'_>) {
        let Batch { header, records, end } = batch;
        self.found.end = end;
        let next = self.found.next.unwrap_or(header.first);
        if header.first < next {
            let (first, last) = (header.first, header.end().0 - 1);
            self.damage(format!("records {first} to {last} appear again"));
            return;
        }
        match records.and_then(|records| self.contents.apply(&records)) {
            Ok(()) if header.first > next => {
                let last = header.first.0 - 1;
                self.damage(format!("records {next} to {last} cannot be read"));
            }
            Ok(()) => {}
            Err(error) => self.damage(format!("in the batch of record {}, {error}", header.first)),
        }
        self.found.next = Some(next.max(header.end()));
    }

    fn damage(&mut self, problem: String) {
        self.found.damaged = true;
        self.found.problems.push(problem);
    }

    /// The batch at `at`, if its header and payload are valid.
    fn batch_at(&self, at: usize) -> Result<Option<Batch<'a>>, FormatError> {
        let bytes = self.bytes.get(at..).unwrap_or_default();
        let header = match BatchHeader::decode_at(bytes, self.home, 0) {
            Ok(header) => header,
            Err(error @ FormatError::Version(_)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let length = usize::try_from(header.bytes).unwrap_or(usize::MAX);
        let payload = bytes.get(BATCH_HEADER..).and_then(|rest| rest.get(..length));
        let Some(payload) = payload.filter(|payload| crc32c::crc32c(payload) == header.crc) else {
            return Ok(None);
        };
        let records = records(payload, header.count);
        Ok(Some(Batch { header, records, end: at + BATCH_HEADER + length }))
    }

    /// The next batch from `at` on, and its offset.
    fn search(&self, at: usize) -> Result<Option<(usize, Batch<'a>)>, FormatError> {
        for found in memmem::find_iter(self.bytes.get(at..).unwrap_or_default(), BATCH_MAGIC) {
            if let Some(batch) = self.batch_at(at + found)? {
                return Ok(Some((at + found, batch)));
            }
        }
        Ok(None)
    }
}

fn records(payload: &[u8], count: u32) -> Result<Vec<&str>, InvalidRecord> {
    let text = std::str::from_utf8(payload).map_err(|_| InvalidRecord)?;
    let records: Vec<_> = text.lines().collect();
    if u32::try_from(records.len()) == Ok(count) { Ok(records) } else { Err(InvalidRecord) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{Numbers, any_record};
    use super::*;

    /// A file with one batch per item of `runs`, and the end of each batch.
    fn file(runs: &[Vec<String>]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut next) = (Vec::new(), Seq(40));
        encode_header(next, 7, &mut bytes);
        let mut ends = vec![bytes.len()];
        for run in runs {
            next = encode(run, next, next, 8, &mut bytes);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn contents<'a>(records: impl IntoIterator<Item = &'a String>) -> Numbers {
        let mut contents = Numbers::default();
        records.into_iter().for_each(|record| contents.apply(&[record]).unwrap());
        contents
    }

    /// What a file amounts to.
    fn read(bytes: &[u8]) -> Result<(Replayed, Numbers), FormatError> {
        let mut contents = Numbers::default();
        Ok((replay(bytes, &mut contents)?, contents))
    }

    fn any_runs() -> impl Strategy<Value = Vec<Vec<String>>> {
        let run = prop::collection::vec(any_record(), 1..4);
        prop::collection::vec(run, 1..6)
    }

    #[track_caller]
    fn damaged(bytes: &[u8], problem: &str) -> (Replayed, Numbers) {
        let (found, contents) = read(bytes).unwrap();
        assert!(found.damaged);
        assert!(found.problems.iter().any(|text| text.contains(problem)), "{:?}", found.problems);
        (found, contents)
    }

    #[test]
    fn a_batch_is_closed_when_it_is_long() {
        let record = "set a 5".to_owned();
        let (bytes, _) = file(&[vec![record; 10_000]]);
        let batches = memmem::find_iter(&bytes, BATCH_MAGIC).count();
        assert!(batches > 1, "{batches} for {} bytes", bytes.len());
        let (found, _) = read(&bytes).unwrap();
        assert_eq!((found.next, found.end, found.damaged), (Some(Seq(10_040)), bytes.len(), false));
    }

    #[test]
    fn a_newer_version_is_an_error() {
        let (mut bytes, _) = file(&[vec!["set a 5".to_owned()]]);
        bytes[8] = 2;
        let crc = crc32c::crc32c(&bytes[..SEGMENT_HEADER - 4]);
        bytes[SEGMENT_HEADER - 4..SEGMENT_HEADER].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(read(&bytes), Err(FormatError::Version(2)));
    }

    #[test]
    fn a_valid_batch_with_invalid_records_is_damage() {
        let (mut bytes, ends) = file(&[vec!["set a 5".to_owned()]]);
        // The same number of bytes, with a verb that a newer version might have.
        let at = ends[0] + BATCH_HEADER;
        bytes[at..at + 3].copy_from_slice(b"put");
        let mut header = BatchHeader::decode_at(&bytes[ends[0]..], home(), 0).unwrap();
        header.crc = crc32c::crc32c(&bytes[at..]);
        bytes[ends[0]..at].copy_from_slice(&header.encode_at(home(), 0));
        let (found, _) = damaged(&bytes, "not a valid record");
        assert_eq!((found.next, found.end), (Some(Seq(41)), bytes.len()));
    }

    #[test]
    fn missing_records_are_reported() {
        let runs: Vec<_> = (2..5).map(|n| vec![format!("set a {n}")]).collect();
        let (bytes, ends) = file(&runs);
        let hole = [&bytes[..ends[1]], &bytes[ends[2]..]].concat();
        let (_, kept) = damaged(&hole, "records 41 to 41 cannot be read");
        assert_eq!(kept, contents(&runs[2]));
        let again = [&bytes[..ends[2]], &bytes[ends[1]..]].concat();
        damaged(&again, "records 41 to 41 appear again");
        let (found, kept) = damaged(&bytes[1..], "does not begin with the right bytes");
        assert_eq!((kept, found.next), (contents(&runs[2]), Some(Seq(43))));
    }

    #[test]
    fn unsynced_batches_may_be_lost_in_any_order() {
        let (mut bytes, _) = file(&[vec!["set a 5".to_owned()]]);
        let end = bytes.len();
        // Two batches with one sync. Only the second one reached the disk.
        encode(vec!["set b 6".to_owned(); 20_000], Seq(41), Seq(41), 0, &mut bytes);
        bytes[end..end + 512].fill(0);
        let (found, _) = read(&bytes).unwrap();
        assert_eq!((found.damaged, found.end, found.next), (false, end, Some(Seq(41))));
        assert_eq!(found.problems.len(), 1);
    }

    proptest! {
        #[test]
        fn a_file_cut_at_any_byte_is_its_whole_batches(runs in any_runs()) {
            let (bytes, ends) = file(&runs);
            for cut in ends[0]..=bytes.len() {
                let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
                let (found, kept) = read(&bytes[..cut]).unwrap();
                prop_assert!(!found.damaged, "{:?}", found.problems);
                prop_assert_eq!(found.end, ends[whole]);
                prop_assert_eq!(found.problems.is_empty(), cut == ends[whole]);
                prop_assert_eq!(kept, contents(runs[..whole].iter().flatten()));
            }
            for cut in 0..ends[0] {
                prop_assert!(read(&bytes[..cut]).unwrap().0.damaged);
            }
        }

        #[test]
        fn a_flipped_bit_costs_one_batch_and_is_named(
            runs in any_runs(),
            bit in any::<prop::sample::Index>(),
            zeros in 0..100_usize,
        ) {
            let (mut bytes, ends) = file(&runs);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.resize(bytes.len() + zeros, 0);
            let (found, kept) = read(&bytes).unwrap();
            prop_assert!(!found.problems.is_empty());
            let hit = ends.iter().filter(|end| **end <= bit / 8).count();
            let rest = runs.iter().enumerate().filter(|(run, _)| run + 1 != hit);
            prop_assert_eq!(kept, contents(rest.flat_map(|(_, run)| run)));
            prop_assert_eq!(found.damaged, hit < ends.len() - 1, "{:?}", found.problems);
        }

        #[test]
        fn anything_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes).is_ok_and(|(found, _)| found.damaged));
        }
    }
}
