//! Watches directories and publishes their complete files, each once.
//!
//! | module | content |
//! |---|---|
//! | [`tracker`] | which files are complete, and which of them are published; pure |
//! | [`select`] | which names are published |
//! | [`name`] | how a path is written in an event |
//! | `event` | the event of a file |
//! | [`state`] | what was published, across restarts |
//! | `notices`, `mounts` | inotify, and where it does not work |
//! | `look`, `writers` | metadata of files, and which of them are open for writing |
//! | [`watching`], `watcher` | a watched directory, and the thread that combines the other modules |
//!
//! Only regular files are published. Symbolic links are not followed: their target is published
//! where it is, if that directory is watched. A file that was linked into place is recognised
//! because no process opens it at that moment.

mod event;
mod look;
mod mounts;
pub mod name;
mod notices;
pub mod select;
pub mod state;
pub mod tracker;
mod watcher;
pub mod watching;
mod writers;

pub use self::{
    select::{Pattern, Select},
    tracker::Rules,
    watching::{Announcement, Settings, WatchError, Watching},
};
