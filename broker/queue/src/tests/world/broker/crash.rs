//! Crashes of the group's actor, and its restart from what was written.

use tidings_protocol::Seq;

use super::BrokerState;
use crate::moment::{ClockStamp, Moment};
use crate::tests::simulation::difference;
use crate::tests::world::disk::{CrashKind, SurvivingLog, crash_and_recover};
use crate::tests::world::promises::{BrokenPromise, CheckResult, Promise};
use crate::tests::world::{World, WorldEvent};

impl World {
    /// Crashes the broker during a write. Outputs that were not sent are lost.
    pub(in crate::tests::world) fn crash(&mut self) -> CheckResult {
        if matches!(self.broker.state, BrokerState::Down { .. }) || self.broker.safe == 0 {
            return Ok(());
        }
        self.totals.faults += 1;
        self.totals.crashes += 1;
        let unsafe_batches = self.broker.batches_after(self.broker.safe);
        let written = unsafe_batches - self.broker.batches_after(self.broker.written);
        let (end, written, away_ms_max) = if let Some(doom) = self.planned_crash.take() {
            (doom.end, if doom.is_written { unsafe_batches } else { written }, 500)
        } else {
            let is_power = self.nature.reboots && self.rng.bool();
            let end = if is_power { CrashKind::Power } else { CrashKind::Process };
            let away_ms_max = if self.rng.u32(0..4) > 0 { 2_000 } else { 60_000 };
            (end, self.rng.usize(written..=unsafe_batches), away_ms_max)
        };
        let (started, last) = self.restore_from_log(end, written)?;
        let backlog = self.lose_unsent()?;
        self.broker.state = BrokerState::Down { backlog };
        self.passes.iter_mut().for_each(|pass| pass.waits = 0);
        self.hosts.rules.lose_answers();
        self.note(|| format!("-- {end:?} gone"));
        self.disconnect_all();
        let away_ms = self.rng.u64(..away_ms_max);
        self.schedule(away_ms, WorldEvent::BrokerStarts { end, started, last });
        Ok(())
    }

    /// Restores the group from the log after a loss: the durable batches and `written` others
    /// survive. Returns its last start and the time of its newest record.
    fn restore_from_log(
        &mut self,
        end: CrashKind,
        written: usize,
    ) -> Result<(ClockStamp, Moment), BrokenPromise> {
        let moment = self.broker.moment(self.now);
        let broker = &mut self.broker;
        broker.start_number += 1;
        let safe = broker.log.len() - broker.batches_after(broker.safe);
        let log = broker.log.make_contiguous();
        let begin = log[0].end - log[0].records.len() as u64;
        let (safe, written) = (&log[..safe], &log[safe..safe + written]);
        let mut survivors = crash_and_recover(
            Seq(begin + 1),
            safe,
            written,
            end,
            (&mut self.rng, self.nature.paging),
        );
        let upto = begin + survivors.records;
        let is_whole = log.iter().any(|batch| batch.end == upto) && upto >= broker.safe;
        Promise::RecordsSuffice.holds(is_whole, || {
            format!("{upto} records are left, and {} were safe", broker.safe)
        })?;
        if upto == broker.appended && !broker.group.is_blocked() {
            broker.pages.read_all(&mut broker.group);
            // A second restored group is compared, because the clock of the first may continue at
            // an earlier moment.
            let differs = difference(&mut broker.group, survivors.recover_again(), moment);
            Promise::RecordsSuffice.holds(differs.is_none(), || format!("other {differs:?}"))?;
        }
        broker.log.truncate(broker.log.partition_point(|batch| batch.end <= upto));
        (broker.appended, broker.written, broker.safe) = (upto, upto, upto);
        broker.is_syncing = false;
        if upto < broker.snapshot.1 {
            broker.snapshot = (0, upto); // It is not whole, and says nothing.
        }
        let SurvivingLog { group, pages, started, last, .. } = survivors;
        (broker.group, broker.pages) = (group, pages);
        broker.origins.clear();
        Ok((started, last))
    }

    /// Starts the next broker.
    pub(in crate::tests::world) fn start(
        &mut self,
        end: CrashKind,
        started: ClockStamp,
        last: Moment,
    ) -> CheckResult {
        if end == CrashKind::Power {
            self.machine.reboot(self.now);
        }
        let here = self.machine.stamp(self.now, Moment(0));
        self.broker.moment = (here.moment_after(&started, last), self.now);
        let elapsed_unknown = !started.is_same_boot(&here);
        if elapsed_unknown {
            // Whether their time has come depends on the wall clock, which may be wrong.
            self.hosts.forget_rests();
            self.hosts.rules.forget_times(self.now);
            self.due_check.forget_times();
            self.priority_check.forget_times();
        }
        let state = std::mem::replace(&mut self.broker.state, BrokerState::Running);
        self.job_names = self.broker.group.job_names().cloned().collect();
        let unsent = self.broker.group.unpublished();
        let unsent: Vec<_> =
            unsent.map(|(serial, topic, text)| (serial, topic, text.to_owned())).collect();
        for (serial, topic, payload) in unsent {
            self.receive_announcement(serial, topic, &payload)?;
        }
        self.broker.group.set_never_list(self.never_list.clone());
        self.begin(self.broker.group.run() + 1, elapsed_unknown)?;
        let BrokerState::Down { backlog } = state else { return Ok(()) };
        backlog.into_iter().try_for_each(|(input, origin)| self.feed(input, origin))?;
        // The group has not recorded which parts it has permitted.
        if self.nature.rules && self.hosts.any_with_parts(self.now).is_some() {
            return self.change_rule();
        }
        Ok(())
    }
}
