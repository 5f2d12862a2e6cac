//! The members (workers) of a group: their connections, credit and held entries.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use tidings_protocol::status::{BrowserFields, MemberFields, MemberState};
use tidings_protocol::{DAY_MS, MemberId};

use super::LeaseEnd;
use super::recent_count::RecentCount;
use crate::entry::{Demand, EntryId};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::requester::{ClientLabel, ConnId};

/// How many entries a worker may hold at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Credit {
    /// All of them; 0 drains it.
    pub(crate) tasks: u32,
    /// Those that need a browser; `None` for a worker without one.
    pub(crate) render: Option<u32>,
}

/// A connection of a worker.
#[derive(Debug)]
pub(crate) struct MemberConn {
    pub(crate) id: ConnId,
    pub(crate) credit: Credit,
    pub(crate) label: ClientLabel,
}

/// One worker. Leases belong to the worker, not to its connection.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Its current connection.
    conn: Option<MemberConn>,
    /// Earlier connections that have not ended.
    previous: Vec<MemberConn>,
    /// An operator has drained it: it receives no task.
    drained: bool,
    /// When it lost its connection or was drained, or could connect again after a start.
    seen_at: Moment,
    /// When it connected for the first time since the group started, but not before that start, and
    /// when it sent something last.
    joined_at: Moment,
    heard_at: Moment,
    /// How its leases have ended. Not recorded.
    done: u64,
    failed: u64,
    lost: u64,
    /// Those that ended as done lately.
    recent: RecentCount,
    /// A lease of it expired and it has sent nothing since. It may hang, and would lose further
    /// tasks, too.
    silent: bool,
    /// The entries that it holds.
    held: HashSet<EntryId>,
    /// How many of the held entries are suspects: at most one.
    suspects: u32,
    /// How many of the held entries need a browser.
    rendering: u32,
}

impl Member {
    /// Returns its current connection.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.conn.as_ref().map(|conn| conn.id)
    }

    /// Reports whether an operator has drained it.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Reports whether it is connected or holds entries.
    pub(crate) fn is_present(&self) -> bool {
        self.conn.is_some() || !self.held.is_empty()
    }

    /// Returns the name that its client sent.
    pub(crate) fn name(&self) -> Option<&str> {
        self.conn.as_ref()?.label.name.as_deref()
    }

    /// What it reports about its browsers.
    pub(crate) fn browsers(&self) -> Option<&BrowserFields> {
        self.conn.as_ref().map(|conn| &conn.label.browsers)
    }

    /// What an operator should know about it.
    pub(crate) fn status(&self, now: Moment) -> MemberFields {
        let state = match self {
            Self { drained: true, held, .. } if held.is_empty() => MemberState::Drained,
            Self { drained: true, .. } => MemberState::Draining,
            Self { conn: None, .. } => MemberState::Away,
            Self { silent: true, .. } => MemberState::Silent,
            _ => MemberState::Active,
        };
        let label = self.conn.as_ref().map(|conn| conn.label.clone()).unwrap_or_default();
        MemberFields {
            state,
            credit: self.credit().tasks.into(),
            held: self.held.len() as u64,
            render: self.credit().render.map(Into::into),
            rendering: self.credit().render.map(|_| self.rendering.into()),
            done: (self.done > 0).then_some(self.done),
            failed: (self.failed > 0).then_some(self.failed),
            lost: (self.lost > 0).then_some(self.lost),
            rate: Some(self.recent.rate(now)).filter(|rate| rate.tenths > 0),
            joined_ms: self.conn.is_some().then(|| now.since(self.joined_at)),
            heard_ms: self.conn.is_some().then(|| now.since(self.heard_at)),
            browsers: label.browsers,
            name: label.name.map(Into::into),
            address: label.address.map(Into::into),
        }
    }

    fn credit(&self) -> Credit {
        self.conn.as_ref().map_or(Credit::default(), |conn| conn.credit)
    }

    /// Reports whether it can receive tasks, now or after it has answered some; with `render`,
    /// those that need a browser.
    fn takes_tasks(&self, render: bool) -> bool {
        let is_drained = self.drained && !mutants::is(Mutant::FeedsDrained);
        let credit = self.credit();
        let may_hold = if render { credit.render.unwrap_or(0) } else { 1 };
        !self.silent && !is_drained && credit.tasks.min(may_hold) > 0
    }

    /// Counts the entries that it holds.
    pub(crate) fn load(&self) -> usize {
        self.held.len()
    }

    /// Counts the entries that it holds; with `render`, those that need a browser.
    fn load_of(&self, render: bool) -> usize {
        if render { self.rendering as usize } else { self.load() }
    }

    /// Returns the ids of the entries that it holds, sorted.
    pub(crate) fn held(&self) -> Vec<EntryId> {
        let mut held: Vec<EntryId> = self.held.iter().copied().collect();
        held.sort_unstable();
        held
    }

    fn has_credit(&self) -> bool {
        let more = usize::from(mutants::is(Mutant::OverCredit));
        self.takes_tasks(false) && self.held.len() < self.credit().tasks as usize + more
    }

    fn has_render_credit(&self) -> bool {
        let more = u32::from(mutants::is(Mutant::OverRenderCredit));
        let free = self.credit().render.is_some_and(|credit| self.rendering < credit + more);
        free && self.has_credit()
    }
}

