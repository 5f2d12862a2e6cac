//! Time from the last response of a crawl to its `job-done` event at a subscriber.

#![expect(clippy::disallowed_methods, reason = "a benchmark sleeps")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tidings_load::figure::to_f64;
use tidings_load::{Figure, Progress};

use crate::histogram::Histogram;
use crate::origin::{Origin, RequestLog};

/// A crawl of this size takes less time.
const JOB_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two checks of the number of workers.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Pause after `job-done`: a request in flight would arrive in this time.
const LATE_REQUEST_WAIT: Duration = Duration::from_millis(20);

/// Crawls of the same site, one job after the other, by workers of the group `crawlers` of a
/// Tidings broker.
#[derive(Debug, Clone, Copy)]
pub struct JobDone {
    /// Number of jobs.
    pub jobs: u32,
    /// Number of workers to wait for.
    pub workers: u32,
}

impl JobDone {
    /// Measures the time with the broker at this address.
    pub fn measure(
        &self,
        origin: &Origin,
        broker: SocketAddr,
        progress: Progress<'_>,
    ) -> Result<Vec<Figure>> {
        let mut client = LineClient::connect(broker)?;
        let mut subscriber = LineClient::connect(broker)?;
        subscriber.send_command("SUB job-done")?;
        let members = format!(" members={} ", self.workers);
        while !client.send_command("GROUP show crawlers")?.contains(&members) {
            progress("waiting for workers")?;
            thread::sleep(POLL_INTERVAL);
        }
        let mut times = Histogram::new();
        let mut longest = Duration::ZERO;
        let mut late = 0;
        for job in 1..=self.jobs {
            progress(&format!("job {job} of {}", self.jobs))?;
            client.send_command(&format!("JOB open bench-{job} scope=any"))?;
            for seed in origin.seeds() {
                client.send_command(&format!("JOB add bench-{job} url={seed}"))?;
            }
            client.send_command(&format!("JOB close bench-{job}"))?;
            let line = subscriber.read_line()?;
            let (received_at, log) = (origin.now(), origin.request_log());
            ensure!(
                line.contains(&format!(" bench-{job} ")) && line.contains(" result=done "),
                "{line}"
            );
            let took = received_at
                .saturating_sub(last_end(&log).context("the job ended without a request")?);
            times.record(took);
            longest = longest.max(took);
            thread::sleep(LATE_REQUEST_WAIT);
            let open = log.requests.iter().filter(|request| request.end.is_none()).count();
            late += open + origin.request_count() - log.requests.len();
        }
        let ms = |key, label, value: f64| Figure::new(key, label, 2).with_runs([value]);
        Ok(vec![
            ms("done_p50_ms", "last page to done, p50, ms", times.quantile(0.5) / 1000.0),
            ms("done_longest_ms", "last page to done, longest, ms", longest.as_secs_f64() * 1000.0),
            Figure::new("late_requests", "requests after job-done", 0)
                .with_runs([to_f64(u64::try_from(late)?)]),
        ])
    }
}

/// The end of the last response so far.
fn last_end(log: &RequestLog) -> Option<Duration> {
    log.requests.iter().filter_map(|request| request.end).max()
}

/// A connection that sends one line and reads one line.
struct LineClient(BufReader<TcpStream>);

impl LineClient {
    fn connect(broker: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(broker)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(JOB_TIMEOUT))?;
        let mut client = Self(BufReader::new(socket));
        // The greeting for people comes before the answer.
        client.0.get_mut().write_all(b"HELLO name=bench\nPING\n")?;
        while !client.read_line()?.starts_with("PONG") {}
        Ok(client)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the broker closed the connection");
        Ok(line)
    }

    fn send_command(&mut self, command: &str) -> Result<String> {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes())?;
        let answer = self.read_line()?;
        ensure!(!answer.starts_with('-'), "{command}: {}", answer.trim_end());
        Ok(answer)
    }
}
