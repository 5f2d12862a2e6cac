//! Programs that can do nothing but look into a directory when they are sent a signal.
//!
//! [`Spool`] puts each event completely into the directory, [`Target`] sends the signal to the process of a pid file and to
//! no other, and [`Schedule`] says when. A program may come and go: what it has not taken out stays, and it is signalled
//! until the directory is empty.

mod schedule;
mod spool;
mod target;

pub use self::{
    schedule::Schedule,
    spool::{Spool, cursor_name},
    target::{Held, SIGNALS, SignalName, Target},
};
