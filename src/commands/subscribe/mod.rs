//! `tidings sub`: prints the events of a topic, or runs a program for each; as a subscriber, or as
//! a member of a group.

#![expect(clippy::disallowed_methods, reason = "the last request has a time limit")]

mod event_json;
mod group;
mod no_follow;
mod program;
mod signal;
mod tail;
mod writer;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;
use std::{future, mem};

use clap::Args;
use tidings_client::{Client, ClientError, Subscriber, SubscriberEvent, Subscription};
use tidings_connectors::signal::{SignalName, SignalTarget};
use tidings_protocol::status::TopicStatus;
use tidings_protocol::{
    AttributeFilter, Code, Command, CursorName, GroupName, Seq, StartAt, TopicAction, TopicCommand,
    TopicName,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::event_json::{MissingRange, event_json, to_json};
use self::program::Program;
use crate::client::connection::LossNotes;
use crate::client::{broker_message, connection};
use crate::flags::address::BrokerAddress;
use crate::flags::broker::BrokerFlag;
use crate::flags::parse_duration;
use crate::process::signals::stop_on_signal_with;
use crate::services::sinks::parse_variable;
use crate::terminal::failure::Failure;
use crate::terminal::output::{note, printable, terminal_safe, terminal_safe_json};

const EXAMPLES: &str = "\
Examples:
  tidings sub new-url                         new events as they arrive
  tidings sub new-url --from -10              the newest ten events, then new ones
  tidings sub job-done --json | jq .          with seq, target and attributes
  tidings sub new-url --from first --count 1  the oldest event that is kept
  tidings sub new-url --as indexer            resume where `indexer` stopped
  tidings sub orders --where state=failed --where 'shop!=test'
                                              only events with these attributes
  tidings sub file-ready --exec ./checksum    run a program for each event, one after the other
  tidings sub file-ready --group thumbs --jobs 4 --exec convert-one --small {}
                                              each event to one member of the group, four
                                              programs at once, again if one fails
  tidings sub checks --group alarms --where state=failed
                                              a group of only these events
  tidings sub post-ready --signal USR1 --pid-file /run/bot.pid --spool /var/spool/bot
                                              each URL as a file in a directory, and a signal

Durable cursors: with --as the broker stores the position NAME, also while no client is connected.
The position moves after events were written to standard output; those written just before a crash
may come twice. --from applies only to a new NAME. `tidings topic show` lists cursors, `forget`
removes one.

Filters: --where compares the first attribute KEY of an event, as it is written. KEY!=VALUE also
selects events without KEY. The broker leaves the other events out, and a durable cursor moves past
them. With --group the conditions are a setting of the group, and hold for all its members: --where
creates a missing group with them, and is refused if the group has others.

New names: a topic that does not exist is created, and so is the group of --group. Standard error
says so, since the name may be misspelt.

Missing events: standard error names events that are no longer kept (LAG), and seqs that hold no
event (GAP): a crash of the broker skips some, and a full disk leaves some empty. Nothing is skipped
silently.

Programs: --exec starts the program without a shell (use --exec sh -c '..' for one). Its environment
has EVENT_PAYLOAD (the event), EVENT_URL (the URL or path at its beginning, if any), EVENT_PATH
(that path, decoded), EVENT_TOPIC, and EVENT_SEQ or, with --group, EVENT_GROUP and EVENT_TASK. It
also has TIDINGS_BROKER (the address of the broker) and, from this environment, PATH, HOME, LANG,
LANGUAGE, LC_*, TZ, USER, LOGNAME, TMPDIR and the variables of --exec-env, but no others. An
argument that is exactly {} becomes the path, the URL or else the whole event. An event that begins
with a dash fails, since it might be an option, unless -- stands before {}. A failed program (exit
code other than 0) is reported on standard error. With --group its event is released again after the
backoff of the group, to any member. After max-attempts it is a dead letter with the end of the
program's output. Without --group the next event follows.

Groups: with --group each event goes to one member. A missing group is created as by `tidings group
create GROUP topics=TOPIC key=none`, and where= as in --where: it begins at the oldest event, and events wait for a member.
The first Ctrl-C waits for running programs, the second kills them. A program is killed, with all
processes that it started, when its lease ends (the broker could not be reached) or after --timeout.

Signals: with --signal each event is one file in --spool, with the URL or path of the event (or the
whole event) as its only line. A file is complete when its name appears; names do not begin with a
dot and sort in the order of the events. The program reads and removes the files. It receives the
signal when files arrive, and again while files remain. The process of --pid-file must not be
younger than that file, must have the name --program, and must handle the signal; otherwise the
files wait. A durable cursor, stored in the directory, resumes after the last file.

Restarts: if the connection is lost, `sub` connects again, and continues behind the last event. With
--no-follow it ends.

Exit codes: 0 the count is reached, or stopped; 1 there is no broker at the start, it rejects the
request, or a program of --exec failed without --group; 2 wrong usage.";

/// While events arrive, the durable cursor moves by at least this many: each move is a sync of the
/// broker's disk.
const EVENTS_PER_CURSOR_MOVE: u64 = 1_000;

/// The time limit of the last move of the cursor.
const LAST_CURSOR_MOVE_MAX: Duration = Duration::from_secs(5);

/// The flags of `tidings sub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubArgs {
    /// Topic to read; created if it does not exist
    topic: TopicName,

    /// Start at: first, last, a seq, -N for the newest N, or an RFC 3339 time [default: new events
    /// only]
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true)]
    from: Option<StartAt>,

    /// Resume from the durable cursor NAME, and move it behind each printed event
    #[arg(long = "as", value_name = "NAME")]
    cursor: Option<CursorName>,

    /// Take the cursor over from another subscriber that holds it
    #[arg(long, requires = "cursor")]
    takeover: bool,

    /// Receive only events with this attribute, or with KEY!=VALUE those without it; may be repeated,
    /// then all must hold
    #[arg(long = "where", value_name = "KEY=VALUE")]
    conditions: Vec<String>,

    /// Join this group; each event goes to one member
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["from", "cursor"])]
    group: Option<GroupName>,

    /// With --group: work on at most this many events at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "group", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,

    /// With --group: kill a program that runs longer; its event is released again [default: no
    /// limit]
    #[arg(long, value_name = "DURATION", requires_all = ["group", "exec"], value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Run this program for each event; must be the last flag
    #[arg(long, value_name = "PROGRAM [ARG]..", num_args = 1.., allow_hyphen_values = true, conflicts_with = "json")]
    exec: Vec<OsString>,

    /// With --exec: also pass these variables; PATH, HOME, USER, LOGNAME, LANG, LANGUAGE, LC_*, TZ
    /// and TMPDIR are always passed
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', requires = "exec", value_parser = parse_variable)]
    exec_env: Vec<String>,

    /// Write each event to the --spool directory, then send this signal to the process of
    /// --pid-file
    #[arg(long, value_name = "NAME", requires_all = ["pid_file", "spool"], conflicts_with_all = ["group", "exec", "json"])]
    signal: Option<SignalName>,

    /// With --signal: file with the id of the process
    #[arg(long, value_name = "FILE", requires = "signal")]
    pid_file: Option<PathBuf>,

    /// With --signal: directory for events; created if it does not exist
    #[arg(long, value_name = "DIR", requires = "signal")]
    spool: Option<PathBuf>,

    /// With --signal: name or path that the process must have; for a script, that of the script
    #[arg(long, value_name = "NAME", requires = "signal")]
    program: Option<String>,

    /// With --signal: keep at most this many files; further events wait at the broker
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    spool_max: u32,

    /// Print one JSON object for each event: topic and seq (or group and task), payload, target and
    /// attributes
    #[arg(long)]
    json: bool,

    /// Stop after this many events, when the programs that run have ended
    #[arg(long, alias = "max-tasks", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after this time, when the programs that run have ended
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_age: Option<Duration>,

    /// Stop after the newest event that is stored now, instead of waiting for more
    #[arg(long, conflicts_with_all = ["group", "signal"])]
    no_follow: bool,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Runs until the count is reached, a signal, or the end of the broker or of the reader of standard
