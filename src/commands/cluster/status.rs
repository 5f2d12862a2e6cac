//! `tidings cluster status`

#![expect(clippy::disallowed_methods, reason = "listens for a time")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tidings_cluster::{HEARTBEAT_MS, Heartbeat, Name, Slot};
use tidings_jetstream::Said;
use tokio::time::timeout;

use super::CommunityArgs;
use crate::client::manage::print_table;
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_count};

/// Every broker that lives says so at least twice in this time.
const LISTEN: Duration = Duration::from_millis(5 * HEARTBEAT_MS / 2);

/// How long a broker that lives may need to lead.
const LEADER_MAX: Duration = Duration::from_secs(10);

/// The flags of `tidings cluster status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    community: CommunityArgs,

    /// Print one JSON object for each broker
    #[arg(long)]
    json: bool,
}

/// Prints a line for each broker. Fails if none leads.
pub(super) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let servers = args.community.connect().await?;
    servers.community().await?;
    let mut bus =
        servers.stream.hear().await.map_err(|error| Failure::failed(error.to_string()))?;
    let mut heard = BTreeMap::<Name, (Heartbeat, i64)>::new();
    let leads = |(it, _): &(Heartbeat, i64)| it.leads > Slot(0);
    let began = Instant::now();
    while began.elapsed() < LISTEN
        || (!heard.is_empty() && !heard.values().any(leads) && began.elapsed() < LEADER_MAX)
    {
        if let Ok(Said::Alive(heartbeat)) = timeout(LISTEN, bus.next()).await {
            let ahead = heartbeat.unix_ms - Timestamp::now().as_millisecond();
            heard.insert(heartbeat.name.clone(), (heartbeat, ahead));
        }
    }
    // At the end of the log may be messages of an earlier leader, which count for nobody.
    let leader = heard.values().map(|(it, _)| it).max_by_key(|it| it.leads);
    let last = leader.map_or(Slot(0), |leader| leader.applied);
    let name = &args.community.name;
    if !heard.is_empty() {
        print(&heard, last, args.json)?;
    }
    match (heard.len(), heard.values().any(leads)) {
        (0, _) => Err(Failure::failed(format!("no broker of {name} lives"))),
        (_, false) => Err(Failure::failed(format!("no broker of {name} leads"))),
        _ => Ok(()),
    }
}

fn print(
    heard: &BTreeMap<Name, (Heartbeat, i64)>,
    last: Slot,
    as_json: bool,
) -> Result<(), Failure> {
    let mut console = Console::new();
    if as_json {
        return heard.values().try_for_each(|(heartbeat, ahead)| {
            let Heartbeat { name, leads, relay, applied, synced, version, .. } = heartbeat;
            let object = json!({
                "node": name.as_str(),
                "state": state(heartbeat),
                "epoch": leads.0,
                "applied": applied.0,
                "synced": synced.0,
                "behind": last.0.saturating_sub(applied.0),
                "clock_ms": ahead,
                "relay": relay.to_string(),
                "version": version,
            });
            console.line(&object.to_string())
        });
    }
    let heads = "NODE STATE BEHIND> UNSYNCED> CLOCK-OFF> RELAY VERSION";
    let rows = heard.values().map(|(heartbeat, ahead)| {
        let Heartbeat { name, relay, applied, synced, version, .. } = heartbeat;
        vec![
            name.to_string(),
            state(heartbeat).to_owned(),
            format_count(last.0.saturating_sub(applied.0)),
            format_count(applied.0.saturating_sub(synced.0)),
            format!("{} ms", ahead.abs()),
            relay.to_string(),
            version.clone(),
        ]
    });
    print_table(&mut console, heads, rows)
}

fn state(heartbeat: &Heartbeat) -> &'static str {
    if heartbeat.leads > Slot(0) { "leader" } else { "standby" }
}
