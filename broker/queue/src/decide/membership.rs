//! Membership: workers join and leave, and receive the tasks that they hold.

use std::borrow::Cow;
use std::fmt::Write;

use tidings_protocol::status::{Answer, DrainStatus, MemberFields, MemberStatus};
use tidings_protocol::{
    CanonicalUrl, Code, KeyKind, MemberId, ProtocolError, TaskId, UrlKey, extend_chain, is_in_chain,
};

use crate::entry::{
    Admission, Entry, EntryId, FORWARDED_BYTES_MAX, Lease, attribute, merge_attributes,
    with_render, without_attribute,
};
use crate::leases::{Credit, Member, MemberConn};
use crate::moment::Moment;
use crate::record::Decision;
use crate::schedules::Schedule;
use crate::{ClientLabel, ConnId, Group, Output, Requester, TaskMessage};

/// Most members that are drained at once.
pub(crate) const DRAINED_MAX: usize = 1000;

/// Attribute of a redirect's target that names the URL with the schedule.
const MOVED_FROM: &str = " schedule=";

/// Attribute of a redirect's target with the URLs that led to it.
pub(super) const CHAIN: &str = " chain=";

/// No event can contain it, because the group does not forward `schedule=` from events.
fn moved_from(carried: &str) -> Option<&str> {
    attribute(carried, MOVED_FROM)
}

impl Group {
    pub(crate) fn join(
        &mut self,
        requester: Requester,
        credit: Credit,
        label: ClientLabel,
        now: Moment,
    ) {
        let known = self.state.leases().members().find(requester.member);
        let moved = known.is_none_or(|member| member.conn() != Some(requester.conn));
        let conn = MemberConn { id: requester.conn, credit, label };
        self.state.members_mut().join(requester.member, conn, now);
        let held = self.state.leases().members().find(requester.member).map_or(0, Member::load);
        let status = MemberStatus {
            group: self.state.name().to_string(),
            credit: credit.tasks.into(),
            render: credit.render.map(Into::into),
            held: held as u64,
            since: self.state.since(),
        };
        self.answer(requester, Ok(status.into()));
        if moved {
            self.resend_tasks(requester.member, now);
        }
        self.unpin_untakeable(requester.member, now);
    }

    pub(crate) fn disconnected(&mut self, conn: ConnId, now: Moment) {
        self.job_waiters.retain(|_, waiters| {
            waiters.retain(|requester| requester.conn != conn);
            !waiters.is_empty()
        });
        self.rule_waiters.retain(|waiter| waiter.requester.conn != conn);
        self.reads.remove_waits(conn);
        if let Some(member) = self.state.members_mut().disconnect(conn, now) {
            self.resend_tasks(member, now);
            self.unpin_untakeable(member, now);
        }
    }

    /// Drains a member, or ends that. Then entries that wait for its next request restart, for any
    /// member.
    pub(crate) fn drain(
        &mut self,
        name: &str,
        drained: bool,
        now: Moment,
    ) -> Result<Answer, ProtocolError> {
        let id = self.find_member(name)?;
        if self.state.leases().members().find(id).is_some_and(Member::is_drained) != drained {
            if drained {
                self.make_room_for_drained(now)?;
            }
            self.commit(Decision::MemberDrained { member: id, drained }, now);
            if drained {
                self.unpin(id, now);
            }
        }
        // A member that is gone is forgotten when it is drained no more.
        let member = self.state.leases().members().find(id);
        let fields = member.map_or_else(MemberFields::default, |member| member.status(now));
        Ok(DrainStatus { group: self.state.name().to_string(), member: id.short(), fields }.into())
    }

    /// Returns the member with these first digits, or else with this name.
    fn find_member(&self, name: &str) -> Result<MemberId, ProtocolError> {
        let members = || self.state.leases().members().iter();
        let mut found: Vec<_> = members().filter(|(id, _)| id.short() == name).collect();
        if found.is_empty() {
            found.extend(members().filter(|(_, member)| member.name() == Some(name)));
        }
        let (code, text) = match found[..] {
            [(id, _)] => return Ok(id),
            [] => (
                Code::NotFound,
                format!(
                    "no member {name} in group {0}; GROUP members {0} lists them",
                    self.state.name()
                ),
            ),
            _ => {
                let count = found.len();
                let text = format!(
                    "{count} members of group {0} are {name}; name one by its digits in GROUP \
                     members {0}",
                    self.state.name()
                );
                (Code::Conflict, text)
            }
        };
        Err(ProtocolError::new(code, text))
    }

    /// Forgets drained members that are gone for long. Fails if too many are left for another.
    fn make_room_for_drained(&mut self, now: Moment) -> Result<(), ProtocolError> {
        for member in self.state.leases().members().gone_for_long(now) {
            self.commit(Decision::MemberDrained { member, drained: false }, now);
        }
        let drained =
            self.state.leases().members().iter().filter(|(_, member)| member.is_drained());
        if drained.count() < DRAINED_MAX {
            return Ok(());
        }
        let text = format!("{DRAINED_MAX} members are drained, which is the limit; undrain one");
        Err(ProtocolError::new(Code::Limit, text))
    }

    /// Sends a member all tasks that it holds, on its current connection.
    fn resend_tasks(&mut self, member: MemberId, now: Moment) {
        let Some(member) = self.state.leases().members().find(member) else { return };
        let Some(conn) = member.conn() else { return };
        for entry in member.held() {
            self.send_task(entry, conn, now);
        }
    }

