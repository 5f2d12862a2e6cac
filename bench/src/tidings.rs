//! The line protocol of Tidings.

use anyhow::{Context, bail};
use memchr::memchr_iter;

use crate::secure::Trust;
use crate::wire::{
    Answers, Caught, Confirmed, Crew, Heard, Left, Replay, ReplayEnd, Step, Stream, Sync, Tasks,
    Until, Wire, Worker,
};

/// Tidings, with topics as safe as asked for; `None`: as the broker makes them.
#[derive(Debug, Clone)]
pub struct Tidings {
    /// Of the topics that are made.
    pub sync: Option<Sync>,
    /// What every connection shows.
    pub token: Option<String>,
    /// Whose certificates are taken; without it nothing is encrypted.
    pub trust: Option<Trust>,
}

impl Tidings {
    /// One that lets everybody in, and does not encrypt.
    pub const fn open(sync: Option<Sync>) -> Self {
        Self { sync, token: None, trust: None }
    }
}

/// Bytes of the answer to `SUB`.
const SUB_ANSWER_BYTES: u64 = "+OK\r\n".len() as u64;

impl Wire for Tidings {
    fn prepare(&self, topic: &str) -> Vec<Step> {
        let create = |sync: Sync| {
            let line = format!("TOPIC create {topic} sync={}\r\n", sync.as_str());
            Step::new(line, Until::Line("+OK"))
        };
        self.sync.map(create).into_iter().collect()
    }

    fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    fn opening(&self) -> Vec<Step> {
        let token = self.token.as_ref().map_or_else(String::new, |token| format!(" token={token}"));
        // What peers hear comes before the answer and may look like anything; a new topic has none
        // of it.
        let line = format!("HELLO name=bench{token}\r\nPING\r\n");
        vec![Step::new(line, Until::Line("PONG"))]
    }

    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![Step::new(format!("SUB {topic}\r\n"), Until::Line("+OK"))]
    }

    fn at_once(&self, topic: &str) -> Step {
        Step::new(format!("SUB {topic}\r\n"), Until::Line("+OK"))
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        [b"PUB ", topic.as_bytes(), b" ", payload, b"\n"].concat()
    }

    fn stream(&self, topic: &str, payload_bytes: usize) -> Stream {
        let bytes = format!("MSG {topic}  \r\n").len() + payload_bytes;
        Stream::numbered(u64::try_from(bytes).expect("a length"))
    }

    fn refusal(&self) -> &'static [u8] {
        b"-ERR "
    }

    fn confirmed(&self, topic: &str, payload: &[u8]) -> anyhow::Result<Confirmed> {
        Ok(Confirmed {
            opening: Vec::new(),
            message: self.publish(topic, payload),
            answers: Answers::Cumulative,
        })
    }

    fn queue(&self, topic: &str, crew: Crew) -> anyhow::Result<Tasks> {
        // The group has the topic's name: nobody used it before, either.
        let create = format!("GROUP create {topic} topics={topic} key=host delay=0\r\n");
        let mut prepare = self.prepare(topic);
        prepare.push(Step::new(create, Until::Line("+OK")));
        let worker = |_| {
            let join = format!("JOIN {topic} credit={}\r\n", crew.credit);
            let worker: Box<dyn Worker> = Box::new(Member);
            (vec![Step::new(join, Until::Line("+OK"))], worker)
        };
        Ok(Tasks {
            prepare,
            workers: (0..crew.workers).map(worker).collect(),
            left: Left {
                opening: Vec::new(),
                request: format!("GROUP show {topic}\r\n").into_bytes(),
                marks: &["waiting=", "processing="],
            },
        })
    }

    fn replay(&self, topic: &str, payload_bytes: usize, events: u64) -> anyhow::Result<Replay> {
        Ok(Replay {
            opening: Vec::new(),
            request: format!("SUB {topic} from=first\r\n").into_bytes(),
            end: ReplayEnd::Bytes(
                SUB_ANSWER_BYTES + self.stream(topic, payload_bytes).bytes(events),
            ),
        })
    }

    fn caught(&self, stream: &[u8]) -> Option<Caught> {
        let mut caught = Caught::default();
        let mut start = 0;
        for end in memchr_iter(b'\n', stream) {
            let line = &stream[start..end];
            start = end + 1;
            if line.starts_with(b"LAG ") {
                caught.told += lag(line).unwrap_or(0);
            } else {
                // Also the end of a line of which the beginning was read before.
                caught.events += 1;
            }
        }
        Some(caught)
    }
}

