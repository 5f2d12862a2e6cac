//! What `tidings top` shows and how keys change it, without terminal and connection.

use std::collections::BTreeMap;
use std::mem;

use ratatui::crossterm::event::KeyCode;
use tidings_protocol::{GroupName, JobName, Seq, TopicName};

use super::snapshot::Snapshot;
use super::tables::{self, Row, Subject, Table};
use crate::commands::status;
use crate::terminal::output::printable;

/// The longest text below the table, in characters.
const DETAIL_CHARS_MAX: usize = 400;

/// Rows of each table on the overview; more are counted.
const OVERVIEW_ROWS_MAX: usize = 5;

/// The events of an open topic that are kept.
pub(super) const TAIL_EVENTS_MAX: usize = 50;

/// Rows that a page key moves over.
const PAGE_ROWS: usize = 10;

pub(super) const HELP: &[&str] = &[
    "Left, Right   overview, groups, jobs, topics",
    "Up, Down      select a row",
    "Enter         open the group or topic",
    "Esc           go back; show all rows again",
    "/             show only rows with this text",
    "s             sort by the next column",
    "p             pause or resume the group or job (asks)",
    "q, Ctrl-C     end",
];

/// A page of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Groups,
    Jobs,
    Topics,
    Group(GroupName),
    Topic(TopicName),
}

/// The pages that the left and right keys go through.
pub(super) const TABS: [(Page, &str); 4] = [
    (Page::Overview, "overview"),
    (Page::Groups, "groups"),
    (Page::Jobs, "jobs"),
    (Page::Topics, "topics"),
];

/// What the keys do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    Browse,
    /// Letters change the filter.
    Filter,
    Help,
    /// `y` runs the action.
    Confirm(Action),
}

/// What a key asks of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Pauses or resumes a group, or a job of it.
    Pause {
        group: GroupName,
        job: Option<JobName>,
        pause: bool,
    },
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Model {
    address: String,
    snapshot: Snapshot,
    /// The newest events of an open topic.
    tail: BTreeMap<Seq, String>,
    pub(super) page: Page,
    pub(super) mode: Mode,
    /// The selected row, from 0.
    pub(super) selected: usize,
    filter: String,
    /// The column by which rows are sorted; without it they keep the order of the broker.
    order: Option<usize>,
}

impl Model {
    pub(super) fn new(address: &str, snapshot: Snapshot) -> Self {
        Self {
            address: address.to_owned(),
            snapshot,
            tail: BTreeMap::new(),
            page: Page::Overview,
            mode: Mode::Browse,
            selected: 0,
            filter: String::new(),
            order: None,
        }
    }

