//! Records as lines of a group's log.
//!
//! A line is `<moment> TAB <verb> TAB <fields>`, with a TAB between fields. A list is its length,
//! followed by the fields of its items. In texts, a TAB is written `\t` and a backslash `\\`; texts
//! contain no other control bytes. An optional value is `-`, or `+` and the value. A verb never
//! changes its meaning: a changed record has another verb.

mod value;

use tidings_protocol::status::PassCounts;
use tidings_protocol::{CanonicalUrl, GroupSettings};

use self::value::{LineFields, LineValue, structs, variants};
use super::snapshot::SnapshotItem;
use super::{Decision, EndReason, EventEffect, GroupRecord, NextStep, RecordedRest};
use crate::config::GroupConfig;
use crate::entry::{Admission, AgainRequest, Entry, EntryState, Lease, PassId};
use crate::frontier::circuit::Circuit;
use crate::frontier::key_queue::KeyState;
use crate::frontier::rules::{KeyRule, RuleHistory};
use crate::jobs::{Job, JobState, SettingsChanges};
use crate::moment::{ClockStamp, Moment};
use crate::schedules::{Schedule, WallClockDue, WallClockTarget};

/// A line that is not a record: written by a later version, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it contains a line that is not a record of this version")]
pub struct InvalidRecord;

impl GroupRecord {
    /// Appends the record's line, with its line end.
    pub fn encode(&self, lines: &mut String) {
        self.write(lines);
        // In place of the TAB after the last field.
        lines.pop();
        lines.push('\n');
    }

    /// Parses a line without its line end.
    pub fn decode(line: &str) -> Result<Self, InvalidRecord> {
        let mut fields = LineFields(Some(line));
        let record = Self::read(&mut fields).ok_or(InvalidRecord)?;
        if fields.next().is_none() { Ok(record) } else { Err(InvalidRecord) }
    }
}

variants!(Decision {
    "started" => Started { run, since, elapsed_unknown, stamp, local_member },
    "configured" => Configured(config),
    "taken" => Consumed { topic, next, effects },
    "released" => Released { entry, member, until },
    "touched" => Touched { entry, until, request_over, rest },
    "answered" => Answered { entry, outcome, rest, children },
    "returned" => Returned { entry, rest, reason, next_step },
    "lost" => Lost { entry },
    "ended" => Ended { end, entries },
    "bumped" => Bumped { prio, entries },
    "cleared" => JobCleared { number, key, end },
    "unpinned" => Unpinned { entries },
    "paused" => Paused(paused),
    "drained" => MemberDrained { member, drained },
    "rule-set" => RuleSet(rule),
    "rule-removed" => RuleRemoved { name, below },
    "purged" => Purged,
    "retried" => DeadRetried { entries },
    "forgotten" => DeadDropped { entries },
    "kept" => SnapshotPart(item),
    "deleted" => Deleted,
    "fell-due" => ScheduleDue { url, next, effect },
    "clock-times" => WallClockDues(dues),
    "seed-added" => SeedAdded(effect),
    "job-set" => JobSet { number, time_until, settings },
    "job-paused" => JobPaused { number, paused },
    "job-begun" => JobHoldEnded { number },
    "job-time-up" => JobTimeUp { number },
    "job-deleted" => JobDeleted { number },
    "job-opened" => JobOpened { number, name, settings },
    "job-reopened" => JobReopened { number },
    "job-closed" => JobClosed { number },
    "job-noted" => JobCompletionPending { number, heads },
    "job-cancelled" => JobCancelled { number },
    "job-done" => JobDone { number },
    "announced" => PublishQueued { serial, topic, payload },
    "sent" => Published { serial, topic, seq },
});

variants!(SnapshotItem {
    "begin" => Begin { run, since, stamp, local_member, last_entry, dormant, keys },
    "rule" => Rule(rule),
    "rules" => RuleHistory(history),
    "abandoned" => Abandoned,
    "taken" => Consumed { topic, next },
    "sent" => Published { topic, seq },
    "unsent" => Unpublished { serial, topic, payload },
    "job" => Job(job),
    "scope" => Scope { number, part },
    "job-changes" => JobChanges { number, changes },
    "pages" => Pages { number, key, completed },
    "seen" => Seen { pass, fingerprints },
    "key" => Key { key, state },
    "unanswered" => Circuit { key, circuit },
    "entry" => Entry(entry),
    "parked" => Dormant(entries),
    "schedule" => Schedule(schedule),
    "clock-time" => WallClockDue(due),
    "dead" => Dead { reason, entry },
    "drained" => Drained { member },
    "end" => End { last_entry, last_serial, last_job, is_paused, totals },
});

