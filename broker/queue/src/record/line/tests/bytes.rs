//! Each verb and each form of a field, as logs have them.

use tidings_protocol::{JobName, JobSettings, MemberId, Outcome, Seq, Settings, TopicName, UrlKey};

use crate::config::GroupConfig;
use crate::entry::{
    Admission, AgainRequest, EndReason, Entry, EntryState, Lease, PassId, RecordedRest,
};
use crate::frontier::circuit::Circuit;
use crate::frontier::key_queue::KeyState;
use crate::frontier::lane::Lane;
use crate::frontier::rules::{KeyRule, RuleHistory};
use crate::jobs::{Job, JobState, SettingsChanges};
use crate::moment::{ClockStamp, Moment};
use crate::record::snapshot::SnapshotItem;
use crate::record::{Decision, EventEffect, GroupRecord, NextStep};
use crate::schedules::{Schedule, WallClockDue, WallClockTarget};

const AT: Moment = Moment(9);
const MEMBER: MemberId = MemberId(0x1f);
const STAMP: ClockStamp = ClockStamp { moment: AT, boot_id: 3, uptime_ms: 4, unix_ms: -5 };
const REST: RecordedRest = RecordedRest { not_before: Some(AT), pace_ms: Some(8) };
const NO_REST: RecordedRest = RecordedRest { not_before: None, pace_ms: None };
pub(super) const END_REASONS: [EndReason; 7] = [
    EndReason::Dead,
    EndReason::Budget,
    EndReason::Cancelled,
    EndReason::Purged,
    EndReason::Scope,
    EndReason::Blocked,
    EndReason::Down,
];
const PASS: PassId = PassId { number: 4, pass: 2 };

fn topic() -> TopicName {
    "new-url".parse().unwrap()
}

fn job_name() -> JobName {
    "docs".parse().unwrap()
}

fn admission() -> Admission {
    let text: Box<str> = "http://a.test/\\".into();
    Admission {
        id: 1,
        url_key: Some(tidings_protocol::CanonicalUrl::key_of(&text)),
        text,
        key: "a.test".into(),
        job: Some(PASS),
        depth: 2,
        hops: 3,
        redirect: true,
        announced: false,
        prio: -7,
        due: AT,
        forwarded: " x=1".into(),
    }
}

fn plain_admission() -> Admission {
    let text = "a\tb".into();
    Admission { text, url_key: None, job: None, redirect: false, announced: true, ..admission() }
}

fn schedule(entry: Option<u64>) -> Schedule {
    Schedule {
        url_key: UrlKey(77),
        text: "http://a.test/".into(),
        key: "a.test".into(),
        prio: 1,
        forwarded: "".into(),
        every_ms: 1000,
        due: AT,
        entry,
        skips_next: entry.is_some(),
    }
}

fn rule() -> KeyRule {
    KeyRule {
        number: 3,
        name: "a.test".into(),
        below: true,
        block: true,
        pause: true,
        delay_ms: Some(5),
        parallel: Some(2),
        until: Some(AT),
        note: Some("abuse-1".into()),
    }
}

fn plain_rule() -> KeyRule {
    KeyRule {
        below: false,
        block: false,
        pause: false,
        delay_ms: None,
        parallel: None,
        until: None,
        note: None,
        ..rule()
    }
}

fn again() -> AgainRequest {
    AgainRequest { url: "http://b.test/".into(), key: "b.test".into(), member: MEMBER }
}

fn coalesced(forwarded: &str) -> EventEffect {
    let forwarded = forwarded.into();
    EventEffect::Coalesced { entries: vec![5, 6], announced: true, prio: -1, due: AT, forwarded }
}

fn job_settings() -> JobSettings {
    JobSettings::parse([("max-depth", "3"), ("max-time", "2h"), ("include", "/a*,/b\\")]).unwrap()
}

fn rendered_settings() -> JobSettings {
    JobSettings::parse([("exclude", "/b"), ("render", "/app/*,/s$"), ("hold", "yes")]).unwrap()
}

fn job(state: JobState) -> Job {
    let mut job = Job::new(PASS, job_name(), job_settings(), state);
    (job.cancelled, job.paused) = (state == JobState::Closed, state == JobState::Done);
    job.time_is_up = true;
    (job.time_until, job.open_until) = (Some(AT), Moment(10));
    (job.opened_at, job.ended_at) = (Moment(7), (state == JobState::Done).then_some(Moment(8)));
    (job.counts.found, job.counts.completed, job.counts.redirects) = (90, 1, 2);
    (job.counts.failed, job.counts.robots, job.counts.scope) = (3, 4, 5);
    (job.counts.trap, job.counts.budget) = (6, 7);
    (job.counts.duplicates, job.counts.cancelled, job.counts.blocked) = (8, 9, 10);
    job.completion_heads = (state == JobState::Closed).then(|| [(topic(), Seq(3))].into());
    job
}

