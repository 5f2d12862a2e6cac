//! Simulation of groups: each run is one hour of a group's life, derived from a printed seed.
//!
//! `TIDINGS_SIM_SEED` repeats a run (or gives the first seed), and `TIDINGS_SIM_RUNS` sets the
//! number of runs. [`world`](super::world) describes the simulated world and the properties that it
//! checks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;
use tidings_log::simulation;

use super::world::{BrokenPromise, Promise, RunTotals, World, WorldOptions};
use crate::Group;
use crate::fuzzing::dump;
use crate::fuzzing::simulated_pages::TINY;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};

/// Default number of runs, and the least activity in each of them.
pub(super) const RUNS: u64 = 1000;
const RELEASES_MIN: u64 = 500;
const FAULTS_MIN: u64 = 20;
/// Runs within which each mutant must be caught.
const MUTANT_RUNS: u64 = 250;
/// Steps of a failed run that are shown.
const SHOWN_STEPS: usize = 60;

const ALL_FAULTS: WorldOptions = WorldOptions {
    clock_jumps: true,
    reboots: true,
    low_entries_max: Some(20),
    parallel_max: 3,
    drains: true,
    rules: true,
    steers: true,
    render: true,
    outages: true,
    paging: Some(TINY),
    traced: false,
};

// PROTOCOL: T2, T8, T13, G15, G18
#[test]
#[expect(clippy::print_stdout, reason = "prints the seeds and the counts")]
fn every_promise_holds_under_faults() {
    let seeds = seeds();
    let run_count = seeds.end - seeds.start;
    let runs = simulate_all(seeds.clone());
    let mut sum = RunTotals::default();
    for totals in &runs {
        sum += *totals;
    }
    let least = |count: fn(&RunTotals) -> u64| runs.iter().map(count).min().unwrap_or(0);
    let (releases, faults) = (least(|totals| totals.releases), least(|totals| totals.faults));
    println!(
        "seeds {seeds:?}: {run_count} hours, {sum:?}; the least in one: {releases} releases, {faults} faults"
    );
    assert!(releases >= RELEASES_MIN, "each run has too few releases: {releases}");
    assert!(faults >= FAULTS_MIN, "each run has too few faults: {faults}");
    assert!(sum.rules >= 10 * run_count, "few rules: {sum:?}");
    assert!(sum.crashes >= 2 * run_count && sum.clock_jumps >= 2 * run_count, "{sum:?}");
    assert!(sum.outages >= run_count && sum.bumps >= 10 * run_count, "{sum:?}");
    assert!(
        sum.parts_permitted >= 50 * run_count && sum.parts_refused >= 50 * run_count,
        "{sum:?}"
    );
    assert!(
        sum.rendered_outside >= run_count,
        "few entries that need a browser are dormant: {sum:?}"
    );
}

/// Seeds that once failed, through a bug in the group or in a checker. All but the last two did so
/// before there were the faults that `OLDER_FAULTS` lacks.
const FAILED_SEEDS: [u64; 9] = [
    // A power failure loses the last task of the local worker, after the worker has contacted the
    // host.
    2_098_992_592_890_599_256,
    // A job is finished, deleted and waited for at the same moment.
    3_352_102_162_978_058_283,
    // A pace arrives for a key without a remembered request end, while another request may begin.
    7_069_350_019_564_715_820,
    // A publisher publishes after everything else has ended.
    2_194_563_113_082_987_983,
    // The last page of a job's budget has begun, and waits behind the end of a redirect of the same
    // job.
    4_591_445_398_888_742_742,
    // A worker's answer shortens the rest of a host, and the next task of that host goes to the
    // local worker before the answer is safe.
    722_402_443_230_148,
    // A job without seeds is closed and deleted before any waiter has received its end.
    605_862_084_247_323,
    // A page that has the rest of a job's budget is blocked, after another one has left the job.
    7_120_135,
    // A page that uses the rest of a budget is excluded by a change of its job before it is fetched
    // again, after a seed was dropped because of it.
    1_795_755_893,
];

