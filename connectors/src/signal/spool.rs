//! A directory of events that another program empties: one file for each event, written completely
//! or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tidings_protocol::{CursorName, Payload, Seq, TopicName};

/// Prefix of incomplete files. The program ignores names that begin with a dot.
const UNFINISHED: &str = ".unfinished-";

/// The file with the name of the directory's durable cursor.
const CURSOR: &str = ".cursor";

/// The directory.
#[derive(Debug)]
pub struct SignalSpool {
    dir: PathBuf,
    topic: TopicName,
    /// The number of files, or more: the program may have removed some since.
    files: usize,
    /// The limit was reached, and a tenth is not free yet.
    is_full: bool,
}

impl SignalSpool {
    /// Opens the directory for the events of a topic, and creates it if it is missing. Incomplete
    /// files of a crash are removed; their events arrive again.
    pub fn open(dir: &Path, topic: TopicName) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let unfinished = format!("{UNFINISHED}{topic}-");
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(unfinished.as_bytes()) {
                fs::remove_file(entry.path())?;
            }
        }
        let mut spool = Self { dir: dir.to_owned(), topic, files: 0, is_full: false };
        spool.count()?;
        Ok(spool)
    }

    /// Writes an event: its URL or path alone, or the whole payload if it has neither. The names of
    /// files sort like the events. [`sync`](Self::sync) makes it durable.
    pub fn write_event(&mut self, seq: Seq, payload: &str) -> io::Result<()> {
        let line = Payload::parse(payload).target().unwrap_or(payload);
        // As wide as the largest seq, so that names sort like numbers.
        let name = format!("{}-{:020}", self.topic, seq.0);
        let unfinished = self.dir.join(format!("{UNFINISHED}{name}"));
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o644).open(&unfinished)?;
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_data()?;
        drop(file);
        fs::rename(&unfinished, self.dir.join(name))?;
        self.files += 1;
        Ok(())
    }

    /// Makes the written files durable.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Whether there is room for another file. The directory is counted only if it may be full.
    /// After it was full, there is room when a tenth is free, so that not every event counts the
    /// directory.
    pub fn has_room(&mut self, files_max: usize) -> io::Result<bool> {
        if self.is_full || self.files >= files_max {
            let wanted = if self.is_full { (files_max / 10).max(1) } else { 1 };
            self.is_full = self.count()? + wanted > files_max;
        }
        Ok(!self.is_full)
    }

    /// Counts the files that the program has not removed. A directory such as `lost+found` is not
    /// an event.
    pub fn count(&mut self) -> io::Result<usize> {
        let mut files = 0;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            files += usize::from(!is_hidden && entry.file_type()?.is_file());
        }
        self.files = files;
        Ok(files)
    }
}

/// The name of the directory's durable cursor: generated once, and stored in the directory. So a
/// directory that moves keeps its cursor, and two machines with the same path have two.
pub fn cursor_name(dir: &Path) -> io::Result<CursorName> {
    let path = dir.join(CURSOR);
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let text = format!("{} does not contain the name of a cursor", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = format!("spool-{}", &tidings_client::random_member_id().to_string()[..16]);
            let unfinished = dir.join(format!("{CURSOR}.new"));
            let mut file = File::create(&unfinished)?;
            writeln!(file, "{name}")?;
            file.sync_data()?;
            fs::rename(unfinished, path)?;
            File::open(dir)?.sync_all()?;
            Ok(name.parse().expect("letters, digits and a dash form a valid name"))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn events_are_files_in_their_order_with_one_line_each() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/spool");
        let mut spool = SignalSpool::open(&dir, "t".parse().unwrap()).unwrap();
        spool.write_event(Seq(9), "http://a.example/ prio=5").unwrap();
        spool.write_event(Seq(10), "some text").unwrap();
        spool.sync().unwrap();
        let expected = ["t-00000000000000000009", "t-00000000000000000010"];
        assert_eq!(names(&dir), expected);
        assert_eq!(fs::read_to_string(dir.join(expected[0])).unwrap(), "http://a.example/\n");
        assert_eq!(fs::read_to_string(dir.join(expected[1])).unwrap(), "some text\n");
        assert!(!spool.has_room(2).unwrap());
        fs::remove_file(dir.join(expected[0])).unwrap();
        assert!(spool.has_room(2).unwrap());
    }

    #[test]
    fn a_full_directory_has_room_when_a_tenth_is_free() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        let mut spool = SignalSpool::open(folder.path(), "t".parse().unwrap()).unwrap();
        for seq in 1..=20 {
            assert!(spool.has_room(20).unwrap(), "{seq}");
            spool.write_event(Seq(seq), "x").unwrap();
        }
        assert!(!spool.has_room(20).unwrap());
        fs::remove_file(folder.path().join("t-00000000000000000001")).unwrap();
        assert!(!spool.has_room(20).unwrap());
        fs::remove_file(folder.path().join("t-00000000000000000002")).unwrap();
        assert!(spool.has_room(20).unwrap());
    }

    #[test]
    fn unfinished_files_are_not_counted_and_removed_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".unfinished-t-1", ".unfinished-other-1", "theirs"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let mut spool = SignalSpool::open(folder.path(), "t".parse().unwrap()).unwrap();
        assert_eq!(spool.count().unwrap(), 1);
        assert_eq!(names(folder.path()), [".unfinished-other-1", "theirs"]);
    }

    #[test]
    fn the_cursor_of_a_directory_stays_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let name = cursor_name(folder.path()).unwrap();
        assert_eq!(cursor_name(folder.path()).unwrap(), name);
        fs::write(folder.path().join(CURSOR), "no name\n").unwrap();
        assert!(cursor_name(folder.path()).is_err());
    }
}
