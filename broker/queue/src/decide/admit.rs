//! Admission: turns events of the feeding topics, and links that workers found, into entries. Only
//! the broker decides about scope, depth, identity and budget.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidings_protocol::{
    After, CanonicalUrl, DAY_MS, DEAD_LETTER_TOPIC, JobName, KeyKind, PAYLOAD_BYTES_MAX, Payload,
    Prio, REDIRECTS_MAX, Render, Seq, TopicName, UrlKey,
};

use super::membership::leads_back;
use super::parsed_event::ParsedEvent;
use super::prefetch::PREFETCH_BATCH;
use super::wall_clock::wall_clock_dues_of;
use crate::entry::{
    Admission, Entry, EntryId, FORWARDED_BYTES_MAX, Key, PassId, render_of, with_render,
};
use crate::frontier::entry_text::DormantRef;
use crate::jobs::JobState;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::{Decision, EventEffect};
use crate::schedules::{Schedule, WallClockDue, WallClockTarget, WallClockTimes};
use crate::{Group, Output, StagedLink};

/// Attributes with a meaning to the group, which are therefore not forwarded.
const OWN_ATTRIBUTES: [&str; 16] = [
    "number", "job", "pass", "depth", "scope", "prio", "after", "every", "was", "kind", "hops",
    "chain", "schedule", "last", "again", "id",
];

/// What an event requests, parsed from its payload.
pub(crate) struct EventRequest<'a> {
    pub(crate) text: &'a str,
    pub(crate) url_key: Option<UrlKey>,
    pub(crate) key: Key,
    pub(crate) job: Option<&'a str>,
    pub(crate) prio: i16,
    pub(crate) due: Moment,
    pub(crate) forwarded: Box<str>,
}

/// What becomes of an event.
#[derive(Default)]
pub(super) struct EventVerdict {
    /// `None` if the event only changes the schedule of its URL.
    pub(super) effect: Option<EventEffect>,
    /// The new schedule of its URL.
    pub(super) schedule: Option<Schedule>,
    /// The times of day at which the two are due.
    pub(super) wall_clock: WallClockTimes,
}

/// What becomes of a link.
enum LinkVerdict {
    New(Admission),
    Known,
    Refused,
}

/// The number of known and of refused links.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LinkCounts {
    pub(crate) known: u64,
    pub(crate) refused: u64,
}

