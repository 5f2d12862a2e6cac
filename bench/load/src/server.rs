//! A server in a separate process: its start, its processor and its costs.

#![expect(clippy::disallowed_methods, reason = "the start of a broker has a time limit")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Time limit for the start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two attempts to connect to a starting server.
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Unit of the times in `/proc/PID/stat`: Linux reports hundredths of a second to all programs.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The sign that a server listens.
#[derive(Debug, Clone, Copy)]
pub enum ReadyWhen {
    /// It prints a line with this text and its address.
    PrintsAddress(&'static str),
    /// This address accepts connections.
    AcceptsConnections(SocketAddr),
}

/// A running server. It is killed, as by a crash, when this value is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it, on this processor, and returns when it listens.
    pub fn start(mut command: Command, ready: ReadyWhen, processor: Option<usize>) -> Result<Self> {
        command.stdin(Stdio::null());
        if matches!(ready, ReadyWhen::PrintsAddress(_)) {
            command.stdout(Stdio::piped());
        }
        let name = command.get_program().to_string_lossy().into_owned();
        let mut start = || command.spawn().with_context(|| format!("cannot start {name}"));
        let process = match processor {
            Some(processor) => run_pinned(processor, start)??,
            None => start()?,
        };
        let unknown = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { process, address: unknown };
        server.address = match ready {
            ReadyWhen::PrintsAddress(prefix) => server.read_address(prefix)?,
            ReadyWhen::AcceptsConnections(address) => server.wait_until_listening(address)?,
        };
        Ok(server)
    }

    fn read_address(&mut self, prefix: &str) -> Result<SocketAddr> {
        let mut output = BufReader::new(self.process.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        let address = line
            .trim_end()
            .strip_prefix(prefix)
            .with_context(|| format!("the server printed {line:?}, not its address"))?;
        // The pipe stays open: a server that prints more must not fail.
        self.process.stdout = Some(output.into_inner());
        address
            .parse()
            .with_context(|| format!("{address}: expected an address such as 127.0.0.1:12345"))
    }

    fn wait_until_listening(&mut self, address: SocketAddr) -> Result<SocketAddr> {
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.process.try_wait()? {
                bail!("the server exited during its start ({status})");
            }
            if began.elapsed() > START_TIMEOUT {
                bail!("the server does not listen on {address} after {START_TIMEOUT:?}");
            }
            thread::sleep(START_POLL_INTERVAL);
        }
        Ok(address)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time so far, in the program and in the kernel.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = self.read_proc_file("stat")?;
        let ticks =
            stat_cpu_ticks(&stat).context("cannot parse the processor times of the server")?;
        Ok(CLOCK_TICK * ticks)
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        status_bytes(&self.read_proc_file("status")?, "VmRSS:")
            .context("cannot parse the memory of the server")
    }

    /// Peak resident memory in bytes.
    pub fn peak_bytes(&self) -> Result<u64> {
        status_bytes(&self.read_proc_file("status")?, "VmHWM:")
            .context("cannot parse the memory of the server")
    }

    fn read_proc_file(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.process.id());
        fs::read_to_string(&path)
            .with_context(|| format!("cannot read {path}; the server has probably exited"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already. The server of a benchmark has nothing to save.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Pins this thread, and all processes and threads that it starts later, to a processor.
pub fn pin_to_processor(processor: usize) -> Result<()> {
    if processor >= CpuSet::MAX_CPU {
        bail!("processor {processor} does not exist");
    }
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).with_context(|| format!("cannot run on processor {processor}"))
}

/// Runs `run` on a processor. Processes that it starts stay there.
pub fn run_pinned<T>(processor: usize, run: impl FnOnce() -> T) -> Result<T> {
    let before = sched_getaffinity(None).context("cannot read the processors of this thread")?;
    pin_to_processor(processor)?;
    let result = run();
    sched_setaffinity(None, &before).context("cannot return to the processors of this thread")?;
    Ok(result)
}

/// Processor time of this thread so far.
pub(crate) fn thread_cpu_time() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

/// `utime` and `stime`, the 14th and 15th field. The second field is the process name and may
/// contain anything.
fn stat_cpu_ticks(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u32>().ok()? + fields.next()?.parse::<u32>().ok()?)
}

/// A size in a `status` file, where sizes are in KiB.
pub fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_read_after_any_process_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 30 0 0 20 0 4 0 100 1000 10";
        assert_eq!(stat_cpu_ticks(stat), Some(280));
        assert_eq!(stat_cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn memory_is_read_by_its_name() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(status_bytes(status, "VmSwap:"), None);
    }
}