/// output.
pub(crate) async fn run(mut args: SubArgs) -> Result<(), Failure> {
    let conditions = args.conditions.iter().map(String::as_str);
    let filter = AttributeFilter::parse(conditions)
        .map_err(|error| Failure::Usage(format!("--{} (see tidings sub --help)", error.text)))?;
    let programs = program::Programs::with_variables(&args.exec_env);
    let running = programs.clone();
    let signalled = stop_on_signal_with(move || running.kill())?;
    let stop = signalled.child_token();
    if let Some(age) = args.max_age {
        let stop = stop.clone();
        tokio::spawn(async move {
            sleep(age).await;
            stop.cancel();
        });
    }
    if let (Some(signal), Some(pid_file), Some(dir)) =
        (args.signal, args.pid_file.take(), args.spool.take())
    {
        let target = SignalTarget { pid_file, program: args.program.take(), signal };
        return signal::run(args, filter, &dir, target, stop).await;
    }
    let program = Program::new(mem::take(&mut args.exec), &args.broker.broker, programs)?;
    if let Some(group) = args.group.take() {
        return group::run(args, group, filter, program, signalled, stop).await;
    }
    let broker = &args.broker.broker;
    let (connector, connected) = connection::open(broker, "tidings-sub").await?;
    let SubArgs { topic, from, takeover, .. } = args;
    if args.no_follow {
        no_follow::check_flags(from, args.cursor.as_ref())?;
    }
    let mut subscription =
        Subscription { topic: topic.clone(), from, cursor: args.cursor.clone(), takeover, filter };
    let client = connected.client.clone();
    let begin = find_begin(&client, &topic).await;
    if subscription.cursor.is_none() {
        // Named by its number, so that a lost connection leaves nothing out.
        subscription.from = subscription.from.or(begin);
    }
    let mut subscriber = Subscriber::new(connector, subscription).on(connected);
    loop {
        match subscriber.next().await {
            Ok(SubscriberEvent::Subscribed { .. }) => break,
            Ok(SubscriberEvent::Lost(error)) | Err(error) => {
                return Err(broker_failure(broker, &error));
            }
            Ok(SubscriberEvent::Refused(refusal)) => {
                return Err(broker_failure(broker, &ClientError::Refused(refusal)));
            }
            Ok(_notice) => {}
        }
    }
    let mut printer = EventPrinter::new(args.json, topic.clone(), program);
    if args.no_follow {
        let start = (from, args.cursor.as_ref());
        printer.end_seq = Some(no_follow::end_seq(&client, broker, &topic, start).await?);
    }
    // The connection ends with the subscriber.
    drop(client);
    let is_durable = args.cursor.is_some();
    let ended = print_events(broker, &mut subscriber, &mut printer, args.count, &stop).await?;
    if let Some(error) = ended {
        let resume = match (printer.last, args.cursor) {
            (_, Some(cursor)) => format!("; resume with --as {cursor}"),
            (Some(Seq(last)), None) => {
                format!("; the last event was {last}, resume with --from {}", last + 1)
            }
            (None, None) => String::new(),
        };
        let error = broker_message::client_error(&error);
        return Err(Failure::failed(format!("{broker}{}: {error}{resume}", broker.origin())));
    }
    if is_durable {
        close(broker, subscriber, printer.written).await?;
    }
    if printer.has_failed { Err(Failure::Unsuccessful) } else { Ok(()) }
}

