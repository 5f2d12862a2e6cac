//! The group: a keyed, paced queue as a state machine without IO.
//!
//! Feed it one [`Input`] with the present moment, then call [`Group::poll`] until it returns `None`,
//! then wait for the next input or for [`Group::deadline`], whichever comes first, and feed
//! [`Input::Tick`] for the latter. Whatever it decides is first an [`Output::Record`]; the outputs
//! after a record rest on it and may leave only once it is written.
//!
//! ```text
//!             admitted              due, key free, credit
//!   event ───────────▶ delayed ──▶ waiting ───────────────▶ held ──ACK──▶ final (done, failed, ..)
//!                         ▲           ▲                      │
//!                         └───────────┴──NACK, lease ran out─┤
//!                                                            └─ attempts or losses used up ─▶ dead
//! ```

mod admit;
mod ahead;
mod answer;
mod apply;
pub mod busiest;
mod by_number;
mod by_url;
pub mod clock_times;
pub mod config;
mod dead;
mod endings;
pub mod entry;
mod explain;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod hand_out;
pub mod interface;
mod job_actions;
mod key_queue;
mod keys;
mod lifecycle;
mod manage;
mod member;
pub(crate) mod mutants;
mod operate;
mod parked;
pub mod pattern;
#[cfg(any(test, feature = "fuzzing"))]
mod portrait;
pub mod record;
mod release;
pub(crate) mod replay;
mod runs;
pub mod schedule;
pub mod scope;
mod seen;
mod serve;
pub mod snapshot;
pub mod tasks;
pub mod texts;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use tidings_protocol::{GroupName, JobName, MemberId, ProtocolError, Seq, TopicName};

use self::clock_times::ClockTimes;
pub use self::config::GroupConfig;
use self::dead::Dead;
use self::entry::{EntryId, JobNumber, Live};
pub use self::interface::{
    Answer, Asked, Input, JobAction, Operation, Output, Show, StagedLink, Task,
};
use self::key_queue::GRAIN_MS;
use self::keys::Keys;
use self::member::{Member, Members};
use self::mutants::Mutant;
use self::parked::{Glance, Parked};
use self::record::{Decision, Record};
use self::release::Ready;
use self::schedule::Schedules;
use self::seen::Seen;
use self::snapshot::{Item, Snapshot};
use self::texts::Outside;
use self::timers::{Expiry, Timers, Wake};
use crate::clock::Moment;
use crate::job::{JobState, Jobs};

/// The number of a topic's first event.
const FIRST_SEQ: Seq = Seq(1);

/// Totals since the group's start, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    completed: u64,
    failed: u64,
    dead: u64,
    lost: u64,
    unkeyed: u64,
}

