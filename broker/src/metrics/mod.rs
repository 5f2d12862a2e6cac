//! Everything that the broker counts, under its public names.
//!
//! [`table`] names each metric and reads it from a [`Snapshot`], which copies what the parts of the
//! broker know: counters of connections, topics, and what each group has published about itself. To
//! make one waits for no group and no disk. `STATS`, `GET /stats` and `GET /metrics` read the table
//! and nothing else. [`history`] keeps samples of them, and
//! [`problems`] says what is not well.

mod counts;
mod history;
mod problems;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use self::history::{History, RANGES, Subject, Table};
pub(crate) use self::problems::Problem;
pub(crate) use self::snapshot::{Connections, Snapshot, TopicMetrics};
pub(crate) use self::table::{BROKER, TOPICS};
