//! Permissions: what a principal may do, as a list of what is allowed and a list of what is denied.
//! Pure.
//!
//! | permission | allows |
//! |---|---|
//! | `pub:TOPIC` | to publish on the topic |
//! | `sub:TOPIC` | to receive its events: `SUB`, `SEEN`, `UNSUB`, and reading it by HTTP |
//! | `group:GROUP` | to work for the group, and to see what is in it |
//! | `job:JOB` | to open, fill, watch, close, cancel and delete jobs; to publish with `job=` |
//! | `every`, `prio`, `hub` | to use the attributes of these names |
//! | `url:PREFIX` | to publish URLs below the prefix; without any such permission, any URL |
//! | `monitor` | to read the broker's state: `STATS`, `EXPLAIN`, lists, and what waits in groups |
//! | `admin` | to change topics and groups, and `monitor` |
//! | `all` | everything |
//!
//! `TOPIC`, `GROUP` and `JOB` are a name, or the beginning of names followed by `*`. With `admin`,
//! a principal can feed a group only from topics that it may receive. Deny overrides allow.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::{
    CanonicalUrl, Command, DEFAULT_TOPIC, GroupAction, GroupCommand, JobAction, JobCommand,
    Payload, TaskReply, TopicAction, TopicCommand, TopicName,
};

use super::transport::{PrivilegedAttribute, PrivilegedAttributes};
use super::url_prefix::UrlPrefix;

/// The names that a permission covers: one name, or all that begin with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    literal: Box<str>,
    is_prefix: bool,
}

impl NamePattern {
    fn is_any(&self) -> bool {
        self.is_prefix && self.literal.is_empty()
    }

    fn matches(&self, name: &str) -> bool {
        let (start, name) = (self.literal.as_bytes(), name.as_bytes());
        // The first byte tells most names apart, without a call.
        let begins_so = || name.first() == start.first() && name.starts_with(start);
        if self.is_prefix { start.is_empty() || begins_so() } else { name == start }
    }
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, is_open) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if (start.is_empty() && !is_open) || !start.chars().all(is_name) {
            return Err(format!(
                "{text:?} is not a name, and not the beginning of names followed by *"
            ));
        }
        Ok(Self { literal: start.into(), is_prefix: is_open })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.literal, if self.is_prefix { "*" } else { "" })
    }
}

/// One permission, as it is written in flags and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// `all`
    All,
    /// `admin`
    Admin,
    /// `monitor`
    Monitor,
    /// `pub:TOPIC`
    Publish(NamePattern),
    /// `sub:TOPIC`
    Subscribe(NamePattern),
    /// `group:GROUP`
    Work(NamePattern),
    /// `job:JOB`
    Job(NamePattern),
    /// `every`, `prio`, `hub`
    Attribute(PrivilegedAttribute),
    /// `url:PREFIX`
    Url(Box<UrlPrefix>),
}

impl FromStr for Permission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let right = match text.split_once(':') {
            None => match text {
                "all" => Self::All,
                "admin" => Self::Admin,
                "monitor" => Self::Monitor,
                "every" => Self::Attribute(PrivilegedAttribute::Every),
                "prio" => Self::Attribute(PrivilegedAttribute::Prio),
                "hub" => Self::Attribute(PrivilegedAttribute::Hub),
                _ => return Err(unknown_permission(text)),
            },
            Some(("pub", topics)) => Self::Publish(topics.parse()?),
            Some(("sub", topics)) => Self::Subscribe(topics.parse()?),
            Some(("group", groups)) => Self::Work(groups.parse()?),
            Some(("job", jobs)) => Self::Job(jobs.parse()?),
            Some(("url", prefix)) => Self::Url(Box::new(prefix.parse()?)),
            Some(_) => return Err(unknown_permission(text)),
        };
        Ok(right)
    }
}

fn unknown_permission(text: &str) -> String {
    format!(
        "{text:?} is not a permission; expected pub:TOPIC, sub:TOPIC, group:GROUP, job:JOB (a name, or \
         the beginning of names followed by *), url:PREFIX, every, prio, hub, monitor, admin or all"
    )
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Admin => f.write_str("admin"),
            Self::Monitor => f.write_str("monitor"),
            Self::Publish(topics) => write!(f, "pub:{topics}"),
            Self::Subscribe(topics) => write!(f, "sub:{topics}"),
            Self::Work(groups) => write!(f, "group:{groups}"),
            Self::Job(jobs) => write!(f, "job:{jobs}"),
            Self::Attribute(power) => f.write_str(power.as_str()),
            Self::Url(prefix) => write!(f, "url:{prefix}"),
        }
    }
}