/// The state machine. See the module's documentation for how to drive it.
#[derive(Debug)]
pub struct Group {
    name: GroupName,
    /// Raised with every start, so that no id is given twice even if a start knows too little of
    /// what was before (a log that was moved away, or is an older copy).
    run: u64,
    /// A number for its whole life, which no other group of its name has had; `None` before its first
    /// start.
    since: Option<u64>,
    /// The member that lives in the broker's process.
    own: Option<MemberId>,
    config: GroupConfig,
    /// Entries in full: held, delayed, tried before, brought forward.
    live: HashMap<EntryId, Box<Live>>,
    /// Sum of what they cost.
    live_bytes: usize,
    /// The others, which only wait.
    parked: Parked,
    last_entry: EntryId,
    keys: Keys,
    ready: Ready,
    members: Members,
    jobs: Jobs,
    seen: Seen,
    /// Of the entries in full, those with no member, by the print of their URL and then by number:
    /// what an announcement brings forward, with what is parked.
    unheld: HashMap<u64, Vec<EntryId>>,
    /// Entries that wait for one member's next request.
    pinned: BTreeMap<MemberId, BTreeSet<EntryId>>,
    /// First number of each feeding topic that was not taken yet.
    taken: BTreeMap<TopicName, Seq>,
    /// Jobs whose count was zero and that wait for what was published before.
    noted: BTreeSet<JobNumber>,
    /// URLs that are looked at again and again.
    schedules: Schedules,
    /// What is due at a time of the wall clock.
    clock_times: ClockTimes,
    /// Entries that were given up.
    dead: Dead,
    /// Who waits for the end of which pass. They are no part of what is recorded.
    waiters: BTreeMap<JobNumber, Vec<Asked>>,
    /// Nothing is released.
    is_paused: bool,
    /// Nor before that, after a restart of the machine: what the worker in the broker's process was told last may not have been
    /// on the disk, so nobody knows which keys rest. It is no part of what is recorded.
    quiet_until: Option<Moment>,
    wakes: Timers<Wake>,
    expiries: Timers<Expiry>,
    totals: Totals,
    /// Number of the last announcement.
    last_serial: u64,
    /// Announcements of which it is not known that they are safe on their topics.
    unsent: BTreeMap<u64, (&'static str, Box<str>)>,
    /// The newest event of this group on each of its own topics.
    sent: BTreeMap<&'static str, Seq>,
    /// The snapshot that is being taken.
    snapshot: Option<Snapshot>,
    /// The moment of the present input.
    now: Moment,
    /// Minute and number of dead letters written in it for events without a key.
    letters: (u64, u32),
    rng: fastrand::Rng,
    outputs: VecDeque<Output>,
}

impl Group {
    /// An empty group. `run` must be above that of every earlier start; `seed` decides what the
    /// group leaves to chance.
    pub fn new(name: GroupName, run: u64, config: GroupConfig, seed: u64) -> Self {
        Self {
            name,
            run,
            since: None,
            own: None,
            config,
            live: HashMap::new(),
            live_bytes: 0,
            parked: Parked::default(),
            last_entry: 0,
            keys: Keys::default(),
            ready: Ready::default(),
            members: Members::default(),
            jobs: Jobs::default(),
            seen: Seen::default(),
            unheld: HashMap::new(),
            pinned: BTreeMap::new(),
            taken: BTreeMap::new(),
            noted: BTreeSet::new(),
            schedules: Schedules::default(),
            clock_times: ClockTimes::default(),
            dead: Dead::default(),
            waiters: BTreeMap::new(),
            is_paused: false,
            quiet_until: None,
            wakes: Timers::default(),
            expiries: Timers::default(),
            totals: Totals::default(),
            last_serial: 0,
            unsent: BTreeMap::new(),
            sent: BTreeMap::new(),
            snapshot: None,
            now: Moment(0),
            letters: (0, 0),
            rng: fastrand::Rng::with_seed(seed),
            outputs: VecDeque::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// The run that ids of tasks carry.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The number for its whole life: with it an entry's number names one entry for ever.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// The member that lives in the broker's process.
    pub fn own(&self) -> Option<MemberId> {
        self.own
    }

    /// Its settings.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// What it has announced, and may not be on its topic: serial, topic, event.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = (u64, &'static str, &str)> {
        self.unsent.iter().map(|(serial, (topic, payload))| (*serial, *topic, &**payload))
    }

    /// The number after its newest event on one of its own topics, as far as it knows.
    pub(crate) fn sent(&self, topic: &str) -> Seq {
        self.sent.get(topic).map_or(FIRST_SEQ, |newest| Seq(newest.0 + 1))
    }

    /// First number of a topic that was not taken yet.
    pub fn taken(&self, topic: &TopicName) -> Seq {
        self.taken.get(topic).copied().unwrap_or(FIRST_SEQ)
    }

    /// Names of the jobs that it remembers.
    pub fn job_names(&self) -> impl Iterator<Item = &JobName> {
        self.jobs.iter().map(|job| &job.name)
    }

    /// Whether somebody is to be told of the end of a job that it remembers.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.jobs.iter().any(|job| job.settings.callback.is_some())
    }

    /// Gives it a place for what it need not have in memory.
    pub fn set_outside(&mut self, outside: Box<dyn Outside>) {
        self.parked.set_outside(outside);
    }

    /// Whether the job of that name is done, if it remembers one.
    pub(crate) fn is_done(&self, name: &JobName) -> Option<bool> {
        self.jobs.named(name.as_ref()).map(|job| job.state == JobState::Done)
    }

    /// Whether nothing waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.entries() == 0
    }

    /// Entries that are not final.
    fn entries(&self) -> usize {
        self.live.len() + self.parked.len()
    }

