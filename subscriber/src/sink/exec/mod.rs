//! Runs a program for each fetched page, with the page in its environment.
//!
//! | variable | |
//! |---|---|
//! | `PAGE_ID` | the id of the page within its pass |
//! | `PAGE_URL`, `PAGE_STATUS`, `PAGE_TYPE`, `PAGE_TITLE`, `PAGE_HASH` | as in the fields of other sinks |
//! | `PAGE_PATH` | a file with the decoded body, removed after the program has ended; not set for an unchanged page (status 304) |
//! | `PAGE_RENDERED_PATH` | a file with the HTML after a browser has rendered the page, removed after the program has ended |
//! | `PAGE_SCREENSHOT_PATH`, `PAGE_PDF_PATH` | the image and the PDF of a rendered page, which stay in the data directory |
//! | `PAGE_ITEM`, `PAGE_SOURCE` | `item=` and `source=` of the event that announced the page |
//! | `TRACEPARENT` | the trace context of that event |
//! | `PAGE_JOB`, `PAGE_PASS`, `PAGE_DEPTH`, `PAGE_TASK`, `PAGE_ATTEMPT` | where it belongs |
//!
//! Exit code 0 makes the page safe here. After another exit code or a timeout the page is refused:
//! its task is retried, and becomes a dead letter in the end. After a crash the program may run
//! again for a page that it has processed: recognize it by `PAGE_ID`.

#![expect(clippy::disallowed_methods, reason = "programs have a time limit")]

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use futures_util::future::join_all;
use tokio::process::Command;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::ledger::Ledger;
use super::{OpenError, Sink, StoreError};
use crate::images::StoredImage;
use crate::program::{Programs, failure};
use crate::report::{PageId, PageOutcome, PageRecord, Rendering};
use crate::spool::Spool;

/// Programs that run at a time, one for each page.
const EXEC_CONCURRENT_MAX: usize = 8;
/// Time limit of a program for a page; then it is killed, and the page is refused.
const EXEC_TIME_MAX: Duration = Duration::from_mins(5);

/// The sink that runs a program.
pub(super) struct Exec {
    /// The program and its arguments; at least one.
    words: Vec<OsString>,
    runtime: Runtime,
    programs: Programs,
    /// Pages that were processed and may come again.
    ledger: Ledger,
    refused: Vec<(PageId, String)>,
}

impl Exec {
    /// Runs nothing yet. `programs` kills them when it is dropped.
    pub(super) fn open(words: &[OsString], programs: Programs) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: words.iter().collect(), source };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let ledger = Ledger::default();
        Ok(Self { words: words.to_vec(), runtime, programs, ledger, refused: Vec::new() })
    }

    /// Runs the program; returns why it failed, if it did. `Err`: it cannot be started at all.
    async fn run(&self, record: &PageRecord) -> io::Result<Option<String>> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        // Standard output may belong to another sink.
        command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        for (name, value) in variables(record) {
            match value {
                // An environment variable cannot contain NUL.
                Some(value) => command.env(name, value.replace('\0', "")),
                // This process may have one of this name, which must not be inherited.
                None => command.env_remove(name),
            };
        }
        for (name, path) in files(record) {
            match path {
                Some(path) => command.env(name, path),
                None => command.env_remove(name),
            };
        }
        let mut running = self.programs.start(command)?;
        let ended = timeout(EXEC_TIME_MAX, running.wait()).await;
        if let Ok(status) = ended {
            return Ok(failure(status?));
        }
        running.kill().await;
        Ok(Some(format!("not_finished_within_{}s", EXEC_TIME_MAX.as_secs())))
    }
}

impl Sink for Exec {
    fn name(&self) -> String {
        self.words[0].display().to_string()
    }

    fn batch_max(&self) -> usize {
        EXEC_CONCURRENT_MAX
    }

    fn write(&mut self, batch: &[Arc<PageRecord>]) -> Result<(), StoreError> {
        let fetched = |record: &&Arc<PageRecord>| record.report.outcome == PageOutcome::Done;
        let fresh = |record: &&Arc<PageRecord>| !self.ledger.contains(&record.page);
        let pages: Vec<_> = batch.iter().filter(fetched).filter(fresh).collect();
        let ends = self.runtime.block_on(join_all(pages.iter().map(|record| self.run(record))));
        let mut error = None;
        for (record, end) in pages.into_iter().zip(ends) {
            match end {
                Ok(None) => self.ledger.insert(record.page.clone()),
                Ok(Some(reason)) => {
                    let text = format!("{}: {reason}", self.name());
                    self.refused.push((record.page.clone(), text));
                }
                Err(failed) => error = Some(failed.to_string()),
            }
        }
        error.map_or(Ok(()), |text| Err(StoreError { text, closed: false }))
    }

    fn take_refused(&mut self) -> Vec<(PageId, String)> {
        mem::take(&mut self.refused)
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        Some(&mut self.ledger)
    }

    fn body_output(&self) -> Option<String> {
        let words: Vec<_> = self.words.iter().map(|word| word.as_bytes()).collect();
        Some(format!("exec {:016x}", xxh3_64(&words.join(&0))))
    }
}

fn variables(record: &PageRecord) -> [(&'static str, Option<String>); 14] {
    let report = &record.report;
    [
        ("PAGE_ID", Some(record.page.to_string())),
        ("PAGE_URL", Some(report.url.clone())),
        ("PAGE_TASK", Some(record.task.to_string())),
        ("PAGE_ATTEMPT", Some(record.task.attempt.to_string())),
        ("PAGE_STATUS", report.status.map(|status| status.to_string())),
        ("PAGE_TYPE", record.content_type.clone()),
        ("PAGE_TITLE", report.title.clone()),
        ("PAGE_HASH", record.hash.map(|hash| hash.to_hex().to_string())),
        ("PAGE_JOB", report.job.clone()),
        ("PAGE_PASS", record.pass.map(|pass| pass.to_string())),
        ("PAGE_DEPTH", record.depth.map(|depth| depth.to_string())),
        ("PAGE_ITEM", record.item.as_deref().map(str::to_owned)),
        ("PAGE_SOURCE", record.source.as_deref().map(str::to_owned)),
        ("TRACEPARENT", record.traceparent.as_deref().map(str::to_owned)),
    ]
}

fn files(record: &PageRecord) -> [(&'static str, Option<&Path>); 4] {
    let rendering = record.rendering.as_ref();
    let image = |image: fn(&Rendering) -> Option<&StoredImage>| Some(&*image(rendering?)?.path);
    [
        ("PAGE_PATH", record.body.as_ref().and_then(Spool::file)),
        ("PAGE_RENDERED_PATH", rendering.and_then(|page| page.html.as_ref()?.file())),
        ("PAGE_SCREENSHOT_PATH", image(|page| page.screenshot.as_ref())),
        ("PAGE_PDF_PATH", image(|page| page.pdf.as_ref())),
    ]
}

/// Splits a command line at white space; quotes keep white space in a word. No shell is involved.
pub(crate) fn words(text: &str) -> Option<Vec<OsString>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let mut word = String::new();
        while let Some(c) = rest.chars().next().filter(|c| !c.is_whitespace()) {
            rest = &rest[c.len_utf8()..];
            match c {
                '"' | '\'' => {
                    let (quoted, behind) = rest.split_once(c)?;
                    word.push_str(quoted);
                    rest = behind;
                }
                c => word.push(c),
            }
        }
        words.push(OsStr::new(&word).to_owned());
        rest = rest.trim_start();
    }
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests;