/// Parses the time limit of a program.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if timeout.is_zero() {
        return Err("expected more than 0; leave --timeout out for no limit".to_owned());
    }
    Ok(timeout)
}

/// Where new events of the topic begin. Notes that the subscription creates the topic, whose name
/// may be misspelt.
async fn find_begin(client: &Client, topic: &TopicName) -> Option<StartAt> {
    let show = TopicCommand::new(TopicAction::Show, topic.as_str(), Vec::new());
    match client.request(&Command::Topic(show)).await {
        Ok(shown) => Some(StartAt::Seq(TopicStatus::parse(&shown.ok).next)),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => {
            note(&format!("topic {topic} is new"));
            Some(StartAt::First)
        }
        Err(_) => None,
    }
}

fn broker_failure(broker: &BrokerAddress, error: &ClientError) -> Failure {
    let origin = broker.origin();
    Failure::failed(match error {
        ClientError::Refused(error) if error.code != Code::Unauthenticated => {
            format!("{broker}{origin} rejects: {}", broker_message::rejection(error))
        }
        error => format!("{broker}{origin}: {}", broker_message::client_error(error)),
    })
}

/// Prints until the count is reached or `stop` is cancelled (`None`), or until another connection
/// cannot help. With a last seq, also until the connection is lost. A running program is waited for.
async fn print_events(
    broker: &BrokerAddress,
    subscriber: &mut Subscriber,
    printer: &mut EventPrinter,
    count: Option<u64>,
    stop: &CancellationToken,
) -> Result<Option<ClientError>, Failure> {
    let mut notes = LossNotes::default();
    loop {
        if printer.is_at_end() || count.is_some_and(|count| printer.printed >= count) {
            printer.flush()?;
            return Ok(None);
        }
        if !subscriber.is_moving() {
            if printer.buffered >= EVENTS_PER_CURSOR_MOVE {
                printer.flush()?;
            }
            if let Some(seq) = printer.written {
                subscriber.seen(seq);
            }
        }
        // Output is flushed as soon as no further event waits.
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => {
                printer.flush()?;
                return Ok(None);
            }
            event = subscriber.next() => event,
            () = future::ready(()), if printer.buffered > 0 => {
                printer.flush()?;
                continue;
            }
        };
        match event {
            Ok(SubscriberEvent::Lost(error)) if printer.end_seq.is_none() => {
                printer.flush()?;
                notes.lost(broker, error);
            }
            // Later the reason may pass, such as a limit.
            Ok(SubscriberEvent::Refused(refusal)) if refusal.code.is_transient() => {}
            Ok(SubscriberEvent::Refused(refusal)) => {
                return Ok(Some(ClientError::Refused(refusal)));
            }
            Ok(SubscriberEvent::Lost(error)) | Err(error) => {
                printer.flush()?;
                return Ok(Some(error));
            }
            Ok(SubscriberEvent::Subscribed { continues }) => {
                notes.connected();
                note(&format!("{broker}: reconnected"));
                if !continues {
                    printer.begin_again();
                }
            }
            Ok(event) => printer.print_event(&event).await?,
        }
    }
}

