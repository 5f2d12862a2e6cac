//! Rules that an operator sets for keys. Each is about one key, or about a host and all names below
//! it. For a key the rule with its exact name counts, or else the one with the longest name.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidings_protocol::status::{DurationMs, RuleFields};

use super::Frontier;
use super::key_queue::{CLOCK_GRAIN_MS, KeyQueue};
use super::keys::KeyId;
use crate::entry::{EntryId, Key};
use crate::moment::Moment;
use crate::timers::Timers;

/// A rule of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRule {
    /// Its number among the rules: a later rule has a higher one.
    pub number: u64,
    /// The key, or the host at the end of all keys that it is about.
    pub name: Key,
    /// Whether it is also about all hosts below that one.
    pub below: bool,
    /// Whether nothing is released and nothing waits for the key.
    pub block: bool,
    /// Whether nothing is released for the key.
    pub pause: bool,
    /// The delay of the key in ms; `None`: that of the group.
    pub delay_ms: Option<u64>,
    /// Requests in flight for the key; `None`: as the group.
    pub parallel: Option<u32>,
    /// When it ends by itself.
    pub until: Option<Moment>,
    /// A note of the operator.
    pub note: Option<Box<str>>,
}

impl KeyRule {
    /// Returns the key as an operator writes it.
    pub(crate) fn pattern(&self) -> String {
        if self.below { format!("*.{}", self.name) } else { self.name.to_string() }
    }

    /// Reports whether a key has its name, or a name below.
    pub(crate) fn is_about(&self, key: &str) -> bool {
        is_named(key, &self.name, self.below)
    }

    /// Returns what it says, for a client.
    pub(crate) fn fields(&self, now: Moment) -> RuleFields {
        RuleFields {
            block: self.block.then_some(true),
            pause: self.pause.then_some(true),
            delay: self.delay_ms.map(DurationMs),
            parallel: self.parallel.map(u64::from),
            left: self.until.map(|until| DurationMs(until.since(now))),
            note: self.note.as_deref().map(str::to_owned),
        }
    }

    /// Reports whether nothing is released.
    pub(crate) fn holds(&self) -> bool {
        self.block || self.pause
    }
}

/// Reports whether a key has a name; with `below`, or a name below.
pub(super) fn is_named(key: &str, name: &str, below: bool) -> bool {
    let above = key.strip_suffix(name);
    above.is_some_and(|above| above.is_empty() || below && above.ends_with('.'))
}

/// What a group remembers of rules that may have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleHistory {
    /// The number of the newest rule.
    pub last_number: u64,
    /// How often something that was blocked may have become free.
    pub lifted: u64,
    /// When the machine was last restarted, as far as the group knows.
    pub reboot_at: Moment,
    /// The newest rule at that time.
    pub last_at_reboot: u64,
}

/// All rules of a group.
#[derive(Debug, Default)]
pub(crate) struct KeyRules {
    /// Rules about one key, by its name.
    exact: BTreeMap<Key, Arc<KeyRule>>,
    /// Rules about a host and all below, by its name.
    below: BTreeMap<Key, Arc<KeyRule>>,
    /// When rules end by themselves.
    timers: Timers<(Key, bool)>,
    history: RuleHistory,
}

impl KeyRules {
    /// Returns the rule of a key.
    pub(crate) fn of(&self, key: &str) -> Option<&Arc<KeyRule>> {
        self.exact.get(key).or_else(|| {
            let mut names = std::iter::successors(Some(key), |name| Some(name.split_once('.')?.1));
            names.find_map(|name| self.below.get(name))
        })
    }

    /// Returns the rule with this name.
    pub(crate) fn named(&self, name: &str, below: bool) -> Option<&Arc<KeyRule>> {
        if below { self.below.get(name) } else { self.exact.get(name) }
    }

