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

use tidings_protocol::{CanonicalUrl, Command, DEFAULT_TOPIC, Manage, Payload, TopicName};

use super::prefix::Prefix;
use super::way::{Power, Powers};

/// The names that a permission covers: one name, or all that begin with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    start: Box<str>,
    is_open: bool,
}

impl Pattern {
    /// `*`
    fn is_any(&self) -> bool {
        self.is_open && self.start.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        let (start, name) = (self.start.as_bytes(), name.as_bytes());
        // The first byte tells most names apart, without a call.
        let begins_so = || name.first() == start.first() && name.starts_with(start);
        if self.is_open { start.is_empty() || begins_so() } else { name == start }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, is_open) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if (start.is_empty() && !is_open) || !start.chars().all(is_name) {
            return Err(format!(
                "{text:?} is not a name, and not the beginning of names followed by *"
            ));
        }
        Ok(Self { start: start.into(), is_open })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.start, if self.is_open { "*" } else { "" })
    }
}

/// One permission, as it is written in flags and files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right {
    /// `all`
    All,
    /// `admin`
    Admin,
    /// `monitor`
    Monitor,
    /// `pub:TOPIC`
    Publish(Pattern),
    /// `sub:TOPIC`
    Hear(Pattern),
    /// `group:GROUP`
    Work(Pattern),
    /// `job:JOB`
    Job(Pattern),
    /// `every`, `prio`, `hub`
    Power(Power),
    /// `url:PREFIX`
    Url(Box<Prefix>),
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let right = match text.split_once(':') {
            None => match text {
                "all" => Self::All,
                "admin" => Self::Admin,
                "monitor" => Self::Monitor,
                "every" => Self::Power(Power::Every),
                "prio" => Self::Power(Power::Prio),
                "hub" => Self::Power(Power::Hub),
                _ => return Err(unknown(text)),
            },
            Some(("pub", topics)) => Self::Publish(topics.parse()?),
            Some(("sub", topics)) => Self::Hear(topics.parse()?),
            Some(("group", groups)) => Self::Work(groups.parse()?),
            Some(("job", jobs)) => Self::Job(jobs.parse()?),
            Some(("url", prefix)) => Self::Url(Box::new(prefix.parse()?)),
            Some(_) => return Err(unknown(text)),
        };
        Ok(right)
    }
}

fn unknown(text: &str) -> String {
    format!(
        "{text:?} is not a permission; expected pub:TOPIC, sub:TOPIC, group:GROUP, job:JOB (a name, or \
         the beginning of names followed by *), url:PREFIX, every, prio, hub, monitor, admin or all"
    )
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Admin => f.write_str("admin"),
            Self::Monitor => f.write_str("monitor"),
            Self::Publish(topics) => write!(f, "pub:{topics}"),
            Self::Hear(topics) => write!(f, "sub:{topics}"),
            Self::Work(groups) => write!(f, "group:{groups}"),
            Self::Job(jobs) => write!(f, "job:{jobs}"),
            Self::Power(power) => f.write_str(power.as_str()),
            Self::Url(prefix) => write!(f, "url:{prefix}"),
        }
    }
}