/// Moves the cursor after the last event, and releases it for the next subscriber.
async fn close(
    broker: &BrokerAddress,
    mut subscriber: Subscriber,
    written: Option<Seq>,
) -> Result<(), Failure> {
    match written {
        Some(seq) => subscriber.seen(seq),
        None if subscriber.client().is_none() => return Ok(()),
        None => {}
    }
    match timeout(LAST_CURSOR_MOVE_MAX, subscriber.close()).await {
        Ok(closed) => closed.map_err(|error| broker_failure(broker, &error)),
        Err(_elapsed) => {
            let text =
                format!("{broker} did not confirm the cursor; some events may be delivered again");
            Err(Failure::failed(text))
        }
    }
}

/// Writes deliveries to standard output through a buffer, or runs the program for each.
struct EventPrinter {
    topic: TopicName,
    program: Option<Program>,
    /// A program has failed for an event, which was reported.
    has_failed: bool,
    output: BufWriter<io::Stdout>,
    /// Deliveries since the last flush.
    buffered: u64,
    json: bool,
    printed: u64,
    /// The last seq that was received, and the last one that was flushed.
    last: Option<Seq>,
    written: Option<Seq>,
    /// The last seq to print; 0: there is nothing to print.
    end_seq: Option<Seq>,
}

impl EventPrinter {
    fn new(json: bool, topic: TopicName, program: Option<Program>) -> Self {
        // The buffer of the standard library ends at each line; this one is larger.
        let output = BufWriter::with_capacity(64 * 1024, io::stdout());
        let (last, written) = (None, None);
        let (has_failed, buffered, printed, end_seq) = (false, 0, 0, None);
        Self { topic, program, has_failed, output, buffered, json, printed, last, written, end_seq }
    }

    /// Whether the last seq was printed or skipped.
    fn is_at_end(&self) -> bool {
        self.end_seq.is_some_and(|end| end == Seq(0) || self.last >= Some(end))
    }

    /// The topic was lost, and its numbers begin again.
    fn begin_again(&mut self) {
        note(&format!("topic {} does not continue: events may be missing", self.topic));
        (self.last, self.written) = (None, None);
    }

