//! The process: its signals, log, files and privileges, and the broker and crawler that run in it.

pub(crate) mod atomic_file;
pub(crate) mod descriptors;
mod landlock;
pub(crate) mod logging;
pub(crate) mod metrics;
pub(crate) mod pid_file;
pub(crate) mod privileges;
pub(crate) mod service;
pub(crate) mod signals;
mod sockets;
pub(crate) mod stack;
mod user;
