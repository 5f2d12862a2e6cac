//! Starts and supervises the ZeroMQ process.
//!
//! Messages of unknown peers can crash it, so it is a separate process. It ends together with this
//! process, because it reads a pipe with its other end only here.

#![expect(clippy::disallowed_methods, reason = "supervises a process, and waits to restart it")]

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use tidings_client::{ClientTls, Security, TokenSource};
use tidings_connectors::zmq::{BindEndpoint, BoundAddresses, TopicPattern, ZmqSockets};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::flags::address::BrokerAddress;
use crate::flags::broker::TOKEN_VARIABLE;
use crate::process::logging;
use crate::terminal::failure::Failure;

/// The time limit for opening its sockets.
const START_MAX: Duration = Duration::from_secs(10);

/// The time limit of its stop, which is longer than its own limit (`STOP_TIMEOUT` of its topic
/// forwarder).
const STOP_MAX: Duration = Duration::from_millis(400);

/// The shortest and the longest wait before a restart; it doubles each time.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// After this time an exit is not attributed to the start.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Variables with which a service manager addresses this process only.
const SERVICE_VARIABLES: [&str; 6] = [
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// What an operator can do about an address without a key.
#[cfg(feature = "libzmq")]
const REMEDY: &str = "Set a key: --zmq-key FILE, or listen on 127.0.0.1.";
#[cfg(not(feature = "libzmq"))]
const REMEDY: &str = "Listen on 127.0.0.1.";

/// The ZeroMQ flags of a broker.
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ZmqFlags {
    /// Publish all events to ZeroMQ subscribers (PUB) at tcp://ADDRESS:PORT, in the frames topic,
    /// number, payload
    #[arg(long, help_heading = "ZeroMQ", value_name = "ENDPOINT")]
    zmq_pub: Option<BindEndpoint>,

    /// Accept events from ZeroMQ (PULL) at tcp://ADDRESS:PORT, in the frames topic, payload, or a
    /// payload for new-url
    #[arg(long, help_heading = "ZeroMQ", value_name = "ENDPOINT")]
    zmq_pull: Option<BindEndpoint>,

    /// With --zmq-pub: only these topics, separated by commas; NAME* matches a prefix
    #[arg(
        long,
        help_heading = "ZeroMQ",
        value_name = "TOPIC,..",
        value_delimiter = ',',
        requires = "zmq_pub"
    )]
    zmq_topics: Vec<TopicPattern>,

    /// File with the server's secret CURVE key; only peers that know its public key can connect
    #[cfg(feature = "libzmq")]
    #[arg(long, help_heading = "ZeroMQ", value_name = "FILE")]
    zmq_key: Option<PathBuf>,
}

impl ZmqFlags {
    /// Refuses an address without a key that other machines can reach.
    pub(crate) fn check_exposure(
        &self,
        is_exposed: impl Fn(SocketAddr) -> bool,
    ) -> Result<(), Failure> {
        if self.key_file().is_some() {
            return Ok(());
        }
        for (flag, endpoint) in [("--zmq-pub", self.zmq_pub), ("--zmq-pull", self.zmq_pull)] {
            let Some(BindEndpoint(address)) = endpoint.filter(|at| is_exposed(at.0)) else {
                continue;
            };
            return Err(Failure::Usage(format!(
                "{flag} tcp://{address} is open to other machines, and ZeroMQ does not authenticate clients. {REMEDY} To \
                 accept all clients as they are: --insecure"
            )));
        }
        Ok(())
    }

    /// Whether the process is needed.
    pub(crate) fn is_on(&self) -> bool {
        self.zmq_pub.is_some() || self.zmq_pull.is_some()
    }

    /// The file with its key.
    #[cfg(feature = "libzmq")]
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.zmq_key.as_deref()
    }

    /// Only libzmq has keys.
    #[cfg(not(feature = "libzmq"))]
    #[expect(clippy::unused_self, reason = "the other form reads a flag")]
    pub(crate) fn key_file(&self) -> Option<&Path> {
        None
    }
}

/// The task of the process.
#[derive(Debug)]
pub(crate) struct ZmqWork {
    pub(crate) broker: BrokerAddress,
    /// The file with the secret CURVE key.
    pub(crate) key: Option<PathBuf>,
    pub(crate) sockets: ZmqSockets,
}