/// What a client wants to do, as far as permissions depend on it. Borrows everything, so a check
/// allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed<'a> {
    /// Affects no other client: `HELLO`, `PING`, `HELP`, `QUIT`.
    Talk,
    /// To publish on a topic. What depends on the event is checked by [`Rights::allow_event`].
    Publish(&'a str),
    /// To receive the events of a topic.
    Hear(&'a str),
    /// To work for a group, and to answer its tasks.
    Work(&'a str),
    /// To read the state of a group, and what is in it.
    SeeGroup(&'a str),
    /// To do anything with a job.
    Job(&'a str),
    /// To read the state of a job.
    SeeJob(&'a str),
    /// To read the state and settings of a topic.
    SeeTopic(&'a str),
    /// To read any other state of the broker.
    Monitor,
    /// To change what other clients rely on.
    Admin,
}

impl<'a> Deed<'a> {
    /// The action of a command. What its options add is checked by [`Rights::allow_options`].
    ///
    /// An unknown action of `TOPIC`, `GROUP` or `JOB` needs a permission, too.
    pub(crate) fn of(command: &'a Command<'a>) -> Self {
        match command {
            Command::Hello(_) | Command::Ping | Command::Help | Command::Quit => Self::Talk,
            Command::Pub { topic, .. } => Self::Publish(topic),
            Command::Sub { topic, .. } | Command::Seen { topic, .. } | Command::Unsub { topic } => {
                Self::Hear(topic.as_str())
            }
            Command::Join { group, .. } => Self::Work(group.as_str()),
            Command::Link { task, .. }
            | Command::Ack { task, .. }
            | Command::Nack { task, .. }
            | Command::Touch { task, .. } => Self::Work(task.group.as_str()),
            Command::Topic(manage) => Self::of_topic(manage),
            Command::Group(manage) => Self::of_group(manage),
            Command::Job(manage) => Self::of_job(manage),
            Command::Explain { .. } | Command::Stats => Self::Monitor,
        }
    }

    fn of_topic(manage: &Manage<'a>) -> Self {
        match (manage.action, manage.name) {
            ("ls", _) | ("show", None) => Self::Monitor,
            ("show", Some(topic)) => Self::SeeTopic(topic),
            _ => Self::Admin,
        }
    }

    fn of_group(manage: &Manage<'a>) -> Self {
        match (manage.action, manage.name) {
            ("ls", _) => Self::Monitor,
            ("show" | "watch" | "tasks" | "keys" | "schedules" | "dead", group) => {
                group.map_or(Self::Monitor, Self::SeeGroup)
            }
            _ => Self::Admin,
        }
    }

    fn of_job(manage: &Manage<'a>) -> Self {
        match (manage.action, manage.name) {
            ("ls", _) => Self::Monitor,
            ("show" | "wait" | "watch", job) => job.map_or(Self::Monitor, Self::SeeJob),
            (_, Some(job)) => Self::Job(job),
            (_, None) => Self::Admin,
        }
    }
}

impl fmt::Display for Deed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Talk => f.write_str("send this command"),
            Self::Publish(topic) => write!(f, "publish on {topic} (pub:{topic})"),
            Self::Hear(topic) => write!(f, "receive {topic} (sub:{topic})"),
            Self::Work(group) => write!(f, "work for {group} (group:{group})"),
            Self::SeeGroup(group) => {
                write!(f, "read the state of {group} (group:{group} or monitor)")
            }
            Self::Job(job) => write!(f, "use the job {job} (job:{job})"),
            Self::SeeJob(job) => {
                write!(f, "read the state of the job {job} (job:{job} or monitor)")
            }
            Self::SeeTopic(topic) => {
                write!(f, "read the state of {topic} (sub:{topic} or monitor)")
            }
            Self::Monitor => f.write_str("read the state of the broker (monitor)"),
            Self::Admin => f.write_str("change topics and groups (admin)"),
        }
    }
}

/// All that a principal may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    allow: Vec<Right>,
    deny: Vec<Right>,
    /// The privileged attributes that follow from `allow` and `deny`. They are computed once,
    /// because every event is checked against them.
    powers: Powers,
    /// Whether a `url:` permission restricts what may be published; also computed once.
    is_about_urls: bool,
}

impl Rights {
    /// What is allowed, except what is denied.
    pub fn new(allow: Vec<Right>, deny: Vec<Right>) -> Self {
        let has_power = |power: &Power| {
            allow.iter().any(|right| right.gives(*power))
                && !deny.iter().any(|right| right.takes(*power))
        };
        let powers = Power::ALL.into_iter().filter(has_power).collect();
        let is_about_urls = allow.iter().chain(&deny).any(|right| matches!(right, Right::Url(_)));
        Self { allow, deny, powers, is_about_urls }
    }

    /// Everything.
    pub fn all() -> Self {
        Self::new(vec![Right::All], Vec::new())
    }

    /// Adds permission to publish to a topic and to receive its events.
    pub(super) fn with_topic(&self, topic: &TopicName) -> Self {
        if self.is_unlimited() {
            return self.clone();
        }
        let topic = Pattern { start: topic.as_str().into(), is_open: false };
        let more = [Right::Publish(topic.clone()), Right::Hear(topic)];
        Self::new([&self.allow[..], &more].concat(), self.deny.clone())
    }

    /// What is allowed, in the order of the configuration.
    pub fn allowed(&self) -> &[Right] {
        &self.allow
    }

    /// What is denied, which overrides what is allowed.
    pub fn denied(&self) -> &[Right] {
        &self.deny
    }

    /// Whether it allows nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.allow.is_empty()
    }

    /// Whether it allows everything, so that no check is needed.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.deny.is_empty() && matches!(self.allow[..], [Right::All])
    }

    /// Whether an action is allowed, as far as that does not depend on options and events.
    pub(crate) fn allow(&self, deed: Deed<'_>) -> bool {
        deed == Deed::Talk
            || self.allow.iter().any(|right| right.covers(deed))
                && !self.deny.iter().any(|right| right.forbids(deed))
    }

    /// Whether it allows to open some job.
    pub(crate) fn allow_some_job(&self) -> bool {
        let allowed = |right: &Right| matches!(right, Right::All | Right::Job(_));
        self.allow.iter().any(allowed) && !self.deny.contains(&Right::All)
    }

    /// Whether an attribute with this value is allowed; `job=` depends on the job.
    pub(crate) fn allow_attribute(&self, power: Power, value: &str) -> bool {
        self.allow_power(power) || (power == Power::Job && self.allow_job(value))
    }

    /// Whether events may belong to this job.
    fn allow_job(&self, job: &str) -> bool {
        let is_of_it = |right: &Right| match right {
            Right::All | Right::Power(Power::Job) => true,
            Right::Job(jobs) => jobs.has(job),
            _ => false,
        };
        self.allow.iter().any(is_of_it) && !self.deny.iter().any(is_of_it)
    }

    /// Whether a privileged attribute is allowed without restriction; for `job`, with all jobs.
    pub(crate) fn allow_power(&self, power: Power) -> bool {
        self.powers.has(power)
    }

    /// Whether every event is allowed on a topic on which the principal may publish, so that no
    /// single one needs a check.
    pub(crate) fn allow_every_event(&self) -> bool {
        !self.is_about_urls && self.powers == Powers::ALL
    }

    /// Whether the target of an event is below an allowed prefix, if there are prefixes.
    pub(crate) fn allow_target(&self, target: Option<&str>) -> bool {
        if !self.is_about_urls {
            return true;
        }
        // Text has no URL, but a principal that is limited to URLs may publish nothing
        // else.
        let Some(url) = target.and_then(|target| CanonicalUrl::parse(target).ok()) else {
            return false;
        };
        let has = |right: &Right| matches!(right, Right::Url(prefix) if prefix.has(&url));
        let is_any = !self.allow.iter().any(|right| matches!(right, Right::Url(_)));
        let is_allowed = is_any || self.allow.iter().any(has);
        is_allowed && !self.deny.iter().any(has)
    }

    /// Checks an event apart from its topic. The error says what is not allowed.
    pub(crate) fn allow_event(&self, payload: &str) -> Result<(), String> {
        let mut named = Power::named_in(payload);
        let attributes_allowed = named.all(|(power, value)| self.allow_attribute(power, value));
        if attributes_allowed && !self.is_about_urls {
            return Ok(());
        }
        let payload = Payload::parse(payload);
        if !self.allow_target(payload.target()) {
            return Err("publish that target (url: permissions limit the targets)".to_owned());
        }
        let attributes = payload.attributes().take_while(|_| !attributes_allowed);
        for (key, value) in attributes {
            if let Some(power) = Power::of_attribute(key)
                && !self.allow_attribute(power, value)
            {
                return Err(give(power, key, value));
            }
        }
        Ok(())
    }

    /// Checks the options of a command. The error says what is not allowed.
    pub(crate) fn allow_options(&self, command: &Command<'_>) -> Result<(), String> {
        if let Command::Group(manage) = command {
            return self.allow_feeding(manage);
        }
        let Command::Job(manage) = command else { return Ok(()) };
        for (key, value) in &manage.settings {
            if *key == "url" && !self.allow_target(Some(value)) {
                return Err("publish that target (url: permissions limit the targets)".to_owned());
            }
            if let Some(power @ (Power::Every | Power::Prio)) = Power::of_attribute(key)
                && !self.allow_attribute(power, value)
            {
                return Err(give(power, key, value));
            }
        }
        Ok(())
    }

    /// A principal that lets a group read a topic could then read the topic through the group.
    fn allow_feeding(&self, manage: &Manage<'_>) -> Result<(), String> {
        let topics = manage.settings.iter().filter(|(key, _)| *key == "topics");
        let reads_default = manage.action == "create" && manage.setting("topics").is_none();
        let topics = topics.flat_map(|(_, topics)| topics.split(','));
        let mut topics = topics.chain(reads_default.then_some(DEFAULT_TOPIC));
        let denied = topics.find(|topic| !self.allow(Deed::Hear(topic)));
        denied.map_or(Ok(()), |topic| Err(Deed::Hear(topic).to_string()))
    }
}

