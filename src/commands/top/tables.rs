//! The tables of the pages. Their columns are those of the commands that list the same.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tidings_protocol::status::{JobState, KeyStatus, TopicStatus};
use tidings_protocol::{GroupName, JobName, NAME_BYTES_MAX, Seq, TopicName};
use unicode_width::UnicodeWidthStr;

use super::model::Page;
use super::snapshot::Snapshot;
use crate::client::manage;
use crate::client::overview::GroupOverview;
use crate::commands::explain::key_sentence;
use crate::commands::group::{keys, members};
use crate::commands::{group, job, topic};
use crate::terminal::output::{format_count, printable};

/// The longest cell, in characters.
const CELL_CHARS_MAX: usize = NAME_BYTES_MAX;

/// Headings of names.
const NAMES: [&str; 4] = ["GROUP", "JOB", "TOPIC", "NAME"];

/// The longest name on a narrow screen, in characters. The name of a crawl fits.
const NAME_CHARS_MAX: usize = 22;

/// Headings in the order in which a narrow screen leaves them out.
const OPTIONAL: [&str; 13] = [
    "OPENED",
    "TOOK>",
    "PASS>",
    "FOUND>",
    "KEY",
    "TOPICS",
    "LOST>",
    "QUEUED>",
    "COMPLETED>",
    "PROCESSING>",
    "RENDER>",
    "ADDRESS",
    "CREDIT>",
];

/// A table of a page.
#[derive(Debug)]
pub(super) struct Table {
    /// As [`manage::Table`] takes them.
    pub(super) headings: String,
    pub(super) rows: Vec<Row>,
}

/// A row. Its cells are safe for a terminal.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) subject: Subject,
}

/// What a row stands for.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Group(GroupName),
    Job {
        group: GroupName,
        job: JobName,
        is_paused: bool,
    },
    Topic(TopicName),
    /// Something with more text than its cells show.
    Text(String),
}

impl Table {
    fn new(headings: &str, rows: impl Iterator<Item = (Vec<String>, Option<Subject>)>) -> Self {
        let cell = |cell: String| match printable(&cell, CELL_CHARS_MAX) {
            empty if empty.is_empty() => "-".to_owned(),
            cell => cell,
        };
        let row = |(cells, subject): (Vec<String>, Option<Subject>)| Row {
            cells: cells.into_iter().map(cell).collect(),
            subject: subject.unwrap_or(Subject::Text(String::new())),
        };
        Self { headings: headings.to_owned(), rows: rows.map(row).collect() }
    }

    /// Numbers come first, the largest at the top; then words in their order.
    pub(super) fn sort(&mut self, column: usize) {
        self.rows.sort_by_cached_key(|row| {
            let cell = row.cells.get(column);
            let amount = cell.and_then(|cell| amount(cell));
            (amount.is_none(), Reverse(amount), cell.cloned())
        });
    }

    /// Counts the rows that are too many.
    pub(super) fn truncate(&mut self, rows_max: usize) {
        if self.rows.len() > rows_max {
            let more = format_count((self.rows.len() - rows_max) as u64);
            self.rows.truncate(rows_max);
            let subject = Subject::Text(String::new());
            self.rows.push(Row { cells: vec![format!("and {more} more")], subject });
        }
    }

    /// The headings and the rows as aligned lines. If they are wider than `width`, long names are
    /// shortened, and then columns are left out.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let mut heads: Vec<_> = self.headings.split(' ').collect();
        let mut rows: Vec<_> = self.rows.iter().map(|row| row.cells.clone()).collect();
        let mut dropped = OPTIONAL.iter();
        for attempt in 0.. {
            let table = &mut manage::Table::new(&heads.join(" "));
            let lines = table.lines_with_headings(rows.iter().cloned());
            if lines.iter().all(|line| line.width() <= width) {
                return lines;
            }
            if attempt == 0 {
                let is_name = |head: &&str| NAMES.contains(head);
                rows.iter_mut()
                    .flat_map(|row| heads.iter().zip(row).filter(|(head, _)| is_name(head)))
                    .for_each(|(_, cell)| shorten(cell));
                continue;
            }
            let Some(at) = dropped.find_map(|name| heads.iter().position(|head| head == name))
            else {
                return lines;
            };
            heads.remove(at);
            rows.iter_mut().filter(|row| at < row.len()).for_each(|row| drop(row.remove(at)));
        }
        Vec::new()
    }
}