    async fn print_event(&mut self, event: &SubscriberEvent) -> Result<(), Failure> {
        if let SubscriberEvent::Event { seq: last, .. }
        | SubscriberEvent::Lag { to: last, .. }
        | SubscriberEvent::Gap { to: last, .. }
        | SubscriberEvent::Skipped(last) = event
            && Some(*last) <= self.last
        {
            // After a loss of the connection, events arrive again from the cursor on.
            return Ok(());
        }
        match event {
            SubscriberEvent::Event { seq, .. } if self.end_seq.is_some_and(|end| *seq > end) => {
                // The filter skipped the last event to print.
                self.last = self.end_seq;
                Ok(())
            }
            SubscriberEvent::Event { seq, payload } => {
                if let Some(program) = &self.program {
                    self.has_failed |= !run_program(program, &self.topic, *seq, payload).await?;
                    (self.last, self.written) = (Some(*seq), Some(*seq));
                    self.printed += 1;
                    return Ok(());
                }
                self.last = Some(*seq);
                self.buffered += 1;
                self.printed += 1;
                if self.json {
                    self.line(&terminal_safe_json(&event_json(&self.topic, *seq, payload)))
                } else {
                    self.line(&terminal_safe(payload))
                }
            }
            SubscriberEvent::Skipped(seq) => {
                // The cursor moves with the next flush.
                self.last = Some(*seq);
                self.buffered += 1;
                Ok(())
            }
            SubscriberEvent::Lag { from, to } => self.print_missing("lag", *from, *to),
            SubscriberEvent::Gap { from, to } => self.print_missing("gap", *from, *to),
            SubscriberEvent::Notice(error) => {
                note(&format!("note from the broker: {}", broker_message::rejection(error)));
                Ok(())
            }
            SubscriberEvent::Subscribed { .. }
            | SubscriberEvent::Seen(_)
            | SubscriberEvent::Refused(_)
            | SubscriberEvent::Lost(_) => Ok(()),
        }
    }

    fn print_missing(&mut self, word: &str, from: Seq, to: Seq) -> Result<(), Failure> {
        self.last = Some(to);
        self.buffered += 1;
        if self.json {
            let (topic, skipped) = (self.topic.as_str(), word);
            return self.line(&to_json(&MissingRange { topic, skipped, from: from.0, to: to.0 }));
        }
        note(&describe_missing(word, &self.topic, from, to));
        Ok(())
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.output, "{text}").map_err(Failure::from_output)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.output.flush().map_err(Failure::from_output)?;
        self.buffered = 0;
        self.written = self.last;
        Ok(())
    }
}

/// Runs the program for an event; whether it succeeded.
async fn run_program(
    program: &Program,
    topic: &TopicName,
    seq: Seq,
    payload: &str,
) -> Result<bool, Failure> {
    if program.would_be_option(payload) {
        let payload = printable(payload, 200);
        note(&format!(
            "event {seq} of {topic} begins with a dash; write -- before {{}}: {payload}"
        ));
        return Ok(false);
    }
    let about = [("EVENT_TOPIC", topic.as_str()), ("EVENT_SEQ", &seq.to_string())];
    let ended = program.start(payload, &about)?.wait().await;
    let status = ended.map_err(|error| Failure::failed(error.to_string()))?;
    let failure = program::failure(status);
    if let Some(reason) = &failure {
        note(&format!("event {seq} of {topic}: {reason}: {}", printable(payload, 200)));
    }
    Ok(failure.is_none())
}

/// Why seqs are missing. The broker no longer knows whether a seq of a gap was skipped or given to
/// an event that could not be kept. Such an event was not confirmed, unless the topic confirms
/// before the sync.
fn describe_missing(word: &str, topic: &TopicName, from: Seq, to: Seq) -> String {
    match (word, from == to) {
        ("lag", true) => format!("event {from} of {topic} is no longer kept"),
        ("lag", false) => format!("events {from} to {to} of {topic} are no longer kept"),
        (_, true) => format!("number {from} of {topic} was left empty by a crash or a full disk"),
        (_, false) => {
            format!("numbers {from} to {to} of {topic} were left empty by a crash or a full disk")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_seqs_are_not_called_lost() {
        let topic: TopicName = "t".parse().unwrap();
        let words = |word, from, to| describe_missing(word, &topic, Seq(from), Seq(to));
        assert_eq!(words("lag", 3, 9), "events 3 to 9 of t are no longer kept");
        assert_eq!(words("lag", 3, 3), "event 3 of t is no longer kept");
        assert_eq!(
            words("gap", 3, 9),
            "numbers 3 to 9 of t were left empty by a crash or a full disk"
        );
        assert_eq!(words("gap", 3, 3), "number 3 of t was left empty by a crash or a full disk");
    }
}