impl Group {
    /// Consumes events of a feeding topic, those that the filter of the group selects. Skips events
    /// below the first seq not yet consumed, so repeating an input changes nothing. If texts must be
    /// read first, returns the number of events before those that wait, and the request for the
    /// texts.
    pub(crate) fn consume_events(
        &mut self,
        topic: &TopicName,
        next: Seq,
        events: &[(Seq, String)],
        elsewhere: &BTreeSet<JobName>,
        now: Moment,
    ) -> Option<(usize, u64)> {
        let first = self.next_to_consume(topic);
        if next <= first {
            return None;
        }
        let mut items = Vec::with_capacity(events.len());
        let mut dead_letters = Vec::new();
        let mut seeded = BTreeSet::new();
        let (mut times, mut of_ended) = (Vec::new(), Vec::new());
        let (mut next, mut waiting) = (next, None);
        // Events that the group does not take only move its position.
        let admits = |(_, (seq, payload)): &(usize, &(Seq, String))| {
            let takes = self.state.config().settings.filter.matches(payload);
            *seq >= first && (takes || mutants::is(Mutant::IgnoresFilter))
        };
        let taken: Vec<_> = events.iter().enumerate().filter(admits).collect();
        for events in taken.chunks(PREFETCH_BATCH) {
            let read = events
                .iter()
                .map(|(_, (_, payload))| ParsedEvent::parse(payload, self.state.config()));
            let parsed: Vec<_> = read.collect();
            self.prefetch_urls(parsed.iter().flatten());
            if let Some(request) = self.request_texts_of(parsed.iter().flatten()) {
                let (before, (seq, _)) = events[0];
                (next, waiting) = (*seq, Some((before, request)));
                break;
            }
            for ((_, (seq, payload)), parsed) in events.iter().zip(parsed) {
                let judged = parsed
                    .and_then(|parsed| self.judge_event((topic, *seq), &parsed, elsewhere, now));
                let EventVerdict { effect: taking, schedule, wall_clock: at } = judged
                    .unwrap_or_else(|reason| {
                        dead_letters.extend(
                            self.dead_letter_for_unusable(topic, *seq, payload, reason, now),
                        );
                        EventVerdict {
                            effect: Some(EventEffect::Unusable),
                            ..EventVerdict::default()
                        }
                    });
                let taken = taking.as_ref();
                if let Some(EventEffect::Unscheduled(url)) = taken {
                    of_ended.extend(
                        self.state.schedules().find(*url).and_then(|schedule| schedule.entry),
                    );
                }
                if let Some(taking) = taken {
                    self.state.apply_event_effect(taking, now);
                }
                if let Some(EventEffect::Admitted(Admission { job: Some(job), .. })) = taken {
                    seeded.insert(job.number);
                }
                let waits = taken.zip(at.entry).into_iter();
                times.extend(
                    waits.flat_map(|(taking, unix_ms)| wall_clock_dues_of(taking, unix_ms)),
                );
                times.extend(schedule.iter().filter_map(|schedule| {
                    let (what, due) = (WallClockTarget::Schedule(schedule.url_key), schedule.due);
                    Some(WallClockDue { target: what, unix_ms: at.schedule?, due })
                }));
                let schedule = schedule.map(|schedule| {
                    let entry = taken.map_or(schedule.entry, EventEffect::entry);
                    EventEffect::Scheduled(Box::new(Schedule { entry, ..schedule }))
                });
                if let Some(schedule) = &schedule {
                    self.state.apply_event_effect(schedule, now);
                }
                items.extend(taking);
                items.extend(schedule);
            }
        }
        if next <= first {
            return waiting;
        }
        self.commit(Decision::Consumed { topic: topic.clone(), next, effects: items }, now);
        self.record_wall_clock_dues(times, now);
        self.end_unneeded(of_ended, now);
        for letter in dead_letters {
            self.publish(DEAD_LETTER_TOPIC, letter);
        }
        self.settle_after_consuming(seeded, now);
        waiting
    }

