//! `tidings cluster step-down`

#![expect(clippy::disallowed_methods, reason = "waits for the next leader")]

use std::time::Duration;

use tidings_cluster::{Name, Slot};
use tidings_jetstream::{Bus, Said};
use tokio::time::timeout;

use super::CommunityArgs;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

/// How long it takes to hear who leads.
const LEADER_MAX: Duration = Duration::from_secs(2);

/// How long the change may take: the end of one term, and the start of the next one.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// Waits until another broker leads.
pub(super) async fn run(args: CommunityArgs) -> Result<(), Failure> {
    let servers = args.connect().await?;
    servers.community().await?;
    let mut bus =
        servers.stream.hear().await.map_err(|error| Failure::failed(error.to_string()))?;
    let Ok((leader, epoch)) = timeout(LEADER_MAX, leader_after(&mut bus, Slot(0))).await else {
        return Err(Failure::failed(format!("no broker of {} leads", args.name)));
    };
    servers.stream.ask_to_step_down(&leader).await;
    match timeout(CHANGE_MAX, leader_after(&mut bus, epoch)).await {
        Ok((next, _)) => Console::new().line(&format!("{next} leads, after {leader}")),
        Err(_) => Err(Failure::failed(format!("{leader} still leads, or nobody does"))),
    }
}

/// The next broker that leads in a later epoch.
async fn leader_after(bus: &mut Bus, epoch: Slot) -> (Name, Slot) {
    loop {
        if let Said::Alive(heartbeat) = bus.next().await
            && heartbeat.leads > epoch
        {
            return (heartbeat.name, heartbeat.leads);
        }
    }
}
