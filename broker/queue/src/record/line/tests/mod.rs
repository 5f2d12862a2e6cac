mod bytes;

use proptest::prelude::*;
use tidings_protocol::{
    DEAD_LETTER_TOPIC, JOB_DONE_TOPIC, JobName, JobSettings, MemberId, Outcome, PAGE_READY_TOPIC,
    ScopeRule, Seq, TopicName, UrlKey,
};

use super::*;
use crate::entry::EntryId;
use crate::moment::Moment;

fn moment() -> impl Strategy<Value = Moment> {
    any::<u64>().prop_map(Moment)
}

/// Any text of a protocol line, with the escaped characters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z\\\\\t\\-+ é]{0,12}", "http://[a-z]{1,5}\\.test/[a-z?=&\\\\]{0,9}"]
}

fn boxed() -> impl Strategy<Value = Box<str>> {
    text().prop_map(Into::into)
}

fn rest() -> impl Strategy<Value = RecordedRest> {
    (any::<Option<u64>>(), any::<Option<u64>>())
        .prop_map(|(at, pace_ms)| RecordedRest { not_before: at.map(Moment), pace_ms })
}

fn topic() -> impl Strategy<Value = TopicName> {
    prop::sample::select(vec!["new-url", "a"]).prop_map(|name| name.parse().unwrap())
}

fn own_topic() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![JOB_DONE_TOPIC, DEAD_LETTER_TOPIC, PAGE_READY_TOPIC])
}

prop_compose! {
    fn key_rule()(
        (number, below, block, pause) in any::<(u64, bool, bool, bool)>(),
        (delay_ms, parallel, until) in any::<(Option<u64>, Option<u32>, Option<u64>)>(),
        (name, note) in (text(), prop::option::of(boxed())),
    ) -> KeyRule {
        let (name, until) = (name.into(), until.map(Moment));
        KeyRule { number, name, below, block, pause, delay_ms, parallel, until, note }
    }
}

fn of_rules() -> impl Strategy<Value = Decision> {
    let kept = |item| Decision::SnapshotPart(Box::new(item));
    prop_oneof![
        key_rule().prop_map(|rule| Decision::RuleSet(Box::new(rule))),
        key_rule().prop_map(move |rule| kept(SnapshotItem::Rule(Box::new(rule)))),
        (text(), any::<bool>())
            .prop_map(|(name, below)| Decision::RuleRemoved { name: name.into(), below }),
    ]
}

fn entries() -> impl Strategy<Value = Vec<EntryId>> {
    prop::collection::vec(any::<u64>(), 0..4)
}

prop_compose! {
    fn admission()(
        id in any::<u64>(),
        text in boxed(),
        has_url in any::<bool>(),
        key in text(),
        job in any::<Option<(u64, u32)>>(),
        (depth, hops) in any::<(u32, u32)>(),
        (redirect, announced) in any::<(bool, bool)>(),
        prio in any::<i16>(),
        due in moment(),
        forwarded in boxed(),
    ) -> Admission {
        Admission {
            id,
            url_key: has_url.then(|| CanonicalUrl::key_of(&text)),
            text,
            key: key.into(),
            job: job.map(|(number, pass)| PassId { number, pass }),
            depth,
            hops,
            redirect,
            announced,
            prio,
            due,
            forwarded,
        }
    }
}

prop_compose! {
    fn schedule()(
        (url_key, every_ms) in any::<(u128, u64)>(),
        (text, key, forwarded) in (boxed(), text(), boxed()),
        prio in any::<i16>(),
        due in moment(),
        entry in any::<Option<u64>>(),
        skips_next in any::<bool>(),
    ) -> Schedule {
        let (url_key, key) = (UrlKey(url_key), key.into());
        Schedule { url_key, text, key, prio, forwarded, every_ms, due, entry, skips_next }
    }
}

prop_compose! {
    fn entry()(
        admitted in admission(),
        (releases, failures, losses, again_count) in any::<(u32, u32, u32, u32)>(),
        last_reason in prop::option::of(boxed()),
        again in prop::option::of((boxed(), text(), any::<u128>())),
        lease in prop::option::of((any::<u128>(), any::<u64>(), moment(), any::<bool>())),
        repairs in any::<Option<(u64, u32)>>(),
    ) -> Entry {
        let again = again.map(|(url, key, member)| {
            Box::new(AgainRequest { url, key: key.into(), member: MemberId(member) })
        });
        let state = lease.map_or(EntryState::Delayed, |(member, run, until, request_over)| {
            EntryState::Held(Lease { request_over, ..Lease::new(MemberId(member), run, until) })
        });
        let repairs = repairs.map(|(number, pass)| PassId { number, pass });
        let entry = Entry { repairs, ..Entry::new(admitted) };
        Entry { state, releases, failures, losses, last_reason, again, again_count, ..entry }
    }
}

