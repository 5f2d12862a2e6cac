//! The rules that the operator sets and removes, and which of them may be in force. [`HostCheck`]
//! checks them.
//!
//! [`HostCheck`]: super::host_check::HostCheck

use std::collections::BTreeMap;

use tidings_protocol::status::Answer;
use tidings_protocol::{Code, ProtocolError, RuleSettings};

use super::World;
use super::commands::CommandOrigin;
use super::operator::operator;
use super::promises::CheckResult;
use crate::entry::EntryId;
use crate::moment::Moment;
use crate::tests::site::{HOSTS, LONELY_HOSTS, host_number, host_of, page};
use crate::{Input, Operation};

const DELAYS_MS: [u64; 4] = [0, 300, 2000, 4000];
/// Longest `for=`.
const FOR_MS_MAX: u64 = 60_000;

/// All rules of the operator.
#[derive(Debug, Default)]
pub(super) struct RuleCheck {
    by_key: BTreeMap<String, KeyRules>,
    commands: u64,
    /// Pages with a next request on this host.
    elsewhere: BTreeMap<EntryId, (String, u64)>,
}

/// The possible rules of a key; one of them is in force. `None`: the key has no rule.
#[derive(Debug)]
struct KeyRules {
    possible: Vec<Option<RuleSettings>>,
    /// The newest command, and whether its sender waits for the answer.
    command: u64,
    waits: bool,
    /// When the newest rule may end by itself.
    ends: Option<Moment>,
}

/// The keys of rules about a host.
fn keys_of(host: &str) -> [String; 3] {
    [host.to_owned(), format!("*.{host}"), "*.org".to_owned()]
}

/// The hosts that a rule with this key is about.
fn hosts_of(key: &str) -> impl Iterator<Item = u64> {
    (0..HOSTS + LONELY_HOSTS).filter(move |host| keys_of(&name_of(*host)).contains(&key.to_owned()))
}

fn name_of(host: u64) -> String {
    host_of(&page(host, 0))
}

fn holds(rule: &RuleSettings) -> bool {
    rule.block || rule.pause
}

impl RuleCheck {
    /// The rules of the keys of a host, in the order in which they count.
    fn about(&self, host: &str) -> impl Iterator<Item = &KeyRules> {
        let is_below = |key: &str| key.strip_prefix("*.") == Some(host);
        let below = self.by_key.iter().find(|(key, _)| is_below(key)).map(|(_, rules)| rules);
        [self.by_key.get(host), below, self.by_key.get("*.org")].into_iter().flatten()
    }

    /// The possible rules of a host; one of them is in force.
    fn possible(&self, host: &str, now: Moment) -> Vec<Option<&RuleSettings>> {
        let mut possible = Vec::new();
        for rules in self.about(host) {
            possible.extend(rules.possible.iter().flatten().map(Some));
            let has_ended = rules.ends.is_some_and(|ends| ends <= now);
            if !has_ended && !rules.possible.contains(&None) {
                return possible;
            }
        }
        possible.push(None);
        possible
    }

    /// Whether a rule certainly allows no request to a host.
    pub(super) fn surely_holds(&self, host: &str, now: Moment) -> bool {
        self.possible(host, now).iter().all(|rule| rule.is_some_and(holds))
    }

    /// Whether certainly no rule forbids a request to a host.
    pub(super) fn surely_allows(&self, host: &str, now: Moment) -> bool {
        !self.possible(host, now).iter().any(|rule| rule.is_some_and(holds))
    }

    /// The least and the greatest delay of a host that may be in force.
    pub(super) fn delays(&self, host: &str, of_group: u64, now: Moment) -> (u64, u64) {
        let delay = |rule: Option<&RuleSettings>| rule?.delay_ms;
        self.range(host, now, |rule| delay(rule).unwrap_or(of_group))
    }

    /// The same for the requests in flight.
    pub(super) fn parallels(&self, host: &str, of_group: u32, now: Moment) -> (u32, u32) {
        let parallel = |rule: Option<&RuleSettings>| rule?.parallel;
        self.range(host, now, |rule| parallel(rule).unwrap_or(of_group))
    }

    /// The least and the greatest value of the possible rules of a host.
    fn range<T: Ord + Copy>(
        &self,
        host: &str,
        now: Moment,
        value: impl Fn(Option<&RuleSettings>) -> T,
    ) -> (T, T) {
        let mut values: Vec<T> = self.possible(host, now).into_iter().map(value).collect();
        values.sort_unstable();
        (values[0], values[values.len() - 1])
    }

