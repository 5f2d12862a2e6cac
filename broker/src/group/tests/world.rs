//! A world for the machine: a clock, hosts that know who asks them when, pages that link to each
//! other, and workers of every character. It believes nothing that the group says of itself.

mod crash;
mod operator;
mod schedules;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidings_protocol::{
    AckAnswer, DEAD_LETTER_TOPIC, Hold, JOB_DONE_TOPIC, JobName, MemberId, Outcome, ProtocolError,
    Return, Seq, TaskId, TopicName,
};

use self::operator::{Expected, WAITING};
use super::bench::slot;
use super::site::{HOSTS, PAGES, host_of, links_of, page};
use crate::clock::Moment;
use crate::group::config::GroupConfig;
use crate::group::record::{Decision, Record};
use crate::group::{Answer, Asked, Group, Input, Output, StagedLink, Task};
use crate::mailbox::ConnId;

pub(super) const DELAY_MS: u64 = 1000;
pub(super) const LEASE_MS: u64 = 20_000;
const WORKERS: u64 = 4;

/// What a host has seen, from its own side.
#[derive(Default)]
struct Host {
    open: u32,
    last_end: Option<Moment>,
    requests: u64,
}

/// A worker: its tasks are its own memory, its requests belong to the hosts.
struct Worker {
    member: MemberId,
    conn: Option<ConnId>,
    tasks: BTreeSet<TaskId>,
    credit: u32,
}

enum Happening {
    /// A request ends at the host, and its worker hears of it if it still exists.
    RequestEnds { host: String, worker: usize, task: Task },
    /// A worker that has said that its request is over answers at last.
    Answers { worker: usize, task: Task },
    /// Somebody reconnects.
    Returns { worker: usize },
}

