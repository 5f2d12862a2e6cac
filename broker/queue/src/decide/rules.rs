//! Rules of an operator for keys.

use std::collections::BTreeSet;

use tidings_protocol::status::{Answer, RuleStatus};
use tidings_protocol::{
    CanonicalUrl, Code, HostPattern, KeyKind, ProtocolError, RuleSettings, TaskId, bad_argument,
};

use crate::entry::{EndReason, Entry, EntryId, Key};
use crate::frontier::keys::KeyId;
use crate::frontier::rules::KeyRule;
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::record::Decision;
use crate::{Group, Requester};

/// Most rules of a group.
const RULES_MAX: usize = 10_000;

/// Longest key of a rule, in bytes. Hosts are shorter.
const KEY_BYTES_MAX: usize = 512;

/// A command about a rule that is answered when no request is in flight any more for the keys.
#[derive(Debug)]
pub(crate) struct RuleWaiter {
    pub(crate) requester: Requester,
    status: RuleStatus,
    /// Keys that a rule held, with requests in flight.
    busy: Vec<KeyId>,
    /// Tasks that may be requesting parts of their pages from such keys: their entries and attempts.
    tasks: Vec<(EntryId, u32)>,
}

impl Group {
    /// Sets the rule of a key. Returns `None` if the answer comes when the last request to a key
    /// that is held now has ended.
    pub(crate) fn set_rule(
        &mut self,
        requester: Requester,
        key: &str,
        settings: &RuleSettings,
        now: Moment,
    ) -> Result<Option<Answer>, ProtocolError> {
        let (name, below) = self.rule_name(key)?;
        let rules = self.state.frontier().rules();
        if rules.len() >= RULES_MAX && rules.named(&name, below).is_none() {
            let text =
                format!("group {} has {RULES_MAX} rules, which is the limit", self.state.name());
            return Err(ProtocolError::new(Code::Limit, text));
        }
        let RuleSettings { block, pause, delay_ms, parallel, for_ms, note } = settings.clone();
        let number = rules.history().last_number + 1;
        let until = for_ms.map(|ms| now + ms);
        let rule = KeyRule { number, name, below, block, pause, delay_ms, parallel, until, note };
        self.commit(Decision::RuleSet(Box::new(rule.clone())), now);
        self.settle_unfinished_jobs(now);
        Ok(self.answer_rule(requester, &rule, now))
    }

    /// Ends the rule of a key by command. Returns `None` as [`set_rule`](Self::set_rule) does.
    pub(crate) fn unset_rule(
        &mut self,
        requester: Requester,
        key: &str,
        now: Moment,
    ) -> Result<Option<Answer>, ProtocolError> {
        let (name, below) = self.rule_name(key)?;
        let rule = self.state.frontier().rules().named(&name, below).cloned().ok_or_else(|| {
            let text = format!(
                "no rule {key} in group {0}; GROUP rules {0} lists them",
                self.state.name()
            );
            ProtocolError::new(Code::NotFound, text)
        })?;
        self.remove_rule(name, below, now);
        Ok(self.answer_rule(requester, &rule, now))
    }

    /// Ends a rule.
    pub(crate) fn remove_rule(&mut self, name: Key, below: bool, now: Moment) {
        self.commit(Decision::RuleRemoved { name, below }, now);
        self.settle_unfinished_jobs(now);
    }

    /// Returns the canonical name of a rule's key, and whether the rule is also about all names
    /// below.
    fn rule_name(&self, key: &str) -> Result<(Key, bool), ProtocolError> {
        if key == "*" {
            let text = "key=*: a rule is about one key, or about a host and all below it as \
                        *.example.org; GROUP pause holds all keys";
            return Err(bad_argument(text));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(bad_argument(format!("key=: expected at most {KEY_BYTES_MAX} bytes")));
        }
        match self.state.config().settings.key {
            KeyKind::None | KeyKind::Seq => {
                let text = "the group has no rules, because each event has its own key";
                Err(ProtocolError::new(Code::Conflict, text))
            }
            KeyKind::Attribute(_) => Ok((key.into(), false)),
            KeyKind::Host | KeyKind::Domain => {
                let no_key = |why: &str| bad_argument(format!("key={key}: {why}"));
                let host =
                    key.parse::<HostPattern>().map_err(|error| no_key(&error.to_string()))?;
                let domain = host.domain().unwrap_or(host.host());
                if self.state.config().settings.key == KeyKind::Domain && domain != host.host() {
                    let why = "the keys of this group are domains; this host is part of ";
                    return Err(no_key(&format!("{why}{domain}")));
                }
                Ok((host.host().into(), host.is_below()))
            }
        }
    }

    fn answer_rule(&mut self, requester: Requester, rule: &KeyRule, now: Moment) -> Option<Answer> {
        let (group, fields) = (self.state.name().to_string(), rule.fields(now));
        let status = RuleStatus { group, key: rule.pattern(), fields };
        // Each request in flight belongs to an entry that a member holds.
        let held = self.state.leases().members().iter().flat_map(|(_, member)| member.held());
        let keys = held.map(|entry| self.state.frontier().get(entry).gate());
        let keys = keys.filter(|key| rule.is_about(self.state.frontier().keys()[*key].name()));
        let busy: Vec<KeyId> = keys.filter(|key| self.is_held_and_busy(*key)).collect();
        let tasks = self.tasks_with_parts(rule);
        if busy.is_empty() && tasks.is_empty() {
            return Some(status.into());
        }
        self.rule_waiters.push(RuleWaiter { requester, status, busy, tasks });
        None
    }

