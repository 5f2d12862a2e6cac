//! Simulated world of one group: true time, hosts that observe their requests, pages that link to
//! each other, misbehaving workers, an operator, and a broker that crashes at any point and
//! restarts from its disk.
//!
//! One seed decides every event. The group, its log, its recovery and the handling of clocks are
//! the real code. Everything around them is simulated:
//!
//! | | faults |
//! |---|---|
//! | [`worker`] | stalls past its lease, is redirected, loses its connection or its process, reconnects before the broker notices, answers late or twice, answers for tasks of others, asks for parts of pages that it may not request |
//! | [`broker`] | crashes at any write, is paused, runs out of disk space, has a slow disk |
//! | [`disk`] | loses or tears data that was not synced |
//! | [`machine`] | reboots; its wall clock is set by up to years, and back |
//! | [`outages`] | hosts do not answer for a while, or for ever; the workers lose their network |
//! | [`operator`] | pauses, purges, cancels, deletes, opens the next pass, adds late seeds, changes the delay, drains workers, sets rules |
//! | [`steering`] | narrows jobs that run, and changes their limits |
//!
//! The promises that must hold nevertheless are in [`promises`]. Each has one checker:
//! [`host_check`], [`announcement_check`], [`pass_check`], [`fairness_check`], [`due_check`],
//! [`priority_check`], [`drain_check`], [`outages`], [`part_check`]. The checkers use only what hosts, workers and
//! readers of the topics observe. The first broken promise ends the run.

mod announcement_check;
mod broker;
mod commands;
mod disk;
mod drain_check;
mod due_check;
mod event_orders;
mod fairness_check;
mod fetch_request;
mod finish;
mod host_check;
mod machine;
mod operator;
mod outages;
mod outcome_check;
mod output_queue;
mod part_check;
mod pass_check;
mod priority_check;
mod promises;
mod rule_check;
mod run_totals;
mod schedules;
mod settings;
mod steering;
mod task;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidings_protocol::{JobName, MemberId, Payload, Seq, TaskId, TopicName};

use self::announcement_check::AnnouncementCheck;
use self::broker::{Broker, BrokerState, PlannedCrash};
use self::commands::CommandOrigin;
use self::disk::CrashKind;
use self::drain_check::DrainCheck;
use self::due_check::DueCheck;
use self::fairness_check::FairnessCheck;
use self::host_check::HostCheck;
use self::machine::Machine;
use self::outages::OutageCheck;
use self::outcome_check::OutcomeCheck;
use self::pass_check::PassCheck;
use self::priority_check::PriorityCheck;
pub(super) use self::promises::{BrokenPromise, CheckResult, Promise};
pub(super) use self::run_totals::RunTotals;
use self::worker::Worker;
use super::site::{HOSTS, LONELY_HOSTS, PAGES, page, render_of};
use crate::config::GroupConfig;
use crate::decide::prefetch::PREFETCH_BATCH;
use crate::entry::EntryId;
use crate::moment::{ClockStamp, Moment};
use crate::texts::{Paging, TextReply};
use crate::{ConnId, Group, Input, NeverList};

/// An event that the filter of the group excludes.
const EXCLUDED: &str = "http://excluded.test/ excluded=yes";
const DELAY_MS: u64 = 1000;
const LEASE_MS: u64 = 20_000;
const WORKERS: u64 = 4;
const HOUR_MS: u64 = 3_600_000;
/// The connection that waits for jobs.
const WAITER_CONN: ConnId = ConnId(u64::MAX);
/// Releases that an hour should have.
const RELEASES: u64 = 1_100;
/// Pages of a host that are announced repeatedly while jobs wait for all of them.
const HAMMERED_PAGES: u64 = PAGES / 2;
/// A scheduled event of the world.
enum WorldEvent {
    /// A random action.
    Step,
    /// The group consumes some of the published events.
    Takes,
    RequestEnds {
        host: String,
        worker: usize,
        incarnation: u64,
        task: TaskId,
    },
    /// A worker sends its answer for a task.
    WorkerAnswers {
        worker: usize,
        task: TaskId,
    },
    /// The broker notices the end of a connection.
    Disconnected {
        conn: ConnId,
    },
    WorkerReturns {
        worker: usize,
    },
    /// In that start of the broker, the disk has synced everything before `upto`.
    Synced {
        start_number: u64,
        upto: u64,
    },
    /// An announcement is durable on its topic.
    EventDurable {
        start_number: u64,
        serial: u64,
        topic: &'static str,
    },
    /// In that start of the broker, texts were read or written.
    TextsReplied {
        start_number: u64,
        reply: TextReply,
    },
    /// A broker that was paused continues.
    BrokerResumes {
        start_number: u64,
    },
    BrokerStarts {
        end: CrashKind,
        started: ClockStamp,
        last: Moment,
    },
    Publishes {
        payload: String,
    },
    OutageEnds {
        host: String,
    },
    NetworkReturns,
    /// The first pages of a host are announced repeatedly until then.
    Hammers {
        host: u64,
        until: Moment,
    },
}

