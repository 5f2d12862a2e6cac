//! The commands of a client, with the grammar of each variant.

mod key_rule;
mod manage;
pub(crate) mod parse;
mod settings;
mod task_reply;
mod task_report;

use std::fmt;
use std::str::FromStr;

use bytes::BufMut;
use jiff::Timestamp;

pub use self::key_rule::RuleSettings;
pub use self::manage::{
    Action, GroupAction, GroupCommand, JobAction, JobCommand, ManageCommand, TopicAction,
    TopicCommand,
};
pub use self::settings::{
    DELAY_MS_MAX, EntrySelection, JobQuery, KeyQuery, ListRange, PARALLEL_MAX, ScheduleQuery,
    TaskQuery, WaitingAction, WaitingChange, duration_within, whole_number,
};
pub use self::task_reply::{KeyRest, RetryMode, TaskAction, TaskReply};
pub use self::task_report::{PageChange, TaskReport};
use crate::status::BrowserFields;
use crate::text::quote;
use crate::wire::{LineWriter, number};
use crate::{
    AttributeFilter, CursorName, GroupName, MemberId, ProtocolError, Seq, TaskId, TopicName, Verb,
    bad_argument, names,
};

/// The credit of a `JOIN` without `credit=`.
pub const CREDIT_DEFAULT: u32 = 1;

