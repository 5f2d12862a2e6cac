//! Parses a line into a [`Command`]; the parent module encodes.

mod report;

use std::str::FromStr;

use super::manage::Action;
use super::{CREDIT_DEFAULT, check_name};
use crate::error::bad_argument;
use crate::status::BrowserFields;
use crate::text::quote;
use crate::wire::{first_word, is_word_char, number, words};
use crate::{
    AttributeFilter, Code, Command, Hello, KeyRest, ManageCommand, Outcome, PAYLOAD_BYTES_MAX,
    ProtocolError, RetryMode, TaskAction, TaskId, TaskReply, TaskReport, Token, TopicName, Verb,
    duration,
};

type Parsed<'a> = Result<Command<'a>, ProtocolError>;

pub(crate) fn command(line: &str) -> Parsed<'_> {
    let Some(verb) = Verb::of(line.as_bytes()) else {
        return Err(unknown_command(line));
    };
    let rest = line.get(verb.as_str().len()..).unwrap_or_default();
    match verb {
        Verb::Pub => publish(rest),
        Verb::Link => link(rest),
        Verb::Hello => hello(rest),
        Verb::Sub => subscribe(rest),
        Verb::Seen => seen(rest),
        Verb::Unsub => unsubscribe(rest),
        Verb::Join => join(rest),
        Verb::Ack => ack(rest),
        Verb::Nack => nack(rest),
        Verb::Touch => touch(rest),
        Verb::Group => manage("group", rest).map(Command::Group),
        Verb::Job => manage("job", rest).map(Command::Job),
        Verb::Topic => manage("topic", rest).map(Command::Topic),
        Verb::Explain => explain(rest),
        Verb::Ping => without_arguments(verb, rest, Command::Ping),
        Verb::Stats => without_arguments(verb, rest, Command::Stats),
        Verb::Help => without_arguments(verb, rest, Command::Help),
        Verb::Quit => without_arguments(verb, rest, Command::Quit),
    }
}

/// `rest` is everything behind the verb. Only here is white space part of a field: one space ends
/// the topic, and the payload follows as it is.
fn publish(rest: &str) -> Parsed<'_> {
    let rest = rest.trim_start_matches(' ');
    let Some((topic, payload)) = rest.split_once(' ').filter(|(_, payload)| !payload.is_empty())
    else {
        return Err(bad_argument("PUB needs a topic and a payload: PUB <topic> <payload>"));
    };
    check_name("topic", topic)?;
    check_payload(payload)?;
    Ok(Command::Pub { topic, payload })
}

/// The limit of every payload, however it arrived (`[P1]`).
pub(crate) fn check_payload(payload: &str) -> Result<(), ProtocolError> {
    let length = payload.len();
    if length <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    let text = format!("a payload of {length} bytes is over the limit of {PAYLOAD_BYTES_MAX}");
    Err(ProtocolError::new(Code::TooLong, text))
}

fn hello(rest: &str) -> Parsed<'_> {
    let mut hello = Hello::default();
    for option in options(rest) {
        match option? {
            ("name", value) => set(&mut hello.name, "name", one_word_up_to("name", value, 64)?)?,
            ("token", value) => set(&mut hello.token, "token", Token::new(value)?)?,
            ("echo", value) => set(&mut hello.echo, "echo", one_word_up_to("echo", value, 64)?)?,
            ("resume", value) => set(&mut hello.resume, "resume", value.parse()?)?,
            ("via", value) => set(&mut hello.via, "via", one_word_up_to("via", value, 64)?)?,
            (key, _) => {
                let known = ["name", "token", "echo", "resume", "via"];
                return Err(unknown_option("HELLO", key, &known));
            }
        }
    }
    Ok(Command::Hello(hello))
}

fn subscribe(rest: &str) -> Parsed<'_> {
    let (topic, rest) = argument::<TopicName>(rest, "SUB needs a topic: SUB <topic>")?;
    let (mut from, mut cursor, mut takeover) = (None, None, None);
    let mut filter = AttributeFilter::default();
    for option in options(rest) {
        match option? {
            ("from", value) => set(&mut from, "from", value.parse()?)?,
            ("as", value) => set(&mut cursor, "as", value.parse()?)?,
            ("takeover", value) => set(&mut takeover, "takeover", yes_or_no("takeover", value)?)?,
            ("where", value) => filter.push(value.parse()?)?,
            (key, _) => {
                return Err(unknown_option("SUB", key, &["from", "as", "takeover", "where"]));
            }
        }
    }
    Ok(Command::Sub { topic, from, cursor, takeover: takeover.unwrap_or(false), filter })
}

