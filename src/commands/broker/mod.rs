//! `tidings broker`: only the broker. Crawlers, publishers and subscribers are other processes.

#[cfg(feature = "cluster")]
mod cluster;

use std::mem;
use std::path::Path;

use clap::Args;
use tidings_broker::BrokerConfig;
use tidings_documents::tracking::TrackingParams;

#[cfg(feature = "cluster")]
use self::cluster::ClusterFlags;
use crate::flags::DataFlag;
use crate::process::privileges::ServerResources;
use crate::process::service::{self, Service, StartContext};
use crate::process::signals::stop_on_signal;
use crate::process::stack::{self, StopTimer};
use crate::services::companions::PreparedCompanions;
use crate::services::outgoing::OutgoingFlags;
use crate::services::server_flags::ServerFlags;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const EXAMPLES: &str = "\
Examples:
  tidings token create crawler-1 --allow group:crawlers
  tidings broker --listen 0.0.0.0:12345 --tls-cert cert.pem --tls-key key.pem
                                              reachable from other machines
  tidings crawl --broker broker.example --tls --token-file token
                                              a crawler for it, on as many machines as you like

Clients on loopback may publish, read and crawl without login until the first `tidings token
create`. Other addresses require login and --tls-cert.";

/// The flags of `tidings broker`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BrokerArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    pub(crate) data: DataFlag,

    #[command(flatten)]
    pub(crate) outgoing: OutgoingFlags,

    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub(crate) cluster: Box<ClusterFlags>,
}

impl BrokerArgs {
    /// The broker's configuration, if the flags fit together and the files that they name are
    /// readable.
    pub(crate) fn broker_config(&self) -> Result<BrokerConfig, Failure> {
        self.server.config(&self.data)
    }

    /// [`ServerFlags::problems`], with those of its requests.
    pub(crate) fn problems(&self) -> Vec<Failure> {
        let own = self.outgoing.identity.check().err();
        let own = own.into_iter().chain(self.server.problems(&self.data));
        #[cfg(feature = "cluster")]
        let own = own.chain(self.cluster.problem());
        own.collect()
    }

    /// The paths that the process uses.
    pub(crate) fn resources<'a>(&'a self, config: Option<&'a Path>) -> ServerResources<'a> {
        let inputs = config.into_iter().chain(self.outgoing.identity.key_file());
        #[cfg(feature = "cluster")]
        let inputs = inputs.chain(self.cluster.servers.files());
        self.server.resources(&self.data, inputs, Vec::new(), false)
    }
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: BrokerArgs, mut started: StartContext) -> Result<(), Failure> {
    #[cfg(feature = "cluster")]
    if args.cluster.is_set() {
        return Box::pin(cluster::run(&args, started)).await;
    }
    let stop = stop_on_signal()?;
    let shown = mem::take(&mut started.shown);
    let (mut service, sockets) = Service::new(started)?;
    let mut config = args.broker_config()?;
    config.settings = shown;
    args.server.check_exposure(&config, &sockets, &args.data)?;
    let prepared = PreparedCompanions::new(
        &mut config,
        &args.server,
        &args.outgoing,
        &args.data,
        TrackingParams::default(),
    )?;
    let broker = stack::start_broker_on(config, sockets).await?;
    let (broker, beside) = prepared.start(broker).await?;
    let mut console = Console::new();
    // Standard output may be closed; serving does not depend on it.
    let _ = console.line(&format!("listening on {}", broker.local_addr()));
    if let Some(address) = broker.http_addr() {
        let _ = console.line(&args.server.http_line(address));
        warn_if_open(address, &args.server, &mut console);
    }
    warn_if_open(broker.local_addr(), &args.server, &mut console);
    for line in beside.notes() {
        console.note(line);
    }
    service::ready();
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = service.run(&broker) => {}
        () = args.server.access.watch_principals(&broker, &args.data.data) => {}
    }
    let stopping = StopTimer::begin(args.server.process.stop_timeout);
    service::stopping();
    broker.stop_listening();
    beside.stop().await;
    stack::stop_broker_within(broker, stopping.left()).await;
    Ok(())
}

/// Warns at each start of a broker with `--insecure` that other machines can reach it.
pub(crate) fn warn_if_open(
    address: std::net::SocketAddr,
    server: &ServerFlags,
    console: &mut Console,
) {
    if server.access.is_insecure() && !address.ip().to_canonical().is_loopback() {
        console.note(&format!(
            "note: {address} is open to other machines (--insecure): without tokens every client can publish, read and \
             crawl, and without --tls-cert the network can read all traffic"
        ));
    }
}
