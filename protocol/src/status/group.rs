//! Groups.

use std::fmt;

use super::fields::FieldSet;
use super::value::{DurationMs, Rate};
use crate::GroupSettings;

fields! {
    /// Sums of what workers reported about pages since the start of the broker. Without a report,
    /// nothing.
    PageMetricsStatus {
        /// Answers with a status of 200 to 299.
        ok: Option<u64> = "status-2xx",
        /// Answers with a status of 300 to 399.
        redirects: Option<u64> = "status-3xx",
        /// Answers with a status of 400 to 499.
        refused: Option<u64> = "status-4xx",
        /// Answers with a status of 500 to 599.
        broken: Option<u64> = "status-5xx",
        /// Bytes of the pages.
        bytes: Option<u64> = "bytes",
        /// The mean time of a request, in milliseconds.
        ms: Option<u64> = "ms",
    }
}

status! {
    /// A group: `GROUP show`, `watch`, and actions on the whole group.
    GroupStatus(group: String) {
        /// Whether it is paused and releases nothing.
        paused: bool = "paused",
        /// Connected members.
        members: u64 = "members",
        /// Connected members that take tasks which need a browser.
        render_members: Option<u64> = "render-members",
        /// Tasks that only wait for a member with a browser.
        render_waiting: Option<u64> = "render-waiting",
        /// What its members report about their browsers.
        browsers: BrowserFields,
        /// Entries that no member holds.
        waiting: u64 = "waiting",
        /// Entries that members hold.
        processing: u64 = "processing",
        /// Tasks that were acknowledged.
        completed: u64 = "completed",
        /// Attempts that failed.
        failed: u64 = "failed",
        /// Entries that were given up.
        dead: u64 = "dead",
        /// Dead letters that are kept.
        dead_kept: u64 = "dead-kept",
        /// Schedules.
        scheduled: u64 = "scheduled",
        /// Leases that ended without an answer.
        lost: u64 = "lost",
        /// Events without the group's key.
        unkeyed: u64 = "unkeyed",
        /// Keys in memory.
        keys: u64 = "keys",
        /// Keys with waiting entries whose host does not answer.
        keys_down: u64 = "keys-down",
        /// What its workers reported.
        metrics: PageMetricsStatus,
        /// Its settings.
        settings: GroupSettings,
        /// Recent tasks per second; only in `GROUP watch`.
        rate: Option<Rate> = "rate",
    }
}

status! {
    /// A group with a log that cannot be read: `GROUP show`.
    DamagedGroupStatus(group: String) {
        /// Whether its log is damaged, so that it rejects work.
        damaged: bool = "damaged",
        /// The topics that keep events for it, if they are known.
        topics: Option<Vec<String>> = "topics",
    }
}

status! {
    /// A member: the answer to `JOIN`.
    MemberStatus(group: String) {
        /// The largest number of tasks that it holds.
        credit: u64 = "credit",
        /// The largest number of those that need a browser, if it has one.
        render: Option<u64> = "render",
        /// The tasks that it holds.
        held: u64 = "held",
        /// The number of the group, which no other group of its name has.
        since: Option<u64> = "since",
    }
}

fields! {
    /// What a member reports about its browsers. Without a report, nothing.
    BrowserFields {
        /// Browsers that run.
        browsers: Option<u64> = "browsers",
        /// Pages that they render.
        pages: Option<u64> = "browser-pages",
        /// Pages that wait for a browser.
        waiting: Option<u64> = "browser-waiting",
        /// Pages until the next of them is replaced.
        pages_left: Option<u64> = "browser-pages-left",
        /// The memory of all of them.
        bytes: Option<u64> = "browser-bytes",
        /// Browsers that were replaced, or ended by themselves, since the member was started.
        restarts: Option<u64> = "browser-restarts",
    }
}

impl BrowserFields {
    /// Adds those of another member.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self {
            browsers: sum(self.browsers, other.browsers),
            pages: sum(self.pages, other.pages),
            waiting: sum(self.waiting, other.waiting),
            pages_left: self.pages_left.into_iter().chain(other.pages_left).min(),
            bytes: sum(self.bytes, other.bytes),
            restarts: sum(self.restarts, other.restarts),
        }
    }

    /// The words of a line, each behind a space.
    pub(crate) fn words(&self) -> impl fmt::Display {
        fmt::from_fn(|f| FieldSet::write(self, f))
    }

    /// Sets a field; `false` if none has this key. A value that cannot be read changes nothing.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> bool {
        FieldSet::set(self, key, value)
    }
}

