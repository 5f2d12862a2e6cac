//! Tests that workers can affect only their own tasks.
//!
//! Two workers send random commands about the tasks of two jobs: their own, each other's, past
//! ones, and invented ones. A judge that knows all releases and answers checks the results.
//! Commands about tasks of others have no effect, links stay in the job and its scope, and workers
//! can make hosts rest longer but never shorter.
//!
//! `TIDINGS_TRUST_SEED` repeats a run (or gives the first seed), and `TIDINGS_TRUST_RUNS` sets the
//! number of runs.

use std::collections::{BTreeMap, BTreeSet};

use tidings_log::simulation;
use tidings_protocol::{Code, KeyRest, Outcome, Payload, RetryMode, TaskAction, TaskId, TaskReply};

use super::bench::{A, B, Bench, Worker};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::{Input, StagedLink, WorkerReply};

const RUNS: u64 = 300;
const STEPS: u32 = 400;
const DELAY_MS: u64 = 10_000;
/// A task that may be released must be released within this time, in ms.
const SLACK_MS: u64 = 1_000;

/// The jobs, and the host of each, which is its scope.
const JOBS: [(&str, &str); 2] = [("one", "one.example"), ("other", "other.example")];
/// URLs that belong to neither job.
const FOREIGN_URLS: [&str; 5] = [
    "http://evil.example/p1",
    "http://www.one.example/p1",
    "https://one.example.evil.example/p1",
    "file:///etc/passwd",
    "one.example/p1",
];

/// What the judge knows of a job and its host.
#[derive(Default)]
struct JobModel {
    found: BTreeSet<String>,
    done: BTreeSet<String>,
    /// Whether a request is open.
    is_busy: bool,
    ended_at: Option<Moment>,
    pace_ms: u64,
    /// No request may be made before the first moment, and one must be possible at the second. They
    /// differ because the history of a rested host may be forgotten; a pace then counts from its
    /// report.
    free_at: [Moment; 2],
}

impl JobModel {
    fn hold(&mut self, now: Moment, hold: KeyRest) {
        let [free_at, at_last] = &mut self.free_at;
        if let Some(pace_ms) = hold.pace_ms {
            self.pace_ms = pace_ms;
            *free_at = (*free_at).max(*self.ended_at.get_or_insert(now) + pace_ms);
            *at_last = (*at_last).max(now + pace_ms);
        }
        if let Some(ms) = hold.not_before_ms {
            *free_at = (*free_at).max(now + ms);
        }
        *at_last = (*at_last).max(*free_at);
    }

    fn end(&mut self, now: Moment, hold: KeyRest) {
        (self.is_busy, self.ended_at) = (false, Some(now));
        self.hold(now, hold);
        let rested = now + DELAY_MS.max(self.pace_ms);
        self.free_at = self.free_at.map(|at| at.max(rested));
    }
}

/// A task that a worker holds.
struct HeldTask {
    worker: usize,
    job: usize,
    url: String,
    /// Whether its request has ended.
    is_over: bool,
}

/// A command of a worker.
enum WorkerCommand {
    Ack(Vec<StagedLink>),
    Nack(RetryMode),
    Touch { over: bool },
}

#[derive(Default)]
struct TrustRun {
    sites: [JobModel; 2],
    held: BTreeMap<TaskId, HeldTask>,
    past: Vec<TaskId>,
    /// Releases; commands of holders; commands of others; children; rejected links.
    counts: [u64; 5],
}

fn simulate(seed: u64) -> Result<[u64; 5], String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bench = Bench::new(&[("delay", "10s"), ("lease", "12h"), ("max-attempts", "100")]);
    let mut run = TrustRun::default();
    for (name, _) in JOBS {
        bench.open(name, &[("scope", "host")]);
    }
    for worker in [A, B] {
        bench.join(worker, 2);
    }
    for step in 0..STEPS {
        match rng.u32(0..10) {
            0..3 => bench.wait(rng.u64(..15_000)),
            3 => {
                let job = rng.usize(..2);
                let (name, host) = JOBS[job];
                let url = format!("http://{host}/s{step}");
                bench.publish(&format!("{url} job={name}"));
                run.sites[job].found.insert(url);
            }
            _ => run
                .send_command(&mut bench, &mut rng)
                .map_err(|what| format!("step {step}: {what}"))?,
        }
        run.check_releases(&mut bench).map_err(|what| format!("step {step}: {what}"))?;
    }
    Ok(run.counts)
}

