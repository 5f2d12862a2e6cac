//! Hosts that do not answer, and what the group may do with them: one request for each rest, and no
//! page is lost in an outage that ends in time. When the workers have no network, they return their
//! tasks uncounted, and no page is lost either.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{FailureReason, KeyRest, Outcome, Payload, RetryMode, TaskId};

use super::commands::WorkerCommand;
use super::promises::{CheckResult, Promise, between};
use super::task::ReceivedTask;
use super::{HOUR_MS, World, WorldEvent};
use crate::entry::EntryId;
use crate::moment::Moment;
use crate::tests::site::{HOSTS, host_of, page};

const MINUTE_MS: u64 = 60_000;
/// Requests without an answer after which a host that has answered is down, and the least time for
/// which it is down before it is given up: the sum of its rests.
const UNANSWERED_MAX: u32 = 10;
const GIVEN_UP_AFTER_MS: u64 = 183 * MINUTE_MS;
/// The same for a host that has never answered, with its first rest, and how many tries it gets.
const NEVER_ANSWERED_MS: u64 = 14_000;
const NEVER_ANSWERED_REST_MS: u64 = 2000;
const NEVER_ANSWERED_TRIES: u32 = 3;
/// Longest outage that ends.
const OUTAGE_MS_MAX: u64 = 15 * MINUTE_MS;
/// Hosts that do not answer at a time.
const OUTAGES_MAX: usize = 2;
/// One of this many steps of the world begins one, if there is room.
const STEPS_PER_OUTAGE: u32 = 400;
/// One of this many steps of the world takes the network away, for at most this time.
const STEPS_PER_NETWORK_LOSS: u32 = 1_000;
const NETWORK_LOSS_MS_MAX: u64 = 30_000;
/// The same as that of a crawler.
const AWAY_NACK_AFTER_MS: u64 = 1_000;
/// One of this many outages never ends.
const OUTAGES_PER_DEATH: u32 = 8;

/// All outages, in true time.
#[derive(Debug)]
pub(super) struct OutageCheck {
    /// Decides about outages, so that a world without them is the same.
    rng: fastrand::Rng,
    attempts_max: u32,
    /// The hosts that do not answer now, since when, and whether that ever ends.
    silent: BTreeMap<String, (Moment, bool)>,
    /// No worker can connect to any host.
    is_network_away: bool,
    /// What the group knows of them.
    known: BTreeMap<String, KnownOutage>,
    /// When the first request of each host failed after its last answer.
    unanswered_since: BTreeMap<String, Moment>,
    /// Failed attempts of each entry that count, since it was last given up.
    failures: BTreeMap<EntryId, u32>,
    /// Hosts that have answered at least once.
    ever_answered: BTreeSet<String>,
    /// Entries that got an answer, and failed. The group remembers that their host has answered,
    /// unless an operator has retried them.
    answered: BTreeSet<EntryId>,
    /// Pages that got no answer at least once.
    unanswered_pages: BTreeSet<String>,
    /// Entries that were given up after too many attempts, until the outcome of the last attempt is
    /// known: the answer to its task mostly comes after the event.
    given_up: BTreeMap<EntryId, String>,
    /// When all rests last began again, because the group did not know how much time had passed.
    restarted: Moment,
}

/// What the group knows about a host.
#[derive(Debug, Default)]
struct KnownOutage {
    /// Requests without an answer since the last answer.
    unanswered: u32,
    rests_from: Moment,
    tried: Option<TaskId>,
    /// Whether the group knows that the host has answered before; `None` if it may have forgotten
    /// that.
    has_answered: Option<bool>,
    /// An operator has retried pages, perhaps of this host. It then rests longer or not at all.
    is_retried: bool,
}

impl KnownOutage {
    /// Whether it is down for certain.
    fn is_down(&self) -> bool {
        self.unanswered >= UNANSWERED_MAX || self.unanswered > 0 && self.has_answered == Some(false)
    }

    /// Its shortest and its longest rest.
    fn rests_ms(&self) -> [u64; 2] {
        let answered = match self.unanswered.checked_sub(UNANSWERED_MAX) {
            Some(failed_tries) => (MINUTE_MS << failed_tries.min(6)).min(HOUR_MS),
            None => 0,
        };
        let never = match self.unanswered.checked_sub(1) {
            Some(failed_tries) => NEVER_ANSWERED_REST_MS << failed_tries.min(NEVER_ANSWERED_TRIES),
            None => 0,
        };
        match self.has_answered {
            Some(true) => [answered; 2],
            Some(false) => [never; 2],
            // If it has not, some of the requests were none of the group's tries.
            None => [answered.min(NEVER_ANSWERED_REST_MS), answered.max(never)],
        }
    }

    fn least_rest_ms(&self) -> u64 {
        self.rests_ms()[0]
    }

