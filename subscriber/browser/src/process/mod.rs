//! Starts browsers so that they reach no network and do not outlive this process.

#![expect(
    clippy::disallowed_methods,
    reason = "a test has a time limit, and a task reads messages"
)]

mod memory;
pub mod sandbox;
mod starter;

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::TcpSocket;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::starter::Ends;
pub use self::starter::Starter;

/// Bytes of the last messages of a browser, kept for the error if it does not start.
const MESSAGES_BYTES_MAX: usize = 2048;

/// How long the test of namespaces may take.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The JavaScript heap of one renderer, in MiB. A page that exceeds it crashes alone.
const HEAP_MIB_MAX: u32 = 512;

/// Flags of each browser. Those about the network are for systems without namespaces: requests that
/// are not intercepted go to a proxy that does not answer.
const FLAGS: [&str; 29] = [
    "--headless",
    "--remote-debugging-pipe",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-features=Translate,MediaRouter,DialMediaRouteProvider,OptimizationHints,\
     LocalNetworkAccessChecks,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
    // A page beside other pages is not in the background.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // Popups open, so that their URLs are reported. They are closed when they load.
    "--disable-popup-blocking",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--disable-gpu",
    "--mute-audio",
    "--hide-scrollbars",
    "--password-store=basic",
];

/// Whether browsers run in namespaces, which is how the kernel keeps them from the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Where the kernel allows it; see [`Launcher::has_namespaces`].
    #[default]
    IfPossible,
    /// Without namespaces, no browser starts.
    Required,
    /// No namespaces. Only flags keep a browser from the network.
    Off,
}

/// How browsers are started.
#[derive(Clone, Debug)]
pub struct LaunchConfig {
    /// The browser; see [`find`](crate::program::find).
    pub program: PathBuf,
    /// Words before the arguments of [`sandbox::run`], with which this program calls it.
    pub sandbox_words: Vec<OsString>,
    /// The process that starts browsers. It must be given if this process has given up a right that
    /// browsers need; otherwise it is started when it is needed.
    pub starter: Option<Arc<Starter>>,
    /// The form of isolation.
    pub isolation: Isolation,
    /// Whether Chromium runs without its own sandbox. Then a page that exploits an error of
    /// Chromium has the rights of its user.
    pub no_sandbox: bool,
    /// What pages see as `navigator.userAgent`.
    pub user_agent: String,
}

/// Why no browser can be started. The fault of the system or of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No process, folder or socket could be made.
    #[error("cannot start a browser: {0}")]
    Io(#[from] io::Error),
    /// Isolation is required, and the kernel refuses it.
    #[error("cannot isolate a browser: the kernel refuses namespaces to this user: {0}")]
    Namespaces(String),
    /// The browser ended, or does not answer.
    #[error("the browser does not start: {0}")]
    Browser(String),
}

/// Starts browsers.
#[derive(Debug)]
pub struct Launcher {
    config: LaunchConfig,
    has_namespaces: bool,
    /// Bound, so that no other process has this address, but it does not listen.
    proxy: TcpSocket,
    starter: Mutex<Arc<Starter>>,
}

