//! The thread that writes audit records, and the queue to it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use tidings_metrics::Counter;

use super::record::AuditRecord;
use super::{AuditConfig, AuditEvent};
use crate::clock::wall_unix_ms;

/// Writes records as whole lines.
#[derive(Debug)]
pub(super) struct AuditWriter {
    out: AuditOutput,
    /// The last line was cut off, so a line end must be written first.
    is_torn: bool,
}

#[derive(Debug)]
enum AuditOutput {
    Stderr,
    File(PathBuf, File),
    #[cfg(test)]
    Test(Box<dyn TestOutput>),
}

/// An output that a test reads.
#[cfg(test)]
pub(super) trait TestOutput: Write + std::fmt::Debug + Send {}

impl AuditWriter {
    pub(super) fn open(config: &AuditConfig) -> io::Result<Self> {
        let out = match config {
            AuditConfig::Stderr => AuditOutput::Stderr,
            AuditConfig::File(path) => AuditOutput::File(path.clone(), open(path)?),
        };
        // A process may have been killed in the middle of a line.
        let is_torn = matches!(&out, AuditOutput::File(_, file) if ends_mid_line(file));
        Ok(Self { out, is_torn })
    }

    #[cfg(test)]
    pub(super) fn to(out: Box<dyn TestOutput>) -> Self {
        Self { out: AuditOutput::Test(out), is_torn: false }
    }

    fn write(&mut self, lines: &str) -> io::Result<()> {
        if self.is_torn {
            self.out.write_all(b"\n")?;
            self.is_torn = false;
        }
        let written = self.out.write_all(lines.as_bytes());
        self.is_torn = written.is_err();
        written
    }

    /// Opens the file at its path again, after log rotation has moved it away. On failure the old
    /// file stays in use.
    fn reopen(&mut self) {
        let AuditOutput::File(path, file) = &mut self.out else { return };
        match open(path) {
            Ok(opened) => {
                *file = opened;
                self.is_torn = false;
            }
            Err(error) => {
                let path = path.display();
                tracing::error!(%error, "cannot reopen the audit file {path}; the old file stays in use");
            }
        }
    }
}

impl AuditOutput {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(bytes),
            Self::File(_, file) => file.write_all(bytes),
            #[cfg(test)]
            Self::Test(out) => out.write_all(bytes),
        }
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
}

fn ends_mid_line(file: &File) -> bool {
    let mut last = [0];
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    length > 0
        && file.read_at(&mut last, length - 1).is_ok_and(|count| count == 1)
        && last != *b"\n"
}

/// The queue to the thread. Adding a record never blocks.
#[derive(Debug, Clone)]
pub(super) struct AuditQueue {
    shared: Arc<SharedQueue>,
    /// Records that were dropped since the last record of them.
    lost: Arc<AtomicU64>,
    /// Records that were dropped since the start.
    lost_total: Arc<Counter>,
    max: usize,
}

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<String>,
    /// The file must be reopened after this number of lines; `<= lines.len()`.
    reopen_after: Option<usize>,
    closed: bool,
}

/// Starts the thread, with a queue of up to `max` records.
pub(super) fn start(writer: AuditWriter, max: usize) -> io::Result<(AuditQueue, JoinHandle<()>)> {
    let queue = AuditQueue {
        shared: Arc::default(),
        lost: Arc::default(),
        lost_total: Arc::default(),
        max,
    };
    let own = queue.clone();
    let thread = thread::Builder::new().name("audit".to_owned());
    let thread = thread.spawn(move || own.run(writer))?;
    Ok((queue, thread))
}

impl AuditQueue {
    /// Counts records that are dropped.
    pub(super) fn count_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.lost_total.add(count);
    }

    /// Records that were dropped since the start.
    pub(super) fn lost_total(&self) -> u64 {
        self.lost_total.value()
    }

    pub(super) fn push(&self, line: String) {
        {
            let state = &mut *self.shared.state.lock();
            if state.closed || state.lines.len() >= self.max {
                return self.count_lost(1);
            }
            state.lines.push_back(line);
        }
        self.shared.changed.notify_one();
    }

    pub(super) fn reopen(&self) {
        {
            let state = &mut *self.shared.state.lock();
            state.reopen_after = Some(state.lines.len());
        }
        self.shared.changed.notify_one();
    }

    /// No more records are accepted; those in the queue are still written.
    pub(super) fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_one();
    }

    /// Writes until the queue is closed and empty.
    fn run(&self, mut writer: AuditWriter) {
        let mut is_failing = false;
        loop {
            let (mut lines, reopens_behind, closed) = {
                let mut state = self.shared.state.lock();
                while state.lines.is_empty() && state.reopen_after.is_none() && !state.closed {
                    self.shared.changed.wait(&mut state);
                }
                let lines = std::mem::take(&mut state.lines);
                (lines, state.reopen_after.take(), state.closed)
            };
            let is_last = closed && lines.is_empty();
            if let Some(behind) = reopens_behind {
                let rest = lines.split_off(behind);
                self.write_batch(&mut writer, &lines, &mut is_failing);
                writer.reopen();
                lines = rest;
            }
            self.write_batch(&mut writer, &lines, &mut is_failing);
            if is_last {
                return;
            }
        }
    }

    /// Writes these records, after a record of those that were lost before them.
    fn write_batch(
        &self,
        writer: &mut AuditWriter,
        lines: &VecDeque<String>,
        is_failing: &mut bool,
    ) {
        let (lost, mut text) = (self.lost.swap(0, Ordering::Relaxed), String::new());
        if lost > 0 {
            let what = AuditEvent::Lost { count: lost };
            text = AuditRecord { unix_ms: wall_unix_ms(), event: &what, initiator: None }.line();
        }
        text.extend(lines.iter().map(String::as_str));
        if text.is_empty() {
            return;
        }
        match writer.write(&text) {
            Ok(()) => *is_failing = false,
            Err(error) => {
                self.lost.fetch_add(lost, Ordering::Relaxed);
                self.count_lost(lines.len() as u64);
                if !std::mem::replace(is_failing, true) {
                    tracing::error!(%error, "cannot write audit records; lost records are counted");
                }
            }
        }
    }
}
