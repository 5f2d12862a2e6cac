//! Whole lives of a group, an hour each, from one printed seed. `TIDINGS_SIM_SEED` repeats one (or
//! begins there), and `TIDINGS_SIM_RUNS` asks for another number of them than the usual.
//!
//! What such a life is, and what must hold in it, is told in [`world`](super::world).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::world::{Broken, Nature, Promise, Totals, World};
use crate::clock::Moment;
use crate::group::Group;
use crate::group::mutants::{self, Mutant};
use crate::group::portrait;
use crate::lives;

/// Lives in a test run, and what each of them has at least.
pub(super) const RUNS: u64 = 1000;
const RELEASES_MIN: u64 = 1000;
const FAULTS_MIN: u64 = 20;
/// In so many lives each mutant is caught.
const MUTANT_LIVES: u64 = 250;
/// Steps of a broken life that are shown.
const SHOWN: usize = 60;

const EVERYTHING: Nature =
    Nature { clock_jumps: true, reboots: true, narrow: Some(20), parallel_max: 3, traced: false };

// PROTOCOL: T8, T13
#[test]
#[expect(clippy::print_stdout, reason = "the seeds, and how hard the lives were")]
fn every_promise_holds_whatever_happens() {
    let seeds = seeds();
    let runs = seeds.end - seeds.start;
    let lives = live_all(seeds.clone());
    let mut sum = Totals::default();
    for totals in &lives {
        sum += *totals;
    }
    let least = |count: fn(&Totals) -> u64| lives.iter().map(count).min().unwrap_or(0);
    let (releases, faults) = (least(|totals| totals.releases), least(|totals| totals.faults));
    println!(
        "seeds {seeds:?}: {runs} hours, {sum:?}; the least in one: {releases} releases, {faults} faults"
    );
    assert!(releases >= RELEASES_MIN, "each hour is busy: {releases}");
    assert!(faults >= FAULTS_MIN, "and hard: {faults}");
    assert!(sum.crashes >= 2 * runs && sum.clock_jumps >= 2 * runs, "{sum:?}");
}

/// Lives that were broken once, by the group or by who judges it.
const ONCE_BROKEN: [u64; 7] = [
    // The power takes away what the worker in the broker's process was told last, and the host was asked.
    2_098_992_592_890_599_256,
    // A job is done, deleted and waited for at one and the same moment.
    3_352_102_162_978_058_283,
    // A pace is learned of a key whose last end was forgotten, while another request of it may begin.
    7_069_350_019_564_715_820,
    // Somebody publishes when everything has come to its end but for that.
    2_194_563_113_082_987_983,
    // The last page that a job may have has begun, and stands behind the end of a redirect of the same job.
    4_591_445_398_888_742_742,
    // What one worker says of a host shortens its rest, and the next task of that host goes to the worker in the broker's
    // process before it is safe.
    722_402_443_230_148,
    // A job without seeds is closed and deleted before anybody has heard that it is done.
    605_862_084_247_323,
];

#[test]
fn what_was_broken_once_holds() {
    for seed in ONCE_BROKEN {
        let lived = World::live(seed, EVERYTHING).0;
        assert!(lived.is_ok(), "{seed}: {lived:?}");
    }
}

/// Every mutant, and the promise that it breaks.
const MUTANTS: [(Mutant, Promise); 29] = [
    (Mutant::TwoAtOnce, Promise::OneInFlight),
    (Mutant::OneTooMany, Promise::OneInFlight),
    (Mutant::NoLeaseAfterReboot, Promise::OneInFlight),
    (Mutant::ShortRest, Promise::DelayKept),
    (Mutant::ShortPace, Promise::DelayKept),
    (Mutant::KeepsSettings, Promise::DelayKept),
    (Mutant::NoRestAfterLoss, Promise::DelayKept),
    (Mutant::ForgetsTheLost, Promise::NoTaskLost),
    (Mutant::OverCredit, Promise::CreditKept),
    (Mutant::BeforeDue, Promise::NeverBeforeDue),
    (Mutant::StaysLate, Promise::NoStarvation),
    (Mutant::PlainFirst, Promise::PriorityKept),
    (Mutant::LeastUrgent, Promise::PriorityKept),
    (Mutant::DoneTwice, Promise::DoneOnce),
    (Mutant::DoneWhileHeld, Promise::NeverEarly),
    (Mutant::DoneBeforeTaken, Promise::NeverEarly),
    (Mutant::TooDeep, Promise::DepthKept),
    (Mutant::OutOfScope, Promise::DepthKept),
    (Mutant::OverBudget, Promise::BudgetKept),
    (Mutant::NeverHolds, Promise::BudgetKept),
    (Mutant::AnnouncedFirst, Promise::NoStarvation),
    (Mutant::NeverWakes, Promise::NoStarvation),
    (Mutant::StaysPinned, Promise::NoStarvation),
    (Mutant::StaysOpen, Promise::AllFinishes),
    (Mutant::LosesLinks, Promise::NeverEarly),
    (Mutant::UncountedRepair, Promise::NeverEarly),
    (Mutant::AnyEvery, Promise::AllFinishes),
    (Mutant::AnyId, Promise::IdsHold),
    (Mutant::Unrecorded, Promise::RecordsSuffice),
];

