//! Parts of a snapshot in a record's line.

use std::collections::BTreeMap;

use tidings_protocol::UrlKey;

use super::{LineReader, LineWriter};
use crate::dead_letters::DEAD_REASONS;
use crate::entry::{AgainRequest, Entry, EntryState, Lease, PassId};
use crate::frontier::key_queue::{KeyState, Lane};
use crate::jobs::{Job, JobState, as_array, from_array};
use crate::record::snapshot::SnapshotItem;
use crate::schedules::{WallClockDue, WallClockTarget};

impl LineWriter<'_> {
    pub(super) fn snapshot_item(&mut self, item: &SnapshotItem) {
        self.field("kept");
        match item {
            SnapshotItem::Begin { run, stamp, local_member: own, dormant: parked, keys } => {
                self.field("begin").field(run).stamp(stamp).optional(*own).field(parked).field(keys)
            }
            SnapshotItem::Born { since } => self.field("born").field(since),
            SnapshotItem::Abandoned => self.field("abandoned"),
            SnapshotItem::Consumed { topic, next } => self.field("taken").field(topic).field(next),
            SnapshotItem::Published { topic, seq } => self.field("sent").field(topic).field(seq),
            SnapshotItem::Unpublished { serial, topic, payload } => {
                self.field("unsent").field(serial).field(topic).text(payload)
            }
            SnapshotItem::Job(job) => self.field("job").job(job),
            SnapshotItem::Scope { number, part } => self.field("scope").field(number).text(part),
            SnapshotItem::Pages { number, key, completed } => {
                self.field("pages").field(number).text(key).field(completed)
            }
            SnapshotItem::Seen { pass, fingerprints: urls } => {
                self.field("seen").pass_id(*pass).list(urls, |writer, url| _ = writer.field(url))
            }
            SnapshotItem::Key { key, state } => self.field("key").text(key).key_state(state),
            // Earlier versions have no repairs, and must not read one as an entry without a job.
            SnapshotItem::Entry(entry) => match entry.repairs {
                None => self.field("entry").entry(entry),
                Some(pass) => self.field("repair").pass_id(pass).entry(entry),
            },
            SnapshotItem::Dormant(entries) => self.field("parked").list(entries, Self::admission),
            SnapshotItem::Schedule(schedule) => self.field("schedule").schedule(schedule),
            SnapshotItem::WallClockDue(time) => self.field("clock-time").clock_time(time),
            SnapshotItem::Dead { entry, reason } => self.field("dead").field(reason).entry(entry),
            SnapshotItem::End { last_entry, last_serial, last_job, is_paused, totals } => self
                .field("end")
                .field(last_entry)
                .field(last_serial)
                .field(last_job)
                .flag(*is_paused)
                .list(totals, |writer, total| _ = writer.field(total)),
        };
    }

    pub(super) fn clock_time(&mut self, time: &WallClockDue) -> &mut Self {
        match time.target {
            WallClockTarget::Entry(id) => self.field('e').field(id),
            WallClockTarget::Schedule(url) => self.field('s').field(url.0),
        };
        self.field(time.unix_ms).field(time.due)
    }

    fn pass_id(&mut self, pass: PassId) -> &mut Self {
        self.field(pass.number).field(pass.pass)
    }

    fn job(&mut self, job: &Job) -> &mut Self {
        self.pass_id(job.id).field(&job.name).job_settings(&job.settings).field(match job.state {
            JobState::Open => "open",
            JobState::Closed => "closed",
            JobState::Done => "done",
        });
        self.flag(job.cancelled).flag(job.paused).flag(job.time_is_up);
        self.optional(job.time_until).field(job.open_until);
        self.list(&as_array(&job.counts), |writer, count| _ = writer.field(count));
        match &job.completion_heads {
            None => self.field('-'),
            Some(heads) => {
                self.field('+').field(heads.len());
                for (topic, head) in heads {
                    self.field(topic).field(head);
                }
                self
            }
        }
    }

    fn key_state(&mut self, state: &KeyState) -> &mut Self {
        self.field(state.free_at).optional(state.ended_at);
        self.optional(state.pace.map(|(ms, until)| format!("{ms}.{until}")));
        self.optional(state.last_member);
        self.optional(state.last_lane.map(|lane| match lane {
            Lane::Announced => "a".to_owned(),
            Lane::Job(number) => number.to_string(),
        }));
        self.field(state.last_job)
    }

    fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.admission(&entry.admitted);
        self.field(entry.releases)
            .field(entry.failures)
            .field(entry.losses)
            .field(entry.again_count);
        self.optional_text(entry.last_reason.as_deref());
        match &entry.again {
            None => self.field('-'),
            Some(again) => self.field('+').text(&again.url).text(&again.key).field(again.member),
        };
        match entry.lease() {
            None => self.field('-'),
            Some(lease) => {
                self.field('+').field(lease.member).field(lease.run).field(lease.until);
                self.flag(lease.request_over)
            }
        }
    }
}

