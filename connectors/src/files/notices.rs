//! What the kernel says of directories as it happens: inotify.
//!
//! Directly, and not through a library for all systems: "closed after writing" and "renamed to" are what everything
//! here rests on, and those libraries fold or guess them.

use std::{collections::HashMap, io, mem::MaybeUninit, os::fd::OwnedFd, path::Path, sync::Arc};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use super::tracker::Name;

/// Bytes of one read: some hundred events.
const READ_BYTES: usize = 64 << 10;

/// Reads until somebody else has a turn.
const READS_MAX: usize = 16;

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// More than the kernel keeps: anything may have.
    Overflow,
    /// This directory is not watched any more, or not where it was.
    Lost {
        dir: Name,
        /// Because its file system was unmounted.
        unmounted: bool,
    },
    /// To what is called so in a watched directory.
    Of { dir: Name, name: Vec<u8>, kind: Kind, is_dir: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Created,
    Opened,
    /// After writing.
    Closed,
    ClosedUnwritten,
    MovedHere,
    /// Deleted or renamed.
    Left,
}

impl Kind {
    /// Whether something is called otherwise since. Directories are opened whenever somebody looks at them.
    fn is_of_names(self) -> bool {
        matches!(self, Self::Created | Self::MovedHere | Self::Left)
    }
}

/// Watched directories; each is empty for the first one, or ends in `/`.
#[derive(Debug)]
pub(super) struct Notices {
    fd: OwnedFd,
    dirs: HashMap<i32, Name>,
    watches: HashMap<Name, i32>,
    buffer: Vec<MaybeUninit<u8>>,
    /// The last event was about an unmount.
    unmounted: Option<i32>,
}

impl Notices {
    pub(super) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (dirs, watches) = (HashMap::new(), HashMap::new());
        let buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        Ok(Self { fd, dirs, watches, buffer, unmounted: None })
    }

    /// Readable when there is something to [`read`](Self::read).
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Watches a directory from now on; the first one may be a symbolic link.
    pub(super) fn add(&mut self, dir: &Name, path: &Path) -> io::Result<()> {
        // Without OPEN nobody could tell a file that is being written from one that was linked into place.
        let mut flags = WatchFlags::CREATE
            | WatchFlags::OPEN
            | WatchFlags::CLOSE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        // Of what is below, the directory above it hears.
        flags |= if dir.is_empty() { WatchFlags::MOVE_SELF } else { WatchFlags::DONT_FOLLOW };
        let watch = inotify::add_watch(&self.fd, path, flags)?;
        if let Some(before) = self.dirs.insert(watch, Arc::clone(dir)) {
            // The same directory at another place, of which nothing was heard yet.
            self.watches.remove(&before);
        }
        self.watches.insert(Arc::clone(dir), watch);
        Ok(())
    }

    /// Hears nothing more of a directory and what is below it: it is elsewhere now.
    pub(super) fn remove_below(&mut self, dir: &[u8]) {
        let below = self.watches.extract_if(|name, _| name.starts_with(dir));
        for (_, watch) in below {
            self.dirs.remove(&watch);
            // The kernel may have been faster.
            let _ = inotify::remove_watch(&self.fd, watch);
        }
    }

    /// What has happened; and whether there is more.
    pub(super) fn read(&mut self) -> io::Result<(Vec<Notice>, bool)> {
        let mut notices = Vec::new();
        let mut reader = inotify::Reader::new(&self.fd, &mut self.buffer);
        let mut reads = 0;
        loop {
            if reader.is_buffer_empty() {
                if reads == READS_MAX {
                    return Ok((notices, true));
                }
                reads += 1;
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => return Ok((notices, false)),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let (flags, watch) = (event.events(), event.wd());
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                notices.push(Notice::Overflow);
                continue;
            }
            if flags.contains(ReadFlags::UNMOUNT) {
                self.unmounted = Some(watch);
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                if let Some(dir) = self.dirs.remove(&watch) {
                    self.watches.remove(&dir);
                    let unmounted = self.unmounted.take() == Some(watch);
                    notices.push(Notice::Lost { dir, unmounted });
                }
                continue;
            }
            if flags.contains(ReadFlags::MOVE_SELF) {
                let dir = Name::from([]);
                notices.push(Notice::Lost { dir, unmounted: false });
                continue;
            }
            let (Some(dir), Some(name)) = (self.dirs.get(&watch), event.file_name()) else {
                continue;
            };
            let is_dir = flags.contains(ReadFlags::ISDIR);
            let kind = kind(flags).filter(|kind| !is_dir || kind.is_of_names());
            let Some(kind) = kind else { continue };
            let (dir, name) = (Arc::clone(dir), name.to_bytes().to_vec());
            notices.push(Notice::Of { dir, name, kind, is_dir });
        }
    }
}

fn kind(flags: ReadFlags) -> Option<Kind> {
    let kinds = [
        (ReadFlags::CREATE, Kind::Created),
        (ReadFlags::OPEN, Kind::Opened),
        (ReadFlags::CLOSE_WRITE, Kind::Closed),
        (ReadFlags::CLOSE_NOWRITE, Kind::ClosedUnwritten),
        (ReadFlags::MOVED_TO, Kind::MovedHere),
        (ReadFlags::MOVED_FROM, Kind::Left),
        (ReadFlags::DELETE, Kind::Left),
    ];
    kinds.into_iter().find(|(flag, _)| flags.contains(*flag)).map(|(_, kind)| kind)
}