/// Leaves out the middle of a long name.
fn shorten(name: &mut String) {
    let chars: Vec<_> = name.chars().collect();
    if chars.len() > NAME_CHARS_MAX {
        let (begin, end) = (NAME_CHARS_MAX / 2, chars.len() - (NAME_CHARS_MAX - 1) / 2);
        *name = chars[..begin].iter().chain(&['…']).chain(&chars[end..]).collect();
    }
}

/// The tables of a page.
pub(super) fn of(page: &Page, snapshot: &Snapshot, tail: &BTreeMap<Seq, String>) -> Vec<Table> {
    match page {
        Page::Overview => {
            vec![groups(snapshot, None), jobs(snapshot, true), topics(snapshot, None)]
        }
        Page::Groups => vec![groups(snapshot, None)],
        Page::Jobs => vec![jobs(snapshot, false)],
        Page::Topics => vec![topics(snapshot, None)],
        Page::Group(name) => {
            let members = snapshot.members.iter().map(|member| (members::row(member), None));
            vec![
                groups(snapshot, Some(name)),
                hosts(snapshot, name),
                Table::new(members::HEADINGS, members),
            ]
        }
        Page::Topic(name) => vec![topics(snapshot, Some(name)), events(tail)],
    }
}

fn groups(snapshot: &Snapshot, only: Option<&GroupName>) -> Table {
    let rows = snapshot.overview.groups.iter().map(|group| match group {
        GroupOverview::Sound(status) => group::row(status),
        GroupOverview::Damaged(status) => group::trouble_row(&status.group, "damaged"),
        GroupOverview::Still { group, .. } => group::trouble_row(group, "stands still"),
    });
    let rows = rows.filter(|cells| only.is_none_or(|only| cells[0] == only.as_str()));
    let rows = rows.map(|cells| {
        let subject = cells[0].parse().map(Subject::Group).ok();
        (cells, subject)
    });
    Table::new(group::HEADINGS, rows)
}

fn jobs(snapshot: &Snapshot, only_running: bool) -> Table {
    let jobs = snapshot.jobs.iter();
    let jobs = jobs.filter(|(_, job)| !only_running || job.state != JobState::Done);
    let row = |(group, job): &(String, _)| {
        let cells = [vec![group.clone()], job::row(job)].concat();
        let names = group.parse().ok().zip(job.job.parse().ok());
        let is_paused = job.state == JobState::Paused;
        (cells, names.map(|(group, job)| Subject::Job { group, job, is_paused }))
    };
    Table::new(&format!("GROUP {}", job::HEADINGS), jobs.map(row))
}

fn topics(snapshot: &Snapshot, only: Option<&TopicName>) -> Table {
    let topics = snapshot.overview.topics.iter();
    let topics = topics.filter(|topic| only.is_none_or(|only| topic.topic == only.as_str()));
    let row =
        |topic: &TopicStatus| (topic::row(topic), topic.topic.parse().map(Subject::Topic).ok());
    Table::new(topic::HEADINGS, topics.map(row))
}

fn hosts(snapshot: &Snapshot, name: &GroupName) -> Table {
    let row = |key: &KeyStatus| {
        let sentence = snapshot.group(name).and_then(|group| key_sentence(group, key));
        (keys::row(key), sentence.map(Subject::Text))
    };
    Table::new(keys::HEADINGS, snapshot.hosts.iter().map(row))
}

/// The newest event comes first.
fn events(tail: &BTreeMap<Seq, String>) -> Table {
    let row = |(seq, payload): (&Seq, &String)| {
        (vec![format_count(seq.0), payload.clone()], Some(Subject::Text(payload.clone())))
    };
    Table::new("SEQ> EVENT", tail.iter().rev().map(row))
}

/// The amount of a cell such as `1,499`, `0.5`, `3.4 kB` or `2h 03m`, in an order that holds within
/// a column.
fn amount(cell: &str) -> Option<u64> {
    let text = cell.replace([',', ' '], "");
    let (mut rest, mut sum) = (text.as_str(), 0_u64);
    while !rest.is_empty() {
        let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let after = &rest[number.len()..];
        let unit = after.split(|c: char| c.is_ascii_digit()).next()?;
        // Cells have at most one decimal.
        let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
        let tenths =
            whole.parse::<u64>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
        let factor = match unit {
            "" | "B" | "ms" => 1,
            "kB" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return None,
        };
        sum = sum.checked_add(tenths.checked_mul(factor)?)?;
        rest = &after[unit.len()..];
    }
    Some(sum)
}
