//! The results of all rounds, and their table.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tidings_load::command::Outcome;
use tidings_load::command::text::format_count;
use tidings_load::figure::median;

use crate::servers::ServerKind;
use crate::workloads::{
    Bound, BrokerWorkload, Column, DELIVERIES, GENERATOR, Goal, GoalBase, PEAK, Workload,
};

/// One of the programs that are compared.
pub(crate) trait Contestant: Copy + Ord {
    /// The program that the others are compared with.
    const OURS: Self;

    /// Its name in tables.
    fn name(self) -> &'static str;

    /// Whether it is an alternative to ours; limits are not.
    fn is_peer(self) -> bool;

    /// Its name on the command line.
    fn flag(self) -> String {
        self.name().replace(' ', "-").to_lowercase()
    }
}

/// If relay reaches less than this part of blast, relay is not a limit.
const RELAY_OF_BLAST: f64 = 0.8;

/// A generator that uses more than this part of a processor has measured itself.
const GENERATOR_BUSY: f64 = 0.95;

/// The rounds of one work.
#[derive(Debug)]
pub(crate) struct Results<K> {
    /// One value per round for each contestant and figure; `None` in a round that failed.
    values: BTreeMap<(K, &'static str), Vec<Option<f64>>>,
    /// Results that are not numbers, of the last round that had one.
    remarks: BTreeMap<K, String>,
    /// Why rounds failed; the last reason of each contestant.
    failures: BTreeMap<K, String>,
    rounds: usize,
}

impl<K> Default for Results<K> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            remarks: BTreeMap::new(),
            failures: BTreeMap::new(),
            rounds: 0,
        }
    }
}

impl<K: Contestant> Results<K> {
    /// Begins a round. Results that are added from now on belong to it.
    pub(crate) fn begin_round(&mut self) {
        self.rounds += 1;
    }

    /// Adds the result of a contestant in this round.
    pub(crate) fn add(&mut self, kind: K, outcome: Result<Outcome>) {
        match outcome {
            Ok(outcome) => {
                for figure in outcome.figures {
                    let values = self.values.entry((kind, figure.key)).or_default();
                    values.resize(self.rounds - 1, None);
                    values.push(figure.median());
                }
                let remarks = outcome.words.into_iter().map(|(.., remark)| (kind, remark));
                self.remarks.extend(remarks);
            }
            Err(error) => {
                self.failures.insert(kind, format!("{error:#}"));
            }
        }
    }

    fn rounds_of(&self, kind: K, key: &'static str) -> &[Option<f64>] {
        self.values.get(&(kind, key)).map_or(&[], Vec::as_slice)
    }

    fn median(&self, kind: K, key: &'static str) -> Option<f64> {
        let values: Vec<_> = self.rounds_of(kind, key).iter().flatten().copied().collect();
        median(&values)
    }

