//! `tidings watch`: announces complete files in directories, or publishes the lines of files in a
//! spool directory.

mod spool;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidings_connectors::files::{
    DirectoryWatch, GlobPattern, NameFilter, PublishRequest, TrackerConfig, WatchError,
    WatchSettings,
};
use tidings_protocol::{DEFAULT_TOPIC, TopicName};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::spool::SpoolSource;
use crate::client::publisher::{EventSource, Rejection, publish_all};
use crate::flags::broker::BrokerFlag;
use crate::flags::{DataFlag, parse_duration};
use crate::process::signals::stop_on_signal;
use crate::process::stack;
use crate::terminal::failure::Failure;
use crate::terminal::output::{note, plural, printable};

const EXAMPLES: &str = "\
Examples:
  tidings watch /srv/out                                announce every complete file
  tidings watch /srv/out --recursive --pattern '*.pdf'  only PDF files, also in subdirectories
  tidings watch /srv/out --once --batch-end             announce new files, end the batch, exit
  tidings watch --spool /srv/urls                       publish the URLs in files dropped there
  tidings sub file-ready --group thumbs --exec thumbnail {}
                                                        on any machine: run a program for each file

A file is complete
  - when it is renamed into place,
  - when it was closed after writing and has not changed for the --settle time,
  - if it was found by a scan or linked into place, when it has not changed for that time and no
    process of this user (of any user, for root) has it open for writing,
  - if it was opened and never closed, one minute after that.
Each complete file is announced once, as

  <path> size=<bytes> modified=<unix ms> id=<id>

and again only when it was replaced or has changed. Unusual characters in a path are written as %XX.
Files that changed while no watcher ran are announced at the next start: a small file in the --data
directory stores what was announced. A directory that cannot be read, or is readable again, is
announced as <path> error=<word>: gone, denied, unreadable, too-many-files (5,000,000 below one
DIR), none. Files on an unmounted disk are not gone, and not new when it is mounted again.

Not announced: names that begin with a dot or end in ~, .tmp, .part, .partial, .filepart or
.crdownload (unless --all is set), symbolic links, and everything that is not a regular file.

Directories of network file systems are scanned every second (or with --poll), because the kernel
does not report the changes of other machines. A file that another machine writes slowly may seem
complete: rename it into place, or raise --settle.

With --spool each line of a complete file is published as an event, except empty lines and those
that begin with #. The file is removed when all its events are confirmed. A file with lines that
cannot be events is kept as .rejected-NAME.

Exit codes: 0 stopped, or --once is done; 1 failure; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-watch";

/// The default topic for complete files.
const FILE_TOPIC: &str = "file-ready";

/// The limit of directories of one process: each uses a thread and one of the 128 inotify instances
/// of a user.
const DIRS_MAX: usize = 64;

/// The limit of files that are tracked in one directory, about 200 bytes each.
const FILES_MAX: usize = 5_000_000;

/// The wait before the next announcement after the broker has rejected one.
const RETRY: Duration = Duration::from_secs(1);

/// The flags of `tidings watch`.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// Directories to watch, at most 64
    #[arg(value_name = "DIR", required_unless_present = "spool")]
    dirs: Vec<PathBuf>,

    /// Topic to publish on [default: file-ready; with --spool new-url]
    #[arg(long, value_name = "TOPIC")]
    topic: Option<TopicName>,

    /// Only files with a matching name, in upper or lower case: * any text, ? one character, [a-z]
    /// one of these
    ///
    /// May be repeated.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pattern: Vec<GlobPattern>,

    /// Include subdirectories
    #[arg(long, short)]
    recursive: bool,

    /// Announce a written file when it has not changed for this time
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    settle: Duration,

    /// Include names that begin with a dot or look unfinished
    #[arg(long, conflicts_with = "spool")]
    all: bool,

    /// Do not announce files that exist when a directory is watched for the first time
    #[arg(long, conflicts_with = "spool")]
    new_only: bool,

    /// Announce all files that were not announced yet, then exit
    #[arg(long)]
    once: bool,

    /// Also publish `<dir> batch=end files=<n>` after this time without a change; with --once at
    /// the end
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = parse_duration,
        conflicts_with = "spool"
    )]
    batch_end: Option<Duration>,

    /// Scan the directories at this interval instead of using notifications of the kernel
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    poll: Option<Duration>,

    /// Publish the lines of the files in this directory, then remove the files; may be repeated
    #[arg(long, value_name = "DIR", conflicts_with = "dirs")]
    spool: Vec<PathBuf>,

    /// Print nothing on success
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    data: DataFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

impl WatchArgs {
    fn is_spool(&self) -> bool {
        !self.spool.is_empty()
    }

    fn topic(&self) -> TopicName {
        let default = if self.is_spool() { DEFAULT_TOPIC } else { FILE_TOPIC };
        let default = || default.parse().expect("it is a name");
        self.topic.clone().unwrap_or_else(default)
    }