    /// Whether there is no room for what the topics bring.
    pub fn is_full(&self) -> bool {
        self.entries() >= self.config.entries_max
            || self.live_bytes + self.parked.bytes() + self.keys.bytes()
                >= self.config.entry_bytes_max
    }

    /// Takes one input. `now` must not be before the `now` of an earlier call.
    pub fn handle(&mut self, input: Input, now: Moment) {
        self.input(input, now);
        self.release_all(now);
        self.tidy();
    }

    /// Takes what was said together, in its order, and releases after all of it: like
    /// [`Group::handle`] for each, in less time.
    pub fn handle_all(&mut self, inputs: Vec<Input>, now: Moment) {
        self.look_at_tasks_of(&inputs);
        for input in inputs {
            self.input(input, now);
        }
        self.release_all(now);
        self.tidy();
    }

    fn input(&mut self, input: Input, now: Moment) {
        let is_reboot =
            matches!(input, Input::Start { run, anew, .. } if self.is_reboot(run, anew));
        if !is_reboot {
            self.advance(now);
        }
        if let Some(asked) = input.asked() {
            self.members.heard(asked.member);
        }
        match input {
            Input::Start { run, since, anew, stamp, own } => {
                let ended = self.own.filter(|_| run != self.run);
                if is_reboot && ended.is_some() {
                    let rest_ms = self.config.delay_max();
                    self.quiet_until = (rest_ms > 0).then(|| now + rest_ms + GRAIN_MS);
                }
                // A snapshot is of one time without a stop.
                self.snapshot = None;
                self.commit(Decision::Started { run, anew, stamp, own }, now);
                // After a reboot not before that: what rests anew is not over.
                self.advance(now);
                self.begin(since, ended, now);
            }
            Input::Clock { unix_ms } => self.see_clock(unix_ms, now),
            Input::Heard { conn } => self.members.heard_on(conn),
            Input::Events { topic, next, events, elsewhere } => {
                self.take(&topic, next, &events, &elsewhere, now);
            }
            Input::Join { asked, credit } => self.join(asked, credit, now),
            Input::Gone { conn } => self.gone(conn, now),
            Input::Ack { asked, task, outcome, hold, links, over_limit } => {
                let answer = self.ack(asked, &task, outcome, hold, &links, over_limit, now);
                self.answer(asked, answer);
            }
            Input::Nack { asked, task, back, hold, reason } => {
                let answer = self.nack(asked, &task, back, hold, reason, now);
                self.answer(asked, answer);
            }
            Input::Touch { asked, task, over, hold } => {
                let answer = self.touch(asked, &task, over, hold, now);
                self.answer(asked, answer);
            }
            Input::Configure { asked, settings } => {
                let answer = self.configure(&settings, now);
                self.answer(asked, answer);
            }
            Input::Set { settings } => {
                if let Err(error) = self.configure(&settings, now) {
                    tracing::error!(group = %self.name, %error, "a setting has no effect");
                }
            }
            Input::Operate { asked, what } => {
                let answer = self.operate(&what, now);
                self.answer(asked, answer);
            }
            Input::OpenJob { asked, name, settings } => {
                let answer = self.open_job(&name, settings, now);
                self.tell_of(&name);
                self.answer(asked, answer);
            }
            Input::CloseJob { asked, name } => {
                let answer = self.close_job(&name, now);
                self.answer(asked, answer);
            }
            Input::CancelJob { asked, name } => {
                let answer = self.cancel_job(&name, now);
                self.answer(asked, answer);
            }
            Input::WithJob { asked, name, what } => {
                if let Some(answer) = self.with_job(asked, &name, &what, now).transpose() {
                    self.answer(asked, answer);
                }
            }
            Input::Show { asked, what } => {
                let answer = self.show(&what, now);
                self.answer(asked, answer);
            }
            Input::Heads { job, heads } => self.note_heads(job, heads, now),
            Input::Sent { serial, topic, seq } => {
                self.commit(Decision::Sent { serial, topic, seq }, now);
            }
            Input::Tick => self.expire(now),
        }
    }

    /// Moves what is left where most is dead: no more than a chunk at a time.
    pub(crate) fn tidy(&mut self) {
        self.parked.tidy();
    }

    /// Whether a start knows of the time that has passed only what the wall clock says. A group that
    /// merely stood still (in the same run) knows it well.
    fn is_reboot(&self, run: u64, anew: bool) -> bool {
        anew && run != self.run
    }