fn seen(rest: &str) -> Parsed<'_> {
    const FORM: &str = "SEEN needs a topic and a seq: SEEN <topic> <seq>";
    let (topic, rest) = argument(rest, FORM)?;
    let (seq, rest) = argument(rest, FORM)?;
    nothing_more(rest, FORM)?;
    Ok(Command::Seen { topic, seq })
}

fn unsubscribe(rest: &str) -> Parsed<'_> {
    const FORM: &str = "UNSUB needs a topic: UNSUB <topic>";
    let (topic, rest) = argument(rest, FORM)?;
    nothing_more(rest, FORM)?;
    Ok(Command::Unsub { topic })
}

fn join(rest: &str) -> Parsed<'_> {
    let (group, rest) = argument(rest, "JOIN needs a group: JOIN <group> [credit=<n>]")?;
    let (mut credit, mut can, mut render) = (None, None, None);
    let mut browsers = BrowserFields::default();
    for option in options(rest) {
        match option? {
            ("credit", value) => set_count(&mut credit, "credit", value)?,
            ("can", value) => set(&mut can, "can", check_abilities(value)?)?,
            ("render", value) => set_count(&mut render, "render", value)?,
            (key, value) if browsers.set(key, value) => {
                number::<u64>(value).ok_or_else(|| not_a_count(key, value))?;
            }
            (key, _) => {
                let known = ["credit", "can", "render", "browsers"];
                return Err(unknown_option("JOIN", key, &known));
            }
        }
    }
    if can.is_none() && render.is_some() {
        return Err(bad_argument("render= needs can=render"));
    }
    if can.is_none() && browsers != BrowserFields::default() {
        return Err(bad_argument("a report about browsers needs can=render"));
    }
    let render = can.map(|()| render.or(credit).unwrap_or(CREDIT_DEFAULT));
    Ok(Command::Join { group, credit, render, browsers })
}

/// The list of what a member can do. There is only one word.
fn check_abilities(list: &str) -> Result<(), ProtocolError> {
    match list.split(',').find(|word| *word != "render") {
        None => Ok(()),
        Some(word) => {
            let (list, word) = (quote(list), quote(word));
            Err(bad_argument(format!("can={list}: {word} is unknown; the only word is render")))
        }
    }
}

fn link(rest: &str) -> Parsed<'_> {
    const FORM: &str = "LINK needs a task and a URL: LINK <id> <url>";
    let (task, rest) = argument(rest, FORM)?;
    let (url, rest) = first_word(rest);
    if url.is_empty() {
        return Err(bad_argument(FORM));
    }
    let (mut kind, mut prio) = (None, None);
    for option in options(rest) {
        match option? {
            ("kind", "redirect") => set(&mut kind, "kind", ())?,
            ("kind", value) => {
                return Err(bad_argument(format!("kind={} should be redirect", quote(value))));
            }
            ("prio", value) => set(&mut prio, "prio", value.parse()?)?,
            (key, _) => return Err(unknown_option("LINK", key, &["kind", "prio"])),
        }
    }
    Ok(Command::Link { task, url, redirect: kind.is_some(), prio })
}

fn ack(rest: &str) -> Parsed<'_> {
    const OPTIONS: [&str; 3] = ["outcome", "not-before", "pace"];
    let (task, rest) = argument(rest, "ACK needs a task: ACK <id> [outcome=..]")?;
    let (mut outcome, mut hold, mut report) = (None, KeyRest::default(), TaskReport::default());
    for option in options(rest) {
        match option? {
            ("outcome", value) => set(&mut outcome, "outcome", value.parse::<Outcome>()?)?,
            ("not-before", value) => set_duration(&mut hold.not_before_ms, "not-before", value)?,
            ("pace", value) => set_duration(&mut hold.pace_ms, "pace", value)?,
            (key, value) if report::read_option(&mut report, key, value)? => {}
            (key, _) => {
                return Err(unknown_option("ACK", key, &[&OPTIONS, &report::OPTIONS[..]].concat()));
            }
        }
    }
    Ok(reply(task, TaskAction::Ack(outcome.unwrap_or_default()), hold, report))
}

