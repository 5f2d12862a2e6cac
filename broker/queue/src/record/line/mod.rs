//! Records as lines of a group's log.
//!
//! A line is `<moment> TAB <verb> TAB <fields>`, with a TAB between fields. A list is its length,
//! followed by the fields of its items. In texts, a TAB is written `\t` and a backslash `\\`; texts
//! contain no other control bytes. An optional value is `-`, or `+` and the value. A verb never
//! changes its meaning: a changed record has another verb.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use tidings_protocol::{
    CanonicalUrl, DEAD_LETTER_TOPIC, JOB_DONE_TOPIC, MemberId, Outcome, UrlKey,
};

use self::field::LineField;
use super::{Decision, EndReason, EventEffect, GroupRecord, NextStep, RecordedRest};
use crate::config::GroupConfig;
use crate::entry::{Admission, AgainRequest, PassId};
use crate::jobs::JobSettings;
use crate::moment::{ClockStamp, Moment};
use crate::schedules::Schedule;

/// Most items for which memory is reserved before they are read.
const RESERVED_MAX: usize = 512;

/// A line that is not a record: written by a later version, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it contains a line that is not a record of this version")]
pub struct InvalidRecord;

impl GroupRecord {
    /// Appends the record's line, with its line end.
    pub fn encode(&self, lines: &mut String) {
        self.at.put(lines);
        LineWriter(lines).decision(&self.decision);
        lines.push('\n');
    }

    /// Parses a line without its line end.
    pub fn decode(line: &str) -> Result<Self, InvalidRecord> {
        let mut reader = LineReader(LineFields(Some(line)));
        let record = reader.record().ok_or(InvalidRecord)?;
        if reader.0.next().is_none() { Ok(record) } else { Err(InvalidRecord) }
    }
}

/// Writes fields, each with a TAB before it.
struct LineWriter<'a>(&'a mut String);