#[test]
#[expect(clippy::print_stdout, reason = "the seeds")]
fn every_mutant_is_caught_by_the_checker_of_its_promise() {
    let first = seeds().start;
    for (mutant, promise) in MUTANTS {
        mutants::set(Some(mutant));
        let mut lives = first..first + MUTANT_LIVES;
        // What it does may break another promise first; that life is over, and says nothing of this.
        let caught = lives.find_map(|seed| {
            let broken = World::live(seed, EVERYTHING).0.err()?;
            (broken.promise == promise).then_some((seed, broken))
        });
        mutants::set(None);
        let (seed, broken) =
            caught.unwrap_or_else(|| panic!("{mutant:?} lives, from TIDINGS_SIM_SEED={first} on"));
        println!("{mutant:?} is caught in life {}: {broken}", seed - first + 1);
    }
}

/// The group decides by its own clock alone: with and without somebody who sets the wall clock the
/// same things happen at the same moments.
#[test]
fn setting_the_wall_clock_changes_nothing() {
    let first = seeds().start;
    for seed in first..first + 3 {
        let steady = Nature { clock_jumps: false, reboots: false, traced: true, ..EVERYTHING };
        let jumpy = Nature { clock_jumps: true, ..steady };
        let ((_, told), (lived, told_with_jumps)) =
            (World::live(seed, steady), World::live(seed, jumpy));
        assert!(lived.is_ok_and(|totals| totals.clock_jumps > 0), "seed {seed}");
        let differs = told.iter().zip(&told_with_jumps).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(told.len(), told_with_jumps.len(), "seed {seed}");
    }
}

/// Lives them all, as many at a time as there are processors; stops at the first that is broken.
fn live_all(seeds: Range<u64>) -> Vec<Totals> {
    let next = AtomicU64::new(seeds.start);
    let lived = Mutex::new(Vec::new());
    let broken = Mutex::new(None);
    let live = || {
        while broken.lock().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let name = NameIfPanicking(seed);
            match World::live(seed, EVERYTHING).0 {
                Ok(totals) => lived.lock().push(totals),
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
    lived.into_inner()
}

/// Shows how a life came to its end.
#[expect(clippy::print_stderr, reason = "the seed must reach whoever looks")]
fn fail(seed: u64, what: &Broken) -> ! {
    let (_, told) = World::live(seed, Nature { traced: true, ..EVERYTHING });
    let from = told.len().saturating_sub(SHOWN);
    // Said first and last: whoever keeps only a part of the output keeps one of them.
    let verdict = format!("{what}; again with TIDINGS_SIM_SEED={seed}");
    eprintln!("{verdict}\n{}", told[from..].join("\n"));
    panic!("{verdict}");
}

/// A panic inside of a life names the seed, too.
struct NameIfPanicking(u64);

impl Drop for NameIfPanicking {
    #[expect(clippy::print_stderr, reason = "the seed must reach whoever looks")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("again with TIDINGS_SIM_SEED={}", self.0);
        }
    }
}

pub(super) fn seeds() -> Range<u64> {
    lives::seeds("SIM", RUNS)
}

/// In what a group that was given again by its records differs from what it was, at this moment.
pub(super) fn difference(was: &mut Group, mut is: Group, now: Moment) -> Option<String> {
    was.advance(now);
    is.advance(now);
    portrait::difference(was, &is)
}