fn nack(rest: &str) -> Parsed<'_> {
    const OPTIONS: [&str; 7] = ["after", "count", "retry", "again", "need", "not-before", "pace"];
    let (task, rest) = argument(rest, "NACK needs a task: NACK <id> [after=..]")?;
    let (mut after_ms, mut count, mut retry, mut again, mut need) = (None, None, None, None, None);
    let (mut hold, mut report) = (KeyRest::default(), TaskReport::default());
    for option in options(rest) {
        match option? {
            ("after", value) => set_duration(&mut after_ms, "after", value)?,
            ("count", value) => set(&mut count, "count", yes_or_no("count", value)?)?,
            ("retry", value) => set(&mut retry, "retry", yes_or_no("retry", value)?)?,
            ("again", value) => set(&mut again, "again", value.to_owned())?,
            ("need", "render") => set(&mut need, "need", ())?,
            ("need", value) => {
                return Err(bad_argument(format!("need={} should be render", quote(value))));
            }
            ("not-before", value) => set_duration(&mut hold.not_before_ms, "not-before", value)?,
            ("pace", value) => set_duration(&mut hold.pace_ms, "pace", value)?,
            (key, value) if report::read_option(&mut report, key, value)? => {}
            (key, _) => {
                return Err(unknown_option(
                    "NACK",
                    key,
                    &[&OPTIONS, &report::OPTIONS[..]].concat(),
                ));
            }
        }
    }
    let back = match (again, need, count, after_ms) {
        (None, None, None, None) if retry == Some(false) => RetryMode::Never,
        _ if retry.is_some() => {
            let text = "retry= must be no, without after=, count=, again= and need=";
            return Err(bad_argument(text));
        }
        (Some(url), None, None, None) => RetryMode::OtherUrl { url },
        (None, Some(()), None, None) => RetryMode::NeedsRender,
        (None, None, Some(false), after_ms) => RetryMode::Uncounted { after_ms },
        (None, None, _, after_ms) => RetryMode::Counted { after_ms },
        (again, ..) => {
            let key = if again.is_some() { "again" } else { "need" };
            let text = format!("{key}= cannot be combined with after=, count=, again= or need=");
            return Err(bad_argument(text));
        }
    };
    Ok(reply(task, TaskAction::Nack(back), hold, report))
}

fn touch(rest: &str) -> Parsed<'_> {
    let (task, rest) = argument(rest, "TOUCH needs a task: TOUCH <id> [over=yes]")?;
    let (mut over, mut part, mut hold) = (None, None, KeyRest::default());
    for option in options(rest) {
        match option? {
            ("over", value) => set(&mut over, "over", yes_or_no("over", value)?)?,
            ("part", value) => set(&mut part, "part", value.to_owned())?,
            ("not-before", value) => set_duration(&mut hold.not_before_ms, "not-before", value)?,
            ("pace", value) => set_duration(&mut hold.pace_ms, "pace", value)?,
            (key, _) => {
                return Err(unknown_option("TOUCH", key, &["over", "part", "not-before", "pace"]));
            }
        }
    }
    let action = match (part, over) {
        (Some(url), None) => TaskAction::Part { url },
        (Some(_), Some(_)) => return Err(bad_argument("part= cannot be combined with over=")),
        (None, over) => TaskAction::Touch { request_ended: over.unwrap_or(false) },
    };
    Ok(reply(task, action, hold, TaskReport::default()))
}

fn reply<'a>(task: TaskId, action: TaskAction, rest: KeyRest, report: TaskReport) -> Command<'a> {
    let report = (report != TaskReport::default()).then(|| report.into());
    Command::Reply(TaskReply { task, action, rest, report })
}

fn manage<'a, A: Action<'a>>(
    what: &str,
    rest: &'a str,
) -> Result<ManageCommand<'a, A>, ProtocolError> {
    let (action, rest) = first_word(rest);
    if action.is_empty() || !action.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
        return Err(bad_argument(format!(
            "expected an action in lower case, such as ls or show <{what}>"
        )));
    }
    let (word, after) = first_word(rest);
    let (name, rest) = match word {
        "" => (None, ""),
        setting if setting.contains('=') => (None, rest),
        name => {
            check_name(what, name)?;
            (Some(name), after)
        }
    };
    let mut settings: Vec<(&str, &str)> = Vec::new();
    for option in options(rest) {
        let (key, value) = option?;
        // Only conditions are given one by one.
        if key != "where" && settings.iter().any(|(other, _)| *other == key) {
            return Err(twice(key));
        }
        settings.push((key, value));
    }
    Ok(ManageCommand { action: A::of(action), name, settings })
}