impl TrustRun {
    /// Checks the releases since the last call, and those that are missing.
    fn check_releases(&mut self, bench: &mut Bench) -> Result<(), String> {
        let now = bench.now;
        for (conn, task) in std::mem::take(&mut bench.tasks) {
            let payload = Payload::parse(&task.payload);
            let url = payload.target().unwrap_or_default();
            let name = payload.attribute("job").unwrap_or_default();
            let job = JOBS.iter().position(|(known, _)| *known == name);
            let job = job.ok_or_else(|| format!("of no job: {}", task.payload))?;
            let site = &mut self.sites[job];
            let is_its = url.starts_with(&format!("http://{}/", JOBS[job].1));
            let is_new = site.found.contains(url) && !site.done.contains(url);
            let is_held = self.held.values().any(|held| held.url == url);
            let text = || format!("at {now:?}: {}", task.payload);
            if !is_its || !is_new || is_held {
                return Err(format!("not to be handed out {}", text()));
            }
            if site.is_busy || now < site.free_at[0] {
                return Err(format!("not before {:?}, {}", site.free_at[0], text()));
            }
            site.is_busy = true;
            let worker = usize::from(conn == B.requester().conn);
            let held = HeldTask { worker, job, url: url.to_owned(), is_over: false };
            self.held.insert(task.id, held);
            self.counts[0] += 1;
        }
        for (site, (name, _)) in self.sites.iter().zip(JOBS) {
            let is_held = |url: &&String| self.held.values().any(|held| held.url == **url);
            let waits = site.found.difference(&site.done).find(|url| !is_held(url));
            // Each worker has a credit of two, and each host allows one task. A task
            // that has ended its request is held in addition.
            let room = self.held.len() < 2;
            if !site.is_busy && room && now > site.free_at[1] + SLACK_MS && waits.is_some() {
                return Err(format!("{name} waits with {waits:?} since {:?}", site.free_at[1]));
            }
        }
        Ok(())
    }

    /// A random worker sends a command about a task.
    fn send_command(&mut self, bench: &mut Bench, rng: &mut fastrand::Rng) -> Result<(), String> {
        let worker_index = rng.usize(..2);
        let Some(task) = self.any_task(rng) else { return Ok(()) };
        let command = match rng.u32(..4) {
            0 => WorkerCommand::Touch { over: rng.bool() },
            1 if rng.bool() => WorkerCommand::Nack(RetryMode::Uncounted { after_ms: Some(0) }),
            1 => WorkerCommand::Nack(RetryMode::Counted { after_ms: Some(0) }),
            _ => WorkerCommand::Ack(any_links(rng)),
        };
        let mut any = |chance| (rng.u32(..chance) == 0).then(|| rng.u64(..40_000));
        let hold = KeyRest { not_before_ms: any(8), pace_ms: any(4) };
        let (records, events) = (bench.records.len(), bench.events.len());
        send_command(bench, [A, B][worker_index], &task, &command, hold);
        let answer = bench.answers.pop().expect("the command is answered");
        let Some(its) = self.held.get_mut(&task).filter(|its| its.worker == worker_index) else {
            self.counts[2] += 1;
            let is_stale = answer.as_ref().is_err_and(|error| error.code == Code::Stale);
            let nothing = (records, events) == (bench.records.len(), bench.events.len());
            if is_stale && nothing && bench.tasks.is_empty() {
                return Ok(());
            }
            return Err(format!("{task} is not its, and {answer:?} comes of it"));
        };
        self.counts[1] += 1;
        let answer = answer.map_err(|error| format!("{task} is its: {error:?}"))?;
        let (now, site) = (bench.now, &mut self.sites[its.job]);
        let ends_task = match &command {
            WorkerCommand::Touch { over } => *over,
            // No request was made.
            WorkerCommand::Nack(RetryMode::Uncounted { .. }) => false,
            _ => true,
        };
        if ends_task && !its.is_over {
            site.end(now, hold);
        } else {
            site.hold(now, hold);
        }
        its.is_over |= ends_task;
        if let WorkerCommand::Touch { .. } = command {
            return Ok(());
        }
        let HeldTask { job, url, is_over, .. } = self.held.remove(&task).expect("the task is held");
        if !is_over {
            site.is_busy = false;
        }
        self.past.push(task.clone());
        if let WorkerCommand::Ack(links) = command {
            site.done.insert(url);
            let start = format!("http://{}/", JOBS[job].1);
            let inside: Vec<_> =
                links.iter().filter(|link| link.url.starts_with(&*start)).collect();
            let before = site.found.len();
            site.found.extend(inside.iter().map(|link| link.url.to_string()));
            let (new, refused) = (site.found.len() - before, links.len() - inside.len());
            let wanted = format!("{task} new={new} known={} refused={refused}", inside.len() - new);
            self.counts[3] += new as u64;
            self.counts[4] += refused as u64;
            if answer.ok != wanted {
                return Err(format!("{links:?}: {}, and {wanted} is right", answer.ok));
            }
        }
        Ok(())
    }

