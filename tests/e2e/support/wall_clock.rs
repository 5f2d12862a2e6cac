//! The wall clock of a process, which a test can set; the monotonic clock is unaffected.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::Process;
use super::wait::wait_until;

/// The first line of a command's output.
#[track_caller]
pub(crate) fn first_output_line(program: &str, arguments: &[&str]) -> String {
    let output = Process::start(Command::new(program).args(arguments)).finish();
    output.expect_code(0).stdout().swap_remove(0)
}

/// Shifts the wall clock of a process by an offset such as `-30d`.
pub(crate) fn shift_clock(command: &mut Command, offset: &str) {
    let library = wait_until("the faketime library", || {
        // faketime fails if an earlier process with the same process id left files behind; a new
        // process has another id.
        let mut faketime = Command::new("faketime");
        faketime.args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]);
        let output = Process::start(&mut faketime).finish();
        (output.code == Some(0)).then(|| output.stdout().swap_remove(0))
    });
    command.env("LD_PRELOAD", library).env("FAKETIME", offset);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
}

/// A wall clock that a test can set while processes use it.
#[derive(Debug)]
pub(crate) struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// A clock with the correct time, stored in a file in this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.set_offset("+0");
        clock
    }

    /// Shifts the clock by an offset such as `-30d`.
    pub(crate) fn set_offset(&self, offset: &str) {
        // A rename, so that no process reads a partial file.
        let new = self.file.with_extension("new");
        fs::write(&new, offset).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    /// Makes a process use this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        shift_clock(command, "+0");
        command.env_remove("FAKETIME").env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file);
    }
}
