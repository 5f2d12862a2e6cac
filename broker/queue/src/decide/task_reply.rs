//! Answers of workers about their tasks: `ACK` and `NACK`. Only the member that holds a task,
//! at its current attempt, may answer it; all others receive `stale`.

use std::fmt::Write;

use tidings_protocol::status::{AckStatus, Answer};
use tidings_protocol::{
    CanonicalUrl, Code, DEAD_LETTER_TOPIC, KeyRest, Outcome, PAGE_READY_TOPIC, ProtocolError,
    Render, RetryMode, TaskAction, TaskId, TaskReply, TaskReport, bad_argument,
};

use super::admit::dead_letter_text;
use super::membership::CHAIN;
use super::page_event::PageEnd;
use crate::dead_letters::RETRY_NO;
use crate::entry::{AgainRequest, EndReason, Entry, EntryId, PassId, without_attribute};
use crate::frontier::circuit::OTHERS_FIRST_MS;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::{Decision, NextStep};
use crate::{Group, Requester, StagedLink, WorkerReply};

/// `again` answers in a row for a task: robots.txt, five redirects of it, the page, and one spare.
const AGAIN_MAX: u32 = 8;

impl Group {
    pub(crate) fn reply(
        &mut self,
        requester: Requester,
        reply: WorkerReply,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let WorkerReply { reply, links, over_limit } = reply;
        let TaskReply { task, action, rest, report } = reply;
        let report = report.as_deref();
        match action {
            TaskAction::Ack(outcome) => {
                self.ack(requester, &task, (outcome, report), rest, (&links, over_limit), now)
            }
            TaskAction::Nack(retry) => self.nack(requester, &task, retry, rest, report, now),
            TaskAction::Touch { request_ended } => {
                self.touch(requester, &task, request_ended, rest, now)
            }
            TaskAction::Part { url } => {
                self.permit_part(requester, &task, &url)?;
                self.touch(requester, &task, false, rest, now)
            }
        }
    }

