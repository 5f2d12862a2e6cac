//! Brokers that fight for a log whose engine is slow, silent and stale, and copies of that log on disks
//! that lose their power.

mod copies;
mod takeover;
mod terms;
mod world;

use tidings_log::simulation::seeds;

use self::world::World;
use crate::mutants::{self, Mutant};

/// Steps of a run. About a third of them append or read a message.
const STEPS: usize = 2_000;

#[test]
fn nothing_confirmed_is_lost_or_doubled_whoever_leads() {
    let mut total = world::Counts::default();
    for seed in seeds("CLUSTER", 100) {
        let counts = World::run(seed, STEPS).unwrap_or_else(|problem| panic!("{problem}"));
        total.add(&counts);
    }
    // Otherwise the runs prove nothing. A single one may be quiet.
    let world::Counts { terms, confirmed, void, unanswered, deposed, left, long } = total;
    for count in [terms, confirmed, void, unanswered, deposed, left, long] {
        assert!(count > 10 || std::env::var("TIDINGS_CLUSTER_SEED").is_ok(), "{total:?}");
    }
}

#[test]
fn a_copy_holds_what_the_log_says_whenever_the_power_is_cut() {
    let mut total = copies::Counts::default();
    for seed in seeds("COPY", 200) {
        let counts = copies::run(seed).unwrap_or_else(|problem| panic!("{problem}"));
        total.cuts += counts.cuts;
        total.restarts += counts.restarts;
        total.checkpoints += counts.checkpoints;
    }
    let copies::Counts { cuts, restarts, checkpoints } = total;
    for count in [cuts, restarts, checkpoints] {
        assert!(count > 10 || std::env::var("TIDINGS_COPY_SEED").is_ok(), "{total:?}");
    }
}

#[test]
fn brokers_that_lead_in_turn_hold_the_same_and_all_that_was_confirmed() {
    let mut total = terms::Counts::default();
    for seed in seeds("TERM", 100) {
        let counts = terms::run(seed).unwrap_or_else(|problem| panic!("{problem}"));
        total.confirmed += counts.confirmed;
        total.refused += counts.refused;
        total.cuts += counts.cuts;
        total.left += counts.left;
    }
    let terms::Counts { confirmed, refused, cuts, left } = total;
    for count in [confirmed, refused, cuts, left] {
        assert!(count > 10 || std::env::var("TIDINGS_TERM_SEED").is_ok(), "{total:?}");
    }
}

#[test]
fn each_wrong_rule_is_noticed() {
    let of_a_leader =
        [Mutant::NumberGap, Mutant::OutOfOrder, Mutant::UnansweredIsUnwritten, Mutant::OtherBytes];
    let of_a_copy =
        [Mutant::UnfinishedCommit, Mutant::CheckpointBeforeSync, Mutant::ClearWithoutCheckpoint];
    for mutant in of_a_leader {
        assert_noticed(mutant, |seed| World::run(seed, STEPS).err());
    }
    for mutant in of_a_copy {
        assert_noticed(mutant, |seed| copies::run(seed).err());
    }
    assert_noticed(Mutant::LocalFirst, |seed| terms::run(seed).err());
}

fn assert_noticed(mutant: Mutant, run: impl Fn(u64) -> Option<String>) {
    mutants::set(Some(mutant));
    let found = (1..=1_000).find_map(run);
    mutants::set(None);
    assert!(found.is_some(), "{mutant:?} is never noticed");
}
