//! Simulated world of one group: true time, hosts that observe their requests, pages that link to
//! each other, misbehaving workers, an operator, and a broker that crashes at any point and
//! restarts from its disk.
//!
//! One seed decides every event. The group, its log, its recovery and the handling of clocks are
//! the real code. Everything around them is simulated:
//!
//! | | faults |
//! |---|---|
//! | [`worker`] | stalls past its lease, is redirected, loses its connection or its process, reconnects before the broker notices, answers late or twice, answers for tasks of others |
//! | [`broker`] | crashes at any write, is paused, runs out of disk space, has a slow disk |
//! | [`disk`] | loses or tears data that was not synced |
//! | [`machine`] | reboots; its wall clock is set by up to years, and back |
//! | [`operator`] | pauses, purges, cancels, deletes, opens the next pass, adds late seeds, changes the delay |
//!
//! The promises that must hold nevertheless are in [`promises`]. Each has one checker: [`hosts`],
//! [`looks`], [`passes`], [`turns`], [`dues`], [`ranks`]. The checkers use only what hosts, workers
//! and readers of the topics observe. The first broken promise ends the run.

mod broker;
mod disk;
mod dues;
mod hosts;
mod looks;
mod machine;
mod operator;
mod orders;
mod passes;
mod promises;
mod ranks;
mod schedules;
mod sending;
mod settings;
mod task;
mod turns;
mod wish;
mod words;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use tidings_protocol::{JobName, MemberId, Seq, TaskId, TopicName};

use self::broker::{Broker, Doom, Running};
use self::disk::End;
use self::dues::Dues;
use self::hosts::Hosts;
use self::looks::Looks;
use self::machine::Machine;
use self::passes::Passes;
pub(super) use self::promises::{Broken, Kept, Promise};
use self::ranks::Ranks;
use self::sending::Unsent;
use self::turns::Turns;
use self::wish::Wish;
use self::words::Said;
use self::worker::{CREDIT_MAX, Worker};
use super::site::{HOSTS, LONELY_HOSTS, PAGES, page};
use crate::clock::{Moment, Stamp};
use crate::group::config::GroupConfig;
use crate::group::entry::EntryId;
use crate::group::{Group, Input};
use crate::mailbox::ConnId;

const DELAY_MS: u64 = 1000;
const LEASE_MS: u64 = 20_000;
const WORKERS: u64 = 4;
const HOUR_MS: u64 = 3_600_000;
/// The connection that waits for jobs.
const WAITING: ConnId = ConnId(u64::MAX);
/// Releases that an hour should have.
const RELEASES: u64 = 1_100;
/// Pages of a host that are announced repeatedly while jobs wait for all of them.
const HAMMERED: u64 = PAGES / 2;
/// Once the faults have ended, everything must be done within this time.
const END_MS_MAX: u64 = 30 * 60_000;

/// A scheduled event of the world.
enum Happening {
    /// A random action.
    Step,
    /// The group consumes some of the published events.
    Takes,
    RequestEnds {
        host: String,
        worker: usize,
        life: u64,
        task: TaskId,
    },
    /// A worker sends its answer for a task.
    Speaks {
        worker: usize,
        task: TaskId,
    },
    /// The broker notices the end of a connection.
    Gone {
        conn: ConnId,
    },
    Returns {
        worker: usize,
    },
    /// In that start of the broker, the disk has synced everything before `upto`.
    Synced {
        life: u64,
        upto: u64,
    },
    /// An announcement is durable on its topic.
    Safe {
        life: u64,
        serial: u64,
        topic: &'static str,
    },
    /// A broker that was paused continues.
    Moves {
        life: u64,
    },
    Starts {
        end: End,
        started: Stamp,
        last: Moment,
    },
    Publishes {
        payload: String,
    },
    /// The first pages of a host are announced repeatedly until then.
    Hammers {
        host: u64,
        until: Moment,
    },
}

/// Counts of events, to check that a run was hard enough.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) releases: u64,
    pub(super) requests: u64,
    pub(super) faults: u64,
    pub(super) crashes: u64,
    pub(super) clock_jumps: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.releases += other.releases;
        self.requests += other.requests;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.clock_jumps += other.clock_jumps;
    }
}

