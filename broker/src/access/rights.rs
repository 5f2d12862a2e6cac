//! What somebody may do: a list of rights, and a list of what is denied all the same. Pure.
//!
//! | right | to |
//! |---|---|
//! | `pub:TOPIC` | publish there |
//! | `sub:TOPIC` | hear it: `SUB`, `SEEN`, `UNSUB`, and reading it by HTTP |
//! | `group:GROUP` | work for the group, and see what is in it |
//! | `job:JOB` | open such jobs, add to them, watch, close, cancel and delete them; publish with `job=` |
//! | `every`, `prio`, `hub` | the attributes of these names, wherever they are given |
//! | `url:PREFIX` | announce what lies below it; with none of these, any URL |
//! | `monitor` | see what there is and how it goes: `STATS`, `EXPLAIN`, lists, and what waits in groups |
//! | `admin` | change topics and groups (and have them fed by topics that it may hear), and `monitor` |
//! | `all` | everything |
//!
//! `TOPIC`, `GROUP` and `JOB` are a name, or the beginning of names with `*` behind it. What is denied is
//! denied whatever is allowed.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::{CanonicalUrl, Command, DEFAULT_TOPIC, Manage, Payload, TopicName};

use super::prefix::Prefix;
use super::way::{Power, Powers};

/// The names that a right is about: one, or all that begin so.
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
        // The first byte tells most apart, without a call.
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
            return Err(format!("{text:?} is no name, and no beginning of names with * behind it"));
        }
        Ok(Self { start: start.into(), is_open })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.start, if self.is_open { "*" } else { "" })
    }
}

/// One right, as it is written in flags and files.
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
        "{text:?} is no right; there are pub:TOPIC, sub:TOPIC, group:GROUP, job:JOB (a name, or a beginning of \
         names with * behind it), url:PREFIX, every, prio, hub, monitor, admin and all"
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

