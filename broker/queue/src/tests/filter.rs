//! The filter of a group: which events become entries.

use proptest::prelude::*;
use tidings_protocol::AttributeFilter;

use super::bench::{A, Bench, topic};
use super::repairs::{replayed, snapshot};
use crate::config::GroupConfig;
use crate::record::Decision;

/// Replaces the group by what its records say. It began with this configuration.
fn restart(bench: &mut Bench, config: &GroupConfig) {
    bench.group = replayed(&bench.records, true, config.clone());
}

// PROTOCOL: G20
#[test]
fn excluded_event_only_moves_the_position() {
    let mut bench = Bench::new(&[("where", "a=1"), ("where", "b!=2")]);
    let config = bench.group.config().clone();
    bench.publish("http://a.org/1 a=1 b=2");
    bench.publish("a text, which the group could not use");
    bench.publish("http://a.org/2 a=2 every=1h");
    assert_eq!(bench.group.next_to_consume(&topic()).0, 4);
    let is_empty = |decision: &Decision| matches!(decision, Decision::Consumed { effects, .. } if effects.is_empty());
    assert!(bench.records.iter().all(|record| is_empty(&record.decision)), "{:?}", bench.records);
    assert!(bench.events.is_empty(), "no dead letter: {:?}", bench.events);
    restart(&mut bench, &config);
    assert_eq!(bench.group.next_to_consume(&topic()).0, 4);
    bench.publish("http://a.org/3 a=1");
    bench.join(A, 10);
    assert_eq!(bench.task().payload, "http://a.org/3 a=1");
}

proptest! {
    #[test]
    fn selected_events_and_no_others_become_tasks(
        steps in prop::collection::vec((0..6_u8, 0..3_u8, 0..3_u8), 0..60),
    ) {
        let mut bench = Bench::new(&[("key", "none")]);
        let config = bench.group.config().clone();
        let (mut filter, mut selected) = (AttributeFilter::default(), Vec::new());
        for (number, (step, a, b)) in steps.into_iter().enumerate() {
            match step {
                0 => restart(&mut bench, &config),
                1 => {
                    let words = [format!("a={a}"), format!("b!={b}")];
                    let words = words.iter().take(usize::from(a)).map(String::as_str);
                    filter = AttributeFilter::parse(words).unwrap();
                    let words = filter.words();
                    let words: Vec<_> =
                        words.iter().map(|(name, value)| (*name, value.as_str())).collect();
                    bench.configure(&words);
                    bench.ok();
                }
                _ => {
                    let payload = format!("/{number} a={a} b={b}");
                    bench.publish(&payload);
                    selected.extend(filter.matches(&payload).then_some(payload));
                }
            }
        }
        prop_assert_eq!(bench.group.next_to_consume(&topic()).0, bench.next_seq);
        let again = replayed(&snapshot(&mut bench), false, GroupConfig::default());
        prop_assert_eq!(&again.config().settings, &bench.group.config().settings);
        bench.group = again;
        bench.join(A, 100);
        let tasks: Vec<_> = bench.tasks.iter().map(|(_, task)| &task.payload).collect();
        prop_assert_eq!(tasks, selected.iter().collect::<Vec<_>>());
    }
}
