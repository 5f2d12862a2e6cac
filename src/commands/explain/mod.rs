//! `tidings explain`: why a URL or a host waits, and what became of a URL that does not wait.

mod sentences;

use clap::Args;
use serde_json::{Value, json};
use tidings_client::ClientError;
#[cfg(feature = "top")]
use tidings_protocol::format_ms;
#[cfg(feature = "top")]
use tidings_protocol::status::WaitReason;
use tidings_protocol::status::{GroupStatus, KeyStatus, PageStatus};
use tidings_protocol::{CanonicalUrl, Code, Command, DEFAULT_GROUP, GroupAction, PAGE_READY_TOPIC};
use tidings_subscriber::sink::sqlite::{StoredResult, newest_result};

use self::sentences::{Context, Explained};
use crate::client::job_pages;
use crate::client::manage::{self, BrokerClient, GroupFlag, OutputFlags};
use crate::commands::group::command;
use crate::flags::{DataFlag, address, of_existing_data, one_word};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, is_terminal, printable, readable_line, terminal_safe};

/// Characters of a stored error text that are shown.
const ERROR_CHARS_MAX: usize = 300;

/// Keys that are looked through for the time that the explained one takes: as many as one answer
/// lists.
const KEYS_MAX: &str = "1000";

const EXAMPLES: &str = "\
Examples:
  tidings explain https://example.org/docs/    what this page waits for, or which crawler fetches it
  tidings explain example.org                  which request to this host runs, or how long it rests
  tidings explain example.org --group feeds    the same in another group

A terminal shows sentences. A pipe gets the lines of the broker (EXPLAIN in tidings-protocol(7)), and --json
prints an object for each of them.

The broker forgets finished pages. When it is the broker of the --data directory, the newest result
of the URL in the group crawlers is read from pages.db there, else from the topic page-ready. In a
group with key=none or seq, such as those of pushes, URL is the first word of the event.

Exit codes: 0 the broker knows it; 1 it neither waits nor is being fetched; 2 wrong usage.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-explain";

/// The flags of `tidings explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("data", of_existing_data))]
pub(crate) struct ExplainArgs {
    /// A URL, or a host without a port (in general, a key of the group)
    #[arg(value_name = "URL|HOST", value_parser = one_word)]
    what: String,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    data: DataFlag,

    #[command(flatten)]
    output: OutputFlags,
}

/// Prints the broker's answer, or the stored result of a URL that the broker does not know.
pub(crate) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
    let explain = Command::Explain { what: &args.what, group: Some(args.group.group.clone()) };
    let mut console = Console::new();
    match broker.client.request(&explain).await {
        Ok(answer) => {
            let lines = answer.more.iter().chain([&answer.ok]).map(String::as_str);
            let lines: Vec<_> = if args.output.json {
                lines.map(|line| object(line).to_string()).collect()
            } else if is_terminal() {
                sentences(&args, &broker, &lines.collect::<Vec<_>>()).await
            } else {
                lines.map(str::to_owned).collect()
            };
            lines.iter().try_for_each(|line| console.line(line))
        }
        Err(ClientError::Refused(error)) if error.code == Code::NotFound => {
            let line = match stored(&args)? {
                Some(line) => Some(line),
                None => published(&args, &mut console).await,
            };
            let line = line.ok_or_else(|| broker.failure(ClientError::Refused(error)))?;
            console.line(&line)?;
            Err(Failure::Unsuccessful)
        }
        Err(error) => Err(broker.failure(error)),
    }
}

/// The lines for a person. A line of a newer broker stays as it is.
async fn sentences(args: &ExplainArgs, broker: &BrokerClient<'_>, lines: &[&str]) -> Vec<String> {
    let group = &args.group.group;
    let ask = |action, settings| {
        let broker = &broker.client;
        async move { broker.request(&command(action, group, settings)).await.ok() }
    };
    // The sentences say less to a client that may not see the group.
    let show = ask(GroupAction::Show, Vec::new()).await;
    let delay_ms = show.and_then(|show| GroupStatus::parse(&show.ok).settings.delay_ms);
    let keys = ask(GroupAction::Keys, vec![("limit", KEYS_MAX)]).await;
    let keys = keys.map(|keys| keys.more).unwrap_or_default();
    let of_key = |subject: &str| {
        let key = keys.iter().map(|line| KeyStatus::parse(line)).find(|key| key.key == subject);
        key.and_then(|key| key.left_ms)
    };
    let sentence = |line: &&str| {
        let explained = Explained::parse(line);
        let left_ms = of_key(explained.subject);
        let context = Context { group: group.as_str(), delay_ms, left_ms };
        let sentence = explained.sentence(&context).unwrap_or_else(|| readable_line(line));
        terminal_safe(&sentence).into_owned()
    };
    let is_new = |line: &&&str| !Explained::parse(line).is_count();
    lines.iter().filter(is_new).map(sentence).collect()
}

