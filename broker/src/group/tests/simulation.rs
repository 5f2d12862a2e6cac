//! Whole lives of a group from one printed seed. `TIDINGS_SIM_SEED` repeats one (or begins there), and
//! `TIDINGS_SIM_RUNS` asks for another number of them than the usual.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::world::World;
use crate::clock::{Moment, Stamp};
use crate::group::record::Record;
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
        let mut replayed = Group::new(group.name().clone(), 1, group.config().clone(), 0);
        for record in &world.records {
            replayed.replay(&written(record));
        }
        same(replayed, world.now, group, seed);
        let mut kept = Group::new(group.name().clone(), 1, GroupConfig::default(), 0);
        let stamp = Stamp { moment: Moment(0), boot: 0, uptime_ms: 0, unix_ms: 0 };
        group
            .snapshot(stamp, |decision| kept.replay(&written(&Record { at: world.now, decision })));
        same(kept, world.now, group, seed);
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

/// A record as it is read back.
pub(super) fn written(record: &Record) -> Record {
    let mut line = String::new();
    record.encode(&mut line);
    Record::decode(line.trim_end_matches('\n')).unwrap()
}

fn same(mut replayed: Group, now: Moment, group: &Group, seed: u64) {
    replayed.advance(now);
    assert_eq!(replayed.entries, group.entries, "seed {seed}");
    assert_eq!(replayed.keys, group.keys, "seed {seed}");
    assert_eq!(replayed.jobs, group.jobs, "seed {seed}");
    assert_eq!(replayed.seen, group.seen, "seed {seed}");
    assert_eq!(replayed.taken, group.taken, "seed {seed}");
    assert_eq!(replayed.unheld, group.unheld, "seed {seed}");
    assert_eq!(replayed.pinned, group.pinned, "seed {seed}");
    assert_eq!(replayed.noted, group.noted, "seed {seed}");
    assert_eq!(replayed.schedules, group.schedules, "seed {seed}");
    assert!(replayed.clock_times.same_as(&group.clock_times), "seed {seed}");
    assert_eq!(replayed.dead, group.dead, "seed {seed}");
    assert_eq!(replayed.is_paused, group.is_paused, "seed {seed}");
    assert_eq!(replayed.totals, group.totals, "seed {seed}");
    assert_eq!(replayed.unsent, group.unsent, "seed {seed}");
    assert_eq!(replayed.sent, group.sent, "seed {seed}");
    assert_eq!(replayed.last_entry, group.last_entry, "seed {seed}");
    assert_eq!(replayed.entry_bytes, group.entry_bytes, "seed {seed}");
    assert_eq!(replayed.expiries, group.expiries, "seed {seed}");
    assert_eq!(replayed.wakes, group.wakes, "seed {seed}");
    assert_eq!(replayed.config, group.config, "seed {seed}");
}
