use std::sync::Arc;

use tidings_metrics::check_table;
use tidings_protocol::GroupName;

use super::{BROKER, Snapshot, TOPICS};
use crate::groups::PublishedMetrics;

#[test]
fn the_tables_keep_to_the_conventions() {
    check_table(BROKER);
    check_table(TOPICS);
    for metric in BROKER.iter().chain(TOPICS) {
        assert!(metric.name.starts_with("tidings_"), "{}", metric.name);
    }
}

#[test]
fn the_groups_with_most_entries_have_metrics_of_their_own_and_the_others_a_sum() {
    let groups = (0..150_u64).map(|number| {
        let mut metrics = PublishedMetrics { behind: 1, ..PublishedMetrics::default() };
        metrics.group.waiting = number;
        (GroupName::new(&format!("g{number:03}")).unwrap(), Arc::new(metrics))
    });
    let groups = Snapshot::largest_groups(groups.collect());
    assert_eq!(groups.len(), 101);
    assert_eq!(groups[0].0, "g050");
    let (name, sum) = groups.last().unwrap();
    assert_eq!((name.as_str(), sum.group.waiting, sum.behind), ("", (0..50).sum(), 50));
}
