//! The operator: actions on the group and its jobs while workers work, and their effect on what the
//! checkers expect.

use tidings_protocol::status::{Answer, Status};
use tidings_protocol::{
    After, Code, EntrySelection, JOB_DONE_TOPIC, JobSettings, MemberId, PAGE_READY_TOPIC,
    ProtocolError, Settings, WaitingAction, WaitingChange,
};

use super::commands::CommandOrigin;
use super::promises::{CheckResult, Promise};
use super::steering::PageSelection;
use super::{WAITER_CONN, World, WorldEvent};
use crate::entry::with_render;
use crate::moment::Moment;
use crate::tests::bench::slot;
use crate::tests::site::{PAGES, RENDER_RULE, render_of};
use crate::{ConnId, Input, JobOperation, Operation, Requester};

const OPERATOR: ConnId = ConnId(0);
/// Most unfinished jobs at a time.
pub(super) const JOBS_MAX: usize = 8;
/// Every event is durable on its topic within this time.
pub(super) const PUBLISHED_MS_MAX: u64 = 3_000;

impl World {
    /// Tells the checkers what to expect from an input once it is handled.
    pub(super) fn expect(&mut self, input: &Input) {
        match input {
            Input::Operate { operation: Operation::Pause, .. } => self.is_paused = true,
            Input::Operate { operation: Operation::Resume, .. } => self.is_paused = false,
            Input::Operate { operation: Operation::Purge, .. }
            | Input::Operate {
                operation:
                    Operation::ChangeWaiting(WaitingChange { action: WaitingAction::Drop, .. }),
                ..
            } => {
                self.passes.iter_mut().for_each(|pass| pass.marred = true);
            }
            Input::OpenJob { name, settings, .. } => {
                let pass = self.passes.find_mut(name.as_ref());
                pass.held = settings.hold;
            }
            Input::JobAction { name, action: JobOperation::Close, .. } => {
                self.passes.find_mut(name.as_ref()).held = false;
            }
            Input::JobAction { name, action: JobOperation::Wait, .. } => {
                let pass = self.passes.find_mut(name.as_ref());
                // A wait for a job that is gone is rejected.
                pass.waits += u32::from(!pass.deleted);
            }
            Input::Disconnected { conn: WAITER_CONN } => {
                self.passes.iter_mut().for_each(|pass| pass.waits = 0);
            }
            Input::JobAction { name, action: JobOperation::Cancel, .. } => {
                self.passes.find_mut(name.as_ref()).marred = true;
            }
            Input::JobAction { name, action: JobOperation::Set(changes), .. }
                if changes.iter().any(|(key, _)| is_limit(key)) =>
            {
                let pass = self.passes.find_mut(name.as_ref());
                (pass.marred, pass.ends) = (true, None);
                (pass.settings.pages_max, pass.settings.host_pages_max) = (None, None);
            }
            Input::JobAction { name, action: JobOperation::Pause, .. } => {
                self.passes.find_mut(name.as_ref()).paused = true;
            }
            Input::JobAction { name, action: JobOperation::Resume, .. } => {
                self.passes.find_mut(name.as_ref()).paused = false;
            }
            _ => {}
        }
    }

    pub(super) fn operate(&mut self) -> CheckResult {
        let what = match self.rng.u32(0..20) {
            0..2 => Operation::Pause,
            2..14 => Operation::Resume,
            14..18 => Operation::Retry(EntrySelection::default()),
            18 => Operation::Drop(EntrySelection::default()),
            _ => Operation::Purge,
        };
        let origin = match what {
            Operation::Purge => CommandOrigin::Purge(PageSelection::all(self.order)),
            Operation::Retry(_) => CommandOrigin::Retry,
            _ => CommandOrigin::Nothing,
        };
        self.feed(Input::Operate { requester: operator(), operation: what }, origin)
    }

    /// Resumes the group and all jobs.
    pub(super) fn resume_everything(&mut self) -> CheckResult {
        self.resume()?;
        let unfinished = self.passes.names(false);
        unfinished.iter().try_for_each(|name| self.with_job(operator(), name, JobOperation::Resume))
    }

    pub(super) fn resume(&mut self) -> CheckResult {
        let what = Operation::Resume;
        self.feed(Input::Operate { requester: operator(), operation: what }, CommandOrigin::Nothing)
    }

