//! The members (workers) of a group: their connections, credit and held entries.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use tidings_protocol::MemberId;

use crate::entry::EntryId;
use crate::mutants::{self, Mutant};
use crate::requester::ConnId;

/// One worker. Leases belong to the worker, not to its connection.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Its current connection.
    conn: Option<ConnId>,
    /// Earlier connections that have not ended, with their credits.
    previous: Vec<(ConnId, u32)>,
    /// Number of entries that it may hold at once; 0 drains it.
    credit: u32,
    /// A lease of it expired and it has sent nothing since. It may hang, and would lose further
    /// tasks, too.
    silent: bool,
    held: HashSet<EntryId>,
    /// How many of the held entries are suspects: at most one.
    suspects: u32,
}

impl Member {
    /// Returns its current connection.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    /// Counts the entries that it holds.
    pub(crate) fn load(&self) -> usize {
        self.held.len()
    }

    /// Returns the ids of the entries that it holds, sorted.
    pub(crate) fn held(&self) -> Vec<EntryId> {
        let mut held: Vec<EntryId> = self.held.iter().copied().collect();
        held.sort_unstable();
        held
    }

    fn has_credit(&self) -> bool {
        self.conn.is_some()
            && !self.silent
            && self.held.len() < self.credit as usize + usize::from(mutants::is(Mutant::OverCredit))
    }
}

/// All members, and those with free credit by load.
#[derive(Debug, Default)]
pub(crate) struct Members {
    by_id: BTreeMap<MemberId, Member>,
    /// Members with free credit, least loaded first.
    with_credit: BTreeSet<(usize, MemberId)>,
}

/// A key stays with the member that served it last, until that member holds more than this many
/// times the entries of the least loaded one, plus some slack for small numbers.
const LOAD_FACTOR: usize = 2;
const LOAD_SLACK: usize = 8;

impl Members {
    /// Returns a member by its id.
    pub(crate) fn find(&self, id: MemberId) -> Option<&Member> {
        self.by_id.get(&id)
    }

    /// Iterates over all members in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.by_id.iter().map(|(id, member)| (*id, member))
    }

    /// Connects a member, with its credit. Its previous connection is kept until it ends, because
    /// it may outlive the new one.
    pub(super) fn join(&mut self, id: MemberId, conn: ConnId, credit: u32) {
        self.update(id, |member| {
            member.previous.retain(|(earlier, _)| *earlier != conn);
            if let Some(before) = member.conn.filter(|before| *before != conn) {
                member.previous.push((before, member.credit));
            }
            member.conn = Some(conn);
            member.credit = credit;
        });
    }

    /// Removes a connection. Returns the member if this was its current connection. The member
    /// keeps its entries until their leases end, unless it has another connection.
    pub(super) fn disconnect(&mut self, conn: ConnId) -> Option<MemberId> {
        let has = |member: &Member| member.previous.iter().any(|(earlier, _)| *earlier == conn);
        let known = |member: &Member| member.conn == Some(conn) || has(member);
        let id = self.iter().find(|(_, member)| known(member))?.0;
        let mut was_current = false;
        self.update(id, |member| {
            was_current = member.conn == Some(conn);
            member.previous.retain(|(earlier, _)| *earlier != conn);
            if was_current {
                let before = member.previous.pop();
                member.conn = before.map(|(conn, _)| conn);
                member.credit = before.map_or(0, |(_, credit)| credit);
            }
        });
        was_current.then_some(id)
    }

    /// Marks a member after one of its leases expired. It receives no task until it sends
    /// something.
    pub(super) fn mark_silent(&mut self, id: MemberId) {
        self.update(id, |member| member.silent = true);
    }

    /// Records that a member sent something.
    pub(super) fn mark_active(&mut self, id: MemberId) {
        if self.by_id.get(&id).is_some_and(|member| member.silent) {
            self.update(id, |member| member.silent = false);
        }
    }

    /// Records that the member on a connection sent something.
    pub(super) fn mark_active_on(&mut self, conn: ConnId) {
        if let Some(id) = self.member_on(conn) {
            self.mark_active(id);
        }
    }

    /// Adds a lease to a member.
    pub(super) fn add_lease(&mut self, id: MemberId, entry: EntryId, suspect: bool) {
        self.update(id, |member| {
            member.held.insert(entry);
            member.suspects += u32::from(suspect);
        });
    }

    /// Removes a lease from a member. `suspect` must be as in `add_lease`.
    pub(super) fn end_lease(&mut self, id: MemberId, entry: EntryId, suspect: bool) {
        self.update(id, |member| {
            if member.held.remove(&entry) {
                member.suspects -= u32::from(suspect);
            }
        });
    }

    /// Reports whether it can receive tasks, now or after it has answered some.
    pub(crate) fn takes_tasks(&self, id: MemberId) -> bool {
        let takes = |member: &Member| member.conn.is_some() && member.credit > 0 && !member.silent;
        self.by_id.get(&id).is_some_and(takes)
    }

    /// Reports whether it is connected and has free credit, for a suspect or for another entry.
    pub(crate) fn has_credit(&self, id: MemberId, suspect: bool) -> bool {
        let fits = |member: &Member| member.has_credit() && !(suspect && member.suspects > 0);
        self.by_id.get(&id).is_some_and(fits)
    }

    /// Reports whether any member has free credit, for a suspect or for another entry.
    pub(crate) fn any_has_credit(&self, suspect: bool) -> bool {
        self.candidates(suspect).next().is_some()
    }

    /// Returns the number of entries that the members may receive now.
    pub(crate) fn free_credit(&self) -> usize {
        let free = self.with_credit.iter().map(|(load, id)| {
            let credit = self.by_id.get(id).map_or(0, |member| member.credit as usize);
            credit.saturating_sub(*load)
        });
        free.sum()
    }

    /// Chooses the member for a key's next task: the one that served it last, unless it is clearly
    /// more loaded than the least loaded one.
    pub(crate) fn choose(&self, last: Option<MemberId>, suspect: bool) -> Option<MemberId> {
        let (load_min, idlest) = self.candidates(suspect).next()?;
        let keeps = |id: &MemberId| {
            let load = self.by_id.get(id).map_or(0, Member::load);
            self.has_credit(*id, suspect) && load <= LOAD_FACTOR * load_min + LOAD_SLACK
        };
        Some(last.filter(keeps).unwrap_or(idlest))
    }

    fn member_on(&self, conn: ConnId) -> Option<MemberId> {
        self.iter().find(|(_, member)| member.conn == Some(conn)).map(|(id, _)| id)
    }

    /// Members with free credit and their loads, least loaded first. Suspects are rare, so few
    /// members are skipped.
    fn candidates(&self, suspect: bool) -> impl Iterator<Item = (usize, MemberId)> {
        let fits = move |id: &MemberId| !suspect || self.has_credit(*id, suspect);
        self.with_credit.iter().copied().filter(move |(_, id)| fits(id))
    }

    /// Changes a member and updates the order by load. Removes it if it is not connected and holds
    /// nothing.
    fn update(&mut self, id: MemberId, change: impl FnOnce(&mut Member)) {
        let member = self.by_id.entry(id).or_default();
        self.with_credit.remove(&(member.load(), id));
        change(member);
        if member.has_credit() {
            self.with_credit.insert((member.load(), id));
        } else if member.conn.is_none() && member.held.is_empty() {
            self.by_id.remove(&id);
        }
    }
}