    /// Sends a held entry to its worker.
    pub(crate) fn send_task(&mut self, id: EntryId, conn: ConnId, now: Moment) {
        let entry = &self.state.frontier().get(id).entry;
        let lease = entry.lease().expect("a task is sent only to its holder");
        let task = TaskMessage {
            id: self.task_id(id, entry, lease),
            clock_ms: now.0,
            lease_ms: lease.until.0.saturating_sub(now.0),
            payload: self.task_payload(entry),
        };
        self.outputs.push_back(Output::Task { conn, task });
    }

    pub(crate) fn task_id(&self, id: EntryId, entry: &Entry, lease: &Lease) -> TaskId {
        let (group, attempt) = (self.state.name().clone(), entry.releases);
        TaskId { group, run: lease.run, entry: id, attempt }
    }

    fn task_payload(&self, entry: &Entry) -> String {
        /// Usual length of the attributes that the group adds.
        const OWN_BYTES: usize = 48;
        let admitted = &entry.admitted;
        let len = admitted.text.len() + OWN_BYTES + admitted.forwarded.len();
        let mut payload = String::with_capacity(len);
        if self.state.config().settings.key == KeyKind::Seq {
            payload.extend([&*admitted.key, " "]);
        }
        payload.push_str(&admitted.text);
        if let Some((job, pass)) = self.view().job_and_pass(entry) {
            let (depth, number) = (admitted.depth, job.id.number);
            // Writing into a string cannot fail.
            let _ = write!(payload, " job={} pass={pass} depth={depth} number={number}", job.name);
            // Omitted while the scope has not grown and no rule has ended, as in most jobs.
            let (extent, lifted) = (job.extent(), self.state.frontier().rules().history().lifted);
            if extent.is_some() || lifted > 0 {
                let _ = write!(payload, " scope={}", extent.unwrap_or(0) + lifted);
            }
        }
        if admitted.redirect {
            let _ = write!(payload, " kind=redirect hops={}", admitted.hops);
        }
        let is_last = entry.failures + 1 >= self.state.config().settings.max_attempts;
        // While its host is down, no failure counts.
        payload.push_str(match self.state.frontier().circuit_down(admitted.id) {
            _ if admitted.url_key.is_none() => "",
            None if is_last => " last=yes",
            Some(circuit) if circuit.is_last_try() => " last=down",
            _ => "",
        });
        if let Some(again) = &entry.again {
            let _ = write!(payload, " again={}", again.url);
        }
        if let Some(schedule) = self.schedule_of(admitted) {
            let _ = write!(payload, " every={}", self.state.schedules().interval_text(schedule));
        }
        payload.push_str(&self.task_attributes(admitted));
        payload
    }

    /// Returns the schedule for which an entry is fetched: that of the URL that redirected to it,
    /// or else its own.
    fn schedule_of(&self, admitted: &Admission) -> Option<&Schedule> {
        let moved = admitted.redirect.then(|| moved_from(&admitted.forwarded)).flatten();
        let url = moved.map_or(admitted.url_key, |moved| Some(CanonicalUrl::key_of(moved)));
        self.state.schedules().find(url?)
    }

    /// Returns the attributes for the target of an entry's redirect. They include the URL with the
    /// schedule, if there is one and, in a job, the chain of redirects; each if it fits.
    pub(crate) fn redirect_attributes(&self, admitted: &Admission) -> Box<str> {
        let own = self.task_attributes(admitted);
        let mut carried = without_attribute(&own, CHAIN.trim_start());
        let schedule = admitted.url_key.and_then(|url| self.state.schedules().find(url));
        let schedule = schedule.filter(|_| moved_from(&carried).is_none());
        let schedule = schedule.map(|schedule| format!("{MOVED_FROM}{}", schedule.text));
        let chain = admitted.url_key.filter(|_| admitted.job.is_some());
        let chain =
            chain.map(|url| format!("{CHAIN}{}", extend_chain(attribute(&own, CHAIN), url)));
        for text in [schedule, chain].into_iter().flatten() {
            if carried.len() + text.len() <= FORWARDED_BYTES_MAX {
                carried.push_str(&text);
            }
        }
        carried.into()
    }

    /// Returns the attributes that are sent with an entry, each with a leading space: its own, and
    /// those of its URL's schedule, which this fetch may replace. Its own override the others.
    /// Those of the schedule are left out if they do not all fit. Its own `render=` alone counts,
    /// because it decides which member receives the entry.
    pub(crate) fn task_attributes<'a>(&self, admitted: &'a Admission) -> Cow<'a, str> {
        let own = &admitted.forwarded;
        let schedule = admitted.url_key.and_then(|url| self.state.schedules().find(url));
        let Some(schedule) = schedule.filter(|schedule| schedule.forwarded != *own) else {
            return Cow::Borrowed(own);
        };
        merge_attributes(own, &with_render(&schedule.forwarded, None))
            .map_or(Cow::Borrowed(own), Cow::Owned)
    }
}

/// Reports whether a redirect of this entry leads back to a URL that led to the entry.
pub(super) fn leads_back(admitted: &Admission, target: UrlKey) -> bool {
    attribute(&admitted.forwarded, CHAIN).is_some_and(|chain| is_in_chain(chain, target))
}
