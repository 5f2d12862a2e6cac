//! A connection as the member of groups: the replies and links that it collects for them, and the
//! commands that they answer late.

use tidings_protocol::status::BrowserFields;
use tidings_protocol::{
    Code, GroupName, MemberId, ProtocolError, RetryMode, Slot, TaskAction, TaskId, TaskReply,
};
use tidings_queue::{ClientLabel, StagedLink, WorkerReply};

use super::staged_links::StagedLinks;
use crate::clock::Moment;
use crate::limits::Limits;

/// Minimum time between two notices to groups that a member is active, in milliseconds.
const ACTIVITY_INTERVAL_MS: u64 = 100;

/// State of a connection that uses groups or has sent `HELLO`.
#[derive(Debug)]
pub(super) struct Worker {
    member: MemberId,
    /// The name that the client sent.
    name: Option<Box<str>>,
    /// Groups know this member, so its id cannot change any more.
    is_known_to_groups: bool,
    /// The connection has used `wait` or `watch`, so groups must be notified when it ends.
    has_waited: bool,
    /// The commands without an answer yet whose answers may come late (`is_wait`).
    wait_slots: Vec<Slot>,
    /// The running `JOB watch` or `GROUP watch`. There is one at a time, because answers keep their
    /// order and a second one could not be sent.
    watch_slot: Option<Slot>,
    /// When groups were last notified that the member is active.
    last_active_at: Moment,
    staged_links: StagedLinks,
    /// Replies about tasks of one group that were read together and not handed over yet.
    pending_replies: Vec<(Slot, WorkerReply)>,
    /// The answer of the newest `JOIN`. No task is sent before it (`[D3]`).
    join_slot: Option<Slot>,
    /// The pending `TOPIC`, `GROUP`, `JOB` or `EXPLAIN`, except those that may be answered late. Its
    /// answer may be long, so there is one at a time.
    pending_slot: Option<Slot>,
}

impl Worker {
    pub(super) fn new(member: MemberId) -> Self {
        Self {
            member,
            name: None,
            is_known_to_groups: false,
            has_waited: false,
            wait_slots: Vec::new(),
            watch_slot: None,
            last_active_at: Moment::default(),
            staged_links: StagedLinks::default(),
            pending_replies: Vec::new(),
            join_slot: None,
            pending_slot: None,
        }
    }

    pub(super) fn member(&self) -> MemberId {
        self.member
    }