/// One line of a client. `parse` and `encode` are inverse to each other.
///
/// In the grammar below `[..]` is optional and options may stand in any order, each at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// `HELLO [name=..] [token=..] [echo=..] [resume=..] [via=..]`: logs in, and requests the
    /// broker's version and clock.
    Hello(Hello),
    /// `PUB <topic> <payload>`: publishes one event.
    ///
    /// Borrows everything: the hot path neither allocates nor copies.
    Pub {
        /// A valid topic name (checked, not allocated).
        topic: &'a str,
        /// Everything after the one space behind the topic; 1 to 60 KiB, not empty.
        payload: &'a str,
    },
    /// `SUB <topic> [from=..] [as=<cursor>] [takeover=yes] [where=.. ..]`: receives the events of a
    /// topic.
    Sub {
        /// The topic; created if it does not exist.
        topic: TopicName,
        /// Where to begin. Without it, with the next event.
        from: Option<StartAt>,
        /// A durable cursor. If it exists, it decides where to begin.
        cursor: Option<CursorName>,
        /// Takes the cursor from the connection that holds it.
        takeover: bool,
        /// Which events to receive. The only option that may be repeated.
        filter: AttributeFilter,
    },
    /// `SEEN <topic> <seq>`: moves the durable cursor up to and including `seq`.
    Seen {
        /// The subscribed topic.
        topic: TopicName,
        /// The last event that is done.
        seq: Seq,
    },
    /// `UNSUB <topic>`: ends the subscription.
    Unsub {
        /// The subscribed topic.
        topic: TopicName,
    },
    /// `JOIN <group> [credit=<n>] [can=render [render=<n>] [browsers=<n> ..]]`: takes tasks, or
    /// changes the credit.
    Join {
        /// The group to work for.
        group: GroupName,
        /// The largest number of held tasks; `0` drains. Without it, [`CREDIT_DEFAULT`].
        credit: Option<u32>,
        /// `can=render`: the member has a browser, and this is the largest number of held tasks
        /// that need one; the credit without `render=`.
        render: Option<u32>,
        /// What it reports about its browsers.
        browsers: BrowserFields,
    },
    /// `LINK <task> <url> [kind=redirect] [prio=<n>]`: stages a child of a task. Never answered.
    Link {
        /// The task of the page with the link.
        task: TaskId,
        /// An absolute URL, as one word. The broker checks it when the task is acknowledged.
        url: &'a str,
        /// `kind=redirect`: the task's own request was redirected there.
        redirect: bool,
        /// The priority; the job's default without it.
        prio: Option<Prio>,
    },
    /// `ACK`, `NACK`, `TOUCH`: what a worker replies about a task that it holds.
    Reply(TaskReply),
    /// `GROUP <action> [<name>] [key=value ..]`: creates, configures and shows groups.
    Group(GroupCommand<'a>),
    /// `JOB <action> [<name>] [key=value ..]`: opens, closes, watches and cancels jobs.
    Job(JobCommand<'a>),
    /// `TOPIC <action> [<name>] [key=value ..]`: creates, configures and shows topics.
    Topic(TopicCommand<'a>),
    /// `EXPLAIN <url|key> [group=..]`: why a URL or key waits, and until when.
    Explain {
        /// A URL or a key, as one word.
        what: &'a str,
        /// The group; the default one without it.
        group: Option<GroupName>,
    },
    /// `PING`: answered with the broker's clock.
    Ping,
    /// `STATS`: counters.
    Stats,
    /// `HELP`: a list of the commands.
    Help,
    /// `QUIT`: sends pending answers, then closes.
    Quit,
}

impl<'a> Command<'a> {
    /// Reads one line without its line end, which has passed [`text::check`](crate::text::check).
    ///
    /// The error says what is expected.
    pub fn parse(line: &'a str) -> Result<Self, ProtocolError> {
        parse::command(line)
    }

    /// Which command it is.
    pub fn verb(&self) -> Verb {
        match self {
            Command::Hello(_) => Verb::Hello,
            Command::Pub { .. } => Verb::Pub,
            Command::Sub { .. } => Verb::Sub,
            Command::Seen { .. } => Verb::Seen,
            Command::Unsub { .. } => Verb::Unsub,
            Command::Join { .. } => Verb::Join,
            Command::Link { .. } => Verb::Link,
            Command::Reply(reply) => reply.verb(),
            Command::Group(_) => Verb::Group,
            Command::Job(_) => Verb::Job,
            Command::Topic(_) => Verb::Topic,
            Command::Explain { .. } => Verb::Explain,
            Command::Ping => Verb::Ping,
            Command::Stats => Verb::Stats,
            Command::Help => Verb::Help,
            Command::Quit => Verb::Quit,
        }
    }

    /// Appends the line and LF.
    ///
    /// Texts are written as they are. A caller that takes them from elsewhere must check the line
    /// with [`text::check`](crate::text::check) and [`parse`](Self::parse), as the client does.
    pub fn encode(&self, out: &mut impl BufMut) {
        let line = LineWriter::new(out, self.verb().as_str());
        let line = match self {
            Command::Hello(hello) => line
                .option_if("name", hello.name.as_ref())
                .option_if("token", hello.token.as_ref().map(Token::secret))
                .option_if("echo", hello.echo.as_ref())
                .option_if("resume", hello.resume)
                .option_if("via", hello.via.as_ref()),
            Command::Pub { topic, payload } => line.word(topic).word(payload),
            Command::Sub { topic, from, cursor, takeover, filter } => {
                let line = line
                    .word(topic.as_str())
                    .option_if("from", *from)
                    .option_if("as", cursor.as_ref())
                    .option_if("takeover", takeover.then_some("yes"));
                let conditions = filter.conditions().iter();
                conditions.fold(line, |line, condition| line.option("where", condition))
            }
            Command::Seen { topic, seq } => line.word(topic.as_str()).number(seq.0),
            Command::Unsub { topic } => line.word(topic.as_str()),
            Command::Join { group, credit, render, browsers } => line
                .word(group.as_str())
                .option_if("credit", *credit)
                .option_if("can", render.map(|_| "render"))
                .option_if("render", *render)
                .put(browsers.words()),
            Command::Link { task, url, redirect, prio } => line
                .task(task)
                .word(url)
                .option_if("kind", redirect.then_some("redirect"))
                .option_if("prio", *prio),
            Command::Reply(reply) => reply.encode(line),
            Command::Group(manage) => manage.encode(line),
            Command::Job(manage) => manage.encode(line),
            Command::Topic(manage) => manage.encode(line),
            Command::Explain { what, group } => line.word(what).option_if("group", group.as_ref()),
            Command::Ping | Command::Stats | Command::Help | Command::Quit => line,
        };
        line.lf();
    }
}

/// The identity of a client. Without any field: a client without a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// A label for people, one word of 1 to 64 bytes.
    pub name: Option<String>,
    /// The token to log in with; 1 to 256 bytes.
    pub token: Option<Token>,
    /// Repeated in the answer, so that the client can recognize it; 1 to 64 bytes.
    pub echo: Option<String>,
    /// The member that this client resumes; its old connection ends.
    pub resume: Option<MemberId>,
    /// The transport from which this client relays messages, and to which it is then limited; a
    /// word of 1 to 64 bytes.
    pub via: Option<String>,
}

/// A secret that logs a client in. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes one word of 1 to 256 bytes.
    pub fn new(secret: &str) -> Result<Self, ProtocolError> {
        parse::one_word_up_to("token", secret, 256).map(Token)
    }

    /// The secret itself.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

partial_debug!(Token {});

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// `first`: the oldest event that is kept.
    First,
    /// `last`: the newest event, and those after it.
    Last,
    /// A seq: that event, and those after it.
    Seq(Seq),
    /// `-n`: the newest n events that exist (n from 1), and those after them.
    Newest(u64),
    /// An RFC 3339 time, in milliseconds since 1970: the first event that is not older.
    Time(i64),
}