const OLDER_FAULTS: WorldOptions = WorldOptions {
    drains: false,
    rules: false,
    steers: false,
    render: false,
    outages: false,
    paging: None,
    ..ALL_FAULTS
};

#[test]
fn seeds_that_once_failed_hold() {
    for seed in FAILED_SEEDS {
        for options in [OLDER_FAULTS, ALL_FAULTS] {
            let outcome = World::simulate(seed, options).0;
            assert!(outcome.is_ok(), "{seed}: {outcome:?}");
        }
    }
}

/// Every mutant, and the promise that it breaks.
const MUTANTS: [(Mutant, Promise); 55] = [
    (Mutant::TwoAtOnce, Promise::OneInFlight),
    (Mutant::OverParallel, Promise::OneInFlight),
    (Mutant::NoLeaseAfterReboot, Promise::OneInFlight),
    (Mutant::ShortRest, Promise::DelayKept),
    (Mutant::ShortPace, Promise::DelayKept),
    (Mutant::IgnoresSettings, Promise::DelayKept),
    (Mutant::NoRestAfterLoss, Promise::DelayKept),
    (Mutant::TriesTooOften, Promise::DownRests),
    (Mutant::CountsWhileDown, Promise::OutageLosesNothing),
    (Mutant::GivesUpEarly, Promise::OutageLosesNothing),
    (Mutant::NeverGivesUp, Promise::AllFinishes),
    (Mutant::DropsLostAnnounced, Promise::NoTaskLost),
    (Mutant::OverCredit, Promise::CreditKept),
    (Mutant::FeedsDrained, Promise::DrainKept),
    (Mutant::LosesRules, Promise::RulesKept),
    (Mutant::ReturnsToBlocked, Promise::RulesKept),
    (Mutant::AnswersRuleEarly, Promise::RulesKept),
    (Mutant::ForgetsParts, Promise::RulesKept),
    (Mutant::PermitsHeldPart, Promise::RulesKept),
    (Mutant::PermitsListedPart, Promise::NeverAsked),
    (Mutant::RefusesRuledPart, Promise::PartsPermitted),
    (Mutant::OverRenderCredit, Promise::CreditKept),
    (Mutant::BeforeDue, Promise::NeverBeforeDue),
    (Mutant::IgnoresEarlierDue, Promise::NoStarvation),
    (Mutant::DormantFirst, Promise::PriorityKept),
    (Mutant::LowestPriorityFirst, Promise::PriorityKept),
    (Mutant::DoneTwice, Promise::DoneOnce),
    (Mutant::UntoldOutcome, Promise::OutcomesTold),
    (Mutant::DoneWhileHeld, Promise::NeverEarly),
    (Mutant::DoneBeforeConsumed, Promise::NeverEarly),
    (Mutant::TooDeep, Promise::DepthKept),
    (Mutant::OutOfScope, Promise::DepthKept),
    (Mutant::IgnoresJobSet, Promise::ChangesKept),
    (Mutant::DryRunChanges, Promise::ChangesKept),
    (Mutant::AsksNever, Promise::NeverAsked),
    (Mutant::OverBudget, Promise::BudgetKept),
    (Mutant::IgnoresJobHold, Promise::BudgetKept),
    (Mutant::AnnouncedFirst, Promise::NoStarvation),
    (Mutant::NeverWakes, Promise::NoStarvation),
    (Mutant::RenderHoldsBack, Promise::NoStarvation),
    (Mutant::StaysPinned, Promise::NoStarvation),
    (Mutant::StaysOpen, Promise::AllFinishes),
    (Mutant::LosesLinks, Promise::NeverEarly),
    (Mutant::UncountedRepair, Promise::NeverEarly),
    (Mutant::IgnoresWas, Promise::AllFinishes),
    (Mutant::AnyTaskId, Promise::IdsHold),
    (Mutant::Unrecorded, Promise::RecordsSuffice),
    (Mutant::UnreadLeaves, Promise::RecordsSuffice),
    (Mutant::LosesHeld, Promise::NeverEarly),
    (Mutant::LosesSkipped, Promise::NoStarvation),
    (Mutant::Overtakes, Promise::PriorityKept),
    (Mutant::LosesRendered, Promise::NoStarvation),
    (Mutant::DropsUnselected, Promise::NoTaskLost),
    (Mutant::SparesDormant, Promise::DropsKept),
    (Mutant::IgnoresBump, Promise::PriorityKept),
];

