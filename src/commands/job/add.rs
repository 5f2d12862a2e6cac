//! `tidings job add`: adds seeds to a job, from arguments or standard input.

use std::collections::VecDeque;

use clap::Args;
use tidings_client::PendingAnswer;
use tidings_protocol::status::SeedStatus;
use tidings_protocol::{After, GroupName, JobAction, JobName, Prio};

use super::{NAME, command};
use crate::client::job::parse_seed;
use crate::client::manage::{BrokerClient, GroupFlag};
use crate::flags::broker::BrokerFlag;
use crate::terminal::failure::Failure;
use crate::terminal::lines::{NumberedLines, read_input};
use crate::terminal::output::{Console, format_count, note, plural};

const EXAMPLES: &str = "\
Examples:
  tidings job add docs https://example.org/docs/             one seed
  cut -f1 sites.tsv | tidings job add docs                   one on each line, as they arrive
  tidings job add docs https://example.org/ --after 10m      fetch it later
  tidings job add docs https://example.org/ --after 06:00    fetch it at six, in UTC

Prints how many seeds were new and how many the pass had already met. Lines that are not URLs are
reported on standard error and skipped.

Exit codes: 0 all lines were added or known; 1 some lines were skipped; 2 wrong usage.";

/// The limit of seeds without an answer.
const IN_FLIGHT_MAX: usize = 256;

/// Lines that are not URLs and are reported one by one.
const REPORTED_MAX: u64 = 20;

/// The flags of `tidings job add`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// The job; it must be open
    job: JobName,

    /// Seeds; without them, the lines of standard input
    #[arg(value_name = "URL", value_parser = parse_url)]
    urls: Vec<String>,

    /// Priority, from 1000 (first) to -1000 (last)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    prio: Option<Prio>,

    /// Do not fetch before this time has passed (10m), or before the next such time of day (06:00
    /// UTC)
    #[arg(long, value_name = "DURATION|TIME")]
    after: Option<After>,

    #[command(flatten)]
    group: GroupFlag,

    #[command(flatten)]
    broker: BrokerFlag,
}

/// Adds all seeds and prints how many were new.
pub(crate) async fn run(args: AddArgs) -> Result<(), Failure> {
    let broker = BrokerClient::connect(&args.broker, NAME).await?;
    let mut seeds = SeedSender::new(&broker, &args.job, &args.group.group);
    seeds.options.extend(args.prio.map(|prio| ("prio", prio.to_string())));
    seeds.options.extend(args.after.map(|after| ("after", after.to_string())));
    let added = if args.urls.is_empty() {
        seeds.add_input().await
    } else {
        seeds.add_all(&args.urls).await
    };
    let answered = seeds.read_answers(0).await;
    let result = added.and(answered);
    if result.is_ok() || seeds.new + seeds.known > 0 {
        let (new, known) = (format_count(seeds.new), format_count(seeds.known));
        Console::new().line(&format!("{new} new, {known} known"))?;
    }
    result?;
    match seeds.invalid {
        0 => Ok(()),
        refused => Err(Failure::failed(format!("{} skipped", plural(refused, "line")))),
    }
}

/// Seeds on their way to a job.
pub(super) struct SeedSender<'a> {
    broker: &'a BrokerClient<'a>,
    job: &'a JobName,
    group: &'a GroupName,
    /// The options of every seed.
    options: Vec<(&'static str, String)>,
    unanswered: VecDeque<PendingAnswer>,
    pub(super) new: u64,
    pub(super) known: u64,
    /// Lines that are not URLs.
    invalid: u64,
}

impl<'a> SeedSender<'a> {
    pub(super) fn new(
        broker: &'a BrokerClient<'_>,
        job: &'a JobName,
        group: &'a GroupName,
    ) -> Self {
        let (options, unanswered) = (Vec::new(), VecDeque::new());
        Self { broker, job, group, options, unanswered, new: 0, known: 0, invalid: 0 }
    }

    async fn add_all(&mut self, urls: &[String]) -> Result<(), Failure> {
        for url in urls {
            self.add(url).await?;
        }
        Ok(())
    }

    /// Adds the lines of standard input; reports and skips those that are not URLs.
    async fn add_input(&mut self) -> Result<(), Failure> {
        let (mut chunks, mut lines) = (read_input(), NumberedLines::new());
        while let Some(chunk) = chunks.recv().await {
            let chunk = chunk
                .map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
            lines.push(&chunk);
            while let Some((number, line)) = lines.next_line() {
                self.add_line(number, line).await?;
            }
            // A person at a terminal sees a rejection before the next line.
            self.read_answers(0).await?;
        }
        match lines.finish() {
            Some((number, line)) => self.add_line(number, line).await,
            None => Ok(()),
        }
    }

    async fn add_line(&mut self, number: u64, line: Result<&[u8], String>) -> Result<(), Failure> {
        let text = line.and_then(|line| {
            std::str::from_utf8(line).map(str::trim).map_err(|_| "not UTF-8".to_owned())
        });
        match text
            .and_then(|text| if text.is_empty() { Ok(None) } else { parse_url(text).map(Some) })
        {
            Ok(None) => Ok(()),
            Ok(Some(url)) => self.add(&url).await,
            Err(reason) => {
                self.invalid += 1;
                if self.invalid <= REPORTED_MAX {
                    note(&format!("line {number} is skipped: {reason}"));
                }
                Ok(())
            }
        }
    }

    /// Sends a seed. Its answer is read later.
    async fn add(&mut self, url: &str) -> Result<(), Failure> {
        self.add_with(url, []).await
    }

    /// Sends a seed with these options of its own.
    pub(super) async fn add_with<'s>(
        &'s mut self,
        url: &'s str,
        own: impl IntoIterator<Item = (&'s str, &'s str)>,
    ) -> Result<(), Failure> {
        self.read_answers(IN_FLIGHT_MAX - 1).await?;
        let mut settings = vec![("url", url)];
        settings.extend(own);
        settings.extend(self.options.iter().map(|(key, value)| (*key, value.as_str())));
        let command = command(JobAction::Add, Some(self.job), self.group, settings);
        let answering = self.broker.client.start_request(&[], &command).await;
        self.unanswered.push_back(answering.map_err(|error| self.broker.failure(error))?);
        Ok(())
    }

    /// Reads answers until at most `owed_max` are missing.
    pub(super) async fn read_answers(&mut self, owed_max: usize) -> Result<(), Failure> {
        while self.unanswered.len() > owed_max
            && let Some(oldest) = self.unanswered.pop_front()
        {
            let answer = oldest.await.map_err(|error| self.broker.failure(error))?;
            let added = SeedStatus::parse(&answer.ok);
            self.new += added.new;
            self.known += added.known;
        }
        Ok(())
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    parse_seed(text).map(|url| url.as_str().to_owned())
}
