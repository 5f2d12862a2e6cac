//! The group: a queue with keys and delays, as a state machine.
//!
//! The owner feeds it one [`Input`] with the current moment and calls [`Group::poll`] until that
//! returns `None`. Then it waits for the next input or for [`Group::deadline`], and at the deadline
//! it feeds [`Input::Tick`]. Each decision is first returned as an [`Output::Record`]. The outputs
//! after a record depend on it and may leave only after the record is written.
//!
//! ```text
//!             admitted              due, key free, credit
//!   event ───────────▶ delayed ──▶ waiting ───────────────▶ held ──ACK──▶ final (done, failed, ..)
//!                         ▲           ▲                      │
//!                         └───────────┴──NACK, lease expired─┤
//!                                                            └─ attempts or losses used up ─▶ dead
//! ```
//!
//! A group has a `state`, which is what its records hold, and a few things that no record holds, such
//! as the clients that wait for an answer. The fields of the state are private: everything else sees
//! it by reference, and only a decision, which becomes a record, changes it. So the records of a group
//! give the same state anywhere. The state has four parts. Each is a folder with one struct with
//! private fields, and can be read alone.
//!
//! | part | holds | may not know |
//! |---|---|---|
//! | `frontier` | entries, dormant or active; keys with queues and rests; texts; the order of release | records, topics, schedules |
//! | `leases` | members, credit, expiries, entries that are pinned to a member | entries (only ids), keys, jobs |
//! | [`jobs`] | jobs with counts, budgets, scopes and timers; the URLs that passes have seen | keys (only names), members |
//! | [`schedules`] | schedules with their timers; what is due at a time of day | entries (only ids), keys (only names), jobs, members |
//!
//! `frontier` reads `jobs` and `leases`, because they decide which entry is next. The other parts
//! do not know each other. The other folders say what the group does with its state: `decide` about
//! inputs, write and read decisions ([`record`]), and answer [`queries`].
//!
//! The crate may not know a clock, a file, a socket, a runtime, a thread, a log of the program or a
//! source of random numbers: time, texts from the disk and a seed are inputs, and what an operator
//! should know is an output. Its manifest proves which crates it does not use (`pure_crates` in
//! `.ci/run`), and `clippy.toml` in its folder proves the rest.

pub mod commands;
pub mod config;
mod dead_letters;
mod decide;
pub mod entry;
mod finished;
mod frontier;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod interface;
pub mod jobs;
mod leases;
pub mod moment;
pub(crate) mod mutants;
mod never_list;
mod page_metrics;
pub mod queries;
pub mod record;
mod requester;
pub mod schedules;
mod state;
mod timers;
mod unpublished;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidings_protocol::status::Answer;
use tidings_protocol::{GroupName, JobName, MemberId, ProtocolError, Seq, TopicName};

pub use self::config::GroupConfig;
use self::decide::rules::RuleWaiter;
use self::decide::text_reads::{HeldInput, TextReads};
use self::entry::EntryId;
use self::entry::JobNumber;
use self::frontier::key_queue::CLOCK_GRAIN_MS;
pub use self::frontier::texts;
pub use self::interface::{
    GroupQuery, Input, JobChange, JobOperation, Notice, Operation, Output, SettingWords,
    StagedLink, TaskMessage, WorkerReply, setting_pairs,
};
use self::jobs::JobState;
use self::leases::{Credit, Member};
use self::moment::Moment;
use self::mutants::Mutant;
pub use self::never_list::{NEVER_BYTES_MAX, NeverList, NeverListError};
use self::page_metrics::PageMetrics;
use self::record::{Decision, GroupRecord};
pub use self::requester::{ClientLabel, ConnId, Requester};
use self::state::State;
use self::texts::{Paging, TextError};

/// Seq of the first event of a topic.
const FIRST_SEQ: Seq = Seq(1);