    /// Opens, seeds and closes a job: a new one, or the next pass of a finished one.
    pub(super) fn open_job(&mut self) -> CheckResult {
        if self.passes.names(false).len() >= JOBS_MAX {
            return Ok(());
        }
        let again = self.passes.names(true);
        let name = match self.rng.choice(again) {
            Some(name) if self.rng.u32(0..4) == 0 => name,
            _ => {
                self.last_job += 1;
                format!("job{}", self.last_job)
            }
        };
        let mut settings = Self::any_scope();
        if self.rng.u32(0..4) == 0 {
            let kept_out = [self.rng.u64(..PAGES), self.rng.u64(..PAGES)];
            let patterns = kept_out.map(|number| format!("/p{number}$")).join(",");
            settings.exclude = patterns.parse().expect("the patterns are valid");
        }
        settings.pages_max = (self.rng.u32(0..4) == 0).then(|| self.rng.u64(1..6));
        settings.depth_max = (self.rng.u32(0..4) == 0).then(|| self.rng.u32(0..3));
        settings.host_pages_max = (self.rng.u32(0..6) == 0).then(|| self.rng.u64(1..3));
        settings.time_ms_max = (self.rng.u32(0..10) == 0).then(|| self.rng.u64(1..60_000));
        settings.hold = self.rng.u32(0..4) == 0;
        if self.nature.render {
            let rules = [Some(RENDER_RULE), Some("never"), Some("auto"), None];
            let rule = rules[self.render_rng.usize(..rules.len())];
            settings.render = rule.map(|rule| rule.parse().expect("the rule is valid"));
        }
        self.fairness_check.begin_pass(&name);
        self.priority_check.begin_pass(&name);
        self.order += 1;
        self.passes.open(&name, settings.clone(), self.order);
        self.passes.find_mut(&name).blocked = self.hosts.rules.blocked().collect();
        self.open_named(&name, settings)?;
        for _ in 0..self.rng.u32(0..4) {
            let (seed, after_ms) = self.any_seed();
            let prio = self.any_prio();
            self.passes.find_mut(&name).seed(&seed);
            if after_ms > 0 {
                self.fairness_check.stop_waiting(Some(name.clone()), &seed);
            }
            if self.low_entries_max.is_some() || self.rng.bool() {
                self.publish(&format!("{seed} job={name} prio={prio} after={after_ms}ms"));
            } else {
                let url = seed.as_str().into();
                let render = render_of(&seed).filter(|_| self.nature.render);
                let attributes = with_render("", render).into();
                self.with_job(
                    operator(),
                    &name,
                    JobOperation::Add { url, prio, after: After::Ms(after_ms), attributes },
                )?;
            }
        }
        self.close_named(&name)?;
        if self.rng.u32(0..4) == 0 {
            // The job may be done by then.
            let seed = self.any_page();
            self.passes.find_mut(&name).late.insert(seed.clone());
            self.publish(&format!("{seed} job={name}"));
        }
        Ok(())
    }

    pub(super) fn any_scope() -> JobSettings {
        JobSettings::parse([("scope", "any")]).expect("the setting is valid")
    }

    pub(super) fn open_named(&mut self, name: &str, settings: JobSettings) -> CheckResult {
        let name = name.parse().expect("the name is valid");
        self.feed(
            Input::OpenJob { requester: operator(), name, settings: settings.into() },
            CommandOrigin::Nothing,
        )
    }

    pub(super) fn close_named(&mut self, name: &str) -> CheckResult {
        self.with_job(operator(), name, JobOperation::Close)
    }

    /// Acts on an unfinished job.
    pub(super) fn with_some_job(&mut self) -> CheckResult {
        let Some(name) = self.rng.choice(self.passes.names(false)) else { return Ok(()) };
        match self.rng.u32(0..12) {
            0 => self.with_job(operator(), &name, JobOperation::Cancel),
            1 => self.with_job(operator(), &name, JobOperation::Pause),
            2..8 => self.with_job(operator(), &name, JobOperation::Resume),
            8..11 => self.with_job(waiting(), &name, JobOperation::Wait),
            _ => self.feed(Input::Disconnected { conn: WAITER_CONN }, CommandOrigin::Nothing),
        }
    }

    /// Only finished jobs can be deleted.
    pub(super) fn delete_some_job(&mut self) -> CheckResult {
        let done = self.rng.bool();
        let Some(name) = self.rng.choice(self.passes.names(done)) else { return Ok(()) };
        self.with_job(operator(), &name, JobOperation::Delete)
    }

