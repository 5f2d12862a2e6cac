//! Signals programs that only look into a directory when they receive a signal.
//!
//! [`SignalSpool`] writes each event as a complete file into the directory, [`SignalTarget`]
//! signals the process of a pid file and no other, and [`SignalSchedule`] decides when. The program
//! may stop and start: files that it has not removed stay, and it is signalled until the directory
//! is empty.

mod schedule;
mod spool;
mod target;

pub use self::schedule::SignalSchedule;
pub use self::spool::{SignalSpool, cursor_name};
pub use self::target::{SIGNALS, SignalError, SignalName, SignalTarget};
