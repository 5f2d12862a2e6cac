//! The settings of topics: retention, and when an event counts as safe.

use super::{Kind, settings};
use crate::{DAY_MS, DURATION_MS_MAX};

settings! {
    /// The settings of a topic. Ages are in milliseconds.
    #[derive(Copy)]
    TopicSettings of "a topic" {
        /// When an event counts as safe.
        sync: Sync = Sync::Always => "sync": Kind::OneOf(&Sync::WORDS),
        /// Bytes of files; above this the oldest file is removed.
        retain_bytes: u64 = 1 << 30 => "retain-bytes": Kind::Bytes(1 << 20),
        /// Older events are removed; 0: age does not matter.
        retain_age_ms: u64 = 30 * DAY_MS => "retain-age": Kind::Duration(0, DURATION_MS_MAX),
    }
}

word_enum! {
    /// When an event of a topic is confirmed.
    pub enum Sync {
        /// When it is synced to disk.
        Always = "always",
        /// When it is written; the next sync makes it durable.
        Interval = "interval",
        /// When it is in memory. The topic's events are not written to disk.
        Memory = "memory",
    }
}