fn taking() -> impl Strategy<Value = EventEffect> {
    prop_oneof![
        admission().prop_map(EventEffect::Admitted),
        (entries(), any::<bool>(), any::<i16>(), moment(), boxed()).prop_map(
            |(entries, announced, prio, due, forwarded)| EventEffect::Coalesced {
                entries,
                announced,
                prio,
                due,
                forwarded
            }
        ),
        any::<u64>().prop_map(EventEffect::Duplicate),
        schedule().prop_map(|schedule| EventEffect::Scheduled(Box::new(schedule))),
        any::<u128>().prop_map(|url| EventEffect::Unscheduled(UrlKey(url))),
        Just(EventEffect::Unusable),
    ]
}

fn clock_time() -> impl Strategy<Value = WallClockDue> {
    let what = prop_oneof![
        any::<u64>().prop_map(WallClockTarget::Entry),
        any::<u128>().prop_map(|url| WallClockTarget::Schedule(UrlKey(url))),
    ];
    (what, any::<i64>(), moment()).prop_map(|(what, unix_ms, due)| WallClockDue {
        target: what,
        unix_ms,
        due,
    })
}

fn back() -> impl Strategy<Value = NextStep> {
    prop_oneof![
        moment().prop_map(|due| NextStep::Retry { due }),
        (moment(), any::<bool>()).prop_map(|(due, counts)| NextStep::Unanswered { due, counts }),
        moment().prop_map(|due| NextStep::Uncounted { due }),
        Just(NextStep::Render),
        (boxed(), text(), any::<u128>()).prop_map(|(url, key, member)| NextStep::Again(Box::new(
            AgainRequest { url, key: key.into(), member: MemberId(member) }
        ))),
    ]
}

fn config() -> impl Strategy<Value = GroupConfig> {
    let key = prop::sample::select(vec!["host", "domain", "attr:site", "none"]);
    (key, any::<Option<u16>>(), any::<u64>(), any::<u32>()).prop_map(|(key, delay, ms, letters)| {
        let mut config =
            GroupConfig::default().with_settings([("key", key), ("topics", "a,b")]).unwrap();
        config.settings.delay_ms = delay.map(u64::from);
        GroupConfig { open_ms_max: ms, unkeyed_dead_letters_per_minute: letters, ..config }
    })
}

fn job_settings() -> impl Strategy<Value = JobSettings> {
    let scope = prop::sample::select(vec![ScopeRule::Host, ScopeRule::Prefix, ScopeRule::Any]);
    let number = || prop::option::of(1_u64..1 << 30);
    let patterns = || prop::option::of("[/*][a-z%*$\\\\]{0,9}(,/[é=&]{0,9}){0,2}");
    let patterns = || {
        patterns().prop_map(|text| text.map_or_else(Default::default, |text| text.parse().unwrap()))
    };
    let callback = prop::option::of("https://[a-z]{1,9}\\.example/[a-z?=]{0,9}");
    let callback = callback.prop_map(|url| url.map(String::into_boxed_str));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = prop::option::of(Just(Box::from(trace)));
    let rules = ["never", "auto", "always", "/app/*,/s$"].map(|rule| rule.parse().unwrap());
    let render = prop::option::of(prop::sample::select(rules.to_vec()));
    let links = (scope, (patterns(), patterns()), render, any::<Option<u32>>());
    (links, number(), number(), number(), any::<bool>(), (callback, trace)).prop_map(
        |(links, pages_max, host_pages_max, time_ms_max, hold, (callback, traceparent))| {
            let (scope, (include, exclude), render, depth_max) = links;
            JobSettings {
                scope,
                include,
                exclude,
                render,
                depth_max,
                pages_max,
                host_pages_max,
                time_ms_max,
                hold,
                callback,
                traceparent,
            }
        },
    )
}

fn of_entries() -> impl Strategy<Value = Decision> {
    let children = prop::collection::vec(admission(), 0..3);
    let outcome = prop::sample::select(Outcome::ALL.to_vec());
    prop_oneof![
        (any::<u64>(), any::<u128>(), moment()).prop_map(|(entry, member, until)| {
            Decision::Released { entry, member: MemberId(member), until }
        }),
        (any::<u64>(), moment(), any::<bool>(), rest()).prop_map(
            |(entry, until, request_over, rest)| {
                Decision::Touched { entry, until, request_over, rest }
            }
        ),
        (any::<u64>(), outcome, children, rest()).prop_map(|(entry, outcome, children, rest)| {
            Decision::Answered { entry, outcome, children, rest }
        }),
        (any::<u64>(), back(), rest(), prop::option::of(boxed())).prop_map(
            |(entry, next_step, rest, reason)| Decision::Returned {
                entry,
                next_step,
                rest,
                reason
            }
        ),
        any::<u64>().prop_map(|entry| Decision::Lost { entry }),
        (entries(), prop::sample::select(bytes::END_REASONS.to_vec()))
            .prop_map(|(entries, end)| Decision::Ended { entries, end }),
        entries().prop_map(|entries| Decision::Unpinned { entries }),
        entries().prop_map(|entries| Decision::DeadRetried { entries }),
        entries().prop_map(|entries| Decision::DeadDropped { entries }),
        taking().prop_map(|taking| Decision::SeedAdded(taking.into())),
        prop::collection::vec(clock_time(), 0..4).prop_map(Decision::WallClockDues),
        clock_time()
            .prop_map(|time| Decision::SnapshotPart(Box::new(SnapshotItem::WallClockDue(time)))),
        entry()
            .prop_map(|entry| Decision::SnapshotPart(Box::new(SnapshotItem::Entry(entry.into())))),
        prop::collection::vec(admission(), 0..4)
            .prop_map(|entries| Decision::SnapshotPart(Box::new(SnapshotItem::Dormant(entries)))),
        (any::<u128>(), moment(), prop::option::of(taking())).prop_map(|(url, next, item)| {
            Decision::ScheduleDue { url: UrlKey(url), next, effect: item.map(Box::new) }
        }),
    ]
}

