//! The time for which a broker leads.

#![expect(clippy::disallowed_methods, reason = "waits for the engine, and for silence")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use parking_lot::Mutex;
use tidings_broker::{Broker, BrokerConfig, Sockets, Takeover};
use tidings_cluster::{
    Commits, Ended, HEARTBEAT_MS, Leader, Name, PAYLOAD_BYTES_MAX, Replica, ReplicaError,
    ReplicatedStore, Slot, Stamp,
};
use tidings_documents::tracking::TrackingParams;
use tidings_jetstream::{Said, send};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, timeout};

use super::node::{Node, Won, milliseconds};
use super::relay::Entry;
use super::status::Checkpoints;
use crate::process::stack::{self, StopTimer};
use crate::services::companions::PreparedCompanions;
use crate::terminal::failure::Failure;

/// A leader that does not hear itself for that long has lost the others, or the servers. Then another
/// one may lead already.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Connections from other brokers that are not served yet.
const RELAYED_WAITING: usize = 64;

/// How long the last message may take.
const LEAVE_MAX: Duration = Duration::from_secs(2);

const TRIM: Duration = Duration::from_secs(30);

/// Why a term ends, before the log says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The process stops, or the operator wants another leader.
    Asked,
    /// Nothing of what this broker says comes back, or another one says that it leads.
    Lost,
    /// The writer has ended.
    Log(Ended),
}

/// Leads until another broker does, or this one shall not.
pub(super) async fn lead(node: &mut Node<'_>, won: Won) -> Result<(), Failure> {
    let Won { candidacy, moment } = won;
    let epoch = candidacy.attempt.slot;
    // From now on, as it may take a while to open what is stored.
    node.status.set_leads(epoch);
    let mut answers = JoinSet::new();
    answers.spawn({
        let stream = node.stream.clone();
        // A leader that cannot be asked still says that it lives.
        async move { drop(stream.answer_as_leader().await) }
    });
    let replica = node.open_replica()?;
    let (wake, leaves) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let commits = {
        let wake = Arc::clone(&wake);
        Arc::new(Commits::new(move || wake.notify_one()))
    };
    let mut leader = Leader::new(
        node.community,
        &candidacy,
        PAYLOAD_BYTES_MAX,
        Arc::clone(&replica),
        Arc::clone(&commits),
    )
    .map_err(|error| Failure::failed(error.to_string()))?;
    let mut sender = tokio::spawn({
        let (stream, wake, commits) =
            (node.stream.clone(), Arc::clone(&wake), Arc::clone(&commits));
        let (leaves, began) = (Arc::clone(&leaves), Instant::now());
        async move {
            let leaves = || leaves.load(Ordering::Acquire);
            let stamp = || Stamp {
                moment: moment.0 + milliseconds(began.elapsed()),
                unix_ms: Timestamp::now().as_millisecond(),
            };
            let ended = send(&mut leader, &stream, &wake, leaves, stamp).await;
            commits.end("another broker leads");
            ended
        }
    });
    let leave = || {
        leaves.store(true, Ordering::Release);
        wake.notify_one();
    };

    let mut config = node.args.broker_config()?;
    config.settings.clone_from(&node.shown);
    let store = Arc::new(ReplicatedStore::new(Arc::clone(&replica), Arc::clone(&commits)));
    let started = start(node, config, Takeover { store, moment }).await;
    let (broker, beside) = match started {
        Ok(started) => started,
        Err(failure) => {
            leave();
            let _ = timeout(LEAVE_MAX, sender).await;
            return Err(failure);
        }
    };
    tracing::info!(epoch = epoch.0, "this broker leads");
    let checkpoints = Checkpoints::begin(Arc::clone(&replica), Arc::clone(&node.status));
    let end = serve(node, &broker, epoch, &replica, &mut sender).await;

    drop(answers);
    node.status.set_leads(Slot(0));
    node.status.set_well(true);
    node.entry.lock().take();
    node.leader.send_replace(None);
    if matches!(end, Ok(End::Lost)) {
        abort(&mut sender).await;
        commits.end("this broker leads no longer");
    }
    let stopping = StopTimer::begin(node.args.server.process.stop_timeout);
    broker.stop_listening();
    beside.stop().await;
    stack::stop_broker_within(broker, stopping.left()).await;
    checkpoints.end().await;
    match end? {
        End::Log(Ended::Fault(fault)) => return Err(Failure::failed(fault.to_string())),
        End::Log(ended) => tracing::warn!(?ended, "this broker leads no longer"),
        End::Lost => {}
        End::Asked => {
            leave();
            if timeout(LEAVE_MAX, &mut sender).await.is_err() {
                tracing::warn!("the servers do not confirm that this broker leads no longer");
                abort(&mut sender).await;
            }
        }
    }
    // A thread that the broker has left behind must end, too.
    commits.end("this broker leads no longer");
    commits.release();
    Ok(())
}

