//! `tidings topic verify`: verifies the checksums of the stored events.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tidings_broker::verify::{StopRecord, VerifiedGroup, VerifiedTopic};
use tidings_broker::{CheckedFile, StartError};
use tidings_client::CommandAnswer;
use tidings_protocol::{GroupName, TopicAction, TopicName, field, field_number};

use super::{NAME, command};
use crate::client::manage::{BrokerClient, OutputFlags, first_word};
use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, format_bytes, format_count, plural};

const EXAMPLES: &str = "\
A broker serves everything that is readable; a subscriber receives LAG for the rest. This command
moves and removes nothing.

Exit codes: 0 no damage; 1 damage was found; 2 wrong usage.";

/// The flags of `tidings topic verify`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopicVerifyArgs {
    /// The topic [default: all topics]
    topic: Option<TopicName>,

    /// Verify this data directory directly; no broker may use it
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// `--data` was typed; a default for other subcommands must not start an offline check.
    #[arg(skip)]
    pub(crate) offline: bool,

    #[command(flatten)]
    output: OutputFlags,
}

/// The result for one topic, group or database, for the catalog, or for another file.
#[derive(Debug, Default, Serialize)]
pub(crate) struct VerifyReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database: Option<String>,
    /// A file that is not part of a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    pub(crate) damaged: bool,
    files: Vec<FileReport>,
    /// What could not be checked, and observations that are not damage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// Problems other than damaged files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
    /// What the operator can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    /// What the next start of a broker will report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct FileReport {
    file: String,
    bytes: u64,
    /// Events that can be read.
    events: u64,
    /// Events that cannot be read.
    lost: u64,
    /// Their ranges, first and last seq.
    ranges: Vec<(u64, u64)>,
    problems: Vec<String>,
}

/// Verifies and prints the results.
pub(super) async fn run(args: &TopicVerifyArgs) -> Result<(), Failure> {
    let mut console = Console::new();
    let mut damaged = false;
    let mut print = |report: &VerifyReport| {
        damaged |= report.damaged;
        if args.output.json {
            return console.line(&serde_json::json!(report).to_string());
        }
        report.lines().iter().try_for_each(|line| console.line(line))
    };
    if let Some(data) = args.data.as_ref().filter(|_| args.offline) {
        verify_offline(data, args.topic.as_ref(), false)?.iter().try_for_each(&mut print)?;
    } else {
        let broker = BrokerClient::connect(&args.output.broker, NAME).await?;
        for topic in topics_to_verify(&broker, args.topic.as_ref()).await? {
            print(&VerifyReport::parse(
                &broker.request(&command(TopicAction::Verify, Some(&topic), Vec::new())).await?,
            ))?;
        }
    }
    if damaged { Err(Failure::Unsuccessful) } else { Ok(()) }
}

/// The named topic, or all topics of the broker.
async fn topics_to_verify(
    broker: &BrokerClient<'_>,
    only: Option<&TopicName>,
) -> Result<Vec<TopicName>, Failure> {
    if let Some(topic) = only {
        return Ok(vec![topic.clone()]);
    }
    let answer = broker.request(&command(TopicAction::Ls, None, Vec::new())).await?;
    Ok(answer.more.iter().filter_map(|line| first_word(line).parse().ok()).collect())
}

/// Verifies a data directory; of groups only damaged ones, unless `everything` is set.
pub(crate) fn verify_offline(
    data: &Path,
    only: Option<&TopicName>,
    everything: bool,
) -> Result<Vec<VerifyReport>, Failure> {
    let verified = tidings_broker::verify::verify(data, only).map_err(|error| {
        Failure::failed(match error {
            StartError::DataInUse { .. } => {
                format!("{error}; to verify through that broker: tidings topic verify --broker HOST:PORT")
            }
            error => error.to_string(),
        })
    })?;
    if let Some(only) = only.filter(|_| verified.topics.is_empty()) {
        return Err(Failure::failed(format!("no topic {only} in {}", data.display())));
    }
    let catalog = VerifyReport {
        damaged: verified.catalog_is_damaged,
        remedy: verified.catalog_is_damaged.then(|| {
            "restore catalog.log from a backup; the next start continues with what can be read, and keeps a copy"
                .to_owned()
        }),
        problems: verified.catalog,
        ..VerifyReport::default()
    };
    let catalog = Some(catalog).filter(|catalog| !catalog.problems.is_empty());
    let stop =
        VerifyReport::of_stop(verified.stopped, data).filter(|stop| everything || stop.damaged);
    let topics = verified.topics.into_iter().map(VerifyReport::from);
    let groups = verified.groups.into_iter().map(|group| VerifyReport::of_group(group, data));
    let groups = groups.filter(|group| everything || group.damaged);
    let cut_short =
        verified.interrupted_repairs.iter().map(|group| VerifyReport::of_repair(group, data));
    Ok(stop.into_iter().chain(catalog).chain(topics).chain(groups).chain(cut_short).collect())
}

