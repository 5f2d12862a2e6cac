//! The thread that watches one directory. It reads inotify events, inspects files, and sends the
//! events that the tracker decides on.
//!
//! It is a thread and not a task, because all its calls block. A slow network file system delays no
//! other directory.

#![expect(clippy::disallowed_methods, reason = "a thread of its own reads the clock")]

mod scanning;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions, symlink_metadata};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use tokio::sync::mpsc::UnboundedSender;

use super::directory_watch::{PublishRequest, WatchCommand, WatchError, WatchSettings, dir_error};
use super::event::{path, payload};
use super::filesystem::{
    error_word, is_dir_empty, is_mounted, join_name, list_files, path_of, stamp,
};
use super::inotify::{ChangeKind, Inotify, WatchNotice};
use super::mounts;
use super::open_files::OpenFiles;
use super::path_encoding::encode;
use super::state_file::StateFile;
use super::tracker::{
    FileEvent, FileStamp, Observation, RelativePath, Tracker, TrackerInput, TrackerOutput,
};
use crate::system::unix_now_ms;

/// How often the thread checks that the directory is still the same, and whether a lost directory
/// is back.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const LOST_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often a directory is scanned where inotify does not work, unless the user sets it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Notices that are buffered during a scan; more count as an overflow.
const BUFFERED_NOTICES_MAX: usize = 1_000_000;

struct WatchedRoot {
    /// Device and inode while it is watched; `None`: it is gone.
    watched: Option<(u64, u64)>,
    /// It could not be read, and that was reported.
    is_unreadable: bool,
    check_at: Instant,
    /// Other machines may change it, so inotify misses changes, and inodes are not reliable.
    is_shared: bool,
}

pub(super) struct Watcher {
    settings: WatchSettings,
    watch_index: usize,
    /// Distinguishes errors of this process from those of others.
    run: String,
    tracker: Tracker,
    state: Option<StateFile>,
    /// The state could not be written, and that was logged.
    state_failed: bool,
    inotify: Option<Inotify>,
    /// Notices that were read during a scan, so that the kernel's queue does not overflow.
    buffered_notices: Vec<WatchNotice>,
    /// The next scan of a directory that is polled.
    poll_at: Option<Instant>,
    /// Events may have been lost, so a scan is needed.
    scan_wanted: bool,
    root: WatchedRoot,
    /// Directories that are or were mount points. If one is unmounted, the files below it are not
    /// gone.
    mounts: BTreeSet<RelativePath>,
    /// Directories that could not be read, and when they are retried.
    unreadable: BTreeSet<RelativePath>,
    retry_at: Option<Instant>,
    writers: OpenFiles,
    /// Device and inode of the directory that is left out.
    excluded: Option<(u64, u64)>,
    announcements: UnboundedSender<PublishRequest>,
    answers: mpsc::Receiver<WatchCommand>,
    wake_receiver: UnixStream,
}

