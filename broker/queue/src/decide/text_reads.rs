//! What waits for texts that lie outside memory: releases, inputs, the snapshot, and records about
//! entries that have ended.
//!
//! A group decides nothing about an entry before its text is in memory. So a decision is applied
//! and recorded at once, as if all texts were there, and a replay does not depend on when they
//! came. A text that cannot be read stops the group, because the group's log still has it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use tidings_protocol::{CanonicalUrl, Code, ProtocolError, UrlKey};

use super::parsed_event::ParsedEvent;
use super::prefetch::PREFETCH_BATCH;
use crate::entry::{EntryId, Key, PassId};
use crate::frontier::entry_text::{DormantRef, WantedText};
use crate::moment::Moment;
use crate::mutants::{self, Mutant};
use crate::queries::job_change::TriedChange;
use crate::queries::task_list::SelectedTasks;
use crate::queries::waiting::SelectedWaiting;
use crate::record::snapshot::SnapshotItem;
use crate::record::{Decision, GroupRecord};
use crate::state::EarlyPart;
use crate::texts::{TextError, TextReply};
use crate::{ConnId, Group, GroupQuery, Input, JobOperation, Operation, Output, Requester};

/// Texts that are read in advance: those of keys that are released next, beyond the free credit.
const READ_AHEAD: usize = 2 * PREFETCH_BATCH;

/// Maximum number of keys with a text that is being read, for each order of release.
const LOADING_MAX: usize = 1024;

/// Maximum number of commands that wait. Few events wait, because the owner passes no more of them
/// then.
pub(crate) const HELD_MAX: usize = 1024;

/// What waits for texts.
#[derive(Debug, Default)]
pub(crate) struct TextReads {
    /// The texts of each request that has no reply.
    pending: HashMap<u64, Vec<WantedText>>,
    /// Inputs that wait, in order, each with the request for its texts if there is one. The first
    /// one waits for a request that has no reply.
    held: VecDeque<(HeldInput, Option<u64>)>,
    /// Records without their text, in order. No output of the input of the first one, or of a later
    /// input, leaves.
    unread: VecDeque<UnreadRecord>,
    /// Why the group has stopped.
    problem: Option<TextError>,
}

/// An input that waits for texts.
#[derive(Debug)]
pub(crate) enum HeldInput {
    /// Events or a command. Some need texts; the others keep their order.
    Input(Input),
    /// Entries that a query or command has selected.
    Selected(Requester, SelectedEntries),
    /// The schedule of this URL is due.
    Schedule(UrlKey),
}

/// Entries whose texts a query or command needs.
#[derive(Debug)]
pub(crate) enum SelectedEntries {
    /// Entries to list.
    Tasks(SelectedTasks),
    /// Entries that a change of their job may end.
    Change(TriedChange),
    /// Entries to drop or bump.
    Waiting(SelectedWaiting),
}

/// The record of a dormant entry for a snapshot, without the text of the entry.
#[derive(Debug)]
struct UnreadRecord {
    /// Its index among all outputs since the start, and that of the first output of its input.
    index: usize,
    input_start: usize,
    /// The text, which is pinned, and the request for it.
    wanted: WantedText,
    request: Option<u64>,
    key: Key,
    job: Option<PassId>,
}

impl TextReads {
    /// Returns why the group has stopped.
    pub(crate) fn problem(&self) -> Option<&TextError> {
        self.problem.as_ref()
    }

    /// Removes held commands that wait for the end of a pass, of a connection that has ended.
    pub(crate) fn remove_waits(&mut self, conn: ConnId) {
        self.held.retain(|(held, _)| match held {
            HeldInput::Input(Input::JobAction {
                requester, action: JobOperation::Wait, ..
            }) => requester.conn != conn,
            _ => true,
        });
    }

    /// Reports whether inputs wait.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Removes and returns the first input that waits, unless its texts are still being read.
    fn pop_held(&mut self) -> Option<HeldInput> {
        let is_pending = |request| self.pending.contains_key(&request);
        self.held.pop_front_if(|(_, request)| !request.is_some_and(is_pending)).map(|held| held.0)
    }

    /// Reports whether no further command may wait.
    fn is_full(&self) -> bool {
        let command = |(held, _): &(HeldInput, _)| match held {
            HeldInput::Input(input) => input.requester(),
            _ => None,
        };
        self.held.len() >= HELD_MAX && self.held.iter().filter_map(command).count() >= HELD_MAX
    }