/// What a key of `GROUP keys` waits for, as a sentence. None for a rule, which that list does not
/// name, and for a reason that the broker does not send or this version does not know.
#[cfg(feature = "top")]
pub(crate) fn key_sentence(group: &GroupStatus, key: &KeyStatus) -> Option<String> {
    let rest = key.free_in.map(|ms| format!(" free-in={}", format_ms(ms))).unwrap_or_default();
    let line = format!("{} waiting={} pending because={}{rest}", key.key, key.waiting, key.because);
    let (delay_ms, left_ms) = (group.settings.delay_ms, key.left_ms);
    let explained = Explained::parse(&line);
    let sentence = explained.sentence(&Context { group: &group.group, delay_ms, left_ms });
    sentence.filter(|_| !matches!(key.because, WaitReason::Rule | WaitReason::Unknown))
}

/// A line as an object: the URL or key, its state, and its words.
fn object(line: &str) -> Value {
    let explained = Explained::parse(line);
    let mut object =
        manage::object([("what", explained.subject)].into_iter().chain(explained.values()));
    if !explained.state.is_empty() {
        object["state"] = explained.state.into();
    }
    object
}

/// One line about the newest stored result, or an object. None for a host, for another group than
/// that of the crawlers, without pages.db, and when the data directory belongs to another broker
/// than the one that answered.
fn stored(args: &ExplainArgs) -> Result<Option<String>, Failure> {
    let data = &args.data.data;
    let pages = data.join("pages.db");
    // The crawlers of another group may have fetched the page.
    let is_ours = args.group.group.as_str() == DEFAULT_GROUP
        && address::read_address_file(data)
            .is_some_and(|at| at.as_str() == args.output.broker.broker.as_str());
    let Some(url) = CanonicalUrl::parse(&args.what).ok().filter(|_| is_ours && pages.is_file())
    else {
        return Ok(None);
    };
    let found = newest_result(&pages, url.as_str());
    let found = found.map_err(|error| Failure::Failed(error.into()))?;
    Ok(found.map(|found| {
        if args.output.json {
            let StoredResult { fetched_at, outcome, status, error } = found;
            let object = json!({
                "what": url.as_str(), "state": "stored", "outcome": outcome, "status": status,
                "fetched-at": fetched_at, "error": error,
            });
            return object.to_string();
        }
        let StoredResult { fetched_at, outcome, status, error } = found;
        let words = in_words(&outcome, status.map(u64::from), error.as_deref());
        format!("{} {words} at {fetched_at}; see {}", url.as_str(), pages.display())
    }))
}

/// One line about the newest outcome on `page-ready`, or an object. None without an event about the
/// page, and for a client that may not read them.
async fn published(args: &ExplainArgs, console: &mut Console) -> Option<String> {
    let url = CanonicalUrl::parse(&args.what).ok()?;
    let ExplainArgs { group, output, .. } = args;
    let found = job_pages::newest(&output.broker.broker, &group.group, &url, console).await;
    let PageStatus { outcome, status, error, .. } = found.ok()??;
    if output.json {
        let object = json!({
            "what": url.as_str(), "state": "published", "outcome": outcome, "status": status,
            "error": error,
        });
        return Some(object.to_string());
    }
    let error = error.map(|error| error.replace('_', " "));
    let words = in_words(&outcome, status, error.as_deref());
    Some(format!("{} {words}; see the topic {PAGE_READY_TOPIC}", url.as_str()))
}

fn in_words(outcome: &str, status: Option<u64>, error: Option<&str>) -> String {
    let result = match outcome {
        "done" => "was fetched",
        "redirect" => "was fetched and redirects",
        "robots" => "was not fetched: robots.txt disallows it",
        "scope" => "was not fetched: the crawler's rules exclude it",
        "trap" => "was not followed: it looks like a trap",
        "retry" => "failed and will be retried",
        _ => "failed",
    };
    let status = status.map(|status| format!(" with status {status}")).unwrap_or_default();
    let error = error.filter(|_| outcome != "done");
    let error = error.map(|error| format!(" ({})", printable(error, ERROR_CHARS_MAX)));
    format!("{result}{status}{}", error.unwrap_or_default())
}