impl LineReader<'_> {
    pub(super) fn snapshot_item(&mut self) -> Option<SnapshotItem> {
        Some(match self.0.next()? {
            "begin" => SnapshotItem::Begin {
                run: self.field()?,
                stamp: self.stamp()?,
                local_member: self.optional(|member| member.parse().ok())?,
                dormant: self.field()?,
                keys: self.field()?,
            },
            "born" => SnapshotItem::Born { since: self.field()? },
            "abandoned" => SnapshotItem::Abandoned,
            "taken" => SnapshotItem::Consumed { topic: self.field()?, next: self.field()? },
            "sent" => SnapshotItem::Published { topic: self.own_topic()?, seq: self.field()? },
            "unsent" => SnapshotItem::Unpublished {
                serial: self.field()?,
                topic: self.own_topic()?,
                payload: self.boxed_text()?,
            },
            "job" => SnapshotItem::Job(Box::new(self.job()?)),
            "scope" => SnapshotItem::Scope { number: self.field()?, part: self.boxed_text()? },
            "pages" => SnapshotItem::Pages {
                number: self.field()?,
                key: self.text()?.into(),
                completed: self.field()?,
            },
            "seen" => {
                SnapshotItem::Seen { pass: self.pass_id()?, fingerprints: self.list(Self::field)? }
            }
            "key" => SnapshotItem::Key { key: self.text()?.into(), state: self.key_state()? },
            "entry" => SnapshotItem::Entry(Box::new(self.entry()?)),
            "repair" => {
                let repairs = Some(self.pass_id()?);
                SnapshotItem::Entry(Box::new(Entry { repairs, ..self.entry()? }))
            }
            "parked" => SnapshotItem::Dormant(self.list(Self::admission)?),
            "schedule" => SnapshotItem::Schedule(Box::new(self.schedule()?)),
            "clock-time" => SnapshotItem::WallClockDue(self.clock_time()?),
            "dead" => SnapshotItem::Dead { reason: self.reason()?, entry: Box::new(self.entry()?) },
            "end" => SnapshotItem::End {
                last_entry: self.field()?,
                last_serial: self.field()?,
                last_job: self.field()?,
                is_paused: self.flag()?,
                totals: self.list(Self::field)?.try_into().ok()?,
            },
            _ => return None,
        })
    }

    pub(super) fn clock_time(&mut self) -> Option<WallClockDue> {
        let what = match self.0.next()? {
            "e" => WallClockTarget::Entry(self.field()?),
            "s" => WallClockTarget::Schedule(UrlKey(self.field()?)),
            _ => return None,
        };
        Some(WallClockDue { target: what, unix_ms: self.field()?, due: self.moment()? })
    }

    fn pass_id(&mut self) -> Option<PassId> {
        Some(PassId { number: self.field()?, pass: self.field()? })
    }

    fn reason(&mut self) -> Option<&'static str> {
        let word = self.0.next()?;
        DEAD_REASONS.into_iter().find(|reason| *reason == word)
    }

    /// Reads optional fields.
    #[expect(clippy::option_option, reason = "what is not there is no error")]
    fn optional_fields<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.0.next()? {
            "-" => Some(None),
            "+" => Some(Some(read(self)?)),
            _ => None,
        }
    }

    fn job(&mut self) -> Option<Job> {
        let (id, name, settings) = (self.pass_id()?, self.field()?, self.job_settings()?);
        let state = match self.0.next()? {
            "open" => JobState::Open,
            "closed" => JobState::Closed,
            "done" => JobState::Done,
            _ => return None,
        };
        let mut job = Job::new(id, name, settings, state);
        (job.cancelled, job.paused, job.time_is_up) = (self.flag()?, self.flag()?, self.flag()?);
        job.time_until = self.optional_moment()?;
        job.open_until = self.moment()?;
        job.counts = from_array(self.list(Self::field)?.try_into().ok()?);
        job.completion_heads = self.optional_fields(|reader| {
            let heads = reader.list(|reader| Some((reader.field()?, reader.field()?)))?;
            Some(BTreeMap::from_iter(heads))
        })?;
        Some(job)
    }

    fn key_state(&mut self) -> Option<KeyState> {
        Some(KeyState {
            free_at: self.moment()?,
            ended_at: self.optional_moment()?,
            pace: self.optional(|pace| {
                let (ms, until) = pace.split_once('.')?;
                Some((ms.parse().ok()?, crate::moment::Moment(until.parse().ok()?)))
            })?,
            last_member: self.optional(|member| member.parse().ok())?,
            last_lane: self.optional(|lane| {
                Some(match lane {
                    "a" => Lane::Announced,
                    number => Lane::Job(number.parse().ok()?),
                })
            })?,
            last_job: self.field()?,
        })
    }

    fn entry(&mut self) -> Option<Entry> {
        let mut entry = Entry::new(self.admission()?);
        (entry.releases, entry.failures) = (self.field()?, self.field()?);
        (entry.losses, entry.again_count) = (self.field()?, self.field()?);
        entry.last_reason = self.optional(|text| super::unescaped(text).map(Into::into))?;
        entry.again = self.optional_fields(|reader| {
            let (url, key) = (reader.boxed_text()?, reader.text()?.into());
            Some(Box::new(AgainRequest { url, key, member: reader.field()? }))
        })?;
        let lease = self.optional_fields(|reader| {
            let (member, run) = (reader.field()?, reader.field()?);
            Some(Lease { member, run, until: reader.moment()?, request_over: reader.flag()? })
        })?;
        if let Some(lease) = lease {
            entry.state = EntryState::Held(lease);
        }
        Some(entry)
    }
}