    /// Reports whether outputs wait for texts.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns the index of the first output that waits for texts, among all outputs since the
    /// start.
    pub(crate) fn first_unread_input(&self) -> Option<usize> {
        self.unread.front().map(|unread| unread.input_start)
    }

    /// Reports whether an input waits.
    #[cfg(test)]
    pub(crate) fn holds(&self, input: &Input) -> bool {
        let is_same = |held: &Input| match (held, input) {
            (Input::Events { next, .. }, Input::Events { next: other, .. }) => next == other,
            _ => held.requester().is_some() && held.requester() == input.requester(),
        };
        self.held.iter().any(|(held, _)| match held {
            HeldInput::Input(held) => is_same(held),
            HeldInput::Selected(requester, _) => input.requester() == Some(*requester),
            HeldInput::Schedule(_) => false,
        })
    }

    /// Returns the URLs of schedules that are due and wait.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn held_schedules(&self) -> impl Iterator<Item = UrlKey> {
        self.held.iter().filter_map(|(held, _)| match held {
            HeldInput::Schedule(url) => Some(*url),
            _ => None,
        })
    }
}

impl Group {
    /// Handles an input that may need texts, after those that wait already. Rejects a command if
    /// too many wait.
    pub(crate) fn handle_or_hold(&mut self, input: HeldInput, now: Moment) {
        let mut request = None;
        if self.reads.is_holding()
            && let HeldInput::Input(input) = &input
        {
            if let Some(requester) = input.requester()
                && self.reads.is_full()
            {
                return self.reject_command(requester, input);
            }
            request = self.request_texts_of_command(input);
        }
        self.reads.held.push_back((input, request));
        self.handle_all_held(now);
    }

    fn reject_command(&mut self, requester: Requester, command: &Input) {
        if let Input::OpenJob { name, .. } = command {
            // Frees the name, which is reserved until the answer.
            self.report_job_name(name);
        }
        let text = format!("{HELD_MAX} commands wait for texts from the disk; try again later");
        self.answer(requester, Err(ProtocolError::new(Code::Limit, text)));
    }

    /// Handles the inputs that wait, up to the first one that still waits for texts.
    fn handle_all_held(&mut self, now: Moment) {
        while let Some(input) = self.reads.pop_held() {
            if let Some((input, request)) = self.handle_held(input, now)
                && !mutants::is(Mutant::LosesHeld)
            {
                self.reads.held.push_front((input, Some(request)));
            }
            // The answer comes last. The owner rejects what is left.
            if matches!(self.outputs.iter().rev().nth(1), Some(Output::Deleted)) {
                return;
            }
        }
    }

    /// Handles an input, or returns what is left of it and the request for which it waits.
    fn handle_held(&mut self, input: HeldInput, now: Moment) -> Option<(HeldInput, u64)> {
        match input {
            HeldInput::Input(Input::Events { topic, next, mut events, foreign_jobs }) => {
                let (rest, request) =
                    self.consume_events(&topic, next, &events, &foreign_jobs, now)?;
                events.drain(..rest);
                let left = Input::Events { topic, next, events, foreign_jobs };
                return Some((HeldInput::Input(left), request));
            }
            HeldInput::Input(input) => return self.handle_held_command(input, now),
            HeldInput::Selected(requester, selected) => {
                return self.answer_selected(requester, selected, now);
            }
            HeldInput::Schedule(url) => {
                // It may have changed or ended while this waited.
                self.state.schedules().find(url).filter(|schedule| schedule.due <= now)?;
                if let Some(request) = self.request_texts_of_url(url) {
                    return Some((input, request));
                }
                self.fire_schedule(url, now);
            }
        }
        None
    }

