//! End-to-end tests: they run the real binary on free ports and drive it with netcat, telnet, curl,
//! nginx, Chromium, wget, sqlite3 and raw sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests panic to fail, and drive real processes on real clocks"
)]

mod access;
mod cluster;
mod connectors;
mod crawl;
mod dashboard;
mod docs;
mod faults;
mod http;
mod messaging;
mod operation;
mod queue;
mod support;