impl From<VerifiedTopic> for VerifyReport {
    fn from(topic: VerifiedTopic) -> Self {
        Self {
            damaged: topic.is_damaged(),
            topic: Some(topic.name.to_string()),
            files: topic.files.iter().map(FileReport::from).collect(),
            findings: topic.findings,
            ..Self::default()
        }
    }
}

impl From<&CheckedFile> for FileReport {
    fn from(file: &CheckedFile) -> Self {
        Self {
            file: file.place.clone(),
            bytes: file.bytes,
            events: file.events,
            lost: file.lost_events(),
            ranges: file.lost.iter().map(|(from, to)| (from.0, to.0)).collect(),
            problems: file.problems.clone(),
        }
    }
}

impl VerifyReport {
    /// Reports whether damage at the end of a log differs from the traces of a crash.
    fn of_stop(stopped: StopRecord, data: &Path) -> Option<Self> {
        let file = Some(data.join("clean-stop").display().to_string());
        match stopped {
            StopRecord::Readable => None,
            StopRecord::Missing => Some(Self {
                file,
                notes: vec![
                    "it does not exist: no broker has stopped here in an orderly way, so damage at the \
                     end of a log cannot be told from the traces of a crash"
                        .to_owned(),
                ],
                ..Self::default()
            }),
            StopRecord::Damaged(problem) => Some(Self {
                file,
                damaged: true,
                problems: vec![problem],
                remedy: Some("nothing: the next orderly stop writes it again".to_owned()),
                ..Self::default()
            }),
        }
    }

    /// A repair that was interrupted.
    fn of_repair(group: &GroupName, data: &Path) -> Self {
        let command = format!("tidings group repair {group} --data {}", data.display());
        Self {
            group: Some(group.to_string()),
            damaged: true,
            problems: vec!["the repair was cut short, so the group does not exist now".to_owned()],
            remedy: Some(format!("{command}; the next start of a broker does the same")),
            ..Self::default()
        }
    }

    fn of_group(group: VerifiedGroup, data: &Path) -> Self {
        let name = &group.name;
        let repair = format!("tidings group repair {name} --data {}", data.display());
        let (remedy, problem) = match &group.refusal {
            Some(reason) => (
                Some(repair),
                Some(format!("the next start refuses work for this group: {reason}")),
            ),
            None if group.is_damaged() => {
                let harmless = "nothing: a later snapshot of the group is intact";
                (Some(harmless.to_owned()), None)
            }
            None => (None, None),
        };
        Self {
            group: Some(name.to_string()),
            damaged: group.is_damaged(),
            files: group.files.iter().map(FileReport::from).collect(),
            problems: problem.into_iter().collect(),
            remedy,
            // A group that refuses work stays unchanged, so the findings do not apply.
            findings: if group.refusal.is_none() { group.findings } else { Vec::new() },
            ..Self::default()
        }
    }

    fn parse(answer: &CommandAnswer) -> Self {
        let mut files: Vec<FileReport> = Vec::new();
        for line in &answer.more {
            let (file, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (rest.strip_prefix("problem "), files.last_mut()) {
                (Some(problem), Some(last)) if last.file == file => {
                    last.problems.push(problem.to_owned());
                }
                _ => files.push(FileReport::parse(file, rest)),
            }
        }
        Self {
            topic: Some(first_word(&answer.ok).to_owned()),
            damaged: field_number(&answer.ok, "damaged") != Some(0),
            files,
            ..Self::default()
        }
    }

    /// The result for a file that is not part of a log.
    pub(crate) fn of_file(path: &Path, problems: Vec<String>, notes: Vec<String>) -> Self {
        let (file, damaged) = (Some(path.display().to_string()), !problems.is_empty());
        Self { file, damaged, notes, problems, ..Self::default() }
    }

    /// The result as lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.summary()];
        for file in self.files.iter().filter(|file| file.is_damaged()) {
            lines.extend(file.lines(self.unit()));
        }
        let texts = self.problems.iter().chain(&self.notes);
        lines.extend(texts.map(|text| format!("  {text}")));
        if !self.findings.is_empty() {
            lines.push("  the next start of a broker will say:".to_owned());
            lines.extend(self.findings.iter().map(|finding| format!("    {finding}")));
        }
        lines.extend(self.remedy.iter().map(|remedy| format!("  what to do: {remedy}")));
        lines
    }

    fn summary(&self) -> String {
        let named = self.topic.clone().or_else(|| Some(format!("group {}", self.group.as_ref()?)));
        if let Some(file) = self.database.as_ref().or(self.file.as_ref()) {
            let state = if self.damaged { "damaged" } else { "no damage found" };
            return format!("{file}: {state}");
        }
        let Some(topic) = &named else {
            // The catalog is reported only if there is a finding.
            let state = if self.damaged { "damaged" } else { "as after a crash" };
            return format!("the catalog of topics, cursors and groups is {state}");
        };
        let sum = |of: fn(&FileReport) -> u64| self.files.iter().map(of).sum::<u64>();
        if self.files.is_empty() && !self.damaged {
            return format!("{topic}: nothing is stored on disk");
        }
        let (files, size) = (plural(self.files.len() as u64, "file"), sum(|file| file.bytes));
        let found = format!(
            "{files}, {}, {}",
            plural(sum(|file| file.events), self.unit()),
            format_bytes(size)
        );
        let verdict = match sum(|file| file.lost) {
            _ if !self.damaged => "no damage".to_owned(),
            0 => "damaged".to_owned(),
            lost => format!("damaged, {} cannot be read", plural(lost, self.unit())),
        };
        format!("{topic}: {found}: {verdict}")
    }