    fn handle_held_command(&mut self, input: Input, now: Moment) -> Option<(HeldInput, u64)> {
        if let Some(request) = self.request_texts_of_command(&input) {
            return Some((HeldInput::Input(input), request));
        }
        let (requester, selected) = match &input {
            Input::Query { requester, query: GroupQuery::Tasks(query) } => {
                (*requester, self.view().select_tasks(query).map(SelectedEntries::Tasks))
            }
            Input::Query { requester, query: GroupQuery::JobChange(change) } => {
                let tried = self.view().try_change(change).map(SelectedEntries::Change);
                if mutants::is(Mutant::DryRunChanges) {
                    let _ = self.set_job(&change.name, &change.changes, now);
                }
                (*requester, tried)
            }
            Input::Operate { requester, operation: Operation::ChangeWaiting(change) } => {
                (*requester, self.view().select_waiting(change).map(SelectedEntries::Waiting))
            }
            _ => {
                self.handle_command(input, now);
                return None;
            }
        };
        match selected {
            Ok(selected) => return self.answer_selected(requester, selected, now),
            Err(error) => self.answer(requester, Err(error)),
        }
        None
    }

    fn answer_selected(
        &mut self,
        requester: Requester,
        selected: SelectedEntries,
        now: Moment,
    ) -> Option<(HeldInput, u64)> {
        let ids: Vec<EntryId> = match &selected {
            SelectedEntries::Tasks(tasks) => tasks.ids().collect(),
            SelectedEntries::Change(change) => change.ids().collect(),
            SelectedEntries::Waiting(waiting) => waiting.ids().collect(),
        };
        let dormant = ids.iter().filter_map(|id| self.state.dormant().find(*id));
        let wanted = self.missing_texts(dormant);
        if let Some(request) = self.request_texts(wanted) {
            return Some((HeldInput::Selected(requester, selected), request));
        }
        let answer = match &selected {
            SelectedEntries::Tasks(tasks) => self.view().describe_tasks(tasks, now),
            SelectedEntries::Change(change) => self.view().describe_change(change),
            SelectedEntries::Waiting(waiting) => self.change_waiting(waiting, now),
        };
        self.answer(requester, answer);
        None
    }

    /// Returns the texts of these entries that must be read.
    pub(crate) fn missing_texts(
        &self,
        dormant: impl Iterator<Item = DormantRef>,
    ) -> Vec<WantedText> {
        if !self.state.dormant().has_stored_texts() {
            return Vec::new();
        }
        let missing = dormant.filter(|dormant| self.state.dormant().must_read(*dormant));
        missing.map(|dormant| self.state.dormant().wanted(dormant)).collect()
    }

    /// Requests texts. Returns the number of the request; `None` if there are none.
    pub(crate) fn request_texts(&mut self, wanted: Vec<WantedText>) -> Option<u64> {
        if wanted.is_empty() {
            return None;
        }
        let request = self.state.texts_mut().request_texts(&wanted);
        self.reads.pending.insert(request, wanted);
        Some(request)
    }

    /// Requests the texts that a recorded decision needs.
    pub(crate) fn request_texts_for(&mut self, decision: &Decision) {
        if self.state.dormant().has_stored_texts() {
            let entries = decision.entries();
            let dormant = entries.iter().filter_map(|entry| self.state.dormant().find(*entry));
            let wanted = self.missing_texts(dormant);
            self.request_texts(wanted);
        }
    }