fn held_entry() -> Entry {
    let lease = Lease { request_over: true, ..Lease::new(MEMBER, 6, AT) };
    Entry {
        state: EntryState::Held(lease),
        releases: 11,
        failures: 12,
        losses: 13,
        again_count: 14,
        last_reason: Some("slow".into()),
        again: Some(Box::new(again())),
        ..Entry::new(admission())
    }
}

fn key_state(last_lane: Lane) -> KeyState {
    KeyState {
        free_at: AT,
        ended_at: Some(Moment(8)),
        pace: Some((500, Moment(99))),
        last_member: Some(MEMBER),
        last_lane: Some(last_lane),
        last_job: 4,
    }
}

const EMPTY_KEY_STATE: KeyState = KeyState {
    free_at: Moment(0),
    ended_at: None,
    pace: None,
    last_member: None,
    last_lane: None,
    last_job: 0,
};

fn config() -> GroupConfig {
    let settings = [("key", "domain"), ("topics", "a,b"), ("delay", "5s")];
    GroupConfig {
        backoff_ms_max: 1,
        not_before_ms_max: 2,
        pace_ms_max: 3,
        open_ms_max: 4,
        jobs_max: 5,
        finished_jobs_max: 6,
        entries_max: 7,
        entry_bytes_max: 8,
        unkeyed_dead_letters_per_minute: 9,
        schedules_max: 10,
        dead_max: 11,
        dead_bytes_max: 12,
        ..GroupConfig::default().with_settings(settings).unwrap()
    }
}

fn effects() -> Vec<EventEffect> {
    vec![
        EventEffect::Admitted(admission()),
        EventEffect::Admitted(plain_admission()),
        coalesced(""),
        coalesced(" x=\\1"),
        EventEffect::Duplicate(4),
        EventEffect::Scheduled(Box::new(schedule(None))),
        EventEffect::Scheduled(Box::new(schedule(Some(1)))),
        EventEffect::Unscheduled(UrlKey(77)),
        EventEffect::Unusable,
    ]
}

fn decisions() -> Vec<Decision> {
    let (entry, entries, number, serial) = (1, vec![1, 2], 4, 7);
    let topics = ["job-done", "dead-letter", "page-ready"];
    let returned = |next_step, rest, reason: Option<&str>| Decision::Returned {
        entry,
        next_step,
        rest,
        reason: reason.map(Into::into),
    };
    let due = |target| WallClockDue { target, unix_ms: -6, due: AT };
    let dues = [WallClockTarget::Entry(1), WallClockTarget::Schedule(UrlKey(77))].map(due).to_vec();
    let mut all = vec![
        Decision::Started {
            run: 1,
            since: 12,
            elapsed_unknown: true,
            stamp: STAMP,
            local_member: None,
        },
        Decision::Started {
            run: 1,
            since: 12,
            elapsed_unknown: false,
            stamp: STAMP,
            local_member: Some(MEMBER),
        },
        Decision::Configured(Box::new(config())),
        Decision::Consumed { topic: topic(), next: Seq(3), effects: effects() },
        Decision::Released { entry, member: MEMBER, until: AT },
        Decision::Touched { entry, until: AT, request_over: true, rest: REST },
        returned(NextStep::Retry { due: AT }, REST, Some("a\tb")),
        returned(NextStep::Unanswered { due: AT, counts: false }, NO_REST, Some("dns")),
        returned(NextStep::Uncounted { due: AT }, NO_REST, None),
        returned(NextStep::Again(Box::new(again())), NO_REST, None),
        returned(NextStep::Render, NO_REST, None),
        Decision::Lost { entry },
        Decision::JobCleared { number, key: None, end: EndReason::Budget },
        Decision::JobCleared { number, key: Some("a.test".into()), end: EndReason::Cancelled },
        Decision::Bumped { prio: -5, entries: entries.clone() },
        Decision::Unpinned { entries: entries.clone() },
        Decision::Paused(true),
        Decision::Paused(false),
        Decision::MemberDrained { member: MEMBER, drained: true },
        Decision::MemberDrained { member: MEMBER, drained: false },
        Decision::RuleSet(Box::new(rule())),
        Decision::RuleSet(Box::new(plain_rule())),
        Decision::RuleRemoved { name: "a.test".into(), below: true },
        Decision::Purged,
        Decision::DeadRetried { entries: entries.clone() },
        Decision::DeadDropped { entries: entries.clone() },
        Decision::Deleted,
        Decision::ScheduleDue { url: UrlKey(77), next: AT, effect: None },
        Decision::ScheduleDue { url: UrlKey(77), next: AT, effect: Some(Box::new(coalesced(""))) },
        Decision::WallClockDues(dues),
        Decision::SeedAdded(Box::new(EventEffect::Duplicate(4))),
        Decision::JobSet { number, time_until: Some(AT), settings: job_settings().into() },
        Decision::JobPaused { number, paused: true },
        Decision::JobHoldEnded { number },
        Decision::JobTimeUp { number },
        Decision::JobDeleted { number },
        Decision::JobOpened { number, name: job_name(), settings: job_settings().into() },
        Decision::JobOpened { number, name: job_name(), settings: rendered_settings().into() },
        Decision::JobReopened { number },
        Decision::JobClosed { number },
        Decision::JobCompletionPending { number, heads: [(topic(), Seq(3))].into() },
        Decision::JobCancelled { number },
        Decision::JobDone { number },
    ];
    all.extend(topics.map(|topic| Decision::PublishQueued { serial, topic, payload: "a".into() }));
    all.extend(topics.map(|topic| Decision::Published { serial, topic, seq: Seq(3) }));
    all.extend(END_REASONS.map(|end| Decision::Ended { entries: entries.clone(), end }));
    all.extend(Outcome::ALL.map(|outcome| {
        let children = vec![plain_admission()];
        Decision::Answered { entry, outcome, children, rest: REST }
    }));
    all.extend(snapshot().into_iter().map(|item| Decision::SnapshotPart(Box::new(item))));
    all
}

