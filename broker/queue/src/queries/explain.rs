//! `EXPLAIN`: why a URL or a key waits, and for how long.

use std::fmt::Write;

use tidings_protocol::status::Answer;
use tidings_protocol::{CanonicalUrl, Code, ProtocolError, duration};

use crate::Group;
use crate::entry::{Entry, EntryId, EntryState};
use crate::frontier::ActiveEntry;
use crate::frontier::keys::KeyId;
use crate::moment::Moment;
use crate::schedules::Schedule;

/// Entries that an explanation lists.
const EXPLAINED_MAX: usize = 20;

impl Group {
    pub(crate) fn explain(&self, what: &str, now: Moment) -> Result<Answer, ProtocolError> {
        match CanonicalUrl::parse(what) {
            Ok(url) => self.explain_url(&url, now),
            Err(_) => self.explain_key(what, now),
        }
    }

    fn explain_url(&self, url: &CanonicalUrl, now: Moment) -> Result<Answer, ProtocolError> {
        let key = url.url_key();
        let same = |id: &EntryId| self.frontier.get(*id).entry.admitted.url_key == Some(key);
        let held = self.leases.members().iter().flat_map(|(_, member)| member.held()).filter(same);
        let entries: Vec<EntryId> = held.chain(self.frontier.waiting_entries(key)).collect();
        let more = entries.iter().take(EXPLAINED_MAX).map(|id| {
            if let Some(live) = self.frontier.find(*id) {
                return self.explain_entry(&live.entry, live.gate(), now);
            }
            let dormant =
                self.frontier.dormant().find(*id).expect("an entry that is not active is dormant");
            self.explain_entry(&self.dormant_entry(dormant), dormant.key, now)
        });
        let mut more: Vec<String> = more.collect();
        let dead = self.dead_letters.iter().filter(|dead| dead.entry.admitted.url_key == Some(key));
        more.extend(dead.take(EXPLAINED_MAX).map(|dead| {
            let (entry, reason) = (&dead.entry, dead.reason);
            let last = entry.last_reason.as_deref().unwrap_or("none").replace(' ', "_");
            format!("{} dead because={reason} last={last}", entry.admitted.text)
        }));
        let schedule = self.schedules.find(key);
        more.extend(schedule.map(|schedule| self.explain_schedule(schedule, now)));
        if more.is_empty() {
            let (url, group) = (url.as_str(), &self.name);
            let text =
                match self.jobs.iter().find(|job| self.jobs.has_seen(job.id, key.fingerprint())) {
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
                "processing member={:?} lease-ends-in={}{}",
                lease.member,
                time_until(lease.until, now),
                if lease.request_over { " request=over" } else { "" }
            ),
            EntryState::Delayed => format!(
                "delayed due-in={} failures={} last={}",
                time_until(admitted.due, now),
                entry.failures,
                entry.last_reason.as_deref().unwrap_or("none").replace(' ', "_")
            ),
            EntryState::Waiting => match self.blocked_by_job(entry) {
                Some(reason) => format!("pending because={reason}"),
                None => self.explain_gate(gate, admitted.needs_render(), now),
            },
        };
        let job = admitted.job.and_then(|job| self.jobs.find(job.number));
        let job = job.map(|job| format!(" job={} pass={}", job.name, job.id.pass));
        format!("{} key={} {state}{}", admitted.text, entry.gate(), job.unwrap_or_default())
    }