    /// Requests the texts of the waiting entries of events' URLs, as far as they must be read.
    pub(crate) fn request_texts_of<'a>(
        &mut self,
        events: impl Iterator<Item = &'a ParsedEvent<'a>>,
    ) -> Option<u64> {
        let urls = events.filter_map(ParsedEvent::fingerprint);
        let wanted =
            self.missing_texts(urls.flat_map(|url| self.state.dormant().of_fingerprint(url)));
        self.request_texts(wanted)
    }

    /// Requests those of the URL that a command names.
    fn request_texts_of_command(&mut self, command: &Input) -> Option<u64> {
        let url = match command {
            Input::JobAction { action: JobOperation::Add { url, .. }, .. } => url,
            Input::Query { query: GroupQuery::Explain(what), .. } => what.as_str(),
            _ => return None,
        };
        self.request_texts_of_url(CanonicalUrl::parse(url).ok()?.url_key())
    }

    /// Requests those of one URL.
    fn request_texts_of_url(&mut self, url: UrlKey) -> Option<u64> {
        let wanted = self.missing_texts(self.state.dormant().of_url(url));
        self.request_texts(wanted)
    }

    /// Returns how many more keys may be read for their release; with `render`, for that of their
    /// entries that need a browser.
    pub(crate) fn loading_room(&self, render: bool) -> usize {
        let most = (self.state.leases().members().free_credit() + READ_AHEAD).min(LOADING_MAX);
        most.saturating_sub(self.state.frontier().loading(render).len())
    }

    /// Records the parts of a snapshot in progress that must come before the next record. Until the
    /// text of an entry was read, no output of this input or a later one leaves.
    pub(crate) fn record_early_parts(&mut self) {
        for part in self.state.take_early() {
            let item = match part {
                EarlyPart::Entry(admission) => SnapshotItem::Dormant(vec![admission]),
                EarlyPart::Unread { wanted, key, job } => {
                    let (index, input_start) = (self.output_count(), self.input_start);
                    let unread =
                        UnreadRecord { index, input_start, wanted, request: None, key, job };
                    self.reads.unread.push_back(unread);
                    SnapshotItem::Dormant(Vec::new())
                }
                EarlyPart::Abandoned => SnapshotItem::Abandoned,
            };
            let decision = Decision::SnapshotPart(Box::new(item));
            let record = GroupRecord { at: self.state.now(), decision };
            self.outputs.push_back(Output::Record(record));
        }
    }

    /// Requests the texts of records that have none.
    pub(crate) fn request_unread_outputs(&mut self) {
        let new = self.reads.unread.iter().rev().take_while(|unread| unread.request.is_none());
        let count = new.count();
        if count == 0 {
            return;
        }
        let first = self.reads.unread.len() - count;
        let wanted: Vec<_> = self.reads.unread.range(first..).map(|unread| unread.wanted).collect();
        let request = self.state.texts_mut().request_texts(&wanted);
        self.reads.unread.range_mut(first..).for_each(|unread| unread.request = Some(request));
    }

    /// Handles a reply about texts.
    pub(crate) fn texts_replied(&mut self, reply: TextReply, now: Moment) {
        match reply {
            TextReply::Written { chunk, written } => {
                self.state.texts_mut().text_written(chunk, written.is_ok());
            }
            TextReply::Read { number, texts } => {
                if let Err(problem) = self.take_texts(number, texts, now) {
                    self.reads.problem = Some(problem);
                }
            }
        }
    }

    /// Takes texts that were read, and continues what waited for them.
    fn take_texts(
        &mut self,
        request: u64,
        texts: Vec<Result<Vec<u8>, TextError>>,
        now: Moment,
    ) -> Result<(), TextError> {
        if self.state.texts_mut().take_sparse_chunk(request, &texts)? {
            return Ok(());
        }
        let Some(wanted) = self.reads.pending.remove(&request) else {
            return self.complete_records(request, texts);
        };
        if wanted.len() != texts.len() {
            return Err(TextError::new("a reply has the wrong number of texts"));
        }
        for (wanted, text) in wanted.into_iter().zip(texts) {
            self.state.texts_mut().take_text(wanted, text)?;
            let is_lost = wanted.dormant.needs_render() && mutants::is(Mutant::LosesRendered);
            if self.state.end_loading(wanted.dormant) && !is_lost {
                self.state.offer_next(wanted.dormant, now);
            }
        }
        if let Some(snapshot) = self.state.snapshot_mut() {
            snapshot.texts_read(request);
        }
        self.handle_all_held(now);
        Ok(())
    }

    /// Completes records with texts that were read for them.
    fn complete_records(
        &mut self,
        request: u64,
        texts: Vec<Result<Vec<u8>, TextError>>,
    ) -> Result<(), TextError> {
        let mut texts = texts.into_iter();
        for unread in &self.reads.unread {
            if unread.request != Some(request) {
                continue;
            }
            let UnreadRecord { index, wanted, key, job, .. } = unread;
            // With a mutant, the record has left.
            let index = index.checked_sub(self.polled);
            let missing = || TextError::new("a reply has the wrong number of texts");
            let text = texts.next().ok_or_else(missing)??;
            let admission = wanted.parse(&text)?.admission(wanted.dormant, key.clone(), *job);
            if let Some(Output::Record(record)) =
                index.and_then(|index| self.outputs.get_mut(index))
            {
                let whole = SnapshotItem::Dormant(vec![admission]);
                record.decision = Decision::SnapshotPart(Box::new(whole));
            }
            self.state.texts_mut().unpin_text(*wanted);
        }
        self.reads.unread.retain(|unread| unread.request != Some(request));
        Ok(())
    }
}
