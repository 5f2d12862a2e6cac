//! Answers of the group. Those to `wait` and `watch` of a job are sent once the outcomes of its pages
//! are safe on `page-ready`, so that a client that has waited finds all of them there.

use std::collections::VecDeque;

use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{PAGE_READY_TOPIC, ProtocolError};
use tidings_queue::Requester;

use super::GroupActor;

type AnswerResult = Result<Answer, ProtocolError>;

/// Answers that wait for outcomes, each with the serial of the last one. Serials never fall.
#[derive(Default)]
pub(super) struct HeldAnswers(VecDeque<(u64, Requester, AnswerResult)>);

impl GroupActor {
    /// Sends an answer with the next batch, or holds it.
    pub(super) fn answer(&mut self, requester: Requester, answer: AnswerResult) {
        if matches!(&answer, Ok(Answer { ok: Status::JobEnd(_), .. }))
            && let Some(serial) = self.unsafe_outcomes().last()
        {
            return self.held_answers.0.push_back((serial, requester, answer));
        }
        self.send_answer(&requester, answer);
    }

    /// Sends the answers that wait for nothing any more.
    pub(super) fn send_held_answers(&mut self) {
        while let Some((serial, ..)) = self.held_answers.0.front() {
            if self.unsafe_outcomes().next().is_some_and(|first| first <= *serial) {
                return;
            }
            let (_, requester, answer) = self.held_answers.0.pop_front().expect("it is not empty");
            self.send_answer(&requester, answer);
        }
    }

    /// The serials of the outcomes that are not safe on their topic. None while a topic of the group
    /// fails, because that may last.
    fn unsafe_outcomes(&self) -> impl Iterator<Item = u64> {
        let outcomes = self.group.unpublished().filter(|(_, topic, _)| *topic == PAGE_READY_TOPIC);
        outcomes.map(|(serial, ..)| serial).filter(|_| self.announce_at.is_none())
    }

    /// If the group fails or is deleted before an answer is sent, the command is refused.
    fn send_answer(&mut self, requester: &Requester, answer: AnswerResult) {
        self.watchers.answered(requester);
        if let Some(mailbox) = self.commands.answered(requester) {
            let answers = &mut self.outgoing.batch(requester.conn, &mailbox).answers;
            answers.push((requester.slot, answer));
        }
    }
}