    /// Whether a rule of this kind about a host may be in force, or hidden by another one.
    fn may_be(&self, host: u64, kind: impl Fn(&RuleSettings) -> bool) -> bool {
        let name = name_of(host);
        self.about(&name).any(|rules| rules.possible.iter().flatten().any(&kind))
    }

    /// Whether there may be a rule about a host.
    pub(super) fn may_rule(&self, host: u64) -> bool {
        self.may_be(host, |_| true)
    }

    /// Whether a rule may allow no request to a host.
    pub(super) fn may_hold(&self, host: u64) -> bool {
        self.may_be(host, holds)
    }

    /// Whether a host may be blocked.
    pub(super) fn may_block(&self, host: u64) -> bool {
        self.may_be(host, |rule| rule.block)
    }

    /// The hosts that may be blocked.
    pub(super) fn blocked(&self) -> impl Iterator<Item = u64> {
        (0..HOSTS + LONELY_HOSTS).filter(|host| self.may_block(*host))
    }

    /// A command sets or removes the rule of a key. Until it is answered, the earlier rule may be
    /// in force. Returns the number of the command.
    fn begin(&mut self, key: &str, rule: Option<RuleSettings>, now: Moment) -> u64 {
        self.commands += 1;
        let new = || KeyRules { possible: vec![None], command: 0, waits: false, ends: None };
        let rules = self.by_key.entry(key.to_owned()).or_insert_with(new);
        if rules.ends.is_some() && !rules.possible.contains(&None) {
            rules.possible.push(None);
        }
        rules.ends = rule.as_ref().and_then(|rule| rule.for_ms).map(|ms| now + ms);
        rules.possible.push(rule);
        (rules.command, rules.waits) = (self.commands, true);
        self.commands
    }

    /// A command is answered: its rule is in force. Returns false for an earlier command.
    fn end(&mut self, key: &str, command: u64) -> bool {
        let newest = self.by_key.get_mut(key).filter(|rules| rules.command == command);
        let Some(rules) = newest else { return false };
        rules.waits = false;
        rules.possible.drain(..rules.possible.len() - 1);
        if rules.possible == [None] {
            self.by_key.remove(key);
        }
        true
    }

    /// The broker has crashed: commands without an answer get none, unless they are repeated.
    pub(super) fn lose_answers(&mut self) {
        self.by_key.values_mut().for_each(|rules| rules.waits = false);
    }

    /// Because of a reboot, it is not known when rules end by themselves.
    pub(super) fn forget_times(&mut self, now: Moment) {
        let ends = self.by_key.values_mut().filter_map(|rules| rules.ends.as_mut());
        ends.for_each(|ends| *ends = now);
    }

    /// Whether an entry of a page may end because of a rule about its host, or about that of its
    /// next request.
    pub(super) fn may_end(&self, url: &str) -> bool {
        let mut elsewhere = self.next_hosts_of(url);
        self.may_block(host_number(url)) || elsewhere.any(|host| self.may_block(host))
    }

    /// Whether a page may wait because of a rule about the host of its next request.
    pub(super) fn may_wait(&self, url: &str) -> bool {
        self.next_hosts_of(url).any(|host| self.may_rule(host))
    }

    fn next_hosts_of(&self, url: &str) -> impl Iterator<Item = u64> {
        self.elsewhere.values().filter(move |(page, _)| page == url).map(|(_, host)| *host)
    }

    /// The pages with a next request on this host.
    fn pages_with_next_on(&self, host: u64) -> Vec<String> {
        let pages = self.elsewhere.values().filter(|(_, other)| *other == host);
        pages.map(|(url, _)| url.clone()).collect()
    }

    /// A task is given to a worker.
    pub(super) fn released(&mut self, entry: EntryId) {
        self.elsewhere.remove(&entry);
    }
}

