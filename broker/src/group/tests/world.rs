//! A world for the machine: true time, hosts that know who asks them when, pages that link to each
//! other, workers of every character, an operator, and a broker that ends in the middle of anything
//! and begins again with what its disk has.
//!
//! One seed decides everything that happens. The group is the real one; so are the log, the start
//! from it and what a start makes of clocks. What is simulated is what is around them:
//!
//! | | what goes wrong with it |
//! |---|---|
//! | [`worker`] | stalls past its lease, is sent elsewhere, loses its connection with or without its memory, comes back before the broker knows that it was gone, answers late, twice, and about what is not its own |
//! | [`broker`] | is killed at any write, stands still, has no room; its disk is slow |
//! | [`disk`] | keeps a part of what was not synced, and tears it |
//! | [`machine`] | reboots; its wall clock is set, by years and back |
//! | [`operator`] | pauses, purges, cancels, deletes, opens the next pass, seeds too late, sets another delay |
//!
//! What must hold all the same is in [`promises`], with one checker each: [`hosts`], [`looks`],
//! [`passes`], [`turns`], [`dues`], [`ranks`]. They judge by what hosts, workers and readers of the
//! topics see. The first promise that is broken ends the world.

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
/// The connection of whoever waits for jobs.
const WAITING: ConnId = ConnId(u64::MAX);
/// Releases that an hour should have.
const RELEASES: u64 = 1_100;
/// Pages of a host that somebody announces without end; jobs wait for all of them.
const HAMMERED: u64 = PAGES / 2;
/// In this time everything has come to its end when nothing goes wrong any more.
const END_MS_MAX: u64 = 30 * 60_000;

/// Something that is going to happen.
enum Happening {
    /// Somebody does something.
    Step,
    /// The group takes some of what was published.
    Takes,
    RequestEnds {
        host: String,
        worker: usize,
        life: u64,
        task: TaskId,
    },
    /// A worker says what it has to say about a task.
    Speaks {
        worker: usize,
        task: TaskId,
    },
    /// The broker hears that a connection is gone.
    Gone {
        conn: ConnId,
    },
    Returns {
        worker: usize,
    },
    /// Of one life of the broker: the disk has everything up to there.
    Synced {
        life: u64,
        upto: u64,
    },
    /// An announcement is safe on its topic.
    Safe {
        life: u64,
        serial: u64,
        topic: &'static str,
    },
    /// A broker that stood still goes on.
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
    /// Somebody announces the first pages of a host without end, until then.
    Hammers {
        host: u64,
        until: Moment,
    },
}

/// What happened, to see that a life was hard enough.
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

/// What kind of world it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nature {
    /// Somebody sets the wall clock.
    pub(super) clock_jumps: bool,
    /// The power goes: another run of the machine, which only the wall clock connects to this one.
    pub(super) reboots: bool,
    /// So few entries some groups have room for.
    pub(super) narrow: Option<usize>,
    /// So many requests groups may have open at a host at once.
    pub(super) parallel_max: u32,
    /// What happens is written down.
    pub(super) traced: bool,
}