/// Options of a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nature {
    /// Whether the wall clock is set.
    pub(super) clock_jumps: bool,
    /// Whether the power fails. Only the wall clock connects the machine's time before and after
    /// that.
    pub(super) reboots: bool,
    /// Limit of entries for some groups.
    pub(super) narrow: Option<usize>,
    /// Largest limit of parallel requests per host.
    pub(super) parallel_max: u32,
    /// Whether events are recorded.
    pub(super) traced: bool,
}

pub(super) struct World {
    broker: Broker,
    machine: Machine,
    /// True time.
    now: Moment,
    rng: fastrand::Rng,
    nature: Nature,
    /// The worker in the broker's own process.
    own: Option<usize>,
    is_faulty: bool,
    /// Whether a test, not the worker, decides when requests end and how they are answered.
    is_scripted: bool,
    /// The group's limit of entries. Only workers receive an error when it is reached.
    narrow: Option<usize>,
    /// A planned crash of the broker, instead of random ones.
    doom: Option<Doom>,
    is_paused: bool,
    hosts: Hosts,
    dues: Dues,
    looks: Looks,
    passes: Passes,
    turns: Turns,
    ranks: Ranks,
    workers: Vec<Worker>,
    agenda: BTreeMap<(Moment, u64), Happening>,
    agenda_len: u64,
    /// Number of the group's last decision.
    order: u64,
    /// Decision number and time of the release of each task.
    released: BTreeMap<TaskId, (u64, Moment)>,
    /// Ids of answered tasks; every further answer for them is stale.
    answered: Vec<(usize, TaskId)>,
    next_conn: u64,
    next_seq: u64,
    last_job: u64,
    /// Number of the next unlinked page.
    next_page: u64,
    /// Published events that the group has not consumed.
    untaken: Vec<(Seq, String)>,
    /// All URLs that were ever announced.
    named: BTreeSet<String>,
    /// When each URL was last given to a worker.
    begun: BTreeMap<String, Moment>,
    /// Intervals of the scheduled URLs, in ms.
    scheduled: BTreeMap<String, u64>,
    /// Jobs that other groups know of.
    job_names: BTreeSet<JobName>,
    /// Serials of announcements that are on their topics.
    heard: BTreeSet<u64>,
    /// The group's `since` number that workers received.
    since: Option<u64>,
    totals: Totals,
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, nature: Nature) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let attempts = if rng.bool() { "100" } else { "2" };
        // Most groups have one.
        let is_crowded = nature.parallel_max > 1 && rng.bool();
        let parallel = if is_crowded { rng.u32(2..=nature.parallel_max) } else { 1 };
        let settings = [
            ("parallel", &*parallel.to_string()),
            ("delay", "1s"),
            ("lease", "20s"),
            ("max-attempts", attempts),
            ("max-losses", "100"),
        ];
        let config = GroupConfig::default().with(settings).expect("the settings are valid");
        let narrow = nature.narrow.filter(|_| rng.u32(0..4) == 0);
        let entries_max = narrow.unwrap_or(config.entries_max);
        // Few enough that some jobs are forgotten.
        let config = GroupConfig { finished_jobs_max: 5, dead_max: 5, entries_max, ..config };
        let name = "crawlers".parse().expect("the name is valid");
        let group = Group::new(name, 0, config, rng.u64(..));
        let members = (0..WORKERS).map(|number| MemberId(u128::from(number) + 1));
        let own = rng.bool().then_some(0);
        Self {
            broker: Broker::new(group),
            machine: Machine::new(nature.clock_jumps.then_some(seed)),
            now: Moment(0),
            rng,
            nature,
            own,
            is_faulty: true,
            is_scripted: false,
            narrow,
            doom: None,
            is_paused: false,
            hosts: Hosts::new(parallel),
            dues: Dues::default(),
            looks: Looks::default(),
            passes: Passes::default(),
            turns: Turns::default(),
            ranks: Ranks::default(),
            workers: members.map(Worker::new).collect(),
            agenda: BTreeMap::new(),
            agenda_len: 0,
            order: 0,
            released: BTreeMap::new(),
            answered: Vec::new(),
            next_conn: 1,
            next_seq: 1,
            last_job: 0,
            next_page: PAGES,
            untaken: Vec::new(),
            named: BTreeSet::new(),
            begun: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            job_names: BTreeSet::new(),
            heard: BTreeSet::new(),
            since: None,
            totals: Totals::default(),
            trace: nature.traced.then(Vec::new),
        }
    }

    /// Simulates one hour of faults, and then lets everything end. Returns the counts and the
    /// recorded events.
    pub(super) fn live(seed: u64, nature: Nature) -> (Result<Totals, Broken>, Vec<String>) {
        let mut world = Self::new(seed, nature);
        let lived = world.live_an_hour();
        (lived.map(|()| world.totals), world.trace.unwrap_or_default())
    }

    fn live_an_hour(&mut self) -> Kept {
        self.begin(1, false)?;
        (0..self.workers.len()).try_for_each(|worker| self.come_back(worker))?;
        self.schedule(0, Happening::Step);
        self.pass(HOUR_MS)?;
        self.come_to_an_end()
    }

    /// Ends all faults, after which the group must finish everything by itself.
    fn come_to_an_end(&mut self) -> Kept {
        self.is_faulty = false;
        let until = self.now + END_MS_MAX;
        // Absent workers come back first.
        self.pass(3 * LEASE_MS + 60_000)?;
        self.resume_everything()?;
        self.set_delay(DELAY_MS)?;
        for worker in 0..self.workers.len() {
            self.join(worker, CREDIT_MAX)?;
        }
        self.finish_schedules()?;
        while self.now < until && !(self.is_idle() && self.passes.are_done()) {
            self.take()?;
            self.pass(DELAY_MS)?;
        }
        // The last records are on their way to the disk.
        self.pass(DELAY_MS)?;
        let (group, passes) = (&self.broker.group, &self.passes);
        Promise::AllFinishes.holds(group.is_idle(), || {
            format!("left: {:?}, {} dormant", group.live, group.parked.len())
        })?;
        let open = passes.names(false);
        Promise::AllFinishes.holds(open.is_empty(), || format!("never done: {open:?}"))?;
        for job in group.jobs.iter() {
            passes.check_counts(job.name.as_ref(), &group.describe_job(job))?;
        }
        self.looks.check_end()?;
        let no_waiters = passes.iter().all(|(_, pass)| pass.waits == 0);
        Promise::DoneOnce
            .holds(no_waiters, || "a client still waits for a job that is done".to_owned())?;
        let same = self.job_names.iter().eq(group.job_names().collect::<BTreeSet<_>>());
        Promise::DoneOnce.holds(same, || format!("other groups know of {:?}", self.job_names))
    }

    fn is_idle(&self) -> bool {
        let publishes = |it: &Happening| matches!(it, Happening::Publishes { .. });
        self.broker.group.is_idle()
            && self.untaken.is_empty()
            && !self.agenda.values().any(publishes)
    }

    /// Advances the time, with all events in it, in order.
    fn pass(&mut self, ms: u64) -> Kept {
        let until = self.now + ms;
        loop {
            let happening = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let next = happening.into_iter().chain(self.broker.deadline()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.totals.clock_jumps += u64::from(self.machine.pass(self.now));
            // Input that has arrived is handled before leases expire.
            if happening.is_some_and(|at| at <= self.now) {
                let (_, happening) = self.agenda.pop_first().expect("the agenda is not empty");
                self.happen(happening)?;
            } else {
                self.feed(Input::Tick, Said::Nothing)?;
            }
        }
        self.now = until;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Kept {
        match happening {
            Happening::Step => self.step(),
            Happening::Takes => self.take(),
            Happening::RequestEnds { host, worker, life, task } => {
                self.request_ends(&host, worker, life, &task)
            }
            Happening::Speaks { worker, task } => self.speak(worker, &task),
            Happening::Gone { conn } => self.feed(Input::Gone { conn }, Said::Nothing),
            Happening::Returns { worker } => self.come_back(worker),
            Happening::Synced { life, upto } => self.synced(life, upto),
            Happening::Safe { life, serial, topic } if life == self.broker.life() => {
                self.feed(Input::Sent { serial, topic, seq: Seq(serial) }, Said::Nothing)
            }
            Happening::Safe { .. } => Ok(()),
            Happening::Moves { life } => self.move_again(life),
            Happening::Starts { end, started, last } => self.start(end, started, last),
            Happening::Publishes { payload } => {
                self.publish(&payload);
                Ok(())
            }
            Happening::Hammers { host, until } => {
                let url = page(host, self.rng.u64(..HAMMERED));
                self.announce(url);
                if self.now < until {
                    self.schedule(600, Happening::Hammers { host, until });
                }
                Ok(())
            }
        }
    }

    /// Does one random action.
    fn step(&mut self) -> Kept {
        if !self.is_faulty {
            return Ok(());
        }
        let pause_ms = self.rng.u64(0..2_000);
        self.schedule(pause_ms, Happening::Step);
        self.note_losses();
        let could = !self.is_paused
            && matches!(self.broker.state, Running::Moves)
            && self.somebody_has_room();
        self.turns.check_idle(self.now, could, &self.hosts, &self.looks)?;
        if self.totals.releases * HOUR_MS < RELEASES * self.now.0 {
            self.want_more()?;
        }
        match self.rng.u32(0..2_000) {
            0..30 => self.vanish(),
            30..50 => return self.answer_twice(),
            50..70 => return self.tell_a_lie(),
            70 => return self.crash(),
            73..76 => self.stand_still(),
            76..78 => self.hammer(),
            80..140 => return self.change_credit(),
            140..260 => return self.ping(),
            260..290 => return self.operate(),
            290..340 => return self.with_some_job(),
            340..350 => self.announce_schedule(),
            350..360 => return self.delete_some_job(),
            360..370 => self.publish("no URL at all"),
            370..380 => return self.change_delay(),
            _ => {}
        }
        Ok(())
    }

    /// Adds work when there is little of it.
    fn want_more(&mut self) -> Kept {
        if self.is_paused && self.rng.u32(0..30) == 0 {
            return self.resume();
        }
        if self.rng.u32(0..8) == 0 {
            return self.open_job();
        }
        match self.rng.u32(0..24) {
            0 => self.announce_for_later(),
            1 => self.announce_by_rank(),
            2..9 => {
                let url = self.any_page();
                self.announce(url);
            }
            _ => {}
        }
        Ok(())
    }

    /// Announces more pages of a host than the host can serve.
    fn hammer(&mut self) {
        let host = self.rng.u64(..HOSTS);
        let until = self.now + 150_000;
        self.schedule(0, Happening::Hammers { host, until });
    }

    fn announce(&mut self, url: String) {
        self.publish(&url);
        self.named.insert(url);
    }

    /// Publishes an event, which the group consumes soon.
    fn publish(&mut self, payload: &str) {
        self.untaken.push((Seq(self.next_seq), payload.to_owned()));
        self.next_seq += 1;
        let soon_ms = self.rng.u64(..2_000);
        self.schedule(soon_ms, Happening::Takes);
    }

    /// Publishes an event after `ms`.
    fn publish_in(&mut self, ms: u64, payload: String) {
        self.schedule(ms, Happening::Publishes { payload });
    }

    fn take(&mut self) -> Kept {
        let most = if self.is_faulty { self.rng.usize(1..5) } else { usize::MAX };
        let events: Vec<_> = self.untaken.drain(..self.untaken.len().min(most)).collect();
        let Some((last, _)) = events.last() else { return Ok(()) };
        let next = Seq(last.0 + 1);
        self.feed(
            Input::Events { topic: topic(), next, events, elsewhere: [].into() },
            Said::Nothing,
        )
    }

    /// The group may act on an output, even if a crash can still undo it.
    fn is_decided(&mut self, unsent: &Unsent) {
        if let Unsent::Answer { said: Said::Task { told, say, .. }, answer: Ok(_), at } = unsent {
            self.goes_by(told, say, *at);
        }
    }

    /// An output is safe: the group cannot forget it any more, even if its receiver is gone.
    fn takes_effect(&mut self, unsent: &Unsent) -> Kept {
        match unsent {
            Unsent::Taken { order, wishes, at } => {
                for wish in wishes {
                    self.is_wanted(wish, *order, *at);
                }
                Ok(())
            }
            Unsent::Task { told, to: Some(member), .. } => {
                self.dues.check_release(told)?;
                self.passes.check_depth(told)?;
                self.ranks.take(told)?;
                self.turns.lease(told, *member);
                self.turns.take(told, &self.looks, &self.passes)
            }
            Unsent::Answer { said, answer, at } => {
                Self::check_answer(said, answer, *at)?;
                match said {
                    Said::Task { told, say, .. } if answer.is_ok() => self.hear_of(told, say, *at),
                    Said::Purge => {
                        self.looks.purge();
                        self.ranks.purge();
                        Ok(())
                    }
                    Said::Delay(delay_ms) => {
                        self.hosts.set_delay(*delay_ms);
                        Ok(())
                    }
                    Said::Delete { name, opened } => self.deleted(name, *opened, answer),
                    _ => Ok(()),
                }
            }
            Unsent::Task { .. } | Unsent::Ended(_) | Unsent::Announce { .. } => Ok(()),
        }
    }

    /// The group knows, since `at`, of a requested fetch.
    fn is_wanted(&mut self, wish: &Wish, order: u64, at: Moment) {
        let Wish { url, job, after_ms, .. } = wish;
        self.dues.want(url, at + *after_ms);
        self.ranks.want(wish, at);
        if job.is_some() {
            return;
        }
        if *after_ms > 0 {
            self.turns.announce_for_later(url, &self.looks, &self.passes);
        } else {
            self.turns.announce(url, &self.passes);
        }
        self.looks.promise(url, order);
    }

    /// Makes an output effective and sends it.
    fn leave(&mut self, unsent: Unsent) -> Kept {
        match unsent {
            Unsent::Taken { .. } => Ok(()),
            Unsent::Task { conn, told, to } => self.give(conn, told, to.is_some()),
            Unsent::Answer { said, answer, at } => self.hear_answer(said, answer, at),
            Unsent::Ended(answer) => self.told(&answer),
            Unsent::Announce { serial, topic, payload } => self.hear(serial, topic, &payload),
        }
    }

    /// Checks that no member holds two suspects (entries that lost members before).
    fn check_suspects(&self) -> Kept {
        let group = &self.broker.group;
        let suspect =
            |entry: &EntryId| group.live.get(entry).is_some_and(|live| live.entry.is_suspect());
        let twice = group
            .members
            .iter()
            .find(|(_, member)| member.held().iter().filter(|entry| suspect(entry)).count() > 1);
        Promise::CreditKept.holds(twice.is_none(), || format!("two suspects: {twice:?}"))
    }

    fn schedule(&mut self, ms: u64, happening: Happening) {
        self.agenda_len += 1;
        self.agenda.insert((self.now + ms, self.agenda_len), happening);
    }

    fn any_page(&mut self) -> String {
        page(self.rng.u64(0..HOSTS), self.rng.u64(0..PAGES))
    }

    /// A page that no other page links to, and that was never announced.
    fn new_page(&mut self) -> String {
        self.next_page += 1;
        page(self.rng.u64(0..HOSTS + LONELY_HOSTS), self.next_page)
    }

    /// The same, but sometimes on a host with pages that other jobs wait for.
    fn new_seed(&mut self) -> String {
        self.next_page += 1;
        page(self.rng.u64(0..HOSTS), self.next_page)
    }

    /// Records an event, if the world is traced.
    fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", what()));
        }
    }
}

fn topic() -> TopicName {
    "new-url".parse().expect("the name is valid")
}