impl World {
    /// The operator sets the rule of a key, or removes one.
    pub(super) fn change_rule(&mut self) -> CheckResult {
        let known: Vec<_> = self.hosts.rules.by_key.keys().cloned().collect();
        if self.rng.u32(0..3) > 0
            && let Some(key) = self.rng.choice(known)
        {
            return self.send_rule(&key, None);
        }
        let host = match self.hosts.any_with_parts(self.now) {
            Some(host) if self.rng.bool() => host,
            _ => name_of(self.rng.u64(0..HOSTS + LONELY_HOSTS)),
        };
        let [exact, below, all] = keys_of(&host);
        let key = match self.rng.u32(0..20) {
            0 => all,
            1..8 => below,
            _ => exact,
        };
        let mut rule = RuleSettings::default();
        match self.rng.u32(0..4) {
            0 | 1 => rule.block = true,
            2 => rule.pause = true,
            _ => rule.delay_ms = self.rng.choice(DELAYS_MS),
        }
        let parallel = self.hosts.parallel();
        if parallel > 1 && self.rng.bool() {
            rule.parallel = Some(self.rng.u32(1..=self.nature.parallel_max));
        }
        rule.for_ms = self.rng.bool().then(|| self.rng.u64(1000..FOR_MS_MAX));
        self.send_rule(&key, Some(rule))
    }

    /// Removes all rules.
    pub(super) fn remove_rules(&mut self) -> CheckResult {
        let known: Vec<_> = self.hosts.rules.by_key.keys().cloned().collect();
        self.hosts.rules.lose_answers();
        known.iter().try_for_each(|key| self.send_rule(key, None))
    }

    /// One command at a time about each key.
    fn send_rule(&mut self, key: &str, rule: Option<RuleSettings>) -> CheckResult {
        if self.hosts.rules.by_key.get(key).is_some_and(|rules| rules.waits) {
            return Ok(());
        }
        let command = self.hosts.rules.begin(key, rule.clone(), self.now);
        self.hosts.begin_rule(hosts_of(key).map(name_of), self.now);
        for host in hosts_of(key) {
            self.priority_check.ignore_host(host);
            for url in self.hosts.rules.pages_with_next_on(host) {
                self.fairness_check.stop_waiting(None, &url);
            }
            if self.hosts.rules.may_block(host) {
                self.may_be_blocked(host);
            }
        }
        let key = key.to_owned();
        let written = key.as_str().into();
        let operation = match rule {
            Some(settings) => Operation::SetRule { key: written, settings },
            None => Operation::RemoveRule { key: written },
        };
        let origin = CommandOrigin::Rule { key, command };
        self.feed(Input::Operate { requester: operator(), operation }, origin)
    }

    /// What waits for a host may end, and what comes may be refused.
    fn may_be_blocked(&mut self, host: u64) {
        self.passes.iter_mut().for_each(|pass| _ = pass.blocked.insert(host));
        self.announcement_check.block(host);
        let scheduled = std::mem::take(&mut self.scheduled);
        let (ended, kept) = scheduled.into_iter().partition(|(url, _)| host_number(url) == host);
        self.scheduled = kept;
        let ended: BTreeMap<String, u64> = ended;
        for url in ended.keys() {
            self.publish(&format!("{url} every=0"));
        }
        for url in self.hosts.rules.pages_with_next_on(host) {
            self.excuse(&url);
        }
    }

    /// A page may end without a fetch.
    fn excuse(&mut self, url: &str) {
        self.announcement_check.given_up(url);
        let names: Vec<_> = self.passes.iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            self.passes.gave_up(&name, url);
        }
    }

    /// The group may act on the wish of a worker to request `next` for an entry.
    pub(super) fn next_request(&mut self, entry: EntryId, url: &str, next: &str) {
        let host = host_number(next);
        self.hosts.rules.elsewhere.insert(entry, (url.to_owned(), host));
        if self.hosts.rules.may_block(host) {
            self.excuse(url);
        }
    }

    /// The operator knows that a rule is in force, or has ended.
    pub(super) fn rule_is_answered(
        &mut self,
        key: &str,
        command: u64,
        answer: &Result<Answer, ProtocolError>,
    ) -> CheckResult {
        if let Err(error) = answer {
            assert_eq!(error.code, Code::NotFound, "{error}");
        }
        if !self.hosts.rules.end(key, command) {
            return Ok(());
        }
        self.totals.rules += 1;
        for host in hosts_of(key) {
            self.priority_check.rest(host, self.now);
            self.hosts.end_rule(&name_of(host), self.now);
            // A rule that had ended before may have hidden another one, which then holds the host
            // from its end on: no answer has waited for the requests that are open.
            if answer.is_ok() {
                self.hosts.check_held(&name_of(host), self.now)?;
            }
        }
        Ok(())
    }
}