pub(super) struct World {
    pub(super) group: Group,
    pub(super) records: Vec<Record>,
    pub(super) now: Moment,
    pub(super) rng: fastrand::Rng,
    hosts: HashMap<String, Host>,
    workers: Vec<Worker>,
    agenda: BTreeMap<(Moment, u64), Happening>,
    agenda_len: u64,
    next_conn: u64,
    next_seq: u64,
    /// Published but not yet taken by the group.
    untaken: Vec<(Seq, String)>,
    /// Answered ids, of which every further answer is stale.
    answered: Vec<(usize, TaskId)>,
    /// Jobs that were opened: pages that must be reached, and the announcements of their end.
    pub(super) jobs: BTreeMap<String, Expected>,
    /// When each URL was last announced, and when a request for it last began.
    announced: BTreeMap<String, Moment>,
    begun: BTreeMap<String, Moment>,
    /// What other groups were told: jobs that there are.
    job_names: BTreeSet<JobName>,
    /// How often URLs are to be looked at, in ms.
    scheduled: BTreeMap<String, u64>,
    /// Those that are to be looked at at a time of day.
    daily: BTreeSet<String>,
    /// What the wall clock shows at moment 0.
    wall_ms: i64,
    /// URLs that were ever announced.
    named: BTreeSet<String>,
    /// Announcements that appeared on their topics, and those of which the group is still to be
    /// told that; whether they are of jobs.
    heard: BTreeSet<u64>,
    safe: Vec<(u64, bool)>,
    pub(super) faults: u64,
    pub(super) faulty: bool,
    trace: Vec<String>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let attempts = if rng.bool() { "100" } else { "2" };
        let settings =
            [("delay", "1s"), ("lease", "20s"), ("max-attempts", attempts), ("max-losses", "100")];
        let config = GroupConfig::default().with(settings).unwrap();
        // So few that some are forgotten.
        let config = GroupConfig { finished_jobs_max: 5, dead_max: 5, ..config };
        let group = Group::new("crawlers".parse().unwrap(), 1, config, rng.u64(..));
        let workers = (0..WORKERS).map(|number| Worker {
            member: MemberId(u128::from(number) + 1),
            conn: None,
            tasks: BTreeSet::new(),
            credit: 0,
        });
        let mut world = Self {
            group,
            records: Vec::new(),
            now: Moment(0),
            workers: workers.collect(),
            rng,
            hosts: HashMap::new(),
            agenda: BTreeMap::new(),
            agenda_len: 0,
            next_conn: 1,
            next_seq: 1,
            untaken: Vec::new(),
            answered: Vec::new(),
            jobs: BTreeMap::new(),
            announced: BTreeMap::new(),
            begun: BTreeMap::new(),
            job_names: BTreeSet::new(),
            scheduled: BTreeMap::new(),
            daily: BTreeSet::new(),
            wall_ms: 0,
            named: BTreeSet::new(),
            heard: BTreeSet::new(),
            safe: Vec::new(),
            faults: 0,
            faulty: true,
            trace: Vec::new(),
        };
        world.start();
        (0..world.workers.len()).for_each(|worker| world.join(worker));
        world
    }

    /// One random thing happens, after some time.
    pub(super) fn step(&mut self) {
        let pause_ms = self.rng.u64(0..400);
        self.pass(pause_ms);
        match self.rng.u32(0..100) {
            0..10 => self.announce(),
            10..16 => self.open_job(),
            60..63 => self.publish("no URL at all"),
            63..66 => self.operate(),
            66..71 => self.with_some_job(),
            71..73 => self.announce_schedule(),
            73 => self.delete_some_job(),
            74 => self.set_clock(),
            75 => self.announce_for_later(),
            16..40 => self.take(),
            40..46 if self.faulty => self.vanish(),
            46..52 if self.faulty => self.answer_twice(),
            52..60 => self.change_credit(),
            _ => {}
        }
    }

    /// Lets time pass, with everything that falls into it, in order.
    pub(super) fn pass(&mut self, ms: u64) {
        let until = self.now + ms;
        loop {
            let happening = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let deadline = self.group.deadline();
            let next = match (happening, deadline) {
                (Some(happening), Some(deadline)) => happening.min(deadline),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break,
            };
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            // What has arrived is read before leases are expired.
            if happening.is_some_and(|at| at <= self.now) {
                let (_, happening) = self.agenda.pop_first().unwrap();
                self.happen(happening);
            } else {
                self.feed(Input::Tick);
            }
        }
        self.now = until;
        self.feed(Input::Tick);
    }

    /// From here on everybody is well, and the group must come to an end by itself.
    pub(super) fn finish(&mut self) {
        self.faulty = false;
        self.leave_alone();
        for worker in 0..self.workers.len() {
            if self.workers[worker].conn.is_none() {
                self.join(worker);
            } else {
                self.rejoin(worker, 8);
            }
        }
        self.take();
        for _ in 0..100_000 {
            if self.jobs.values().all(|job| job.done > 0) {
                break;
            }
            self.pass(DELAY_MS);
        }
        self.finish_schedules();
        for _ in 0..100_000 {
            if self.agenda.is_empty() && self.group.is_idle() {
                break;
            }
            self.take();
            self.pass(DELAY_MS);
        }
        self.pass(LEASE_MS);
        assert!(
            self.group.is_idle(),
            "nothing is lost or stuck: {:?} {:?}",
            self.group.live,
            self.group.parked
        );
        for (name, job) in &self.jobs {
            assert_eq!(job.done, 1, "job {name} is announced exactly once");
            assert_eq!(job.waits, 0, "whoever waited for {name} is told");
            job.check_end(name);
        }
        assert_eq!(self.job_names, self.group.job_names().cloned().collect());
        for (url, announced) in &self.announced {
            let begun = self.begun.get(url);
            assert!(begun >= Some(announced), "{url} was announced at {announced}, last {begun:?}");
        }
    }

    pub(super) fn requests(&self) -> u64 {
        self.hosts.values().map(|host| host.requests).sum()
    }

    /// What happened last, for a failure's message.
    pub(super) fn trace(&self) -> String {
        let from = self.trace.len().saturating_sub(60);
        self.trace[from..].join("\n")
    }

    /// `None` if there is no answer, as to somebody of whom the broker heard last.
    fn feed(&mut self, input: Input) -> Option<Result<Answer, ProtocolError>> {
        if self.crashes() { self.crash(input) } else { self.handle(input) }
    }

    fn handle(&mut self, input: Input) -> Option<Result<Answer, ProtocolError>> {
        self.trace.push(format!("{} <- {input:?}", self.now));
        self.take_stock();
        let known = self.records.len();
        self.group.handle(input, self.now);
        let mut answered = None;
        while let Some(output) = self.group.poll() {
            match output {
                Output::Record(record) => self.records.push(record),
                Output::Answer { asked, answer } if asked.conn == WAITING => self.told(answer),
                Output::Answer { answer, .. } => answered = Some(answer),
                Output::JobName { name, known: true } => {
                    self.job_names.insert(name);
                }
                Output::JobName { name, known: false } => {
                    self.job_names.remove(&name);
                }
                Output::Deleted => panic!("nobody deletes it"),
                Output::Task { conn, task } => self.begin(conn, task),
                Output::Announce { serial, topic, payload } => self.hear(serial, topic, &payload),
                Output::AskHeads { job } => {
                    let heads = self.heads();
                    self.group.handle(Input::Heads { job, heads }, self.now);
                }
            }
        }
        self.check_credit(known);
        if let Some((serial, is_end)) = self.safe.pop() {
            let topic = if is_end { JOB_DONE_TOPIC } else { DEAD_LETTER_TOPIC };
            self.handle(Input::Sent { serial, topic, seq: Seq(serial) });
        }
        answered
    }

    fn heads(&self) -> BTreeMap<TopicName, Seq> {
        [(topic(), Seq(self.next_seq))].into()
    }

    /// A worker gets a task and makes its request at once.
    fn begin(&mut self, conn: ConnId, task: Task) {
        self.trace.push(format!("{} -> {} {}", self.now, task.id, task.payload));
        let worker = self.worker_of(conn);
        if !self.workers[worker].tasks.insert(task.id.clone()) {
            return; // Sent again after a reconnect; its request is known.
        }
        self.check_job(&task);
        let held = self.workers[worker].tasks.len();
        assert!(held <= 64, "a worker never holds more than the largest credit");
        if self.rng.u32(0..20) == 0 {
            let task_id = task.id.clone();
            self.workers[worker].tasks.remove(&task_id);
            // Handed back later, as an input of its own.
            self.schedule(0, Happening::Answers { worker, task: uncounted(task) });
            return;
        }
        let again = task.payload.split(" again=").nth(1);
        let url = again.unwrap_or(&task.payload).split(' ').next().unwrap().to_owned();
        let host = host_of(&url);
        if again.is_none() || Some(url.as_str()) == task.payload.split(' ').next() {
            self.begun.insert(url, self.now);
        }
        let seen = self.hosts.entry(host.clone()).or_default();
        assert_eq!(seen.open, 0, "{host} is asked twice at once");
        if let Some(end) = seen.last_end {
            let rest = self.now.since(end);
            assert!(rest >= DELAY_MS, "{host} has rested {rest} ms only");
        }
        seen.open += 1;
        seen.requests += 1;
        // A request never outlives its lease: that is the worker's part of the contract.
        let lasts_ms =
            self.rng.u64(1..task.lease_ms.min(if self.faulty { LEASE_MS } else { 2000 }));
        self.schedule(lasts_ms, Happening::RequestEnds { host, worker, task });
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::RequestEnds { host, worker, task } => {
                let seen = self.hosts.get_mut(&host).unwrap();
                seen.open -= 1;
                seen.last_end = Some(self.now);
                if self.workers[worker].tasks.contains(&task.id) {
                    self.respond(worker, task);
                }
            }
            Happening::Answers { worker, task } if task.lease_ms == 0 => {
                self.nack(worker, &task, Return::Uncounted { after_ms: None });
            }
            Happening::Answers { worker, task } => {
                if self.workers[worker].tasks.contains(&task.id) {
                    self.finish_task(worker, &task);
                }
            }
            Happening::Returns { worker } => {
                if self.workers[worker].conn.is_none() {
                    self.join(worker);
                }
            }
        }
    }

    fn respond(&mut self, worker: usize, task: Task) {
        if self.workers[worker].conn.is_none() {
            // It has the answer and nobody to tell: it will when it is back, perhaps too late.
            self.schedule(500, Happening::Answers { worker, task });
            return;
        }
        if self.goes_on(worker, &task) {
            return;
        }
        match self.rng.u32(0..100) {
            0..10 => self.nack(worker, &task, Return::Retry { after_ms: None }),
            10..25 => {
                let own = task.payload.split(' ').next().unwrap().to_owned();
                let other = format!("http://h{}.org/robots.txt", self.rng.u64(0..HOSTS));
                let url = if self.rng.bool() { own } else { other };
                self.nack(worker, &task, Return::Again { url });
            }
            25..35 if self.faulty => {
                // Stalls past its lease and answers then.
                self.faults += 1;
                self.schedule(LEASE_MS + 1, Happening::Answers { worker, task });
            }
            35..60 => {
                let asked = self.asked(worker);
                let task_id = task.id.clone();
                let hold = Hold::default();
                self.feed(Input::Touch { asked, task: task_id, over: true, hold });
                let stores_ms = self.rng.u64(1..3000);
                self.schedule(stores_ms, Happening::Answers { worker, task });
            }
            _ => self.finish_task(worker, &task),
        }
    }

    /// Whether that request was for another URL: then the page itself is still to be fetched.
    fn goes_on(&mut self, worker: usize, task: &Task) -> bool {
        let own = task.payload.split(' ').next().unwrap().to_owned();
        let elsewhere = task.payload.split(" again=").nth(1).is_some_and(|again| again != own);
        if elsewhere {
            self.nack(worker, task, Return::Again { url: own });
        }
        elsewhere
    }

    /// The final answer, with the page's links; it may be stale by now.
    fn finish_task(&mut self, worker: usize, task: &Task) {
        if self.workers[worker].conn.is_none() {
            self.schedule(500, Happening::Answers { worker, task: task.clone() });
            return;
        }
        if self.goes_on(worker, task) {
            return;
        }
        let url = task.payload.split(' ').next().unwrap().to_owned();
        let links = links_of(&url);
        let staged = links.iter().map(|url| StagedLink {
            url: url.as_str().into(),
            redirect: false,
            prio: 0,
        });
        let answer = self.feed(Input::Ack {
            asked: self.asked(worker),
            task: task.id.clone(),
            outcome: Outcome::Done,
            hold: Hold::default(),
            links: staged.collect(),
            over_limit: 0,
        });
        let Some(answer) = answer else {
            return self.schedule(500, Happening::Answers { worker, task: task.clone() });
        };
        self.workers[worker].tasks.remove(&task.id);
        self.answered.push((worker, task.id.clone()));
        let Ok(answer) = answer else { return };
        let counts = AckAnswer::parse(&answer.ok).expect("the answer to an ACK");
        assert_eq!(counts.new + counts.known + counts.refused, links.len() as u64);
        if let Some(job) = task.payload.split(" job=").nth(1) {
            let name = job.split(' ').next().unwrap();
            self.jobs.get_mut(name).unwrap().complete(&url);
        }
        self.check_done();
    }

    fn nack(&mut self, worker: usize, task: &Task, back: Return) {
        self.workers[worker].tasks.remove(&task.id);
        if self.workers[worker].conn.is_some() {
            let (asked, id, hold) = (self.asked(worker), task.id.clone(), Hold::default());
            let was_made = !matches!(back, Return::Uncounted { .. });
            let answer = self.feed(Input::Nack { asked, task: id, back, hold, reason: None });
            if answer.is_none() && was_made {
                // It knows what it did, and answers in another way when the broker is back.
                self.workers[worker].tasks.insert(task.id.clone());
                self.schedule(500, Happening::Answers { worker, task: task.clone() });
            }
        }
    }

    fn announce(&mut self) {
        let url = self.any_page();
        self.publish(&url);
        self.named.insert(url.clone());
        self.announced.insert(url, self.now);
    }

    fn publish(&mut self, payload: &str) {
        self.untaken.push((Seq(self.next_seq), payload.to_owned()));
        self.next_seq += 1;
    }

    /// The group takes some of what was published.
    fn take(&mut self) {
        let most = if self.faulty { self.rng.usize(0..4) } else { usize::MAX };
        let events: Vec<_> = self.untaken.drain(..self.untaken.len().min(most)).collect();
        if let Some((last, _)) = events.last() {
            // An announcement counts from here: a request that begins later is new enough.
            let next = Seq(last.0 + 1);
            self.feed(Input::Events { topic: topic(), next, events, elsewhere: [].into() });
            self.check_done();
        }
    }

    /// Nothing is announced as done before its last page.
    fn check_done(&self) {
        for (name, job) in &self.jobs {
            if job.done > 0 {
                job.check_end(name);
            }
        }
    }

    fn vanish(&mut self) {
        let worker = self.rng.usize(0..self.workers.len());
        let Some(conn) = self.workers[worker].conn.take() else {
            return;
        };
        self.faults += 1;
        if self.rng.bool() {
            // Killed: its memory is gone, its requests are not. Another one comes instead.
            self.workers[worker].tasks.clear();
            self.workers[worker].member = MemberId(self.rng.u128(..));
        }
        self.feed(Input::Gone { conn });
        let away_ms = self.rng.u64(1..2 * LEASE_MS);
        self.schedule(away_ms, Happening::Returns { worker });
    }

    fn answer_twice(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        let (worker, task) = self.answered[self.rng.usize(0..self.answered.len())].clone();
        let (asked, hold) = (self.asked(worker), Hold::default());
        let links = Vec::new();
        let outcome = Outcome::Done;
        let answer = self.feed(Input::Ack { asked, task, outcome, hold, links, over_limit: 0 });
        assert!(!matches!(answer, Some(Ok(_))), "a second answer is stale");
    }

    fn change_credit(&mut self) {
        let worker = self.rng.usize(0..self.workers.len());
        if self.workers[worker].conn.is_some() {
            let credit = self.rng.u32(0..9);
            self.rejoin(worker, credit);
        }
    }

    fn join(&mut self, worker: usize) {
        self.workers[worker].conn = Some(ConnId(self.next_conn));
        self.next_conn += 1;
        let credit = self.rng.u32(1..9);
        self.rejoin(worker, credit);
    }

    fn rejoin(&mut self, worker: usize, credit: u32) {
        self.workers[worker].credit = credit;
        let asked = self.asked(worker);
        self.feed(Input::Join { asked, credit });
    }

    /// Whoever was given something since `known` records holds no more than it allows.
    fn check_credit(&self, known: usize) {
        let released_to = |id| {
            self.records[known..].iter().any(|record| {
                matches!(&record.decision, Decision::Released { member, .. } if *member == id)
            })
        };
        for (id, member) in self.group.members.iter() {
            let suspects = member
                .held
                .iter()
                .filter(|entry| self.group.live[*entry].entry.is_suspect())
                .count();
            assert!(suspects <= 1, "member {id} holds {suspects} suspects");
            let worker = self.workers.iter().find(|worker| worker.member == id);
            if let (Some(worker), true) = (worker, released_to(id)) {
                assert!(member.held.len() <= worker.credit as usize, "more than its credit");
            }
        }
    }

    fn asked(&self, worker: usize) -> Asked {
        let worker = &self.workers[worker];
        Asked { conn: worker.conn.unwrap_or(ConnId(0)), member: worker.member, slot: slot() }
    }

    fn worker_of(&self, conn: ConnId) -> usize {
        self.workers.iter().position(|worker| worker.conn == Some(conn)).expect("a live worker")
    }

    fn schedule(&mut self, ms: u64, happening: Happening) {
        self.agenda_len += 1;
        self.agenda.insert((self.now + ms, self.agenda_len), happening);
    }

    fn any_page(&mut self) -> String {
        page(self.rng.u64(0..HOSTS), self.rng.u64(0..PAGES))
    }
}

fn topic() -> TopicName {
    "new-url".parse().unwrap()
}

/// Marks a task as one for which no request was made.
fn uncounted(task: Task) -> Task {
    Task { lease_ms: 0, ..task }
}
