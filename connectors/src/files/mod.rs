//! Directories whose complete files are announced, each once.
//!
//! | module | what it knows |
//! |---|---|
//! | [`tracker`] | which file is complete, and what of it was announced; pure |
//! | [`select`] | which names are announced |
//! | [`name`] | what a path is called in an event |
//! | `event` | what an event says |
//! | [`state`] | what was announced, over restarts |
//! | `notices`, `mounts` | what the kernel says, and where it does not know |
//! | `look`, `writers` | what is to be seen of files, and who has them open |
//! | [`watching`], `watcher` | a watched directory, and the thread that puts all of this together |
//!
//! Only regular files are announced. Symbolic links are not followed: what they lead to is announced where it is, if that is
//! watched. A file that was put into place by a link is known by that nobody opens it in that moment.

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
