//! Parts of a snapshot in a record's line.

use std::collections::BTreeMap;

use tidings_protocol::UrlKey;

use super::{Reader, Writer};
use crate::group::clock_times::{ClockTime, Waiting};
use crate::group::dead::REASONS;
use crate::group::entry::{Again, Entry, JobRef, Lease, State};
use crate::group::key_queue::{KeyState, Lane};
use crate::group::snapshot::Item;
use crate::job::{Counts, Job, JobState};

impl Writer<'_> {
    pub(super) fn item(&mut self, item: &Item) {
        self.field("kept");
        match item {
            Item::Begin { run, stamp, own, parked, keys } => {
                self.field("begin").field(run).stamp(stamp).maybe(*own).field(parked).field(keys)
            }
            Item::Born { since } => self.field("born").field(since),
            Item::Abandoned => self.field("abandoned"),
            Item::Taken { topic, next } => self.field("taken").field(topic).field(next),
            Item::Sent { topic, seq } => self.field("sent").field(topic).field(seq),
            Item::Unsent { serial, topic, payload } => {
                self.field("unsent").field(serial).field(topic).text(payload)
            }
            Item::Job(job) => self.field("job").job(job),
            Item::Scope { number, part } => self.field("scope").field(number).text(part),
            Item::Pages { number, key, completed } => {
                self.field("pages").field(number).text(key).field(completed)
            }
            Item::Seen { pass, urls } => {
                self.field("seen").pass(*pass).list(urls, |writer, url| _ = writer.field(url))
            }
            Item::Key { key, state } => self.field("key").text(key).key_state(state),
            // Earlier versions have no repairs, and must not read one as an entry without a job.
            Item::Entry(entry) => match entry.repairs {
                None => self.field("entry").entry(entry),
                Some(pass) => self.field("repair").pass(pass).entry(entry),
            },
            Item::Parked(entries) => self.field("parked").list(entries, Self::admission),
            Item::Schedule(schedule) => self.field("schedule").schedule(schedule),
            Item::ClockTime(time) => self.field("clock-time").clock_time(time),
            Item::Dead { entry, reason } => self.field("dead").field(reason).entry(entry),
            Item::End { last_entry, last_serial, last_job, is_paused, totals } => self
                .field("end")
                .field(last_entry)
                .field(last_serial)
                .field(last_job)
                .flag(*is_paused)
                .list(totals, |writer, total| _ = writer.field(total)),
        };
    }

    pub(super) fn clock_time(&mut self, time: &ClockTime) -> &mut Self {
        match time.what {
            Waiting::Entry(id) => self.field('e').field(id),
            Waiting::Schedule(url) => self.field('s').field(url.0),
        };
        self.field(time.unix_ms).field(time.due)
    }

    fn pass(&mut self, pass: JobRef) -> &mut Self {
        self.field(pass.number).field(pass.pass)
    }

    fn job(&mut self, job: &Job) -> &mut Self {
        self.pass(job.id).field(&job.name).job_settings(&job.settings).field(match job.state {
            JobState::Open => "open",
            JobState::Closed => "closed",
            JobState::Done => "done",
        });
        self.flag(job.cancelled).flag(job.paused).flag(job.time_is_up);
        self.maybe(job.time_until).field(job.open_until);
        self.list(&job.counts.as_array(), |writer, count| _ = writer.field(count));
        match &job.noted {
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
        self.field(state.free_at).maybe(state.ended_at);
        self.maybe(state.pace.map(|(ms, until)| format!("{ms}.{until}")));
        self.maybe(state.last_member);
        self.maybe(state.last_lane.map(|lane| match lane {
            Lane::Announced => "a".to_owned(),
            Lane::Job(number) => number.to_string(),
        }));
        self.field(state.last_job)
    }

    fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.admission(&entry.admitted);
        self.field(entry.releases).field(entry.failures).field(entry.losses).field(entry.agains);
        self.maybe_text(entry.last_reason.as_deref());
        match &entry.again {
            None => self.field('-'),
            Some(again) => self.field('+').text(&again.url).text(&again.key).field(again.member),
        };
        match entry.lease() {
            None => self.field('-'),
            Some(lease) => {
                self.field('+').field(lease.member).field(lease.run).field(lease.until);
                self.flag(lease.over)
            }
        }
    }
}

