//! Runs an actor in a task of its own. If the task panics, which is a bug, the actor that is left
//! rejects all commands, and its topics keep the events that it has not consumed.

use std::any::Any;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::GroupActor;
use crate::groups::message::GroupMessage;

/// What a task borrows. It comes back when the task ends, also by a panic.
struct Lent {
    actor: Option<(Box<GroupActor>, mpsc::UnboundedReceiver<GroupMessage>)>,
    back: Option<oneshot::Sender<(Box<GroupActor>, mpsc::UnboundedReceiver<GroupMessage>)>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(actor), Some(back)) = (self.actor.take(), self.back.take()) {
            // Nobody waits if the runtime stops.
            let _ = back.send(actor);
        }
    }
}

/// Runs the actor until the broker stops.
pub(super) async fn supervise(
    actor: GroupActor,
    messages: mpsc::UnboundedReceiver<GroupMessage>,
    stop: CancellationToken,
) {
    let (back, returned) = oneshot::channel();
    let mut lent = Lent { actor: Some((Box::new(actor), messages)), back: Some(back) };
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        if let Some((actor, messages)) = &mut lent.actor {
            actor.run(messages, &stopped).await;
        }
    });
    if let Err(error) = task.await
        && error.is_panic()
        && let Ok((mut actor, mut messages)) = returned.await
    {
        actor.stop_after_panic(&reason_of(&*error.into_panic()));
        actor.run(&mut messages, &stop).await;
    }
}

/// The text of a panic.
fn reason_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown").to_owned()
}