impl Launcher {
    /// Finds out whether the kernel gives namespaces to browsers.
    pub async fn new(config: LaunchConfig) -> Result<Self, LaunchError> {
        let proxy = TcpSocket::new_v4()?;
        proxy.bind(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)))?;
        let starter = match &config.starter {
            Some(starter) => Arc::clone(starter),
            None => Arc::new(Starter::start(&config.sandbox_words)?),
        };
        let starter = Mutex::new(starter);
        let mut launcher = Self { config, has_namespaces: true, proxy, starter };
        if launcher.config.isolation == Isolation::Off {
            launcher.has_namespaces = false;
        } else if let Err(error) = launcher.try_namespaces().await {
            if launcher.config.isolation == Isolation::Required {
                return Err(error);
            }
            tracing::warn!(%error, "only flags keep the browser from the network");
            launcher.has_namespaces = false;
        }
        Ok(launcher)
    }

    /// Whether the kernel keeps browsers from the network.
    pub fn has_namespaces(&self) -> bool {
        self.has_namespaces
    }

    async fn try_namespaces(&self) -> Result<(), LaunchError> {
        let (mut process, ..) = self.spawn(&["0".into()])?;
        let has_ended = async {
            let mut status = None;
            while let Some(report) = process.report().await {
                status = Some(report);
            }
            status
        };
        match timeout(PROBE_MAX, has_ended).await {
            Ok(Some(Report::Ended(0))) => Ok(()),
            _ => Err(LaunchError::Namespaces(process.messages().await)),
        }
    }

    /// Starts a browser. It reads messages from the first pipe, and writes to the second. A
    /// renderer that uses more memory than this is killed.
    pub(crate) fn start(
        &self,
        renderer_bytes_max: u64,
    ) -> Result<(Process, PipeWriter, PipeReader), LaunchError> {
        let mut words = vec![renderer_bytes_max.to_string().into()];
        words.push(self.config.program.clone().into_os_string());
        words.extend(FLAGS.map(OsString::from));
        words.push(format!("--proxy-server=http://{}", self.proxy.local_addr()?).into());
        words.push(format!("--user-agent={}", self.config.user_agent).into());
        words.push(format!("--js-flags=--max-old-space-size={HEAP_MIB_MAX}").into());
        if self.config.no_sandbox {
            words.push("--no-sandbox".into());
        }
        words.push("about:blank".into());
        Ok(self.spawn(&words)?)
    }

    fn spawn(&self, words: &[OsString]) -> io::Result<(Process, PipeWriter, PipeReader)> {
        let (control, to_process) = io::pipe()?;
        let (from_process, reports) = io::pipe()?;
        let (from_all, messages) = io::pipe()?;
        let (from_us, to_browser) = io::pipe()?;
        let (from_browser, to_us) = io::pipe()?;
        let ends = Ends {
            control: control.into(),
            reports: reports.into(),
            messages: messages.into(),
            to_browser: from_us.into(),
            from_browser: to_us.into(),
        };
        let mode = if self.has_namespaces {
            sandbox::WITH_NAMESPACES
        } else {
            sandbox::WITHOUT_NAMESPACES
        };
        let words = [&[mode.into()], words].concat();
        let mut starter = self.starter.lock();
        if starter.request(&words, &ends).is_err() {
            // It was killed.
            *starter = Arc::new(Starter::start(&self.config.sandbox_words)?);
            starter.request(&words, &ends)?;
        }
        let reports = pipe::Receiver::from_owned_fd(from_process.into())?;
        let messages = pipe::Receiver::from_owned_fd(from_all.into())?;
        let process = Process {
            control: Some(to_process),
            reports: BufReader::new(reports).lines(),
            messages: tokio::spawn(read_messages(messages)),
        };
        Ok((process, to_browser, from_browser))
    }
}

/// A browser with its children and the processes above it. All are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    /// The processes end when this pipe is closed.
    control: Option<PipeWriter>,
    reports: Lines<BufReader<pipe::Receiver>>,
    messages: JoinHandle<String>,
}

/// What the process above a browser reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The memory of all processes, in bytes.
    Memory(u64),
    /// A renderer was killed because of its memory, in bytes.
    Killed(u64),
    /// The browser has ended with this status of `wait`.
    Ended(u64),
}

impl Process {
    /// Waits for the next report. `None` when no process and no file of the browser is left. Safe
    /// to cancel.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        let (what, value) = line.split_once(' ')?;
        let value = value.parse().ok()?;
        Some(match what {
            "memory" => Report::Memory(value),
            "killed" => Report::Killed(value),
            _ => Report::Ended(value),
        })
    }

    /// Begins to kill all processes.
    pub(crate) fn kill(&mut self) {
        self.control = None;
    }

    /// Kills all processes, waits until they have ended, and returns the last messages.
    pub(crate) async fn messages(mut self) -> String {
        self.kill();
        while self.report().await.is_some() {}
        (&mut self.messages).await.unwrap_or_default()
    }
}

/// Reads to the end, and returns the last bytes.
async fn read_messages(mut stderr: impl AsyncReadExt + Unpin) -> String {
    let mut last = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        last.extend_from_slice(&buffer[..read]);
        let excess = last.len().saturating_sub(MESSAGES_BYTES_MAX);
        last.drain(..excess);
    }
    String::from_utf8_lossy(&last).trim().to_owned()
}
