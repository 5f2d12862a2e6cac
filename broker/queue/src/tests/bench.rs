//! A group with a test clock, and its collected outputs.

use std::collections::BTreeMap;

use tidings_protocol::status::Answer;
use tidings_protocol::{
    Answers, Code, GroupAction, GroupCommand, JobSettings, KeyRest, MemberId, Outcome,
    ProtocolError, RetryMode, Seq, Settings, Slot, TaskAction, TaskId, TaskReply, TaskReport,
    TopicName,
};

use crate::commands::group_input;
use crate::config::GroupConfig;
use crate::fuzzing::dump;
use crate::fuzzing::simulated_pages::SimulatedPages;
use crate::moment::Moment;
use crate::record::GroupRecord;
use crate::record::replay::Replay;
use crate::texts::TextRequest;
use crate::{
    ClientLabel, ConnId, Group, Input, JobOperation, Output, Requester, StagedLink, TaskMessage,
    WorkerReply,
};

/// The group, its time, and its outputs by kind.
pub(crate) struct Bench {
    pub(crate) group: Group,
    pub(crate) now: Moment,
    pub(crate) next_seq: u64,
    pub(crate) tasks: Vec<(ConnId, TaskMessage)>,
    pub(crate) answers: Vec<Result<AnswerText, ProtocolError>>,
    pub(crate) events: Vec<(&'static str, String)>,
    pub(crate) records: Vec<GroupRecord>,
    /// Jobs reported to other groups, and whether each exists.
    pub(crate) job_names: BTreeMap<String, bool>,
    /// Texts outside memory, if the group is paged.
    pub(crate) pages: SimulatedPages,
}

/// An answer as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerText {
    pub(crate) lines: Vec<String>,
    pub(crate) ok: String,
}

impl From<Answer> for AnswerText {
    fn from(Answer { lines, ok }: Answer) -> Self {
        Self { lines: lines.iter().map(ToString::to_string).collect(), ok: ok.to_string() }
    }
}

pub(crate) const A: Worker = Worker(1);
pub(crate) const B: Worker = Worker(2);

#[derive(Clone, Copy)]
pub(crate) struct Worker(pub(crate) u64);

impl Worker {
    pub(crate) fn requester(self) -> Requester {
        Requester { conn: ConnId(self.0), member: MemberId(u128::from(self.0) << 96), slot: slot() }
    }
}