/// A member of a group: tasks come as long as it has credit.
struct Member;

impl Worker for Member {
    fn hear<'a>(&mut self, line: &'a [u8], say: &mut Vec<u8>) -> anyhow::Result<Heard<'a>> {
        if let Some(task) = line.strip_prefix(b"TASK ") {
            // `<id> <clock> <lease> <payload>`
            let mut words = task.splitn(4, |&byte| byte == b' ');
            let id = words.next().context("a task without an id")?;
            let payload = words.nth(2).context("a task without a payload")?;
            say.extend_from_slice(b"ACK ");
            say.extend_from_slice(id);
            say.extend_from_slice(b" outcome=done\n");
            Ok(Heard::Task(payload))
        } else if line.starts_with(b"+OK ") {
            Ok(Heard::Acked(1))
        } else {
            bail!("the broker tells a worker: {}", String::from_utf8_lossy(line))
        }
    }
}

/// Events that a `LAG <topic> <from> <to>` names.
fn lag(line: &[u8]) -> Option<u64> {
    let mut words = str::from_utf8(line).ok()?.split_ascii_whitespace().skip(2);
    let (from, to) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
    (to + 1).checked_sub(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Tidings = Tidings::open(None);

    #[test]
    fn a_delivery_is_as_long_as_it_is_counted() {
        let lines = "MSG t 9 abc\r\nMSG t 10 abc\r\n";
        assert_eq!(WIRE.stream("t", 3).bytes(10), 10 * 13 + 1);
        assert_eq!(WIRE.stream("t", 3).bytes(10) - WIRE.stream("t", 3).bytes(8), 27);
        assert_eq!(lines.len(), 27 - 2 + 2);
    }

    #[test]
    fn what_is_gone_is_told_apart_from_what_came() {
        let stream = b"bc\r\nMSG t 3 abc\r\nLAG t 4 103\r\nMSG t 104 abc\r\nMSG t 105 a";
        assert_eq!(WIRE.caught(stream), Some(Caught { events: 3, told: 100 }));
    }

    #[test]
    fn a_group_is_fed_by_the_topic_and_joined_by_every_worker() {
        let tasks = WIRE.queue("t", Crew { workers: 2, credit: 5 }).unwrap();
        let said: Vec<_> = tasks.prepare.iter().map(|step| &step.send[..]).collect();
        assert_eq!(said, [b"GROUP create t topics=t key=host delay=0\r\n"]);
        assert_eq!(tasks.workers.len(), 2);
        for (joining, _) in &tasks.workers {
            assert_eq!(joining[0].send, b"JOIN t credit=5\r\n");
        }
    }

    #[test]
    fn a_task_is_acknowledged_by_its_id() {
        let mut said = Vec::new();
        let task = b"TASK g:7.42.1 182900 60000 http://h1.test/1 a=b";
        let heard = Member.hear(task, &mut said).unwrap();
        assert_eq!(heard, Heard::Task(b"http://h1.test/1 a=b"));
        assert_eq!(said, b"ACK g:7.42.1 outcome=done\n");
        let answer = b"+OK g:7.42.1 new=0 known=0 refused=0";
        assert_eq!(Member.hear(answer, &mut said).unwrap(), Heard::Acked(1));
        let told = Member.hear(b"-ERR stale g:7.42.1 no", &mut said).unwrap_err().to_string();
        assert_eq!(told, "the broker tells a worker: -ERR stale g:7.42.1 no");
        assert!(Member.hear(b"TASK g:7.42.1 1 2", &mut said).is_err(), "cut off");
    }

    #[test]
    fn a_topic_is_made_only_when_its_safety_matters() {
        assert!(WIRE.prepare("t").is_empty());
        let made = Tidings::open(Some(Sync::Always)).prepare("t");
        assert_eq!(made[0].send, b"TOPIC create t sync=always\r\n");
    }
}