impl Watcher {
    pub(super) fn new(
        settings: WatchSettings,
        of: usize,
        announcements: UnboundedSender<PublishRequest>,
        answers: mpsc::Receiver<WatchCommand>,
        woken: UnixStream,
    ) -> Result<Self, WatchError> {
        fs::read_dir(&settings.dir).map_err(|error| dir_error(&settings.dir, error))?;
        let is_shared = mounts::is_shared(&settings.dir);
        let mut told = BTreeMap::new();
        let mut state = None;
        let mut mounts = BTreeSet::new();
        let mut batch = (0, 0);
        if let Some((folder, topic)) = &settings.state {
            let dir = settings.dir.as_os_str().as_bytes();
            let (mut file, remembered) = StateFile::open(folder, topic, dir)?;
            told = remembered.published;
            mounts = remembered.mounts;
            batch = (remembered.batch_number, remembered.batch_files);
            if batch.0 == 0 {
                // Batch numbers must not repeat after the state file was removed.
                batch = (unix_now_ms(), 0);
                if settings.new_only {
                    told = list_files(&settings, is_shared);
                    for (name, stamp) in &told {
                        file.record_file(name, *stamp);
                    }
                }
                file.begin_batch(batch.0, 0);
            }
            state = Some(file);
        }
        let tracker = Tracker::new(settings.tracker.clone(), told, batch.0, batch.1);
        let left_out = settings.excluded.as_ref().and_then(|path| fs::metadata(path).ok());
        let root = WatchedRoot {
            watched: None,
            is_unreadable: false,
            check_at: Instant::now(),
            is_shared,
        };
        Ok(Self {
            settings,
            watch_index: of,
            run: tidings_client::random_member_id().to_string(),
            tracker,
            state,
            state_failed: false,
            inotify: None,
            buffered_notices: Vec::new(),
            poll_at: None,
            scan_wanted: false,
            root,
            mounts,
            unreadable: BTreeSet::new(),
            retry_at: None,
            writers: OpenFiles::default(),
            excluded: left_out.map(|it| (it.dev(), it.ino())),
            announcements,
            answers,
            wake_receiver: woken,
        })
    }

    /// Watches until it is stopped, or until a run with `once` is done. Returns how many files were
    /// skipped.
    pub(super) fn run(mut self) -> u64 {
        loop {
            let mut is_stopped = false;
            while let Ok(answer) = self.answers.try_recv() {
                match answer {
                    WatchCommand::Confirmed(number) => self.handle(TrackerInput::Confirmed(number)),
                    WatchCommand::Refused(number) => self.handle(TrackerInput::Refused(number)),
                    WatchCommand::Stop => is_stopped = true,
                }
            }
            if is_stopped || self.is_done() || self.announcements.is_closed() {
                self.write_state(true);
                return self.tracker.skipped();
            }
            let now = Instant::now();
            if self.root.check_at <= now {
                self.check_root();
            }
            if self.root.watched.is_some()
                && (self.scan_wanted || self.poll_at.is_some_and(|at| at <= now))
            {
                self.scan();
            }
            if self.root.watched.is_some() && self.retry_at.is_some_and(|at| at <= now) {
                self.retry();
            }
            self.handle(TrackerInput::Tick);
            self.write_state(false);
            // After the last step, nothing would end the wait.
            if !self.is_done() && self.wait_for_work() {
                self.process_notices();
            }
        }
    }

    /// Whether a run with `once` is done.
    fn is_done(&self) -> bool {
        let is_over = self.root.is_unreadable && self.tracker.is_idle();
        self.settings.tracker.once && (self.tracker.is_done() || is_over)
    }

    /// Sleeps until something is due or has happened. Returns whether there are inotify events.
    fn wait_for_work(&mut self) -> bool {
        let state = self.state.as_ref().and_then(StateFile::due);
        let checks = [Some(self.root.check_at), self.poll_at, self.retry_at];
        let deadlines = checks.into_iter().chain([self.tracker.deadline(), state]);
        let deadline = deadlines.flatten().min().expect("there is always a next check");
        let left = if self.buffered_notices.is_empty() {
            deadline.saturating_duration_since(Instant::now())
        } else {
            Duration::ZERO
        };
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = vec![PollFd::new(&self.wake_receiver, PollFlags::IN)];
        if let Some(notices) = &self.inotify {
            fds.push(PollFd::from_borrowed_fd(notices.fd().as_fd(), PollFlags::IN));
        }
        // After an interruption, the next turn finds the events.
        let _ = poll(&mut fds, Some(&timeout));
        let has_notices = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        let mut bytes = [0; 256];
        while (&self.wake_receiver).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        has_notices || !self.buffered_notices.is_empty()
    }