impl LineWriter<'_> {
    fn field(&mut self, field: impl LineField) -> &mut Self {
        self.0.push('\t');
        field.put(self.0);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push('\t');
        self.escaped(text)
    }

    fn escaped(&mut self, text: &str) -> &mut Self {
        let mut rest = text;
        while let Some(at) = memchr::memchr2(b'\t', b'\\', rest.as_bytes()) {
            self.0.push_str(&rest[..at]);
            self.0.push_str(if rest.as_bytes()[at] == b'\t' { "\\t" } else { "\\\\" });
            rest = &rest[at + 1..];
        }
        self.0.push_str(rest);
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.field(if flag { '1' } else { '0' })
    }

    fn optional(&mut self, value: Option<impl LineField>) -> &mut Self {
        let Some(value) = value else { return self.field('-') };
        self.field('+');
        value.put(self.0);
        self
    }

    fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => {
                self.0.push_str("\t+");
                self.escaped(text)
            }
            None => self.field('-'),
        }
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.field(items.len());
        for item in items {
            write(self, item);
        }
        self
    }

    fn rest(&mut self, rest: &RecordedRest) -> &mut Self {
        self.optional(rest.not_before).optional(rest.pace_ms)
    }

    fn decision(&mut self, decision: &Decision) {
        match decision {
            Decision::Started { run, elapsed_unknown, stamp, local_member: own } => {
                self.field("started").field(run).flag(*elapsed_unknown).stamp(stamp).optional(*own)
            }
            Decision::Born { since } => self.field("born").field(since),
            Decision::Configured(config) => self.field("configured").config(config),
            Decision::Consumed { topic, next, effects: items } => {
                self.field("taken").field(topic).field(next).list(items, Self::effect)
            }
            Decision::Released { entry, member, until } => {
                self.field("released").field(entry).field(member).field(until)
            }
            Decision::Touched { entry, until, request_over: over, rest } => {
                self.field("touched").field(entry).field(until).flag(*over).rest(rest)
            }
            Decision::Answered { entry, outcome, children, no_room, rest } => self
                .field("answered")
                .field(entry)
                .field(outcome)
                .field(no_room)
                .rest(rest)
                .list(children, Self::admission),
            Decision::Returned { entry, next_step: back, rest, reason } => {
                self.field("returned").field(entry).rest(rest).optional_text(reason.as_deref());
                self.next_step(back)
            }
            Decision::Lost { entry } => self.field("lost").field(entry),
            Decision::Ended { entries, end } => self
                .field("ended")
                .field(end.as_str())
                .list(entries, |writer, entry| _ = writer.field(entry)),
            Decision::JobCleared { number, key, end } => self
                .field("cleared")
                .field(number)
                .optional_text(key.as_deref())
                .field(end.as_str()),
            Decision::Unpinned { entries } => {
                self.field("unpinned").list(entries, |writer, entry| _ = writer.field(entry))
            }
            Decision::Paused(paused) => self.field("paused").flag(*paused),
            Decision::Purged => self.field("purged"),
            Decision::DeadRetried { entries, repairs } => {
                self.field(if *repairs { "revived" } else { "retried" });
                self.list(entries, |writer, entry| _ = writer.field(entry))
            }
            Decision::DeadDropped { entries } => {
                self.field("forgotten").list(entries, |writer, entry| _ = writer.field(entry))
            }
            Decision::SnapshotPart(item) => {
                self.snapshot_item(item);
                self
            }
            Decision::Deleted => self.field("deleted"),
            Decision::ScheduleDue { url, next, effect: item } => {
                self.field("fell-due").field(url.0).field(next).flag(item.is_some());
                if let Some(item) = item {
                    self.effect(item);
                }
                self
            }
            Decision::WallClockDues(times) => {
                self.field("clock-times").list(times, |writer, time| _ = writer.clock_time(time))
            }
            Decision::SeedAdded(taking) => {
                self.field("seed-added").effect(taking);
                self
            }
            Decision::JobPaused { number, paused } => {
                self.field("job-paused").field(number).flag(*paused)
            }
            Decision::JobHoldEnded { number } => self.field("job-begun").field(number),
            Decision::JobTimeUp { number } => self.field("job-time-up").field(number),
            Decision::JobDeleted { number } => self.field("job-deleted").field(number),
            Decision::JobOpened { number, name, settings } => {
                self.field("job-opened").field(number).field(name).job_settings(settings)
            }
            Decision::JobReopened { number } => self.field("job-reopened").field(number),
            Decision::JobClosed { number } => self.field("job-closed").field(number),
            Decision::JobCompletionPending { number, heads } => {
                self.field("job-noted").field(number).field(heads.len());
                for (topic, head) in heads {
                    self.field(topic).field(head);
                }
                self
            }
            Decision::JobCancelled { number } => self.field("job-cancelled").field(number),
            Decision::JobDone { number } => self.field("job-done").field(number),
            Decision::PublishQueued { serial, topic, payload } => {
                self.field("announced").field(serial).field(topic).text(payload)
            }
            Decision::Published { serial, topic, seq } => {
                self.field("sent").field(serial).field(topic).field(seq)
            }
        };
    }

    fn stamp(&mut self, stamp: &ClockStamp) -> &mut Self {
        let ClockStamp { moment, boot_id: boot, uptime_ms, unix_ms } = stamp;
        self.field(moment).field(boot).field(uptime_ms).field(unix_ms)
    }

    fn config(&mut self, config: &GroupConfig) -> &mut Self {
        // The settings that a client can change, in the words that set them.
        self.text(&config.describe())
            .field(config.backoff_ms_max)
            .field(config.not_before_ms_max)
            .field(config.pace_ms_max)
            .field(config.open_ms_max)
            .field(config.jobs_max)
            .field(config.finished_jobs_max)
            .field(config.entries_max)
            .field(config.entry_bytes_max)
            .field(config.unkeyed_dead_letters_per_minute)
            .field(config.schedules_max)
            .field(config.dead_max)
            .field(config.dead_bytes_max)
    }

    fn job_settings(&mut self, settings: &JobSettings) -> &mut Self {
        self.text(&settings.describe())
    }

    fn effect(&mut self, taking: &EventEffect) {
        match taking {
            EventEffect::Admitted(admission) => self.field('a').admission(admission),
            EventEffect::Coalesced { entries, announced, prio, due, forwarded: carried } => {
                // The effect `i` is that of earlier versions, without attributes; most events have
                // none.
                self.field(if carried.is_empty() { 'i' } else { 'c' });
                self.flag(*announced).field(prio).field(due);
                self.list(entries, |writer, entry| _ = writer.field(entry));
                if !carried.is_empty() {
                    self.text(carried);
                }
            }
            EventEffect::Duplicate(number) => _ = self.field('d').field(number),
            EventEffect::Scheduled(schedule) => _ = self.field('s').schedule(schedule),
            EventEffect::Unscheduled(url) => _ = self.field('e').field(url.0),
            EventEffect::Unusable => _ = self.field('u'),
        }
    }

    fn admission(&mut self, admission: &Admission) {
        self.field(admission.id)
            .text(&admission.text)
            .flag(admission.url_key.is_some())
            .text(&admission.key)
            .job_of(admission.job)
            .field(admission.depth)
            .field(admission.hops)
            .flag(admission.redirect)
            .flag(admission.announced)
            .field(admission.prio)
            .field(admission.due)
            .text(&admission.forwarded);
    }

    fn job_of(&mut self, job: Option<PassId>) -> &mut Self {
        self.optional(job.map(|job| job.number));
        if let Some(job) = job {
            self.0.push('.');
            job.pass.put(self.0);
        }
        self
    }

    fn schedule(&mut self, schedule: &Schedule) -> &mut Self {
        self.field(schedule.url_key.0)
            .text(&schedule.text)
            .text(&schedule.key)
            .field(schedule.prio)
            .text(&schedule.forwarded)
            .field(schedule.every_ms)
            .field(schedule.due)
            .optional(schedule.entry)
            .flag(schedule.skips_next)
    }

    fn next_step(&mut self, back: &NextStep) -> &mut Self {
        match back {
            NextStep::Retry { due } => self.field("retry").field(due),
            NextStep::Uncounted { due } => self.field("uncounted").field(due),
            NextStep::Again(again) => {
                self.field("again").text(&again.url).text(&again.key).field(again.member)
            }
        }
    }
}

