//! The Tidings broker.

pub mod clock;
pub mod config;
pub mod group;
pub mod groups;
pub mod job;
pub mod mailbox;
pub mod topic;