/// Options of a world.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is set whatever the others are")]
pub(super) struct WorldOptions {
    /// Whether the wall clock is set.
    pub(super) clock_jumps: bool,
    /// Whether the power fails. Only the wall clock connects the machine's time before and after
    /// that.
    pub(super) reboots: bool,
    /// Limit of entries for some groups.
    pub(super) low_entries_max: Option<usize>,
    /// Largest limit of parallel requests per host.
    pub(super) parallel_max: u32,
    /// Whether the operator drains workers.
    pub(super) drains: bool,
    /// Whether the operator sets rules for hosts.
    pub(super) rules: bool,
    /// Whether the operator changes jobs that run, and the never-list.
    pub(super) steers: bool,
    /// Whether some pages need a browser.
    pub(super) render: bool,
    /// Whether some hosts do not answer for a while, or for ever.
    pub(super) outages: bool,
    /// How texts are paged, if they are.
    pub(super) paging: Option<Paging>,
    /// Whether events are recorded.
    pub(super) traced: bool,
}

pub(super) struct World {
    broker: Broker,
    machine: Machine,
    /// True time.
    now: Moment,
    /// Decides about replies about texts, so that a world without them is the same.
    text_rng: fastrand::Rng,
    /// Decides about browsers, so that a world without them is the same.
    render_rng: fastrand::Rng,
    /// Decides about changes of jobs, so that a world without them is the same.
    steering_rng: fastrand::Rng,
    rng: fastrand::Rng,
    nature: WorldOptions,
    /// The worker in the broker's own process.
    local_worker: Option<usize>,
    is_faulty: bool,
    /// Whether a test, not the worker, decides when requests end and how they are answered.
    is_scripted: bool,
    /// The group's limit of entries. Only workers receive an error when it is reached.
    low_entries_max: Option<usize>,
    /// A planned crash of the broker, instead of random ones.
    planned_crash: Option<PlannedCrash>,
    is_paused: bool,
    /// The never-list that is in force; it may be empty.
    never_list: Arc<NeverList>,
    hosts: HostCheck,
    due_check: DueCheck,
    announcement_check: AnnouncementCheck,
    passes: PassCheck,
    fairness_check: FairnessCheck,
    priority_check: PriorityCheck,
    drain_check: DrainCheck,
    outages: OutageCheck,
    outcome_check: OutcomeCheck,
    workers: Vec<Worker>,
    agenda: BTreeMap<(Moment, u64), WorldEvent>,
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
    unconsumed: Vec<(Seq, String)>,
    /// All URLs that were ever announced.
    announced: BTreeSet<String>,
    /// When each URL was last given to a worker.
    begun: BTreeMap<String, Moment>,
    /// Intervals of the scheduled URLs, in ms.
    scheduled: BTreeMap<String, u64>,
    /// Jobs that other groups know of.
    job_names: BTreeSet<JobName>,
    /// Serials of announcements that are on their topics.
    published: BTreeSet<u64>,
    /// The group's `since` number that workers received.
    since: Option<u64>,
    totals: RunTotals,
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, nature: WorldOptions) -> Self {
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
            ("where", "excluded!=yes"),
        ];
        let config =
            GroupConfig::default().with_settings(settings).expect("the settings are valid");
        let low_entries_max = nature.low_entries_max.filter(|_| rng.u32(0..4) == 0);
        let entries_max = low_entries_max.unwrap_or(config.entries_max);
        // Few enough that some jobs are forgotten.
        let config = GroupConfig { finished_jobs_max: 5, dead_max: 5, entries_max, ..config };
        let name = "crawlers".parse().expect("the name is valid");
        let mut group = Group::new(name, 0, config, rng.u64(..));
        if let Some(paging) = nature.paging {
            group.set_paging(paging);
        }
        let members = (0..WORKERS).map(|number| MemberId(u128::from(number + 1) << 96));
        let local_worker = rng.bool().then_some(0);
        Self {
            broker: Broker::new(group),
            machine: Machine::new(nature.clock_jumps.then_some(seed)),
            now: Moment(0),
            text_rng: fastrand::Rng::with_seed(seed),
            render_rng: fastrand::Rng::with_seed(seed),
            steering_rng: fastrand::Rng::with_seed(seed),
            rng,
            nature,
            local_worker,
            is_faulty: true,
            is_scripted: false,
            low_entries_max,
            planned_crash: None,
            is_paused: false,
            never_list: Arc::default(),
            hosts: HostCheck::new(parallel),
            due_check: DueCheck::default(),
            announcement_check: AnnouncementCheck::default(),
            passes: PassCheck::default(),
            fairness_check: FairnessCheck::default(),
            priority_check: PriorityCheck::default(),
            drain_check: DrainCheck::default(),
            outages: OutageCheck::new(seed, attempts.parse().expect("it is a number")),
            outcome_check: OutcomeCheck::default(),
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
            unconsumed: Vec::new(),
            announced: BTreeSet::new(),
            begun: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            job_names: BTreeSet::new(),
            published: BTreeSet::new(),
            since: None,
            totals: RunTotals::default(),
            trace: nature.traced.then(Vec::new),
        }
    }

    /// Simulates one hour of faults, and then lets everything end. Returns the counts and the
    /// recorded events.
    pub(super) fn simulate(
        seed: u64,
        nature: WorldOptions,
    ) -> (Result<RunTotals, BrokenPromise>, Vec<String>) {
        let mut world = Self::new(seed, nature);
        let lived = world.simulate_hour();
        (lived.map(|()| world.totals), world.trace.unwrap_or_default())
    }

    fn simulate_hour(&mut self) -> CheckResult {
        self.begin(1, false)?;
        (0..self.workers.len()).try_for_each(|worker| self.reconnect_worker(worker))?;
        self.schedule(0, WorldEvent::Step);
        self.advance(HOUR_MS)?;
        self.finish_everything()
    }

    /// Advances the time, with all events in it, in order.
    fn advance(&mut self, ms: u64) -> CheckResult {
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
                self.handle_event(happening)?;
            } else {
                self.feed(Input::Tick, CommandOrigin::Nothing)?;
            }
        }
        self.now = until;
        Ok(())
    }

    fn handle_event(&mut self, happening: WorldEvent) -> CheckResult {
        match happening {
            WorldEvent::Step => self.step(),
            WorldEvent::Takes => self.consume_events(),
            WorldEvent::RequestEnds { host, worker, incarnation, task } => {
                self.request_ends(&host, worker, incarnation, &task)
            }
            WorldEvent::WorkerAnswers { worker, task } => self.send_answer(worker, &task),
            WorldEvent::Disconnected { conn } => {
                self.feed(Input::Disconnected { conn }, CommandOrigin::Nothing)
            }
            WorldEvent::WorkerReturns { worker } => self.reconnect_worker(worker),
            WorldEvent::Synced { start_number, upto } => self.synced(start_number, upto),
            WorldEvent::EventDurable { start_number, serial, topic }
                if start_number == self.broker.start_number() =>
            {
                self.feed(
                    Input::Published { serial, topic, seq: Seq(serial) },
                    CommandOrigin::Nothing,
                )
            }
            WorldEvent::TextsReplied { start_number, reply }
                if start_number == self.broker.start_number() =>
            {
                self.feed(Input::Texts(reply), CommandOrigin::Nothing)
            }
            // The broker has crashed since.
            WorldEvent::EventDurable { .. } | WorldEvent::TextsReplied { .. } => Ok(()),
            WorldEvent::BrokerResumes { start_number } => self.resume_broker(start_number),
            WorldEvent::BrokerStarts { end, started, last } => self.start(end, started, last),
            WorldEvent::Publishes { payload } => {
                self.publish(&payload);
                Ok(())
            }
            WorldEvent::OutageEnds { host } => {
                self.end_outage(&host);
                Ok(())
            }
            WorldEvent::NetworkReturns => {
                self.return_network();
                Ok(())
            }
            WorldEvent::Hammers { host, until } => {
                let url = page(host, self.rng.u64(..HAMMERED_PAGES));
                self.announce(url);
                if self.now < until {
                    self.schedule(600, WorldEvent::Hammers { host, until });
                }
                Ok(())
            }
        }
    }

    /// Does one random action.
    fn step(&mut self) -> CheckResult {
        if !self.is_faulty {
            return Ok(());
        }
        let pause_ms = self.rng.u64(0..2_000);
        self.schedule(pause_ms, WorldEvent::Step);
        self.note_losses();
        self.totals.count_rendered_outside(&self.broker.group);
        let runs = !self.is_paused && matches!(self.broker.state, BrokerState::Running);
        let could = [false, true].map(|render| runs && self.any_has_credit(render));
        let (now, hosts) = (self.now, (&self.hosts, &self.outages));
        self.fairness_check.check_idle(now, could.into(), hosts, &self.announcement_check)?;
        if self.nature.outages {
            self.perhaps_begin_outage();
            self.perhaps_lose_network();
        }
        if self.totals.releases * HOUR_MS < RELEASES * self.now.0 {
            self.add_work()?;
        }
        if self.nature.steers {
            self.steer()?;
        }
        match self.rng.u32(0..2_000) {
            0..30 => self.disconnect_worker(),
            30..50 => return self.answer_twice(),
            50..70 => return self.answer_for_others(),
            70 => return self.crash(),
            73..76 => self.pause_broker(),
            76..78 => self.announce_repeatedly(),
            80..140 => return self.change_credit(),
            140..260 => return self.ping(),
            260..290 => return self.operate(),
            290..340 => return self.with_some_job(),
            340..350 => self.announce_schedule(),
            350..360 => return self.delete_some_job(),
            360..370 => self.publish("no URL at all"),
            370..380 => return self.change_delay(),
            380..400 if self.nature.drains => return self.drain_some_worker(),
            400..430 if self.nature.rules => return self.change_rule(),
            _ => {}
        }
        Ok(())
    }

    /// Adds work when there is little of it.
    fn add_work(&mut self) -> CheckResult {
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
    fn announce_repeatedly(&mut self) {
        let host = self.rng.u64(..HOSTS);
        let until = self.now + 150_000;
        self.schedule(0, WorldEvent::Hammers { host, until });
    }

    fn announce(&mut self, url: String) {
        self.publish(&url);
        self.announced.insert(url);
    }

    /// Publishes an event, which the group consumes soon.
    fn publish(&mut self, payload: &str) {
        let target = Payload::parse(payload).target().filter(|_| self.nature.render);
        let render = target.and_then(render_of).map(|render| format!(" render={render}"));
        let payload = format!("{payload}{}", render.unwrap_or_default());
        self.unconsumed.push((Seq(self.next_seq), payload));
        // The next one is an event that the group does not take.
        self.next_seq += 2;
        let soon_ms = self.rng.u64(..2_000);
        self.schedule(soon_ms, WorldEvent::Takes);
    }

    /// Publishes an event after `ms`.
    fn publish_in(&mut self, ms: u64, payload: String) {
        self.schedule(ms, WorldEvent::Publishes { payload });
    }

    fn consume_events(&mut self) -> CheckResult {
        // At most as many as the group prefetches, so that it consumes all or none of them.
        let most = if self.is_faulty {
            self.rng.usize(1..5)
        } else if self.nature.paging.is_some() {
            PREFETCH_BATCH
        } else {
            usize::MAX
        };
        let events: Vec<_> = self.unconsumed.drain(..self.unconsumed.len().min(most)).collect();
        let Some((last, _)) = events.last() else { return Ok(()) };
        let next = Seq(last.0 + 2);
        let with_excluded =
            |(seq, payload): (Seq, String)| [(seq, payload), (Seq(seq.0 + 1), EXCLUDED.to_owned())];
        let events = events.into_iter().flat_map(with_excluded).collect();
        self.feed(
            Input::Events { topic: topic(), next, events, foreign_jobs: [].into() },
            CommandOrigin::Nothing,
        )
    }

    /// Checks that no member holds two suspects (entries that lost members before).
    fn check_suspects(&self) -> CheckResult {
        let group = &self.broker.group;
        let suspect = |entry: &EntryId| {
            group.state.frontier().find(*entry).is_some_and(|live| live.entry.is_suspect())
        };
        let twice =
            group.state.leases().members().iter().find(|(_, member)| {
                member.held().iter().filter(|entry| suspect(entry)).count() > 1
            });
        Promise::CreditKept.holds(twice.is_none(), || format!("two suspects: {twice:?}"))
    }

    fn schedule(&mut self, ms: u64, happening: WorldEvent) {
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
