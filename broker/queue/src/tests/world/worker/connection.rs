//! Connections of workers: they break, and workers return.

use tidings_protocol::{MemberId, TaskId};

use super::{CREDIT_MAX, RequestState};
use crate::leases::Credit;
use crate::tests::bench::slot;
use crate::tests::world::broker::BrokerState;
use crate::tests::world::commands::CommandOrigin;
use crate::tests::world::promises::CheckResult;
use crate::tests::world::{LEASE_MS, World, WorldEvent};
use crate::{ClientLabel, ConnId, Input, Requester};

impl World {
    /// A worker loses its connection, and perhaps its process.
    pub(in crate::tests::world) fn disconnect_worker(&mut self) {
        let index = self.rng.usize(0..self.workers.len());
        let Some(conn) = self.workers[index].conn else { return };
        self.totals.faults += 1;
        if !self.is_own(index) && self.rng.bool() {
            // Its memory is lost, but its requests go on. A new worker takes its place.
            self.forget_everything(index);
        }
        self.lose_conn(index);
        self.note(|| format!("-- worker {index} vanishes"));
        // The broker may notice this only after the worker has returned.
        let unheard_ms = if self.rng.bool() { 0 } else { self.rng.u64(..10_000) };
        self.schedule(unheard_ms, WorldEvent::Disconnected { conn });
        let away_ms = if self.rng.bool() { 2_000 } else { 2 * LEASE_MS };
        let away_ms = self.rng.u64(1..away_ms);
        self.schedule(away_ms, WorldEvent::WorkerReturns { worker: index });
    }

    fn forget_everything(&mut self, index: usize) {
        let member = MemberId(self.rng.u128(..));
        let worker = &mut self.workers[index];
        worker.tasks.clear();
        worker.incarnation += 1;
        worker.member = member;
    }

    pub(in crate::tests::world) fn lose_conn(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.conn = None;
        worker.credits.clear();
        for held in worker.tasks.values_mut() {
            held.may_be_stale |= std::mem::take(&mut held.is_sent);
        }
    }

    /// The broker crashes, which ends all connections and the local worker.
    pub(in crate::tests::world) fn disconnect_all(&mut self) {
        for index in 0..self.workers.len() {
            if self.is_own(index) {
                let open = self.workers[index]
                    .tasks
                    .values()
                    .filter(|held| held.request == RequestState::Open);
                open.for_each(|held| self.hosts.end(&held.received.host(), self.now));
                self.workers[index].tasks.keys().for_each(|task| self.hosts.end_parts(task));
                self.forget_everything(index);
            }
            if self.workers[index].conn.is_some() {
                self.lose_conn(index);
                let away_ms = if self.rng.bool() { 100 } else { 5_000 };
                let away_ms = self.rng.u64(..away_ms);
                self.schedule(away_ms, WorldEvent::WorkerReturns { worker: index });
            }
        }
    }

    /// Whether the worker runs in the broker's own process.
    pub(super) fn is_own(&self, index: usize) -> bool {
        self.local_worker == Some(index)
    }

    /// A worker reconnects, and sends the answers that it could not send.
    pub(in crate::tests::world) fn reconnect_worker(&mut self, index: usize) -> CheckResult {
        if self.workers[index].conn.is_some() {
            return Ok(());
        }
        if matches!(self.broker.state, BrokerState::Down { .. }) {
            self.schedule(300, WorldEvent::WorkerReturns { worker: index });
            return Ok(());
        }
        self.workers[index].conn = Some(ConnId(self.next_conn));
        self.next_conn += 1;
        let credit = self.rng.u32(1..=CREDIT_MAX);
        let render = self.any_render_credit();
        self.join(index, credit, render)?;
        let tasks: Vec<TaskId> = self.workers[index].tasks.keys().cloned().collect();
        tasks.iter().try_for_each(|task| self.send_answer(index, task))
    }

    /// Most workers have a browser.
    pub(super) fn any_render_credit(&mut self) -> Option<u32> {
        let has_browser = self.nature.render && self.render_rng.u32(0..4) > 0;
        has_browser.then(|| self.render_rng.u32(0..4))
    }

    pub(in crate::tests::world) fn join(
        &mut self,
        index: usize,
        credit: u32,
        render: Option<u32>,
    ) -> CheckResult {
        let worker = &mut self.workers[index];
        let Some(conn) = worker.conn else { return Ok(()) };
        // Nothing is allowed before the first credit is confirmed.
        if worker.credits.is_empty() {
            worker.credits.push(Credit::default());
        }
        worker.credits.push(Credit { tasks: credit, render });
        worker.last_sent = self.now;
        let requester = Requester { conn, member: worker.member, slot: slot() };
        let (label, origin) = (ClientLabel::default(), CommandOrigin::Join { worker: index, conn });
        self.feed(Input::Join { requester, credit, render, label }, origin)
    }
}
