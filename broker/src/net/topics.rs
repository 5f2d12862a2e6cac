//! What `TOPIC` does.

use std::fmt::Write;
use std::sync::Arc;

use bytes::BytesMut;
use tidings_protocol::{Code, Manage, ProtocolError, Seq, Slot, TopicName, encode_more, encode_ok};

use super::connection::Connection;
use crate::catalog::TopicSettings;
use crate::log::Checked;
use crate::mailbox::{Mailbox, Parcel};
use crate::topic::{Health, Topic};

/// Ranges of lost events of one file that are told one by one.
const RANGES_MAX: usize = 1000;

/// Problems of one file that are told one by one.
const PROBLEMS_MAX: usize = 20;

impl Connection {
    pub(super) fn topic_action(&mut self, manage: &Manage<'_>) {
        let done = match manage.action {
            "ls" => self.list_topics(manage),
            "show" => self.show_topic(manage),
            "create" => self.create_topic(manage),
            "set" => self.configure_topic(manage),
            "delete" => self.delete_topic(manage),
            "verify" => self.verify_topic(manage),
            "forget" => self.forget_cursor(manage),
            action => {
                let text = format!(
                    "no action {action}; TOPIC has ls, show, create, set, delete, verify, forget"
                );
                Err(ProtocolError::new(Code::BadArgument, text))
            }
        };
        self.refuse_if(done);
    }

    fn list_topics(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        manage.allow_only(&[])?;
        let topics = self.hub.topics.list();
        self.answer(|lines| {
            for topic in &topics {
                encode_more(&describe(topic), lines);
            }
            encode_ok(&format!("topics={}", topics.len()), lines);
        });
        Ok(())
    }

    fn show_topic(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        manage.allow_only(&[])?;
        let topic = self.named_topic(manage)?;
        let mut lines = self.show_cursors(&topic);
        encode_ok(&describe(&topic), &mut lines);
        self.answer(|out| out.unsplit(lines));
        Ok(())
    }

    fn create_topic(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        let name: TopicName = manage.required_name()?.parse()?;
        let settings = TopicSettings::parse(&manage.settings, self.hub.topics.defaults())?;
        let reply = self.reply();
        let slot = reply.slot;
        let text = format!("{name} {settings}");
        let done = move |result: Result<(), ProtocolError>| reply.send(result.map(|()| text));
        let created = self.hub.topics.create(&name, settings, done).map(|_topic| ());
        self.refuse_at_once(slot, created);
        Ok(())
    }

    fn configure_topic(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        let topic = self.named_topic(manage)?;
        if manage.settings.is_empty() {
            let text =
                format!("what should change? There are {}=", TopicSettings::KEYS.join("=, "));
            return Err(ProtocolError::new(Code::BadArgument, text));
        }
        let settings = TopicSettings::parse(&manage.settings, topic.settings())?;
        let reply = self.reply();
        let slot = reply.slot;
        let text = format!("{} {settings}", topic.name());
        let done = move |result: Result<(), ProtocolError>| reply.send(result.map(|()| text));
        let configured = self.hub.topics.configure(&topic, settings, done);
        self.refuse_at_once(slot, configured);
        Ok(())
    }

    fn delete_topic(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        manage.allow_only(&[])?;
        let topic = self.named_topic(manage)?;
        let reply = self.reply();
        let slot = reply.slot;
        let text = topic.name().to_string();
        let done = move |result: Result<(), ProtocolError>| reply.send(result.map(|()| text));
        let deleted = self.hub.topics.delete(&topic, done);
        self.refuse_at_once(slot, deleted);
        Ok(())
    }

    fn verify_topic(&mut self, manage: &Manage<'_>) -> Result<(), ProtocolError> {
        manage.allow_only(&[])?;
        let topic = self.named_topic(manage)?;
        let reply = self.reply();
        let name = topic.name().clone();
        self.hub.topics.verify(&topic, move |result| {
            let mut lines = BytesMut::new();
            let result = result.map(|files| report(&name, &files, &mut lines));
            reply.send_behind(lines, result);
        });
        Ok(())
    }

    fn named_topic(&self, manage: &Manage<'_>) -> Result<Arc<Topic>, ProtocolError> {
        let name = manage.required_name()?;
        self.hub.topics.find(name).ok_or_else(|| {
            let text = format!("no topic {name}; PUB, SUB or TOPIC create {name} makes it");
            ProtocolError::new(Code::NotFound, text)
        })
    }