    fn judge_event(
        &self,
        origin: (&TopicName, Seq),
        parsed: &ParsedEvent<'_>,
        elsewhere: &BTreeSet<JobName>,
        now: Moment,
    ) -> Result<EventVerdict, &'static str> {
        let payload = &parsed.payload;
        let mut request = match &parsed.url {
            None => self.keyless_request(origin, payload, now),
            Some((url, url_key)) => EventRequest {
                text: url.as_str(),
                url_key: Some(*url_key),
                key: parsed.key(self.state.config()).ok_or("no-key-attribute")?.into(),
                job: payload.attribute("job"),
                prio: 0,
                due: now,
                forwarded: forwarded_attributes(payload).ok_or("attributes-too-long")?,
            },
        };
        if request.url_key.is_some()
            && payload.attribute("render").is_some_and(|word| Render::from_word(word).is_none())
        {
            return Err("bad-render");
        }
        let (mut schedule, mut at) = (None, WallClockTimes::default());
        if let Some(url_key) = parsed.schedule_key() {
            if let Some(every) = payload.attribute("every")
                && let Some(was) = payload.attribute("was")
            {
                let time = |text: &str| text.parse().map_err(|_| "bad-every");
                let (was, every) = (time(was)?, time(every)?);
                // `was=0` expects no schedule: then the event adds one like any other.
                if was != After::Ms(0) || self.state.schedules().find(url_key).is_some() {
                    return self.judge_reschedule(url_key, (was, every), &request.forwarded, now);
                }
            }
            if let Some(prio) = payload.attribute("prio") {
                request.prio = prio.parse::<Prio>().map_err(|_| "bad-prio")?.value();
            }
            if let Some(after) = payload.attribute("after") {
                (request.due, at.entry) =
                    self.state.schedules().due_after(after.parse().map_err(|_| "bad-after")?, now);
            }
            if let Some(every) = payload.attribute("every") {
                match every.parse().map_err(|_| "bad-every")? {
                    After::Ms(0) => {
                        let taking = Some(EventEffect::Unscheduled(url_key));
                        return Ok(EventVerdict { effect: taking, ..EventVerdict::default() });
                    }
                    After::Ms(every_ms) => {
                        let due = request.due + every_ms;
                        schedule = Some(self.judge_schedule(url_key, &request, every_ms, due)?);
                    }
                    After::Time(time) => {
                        let (due, unix_ms) = self.state.schedules().due_at(time, request.due);
                        at.schedule = Some(unix_ms);
                        schedule = Some(self.judge_schedule(url_key, &request, DAY_MS, due)?);
                    }
                }
            }
        }
        let is_never = parsed.url.as_ref().is_some_and(|(url, _)| self.never_list.covers(url));
        if is_never || self.blocks(&request.key) {
            return Err("blocked");
        }
        // An event for a job of another group only counts here as one without a job.
        let is_own =
            |name: &&str| self.state.jobs().named(name).is_some() || !elsewhere.contains(*name);
        let taking = match request.job.filter(is_own) {
            None => self.judge_announcement(request, schedule.is_some()),
            Some(name) => self.judge_seed(name, request)?,
        };
        Ok(EventVerdict { effect: Some(taking), schedule, wall_clock: at })
    }

    /// Without keys, each event has its own key, and its payload is any text.
    fn keyless_request<'a>(
        &self,
        (topic, seq): (&TopicName, Seq),
        payload: &Payload<'a>,
        now: Moment,
    ) -> EventRequest<'a> {
        let key = match self.state.config().settings.key {
            KeyKind::Seq => format!("{topic}/{seq}"),
            _ => format!("#{}", self.state.frontier().next_id()),
        };
        EventRequest {
            text: payload.text(),
            url_key: None,
            key: key.into(),
            job: None,
            prio: 0,
            due: now,
            forwarded: Box::default(),
        }
    }

    /// An event without a job brings waiting entries of its URL forward, or becomes an entry. The
    /// entry of an event with `every=` is that of its schedule, until it is announced.
    fn judge_announcement(&self, request: EventRequest<'_>, is_schedule: bool) -> EventEffect {
        let entries = request
            .url_key
            .map(|url| self.state.frontier().waiting_entries(url))
            .unwrap_or_default();
        if !entries.is_empty() {
            let EventRequest { prio, due, forwarded: carried, .. } = request;
            let own = request.url_key.and_then(|url| self.state.schedules().find(url)?.entry);
            return EventEffect::Coalesced {
                announced: !is_schedule || entries.iter().any(|entry| Some(*entry) != own),
                entries,
                prio,
                due,
                forwarded: carried,
            };
        }
        let is_announced = !is_schedule || request.url_key.is_none();
        EventEffect::Admitted(self.admission(request, None, is_announced))
    }

    /// An event with a job is a seed of the current pass.
    pub(crate) fn judge_seed(
        &self,
        name: &str,
        request: EventRequest<'_>,
    ) -> Result<EventEffect, &'static str> {
        let name: JobName = name.parse().map_err(|_| "bad-job-name")?;
        let job = self.state.jobs().named(name.as_ref()).ok_or("unknown-job")?;
        if job.state == JobState::Done {
            return Err("finished-job");
        }
        if job.cancelled {
            return Err("cancelled-job");
        }
        let url = request.url_key.ok_or("not-a-url")?;
        if !self.has_seen(job.id, url) {
            return Ok(EventEffect::Admitted(self.admission(request, Some(job.id), false)));
        }
        Ok(match self.waiting_entry(url, Some(job.id)) {
            Some(entry) => EventEffect::Coalesced {
                entries: vec![entry],
                announced: false,
                prio: request.prio,
                due: request.due,
                forwarded: Box::default(),
            },
            None => EventEffect::Duplicate(job.id.number),
        })
    }

    fn admission(
        &self,
        request: EventRequest<'_>,
        job: Option<PassId>,
        announced: bool,
    ) -> Admission {
        let mut admission = Admission {
            id: self.state.frontier().next_id(),
            text: request.text.into(),
            url_key: request.url_key,
            key: request.key,
            job,
            depth: 0,
            hops: 0,
            redirect: false,
            announced,
            prio: request.prio,
            due: request.due,
            forwarded: request.forwarded,
        };
        self.set_render(&mut admission);
        admission
    }

    /// Gives an entry the `render=` of its URL's schedule, or else that of its job, unless it has
    /// its own. From then on it belongs to the entry.
    fn set_render(&self, admission: &mut Admission) {
        let Some(url_key) = admission.url_key.filter(|_| admission.render().is_none()) else {
            return;
        };
        let schedule = self.state.schedules().find(url_key);
        let render = schedule.and_then(|schedule| render_of(&schedule.forwarded));
        let render = render.or_else(|| self.render_in_job(&admission.text, admission.job));
        if render.is_some() {
            admission.forwarded = with_render(&admission.forwarded, render).into();
        }
    }

    /// Returns whether the page of a canonical URL is rendered, as far as its job says it.
    fn render_in_job(&self, url: &str, job: Option<PassId>) -> Option<Render> {
        let job =
            self.state.jobs().find(job?.number).filter(|job| job.settings.render.is_some())?;
        job.render_of(&CanonicalUrl::parse(url).ok()?)
    }

    /// Returns the waiting entry of a URL in one pass, or the one without a job.
    pub(crate) fn waiting_entry(&self, url: UrlKey, job: Option<PassId>) -> Option<EntryId> {
        let full = self.state.frontier().waiting_of_url(url.fingerprint()).iter();
        let mut full =
            full.filter(|id| self.state.frontier().get(**id).entry.admitted.job == job).copied();
        full.next().or_else(|| {
            let number = job.map(|job| job.number);
            let is_of_job = |dormant: &DormantRef| self.state.job_of_dormant(dormant) == number;
            self.state.dormant().of_url(url).filter(is_of_job).map(|dormant| dormant.id).min()
        })
    }

    /// Returns the newest held entry of a URL. Visits each held entry.
    pub(super) fn newest_held(&self, url: UrlKey) -> Option<EntryId> {
        let held = self.state.leases().members().iter().flat_map(|(_, member)| member.held());
        held.filter(|id| self.state.frontier().get(*id).entry.admitted.url_key == Some(url)).max()
    }

    /// Reports whether a pass has seen a URL.
    fn has_seen(&self, pass: PassId, url: UrlKey) -> bool {
        let is_of_pass = |dormant: DormantRef| dormant.job() == Some(pass.number);
        self.state.jobs().has_seen(pass, url.fingerprint())
            || self.state.dormant().of_url(url).any(is_of_pass)
    }

    /// Reports whether an answer with these links must be rejected: the group is full, and one of
    /// the links is new. So the group exceeds its limit by the links of one answer at most, and
    /// loses none.
    pub(crate) fn lacks_room_for(
        &self,
        parent: EntryId,
        links: &[StagedLink],
        now: Moment,
    ) -> bool {
        let parent = &self.state.frontier().get(parent).entry;
        let is_new = |link| matches!(self.judge_link(parent, link, now), LinkVerdict::New(_));
        self.is_full() && links.iter().any(is_new)
    }

    /// Judges the links of an answer one after the other, and admits the new ones.
    pub(crate) fn admit_children(
        &mut self,
        parent: EntryId,
        links: &[StagedLink],
        now: Moment,
    ) -> (Vec<Admission>, LinkCounts) {
        let mut children = Vec::new();
        let mut judged = LinkCounts::default();
        if links.is_empty() {
            return (children, judged);
        }
        let parent = self.state.frontier().get(parent).entry.clone();
        let mut redirects = 0;
        for link in links {
            // An answer has one redirect; each redirect would inherit the attributes of the event.
            redirects += u32::from(link.redirect);
            if link.redirect && redirects > 1 {
                judged.refused += 1;
                continue;
            }
            match self.judge_link(&parent, link, now) {
                LinkVerdict::New(child) => {
                    self.state.admit(&child, now);
                    children.push(child);
                }
                LinkVerdict::Known => judged.known += 1,
                LinkVerdict::Refused => judged.refused += 1,
            }
        }
        (children, judged)
    }

    fn judge_link(&self, parent: &Entry, link: &StagedLink, now: Moment) -> LinkVerdict {
        let parent = &parent.admitted;
        let Ok(url) = CanonicalUrl::parse(&link.url) else {
            return LinkVerdict::Refused;
        };
        let Some(key) = self.state.config().key_of_url(&url).filter(|key| !self.blocks(key)) else {
            return LinkVerdict::Refused;
        };
        let (depth, hops) = if link.redirect {
            (parent.depth, parent.hops + 1)
        } else {
            (parent.depth.saturating_add(1), 0)
        };
        if hops > REDIRECTS_MAX {
            return LinkVerdict::Refused;
        }
        match parent.job {
            Some(pass) => {
                let Some(job) = self.state.jobs().find(pass.number) else {
                    return LinkVerdict::Refused;
                };
                let more = u32::from(mutants::is(Mutant::TooDeep));
                let too_deep = job.settings.depth_max.is_some_and(|max| depth > max + more);
                // The target of a seed's redirect belongs to the job, on any host.
                let inside = (link.redirect && depth == 0) || job.contains(&url);
                let inside = inside || mutants::is(Mutant::OutOfScope);
                if job.cancelled || too_deep || !inside {
                    return LinkVerdict::Refused;
                }
                let is_back = link.redirect && leads_back(parent, url.url_key());
                if self.has_seen(pass, url.url_key()) && !is_back {
                    return LinkVerdict::Known;
                }
            }
            // Without a job, only a redirect is followed.
            None if !link.redirect => return LinkVerdict::Refused,
            None if self.waiting_entry(url.url_key(), None).is_some() => return LinkVerdict::Known,
            None => {}
        }
        // Last, because a link may be compared with many patterns.
        if self.never_list.covers(&url) {
            return LinkVerdict::Refused;
        }
        let mut child = Admission {
            id: self.state.frontier().next_id(),
            text: url.as_str().into(),
            url_key: Some(url.url_key()),
            key: key.into(),
            job: parent.job,
            depth,
            hops,
            redirect: link.redirect,
            announced: link.redirect && parent.announced,
            prio: link.prio,
            due: now,
            forwarded: if link.redirect {
                self.redirect_attributes(parent)
            } else {
                Box::default()
            },
        };
        // What the job says is about one URL. What an event says holds after redirects, too.
        let inherits = child.render().is_some();
        if inherits && parent.render() == self.render_in_job(&parent.text, parent.job) {
            child.forwarded = with_render(&child.forwarded, None).into();
        }
        self.set_render(&mut child);
        LinkVerdict::New(child)
    }

    /// Counts an event that the group cannot use. A limited number per minute become dead letters.
    fn dead_letter_for_unusable(
        &mut self,
        topic: &TopicName,
        seq: Seq,
        payload: &str,
        reason: &str,
        now: Moment,
    ) -> Option<String> {
        let minute = now.0 / 60_000;
        if self.unkeyed_dead_letters.0 != minute {
            self.unkeyed_dead_letters = (minute, 0);
        }
        self.unkeyed_dead_letters.1 += 1;
        let head = format!("reason={reason} group={} topic={topic} seq={seq}", self.state.name());
        (self.unkeyed_dead_letters.1 <= self.state.config().unkeyed_dead_letters_per_minute)
            .then(|| dead_letter_text(&head, payload))
    }

    pub(crate) fn publish(&mut self, topic: &'static str, payload: impl Into<Arc<str>>) {
        let serial = self.state.last_serial() + 1;
        let payload = payload.into();
        let decision = Decision::PublishQueued { serial, topic, payload: Arc::clone(&payload) };
        self.commit(decision, self.state.now());
        self.outputs.push_back(Output::Publish { serial, topic, payload });
    }
}

/// Builds a dead letter for a text that is not a URL: the reason, and the text as far as a payload
/// holds it.
pub(crate) fn dead_letter_text(head: &str, text: &str) -> String {
    let kept = text.floor_char_boundary(PAYLOAD_BYTES_MAX - head.len() - 1);
    format!("{head} {}", &text[..kept])
}

/// Returns the attributes to forward, unchanged, each with a leading space. `None` if they are too
/// long for a task line.
fn forwarded_attributes(payload: &Payload<'_>) -> Option<Box<str>> {
    let mut text = String::new();
    for (name, value) in payload.attributes() {
        if !OWN_ATTRIBUTES.contains(&name) {
            text.extend([" ", name, "=", value]);
        }
    }
    (text.len() <= FORWARDED_BYTES_MAX).then(|| text.into())
}
