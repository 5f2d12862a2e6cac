//! The queue of one key: its waiting entries, its rest, and the order of turns.

use std::cmp::Reverse;
use std::hint::black_box;
use std::sync::Arc;

use tidings_protocol::MemberId;

use super::active_queue::ActiveQueue;
use super::circuit::Circuit;
use super::lane::Lane;
use super::rules::KeyRule;
use super::runs::{DormantRuns, PackedLane};
use crate::config::{GroupConfig, PACE_VALID_MS};
use crate::entry::{EntryId, JobNumber, Key, RecordedRest};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// The state of one key. There may be millions, so state that few keys have is boxed.
///
/// Invariant: an entry is released only while `busy < parallel` and `free_at <= now`, and while no
/// rule holds the key.
#[derive(Debug)]
pub(crate) struct KeyQueue {
    name: Key,
    /// The number of active entries that refer to this key. It is kept while there are any.
    references: u32,
    /// Tasks in flight with a request that has not ended.
    in_flight: u16,
    /// Whether it is counted among the keys that wait for a host which is down.
    pub(super) is_counted_down: bool,
    /// What decided about `free_at`.
    rest_cause: RestCause,
    /// End of the rest after the last request, or of a longer rest that a worker requested.
    free_at: Moment,
    /// The moment at which the group refreshes this key: at most one timer per key.
    pub(super) timer: Option<Moment>,
    /// Waiting dormant entries.
    pub(super) dormant: DormantRuns,
    /// Waiting active entries, except those that need a browser.
    active: Option<Box<ActiveQueue>>,
    /// Waiting active entries that need a browser.
    rendered: Option<Box<ActiveQueue>>,
    /// Earlier requests; `None` before the first release.
    history: Option<Box<KeyHistory>>,
    /// The rule of an operator.
    rule: Option<Arc<KeyRule>>,
}

/// What decides when a key is free again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RestCause {
    /// The delay of the group.
    #[default]
    Delay,
    /// The delay that a worker requested.
    Pace,
    /// A single rest that a worker requested.
    NotBefore,
    /// The host does not answer.
    Down,
}

/// What a key remembers of earlier requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeyHistory {
    /// When the last request ended.
    ended_at: Option<Moment>,
    /// The delay in ms that a worker requested, and until when it is in force.
    pace: Option<(u64, Moment)>,
    /// The member that served it last, which has connections and robots rules of the host.
    last_member: Option<MemberId>,
    /// The lane that was served last; the other one is next.
    last_lane: Option<Lane>,
    /// The job that was served last; the following one is next.
    last_job: JobNumber,
    /// `None` while the host answers, and before its first request has ended. Boxed, because most
    /// answer.
    circuit: Option<Box<Circuit>>,
}

impl KeyHistory {
    /// A request ended. Whether the host answered the first one is known later.
    fn end_request(&mut self, now: Moment) {
        if self.ended_at.replace(now).is_none() {
            self.circuit.get_or_insert_default().never_answered = true;
        }
    }
}

/// A key that was never requested.
static NO_HISTORY: KeyHistory = KeyHistory {
    ended_at: None,
    pace: None,
    last_member: None,
    last_lane: None,
    last_job: 0,
    circuit: None,
};

/// The state of a key without its entries, as a snapshot contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// See [`KeyQueue`] and [`KeyHistory`].
    pub(crate) free_at: Moment,
    pub(crate) ended_at: Option<Moment>,
    pub(crate) pace: Option<(u64, Moment)>,
    pub(crate) last_member: Option<MemberId>,
    pub(crate) last_lane: Option<Lane>,
    pub(crate) last_job: JobNumber,
}

/// Moments are truncated to milliseconds, so an event at `now` may have happened up to 1 ms later.
/// A minimum wait is counted from that later moment.
pub(crate) const CLOCK_GRAIN_MS: u64 = 1;

/// The entry that a key would release next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextEntry {
    pub(crate) entry: EntryId,
    pub(crate) lane: Lane,
    /// Its priority; 0 for an entry at the head.
    pub(crate) prio: i16,
}

impl KeyQueue {
    /// Creates a key without history.
    pub(crate) fn new(name: Key) -> Self {
        Self {
            name,
            references: 0,
            in_flight: 0,
            is_counted_down: false,
            rest_cause: RestCause::default(),
            free_at: Moment(0),
            timer: None,
            dormant: DormantRuns::default(),
            active: None,
            rendered: None,
            history: None,
            rule: None,
        }
    }