    fn handle(&mut self, input: TrackerInput) {
        self.tracker.handle(input, Instant::now());
        while let Some(output) = self.tracker.poll() {
            match output {
                TrackerOutput::Inspect { name, is_closed } => {
                    let is_busy = !is_closed && self.writers.is_open_for_writing(&self.path(&name));
                    let stamp = self.inspect(&name);
                    let result = if is_busy {
                        TrackerInput::Busy(name)
                    } else {
                        TrackerInput::Inspected(name, stamp)
                    };
                    self.tracker.handle(result, Instant::now());
                }
                TrackerOutput::Publish(number, announced) => self.publish(number, &announced),
                TrackerOutput::Save(name, stamp) => {
                    self.state.iter_mut().for_each(|state| state.record_file(&name, stamp));
                }
                TrackerOutput::Forget(name) => {
                    self.state.iter_mut().for_each(|state| state.record_removal(&name));
                }
                TrackerOutput::BatchEnded(number) => {
                    self.state.iter_mut().for_each(|state| state.begin_batch(number + 1, 0));
                }
            }
        }
    }

    fn publish(&self, number: u64, announced: &FileEvent) {
        let root = &self.settings.dir;
        let is_file = matches!(announced, FileEvent::File(..));
        let announcement = PublishRequest {
            watch_index: self.watch_index,
            number,
            payload: payload(root, announced, &self.run, number),
            file: is_file.then(|| path(root, announced)),
        };
        // If the receiver is closed, the next turn ends this thread.
        let _ = self.announcements.send(announcement);
    }

    fn write_state(&mut self, is_last: bool) {
        let Some(mut state) = self.state.take() else { return };
        let written = if is_last {
            state.close()
        } else {
            let written = state.write();
            self.state = Some(state);
            written
        };
        let failed = written.is_err();
        if let Err(error) = written
            && !self.state_failed
        {
            let dir = encode(self.settings.dir.as_os_str().as_bytes());
            tracing::warn!(%error, "cannot store which files of {dir} were published, trying again");
        }
        self.state_failed = failed;
    }

    /// The current content of a file; `None`: it does not exist.
    fn inspect(&self, name: &RelativePath) -> Option<FileStamp> {
        let path = self.path(name);
        if self.root.is_shared {
            // Opening the file makes the client of a network file system ask its server.
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            if let Ok(metadata) = opened.and_then(|file: File| file.metadata()) {
                return self.stamp(&metadata);
            }
        }
        symlink_metadata(path).ok().and_then(|metadata| self.stamp(&metadata))
    }

    /// Only a regular file has a stamp.
    fn stamp(&self, metadata: &Metadata) -> Option<FileStamp> {
        metadata.is_file().then(|| stamp(metadata, self.root.is_shared))
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        path_of(&self.settings.dir, name)
    }

    /// Checks whether the directory is still the one that is watched.
    fn check_root(&mut self) {
        let found = fs::metadata(&self.settings.dir).and_then(|metadata| {
            if !metadata.is_dir() {
                return Err(ErrorKind::NotADirectory.into());
            }
            // An empty directory on an unmounted mount point counts as missing. A file in it may be
            // meant to be published.
            let dir = &self.settings.dir;
            if self.mounts.contains(&[][..]) && !is_mounted(dir, &metadata) && is_dir_empty(dir) {
                return Err(ErrorKind::NotFound.into());
            }
            Ok((metadata.dev(), metadata.ino()))
        });
        match found {
            Ok(root) => {
                self.root.check_at = Instant::now() + CHECK_INTERVAL;
                if self.root.watched != Some(root) {
                    self.root.watched = Some(root);
                    self.watch();
                }
            }
            Err(error) => self.lose_root(&error),
        }
    }

    fn lose_root(&mut self, error: &io::Error) {
        self.root.watched = None;
        self.inotify = None;
        self.buffered_notices.clear();
        // These restart when the directory is back; until then they would be due all the time.
        (self.poll_at, self.retry_at) = (None, None);
        self.unreadable.clear();
        self.root.is_unreadable = true;
        self.root.check_at = Instant::now() + LOST_CHECK_INTERVAL;
        self.handle(TrackerInput::ErrorChanged(RelativePath::from([]), Some(error_word(error))));
    }

