//! Lists of members (`GROUP members`).

use tidings_protocol::ListRange;
use tidings_protocol::status::{Answer, ListedMember};

use super::View;
use crate::moment::Moment;

impl View<'_> {
    /// Lists the members that are connected or hold entries, then those that are only drained; or a
    /// part of a walk over all, by their first digits.
    pub(crate) fn list_members(
        &self,
        range: ListRange,
        with_addresses: bool,
        now: Moment,
    ) -> Answer {
        let members = self.state.leases().members().iter();
        let (members, matched, next) = match range.after {
            None => {
                let mut members: Vec<_> = members.collect();
                members.sort_by_key(|(_, member)| !member.is_present());
                let matched = members.len();
                members.truncate(range.limit);
                (members, Some(matched), None)
            }
            Some(after) => {
                // 0 is before all members.
                let numbered =
                    members.map(|member| (u64::from(member.0.first_digits()) + 1, member));
                let rest = numbered.skip_while(|(number, _)| *number <= after);
                let (members, next) = self.walk(rest, range.limit, |_| 1, |_| true);
                (members, None, next)
            }
        };
        let lines = members.into_iter().map(|(id, member)| {
            let mut fields = member.status(now);
            fields.address = fields.address.filter(|_| with_addresses);
            ListedMember { member: id.short(), fields }
        });
        self.list(lines, matched, next)
    }
}
