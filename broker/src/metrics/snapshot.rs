//! What the metrics of the broker are read from.

use std::cmp::Reverse;
use std::sync::Arc;

use tidings_log::DiskSpace;
use tidings_metrics::Durations;
use tidings_protocol::GroupName;

use crate::access::Transport;
use crate::clock::Moment;
use crate::groups::PublishedMetrics;
use crate::stats::Stats;
use crate::topic::TopicStats;

/// Groups with metrics of their own; the others are added up. Bounds the number of series.
const GROUPS_MAX: usize = 100;

/// What is known at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) stats: Arc<Stats>,
    pub(crate) connections: Vec<Connections>,
    pub(crate) topics: Vec<TopicMetrics>,
    /// Sorted; the last one may have an empty name, and is the sum of those without own metrics.
    pub(crate) groups: Vec<(String, Arc<PublishedMetrics>)>,
    /// Entries of all groups that were completed, and that failed, since the start.
    pub(crate) answered: [u64; 2],
    /// Groups with a damaged log.
    pub(crate) damaged_groups: Vec<GroupName>,
    pub(crate) group_log_bytes: u64,
    pub(crate) commits: Option<Durations>,
    pub(crate) disk: Option<DiskSpace>,
    pub(crate) audit_lost: u64,
    pub(crate) certificate_expiry_unix_s: Option<u64>,
    pub(crate) now: Moment,
}

/// The connections of a transport.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) transport: Transport,
    pub(crate) opened: u64,
    pub(crate) open: u64,
}

/// What is known about a topic.
#[derive(Debug)]
pub(crate) struct TopicMetrics {
    pub(crate) name: String,
    pub(crate) stats: TopicStats,
    /// Events from the hindmost durable cursor to the head.
    pub(crate) cursor_behind_max: u64,
    /// Events from the oldest one that is kept to the hindmost durable cursor that is not at the
    /// head: retention may delete as many before that cursor misses one.
    pub(crate) cursor_kept_min: Option<u64>,
}

impl Snapshot {
    /// The metrics of the groups with most entries, and the sum of the others.
    pub(crate) fn largest_groups(
        mut groups: Vec<(GroupName, Arc<PublishedMetrics>)>,
    ) -> Vec<(String, Arc<PublishedMetrics>)> {
        groups.sort_by_cached_key(|(name, metrics)| {
            let entries = metrics.group.waiting + metrics.group.processing;
            (Reverse(entries), name.clone())
        });
        let others = groups.split_off(groups.len().min(GROUPS_MAX));
        let named = groups.into_iter();
        let mut shown: Vec<_> = named.map(|(name, metrics)| (name.to_string(), metrics)).collect();
        shown.sort_by(|(one, _), (other, _)| one.cmp(other));
        if !others.is_empty() {
            let mut sum = PublishedMetrics::default();
            for (_, metrics) in &others {
                sum.merge(metrics);
            }
            shown.push((String::new(), Arc::new(sum)));
        }
        shown
    }
}
