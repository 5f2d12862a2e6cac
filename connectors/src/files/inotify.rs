//! Reports changes of directories as they happen, by inotify.
//!
//! It uses inotify directly and no portable library: the tracker depends on "closed after writing"
//! and "renamed to", which those libraries merge or guess.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::tracker::RelativePath;

/// Bytes of one read: several hundred events.
const READ_BYTES: usize = 64 << 10;

/// Reads in a row, before other work gets its turn.
const READS_MAX: usize = 16;

/// A change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchNotice {
    /// The kernel's queue has overflowed: anything may have changed.
    Overflow,
    /// The watch of a directory has ended, or the directory has moved.
    Lost {
        dir: RelativePath,
        /// Its file system was unmounted.
        unmounted: bool,
    },
    /// A change of an entry of a watched directory.
    Changed { dir: RelativePath, name: Vec<u8>, kind: ChangeKind, is_dir: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Created,
    Opened,
    /// After writing.
    ClosedAfterWrite,
    ClosedNoWrite,
    MovedIn,
    /// Deleted or renamed.
    Removed,
}

impl ChangeKind {
    /// Whether the change affects names. Directories are also opened by every listing, which does
    /// not count.
    fn changes_names(self) -> bool {
        matches!(self, Self::Created | Self::MovedIn | Self::Removed)
    }
}

/// Watched directories, by their name relative to the root: empty for the root, otherwise it ends
/// in `/`.
#[derive(Debug)]
pub(super) struct Inotify {
    fd: OwnedFd,
    dirs: HashMap<i32, RelativePath>,
    watches: HashMap<RelativePath, i32>,
    buffer: Vec<MaybeUninit<u8>>,
    /// The watch of the last event, if that was an unmount.
    unmounted: Option<i32>,
}

impl Inotify {
    pub(super) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (dirs, watches) = (HashMap::new(), HashMap::new());
        let buffer = vec![MaybeUninit::uninit(); READ_BYTES];
        Ok(Self { fd, dirs, watches, buffer, unmounted: None })
    }

    /// Becomes readable when [`read`](Self::read) has events.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Watches a directory from now on. Only the root may be a symbolic link.
    pub(super) fn add(&mut self, dir: &RelativePath, path: &Path) -> io::Result<()> {
        // OPEN tells a file that is being written from one that was linked into place.
        let mut flags = WatchFlags::CREATE
            | WatchFlags::OPEN
            | WatchFlags::CLOSE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        // A move of a subdirectory is reported by the directory above it.
        flags |= if dir.is_empty() { WatchFlags::MOVE_SELF } else { WatchFlags::DONT_FOLLOW };
        let watch = inotify::add_watch(&self.fd, path, flags)?;
        if let Some(before) = self.dirs.insert(watch, Arc::clone(dir)) {
            // The same directory has a new name, and its move has not been reported yet.
            self.watches.remove(&before);
        }
        self.watches.insert(Arc::clone(dir), watch);
        Ok(())
    }

    /// Stops watching a directory and everything below it, because it has moved.
    pub(super) fn remove_below(&mut self, dir: &[u8]) {
        let below = self.watches.extract_if(|name, _| name.starts_with(dir));
        for (_, watch) in below {
            self.dirs.remove(&watch);
            // The kernel may have removed the watch already.
            let _ = inotify::remove_watch(&self.fd, watch);
        }
    }

    /// Reads the changes so far, and whether there are more.
    pub(super) fn read(&mut self) -> io::Result<(Vec<WatchNotice>, bool)> {
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
                notices.push(WatchNotice::Overflow);
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
                    notices.push(WatchNotice::Lost { dir, unmounted });
                }
                continue;
            }
            if flags.contains(ReadFlags::MOVE_SELF) {
                let dir = RelativePath::from([]);
                notices.push(WatchNotice::Lost { dir, unmounted: false });
                continue;
            }
            let (Some(dir), Some(name)) = (self.dirs.get(&watch), event.file_name()) else {
                continue;
            };
            let is_dir = flags.contains(ReadFlags::ISDIR);
            let kind = kind(flags).filter(|kind| !is_dir || kind.changes_names());
            let Some(kind) = kind else { continue };
            let (dir, name) = (Arc::clone(dir), name.to_bytes().to_vec());
            notices.push(WatchNotice::Changed { dir, name, kind, is_dir });
        }
    }
}

fn kind(flags: ReadFlags) -> Option<ChangeKind> {
    let kinds = [
        (ReadFlags::CREATE, ChangeKind::Created),
        (ReadFlags::OPEN, ChangeKind::Opened),
        (ReadFlags::CLOSE_WRITE, ChangeKind::ClosedAfterWrite),
        (ReadFlags::CLOSE_NOWRITE, ChangeKind::ClosedNoWrite),
        (ReadFlags::MOVED_TO, ChangeKind::MovedIn),
        (ReadFlags::MOVED_FROM, ChangeKind::Removed),
        (ReadFlags::DELETE, ChangeKind::Removed),
    ];
    kinds.into_iter().find(|(flag, _)| flags.contains(*flag)).map(|(_, kind)| kind)
}
