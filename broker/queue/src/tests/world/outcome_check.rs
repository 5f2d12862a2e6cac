//! Checks that the final outcome of each URL is announced once.

use std::collections::{BTreeMap, BTreeSet};

use tidings_protocol::{Outcome, Payload};

use super::pass_check::PassCheck;
use super::promises::{BrokenPromise, CheckResult, Promise};
use crate::entry::EntryId;

/// What workers have answered, and what was announced.
#[derive(Debug, Default)]
pub(super) struct OutcomeCheck {
    /// Outcomes that are not announced yet.
    owed: BTreeMap<EntryId, Outcome>,
    /// Announced outcomes of workers.
    told: BTreeMap<EntryId, Outcome>,
    /// Entries that ended as out of scope, although neither a worker nor a change of the job said
    /// it.
    unexplained: BTreeSet<EntryId>,
    /// Dead letters of a URL, less the announcements that it was given up.
    given_up: BTreeMap<String, i32>,
}

impl OutcomeCheck {
    /// A worker's outcome of an entry is safe.
    pub(super) fn answered(&mut self, entry: EntryId, outcome: Outcome) -> CheckResult {
        self.unexplained.remove(&entry);
        if let Some(told) = self.told.get(&entry) {
            return Promise::OutcomesTold
                .holds(*told == outcome, || format!("{entry} is {outcome}, and not {told}"));
        }
        self.owed.insert(entry, outcome);
        Ok(())
    }

    /// There is a dead letter of a URL.
    pub(super) fn dead_letter(&mut self, url: &str) {
        *self.given_up.entry(url.to_owned()).or_default() += 1;
    }

    /// An outcome was announced. Returns the entry.
    pub(super) fn announced(
        &mut self,
        payload: &str,
        passes: &PassCheck,
    ) -> Result<EntryId, BrokenPromise> {
        let event = Payload::parse(payload);
        let page = event.attribute("page").expect("the event names the page");
        let (_, entry) = page.rsplit_once('.').expect("the number of an entry ends the name");
        let entry: EntryId = entry.parse().expect("it is a number");
        if event.attribute("gave-up").is_some() {
            let url = event.target().expect("the event begins with a URL");
            *self.given_up.entry(url.to_owned()).or_default() -= 1;
            return Ok(entry);
        }
        let outcome = event.attribute("outcome").and_then(Outcome::from_word);
        let outcome = outcome.expect("the event says how the page ended");
        let owed = self.owed.remove(&entry);
        let pass = event.attribute("in-job").and_then(|name| passes.find(name));
        let url = event.target().expect("the event begins with a URL");
        let is_explained = owed.is_some() || pass.is_some_and(|pass| pass.may_drop(url));
        if outcome == Outcome::Scope && !is_explained {
            self.unexplained.insert(entry);
        }
        let owed = owed.is_none_or(|owed| owed == outcome);
        Promise::OutcomesTold.holds(owed, || format!("{payload}: another outcome"))?;
        let is_first = self.told.insert(entry, outcome).is_none();
        Promise::OutcomesTold.holds(is_first, || format!("{payload}: announced twice"))?;
        Ok(entry)
    }

    /// Checks that everything was announced.
    pub(super) fn check_end(&self) -> CheckResult {
        Promise::OutcomesTold
            .holds(self.owed.is_empty(), || format!("never announced: {:?}", self.owed))?;
        let unexplained = &self.unexplained;
        Promise::ChangesKept
            .holds(unexplained.is_empty(), || format!("excluded by nothing: {unexplained:?}"))?;
        let differ: Vec<_> = self.given_up.iter().filter(|(_, count)| **count != 0).collect();
        Promise::OutcomesTold
            .holds(differ.is_empty(), || format!("dead letters less announcements: {differ:?}"))
    }
}
