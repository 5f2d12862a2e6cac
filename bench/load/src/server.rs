//! A broker in a separate process: its start, its processor and its costs.

#![expect(clippy::disallowed_methods, reason = "the start of a broker has a time limit")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Figure;
use crate::figure::to_f64;

/// Time limit for the start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two attempts to connect to a starting server.
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Unit of the times in `/proc/PID/stat`: Linux reports hundredths of a second to all programs.
pub const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The start of a server.
#[derive(Debug)]
pub struct Launch {
    /// Program and arguments.
    pub command: Command,
    /// The sign that it listens.
    pub ready: ReadyWhen,
    /// The processor that it is pinned to.
    pub processor: Option<usize>,
}

/// The sign that a server listens.
#[derive(Debug, Clone, Copy)]
pub enum ReadyWhen {
    /// It prints a line with this text and its address.
    PrintsAddress(&'static str),
    /// This address accepts connections.
    AcceptsConnections(SocketAddr),
}

/// A running server. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it, and returns when it listens.
    pub fn start(launch: Launch) -> Result<Self> {
        let Launch { mut command, ready, processor } = launch;
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

    /// Kills it as a crash would. Its costs are unknown afterwards.
    pub fn kill(&self) -> Result<()> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).context("the process id is 0")?;
        kill_process(pid, Signal::KILL)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        Ok(())
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
pub(crate) fn run_pinned<T>(processor: usize, run: impl FnOnce() -> T) -> Result<T> {
    let before = sched_getaffinity(None).context("cannot read the processors of this thread")?;
    pin_to_processor(processor)?;
    let result = run();
    sched_setaffinity(None, &before).context("cannot return to the processors of this thread")?;
    Ok(result)
}

/// An address of this machine with an unused port.
pub fn unused_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Processor time of this thread so far.
fn thread_cpu_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/thread-self/stat")
        .context("cannot read the processor times of the generator")?;
    Ok(CLOCK_TICK
        * stat_cpu_ticks(&stat).context("cannot parse the processor times of the generator")?)
}

/// `utime` and `stime`, the 14th and 15th field.
fn stat_cpu_ticks(stat: &str) -> Option<u32> {
    stat_field_ticks(stat, 14)
}

/// The sum of the field with this number (from 1) and the next one. The second field is the process
/// name and may contain anything.
pub fn stat_field_ticks(stat: &str, field: usize) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(field - 3);
    Some(fields.next()?.parse::<u32>().ok()? + fields.next()?.parse::<u32>().ok()?)
}

/// A size in a `status` file, where sizes are in KiB.
pub fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Costs of the runs: of the server, if its process is known, and of the generator. A generator
/// that keeps its processor busy has measured itself.
#[derive(Debug)]
pub struct CpuCost {
    /// Processor time per unit of work.
    work: Figure,
    /// Factor from microseconds per unit of work to the unit of the figure.
    scale: f64,
    /// Processors that the server kept busy.
    processors: Figure,
    /// Processors that the generator kept busy.
    generator: Figure,
}

/// The begin of a run, and the processor times then.
#[derive(Debug, Clone, Copy)]
pub struct RunStart {
    /// When it began.
    pub began: Instant,
    server: Option<Duration>,
    generator: Duration,
}

impl RunStart {
    /// Begins a run.
    pub fn now(server: Option<&Server>) -> Result<Self> {
        let server = server.map(Server::cpu_time).transpose()?;
        Ok(Self { generator: thread_cpu_time()?, server, began: Instant::now() })
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl CpuCost {
    /// The work is a thousand deliveries.
    pub fn per_thousand_deliveries() -> Self {
        let key = "broker_cpu_us_per_1000_deliveries";
        Self::new(Figure::new(key, "broker us per 1,000", 1), 1000.0)
    }

    /// `work` is the processor time for this number of units of work, in microseconds.
    pub fn new(work: Figure, scale: f64) -> Self {
        let processors = Figure::new("broker_cpus", "broker processors", 2);
        let generator = Figure::new("generator_cpus", "generator processors", 2);
        Self { work, scale, processors, generator }
    }

    /// Ends a run that did `work` units of work. Returns its length in seconds.
    pub fn end_run(&mut self, start: RunStart, server: Option<&Server>, work: u64) -> Result<f64> {
        let took = start.began.elapsed().as_secs_f64();
        let generator = thread_cpu_time()?.saturating_sub(start.generator);
        self.generator.runs.push(generator.as_secs_f64() / took);
        if let (Some(before), Some(server)) = (start.server, server) {
            let used = server.cpu_time()?.saturating_sub(before).as_secs_f64();
            self.work.runs.push(used * 1e6 * self.scale / to_f64(work.max(1)));
            self.processors.runs.push(used / took);
        }
        Ok(took)
    }

    /// Appends the costs and the peak memory to the figures of a measurement.
    pub fn append_to(
        self,
        mut figures: Vec<Figure>,
        server: Option<&Server>,
    ) -> Result<Vec<Figure>> {
        match server {
            None => figures.push(self.generator),
            Some(server) => {
                let peak = peak_memory(server)?;
                figures.extend([self.work, self.processors, self.generator, peak]);
            }
        }
        Ok(figures)
    }
}

/// Peak memory so far.
pub fn peak_memory(server: &Server) -> Result<Figure> {
    let mebibytes = to_f64(server.peak_bytes()?) / (1024.0 * 1024.0);
    Ok(Figure::new("broker_peak_mib", "broker peak MiB", 1).with_runs([mebibytes]))
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
