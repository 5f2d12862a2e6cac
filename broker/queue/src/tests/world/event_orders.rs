//! Tests all orders of events in the life of one task, with a crash of every kind at every write
//! that follows directly. If more runs than usual are requested, it also crashes at every later
//! write until all is done.

use tidings_protocol::{After, Outcome, TaskId};

use super::broker::PlannedCrash;
use super::commands::{CommandOrigin, WorkerCommand};
use super::disk::CrashKind;
use super::operator::operator;
use super::promises::CheckResult;
use super::{DELAY_MS, World, WorldOptions};
use crate::fuzzing::simulated_pages::TINY;
use crate::tests::simulation::{RUNS, seeds};
use crate::tests::site::{HOSTS, PAGES, links_of, page};
use crate::{Input, JobOperation};

/// What can happen to a task that the first worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskEvent {
    /// Its holder stages links for its answer, on this connection only.
    Children,
    /// Its holder answers.
    Ack,
    /// Its lease expires.
    Expiry,
    /// Another worker takes what it is given.
    Redelivery,
    /// Its holder reconnects on another connection.
    Reconnect,
}

const EVENTS: [TaskEvent; 5] = [
    TaskEvent::Children,
    TaskEvent::Ack,
    TaskEvent::Expiry,
    TaskEvent::Redelivery,
    TaskEvent::Reconnect,
];
const HOLDER: usize = 0;
const OTHER: usize = 1;

/// Counts of the results.
#[derive(Debug, Default)]
struct OrderCounts {
    taken: u32,
    stale: u32,
    crashed: u32,
}

#[test]
#[expect(clippy::print_stdout, reason = "prints what was tried")]
fn task_survives_all_orders_of_events() {
    let (mut runs, mut counts) = (0, OrderCounts::default());
    let seeds = seeds();
    // Only in `.ci/long`.
    let to_the_end = seeds.end - seeds.start > 5 * RUNS;
    for order in permutations(&EVENTS) {
        for half_open in [false, true] {
            simulate_order(&order, half_open, None, to_the_end, &mut counts);
            runs += 1;
            let ends =
                [(CrashKind::Process, false), (CrashKind::Process, true), (CrashKind::Power, true)];
            for (end, is_written) in ends {
                for writes in 1.. {
                    let doom = PlannedCrash { writes, end, is_written };
                    let before = counts.crashed;
                    simulate_order(&order, half_open, Some(doom), to_the_end, &mut counts);
                    runs += 1;
                    if counts.crashed == before {
                        break; // It has no more writes than that.
                    }
                }
            }
        }
    }
    println!("{runs} runs of one task: {counts:?}");
    assert_eq!(permutations(&EVENTS).len(), 120);
    assert!(counts.taken > 1000 && counts.stale > 1000 && counts.crashed > 1000, "{counts:?}");
}

/// One run: the events, and then everything until all is done.
fn simulate_order(
    order: &[TaskEvent],
    half_open: bool,
    doom: Option<PlannedCrash>,
    to_the_end: bool,
    counts: &mut OrderCounts,
) {
    let options = WorldOptions {
        render: false,
        outages: false,
        clock_jumps: false,
        reboots: true,
        low_entries_max: None,
        parallel_max: 1,
        drains: false,
        rules: false,
        steers: false,
        paging: Some(TINY),
        traced: false,
    };
    let mut follow = |traced| {
        let mut world = World::new(7, WorldOptions { traced, ..options });
        let outcome = world.follow(order, half_open, doom, to_the_end, counts);
        (outcome, world.trace.unwrap_or_default().join("\n"))
    };
    // Events are written as text only for the run that failed, which is repeated for that.
    if let (Err(broken), _) = follow(false) {
        let (_, trace) = follow(true);
        panic!("{trace}\n{order:?} half_open={half_open} {doom:?}: {broken}");
    }
}

/// All permutations.
fn permutations<T: Copy>(things: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = things.split_first() else { return vec![Vec::new()] };
    let place = |order: Vec<T>| {
        (0..things.len()).map(move |at| {
            let mut order = order.clone();
            order.insert(at, *first);
            order
        })
    };
    permutations(rest).into_iter().flat_map(place).collect()
}