words! {
    /// The state of a member.
    MemberState {
        /// Receives tasks as its credit allows.
        Active = "active",
        /// A lease of it ended without an answer. It receives no task until it sends something.
        Silent = "silent",
        /// Drained by an operator, and still holds tasks.
        Draining = "draining",
        /// Drained by an operator, and holds nothing.
        Drained = "drained",
        /// Not connected. It holds tasks until their leases end.
        Away = "away",
    }
}

fields! {
    /// What a group knows about a member.
    MemberFields {
        /// Its state.
        state: MemberState = "state",
        /// The largest number of tasks that it holds; 0 while it is not connected.
        credit: u64 = "credit",
        /// The tasks that it holds.
        held: u64 = "held",
        /// The largest number of tasks that need a browser; only if it has one.
        render: Option<u64> = "render",
        /// The tasks that need a browser and that it holds; only if it has one.
        rendering: Option<u64> = "rendering",
        /// What it reports about its browsers.
        browsers: BrowserFields,
        /// The name that it sent in `HELLO`.
        name: Option<String> = "name",
        /// Its address, while it is connected, for clients that may read the state of the broker.
        address: Option<String> = "address",
        /// The tasks that it did; left out if 0, as the following counts.
        done: Option<u64> = "done",
        /// Its attempts that failed.
        failed: Option<u64> = "failed",
        /// Its leases that ended without an answer.
        lost: Option<u64> = "lost",
        /// The tasks that it did per second, over about the last 10 s; left out if 0.
        rate: Option<Rate> = "rate",
        /// The time since it joined, in milliseconds, while it is connected.
        joined_ms: Option<u64> = "joined-ms",
        /// The time since it sent something, in milliseconds, while it is connected.
        heard_ms: Option<u64> = "heard-ms",
    }
}

status! {
    /// A member: a line of `GROUP members`. It is named by the first digits of its id.
    ListedMember(member: String) {
        /// What the group knows about it.
        fields: MemberFields,
    }
}

status! {
    /// The answer to `GROUP drain` and `GROUP undrain`.
    DrainStatus(group: String) {
        /// The first digits of the member's id.
        member: String = "member",
        /// What the group knows about it.
        fields: MemberFields,
    }
}

fields! {
    /// What a rule of an operator says about a key.
    RuleFields {
        /// `true` if nothing is released for the key and what waits for it ends; absent otherwise.
        block: Option<bool> = "block",
        /// `true` if nothing is released for the key; absent otherwise.
        pause: Option<bool> = "pause",
        /// The delay of the key, if the rule has one.
        delay: Option<DurationMs> = "delay",
        /// The largest number of its tasks in flight, if the rule has one.
        parallel: Option<u64> = "parallel",
        /// The time until the rule ends by itself, if it does.
        left: Option<DurationMs> = "left",
        /// A note of the operator.
        note: Option<String> = "note",
    }
}

status! {
    /// A rule: a line of `GROUP rules`. It is named by its key.
    ListedRule(key: String) {
        /// What it says.
        fields: RuleFields,
    }
}

status! {
    /// The answer to `GROUP rule`, and to `GROUP unrule`: the rule that ended.
    RuleStatus(group: String) {
        /// Its key.
        key: String = "key",
        /// What it says.
        fields: RuleFields,
    }
}

status! {
    /// The answer to `GROUP retry` and `GROUP drop`, which are about dead letters, and to `GROUP bump`
    /// and `GROUP purge` of a selection, which are about waiting entries.
    ChangedEntriesStatus(group: String) {
        /// Dead letters that were returned to the queue.
        retried: Option<u64> = "retried",
        /// Dead letters or waiting entries that were dropped.
        dropped: Option<u64> = "dropped",
        /// Dead letters that were not returned, because a rule blocks their key.
        blocked: Option<u64> = "blocked",
        /// Waiting entries that got the priority.
        bumped: Option<u64> = "bumped",
        /// Waiting entries that would be changed, if it is a dry run.
        matched: Option<u64> = "matched",
        /// The value of `after` with which the next part begins.
        next: Option<u64> = "next",
    }
}
