//! A directory that is watched, as whoever wants its files has it.

#![expect(clippy::disallowed_methods, reason = "a watched directory is a thread of its own")]

use std::{
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use tidings_protocol::TopicName;
use tokio::sync::mpsc::UnboundedSender;

use super::{select::Select, state::StateError, tracker::Rules, watcher::Watcher};

/// What is watched, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// An absolute path.
    pub dir: PathBuf,
    /// Also what is below it.
    pub recursive: bool,
    /// Which names.
    pub select: Select,
    /// When a file is complete.
    pub rules: Rules,
    /// Looked through so often instead of asking the kernel; `None`: where the kernel does not know.
    pub poll: Option<Duration>,
    /// What is there when it is watched for the first time is not announced.
    pub new_only: bool,
    /// A directory that is left out if it is somewhere below: what is announced must not change what is watched.
    pub left_out: Option<PathBuf>,
    /// Where is remembered what was announced for which topic; `None`: nowhere.
    pub state: Option<(PathBuf, TopicName)>,
}

/// Something to be announced. It has to be answered, by its number.
#[derive(Debug)]
pub struct Announcement {
    /// Which directory, as [`Watching::start`] was told.
    pub of: usize,
    /// In this directory, from 1.
    pub number: u64,
    /// The event.
    pub payload: String,
    /// The file, if it is one that is complete.
    pub file: Option<PathBuf>,
}

/// Why a directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It cannot be looked into at the start.
    #[error("{}: {source}", .path.display())]
    Dir {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What was announced before cannot be known.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What became of announcements, and what is wanted.
pub(super) enum Answer {
    Confirmed(u64),
    Refused(u64),
    Stop,
}

/// A directory that is watched. Dropped, it is watched no more.
#[derive(Debug)]
pub struct Watching {
    answers: mpsc::Sender<Answer>,
    wake: UnixStream,
    thread: Option<JoinHandle<u64>>,
}

impl Watching {
    /// Begins to watch. Announcements of at most [`super::tracker::IN_FLIGHT_MAX`] files wait in the channel; it is
    /// closed from this side when there will be none any more.
    pub fn start(
        settings: Settings,
        of: usize,
        announcements: UnboundedSender<Announcement>,
    ) -> Result<Self, WatchError> {
        let (wake, woken) = UnixStream::pair().map_err(|error| at(&settings.dir, error))?;
        wake.set_nonblocking(true).map_err(|error| at(&settings.dir, error))?;
        woken.set_nonblocking(true).map_err(|error| at(&settings.dir, error))?;
        let (answers, answered) = mpsc::channel();
        let watcher = Watcher::new(settings, of, announcements, answered, woken)?;
        let thread = thread::spawn(move || watcher.run());
        Ok(Self { answers, wake, thread: Some(thread) })
    }

    /// The broker has kept this announcement.
    pub fn confirm(&self, number: u64) {
        self.answer(Answer::Confirmed(number));
    }

    /// The broker does not take this announcement now; it comes again.
    pub fn refuse(&self, number: u64) {
        self.answer(Answer::Refused(number));
    }

    fn answer(&self, answer: Answer) {
        // A thread that has ended needs no answers; one that was woken already needs no waking.
        let _ = self.answers.send(answer);
        let _ = (&self.wake).write(&[0]);
    }

    /// Ends it: what was confirmed is remembered. Files that were left for another time, as they were changing.
    pub fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        self.answer(Answer::Stop);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or(0)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

pub(super) fn at(path: &Path, source: io::Error) -> WatchError {
    WatchError::Dir { path: path.to_owned(), source }
}
