//! A program that is run to its end, and what that cost, with all processes that it started.

#![expect(clippy::disallowed_methods, reason = "it takes the time of a program")]

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

use crate::server::{TICK, stat_ticks, status_bytes};

/// Pause between two looks at its memory. What it takes in the last one is not seen.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a program cost.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// From its start to its end.
    pub took: Duration,
    /// Processor time, of all its processes that were waited for and of the kernel for them, in hundredths of a second.
    pub cpu: Duration,
    /// The peaks of its processes together, of those that were there at the same time.
    pub peak_bytes: u64,
}

/// Runs it, for `longest` at most, and ends what is left of it then. No other child of this process may be waited for
/// meanwhile.
pub fn run(
    mut command: Command,
    longest: Duration,
    mut watch: impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<Ran> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).process_group(0);
    let cpu = children_cpu()?;
    let began = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let mut program = Program { pid: Pid::from_child(&child), child };
    let ended = pidfd_open(program.pid, PidfdFlags::empty())?;
    let mut peak_bytes = 0;
    let pause = Timespec::try_from(LOOK_EVERY)?;
    while poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&pause))? == 0 {
        peak_bytes = peak_bytes.max(peak_of_all(program.child.id()));
        if began.elapsed() > longest {
            bail!("{name} was not done after {longest:?}");
        }
        watch(began.elapsed())?;
    }
    let took = began.elapsed();
    let status = program.child.wait()?;
    let cpu = children_cpu()?.saturating_sub(cpu);
    Ok(Ran { status, took, cpu, peak_bytes })
}

/// A program with all that it has started. It ends with this value.
struct Program {
    child: Child,
    pid: Pid,
}

impl Drop for Program {
    fn drop(&mut self) {
        // Usually nobody is left.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Processor time of all children that were waited for.
fn children_cpu() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read my own times")?;
    Ok(TICK * stat_ticks(&stat, 16).context("cannot understand my own times")?)
}

/// The peaks of the memory of a process and its descendants, as far as they are still there.
fn peak_of_all(process: u32) -> u64 {
    let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) else { return 0 };
    let own = status_bytes(&status, "VmHWM:").unwrap_or(0);
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let of_thread = |children: String| -> u64 {
        children.split_whitespace().filter_map(|child| child.parse().ok()).map(peak_of_all).sum()
    };
    own + children.map(of_thread).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, longest: Duration) -> anyhow::Result<Ran> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, longest, |_| Ok(()))
    }

    #[test]
    fn a_program_costs_what_its_children_cost() {
        // The child's memory can be seen while the shell waits for it.
        let busy = "head -c 300000000 /dev/zero | sha512sum > /dev/null; exit 3";
        let ran = shell(busy, Duration::from_mins(1)).unwrap();
        assert_eq!(ran.status.code(), Some(3));
        assert!(ran.cpu >= Duration::from_millis(50), "{ran:?}");
        assert!(ran.took >= ran.cpu / 3, "{ran:?}");
        assert!(ran.peak_bytes > 1 << 20, "{ran:?}");
    }

    #[test]
    fn what_is_not_done_in_time_is_ended_with_all_it_started() {
        let pid = tempfile();
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let error = shell(&script, Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("was not done"), "{error}");
        let sleeper = fs::read_to_string(&pid).unwrap();
        fs::remove_file(&pid).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", sleeper.trim()));
        assert!(status.is_err() || status.unwrap().contains("State:\tZ"), "{sleeper}");
    }

    fn tempfile() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("tidings-bench-program-{}", std::process::id()))
    }
}
