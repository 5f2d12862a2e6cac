//! The actions of the command `TOPIC`.

use std::fmt::Write;
use std::sync::Arc;

use tidings_log::CheckedFile;
use tidings_protocol::status::{Answer, CursorStatus, Rate, TopicState, TopicStatus};
use tidings_protocol::{
    Code, ProtocolError, Seq, Settings, Slot, StartAt, TopicAction, TopicCommand, TopicName,
    TopicSettings, bad_argument,
};

use super::Shared;
use crate::cursors::CursorId;
use crate::mailbox::{ConnMessage, Mailbox};
use crate::topic::{Health, Topic};

/// Ranges of lost events that `verify` lists for one file.
const REPORTED_RANGES_MAX: usize = 1000;

/// Problems that `verify` lists for one file.
const REPORTED_PROBLEMS_MAX: usize = 20;

/// Runs a `TOPIC` command and sends the answer to `reply`.
pub(super) fn handle_topic_command(
    shared: &Shared,
    manage: &TopicCommand<'_>,
    reply: PendingReply,
) {
    let error_reply = reply.clone();
    let command = RunningCommand { shared, manage };
    let result = match manage.action {
        TopicAction::Ls => command.list(reply),
        TopicAction::Show => command.show(reply),
        TopicAction::Create => command.create(reply),
        TopicAction::Set => command.configure(reply),
        TopicAction::Delete => command.delete(reply),
        TopicAction::Verify => command.verify(reply),
        TopicAction::Forget => command.forget_cursor(reply),
        TopicAction::Unknown(word) => Err(TopicAction::refuse(word)),
    };
    if let Err(error) = result {
        error_reply.send(Err(error));
    }
}

/// A command that is being run. Each action sends its answer, or returns an error.
struct RunningCommand<'a> {
    shared: &'a Shared,
    manage: &'a TopicCommand<'a>,
}

impl RunningCommand<'_> {
    fn list(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        self.manage.refuse_name()?;
        self.manage.allow_only(&[])?;
        let topics = self.shared.topics.list();
        let statuses = topics.iter().map(|topic| topic_status(topic));
        reply.send(Ok(Answer::new(statuses, format!("topics={}", topics.len()))));
        Ok(())
    }

    fn show(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        self.manage.allow_only(&[])?;
        let topic = self.topic()?;
        reply.send(Ok(Answer::new(cursor_statuses(self.shared, &topic), topic_status(&topic))));
        Ok(())
    }

    fn create(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        let name: TopicName = self.manage.required_name()?.parse()?;
        let settings =
            self.shared.topics.defaults().changed(self.manage.settings.iter().copied())?;
        let text = format!("{name} {settings}");
        self.shared.topics.create(&name, settings, reply.when_done(text)).map(drop)
    }

    fn configure(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        let topic = self.topic()?;
        self.manage.require_setting::<TopicSettings>()?;
        let settings = topic.settings().changed(self.manage.settings.iter().copied())?;
        let text = format!("{} {settings}", topic.name());
        self.shared.topics.configure(&topic, settings, reply.when_done(text))
    }

    fn delete(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        self.manage.allow_only(&[])?;
        let topic = self.topic()?;
        self.shared.topics.delete(&topic, reply.when_done(topic.name().to_string()))
    }

    fn verify(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        self.manage.allow_only(&[])?;
        let topic = self.topic()?;
        let name = topic.name().clone();
        self.shared.topics.verify(&topic, move |result| {
            reply.send(result.map(|files| verify_report(&name, &files)));
        });
        Ok(())
    }

    fn forget_cursor(&self, reply: PendingReply) -> Result<(), ProtocolError> {
        self.manage.allow_only(&["cursor"])?;
        let topic = self.manage.required_name()?.parse()?;
        let cursor = self.manage.setting("cursor").ok_or_else(|| {
            bad_argument("no cursor given; use TOPIC forget <topic> cursor=<cursor>")
        })?;
        let id = CursorId { topic, cursor: cursor.parse()? };
        self.shared.cursors.forget(id, reply.when_done(String::new()))
    }

    fn topic(&self) -> Result<Arc<Topic>, ProtocolError> {
        let name = self.manage.required_name()?;
        self.shared.topics.find(name).ok_or_else(|| unknown_topic(name))
    }
}

/// The error about a topic that does not exist.
pub(super) fn unknown_topic(name: &str) -> ProtocolError {
    let text = format!("no topic {name}; TOPIC create {name}, PUB or SUB creates it");
    ProtocolError::new(Code::NotFound, text)
}

