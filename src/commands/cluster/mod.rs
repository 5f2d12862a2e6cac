//! `tidings cluster`: communities, whose brokers share a log.

mod create;
mod leave;
mod status;
mod step_down;

use clap::{Args, Subcommand};
use tidings_cluster::Name;

use crate::flags::DataFlag;
use crate::services::nats::{NatsFlags, NatsServers};
use crate::terminal::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  tidings cluster create east --cluster nats://n1,nats://n2,nats://n3      once
  tidings broker --cluster nats://n1,nats://n2,nats://n3 --community east --node n1 \\
    --listen 0.0.0.0:12345 --relay-listen 10.0.0.1:12349                   on each machine
  tidings cluster status east --cluster nats://n1,nats://n2,nats://n3
  tidings cluster step-down east --cluster nats://n1,nats://n2,nats://n3
  tidings cluster leave --data ./tidings-data

The servers are NATS with JetStream, at least three, which sync what they confirm. Brokers and
these commands are the only ones that may publish to the subjects `tidings.>` of their account.

Exit codes: 0 success; 1 failure, or it exists; 2 wrong usage.";

/// The subcommands of `tidings cluster`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Cluster {
    /// Make a community; its brokers are started afterwards
    Create(create::CreateArgs),
    /// Show the brokers of a community: which one leads, and which are behind
    Status(status::StatusArgs),
    /// Let another broker lead
    StepDown(CommunityArgs),
    /// Make the broker of a data directory a broker of its own
    Leave(DataFlag),
}

/// A community, and where it is.
#[derive(Debug, Args)]
pub(crate) struct CommunityArgs {
    /// The community
    name: Name,

    #[command(flatten)]
    servers: NatsFlags,
}

impl CommunityArgs {
    async fn connect(&self) -> Result<NatsServers, Failure> {
        self.servers.connect(&self.name).await
    }
}

/// Runs a subcommand.
pub(crate) async fn run(what: Cluster) -> Result<(), Failure> {
    match what {
        Cluster::Create(args) => create::run(args).await,
        Cluster::Status(args) => status::run(args).await,
        Cluster::StepDown(args) => step_down::run(args).await,
        Cluster::Leave(data) => leave::run(&data),
    }
}