/// The fields of a line.
struct LineFields<'a>(Option<&'a str>);

impl<'a> Iterator for LineFields<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        let Some(end) = memchr::memchr(b'\t', rest.as_bytes()) else { return self.0.take() };
        self.0 = Some(&rest[end + 1..]);
        Some(&rest[..end])
    }
}

/// Reads fields. Returns `None` for an invalid field.
struct LineReader<'a>(LineFields<'a>);

impl<'a> LineReader<'a> {
    fn field<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        unescaped(self.0.next()?)
    }

    fn boxed_text(&mut self) -> Option<Box<str>> {
        Some(self.text()?.into())
    }

    fn flag(&mut self) -> Option<bool> {
        match self.0.next()? {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    fn stamp(&mut self) -> Option<ClockStamp> {
        Some(ClockStamp {
            moment: self.moment()?,
            boot_id: self.field()?,
            uptime_ms: self.field()?,
            unix_ms: self.field()?,
        })
    }

    fn moment(&mut self) -> Option<Moment> {
        self.field().map(Moment)
    }

    #[expect(clippy::option_option, reason = "what is not there is no error")]
    fn optional<T>(&mut self, read: impl FnOnce(&'a str) -> Option<T>) -> Option<Option<T>> {
        match self.0.next()? {
            "-" => Some(None),
            field => Some(Some(read(field.strip_prefix('+')?)?)),
        }
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length: usize = self.field()?;
        // The length may be damaged, so little memory is reserved.
        let mut items = Vec::with_capacity(length.min(RESERVED_MAX));
        for _ in 0..length {
            items.push(read(self)?);
        }
        Some(items)
    }

    fn record(&mut self) -> Option<GroupRecord> {
        Some(GroupRecord { at: self.moment()?, decision: self.decision()? })
    }

    fn decision(&mut self) -> Option<Decision> {
        Some(match self.0.next()? {
            "started" => Decision::Started {
                run: self.field()?,
                elapsed_unknown: self.flag()?,
                stamp: self.stamp()?,
                local_member: self.optional(|member| member.parse().ok())?,
            },
            "born" => Decision::Born { since: self.field()? },
            "configured" => Decision::Configured(Box::new(self.config()?)),
            "taken" => Decision::Consumed {
                topic: self.field()?,
                next: self.field()?,
                effects: self.list(Self::effect)?,
            },
            "released" => Decision::Released {
                entry: self.field()?,
                member: self.field()?,
                until: self.moment()?,
            },
            "touched" => Decision::Touched {
                entry: self.field()?,
                until: self.moment()?,
                request_over: self.flag()?,
                rest: self.rest()?,
            },
            "answered" => {
                let (entry, outcome) = (self.field()?, self.outcome()?);
                let (no_room, rest) = (self.field()?, self.rest()?);
                let children = self.list(Self::admission)?;
                Decision::Answered { entry, outcome, children, no_room, rest }
            }
            "returned" => {
                let (entry, rest) = (self.field()?, self.rest()?);
                let reason = self.optional(|text| unescaped(text).map(Into::into))?;
                Decision::Returned { entry, next_step: self.next_step()?, rest, reason }
            }
            "lost" => Decision::Lost { entry: self.field()? },
            "ended" => Decision::Ended { end: self.end()?, entries: self.list(Self::field)? },
            "cleared" => Decision::JobCleared {
                number: self.field()?,
                key: self.optional(|text| unescaped(text).map(Into::into))?,
                end: self.end()?,
            },
            "unpinned" => Decision::Unpinned { entries: self.list(Self::field)? },
            "paused" => Decision::Paused(self.flag()?),
            "purged" => Decision::Purged,
            word @ ("retried" | "revived") => Decision::DeadRetried {
                entries: self.list(Self::field)?,
                repairs: word == "revived",
            },
            "forgotten" => Decision::DeadDropped { entries: self.list(Self::field)? },
            "kept" => Decision::SnapshotPart(Box::new(self.snapshot_item()?)),
            "deleted" => Decision::Deleted,
            "fell-due" => {
                let (url, next) = (UrlKey(self.field()?), self.moment()?);
                let item = if self.flag()? { Some(self.effect()?.into()) } else { None };
                Decision::ScheduleDue { url, next, effect: item }
            }
            "clock-times" => Decision::WallClockDues(self.list(Self::clock_time)?),
            "seed-added" => Decision::SeedAdded(self.effect()?.into()),
            "job-paused" => Decision::JobPaused { number: self.field()?, paused: self.flag()? },
            "job-begun" => Decision::JobHoldEnded { number: self.field()? },
            "job-time-up" => Decision::JobTimeUp { number: self.field()? },
            "job-deleted" => Decision::JobDeleted { number: self.field()? },
            "job-opened" => Decision::JobOpened {
                number: self.field()?,
                name: self.field()?,
                settings: self.job_settings()?,
            },
            "job-reopened" => Decision::JobReopened { number: self.field()? },
            "job-closed" => Decision::JobClosed { number: self.field()? },
            "job-noted" => {
                let number = self.field()?;
                let heads = self.list(|reader| Some((reader.field()?, reader.field()?)))?;
                Decision::JobCompletionPending { number, heads: BTreeMap::from_iter(heads) }
            }
            "job-cancelled" => Decision::JobCancelled { number: self.field()? },
            "job-done" => Decision::JobDone { number: self.field()? },
            "announced" => Decision::PublishQueued {
                serial: self.field()?,
                topic: self.own_topic()?,
                payload: self.boxed_text()?,
            },
            "sent" => Decision::Published {
                serial: self.field()?,
                topic: self.own_topic()?,
                seq: self.field()?,
            },
            _ => return None,
        })
    }

    fn own_topic(&mut self) -> Option<&'static str> {
        let name = self.0.next()?;
        [JOB_DONE_TOPIC, DEAD_LETTER_TOPIC].into_iter().find(|topic| *topic == name)
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let word = self.0.next()?;
        Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    fn end(&mut self) -> Option<EndReason> {
        let word = self.0.next()?;
        EndReason::ALL.into_iter().find(|end| end.as_str() == word)
    }

    #[expect(clippy::option_option, reason = "what is not there is no error")]
    fn optional_moment(&mut self) -> Option<Option<Moment>> {
        self.optional(|at| at.parse().ok().map(Moment))
    }

    fn rest(&mut self) -> Option<RecordedRest> {
        Some(RecordedRest {
            not_before: self.optional_moment()?,
            pace_ms: self.optional(|ms| ms.parse().ok())?,
        })
    }

    fn config(&mut self) -> Option<GroupConfig> {
        let settings = self.text()?;
        let settings = settings.split(' ').map(|word| word.split_once('='));
        let settings = settings.collect::<Option<Vec<_>>>()?;
        let config = GroupConfig::default().with_settings(settings).ok()?;
        Some(GroupConfig {
            backoff_ms_max: self.field()?,
            not_before_ms_max: self.field()?,
            pace_ms_max: self.field()?,
            open_ms_max: self.field()?,
            jobs_max: self.field()?,
            finished_jobs_max: self.field()?,
            entries_max: self.field()?,
            entry_bytes_max: self.field()?,
            unkeyed_dead_letters_per_minute: self.field()?,
            schedules_max: self.field()?,
            dead_max: self.field()?,
            dead_bytes_max: self.field()?,
            ..config
        })
    }

    fn job_settings(&mut self) -> Option<JobSettings> {
        let settings = self.text()?;
        let settings = settings.split(' ').filter(|word| !word.is_empty());
        let settings = settings.map(|word| word.split_once('=')).collect::<Option<Vec<_>>>()?;
        JobSettings::parse(settings).ok()
    }

    fn effect(&mut self) -> Option<EventEffect> {
        Some(match self.0.next()? {
            "a" => EventEffect::Admitted(self.admission()?),
            kind @ ("i" | "c") => {
                let (announced, prio, due) = (self.flag()?, self.field()?, self.moment()?);
                let entries = self.list(Self::field)?;
                let carried = if kind == "c" { self.boxed_text()? } else { Box::default() };
                EventEffect::Coalesced { entries, announced, prio, due, forwarded: carried }
            }
            "d" => EventEffect::Duplicate(self.field()?),
            "s" => EventEffect::Scheduled(Box::new(self.schedule()?)),
            "e" => EventEffect::Unscheduled(UrlKey(self.field()?)),
            "u" => EventEffect::Unusable,
            _ => return None,
        })
    }

    fn admission(&mut self) -> Option<Admission> {
        let id = self.field()?;
        let text = self.boxed_text()?;
        Some(Admission {
            id,
            url_key: self.flag()?.then(|| CanonicalUrl::key_of(&text)),
            text,
            key: self.text()?.into(),
            job: self.optional(|job| {
                let (number, pass) = job.split_once('.')?;
                Some(PassId { number: number.parse().ok()?, pass: pass.parse().ok()? })
            })?,
            depth: self.field()?,
            hops: self.field()?,
            redirect: self.flag()?,
            announced: self.flag()?,
            prio: self.field()?,
            due: self.moment()?,
            forwarded: self.boxed_text()?,
        })
    }

    fn schedule(&mut self) -> Option<Schedule> {
        Some(Schedule {
            url_key: UrlKey(self.field()?),
            text: self.boxed_text()?,
            key: self.text()?.into(),
            prio: self.field()?,
            forwarded: self.boxed_text()?,
            every_ms: self.field()?,
            due: self.moment()?,
            entry: self.optional(|entry| entry.parse().ok())?,
            skips_next: self.flag()?,
        })
    }

    fn next_step(&mut self) -> Option<NextStep> {
        Some(match self.0.next()? {
            "retry" => NextStep::Retry { due: self.moment()? },
            "uncounted" => NextStep::Uncounted { due: self.moment()? },
            "again" => NextStep::Again(Box::new(AgainRequest {
                url: self.boxed_text()?,
                key: self.text()?.into(),
                member: self.field::<MemberId>()?,
            })),
            _ => return None,
        })
    }
}

fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return Some(text.into());
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        plain.push(match (char, char == '\\') {
            (char, false) => char,
            (_, true) => match chars.next()? {
                't' => '\t',
                '\\' => '\\',
                _ => return None,
            },
        });
    }
    Some(plain.into())
}

mod field;
mod snapshot_items;
#[cfg(test)]
mod tests;