    /// Returns the tasks that may be requesting parts of their pages from keys of this rule that are
    /// held now.
    fn tasks_with_parts(&self, rule: &KeyRule) -> Vec<(EntryId, u32)> {
        let rules = self.state.frontier().rules();
        let is_held = |key: &str| rule.is_about(key) && rules.of(key).is_some_and(|of| of.holds());
        // A rule about the names below a host is not about that of the host alone.
        let in_force = rules.of(&format!("{}{}", if rule.below { "." } else { "" }, rule.name));
        // Only keys that are hosts or domains have permissions for parts.
        let holds = matches!(self.state.config().settings.key, KeyKind::Host | KeyKind::Domain)
            && in_force.is_some_and(|rule| rule.holds());
        let held =
            self.state.leases().expiries().map(|(_, id)| &self.state.frontier().get(id).entry);
        let requesting = held.filter(|entry| {
            // What an earlier run has permitted is unknown.
            let is_unknown = holds
                && entry.lease().is_some_and(|lease| lease.run != self.state.run())
                && !mutants::is(Mutant::ForgetsParts);
            is_unknown || self.state.frontier().parts.include(entry.admitted.id, holds, is_held)
        });
        let tasks = requesting.map(|entry| (entry.admitted.id, entry.releases));
        tasks.filter(|task| self.is_requesting(*task)).collect()
    }

    /// Reports whether the request of a task, or one for a part of its page, may be in flight.
    fn is_requesting(&self, (id, attempt): (EntryId, u32)) -> bool {
        let entry = self.state.frontier().find(id).map(|live| &live.entry);
        let lease = entry.filter(|entry| entry.releases == attempt).and_then(Entry::lease);
        lease.is_some_and(|lease| !lease.request_over)
    }

    /// Permits a request for a part of the page of a task, unless a rule or the never-list forbids
    /// it.
    pub(crate) fn permit_part(
        &mut self,
        requester: Requester,
        task: &TaskId,
        url: &str,
    ) -> Result<(), ProtocolError> {
        let id = self.held_entry(requester, task)?;
        let url = CanonicalUrl::parse(url)
            .map_err(|error| bad_argument(format!("part={url}: {error}")))?;
        self.check_request(&url, |rule| {
            rule.holds() && !mutants::is(Mutant::PermitsHeldPart)
                || mutants::is(Mutant::RefusesRuledPart)
        })?;
        if !self.is_requesting((id, task.attempt)) {
            let text = format!("{task} has reported the end of its requests");
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        self.state.begin_part(id, &url);
        Ok(())
    }

    /// Checks that neither such a rule nor the never-list forbids to request a URL.
    pub(crate) fn check_request(
        &self,
        url: &CanonicalUrl,
        forbids: impl Fn(&KeyRule) -> bool,
    ) -> Result<(), ProtocolError> {
        let conflict = |text| Err(ProtocolError::new(Code::Conflict, text));
        if let Some(key) = self.state.config().key_of_url(url)
            && let Some(rule) = self.state.frontier().rules().of(key).filter(|rule| forbids(rule))
        {
            let verb = if rule.block { "blocks" } else { "pauses" };
            return conflict(format!("the rule {} {verb} {key}", rule.pattern()));
        }
        if self.never_list.covers(url) && !mutants::is(Mutant::PermitsListedPart) {
            let url = url.as_str();
            return conflict(format!("{url} may not be requested: it is on the never-list"));
        }
        Ok(())
    }

    /// Answers the commands for which no request is in flight any more.
    pub(crate) fn answer_rule_waiters(&mut self) {
        let mut waiters = std::mem::take(&mut self.rule_waiters);
        waiters.retain_mut(|waiter| {
            waiter.busy.retain(|key| self.is_held_and_busy(*key));
            waiter.tasks.retain(|task| self.is_requesting(*task));
            let is_over = waiter.busy.is_empty() && waiter.tasks.is_empty();
            if is_over {
                self.answer(waiter.requester, Ok(waiter.status.clone().into()));
            }
            !is_over
        });
        self.rule_waiters = waiters;
    }

    /// Reports whether a rule holds a key with requests in flight. The key may have been removed.
    fn is_held_and_busy(&self, key: KeyId) -> bool {
        let queue = self.state.frontier().keys().at_index(key.index()).ok().flatten();
        queue.is_some_and(|queue| queue.is_held() && queue.in_flight() > 0)
            && !mutants::is(Mutant::AnswersRuleEarly)
    }

    /// Reports whether a rule blocks a key.
    pub(crate) fn blocks(&self, key: &str) -> bool {
        self.state.frontier().rules().of(key).is_some_and(|rule| rule.block)
    }

    /// Ends an entry that was returned or lost, if a rule blocks its next request.
    pub(crate) fn end_if_blocked(&mut self, id: EntryId, now: Moment) {
        if self.state.frontier().is_blocked(id) && !mutants::is(Mutant::ReturnsToBlocked) {
            self.commit(Decision::Ended { entries: vec![id], end: EndReason::Blocked }, now);
        }
    }

    /// Returns the dead entries that may not be retried, because a rule blocks their keys.
    pub(crate) fn blocked_dead(&self) -> BTreeSet<EntryId> {
        let dead = self.state.dead_letters().iter().map(|dead| &dead.entry.admitted);
        dead.filter(|admitted| self.blocks(&admitted.key)).map(|admitted| admitted.id).collect()
    }
}
