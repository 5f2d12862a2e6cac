//! Brokers that fight for a log whose engine is slow, silent and stale.

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
fn each_wrong_rule_is_noticed() {
    for mutant in
        [Mutant::NumberGap, Mutant::OutOfOrder, Mutant::UnansweredIsUnwritten, Mutant::OtherBytes]
    {
        mutants::set(Some(mutant));
        let found = (1..=1_000).find_map(|seed| World::run(seed, STEPS).err());
        mutants::set(None);
        assert!(found.is_some(), "{mutant:?} is never noticed");
    }
}
