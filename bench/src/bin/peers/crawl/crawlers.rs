//! The crawlers of the comparison. Each has the settings that its authors would choose: enough
//! concurrent requests to be fast, robots.txt obeyed, and everything off that these sites do not
//! need.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tidings_bench::origin::{Origin, Site};
use tidings_bench::program::{self, ProgramRun};
use tidings_load::server::unused_address;
use tidings_load::{Launch, ReadyWhen, Server};

use crate::comparison::last_line;
use crate::results::Contestant;

/// Connections of wget2 without a delay. More of them do not make it faster.
const WGET2_THREADS: u32 = 10;

/// A crawler of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Crawler {
    Tidings,
    Wget2,
    Spider,
    Aiohttp,
    Crawlee,
    Scrapy,
    Rq,
    ScrapyRedis,
}

impl Contestant for Crawler {
    const OURS: Self = Self::Tidings;

    fn name(self) -> &'static str {
        match self {
            Self::Tidings => "Tidings",
            Self::Wget2 => "wget2",
            Self::Spider => "spider",
            Self::Aiohttp => "aiohttp",
            Self::Crawlee => "Crawlee",
            Self::Scrapy => "Scrapy",
            Self::Rq => "RQ",
            Self::ScrapyRedis => "scrapy-redis",
        }
    }

    fn is_peer(self) -> bool {
        self != Self::Tidings
    }
}

/// Paths of everything that crawlers need.
#[derive(Debug)]
pub(super) struct CrawlerPaths {
    /// The program `tidings`.
    pub(super) tidings: PathBuf,
    /// The program `spider-peer`.
    pub(super) spider: PathBuf,
    /// The Python of an environment with Scrapy and the others.
    pub(super) python: PathBuf,
    /// The directory of the Python scripts.
    pub(super) scripts: PathBuf,
    /// A new directory for this run.
    pub(super) dir: PathBuf,
}

/// Crawls all sites of an origin.
pub(super) fn crawl(
    paths: &CrawlerPaths,
    crawler: Crawler,
    origin: &Origin,
    time_limit: Duration,
    progress: impl FnMut(Duration) -> Result<()>,
) -> Result<ProgramRun> {
    let seeds: Vec<_> = origin.seeds().collect();
    let file = paths.dir.join("seeds");
    fs::write(&file, seeds.join("\n") + "\n")?;
    let delay = origin.site().crawl_delay.unwrap_or_default();
    let mut command = match crawler {
        Crawler::Tidings => tidings(paths, &seeds, delay),
        Crawler::Wget2 => wget2(paths, &file, origin.site()),
        Crawler::Spider => {
            let mut command = Command::new(&paths.spider);
            command.arg(&file).arg(delay.as_millis().to_string());
            command
        }
        Crawler::Aiohttp => script(paths, "aiohttp_crawl.py", &file, delay),
        Crawler::Crawlee => script(paths, "crawlee_crawl.py", &file, delay),
        Crawler::Scrapy => script(paths, "scrapy_crawl.py", &file, delay),
        Crawler::Rq | Crawler::ScrapyRedis => bail!("this program does not crawl"),
    };
    let errors = paths.dir.join("errors");
    command.current_dir(&paths.dir).stdout(Stdio::null()).stderr(File::create(&errors)?);
    let run = program::run(command, time_limit, progress)?;
    ensure!(run.status.success(), "{}: {}", run.status, last_line(&errors));
    Ok(run)
}

/// Queue, deduplication and records are on the disk, as always.
fn tidings(paths: &CrawlerPaths, seeds: &[String], delay: Duration) -> Command {
    let mut command = program(paths);
    command.args(["crawl", "--quiet", "--allow-private", "--data", "data"]);
    command.arg(format!("--delay={}ms", delay.as_millis())).args(seeds);
    command
}

/// wget2 parses only pages that are in files. Of its ways to keep none, this is the fastest.
fn wget2(paths: &CrawlerPaths, seeds: &Path, site: &Site) -> Command {
    let mut command = Command::new("wget2");
    command.args(["--no-config", "--quiet", "--recursive", "--level=0", "--delete-after"]);
    command.args(["--no-cookies", "--no-hsts", "--no-ocsp", "--tries=1"]);
    let threads = site.crawl_delay.map_or(WGET2_THREADS, |_| site.hosts);
    command.arg(format!("--max-threads={threads}"));
    command.args(site.crawl_delay.map(|delay| format!("--wait={}", delay.as_secs_f64())));
    command.arg("--directory-prefix").arg(&paths.dir).arg("--input-file").arg(seeds);
    command
}

fn script(paths: &CrawlerPaths, name: &str, seeds: &Path, delay: Duration) -> Command {
    let mut command = python(paths, name);
    command.arg(seeds).arg(delay.as_secs_f64().to_string());
    command
}

