//! `tidings top`: groups, jobs and topics of a broker on a full screen, as they change.

#![expect(clippy::disallowed_methods, reason = "asks the broker at intervals")]

mod draw;
mod model;
mod screen;
mod snapshot;
mod tables;
#[cfg(test)]
mod tests;

use std::env;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers};
use ratatui::crossterm::terminal;
use serde_json::{Value, json};
use tidings_client::{Delivery, PendingAnswer};
use tidings_protocol::{AttributeFilter, Command, GroupAction, JobAction, StartAt};
use tokio::time::sleep;

use self::draw::{draw, is_large_enough};
use self::model::{Action, Model, Page, TAIL_EVENTS_MAX};
use self::screen::Screen;
use self::snapshot::Snapshot;
use crate::client::manage::{self, BrokerClient, OutputFlags};
use crate::commands::explain::key_sentence;
use crate::commands::{group, job, status};
use crate::flags::parse_moderate_duration;
use crate::process::signals::stop_on_signal_with;
use crate::terminal::failure::Failure;
use crate::terminal::output::{self, Console};

const EXAMPLES: &str = "\
Examples:
  tidings top                                 the broker of this machine
  tidings top --context prod --every 5s       another one, asked every five seconds
  tidings top --once                          the first screen as text; needs no terminal
  tidings top --once --json | jq .hosts       everything, for scripts

Left and right go through the pages: overview, groups, jobs, topics. Up and down select a row, and
Enter opens it: a group shows its hosts, what each waits for, and its members; a topic shows its
newest events. Esc goes back, / filters, s sorts by the next column, p pauses or resumes a group or
a job (it asks), ? lists the keys, q ends.

Exit codes: 0 ended by q, Ctrl-C or SIGTERM; 1 the broker is gone; 2 wrong usage, or no terminal.";

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-top";

/// The flags of `tidings top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("json", |arg| arg.requires("once").help("Print one JSON object; only with --once")))]
pub(crate) struct TopArgs {
    /// Ask the broker at this interval, from 100ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_moderate_duration)]
    every: Duration,

    /// Print the first screen as text, and end
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    output: OutputFlags,
}

/// Runs until a key, a signal, or the end of the broker.
pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    if args.once {
        return once(&args.output).await;
    }
    let name = env::var("TERM").unwrap_or_default();
    if !output::is_terminal() || ["", "dumb"].contains(&name.as_str()) {
        return Err(unusable("needs a terminal that can move the cursor"));
    }
    if !terminal::size().is_ok_and(|size| is_large_enough(size.into())) {
        return Err(unusable("needs a larger terminal"));
    }
    let stop = stop_on_signal_with(ratatui::restore)?;
    let (broker, mut deliveries) = BrokerClient::with_deliveries(&args.output.broker, NAME).await?;
    let snapshot = Snapshot::read(&broker, &Page::Overview, Vec::new()).await?;
    let mut model = Model::new(args.output.broker.broker.as_str(), snapshot);
    let read = async |wait, page: Page, commands| {
        sleep(wait).await;
        Snapshot::read(&broker, &page, commands).await
    };
    let mut screen = Screen::open()?;
    let mut events = screen::events();
    let mut reading = Box::pin(read(args.every, model.page.clone(), Vec::new()));
    loop {
        screen.draw(|frame| draw(frame, &model))?;
        let event = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                event = events.recv() => break event.context("the terminal is gone")?,
                snapshot = &mut reading => {
                    model.update(snapshot?);
                    reading = Box::pin(read(args.every, model.page.clone(), Vec::new()));
                    break Event::FocusGained;
                }
                delivery = deliveries.next() => match delivery {
                    Some(Delivery::Msg { topic, seq, payload }) => model.event(topic, seq, payload),
                    Some(_) => {}
                    None => return Err(broker.failure(deliveries.reason())),
                },
            }
        };
        let Some(key) = event.as_key_press_event() else { continue };
        // While the terminal passes on all keys, Ctrl-C is one of them.
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            if key.code == KeyCode::Char('c') {
                return Ok(());
            }
            continue;
        }
        let page = model.page.clone();
        let action = model.key(key.code);
        if action == Some(Action::Quit) {
            return Ok(());
        }
        if action.is_some() || page != model.page {
            let commands = send(&broker, action.as_ref(), [&page, &model.page]).await?;
            reading = Box::pin(read(Duration::ZERO, model.page.clone(), commands));
        }
    }
}

fn unusable(what: &str) -> Failure {
    Failure::Usage(format!("top {what}; tidings top --once prints the same as text"))
}

/// Sends an action, and the commands for the change to another page. Their answers come later.
async fn send(
    broker: &BrokerClient<'_>,
    action: Option<&Action>,
    [old, new]: [&Page; 2],
) -> Result<Vec<PendingAnswer>, Failure> {
    let mut commands = Vec::new();
    if let Some(Action::Pause { group, job, pause }) = action {
        let (of_group, of_job) = if *pause {
            (GroupAction::Pause, JobAction::Pause)
        } else {
            (GroupAction::Resume, JobAction::Resume)
        };
        commands.push(match job {
            Some(job) => job::command(of_job, Some(job), group, Vec::new()),
            None => group::command(of_group, group, Vec::new()),
        });
    }
    if let (Page::Topic(topic), true) = (old, old != new) {
        commands.push(Command::Unsub { topic: topic.clone() });
    }
    if let (Page::Topic(topic), true) = (new, old != new) {
        commands.push(Command::Sub {
            topic: topic.clone(),
            from: Some(StartAt::Newest(TAIL_EVENTS_MAX as u64)),
            cursor: None,
            takeover: false,
            filter: AttributeFilter::default(),
        });
    }
    let mut answers = Vec::new();
    for command in commands {
        let answer = broker.client.start_request(&[], &command).await;
        answers.push(answer.map_err(|error| broker.failure(error))?);
    }
    Ok(answers)
}

/// An object about something in a group.
fn of_group(group: &str, mut object: Value) -> Value {
    object["group"] = json!(group);
    object
}

/// The first screen, once.
async fn once(flags: &OutputFlags) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&flags.broker, NAME).await?;
    let snapshot = Snapshot::read(&broker, &Page::Overview, Vec::new()).await?;
    let (mut console, address) = (Console::new(), flags.broker.broker.as_str());
    if flags.json {
        let mut object = status::object(&snapshot.overview, address);
        let jobs = snapshot.jobs.iter().map(|(group, job)| of_group(group, manage::json(job)));
        object["jobs"] = jobs.collect();
        let mut all = Vec::new();
        for status in snapshot.overview.sound_groups() {
            let Ok(group) = status.group.parse() else { continue };
            for host in &snapshot::hosts(&broker, &group).await? {
                let mut object = of_group(&status.group, manage::json(host));
                object["text"] = json!(key_sentence(status, host));
                all.push(object);
            }
        }
        object["hosts"] = all.into();
        return console.line(&object.to_string());
    }
    let model = Model::new(address, snapshot);
    let tables = model.lines(usize::MAX).into_iter().map(|(_, line)| line);
    let lines = model.head().into_iter().chain([String::new()]).chain(tables);
    lines.into_iter().try_for_each(|line| console.line(&line))
}
