//! `tidings zmq`: the ZeroMQ process, which `tidings up`, `broker` and `bridge zmq` start and
//! supervise.

#![expect(clippy::disallowed_methods, clippy::exit, reason = "ends with its parent, even if stuck")]

use std::io::Read;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Resource, Rlimit, setrlimit};
use tidings_connectors::zmq::{self, ADDRESS_SPACE_BYTES_MAX, ZmqConfig, ZmqSockets};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::flags::broker::BrokerFlag;
use crate::services::zmq::StartReport;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

/// The time limit of the stop.
const END_MAX: Duration = Duration::from_millis(350);

/// Tasks that run between two polls of sockets: one for each of this many subscribers.
pub(crate) const EVENT_INTERVAL: u32 = 1_024;

/// The arguments from the parent process.
#[derive(Debug, Args)]
pub(crate) struct ZmqArgs {
    #[command(flatten)]
    broker: BrokerFlag,

    /// Its sockets as JSON
    #[arg(long, value_parser = |json: &str| serde_json::from_str::<ZmqSockets>(json))]
    sockets: ZmqSockets,

    /// File with the secret CURVE key
    #[cfg(feature = "libzmq")]
    #[arg(long)]
    curve_key: Option<std::path::PathBuf>,

    /// An earlier process has ended
    #[arg(long)]
    restart: bool,
}

/// Serves until standard input is closed.
pub(crate) async fn run(args: ZmqArgs) -> Result<(), Failure> {
    // It was started as `/proc/self/exe`; this gives it a readable name. Without one it works
    // as well.
    let _ = rustix::thread::set_name(c"tidings");
    limit_memory()?;
    let stop = end_with_parent()?;
    let mut console = Console::new();
    #[cfg(not(feature = "libzmq"))]
    let curve_key = None;
    #[cfg(feature = "libzmq")]
    let curve_key = match args.curve_key.as_deref().map(read_key).transpose() {
        Ok(key) => key,
        Err(reason) => {
            let _ = console.line(&StartReport::failed(&format!("{reason:#}")));
            return Err(Failure::Unsuccessful);
        }
    };
    let config = ZmqConfig {
        broker: args.broker.broker.as_str().to_owned(),
        security: args.broker.broker.security().clone(),
        curve_key,
        sockets: args.sockets,
        is_restart: args.restart,
    };
    let mut is_ready = false;
    let ready = |bound: &zmq::BoundAddresses| {
        is_ready = true;
        let _ = console.line(&StartReport::ready(bound));
    };
    let ended = zmq::run(config, ready, stop).await;
    match ended {
        Ok(None) => Ok(()),
        Ok(Some(report)) => {
            console.line(&report.to_string())?;
            if report.is_complete() { Ok(()) } else { Err(Failure::Unsuccessful) }
        }
        Err(error) if is_ready => Err(Failure::failed(format!("ZeroMQ: {error}"))),
        // The parent reports the error.
        Err(error) => {
            console.line(&StartReport::failed(&error.to_string()))?;
            Err(Failure::Unsuccessful)
        }
    }
}

#[cfg(feature = "libzmq")]
fn read_key(file: &std::path::Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the key in {}", file.display()))
}

/// Limits the memory, so that a peer that claims a huge frame ends this process and not the
/// machine.
fn limit_memory() -> Result<(), Failure> {
    let limit = Some(ADDRESS_SPACE_BYTES_MAX);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit })
        .context("cannot bound the memory of the process")?;
    // A core dump would contain data of peers, and take time.
    let none = Some(0);
    setrlimit(Resource::Core, Rlimit { current: none, maximum: none })
        .context("cannot do without core dumps")?;
    Ok(())
}

/// A token that is cancelled by SIGTERM, or when the parent closes standard input or ends.
/// Ctrl-C is handled by the parent.
fn end_with_parent() -> Result<CancellationToken, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let stop = CancellationToken::new();
    let by_signal = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => by_signal.cancel(),
            }
        }
    });
    let by_parent = stop.clone();
    // A thread, so that it runs even if the runtime is stuck.
    let watch = move || {
        // The parent never writes, so this waits for the end of the input.
        let _ = std::io::stdin().read(&mut [0]);
        by_parent.cancel();
        thread::sleep(END_MAX);
        std::process::exit(1);
    };
    thread::Builder::new().name("parent".into()).spawn(watch).context("cannot start a thread")?;
    Ok(stop)
}
