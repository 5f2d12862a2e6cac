//! What a broker says of itself, and the checkpoints of its copy.

#![expect(clippy::disallowed_methods, reason = "repeats both in time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tidings_cluster::{HEARTBEAT_MS, Heartbeat, Name, Replica, Slot};
use tidings_jetstream::JetStream;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How long a restart has to read the log again at most.
const CHECKPOINT: Duration = Duration::from_secs(2);

/// What a broker says of itself.
#[derive(Debug)]
pub(super) struct Status {
    name: Name,
    process: u64,
    since: i64,
    relay: SocketAddr,
    leads: AtomicU64,
    applied: AtomicU64,
    synced: AtomicU64,
    /// A leader that serves nobody is silent, so that another one takes its place.
    is_well: AtomicBool,
}

impl Status {
    pub(super) fn new(name: Name, process: u64, relay: SocketAddr) -> Self {
        let zero = || AtomicU64::new(0);
        let (leads, applied, synced) = (zero(), zero(), zero());
        let (since, is_well) = (Timestamp::now().as_millisecond(), AtomicBool::new(true));
        Self { name, process, since, relay, leads, applied, synced, is_well }
    }

    /// Whether this process has sent that heartbeat.
    pub(super) fn is_own(&self, heartbeat: &Heartbeat) -> bool {
        heartbeat.process == self.process
    }

    /// Where this broker takes the clients of others.
    pub(super) fn relay(&self) -> SocketAddr {
        self.relay
    }

    pub(super) fn set_leads(&self, epoch: Slot) {
        self.leads.store(epoch.0, Ordering::Relaxed);
    }

    pub(super) fn set_applied(&self, slot: Slot) {
        self.applied.store(slot.0, Ordering::Relaxed);
    }

    pub(super) fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Ordering::Relaxed);
    }

    /// What it says now.
    pub(super) fn heartbeat(&self) -> Heartbeat {
        let slot = |value: &AtomicU64| Slot(value.load(Ordering::Relaxed));
        Heartbeat {
            name: self.name.clone(),
            process: self.process,
            since: self.since,
            leads: slot(&self.leads),
            relay: self.relay,
            applied: slot(&self.applied),
            synced: slot(&self.synced),
            unix_ms: Timestamp::now().as_millisecond(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Says it for ever.
    pub(super) async fn say(&self, stream: &JetStream) {
        loop {
            if self.is_well.load(Ordering::Relaxed) {
                stream.say(&self.heartbeat()).await;
            }
            sleep(Duration::from_millis(HEARTBEAT_MS)).await;
        }
    }
}

/// Writes checkpoints of a copy.
#[derive(Debug)]
pub(super) struct Checkpoints {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Checkpoints {
    pub(super) fn begin(replica: Arc<Mutex<Replica>>, status: Arc<Status>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                while stop.run_until_cancelled(sleep(CHECKPOINT)).await.is_some() {
                    let (replica, status) = (Arc::clone(&replica), Arc::clone(&status));
                    let written = spawn_blocking(move || write(&replica, &status)).await;
                    if written.is_err() {
                        return;
                    }
                }
            }
        });
        Self { stop, task }
    }

    /// Waits until no checkpoint is being written.
    pub(super) async fn end(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

fn write(replica: &Mutex<Replica>, status: &Status) {
    let (checkpoint, applied) = {
        let mut replica = replica.lock();
        (replica.checkpoint(), replica.position().slot)
    };
    status.set_applied(applied);
    let synced = checkpoint.slot();
    match checkpoint.write() {
        Ok(()) => status.synced.store(synced.0, Ordering::Relaxed),
        Err(error) => tracing::error!("{error}"),
    }
}
