//! The handle of a watched directory.

#![expect(clippy::disallowed_methods, reason = "each watched directory has a thread")]

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidings_protocol::TopicName;
use tokio::sync::mpsc::UnboundedSender;

use super::name_filter::NameFilter;
use super::state_file::StateFileError;
use super::tracker::TrackerConfig;
use super::watcher::Watcher;

/// Which directory is watched, and how.
#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// An absolute path.
    pub dir: PathBuf,
    /// Also watch directories below it.
    pub recursive: bool,
    /// Which names are published.
    pub name_filter: NameFilter,
    /// When a file is complete.
    pub tracker: TrackerConfig,
    /// Scan this often instead of using inotify; `None`: only where inotify does not work.
    pub poll: Option<Duration>,
    /// Do not publish files that exist at the first start.
    pub new_only: bool,
    /// A directory that is not watched, such as the data directory: publishing must not change what
    /// is watched.
    pub excluded: Option<PathBuf>,
    /// Folder and topic of the state file; `None`: no state is stored.
    pub state: Option<(PathBuf, TopicName)>,
}

/// An event to be published. The receiver must confirm or refuse it by its number.
#[derive(Debug)]
pub struct PublishRequest {
    /// The number of the directory, as passed to [`DirectoryWatch::start`].
    pub watch_index: usize,
    /// The number of the event in this directory, from 1.
    pub number: u64,
    /// The payload of the event.
    pub payload: String,
    /// The file, if the event is for a complete file.
    pub file: Option<PathBuf>,
}

/// Why a directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It cannot be read at the start.
    #[error("{}: {source}", .path.display())]
    Dir {
        /// The directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateFileError),
}

/// A message to the thread.
pub(super) enum WatchCommand {
    Confirmed(u64),
    Refused(u64),
    Stop,
}

/// A watched directory. Dropping it stops the thread.
#[derive(Debug)]
pub struct DirectoryWatch {
    answers: mpsc::Sender<WatchCommand>,
    wake: UnixStream,
    thread: Option<JoinHandle<u64>>,
}

impl DirectoryWatch {
    /// Starts watching. At most [`super::tracker::IN_FLIGHT_MAX`] events wait in the channel. The
    /// thread closes it when there will be no more events.
    pub fn start(
        settings: WatchSettings,
        of: usize,
        announcements: UnboundedSender<PublishRequest>,
    ) -> Result<Self, WatchError> {
        let (wake, woken) = UnixStream::pair().map_err(|error| dir_error(&settings.dir, error))?;
        wake.set_nonblocking(true).map_err(|error| dir_error(&settings.dir, error))?;
        woken.set_nonblocking(true).map_err(|error| dir_error(&settings.dir, error))?;
        let (answers, answered) = mpsc::channel();
        let watcher = Watcher::new(settings, of, announcements, answered, woken)?;
        let thread = thread::spawn(move || watcher.run());
        Ok(Self { answers, wake, thread: Some(thread) })
    }

    /// The broker has confirmed this event.
    pub fn confirm(&self, number: u64) {
        self.send(WatchCommand::Confirmed(number));
    }

    /// The broker has refused this event for now; it is sent again later.
    pub fn refuse(&self, number: u64) {
        self.send(WatchCommand::Refused(number));
    }

    fn send(&self, answer: WatchCommand) {
        // A thread that has ended needs no message, and one that is awake needs no wake-up.
        let _ = self.answers.send(answer);
        let _ = (&self.wake).write(&[0]);
    }

    /// Stops the thread; confirmed files are stored. Returns how many files were skipped because
    /// they were changing.
    pub fn stop(mut self) -> u64 {
        self.join()
    }

    fn join(&mut self) -> u64 {
        self.send(WatchCommand::Stop);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or(0)
    }
}

impl Drop for DirectoryWatch {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.join();
        }
    }
}

pub(super) fn dir_error(path: &Path, source: io::Error) -> WatchError {
    WatchError::Dir { path: path.to_owned(), source }
}
