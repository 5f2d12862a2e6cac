//! `EXPLAIN`: why a URL or a key waits, and for how long.

use std::fmt::Write;

use tidings_protocol::status::{Answer, WaitReason};
use tidings_protocol::{CanonicalUrl, Code, HostPattern, ProtocolError, UrlKey, duration};

use super::View;
use crate::entry::{Admission, Entry, EntryId, EntryState};
use crate::frontier::key_queue::{KeyQueue, RestCause};
use crate::frontier::keys::KeyId;
use crate::frontier::rules::KeyRule;
use crate::frontier::{ActiveEntry, AnyEntry};
use crate::jobs::Job;
use crate::moment::Moment;
use crate::schedules::Schedule;

/// Entries that an explanation lists.
const EXPLAINED_MAX: usize = 20;

impl View<'_> {
    pub(crate) fn explain(&self, what: &str, now: Moment) -> Result<Answer, ProtocolError> {
        match CanonicalUrl::parse(what) {
            _ if self.state.config().settings.key.is_own() => {
                self.explain_first_word(what, now).map_or_else(|| self.explain_key(what, now), Ok)
            }
            Ok(url) => self.explain_url(&url, now),
            Err(_) => self.explain_key(what, now),
        }
    }

    /// Explains the events that begin with a word, in a group without keys. Payloads on the disk are
    /// not read.
    fn explain_first_word(&self, word: &str, now: Moment) -> Option<Answer> {
        let url = CanonicalUrl::parse(word).ok();
        let is_it = |text: &str| {
            let first = first_word(text);
            first == word || url.as_ref().is_some_and(|url| first == url.as_str())
        };
        let looked_at =
            self.state.frontier().entries_above(0).take(self.state.config().looked_at_max);
        let entries = looked_at.filter(|(_, entry)| match entry {
            AnyEntry::Active(live) => is_it(&live.entry.admitted.text),
            AnyEntry::Dormant(dormant) => {
                !self.state.dormant().must_read(*dormant)
                    && is_it(&self.state.dormant_entry(*dormant).admitted.text)
            }
        });
        let entries: Vec<EntryId> = entries.map(|(id, _)| id).collect();
        let target = CanonicalUrl::key_of(url.as_ref().map_or(word, CanonicalUrl::as_str));
        let more = self.explain_entries(&entries, |dead| is_it(&dead.text), target, now);
        (!more.is_empty()).then(|| Answer::new(more, format!("{word} entries={}", entries.len())))
    }

    /// Returns the lines of these entries, of these dead letters, and of the schedule of a URL.
    fn explain_entries(
        &self,
        entries: &[EntryId],
        is_dead: impl Fn(&Admission) -> bool,
        scheduled: UrlKey,
        now: Moment,
    ) -> Vec<String> {
        let more = entries.iter().take(EXPLAINED_MAX).map(|id| {
            match self.state.frontier().find_any(*id).expect("a listed entry is not final") {
                AnyEntry::Active(live) => self.explain_entry(&live.entry, live.gate(), now),
                AnyEntry::Dormant(dormant) => {
                    self.explain_entry(&self.state.dormant_entry(dormant), dormant.key, now)
                }
            }
        });
        let mut more: Vec<String> = more.collect();
        let dead = self.state.dead_letters().iter().filter(|dead| is_dead(&dead.entry.admitted));
        more.extend(dead.take(EXPLAINED_MAX).map(|dead| {
            let (entry, reason) = (&dead.entry, dead.reason);
            let last = entry.last_reason.as_deref().unwrap_or("none").replace(' ', "_");
            format!("{} dead because={reason} last={last}", first_word(&entry.admitted.text))
        }));
        let schedule = self.state.schedules().find(scheduled);
        more.extend(schedule.map(|schedule| self.explain_schedule(schedule, now)));
        more
    }

    fn explain_url(&self, url: &CanonicalUrl, now: Moment) -> Result<Answer, ProtocolError> {
        let key = url.url_key();
        let same =
            |id: &EntryId| self.state.frontier().get(*id).entry.admitted.url_key == Some(key);
        let held =
            self.state.leases().members().iter().flat_map(|(_, member)| member.held()).filter(same);
        let entries: Vec<EntryId> =
            held.chain(self.state.frontier().waiting_entries(key)).collect();
        let mut more = self.explain_entries(&entries, |dead| dead.url_key == Some(key), key, now);
        let rule = self
            .state
            .config()
            .key_of_url(url)
            .and_then(|key| self.state.frontier().rules().of(key));
        let rule = rule.filter(|rule| rule.block).and_then(|rule| explain_rule(rule, now));
        more.extend(rule.map(|rule| format!("{} {rule}", url.as_str())));
        if more.is_empty() {
            let (url, group) = (url.as_str(), self.state.name());
            let text = match self
                .state
                .jobs()
                .iter()
                .find(|job| self.state.jobs().has_seen(job.id, key.fingerprint()))
            {
                Some(job) => format!(
                    "{url} is finished in job {} of group {group}: it was fetched, or given up",
                    job.name
                ),
                None => format!(
                    "{url} does not wait in group {group}, and no member holds it; \
                     finished URLs are not listed"
                ),
            };
            return Err(ProtocolError::new(Code::NotFound, text));
        }
        Ok(Answer::new(more, format!("{} entries={}", url.as_str(), entries.len())))
    }

    fn explain_entry(&self, entry: &Entry, gate: KeyId, now: Moment) -> String {
        let admitted = &entry.admitted;
        let state = match &entry.state {
            EntryState::Held(lease) => format!(
                "processing member={} lease-ends-in={}{}",
                lease.member.short(),
                time_until(lease.until, now),
                if lease.request_over { " request=over" } else { "" }
            ),
            EntryState::Delayed => format!(
                "delayed because={} due-in={} failures={} last={}",
                if entry.failures + entry.losses > 0 {
                    WaitReason::Retry
                } else {
                    WaitReason::Later
                },
                time_until(admitted.due, now),
                entry.failures,
                entry.last_reason.as_deref().unwrap_or("none").replace(' ', "_")
            ),
            EntryState::Waiting => {
                let reason = self
                    .blocked_by_job(entry)
                    .unwrap_or_else(|| self.wait_reason(gate, admitted.needs_render(), now));
                self.explain_reason(gate, reason, now)
            }
        };
        let job = admitted.job.and_then(|job| self.state.jobs().find(job.number));
        let job = job.map(|job| format!(" job={} pass={}", job.name, job.id.pass));
        let (subject, gate) = (first_word(&admitted.text), entry.gate());
        format!("{subject} key={gate} {state}{}", job.unwrap_or_default())
    }

    /// Returns the reason in its job that keeps an entry from being released.
    fn blocked_by_job(&self, entry: &Entry) -> Option<WaitReason> {
        let admitted = &entry.admitted;
        let job = admitted.job.and_then(|pass| self.state.jobs().find(pass.number))?;
        if entry.again.is_some() || admitted.announced {
            return None;
        }
        reason_of_job(job, &admitted.key)
    }

    /// Explains a key as written, or else as the host in a canonical URL, in lower case.
    fn explain_key(&self, key: &str, now: Moment) -> Result<Answer, ProtocolError> {
        let host = key.parse::<HostPattern>().ok().filter(|host| !host.is_below());
        let host = host.map_or_else(|| key.to_ascii_lowercase(), |host| host.host().to_owned());
        let explain_host = || (host != key).then(|| self.explain_exact_key(&host, now))?;
        self.explain_exact_key(key, now).or_else(explain_host).ok_or_else(|| {
            let text = format!(
                "nothing waits for {key} in group {}, nothing is scheduled, and the key does not rest",
                self.state.name()
            );
            ProtocolError::new(Code::NotFound, text)
        })
    }

    /// Visits active entries, because those that are not due are in no queue of their key: not all, if
    /// there are very many.
    fn explain_exact_key(&self, key: &str, now: Moment) -> Option<Answer> {
        let gate = self.state.frontier().keys().find(key);
        let is_delayed = |live: &&ActiveEntry| {
            live.entry.state == EntryState::Delayed && Some(live.gate()) == gate
        };
        let live = self.state.frontier().active().take(self.state.config().looked_at_max);
        let mut delayed: Vec<&ActiveEntry> = live.filter(is_delayed).collect();
        let of_key = |schedule: &&Schedule| *schedule.key == *key;
        let mut scheduled: Vec<&Schedule> = self.state.schedules().iter().filter(of_key).collect();
        let held_by =
            self.state.frontier().rules().of(key).and_then(|rule| explain_rule(rule, now));
        let is_known = gate.is_some() || !delayed.is_empty() || !scheduled.is_empty();
        if !is_known && (held_by.is_none() || key != key.to_ascii_lowercase()) {
            return None;
        }
        delayed.sort_by_key(|live| (live.entry.admitted.due, live.entry.admitted.id));
        scheduled.sort_by_key(|schedule| (schedule.due, schedule.url_key));
        let holders = self
            .state
            .leases()
            .members()
            .iter()
            .flat_map(|(id, member)| member.held().into_iter().map(move |entry| (id, entry)))
            .map(|(member, id)| (member, self.state.frontier().get(id)))
            .filter(|(_, live)| Some(live.gate()) == gate)
            .map(|(member, live)| {
                let subject = first_word(&live.entry.admitted.text);
                format!("in-flight {subject} member={}", member.short())
            });
        let mut more: Vec<String> = holders.take(EXPLAINED_MAX).collect();
        more.extend(
            delayed
                .iter()
                .take(EXPLAINED_MAX)
                .map(|live| self.explain_entry(&live.entry, live.gate(), now)),
        );
        let soonest = scheduled.iter().take(EXPLAINED_MAX);
        more.extend(soonest.map(|schedule| self.explain_schedule(schedule, now)));
        let mut ok = format!(
            "{key} waiting={}",
            gate.map_or(0, |gate| self.state.frontier().keys()[gate].waiting())
        );
        for (what, count) in [("delayed", delayed.len()), ("scheduled", scheduled.len())] {
            if count > 0 {
                // Writing into a string cannot fail.
                let _ = write!(ok, " {what}={count}");
            }
        }
        let gate = gate.map(|gate| self.explain_reason(gate, self.key_reason(gate, now), now));
        let _ = write!(ok, " {}", gate.or(held_by).as_deref().unwrap_or("free"));
        Some(Answer::new(more, ok))
    }

    fn explain_schedule(&self, schedule: &Schedule, now: Moment) -> String {
        let (every, due_in) =
            (self.state.schedules().interval_text(schedule), time_until(schedule.due, now));
        format!("{} every={every} due-in={due_in}", first_word(&schedule.text))
    }

    /// Describes the entries behind a key: pending while the key is busy or rests, queued when only a
    /// member's credit is missing.
    fn explain_reason(&self, key: KeyId, reason: WaitReason, now: Moment) -> String {
        match reason {
            WaitReason::Free => "free".to_owned(),
            WaitReason::NoMembers
            | WaitReason::NoCredit
            | WaitReason::NoRenderMember
            | WaitReason::NoRenderCredit => format!("queued because={reason}"),
            WaitReason::Delay | WaitReason::Pace | WaitReason::NotBefore | WaitReason::Down => {
                let free_in = time_until(self.state.frontier().keys()[key].free_at(), now);
                format!("pending because={reason} free-in={free_in}")
            }
            WaitReason::Rule => {
                let rule = self.state.frontier().keys()[key].rule();
                let rule = rule.and_then(|rule| explain_rule(rule, now));
                rule.expect("a key that is held has a rule")
            }
            reason => format!("pending because={reason}"),
        }
    }

    /// Returns why the next entry of a key waits.
    pub(crate) fn key_reason(&self, key: KeyId, now: Moment) -> WaitReason {
        let offers = |render| self.state.frontier().is_offered(key, render);
        self.wait_reason(key, offers(true) && !offers(false), now)
    }

    /// Returns why the next entry of a key waits, of those that need a browser or of the others.
    fn wait_reason(&self, key: KeyId, render: bool, now: Moment) -> WaitReason {
        let queue = &self.state.frontier().keys()[key];
        if self.state.is_paused() {
            WaitReason::GroupPaused
        } else if queue.is_held() {
            WaitReason::Rule
        } else if self.state.unpublished().is_full() {
            WaitReason::UnpublishedEvents
        } else if queue.in_flight() >= queue.parallel(self.state.config().settings.parallel) {
            WaitReason::InFlight
        } else if queue.has_waiting() && self.reason_of_jobs(queue) == WaitReason::JobPaused {
            // It lasts longer than a rest.
            WaitReason::JobPaused
        } else if queue.free_at() > now {
            match queue.rest_cause() {
                RestCause::Delay => WaitReason::Delay,
                RestCause::Pace => WaitReason::Pace,
                RestCause::NotBefore => WaitReason::NotBefore,
                RestCause::Down => WaitReason::Down,
            }
        } else if !queue.has_waiting() {
            WaitReason::Free
        } else if self.state.frontier().is_offered(key, render) {
            match (render, self.state.leases().members().any_takes_tasks(render)) {
                (false, false) => WaitReason::NoMembers,
                (false, true) => WaitReason::NoCredit,
                (true, false) => WaitReason::NoRenderMember,
                (true, true) => WaitReason::NoRenderCredit,
            }
        } else {
            self.reason_of_jobs(queue)
        }
    }

    /// Returns why the jobs with entries behind a key release none of them.
    fn reason_of_jobs(&self, queue: &KeyQueue) -> WaitReason {
        let jobs = [false, true].into_iter().flat_map(|render| {
            let from = move |number| queue.job_from(render, number);
            std::iter::successors(from(0), move |number| from(number + 1))
        });
        let mut reasons = jobs.map(|number| {
            self.state.jobs().find(number).and_then(|job| reason_of_job(job, queue.name()))
        });
        match reasons.next() {
            // Stops at another reason: a key may have very many jobs.
            Some(Some(reason)) if reasons.all(|other| other == Some(reason)) => reason,
            _ => WaitReason::Job,
        }
    }
}

/// Returns why a job releases nothing of a key.
fn reason_of_job(job: &Job, key: &str) -> Option<WaitReason> {
    if job.paused {
        Some(WaitReason::JobPaused)
    } else if job.awaits_seeds() {
        Some(WaitReason::JobHeld)
    } else {
        job.is_blocked_on(key).then_some(WaitReason::Budget)
    }
}

/// Describes the entries behind a key that a rule holds.
fn explain_rule(rule: &KeyRule, now: Moment) -> Option<String> {
    let state = if rule.block { "blocked" } else { "pending" };
    let end = rule.until.map(|until| format!(" ends-in={}", time_until(until, now)));
    let note = rule.note.as_ref().map(|note| format!(" note={note}"));
    let (end, note) = (end.unwrap_or_default(), note.unwrap_or_default());
    rule.holds().then(|| format!("{state} because=rule rule={}{end}{note}", rule.pattern()))
}

/// Returns a URL as it is, and the first word of a payload.
fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

fn time_until(at: Moment, now: Moment) -> String {
    duration::format_ms(at.since(now))
}
