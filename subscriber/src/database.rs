//! Checking a database of `SQLite` without changing anything beside or in it.
//!
//! What is found: damage in headers, trees, free lists and indexes (`PRAGMA integrity_check`), and in the frames of
//! a write-ahead log (their checksums). What cannot be found: a changed byte inside a text or number of a row that is
//! in no index, and in unused parts of pages. `SQLite` has no checksum for these.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// Problems that are named.
const PROBLEMS_MAX: usize = 20;

const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What is wrong with a database, in words; nothing if no damage can be found.
///
/// Fails if it cannot be read at all, which is damage if it is no matter of permissions.
pub fn check(path: &Path) -> io::Result<Vec<String>> {
    let wal = beside(path, "-wal");
    let log = match fs::read(&wal) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut problems: Vec<String> = check_wal(&log)
        .into_iter()
        .map(|problem| format!("{}: {problem}", wal.display()))
        .collect();
    match integrity(path, !log.is_empty()) {
        Ok(found) => problems.extend(found),
        Err(error) => problems.push(error.to_string()),
    }
    Ok(problems)
}

/// With a write-ahead log, in a copy: to read both where they are, `SQLite` makes a third file beside them.
fn integrity(path: &Path, has_wal: bool) -> rusqlite::Result<Vec<String>> {
    if !has_wal {
        return integrity_of(path, "?immutable=1");
    }
    let failed = |error: io::Error| {
        let text = format!("it cannot be copied for the check: {error}");
        rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some(text),
        )
    };
    let place = std::env::temp_dir().join(format!(
        "tidings-verify-{}-{:x}",
        std::process::id(),
        fastrand::u64(..)
    ));
    DirBuilder::new().mode(0o700).create(&place).map_err(failed)?;
    let copy = place.join("copy.db");
    let done = fs::copy(path, &copy)
        .and_then(|_| fs::copy(beside(path, "-wal"), beside(&copy, "-wal")))
        .map_err(failed);
    let found = done.and_then(|_| integrity_of(&copy, ""));
    let _ = fs::remove_dir_all(&place);
    found
}

fn integrity_of(path: &Path, query: &str) -> rusqlite::Result<Vec<String>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let text = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let connection = Connection::open_with_flags(format!("file:{text}{query}"), flags)?;
    let mut statement = connection.prepare(&format!("PRAGMA integrity_check({PROBLEMS_MAX})"))?;
    let found = statement.query_map([], |row| row.get::<_, String>(0))?;
    let found: Vec<String> = found.collect::<rusqlite::Result<_>>()?;
    Ok(found.into_iter().filter(|problem| problem != "ok").collect())
}

/// The first damage in a write-ahead log. Frames of an earlier round, which have other salts, may follow the
/// last one that counts.
fn check_wal(log: &[u8]) -> Option<String> {
    let word = |at: usize| {
        log.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().expect("four")))
    };
    let magic = word(0)?;
    let is_big = match magic {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Some("it does not begin as it should".to_owned()),
    };
    let sums = |at| Some((word(at)?, word(at + 4)?));
    let header = log.get(..WAL_HEADER - 8)?;
    let mut sum = add((0, 0), header, is_big);
    if Some(sum) != sums(WAL_HEADER - 8) {
        return Some("the checksum of its header is wrong".to_owned());
    }
    let (page, salts) = (word(8)? as usize, sums(16)?);
    let size = FRAME_HEADER + page;
    let frames = (log.len() - WAL_HEADER) / size;
    let at = |frame: usize| WAL_HEADER + frame * size;
    for frame in 0..frames {
        let start = at(frame);
        sum = add(sum, &log[start..start + 8], is_big);
        sum = add(sum, &log[start + FRAME_HEADER..start + size], is_big);
        let is_ours = sums(start + 8) == Some(salts);
        if is_ours && sums(start + 16) == Some(sum) {
            continue;
        }
        let later = (frame + 1..frames).any(|frame| sums(at(frame) + 8) == Some(salts));
        return (is_ours || later).then(|| {
            format!(
                "frame {} at byte {start} is damaged: what it holds and all after it is lost",
                frame + 1
            )
        });
    }
    None
}

/// The checksum of `SQLite`, over a multiple of 8 bytes.
fn add((mut a, mut b): (u32, u32), bytes: &[u8], is_big: bool) -> (u32, u32) {
    let word = |bytes: &[u8]| {
        let bytes: [u8; 4] = bytes.try_into().expect("four bytes");
        if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(word(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(word(&pair[4..])).wrapping_add(a);
    }
    (a, b)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