/// What somebody wants to do, as far as rights depend on it. Borrows everything: to ask costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed<'a> {
    /// What does nothing to anybody: saying who one is, `PING`, `HELP`, `QUIT`.
    Talk,
    /// To publish there, as far as that depends on the topic. What depends on the event is asked
    /// by [`Rights::announces`].
    Publish(&'a str),
    /// To hear a topic.
    Hear(&'a str),
    /// To work for a group, and to answer its tasks.
    Work(&'a str),
    /// To see how a group goes, and what is in it.
    SeeGroup(&'a str),
    /// To do anything with a job.
    Job(&'a str),
    /// To see how a job goes.
    SeeJob(&'a str),
    /// To see a topic from outside.
    SeeTopic(&'a str),
    /// To see what else there is.
    Monitor,
    /// To change what others rest on.
    Admin,
}

impl<'a> Deed<'a> {
    /// What a command does. What its options add is asked by [`Rights::allow_options`].
    ///
    /// An action that is not known here is one that is not allowed to everybody.
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
            Self::Talk => f.write_str("talk"),
            Self::Publish(topic) => write!(f, "publish on {topic} (pub:{topic})"),
            Self::Hear(topic) => write!(f, "hear {topic} (sub:{topic})"),
            Self::Work(group) => write!(f, "work for {group} (group:{group})"),
            Self::SeeGroup(group) => write!(f, "see {group} (group:{group} or monitor)"),
            Self::Job(job) => write!(f, "have to do with the job {job} (job:{job})"),
            Self::SeeJob(job) => write!(f, "see the job {job} (job:{job} or monitor)"),
            Self::SeeTopic(topic) => write!(f, "see {topic} (sub:{topic} or monitor)"),
            Self::Monitor => f.write_str("see that (monitor)"),
            Self::Admin => f.write_str("do that (admin)"),
        }
    }
}

/// All that somebody may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    allow: Vec<Right>,
    deny: Vec<Right>,
    /// Powers over everybody that follow from these. Every event is asked about them.
    powers: Powers,
    /// Whether it matters what is announced, which follows from them, too.
    is_about_urls: bool,
}

impl Rights {
    /// These, but for what is denied.
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

    /// These, and to hear and publish to that topic.
    pub(super) fn with_topic(&self, topic: &TopicName) -> Self {
        if self.is_unlimited() {
            return self.clone();
        }
        let topic = Pattern { start: topic.as_str().into(), is_open: false };
        let more = [Right::Publish(topic.clone()), Right::Hear(topic)];
        Self::new([&self.allow[..], &more].concat(), self.deny.clone())
    }

    /// What is allowed, in the order in which it was given.
    pub fn allowed(&self) -> &[Right] {
        &self.allow
    }

    /// What is denied whatever is allowed.
    pub fn denied(&self) -> &[Right] {
        &self.deny
    }

    /// Whether there is nothing at all that it allows.
    pub(crate) fn is_empty(&self) -> bool {
        self.allow.is_empty()
    }

    /// Whether nothing needs to be asked.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.deny.is_empty() && matches!(self.allow[..], [Right::All])
    }

    /// Whether it may be done, as far as that does not depend on options and events.
    pub(crate) fn allow(&self, deed: Deed<'_>) -> bool {
        deed == Deed::Talk
            || self.allow.iter().any(|right| right.covers(deed))
                && !self.deny.iter().any(|right| right.forbids(deed))
    }

    /// Whether there is a job that may be opened.
    pub(crate) fn allow_some_job(&self) -> bool {
        let allowed = |right: &Right| matches!(right, Right::All | Right::Job(_));
        self.allow.iter().any(allowed) && !self.deny.contains(&Right::All)
    }

    /// Whether an attribute may be given; `job=` depends on which.
    pub(crate) fn allow_attribute(&self, power: Power, value: &str) -> bool {
        self.allow_power(power) || (power == Power::Job && self.allow_job(value))
    }

    /// Whether events may be part of that job.
    fn allow_job(&self, job: &str) -> bool {
        let is_of_it = |right: &Right| match right {
            Right::All | Right::Power(Power::Job) => true,
            Right::Job(jobs) => jobs.has(job),
            _ => false,
        };
        self.allow.iter().any(is_of_it) && !self.deny.iter().any(is_of_it)
    }

    /// Whether somebody has a power over everybody: of `job`, over all jobs.
    pub(crate) fn allow_power(&self, power: Power) -> bool {
        self.powers.has(power)
    }

    /// Whether every event may be published on a topic to which one may publish, so that none of them need be looked at.
    pub(crate) fn allow_every_event(&self) -> bool {
        !self.is_about_urls && self.powers == Powers::ALL
    }

    /// Whether what is announced lies below a prefix, if there are any.
    pub(crate) fn allow_target(&self, target: Option<&str>) -> bool {
        if !self.is_about_urls {
            return true;
        }
        // A text is no URL to fetch, but whoever is bound to URLs says nothing else.
        let Some(url) = target.and_then(|target| CanonicalUrl::parse(target).ok()) else {
            return false;
        };
        let has = |right: &Right| matches!(right, Right::Url(prefix) if prefix.has(&url));
        let is_any = !self.allow.iter().any(|right| matches!(right, Right::Url(_)));
        let is_allowed = is_any || self.allow.iter().any(has);
        is_allowed && !self.deny.iter().any(has)
    }

    /// Whether the event itself may be announced. Says what is in the way.
    pub(crate) fn allow_event(&self, payload: &str) -> Result<(), String> {
        let mut named = Power::named_in(payload);
        let is_powerless = named.all(|(power, value)| self.allow_attribute(power, value));
        if is_powerless && !self.is_about_urls {
            return Ok(());
        }
        let payload = Payload::parse(payload);
        if !self.allow_target(payload.target()) {
            return Err("announce that (url: names what may be announced)".to_owned());
        }
        let attributes = payload.attributes().take_while(|_| !is_powerless);
        for (key, value) in attributes {
            if let Some(power) = Power::of_attribute(key)
                && !self.allow_attribute(power, value)
            {
                return Err(give(power, key, value));
            }
        }
        Ok(())
    }

    /// Whether the options of a command are allowed, beside what it does.
    pub(crate) fn allow_options(&self, command: &Command<'_>) -> Result<(), String> {
        if let Command::Group(manage) = command {
            return self.allow_feeding(manage);
        }
        let Command::Job(manage) = command else { return Ok(()) };
        for (key, value) in &manage.settings {
            if *key == "url" && !self.allow_target(Some(value)) {
                return Err("announce that (url: names what may be announced)".to_owned());
            }
            if let Some(power @ (Power::Every | Power::Prio)) = Power::of_attribute(key)
                && !self.allow_attribute(power, value)
            {
                return Err(give(power, key, value));
            }
        }
        Ok(())
    }

    /// Whoever has a group read a topic could read it himself then.
    fn allow_feeding(&self, manage: &Manage<'_>) -> Result<(), String> {
        let topics = manage.settings.iter().filter(|(key, _)| *key == "topics");
        let is_silent = manage.action == "create" && manage.setting("topics").is_none();
        let topics = topics.flat_map(|(_, topics)| topics.split(','));
        let mut topics = topics.chain(is_silent.then_some(DEFAULT_TOPIC));
        let unheard = topics.find(|topic| !self.allow(Deed::Hear(topic)));
        unheard.map_or(Ok(()), |topic| Err(Deed::Hear(topic).to_string()))
    }
}

fn give(power: Power, key: &str, value: &str) -> String {
    match power {
        Power::Job => format!("publish with job={value} (job:{value})"),
        _ => format!("give {key}= ({})", power.as_str()),
    }
}

impl Right {
    /// Whether its denial is one of that. Who may not change anything may still see it.
    fn forbids(&self, deed: Deed<'_>) -> bool {
        match self {
            Self::Admin => matches!(deed, Deed::Admin),
            _ => self.covers(deed),
        }
    }

    /// Whether it is a right to a power over everybody.
    fn gives(&self, power: Power) -> bool {
        match self {
            Self::All => true,
            Self::Job(jobs) => power == Power::Job && jobs.is_any(),
            Self::Power(given) => *given == power,
            _ => false,
        }
    }

    /// Whether its denial leaves no such power: over all jobs there is none without one of them.
    fn takes(&self, power: Power) -> bool {
        self.gives(power) || (power == Power::Job && matches!(self, Self::Job(_)))
    }

    /// Whether it is a right to do that.
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