/// The state machine. The module's documentation says how to drive it.
#[derive(Debug)]
pub struct Group {
    state: State,
    metrics: PageMetrics,
    /// What nothing may request: it is the same for all groups.
    never_list: Arc<NeverList>,
    /// Nothing is released before this moment. After a reboot, the last task of the worker in the
    /// broker's process may not have reached the disk, so the group does not know which keys rest.
    /// A release that had to end many entries continues at the next tick.
    release_from: Option<Moment>,
    /// A minute, and the number of dead letters for unusable events in it.
    unkeyed_dead_letters: (u64, u32),
    /// Clients that wait for the end of a pass.
    job_waiters: BTreeMap<JobNumber, Vec<Requester>>,
    /// Commands about rules that wait for the end of requests.
    rule_waiters: Vec<RuleWaiter>,
    /// What waits for texts outside memory.
    reads: TextReads,
    outputs: VecDeque<Output>,
    /// The number of outputs that have left.
    polled: usize,
    /// The index of the first output of the current input, among all outputs since the start.
    input_start: usize,
}

impl Group {
    /// Creates an empty group. `run` must exceed that of every earlier start. `seed` seeds the
    /// random choices of the group.
    pub fn new(name: GroupName, run: u64, config: GroupConfig, seed: u64) -> Self {
        Self {
            state: State::new(name, run, config, seed),
            metrics: PageMetrics::default(),
            never_list: Arc::default(),
            release_from: None,
            unkeyed_dead_letters: (0, 0),
            job_waiters: BTreeMap::new(),
            rule_waiters: Vec::new(),
            reads: TextReads::default(),
            outputs: VecDeque::new(),
            polled: 0,
            input_start: 0,
        }
    }

    /// Returns the group's name.
    pub fn name(&self) -> &GroupName {
        self.state.name()
    }

    /// Returns the run that new task ids carry.
    pub fn run(&self) -> u64 {
        self.state.run()
    }

    /// Returns the number that identifies this group for its whole life. Together with it, an entry
    /// id is unique for ever.
    pub fn since(&self) -> Option<u64> {
        self.state.since()
    }

    /// Returns the worker that runs inside the broker's process.
    pub fn local_member(&self) -> Option<MemberId> {
        self.state.leases().local_member()
    }

    /// Returns the settings.
    pub fn config(&self) -> &GroupConfig {
        self.state.config()
    }

    /// Returns the published events that may not be on their topics: serial, topic, event.
    pub fn unpublished(&self) -> impl Iterator<Item = (u64, &'static str, &Arc<str>)> {
        self.state.unpublished().iter()
    }

    /// Returns the seq after the group's newest known event on one of its own topics.
    pub fn next_own_seq(&self, topic: &str) -> Seq {
        self.state.published().get(topic).map_or(FIRST_SEQ, |newest| Seq(newest.0 + 1))
    }

    /// Returns the first seq of a topic that the group has not consumed.
    pub fn next_to_consume(&self, topic: &TopicName) -> Seq {
        self.state.consumed().get(topic).copied().unwrap_or(FIRST_SEQ)
    }

    /// Returns the names of all jobs that the group remembers.
    pub fn job_names(&self) -> impl Iterator<Item = &JobName> {
        self.state.jobs().iter().map(|job| &job.name)
    }

    /// Reports whether any remembered job has a callback.
    pub fn has_callbacks(&self) -> bool {
        self.state.jobs().iter().any(|job| job.settings.callback.is_some())
    }

    /// Pages texts of dormant entries from now on: the owner stores them outside memory.
    pub fn set_paging(&mut self, paging: Paging) {
        self.state.texts_mut().set_paging(paging);
    }

    /// Sets what nothing may request from now on. Entries that wait for it end when they would be
    /// released.
    pub fn set_never_list(&mut self, list: Arc<NeverList>) {
        self.never_list = list;
    }

    /// Returns why the group has stopped: it needs a text that cannot be read. It then makes no
    /// more decisions. Its records are complete, so a restart loses nothing.
    pub fn problem(&self) -> Option<&TextError> {
        self.reads.problem()
    }

    /// Reports whether the group should be given no events for now: earlier ones or their records
    /// wait for texts, or too many texts wait to be written.
    pub fn is_behind(&self) -> bool {
        self.reads.is_holding() || self.is_blocked() || self.state.dormant().is_behind()
    }

    /// Reports whether the job of that name is done; `None` if the group does not remember the job.
    pub fn is_done(&self, name: &JobName) -> Option<bool> {
        self.state.jobs().named(name.as_ref()).map(|job| job.state == JobState::Done)
    }

    /// Reports whether an operator has paused it.
    pub fn is_paused(&self) -> bool {
        self.state.is_paused()
    }

