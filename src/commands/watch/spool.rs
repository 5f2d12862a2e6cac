//! `--spool`: publishes the lines of files, and removes each file when all its lines are confirmed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use tidings_protocol::{PAYLOAD_BYTES_MAX, Payload, push_attribute, text};

use super::{WatchedFiles, announcement_id};
use crate::client::publisher::{EventSource, Rejection};
use crate::terminal::failure::Failure;
use crate::terminal::lines::NumberedLines;
use crate::terminal::output::{note, printable};

/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Rejected lines of a file that are reported one by one.
const REPORTED_MAX: u64 = 5;

/// The prefix of the new name of a file with lines that cannot be events; a number is appended if
/// that name exists.
const REJECTED_PREFIX: &str = ".rejected-";

/// The lines in the files of the directories.
pub(super) struct SpoolSource {
    files: WatchedFiles,
    /// The file that is being read.
    reading: Option<OpenFile>,
    /// Files with unanswered lines, and the file that is being read, by the id of their
    /// announcement.
    unfinished: BTreeMap<u64, SpooledFile>,
    /// The file of each unanswered line and its number there, by its event number.
    lines: BTreeMap<u64, (u64, u64)>,
    lines_published: u64,
}

struct OpenFile {
    announcement_id: u64,
    file: File,
    lines: NumberedLines,
    id: String,
}

struct SpooledFile {
    path: PathBuf,
    metadata: Metadata,
    unanswered: u64,
    is_read: bool,
    /// The broker has rejected a line for now: the file is read again later.
    needs_retry: bool,
    /// Lines that can never be events.
    invalid_lines: u64,
}

impl SpoolSource {
    pub(super) fn new(files: WatchedFiles) -> Self {
        let (unfinished, lines) = (BTreeMap::new(), BTreeMap::new());
        Self { files, reading: None, unfinished, lines, lines_published: 0 }
    }

    pub(super) fn into_files(self) -> WatchedFiles {
        self.files
    }

    /// Opens the file of an announcement, if it is still a regular file.
    fn open_file(&mut self, token: u64, path: PathBuf, id: String) {
        // Another user with write access may have replaced it.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let opened = opened.and_then(|file| file.metadata().map(|found| (file, found)));
        match opened {
            Ok((file, found)) if found.is_file() => {
                let lines = NumberedLines::new();
                self.reading = Some(OpenFile { announcement_id: token, file, lines, id });
                let spooled = SpooledFile {
                    path,
                    metadata: found,
                    unanswered: 0,
                    is_read: false,
                    needs_retry: false,
                    invalid_lines: 0,
                };
                self.unfinished.insert(token, spooled);
            }
            Ok(_) => self.files.answer(token, true),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    note(&format!("{} cannot be read: {error}", shown(&path)));
                }
                // It is announced again when it has changed.
                self.files.answer(token, true);
            }
        }
    }

    /// Reads the next piece of the file.
    fn read(&mut self) -> Vec<(u64, String)> {
        let Some(mut reading) = self.reading.take() else { return Vec::new() };
        let spooled = self.unfinished.get_mut(&reading.announcement_id).expect("it is read");
        let mut events = Vec::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = loop {
            match reading.file.read(&mut chunk) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    note(&format!("{} cannot be read: {error}", shown(&spooled.path)));
                    spooled.needs_retry = true;
                    break 0;
                }
            }
        };
        let OpenFile { announcement_id: token, lines, id, .. } = &mut reading;
        lines.push(&chunk[..count]);
        let mut take =
            |number: u64, line: Result<&[u8], String>| match parse_event(line, id, number) {
                Ok(None) => {}
                Ok(Some(payload)) => {
                    self.lines_published += 1;
                    self.lines.insert(self.lines_published, (*token, number));
                    spooled.unanswered += 1;
                    events.push((self.lines_published, payload));
                }
                Err(reason) => spooled.reject_line(number, &reason),
            };
        while let Some((number, line)) = lines.next_line() {
            take(number, line);
        }
        if count > 0 {
            self.reading = Some(reading);
        } else {
            if let Some((number, line)) = lines.finish() {
                take(number, line);
            }
            spooled.is_read = true;
            let token = *token;
            self.finish_file(token);
        }
        events
    }

    /// Finishes a file if all its lines are answered.
    fn finish_file(&mut self, token: u64) {
        let is_over =
            self.unfinished.get(&token).is_some_and(|it| it.is_read && it.unanswered == 0);
        if !is_over {
            return;
        }
        let spooled = self.unfinished.remove(&token).expect("it was just there");
        if spooled.needs_retry {
            return self.files.answer(token, false);
        }
        if let Err(error) = spooled.remove() {
            let path = shown(&spooled.path);
            note(&format!("{path} cannot be removed: {error}; its lines are published"));
        }
        self.files.answer(token, true);
    }
}

impl SpooledFile {
    /// Counts and reports a line that can never be an event.
    fn reject_line(&mut self, line: u64, reason: &str) {
        self.invalid_lines += 1;
        if self.invalid_lines <= REPORTED_MAX {
            note(&format!("{}:{line}: {reason}", shown(&self.path)));
        }
    }

    /// Removes the file, unless it has changed meanwhile and will be announced again.
    fn remove(&self) -> io::Result<()> {
        let same = |now: Metadata| {
            let is = |it: &Metadata| (it.dev(), it.ino(), it.len(), it.mtime(), it.mtime_nsec());
            is(&now) == is(&self.metadata)
        };
        if !fs::symlink_metadata(&self.path).is_ok_and(same) {
            return Ok(());
        }
        if self.invalid_lines == 0 {
            return fs::remove_file(&self.path);
        }
        let kept = self.rename_rejected()?;
        note(&format!("{} is kept as {}", shown(&self.path), shown(&kept)));
        Ok(())
    }

    /// Renames the file to a name that is not read and does not exist.
    fn rename_rejected(&self) -> io::Result<PathBuf> {
        for n in 1_u64.. {
            let mut name = OsString::from(REJECTED_PREFIX);
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

impl EventSource for SpoolSource {
    async fn next(&mut self) -> Option<Vec<(u64, String)>> {
        while self.reading.is_none() {
            let announcement = self.files.announcements.recv().await?;
            let token = announcement_id(&announcement);
            let id = Payload::parse(&announcement.payload).attribute("id").unwrap_or_default();
            if let Some(path) = announcement.file {
                self.open_file(token, path, id.to_owned());
            } else {
                // Spools have no batches, so this is an error of the directory.
                note(&printable(&announcement.payload, 500));
                self.files.answer(token, true);
            }
        }
        Some(self.read())
    }

    fn on_answer(&mut self, number: u64, answer: Result<(), Rejection>) -> Result<(), Failure> {
        let (token, line) = self.lines.remove(&number).expect("each line is answered once");
        let spooled = self.unfinished.get_mut(&token).expect("a line of it was unanswered");
        spooled.unanswered -= 1;
        match answer {
            Ok(()) => {
                self.files.confirmed += 1;
                self.files.is_rejected = false;
            }
            Err(refusal) if refusal.is_transient => {
                spooled.needs_retry = true;
                self.files.note_rejection(&refusal.reason);
            }
            // Reading the file again for this line would publish its other lines again.
            Err(refusal) => spooled.reject_line(line, &refusal.reason),
        }
        self.finish_file(token);
        Ok(())
    }
}

/// The event of a line, if it has one, with an id that stays the same when it is published again.
fn parse_event(
    line: Result<&[u8], String>,
    id: &str,
    number: u64,
) -> Result<Option<String>, String> {
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
        let event = |line: &str| parse_event(Ok(line.as_bytes()), "x", 3);
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