pub(super) struct World {
    broker: Broker,
    machine: Machine,
    /// True time.
    now: Moment,
    rng: fastrand::Rng,
    nature: Nature,
    /// A worker that lives in the broker's process.
    own: Option<usize>,
    is_faulty: bool,
    /// Of requests that begin now, somebody else says when they end, and what is said then.
    is_scripted: bool,
    /// The group has room for so few entries, and only workers are told that it is full.
    narrow: Option<usize>,
    /// How the broker is to end, if that is not left to chance.
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
    /// Numbers what the group decides, in its order.
    order: u64,
    /// The place in that order of the release of each task, and when that was.
    released: BTreeMap<TaskId, (u64, Moment)>,
    /// Ids that were answered, of which every further answer is stale.
    answered: Vec<(usize, TaskId)>,
    next_conn: u64,
    next_seq: u64,
    last_job: u64,
    /// Pages to which no other points are numbered from here.
    next_page: u64,
    /// Published but not yet taken by the group.
    untaken: Vec<(Seq, String)>,
    /// URLs that were ever announced.
    named: BTreeSet<String>,
    /// When a worker was last given it.
    begun: BTreeMap<String, Moment>,
    /// How often URLs are to be looked at, in ms.
    scheduled: BTreeMap<String, u64>,
    /// What other groups were told: jobs that there are.
    job_names: BTreeSet<JobName>,
    /// Announcements that are on their topics.
    heard: BTreeSet<u64>,
    /// What workers were told of the group's life.
    since: Option<u64>,
    totals: Totals,
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, nature: Nature) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let attempts = if rng.bool() { "100" } else { "2" };
        // One is what most groups have.
        let is_crowded = nature.parallel_max > 1 && rng.bool();
        let parallel = if is_crowded { rng.u32(2..=nature.parallel_max) } else { 1 };
        let settings = [
            ("parallel", &*parallel.to_string()),
            ("delay", "1s"),
            ("lease", "20s"),
            ("max-attempts", attempts),
            ("max-losses", "100"),
        ];
        let config = GroupConfig::default().with(settings).expect("they are settings");
        let narrow = nature.narrow.filter(|_| rng.u32(0..4) == 0);
        let entries_max = narrow.unwrap_or(config.entries_max);
        // So few that some are forgotten.
        let config = GroupConfig { finished_jobs_max: 5, dead_max: 5, entries_max, ..config };
        let name = "crawlers".parse().expect("it is a name");
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

    /// An hour of faults, and then everything comes to its end. What happened, and what was written
    /// down of it.
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

    /// From here on everybody is well, and the group must come to an end by itself.
    fn come_to_an_end(&mut self) -> Kept {
        self.is_faulty = false;
        let until = self.now + END_MS_MAX;
        // Whatever is away comes back first.
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
        // The last of it is on its way to the disk.
        self.pass(DELAY_MS)?;
        let (group, passes) = (&self.broker.group, &self.passes);
        Promise::AllFinishes.holds(group.is_idle(), || {
            format!("left: {:?}, {} parked", group.live, group.parked.len())
        })?;
        let open = passes.names(false);
        Promise::AllFinishes.holds(open.is_empty(), || format!("never done: {open:?}"))?;
        for job in group.jobs.iter() {
            passes.check_counts(job.name.as_ref(), &group.describe_job(job))?;
        }
        self.looks.check_end()?;
        let told = passes.iter().all(|(_, pass)| pass.waits == 0);
        Promise::DoneOnce.holds(told, || "somebody waits for a job that is done".to_owned())?;
        let same = self.job_names.iter().eq(group.job_names().collect::<BTreeSet<_>>());
        Promise::DoneOnce.holds(same, || format!("others know of {:?}", self.job_names))
    }

    fn is_idle(&self) -> bool {
        let publishes = |it: &Happening| matches!(it, Happening::Publishes { .. });
        self.broker.group.is_idle()
            && self.untaken.is_empty()
            && !self.agenda.values().any(publishes)
    }

    /// Lets time pass, with everything that falls into it, in order.
    fn pass(&mut self, ms: u64) -> Kept {
        let until = self.now + ms;
        loop {
            let happening = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let next = happening.into_iter().chain(self.broker.deadline()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.totals.clock_jumps += u64::from(self.machine.pass(self.now));
            // What has arrived is read before leases are expired.
            if happening.is_some_and(|at| at <= self.now) {
                let (_, happening) = self.agenda.pop_first().expect("there is one");
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

    /// One random thing is done.
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

    /// There is not much to do.
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

    /// Somebody announces more of a host than it gives.
    fn hammer(&mut self) {
        let host = self.rng.u64(..HOSTS);
        let until = self.now + 150_000;
        self.schedule(0, Happening::Hammers { host, until });
    }

    fn announce(&mut self, url: String) {
        self.publish(&url);
        self.named.insert(url);
    }

    /// An event is published; the group takes it soon.
    fn publish(&mut self, payload: &str) {
        self.untaken.push((Seq(self.next_seq), payload.to_owned()));
        self.next_seq += 1;
        let soon_ms = self.rng.u64(..2_000);
        self.schedule(soon_ms, Happening::Takes);
    }

    /// Somebody is going to publish something.
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

    /// The group goes by something, even if it may still forget it.
    fn is_decided(&mut self, unsent: &Unsent) {
        if let Unsent::Answer { said: Said::Task { told, say, .. }, answer: Ok(_), at } = unsent {
            self.goes_by(told, say, *at);
        }
    }

    /// The group knows something for good, whoever hears of it.
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

    /// The group knows what somebody wants looked at, since then.
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

    /// And it leaves.
    fn leave(&mut self, unsent: Unsent) -> Kept {
        match unsent {
            Unsent::Taken { .. } => Ok(()),
            Unsent::Task { conn, told, to } => self.give(conn, told, to.is_some()),
            Unsent::Answer { said, answer, at } => self.hear_answer(said, answer, at),
            Unsent::Ended(answer) => self.told(&answer),
            Unsent::Announce { serial, topic, payload } => self.hear(serial, topic, &payload),
        }
    }

    /// No member holds two of those that members were lost over.
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

    /// A page to which no other points, and of which nobody has heard.
    fn new_page(&mut self) -> String {
        self.next_page += 1;
        page(self.rng.u64(0..HOSTS + LONELY_HOSTS), self.next_page)
    }

    /// The same, on a host with pages that others are after.
    fn new_seed(&mut self) -> String {
        self.next_page += 1;
        page(self.rng.u64(0..HOSTS), self.next_page)
    }

    /// Writes down what happens, for whoever wants to know.
    fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", what()));
        }
    }
}

fn topic() -> TopicName {
    "new-url".parse().expect("it is a name")
}