    /// Watches the directory with inotify where that works, and scans it.
    fn watch(&mut self) {
        self.scan_wanted = true;
        self.inotify = None;
        self.buffered_notices.clear();
        self.poll_at = None;
        self.root.is_shared = mounts::is_shared(&self.settings.dir);
        if self.settings.tracker.once {
            // Later changes do not matter.
            return;
        }
        if self.settings.poll.is_some() || self.root.is_shared {
            return self.start_polling();
        }
        match Inotify::new() {
            Ok(notices) => self.inotify = Some(notices),
            Err(error) => self.fall_back_to_polling(&error),
        }
    }

    fn start_polling(&mut self) {
        self.inotify = None;
        self.poll_at = Some(Instant::now());
    }

    /// The system's limit of inotify watches is reached.
    fn fall_back_to_polling(&mut self, error: &io::Error) {
        let dir = encode(self.settings.dir.as_os_str().as_bytes());
        tracing::warn!(%error, "{dir} is polled instead of watched; fs.inotify.max_user_watches may be too low");
        self.start_polling();
    }

    /// Reads the pending inotify events into the buffer.
    fn read_notices(&mut self) {
        let Some(notices) = &mut self.inotify else { return };
        match notices.read() {
            Ok((notices, _more)) => self.buffered_notices.extend(notices),
            Err(error) => self.fall_back_to_polling(&error),
        }
        if self.buffered_notices.len() > BUFFERED_NOTICES_MAX {
            self.buffered_notices = vec![WatchNotice::Overflow];
        }
    }

    fn process_notices(&mut self) {
        self.read_notices();
        for notice in std::mem::take(&mut self.buffered_notices) {
            match notice {
                WatchNotice::Overflow => self.scan_wanted = true,
                WatchNotice::Lost { dir, unmounted } => {
                    if dir.is_empty() {
                        self.root.watched = None;
                        self.root.check_at = Instant::now();
                    } else if unmounted {
                        self.scan_wanted = true;
                    }
                }
                WatchNotice::Changed { dir, name, kind, is_dir: true } => {
                    self.directory_changed(&dir, &name, kind);
                }
                WatchNotice::Changed { dir, name, kind, is_dir: false } => {
                    if self.settings.name_filter.matches(&name) {
                        self.file_changed(join_name(&dir, &name, ""), kind);
                    }
                }
            }
        }
    }

    fn directory_changed(&mut self, dir: &RelativePath, name: &[u8], kind: ChangeKind) {
        if !self.settings.recursive || !self.settings.name_filter.enters_directory(name) {
            return;
        }
        let dir = join_name(dir, name, "/");
        if let Some(notices) = self.inotify.as_mut().filter(|_| kind == ChangeKind::Removed) {
            notices.remove_below(&dir);
            self.unreadable.retain(|name| !name.starts_with(&dir));
            self.handle(TrackerInput::RemovedBelow(dir));
        } else if kind != ChangeKind::Removed {
            // Finds what was created in it before the watch began.
            self.walk(dir);
        }
    }

    fn file_changed(&mut self, name: RelativePath, kind: ChangeKind) {
        let observation = match kind {
            ChangeKind::Opened => return self.handle(TrackerInput::Opened(name)),
            ChangeKind::ClosedNoWrite => return self.handle(TrackerInput::ClosedNoWrite(name)),
            ChangeKind::Removed => return self.handle(TrackerInput::Removed(name)),
            ChangeKind::Created => Observation::Created,
            ChangeKind::ClosedAfterWrite => Observation::ClosedAfterWrite,
            ChangeKind::MovedIn => Observation::MovedIn,
        };
        self.handle(match self.inspect(&name) {
            Some(stamp) => TrackerInput::Observed(observation, name, stamp),
            None => TrackerInput::Removed(name),
        });
    }
}