impl ZmqWork {
    /// The arguments of `tidings zmq`.
    fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![format!("--broker={}", self.broker).into()];
        let Security { tls, token } = self.broker.security();
        if let Some(TokenSource::File(path)) = token {
            words.extend(["--token-file".into(), path.into()]);
        }
        if let Some(ClientTls { ca, crl, cert, key }) = tls {
            words.push("--tls".into());
            for (flag, file) in
                [("--ca", ca), ("--crl", crl), ("--cert", cert), ("--cert-key", key)]
            {
                words.extend(file.iter().flat_map(|file| [flag.into(), file.into()]));
            }
        }
        if let Some(key) = &self.key {
            words.extend(["--curve-key".into(), key.into()]);
        }
        let sockets = serde_json::to_string(&self.sockets).expect("strings are always JSON");
        words.push(format!("--sockets={sockets}").into());
        words
    }
}

/// How the process has ended.
#[derive(Debug)]
pub(crate) struct ZmqEnd {
    pub(crate) last_line: Option<String>,
    /// All messages were processed.
    pub(crate) is_complete: bool,
}

/// The supervised process, which [`ZmqProcess::stop`] ends.
#[derive(Debug)]
pub(crate) struct ZmqProcess {
    /// The addresses of its sockets, and warnings, for people.
    pub(crate) notes: Vec<String>,
    bound: BoundAddresses,
    task: JoinHandle<Option<ZmqEnd>>,
    stop: CancellationToken,
}

impl ZmqProcess {
    /// Starts the process that the flags describe; `None`: they describe none.
    pub(crate) async fn start(
        flags: &ZmqFlags,
        broker: BrokerAddress,
    ) -> Result<Option<Self>, Failure> {
        if !flags.is_on() {
            return Ok(None);
        }
        let (publish, pull) = (flags.zmq_pub, flags.zmq_pull);
        let key = flags.key_file().map(Path::to_owned);
        let is_open_to_all = key.is_none();
        let topics = flags.zmq_topics.clone();
        let sockets = ZmqSockets { publish, topics, pull, bridge: None };
        let mut zmq = Self::launch(ZmqWork { broker, key, sockets }).await?;
        let BoundAddresses { publish, pull } = zmq.bound;
        zmq.notes.extend(publish.map(|at| format!("ZeroMQ subscribers at {}", BindEndpoint(at))));
        zmq.notes.extend(pull.map(|at| format!("ZeroMQ publishers at {}", BindEndpoint(at))));
        for at in [publish, pull].into_iter().flatten().filter(|at| !at.ip().is_loopback()) {
            if is_open_to_all {
                let at = BindEndpoint(at);
                zmq.notes.push(format!("note: {at} is open to other machines without a key"));
            }
        }
        Ok(Some(zmq))
    }

    /// Starts the process and supervises it. The failure is that of the first start.
    pub(crate) async fn launch(mut work: ZmqWork) -> Result<Self, Failure> {
        let mut process =
            ChildProcess::spawn(&work, false).map_err(|reason| zmq_failure(&reason))?;
        let bound = process.ready().await.map_err(|reason| zmq_failure(&reason))?;
        // A restarted process uses the same addresses, so that peers can reconnect.
        work.sockets.publish = bound.publish.map(BindEndpoint);
        work.sockets.pull = bound.pull.map(BindEndpoint);
        let stop = CancellationToken::new();
        let task = tokio::spawn(supervise(work, process, stop.clone()));
        Ok(Self { notes: Vec::new(), bound, task, stop })
    }

    /// Stops it; `None`: it was not running, or had to be killed.
    pub(crate) async fn stop(self) -> Option<ZmqEnd> {
        self.stop.cancel();
        self.task.await.ok().flatten()
    }
}

fn zmq_failure(reason: &str) -> Failure {
    Failure::failed(format!("ZeroMQ: {reason}"))
}