    /// The way back for an answer that comes later. There is one at a time.
    fn reply(&mut self) -> Reply {
        let slot = self.answers.later();
        self.worker().asked = Some(slot);
        Reply { mailbox: self.mailbox.clone(), slot }
    }

    /// What was refused before it had to wait for anything.
    fn refuse_at_once(&mut self, slot: Slot, result: Result<(), ProtocolError>) {
        if let Err(error) = result {
            self.fill_with(slot, &error);
        }
    }
}

/// The way back for an answer.
struct Reply {
    mailbox: Mailbox,
    slot: Slot,
}

impl Reply {
    fn send(self, result: Result<String, ProtocolError>) {
        self.send_behind(BytesMut::new(), result);
    }

    /// Sends the last line of an answer behind its other lines.
    fn send_behind(self, mut lines: BytesMut, result: Result<String, ProtocolError>) {
        match result {
            Ok(text) => encode_ok(&text, &mut lines),
            Err(error) => error.encode(&mut lines),
        }
        self.mailbox.send(Parcel::Answer { slot: self.slot, line: lines.freeze() });
    }
}

/// A topic in one line, for people and scripts.
pub(super) fn describe(topic: &Topic) -> String {
    let show = topic.show();
    let kept = show.head.0 - show.first_kept.0;
    let state = match show.health {
        Health::Good => "ok",
        Health::Full => "full",
        Health::Failed => "sync-failed",
    };
    format!(
        "{} next={} first={} kept={kept} batches={} bytes={} readers={} rate={:.1} {} durable={} \
         log-bytes={} segments={} state={state}",
        topic.name(),
        show.head,
        show.first_kept,
        show.batches,
        show.bytes,
        show.readers,
        show.per_second,
        topic.settings(),
        show.durable,
        show.log_bytes,
        show.segments,
    )
}

/// What was found in the files of a topic: a line for each file, one for each thing that is wrong
/// with it, and the text of the last line.
fn report(name: &TopicName, files: &[Checked], lines: &mut BytesMut) -> String {
    let (mut bytes, mut events, mut lost, mut damaged) = (0, 0, 0, 0);
    for file in files {
        bytes += file.bytes;
        events += file.events;
        lost += file.lost_events();
        damaged += u64::from(file.is_damaged());
        report_file(file, lines);
    }
    let count = files.len();
    format!("{name} files={count} bytes={bytes} events={events} lost={lost} damaged={damaged}")
}

fn report_file(file: &Checked, lines: &mut BytesMut) {
    let name = file.path.file_name().unwrap_or_default().to_string_lossy();
    let lost = file.lost_events();
    let mut text = format!("{name} bytes={} events={} lost={lost}", file.bytes, file.events);
    for (at, (Seq(from), Seq(to))) in file.lost.iter().take(RANGES_MAX).enumerate() {
        let before = if at == 0 { " ranges=" } else { "," };
        write!(text, "{before}{from}-{to}").expect("a String takes everything");
    }
    encode_more(&text, lines);
    for problem in file.problems.iter().take(PROBLEMS_MAX) {
        encode_more(&format!("{name} problem {problem}"), lines);
    }
    let untold = file.problems.len().saturating_sub(PROBLEMS_MAX);
    if untold > 0 {
        encode_more(&format!("{name} problem and {untold} more"), lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_files_problems_and_what_is_lost() {
        let good = Checked {
            path: "/data/topics/t/00000000000000000001.log".into(),
            events: 100,
            bytes: 5_000,
            problems: Vec::new(),
            lost: Vec::new(),
        };
        let bad = Checked {
            path: "/data/topics/t/00000000000000000101.log".into(),
            events: 10,
            bytes: 700,
            problems: (1..=22).map(|n| format!("it is wrong, {n}")).collect(),
            lost: vec![(Seq(101), Seq(110)), (Seq(115), Seq(115))],
        };
        let mut lines = BytesMut::new();
        let last = report(&"t".parse().unwrap(), &[good, bad], &mut lines);
        assert_eq!(last, "t files=2 bytes=5700 events=110 lost=11 damaged=1");
        let lines = String::from_utf8(lines.to_vec()).unwrap();
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "+ 00000000000000000001.log bytes=5000 events=100 lost=0",
                "+ 00000000000000000101.log bytes=700 events=10 lost=11 ranges=101-110,115-115",
                "+ 00000000000000000101.log problem it is wrong, 1",
            ]
        );
        assert_eq!(lines.len(), 2 + PROBLEMS_MAX + 1);
        assert_eq!(lines.last().unwrap(), &"+ 00000000000000000101.log problem and 2 more");
    }
}
