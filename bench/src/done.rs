//! From the last answer of a crawl to the news that it is done, at a subscriber.

#![expect(clippy::disallowed_methods, reason = "a benchmark waits for what must not come")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::figure::number;
use crate::histogram::Histogram;
use crate::origin::{Origin, Record};
use crate::{Figure, Watch};

/// Longer than a crawl of these takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two looks whether all workers are there.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// After the news: a request that was under way would have come by then.
const SETTLE: Duration = Duration::from_millis(20);

/// Crawls of the same site, one job after the other, by workers of the group `crawlers` at a broker
/// of Tidings.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// How many.
    pub jobs: u32,
    /// Workers that have to be there.
    pub workers: u32,
}

impl Done {
    /// Measures it at the broker with this address.
    pub fn measure(
        &self,
        origin: &Origin,
        broker: SocketAddr,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut client = Client::connect(broker)?;
        let mut listener = Client::connect(broker)?;
        listener.ask("SUB job-done")?;
        let members = format!(" members={} ", self.workers);
        while !client.ask("GROUP show crawlers")?.contains(&members) {
            watch("waiting for workers")?;
            thread::sleep(LOOK_EVERY);
        }
        let mut times = Histogram::new();
        let mut longest = Duration::ZERO;
        let mut late = 0;
        for job in 1..=self.jobs {
            watch(&format!("job {job} of {}", self.jobs))?;
            client.ask(&format!("JOB open bench-{job} scope=any"))?;
            for seed in origin.seeds() {
                client.ask(&format!("JOB add bench-{job} url={seed}"))?;
            }
            client.ask(&format!("JOB close bench-{job}"))?;
            let line = listener.line()?;
            let (heard, record) = (origin.now(), origin.record());
            ensure!(
                line.contains(&format!(" bench-{job} ")) && line.contains(" result=done "),
                "{line}"
            );
            let took = heard.saturating_sub(last_end(&record).context("nothing was fetched")?);
            times.add(took);
            longest = longest.max(took);
            thread::sleep(SETTLE);
            let open = record.hits.iter().filter(|hit| hit.end.is_none()).count();
            late += open + origin.hits() - record.hits.len();
        }
        let ms = |key, label, value: f64| Figure::new(key, label, 2).with([value]);
        Ok(vec![
            ms("done_p50_ms", "last page to done, p50, ms", times.quantile(0.5) / 1000.0),
            ms("done_longest_ms", "last page to done, longest, ms", longest.as_secs_f64() * 1000.0),
            Figure::new("late_requests", "requests open or after it", 0)
                .with([number(u64::try_from(late)?)]),
        ])
    }
}

/// The end of the last answer so far.
fn last_end(record: &Record) -> Option<Duration> {
    record.hits.iter().filter_map(|hit| hit.end).max()
}

/// A connection that says a line and hears one.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(broker: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(broker)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self(BufReader::new(socket));
        // What is said to people comes before the answer.
        client.0.get_mut().write_all(b"HELLO name=bench\nPING\n")?;
        while !client.line()?.starts_with("PONG") {}
        Ok(client)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the broker closed the connection");
        Ok(line)
    }

    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes())?;
        let answer = self.line()?;
        ensure!(!answer.starts_with('-'), "{command}: {}", answer.trim_end());
        Ok(answer)
    }
}