#[test]
#[expect(clippy::print_stdout, reason = "prints the seeds")]
fn every_mutant_is_caught_by_the_checker_of_its_promise() {
    let first = seeds().start;
    for (mutant, promise) in MUTANTS {
        mutants::set(Some(mutant));
        let mut runs = first..first + MUTANT_RUNS;
        // The mutant may break another promise first. That run ends and proves nothing about this
        // promise.
        let caught = runs.find_map(|seed| {
            let broken = World::simulate(seed, ALL_FAULTS).0.err()?;
            (broken.promise == promise).then_some((seed, broken))
        });
        mutants::set(None);
        let (seed, broken) = caught.unwrap_or_else(|| {
            panic!("{mutant:?} is not caught, from TIDINGS_SIM_SEED={first} on")
        });
        println!("{mutant:?} is caught in run {}: {broken}", seed - first + 1);
    }
}

/// The group decides by its own clock alone: whether or not the wall clock is set, the same things
/// happen at the same moments.
#[test]
fn setting_the_wall_clock_changes_nothing() {
    let first = seeds().start;
    for seed in first..first + 3 {
        let steady =
            WorldOptions { clock_jumps: false, reboots: false, traced: true, ..ALL_FAULTS };
        let jumpy = WorldOptions { clock_jumps: true, ..steady };
        let ((_, trace), (outcome, trace_with_jumps)) =
            (World::simulate(seed, steady), World::simulate(seed, jumpy));
        assert!(outcome.is_ok_and(|totals| totals.clock_jumps > 0), "seed {seed}");
        let differs = trace.iter().zip(&trace_with_jumps).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(trace.len(), trace_with_jumps.len(), "seed {seed}");
    }
}

/// Simulates all seeds, one run per processor at a time. Stops at the first failure.
#[expect(clippy::disallowed_methods, reason = "independent runs")]
fn simulate_all(seeds: Range<u64>) -> Vec<RunTotals> {
    let next = AtomicU64::new(seeds.start);
    let outcome = Mutex::new(Vec::new());
    let broken = Mutex::new(None);
    let live = || {
        while broken.lock().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let name = SeedOnPanic(seed);
            match World::simulate(seed, ALL_FAULTS).0 {
                Ok(totals) => outcome.lock().push(totals),
                Err(what) => *broken.lock() = Some((seed, what)),
            }
            drop(name);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(live))));
    if let Some((seed, what)) = broken.into_inner() {
        fail(seed, &what);
    }
    outcome.into_inner()
}

/// Reports how a run failed.
#[expect(clippy::print_stderr, reason = "the seed must be shown")]
fn fail(seed: u64, what: &BrokenPromise) -> ! {
    let (_, trace) = World::simulate(seed, WorldOptions { traced: true, ..ALL_FAULTS });
    let from = trace.len().saturating_sub(SHOWN_STEPS);
    // Printed first and last, so that truncated output still contains one of them.
    let verdict = format!("{what}; repeat with TIDINGS_SIM_SEED={seed}");
    eprintln!("{verdict}\n{}", trace[from..].join("\n"));
    panic!("{verdict}");
}

/// Prints the seed if the run panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    #[expect(clippy::print_stderr, reason = "the seed must be shown")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("repeat with TIDINGS_SIM_SEED={}", self.0);
        }
    }
}

pub(super) fn seeds() -> Range<u64> {
    simulation::seeds("SIM", RUNS)
}

/// How a group restored from its records differs from the original at this moment; `None` if it
/// does not.
pub(super) fn difference(was: &mut Group, mut is: Group, now: Moment) -> Option<String> {
    was.advance(now);
    is.advance(now);
    dump::difference(was, &is)
}
