//! The broker ends in the middle of something, and another one goes on with what was written.

use tidings_protocol::ProtocolError;

use super::{Happening, WAITING, World};
use crate::clock::{Moment, Stamp};
use crate::group::record::Record;
use crate::group::tests::simulation::replayed;
use crate::group::{Answer, Input, JobAction, Output};

/// Of so many inputs one meets with the end of the broker.
const RARELY: u32 = 200;

/// The machine has been running all the time, or nobody knows.
fn stamp() -> Stamp {
    Stamp { moment: Moment(0), boot: 0, uptime_ms: 0, unix_ms: 0 }
}

impl World {
    /// The group begins to move.
    pub(super) fn start(&mut self) {
        let (run, anew) = (self.group.run() + 1, self.rng.bool());
        self.handle(Input::Start { run, anew, stamp: stamp(), own: None });
        self.see_clock();
    }

    /// Now and then the group begins a snapshot, which is written between everything else.
    pub(super) fn take_stock(&mut self) {
        let at = self.now;
        let write = |decision| self.records.push(Record { at, decision });
        if self.group.is_in_snapshot() {
            self.group.snapshot_more(self.rng.usize(1..8), write);
        } else if self.rng.u32(0..30) == 0 {
            self.group.begin_snapshot(stamp(), write);
        }
    }

    pub(super) fn crashes(&mut self) -> bool {
        self.faulty && self.rng.u32(0..RARELY) == 0
    }

    /// The broker ends when it has dealt with `input`, before anybody hears of that; what it decided
    /// was written, or was not. Returns what it would have answered if it was.
    pub(super) fn crash(&mut self, input: Input) -> Option<Result<Answer, ProtocolError>> {
        self.faults += 1;
        let is_written = self.rng.bool();
        self.trace.push(format!("{} crash, written: {is_written}", self.now));
        let answered = self.decide(input.clone(), is_written);
        self.come_back();
        if !is_written {
            self.say_again(input);
        }
        answered
    }

    fn decide(&mut self, input: Input, is_written: bool) -> Option<Result<Answer, ProtocolError>> {
        self.group.handle(input, self.now);
        let mut answered = None;
        while let Some(output) = self.group.poll() {
            match output {
                Output::Record(record) if is_written => self.records.push(record),
                Output::Answer { asked, .. } if asked.conn == WAITING => {}
                Output::Answer { answer, .. } if is_written => answered = Some(answer),
                Output::AskHeads { job } => {
                    let heads = self.heads();
                    self.group.handle(Input::Heads { job, heads }, self.now);
                }
                _ => {}
            }
        }
        answered
    }

    /// Another broker, in which nobody is connected yet.
    fn come_back(&mut self) {
        self.group = replayed(&self.records, self.rng.u64(..));
        self.job_names = self.group.job_names().cloned().collect();
        self.jobs.values_mut().for_each(|job| job.waits = 0);
        for worker in 0..self.workers.len() {
            if self.workers[worker].conn.take().is_some() {
                let away_ms = self.rng.u64(0..5_000);
                self.schedule(away_ms, Happening::Returns { worker });
            }
        }
        let unsent: Vec<_> = self
            .group
            .unsent()
            .map(|(serial, topic, payload)| (serial, topic, payload.to_owned()))
            .collect();
        for (serial, topic, payload) in unsent {
            self.hear(serial, topic, &payload);
        }
        self.start();
    }

    /// Whoever got no answer asks again; workers do so when they are back.
    fn say_again(&mut self, input: Input) {
        match input {
            Input::Events { events, .. } => {
                self.untaken.splice(0..0, events);
            }
            Input::WithJob { what: JobAction::Wait, .. } => {}
            Input::Operate { .. }
            | Input::OpenJob { .. }
            | Input::CloseJob { .. }
            | Input::CancelJob { .. }
            | Input::WithJob { .. } => {
                self.handle(input);
            }
            _ => {}
        }
    }

    /// An announcement appears on its topic, unless it is there already.
    pub(super) fn hear(&mut self, serial: u64, topic: &str, payload: &str) {
        if self.heard.insert(serial) {
            match topic {
                "job-done" => self.job_done(payload),
                _ => self.dead_letter(payload),
            }
        }
        if self.rng.u32(0..4) > 0 {
            self.safe.push((serial, topic == "job-done"));
        }
    }
}
