//! A control group of processes. It counts the processor time of all of them, also of those that
//! ended without a parent that waited for them, such as processes of a browser.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tidings_load::server::status_bytes;

/// A control group of version 2. It has the processes that [`ControlGroup::command`] started, and
/// all of their descendants. Those that are left are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group below that of this process. Needs root, or a group that is delegated to this
    /// user, as `systemd-run --user --scope --property=Delegate=yes` makes one.
    pub(crate) fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|words| words.get(2) == Some(&"cgroup2"));
        let mount = mount.context("no control groups of version 2 are mounted")?[1].to_owned();
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.context("this process has no control group of version 2")?;
        let path = PathBuf::from(mount).join(own).join(format!("tidings-bench-{}", process::id()));
        fs::create_dir(&path).with_context(|| {
            format!("cannot make {}: needs root, or a delegated control group", path.display())
        })?;
        Ok(Self(path))
    }

    /// A command that runs a program in this group.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// Processor time of all processes so far.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(self.0.join("cpu.stat"))?;
        let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Ok(Duration::from_micros(used.context("no processor time in cpu.stat")?.parse()?))
    }

    /// The proportional set sizes of all processes: memory that several of them share counts once.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let processes = fs::read_to_string(self.0.join("cgroup.procs"))?;
        // A process may end meanwhile.
        let of = |process| fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok();
        let texts = processes.lines().filter_map(of);
        Ok(texts.filter_map(|text| status_bytes(&text, "Pss:")).sum())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // It is empty already if the program left no process.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        while let Err(error) = fs::remove_dir(&self.0)
            && error.kind() == ErrorKind::ResourceBusy
        {
            thread::yield_now();
        }
    }
}
