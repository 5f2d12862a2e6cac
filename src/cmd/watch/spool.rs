//! `--spool`: files whose lines are events, and which are removed when all of them are confirmed.

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

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Lines that are named one by one, of each file.
const NAMED_MAX: u64 = 5;

/// What a file that has lines which are no events is called; with a number behind it where there is such a file.
const REJECTED: &str = ".rejected-";

/// The files of the directories, as the lines in them.
pub(super) struct Spool {
    files: Files,
    /// What is read at present.
    reading: Option<Reading>,
    /// Files with lines that are not answered, by their token; and the one that is read.
    open: BTreeMap<u64, Spooled>,
    /// The file of each unanswered line and its number in that, by its number here.
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
    /// The broker has not taken a line: the file comes again.
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

    /// Begins to read the file of an announcement, if it is there and is one.
    fn begin(&mut self, token: u64, path: PathBuf, id: String) {
        // Whoever may write here may have put something else there since.
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
                // It comes again when it has changed.
                self.files.settle(token, true);
            }
        }
    }

    /// Reads on in the present file.
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

    /// Has done with a file if all of its lines are answered.
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
    /// This line of it is no event, and never will be.
    fn reject(&mut self, line: u64, reason: &str) {
        self.rejected += 1;
        if self.rejected <= NAMED_MAX {
            note(&format!("{}:{line}: {reason}", shown(&self.path)));
        }
    }

    /// Removes it, unless somebody has gone on writing, which is announced anew.
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

    /// Gives it a name that is not read, and that no other file has.
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
                // The file system does not know how to do that in one step.
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
                // There is no batch here, so it is a trouble.
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
            // If the file came again for it, all others in it would be published again and again.
            Err(refusal) => spooled.reject(line, &refusal.reason),
        }
        self.end(token);
        Ok(())
    }
}

/// The event that a line is, if it is one, with an id that is the same when it is published again.
fn event(line: Result<&[u8], String>, id: &str, number: u64) -> Result<Option<String>, String> {
    let line = text::check(line?).map_err(|error| error.to_string())?;
    // Editors of some systems put a mark of the byte order in front of everything.
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
    fn a_line_is_an_event_with_an_id_of_its_own() {
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
