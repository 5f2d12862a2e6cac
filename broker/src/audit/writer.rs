//! The thread that writes audit records, and the queue to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use tidings_metrics::Counter;
use tokio::sync::{Semaphore, mpsc};

use super::record::AuditRecord;
use super::{AuditConfig, AuditEvent};
use crate::clock::wall_unix_ms;

/// Records that are written at once.
const AUDIT_BATCH_MAX: usize = 1024;

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
    sender: mpsc::UnboundedSender<AuditCommand>,
    counts: Arc<AuditCounts>,
}

#[derive(Debug)]
enum AuditCommand {
    Write(String),
    Reopen,
    Close,
}

#[derive(Debug)]
struct AuditCounts {
    /// Records that may still be added.
    free: Semaphore,
    /// Records that were dropped since the last record of them.
    lost: AtomicU64,
    /// Records that were dropped since the start.
    lost_total: Counter,
}

/// Starts the thread, with a queue of up to `max` records.
pub(super) fn start(writer: AuditWriter, max: usize) -> io::Result<(AuditQueue, JoinHandle<()>)> {
    let (sender, commands) = mpsc::unbounded_channel();
    let (free, lost, lost_total) = (Semaphore::new(max), AtomicU64::default(), Counter::default());
    let counts = Arc::new(AuditCounts { free, lost, lost_total });
    let queue = AuditQueue { sender, counts: Arc::clone(&counts) };
    let thread = thread::Builder::new().name("audit".to_owned());
    Ok((queue, thread.spawn(move || counts.write_all(writer, commands))?))
}

impl AuditQueue {
    /// Counts records that are dropped.
    pub(super) fn count_lost(&self, count: u64) {
        self.counts.count_lost(count);
    }

    /// Records that were dropped since the start.
    pub(super) fn lost_total(&self) -> u64 {
        self.counts.lost_total.value()
    }

    pub(super) fn push(&self, line: String) {
        let is_added = self.counts.free.try_acquire().is_ok_and(|permit| {
            permit.forget();
            self.sender.send(AuditCommand::Write(line)).is_ok()
        });
        if !is_added {
            self.count_lost(1);
        }
    }

    pub(super) fn reopen(&self) {
        // Not needed after the end of the thread.
        let _ = self.sender.send(AuditCommand::Reopen);
    }

    /// No more records are accepted; those in the queue are still written.
    pub(super) fn close(&self) {
        let _ = self.sender.send(AuditCommand::Close);
    }
}

impl AuditCounts {
    fn count_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.lost_total.add(count);
    }

    /// Writes until the queue is closed.
    fn write_all(
        &self,
        mut writer: AuditWriter,
        mut commands: mpsc::UnboundedReceiver<AuditCommand>,
    ) {
        let (mut some, mut lines, mut is_failing) = (Vec::new(), Vec::new(), false);
        while commands.blocking_recv_many(&mut some, AUDIT_BATCH_MAX) > 0 {
            for command in some.drain(..) {
                match command {
                    AuditCommand::Write(line) => lines.push(line),
                    AuditCommand::Reopen => {
                        self.write_batch(&mut writer, &mut lines, &mut is_failing);
                        writer.reopen();
                    }
                    AuditCommand::Close => commands.close(),
                }
            }
            self.write_batch(&mut writer, &mut lines, &mut is_failing);
        }
        // What was lost last.
        self.write_batch(&mut writer, &mut lines, &mut is_failing);
    }

    /// Writes these records, after a record of those that were lost before them.
    fn write_batch(
        &self,
        writer: &mut AuditWriter,
        lines: &mut Vec<String>,
        is_failing: &mut bool,
    ) {
        let (lost, mut text) = (self.lost.swap(0, Ordering::Relaxed), String::new());
        if lost > 0 {
            let what = AuditEvent::Lost { count: lost };
            text = AuditRecord { unix_ms: wall_unix_ms(), event: &what, initiator: None }.line();
        }
        let count = lines.len();
        self.free.add_permits(count);
        text.extend(lines.drain(..));
        if text.is_empty() {
            return;
        }
        match writer.write(&text) {
            Ok(()) => *is_failing = false,
            Err(error) => {
                self.lost.fetch_add(lost, Ordering::Relaxed);
                self.count_lost(count as u64);
                if !std::mem::replace(is_failing, true) {
                    tracing::error!(%error, "cannot write audit records; lost records are counted");
                }
            }
        }
    }
}