/// The cursors of a topic.
fn cursor_statuses(shared: &Shared, topic: &Topic) -> impl Iterator<Item = CursorStatus> {
    let next = topic.public_head();
    shared.cursors.list(topic.name()).into_iter().map(move |cursor| CursorStatus {
        cursor: cursor.name.to_string(),
        next: cursor.next,
        behind: next.0.saturating_sub(cursor.next.0),
        held: cursor.in_use,
        moved: StartAt::Time(cursor.unix_ms).to_string(),
    })
}

/// Sends an answer to a connection, in its reserved slot.
#[derive(Debug, Clone)]
pub(super) struct PendingReply {
    /// Of the connection that sent the command.
    pub(super) mailbox: Mailbox,
    /// Slot of the answer.
    pub(super) slot: Slot,
}

impl PendingReply {
    fn send(self, answer: Result<Answer, ProtocolError>) {
        self.mailbox.send(ConnMessage::Answer { slot: self.slot, answer });
    }

    /// Sends `text`, or the error, when a change is stored.
    fn when_done(
        self,
        text: String,
    ) -> impl FnOnce(Result<(), ProtocolError>) + Send + use<> + 'static {
        move |result| self.send(result.map(|()| text.into()))
    }
}

pub(super) fn topic_status(topic: &Topic) -> TopicStatus {
    let show = topic.stats();
    let state = match show.health {
        Health::Good => TopicState::Ok,
        Health::Full => TopicState::Full,
        Health::Failed => TopicState::SyncFailed,
    };
    TopicStatus {
        topic: topic.name().to_string(),
        next: show.head,
        first: show.first_kept,
        kept: show.kept,
        batches: show.batches as u64,
        bytes: show.bytes as u64,
        readers: show.readers as u64,
        rate: Rate::per_second(show.per_second),
        settings: topic.settings(),
        durable: show.durable,
        log_bytes: show.log_bytes,
        segments: show.segments as u64,
        state,
    }
}

/// The answer to `verify`: a line for each file, and one for each of its problems.
fn verify_report(name: &TopicName, files: &[CheckedFile]) -> Answer {
    let mut lines = Vec::new();
    let (mut bytes, mut events, mut lost, mut damaged) = (0, 0, 0, 0);
    for file in files {
        bytes += file.bytes;
        events += file.events;
        lost += file.lost_events();
        damaged += u64::from(file.is_damaged());
        report_file(file, &mut lines);
    }
    let count = files.len();
    let ok =
        format!("{name} files={count} bytes={bytes} events={events} lost={lost} damaged={damaged}");
    Answer::new(lines, ok)
}

fn report_file(file: &CheckedFile, lines: &mut Vec<String>) {
    let name = file.name();
    let lost = file.lost_events();
    let mut text = format!("{name} bytes={} events={} lost={lost}", file.bytes, file.events);
    for (index, (Seq(from), Seq(to))) in file.lost.iter().take(REPORTED_RANGES_MAX).enumerate() {
        let separator = if index == 0 { " ranges=" } else { "," };
        write!(text, "{separator}{from}-{to}").expect("writing to a String cannot fail");
    }
    lines.push(text);
    let problems = file.problems.iter().take(REPORTED_PROBLEMS_MAX);
    lines.extend(problems.map(|problem| format!("{name} problem {problem}")));
    let omitted = file.problems.len().saturating_sub(REPORTED_PROBLEMS_MAX);
    if omitted > 0 {
        lines.push(format!("{name} problem and {omitted} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: R8
    #[test]
    fn a_verify_report_lists_files_problems_and_lost_ranges() {
        let good = CheckedFile {
            place: "/data/topics/t/00000000000000000001.log".into(),
            events: 100,
            bytes: 5_000,
            problems: Vec::new(),
            lost: Vec::new(),
        };
        let bad = CheckedFile {
            place: "/data/topics/t/00000000000000000101.log".into(),
            events: 10,
            bytes: 700,
            problems: (1..=22).map(|n| format!("it is wrong, {n}")).collect(),
            lost: vec![(Seq(101), Seq(110)), (Seq(115), Seq(115))],
        };
        let Answer { lines, ok } = verify_report(&"t".parse().unwrap(), &[good, bad]);
        assert_eq!(ok.to_string(), "t files=2 bytes=5700 events=110 lost=11 damaged=1");
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines[..3],
            [
                "00000000000000000001.log bytes=5000 events=100 lost=0",
                "00000000000000000101.log bytes=700 events=10 lost=11 ranges=101-110,115-115",
                "00000000000000000101.log problem it is wrong, 1",
            ]
        );
        assert_eq!(lines.len(), 2 + REPORTED_PROBLEMS_MAX + 1);
        assert_eq!(lines.last().unwrap(), &"00000000000000000101.log problem and 2 more");
    }
}