    /// Reports whether nothing waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.entry_count() == 0
    }

    /// Counts the entries that are not final.
    fn entry_count(&self) -> usize {
        self.state.frontier().len()
    }

    /// Reports whether the group has no room for further events.
    pub fn is_full(&self) -> bool {
        self.entry_count() >= self.state.config().entries_max
            || self.state.frontier().bytes() >= self.state.config().entry_bytes_max
    }

    /// Handles one input. `now` must not be before the `now` of an earlier call.
    pub fn handle(&mut self, input: Input, now: Moment) {
        self.apply_input(input, now);
        self.finish_handling(now);
    }

    /// Handles inputs that arrived together, in their order, and releases after the last one.
    /// Faster than [`Group::handle`] for each.
    pub fn handle_all(&mut self, inputs: Vec<Input>, now: Moment) {
        self.prefetch_tasks(&inputs);
        for input in inputs {
            self.apply_input(input, now);
        }
        self.finish_handling(now);
    }

    fn finish_handling(&mut self, now: Moment) {
        if self.problem().is_none() {
            self.answer_rule_waiters();
            self.release_all(now);
            self.compact_texts();
            self.request_unread_outputs();
        }
    }

    fn apply_input(&mut self, input: Input, now: Moment) {
        if self.problem().is_some() {
            return;
        }
        self.input_start = self.output_count();
        let is_reboot = matches!(input, Input::Start { run, elapsed_unknown, .. } if self.state.is_reboot(run, elapsed_unknown));
        if !is_reboot {
            self.state.advance(now);
        }
        if let Some(requester) = input.requester() {
            self.state.members_mut().mark_active(requester.member, now);
        }
        match input {
            Input::Start { run, since, elapsed_unknown, stamp, local_member: own } => {
                let ended = self.state.leases().local_member().filter(|_| run != self.state.run());
                if is_reboot && ended.is_some() {
                    let rest_ms = self.state.config().longest_delay();
                    self.release_from = (rest_ms > 0).then(|| now + rest_ms + CLOCK_GRAIN_MS);
                }
                // A snapshot does not span a restart.
                *self.state.snapshot_mut() = None;
                self.commit(
                    Decision::Started { run, since, elapsed_unknown, stamp, local_member: own },
                    now,
                );
                // After a reboot only now: first the rests of keys had to restart.
                self.state.advance(now);
                self.resume_after_start(ended, now);
            }
            Input::WallClock { unix_ms } => self.set_wall_clock(unix_ms, now),
            Input::Activity { conn } => self.state.members_mut().mark_active_on(conn, now),
            Input::Events { .. }
            | Input::Configure { .. }
            | Input::Operate { .. }
            | Input::OpenJob { .. }
            | Input::JobAction { .. }
            | Input::Query { .. } => self.handle_or_hold(HeldInput::Input(input), now),
            Input::Texts(reply) => {
                self.texts_replied(reply, now);
                // A need may exceed the limit, so nothing is dropped before it was met.
                if !self.reads.is_holding() {
                    self.state.texts_mut().trim_read();
                }
            }
            Input::Join { requester, credit, render, label } => {
                self.join(requester, Credit { tasks: credit, render }, label, now);
            }
            Input::Disconnected { conn } => self.disconnected(conn, now),
            Input::Reply { requester, reply } => {
                let answer = self.reply(requester, reply, now);
                self.answer(requester, answer);
            }
            Input::SetDelay { delay_ms } => self.set_delay(delay_ms, now),
            Input::TopicHeads { job, heads } => self.note_heads(job, heads, now),
            Input::Published { serial, topic, seq } => {
                self.commit(Decision::Published { serial, topic, seq }, now);
            }
            Input::Tick => self.expire(now),
        }
    }

    /// Handles a command of an operator or script.
    fn handle_command(&mut self, command: Input, now: Moment) {
        match command {
            Input::Configure { requester, changes } => {
                let answer = self.configure(&changes, now);
                self.answer(requester, answer);
            }
            Input::Operate { requester, operation: what } => {
                if let Some(answer) = self.operate(requester, &what, now).transpose() {
                    self.answer(requester, answer);
                }
            }
            Input::OpenJob { requester, name, settings } => {
                let answer = self.open_job(&name, settings, now);
                self.report_job_name(&name);
                self.answer(requester, answer);
            }
            Input::JobAction { requester, name, action: what } => {
                if let Some(answer) = self.run_job_action(requester, &name, &what, now).transpose()
                {
                    self.answer(requester, answer);
                }
            }
            Input::Query { requester, query: what } => {
                let answer = self.view().show(&what, now);
                self.answer(requester, answer);
            }
            _ => unreachable!("other inputs are no commands"),
        }
    }

    /// Moves the live texts of at most one chunk that is mostly dead, or requests them.
    pub(crate) fn compact_texts(&mut self) {
        self.state.texts_mut().compact_texts();
    }

    /// Resumes where the records end. Records end between two inputs, because those of one input
    /// are written together. No member is connected. `ended` is a member that ended with the
    /// broker's process, so its leases are lost at once.
    fn resume_after_start(&mut self, ended: Option<MemberId>, now: Moment) {
        // The first start must record the settings; later ones repeat them, which does no harm.
        self.commit(Decision::Configured(Box::new(self.state.config().clone())), now);
        let held =
            ended.and_then(|member| self.state.leases().members().find(member)).map(Member::held);
        for entry in held.unwrap_or_default() {
            self.commit(Decision::Lost { entry }, now);
            self.give_up_if_exhausted(entry, (None, false), now);
        }
        let members: Vec<_> = self.state.leases().pins().keys().copied().collect();
        for member in members {
            if self
                .state
                .leases()
                .members()
                .find(member)
                .is_none_or(|member| member.conn().is_none())
            {
                self.unpin(member, now);
            }
        }
    }

    /// Reports whether outputs wait for texts.
    pub fn is_blocked(&self) -> bool {
        self.reads.has_unread()
    }

    /// Returns the next output. May change after every `handle`, and after every call that
    /// continues a snapshot.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(request) = self.state.texts_mut().poll_request() {
            return Some(Output::Texts(request));
        }
        // The records of one input are written together, so all its outputs wait for its texts.
        if self.reads.first_unread_input().is_some_and(|start| start <= self.polled)
            && !mutants::is(Mutant::UnreadLeaves)
        {
            return None;
        }
        let output = self.outputs.pop_front()?;
        self.polled += 1;
        Some(output)
    }

    /// Counts the outputs since the start.
    fn output_count(&self) -> usize {
        self.polled + self.outputs.len()
    }

    /// Returns when an [`Input::Tick`] is due. May change after every `handle`.
    pub fn deadline(&self) -> Option<Moment> {
        [self.state.frontier().next_wake(), self.state.next_expiry(), self.release_from]
            .into_iter()
            .flatten()
            .min()
    }

    /// Applies a decision and records it.
    fn commit(&mut self, decision: Decision, now: Moment) {
        self.state.apply(&decision, now);
        if mutants::is(Mutant::Unrecorded) && matches!(decision, Decision::Touched { .. }) {
            return;
        }
        self.record(decision, now);
    }

    /// Records a decision that has already been applied, after the parts of a snapshot that must
    /// come before it.
    fn record(&mut self, decision: Decision, now: Moment) {
        self.record_early_parts();
        self.outputs.push_back(Output::Record(GroupRecord { at: now, decision }));
    }

    fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    fn answer(&mut self, requester: Requester, answer: Result<Answer, ProtocolError>) {
        self.outputs.push_back(Output::Answer { requester, answer });
    }

    /// Lets the entries pinned to a member restart with their own request, for any member.
    fn unpin(&mut self, member: MemberId, now: Moment) {
        self.unpin_if(member, |_, _| true, now);
    }

    /// Does this for those that the member cannot receive any more: it has left, its credit is 0,
    /// or it has no browser for them.
    fn unpin_untakeable(&mut self, member: MemberId, now: Moment) {
        let is_untakeable = |group: &Self, entry| {
            let needs_render = group.state.frontier().get(entry).entry.admitted.needs_render();
            !group.state.leases().members().takes_tasks(member, needs_render)
        };
        self.unpin_if(member, is_untakeable, now);
    }

    fn unpin_if(&mut self, member: MemberId, is_it: impl Fn(&Self, EntryId) -> bool, now: Moment) {
        if mutants::is(Mutant::StaysPinned) {
            return;
        }
        let mut entries = self.state.leases().pinned_to(member).unwrap_or_default();
        entries.retain(|entry| is_it(self, *entry));
        if !entries.is_empty() {
            self.commit(Decision::Unpinned { entries }, now);
        }
    }
}
