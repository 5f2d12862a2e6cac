//! The time of day of a process, which a test sets; its monotonic clock goes on as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::Process;
use super::wait::wait_until;

/// What a command prints on its first line.
#[track_caller]
pub(crate) fn first_output_line(program: &str, arguments: &[&str]) -> String {
    let ended = Process::start(Command::new(program).args(arguments)).finish();
    ended.expect_code(0).stdout().swap_remove(0)
}

/// Has the time of day of a process be off by so much, such as `-30d`.
pub(crate) fn shift_clock(command: &mut Command, offset: &str) {
    let library = wait_until("the library", || {
        // It minds what an earlier process of its number has left behind; the next one has another
        // number.
        let mut faketime = Command::new("faketime");
        faketime.args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]);
        let ended = Process::start(&mut faketime).finish();
        (ended.code == Some(0)).then(|| ended.stdout().swap_remove(0))
    });
    command.env("LD_PRELOAD", library).env("FAKETIME", offset);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
}

/// A time of day that can be set while processes that go by it run.
#[derive(Debug)]
pub(crate) struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// One that is right, kept in a file of this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.set_offset("+0");
        clock
    }

    /// Sets it off by so much, such as `-30d`.
    pub(crate) fn set_offset(&self, offset: &str) {
        // Nobody is to read half of it.
        let new = self.file.with_extension("new");
        fs::write(&new, offset).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    /// Has a process go by it.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        shift_clock(command, "+0");
        command.env_remove("FAKETIME").env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file);
    }
}