fn python(paths: &CrawlerPaths, script: &str) -> Command {
    let mut command = Command::new(&paths.python);
    command.arg(paths.scripts.join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn program(paths: &CrawlerPaths) -> Command {
    let mut command = Command::new(&paths.tidings);
    command.env_remove("TIDINGS_CONFIG");
    command
}

/// A crawler that waits for announcements, and the channel for them. It is killed when this value
/// is dropped.
pub(super) struct AnnouncedCrawler {
    channel: AnnounceChannel,
    _helper: Option<HelperProcess>,
    _servers: Vec<Server>,
}

enum AnnounceChannel {
    Socket(TcpStream, &'static str),
    Pipe(ChildStdin),
}

/// A process that receives URLs on its standard input. It is killed when this value is dropped.
struct HelperProcess(Child);

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl AnnouncedCrawler {
    /// Starts the crawler. It may need a moment until it receives announcements.
    pub(super) fn start(paths: &CrawlerPaths, crawler: Crawler) -> Result<Self> {
        let socket = |server: &Server| -> Result<TcpStream> {
            let socket = TcpStream::connect(server.address())?;
            socket.set_nodelay(true)?;
            Ok(socket)
        };
        match crawler {
            Crawler::Tidings => {
                let mut command = program(paths);
                command.args([
                    "up",
                    "--quiet",
                    "--allow-private",
                    "--listen=127.0.0.1:0",
                    "--data",
                ]);
                command.arg(paths.dir.join("data"));
                let server = start(paths, command, ReadyWhen::PrintsAddress("listening on "))?;
                let bell = AnnounceChannel::Socket(socket(&server)?, "PUB new-url ");
                Ok(Self { channel: bell, _helper: None, _servers: vec![server] })
            }
            Crawler::ScrapyRedis => {
                let redis = redis(paths)?;
                let mut command = python(paths, "scrapy_redis_notify.py");
                command.arg(redis.address().port().to_string());
                let worker = start(paths, command, ReadyWhen::AcceptsConnections(redis.address()))?;
                let bell = AnnounceChannel::Socket(socket(&redis)?, "LPUSH notified:start_urls ");
                Ok(Self { channel: bell, _helper: None, _servers: vec![worker, redis] })
            }
            Crawler::Rq => {
                let redis = redis(paths)?;
                let port = redis.address().port().to_string();
                let mut command = python(paths, "rq_notify.py");
                command.args(["work", &port]);
                let worker = start(paths, command, ReadyWhen::AcceptsConnections(redis.address()))?;
                let mut command = python(paths, "rq_notify.py");
                command.args(["announce", &port]).stdin(Stdio::piped());
                let mut helper = HelperProcess(command.spawn()?);
                let bell = AnnounceChannel::Pipe(helper.0.stdin.take().expect("it is piped"));
                Ok(Self { channel: bell, _helper: Some(helper), _servers: vec![worker, redis] })
            }
            _ => bail!("this crawler does not wait for announcements"),
        }
    }

    pub(super) fn announce(&mut self, url: &str) -> Result<()> {
        match &mut self.channel {
            AnnounceChannel::Socket(socket, prefix) => {
                socket.write_all(format!("{prefix}{url}\r\n").as_bytes())?;
            }
            AnnounceChannel::Pipe(pipe) => pipe.write_all(format!("{url}\n").as_bytes())?,
        }
        Ok(())
    }
}

/// A broker with workers of its group `crawlers`. All are killed when this value is dropped.
pub(super) struct WorkerFleet {
    broker: SocketAddr,
    _servers: Vec<Server>,
}

impl WorkerFleet {
    /// Starts the processes. Workers may need a moment to join.
    pub(super) fn start(paths: &CrawlerPaths, workers: u32) -> Result<Self> {
        let mut command = program(paths);
        command.args(["broker", "--listen=127.0.0.1:0", "--data"]).arg(paths.dir.join("data"));
        let server = start(paths, command, ReadyWhen::PrintsAddress("listening on "))?;
        let broker = server.address();
        let worker = |number| {
            let mut command = program(paths);
            command.args(["crawl", "--quiet", "--allow-private", "--broker", &broker.to_string()]);
            command.arg("--data").arg(paths.dir.join(format!("worker-{number}")));
            start(paths, command, ReadyWhen::AcceptsConnections(broker))
        };
        let mut servers = (1..=workers).map(worker).collect::<Result<Vec<_>>>()?;
        servers.push(server);
        Ok(Self { broker, _servers: servers })
    }

    /// The address of the broker.
    pub(super) fn broker(&self) -> SocketAddr {
        self.broker
    }
}

fn redis(paths: &CrawlerPaths) -> Result<Server> {
    let address = unused_address()?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--save", "", "--dir"]).arg(&paths.dir);
    start(paths, command, ReadyWhen::AcceptsConnections(address))
}

fn start(paths: &CrawlerPaths, mut command: Command, ready: ReadyWhen) -> Result<Server> {
    let errors = paths.dir.join("errors");
    command.stdout(Stdio::null()).stderr(File::options().create(true).append(true).open(&errors)?);
    let launch = Launch { command, ready, processor: None };
    Server::start(launch).with_context(|| last_line(&errors))
}
