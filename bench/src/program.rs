//! A program that runs to its end, and its costs.

#![expect(clippy::disallowed_methods, reason = "a program has a time limit")]

use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tidings_load::server::{CLOCK_TICK, stat_field_ticks, status_bytes};

/// Interval between two readings of its memory. A peak in the last interval is missed.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Fields of `/proc/self/stat`: user and system time of this process, and of its children.
const OWN_TIMES_FIELD: usize = 14;
const CHILDREN_TIMES_FIELD: usize = 16;

/// The costs of a program.
#[derive(Debug, Clone, Copy)]
pub struct ProgramRun {
    /// Its exit status.
    pub status: ExitStatus,
    /// From its start to its end.
    pub took: Duration,
    /// Processor time of the program, of its children that it waited for, and of the kernel for
    /// them; exact to a hundredth of a second.
    pub cpu: Duration,
    /// Processor time of this process meanwhile, mostly to serve the program.
    pub own_cpu: Duration,
    /// Peak of its own memory.
    pub peak_bytes: u64,
}

/// Runs a program and kills it after `time_limit`. This process must not wait for any other child
/// meanwhile.
pub fn run(
    mut command: Command,
    time_limit: Duration,
    mut progress: impl FnMut(Duration) -> Result<()>,
) -> Result<ProgramRun> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    let before = (cpu_time(CHILDREN_TIMES_FIELD)?, cpu_time(OWN_TIMES_FIELD)?);
    let began = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let mut program = ChildGuard(child);
    let exit = pidfd_open(Pid::from_child(&program.0), PidfdFlags::empty())?;
    let mut peak_bytes = 0_u64;
    let pause = Timespec::try_from(MEMORY_POLL_INTERVAL)?;
    while poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&pause))? == 0 {
        peak_bytes = peak_bytes.max(peak_memory(program.0.id()).unwrap_or(0));
        if began.elapsed() > time_limit {
            bail!("{name} did not end within {time_limit:?}");
        }
        progress(began.elapsed())?;
    }
    let took = began.elapsed();
    let status = program.0.wait()?;
    let own_cpu = cpu_time(OWN_TIMES_FIELD)?.saturating_sub(before.1);
    let cpu = cpu_time(CHILDREN_TIMES_FIELD)?.saturating_sub(before.0);
    Ok(ProgramRun { status, took, cpu, own_cpu, peak_bytes })
}

/// A child process. It is killed when this value is dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of this process without its children, or of all children that were waited for.
fn cpu_time(field: usize) -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")
        .context("cannot read the processor times of the generator")?;
    Ok(CLOCK_TICK
        * stat_field_ticks(&stat, field)
            .context("cannot parse the processor times of the generator")?)
}

/// Peak memory of a process; `None` if it has just ended.
fn peak_memory(process: u32) -> Option<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, "VmHWM:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_includes_child_processes() {
        let busy = "head -c 300000000 /dev/zero | sha512sum > /dev/null; exit 3";
        let mut command = Command::new("sh");
        command.args(["-c", busy]);
        let result = run(command, Duration::from_mins(1), |_| Ok(())).unwrap();
        assert_eq!(result.status.code(), Some(3));
        assert!(result.cpu >= Duration::from_millis(50), "{result:?}");
        assert!(result.peak_bytes > 100 << 10, "{result:?}");
    }

    #[test]
    fn a_program_is_killed_after_its_time_limit() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let error = run(command, Duration::from_millis(200), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("sleep did not end"), "{error}");
    }
}
