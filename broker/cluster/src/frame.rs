//! A frame: one change of the data of a broker. The payloads of the messages of a commit, one after the
//! other, are frames.
//!
//! A frame is a byte that says which it is, and its fields. A number is 8 bytes, little-endian. Text
//! and bytes have their length before them, in 4 bytes.

use bytes::{Buf, BufMut, Bytes};
use tidings_log::{LogId, LogPiece};
use tidings_protocol::Seq;

/// A change that each broker makes to its own data.
#[derive(Debug, Clone)]
pub enum Frame {
    /// Events or records at the end of a log.
    Append {
        /// Which log.
        log: LogId,
        /// Where the log ended before.
        end: Seq,
        /// How many bytes of it are kept, as [`LogPlan`](tidings_log::LogPlan) has it.
        kept_bytes: u64,
        /// What is written.
        pieces: Vec<LogPiece>,
    },
    /// Nothing below this seq is kept.
    Trim {
        /// Which log.
        log: LogId,
        /// The first seq that is kept.
        below: Seq,
    },
    /// Every event of a log is removed.
    Clear {
        /// Which log.
        log: LogId,
    },
    /// Records at the end of the journal.
    Journal {
        /// Each is one line.
        records: Vec<String>,
    },
    /// A file of the data directory is replaced.
    File {
        /// Its name, without a folder.
        name: String,
        /// Its new contents.
        bytes: Bytes,
    },
}

/// A frame that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frame {0} bytes before the end of its commit cannot be read")]
pub struct FrameError(usize);

const APPEND: u8 = 1;
const TRIM: u8 = 2;
const CLEAR: u8 = 3;
const JOURNAL: u8 = 4;
const FILE: u8 = 5;

const TOPIC: u8 = 1;
const GROUP: u8 = 2;

