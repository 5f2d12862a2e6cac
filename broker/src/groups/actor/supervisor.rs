//! Runs an actor in a task of its own. If it panics, which is a bug, the actor that is left rejects
//! all commands, and its topics keep the events that it has not consumed.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::GroupActor;
use crate::groups::message::GroupMessage;

/// Runs the actor until the broker stops.
pub(super) async fn supervise(
    mut actor: GroupActor,
    mut messages: mpsc::UnboundedReceiver<GroupMessage>,
    stop: CancellationToken,
) {
    while let Err(panic) = catch_panic(actor.run(&mut messages, &stop)).await {
        actor.stop_after_panic(&*panic);
    }
}

/// Returns what a future panicked with.
async fn catch_panic(future: impl Future<Output = ()>) -> Result<(), Box<dyn Any + Send>> {
    let mut future = pin!(future);
    let poll = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    poll.await
}
