//! A leader that sends what it commits, and hears what has become of it.

#![expect(clippy::disallowed_methods, reason = "waits for the engine")]

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tidings_cluster::{Ended, Leader, ReplicaError, Stamp};
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::stream::{Answer, JetStream};

/// The time between two tries to read from an engine that does not answer.
const AGAIN: Duration = Duration::from_millis(100);

/// The time between two tries to write to a full one.
const WHILE_FULL: Duration = Duration::from_secs(1);

/// Sends until the leader has ended, and returns why. `wake` is notified when it has something to
/// commit, and when `leaves` has become true. Blocks the thread while it applies commits, so the runtime
/// must have several.
pub async fn send(
    leader: &mut Leader,
    stream: &JetStream,
    wake: &Notify,
    leaves: impl Fn() -> bool,
    stamp: impl Fn() -> Stamp,
) -> Result<Ended, ReplicaError> {
    let mut in_flight = FuturesUnordered::new();
    let mut has_left = false;
    loop {
        if let Some(ended) = leader.ended() {
            return Ok(ended);
        }
        if let Some(slot) = leader.read_from() {
            // After an error it is tried again.
            match stream.get(slot).await {
                Ok(Some(bytes)) => leader.read(slot, &bytes),
                Ok(None) => leader.read_to_end(),
                Err(_) => sleep(AGAIN).await,
            }
            continue;
        }
        if let Some(attempt) = leader.poll(stamp()) {
            let (slot, round) = (attempt.slot, attempt.round);
            let answer = stream.send(&attempt).await;
            in_flight.push(async move { (slot, round, answer.await) });
            continue;
        }
        if leaves() && !has_left {
            has_left = true;
            leader.leave();
            continue;
        }
        tokio::select! {
            Some((slot, round, answer)) = in_flight.next() => match answer {
                Answer::Done => block_in_place(|| leader.acknowledged(slot, round))?,
                Answer::Taken | Answer::Unknown => leader.unanswered(round),
                Answer::Full => {
                    tracing::error!("the shared log takes nothing more; it is tried again");
                    leader.unanswered(round);
                    sleep(WHILE_FULL).await;
                }
            },
            () = wake.notified() => {}
        }
    }
}