impl Frame {
    /// Writes the frame behind others.
    ///
    /// # Panics
    /// If a field has 4 GiB or more.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Append { log, end, kept_bytes, pieces } => {
                out.push(APPEND);
                put_log(out, log);
                out.put_u64_le(end.0);
                out.put_u64_le(*kept_bytes);
                put_len(out, pieces.len());
                for piece in pieces {
                    out.put_u64_le(piece.first.0);
                    out.put_u64_le(piece.count);
                    out.put_i64_le(piece.unix_ms);
                    out.push(u8::from(piece.identified));
                    put_bytes(out, &piece.wire);
                }
            }
            Self::Trim { log, below } => {
                out.push(TRIM);
                put_log(out, log);
                out.put_u64_le(below.0);
            }
            Self::Clear { log } => {
                out.push(CLEAR);
                put_log(out, log);
            }
            Self::Journal { records } => {
                out.push(JOURNAL);
                put_len(out, records.len());
                for record in records {
                    put_bytes(out, record.as_bytes());
                }
            }
            Self::File { name, bytes } => {
                out.push(FILE);
                put_bytes(out, name.as_bytes());
                put_bytes(out, bytes);
            }
        }
    }

    /// Reads the frames of a commit. The bytes of events are shared, not copied.
    pub fn decode_all(mut commit: Bytes) -> Result<Vec<Self>, FrameError> {
        let mut frames = Vec::new();
        while commit.has_remaining() {
            let left = commit.len();
            frames.push(read_frame(&mut commit).ok_or(FrameError(left))?);
        }
        Ok(frames)
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.put_u32_le(u32::try_from(len).expect("a field is below 4 GiB"));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_log(out: &mut Vec<u8>, log: &LogId) {
    let (kind, name) = match log {
        LogId::Topic(name) => (TOPIC, name.as_ref()),
        LogId::Group(name) => (GROUP, name.as_ref()),
    };
    out.push(kind);
    put_bytes(out, name.as_bytes());
}

fn read_frame(commit: &mut Bytes) -> Option<Frame> {
    Some(match commit.try_get_u8().ok()? {
        APPEND => {
            let log = read_log(commit)?;
            let end = Seq(commit.try_get_u64_le().ok()?);
            let kept_bytes = commit.try_get_u64_le().ok()?;
            let pieces = read_many(commit, |commit| {
                Some(LogPiece {
                    first: Seq(commit.try_get_u64_le().ok()?),
                    count: commit.try_get_u64_le().ok().filter(|count| *count > 0)?,
                    unix_ms: commit.try_get_i64_le().ok()?,
                    identified: match commit.try_get_u8().ok()? {
                        0 => false,
                        1 => true,
                        _ => return None,
                    },
                    wire: read_bytes(commit)?,
                })
            })?;
            Frame::Append { log, end, kept_bytes, pieces }
        }
        TRIM => Frame::Trim { log: read_log(commit)?, below: Seq(commit.try_get_u64_le().ok()?) },
        CLEAR => Frame::Clear { log: read_log(commit)? },
        JOURNAL => Frame::Journal { records: read_many(commit, read_text)? },
        FILE => {
            let name = read_text(commit)?;
            // It is joined to the path of the data directory.
            if name.is_empty() || name.starts_with('.') || name.contains('/') {
                return None;
            }
            Frame::File { name, bytes: read_bytes(commit)? }
        }
        _ => return None,
    })
}

/// Reads a list. No memory is reserved for what its length promises.
fn read_many<T>(
    commit: &mut Bytes,
    mut read: impl FnMut(&mut Bytes) -> Option<T>,
) -> Option<Vec<T>> {
    let len = commit.try_get_u32_le().ok()?;
    (0..len).map(|_| read(commit)).collect()
}

fn read_bytes(commit: &mut Bytes) -> Option<Bytes> {
    let len = commit.try_get_u32_le().ok()? as usize;
    (len <= commit.len()).then(|| commit.split_to(len))
}

fn read_text(commit: &mut Bytes) -> Option<String> {
    String::from_utf8(read_bytes(commit)?.into()).ok()
}

fn read_log(commit: &mut Bytes) -> Option<LogId> {
    let kind = commit.try_get_u8().ok()?;
    let name = read_text(commit)?;
    match kind {
        TOPIC => name.parse().ok().map(LogId::Topic),
        GROUP => name.parse().ok().map(LogId::Group),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(first: u64, wire: &'static str) -> LogPiece {
        LogPiece { first: Seq(first), count: 1, unix_ms: -1, wire: wire.into(), identified: true }
    }

    fn frames() -> Vec<Frame> {
        let topic = || LogId::Topic("new-url".parse().unwrap());
        let group = || LogId::Group("crawlers".parse().unwrap());
        vec![
            Frame::Append {
                log: topic(),
                end: Seq(5),
                kept_bytes: 1 << 30,
                pieces: vec![piece(7, "a\n"), piece(8, "")],
            },
            Frame::Append { log: group(), end: Seq(1), kept_bytes: u64::MAX, pieces: Vec::new() },
            Frame::Trim { log: topic(), below: Seq(3) },
            Frame::Clear { log: group() },
            Frame::Journal { records: vec!["topic a".to_owned(), String::new()] },
            Frame::File { name: "access.toml".to_owned(), bytes: Bytes::from_static(b"\0\xff") },
        ]
    }

    fn encode(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.encode(&mut bytes);
        }
        bytes
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let read = Frame::decode_all(encode(&frames()).into()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", frames()));
    }

    #[test]
    fn no_change_of_a_byte_and_no_cut_costs_more_than_an_error() {
        let bytes = encode(&frames());
        let ends: Vec<_> = (0..=frames().len()).map(|n| encode(&frames()[..n]).len()).collect();
        for end in 0..bytes.len() {
            let cut = Frame::decode_all(Bytes::copy_from_slice(&bytes[..end]));
            assert_eq!(cut.is_ok(), ends.contains(&end), "{end}");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = Frame::decode_all(changed.into());
            }
        }
    }

    #[test]
    fn a_file_has_no_folder() {
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd"] {
            let frame = Frame::File { name: name.to_owned(), bytes: Bytes::new() };
            assert!(Frame::decode_all(encode(&[frame]).into()).is_err(), "{name}");
        }
    }
}