    /// The unit of its files.
    fn unit(&self) -> &'static str {
        if self.group.is_some() { "record" } else { "event" }
    }
}

impl FileReport {
    fn parse(file: &str, rest: &str) -> Self {
        let number = |key| field_number(rest, key).unwrap_or(0);
        let range = |range: &str| {
            let (from, to) = range.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        };
        Self {
            file: file.to_owned(),
            bytes: number("bytes"),
            events: number("events"),
            lost: number("lost"),
            ranges: field(rest, "ranges").unwrap_or("").split(',').filter_map(range).collect(),
            problems: Vec::new(),
        }
    }

    fn is_damaged(&self) -> bool {
        self.lost > 0 || !self.problems.is_empty()
    }

    /// The problems, the lost events, and the cost of setting the file aside.
    fn lines(&self, unit: &str) -> Vec<String> {
        let mut lines = vec![format!("  {}", self.file)];
        lines.extend(self.problems.iter().map(|problem| format!("    {problem}")));
        if self.lost == 0 {
            lines.push(format!("    no {unit} is lost"));
            return lines;
        }
        let listed = self.ranges.iter().map(|(from, to)| (from, to, to.saturating_sub(*from) + 1));
        for (from, to, events) in listed.clone() {
            let range = if from == to {
                format!("{unit} {} cannot be read", format_count(*from))
            } else {
                format!("{unit}s {} to {} cannot be read", format_count(*from), format_count(*to))
            };
            let all = format_count(self.events + self.lost);
            lines.push(format!("    {range} ({} of {all} in this file)", format_count(events)));
        }
        let listed: u64 = listed.map(|(.., events)| events).sum();
        if let unlisted @ 1.. = self.lost.saturating_sub(listed) {
            lines.push(format!("    and {} elsewhere in this file", plural(unlisted, unit)));
        }
        if self.events > 0 && unit == "event" {
            let others = plural(self.events, "other event");
            lines.push(format!("    setting it aside would lose the {others} in it, too"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(more: &[&str], ok: &str) -> CommandAnswer {
        CommandAnswer {
            ok: ok.to_owned(),
            more: more.iter().map(|&line| line.to_owned()).collect(),
        }
    }

    #[test]
    fn damage_is_reported_with_its_cost() {
        let report = VerifyReport::parse(&answer(
            &[
                "1.log bytes=4096 events=100 lost=0",
                "101.log bytes=700 events=9779 lost=221 ranges=120-339,400-400",
                "101.log problem the batch at byte 96 has a wrong checksum",
                "101.log problem 7 bytes are no batch",
            ],
            "t files=2 bytes=4796 events=9879 lost=221 damaged=1",
        ));
        assert!(report.damaged);
        assert_eq!(
            report.lines(),
            [
                "t: 2 files, 9,879 events, 4.8 kB: damaged, 221 events cannot be read",
                "  101.log",
                "    the batch at byte 96 has a wrong checksum",
                "    7 bytes are no batch",
                "    events 120 to 339 cannot be read (220 of 10,000 in this file)",
                "    event 400 cannot be read (1 of 10,000 in this file)",
                "    setting it aside would lose the 9,779 other events in it, too",
            ]
        );
    }

    #[test]
    fn an_undamaged_topic_is_one_line() {
        let report = VerifyReport::parse(&answer(
            &["1.log bytes=4096 events=100 lost=0"],
            "t files=1 bytes=4096 events=100 lost=0 damaged=0",
        ));
        assert_eq!(report.lines(), ["t: 1 file, 100 events, 4.1 kB: no damage"]);
        let nothing =
            VerifyReport::parse(&answer(&[], "t files=0 bytes=0 events=0 lost=0 damaged=0"));
        assert_eq!(nothing.lines(), ["t: nothing is stored on disk"]);
    }

    #[test]
    fn unlisted_ranges_are_counted() {
        let file = FileReport { lost: 12, ranges: vec![(1, 10)], ..FileReport::default() };
        assert_eq!(
            file.lines("event")[1..],
            [
                "    events 1 to 10 cannot be read (10 of 12 in this file)",
                "    and 2 events elsewhere in this file"
            ]
        );
    }

    #[test]
    fn json_has_every_field() {
        let file =
            FileReport { file: "1.log".into(), ranges: vec![(1, 2)], ..FileReport::default() };
        let report =
            VerifyReport { topic: Some("t".into()), files: vec![file], ..VerifyReport::default() };
        assert_eq!(
            serde_json::json!(report),
            serde_json::json!({"topic": "t", "damaged": false, "files": [{"file": "1.log",
                "bytes": 0, "events": 0, "lost": 0, "ranges": [[1, 2]], "problems": []}]})
        );
    }
}
