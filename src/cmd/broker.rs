//! `tidings broker`: only the broker. Crawlers, publishers and subscribers are other processes.

use clap::Args;

use crate::{
    beside::Prepared,
    failure::Failure,
    flags::{DataFlag, ServerFlags},
    node,
    outgoing::OutgoingFlags,
    output::Console,
    signals::stop_on_signal,
};

const EXAMPLES: &str = "\
Examples:
  tidings broker --listen 0.0.0.0:12345       reachable from other machines
  tidings crawl --broker 10.0.0.1:12345       a crawler for it, on as many machines as you like

There is no access control yet: whoever reaches the address can publish, listen and crawl.";

/// The flags of `tidings broker`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BrokerArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,

    #[command(flatten)]
    data: DataFlag,

    #[command(flatten)]
    outgoing: OutgoingFlags,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: BrokerArgs) -> Result<(), Failure> {
    let stop = stop_on_signal()?;
    let mut config = args.server.config(&args.data)?;
    let prepared = Prepared::new(&mut config, &args.server, &args.outgoing, &args.data)?;
    let (broker, beside) = prepared.start(node::start_broker(config).await?).await?;
    let mut console = Console::new();
    // Whoever started us may have closed our output; serving does not depend on it.
    let _ = console.line(&format!("listening on {}", broker.local_addr()));
    if let Some(address) = broker.http_addr() {
        let _ = console.line(&http_line(address, args.server.secure.is_encrypted()));
        warn_if_open(address, &mut console);
    }
    warn_if_open(broker.local_addr(), &mut console);
    for line in beside.said() {
        console.note(line);
    }
    stop.cancelled().await;
    beside.stop().await;
    node::stop_broker(broker).await;
    Ok(())
}

/// Where HTTP is spoken.
pub(crate) fn http_line(address: std::net::SocketAddr, is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    format!("HTTP at {scheme}://{}/", node::local(address))
}

/// Says who can reach a broker that listens on more than loopback.
pub(crate) fn warn_if_open(address: std::net::SocketAddr, console: &mut Console) {
    if !address.ip().is_loopback() {
        console.note(&format!(
            "note: {address} is open to other machines, and there is no access control yet: \
             whoever reaches it can publish, listen and crawl"
        ));
    }
}
