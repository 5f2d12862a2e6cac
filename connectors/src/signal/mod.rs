//! Signals programs that only look into a directory when they receive a signal.
//!
//! [`Spool`] writes each event as a complete file into the directory, [`Target`] signals the
//! process of a pid file and no other, and [`Schedule`] decides when. The program may stop and
//! start: files that it has not removed stay, and it is signalled until the directory is empty.

mod schedule;
mod spool;
mod target;

pub use self::{
    schedule::Schedule,
    spool::{Spool, cursor_name},
    target::{Held, SIGNALS, SignalName, Target},
};
