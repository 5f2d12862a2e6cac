//! `tidings sub --group`: the events of a group, as one of those who share them.

#![expect(clippy::disallowed_methods, reason = "programs have a time")]

use std::{future, io, time::Duration};

use tidings_connectors::worker::{
    self, End, Handler, PrepareError, Task, WorkerConfig, WorkerError,
};
use tidings_protocol::{ClientError, GroupName, TopicName, format_ms};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    failed,
    program::{self, Program},
    task_json,
    writer::Writer,
};
use crate::{
    address::BrokerAddress,
    failure::Failure,
    flags::milliseconds,
    link,
    output::{note, plural, printable, said, said_in_json},
};

/// The label that the broker shows.
const NAME: &str = "tidings-sub";

/// What is to be done, and for whom.
pub(super) struct Share {
    pub(super) broker: BrokerAddress,
    pub(super) topic: TopicName,
    pub(super) group: GroupName,
    /// Tasks at once.
    pub(super) credit: u32,
    /// Stop after so many.
    pub(super) count: Option<u64>,
    pub(super) json: bool,
    /// A program is ended when it runs for so long.
    pub(super) timeout: Option<Duration>,
    /// Nothing to run: events are printed.
    pub(super) program: Option<Program>,
}

/// What is done with each task, for as long as nobody wants an end.
struct Sharing {
    share: Share,
    stop: CancellationToken,
    /// Standard output, and errors of programs.
    writers: [Writer; 2],
}

/// How a program failed.
struct Failed {
    /// As one word.
    failure: String,
    /// The end of what it printed, as one, too.
    last_words: String,
}

impl Failed {
    fn is_signal(&self) -> bool {
        program::is_signal(&self.failure)
    }

    /// As the broker keeps it, with a dead letter in the end.
    fn reason(&self) -> String {
        let Self { failure, last_words } = self;
        if last_words.is_empty() { failure.clone() } else { format!("{failure}:_{last_words}") }
    }
}

/// Deals with tasks until `stop` or the count, and ends what was begun.
pub(super) async fn run(share: Share, stop: CancellationToken) -> Result<(), Failure> {
    let connected = link::connect(&share.broker, NAME).await?;
    worker::prepare(&connected.0, &share.group, &share.topic, "none", &[]).await.map_err(
        |error| match error {
            PrepareError::Broker(error) => failed(&share.broker, &error),
            error => Failure::failed(error.to_string()),
        },
    )?;
    let broker = share.broker.clone();
    let config = WorkerConfig {
        broker: broker.to_string(),
        name: NAME,
        group: share.group.clone(),
        credit: share.credit,
        count: share.count,
    };
    let writers = [Writer::new(io::stdout()), Writer::new(io::stderr())];
    let sharing = Sharing { share, stop: stop.clone(), writers };
    worker::run(config, connected, sharing, stop).await.map_err(|error| match error {
        WorkerError::Broker(error) => failed(&broker, &error),
        WorkerError::Handler(failure) => failure,
    })
}

impl Handler for Sharing {
    type Error = Failure;

    async fn work(&self, task: &Task, lost: &CancellationToken) -> Result<End, Failure> {
        let Some(program) = &self.share.program else {
            return tokio::select! {
                biased;
                printed = self.print(task) => printed.map(|()| End::done()),
                () = lost.cancelled() => {
                    note(&format!("{}: lost, as nobody reads what is printed", task.id));
                    Ok(End::untouched())
                }
            };
        };
        let failed = if program.would_be_option(&task.payload) {
            let (failure, last_words) = ("begins_with_a_dash", "write_--_before_{}");
            Some(Failed { failure: failure.to_owned(), last_words: last_words.to_owned() })
        } else {
            self.run_program(program, task, lost).await?
        };
        let Some(failed) = failed else { return Ok(End::done()) };
        if self.stop.is_cancelled() && failed.is_signal() {
            // Somebody has ended both of us. It may have asked somebody something.
            return Ok(End::BrokenOff);
        }
        if !lost.is_cancelled() {
            note(&format!("{}: {}: {}", task.id, failed.failure, printable(&task.payload, 200)));
        }
        Ok(End::failed(failed.reason()))
    }

    fn disconnected(&self, error: &ClientError) {
        note(&format!("{}: {error}; connecting again", self.share.broker));
    }

    fn draining(&self, tasks: usize) {
        if self.share.program.is_some() {
            let running = plural(tasks as u64, "program");
            note(&format!("waiting for {running}; a second signal ends what runs"));
        }
    }
}

impl Sharing {
    /// Runs the program to its end: why it failed, if it did. Where the task was lost meanwhile the program was ended.
    async fn run_program(
        &self,
        program: &Program,
        task: &Task,
        lost: &CancellationToken,
    ) -> Result<Option<Failed>, Failure> {
        let id = task.id.to_string();
        let Share { topic, group, .. } = &self.share;
        let about =
            [("EVENT_TOPIC", topic.as_str()), ("EVENT_GROUP", group.as_str()), ("EVENT_TASK", &id)];
        let (mut running, mut tail) =
            program.start_with_tail(&task.payload, &about, &self.writers)?;
        let limit = async {
            match self.share.timeout {
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
                let limit = format_ms(milliseconds(self.share.timeout.unwrap_or_default()));
                Some(format!("not_finished_within_{limit}"))
            }
            () = lost.cancelled() => {
                note(&format!("{id}: lost; its program is ended: {}", printable(&task.payload, 200)));
                // Here it has ended before it may come again; elsewhere that may be before.
                running.kill().await;
                return Ok(None);
            }
        };
        // Where it is read slowly no more programs are begun than were asked for, and none of their tasks is lost.
        tokio::select! {
            biased;
            () = tail.passed_on() => {}
            () = lost.cancelled() => {
                note(&format!("{id}: lost, as nobody reads what its program has printed"));
                return Ok(None);
            }
        }
        Ok(failure.map(|failure| Failed { failure, last_words: tail.last_words() }))
    }

    async fn print(&self, task: &Task) -> Result<(), Failure> {
        let mut line = if self.share.json {
            said_in_json(&task_json(&self.share.group, &task.id, &task.payload)).into_owned()
        } else {
            said(&task.payload).into_owned()
        };
        line.push('\n');
        self.writers[0].write(line.into_bytes()).await.map_err(Failure::from_output)
    }
}
