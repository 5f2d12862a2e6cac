//! An input of the group between its arrival and the last of its outputs.

use crate::moment::Moment;
use crate::tests::world::commands::CommandOrigin;
use crate::tests::world::fetch_request::FetchRequest;
use crate::tests::world::output_queue::SimulatedOutput;
use crate::{Group, Input, JobOperation};

/// An input with outputs that have not left.
#[derive(Debug)]
pub(in crate::tests::world) struct UnfinishedInput {
    pub(super) input: Input,
    origin: CommandOrigin,
    order: u64,
    /// When it took effect, and the number of the group's outputs then.
    pub(super) at: Option<(Moment, usize)>,
}

impl UnfinishedInput {
    pub(super) fn new(input: &Input, origin: CommandOrigin, order: u64) -> Self {
        Self { input: input.clone(), origin, order, at: None }
    }

    /// Notes whether it has taken effect now, before the outputs after `order`.
    pub(super) fn note_progress(&mut self, group: &Group, now: Moment, order: u64) {
        if group.reads.holds(&self.input) {
            self.order = order;
        } else {
            self.at.get_or_insert((now, group.output_count()));
        }
    }

    /// Whether it has taken effect, and all its outputs have left.
    pub(super) fn is_finished(&self, group: &Group) -> bool {
        self.at.is_some_and(|(_, outputs)| outputs <= group.polled)
    }

    /// The fetches that it requested, if any.
    pub(super) fn taken(&self) -> Option<SimulatedOutput> {
        let (order, fetches) = (self.order, FetchRequest::all_of(&self.input));
        let (at, _) = self.at.filter(|_| !fetches.is_empty())?;
        Some(SimulatedOutput::Taken { order, fetches, at })
    }

    /// The input if its sender repeats it after a crash.
    pub(in crate::tests::world) fn repeated(self) -> Option<(Input, CommandOrigin)> {
        is_repeated(&self.input).then_some((self.input, self.origin))
    }
}

/// Whether the sender repeats this input when it gets no confirmation.
pub(in crate::tests::world) fn is_repeated(input: &Input) -> bool {
    match input {
        Input::JobAction { action: what, .. } => *what != JobOperation::Wait,
        Input::Events { .. }
        | Input::Operate { .. }
        | Input::Configure { .. }
        | Input::OpenJob { .. } => true,
        _ => false,
    }
}