    /// The median of the ratios of rounds, since a disturbance in a round affects both.
    fn ratio(&self, goal: &Goal<K>, contestants: &[K]) -> Option<f64> {
        let ours = self.rounds_of(K::OURS, goal.key);
        let peer = match goal.base {
            GoalBase::Absolute => return self.median(K::OURS, goal.key),
            GoalBase::Server(kind) => kind,
            GoalBase::BestPeer => self.best_peer(goal, contestants)?,
        };
        let theirs = self.rounds_of(peer, goal.key);
        let paired =
            ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?));
        median(&paired.collect::<Vec<_>>())
    }

    fn best_peer(&self, goal: &Goal<K>, contestants: &[K]) -> Option<K> {
        let peers = contestants.iter().copied().filter(|kind| kind.is_peer());
        let rated = peers.filter_map(|kind| Some((kind, self.median(kind, goal.key)?)));
        let best = match goal.bound {
            Bound::AtLeast(_) => rated.max_by(|a, b| a.1.total_cmp(&b.1)),
            Bound::AtMost(_) => rated.min_by(|a, b| a.1.total_cmp(&b.1)),
        };
        best.map(|(kind, _)| kind)
    }

    /// The row of the table.
    pub(crate) fn row<L>(&self, row: &Workload<K, L>) -> String {
        let cell =
            |kind: K| Some(format!("{} {}", kind.name(), self.format_columns(kind, row.columns)?));
        let ours = self.format_columns(K::OURS, row.columns).unwrap_or_else(|| "-".to_owned());
        let others = row.contestants.iter().copied().filter(|kind| *kind != K::OURS);
        let others: Vec<_> = others.filter_map(cell).collect();
        let format = |goal| self.format_goal(goal, row.contestants);
        let goals: Vec<_> = row.goals.iter().map(format).collect();
        format!("| {} | {ours} | {} | {} |", row.title, others.join(", "), goals.join("; "))
    }

    /// `12.34 M (56 us)`: the figures of a contestant, all but the first one in brackets.
    fn format_columns(&self, kind: K, columns: &[Column]) -> Option<String> {
        let number = |column: &Column| {
            let value = self.median(kind, column.key)?;
            let value = if column.is_in_millions { value / 1e6 } else { value };
            Some(format!("{}{}", format_thousands(value, column.digits), column.unit))
        };
        let mut numbers = columns.iter().filter_map(number);
        let first = numbers.next()?;
        let mut rest: Vec<_> = numbers.collect();
        rest.extend(self.remarks.get(&kind).cloned());
        Some(if rest.is_empty() { first } else { format!("{first} ({})", rest.join(", ")) })
    }

    /// Whether a goal is met, and the ratio.
    fn format_goal(&self, goal: &Goal<K>, contestants: &[K]) -> String {
        let name = match goal.base {
            GoalBase::Server(kind) => kind.name(),
            GoalBase::BestPeer => "the best peer",
            GoalBase::Absolute => "",
        };
        let Some(ratio) = self.ratio(goal, contestants) else { return "not measured".to_owned() };
        let (sign, bound, is_met) = match goal.bound {
            Bound::AtLeast(bound) => (">=", bound, ratio >= bound),
            Bound::AtMost(bound) => ("<=", bound, ratio <= bound),
        };
        let times = if name.is_empty() { "" } else { " x " };
        let verdict = if is_met { "yes" } else { "**no**" };
        let digits = if ratio >= 1000.0 { 0 } else { 2 };
        let space = if goal.name.is_empty() { "" } else { " " };
        format!(
            "{}{space}{sign} {}{times}{name}: {verdict}, {}",
            goal.name,
            if bound >= 1000.0 { format_thousands(bound, 0) } else { bound.to_string() },
            format_thousands(ratio, digits)
        )
    }

    /// Per contestant with failures: the number of failed rounds, and why.
    pub(crate) fn failures(&self, work: &str) -> Vec<String> {
        let failed = |(kind, reason): (&K, &String)| {
            let values = self.values.iter().filter(|((k, _), _)| k == kind);
            let successes = values.map(|(_, values)| values.iter().flatten().count()).max();
            format!(
                "{work}: {} failed in {} of {} rounds: {reason}",
                kind.name(),
                self.rounds - successes.unwrap_or(0),
                self.rounds
            )
        };
        self.failures.iter().map(failed).collect()
    }

    /// Peak memory of each contestant.
    pub(crate) fn peaks(&self) -> impl Iterator<Item = (K, f64)> {
        self.values.iter().filter(|((_, key), _)| *key == PEAK).filter_map(|((kind, _), values)| {
            Some((*kind, values.iter().flatten().copied().max_by(f64::total_cmp)?))
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut servers = Map::new();
        for ((kind, key), values) in &self.values {
            let server = servers.entry(kind.name()).or_insert_with(|| json!({}));
            server[*key] = json!(values);
        }
        for (kind, remark) in &self.remarks {
            servers[kind.name()]["end"] = json!(remark);
        }
        Value::Object(servers)
    }
}

impl Results<ServerKind> {
    /// Notes about the row.
    pub(crate) fn notes(&self, work: &BrokerWorkload) -> Vec<String> {
        let mut notes = Vec::new();
        let relay = self.median(ServerKind::Relay, DELIVERIES);
        if let (Some(relay), Some(blast)) = (relay, self.median(ServerKind::Blast, DELIVERIES)) {
            let part = relay / blast;
            if part < RELAY_OF_BLAST {
                notes.push(format!(
                    "{}: void, relay reached only {part:.2} of blast ({:.2} M)",
                    work.name,
                    blast / 1e6
                ));
            }
        }
        let is_busy = |kind: &&ServerKind| {
            self.median(**kind, GENERATOR).is_some_and(|processors| processors > GENERATOR_BUSY)
        };
        notes.extend(work.contestants.iter().filter(is_busy).map(|kind| {
            format!("{}: with {} the generator was the limit", work.name, kind.name())
        }));
        notes.extend(self.failures(work.name));
        notes
    }
}

/// Formats a number with commas between thousands.
fn format_thousands(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign = if value < 0.0 { "-" } else { "" };
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), format_count);
    format!("{sign}{whole}{rest}")
}

