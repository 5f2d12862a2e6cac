//! Watches directories and publishes their complete files, each once.
//!
//! | module | content |
//! |---|---|
//! | [`tracker`] | which files are complete, and which of them are published; pure |
//! | [`name_filter`] | which names are published |
//! | [`path_encoding`] | how a path is written in an event |
//! | `event` | the event of a file |
//! | [`state_file`] | what was published, across restarts |
//! | `inotify`, `mounts` | inotify, and where it does not work |
//! | `filesystem`, `open_files` | metadata of files, and which of them are open for writing |
//! | [`directory_watch`], `watcher` | a watched directory, and the thread that combines the other modules |
//!
//! Only regular files are published. Symbolic links are not followed: their target is published
//! where it is, if that directory is watched. A file that was linked into place is recognised
//! because no process opens it at that moment.

pub mod directory_watch;
mod event;
mod filesystem;
mod inotify;
mod mounts;
pub mod name_filter;
mod open_files;
pub mod path_encoding;
pub mod state_file;
pub mod tracker;
mod watcher;

pub use self::directory_watch::{DirectoryWatch, PublishRequest, WatchError, WatchSettings};
pub use self::name_filter::{GlobPattern, NameFilter};
pub use self::tracker::TrackerConfig;