    /// The settings of each directory, with absolute paths.
    fn settings(&self) -> Result<Vec<WatchSettings>, Failure> {
        let dirs = if self.is_spool() { &self.spool } else { &self.dirs };
        if dirs.len() > DIRS_MAX {
            let found = dirs.len();
            let text =
                format!("{found} directories: at most {DIRS_MAX} can be watched by one process");
            return Err(Failure::Usage(text));
        }
        if self.poll.is_some_and(|poll| poll.is_zero()) {
            return Err(Failure::Usage("--poll 0: expected more than 0".to_owned()));
        }
        let state = self.data.data.join("watch");
        if !self.is_spool() {
            stack::make_data_directory(&self.data.data)?;
            stack::make_data_directory(&state)?;
        }
        let settings = |dir: &PathBuf| -> Result<WatchSettings, io::Error> {
            // Symbolic links are not resolved: the events show the path as it was typed.
            let dir = std::path::absolute(dir)?;
            // A slash at the end does not make it another directory with another state.
            let dir = dir.components().collect();
            Ok(WatchSettings {
                dir,
                recursive: self.recursive,
                name_filter: NameFilter { patterns: self.pattern.clone(), all: self.all },
                tracker: TrackerConfig {
                    settle: self.settle,
                    batch_end: self.batch_end,
                    once: self.once,
                    retry: RETRY,
                    files_max: FILES_MAX,
                },
                poll: self.poll,
                new_only: self.new_only,
                excluded: Some(self.data.data.clone()),
                state: (!self.is_spool()).then(|| (state.clone(), self.topic())),
            })
        };
        let usage = |error: io::Error| Failure::Usage(error.to_string());
        dirs.iter().map(settings).collect::<Result<_, _>>().map_err(usage)
    }
}

/// Runs until it is stopped, or with `--once` until all files are announced.
pub(crate) async fn run(args: WatchArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let (sender, announcements) = unbounded_channel();
    let (mut dirs, mut names) = (Vec::new(), Vec::new());
    for settings in args.settings()? {
        names.push(settings.dir.display().to_string());
        let watching = DirectoryWatch::start(settings, dirs.len(), sender.clone());
        dirs.push(watching.map_err(|error| match error {
            WatchError::Dir { .. } => Failure::Usage(printable(&error.to_string(), 500)),
            WatchError::State(error) => Failure::failed(error.to_string()),
        })?);
    }
    let say_watched = || {
        for name in names.iter().filter(|_| !args.quiet) {
            note(&format!("watching {}", printable(name, 500)));
        }
    };
    // The channel ends with the last directory.
    drop(sender);
    let (broker, topic) = (&args.broker.broker, args.topic());
    let mut files = WatchedFiles { announcements, dirs, confirmed: 0, is_rejected: false };
    let result = if args.is_spool() {
        let mut spool = SpoolSource::new(files);
        let result = publish_all(broker, NAME, topic, &mut spool, &stop, say_watched).await;
        files = spool.into_files();
        result
    } else {
        publish_all(broker, NAME, topic, &mut files, &stop, say_watched).await
    };
    // Confirmed announcements are stored before this returns.
    let skipped: u64 = files.dirs.into_iter().map(DirectoryWatch::stop).sum();
    result?;
    if !args.quiet {
        let skipped = match skipped {
            0 => String::new(),
            some => format!("; {} still being written", plural(some, "file")),
        };
        note(&format!("{} announced{skipped}", plural(files.confirmed, "event")));
    }
    Ok(())
}

/// The directories as a source of events.
struct WatchedFiles {
    announcements: UnboundedReceiver<PublishRequest>,
    dirs: Vec<DirectoryWatch>,
    confirmed: u64,
    /// The last answer was a rejection, which was reported.
    is_rejected: bool,
}

/// The number of an announcement among those of all directories.
fn announcement_id(announcement: &PublishRequest) -> u64 {
    announcement.number * DIRS_MAX as u64 + announcement.watch_index as u64
}

impl WatchedFiles {
    /// Passes the answer to the directory of the announcement.
    fn answer(&mut self, token: u64, is_confirmed: bool) {
        let of = usize::try_from(token % DIRS_MAX as u64).expect("it is below 64");
        let number = token / DIRS_MAX as u64;
        if is_confirmed {
            self.dirs[of].confirm(number);
        } else {
            self.dirs[of].refuse(number);
        }
    }

    fn note_rejection(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_rejected, true) {
            note(&format!("the broker rejects an event: {reason}; trying again"));
        }
    }
}

impl EventSource for WatchedFiles {
    async fn next(&mut self) -> Option<Vec<(u64, String)>> {
        let first = self.announcements.recv().await?;
        let rest = std::iter::from_fn(|| self.announcements.try_recv().ok());
        Some(
            [first]
                .into_iter()
                .chain(rest)
                .map(|one| (announcement_id(&one), one.payload))
                .collect(),
        )
    }

    fn on_answer(&mut self, token: u64, answer: Result<(), Rejection>) -> Result<(), Failure> {
        match &answer {
            Ok(()) => {
                self.confirmed += 1;
                self.is_rejected = false;
            }
            Err(refusal) => self.note_rejection(&refusal.reason),
        }
        self.answer(token, answer.is_ok());
        Ok(())
    }
}