/// What a client wants to do, as far as permissions depend on it. Borrows everything, so a check
/// allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// Affects no other client: `HELLO`, `PING`, `HELP`, `QUIT`.
    Unrestricted,
    /// To publish on a topic. What depends on the event is checked by
    /// [`PermissionSet::check_event`].
    Publish(&'a str),
    /// To receive the events of a topic.
    Subscribe(&'a str),
    /// To work for a group, and to answer its tasks.
    Work(&'a str),
    /// To read the state of a group, and what is in it.
    ViewGroup(&'a str),
    /// To do anything with a job.
    ManageJob(&'a str),
    /// To read the state of a job.
    ViewJob(&'a str),
    /// To read the state and settings of a topic.
    ViewTopic(&'a str),
    /// To read any other state of the broker.
    Monitor,
    /// To change what other clients rely on.
    Admin,
}

impl<'a> Action<'a> {
    /// The action of a command. What its options add is checked by
    /// [`PermissionSet::check_options`].
    ///
    /// An unknown action of `TOPIC`, `GROUP` or `JOB` needs a permission, too.
    pub(crate) fn of(command: &'a Command<'a>) -> Self {
        match command {
            Command::Hello(_) | Command::Ping | Command::Help | Command::Quit => Self::Unrestricted,
            Command::Pub { topic, .. } => Self::Publish(topic),
            Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
                Self::Subscribe(topic.as_str())
            }
            Command::Join { group, .. } => Self::Work(group.as_str()),
            Command::Link { task, .. } | Command::Reply(TaskReply { task, .. }) => {
                Self::Work(task.group.as_str())
            }
            Command::Topic(manage) => Self::of_topic(manage),
            Command::Group(manage) => Self::of_group(manage),
            Command::Job(manage) => Self::of_job(manage),
            Command::Explain { .. } | Command::Stats => Self::Monitor,
        }
    }

    fn of_topic(manage: &TopicCommand<'a>) -> Self {
        match (manage.action, manage.name) {
            (TopicAction::Ls, _) | (TopicAction::Show, None) => Self::Monitor,
            (TopicAction::Show, Some(topic)) => Self::ViewTopic(topic),
            _ => Self::Admin,
        }
    }

    fn of_group(manage: &GroupCommand<'a>) -> Self {
        match manage.action {
            GroupAction::Ls => Self::Monitor,
            GroupAction::Show
            | GroupAction::Watch
            | GroupAction::Tasks
            | GroupAction::Keys
            | GroupAction::Schedules
            | GroupAction::Members
            | GroupAction::Rules
            | GroupAction::Unknown("dead") => manage.name.map_or(Self::Monitor, Self::ViewGroup),
            _ => Self::Admin,
        }
    }

    fn of_job(manage: &JobCommand<'a>) -> Self {
        match (manage.action, manage.name) {
            (JobAction::Ls, _) => Self::Monitor,
            (JobAction::Show | JobAction::Wait | JobAction::Watch, job) => {
                job.map_or(Self::Monitor, Self::ViewJob)
            }
            (_, Some(job)) => Self::ManageJob(job),
            (_, None) => Self::Admin,
        }
    }
}

impl fmt::Display for Action<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unrestricted => f.write_str("send this command"),
            Self::Publish(topic) => write!(f, "publish on {topic} (pub:{topic})"),
            Self::Subscribe(topic) => write!(f, "receive {topic} (sub:{topic})"),
            Self::Work(group) => write!(f, "work for {group} (group:{group})"),
            Self::ViewGroup(group) => {
                write!(f, "read the state of {group} (group:{group} or monitor)")
            }
            Self::ManageJob(job) => write!(f, "use the job {job} (job:{job})"),
            Self::ViewJob(job) => {
                write!(f, "read the state of the job {job} (job:{job} or monitor)")
            }
            Self::ViewTopic(topic) => {
                write!(f, "read the state of {topic} (sub:{topic} or monitor)")
            }
            Self::Monitor => f.write_str("read the state of the broker (monitor)"),
            Self::Admin => f.write_str("change topics and groups (admin)"),
        }
    }
}

/// All that a principal may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionSet {
    allow: Vec<Permission>,
    deny: Vec<Permission>,
    /// The privileged attributes that follow from `allows` and `deny`. They are computed once,
    /// because every event is checked against them.
    attributes: PrivilegedAttributes,
    /// Whether a `url:` permission restricts what may be published; also computed once.
    limits_urls: bool,
}

impl PermissionSet {
    /// What is allowed, except what is denied.
    pub fn new(allow: Vec<Permission>, deny: Vec<Permission>) -> Self {
        let has_power = |power: &PrivilegedAttribute| {
            allow.iter().any(|right| right.grants_attribute(*power))
                && !deny.iter().any(|right| right.denies_attribute(*power))
        };
        let attributes = PrivilegedAttribute::ALL.into_iter().filter(has_power).collect();
        let limits_urls =
            allow.iter().chain(&deny).any(|right| matches!(right, Permission::Url(_)));
        Self { allow, deny, attributes, limits_urls }
    }

    /// Everything.
    pub fn all() -> Self {
        Self::new(vec![Permission::All], Vec::new())
    }

    /// Adds permission to publish to a topic and to receive its events.
    pub(super) fn with_topic(&self, topic: &TopicName) -> Self {
        if self.is_unlimited() {
            return self.clone();
        }
        let topic = NamePattern { literal: topic.as_str().into(), is_prefix: false };
        let more = [Permission::Publish(topic.clone()), Permission::Subscribe(topic)];
        Self::new([&self.allow[..], &more].concat(), self.deny.clone())
    }

    /// What is allowed, in the order of the configuration.
    pub fn allowed(&self) -> &[Permission] {
        &self.allow
    }

    /// What is denied, which overrides what is allowed.
    pub fn denied(&self) -> &[Permission] {
        &self.deny
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.allow.is_empty()
    }

    /// Whether it allows everything, so that no check is needed.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.deny.is_empty() && matches!(self.allow[..], [Permission::All])
    }

    /// Whether an action is allowed, as far as that does not depend on options and events.
    pub(crate) fn allows(&self, deed: Action<'_>) -> bool {
        deed == Action::Unrestricted
            || self.allow.iter().any(|right| right.permits(deed))
                && !self.deny.iter().any(|right| right.denies(deed))
    }

    pub(crate) fn allows_any_job(&self) -> bool {
        let allowed = |right: &Permission| matches!(right, Permission::All | Permission::Job(_));
        self.allow.iter().any(allowed) && !self.deny.contains(&Permission::All)
    }

    /// Whether an attribute with this value is allowed; `job=` depends on the job.
    pub(crate) fn allows_attribute_value(&self, power: PrivilegedAttribute, value: &str) -> bool {
        self.allows_attribute(power)
            || (power == PrivilegedAttribute::Job && self.allows_job(value))
    }

    /// Whether events may belong to this job.
    fn allows_job(&self, job: &str) -> bool {
        let is_of_it = |right: &Permission| match right {
            Permission::All | Permission::Attribute(PrivilegedAttribute::Job) => true,
            Permission::Job(jobs) => jobs.matches(job),
            _ => false,
        };
        self.allow.iter().any(is_of_it) && !self.deny.iter().any(is_of_it)
    }

    /// Whether a privileged attribute is allowed without restriction; for `job`, with all jobs.
    pub(crate) fn allows_attribute(&self, power: PrivilegedAttribute) -> bool {
        self.attributes.contains(power)
    }

    /// Whether every event is allowed on a topic on which the principal may publish, so that no
    /// single one needs a check.
    pub(crate) fn allows_every_event(&self) -> bool {
        !self.limits_urls && self.attributes == PrivilegedAttributes::ALL
    }

    /// Whether the target of an event is below an allowed prefix, if there are prefixes.
    pub(crate) fn allows_target(&self, target: Option<&str>) -> bool {
        if !self.limits_urls {
            return true;
        }
        // Text has no URL, but a principal that is limited to URLs may publish nothing
        // else.
        let Some(url) = target.and_then(|target| CanonicalUrl::parse(target).ok()) else {
            return false;
        };
        let has =
            |right: &Permission| matches!(right, Permission::Url(prefix) if prefix.contains(&url));
        let is_any = !self.allow.iter().any(|right| matches!(right, Permission::Url(_)));
        let is_allowed = is_any || self.allow.iter().any(has);
        is_allowed && !self.deny.iter().any(has)
    }

    /// Checks an event apart from its topic. The error says what is not allowed.
    pub(crate) fn check_event(&self, payload: &str) -> Result<(), String> {
        let mut named = PrivilegedAttribute::candidates_in(payload);
        let attributes_allowed =
            named.all(|(power, value)| self.allows_attribute_value(power, value));
        if attributes_allowed && !self.limits_urls {
            return Ok(());
        }
        let payload = Payload::parse(payload);
        if !self.allows_target(payload.target()) {
            return Err("publish that target (url: permissions limit the targets)".to_owned());
        }
        let attributes = payload.attributes().take_while(|_| !attributes_allowed);
        for (key, value) in attributes {
            if let Some(power) = PrivilegedAttribute::of_attribute(key)
                && !self.allows_attribute_value(power, value)
            {
                return Err(describe_attribute(power, key, value));
            }
        }
        Ok(())
    }

    /// Checks the options of a command. The error says what is not allowed.
    pub(crate) fn check_options(&self, command: &Command<'_>) -> Result<(), String> {
        if let Command::Group(manage) = command {
            let power = PrivilegedAttribute::Prio;
            if manage.action == GroupAction::Bump && !self.allows_attribute(power) {
                return Err(describe_attribute(power, "prio", ""));
            }
            return self.check_group_topics(manage);
        }
        let Command::Job(manage) = command else { return Ok(()) };
        for (key, value) in &manage.settings {
            if *key == "url" && !self.allows_target(Some(value)) {
                return Err("publish that target (url: permissions limit the targets)".to_owned());
            }
            if let Some(power @ (PrivilegedAttribute::Every | PrivilegedAttribute::Prio)) =
                PrivilegedAttribute::of_attribute(key)
                && !self.allows_attribute_value(power, value)
            {
                return Err(describe_attribute(power, key, value));
            }
        }
        Ok(())
    }

    /// A principal that lets a group read a topic could then read the topic through the group.
    fn check_group_topics(&self, manage: &GroupCommand<'_>) -> Result<(), String> {
        let topics = manage.settings.iter().filter(|(key, _)| *key == "topics");
        let reads_default =
            manage.action == GroupAction::Create && manage.setting("topics").is_none();
        let topics = topics.flat_map(|(_, topics)| topics.split(','));
        let mut topics = topics.chain(reads_default.then_some(DEFAULT_TOPIC));
        let denied = topics.find(|topic| !self.allows(Action::Subscribe(topic)));
        denied.map_or(Ok(()), |topic| Err(Action::Subscribe(topic).to_string()))
    }
}