variants!(EventEffect {
    "a" => Admitted(admission),
    "c" => Coalesced { announced, prio, due, forwarded, entries },
    "d" => Duplicate(number),
    "s" => Scheduled(schedule),
    "e" => Unscheduled(url),
    "u" => Unusable,
});

variants!(NextStep {
    "retry" => Retry { due },
    "unanswered" => Unanswered { due, counts },
    "uncounted" => Uncounted { due },
    "again" => Again(request),
    "render" => Render,
});

variants!(WallClockTarget {
    "e" => Entry(entry),
    "s" => Schedule(url),
});

variants!(EndReason {
    "dead" => Dead,
    "down" => Down,
    "budget" => Budget,
    "cancelled" => Cancelled,
    "purged" => Purged,
    "scope" => Scope,
    "blocked" => Blocked,
});

variants!(JobState {
    "open" => Open,
    "closed" => Closed,
    "done" => Done,
});

structs! {
    GroupRecord { at, decision }
    ClockStamp { moment, boot_id, uptime_ms, unix_ms }
    RecordedRest { not_before, pace_ms }
    Admission {
        id,
        text,
        url_key as (
            Option::is_some,
            |is_url: bool| is_url.then(|| CanonicalUrl::key_of(<Box<str>>::as_ref(&text)))
        ),
        key,
        job as (
            |job: &Option<PassId>| job.map(|PassId { number, pass }| (number, pass)),
            |job: Option<_>| job.map(|(number, pass)| PassId { number, pass })
        ),
        depth,
        hops,
        redirect,
        announced,
        prio,
        due,
        forwarded
    }
    Schedule { url_key, text, key, prio, forwarded, every_ms, due, entry, skips_next }
    WallClockDue { target, unix_ms, due }
    PassId { number, pass }
    KeyRule { number, name, below, block, pause, delay_ms, parallel, until, note }
    RuleHistory { last_number, lifted, reboot_at, last_at_reboot }
    SettingsChanges { count, opened }
    AgainRequest { url, key, member }
    PassCounts {
        found,
        completed,
        redirects,
        failed,
        robots,
        scope,
        blocked,
        trap,
        budget,
        duplicates,
        cancelled
    }
    Circuit { unanswered, rests_from, tried, given_up, never_answered }
    KeyState {
        free_at,
        ended_at,
        pace as (
            |pace: &Option<(u64, Moment)>| pace.map(|(ms, until)| (ms, until.0)),
            |pace: Option<_>| pace.map(|(ms, until)| (ms, Moment(until)))
        ),
        last_member,
        last_lane,
        last_job
    }
}

structs! {
    // The settings that a client can change are written in the words that set them.
    GroupConfig = recorded[settings] {
        backoff_ms_max,
        not_before_ms_max,
        pace_ms_max,
        open_ms_max,
        jobs_max,
        finished_jobs_max,
        entries_max,
        entry_bytes_max,
        unkeyed_dead_letters_per_minute,
        schedules_max,
        dead_max,
        dead_bytes_max
    }
    Job = Job::new[id, name, settings, state] {
        cancelled,
        paused,
        time_is_up,
        time_until,
        open_until,
        opened_at,
        ended_at,
        counts,
        completion_heads
    }
    Lease = Lease::new[member, run, until] { request_over }
    Entry = Entry::new[admitted] {
        releases,
        failures,
        losses,
        again_count,
        last_reason,
        again,
        repairs,
        state
    }
}

fn recorded(settings: GroupSettings) -> GroupConfig {
    GroupConfig { settings, ..GroupConfig::default() }
}

/// As an optional lease.
impl LineValue for EntryState {
    fn write(&self, line: &mut String) {
        let lease = if let Self::Held(lease) = self { Some(*lease) } else { None };
        lease.write(line);
    }

    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        Some(Option::read(fields)?.map_or(Self::Delayed, Self::Held))
    }
}

#[cfg(test)]
mod tests;
