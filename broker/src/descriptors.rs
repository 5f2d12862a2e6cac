//! File descriptors of the process, shared between connections, topics, groups and the rest.

use crate::limits::Limits;

/// File descriptors that are reserved for neither connections nor logs, if there are that many.
const DESCRIPTORS_RESERVED: u64 = 128;

/// Files that the log of a topic or group has open at most: one to write, and one to read.
const DESCRIPTORS_PER_LOG: u64 = 2;

/// If not all logs fit, at least one in this number may be a group's.
const LOGS_PER_GROUP: u64 = 4;

/// File descriptors that this process may have; `None`: any number.
pub(crate) fn descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Lowers the limits to what the number of descriptors allows. At least half of them are for
/// connections. Some are reserved for everything else, not least for accepting one connection too
/// many in order to refuse it.
pub(crate) fn share_descriptors(descriptors: u64, has_data: bool, limits: &mut Limits) {
    let count = |limit: usize| u64::try_from(limit).unwrap_or(u64::MAX);
    let mut kept = DESCRIPTORS_RESERVED.min(descriptors / 2);
    if has_data {
        let logs = count(limits.topics_max).saturating_add(count(limits.groups_max));
        let wanted = logs.saturating_mul(DESCRIPTORS_PER_LOG);
        kept = wanted.saturating_add(DESCRIPTORS_RESERVED).min(descriptors / 2);
        let others = DESCRIPTORS_RESERVED.min(kept / 2);
        let reachable = (kept - others) / DESCRIPTORS_PER_LOG;
        if reachable < logs {
            // Topics get what groups do not need, and the other way round.
            let for_groups = reachable.saturating_sub(count(limits.topics_max));
            let for_groups = for_groups.max(reachable / LOGS_PER_GROUP);
            lower_limit(&mut limits.groups_max, for_groups, "groups");
            let for_topics = reachable - count(limits.groups_max);
            lower_limit(&mut limits.topics_max, for_topics, "topics");
        }
    }
    lower_limit(&mut limits.connections_max, descriptors - kept, "connections");
}

fn lower_limit(limit: &mut usize, reachable: u64, what: &str) {
    let reachable = usize::try_from(reachable).unwrap_or(usize::MAX);
    if reachable < *limit {
        let wanted = *limit;
        // A few connections less are not worth a line at each start.
        if reachable < wanted - wanted / 16 {
            tracing::warn!(reachable, wanted, "the limit of open files allows fewer {what}");
        }
        *limit = reachable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_shared_between_connections_topics_groups_and_the_rest() {
        let share = |descriptors, has_data| {
            let mut limits = Limits::default();
            share_descriptors(descriptors, has_data, &mut limits);
            (limits.connections_max, limits.topics_max, limits.groups_max)
        };
        assert_eq!(share(1_024, false), (896, 1_000, 1_000));
        assert_eq!(share(64, false), (32, 1_000, 1_000));
        assert_eq!(share(0, false), (0, 1_000, 1_000));
        assert_eq!(share(1 << 20, true), (16_384, 1_000, 1_000));
        assert_eq!(share(8_256, true), (4_128, 1_000, 1_000));
        assert_eq!(share(8_254, true), (4_127, 1_000, 999));
        assert_eq!(share(1_024, true), (512, 144, 48));
        assert_eq!(share(64, true), (32, 6, 2));
    }

    #[test]
    fn topics_get_the_descriptors_that_groups_do_not_need() {
        let share = |topics_max, groups_max| {
            let mut limits = Limits { groups_max, topics_max, ..Limits::default() };
            share_descriptors(1_024, true, &mut limits);
            (limits.topics_max, limits.groups_max)
        };
        assert_eq!(share(1_000, 10), (182, 10));
        assert_eq!(share(10, 1_000), (10, 182));
        assert_eq!(share(100, 50), (100, 50));
    }
}