fn explain(rest: &str) -> Parsed<'_> {
    let (what, rest) = first_word(rest);
    if what.is_empty() {
        return Err(bad_argument("EXPLAIN needs a URL or a key: EXPLAIN <url|key> [group=..]"));
    }
    let mut group = None;
    for option in options(rest) {
        match option? {
            ("group", value) => set(&mut group, "group", value.parse()?)?,
            (key, _) => return Err(unknown_option("EXPLAIN", key, &["group"])),
        }
    }
    Ok(Command::Explain { what, group })
}

fn without_arguments<'a>(verb: Verb, rest: &str, command: Command<'a>) -> Parsed<'a> {
    let (word, _) = first_word(rest);
    if word.is_empty() {
        return Ok(command);
    }
    Err(bad_argument(format!("{} takes no arguments", verb.as_str())))
}

fn unknown_command(line: &str) -> ProtocolError {
    let (word, _) = first_word(line);
    let upper = word.to_ascii_uppercase();
    let hint = match Verb::of(upper.as_bytes()) {
        Some(verb) if line.starts_with(verb.as_str()) => {
            format!("a space, and no TAB, follows {word}")
        }
        Some(verb) => {
            format!("write commands in upper case at the beginning of the line: {}", verb.as_str())
        }
        None => "HELP lists the commands".to_owned(),
    };
    ProtocolError::new(Code::UnknownCommand, format!("{} is not a command; {hint}", quote(word)))
}

/// The next word as a typed argument, and what follows it.
fn argument<'a, T>(rest: &'a str, form: &str) -> Result<(T, &'a str), ProtocolError>
where
    T: FromStr<Err = ProtocolError>,
{
    match first_word(rest) {
        ("", _) => Err(bad_argument(form)),
        (word, rest) => Ok((word.parse()?, rest)),
    }
}

fn nothing_more(rest: &str, form: &str) -> Result<(), ProtocolError> {
    if rest.is_empty() { Ok(()) } else { Err(bad_argument(form)) }
}

/// The remaining words; each must be `key=value`, with a key and a value.
fn options(rest: &str) -> impl Iterator<Item = Result<(&str, &str), ProtocolError>> {
    words(rest).map(|word| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        Some((key, _)) if !key.is_empty() => {
            Err(bad_argument(format!("{} needs a value", quote(&format!("{key}=")))))
        }
        _ => Err(bad_argument(format!("{} should be an option like key=value", quote(word)))),
    })
}

fn set<T>(option: &mut Option<T>, key: &str, value: T) -> Result<(), ProtocolError> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(twice(key)),
    }
}

fn set_count(option: &mut Option<u32>, key: &str, value: &str) -> Result<(), ProtocolError> {
    let count = number(value).ok_or_else(|| not_a_count(key, value))?;
    set(option, key, count)
}

fn not_a_count(key: &str, value: &str) -> ProtocolError {
    bad_argument(format!("{key}={} should be a whole number from 0", quote(value)))
}

fn set_duration(option: &mut Option<u64>, key: &str, value: &str) -> Result<(), ProtocolError> {
    let ms = duration::parse_ms(value)
        .map_err(|error| bad_argument(format!("{key}={}: {error}", quote(value))))?;
    set(option, key, ms)
}

pub(crate) fn yes_or_no(key: &str, value: &str) -> Result<bool, ProtocolError> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(bad_argument(format!("{key}={} should be yes or no", quote(value)))),
    }
}

/// A free text of one word with a limit in bytes.
pub(crate) fn one_word_up_to(
    key: &str,
    value: &str,
    bytes_max: usize,
) -> Result<String, ProtocolError> {
    if !value.is_empty() && value.len() <= bytes_max && value.chars().all(is_word_char) {
        return Ok(value.to_owned());
    }
    Err(bad_argument(format!("{key}= should be one word of 1 to {bytes_max} bytes")))
}

pub(crate) fn unknown_option(of: &str, key: &str, known: &[&str]) -> ProtocolError {
    let known = match known {
        [] => "no options".to_owned(),
        known => known.join("=, ") + "=",
    };
    bad_argument(format!("{}= is not an option of {of}, which takes {known}", quote(key)))
}

fn twice(key: &str) -> ProtocolError {
    bad_argument(format!("{}= is given twice", quote(key)))
}

#[cfg(test)]
mod tests;
