//! Lists of rules (`GROUP rules`).

use tidings_protocol::ListRange;
use tidings_protocol::status::{Answer, ListedRule};

use super::View;
use crate::moment::Moment;

impl View<'_> {
    /// Lists the rules of the operator, or a part of them, in the order in which they were set.
    pub(crate) fn list_rules(&self, range: ListRange, now: Moment) -> Answer {
        let mut rules: Vec<_> = self.state.frontier().rules().iter().collect();
        rules.sort_unstable_by_key(|rule| rule.number);
        let matched = range.after.is_none().then_some(rules.len());
        let numbered = rules.into_iter().map(|rule| (rule.number, rule));
        let rest = numbered.skip_while(|(number, _)| *number <= range.after.unwrap_or(0));
        let (rules, next) = self.walk(rest, range.limit, |_| 1, |_| true);
        let lines = rules
            .into_iter()
            .map(|rule| ListedRule { key: rule.pattern(), fields: rule.fields(now) });
        self.list(lines, matched, next)
    }
}
