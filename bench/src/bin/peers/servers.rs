//! The servers of the comparison, and how each of them starts.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tidings_load::server::unused_address;
use tidings_load::wire::Sync;
use tidings_load::{Launch, ReadyWhen, Server, Tidings, WireProtocol};

use crate::comparison::{self, RunDir};
use crate::protocols::{BareLines, Mqtt, Nats, Redis, Zmtp};
use crate::queue_protocols::Beanstalkd;
use crate::results::Contestant;

/// A server of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerKind {
    Tidings,
    Nats,
    JetStream,
    Redis,
    RedisStreams,
    ZeroMq,
    Mosquitto,
    Beanstalkd,
    Relay,
    Naive,
    Blast,
}

impl Contestant for ServerKind {
    const OURS: Self = Self::Tidings;

    fn name(self) -> &'static str {
        match self {
            Self::Tidings => "Tidings",
            Self::Nats => "NATS",
            Self::JetStream => "JetStream",
            Self::Redis => "Redis",
            Self::RedisStreams => "Redis Streams",
            Self::ZeroMq => "ZeroMQ",
            Self::Mosquitto => "Mosquitto",
            Self::Beanstalkd => "beanstalkd",
            Self::Relay => "relay",
            Self::Naive => "naive relay",
            Self::Blast => "blast",
        }
    }

    fn is_peer(self) -> bool {
        !matches!(self, Self::Tidings | Self::Relay | Self::Naive | Self::Blast)
    }
}

/// Paths of everything that servers need.
#[derive(Debug)]
pub(crate) struct ServerPaths {
    /// The program `tidings`.
    pub(crate) tidings: PathBuf,
    /// The program `zmq_proxy`.
    pub(crate) zmq_proxy: PathBuf,
    /// The program `nats-server`.
    pub(crate) nats_server: PathBuf,
    /// Each server gets a new directory in it.
    pub(crate) data: PathBuf,
    pub(crate) processor: Option<usize>,
}

/// A running server, its protocol, and its directory, which is removed at the end.
pub(crate) struct RunningServer {
    // Dropped first: the server must not write into a directory that is being removed.
    pub(crate) server: Server,
    pub(crate) wire: Box<dyn WireProtocol>,
    pub(crate) dir: RunDir,
}

/// The settings on which the start of a server depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerOptions {
    /// `sync=` of topics of Tidings.
    pub(crate) sync: Sync,
    /// Number of subscribers.
    pub(crate) subscribers: u16,
    /// Bytes per payload.
    pub(crate) payload_bytes: usize,
    /// Subscribers are ZeroMQ sockets.
    pub(crate) is_over_zmq: bool,
}

/// Starts a server with an empty directory.
pub(crate) fn start(
    paths: &ServerPaths,
    kind: ServerKind,
    options: ServerOptions,
) -> Result<RunningServer> {
    let dir = RunDir::new(&paths.data, kind)?;
    let address = unused_address()?;
    let (mut command, wire) = command(paths, kind, options, &dir, address)?;
    let ready = if kind == ServerKind::Tidings && !options.is_over_zmq {
        ReadyWhen::PrintsAddress("listening on ")
    } else {
        command.stdout(File::create(dir.path().join("output"))?);
        ReadyWhen::AcceptsConnections(address)
    };
    command.stderr(File::create(dir.path().join("errors"))?);
    let launch = Launch { command, ready, processor: paths.processor };
    let server = Server::start(launch).with_context(|| {
        let errors = fs::read_to_string(dir.path().join("errors")).unwrap_or_default();
        format!("{}: {}", kind.name(), errors.lines().last().unwrap_or("(no message)"))
    })?;
    Ok(RunningServer { server, wire, dir })
}

