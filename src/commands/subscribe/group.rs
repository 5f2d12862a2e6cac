//! `tidings sub --group`: works on events as a member of a group.

#![expect(clippy::disallowed_methods, reason = "programs have a time limit")]

use std::{future, io};

use tidings_client::{
    ClientError, GroupSetup, TaskEnd, TaskHandler, Worker, WorkerError, WorkerTask,
};
use tidings_protocol::{AttributeFilter, GroupName, format_ms};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::event_json::task_json;
use super::program::{self, Program};
use super::writer::OutputWriter;
use super::{SubArgs, broker_failure, find_begin};
use crate::client::{broker_message, connection};
use crate::flags::milliseconds;
use crate::terminal::failure::Failure;
use crate::terminal::output::{note, plural, printable, terminal_safe, terminal_safe_json};

/// The handler of each task.
struct GroupHandler {
    args: SubArgs,
    group: GroupName,
    /// `None`: events are printed.
    program: Option<Program>,
    /// Cancelled by a signal, which the programs may have received too.
    signalled: CancellationToken,
    /// Standard output, and standard error of programs.
    writers: [OutputWriter; 2],
}

struct ProgramFailure {
    /// The reason as one word.
    failure: String,
    /// The end of the program's output as one word.
    output_end: String,
}

impl ProgramFailure {
    fn is_signal(&self) -> bool {
        program::is_signal(&self.failure)
    }

    /// The reason for the broker, which keeps it with the dead letter.
    fn reason(&self) -> String {
        let Self { failure, output_end } = self;
        if output_end.is_empty() { failure.clone() } else { format!("{failure}:_{output_end}") }
    }
}

/// Works on tasks until `stop` or the count, then finishes the tasks in progress.
pub(super) async fn run(
    args: SubArgs,
    group: GroupName,
    filter: AttributeFilter,
    program: Option<Program>,
    signalled: CancellationToken,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let (broker, count) = (args.broker.broker.clone(), args.count);
    let tasks_max = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX);
    let (connector, connected) =
        connection::open(&broker, &connection::worker_name("tidings-sub")).await?;
    let topic = args.topic.clone();
    let (key, is_exclusive, settings) = ("none", false, &[][..]);
    let setup = GroupSetup { group: group.clone(), topic, key, is_exclusive, filter, settings };
    find_begin(&connected.client, &args.topic).await;
    let is_new = setup.ensure(&connected.client).await.map_err(|error| match error {
        ClientError::TopicMissing { .. } | ClientError::OtherFilter { .. } => {
            Failure::failed(error.to_string())
        }
        error => broker_failure(&broker, &error),
    })?;
    if is_new {
        note(&format!("group {group} is new"));
    }
    let credit = args.jobs.min(tasks_max);
    let worker = Worker::new(connector, group.clone(), credit).on(connected);
    let writers = [OutputWriter::new(io::stdout()), OutputWriter::new(io::stderr())];
    let handler = GroupHandler { args, group, program, signalled, writers };
    worker.run(handler, count, stop).await.map_err(|error| match error {
        WorkerError::Broker(error) => broker_failure(&broker, &error),
        WorkerError::Handler(failure) => failure,
    })
}

impl TaskHandler for GroupHandler {
    type Error = Failure;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Failure> {
        let Some(program) = &self.program else {
            return tokio::select! {
                biased;
                printed = self.print(task) => printed.map(|()| TaskEnd::done()),
                () = lost.cancelled() => {
                    note(&format!("{}: task lost: standard output is not read", task.id));
                    Ok(TaskEnd::not_started())
                }
            };
        };
        let failed = if program.would_be_option(&task.payload) {
            let (failure, output_end) = ("begins_with_a_dash", "write_--_before_{}");
            Some(ProgramFailure { failure: failure.to_owned(), output_end: output_end.to_owned() })
        } else {
            self.run_program(program, task, lost).await?
        };
        let Some(failed) = failed else { return Ok(TaskEnd::done()) };
        if self.signalled.is_cancelled() && failed.is_signal() {
            // The signal was meant for both processes. The program may have made a request already.
            return Ok(TaskEnd::Interrupted);
        }
        if !lost.is_cancelled() {
            note(&format!("{}: {}: {}", task.id, failed.failure, printable(&task.payload, 200)));
        }
        Ok(TaskEnd::failed(failed.reason()))
    }

    fn disconnected(&self, error: &ClientError) {
        let error = broker_message::client_error(error);
        note(&format!("{}: {error}; reconnecting", self.args.broker.broker));
    }

    fn draining(&self, tasks: usize) {
        if self.program.is_some() {
            let running = plural(tasks as u64, "program");
            note(&format!("waiting for {running}; a second signal kills what runs"));
        }
    }
}

impl GroupHandler {
    /// Runs the program to its end and returns its failure, if any. If the task is lost meanwhile,
    /// the program is killed.
    async fn run_program(
        &self,
        program: &Program,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<Option<ProgramFailure>, Failure> {
        let id = task.id.to_string();
        let (topic, group) = (&self.args.topic, &self.group);
        let about =
            [("EVENT_TOPIC", topic.as_str()), ("EVENT_GROUP", group.as_str()), ("EVENT_TASK", &id)];
        let (mut running, mut tail) =
            program.start_with_tail(&task.payload, &about, &self.writers)?;
        let limit = async {
            match self.args.timeout {
                Some(limit) => sleep(limit).await,
                None => future::pending().await,
            }
        };
        let failure = tokio::select! {
            biased;
            ended = running.wait() => {
                let status = ended.map_err(|error| Failure::failed(error.to_string()))?;
                program::failure(status)
            }
            () = limit => {
                running.kill().await;
                let limit = format_ms(milliseconds(self.args.timeout.unwrap_or_default()));
                Some(format!("not_finished_within_{limit}"))
            }
            () = lost.cancelled() => {
                note(&format!("{id}: task lost, its program is killed: {}", printable(&task.payload, 200)));
                // The program ends here before the task may be released to this member again;
                // another member may start earlier.
                running.kill().await;
                return Ok(None);
            }
        };
        // Slow output delays the next task, so that no more programs start than `--jobs` allows,
        // and no task is lost.
        tokio::select! {
            biased;
            () = tail.wait_until_forwarded() => {}
            () = lost.cancelled() => {
                note(&format!("{id}: task lost: the output of its program is not read"));
                return Ok(None);
            }
        }
        Ok(failure.map(|failure| ProgramFailure { failure, output_end: tail.output_end() }))
    }

    async fn print(&self, task: &WorkerTask) -> Result<(), Failure> {
        let mut line = if self.args.json {
            terminal_safe_json(&task_json(&self.group, &task.id, &task.payload)).into_owned()
        } else {
            terminal_safe(&task.payload).into_owned()
        };
        line.push('\n');
        self.writers[0].write(line.into_bytes()).await.map_err(Failure::from_output)
    }
}