    /// Goes on where the records end, which is between two inputs: what belongs together was written
    /// together. Nobody is connected. `ended`: a member that is gone with the process it lived in,
    /// so its leases are waited for no more. `since`: the number for its life, if
    /// it has none.
    fn begin(&mut self, since: u64, ended: Option<MemberId>, now: Moment) {
        // The first of them must say so, and it does no harm to know how it was at each start.
        self.commit(Decision::Configured(Box::new(self.config.clone())), now);
        if self.since.is_none() {
            self.commit(Decision::Born { since }, now);
        }
        let held = ended.and_then(|member| self.members.find(member)).map(Member::held);
        for entry in held.unwrap_or_default() {
            self.commit(Decision::Lost { entry }, now);
            self.bury_if_hopeless(entry, now);
        }
        let members: Vec<_> = self.pinned.keys().copied().collect();
        for member in members {
            if self.members.find(member).is_none_or(|member| member.conn.is_none()) {
                self.unpin(member, now);
            }
        }
    }

    /// The next thing to do. May change after every `handle`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When a [`Input::Tick`] is owed. May change after every `handle`.
    pub fn deadline(&self) -> Option<Moment> {
        [self.wakes.next(), self.expiries.next(), self.quiet_until].into_iter().flatten().min()
    }

    /// Decides something: it takes effect and is recorded.
    fn commit(&mut self, decision: Decision, now: Moment) {
        self.apply(&decision, now);
        if mutants::is(Mutant::Unrecorded) && matches!(decision, Decision::Touched { .. }) {
            return;
        }
        self.record(decision, now);
    }

    /// Records what has taken effect already.
    fn record(&mut self, decision: Decision, now: Moment) {
        self.outputs.push_back(Output::Record(Record { at: now, decision }));
    }

    fn answer(&mut self, asked: Asked, answer: Result<Answer, ProtocolError>) {
        self.outputs.push_back(Output::Answer { asked, answer });
    }

    /// What only this member could go on with starts from its beginning, with anybody.
    fn unpin(&mut self, member: MemberId, now: Moment) {
        if mutants::is(Mutant::StaysPinned) {
            return;
        }
        if let Some(entries) = self.pinned.get(&member) {
            let entries = entries.iter().copied().collect();
            self.commit(Decision::Unpinned { entries }, now);
        }
    }

    /// Lets time pass: what is due queues, what has rested is free. Decides nothing.
    fn advance(&mut self, now: Moment) {
        self.now = now;
        while let Some(wake) = self.wakes.pop(now) {
            match wake {
                Wake::Due(id) => self.enqueue(id, now),
                Wake::Key(key) => {
                    self.keys[key].timer = None;
                    self.refresh(key, now);
                }
            }
        }
    }

    /// Decides what time has decided: leases that ran out, jobs that nobody closed.
    fn expire(&mut self, now: Moment) {
        while let Some(expiry) = self.expiries.pop(now) {
            match expiry {
                Expiry::Lease(id) => self.lose(id, now),
                Expiry::JobOpen(number) => self.close_forgotten(number, now),
                Expiry::JobTime(number) => self.end_time_of(number, now),
                Expiry::Schedule(url) => self.fall_due(url, now),
            }
        }
    }

    /// A lease ran out: the member had its time, and nobody knows what it did with it.
    fn lose(&mut self, id: EntryId, now: Moment) {
        let Some(lease) = self.live.get(&id).and_then(|live| live.entry.lease()) else {
            return;
        };
        let member = lease.member;
        tracing::info!(group = %self.name, entry = id, ?member, "lease ran out");
        self.members.fell_silent(member);
        self.commit(Decision::Lost { entry: id }, now);
        self.bury_if_hopeless(id, now);
        self.unpin(member, now);
    }

    /// A parked entry is about to change: a snapshot that is to have it as it was gets it first.
    fn keep_in_snapshot(&mut self, glance: Glance) {
        if self.snapshot.is_some() && self.parked.keep_in_snapshot(glance) {
            let kept = Item::Parked(vec![self.parked_admission(glance)]);
            self.record(Decision::Kept(Box::new(kept)), self.now);
        }
    }
}
