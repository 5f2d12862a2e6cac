//! Ways into a Tidings broker and out of it for those who speak something else.
//!
//! Everything here is a client of the line protocol, on a socket, as any other program would be: it knows nothing of
//! the broker's insides, and what it does wrong costs the broker a connection.
//!
//! | module | who is at the other end |
//! |---|---|
//! | [`callbacks`] | who wants to be told that a job is done |
//! | [`files`] | directories whose complete files are announced |
//! | [`hub`] | subscribers of one's own site, by WebSub and rssCloud |
//! | [`signal`] | programs that can do nothing but look into a directory when they are sent a signal |
//! | [`websub`] | hubs that tell what is new in a feed |
//! | [`zmq`] | ZeroMQ sockets |
//!
//! What they have in common: [`worker`], one of those who share the events of a group, and [`outgoing`], requests to the
//! servers of others.

pub mod callbacks;
mod complaints;
pub mod files;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod hub;
pub mod outgoing;
pub mod signal;
pub mod websub;
pub mod worker;
pub mod zmq;