fn give(power: Power, key: &str, value: &str) -> String {
    match power {
        Power::Job => format!("publish with job={value} (job:{value})"),
        _ => format!("use {key}= ({})", power.as_str()),
    }
}

impl Right {
    /// Whether denying this permission denies the action. A principal that is denied `admin` may
    /// still read.
    fn forbids(&self, deed: Deed<'_>) -> bool {
        match self {
            Self::Admin => matches!(deed, Deed::Admin),
            _ => self.covers(deed),
        }
    }

    /// Whether it allows a privileged attribute without restriction.
    fn gives(&self, power: Power) -> bool {
        match self {
            Self::All => true,
            Self::Job(jobs) => power == Power::Job && jobs.is_any(),
            Self::Power(given) => *given == power,
            _ => false,
        }
    }

    /// Whether denying it takes the attribute away. `job` covers all jobs, so denying one of them
    /// is enough.
    fn takes(&self, power: Power) -> bool {
        self.gives(power) || (power == Power::Job && matches!(self, Self::Job(_)))
    }

    /// Whether it allows the action.
    fn covers(&self, deed: Deed<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Admin => matches!(
                deed,
                Deed::Admin
                    | Deed::Monitor
                    | Deed::SeeGroup(_)
                    | Deed::SeeJob(_)
                    | Deed::SeeTopic(_)
            ),
            Self::Monitor => matches!(
                deed,
                Deed::Monitor | Deed::SeeGroup(_) | Deed::SeeJob(_) | Deed::SeeTopic(_)
            ),
            Self::Publish(topics) => matches!(deed, Deed::Publish(topic) if topics.has(topic)),
            Self::Hear(topics) => {
                matches!(deed, Deed::Hear(topic) | Deed::SeeTopic(topic) if topics.has(topic))
            }
            Self::Work(groups) => {
                matches!(deed, Deed::Work(group) | Deed::SeeGroup(group) if groups.has(group))
            }
            Self::Job(jobs) => matches!(deed, Deed::Job(job) | Deed::SeeJob(job) if jobs.has(job)),
            Self::Power(_) | Self::Url(_) => false,
        }
    }
}