impl Reader<'_> {
    pub(super) fn item(&mut self) -> Option<Item> {
        Some(match self.0.next()? {
            "begin" => Item::Begin {
                run: self.field()?,
                stamp: self.stamp()?,
                own: self.maybe(|member| member.parse().ok())?,
                parked: self.field()?,
                keys: self.field()?,
            },
            "born" => Item::Born { since: self.field()? },
            "abandoned" => Item::Abandoned,
            "taken" => Item::Taken { topic: self.field()?, next: self.field()? },
            "sent" => Item::Sent { topic: self.own_topic()?, seq: self.field()? },
            "unsent" => Item::Unsent {
                serial: self.field()?,
                topic: self.own_topic()?,
                payload: self.boxed()?,
            },
            "job" => Item::Job(Box::new(self.job()?)),
            "scope" => Item::Scope { number: self.field()?, part: self.boxed()? },
            "pages" => Item::Pages {
                number: self.field()?,
                key: self.text()?.into(),
                completed: self.field()?,
            },
            "seen" => Item::Seen { pass: self.pass()?, urls: self.list(Self::field)? },
            "key" => Item::Key { key: self.text()?.into(), state: self.key_state()? },
            "entry" => Item::Entry(Box::new(self.entry()?)),
            "repair" => {
                let repairs = Some(self.pass()?);
                Item::Entry(Box::new(Entry { repairs, ..self.entry()? }))
            }
            "parked" => Item::Parked(self.list(Self::admission)?),
            "schedule" => Item::Schedule(Box::new(self.schedule()?)),
            "clock-time" => Item::ClockTime(self.clock_time()?),
            "dead" => Item::Dead { reason: self.reason()?, entry: Box::new(self.entry()?) },
            "end" => Item::End {
                last_entry: self.field()?,
                last_serial: self.field()?,
                last_job: self.field()?,
                is_paused: self.flag()?,
                totals: self.list(Self::field)?.try_into().ok()?,
            },
            _ => return None,
        })
    }

    pub(super) fn clock_time(&mut self) -> Option<ClockTime> {
        let what = match self.0.next()? {
            "e" => Waiting::Entry(self.field()?),
            "s" => Waiting::Schedule(UrlKey(self.field()?)),
            _ => return None,
        };
        Some(ClockTime { what, unix_ms: self.field()?, due: self.moment()? })
    }

    fn pass(&mut self) -> Option<JobRef> {
        Some(JobRef { number: self.field()?, pass: self.field()? })
    }

    fn reason(&mut self) -> Option<&'static str> {
        let word = self.0.next()?;
        REASONS.into_iter().find(|reason| *reason == word)
    }

    /// Reads optional fields.
    #[expect(clippy::option_option, reason = "what is not there is no error")]
    fn maybe_more<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.0.next()? {
            "-" => Some(None),
            "+" => Some(Some(read(self)?)),
            _ => None,
        }
    }

    fn job(&mut self) -> Option<Job> {
        let (id, name, settings) = (self.pass()?, self.field()?, self.job_settings()?);
        let state = match self.0.next()? {
            "open" => JobState::Open,
            "closed" => JobState::Closed,
            "done" => JobState::Done,
            _ => return None,
        };
        let mut job = Job::new(id, name, settings, state);
        (job.cancelled, job.paused, job.time_is_up) = (self.flag()?, self.flag()?, self.flag()?);
        job.time_until = self.maybe_moment()?;
        job.open_until = self.moment()?;
        job.counts = Counts::from_array(self.list(Self::field)?.try_into().ok()?);
        job.noted = self.maybe_more(|reader| {
            let heads = reader.list(|reader| Some((reader.field()?, reader.field()?)))?;
            Some(BTreeMap::from_iter(heads))
        })?;
        Some(job)
    }

    fn key_state(&mut self) -> Option<KeyState> {
        Some(KeyState {
            free_at: self.moment()?,
            ended_at: self.maybe_moment()?,
            pace: self.maybe(|pace| {
                let (ms, until) = pace.split_once('.')?;
                Some((ms.parse().ok()?, crate::clock::Moment(until.parse().ok()?)))
            })?,
            last_member: self.maybe(|member| member.parse().ok())?,
            last_lane: self.maybe(|lane| {
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
        (entry.losses, entry.agains) = (self.field()?, self.field()?);
        entry.last_reason = self.maybe(|text| super::unescaped(text).map(Into::into))?;
        entry.again = self.maybe_more(|reader| {
            let (url, key) = (reader.boxed()?, reader.text()?.into());
            Some(Box::new(Again { url, key, member: reader.field()? }))
        })?;
        let lease = self.maybe_more(|reader| {
            let (member, run) = (reader.field()?, reader.field()?);
            Some(Lease { member, run, until: reader.moment()?, over: reader.flag()? })
        })?;
        if let Some(lease) = lease {
            entry.state = State::Held(lease);
        }
        Some(entry)
    }
}