    /// Loads what an answer will change into the cache (see [`prefetch`](crate::prefetch)).
    pub(crate) fn prefetch(&self) {
        black_box((
            self.name.as_bytes().first(),
            self.history.as_deref().map(|past| past.last_job),
        ));
    }

    /// Returns the key's text.
    pub(crate) fn name(&self) -> &Key {
        &self.name
    }

    /// Returns the rule of an operator.
    pub(crate) fn rule(&self) -> Option<&KeyRule> {
        self.rule.as_deref()
    }

    /// Sets or removes the rule. The key rests until `rest_until` at least.
    pub(super) fn set_rule(&mut self, rule: Option<Arc<KeyRule>>, rest_until: Moment) {
        self.rest_until(rest_until, RestCause::Delay);
        self.rule = rule;
    }

    /// Reports whether a rule blocks the key.
    pub(crate) fn is_blocked(&self) -> bool {
        self.rule().is_some_and(|rule| rule.block)
    }

    /// Reports whether a rule allows no releases.
    pub(crate) fn is_held(&self) -> bool {
        self.rule().is_some_and(KeyRule::holds)
    }

    /// Returns the delay in ms without any `pace`: that of the rule, or else of the group.
    pub(crate) fn delay_ms(&self, config: &GroupConfig) -> u64 {
        let of_rule = self.rule().and_then(|rule| rule.delay_ms);
        of_rule.unwrap_or_else(|| config.delay_of(&self.name))
    }

    /// Returns the most requests in flight: those of the rule, or else of the group.
    pub(crate) fn parallel(&self, of_group: u32) -> u32 {
        self.rule().and_then(|rule| rule.parallel).unwrap_or(of_group)
    }

    /// Returns the waiting dormant entries.
    pub(crate) fn dormant(&self) -> &DormantRuns {
        &self.dormant
    }