    pub(super) fn with_job(
        &mut self,
        requester: Requester,
        name: &str,
        what: JobOperation,
    ) -> CheckResult {
        let origin = match what {
            JobOperation::Delete => {
                let opened = self.passes.find(name).map_or(0, |pass| pass.opened);
                CommandOrigin::Delete { name: name.to_owned(), opened }
            }
            _ => CommandOrigin::Nothing,
        };
        let name = name.parse().expect("the name is valid");
        self.feed(Input::JobAction { requester, name, action: what }, origin)
    }

    /// The answer to deleting a job that was opened at `opened`. It may have been deleted,
    /// unfinished or forgotten before.
    pub(super) fn deleted(
        &mut self,
        name: &str,
        opened: u64,
        answer: &Result<Answer, ProtocolError>,
    ) -> CheckResult {
        let Some(pass) = self.passes.get_mut(name).filter(|pass| pass.opened == opened) else {
            return Ok(()); // The next pass has begun.
        };
        if answer.is_ok() {
            // Earlier waiters were answered when the job was done; later ones were rejected.
            (pass.deleted, pass.waits) = (true, 0);
        }
        let code = answer.as_ref().err().map(|error| error.code);
        if answer.is_ok() && !pass.done {
            // The end is decided and its announcement on its way; without the announcement the run
            // would not end.
            return pass.check_end(name);
        }
        let done = pass.done;
        let fits = !done || code != Some(Code::Conflict);
        Promise::NeverEarly.holds(fits, || format!("{name} is done: {done}, but {answer:?}"))
    }

    /// Checks that waiters are answered at once when the job is done, and not before.
    pub(super) fn check_wait_answer(
        &mut self,
        answer: &Result<Answer, ProtocolError>,
    ) -> CheckResult {
        let answer = match answer {
            Ok(answer) => answer,
            // If many jobs end at once, some are forgotten before the waits behind them are handled.
            Err(error) => {
                let name =
                    error.text.strip_prefix("no job ").and_then(|text| text.split(' ').next());
                if let Some(pass) = name.and_then(|name| self.passes.get_mut(name))
                    && pass.done
                {
                    pass.waits = pass.waits.saturating_sub(1);
                }
                return Ok(());
            }
        };
        let Status::JobEnd(end) = &answer.ok else { panic!("not the end of a job: {answer:?}") };
        let Some(pass) = self.passes.get_mut(&end.job) else { return Ok(()) };
        pass.waits = pass.waits.saturating_sub(1);
        let done = pass.done;
        Promise::NeverEarly.holds(done, || format!("not announced yet: {}", answer.ok))
    }

    /// An announcement appears on its topic, unless it is there already.
    pub(super) fn receive_announcement(
        &mut self,
        serial: u64,
        topic: &'static str,
        payload: &str,
    ) -> CheckResult {
        self.note(|| format!("{topic}: {payload}"));
        let delay_ms = self.rng.u64(..PUBLISHED_MS_MAX);
        let start_number = self.broker.start_number();
        self.schedule(delay_ms, WorldEvent::EventDurable { start_number, serial, topic });
        if !self.published.insert(serial) {
            return Ok(());
        }
        if topic == JOB_DONE_TOPIC {
            return self.passes.announced(payload);
        }
        if topic == PAGE_READY_TOPIC {
            let entry = self.outcome_check.announced(payload, &self.passes)?;
            return self.outages.announced(entry, payload, self.now);
        }
        if payload.starts_with("http") {
            let mut words = payload.split(' ');
            let url = words.next().expect("split returns at least one part");
            self.announcement_check.given_up(url);
            self.outcome_check.dead_letter(url);
            self.priority_check.given_up(url);
            // The operator may retry the entry at any time.
            self.due_check.want(url, Moment(0));
            if let Some(name) = words.find_map(|word| word.strip_prefix("job=")) {
                self.passes.gave_up(name, url);
            }
        }
        Ok(())
    }
}

fn is_limit(setting: &str) -> bool {
    matches!(setting, "max-pages" | "max-per-host" | "max-time")
}

pub(super) fn operator() -> Requester {
    Requester { conn: OPERATOR, member: MemberId(0), slot: slot() }
}

fn waiting() -> Requester {
    Requester { conn: WAITER_CONN, ..operator() }
}