    /// The member after a `HELLO` with this `resume=`.
    pub(super) fn member_after(&self, resume: Option<MemberId>) -> Result<MemberId, ProtocolError> {
        let member = resume.unwrap_or(self.member);
        if self.member != member && self.is_known_to_groups {
            let text =
                "this connection already works as another member; send resume= in its first HELLO";
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        Ok(member)
    }

    /// Changes the member, and returns the one before.
    pub(super) fn replace_member(&mut self, member: MemberId) -> MemberId {
        std::mem::replace(&mut self.member, member)
    }

    pub(super) fn set_name(&mut self, name: &str) {
        self.name = Some(name.into());
    }

    /// Whether groups know this member.
    pub(super) fn is_known_to_groups(&self) -> bool {
        self.is_known_to_groups
    }

    /// Whether groups must be notified when the connection ends.
    pub(super) fn must_report_end(&self) -> bool {
        self.is_known_to_groups || self.has_waited
    }

    /// Whether it works or waits, which its permissions allowed.
    pub(super) fn depends_on_permissions(&self) -> bool {
        let is_waiting = !self.wait_slots.is_empty() || self.watch_slot.is_some();
        self.is_known_to_groups || is_waiting || self.has_pending_command()
    }

    /// Whether groups are to be notified that the member is active. A flood of `PING` causes one
    /// notice.
    pub(super) fn report_activity(&mut self, now: Moment) -> bool {
        let is_due =
            self.is_known_to_groups && now.since(self.last_active_at) >= ACTIVITY_INTERVAL_MS;
        if is_due {
            self.last_active_at = now;
        }
        is_due
    }

    /// A `JOIN` will be answered in this slot.
    pub(super) fn begin_join(&mut self, slot: Slot) {
        self.join_slot = Some(slot);
    }

    /// The answer that comes before all tasks.
    pub(super) fn join_slot(&self) -> Option<Slot> {
        self.join_slot
    }

    /// How the member is listed. Groups know it from now on.
    pub(super) fn join_as(&mut self, address: &str, browsers: BrowserFields) -> ClientLabel {
        self.is_known_to_groups = true;
        ClientLabel { name: self.name.clone(), address: Some(address.into()), browsers }
    }

    /// Keeps a link until its task is answered.
    pub(super) fn stage_link(&mut self, limits: &Limits, task: TaskId, link: StagedLink) {
        self.staged_links.stage(limits, task, link);
    }

    /// Counts a link that cannot be kept.
    pub(super) fn count_refused_link(&mut self, limits: &Limits, task: TaskId) {
        self.staged_links.count_refused(limits, task);
    }

    pub(super) fn staged_bytes(&self) -> usize {
        self.staged_links.bytes()
    }

    /// Whether the collected replies are for this group; so if there are none.
    pub(super) fn collects_for(&self, group: &GroupName) -> bool {
        self.pending_replies.first().is_none_or(|(_, first)| first.task().group == *group)
    }

    /// Collects a reply with the links that belong to it, so that a group receives together what
    /// was read together.
    pub(super) fn collect(&mut self, slot: Slot, reply: TaskReply) {
        self.is_known_to_groups = true;
        let (links, over_limit) = match &reply.action {
            TaskAction::Ack(_) => self.staged_links.take(&reply.task),
            // A NACK with again= or need= may be rejected; the task then stays, and so do its links.
            // If it is accepted, the links are evicted later.
            TaskAction::Nack(RetryMode::OtherUrl { .. } | RetryMode::NeedsRender)
            | TaskAction::Touch { .. }
            | TaskAction::Part { .. } => (Vec::new(), 0),
            TaskAction::Nack(_) => {
                self.staged_links.discard(&reply.task);
                (Vec::new(), 0)
            }
        };
        self.pending_replies.push((slot, WorkerReply { reply, links, over_limit }));
    }

    /// Removes the collected replies; `None` if there are none.
    pub(super) fn take_replies(&mut self) -> Option<(GroupName, Vec<(Slot, WorkerReply)>)> {
        let (_, first) = self.pending_replies.first()?;
        Some((first.task().group.clone(), std::mem::take(&mut self.pending_replies)))
    }

    /// A command will be answered in this slot, before the connection is read again.
    pub(super) fn begin_command(&mut self, slot: Slot) {
        self.pending_slot = Some(slot);
    }

    /// A `wait` will be answered in this slot. The connection is read in the meantime.
    pub(super) fn begin_wait(&mut self, slot: Slot) {
        self.has_waited = true;
        self.wait_slots.push(slot);
    }

    /// A `watch` will be answered in this slot. The connection is read in the meantime.
    pub(super) fn begin_watch(&mut self, slot: Slot) {
        self.has_waited = true;
        self.watch_slot = Some(slot);
    }

    /// Whether a `watch` runs.
    pub(super) fn is_watching(&self) -> bool {
        self.watch_slot.is_some()
    }

    /// Whether the connection is not read until a command is answered.
    pub(super) fn has_pending_command(&self) -> bool {
        self.pending_slot.is_some()
    }

    /// The command of this slot is answered.
    pub(super) fn end_command(&mut self, slot: Slot) {
        self.pending_slot.take_if(|pending| *pending == slot);
        self.watch_slot.take_if(|watched| *watched == slot);
        self.wait_slots.retain(|waited| *waited != slot);
    }

    /// Ends the running `watch`.
    pub(super) fn take_watch(&mut self) -> Option<Slot> {
        self.watch_slot.take()
    }

    /// Ends all commands that wait.
    pub(super) fn take_waits(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.wait_slots)
    }
}
