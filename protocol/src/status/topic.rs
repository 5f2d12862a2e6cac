//! Topics and their durable cursors.

use super::value::Rate;
use crate::{Seq, TopicSettings};

words! {
    /// Whether a topic can store events.
    TopicState {
        /// It can.
        Ok = "ok",
        /// The disk is full.
        Full = "full",
        /// A write or sync failed.
        SyncFailed = "sync-failed",
    }
}

status! {
    /// A topic: `TOPIC show`, and a line of `TOPIC ls` and `STATS`.
    TopicStatus(topic: String) {
        /// The seq of the next event.
        next: Seq = "next",
        /// The seq of the oldest event that is kept.
        first: Seq = "first",
        /// Events that are kept.
        kept: u64 = "kept",
        /// Batches in memory.
        batches: u64 = "batches",
        /// Bytes in memory.
        bytes: u64 = "bytes",
        /// Subscriptions and groups that read it.
        readers: u64 = "readers",
        /// Recent events per second.
        rate: Rate = "rate",
        /// Its settings.
        settings: TopicSettings,
        /// The first seq that is not safe on the disk.
        durable: Seq = "durable",
        /// Bytes on the disk.
        log_bytes: u64 = "log-bytes",
        /// Files on the disk.
        segments: u64 = "segments",
        /// Whether it can store events.
        state: TopicState = "state",
    }
}

status! {
    /// A durable cursor: a line of `TOPIC show`, after the word `cursor`.
    CursorStatus(cursor: String) {
        /// The next event that it receives.
        next: Seq = "next",
        /// Events from there to the head.
        behind: u64 = "behind",
        /// Whether a connection uses it.
        held: bool = "held",
        /// When it moved last.
        moved: String = "moved",
    }
}
