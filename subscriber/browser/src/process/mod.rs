//! Starts browsers so that they reach no network and do not outlive this process.

#![expect(clippy::disallowed_methods, reason = "a browser has a time limit to end")]

pub(crate) mod memory;
pub mod sandbox;

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::{fs, mem, thread};

use command_fds::{CommandFdExt, FdMapping};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The user of the browser if this process runs as root: Chromium refuses to run as root in its
/// sandbox. The number of `nobody` and `nogroup`.
const NOBODY: u32 = 65_534;

/// What is kept of the messages of a browser, for the error if it does not start.
const MESSAGES_BYTES_MAX: usize = 2048;

/// How long the processes of a browser may take to end after a kill, before the one above them is
/// killed too.
const KILL_MAX: Duration = Duration::from_secs(4);

/// How often a profile is removed again.
const REMOVALS: u32 = 40;
const REMOVAL_PAUSE: Duration = Duration::from_millis(100);

/// How long the test of namespaces may take.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The JavaScript heap of one renderer, in MiB. A page that exceeds it crashes alone.
const HEAP_MIB_MAX: u32 = 512;

/// Flags of each browser. Those of the network repeat what the missing network ensures, for systems
/// without namespaces: whatever is not intercepted goes to a proxy that does not answer.
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
    // So that their URLs are reported; they are closed when they load.
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
    /// Without. Only flags keep a browser from the network.
    Off,
}

/// How browsers are started.
#[derive(Clone, Debug)]
pub struct LaunchConfig {
    /// The browser; see [`find`](crate::program::find).
    pub program: PathBuf,
    /// Words before the arguments of [`sandbox::run`], with which this program calls it.
    pub sandbox_words: Vec<OsString>,
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
}

impl Launcher {
    /// Finds out whether the kernel gives namespaces to this process.
    pub async fn new(config: LaunchConfig) -> Result<Self, LaunchError> {
        let proxy = TcpSocket::new_v4()?;
        proxy.bind(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)))?;
        let mut launcher = Self { config, has_namespaces: true, proxy };
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
        let mut process = self.spawn(Vec::new(), Vec::new())?;
        let ended = timeout(PROBE_MAX, process.child.wait()).await;
        if matches!(&ended, Ok(Ok(status)) if status.success()) {
            return Ok(());
        }
        Err(LaunchError::Namespaces(process.messages().await))
    }

    /// Starts a browser. It reads messages from the first pipe, and writes to the second.
    pub(crate) fn start(&self) -> Result<(Process, PipeWriter, PipeReader), LaunchError> {
        let (from_us, to_browser) = io::pipe()?;
        let (from_browser, to_us) = io::pipe()?;
        let mappings = vec![
            FdMapping { parent_fd: from_us.into(), child_fd: 3 },
            FdMapping { parent_fd: to_us.into(), child_fd: 4 },
        ];
        let mut words = vec![self.config.program.clone().into_os_string()];
        words.extend(FLAGS.map(OsString::from));
        words.push(format!("--proxy-server=http://{}", self.proxy.local_addr()?).into());
        words.push(format!("--user-agent={}", self.config.user_agent).into());
        words.push(format!("--js-flags=--max-old-space-size={HEAP_MIB_MAX}").into());
        if self.config.no_sandbox {
            words.push("--no-sandbox".into());
        }
        words.push("about:blank".into());
        Ok((self.spawn(words, mappings)?, to_browser, from_browser))
    }

    fn spawn(&self, words: Vec<OsString>, pipes: Vec<FdMapping>) -> Result<Process, LaunchError> {
        let profile = tempfile::Builder::new().prefix("tidings-browser-").tempdir()?;
        let profile = Profile(profile.keep());
        let mut command = Command::new("/proc/self/exe");
        let mode = if self.has_namespaces {
            sandbox::WITH_NAMESPACES
        } else {
            sandbox::WITHOUT_NAMESPACES
        };
        command.args(&self.config.sandbox_words).arg(mode).arg(&profile.0).args(words);
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("TZ", "UTC")]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.current_dir("/");
        command.fd_mappings(pipes).map_err(io::Error::other)?;
        if rustix::process::geteuid().is_root() {
            chown(&profile.0, Some(NOBODY), Some(NOBODY))?;
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().expect("it is piped");
        let messages = tokio::spawn(read_messages(stderr));
        let stdin = child.stdin.take();
        Ok(Process { child, stdin, messages, profile })
    }
}

/// A browser with its children and the processes above it. All are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The process below ends when this pipe is closed.
    stdin: Option<ChildStdin>,
    messages: JoinHandle<String>,
    #[expect(dead_code, reason = "held until drop, which removes it")]
    profile: Profile,
}

/// The folder of a browser's files. Removed on drop, if the process below has not done it.
#[derive(Debug)]
struct Profile(PathBuf);

impl Drop for Profile {
    /// If the process below was killed, processes of the browser are still ending. They may write to
    /// the folder while it is removed, or create it again, so it is removed several times.
    fn drop(&mut self) {
        let path = mem::take(&mut self.0);
        // An error means that it is gone, or is being written to.
        let _ = fs::remove_dir_all(&path);
        thread::spawn(move || {
            for _ in 0..REMOVALS {
                thread::sleep(REMOVAL_PAUSE);
                let _ = fs::remove_dir_all(&path);
            }
        });
    }
}

impl Process {
    /// The process above the browser, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the browser has ended. Safe to cancel.
    pub(crate) async fn wait(&mut self) {
        // An error means that there is no such process.
        let _ = self.child.wait().await;
    }

    /// Kills all processes, and waits until they have ended. Safe to cancel and to call again.
    pub(crate) async fn kill(&mut self) {
        self.stdin = None;
        if timeout(KILL_MAX, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }

    /// Kills all processes, and returns the last messages.
    pub(crate) async fn messages(mut self) -> String {
        self.kill().await;
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