    /// Replaces what is shown; page, filter and selection stay.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let shown = mem::replace(&mut self.snapshot, snapshot).refusal;
        self.snapshot.refusal = self.snapshot.refusal.take().or(shown);
        self.selected = self.selected.min(self.last_row());
    }

    /// Adds an event of a topic, if that is open.
    pub(super) fn event(&mut self, topic: TopicName, seq: Seq, payload: String) {
        if self.page == Page::Topic(topic) {
            self.tail.insert(seq, payload);
            if self.tail.len() > TAIL_EVENTS_MAX {
                self.tail.pop_first();
            }
        }
    }

    /// Whether all is well, and the figures of the broker.
    pub(super) fn head(&self) -> Vec<String> {
        let overview = &self.snapshot.overview;
        let lines = status::lines(overview, &self.address);
        lines.into_iter().take(3).map(|line| printable(&line, usize::MAX)).collect()
    }

    /// The tables of the page as lines, each with the number of its row. Headings have none.
    pub(super) fn lines(&self) -> Vec<(Option<usize>, String)> {
        let (mut lines, mut rows) = (Vec::new(), 0..);
        for table in self.tables() {
            if !lines.is_empty() {
                lines.push((None, String::new()));
            }
            let texts = table.lines().into_iter().enumerate();
            lines.extend(texts.map(|(at, text)| ((at > 0).then(|| rows.next()).flatten(), text)));
        }
        lines
    }

    /// The text about the selected row.
    pub(super) fn detail(&self) -> String {
        match self.subject() {
            Some(Subject::Text(text)) => printable(&text, DETAIL_CHARS_MAX),
            _ => String::new(),
        }
    }

    /// The line at the bottom.
    pub(super) fn foot(&self) -> String {
        match (&self.mode, &self.snapshot.refusal) {
            (Mode::Filter, _) => format!("/{}_  Enter: keep, Esc: all rows", self.filter),
            (Mode::Help, _) => "any key: back".to_owned(),
            (Mode::Confirm(Action::Pause { group, job, pause }), _) => {
                let what = if *pause { "pause" } else { "resume" };
                let job = job.as_ref().map(|job| format!("job {job} of ")).unwrap_or_default();
                format!("{what} {job}group {group}? [y/N]")
            }
            (_, Some(refusal)) => printable(refusal, DETAIL_CHARS_MAX),
            _ if !self.filter.is_empty() => format!("filter: {}  Esc: all rows", self.filter),
            _ => "? help  arrows, Enter, Esc  / filter  s sort  p pause  q quit".to_owned(),
        }
    }

    /// Handles a key. Returns what the caller must do.
    pub(super) fn key(&mut self, key: KeyCode) -> Option<Action> {
        self.snapshot.refusal = None;
        match (mem::replace(&mut self.mode, Mode::Browse), key) {
            (Mode::Confirm(action), KeyCode::Char('y' | 'Y')) => return Some(action),
            (Mode::Confirm(_) | Mode::Help, _) | (Mode::Filter, KeyCode::Enter) => {}
            (Mode::Filter, KeyCode::Esc) => self.filter.clear(),
            (Mode::Filter, key) => {
                match key {
                    KeyCode::Char(c) => self.filter.push(c),
                    KeyCode::Backspace => drop(self.filter.pop()),
                    _ => {}
                }
                (self.mode, self.selected) = (Mode::Filter, 0);
            }
            (Mode::Browse, key) => return self.browse(key),
        }
        None
    }

    fn browse(&mut self, key: KeyCode) -> Option<Action> {
        let last = self.last_row();
        match key {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => {
                let tables = self.tables();
                let columns = tables.iter().map(|table| table.headings.split(' ').count());
                let next = self.order.map_or(0, |column| column + 1);
                self.order = Some(next).filter(|next| Some(*next) < columns.max());
            }
            KeyCode::Char('p') => {
                self.mode = self.pause().map_or(Mode::Browse, Mode::Confirm);
            }
            KeyCode::Up => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(PAGE_ROWS),
            KeyCode::PageDown => self.selected = (self.selected + PAGE_ROWS).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Left => self.go_by(TABS.len() - 1),
            KeyCode::Right => self.go_by(1),
            KeyCode::Enter => match self.subject() {
                Some(Subject::Group(group) | Subject::Job { group, .. }) => {
                    self.go(Page::Group(group));
                }
                Some(Subject::Topic(topic)) => self.go(Page::Topic(topic)),
                _ => {}
            },
            KeyCode::Esc if self.filter.is_empty() => self.go(self.tab()),
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        None
    }

    /// The tab of the page.
    pub(super) fn tab(&self) -> Page {
        match &self.page {
            Page::Group(_) => Page::Groups,
            Page::Topic(_) => Page::Topics,
            page => page.clone(),
        }
    }

    fn go_by(&mut self, tabs: usize) {
        let tab = TABS.iter().position(|(page, _)| *page == self.tab()).unwrap_or(0);
        self.go(TABS[(tab + tabs) % TABS.len()].0.clone());
    }

    fn go(&mut self, page: Page) {
        if page != self.page {
            (self.page, self.selected, self.order) = (page, 0, None);
            self.filter.clear();
            self.tail.clear();
            self.snapshot.hosts.clear();
            self.snapshot.members.clear();
        }
    }

    /// The subject of the selected row.
    fn subject(&self) -> Option<Subject> {
        self.rows().nth(self.selected).map(|row| row.subject)
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.tables().into_iter().flat_map(|table| table.rows)
    }

    fn last_row(&self) -> usize {
        self.rows().count().saturating_sub(1)
    }

    /// What `p` asks for: the selected job, the selected group or the open one.
    fn pause(&self) -> Option<Action> {
        let group = match (self.page.clone(), self.subject()) {
            (_, Some(Subject::Job { group, job, is_paused })) => {
                return Some(Action::Pause { group, job: Some(job), pause: !is_paused });
            }
            (Page::Group(group), _) | (_, Some(Subject::Group(group))) => group,
            _ => return None,
        };
        let pause = !self.snapshot.group(&group)?.paused;
        Some(Action::Pause { group, job: None, pause })
    }

    /// The tables of the page, with the rows that the filter lets through, in their order.
    fn tables(&self) -> Vec<Table> {
        let mut tables = tables::of(&self.page, &self.snapshot, &self.tail);
        for table in &mut tables {
            table.rows.retain(|row| row.cells.iter().any(|cell| cell.contains(&self.filter)));
            if let Some(column) = self.order {
                table.sort(column);
            }
            if self.page == Page::Overview {
                table.truncate(OVERVIEW_ROWS_MAX);
            }
        }
        tables
    }
}