fn of_jobs() -> impl Strategy<Value = Decision> {
    let heads = prop::collection::btree_map(topic(), any::<u64>().prop_map(Seq), 0..3);
    prop_oneof![
        (any::<u64>(), "[a-z]{1,9}", job_settings()).prop_map(|(number, name, settings)| {
            let (name, settings) = (name.parse::<JobName>().unwrap(), settings.into());
            Decision::JobOpened { number, name, settings }
        }),
        (any::<u64>(), prop::option::of(moment()), job_settings()).prop_map(
            |(number, time_until, settings)| {
                Decision::JobSet { number, time_until, settings: settings.into() }
            }
        ),
        any::<u64>().prop_map(|number| Decision::JobReopened { number }),
        any::<u64>().prop_map(|number| Decision::JobClosed { number }),
        (any::<u64>(), heads)
            .prop_map(|(number, heads)| Decision::JobCompletionPending { number, heads }),
        any::<u64>().prop_map(|number| Decision::JobCancelled { number }),
        any::<u64>().prop_map(|number| Decision::JobDone { number }),
        any::<u64>().prop_map(|number| Decision::JobDeleted { number }),
        prop_oneof![
            any::<u64>().prop_map(|number| Decision::JobTimeUp { number }),
            any::<u64>().prop_map(|number| Decision::JobHoldEnded { number }),
        ],
        (any::<u64>(), any::<bool>())
            .prop_map(|(number, paused)| Decision::JobPaused { number, paused }),
        prop_oneof![
            any::<bool>().prop_map(Decision::Paused),
            any::<(u128, bool)>().prop_map(|(member, drained)| Decision::MemberDrained {
                member: MemberId(member),
                drained
            }),
            Just(Decision::Purged),
            Just(Decision::Deleted)
        ],
        (any::<u64>(), own_topic(), boxed()).prop_map(|(serial, topic, payload)| {
            Decision::PublishQueued { serial, topic, payload: payload.into() }
        }),
        (any::<u64>(), own_topic(), 1_u64..).prop_map(|(serial, topic, seq)| Decision::Published {
            serial,
            topic,
            seq: Seq(seq)
        }),
    ]
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        1 => (any::<(u64, u64)>(), any::<bool>(), any::<(u64, u128, u64, i64)>(), any::<Option<u128>>())
            .prop_map(|((run, since), elapsed_unknown, (moment, boot_id, uptime_ms, unix_ms), local_member)| {
                let stamp = ClockStamp { moment: Moment(moment), boot_id, uptime_ms, unix_ms };
                Decision::Started { run, since, elapsed_unknown, stamp, local_member: local_member.map(MemberId) }
            }),
        1 => config().prop_map(|config| Decision::Configured(Box::new(config))),
        3 => (topic(), 1_u64.., prop::collection::vec(taking(), 0..4)).prop_map(
            |(topic, next, effects)| Decision::Consumed { topic, next: Seq(next), effects }
        ),
        6 => of_entries(),
        4 => of_jobs(),
        1 => of_rules(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn records_are_read_as_they_are_written(at in moment(), decision in decision()) {
        let record = GroupRecord { at, decision };
        let mut lines = String::new();
        record.encode(&mut lines);
        let line = lines.strip_suffix('\n').unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(GroupRecord::decode(line), Ok(record));
        // A line with a field more or less is not a record.
        prop_assert_eq!(GroupRecord::decode(&format!("{line}\t1")), Err(InvalidRecord));
        if let Some((shorter, _)) = line.rsplit_once('\t') {
            prop_assert_eq!(GroupRecord::decode(shorter), Err(InvalidRecord));
        }
    }

    #[test]
    fn no_line_makes_it_panic(line in "[0-9]{1,3}\t(taken|answered|configured|job-noted)(\t[0-9a-z+\\\\-]{0,6}){0,12}") {
        let _ = GroupRecord::decode(&line);
    }
}
