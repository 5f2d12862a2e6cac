//! All groups of the broker. Routes each command of a connection to the one task (actor) that owns
//! the group.

mod actor;
pub(crate) mod check;
mod damaged_groups;
mod default_group;
mod job_names;
mod log;
mod message;
mod metrics;
mod outbox;
mod page_file;
pub(crate) mod recovery;
mod registry;
pub(crate) mod repair;
mod request;
#[cfg(test)]
mod tests;
mod watchers;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidings_log::TopicLog;
use tidings_protocol::status::Answer;
use tidings_protocol::{
    CALLBACK_GROUP, Code, DEFAULT_GROUP, DELAY_MS_MAX, GroupAction, GroupCommand, GroupName,
    GroupSettings, JobAction, JobName, MemberId, ProtocolError, Seq, Settings, Slot, bad_argument,
};
use tidings_queue::config::{CREDIT_MAX, GroupConfig};
use tidings_queue::queries::unknown_job;
use tidings_queue::{
    ClientLabel, Group, GroupQuery, Input, JobOperation, NeverList, Requester, WorkerReply,
    commands, setting_pairs,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use self::actor::GroupActor;
use self::damaged_groups::DamagedGroups;
use self::default_group::{default_group, fills_empty_group};
use self::job_names::JobNames;
use self::log::{DiskLog, GroupLog, MemoryLog};
use self::message::{GroupMessage, reject_message};
pub(crate) use self::metrics::{PublishedMetrics, StopReason};
use self::page_file::PageFile;
pub(crate) use self::recovery::{FoundGroups, GroupStorage, RecoveredGroup, clock_continuing};
use self::registry::{CreationLock, GroupRegistry};
pub use self::request::{Caller, GroupRequest};
use self::watchers::{WatchRequest, group_watch, job_watch};
use crate::clock::Clock;
use crate::mailbox::{ConnId, ConnMessage};
use crate::topic::Topics;

/// All groups of the broker.
pub struct Groups {
    topics: Arc<Topics>,
    /// The settings of a group that is created. A reload may change the delay.
    defaults: Mutex<GroupConfig>,
    /// Most groups at once; creating one more is rejected.
    count_max: usize,
    /// The member that runs in the broker's own process.
    local_member: Option<MemberId>,
    clock: Clock,
    stop: CancellationToken,
    /// Directory of the groups' logs; `None` without a data directory.
    storage: Option<GroupStorage>,
    /// Number of this start: unix time in ms, and above the number of every earlier start even if
    /// the wall clock went back. Milliseconds, not seconds, because crawlers store results under
    /// task ids: two starts within one second must give different ids.
    run: u64,
    /// The newest value that `next_group_number` returned.
    newest_number: AtomicU64,
    registry: Arc<GroupRegistry>,
    /// Groups with unreadable logs. Until the next start they do not run, and no group with such a
    /// name is created.
    damaged: DamagedGroups,
    job_names: Arc<JobNames>,
    /// What no group requests.
    never_list: Mutex<Arc<NeverList>>,
    /// Whether any job has, or had, a `callback=`.
    has_callbacks: tokio::sync::watch::Sender<bool>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups")
            .field("run", &self.run)
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}

impl Groups {
    /// Starts the groups that were found on disk. Later groups are created with the settings in
    /// `defaults`, up to `max` groups in total.
    pub(crate) fn new(
        topics: Arc<Topics>,
        defaults: GroupConfig,
        max: usize,
        own: Option<MemberId>,
        clock: Clock,
        stop: CancellationToken,
        disk: Option<(GroupStorage, FoundGroups)>,
    ) -> Arc<Self> {
        let (storage, found) =
            disk.map_or_else(Default::default, |(storage, found)| (Some(storage), found));
        let FoundGroups { whole: recovered, damaged } = found;
        let earlier = recovered.iter().map(|recovered| recovered.group.run() + 1).max();
        let run = u64::try_from(clock.unix_ms()).unwrap_or(1).max(earlier.unwrap_or(1));
        let (registry, job_names): (Arc<GroupRegistry>, Arc<JobNames>) = Default::default();
        // The callback group may still have deliveries to make for jobs that their own group has
        // forgotten.
        let has_callbacks = recovered.iter().any(|RecoveredGroup { group, .. }| {
            group.has_callbacks() || group.name().as_str() == CALLBACK_GROUP
        });
        let has_callbacks =
            has_callbacks || damaged.iter().any(|group| group.last_good.has_callbacks);
        let damaged = DamagedGroups::new(damaged, storage.as_ref(), &topics, &job_names);
        let groups = Arc::new(Self {
            topics,
            defaults: Mutex::new(defaults),
            count_max: max,
            local_member: own,
            clock,
            stop,
            storage,
            run,
            newest_number: AtomicU64::new(0),
            registry,
            damaged,
            job_names,
            never_list: Mutex::default(),
            has_callbacks: tokio::sync::watch::Sender::new(has_callbacks),
        });
        for recovered in recovered {
            let name = recovered.group.name().clone();
            let elapsed_unknown = !recovered.started.is_same_boot(&clock.stamp());
            let (log, next) = (recovered.log, recovered.next);
            let group = (recovered.group, recovered.pages);
            let creation = groups.registry.lock_creation();
            let started = groups.start(&creation, group, elapsed_unknown, Some((log, next)));
            if let Err(error) = started {
                tracing::error!(group = %name, %error, "cannot start the group; restart the broker when this is fixed");
                // Reserves the name, so that no other group takes its place.
                let (closed, _) = mpsc::unbounded_channel();
                creation.add(name, closed);
            }
        }
        groups
    }

    /// Sends a worker's replies to a group, in order. The answers arrive in the mailbox, each for
    /// its slot.
    pub fn submit(&self, caller: &Caller, group: &GroupName, replies: Vec<(Slot, WorkerReply)>) {
        let inputs = replies.into_iter();
        let inputs = inputs
            .map(|(slot, reply)| Input::Reply { requester: caller.requester(slot), reply })
            .collect();
        if let Err(unsent) =
            self.try_send(group, GroupMessage::Replies(inputs, caller.mailbox.clone()))
        {
            let (message, error) = *unsent;
            reject_message(message, &error);
        }
    }

    /// Sends a command to its group; the answer arrives in the mailbox for `slot`. After a
    /// command that may be answered late, and after a watch, the connection must report its end
    /// with [`connection_ended`](Self::connection_ended).
    pub fn manage(
        &self,
        caller: &Caller,
        slot: Slot,
        command: GroupRequest<'_>,
    ) -> Result<(), ProtocolError> {
        let asked = caller.requester(slot);
        let (group, input) = match command {
            GroupRequest::Group(manage) => match manage.action {
                GroupAction::Ls => {
                    manage.refuse_name()?;
                    manage.allow_only(&[])?;
                    self.list(caller, slot);
                    return Ok(());
                }
                GroupAction::Watch => return self.watch(caller, group_watch(asked, manage)?),
                _ => self.group_input(caller, asked, manage)?,
            },
            GroupRequest::Job(manage) if manage.action == JobAction::Watch => {
                return self.watch(caller, job_watch(asked, manage)?);
            }
            GroupRequest::Job(manage) => commands::job_input(asked, manage)?,
            GroupRequest::Explain { what, group } => {
                let query = GroupQuery::Explain(what.to_owned());
                let group = group.cloned().unwrap_or_else(default_group);
                (group, Input::Query { requester: asked, query })
            }
        };
        if let Input::Query { requester: asked, query: GroupQuery::Group } = &input
            && let Some(answer) = self.damaged.describe(&group)
        {
            caller.mailbox.send(ConnMessage::Answer { slot: asked.slot, answer: Ok(answer) });
            return Ok(());
        }
        if group.as_str() == DEFAULT_GROUP && !self.has(&group) {
            if !fills_empty_group(&input) {
                self.answer_as_empty(&group, input, caller);
                return Ok(());
            }
            self.create_if_missing(&group)?;
        }
        let opened = match &input {
            Input::OpenJob { name, settings, .. } => {
                // Set before the group handles the command, because the job may be done at once. A
                // rejected command does no harm.
                if settings.callback.is_some() {
                    self.has_callbacks.send_replace(true);
                }
                Some(name.clone())
            }
            _ => None,
        };
        if let Some(name) = &opened {
            self.job_names.reserve(name, &group);
        }
        let waits = matches!(input, Input::JobAction { action: JobOperation::Wait, .. });
        let mailbox = caller.mailbox.clone();
        let message = if waits {
            GroupMessage::Wait(input, mailbox)
        } else {
            GroupMessage::Manage(input, mailbox)
        };
        let sent = self.send(&group, message);
        if let (Err(_), Some(name)) = (&sent, &opened) {
            self.job_names.release(name, &group);
        } else if command.is_wait() && sent.is_ok() {
            self.registry.join(caller.conn, group);
        }
        sent
    }

    /// Sets what no group requests from now on, also those that are created later.
    pub(crate) fn set_never_list(&self, list: &Arc<NeverList>) {
        // No group is created meanwhile, so each receives it in one of both ways.
        let _creation = self.registry.lock_creation();
        *self.never_list.lock() = Arc::clone(list);
        for group in self.registry.names() {
            // A group that has ended needs no list.
            let _ = self.registry.send(&group, GroupMessage::SetNeverList(Arc::clone(list)));
        }
    }

    /// Sends `JOB watch` or `GROUP watch` to its group. The progress lines arrive in the mailbox
    /// before the final answer.
    fn watch(
        &self,
        caller: &Caller,
        watch: (GroupName, WatchRequest),
    ) -> Result<(), ProtocolError> {
        let (group, watch) = watch;
        if let Some(job) = watch.job.as_ref().filter(|_| group.as_str() == DEFAULT_GROUP)
            && !self.has(&group)
        {
            return Err(unknown_job(job, &group));
        }
        self.send(&group, GroupMessage::Watch(watch, caller.mailbox.clone()))?;
        self.registry.join(caller.conn, group);
        Ok(())
    }

    /// Reports to the connection's groups that the connection is alive: it has sent a command that
    /// is not for them.
    pub fn connection_active(&self, conn: ConnId) {
        for group in self.registry.groups_of(conn) {
            let _ = self.send(&group, GroupMessage::Activity(conn));
        }
    }

    /// Reports the end of a connection to its groups.
    pub fn connection_ended(&self, conn: ConnId) {
        for group in self.registry.leave(conn) {
            // A group that has ended needs no report.
            let _ = self.send(&group, GroupMessage::Disconnected(conn));
        }
    }

    /// What each group published last, in any order. Waits for no group.
    pub(crate) fn metrics(&self) -> Vec<(GroupName, Arc<PublishedMetrics>)> {
        self.registry.metrics()
    }

    /// How many entries of all groups were completed, and how many failed, since the start.
    pub(crate) fn answered(&self) -> [u64; 2] {
        self.registry.answered()
    }

    /// The groups with a damaged log.
    pub(crate) fn damaged_names(&self) -> Vec<GroupName> {
        self.damaged.names().cloned().collect()
    }

    /// Bytes of the logs of all groups.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.registry.log_bytes()
    }

    /// Whether any job has, or had, a `callback=`, jobs before this start included.
    pub(crate) fn watch_callbacks(&self) -> tokio::sync::watch::Receiver<bool> {
        self.has_callbacks.subscribe()
    }

    /// Names of all groups.
    pub fn names(&self) -> Vec<GroupName> {
        let mut names = self.registry.names();
        names.extend(self.damaged.names().cloned());
        names.sort_unstable();
        names
    }

    /// Whether a group of that name exists.
    pub fn has(&self, name: &GroupName) -> bool {
        self.damaged.has(name) || self.registry.has(name)
    }

    /// Fails unless a group of that name exists, or is the default group.
    pub(crate) fn check_known(&self, group: &GroupName) -> Result<(), ProtocolError> {
        let is_known = group.as_str() == DEFAULT_GROUP || self.has(group);
        if is_known { Ok(()) } else { Err(unknown_group(group)) }
    }

    /// Fails unless the group remembers a job of that name.
    pub(crate) fn check_known_job(
        &self,
        group: &GroupName,
        job: &JobName,
    ) -> Result<(), ProtocolError> {
        self.check_known(group)?;
        if self.job_names.has(job, group) { Ok(()) } else { Err(unknown_job(job, group)) }
    }

    /// Whether a group has an unfinished job of that name.
    pub fn has_unfinished_job(&self, group: &GroupName, job: &JobName) -> bool {
        self.job_names.is_unfinished(job, group)
    }

    /// Adds a worker to a group with the given credit, and with the number of held tasks that may
    /// need a browser if it has one. The answer arrives in the mailbox for `slot`, unless the
    /// command is rejected at once.
    pub fn join(
        &self,
        caller: &Caller,
        slot: Slot,
        group: &GroupName,
        (credit, render): (u32, Option<u32>),
        label: ClientLabel,
    ) -> Result<(), ProtocolError> {
        let asked = caller.requester(slot);
        for (name, count) in [("credit", credit), ("render", render.unwrap_or(0))] {
            if count > CREDIT_MAX {
                let text = format!("{name}={count}: expected a number from 0 to {CREDIT_MAX}");
                return Err(bad_argument(text));
            }
        }
        if group.as_str() == DEFAULT_GROUP {
            self.create_if_missing(group)?;
        }
        let input = Input::Join { requester: asked, credit, render, label };
        self.send(group, GroupMessage::Join(input, caller.mailbox.clone()))?;
        self.registry.join(caller.conn, group.clone());
        Ok(())
    }

    fn group_input(
        &self,
        caller: &Caller,
        asked: Requester,
        manage: &GroupCommand<'_>,
    ) -> Result<(GroupName, Input), ProtocolError> {
        let group: GroupName = manage.required_name()?.parse()?;
        if manage.action == GroupAction::Create {
            let config = self.defaults.lock().with_settings(manage.settings.iter().copied())?;
            config.validate()?;
            self.create(&group, config)?;
        }
        let mut input = commands::group_input(asked, manage)?;
        if let Input::Query { query: GroupQuery::Members { with_addresses, .. }, .. } = &mut input {
            *with_addresses = caller.is_monitor;
        }
        if let Input::Configure { changes, .. } = &input {
            // Opens the topics first: without room for a new topic, the command is rejected before
            // anything changes.
            let none = GroupSettings { topics: Vec::new(), ..GroupSettings::default() };
            let topics = none.changed(setting_pairs(changes))?.topics;
            topics.iter().try_for_each(|topic| self.topics.open(topic).map(drop))?;
        }
        Ok((group, input))
    }

    fn list(&self, caller: &Caller, slot: Slot) {
        let names = self.names();
        let ok = format!("groups={}", names.len());
        let answer = Answer::new(names.iter().map(ToString::to_string), ok);
        caller.mailbox.send(ConnMessage::Answer { slot, answer: Ok(answer) });
    }

    fn create(&self, name: &GroupName, config: GroupConfig) -> Result<(), ProtocolError> {
        self.damaged.check_not_damaged(name)?;
        let creation = self.registry.lock_creation();
        if creation.has(name) {
            let text = format!("group {name} exists; GROUP set {name} changes it");
            return Err(ProtocolError::new(Code::Exists, text));
        }
        self.create_and_start(&creation, name, config)
    }

    fn create_if_missing(&self, name: &GroupName) -> Result<(), ProtocolError> {
        self.damaged.check_not_damaged(name)?;
        if self.registry.has(name) {
            return Ok(());
        }
        let creation = self.registry.lock_creation();
        if creation.has(name) {
            return Ok(());
        }
        let config = self.defaults.lock().clone();
        self.create_and_start(&creation, name, config)
    }

    fn create_and_start(
        &self,
        creation: &CreationLock<'_>,
        name: &GroupName,
        mut config: GroupConfig,
    ) -> Result<(), ProtocolError> {
        let max = self.count_max;
        if creation.count() + self.damaged.names().count() >= max {
            let text = format!("the limit of {max} groups is reached; delete a group first");
            return Err(ProtocolError::new(Code::Limit, text));
        }
        if self.storage.as_ref().is_some_and(|storage| storage.store.is_occupied(name)) {
            let text = format!(
                "the data directory holds something else as groups/{name} (see the log of the \
                 broker's start). Move it away and restart the broker, or choose another name"
            );
            return Err(ProtocolError::new(Code::Conflict, text));
        }
        // Opens the topics first: without room for a new topic, the command is rejected before
        // anything is created.
        for topic in &config.settings.topics {
            self.topics.open(topic)?;
        }
        config.settings.delay_ms = config.settings.delay_ms.map(|ms| ms.min(DELAY_MS_MAX));
        let group = match &self.storage {
            Some(storage) => {
                let (group, pages) = storage.group(name, config);
                (group, Some(pages))
            }
            None => (Group::new(name.clone(), 0, config, fastrand::u64(..)), None),
        };
        let log = self.storage.as_ref().map(|storage| storage.fresh(name));
        self.start(creation, group, false, log)
    }

    /// Starts a group with its page file. Its log on the disk comes with the number of its next
    /// record.
    fn start(
        &self,
        creation: &CreationLock<'_>,
        group: (Group, Option<PageFile>),
        elapsed_unknown: bool,
        log: Option<(Arc<dyn TopicLog>, Seq)>,
    ) -> Result<(), ProtocolError> {
        let wake = Arc::new(Notify::new());
        let log: Box<dyn GroupLog> = match (log, &self.storage, self.topics.committers()) {
            (Some((log, next)), Some(storage), Some(committers)) => {
                let (name, bytes) = (group.0.name().clone(), storage.log_bytes);
                creation.add_log(name.clone(), Arc::clone(&log));
                let (committers, wake) = (Arc::clone(committers), Arc::clone(&wake));
                Box::new(DiskLog::new(name, log, next, bytes, self.clock, committers, wake))
            }
            _ => Box::new(MemoryLog::default()),
        };
        self.start_with(creation, group, elapsed_unknown, (log, wake))
    }

    /// Does the same with any log, which wakes the group.
    fn start_with(
        &self,
        creation: &CreationLock<'_>,
        (mut group, pages): (Group, Option<PageFile>),
        elapsed_unknown: bool,
        (log, wake): (Box<dyn GroupLog>, Arc<Notify>),
    ) -> Result<(), ProtocolError> {
        group.set_never_list(self.never_list.lock().clone());
        let name = group.name().clone();
        let (sender, messages) = mpsc::unbounded_channel();
        let shared = (Arc::clone(&self.registry), Arc::clone(&self.job_names));
        let mut actor = GroupActor::new(
            (group, pages),
            Arc::clone(&self.topics),
            self.clock,
            log,
            wake,
            shared,
        );
        actor.begin(self.run, elapsed_unknown, self.local_member, self.next_group_number())?;
        let delay_ms = self.defaults.lock().settings.delay_ms;
        let is_replicated = self.storage.as_ref().is_some_and(|it| it.store.is_replicated());
        let is_given_here = name.as_str() == DEFAULT_GROUP && !is_replicated;
        if let Some(delay_ms) = delay_ms.filter(|_| is_given_here) {
            actor.set_delay(Some(delay_ms.min(DELAY_MS_MAX)));
        }
        creation.add(name, sender);
        actor.spawn(messages, self.stop.clone());
        Ok(())
    }

    /// Closes the logs of all groups when the broker stops. Call it after the committers have
    /// written everything. Blocks.
    pub(crate) fn close_logs(&self) {
        for (name, log) in self.registry.take_logs() {
            if let Err(error) = log.sync().and_then(|_| log.close(log.bounds().end)) {
                tracing::error!(group = %name, %error, "cannot close the log of the group; the next start checks it");
            }
        }
    }

    /// Returns a number that no group of this or another broker has had, higher than all before it.
    fn next_group_number(&self) -> u64 {
        // `RandomState` takes its keys from the operating system's random source.
        let now = group_number(self.clock.unix_ms(), RandomState::new().hash_one(()));
        let above = |newest: u64| Some(now.max(newest + 1));
        let newest = self.newest_number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, above);
        above(newest.expect("the closure always returns a value")).expect("as before")
    }

    fn send(&self, group: &GroupName, message: GroupMessage) -> Result<(), ProtocolError> {
        self.try_send(group, message).map_err(|unsent| unsent.1)
    }

    /// Sends a message to the group's actor, or returns it with the reason.
    fn try_send(
        &self,
        group: &GroupName,
        message: GroupMessage,
    ) -> Result<(), Box<(GroupMessage, ProtocolError)>> {
        if let Err(error) = self.damaged.check_not_damaged(group) {
            return Err(Box::new((message, error)));
        }
        self.registry.send(group, message).map_err(|mut unsent| {
            if self.stop.is_cancelled() {
                unsent.1 = ProtocolError::new(Code::Internal, "the broker stops");
            }
            unsent
        })
    }
}

/// Combines unix time in ms with random bits. Without the random bits, groups of several brokers
/// that were created in the same millisecond would have the same number, and their pages the same
/// name in a shared store. The number stays below 2^63, the limit of some databases, until the year
/// 2248.
fn group_number(unix_ms: i64, random: u64) -> u64 {
    const RANDOM_BITS: u32 = 20;
    let unix_ms = u64::try_from(unix_ms).unwrap_or(0);
    unix_ms << RANDOM_BITS | random >> (u64::BITS - RANDOM_BITS)
}

fn unknown_group(group: &GroupName) -> ProtocolError {
    let text = format!("no group {group}; GROUP create {group} makes it");
    ProtocolError::new(Code::NotFound, text)
}
