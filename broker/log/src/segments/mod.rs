//! The log as segment files in one directory.
//!
//! | module | what it is |
//! |---|---|
//! | [`segment_log`] | append, sync, retention |
//! | [`batches`] | what is appended together, as batches |
//! | [`segment_index`] | where the batches of a segment begin, and which seqs have no event |
//! | [`segment_walk`] | a walk through the batches of one file, damaged or not |
//! | [`segment_file`] | a file that is being recovered |
//! | [`recovery`] | opening a log, after an orderly stop or a crash |
//! | [`log_reader`] | reading from a seq on; verification |

mod batches;
mod log_reader;
mod recovery;
mod segment_file;
mod segment_index;
mod segment_log;
mod segment_walk;
#[cfg(test)]
mod tests;

pub use self::recovery::Recovered;
pub(crate) use self::segment_log::{SegmentLog, SegmentOptions};