impl FromStr for StartAt {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let newest = || text.strip_prefix('-').and_then(number).filter(|n| *n > 0);
        let time = || rfc3339_to_unix_ms(text).filter(|ms| *ms >= 0).map(StartAt::Time);
        match text {
            "first" => Some(StartAt::First),
            "last" => Some(StartAt::Last),
            _ => (text.parse().ok().map(StartAt::Seq))
                .or_else(|| newest().map(StartAt::Newest))
                .or_else(time),
        }
        .ok_or_else(|| {
            let text = quote(text);
            bad_argument(format!(
                "from={text} should be first, last, a number from 1, -n for the newest n, \
                 or a time since 1970 like 2026-01-31T12:00:00Z"
            ))
        })
    }
}

/// Accepts RFC 3339 only. The parser alone would also accept times without separators and with
/// names of time zones.
fn rfc3339_to_unix_ms(text: &str) -> Option<i64> {
    let digit = |c: char| if c.is_ascii_digit() { '0' } else { c.to_ascii_uppercase() };
    let form: String = text.chars().map(digit).collect();
    let rest = form.strip_prefix("0000-00-00T00:00:00")?;
    let zone = match rest.strip_prefix(".0") {
        Some(fraction) => fraction.trim_start_matches('0'),
        None => rest,
    };
    let time = matches!(zone, "Z" | "+00:00" | "-00:00").then(|| text.parse::<Timestamp>())?;
    Some(time.ok()?.as_millisecond())
}

/// As in `from=`. A time outside 1970 to 9999 is shown as the nearest one inside.
impl fmt::Display for StartAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartAt::First => f.write_str("first"),
            StartAt::Last => f.write_str("last"),
            StartAt::Seq(seq) => write!(f, "{seq}"),
            StartAt::Newest(count) => write!(f, "-{count}"),
            StartAt::Time(unix_ms) => {
                let unix_ms = (*unix_ms).clamp(0, Timestamp::MAX.as_millisecond());
                let time = Timestamp::from_millisecond(unix_ms).expect("clamped into the range");
                write!(f, "{time}")
            }
        }
    }
}

word_enum! {
    /// The final outcome of a task.
    #[derive(Default)]
    pub enum Outcome {
        /// `done`: fetched and stored.
        #[default]
        Done = "done",
        /// `redirect`: the answer was a redirect; its target was staged with `kind=redirect`.
        Redirect = "redirect",
        /// `failed`: it could not be fetched, and trying again would not help.
        Failed = "failed",
        /// `robots`: robots.txt does not allow it; no request was made.
        Robots = "robots",
        /// `scope`: refused by the worker's own rules (a private address, a type not wanted).
        Scope = "scope",
        /// `trap`: looks like one of endlessly many generated pages.
        Trap = "trap",
    }
}

impl FromStr for Outcome {
    type Err = ProtocolError;

    fn from_str(word: &str) -> Result<Self, ProtocolError> {
        Self::from_word(word).ok_or_else(|| {
            let word = quote(word);
            bad_argument(format!(
                "outcome={word} should be done, redirect, failed, robots, scope or trap"
            ))
        })
    }
}

/// A priority: -1000 to 1000, higher first, 0 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Prio(i16);

impl Prio {
    /// The largest distance from 0.
    pub const LIMIT: i16 = 1000;

    /// `None` outside -1000 to 1000.
    pub const fn new(value: i16) -> Option<Self> {
        if -Prio::LIMIT <= value && value <= Prio::LIMIT { Some(Prio(value)) } else { None }
    }

    /// The value.
    pub const fn value(self) -> i16 {
        self.0
    }
}

impl fmt::Display for Prio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Prio {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        number::<i16>(digits)
            .map(|value| if digits.len() < text.len() { -value } else { value })
            .and_then(Prio::new)
            .ok_or_else(|| {
                let text = quote(text);
                bad_argument(format!("prio={text} should be a whole number from -1000 to 1000"))
            })
    }
}

/// Whether a word can be the name of a topic, group, job or cursor.
pub(crate) fn check_name(what: &str, word: &str) -> Result<(), ProtocolError> {
    if names::is_name(word) { Ok(()) } else { Err(names::bad_name(what, word)) }
}
