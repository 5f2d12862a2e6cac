//! `--spool`: publishes the lines of files, and removes each file when all its lines are confirmed.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
};

use rustix::{
    fs::{CWD, OFlags, RenameFlags, renameat_with},
    io::Errno,
};
use tidings_protocol::{PAYLOAD_BYTES_MAX, Payload, push_attribute, text};

use super::{Files, token};
use crate::{
    announcer::Source,
    failure::Failure,
    lines::Lines,
    output::{note, printable},
    window::Refusal,
};

/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Rejected lines of a file that are reported one by one.
const NAMED_MAX: u64 = 5;

/// The prefix of the new name of a file with lines that cannot be events; a number is appended if
/// that name exists.
const REJECTED: &str = ".rejected-";

/// The lines in the files of the directories.
pub(super) struct Spool {
    files: Files,
    /// The file that is being read.
    reading: Option<Reading>,
    /// Files with unanswered lines, and the file that is being read, by the id of their
    /// announcement.
    open: BTreeMap<u64, Spooled>,
    /// The file of each unanswered line and its number there, by its event number.
    lines: BTreeMap<u64, (u64, u64)>,
    lines_begun: u64,
}

struct Reading {
    token: u64,
    file: File,
    lines: Lines,
    unread: Vec<u8>,
    id: String,
}

struct Spooled {
    path: PathBuf,
    found: Metadata,
    unanswered: u64,
    is_read: bool,
    /// The broker has rejected a line for now: the file is read again later.
    is_refused: bool,
    /// Lines that can never be events.
    rejected: u64,
}

impl Spool {
    pub(super) fn new(files: Files) -> Self {
        let (open, lines) = (BTreeMap::new(), BTreeMap::new());
        Self { files, reading: None, open, lines, lines_begun: 0 }
    }

    pub(super) fn into_files(self) -> Files {
        self.files
    }

    /// Opens the file of an announcement, if it is still a regular file.
    fn begin(&mut self, token: u64, path: PathBuf, id: String) {
        // Another user with write access may have replaced it.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let opened = opened.and_then(|file| file.metadata().map(|found| (file, found)));
        match opened {
            Ok((file, found)) if found.is_file() => {
                let (lines, unread) = (Lines::new(), Vec::new());
                self.reading = Some(Reading { token, file, lines, unread, id });
                let (unanswered, rejected) = (0, 0);
                let (is_read, is_refused) = (false, false);
                let spooled = Spooled { path, found, unanswered, is_read, is_refused, rejected };
                self.open.insert(token, spooled);
            }
            Ok(_) => self.files.settle(token, true),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    note(&format!("{} cannot be read: {error}", shown(&path)));
                }
                // It is announced again when it has changed.
                self.files.settle(token, true);
            }
        }
    }

    /// Reads the next piece of the file.
    fn read(&mut self) -> Vec<(u64, String)> {
        let Some(mut reading) = self.reading.take() else { return Vec::new() };
        let spooled = self.open.get_mut(&reading.token).expect("it is read");
        let mut events = Vec::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = loop {
            match reading.file.read(&mut chunk) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    note(&format!("{} cannot be read: {error}", shown(&spooled.path)));
                    spooled.is_refused = true;
                    break 0;
                }
            }
        };
        reading.unread.extend_from_slice(&chunk[..count]);
        let Reading { token, lines, unread, id, .. } = &mut reading;
        let mut take = |number: u64, line: Result<&[u8], String>| match event(line, id, number) {
            Ok(None) => {}
            Ok(Some(payload)) => {
                self.lines_begun += 1;
                self.lines.insert(self.lines_begun, (*token, number));
                spooled.unanswered += 1;
                events.push((self.lines_begun, payload));
            }
            Err(reason) => spooled.reject(number, &reason),
        };
        let mut done = 0;
        loop {
            let (used, line) = lines.next(&unread[done..]);
            done += used;
            let Some((number, line)) = line else { break };
            take(number, line);
        }
        unread.drain(..done);
        if count > 0 {
            self.reading = Some(reading);
        } else {
            if let Some((number, line)) = lines.finish(unread) {
                take(number, line);
            }
            spooled.is_read = true;
            let token = *token;
            self.end(token);
        }
        events
    }

    /// Finishes a file if all its lines are answered.
    fn end(&mut self, token: u64) {
        let is_over = self.open.get(&token).is_some_and(|it| it.is_read && it.unanswered == 0);
        if !is_over {
            return;
        }
        let spooled = self.open.remove(&token).expect("it was just there");
        if spooled.is_refused {
            return self.files.settle(token, false);
        }
        if let Err(error) = spooled.remove() {
            let path = shown(&spooled.path);
            note(&format!("{path} cannot be removed: {error}; its lines are published"));
        }
        self.files.settle(token, true);
    }
}