impl World {
    fn follow(
        &mut self,
        order: &[TaskEvent],
        half_open: bool,
        doom: Option<PlannedCrash>,
        to_the_end: bool,
        counts: &mut OrderCounts,
    ) -> CheckResult {
        (self.is_faulty, self.is_scripted, self.local_worker) = (false, true, None);
        self.workers.truncate(OTHER + 1);
        self.begin(1, false)?;
        self.connect(HOLDER)?;
        self.open_with(&seed())?;
        self.advance(1)?;
        let task = self.workers[HOLDER].only_task();
        // Other tasks take random steps.
        self.is_scripted = false;
        self.planned_crash = doom;
        let mut has_links = false;
        for event in order {
            self.note(|| format!("-- {event:?}"));
            match event {
                TaskEvent::Children => has_links = self.workers[HOLDER].conn.is_some(),
                TaskEvent::Ack => self.answer(&task, has_links)?,
                TaskEvent::Expiry => self.expire_lease(&task)?,
                TaskEvent::Redelivery => {
                    self.connect(OTHER)?;
                    self.advance(DELAY_MS + 1)?;
                }
                TaskEvent::Reconnect => {
                    self.reconnect(half_open)?;
                    has_links = false;
                }
            }
            self.advance(100)?;
        }
        if !to_the_end {
            self.planned_crash = None;
        }
        self.finish_everything()?;
        counts.crashed += u32::from(self.totals.crashes > 0);
        let is_taken = self.answered.iter().any(|(_, answered)| *answered == task);
        counts.taken += u32::from(is_taken);
        counts.stale += u32::from(!is_taken);
        Ok(())
    }

    fn open_with(&mut self, seed: &str) -> CheckResult {
        let settings = Self::any_scope();
        self.passes.open("job", settings.clone(), 1);
        self.passes.find_mut("job").seed(seed);
        self.open_named("job", settings)?;
        let url = seed.into();
        self.with_job(
            operator(),
            "job",
            JobOperation::Add { url, prio: 0, after: After::Ms(0), attributes: Box::default() },
        )?;
        self.close_named("job")
    }

    fn connect(&mut self, index: usize) -> CheckResult {
        if self.workers[index].conn.is_some() {
            return Ok(());
        }
        self.reconnect_worker(index)
    }

    /// The holder's request ends, and it answers.
    fn answer(&mut self, task: &TaskId, links: bool) -> CheckResult {
        self.end_request(task);
        let command = WorkerCommand::ack(Outcome::Done, links);
        self.schedule_answer(0, HOLDER, task, command)
    }

    /// Time passes until the lease expires; the request has ended by then.
    fn expire_lease(&mut self, task: &TaskId) -> CheckResult {
        let Some(until) = self.workers[HOLDER].lease_of(task) else { return Ok(()) };
        self.advance(until.since(self.now))?;
        self.end_request(task);
        self.advance(1)
    }

    fn end_request(&mut self, task: &TaskId) {
        if let Some(host) = self.workers[HOLDER].ends_request(task) {
            self.hosts.end(&host, self.now);
        }
    }

    /// The broker notices first the new connection, or first the end of the old one.
    fn reconnect(&mut self, half_open: bool) -> CheckResult {
        let Some(before) = self.workers[HOLDER].conn else { return Ok(()) };
        let gone = Input::Disconnected { conn: before };
        self.lose_conn(HOLDER);
        if half_open {
            self.connect(HOLDER)?;
            return self.feed(gone, CommandOrigin::Nothing);
        }
        self.feed(gone, CommandOrigin::Nothing)?;
        self.connect(HOLDER)
    }
}

/// A page with links to other hosts than its own.
fn seed() -> String {
    let mut pages = (0..HOSTS).flat_map(|host| (0..PAGES).map(move |number| page(host, number)));
    pages.find(|url| links_of(url).count() > 1).expect("some page has two links")
}
