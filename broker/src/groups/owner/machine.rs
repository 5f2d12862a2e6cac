//! The state machine of a group, and what is left of it after a fault.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::clock::Moment;
use crate::group::{Asked, Group, Input, Output};

/// A group that decides nothing any more once it has panicked: by a mistake of ours, or because what it
/// keeps outside of memory cannot be read. It is in the middle of something then, and nobody knows of what;
/// its log has everything that it had decided before. The other groups go on.
#[derive(Debug)]
pub(super) struct Machine {
    group: Group,
    is_broken: bool,
}

impl Machine {
    pub(super) fn new(group: Group) -> Self {
        Self { group, is_broken: false }
    }

    /// Whether it has panicked.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// See [`Group::handle`].
    pub(super) fn handle(&mut self, input: Input, now: Moment) {
        self.decide(|group| group.handle(input, now));
    }

    /// See [`Group::handle_all`].
    pub(super) fn handle_all(&mut self, inputs: Vec<Input>, now: Moment) {
        self.decide(|group| group.handle_all(inputs, now));
    }

    /// See [`Group::poll`].
    pub(super) fn poll(&mut self) -> Option<Output> {
        self.decide(Group::poll)?
    }

    /// See [`Group::take_waiters`].
    pub(super) fn take_waiters(&mut self) -> impl Iterator<Item = Asked> + use<> {
        self.group.take_waiters()
    }

    /// Has it do something. `None` if it is broken, or is now.
    pub(super) fn decide<T>(&mut self, what: impl FnOnce(&mut Group) -> T) -> Option<T> {
        if self.is_broken {
            return None;
        }
        // What may be half done is not looked at again, except for who waits and which jobs there are.
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
            "a fault: the group stands still, and its topics keep what it has not taken. Start the broker anew, \
             which goes on from the group's log"
        );
        None
    }
}

impl Deref for Machine {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}