/// Ends the task, which then writes no longer into the copy.
async fn abort<T>(task: &mut JoinHandle<T>) {
    task.abort();
    let _ = task.await;
}

/// Starts the broker, with what runs beside it.
async fn start(
    node: &Node<'_>,
    mut config: BrokerConfig,
    takeover: Takeover,
) -> Result<(Broker, crate::services::companions::Companions), Failure> {
    let args = node.args;
    let prepared = PreparedCompanions::new(
        &mut config,
        &args.server,
        &args.outgoing,
        &args.data,
        TrackingParams::default(),
    )?;
    let (lines, accepted_lines) = mpsc::channel(RELAYED_WAITING);
    let (http, accepted_http) = mpsc::channel(RELAYED_WAITING);
    let has_http = node.sockets.http.is_some();
    let sockets = Sockets {
        accepted_lines: Some(accepted_lines),
        accepted_http: Some(accepted_http),
        ..node.sockets.clones()?
    };
    let broker = Broker::take_over(config, sockets, takeover).await;
    let broker = broker.map_err(|error| stack::start_failure(error, "--listen"))?;
    let started = prepared.start(broker).await?;
    *node.entry.lock() = Some(Entry { lines, http: has_http.then_some(http) });
    node.leader.send_replace(Some(node.status.relay()));
    Ok(started)
}

/// Serves until the term ends.
async fn serve(
    node: &mut Node<'_>,
    broker: &Broker,
    epoch: Slot,
    replica: &Mutex<Replica>,
    sender: &mut JoinHandle<Result<Ended, ReplicaError>>,
) -> Result<End, Failure> {
    let Node { args, service, stream, name, status, bus, stop, .. } = node;
    let mut heard = Instant::now();
    let mut synced = BTreeMap::<Name, (Slot, Instant)>::new();
    let mut beat = interval(Duration::from_millis(HEARTBEAT_MS));
    let mut trim = interval(TRIM);
    let well = async {
        loop {
            status.set_well(broker.is_responsive().await);
            tokio::time::sleep(Duration::from_millis(HEARTBEAT_MS)).await;
        }
    };
    tokio::pin!(well);
    let reloads = service.run(broker);
    tokio::pin!(reloads);
    let principals = args.server.access.watch_principals(broker, &args.data.data);
    tokio::pin!(principals);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(End::Asked),
            ended = &mut *sender => {
                let ended = ended.context("the task that sends has failed")?;
                return ended.map(End::Log).map_err(|error| Failure::failed(error.to_string()));
            }
            said = bus.next() => match said {
                Said::Alive(heartbeat) => {
                    if status.is_own(&heartbeat) {
                        heard = Instant::now();
                    } else if heartbeat.leads > epoch {
                        // One that writes nothing is not told by the log.
                        tracing::warn!(leader = %heartbeat.name, "this broker leads no longer");
                        return Ok(End::Lost);
                    }
                    synced.insert(heartbeat.name, (heartbeat.synced, Instant::now()));
                }
                Said::StepDown(other) if other == *name => return Ok(End::Asked),
                Said::StepDown(_) => {}
            },
            _ = beat.tick() => {
                if let Some(replica) = replica.try_lock() {
                    status.set_applied(replica.position().slot);
                }
                if heard.elapsed() > SILENCE_MAX {
                    tracing::warn!("the servers of the shared log are silent; this broker leads no longer");
                    return Ok(End::Lost);
                }
            }
            _ = trim.tick() => {
                let slots = |after: Duration| {
                    let known = synced.values().filter(move |(_, heard)| heard.elapsed() < after);
                    known.map(|(slot, _)| *slot)
                };
                // What is in the copy of one broker only stays in the shared log.
                if slots(SILENCE_MAX).count() > 1
                    && let Some(living) = slots(SILENCE_MAX).min()
                    && let Some(all) = slots(Duration::MAX).min()
                    && let Err(error) = stream.trim(all, living).await
                {
                    tracing::debug!(%error, "cannot trim the shared log");
                }
            }
            () = &mut well => {}
            () = &mut reloads => {}
            () = &mut principals => {}
        }
    }
}
