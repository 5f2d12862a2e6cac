//! The line protocol of Tidings.

use anyhow::{Context, Result, bail};

use crate::tls::TlsClient;
use crate::wire::{
    ConfirmationFormat, QueueSetup, QueueWorker, SetupStep, StreamLayout, Sync, WireProtocol,
    WorkerEvent, WorkerPool,
};

/// The protocol of Tidings, and how its topics are synced; without `sync`, the broker decides.
#[derive(Debug, Clone)]
pub struct Tidings {
    /// `sync=` of the topics that are created.
    pub sync: Option<Sync>,
    /// Token of every connection.
    pub token: Option<String>,
    /// TLS settings; `None`: connections are plain.
    pub tls: Option<TlsClient>,
}

impl Tidings {
    /// Without login and without TLS.
    pub const fn plain(sync: Option<Sync>) -> Self {
        Self { sync, token: None, tls: None }
    }
}

impl WireProtocol for Tidings {
    fn create_topic(&self, topic: &str) -> Vec<SetupStep> {
        let create = |sync: Sync| {
            let line = format!("TOPIC create {topic} sync={}\r\n", sync.as_str());
            SetupStep::new(line, "+OK")
        };
        self.sync.map(create).into_iter().collect()
    }

    fn tls(&self) -> Option<&TlsClient> {
        self.tls.as_ref()
    }

    fn handshake(&self) -> Vec<SetupStep> {
        let token = self.token.as_ref().map_or_else(String::new, |token| format!(" token={token}"));
        // Events for peers may arrive before the answer, with any text. The new topic sends none to
        // peers.
        let line = format!("HELLO name=bench{token}\r\nPING\r\n");
        vec![SetupStep::new(line, "PONG")]
    }

    fn subscribe(&self, topic: &str) -> Vec<SetupStep> {
        vec![SetupStep::new(format!("SUB {topic}\r\n"), "+OK")]
    }

    fn publish(&self, topic: &str, payload: &[u8]) -> Vec<u8> {
        [b"PUB ", topic.as_bytes(), b" ", payload, b"\n"].concat()
    }

    fn stream_layout(&self, topic: &str, payload_bytes: usize) -> StreamLayout {
        let bytes = format!("MSG {topic}  \r\n").len() + payload_bytes;
        StreamLayout::numbered(u64::try_from(bytes).expect("a length"))
    }

    fn rejections(&self) -> &'static [&'static str] {
        &["-ERR "]
    }

    fn confirmations(&self) -> ConfirmationFormat {
        ConfirmationFormat::Cumulative
    }

    fn queue_setup(&self, topic: &str, pool: WorkerPool) -> Result<QueueSetup> {
        // The group has the name of the topic, which is unused too.
        // Without events about outcomes, which no other server publishes.
        let create =
            format!("GROUP create {topic} topics={topic} key=host delay=0 page-ready=off\r\n");
        let mut create_steps = self.create_topic(topic);
        create_steps.push(SetupStep::new(create, "+OK"));
        let worker = |_| {
            let join = format!("JOIN {topic} credit={}\r\n", pool.credit);
            let worker: Box<dyn QueueWorker> = Box::new(GroupMember);
            (vec![SetupStep::new(join, "+OK")], worker)
        };
        Ok(QueueSetup { create_steps, workers: (0..pool.workers).map(worker).collect() })
    }
}

/// A member of a group: it receives tasks while it has credit.
struct GroupMember;

impl QueueWorker for GroupMember {
    fn handle_line<'a>(&mut self, line: &'a [u8], output: &mut Vec<u8>) -> Result<WorkerEvent<'a>> {
        if let Some(task) = line.strip_prefix(b"TASK ") {
            // `<id> <clock> <lease> <payload>`
            let mut words = task.splitn(4, |&byte| byte == b' ');
            let id = words.next().context("a TASK line without an id")?;
            let payload = words.nth(2).context("a TASK line without a payload")?;
            output.extend_from_slice(b"ACK ");
            output.extend_from_slice(id);
            output.extend_from_slice(b" outcome=done\n");
            Ok(WorkerEvent::Task(payload))
        } else if line.starts_with(b"+OK ") {
            Ok(WorkerEvent::Acked(1))
        } else {
            bail!("unexpected line for a worker: {}", String::from_utf8_lossy(line))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Tidings = Tidings::plain(None);

    #[test]
    fn a_delivery_has_the_length_of_its_layout() {
        let lines = "MSG t 9 abc\r\nMSG t 10 abc\r\n";
        assert_eq!(WIRE.stream_layout("t", 3).bytes(10), 10 * 13 + 1);
        assert_eq!(WIRE.stream_layout("t", 3).bytes(10) - WIRE.stream_layout("t", 3).bytes(8), 27);
        assert_eq!(lines.len(), 27 - 2 + 2);
    }

    #[test]
    fn every_worker_joins_a_group_fed_by_the_topic() {
        let setup = WIRE.queue_setup("t", WorkerPool { workers: 2, credit: 5 }).unwrap();
        let sent: Vec<_> = setup.create_steps.iter().map(|step| &step.send[..]).collect();
        assert_eq!(sent, [b"GROUP create t topics=t key=host delay=0 page-ready=off\r\n"]);
        assert_eq!(setup.workers.len(), 2);
        for (joining, _) in &setup.workers {
            assert_eq!(joining[0].send, b"JOIN t credit=5\r\n");
        }
    }

    #[test]
    fn a_task_is_acknowledged_by_its_id() {
        let mut output = Vec::new();
        let task = b"TASK g:7.42.1 182900 60000 http://h1.test/1 a=b";
        let event = GroupMember.handle_line(task, &mut output).unwrap();
        assert_eq!(event, WorkerEvent::Task(b"http://h1.test/1 a=b"));
        assert_eq!(output, b"ACK g:7.42.1 outcome=done\n");
        let answer = b"+OK g:7.42.1 new=0 known=0 refused=0";
        assert_eq!(GroupMember.handle_line(answer, &mut output).unwrap(), WorkerEvent::Acked(1));
        let error = GroupMember
            .handle_line(b"-ERR stale g:7.42.1 no", &mut output)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "unexpected line for a worker: -ERR stale g:7.42.1 no");
        assert!(GroupMember.handle_line(b"TASK g:7.42.1 1 2", &mut output).is_err(), "incomplete");
    }

    #[test]
    fn a_topic_is_created_only_if_sync_is_set() {
        assert!(WIRE.create_topic("t").is_empty());
        let steps = Tidings::plain(Some(Sync::Always)).create_topic("t");
        assert_eq!(steps[0].send, b"TOPIC create t sync=always\r\n");
    }
}
