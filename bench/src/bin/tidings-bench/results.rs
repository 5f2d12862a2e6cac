//! The results of all rounds of a work, and their table.

use std::collections::BTreeMap;

use anyhow::Result;
use tidings_load::Figure;

use crate::programs::{Program, name};

/// The rounds of one work.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The figures of each program. A program that failed in a round has none.
    rounds: Vec<BTreeMap<Program, Vec<Figure>>>,
    /// Why programs failed.
    failures: Vec<String>,
}

impl Results {
    /// Begins a round. Results that are added from now on belong to it.
    pub(crate) fn begin_round(&mut self) {
        self.rounds.push(BTreeMap::new());
    }

    /// Adds the result of a program in this round.
    pub(crate) fn add(&mut self, program: Program, figures: Result<Vec<Figure>>) {
        let round = self.rounds.last_mut().expect("a round has begun");
        match figures {
            Ok(figures) => drop(round.insert(program, figures)),
            Err(error) => self.failures.push(format!("- {} failed: {error:#}", name(program))),
        }
    }

    /// One row for each figure and one column for each program. Ratios are taken round by round,
    /// since a disturbance in a round affects both.
    pub(crate) fn table(&self, programs: &[Program]) -> Vec<String> {
        let mut figures: Vec<&Figure> = Vec::new();
        for figure in self.rounds.iter().flat_map(BTreeMap::values).flatten() {
            if figures.iter().all(|other| other.key != figure.key) {
                figures.push(figure);
            }
        }
        let names: Vec<_> = programs.iter().copied().map(name).collect();
        let mut lines = vec![
            format!("| figure | {} |", names.join(" | ")),
            format!("|---|{}", "---|".repeat(programs.len())),
        ];
        lines.extend(figures.iter().map(|figure| {
            let cells: Vec<_> =
                programs.iter().map(|program| self.cell(figure, *program)).collect();
            format!("| {} | {} |", figure.label, cells.join(" | "))
        }));
        if !self.failures.is_empty() {
            lines.push(String::new());
            lines.extend(self.failures.iter().cloned());
        }
        lines
    }

    /// The median of a program. For Tidings also the range; for others the ratio of Tidings to it, and
    /// the range of that: `6,590,000 (5.43, 5.10 to 5.90)`.
    fn cell(&self, figure: &Figure, program: Program) -> String {
        let value = |round: &BTreeMap<Program, Vec<Figure>>, program| {
            let figures: &Vec<Figure> = round.get(&program)?;
            figures.iter().find(|other| other.key == figure.key)?.median()
        };
        let values = self.rounds.iter().filter_map(|round| value(round, program));
        let values = Figure { runs: values.collect(), ..figure.clone() };
        let ratio = |round| {
            let theirs = value(round, program).filter(|theirs| *theirs > 0.0)?;
            Some(value(round, Program::Tidings)? / theirs)
        };
        let ratios = Figure::new("", "", 2).with_runs(self.rounds.iter().filter_map(ratio));
        let Some(median) = values.median().map(|median| figure.format(median)) else {
            return "-".to_owned();
        };
        let is_ours = program == Program::Tidings;
        let shown = if is_ours { values } else { ratios };
        let ratio = shown.median().filter(|_| !is_ours).map(|ratio| shown.format(ratio));
        let range = shown.range().filter(|_| shown.runs.len() > 1);
        let range =
            range.map(|(low, high)| format!("{} to {}", shown.format(low), shown.format(high)));
        let details: Vec<_> = ratio.into_iter().chain(range).collect();
        if details.is_empty() { median } else { format!("{median} ({})", details.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let rate = |value| Ok(vec![Figure::new("rate", "events/s", 0).with_runs([value])]);
        let mut results = Results::default();
        // The second round was disturbed, for both, and the peer failed in the last one.
        for (ours, theirs) in
            [(8000.0, rate(2000.0)), (3000.0, rate(1000.0)), (9000.0, rate(2000.0))]
        {
            results.begin_round();
            results.add(Program::Tidings, rate(ours));
            results.add(Program::Nats, theirs);
        }
        results.begin_round();
        results.add(Program::Tidings, rate(1000.0));
        results.add(Program::Nats, Err(anyhow::anyhow!("gone")));
        let table = results.table(&[Program::Tidings, Program::Nats, Program::Relay]);
        let expected = [
            "| figure | tidings | nats | relay |",
            "|---|---|---|---|",
            "| events/s | 3,000 (1,000 to 9,000) | 2,000 (4.00, 3.00 to 4.50) | - |",
            "",
            "- nats failed: gone",
        ];
        assert_eq!(table, expected);
    }
}
