//! This program as a client of a broker: connections, requests to manage it, publishing, and the
//! jobs of a broker. Errors are converted to messages for the shell.

pub(crate) mod broker_message;
pub(crate) mod connection;
pub(crate) mod job;
pub(crate) mod job_pages;
pub(crate) mod job_watch;
pub(crate) mod lists;
pub(crate) mod manage;
pub(crate) mod overview;
pub(crate) mod publisher;