    /// Returns the moment at which the group refreshes this key.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn timer(&self) -> Option<Moment> {
        self.timer
    }

    fn history(&self) -> &KeyHistory {
        self.history.as_deref().unwrap_or(&NO_HISTORY)
    }

    fn history_mut(&mut self) -> &mut KeyHistory {
        self.history.get_or_insert_default()
    }

    /// Returns the state to remember; `None` if the key was never requested.
    pub(crate) fn state(&self) -> Option<KeyState> {
        let KeyHistory { ended_at, pace, last_member, last_lane, last_job, .. } = *self.history();
        let free_at = self.free_at;
        let is_known = self.history.is_some() || free_at > Moment(0);
        is_known.then_some(KeyState { free_at, ended_at, pace, last_member, last_lane, last_job })
    }

    /// Restores a remembered state. It does not say what decided about the rest, which follows from
    /// its length, and from the delay of the key. The circuit was restored before.
    pub(crate) fn restore(&mut self, state: KeyState, delay_ms: u64) {
        let KeyState { free_at, ended_at, pace, last_member, last_lane, last_job } = state;
        self.free_at = free_at;
        let is_rest =
            |ms| ended_at.is_some_and(|ended_at| free_at == ended_at + ms + CLOCK_GRAIN_MS);
        self.rest_cause = match pace {
            Some((pace_ms, _)) if is_rest(pace_ms) => RestCause::Pace,
            _ if ended_at.is_none() || is_rest(delay_ms) => RestCause::Delay,
            _ => RestCause::NotBefore,
        };
        // What else is known comes from records that were written during the snapshot.
        let restored = self.history.take().filter(|past| past.ended_at.is_none());
        let circuit = restored.and_then(|past| past.circuit);
        let past = KeyHistory { ended_at, pace, last_member, last_lane, last_job, circuit };
        self.history = (past != NO_HISTORY).then(|| Box::new(past));
    }

    /// Returns what it remembers of requests without an answer.
    pub(crate) fn circuit(&self) -> Option<&Circuit> {
        self.history().circuit.as_deref()
    }

    /// Restores what it remembers of requests without an answer.
    pub(crate) fn restore_circuit(&mut self, circuit: Circuit) {
        let circuit = Some(circuit.into());
        self.history = Some(Box::new(KeyHistory { circuit, ..KeyHistory::default() }));
    }

    /// Counts an active entry that refers to this key.
    pub(crate) fn add_reference(&mut self) {
        self.references += 1;
    }

    /// Uncounts an active entry that referred to this key.
    pub(crate) fn drop_reference(&mut self) {
        self.references -= 1;
    }

    /// A task is in flight.
    pub(crate) fn add_in_flight(&mut self) {
        self.in_flight += 1;
    }

    /// Adds a due entry to its lane. `render` says whether it needs a browser.
    pub(crate) fn push(&mut self, entry: EntryId, render: bool, lane: Lane, prio: i16) {
        self.queued_mut(render).get_or_insert_default().push(entry, lane, prio);
    }

    /// Adds an entry before all others of the key. One that has `begun` does not wait for its job's
    /// turn.
    pub(crate) fn push_head(&mut self, entry: EntryId, render: bool, lane: Lane, begun: bool) {
        self.queued_mut(render).get_or_insert_default().push_head(entry, lane, begun);
    }

    /// Removes an active entry from the queue. `render`, `lane` and `prio` must be those with which
    /// it was added.
    pub(crate) fn remove(&mut self, entry: EntryId, render: bool, lane: Lane, prio: i16) {
        let queue = self.queued_mut(render);
        let Some(queued) = queue.as_deref_mut() else { return };
        queued.remove(entry, lane, prio);
        if queued.is_empty() {
            *queue = None;
        }
    }

    /// Returns the entry to be released next if the key were free, among the jobs that take turns
    /// here, and of those that need a browser or of the others. May change after `push`,
    /// `push_head`, `remove`, `mark_released`, every change of the runs, and with the results of
    /// `takes_turns`.
    pub(crate) fn next(
        &self,
        render: bool,
        takes_turns: impl Fn(JobNumber) -> bool,
    ) -> Option<NextEntry> {
        let head = self.queued(render).and_then(|queued| queued.first_head(&takes_turns));
        if let Some((entry, lane)) = head {
            return Some(NextEntry { entry, lane, prio: 0 });
        }
        if self.history().last_lane == Some(Lane::Announced) && !mutants::is(Mutant::AnnouncedFirst)
        {
            self.next_of_jobs(render, takes_turns)
                .or_else(|| self.first_of(render, Lane::Announced))
        } else {
            self.first_of(render, Lane::Announced)
                .or_else(|| self.next_of_jobs(render, takes_turns))
        }
    }

    /// Jobs take turns, by their numbers.
    fn next_of_jobs(
        &self,
        render: bool,
        takes_turns: impl Fn(JobNumber) -> bool,
    ) -> Option<NextEntry> {
        let last = self.history().last_job;
        let from = |number| self.job_from(render, number);
        let after = std::iter::successors(from(last + 1), |job| from(job + 1));
        let upto = std::iter::successors(from(0), |job| from(job + 1));
        let mut all = after.chain(upto.take_while(|job| *job <= last));
        all.find(|job| takes_turns(*job)).and_then(|job| self.first_of(render, Lane::Job(job)))
    }

    /// Returns the first job from this number on that has waiting entries here, not counting those at
    /// the head.
    pub(crate) fn job_from(&self, render: bool, number: JobNumber) -> Option<JobNumber> {
        let queued = self.queued(render).and_then(|queued| queued.job_from(number));
        let dormant = self.dormant.job_from(render, number);
        dormant.into_iter().chain(queued).min()
    }

    fn first_of(&self, render: bool, lane: Lane) -> Option<NextEntry> {
        let queued = self.queued(render).and_then(|queued| queued.first_of(lane));
        let dormant = self.dormant.first_of(render, lane);
        let mut firsts = dormant.into_iter().chain(queued);
        let first = if mutants::is(Mutant::DormantFirst) { firsts.next() } else { firsts.min() };
        first.map(|(Reverse(prio), entry)| NextEntry { entry, lane, prio })
    }

    /// Notes that an entry of this lane was released to a member.
    pub(crate) fn mark_released(
        &mut self,
        entry: EntryId,
        lane: Lane,
        member: MemberId,
        now: Moment,
    ) {
        self.in_flight += 1;
        let past = self.history_mut();
        if let Some(circuit) = &mut past.circuit {
            circuit.released(entry, now);
        }
        past.last_member = Some(member);
        past.last_lane = Some(lane);
        if let Lane::Job(job) = lane {
            past.last_job = job;
        }
    }

    /// Ends a request, or a lost lease, at `now`: the key rests for at least `delay_ms`.
    pub(crate) fn request_ended(&mut self, now: Moment, delay_ms: u64, rest: RecordedRest) {
        self.request_not_made();
        self.history_mut().end_request(now);
        self.apply_rest(now, rest);
        let pace_ms = self.pace_at(now);
        let shortest_ms =
            if mutants::is(Mutant::ShortPace) && pace_ms.is_some() { 0 } else { delay_ms };
        self.rest_for(shortest_ms, pace_ms);
    }

    /// Restarts the rest at `now`, because the end of the last request is not known reliably.
    pub(crate) fn restart_rest(&mut self, now: Moment, delay_ms: u64) {
        if self.history.is_none() {
            // The key has no known request, like most keys.
            if delay_ms > 0 {
                self.rest_until(now + delay_ms + CLOCK_GRAIN_MS, RestCause::Delay);
            }
            return;
        }
        let past = self.history_mut();
        past.end_request(now);
        if let Some(circuit) = &mut past.circuit {
            circuit.rests_from = now;
        }
        self.rest_for(delay_ms, self.pace_at(now));
    }

    /// Requests without an answer do not count any more.
    pub(crate) fn reset_circuit(&mut self) {
        if let Some(circuit) = self.history.as_mut().and_then(|past| past.circuit.as_mut()) {
            circuit.reset();
        }
    }

    /// The host has answered.
    pub(crate) fn close_circuit(&mut self) {
        if let Some(past) = &mut self.history {
            past.circuit = None;
        }
    }

    /// The request of an entry got no answer from the host.
    pub(crate) fn unanswered(&mut self, entry: EntryId, newest: EntryId, now: Moment) {
        let circuit = self.history_mut().circuit.get_or_insert_default();
        circuit.unanswered(entry, newest, now);
    }

    /// The task of an entry ended without a request.
    pub(crate) fn not_requested(&mut self, entry: EntryId, now: Moment) {
        if let Some(circuit) = self.history.as_mut().and_then(|past| past.circuit.as_mut()) {
            circuit.not_requested(entry, now);
        }
    }

    /// Rests for the delay of the group, or for that of a worker if it is longer.
    fn rest_for(&mut self, delay_ms: u64, pace_ms: Option<u64>) {
        match pace_ms {
            Some(pace_ms) if pace_ms >= delay_ms => self.rest_at_least(pace_ms, RestCause::Pace),
            _ => self.rest_at_least(delay_ms, RestCause::Delay),
        }
    }

    fn rest_at_least(&mut self, rest_ms: u64, cause: RestCause) {
        if let Some(ended_at) = self.history().ended_at
            && rest_ms > 0
        {
            self.rest_until(ended_at + rest_ms + CLOCK_GRAIN_MS, cause);
            if mutants::is(Mutant::ShortRest) {
                self.free_at = ended_at + (rest_ms - 1);
            }
        }
    }

    fn rest_until(&mut self, free_at: Moment, cause: RestCause) {
        if free_at > self.free_at {
            (self.free_at, self.rest_cause) = (free_at, cause);
        }
    }

    /// Ends a task that made no request, so the key need not rest.
    pub(crate) fn request_not_made(&mut self) {
        assert!(self.in_flight > 0, "the key has a task in flight");
        self.in_flight -= 1;
    }

    /// Applies the rest that a worker requests. It can lengthen the current rest, never shorten it.
    pub(crate) fn apply_rest(&mut self, now: Moment, rest: RecordedRest) {
        if let Some(pace_ms) = rest.pace_ms {
            let past = self.history_mut();
            past.pace = Some((pace_ms, now + PACE_VALID_MS));
            // The end of the last request may be unknown here if a key without a pace rested long
            // enough.
            past.ended_at.get_or_insert(now);
            self.rest_at_least(pace_ms, RestCause::Pace);
        }
        if let Some(not_before) = rest.not_before {
            self.rest_until(not_before, RestCause::NotBefore);
        }
    }

    /// Returns the delay in ms that a worker requested, while it is in force.
    pub(crate) fn pace_at(&self, now: Moment) -> Option<u64> {
        self.history().pace.filter(|(_, until)| now < *until).map(|(pace_ms, _)| pace_ms)
    }

    /// Reports whether a request may start at `now`. `parallel` is that of the group.
    pub(crate) fn is_free(&self, now: Moment, parallel: u32) -> bool {
        if self.is_held() && !(self.is_blocked() && mutants::is(Mutant::ReturnsToBlocked)) {
            return false;
        }
        let parallel = self.parallel(parallel);
        let more = u32::from(parallel > 1 && mutants::is(Mutant::OverParallel));
        (self.in_flight() < parallel + more || mutants::is(Mutant::TwoAtOnce))
            && self.free_at <= now
    }

    /// Reports whether an entry may be offered at `now` as far as the circuit decides it: its host is
    /// not down, or may be tried, or is given up, so that the entry ends.
    pub(crate) fn circuit_lets_pass(&self, entry: EntryId, now: Moment) -> bool {
        self.next_try().is_none_or(|at| at <= now) || self.gives_up(entry)
    }

    /// Reports whether the host is down and given up, with this entry.
    pub(crate) fn gives_up(&self, entry: EntryId) -> bool {
        self.circuit().is_some_and(|circuit| entry <= circuit.given_up)
    }

    /// Reports whether the host is down.
    pub(crate) fn is_down(&self) -> bool {
        self.circuit().is_some_and(Circuit::is_down)
    }

    /// Reports whether the host is down after another request without an answer.
    pub(crate) fn is_down_next(&self) -> bool {
        let past = self.history();
        let new = Circuit { never_answered: past.ended_at.is_none(), ..Circuit::default() };
        past.circuit.as_deref().unwrap_or(&new).is_down_next()
    }

    /// Returns the earliest next try, if the host is down.
    pub(crate) fn next_try(&self) -> Option<Moment> {
        self.circuit().and_then(Circuit::next_try)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.into()
    }

    /// Returns what decided about [`free_at`](Self::free_at).
    pub(crate) fn rest_cause(&self) -> RestCause {
        let is_down = self.next_try().is_some_and(|at| at > self.free_at);
        if is_down { RestCause::Down } else { self.rest_cause }
    }

    /// Returns when the last request ended, if that is known.
    pub(crate) fn ended_at(&self) -> Option<Moment> {
        self.history().ended_at
    }

    /// Returns the earliest start of the next request, as far as rests decide it.
    pub(crate) fn free_at(&self) -> Moment {
        self.next_try().map_or(self.free_at, |at| at.max(self.free_at))
    }

    /// Returns the earliest start of the next request, as far as rests and the rule decide it. `None`
    /// while a rule without an end holds the key.
    pub(crate) fn next_start(&self) -> Option<Moment> {
        match self.rule().filter(|rule| rule.holds()) {
            Some(rule) => rule.until.map(|until| until.max(self.free_at())),
            None => Some(self.free_at()),
        }
    }

    /// Returns the member that served it last.
    pub(crate) fn last_member(&self) -> Option<MemberId> {
        self.history().last_member
    }

    /// Reports whether anything waits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.active.is_some() || self.rendered.is_some() || !self.dormant.is_empty()
    }

    /// Reports whether anything waits that needs a browser.
    pub(crate) fn has_rendered(&self) -> bool {
        self.rendered.is_some() || self.dormant.has_rendered()
    }

    /// Reports whether anything of a job waits.
    pub(crate) fn has_waiting_of(&self, job: JobNumber) -> bool {
        let mut queues = self.active.iter().chain(&self.rendered);
        PackedLane::both(Lane::Job(job)).any(|lane| self.dormant.has_lane(lane))
            || queues.any(|queued| queued.has_job(job))
    }

    /// Counts the waiting entries.
    pub(crate) fn waiting(&self) -> usize {
        let queues = self.active.iter().chain(&self.rendered);
        queues.map(|queued| queued.len()).sum::<usize>() + self.dormant.len()
    }

    /// Returns when the group must refresh this key, if time alone changes something. What a host
    /// that is given up keeps waiting ends before its next try.
    pub(crate) fn wake_at(&self, now: Moment) -> Option<Moment> {
        match self.has_waiting() {
            true if self.free_at > now => Some(self.free_at),
            true => Some(self.free_at()),
            false => self.forgettable_at(),
        }
    }

    /// Returns when the key can be removed; `None` while it is in use.
    pub(crate) fn forgettable_at(&self) -> Option<Moment> {
        let idle = self.references == 0 && self.in_flight == 0 && !self.has_waiting();
        let past = self.history();
        let pace_until = past.pace.map(|(_, until)| until);
        let circuit_until = past.circuit.as_ref().map(|circuit| circuit.forgettable_at());
        idle.then(|| pace_until.into_iter().chain(circuit_until).fold(self.free_at, Moment::max))
    }

    fn queued(&self, render: bool) -> Option<&ActiveQueue> {
        if render { self.rendered.as_deref() } else { self.active.as_deref() }
    }

    fn queued_mut(&mut self, render: bool) -> &mut Option<Box<ActiveQueue>> {
        if render { &mut self.rendered } else { &mut self.active }
    }
}
