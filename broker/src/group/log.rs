//! Where a group's records go. The machine knows nothing of it; its shell writes here before it
//! lets an output leave.

use std::collections::VecDeque;

use super::record::Record;

/// Place in a log: the number of records before it. Half-open, so that marks compare directly.
pub type Mark = u64;

/// An append-only sequence of records.
pub trait GroupLog: Send {
    /// Appends a record and returns the mark behind it.
    fn append(&mut self, record: Record) -> Mark;

    /// Everything before this mark is as safe as the log promises.
    /// Invariant: `durable <= ` the mark of the last append.
    fn durable(&self) -> Mark;
}

/// A log in memory that keeps the newest records: safe as long as the process lives.
#[derive(Debug)]
pub struct MemoryLog {
    records: VecDeque<Record>,
    records_max: usize,
    appended: Mark,
}

impl MemoryLog {
    /// An empty log that keeps up to `records_max` records.
    pub fn new(records_max: usize) -> Self {
        Self { records: VecDeque::new(), records_max, appended: 0 }
    }

    /// The records that are kept, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }
}

impl GroupLog for MemoryLog {
    fn append(&mut self, record: Record) -> Mark {
        if self.records.len() == self.records_max {
            self.records.pop_front();
        }
        self.records.push_back(record);
        self.appended += 1;
        self.appended
    }

    fn durable(&self) -> Mark {
        self.appended
    }
}