fn command(
    paths: &ServerPaths,
    kind: ServerKind,
    options: ServerOptions,
    dir: &RunDir,
    address: SocketAddr,
) -> Result<(Command, Box<dyn WireProtocol>)> {
    let port = address.port().to_string();
    let command_and_wire: (Command, Box<dyn WireProtocol>) = match kind {
        ServerKind::Tidings if options.is_over_zmq => {
            let publishers = unused_address()?;
            let mut command = Command::new(&paths.tidings);
            command.args(["broker", "--sync", options.sync.as_str(), "--data"]).arg(dir.path());
            command.args(["--listen", &publishers.to_string()]);
            command.arg(format!("--zmq-pub=tcp://{address}"));
            command.env_remove("TIDINGS_CONFIG");
            (command, Box::new(Zmtp { publishers, is_tidings: true }))
        }
        ServerKind::Tidings => {
            let mut command = Command::new(&paths.tidings);
            command.args(["broker", "--listen", "127.0.0.1:0", "--data"]).arg(dir.path());
            command.env_remove("TIDINGS_CONFIG");
            (command, Box::new(Tidings::plain(Some(options.sync))))
        }
        ServerKind::Nats | ServerKind::JetStream => {
            let mut command = Command::new(&paths.nats_server);
            command.args(["-a", "127.0.0.1", "-p", &port]);
            let has_stream = kind == ServerKind::JetStream;
            if has_stream {
                command.arg("-js").arg("-sd").arg(dir.path());
            }
            (command, Box::new(Nats { has_stream }))
        }
        ServerKind::Redis | ServerKind::RedisStreams => {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
            // Otherwise only 127.0.0.1 counts as this machine, and the generator uses many
            // addresses.
            command.args(["--protected-mode", "no"]);
            command.args(["--maxclients", "11000", "--dir"]).arg(dir.path());
            let has_streams = kind == ServerKind::RedisStreams;
            if has_streams {
                command.args(["--appendonly", "yes", "--appendfsync", "everysec"]);
            }
            (command, Box::new(Redis { has_streams }))
        }
        ServerKind::ZeroMq => {
            let publishers = unused_address()?;
            let mut command = Command::new(&paths.zmq_proxy);
            command.args([publishers.port().to_string(), port]);
            (command, Box::new(Zmtp { publishers, is_tidings: false }))
        }
        ServerKind::Mosquitto => {
            let mut command = Command::new("mosquitto");
            command.arg("-c").arg(mosquitto_config(dir, &port)?);
            (command, Box::new(Mqtt))
        }
        ServerKind::Beanstalkd => {
            let mut command = Command::new("beanstalkd");
            // Its log is synced every 50 ms.
            command.args(["-l", "127.0.0.1", "-p", &port, "-b"]).arg(dir.path());
            (command, Box::new(Beanstalkd))
        }
        ServerKind::Relay | ServerKind::Naive | ServerKind::Blast => {
            let mut command = Command::new(std::env::current_exe()?);
            let limit = match kind {
                ServerKind::Relay => "relay",
                ServerKind::Naive => "naive",
                _ => "blast",
            };
            command.args([limit, "--listen", &address.to_string()]);
            if kind == ServerKind::Blast {
                command.arg(format!("--subscribers={}", options.subscribers));
                command.arg(format!("--line-bytes={}", options.payload_bytes + 1));
            }
            (command, Box::new(BareLines))
        }
    };
    Ok(command_and_wire)
}

/// By default Mosquitto keeps 1,000 messages for a slow client and drops the rest. Events must not
/// be dropped.
fn mosquitto_config(dir: &RunDir, port: &str) -> Result<PathBuf> {
    let config = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence false\n\
         max_queued_messages 0\nmax_queued_bytes 0\nmax_inflight_messages 0\nmemory_limit 0\n\
         set_tcp_nodelay true\nlog_dest none\n"
    );
    let path = dir.path().join("mosquitto.conf");
    fs::write(&path, config)?;
    Ok(path)
}

/// The versions, as the programs print them, in three words.
pub(crate) fn versions(paths: &ServerPaths) -> Vec<String> {
    let commands: [(&Path, &[&str]); 5] = [
        (&paths.tidings, &["--version"]),
        (&paths.nats_server, &["--version"]),
        (Path::new("redis-server"), &["--version"]),
        (Path::new("mosquitto"), &["-h"]),
        (Path::new("beanstalkd"), &["-v"]),
    ];
    let short = |line: String| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    comparison::versions(&commands).into_iter().map(short).collect()
}