    fn longest_rest_ms(&self) -> u64 {
        self.rests_ms()[1]
    }
}

impl OutageCheck {
    pub(super) fn new(seed: u64, attempts_max: u32) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            attempts_max,
            silent: BTreeMap::new(),
            is_network_away: false,
            known: BTreeMap::new(),
            unanswered_since: BTreeMap::new(),
            failures: BTreeMap::new(),
            ever_answered: BTreeSet::new(),
            answered: BTreeSet::new(),
            unanswered_pages: BTreeSet::new(),
            given_up: BTreeMap::new(),
            restarted: Moment(0),
        }
    }

    /// Whether a host does not answer.
    pub(super) fn is_silent(&self, host: &str) -> bool {
        self.silent.contains_key(host)
    }

    /// Whether a host will never answer again.
    pub(super) fn is_any_dead(&self) -> bool {
        self.silent.values().any(|(_, ends)| !ends)
    }

    /// All outages end that will ever end.
    pub(super) fn end_all(&mut self) {
        self.is_network_away = false;
        self.silent.retain(|_, (_, ends)| !*ends);
    }

    /// A word with which a worker reports that a host does not answer.
    fn any_word(&mut self) -> &'static str {
        let reasons = FailureReason::ALL.into_iter().filter(|reason| reason.is_unanswered());
        self.rng.choice(reasons.collect::<Vec<_>>()).expect("the list is not empty").as_str()
    }

    /// The group does not know how much time has passed: rests begin again.
    pub(super) fn restart_rests(&mut self, now: Moment) {
        self.restarted = now;
    }

    /// An operator retries all dead letters: the group knows nothing of the hosts of some.
    pub(super) fn retried(&mut self) {
        let retried = || KnownOutage { is_retried: true, ..KnownOutage::default() };
        self.known.values_mut().for_each(|outage| *outage = retried());
        self.answered.clear();
    }

    /// Whether a host rests, as far as the group can know.
    pub(super) fn may_rest(&self, host: &str, now: Moment) -> bool {
        self.known.get(host).is_some_and(|outage| {
            outage.is_retried
                || outage.unanswered > 0
                    && now <= outage.rests_from.max(self.restarted) + outage.longest_rest_ms() + 1
        })
    }

    /// Whether any host rests or does not answer.
    pub(super) fn may_any_rest(&self, now: Moment) -> bool {
        !self.silent.is_empty() || self.known.keys().any(|host| self.may_rest(host, now))
    }

    /// Whether a page may wait for its next attempt, after several that got no answer.
    pub(super) fn may_be_retried(&self, url: &str) -> bool {
        self.unanswered_pages.contains(url)
    }

    /// Checks a release.
    pub(super) fn released(&mut self, received: &ReceivedTask) -> CheckResult {
        let (host, at) = (received.host(), received.at);
        let Some(outage) = self.known.get_mut(&host) else { return Ok(()) };
        if at >= outage.rests_from + HOUR_MS {
            // The group may have forgotten it.
            self.known.remove(&host);
            return Ok(());
        }
        if outage.unanswered > 0 {
            let next = outage.rests_from + outage.least_rest_ms();
            // After a retry, the group may have known of the outage before.
            Promise::DownRests.holds(at >= next || outage.is_retried, || {
                format!("{host} is down and is tried {} too early: {outage:?}", between(at, next))
            })?;
            outage.tried = Some(received.id.clone());
            outage.rests_from = at;
        }
        Ok(())
    }

    /// The group knows since `at` how a task was answered.
    pub(super) fn answered(
        &mut self,
        received: &ReceivedTask,
        command: &WorkerCommand,
        at: Moment,
    ) -> CheckResult {
        self.note_answer(received, command, at);
        let entry = received.id.entry;
        let Some(event) = self.given_up.remove(&entry) else { return Ok(()) };
        let is_used_up = self.is_used_up(entry);
        Promise::OutageLosesNothing
            .holds(is_used_up, || format!("given up before its attempts are used up: {event}"))
    }

    /// Whether an entry has failed as often as it may. It may fail as often again.
    fn is_used_up(&mut self, entry: EntryId) -> bool {
        let failures = self.failures.get(&entry).copied().unwrap_or(0);
        let is_used_up = failures >= self.attempts_max;
        if is_used_up {
            self.failures.remove(&entry);
        }
        is_used_up
    }

    fn note_answer(&mut self, received: &ReceivedTask, command: &WorkerCommand, at: Moment) {
        let (host, id) = (received.host(), &received.id);
        match command {
            WorkerCommand::Touch { .. } => {}
            WorkerCommand::Unanswered { .. } => {
                self.unanswered_since.entry(host.clone()).or_insert(at);
                self.unanswered_pages.insert(received.url.clone());
                let has_answered = if self.ever_answered.contains(&host) {
                    self.answered.contains(&id.entry).then_some(true)
                } else {
                    Some(false)
                };
                let new = || KnownOutage { has_answered, ..KnownOutage::default() };
                let outage = self.known.entry(host).or_insert_with(new);
                if !outage.is_down() {
                    *self.failures.entry(id.entry).or_default() += 1;
                } else if outage.tried.as_ref() != Some(id) {
                    return;
                }
                outage.unanswered += 1;
                outage.rests_from = at;
                outage.tried = None;
            }
            WorkerCommand::Nack { back: RetryMode::Uncounted { .. }, .. }
            | WorkerCommand::Ack {
                outcome: Outcome::Robots | Outcome::Scope | Outcome::Trap,
                ..
            } => {
                if let Some(outage) = self.known.get_mut(&host)
                    && outage.tried.as_ref() == Some(id)
                    && !received.has_ended
                {
                    outage.tried = None;
                    outage.rests_from = Moment(at.0.saturating_sub(outage.longest_rest_ms()));
                }
            }
            WorkerCommand::Nack { back, .. } => {
                if matches!(back, RetryMode::Counted { .. } | RetryMode::Never) {
                    *self.failures.entry(id.entry).or_default() += 1;
                    self.answered.insert(id.entry);
                }
                self.answered_by(&host);
            }
            WorkerCommand::Ack { .. } => self.answered_by(&host),
        }
    }

    /// The group knows that a host has answered.
    fn answered_by(&mut self, host: &str) {
        self.ever_answered.insert(host.to_owned());
        self.known.remove(host);
        self.unanswered_since.remove(host);
    }

    /// Checks an event on `page-ready`.
    pub(super) fn announced(&mut self, entry: EntryId, event: &str, now: Moment) -> CheckResult {
        match Payload::parse(event).attribute("gave-up") {
            Some("down") => {
                let mut since = self.unanswered_since.values();
                // Its next request may be for another host, of which the group knows less.
                let host = host_of(event.split(' ').next().unwrap_or_default());
                let is_of_host = self.unanswered_since.contains_key(&host);
                let has_answered = is_of_host && self.answered.contains(&entry);
                let least_ms = if has_answered { GIVEN_UP_AFTER_MS } else { NEVER_ANSWERED_MS };
                let is_over = since.any(|since| now.since(*since) >= least_ms);
                Promise::OutageLosesNothing.holds(is_over, || {
                    format!("given up after a short outage: {event}, {:?}", self.unanswered_since)
                })
            }
            Some("max-attempts") => {
                if !self.is_used_up(entry) {
                    self.given_up.insert(entry, event.to_owned());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl World {
    /// Begins an outage of a host now and then.
    pub(super) fn perhaps_begin_outage(&mut self) {
        let outages = &mut self.outages;
        if outages.rng.u32(0..STEPS_PER_OUTAGE) > 0 {
            return;
        }
        let host = host_of(&page(outages.rng.u64(..HOSTS), 0));
        if outages.silent.len() >= OUTAGES_MAX || outages.is_silent(&host) {
            return;
        }
        self.totals.outages += 1;
        let ends = outages.is_any_dead() || outages.rng.u32(0..OUTAGES_PER_DEATH) > 0;
        outages.silent.insert(host.clone(), (self.now, ends));
        if ends {
            let lasts_ms = outages.rng.u64(..OUTAGE_MS_MAX);
            self.schedule(lasts_ms, WorldEvent::OutageEnds { host });
        }
    }

    /// Takes the network of the workers away now and then.
    pub(super) fn perhaps_lose_network(&mut self) {
        let outages = &mut self.outages;
        if outages.rng.u32(0..STEPS_PER_NETWORK_LOSS) > 0 || outages.is_network_away {
            return;
        }
        outages.is_network_away = true;
        let lasts_ms = outages.rng.u64(..NETWORK_LOSS_MS_MAX);
        self.totals.network_losses += 1;
        self.schedule(lasts_ms, WorldEvent::NetworkReturns);
    }

    /// The workers can connect to hosts again.
    pub(super) fn return_network(&mut self) {
        self.outages.is_network_away = false;
    }

    /// What a worker answers for a task while it has no network.
    pub(super) fn answer_without_network(&self) -> Option<WorkerCommand> {
        let back = RetryMode::Uncounted { after_ms: Some(AWAY_NACK_AFTER_MS) };
        let hold = KeyRest::default();
        self.outages.is_network_away.then_some(WorkerCommand::Nack { back, hold })
    }

    /// A host answers again.
    pub(super) fn end_outage(&mut self, host: &str) {
        self.outages.silent.remove(host);
    }

    /// What a worker answers for a task with a host that does not answer.
    pub(super) fn unanswered(&mut self) -> WorkerCommand {
        WorkerCommand::Unanswered { word: self.outages.any_word() }
    }
}