#[cfg(test)]
mod tests {
    use tidings_load::Figure;

    use super::*;

    fn rate(value: f64) -> Outcome {
        vec![Figure::new(DELIVERIES, "", 0).with_runs([value])].into()
    }

    fn goal(base: GoalBase<ServerKind>) -> Goal<ServerKind> {
        Goal { name: "", key: DELIVERIES, base, bound: Bound::AtLeast(3.0) }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut results = Results::default();
        // The second round was disturbed, for both.
        for (ours, theirs) in [(8.0, 2.0), (4.0, 1.0), (9.0, 2.0)] {
            results.begin_round();
            results.add(ServerKind::Tidings, Ok(rate(ours)));
            results.add(ServerKind::Nats, Ok(rate(theirs)));
        }
        let servers = [ServerKind::Tidings, ServerKind::Nats];
        let shown = results.format_goal(&goal(GoalBase::Server(ServerKind::Nats)), &servers);
        assert_eq!(shown, ">= 3 x NATS: yes, 4.00");
        assert_eq!(results.best_peer(&goal(GoalBase::BestPeer), &servers), Some(ServerKind::Nats));
    }

    #[test]
    fn the_best_time_is_the_lowest() {
        let mut results = Results::default();
        results.begin_round();
        for (kind, value) in
            [(ServerKind::Nats, 4.0), (ServerKind::Redis, 2.0), (ServerKind::Relay, 1.0)]
        {
            results.add(kind, Ok(rate(value)));
        }
        let at_most = Goal { bound: Bound::AtMost(1.0), ..goal(GoalBase::BestPeer) };
        let servers = [ServerKind::Nats, ServerKind::Redis, ServerKind::Relay];
        assert_eq!(results.best_peer(&at_most, &servers), Some(ServerKind::Redis));
        assert_eq!(results.best_peer(&goal(GoalBase::BestPeer), &servers), Some(ServerKind::Nats));
    }

    #[test]
    fn a_round_that_failed_does_not_shift_the_others() {
        let mut results = Results::default();
        results.begin_round();
        results.add(ServerKind::Tidings, Ok(rate(8.0)));
        results.add(ServerKind::Nats, Err(anyhow::anyhow!("gone")));
        results.begin_round();
        results.add(ServerKind::Tidings, Ok(rate(2.0)));
        results.add(ServerKind::Nats, Ok(rate(1.0)));
        let servers = [ServerKind::Tidings, ServerKind::Nats];
        let shown = results.format_goal(&goal(GoalBase::Server(ServerKind::Nats)), &servers);
        assert_eq!(shown, ">= 3 x NATS: **no**, 2.00");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(format_thousands(1_234_567.0, 0), "1,234,567");
        assert_eq!(format_thousands(-1_234.5, 1), "-1,234.5");
        assert_eq!(format_thousands(-123.0, 0), "-123");
        assert_eq!(format_thousands(12.345, 2), "12.35");
    }
}