/// All members, and those with free credit by load.
#[derive(Debug, Default)]
pub(crate) struct Members {
    by_id: BTreeMap<MemberId, Member>,
    /// Members with free credit, least loaded first.
    with_credit: BTreeSet<(usize, MemberId)>,
    /// Those of them that may receive an entry that needs a browser, first those that hold the
    /// fewest such entries.
    with_render_credit: BTreeSet<(usize, MemberId)>,
}

/// A drained member may be forgotten when it has not been connected for this time.
const DRAINED_GONE_MS_MAX: u64 = DAY_MS;

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

    /// Connects a member. Its previous connection is kept until it ends, because it may outlive the
    /// new one.
    pub(crate) fn join(&mut self, id: MemberId, conn: MemberConn, now: Moment) {
        self.update(id, |member| {
            let new = conn.id;
            member.heard_at = now;
            if !member.is_present() {
                (member.joined_at, member.recent) = (now, RecentCount::new(now));
            }
            member.previous.retain(|earlier| earlier.id != new);
            member.previous.extend(member.conn.replace(conn).filter(|before| before.id != new));
        });
    }

    /// Drains a member, or ends that.
    pub(super) fn set_drained(&mut self, id: MemberId, drained: bool, now: Moment) {
        self.update(id, |member| (member.drained, member.seen_at) = (drained, now));
    }

    /// The group starts: no member could connect before `now`.
    pub(super) fn restart_absences(&mut self, now: Moment) {
        for member in self.by_id.values_mut() {
            member.seen_at = now;
            if member.conn.is_none() {
                member.joined_at = now;
            }
        }
    }

    /// Returns the members that are known only because they were drained, and are not expected to
    /// come back.
    pub(crate) fn gone_for_long(&self, now: Moment) -> Vec<MemberId> {
        let is_gone = |member: &Member| {
            !member.is_present() && now.since(member.seen_at) >= DRAINED_GONE_MS_MAX
        };
        self.iter().filter(|(_, member)| is_gone(member)).map(|(id, _)| id).collect()
    }

    /// Removes a connection. Returns the member if this was its current connection. The member
    /// keeps its entries until their leases end, unless it has another connection.
    pub(crate) fn disconnect(&mut self, conn: ConnId, now: Moment) -> Option<MemberId> {
        let has = |member: &Member| member.previous.iter().any(|earlier| earlier.id == conn);
        let known = |member: &Member| member.conn() == Some(conn) || has(member);
        let id = self.iter().find(|(_, member)| known(member))?.0;
        let mut was_current = false;
        self.update(id, |member| {
            was_current = member.conn() == Some(conn);
            member.previous.retain(|earlier| earlier.id != conn);
            if was_current {
                (member.conn, member.seen_at) = (member.previous.pop(), now);
            }
        });
        was_current.then_some(id)
    }

    /// Marks a member after one of its leases expired. It receives no task until it sends
    /// something.
    pub(crate) fn mark_silent(&mut self, id: MemberId) {
        self.update(id, |member| member.silent = true);
    }

    /// Records that a member sent something.
    pub(crate) fn mark_active(&mut self, id: MemberId, now: Moment) {
        let Some(member) = self.by_id.get_mut(&id) else { return };
        member.heard_at = now;
        if member.silent {
            self.update(id, |member| member.silent = false);
        }
    }

    /// Records that the member on a connection sent something.
    pub(crate) fn mark_active_on(&mut self, conn: ConnId, now: Moment) {
        if let Some(id) = self.member_on(conn) {
            self.mark_active(id, now);
        }
    }

    /// Counts the end of a lease, unless the member is gone.
    pub(super) fn count_end(&mut self, id: MemberId, end: LeaseEnd, now: Moment) {
        let Some(member) = self.by_id.get_mut(&id) else { return };
        if end == LeaseEnd::Done {
            member.recent.add(now);
        }
        *match end {
            LeaseEnd::Done => &mut member.done,
            LeaseEnd::Failed => &mut member.failed,
            LeaseEnd::Lost => &mut member.lost,
        } += 1;
    }

    /// Adds a lease to a member.
    pub(super) fn add_lease(&mut self, id: MemberId, entry: EntryId, demand: Demand) {
        self.update(id, |member| {
            member.held.insert(entry);
            member.suspects += u32::from(demand.suspect);
            member.rendering += u32::from(demand.render);
        });
    }

    /// Removes a lease from a member. `demand` must be as in `add_lease`.
    pub(super) fn end_lease(&mut self, id: MemberId, entry: EntryId, demand: Demand) {
        self.update(id, |member| {
            if member.held.remove(&entry) {
                member.suspects -= u32::from(demand.suspect);
                member.rendering -= u32::from(demand.render);
            }
        });
    }

    /// Reports whether it can receive tasks, now or after it has answered some; with `render`,
    /// those that need a browser.
    pub(crate) fn takes_tasks(&self, id: MemberId, render: bool) -> bool {
        self.by_id.get(&id).is_some_and(|member| member.takes_tasks(render))
    }

    /// Reports whether any member can receive tasks, now or later; with `render`, those that need a
    /// browser.
    pub(crate) fn any_takes_tasks(&self, render: bool) -> bool {
        self.by_id.values().any(|member| member.takes_tasks(render))
    }

    /// Counts the members that can receive tasks that need a browser, now or later.
    pub(crate) fn can_render(&self) -> usize {
        self.by_id.values().filter(|member| member.takes_tasks(true)).count()
    }

    /// Reports whether it is connected and has free credit for an entry.
    pub(crate) fn has_credit(&self, id: MemberId, demand: Demand) -> bool {
        let fits = |member: &Member| {
            let has_credit =
                if demand.render { member.has_render_credit() } else { member.has_credit() };
            has_credit && !(demand.suspect && member.suspects > 0)
        };
        self.by_id.get(&id).is_some_and(fits)
    }

    /// Reports whether any member has free credit for an entry.
    pub(crate) fn any_has_credit(&self, demand: Demand) -> bool {
        self.candidates(demand).next().is_some()
    }

    /// Returns the number of entries that the members may receive now.
    pub(crate) fn free_credit(&self) -> usize {
        let free = self.with_credit.iter().map(|(load, id)| {
            let credit = self.by_id.get(id).map_or(0, |member| member.credit().tasks as usize);
            credit.saturating_sub(*load)
        });
        free.sum()
    }

    /// Chooses the member for a key's next task: the one that served it last, unless it is clearly
    /// more loaded than the least loaded one.
    pub(crate) fn choose(&self, last: Option<MemberId>, demand: Demand) -> Option<MemberId> {
        let (load_min, idlest) = self.candidates(demand).next()?;
        let keeps = |id: &MemberId| {
            let load = self.by_id.get(id).map_or(0, |member| member.load_of(demand.render));
            self.has_credit(*id, demand) && load <= LOAD_FACTOR * load_min + LOAD_SLACK
        };
        Some(last.filter(keeps).unwrap_or(idlest))
    }

    fn member_on(&self, conn: ConnId) -> Option<MemberId> {
        self.iter().find(|(_, member)| member.conn() == Some(conn)).map(|(id, _)| id)
    }

    /// Members with free credit and their loads, least loaded first. Suspects are rare, so few
    /// members are skipped.
    fn candidates(&self, demand: Demand) -> impl Iterator<Item = (usize, MemberId)> {
        let fits = move |id: &MemberId| !demand.suspect || self.has_credit(*id, demand);
        let members = if demand.render { &self.with_render_credit } else { &self.with_credit };
        members.iter().copied().filter(move |(_, id)| fits(id))
    }

    /// Changes a member and updates the order by load. Removes it if it is not connected, holds
    /// nothing and is not drained.
    fn update(&mut self, id: MemberId, change: impl FnOnce(&mut Member)) {
        let member = self.by_id.entry(id).or_default();
        self.with_credit.remove(&(member.load(), id));
        // Most groups have no member with a browser.
        if !self.with_render_credit.is_empty() {
            self.with_render_credit.remove(&(member.load_of(true), id));
        }
        change(member);
        if member.has_render_credit() {
            self.with_render_credit.insert((member.load_of(true), id));
        }
        if member.has_credit() {
            self.with_credit.insert((member.load(), id));
        } else if !member.is_present() && !member.drained {
            self.by_id.remove(&id);
        }
    }
}
