//! Whole lives of a group from one printed seed. `TIDINGS_SIM_SEED` repeats one (or begins there), and
//! `TIDINGS_SIM_RUNS` asks for another number of them than the usual.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::portrait::assert_same;
use super::world::World;
use crate::group::record::{Decision, Record};
use crate::group::replay::Replay;
use crate::group::snapshot::Item;
use crate::group::{Group, GroupConfig};

const RUNS: u64 = 60;
const STEPS: u32 = 400;

#[test]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the seed must reach whoever looks")]
fn every_promise_holds_whatever_workers_do() {
    let (first_seed, runs) = seeds();
    let (mut requests, mut faults) = (0, 0);
    for seed in first_seed..first_seed + runs {
        let mut world = World::new(seed);
        let lived = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..STEPS {
                world.step();
            }
            world.finish();
        }));
        if let Err(panic) = lived {
            eprintln!("{}\nfailed with TIDINGS_SIM_SEED={seed}", world.trace());
            resume_unwind(panic);
        }
        requests += world.requests();
        faults += world.faults;
    }
    println!("seeds {first_seed}..{}: {requests} requests, {faults} faults", first_seed + runs);
    assert!(requests > runs * 100, "the simulation does something");
    assert!(faults > runs * 10, "and is not kind");
}

#[test]
fn the_records_alone_give_the_same_group_again() {
    let (first_seed, runs) = seeds();
    for seed in first_seed..first_seed + runs.min(20) {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        let group = &world.group;
        let mut again = replayed(&world.records, seed);
        again.advance(world.now);
        assert_same(&again, group, seed);
    }
}

/// A fresh first seed each time, so that many machines see many lives.
fn seeds() -> (u64, u64) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("TIDINGS_SIM_SEED") {
        Some(seed) => (seed, number("TIDINGS_SIM_RUNS").unwrap_or(1)),
        None => (fastrand::u64(..u64::MAX / 2), number("TIDINGS_SIM_RUNS").unwrap_or(RUNS)),
    }
}

/// The group that a start makes of records. If there is a whole snapshot, it need not have those
/// before that.
pub(super) fn replayed(records: &[Record], seed: u64) -> Group {
    let is = |wanted: fn(&Item) -> bool| move |record: &Record| matches!(&record.decision, Decision::Kept(item) if wanted(item));
    let end = records.iter().rposition(is(|item| matches!(item, Item::End { .. })));
    let begin = is(|item| matches!(item, Item::Begin { .. }));
    let begin = end.and_then(|end| records[..end].iter().rposition(begin));
    let mut rng = fastrand::Rng::with_seed(seed);
    let from = begin.map_or(0, |begin| rng.usize(..=begin));
    let name = "crawlers".parse().unwrap();
    let group = Group::new(name, 0, GroupConfig::default(), rng.u64(..));
    let mut replay = Replay::new(group, from == 0);
    records[from..].iter().for_each(|record| replay.take(&written(record)));
    replay.whole().expect("everything is there")
}

/// A record as it is read back.
pub(super) fn written(record: &Record) -> Record {
    let mut line = String::new();
    record.encode(&mut line);
    Record::decode(line.trim_end_matches('\n')).unwrap()
}
