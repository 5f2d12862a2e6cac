//! Connects a Tidings broker to systems that speak something else.
//!
//! Each connector is a client of the line protocol, on a socket, like any other program, and its
//! errors cost the broker one connection. This crate knows neither the broker nor the crawler:
//! `.ci/run` checks that it does not depend on them. Requests of hubs and subscribers reach the
//! HTTP server of the process, which calls [`hub`] and [`websub`]. Requests to servers of others go
//! through `tidings-egress`, and the parsers of feeds are `tidings-documents`.
//!
//! | module | other end |
//! |---|---|
//! | [`callbacks`] | servers that are notified when a job is done |
//! | [`delivery`] | what callbacks and pushes have in common |
//! | [`files`] | directories with complete files to be published |
//! | `hub` | subscribers of the operator's own site, by WebSub and rssCloud |
//! | [`push`] | servers that receive events of a topic as HTTP requests |
//! | [`receivers`] | those servers that refuse callbacks and events |
//! | [`signal`] | programs that look into a directory when they receive a signal |
//! | [`websub`] | hubs that report changes of a feed |
//! | `zmq` | ZeroMQ sockets |
//!
//! `hub` and `zmq` exist only with their features.

pub mod callbacks;
pub mod delivery;
pub mod files;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(feature = "hub")]
pub mod hub;
pub mod push;
mod rate_limited_log;
pub mod receivers;
pub mod signal;
mod system;
pub mod websub;
#[cfg(any(feature = "zeromq", feature = "libzmq"))]
pub mod zmq;