impl Spooled {
    /// Counts and reports a line that can never be an event.
    fn reject(&mut self, line: u64, reason: &str) {
        self.rejected += 1;
        if self.rejected <= NAMED_MAX {
            note(&format!("{}:{line}: {reason}", shown(&self.path)));
        }
    }

    /// Removes the file, unless it has changed meanwhile and will be announced again.
    fn remove(&self) -> io::Result<()> {
        let same = |now: Metadata| {
            let is = |it: &Metadata| (it.dev(), it.ino(), it.len(), it.mtime(), it.mtime_nsec());
            is(&now) == is(&self.found)
        };
        if !fs::symlink_metadata(&self.path).is_ok_and(same) {
            return Ok(());
        }
        if self.rejected == 0 {
            return fs::remove_file(&self.path);
        }
        let kept = self.keep()?;
        note(&format!("{} is kept as {}", shown(&self.path), shown(&kept)));
        Ok(())
    }

    /// Renames the file to a name that is not read and does not exist.
    fn keep(&self) -> io::Result<PathBuf> {
        for n in 1_u64.. {
            let mut name = OsString::from(REJECTED);
            name.push(self.path.file_name().unwrap_or_default());
            if n > 1 {
                name.push(format!(".{n}"));
            }
            let kept = self.path.with_file_name(name);
            match renameat_with(CWD, &self.path, CWD, &kept, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(kept),
                // The file system cannot rename in one step without replacing.
                Err(Errno::INVAL) if kept.symlink_metadata().is_err() => {
                    return fs::rename(&self.path, &kept).map(|()| kept);
                }
                Err(Errno::EXIST | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        unreachable!("there is always another number")
    }
}

impl Source for Spool {
    async fn next(&mut self) -> Option<Vec<(u64, String)>> {
        while self.reading.is_none() {
            let announcement = self.files.announcements.recv().await?;
            let token = token(&announcement);
            let id = Payload::parse(&announcement.payload).attribute("id").unwrap_or_default();
            if let Some(path) = announcement.file {
                self.begin(token, path, id.to_owned());
            } else {
                // Spools have no batches, so this is an error of the directory.
                note(&printable(&announcement.payload, 500));
                self.files.settle(token, true);
            }
        }
        Some(self.read())
    }

    fn answered(&mut self, number: u64, answer: Result<(), Refusal>) -> Result<(), Failure> {
        let (token, line) = self.lines.remove(&number).expect("each line is answered once");
        let spooled = self.open.get_mut(&token).expect("a line of it was unanswered");
        spooled.unanswered -= 1;
        match answer {
            Ok(()) => {
                self.files.confirmed += 1;
                self.files.refused = false;
            }
            Err(refusal) if refusal.may_pass => {
                spooled.is_refused = true;
                self.files.note_refusal(&refusal.reason);
            }
            // Reading the file again for this line would publish its other lines again.
            Err(refusal) => spooled.reject(line, &refusal.reason),
        }
        self.end(token);
        Ok(())
    }
}

/// The event of a line, if it has one, with an id that stays the same when it is published again.
fn event(line: Result<&[u8], String>, id: &str, number: u64) -> Result<Option<String>, String> {
    let line = text::check(line?).map_err(|error| error.to_string())?;
    // Some editors write a byte order mark at the beginning.
    let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(line).trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.len() > PAYLOAD_BYTES_MAX {
        return Err(format!("longer than {PAYLOAD_BYTES_MAX} bytes"));
    }
    let mut payload = line.to_owned();
    let parsed = Payload::parse(line);
    if parsed.target().is_some() && parsed.attribute("id").is_none() {
        push_attribute(&mut payload, "id", &format!("{id}-{number}"));
        if payload.len() > PAYLOAD_BYTES_MAX {
            payload.truncate(line.len());
        }
    }
    Ok(Some(payload))
}

fn shown(path: &std::path::Path) -> String {
    printable(&path.display().to_string(), 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_event_with_its_own_id() {
        let event = |line: &str| event(Ok(line.as_bytes()), "x", 3);
        let is = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(event(" http://a.example/ prio=5 "), is("http://a.example/ prio=5 id=x-3"));
        assert_eq!(event("http://a.example/ id=mine"), is("http://a.example/ id=mine"));
        assert_eq!(event("some text"), is("some text"));
        assert_eq!(event("# nothing"), Ok(None));
        assert_eq!(event(""), Ok(None));
        assert!(event("a\u{1b}b").unwrap_err().contains("0x1b"));
        assert!(event(&"x".repeat(PAYLOAD_BYTES_MAX + 1)).unwrap_err().contains("longer"));
    }
}
