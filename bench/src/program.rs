//! A program that is run to its end, and what that cost.

#![expect(clippy::disallowed_methods, reason = "it takes the time of a program")]

use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::server::{TICK, stat_ticks, status_bytes};

/// Pause between two looks at its memory. What it takes in the last one is not seen.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Fields of `/proc/self/stat`: user and system time of this process, and of its children.
const OWN: usize = 14;
const CHILDREN: usize = 16;

/// What a program cost.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// From its start to its end.
    pub took: Duration,
    /// Processor time of it, of its children that it waited for, and of the kernel for them; to a
    /// hundredth of a second.
    pub cpu: Duration,
    /// Processor time of this process meanwhile: mostly that of what it serves the program with.
    pub own_cpu: Duration,
    /// The peak of its own memory.
    pub peak_bytes: u64,
}

/// Runs it, for `longest` at most, and ends it then. No other child of this process may be waited
/// for meanwhile.
pub fn run(
    mut command: Command,
    longest: Duration,
    mut watch: impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<Ran> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    let before = (cpu(CHILDREN)?, cpu(OWN)?);
    let began = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let mut program = Program(child);
    let ended = pidfd_open(Pid::from_child(&program.0), PidfdFlags::empty())?;
    let mut peak_bytes = 0_u64;
    let pause = Timespec::try_from(LOOK_EVERY)?;
    while poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&pause))? == 0 {
        peak_bytes = peak_bytes.max(peak(program.0.id()).unwrap_or(0));
        if began.elapsed() > longest {
            bail!("{name} was not done after {longest:?}");
        }
        watch(began.elapsed())?;
    }
    let took = began.elapsed();
    let status = program.0.wait()?;
    let own_cpu = cpu(OWN)?.saturating_sub(before.1);
    let cpu = cpu(CHILDREN)?.saturating_sub(before.0);
    Ok(Ran { status, took, cpu, own_cpu, peak_bytes })
}

/// A program. It ends with this value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Usually it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of this process, without that of its children, or of all children that were
/// waited for.
fn cpu(field: usize) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read my own times")?;
    Ok(TICK * stat_ticks(&stat, field).context("cannot understand my own times")?)
}

/// The peak of the memory of a process, unless it has just ended.
fn peak(process: u32) -> Option<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, "VmHWM:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_costs_what_its_children_cost() {
        let busy = "head -c 300000000 /dev/zero | sha512sum > /dev/null; exit 3";
        let mut command = Command::new("sh");
        command.args(["-c", busy]);
        let ran = run(command, Duration::from_mins(1), |_| Ok(())).unwrap();
        assert_eq!(ran.status.code(), Some(3));
        assert!(ran.cpu >= Duration::from_millis(50), "{ran:?}");
        assert!(ran.peak_bytes > 100 << 10, "{ran:?}");
    }

    #[test]
    fn what_is_not_done_in_time_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let error = run(command, Duration::from_millis(200), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("sleep was not done"), "{error}");
    }
}