fn snapshot() -> Vec<SnapshotItem> {
    let topic_name = "job-done";
    let begin = |local_member| SnapshotItem::Begin {
        run: 1,
        since: Some(12),
        stamp: STAMP,
        local_member,
        last_entry: 8,
        dormant: 5,
        keys: 6,
    };
    let dead = |reason| SnapshotItem::Dead { entry: Box::new(held_entry()), reason };
    let key = |state| SnapshotItem::Key { key: "a.test".into(), state };
    let circuit = |tried, never_answered| SnapshotItem::Circuit {
        key: "a.test".into(),
        circuit: Circuit { unanswered: 11, rests_from: AT, tried, given_up: 7, never_answered },
    };
    let repair = Entry { repairs: Some(PASS), ..Entry::new(plain_admission()) };
    let open = Job::new(PASS, job_name(), JobSettings::default(), JobState::Open);
    vec![
        begin(None),
        begin(Some(MEMBER)),
        SnapshotItem::Rule(Box::new(rule())),
        SnapshotItem::RuleHistory(RuleHistory {
            last_number: 3,
            lifted: 1,
            reboot_at: AT,
            last_at_reboot: 2,
        }),
        SnapshotItem::Abandoned,
        SnapshotItem::Consumed { topic: topic(), next: Seq(3) },
        SnapshotItem::Published { topic: topic_name, seq: Seq(3) },
        SnapshotItem::Unpublished { serial: 7, topic: topic_name, payload: "a\\b".into() },
        SnapshotItem::Job(Box::new(open)),
        SnapshotItem::Job(Box::new(job(JobState::Closed))),
        SnapshotItem::Job(Box::new(job(JobState::Done))),
        SnapshotItem::Scope { number: 4, part: "a.test".into() },
        SnapshotItem::JobChanges {
            number: 4,
            changes: SettingsChanges { count: 5, opened: JobSettings::default() }.into(),
        },
        SnapshotItem::Pages { number: 4, key: "a.test".into(), completed: 5 },
        SnapshotItem::Seen { pass: PASS, fingerprints: vec![5, 6] },
        key(EMPTY_KEY_STATE),
        key(key_state(Lane::Announced)),
        key(key_state(Lane::Job(4))),
        circuit(None, false),
        circuit(Some(1), true),
        SnapshotItem::Entry(Box::new(Entry::new(plain_admission()))),
        SnapshotItem::Entry(Box::new(held_entry())),
        SnapshotItem::Entry(Box::new(repair)),
        SnapshotItem::Dormant(vec![admission(), plain_admission()]),
        SnapshotItem::Schedule(Box::new(schedule(Some(1)))),
        SnapshotItem::WallClockDue(WallClockDue {
            target: WallClockTarget::Entry(1),
            unix_ms: 6,
            due: AT,
        }),
        dead("max-attempts"),
        dead("max-losses"),
        dead("down"),
        SnapshotItem::Drained { member: MEMBER },
        SnapshotItem::End {
            last_entry: 1,
            last_serial: 2,
            last_job: 3,
            is_paused: true,
            totals: [4, 5, 6, 7, 8],
        },
    ]
}

#[test]
fn records_have_these_bytes() {
    let expected = include_str!("bytes.txt").lines();
    assert_eq!(expected.clone().count(), decisions().len());
    for (expected, decision) in expected.zip(decisions()) {
        let record = GroupRecord { at: AT, decision };
        let mut line = String::new();
        record.encode(&mut line);
        assert_eq!(line.strip_suffix('\n'), Some(expected));
        assert_eq!(GroupRecord::decode(expected), Ok(record));
    }
}