fn describe_attribute(power: PrivilegedAttribute, key: &str, value: &str) -> String {
    match power {
        PrivilegedAttribute::Job => format!("publish with job={value} (job:{value})"),
        _ => format!("use {key}= ({})", power.as_str()),
    }
}

impl Permission {
    /// Whether denying this permission denies the action. A principal that is denied `admin` may
    /// still read.
    fn denies(&self, deed: Action<'_>) -> bool {
        match self {
            Self::Admin => matches!(deed, Action::Admin),
            _ => self.permits(deed),
        }
    }

    /// Whether it allows a privileged attribute without restriction.
    fn grants_attribute(&self, power: PrivilegedAttribute) -> bool {
        match self {
            Self::All => true,
            Self::Job(jobs) => power == PrivilegedAttribute::Job && jobs.is_any(),
            Self::Attribute(given) => *given == power,
            _ => false,
        }
    }

    /// Whether denying it takes the attribute away. `job` covers all jobs, so denying one of them
    /// is enough.
    fn denies_attribute(&self, power: PrivilegedAttribute) -> bool {
        self.grants_attribute(power)
            || (power == PrivilegedAttribute::Job && matches!(self, Self::Job(_)))
    }

    fn permits(&self, deed: Action<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Admin => matches!(
                deed,
                Action::Admin
                    | Action::Monitor
                    | Action::ViewGroup(_)
                    | Action::ViewJob(_)
                    | Action::ViewTopic(_)
            ),
            Self::Monitor => matches!(
                deed,
                Action::Monitor | Action::ViewGroup(_) | Action::ViewJob(_) | Action::ViewTopic(_)
            ),
            Self::Publish(topics) => {
                matches!(deed, Action::Publish(topic) if topics.matches(topic))
            }
            Self::Subscribe(topics) => {
                matches!(deed, Action::Subscribe(topic) | Action::ViewTopic(topic) if topics.matches(topic))
            }
            Self::Work(groups) => {
                matches!(deed, Action::Work(group) | Action::ViewGroup(group) if groups.matches(group))
            }
            Self::Job(jobs) => {
                matches!(deed, Action::ManageJob(job) | Action::ViewJob(job) if jobs.matches(job))
            }
            Self::Attribute(_) | Self::Url(_) => false,
        }
    }
}
