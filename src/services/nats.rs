//! The servers of NATS that hold the shared log.

#![expect(clippy::disallowed_methods, reason = "tries again while a server begins")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method};
use serde::Deserialize;
use tidings_cluster::{CommunityId, Name};
use tidings_egress::AllowPrivate;
use tidings_egress::client::OutgoingClient;
use tidings_egress::connect::{ConnectConfig, Connector, SystemLookup, system_roots};
use tidings_jetstream::{EngineError, JetStream, Servers};
use tidings_protocol::CanonicalUrl;
use tokio::time::sleep;

use crate::flags::address::parse_http_url;
use crate::terminal::failure::Failure;

/// The usual port of the monitoring of a server.
const MONITOR_PORT: u16 = 8222;

/// The time limit of a request to it.
const MONITOR_MAX: Duration = Duration::from_secs(5);

const MONITOR_BYTES_MAX: usize = 1 << 20;

/// While servers elect, they say for up to 6 s that there is no such stream.
const ELECTION_MAX: Duration = Duration::from_secs(10);

const AGAIN: Duration = Duration::from_millis(500);

/// Flags of everything that uses the servers.
#[derive(Debug, Clone, Args)]
pub(crate) struct NatsFlags {
    /// Servers of NATS with the log of the community, such as `nats://n1,nats://n2,nats://n3`
    #[arg(long, value_name = "URL,..", value_delimiter = ',')]
    pub(crate) cluster: Vec<String>,

    /// Credentials for the servers, a file with a JWT and a key
    #[arg(long, value_name = "FILE", requires = "cluster", hide_short_help = true)]
    cluster_creds: Option<PathBuf>,

    /// Authorities that sign certificates of the servers, beside those of the system
    #[arg(long, value_name = "FILE", requires = "cluster", hide_short_help = true)]
    cluster_ca: Option<PathBuf>,

    /// Monitoring of the servers [default: their hosts, at port 8222]
    ///
    /// It shows whether a server syncs what it confirms (`sync_interval: always`).
    #[arg(
        long,
        value_name = "URL,..",
        value_delimiter = ',',
        requires = "cluster",
        hide_short_help = true
    )]
    cluster_monitor: Vec<String>,
}

/// A connection to the servers.
#[derive(Debug)]
pub(crate) struct NatsServers {
    pub(crate) stream: JetStream,
    monitors: Vec<CanonicalUrl<'static>>,
}

impl NatsFlags {
    /// Files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.cluster_creds.iter().chain(&self.cluster_ca).map(PathBuf::as_path)
    }

    /// Connects, for the community of that name.
    pub(crate) async fn connect(&self, community: &Name) -> Result<NatsServers, Failure> {
        if self.cluster.is_empty() {
            let text = "--cluster is missing: the servers of NATS, such as --cluster nats://n1,nats://n2,nats://n3";
            return Err(Failure::Usage(text.to_owned()));
        }
        let servers = Servers {
            addresses: self.cluster.clone(),
            credentials: self.cluster_creds.clone(),
            authorities: self.cluster_ca.clone(),
        };
        let monitors = self.monitors()?;
        let stream = JetStream::connect(&servers, community).await.map_err(|it| failure(&it))?;
        Ok(NatsServers { stream, monitors })
    }

    fn monitors(&self) -> Result<Vec<CanonicalUrl<'static>>, Failure> {
        let wrong = |flag: &str, text: &str| Failure::Usage(format!("{flag} {text}: not a URL"));
        let url = |text: &str| parse_http_url(text, "varz");
        let of_server = |text: &String| {
            let rest = text.split_once("://").map_or(text.as_str(), |(_, rest)| rest);
            let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
            let server = url(&format!("http://{rest}"));
            server
                .and_then(|server| url(&format!("http://{}:{MONITOR_PORT}", server.host())))
                .map_err(|_| wrong("--cluster", text))
        };
        let of_monitor = |text: &String| url(text).map_err(|_| wrong("--cluster-monitor", text));
        match self.cluster_monitor.as_slice() {
            [] => self.cluster.iter().map(of_server).collect(),
            monitors => monitors.iter().map(of_monitor).collect(),
        }
    }
}

/// What is read of the monitoring of a server.
#[derive(Deserialize)]
struct Varz {
    server_name: String,
    #[serde(default)]
    jetstream: VarzJetStream,
}

#[derive(Deserialize, Default)]
struct VarzJetStream {
    config: Option<VarzConfig>,
}

#[derive(Deserialize)]
struct VarzConfig {
    #[serde(default)]
    sync_always: bool,
}

impl NatsServers {
    /// The id of the community.
    pub(crate) async fn community(&self) -> Result<CommunityId, Failure> {
        let began = Instant::now();
        loop {
            match self.stream.community().await {
                Ok(id) => return Ok(id),
                Err(EngineError::Missing(_) | EngineError::Failed(_))
                    if began.elapsed() < ELECTION_MAX =>
                {
                    sleep(AGAIN).await;
                }
                Err(error) => return Err(failure(&error)),
            }
        }
    }

    /// Refuses servers that confirm what they have not synced. One that is away is left out; all are
    /// needed for a new community.
    pub(crate) async fn check_sync(&self, is_new: bool) -> Result<(), Failure> {
        let client = monitor_client()?;
        let mut known = 0;
        let mut last = None;
        for url in &self.monitors {
            match varz(&client, url).await {
                Ok(Varz { server_name, jetstream: VarzJetStream { config: Some(config) } }) => {
                    if !config.sync_always {
                        return Err(Failure::failed(format!(
                            "the server {server_name} confirms what a loss of power can take back; set \
                             `sync_interval: always` in its jetstream block, and restart it"
                        )));
                    }
                    known += 1;
                }
                Ok(Varz { server_name, .. }) => {
                    let text = format!(
                        "the server {server_name} has no JetStream; add `jetstream {{ store_dir: .. }}`"
                    );
                    return Err(Failure::failed(text));
                }
                Err(problem) => last = Some(problem),
            }
        }
        match last {
            Some(problem) if is_new || known == 0 => Err(Failure::failed(format!(
                "cannot see whether the servers sync what they confirm: {problem}; set `http_port: \
                 {MONITOR_PORT}` in their configuration, or name their monitoring with --cluster-monitor"
            ))),
            _ => Ok(()),
        }
    }
}

fn monitor_client() -> Result<OutgoingClient, Failure> {
    let config = ConnectConfig { allow_private: AllowPrivate::All, ..ConnectConfig::default() };
    let connector = Connector::with(&config, Arc::new(SystemLookup), system_roots())
        .map_err(|error| Failure::failed(error.to_string()))?;
    let agent = HeaderValue::from_static("tidings-cluster");
    Ok(OutgoingClient::new(connector, agent, MONITOR_MAX))
}

async fn varz(client: &OutgoingClient, url: &CanonicalUrl<'_>) -> Result<Varz, String> {
    let answer = client.send(Method::GET, url, HeaderMap::new(), Bytes::new(), MONITOR_BYTES_MAX);
    let answer = answer.await.map_err(|failure| format!("{url}: {}", failure.text))?;
    serde_json::from_slice(&answer.body).map_err(|error| format!("{url}: {error}"))
}

/// The failure for an error of the servers.
pub(crate) fn failure(error: &EngineError) -> Failure {
    let remedy = match error {
        EngineError::Missing(name) => {
            format!("; make it once with `tidings cluster create {name}`, or correct --community")
        }
        _ => String::new(),
    };
    Failure::failed(format!("{error}{remedy}"))
}
