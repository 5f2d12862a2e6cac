//! The thread that watches one directory. It reads inotify events, inspects files, and sends the
//! events that the tracker decides on.
//!
//! It is a thread and not a task, because all its calls block. A slow network file system delays no
//! other directory.

#![expect(
    clippy::disallowed_methods,
    reason = "reads the clock for the tracker, on a thread of its own"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Metadata, OpenOptions, symlink_metadata},
    io::{self, ErrorKind, Read},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, OpenOptionsExt},
            net::UnixStream,
        },
    },
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
};
use tidings_protocol::MemberId;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    event::{path, payload},
    look::{below, is_empty, is_gone, is_mounted, join, present, stamp, word},
    mounts,
    name::encode,
    notices::{Kind, Notice, Notices},
    state::StateFile,
    tracker::{Announced, Input, Name, Output, Stamp, Tracker},
    watching::{Announcement, Answer, Settings, WatchError, at},
    writers::Writers,
};

/// How often the thread checks that the directory is still the same, and whether a lost directory
/// is back.
const CHECK: Duration = Duration::from_secs(5);
const CHECK_LOST: Duration = Duration::from_secs(1);

/// How often a directory is scanned where inotify does not work, unless the user sets it.
const POLL: Duration = Duration::from_secs(1);

/// Notices that are buffered during a scan; more count as an overflow.
const HEARD_MAX: usize = 1_000_000;

/// The watched directory itself.
struct Root {
    /// Device and inode while it is watched; `None`: it is gone.
    watched: Option<(u64, u64)>,
    /// It could not be read, and that was reported.
    is_in_trouble: bool,
    check_at: Instant,
    /// Other machines may change it, so inotify misses changes, and inodes are not reliable.
    is_shared: bool,
}

/// The result of reading a directory.
enum Seen {
    /// All entries were read.
    All,
    /// A file system that was mounted here is missing.
    Unmounted { is_empty: bool },
}

/// The state of the thread.
pub(super) struct Watcher {
    settings: Settings,
    of: usize,
    /// Distinguishes errors of this process from those of others.
    run: String,
    tracker: Tracker,
    state: Option<StateFile>,
    /// The state could not be written, and that was logged.
    state_failed: bool,
    notices: Option<Notices>,
    /// Notices that were read during a scan, so that the kernel's queue does not overflow.
    heard: Vec<Notice>,
    /// The next scan of a directory that is polled.
    poll_at: Option<Instant>,
    /// Events may have been lost, so a scan is needed.
    scan_wanted: bool,
    root: Root,
    /// Directories that are or were mount points. If one is unmounted, the files below it are not
    /// gone.
    mounts: BTreeSet<Name>,
    /// Directories that could not be read, and when they are retried.
    unread: BTreeSet<Name>,
    retry_at: Option<Instant>,
    writers: Writers,
    /// Device and inode of the directory that is left out.
    left_out: Option<(u64, u64)>,
    announcements: UnboundedSender<Announcement>,
    answers: mpsc::Receiver<Answer>,
    woken: UnixStream,
}

impl Watcher {
    pub(super) fn new(
        settings: Settings,
        of: usize,
        announcements: UnboundedSender<Announcement>,
        answers: mpsc::Receiver<Answer>,
        woken: UnixStream,
    ) -> Result<Self, WatchError> {
        fs::read_dir(&settings.dir).map_err(|error| at(&settings.dir, error))?;
        let is_shared = mounts::is_shared(&settings.dir);
        let mut told = BTreeMap::new();
        let mut state = None;
        let mut mounts = BTreeSet::new();
        let mut batch = (0, 0);
        if let Some((folder, topic)) = &settings.state {
            let dir = settings.dir.as_os_str().as_bytes();
            let (mut file, remembered) = StateFile::open(folder, topic, dir)?;
            told = remembered.told;
            mounts = remembered.mounts;
            batch = (remembered.batch_number, remembered.batch_files);
            if batch.0 == 0 {
                // Batch numbers must not repeat after the state file was removed.
                batch = (unix_ms(), 0);
                if settings.new_only {
                    told = present(&settings, is_shared);
                    for (name, stamp) in &told {
                        file.remember(name, *stamp);
                    }
                }
                file.begin_batch(batch.0, 0);
            }
            state = Some(file);
        }
        let tracker = Tracker::new(settings.rules.clone(), told, batch.0, batch.1);
        let left_out = settings.left_out.as_ref().and_then(|path| fs::metadata(path).ok());
        let root =
            Root { watched: None, is_in_trouble: false, check_at: Instant::now(), is_shared };
        Ok(Self {
            settings,
            of,
            run: MemberId::random().to_string(),
            tracker,
            state,
            state_failed: false,
            notices: None,
            heard: Vec::new(),
            poll_at: None,
            scan_wanted: false,
            root,
            mounts,
            unread: BTreeSet::new(),
            retry_at: None,
            writers: Writers::default(),
            left_out: left_out.map(|it| (it.dev(), it.ino())),
            announcements,
            answers,
            woken,
        })
    }

