//! The log as segment files in one directory.
//!
//! | module | what it is |
//! |---|---|
//! | [`segment_log`] | append, sync, retention |
//! | [`batches`] | what is appended together, as batches |
//! | [`segment_index`] | where the batches of a segment begin, and which seqs have no event |
//! | [`segment_walk`] | a walk through the batches of one file, damaged or not |
//! | [`recovery`] | opening a log, after an orderly stop or a crash |
//! | [`log_reader`] | reading from a seq on; verification |
//! | [`log_end`] | where a log ends, and how it continues after a lost end |

mod batches;
mod log_end;
mod log_reader;
mod recovery;
mod segment_index;
mod segment_log;
mod segment_walk;
#[cfg(test)]
mod tests;

pub use self::recovery::Recovered;
pub(crate) use self::segment_log::{SegmentLog, SegmentOptions};
