//! `tidings host block`, `pause` and `slow`: give a host a rule.

use clap::Args;
use jiff::Timestamp;
use tidings_protocol::status::{RuleFields, RuleStatus};
use tidings_protocol::{DEFAULT_GROUP, GroupAction, GroupCommand, format_ms};

use super::{HostArgs, NAME};
use crate::client::broker_message::flag_value_error;
use crate::client::manage::{BrokerClient, json_line};
use crate::commands::group::command;
use crate::commands::group::tasks::duration;
use crate::flags::parse_time;
use crate::process::signals::stop_on_signal;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

pub(super) const BLOCK_EXAMPLES: &str = "\
Examples:
  tidings host block example.org
  tidings host block '*.example.org' --note abuse-2381
  tidings host block example.org --until 2026-12-01T00:00Z

Nothing is requested from the host any more, not even robots.txt or parts of rendered pages. Its
waiting URLs end as blocked, in all jobs, and so do new ones. The command returns when the requests
under way have ended: from then on the host gets none. Ctrl-C ends only the waiting.

Exit codes: 0 blocked, and no request is under way; 1 rejected or failed; 2 wrong usage;
130 interrupted while waiting (the rule stays).";

pub(super) const PAUSE_EXAMPLES: &str = "\
Examples:
  tidings host pause example.org
  tidings host pause '*.example.org' --for 2h

URLs of the host wait until the rule ends. The command returns when the requests under way have
ended. Ctrl-C ends only the waiting.

Exit codes: 0 paused, and no request is under way; 1 rejected or failed; 2 wrong usage;
130 interrupted while waiting (the rule stays).";

const SLOW_EXAMPLES: &str = "\
Examples:
  tidings host slow example.org --delay 30s
  tidings host slow '*.example.org' --delay 500ms --parallel 2 --for 1d

The delay replaces that of the group for this host, so it may also be shorter. A longer delay that
the site asks for still applies.";

/// The flags of `tidings host block` and `pause`.
#[derive(Debug, Args)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    of: HostArgs,

    #[command(flatten)]
    term: TermFlags,
}

/// The flags of `tidings host slow`.
#[derive(Debug, Args)]
#[command(after_help = SLOW_EXAMPLES)]
pub(crate) struct SlowArgs {
    #[command(flatten)]
    of: HostArgs,

    /// The least time from the end of a request to the start of the next
    #[arg(long, value_name = "DURATION", value_parser = |text: &str| check("delay", text))]
    delay: String,

    /// Requests at once [default: as the group]
    #[arg(long, value_name = "N", value_parser = |text: &str| check("parallel", text))]
    parallel: Option<String>,

    #[command(flatten)]
    term: TermFlags,
}

/// The end of a rule, and its reason.
#[derive(Debug, Args)]
struct TermFlags {
    /// The rule ends by itself after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = |text: &str| check("for", text))]
    length: Option<String>,

    /// The rule ends by itself at this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "length")]
    until: Option<Timestamp>,

    /// A note for the list of rules, such as the number of a ticket; spaces become `_`
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    note: Option<String>,
}

/// Blocks a host.
pub(super) async fn block(args: &BlockArgs) -> Result<(), Failure> {
    set(&args.of, vec![("block", "yes")], &args.term, "blocked").await
}

/// Pauses a host.
pub(super) async fn pause(args: &BlockArgs) -> Result<(), Failure> {
    set(&args.of, vec![("pause", "yes")], &args.term, "paused").await
}

/// Sets the delay of a host.
pub(super) async fn slow(args: &SlowArgs) -> Result<(), Failure> {
    let mut settings = vec![("delay", args.delay.as_str())];
    settings.extend(args.parallel.iter().map(|parallel| ("parallel", parallel.as_str())));
    set(&args.of, settings, &args.term, "slowed").await
}

/// Sends the rule, waits for the answer and prints it.
async fn set(
    of: &HostArgs,
    mut settings: Vec<(&str, &str)>,
    term: &TermFlags,
    done: &str,
) -> Result<(), Failure> {
    let HostArgs { host, group, output } = of;
    let until = term.until.map(time_until).transpose()?;
    let key = host.to_string();
    settings.insert(0, ("key", &key));
    settings.extend(term.length.iter().chain(&until).map(|length| ("for", length.as_str())));
    settings.extend(term.note.iter().map(|note| ("note", note.as_str())));
    let rule = command(GroupAction::Rule, &group.group, settings);

    let broker = BrokerClient::connect(&output.broker, NAME).await?;
    // Not earlier: a signal before the rule was sent leaves no rule.
    let stop = stop_on_signal()?;
    let mut console = Console::new();
    console.progress(&format!("{done}; waiting until the requests under way have ended"));
    let answer = tokio::select! {
        biased;
        answer = broker.request(&rule) => answer?,
        () = stop.cancelled() => {
            let text = format!("stopped waiting; the rule for {host} stays in force");
            return Err(Failure::Interrupted(text));
        }
    };
    let status = RuleStatus::parse(&answer.ok);
    if output.json {
        return console.line(&json_line(&status));
    }
    console.line(&summary(done, &status))?;
    if done == "blocked" && !host.is_below() && !host.is_address() {
        console.note(&format!("names below {host} are not blocked; '*.{host}' includes them"));
    }
    if host.is_below() && host.domain().is_none() {
        console
            .note(&format!("'{host}' includes all sites with names that end in .{}", host.host()));
    }
    Ok(())
}

/// The rule in a line.
fn summary(done: &str, rule: &RuleStatus) -> String {
    let RuleFields { delay, parallel, left, .. } = &rule.fields;
    let delay = delay.as_ref().map(|delay| format!("delay={delay}"));
    let parallel = parallel.map(|parallel| format!("parallel={parallel}"));
    let ends = left.as_ref().map(|left| format!("ends in {}", duration(left.0)));
    let details: Vec<_> = [delay, parallel, ends].into_iter().flatten().collect();
    let colon = if details.is_empty() { "" } else { ": " };
    format!("{done} {}{colon}{}", rule.key, details.join(", "))
}

/// Checks an option of `GROUP rule` as the broker does.
fn check(name: &'static str, text: &str) -> Result<String, String> {
    let settings = vec![("key", "a"), ("pause", "yes"), (name, text)];
    GroupCommand::new(GroupAction::Rule, DEFAULT_GROUP, settings)
        .rule()
        .map_err(|error| flag_value_error(&error.text))?;
    Ok(text.to_owned())
}

/// The broker keeps one word.
fn parse_note(text: &str) -> Result<String, String> {
    check("note", &text.split_whitespace().collect::<Vec<_>>().join("_"))
}

/// The time from now as a value of `for=`.
fn time_until(until: Timestamp) -> Result<String, Failure> {
    let left_ms = until.as_millisecond() - Timestamp::now().as_millisecond();
    let length = u64::try_from(left_ms).ok().filter(|ms| *ms > 0);
    let length = length.ok_or_else(|| Failure::Usage(format!("--until {until} is in the past")))?;
    check("for", &format_ms(length))
        .map_err(|problem| Failure::Usage(format!("--until {until}: {problem}")))
}
