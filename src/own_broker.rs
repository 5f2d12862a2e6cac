//! A broker in a process of its own, for benchmarks.

#![expect(clippy::disallowed_methods, reason = "a broker that does not start is given up")]

use std::{process::Stdio, time::Duration};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// How long it may take to start.
const START_MAX: Duration = Duration::from_secs(10);

/// Unit of the times in `/proc/PID/stat`: Linux gives hundredths of a second to every program.
const TICK_MICROSECONDS: u64 = 10_000;

/// A process of the same program that is only a broker, so that its processor time can be told from ours. It
/// ends with this value.
pub(crate) struct OwnBroker {
    process: Child,
    address: String,
}

impl OwnBroker {
    /// Starts it, with that many threads. With `pin` it is kept on the first processor, and this
    /// process on the second one.
    pub(crate) async fn start(
        threads: Option<u16>,
        pin: Option<(u16, u16)>,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = match pin {
            Some((server, client)) => {
                pin_this_process(client).await?;
                let mut command = Command::new("taskset");
                command.arg("-c").arg(server.to_string()).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["broker", "--listen", "127.0.0.1:0"]);
        command.args(threads.map(|threads| format!("--threads={threads}")));
        let mut process = command
            .env_remove("TIDINGS_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a broker")?;
        let output = process.stdout.take().expect("it is piped");
        let line = timeout(START_MAX, BufReader::new(output).lines().next_line()).await;
        let line = line.context("the broker does not start")??;
        let Some(address) = line.as_deref().and_then(|line| line.strip_prefix("listening on "))
        else {
            bail!("the broker did not start");
        };
        Ok(Self { address: address.to_owned(), process })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Processor time so far, of the program and of the kernel for it.
    pub(crate) fn cpu_microseconds(&self) -> anyhow::Result<u64> {
        let pid = self.process.id().context("the broker has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .context("cannot read processor times")?;
        stat_cpu_ticks(&stat)
            .map(|ticks| ticks * TICK_MICROSECONDS)
            .context("cannot understand processor times")
    }
}

/// `utime` and `stime`, the 14th and 15th field; the second one, a name, may hold anything.
fn stat_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

async fn pin_this_process(processor: u16) -> anyhow::Result<()> {
    let done = Command::new("taskset")
        .args(["-a", "-c", "-p", &processor.to_string(), &std::process::id().to_string()])
        .output()
        .await
        .context("--pin needs the command taskset")?;
    if !done.status.success() {
        bail!("taskset: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_read_behind_any_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 30 0 0 20 0 4 0 100 1000 10";
        assert_eq!(stat_cpu_ticks(stat), Some(280));
        assert_eq!(stat_cpu_ticks("42 (a) S 1"), None);
    }
}