    fn ack(
        &mut self,
        requester: Requester,
        task: &TaskId,
        (outcome, report): (Outcome, Option<&TaskReport>),
        hold: KeyRest,
        (staged, over_limit): (&[StagedLink], u64),
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let entry = self.held_entry(requester, task)?;
        // A page that was in flight when its key was blocked ends without children.
        let links = if self.state.frontier().is_blocked(entry) { &[] } else { staged };
        let lacks_room = self.lacks_room_for(entry, links, now);
        if lacks_room && !mutants::is(Mutant::LosesLinks) {
            let text = "the group is full and has no room for the links; you still hold the task";
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let job = self.state.frontier().get(entry).entry.admitted.job;
        let rest = self.capped_rest(hold, now);
        let kept = if lacks_room { &[] } else { links };
        let (children, judged) = self.admit_children(entry, kept, now);
        let answer = AckStatus {
            task: task.to_string(),
            new: children.len() as u64,
            known: judged.known,
            refused: judged.refused + over_limit + (staged.len() - kept.len()) as u64,
        };
        let answered = &self.state.frontier().get(entry).entry;
        let is_redirect = |link: &&StagedLink| link.redirect && outcome == Outcome::Redirect;
        let target = staged.iter().find(is_redirect);
        let location = target.and_then(|link| CanonicalUrl::parse(&link.url).ok());
        let end = PageEnd { outcome, report, location, ..PageEnd::default() };
        let event = self.page_event(answered, &end, 1);
        self.commit(Decision::Answered { entry, outcome, children, rest }, now);
        if let Some(report) = report {
            self.metrics.add(report, job);
        }
        if let Some(event) = event {
            self.publish(PAGE_READY_TOPIC, event);
        }
        if let Some(job) = job
            && !(mutants::is(Mutant::StaysOpen) && outcome != Outcome::Done)
        {
            self.settle_job(job.number, now);
        }
        Ok(answer.into())
    }

    fn nack(
        &mut self,
        requester: Requester,
        task: &TaskId,
        back: RetryMode,
        hold: KeyRest,
        report: Option<&TaskReport>,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let id = self.held_entry(requester, task)?;
        let rest = self.capped_rest(hold, now);
        let job = self.state.frontier().get(id).entry.admitted.job;
        // A worker may only lengthen the wait, within limits.
        let not_before_ms_max = self.state.config().not_before_ms_max;
        let capped = |ms: u64| ms.min(not_before_ms_max);
        let is_final = back == RetryMode::Never;
        let back = match back {
            RetryMode::Never => self.failed_step(id, report, Some(0), now),
            RetryMode::Counted { after_ms } => {
                self.failed_step(id, report, after_ms.map(capped), now)
            }
            RetryMode::Uncounted { after_ms } => {
                NextStep::Uncounted { due: now + after_ms.map_or(0, capped) }
            }
            RetryMode::OtherUrl { url } => {
                NextStep::Again(self.again_request(requester, id, &url)?.into())
            }
            RetryMode::NeedsRender => {
                self.check_need_of_render(id)?;
                NextStep::Render
            }
        };
        let reason = report.and_then(|report| report.error.as_deref().or(report.reason.as_deref()));
        let reason = reason.map(Box::from);
        self.commit(Decision::Returned { entry: id, next_step: back, rest, reason }, now);
        if let Some(report) = report {
            self.metrics.add(report, job);
        }
        self.unpin_untakeable(requester.member, now);
        self.give_up_if_exhausted(id, (report, is_final), now);
        Ok(task.to_string().into())
    }

    /// Returns how an entry continues after a failed attempt, which is not due again before
    /// `after_ms` if the worker has said so.
    fn failed_step(
        &mut self,
        id: EntryId,
        report: Option<&TaskReport>,
        after_ms: Option<u64>,
        now: Moment,
    ) -> NextStep {
        let failures = self.state.frontier().get(id).entry.failures + 1;
        let chance = self.state.random();
        let backoff_ms = self.state.config().backoff_after(failures, chance);
        let after = |ms| now + after_ms.unwrap_or(ms);
        if !self.state.config().settings.circuit || !report.is_some_and(TaskReport::is_unanswered) {
            return NextStep::Retry { due: after(backoff_ms) };
        }
        let host = &self.state.frontier().keys()[self.state.frontier().get(id).gate()];
        // While the host is down, that is not the fault of the page.
        let counts = !host.is_down() || mutants::is(Mutant::CountsWhileDown);
        // The entry of a host that rests waits for the host, and has no wait of its own.
        let wait_ms = match (host.is_down_next(), host.has_waiting()) {
            (false, _) => backoff_ms,
            (true, false) => 0,
            (true, true) => OTHERS_FIRST_MS,
        };
        NextStep::Unanswered { due: after(wait_ms), counts }
    }

    /// A task is returned to be rendered once at most, and not against the word of its URL or job.
    fn check_need_of_render(&self, id: EntryId) -> Result<(), ProtocolError> {
        let admitted = &self.state.frontier().get(id).entry.admitted;
        match admitted.render() {
            Some(render @ (Render::Yes | Render::No)) => Err(bad_argument(format!(
                "need=render: the task says render={render}; you still hold the task"
            ))),
            _ if admitted.url_key.is_none() => Err(bad_argument(
                "need=render does not work in groups with key=none; you still hold the task",
            )),
            _ => Ok(()),
        }
    }

    fn again_request(
        &self,
        requester: Requester,
        id: EntryId,
        url: &str,
    ) -> Result<AgainRequest, ProtocolError> {
        if self.state.frontier().get(id).entry.again_count >= AGAIN_MAX {
            return Err(ProtocolError::new(
                Code::Limit,
                format!("again= at most {AGAIN_MAX} times in a row; you still hold the task"),
            ));
        }
        let url = CanonicalUrl::parse(url)
            .map_err(|error| bad_argument(format!("again={url}: {error}")))?;
        let key = self.state.config().key_of_url(&url).ok_or_else(|| {
            bad_argument("again= works only in groups with key=host or key=domain")
        })?;
        Ok(AgainRequest { url: url.as_str().into(), key: key.into(), member: requester.member })
    }

    /// Makes a returned or lost entry a dead letter if its attempts are used up. If a rule blocks its
    /// next request, or its job is cancelled or has all its pages, the entry is dropped.
    /// `report` is that of the last attempt, and `is_final` says that its worker wants no other.
    pub(crate) fn give_up_if_exhausted(
        &mut self,
        id: EntryId,
        (report, is_final): (Option<&TaskReport>, bool),
        now: Moment,
    ) {
        let entry = &self.state.frontier().get(id).entry;
        if mutants::is(Mutant::DropsLostAnnounced)
            && entry.admitted.job.is_none()
            && entry.losses > 0
        {
            return self.commit(Decision::Ended { entries: vec![id], end: EndReason::Purged }, now);
        }
        let reason = self.state.config().dead_reason(entry).or(is_final.then_some(RETRY_NO));
        if let Some(reason) = reason {
            return self.give_up(id, (EndReason::Dead, reason), report, now);
        }
        let job = entry.admitted.job;
        self.end_if_blocked(id, now);
        self.settle_job_of(job, now);
    }

    /// Makes an entry that no member holds a dead letter. `report` is that of the last attempt.
    pub(crate) fn give_up(
        &mut self,
        id: EntryId,
        (end, reason): (EndReason, &str),
        report: Option<&TaskReport>,
        now: Moment,
    ) {
        let (letter, event, job) = {
            let entry = self.view().unreleased(id);
            let gave_up = Some(reason);
            let end = PageEnd { outcome: Outcome::Failed, report, gave_up, location: None };
            let event = self.page_event(&entry, &end, 2);
            (self.dead_letter_payload(&entry, reason), event, entry.admitted.job)
        };
        self.commit(Decision::Ended { entries: vec![id], end }, now);
        self.publish(DEAD_LETTER_TOPIC, letter);
        if let Some(event) = event {
            self.publish(PAGE_READY_TOPIC, event);
        }
        self.settle_job_of(job, now);
    }

    fn settle_job_of(&mut self, job: Option<PassId>, now: Moment) {
        if let Some(job) = job {
            self.settle_job(job.number, now);
        }
    }

    /// Builds the dead letter of an entry: its URL with the reasons as attributes, or the reasons
    /// followed by the text if it has no URL.
    fn dead_letter_payload(&self, entry: &Entry, reason: &str) -> String {
        let last = entry.last_reason.as_deref().unwrap_or("none").replace(' ', "_");
        let mut head = format!(
            "reason={reason} group={} serial={}.{} failures={} losses={} last={last}",
            self.state.name(),
            self.state.run(),
            self.state.last_serial() + 1,
            entry.failures,
            entry.losses
        );
        let admitted = &entry.admitted;
        if let Some((job, pass)) = self.view().job_and_pass(entry) {
            // Writing into a string cannot fail.
            let _ = write!(head, " job={} pass={pass} depth={}", job.name, admitted.depth);
        }
        match admitted.url_key {
            Some(_) => {
                let carried =
                    without_attribute(&self.task_attributes(admitted), CHAIN.trim_start());
                format!("{} {head}{carried}", admitted.text)
            }
            None => dead_letter_text(&head, &admitted.text),
        }
    }
}
