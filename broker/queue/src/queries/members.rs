//! Lists of members (`GROUP members`).

use tidings_protocol::status::{Answer, ListedMember};

use crate::Group;

impl Group {
    /// Lists the members that are connected or hold entries, then those that are only drained.
    pub(crate) fn list_members(&self, limit: usize) -> Answer {
        let mut members: Vec<_> = self.leases.members().iter().collect();
        members.sort_by_key(|(_, member)| !member.is_present());
        let lines = members
            .iter()
            .take(limit)
            .map(|(id, member)| ListedMember { member: id.short(), fields: member.status() });
        self.list(lines, members.len())
    }
}