    /// Returns all rules, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &KeyRule> {
        self.exact.values().chain(self.below.values()).map(|rule| &**rule)
    }

    /// Counts the rules.
    pub(crate) fn len(&self) -> usize {
        self.exact.len() + self.below.len()
    }

    /// Returns what is remembered of rules that may have ended.
    pub(crate) fn history(&self) -> RuleHistory {
        self.history
    }

    /// Restores this.
    pub(crate) fn restore_history(&mut self, history: RuleHistory) {
        self.history = history;
    }

    /// Gives a key its rule.
    pub(super) fn assign(&self, queue: &mut KeyQueue) {
        let rule = self.of(queue.name()).cloned();
        let rest_until = rule.as_deref().map_or(Moment(0), |rule| self.rest_until(rule));
        queue.set_rule(rule, rest_until);
    }

    /// Returns until when a key with this rule rests at least: after a reboot it may not be known
    /// that the key had a request.
    fn rest_until(&self, rule: &KeyRule) -> Moment {
        let RuleHistory { reboot_at, last_at_reboot, .. } = self.history;
        let delay_ms = rule.delay_ms.filter(|ms| *ms > 0 && rule.number <= last_at_reboot);
        delay_ms.map_or(Moment(0), |ms| reboot_at + ms + CLOCK_GRAIN_MS)
    }

    /// The machine was restarted.
    pub(super) fn note_reboot(&mut self, now: Moment) {
        self.history.reboot_at = now;
        self.history.last_at_reboot = self.history.last_number;
    }

    /// Returns when the next rule ends by itself.
    pub(crate) fn next_end(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Returns the name of the next rule that ends at `now`.
    pub(crate) fn pop_end(&mut self, now: Moment) -> Option<(Key, bool)> {
        self.timers.pop(now)
    }

    /// Returns the ends of rules, the earliest first.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> impl Iterator<Item = &(Moment, (Key, bool))> {
        self.timers.iter()
    }

    /// Adds a rule, or replaces the one with its name.
    pub(super) fn set(&mut self, rule: KeyRule) {
        let frees = !rule.block && self.iter().any(|rule| rule.block);
        self.history.lifted += u64::from(frees);
        self.history.last_number = self.history.last_number.max(rule.number);
        self.take(&rule.name, rule.below);
        if let Some(until) = rule.until {
            self.timers.set(until, (rule.name.clone(), rule.below));
        }
        self.rules_mut(rule.below).insert(rule.name.clone(), Arc::new(rule));
    }

    /// Removes a rule.
    pub(super) fn remove(&mut self, name: &str, below: bool) {
        let frees = self.take(name, below).is_some_and(|rule| rule.block);
        self.history.lifted += u64::from(frees);
    }

    fn take(&mut self, name: &str, below: bool) -> Option<Arc<KeyRule>> {
        let rule = self.rules_mut(below).remove(name)?;
        if let Some(until) = rule.until {
            self.timers.cancel(until, (rule.name.clone(), below));
        }
        Some(rule)
    }

    fn rules_mut(&mut self, below: bool) -> &mut BTreeMap<Key, Arc<KeyRule>> {
        if below { &mut self.below } else { &mut self.exact }
    }
}

/// The rules of keys.
impl Frontier {
    /// Returns the rules of an operator.
    pub(crate) fn rules(&self) -> &KeyRules {
        self.keys.rules()
    }

    /// Sets a rule. Returns the keys that it is about, which the caller must refresh.
    pub(crate) fn set_rule(&mut self, rule: &KeyRule) -> Vec<KeyId> {
        self.keys.rules_mut().set(rule.clone());
        self.assign_rules(&rule.name, rule.below)
    }

    /// Removes a rule. Returns the keys that it was about, which the caller must refresh.
    pub(crate) fn remove_rule(&mut self, name: &str, below: bool) -> Vec<KeyId> {
        self.keys.rules_mut().remove(name, below);
        self.assign_rules(name, below)
    }

    fn assign_rules(&mut self, name: &str, below: bool) -> Vec<KeyId> {
        let keys = self.keys.matching(name, below);
        self.keys.assign_rules(&keys);
        keys
    }

    /// Returns the name of the next rule that ends at `now`.
    pub(crate) fn pop_rule_end(&mut self, now: Moment) -> Option<(Key, bool)> {
        self.keys.rules_mut().pop_end(now)
    }

    /// Restores what is remembered of rules.
    pub(crate) fn restore_rule_history(&mut self, history: RuleHistory) {
        self.keys.rules_mut().restore_history(history);
    }

    /// The machine was restarted: the ends of the last requests are not known reliably.
    pub(crate) fn note_reboot(&mut self, now: Moment) {
        self.keys.rules_mut().note_reboot(now);
    }

    /// Reports whether a rule blocks the key of an active entry, or that of its next request.
    pub(crate) fn is_blocked(&self, id: EntryId) -> bool {
        let live = self.get(id);
        let mut keys = [Some(live.key), live.again_key].into_iter().flatten();
        keys.any(|key| self.keys[key].is_blocked())
    }
}