    /// Returns the reason in its job that keeps an entry from being released.
    fn blocked_by_job(&self, entry: &Entry) -> Option<&'static str> {
        let admitted = &entry.admitted;
        let job = admitted.job.and_then(|pass| self.jobs.find(pass.number))?;
        if entry.again.is_some() || admitted.announced {
            None
        } else if job.paused {
            Some("job-paused")
        } else if job.awaits_seeds() {
            Some("job-held")
        } else {
            job.is_blocked_on(&admitted.key).then_some("budget")
        }
    }

    /// Explains a key as written, or else in lower case, as hosts are.
    fn explain_key(&self, key: &str, now: Moment) -> Result<Answer, ProtocolError> {
        let lower = key.to_ascii_lowercase();
        let explained = self.explain_exact_key(key, now);
        explained.or_else(|| self.explain_exact_key(&lower, now)).ok_or_else(|| {
            let text = format!(
                "nothing waits for {key} in group {}, nothing is scheduled, and the key does not rest",
                self.name
            );
            ProtocolError::new(Code::NotFound, text)
        })
    }

    /// Visits every entry, because those that are not due are in no queue of their key.
    fn explain_exact_key(&self, key: &str, now: Moment) -> Option<Answer> {
        let gate = self.frontier.keys().find(key);
        let is_delayed = |live: &&ActiveEntry| {
            live.entry.state == EntryState::Delayed && Some(live.gate()) == gate
        };
        let live = self.frontier.active();
        let mut delayed: Vec<&ActiveEntry> = live.filter(is_delayed).collect();
        let of_key = |schedule: &&Schedule| *schedule.key == *key;
        let mut scheduled: Vec<&Schedule> = self.schedules.iter().filter(of_key).collect();
        if gate.is_none() && delayed.is_empty() && scheduled.is_empty() {
            return None;
        }
        delayed.sort_by_key(|live| (live.entry.admitted.due, live.entry.admitted.id));
        scheduled.sort_by_key(|schedule| (schedule.due, schedule.url_key));
        let holders = self
            .leases
            .members()
            .iter()
            .flat_map(|(id, member)| member.held().into_iter().map(move |entry| (id, entry)))
            .map(|(member, id)| (member, self.frontier.get(id)))
            .filter(|(_, live)| Some(live.gate()) == gate)
            .map(|(member, live)| {
                format!("in-flight {} member={member:?}", live.entry.admitted.text)
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
            gate.map_or(0, |gate| self.frontier.keys()[gate].waiting())
        );
        for (what, count) in [("delayed", delayed.len()), ("scheduled", scheduled.len())] {
            if count > 0 {
                // Writing into a string cannot fail.
                let _ = write!(ok, " {what}={count}");
            }
        }
        let gate = gate.map(|gate| {
            let offers = |render| self.frontier.is_offered(gate, render);
            self.explain_gate(gate, offers(true) && !offers(false), now)
        });
        let _ = write!(ok, " {}", gate.as_deref().unwrap_or("free"));
        Some(Answer::new(more, ok))
    }

    fn explain_schedule(&self, schedule: &Schedule, now: Moment) -> String {
        let (every, due_in) =
            (self.schedules.interval_text(schedule), time_until(schedule.due, now));
        format!("{} every={every} due-in={due_in}", schedule.text)
    }

    /// Describes the entries behind a key, those that need a browser or the others: pending while
    /// the key is busy or rests, queued when only a member's credit is missing.
    fn explain_gate(&self, key: KeyId, render: bool, now: Moment) -> String {
        let queue = &self.frontier.keys()[key];
        if self.is_paused {
            "pending because=group-paused".to_owned()
        } else if self.unpublished.is_full() {
            "pending because=unpublished-events".to_owned()
        } else if queue.in_flight() >= self.config.parallel {
            "pending because=in-flight".to_owned()
        } else if queue.free_at() > now {
            format!("pending because=delay free-in={}", time_until(queue.free_at(), now))
        } else if !queue.has_waiting() {
            "free".to_owned()
        } else if self.frontier.is_offered(key, render) {
            let because = match self.leases.members().can_render() {
                _ if !render => "no-credit",
                0 => "no-render-member",
                _ => "no-render-credit",
            };
            format!("queued because={because}")
        } else {
            "pending because=job".to_owned()
        }
    }
}

fn time_until(at: Moment, now: Moment) -> String {
    duration::format_ms(at.since(now))
}
