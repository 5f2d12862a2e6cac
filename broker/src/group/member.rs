//! The workers of a group: who is connected, how much each allows, and what each holds.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use tidings_protocol::MemberId;

use super::entry::EntryId;
use super::mutants::{self, Mutant};
use crate::mailbox::ConnId;

/// One worker. Leases belong to it and not to its connection.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// Where it is connected now.
    pub(super) conn: Option<ConnId>,
    /// Connections that it had before and that are not gone, with their credits.
    earlier: Vec<(ConnId, u32)>,
    /// Most tasks it holds at once; 0 drains.
    pub(super) credit: u32,
    /// A lease of it ran out and nothing was heard since: perhaps it stands still, and whatever it
    /// were given would be lost, too.
    silent: bool,
    held: HashSet<EntryId>,
    /// How many of these are suspects: at most one.
    suspects: u32,
}

impl Member {
    /// How many entries it holds.
    pub(super) fn load(&self) -> usize {
        self.held.len()
    }

    /// What it holds, by number.
    pub(super) fn held(&self) -> Vec<EntryId> {
        let mut held: Vec<EntryId> = self.held.iter().copied().collect();
        held.sort_unstable();
        held
    }

    fn has_room(&self) -> bool {
        self.conn.is_some()
            && !self.silent
            && self.held.len() < self.credit as usize + usize::from(mutants::is(Mutant::OverCredit))
    }
}

/// All workers, and those with room by load.
#[derive(Debug, Default)]
pub(super) struct Members {
    by_id: BTreeMap<MemberId, Member>,
    /// Members with room, least loaded first.
    room: BTreeSet<(usize, MemberId)>,
}

/// A member that served a key before keeps it until it holds this many times what the least loaded
/// does, and a little, so that small numbers do not count as imbalance.
const LOAD_FACTOR: usize = 2;
const LOAD_SLACK: usize = 8;

impl Members {
    /// A member by its identity.
    pub(super) fn find(&self, id: MemberId) -> Option<&Member> {
        self.by_id.get(&id)
    }

    /// Everybody, in a fixed order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.by_id.iter().map(|(id, member)| (*id, member))
    }

    /// Connects a member, with its credit. The connection that it had, if it is not gone yet, may
    /// turn out to be the one that stays.
    pub(super) fn join(&mut self, id: MemberId, conn: ConnId, credit: u32) {
        self.change(id, |member| {
            member.earlier.retain(|(earlier, _)| *earlier != conn);
            if let Some(before) = member.conn.filter(|before| *before != conn) {
                member.earlier.push((before, member.credit));
            }
            member.conn = Some(conn);
            member.credit = credit;
        });
    }

    /// A connection is gone. Returns the member that was reached by it, which keeps what it holds
    /// until the leases end, unless it is connected elsewhere.
    pub(super) fn disconnect(&mut self, conn: ConnId) -> Option<MemberId> {
        let has = |member: &Member| member.earlier.iter().any(|(earlier, _)| *earlier == conn);
        let known = |member: &Member| member.conn == Some(conn) || has(member);
        let id = self.iter().find(|(_, member)| known(member))?.0;
        let mut was_current = false;
        self.change(id, |member| {
            was_current = member.conn == Some(conn);
            member.earlier.retain(|(earlier, _)| *earlier != conn);
            if was_current {
                let before = member.earlier.pop();
                member.conn = before.map(|(conn, _)| conn);
                member.credit = before.map_or(0, |(_, credit)| credit);
            }
        });
        was_current.then_some(id)
    }

    /// A lease of the member ran out: it is given nothing until it is heard from.
    pub(super) fn fell_silent(&mut self, id: MemberId) {
        self.change(id, |member| member.silent = true);
    }

    /// The member has said something.
    pub(super) fn heard(&mut self, id: MemberId) {
        if self.by_id.get(&id).is_some_and(|member| member.silent) {
            self.change(id, |member| member.silent = false);
        }
    }

    /// Whoever is connected there has said something.
    pub(super) fn heard_on(&mut self, conn: ConnId) {
        if let Some(id) = self.connected_as(conn) {
            self.heard(id);
        }
    }

    /// An entry goes to a member.
    pub(super) fn hold(&mut self, id: MemberId, entry: EntryId, suspect: bool) {
        self.change(id, |member| {
            member.held.insert(entry);
            member.suspects += u32::from(suspect);
        });
    }

    /// A member has an entry no longer. `suspect` as it was given to `hold`.
    pub(super) fn release(&mut self, id: MemberId, entry: EntryId, suspect: bool) {
        self.change(id, |member| {
            if member.held.remove(&entry) {
                member.suspects -= u32::from(suspect);
            }
        });
    }

    /// Whether it will be given anything, now or when it has credit left.
    pub(super) fn takes_tasks(&self, id: MemberId) -> bool {
        let takes = |member: &Member| member.conn.is_some() && member.credit > 0 && !member.silent;
        self.by_id.get(&id).is_some_and(takes)
    }

    /// Whether it is connected and has credit left, for a suspect or for anything else.
    pub(super) fn has_room(&self, id: MemberId, suspect: bool) -> bool {
        let fits = |member: &Member| member.has_room() && !(suspect && member.suspects > 0);
        self.by_id.get(&id).is_some_and(fits)
    }

    /// Whether anybody has credit left, for a suspect or for anything else.
    pub(super) fn any_room(&self, suspect: bool) -> bool {
        self.candidates(suspect).next().is_some()
    }

    /// Who gets a key's next task: the one that served it last, unless that one is clearly more
    /// loaded than the least loaded.
    pub(super) fn choose(&self, last: Option<MemberId>, suspect: bool) -> Option<MemberId> {
        let (load_min, idlest) = self.candidates(suspect).next()?;
        let keeps = |id: &MemberId| {
            let load = self.by_id.get(id).map_or(0, Member::load);
            self.has_room(*id, suspect) && load <= LOAD_FACTOR * load_min + LOAD_SLACK
        };
        Some(last.filter(keeps).unwrap_or(idlest))
    }

    fn connected_as(&self, conn: ConnId) -> Option<MemberId> {
        self.iter().find(|(_, member)| member.conn == Some(conn)).map(|(id, _)| id)
    }

    /// Members with room and their loads, least loaded first. Few hold a suspect, as few are in flight.
    fn candidates(&self, suspect: bool) -> impl Iterator<Item = (usize, MemberId)> {
        let fits = move |id: &MemberId| !suspect || self.has_room(*id, suspect);
        self.room.iter().copied().filter(move |(_, id)| fits(id))
    }

    /// Changes one member and keeps the orders by load true; forgets who is gone and holds nothing.
    fn change(&mut self, id: MemberId, change: impl FnOnce(&mut Member)) {
        let member = self.by_id.entry(id).or_default();
        self.room.remove(&(member.load(), id));
        change(member);
        if member.has_room() {
            self.room.insert((member.load(), id));
        } else if member.conn.is_none() && member.held.is_empty() {
            self.by_id.remove(&id);
        }
    }
}