impl Bench {
    /// A group with these settings, which announces no outcomes unless they say so.
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        let config = GroupConfig::default().with_settings([("page-ready", "off")]).unwrap();
        let config = config.with_settings(settings.iter().copied()).unwrap();
        Self {
            group: Group::new("crawlers".parse().unwrap(), 7, config, 1),
            now: Moment(1000),
            next_seq: 1,
            tasks: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            records: Vec::new(),
            job_names: BTreeMap::new(),
            pages: SimulatedPages::default(),
        }
    }

    pub(crate) fn feed(&mut self, input: Input) {
        self.group.handle(input, self.now);
        self.drain();
    }

    /// Takes all outputs.
    pub(crate) fn drain(&mut self) {
        while let Some(output) = self.group.poll() {
            if let Some(request) = self.take(output) {
                let reply = self.pages.execute(request);
                self.group.handle(Input::Texts(reply), self.now);
            }
        }
    }

    /// Takes an output. Returns it if it is a request about texts.
    pub(crate) fn take(&mut self, output: Output) -> Option<TextRequest> {
        match output {
            Output::Record(record) => self.records.push(record),
            Output::Deleted | Output::Notice(_) => {}
            Output::Texts(request) => return Some(request),
            Output::JobNameChanged { name, exists: known } => {
                self.job_names.insert(name.to_string(), known);
            }
            Output::Task { conn, task } => self.tasks.push((conn, task)),
            Output::Answer { answer, .. } => self.answers.push(answer.map(Into::into)),
            Output::Publish { topic, payload, .. } => {
                self.events.push((topic, payload.to_string()));
            }
            Output::RequestTopicHeads { job } => {
                let heads = [(topic(), Seq(self.next_seq))].into();
                self.group.handle(Input::TopicHeads { job, heads }, self.now);
            }
        }
        None
    }

    pub(crate) fn publish(&mut self, payload: &str) {
        let seq = Seq(self.next_seq);
        self.next_seq += 1;
        let next = Seq(self.next_seq);
        self.feed(Input::Events {
            topic: topic(),
            next,
            events: vec![(seq, payload.into())],
            foreign_jobs: [].into(),
        });
    }

    pub(crate) fn join(&mut self, worker: Worker, credit: u32) {
        self.join_rendering(worker, credit, None);
    }

    pub(crate) fn join_rendering(&mut self, worker: Worker, credit: u32, render: Option<u32>) {
        self.join_on(worker.requester(), credit, render);
    }

    /// Joins with the name `worker-<conn>`.
    pub(crate) fn join_on(&mut self, requester: Requester, credit: u32, render: Option<u32>) {
        let name = Some(format!("worker-{}", requester.conn).into());
        let label = ClientLabel { name, ..ClientLabel::default() };
        self.feed(Input::Join { requester, credit, render, label });
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(deadline) = self.group.deadline().filter(|deadline| *deadline <= until) {
            self.now = self.now.max(deadline);
            self.feed(Input::Tick);
        }
        self.now = until;
        self.feed(Input::Tick);
    }

    /// `GROUP set`
    pub(crate) fn configure(&mut self, settings: &[(&str, &str)]) {
        let set = GroupCommand { action: GroupAction::Set, ..group_command(settings) };
        match group_input(A.requester(), &set) {
            Ok(input) => self.feed(input),
            Err(error) => self.answers.push(Err(error)),
        }
    }

    pub(crate) fn open(&mut self, name: &str, settings: &[(&str, &str)]) {
        let settings = JobSettings::parse(settings.iter().copied()).unwrap();
        self.feed(Input::OpenJob {
            requester: A.requester(),
            name: name.parse().unwrap(),
            settings: settings.into(),
        });
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.with_job(name, JobOperation::Close);
    }

    pub(crate) fn cancel(&mut self, name: &str) {
        self.with_job(name, JobOperation::Cancel);
    }

    pub(crate) fn with_job(&mut self, name: &str, action: JobOperation) {
        self.feed(job_action(name, action));
    }

    pub(crate) fn ack(
        &mut self,
        worker: Worker,
        task: &TaskId,
        outcome: Outcome,
        links: &[(&str, bool)],
    ) {
        let links = links.iter().map(|(url, redirect)| StagedLink {
            url: (*url).into(),
            redirect: *redirect,
            prio: 0,
        });
        let reply = WorkerReply {
            reply: reply_of(task, TaskAction::Ack(outcome), KeyRest::default()),
            links: links.collect(),
            over_limit: 0,
        };
        self.feed(Input::Reply { requester: worker.requester(), reply });
    }

    pub(crate) fn nack(&mut self, worker: Worker, task: &TaskId, retry: RetryMode) {
        let mut reply = reply_of(task, TaskAction::Nack(retry), KeyRest::default());
        reply.report = TaskReport::of_reason(Some("test".into()));
        self.feed(Input::Reply { requester: worker.requester(), reply: reply.into() });
    }

    pub(crate) fn touch(&mut self, worker: Worker, task: &TaskId, over: bool, hold: KeyRest) {
        let reply = reply_of(task, TaskAction::Touch { request_ended: over }, hold).into();
        self.feed(Input::Reply { requester: worker.requester(), reply });
    }

    /// `TOUCH <task> part=<url>`
    pub(crate) fn part(&mut self, worker: Worker, task: &TaskId, url: &str) {
        let reply = reply_of(task, TaskAction::Part { url: url.into() }, NO_HOLD).into();
        self.feed(Input::Reply { requester: worker.requester(), reply });
    }

    /// The only task since the last call.
    #[track_caller]
    pub(crate) fn task(&mut self) -> TaskMessage {
        assert_eq!(self.tasks.len(), 1, "exactly one task: {:?}", self.tasks);
        self.tasks.pop().expect("there is one").1
    }

    #[track_caller]
    pub(crate) fn assert_no_task(&self, why: &str) {
        assert!(self.tasks.is_empty(), "{why}: {:?}", self.tasks);
    }

    /// Checks that the records alone give the same group.
    #[track_caller]
    pub(crate) fn check_records(&self) {
        let config = self.group.state.config().clone();
        let empty = Group::new(self.group.state.name().clone(), 7, config, 1);
        let mut replay = Replay::new(empty, true);
        self.records.iter().for_each(|record| replay.apply(record));
        let mut replayed = replay.finish().unwrap();
        replayed.state.advance(self.now);
        assert_eq!(dump::difference(&self.group, &replayed), None);
    }

    /// The words after `+OK` of the last answer.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        &self.answers.last().expect("there was an answer").as_ref().expect("not rejected").ok
    }

    #[track_caller]
    pub(crate) fn error_code(&self) -> Code {
        self.answers.last().expect("there was an answer").as_ref().expect_err("rejected").code
    }
}

pub(crate) fn job_action(name: &str, action: JobOperation) -> Input {
    Input::JobAction { requester: A.requester(), name: name.parse().unwrap(), action }
}

/// A command with these settings.
pub(crate) fn group_command<'a>(settings: &[(&'a str, &'a str)]) -> GroupCommand<'a> {
    GroupCommand::new(GroupAction::Show, "crawlers", settings.to_vec())
}

pub(crate) fn topic() -> TopicName {
    "new-url".parse().unwrap()
}

/// Any slot: these tests read answers in their order.
pub(crate) fn slot() -> Slot {
    Answers::new().reserve()
}

pub(crate) const NO_HOLD: KeyRest = KeyRest { not_before_ms: None, pace_ms: None };

pub(crate) fn reply_of(task: &TaskId, action: TaskAction, rest: KeyRest) -> TaskReply {
    TaskReply { task: task.clone(), action, rest, report: None }
}