/// Restarts the process whenever it ends, until `stop`.
async fn supervise(work: ZmqWork, first: ChildProcess, stop: CancellationToken) -> Option<ZmqEnd> {
    let mut backoff = BACKOFF_MIN;
    let mut running = Ok(first);
    loop {
        let ended = match running {
            Ok(mut process) => {
                let began = Instant::now();
                let status = tokio::select! {
                    status = process.child.wait() => status,
                    () = stop.cancelled() => return process.end().await,
                };
                if began.elapsed() >= STABLE_AFTER {
                    backoff = BACKOFF_MIN;
                }
                status.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            Err(reason) => reason,
        };
        if stop.is_cancelled() {
            return None;
        }
        tracing::warn!(
            "the ZeroMQ process has ended ({ended}); restarting it in {} ms",
            backoff.as_millis()
        );
        tokio::select! {
            () = sleep(backoff) => {}
            () = stop.cancelled() => return None,
        }
        backoff = (2 * backoff).min(BACKOFF_MAX);
        running = ChildProcess::spawn(&work, true);
        if let Ok(process) = &mut running {
            let ready = tokio::select! {
                ready = process.ready() => ready,
                () = stop.cancelled() => return None,
            };
            if let Err(reason) = ready {
                running = Err(reason);
            }
        }
    }
}

/// One run of the process. It is killed when this value is dropped.
struct ChildProcess {
    child: Child,
    /// Closing it tells the process to end.
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    fn spawn(work: &ZmqWork, is_restart: bool) -> Result<Self, String> {
        let mut command = own_program().map_err(|error| error.to_string())?;
        command.arg("zmq").args(work.arguments());
        if is_restart {
            command.arg("--restart");
        }
        if logging::is_json() {
            command.arg("--log-json");
        }
        // Variables of this process are not meant for the other.
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TIDINGS_") {
                command.env_remove(&name);
            }
        }
        for name in SERVICE_VARIABLES {
            command.env_remove(name);
        }
        command.args(logging::filter_text().map(|filter| format!("--log={filter}")));
        if let Some(TokenSource::Given(token)) = &work.broker.security().token {
            command.env(TOKEN_VARIABLE, token.secret());
        }
        // A peer may crash it often, so each crash must log one line and not fifty.
        command.env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        Ok(Self { child, stdin, stdout: BufReader::new(stdout).lines() })
    }

    /// Waits until its sockets are open.
    async fn ready(&mut self) -> Result<BoundAddresses, String> {
        let line = timeout(START_MAX, self.stdout.next_line()).await;
        let line = line.map_err(|_| format!("not ready within {} s", START_MAX.as_secs()))?;
        if let Ok(Some(line)) = line {
            return StartReport::parse(&line);
        }
        let status = self.child.wait().await;
        Err(status.map_or_else(|error| error.to_string(), |status| status.to_string()))
    }

    /// Ends it and waits. Its last line is its report.
    async fn end(mut self) -> Option<ZmqEnd> {
        self.stdin = None;
        let ended = async {
            let mut last_line = None;
            while let Ok(Some(line)) = self.stdout.next_line().await {
                last_line = Some(line);
            }
            let is_complete = self.child.wait().await.is_ok_and(|status| status.success());
            ZmqEnd { last_line, is_complete }
        };
        timeout(STOP_MAX, ended).await.ok()
    }
}

/// The file of this program, even if another one has replaced it on the disk.
fn own_program() -> std::io::Result<Command> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() {
        let mut command = Command::new(running);
        command.arg0("tidings");
        return Ok(command);
    }
    Ok(Command::new(env::current_exe()?))
}

/// The first line that the process prints.
pub(crate) struct StartReport;

impl StartReport {
    /// The line for open sockets.
    pub(crate) fn ready(bound: &BoundAddresses) -> String {
        let place = |at: Option<SocketAddr>| at.map_or("-".to_owned(), |at| at.to_string());
        format!("ready {} {}", place(bound.publish), place(bound.pull))
    }

    /// The line for a failed start.
    pub(crate) fn failed(reason: &str) -> String {
        format!("failed {reason}")
    }

    fn parse(line: &str) -> Result<BoundAddresses, String> {
        if let Some(reason) = line.strip_prefix("failed ") {
            return Err(reason.to_owned());
        }
        let words: Vec<_> = line.split(' ').collect();
        let ["ready", publish, pull] = words[..] else {
            return Err("unexpected first line".to_owned());
        };
        Ok(BoundAddresses { publish: publish.parse().ok(), pull: pull.parse().ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_parsed() {
        let bound = BoundAddresses { publish: "127.0.0.1:7".parse().ok(), pull: None };
        assert_eq!(StartReport::parse(&StartReport::ready(&bound)), Ok(bound));
        assert_eq!(
            StartReport::parse(&StartReport::ready(&BoundAddresses::default())),
            Ok(BoundAddresses::default())
        );
        assert_eq!(StartReport::parse(&StartReport::failed("in use")), Err("in use".to_owned()));
        assert!(StartReport::parse("x").is_err());
    }
}
