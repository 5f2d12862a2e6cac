//! Guards a group's state machine against panics.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidings_queue::{Group, Input, Output, Requester};

use crate::clock::Moment;

/// A group that makes no more decisions once it has panicked, because of a bug or because its page
/// file cannot be read. Its state may then be inconsistent; its log holds every earlier decision.
/// The other groups continue.
#[derive(Debug)]
pub(super) struct GuardedGroup {
    group: Group,
    is_broken: bool,
}

impl GuardedGroup {
    pub(super) fn new(group: Group) -> Self {
        Self { group, is_broken: false }
    }

    /// Whether the group has panicked.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// See [`Group::handle`].
    pub(super) fn handle(&mut self, input: Input, now: Moment) {
        self.catch_panics(|group| group.handle(input, now));
    }

    /// See [`Group::handle_all`].
    pub(super) fn handle_all(&mut self, inputs: Vec<Input>, now: Moment) {
        self.catch_panics(|group| group.handle_all(inputs, now));
    }

    /// See [`Group::poll`].
    pub(super) fn poll(&mut self) -> Option<Output> {
        self.catch_panics(Group::poll)?
    }

    /// See [`Group::drain_waiters`].
    pub(super) fn take_waiters(&mut self) -> impl Iterator<Item = Requester> + use<> {
        self.group.drain_waiters()
    }

    /// Runs `what` on the group. Returns `None` if the group has panicked, before or now.
    pub(super) fn catch_panics<T>(&mut self, what: impl FnOnce(&mut Group) -> T) -> Option<T> {
        if self.is_broken {
            return None;
        }
        // After a panic the state is read only for waiting connections and job names.
        let decided = catch_unwind(AssertUnwindSafe(|| what(&mut self.group)));
        let reason = match decided {
            Ok(decided) => return Some(decided),
            Err(reason) => reason,
        };
        self.is_broken = true;
        let text = reason.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| reason.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        tracing::error!(
            group = %self.group.name(), reason = text,
            "bug: the group has panicked and stopped. Its topics keep the events that it has not consumed. \
             Restart the broker to continue from the group's log"
        );
        None
    }
}

impl Deref for GuardedGroup {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}