    /// Watches until it is stopped, or until a run with `once` is done. Returns how many files were
    /// skipped.
    pub(super) fn run(mut self) -> u64 {
        loop {
            let mut is_stopped = false;
            while let Ok(answer) = self.answers.try_recv() {
                match answer {
                    Answer::Confirmed(number) => self.handle(Input::Confirmed(number)),
                    Answer::Refused(number) => self.handle(Input::Refused(number)),
                    Answer::Stop => is_stopped = true,
                }
            }
            let is_over = self.root.is_in_trouble && self.tracker.is_idle();
            let is_done = self.settings.rules.once && (self.tracker.is_done() || is_over);
            if is_stopped || is_done || self.announcements.is_closed() {
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
            self.handle(Input::Tick);
            self.write_state(false);
            if self.wait() {
                self.take_notices();
            }
        }
    }

    /// Sleeps until something is due or has happened. Returns whether there are inotify events.
    fn wait(&mut self) -> bool {
        let state = self.state.as_ref().and_then(StateFile::due);
        let checks = [Some(self.root.check_at), self.poll_at, self.retry_at];
        let deadlines = checks.into_iter().chain([self.tracker.deadline(), state]);
        let deadline = deadlines.flatten().min().expect("there is always a next check");
        let left = if self.heard.is_empty() {
            deadline.saturating_duration_since(Instant::now())
        } else {
            Duration::ZERO
        };
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        if let Some(notices) = &self.notices {
            fds.push(PollFd::from_borrowed_fd(notices.fd().as_fd(), PollFlags::IN));
        }
        // After an interruption, the next turn finds the events.
        let _ = poll(&mut fds, Some(&timeout));
        let has_notices = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        let mut bytes = [0; 256];
        while (&self.woken).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        has_notices || !self.heard.is_empty()
    }

    fn handle(&mut self, input: Input) {
        self.tracker.handle(input, Instant::now());
        while let Some(output) = self.tracker.poll() {
            match output {
                Output::Look { name, is_closed } => {
                    let is_busy = !is_closed && self.writers.have(&self.path(&name));
                    let stamp = self.look(&name);
                    let result =
                        if is_busy { Input::Busy(name) } else { Input::Looked(name, stamp) };
                    self.tracker.handle(result, Instant::now());
                }
                Output::Announce(number, announced) => self.announce(number, &announced),
                Output::Remember(name, stamp) => {
                    self.state.iter_mut().for_each(|state| state.remember(&name, stamp));
                }
                Output::Forget(name) => {
                    self.state.iter_mut().for_each(|state| state.forget(&name));
                }
                Output::BatchEnded(number) => {
                    self.state.iter_mut().for_each(|state| state.begin_batch(number + 1, 0));
                }
            }
        }
    }

    fn announce(&self, number: u64, announced: &Announced) {
        let root = &self.settings.dir;
        let is_file = matches!(announced, Announced::File(..));
        let announcement = Announcement {
            of: self.of,
            number,
            payload: payload(root, announced, &self.run, number),
            file: is_file.then(|| path(root, announced)),
        };
        // If the receiver is closed, the next turn ends this thread.
        let _ = self.announcements.send(announcement);
    }

    fn write_state(&mut self, is_last: bool) {
        let Some(mut state) = self.state.take() else { return };
        let tracker = &self.tracker;
        let now = || (tracker.told(), tracker.batch());
        let live = tracker.tracked();
        let written = if is_last {
            state.close(now, live)
        } else {
            let written = state.write(now, live);
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
    fn look(&self, name: &Name) -> Option<Stamp> {
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
    fn stamp(&self, metadata: &Metadata) -> Option<Stamp> {
        metadata.is_file().then(|| stamp(metadata, self.root.is_shared))
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        below(&self.settings.dir, name)
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
            if self.mounts.contains(&[][..]) && !is_mounted(dir, &metadata) && is_empty(dir) {
                return Err(ErrorKind::NotFound.into());
            }
            Ok((metadata.dev(), metadata.ino()))
        });
        match found {
            Ok(root) => {
                self.root.check_at = Instant::now() + CHECK;
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
        self.notices = None;
        self.heard.clear();
        // These restart when the directory is back; until then they would be due all the time.
        (self.poll_at, self.retry_at) = (None, None);
        self.unread.clear();
        self.root.is_in_trouble = true;
        self.root.check_at = Instant::now() + CHECK_LOST;
        self.handle(Input::Trouble(Name::from([]), Some(word(error))));
    }

    /// Watches the directory with inotify where that works, and scans it.
    fn watch(&mut self) {
        self.scan_wanted = true;
        self.notices = None;
        self.heard.clear();
        self.poll_at = None;
        self.root.is_shared = mounts::is_shared(&self.settings.dir);
        if self.settings.rules.once {
            // Later changes do not matter.
            return;
        }
        if self.settings.poll.is_some() || self.root.is_shared {
            return self.poll_from_now_on();
        }
        match Notices::new() {
            Ok(notices) => self.notices = Some(notices),
            Err(error) => self.fall_back(&error),
        }
    }

    fn poll_from_now_on(&mut self) {
        self.notices = None;
        self.poll_at = Some(Instant::now());
    }

    /// The system's limit of inotify watches is reached.
    fn fall_back(&mut self, error: &io::Error) {
        let dir = encode(self.settings.dir.as_os_str().as_bytes());
        tracing::warn!(%error, "{dir} is polled instead of watched; fs.inotify.max_user_watches may be too low");
        self.poll_from_now_on();
    }

    fn scan(&mut self) {
        self.scan_wanted = false;
        self.handle(Input::ScanBegins);
        let unread = self.walk(Name::from([]));
        self.forget_mounts();
        self.handle(Input::ScanEnds(unread));
        if self.poll_at.is_some() {
            self.poll_at = Some(Instant::now() + self.settings.poll.unwrap_or(POLL));
        }
    }

    /// Retries directories that could not be read.
    fn retry(&mut self) {
        self.retry_at = None;
        for dir in std::mem::take(&mut self.unread) {
            self.walk(dir);
        }
    }

    fn has_not_read(&mut self, dir: Name) {
        self.unread.insert(dir);
        if !self.settings.rules.once {
            self.retry_at.get_or_insert_with(|| Instant::now() + CHECK);
        }
    }

    /// Reads a directory, and those below it if that is set, and watches them. Returns those that
    /// could not be read.
    fn walk(&mut self, from: Name) -> Vec<Name> {
        let mut unread = Vec::new();
        let mut dirs = vec![from];
        while let Some(dir) = dirs.pop() {
            let read = self.read_dir(&dir, &mut dirs);
            self.hear();
            let is_root = dir.is_empty();
            match read {
                Ok(Seen::All) => {
                    if is_root {
                        self.root.is_in_trouble = false;
                    }
                    self.unread.remove(&dir);
                    self.handle(Input::Trouble(dir, None));
                }
                Ok(Seen::Unmounted { is_empty }) => {
                    if is_empty {
                        self.handle(Input::Trouble(Arc::clone(&dir), Some("gone")));
                    }
                    unread.push(Arc::clone(&dir));
                    self.has_not_read(dir);
                }
                Err(error) if is_root => {
                    self.lose_root(&error);
                    unread.push(dir);
                }
                // It was removed since its name was read.
                Err(error) if is_gone(&error) => {
                    self.unread.remove(&dir);
                    self.handle(Input::GoneBelow(dir));
                }
                Err(error) => {
                    self.handle(Input::Trouble(Arc::clone(&dir), Some(word(&error))));
                    unread.push(Arc::clone(&dir));
                    self.has_not_read(dir);
                }
            }
        }
        unread
    }

    fn read_dir(&mut self, dir: &Name, dirs: &mut Vec<Name>) -> io::Result<Seen> {
        let path = self.path(dir);
        let metadata = if dir.is_empty() { fs::metadata(&path) } else { symlink_metadata(&path) }?;
        if !metadata.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let is_mounted = is_mounted(&path, &metadata);
        if is_mounted && self.mounts.insert(Arc::clone(dir)) {
            self.state.iter_mut().for_each(|state| state.note_mount(dir));
        }
        if !dir.is_empty() {
            if self.left_out == Some((metadata.dev(), metadata.ino())) {
                return Ok(Seen::All);
            }
            let is_elsewhere =
                self.root.watched.is_some_and(|(device, _)| device != metadata.dev());
            if is_elsewhere && self.notices.is_some() && mounts::is_shared(&path) {
                self.poll_from_now_on();
            }
        }
        // The watch begins before the listing, so that no change is missed in between.
        if let Some(notices) = &mut self.notices
            && let Err(error) = notices.add(dir, &path)
        {
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::OutOfMemory => self.fall_back(&error),
                _ => return Err(error),
            }
        }
        let mut is_empty = true;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            is_empty = false;
            let name = entry.file_name();
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                if self.settings.recursive && self.settings.select.enters(name.as_bytes()) {
                    dirs.push(join(dir, name.as_bytes(), "/"));
                }
            } else if kind.is_ok_and(|kind| kind.is_file())
                && self.settings.select.takes(name.as_bytes())
                && let Ok(metadata) = entry.metadata()
                && let Some(stamp) = self.stamp(&metadata)
            {
                self.handle(Input::Found(join(dir, name.as_bytes(), ""), stamp));
            }
        }
        let is_unmounted = !is_mounted && self.mounts.contains(dir);
        Ok(if is_unmounted { Seen::Unmounted { is_empty } } else { Seen::All })
    }

    /// Forgets mount points that no longer exist, as far as that is known.
    fn forget_mounts(&mut self) {
        let (root, unread) = (&self.settings.dir, &self.unread);
        let is_hidden = |dir: &Name| unread.iter().any(|above| dir.starts_with(above));
        let is_there = |dir: &Name| match symlink_metadata(below(root, dir)) {
            Ok(metadata) => metadata.is_dir(),
            Err(error) => !is_gone(&error),
        };
        let gone =
            self.mounts.extract_if(.., |dir| !dir.is_empty() && !is_hidden(dir) && !is_there(dir));
        for dir in gone {
            self.state.iter_mut().for_each(|state| state.forget(&dir));
        }
    }

    /// Reads the pending inotify events into the buffer.
    fn hear(&mut self) {
        let Some(notices) = &mut self.notices else { return };
        match notices.read() {
            Ok((notices, _more)) => self.heard.extend(notices),
            Err(error) => self.fall_back(&error),
        }
        if self.heard.len() > HEARD_MAX {
            self.heard = vec![Notice::Overflow];
        }
    }

    fn take_notices(&mut self) {
        self.hear();
        for notice in std::mem::take(&mut self.heard) {
            match notice {
                Notice::Overflow => self.scan_wanted = true,
                Notice::Lost { dir, unmounted } => {
                    if dir.is_empty() {
                        self.root.watched = None;
                        self.root.check_at = Instant::now();
                    } else if unmounted {
                        self.scan_wanted = true;
                    }
                }
                Notice::Of { dir, name, kind, is_dir: true } => self.dir_notice(&dir, &name, kind),
                Notice::Of { dir, name, kind, is_dir: false } => {
                    if self.settings.select.takes(&name) {
                        self.file_notice(join(&dir, &name, ""), kind);
                    }
                }
            }
        }
    }

    fn dir_notice(&mut self, dir: &Name, name: &[u8], kind: Kind) {
        if !self.settings.recursive || !self.settings.select.enters(name) {
            return;
        }
        let dir = join(dir, name, "/");
        if let Some(notices) = self.notices.as_mut().filter(|_| kind == Kind::Left) {
            notices.remove_below(&dir);
            self.unread.retain(|name| !name.starts_with(&dir));
            self.handle(Input::GoneBelow(dir));
        } else if kind != Kind::Left {
            // Finds what was created in it before the watch began.
            self.walk(dir);
        }
    }

    fn file_notice(&mut self, name: Name, kind: Kind) {
        let stamp_of = |name: &Name| {
            symlink_metadata(self.path(name)).ok().and_then(|metadata| self.stamp(&metadata))
        };
        let input = match kind {
            Kind::Opened => Input::Opened(name),
            Kind::ClosedUnwritten => Input::ClosedUnwritten(name),
            Kind::Left => Input::Gone(name),
            Kind::Created | Kind::Closed | Kind::MovedHere => match (kind, stamp_of(&name)) {
                (_, None) => Input::Gone(name),
                (Kind::Created, Some(stamp)) => Input::Created(name, stamp),
                (Kind::Closed, Some(stamp)) => Input::Closed(name, stamp),
                (_, Some(stamp)) => Input::Placed(name, stamp),
            },
        };
        self.handle(input);
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