    /// Mostly a held task; sometimes a past or an invented one.
    fn any_task(&self, rng: &mut fastrand::Rng) -> Option<TaskId> {
        let held = rng.choice(self.held.keys());
        let past = rng.choice(&self.past);
        let mut task = if rng.u32(..4) == 0 { past.or(held) } else { held }?.clone();
        match rng.u32(..16) {
            0 => task.attempt += 1,
            1 => task.entry += 1,
            2 => task.entry += 1 << 40,
            3 => task.run += 1,
            4 => task.group = "hands".parse().expect("the name is valid"),
            _ => {}
        }
        Some(task)
    }
}

fn any_links(rng: &mut fastrand::Rng) -> Vec<StagedLink> {
    let mut link = |_| {
        let url = match rng.u32(..6) {
            0 => (*rng.choice(&FOREIGN_URLS).expect("the list is not empty")).to_owned(),
            _ => format!("http://{}/p{}", JOBS[rng.usize(..2)].1, rng.u32(..60)),
        };
        StagedLink { url: url.into(), redirect: false, prio: 0 }
    };
    (0..4).map(&mut link).collect()
}

fn send_command(
    bench: &mut Bench,
    worker: Worker,
    task: &TaskId,
    command: &WorkerCommand,
    hold: KeyRest,
) {
    let (action, links) = match command {
        WorkerCommand::Ack(links) => (TaskAction::Ack(Outcome::Done), links.clone()),
        WorkerCommand::Nack(back) => (TaskAction::Nack(back.clone()), Vec::new()),
        WorkerCommand::Touch { over } => (TaskAction::Touch { request_ended: *over }, Vec::new()),
    };
    let reply = TaskReply { task: task.clone(), action, rest: hold, report: None };
    let reply = WorkerReply { reply, links, over_limit: 0 };
    bench.feed(Input::Reply { requester: worker.requester(), reply });
}

#[test]
#[expect(clippy::print_stdout, reason = "prints the seeds and the counts")]
fn workers_affect_only_their_own_tasks() {
    let seeds = simulation::seeds("TRUST", RUNS);
    let mut sum = [0; 5];
    for seed in seeds.clone() {
        let counts = simulate(seed)
            .unwrap_or_else(|what| panic!("{what}; repeat with TIDINGS_TRUST_SEED={seed}"));
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [tasks, own, others, children, refused] = sum;
    println!(
        "seeds {seeds:?}: {tasks} tasks, {own} answers of holders, {others} of others, {children} children, {refused} links rejected"
    );
    let least = seeds.end - seeds.start;
    assert!(sum.iter().all(|count| *count >= 20 * least), "{sum:?}");
}

#[test]
fn judge_detects_mutants_that_trust_workers_too_much() {
    for mutant in [Mutant::AnyTaskId, Mutant::OutOfScope, Mutant::ShortRest, Mutant::ShortPace] {
        mutants::set(Some(mutant));
        let caught = (1..=RUNS).find_map(|seed| simulate(seed).err());
        mutants::set(None);
        assert!(caught.is_some(), "{mutant:?} is not detected");
    }
}
