//! Queues of the peers: how their workers request and acknowledge tasks.

use anyhow::{Context, Result, bail, ensure};
use tidings_load::wire::{
    QueueSetup, QueueWorker, SetupStep, WireProtocol, WorkerEvent, WorkerPool,
};

use crate::protocols::{Nats, STREAM, jetstream_request, nats_publish, nats_step, resp, to_u64};

/// The word with this index in a line.
fn word_at(line: &[u8], index: usize) -> Option<&[u8]> {
    line.split(|&byte| byte == b' ').nth(index)
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

fn unexpected<T>(line: &[u8]) -> Result<T> {
    bail!("unexpected line for a worker: {}", String::from_utf8_lossy(line))
}

/// A durable pull consumer of the stream, with an acknowledgement per message. Acknowledged
/// messages stay in the stream, so the server need not remove them.
pub(crate) fn jetstream(topic: &str, pool: WorkerPool) -> QueueSetup {
    let unacked_max = to_u64(pool.workers) * pool.credit;
    let consumer = format!(
        "{{\"stream_name\":\"{STREAM}\",\"config\":{{\"durable_name\":\"w\",\"deliver_policy\":\"all\",\
         \"ack_policy\":\"explicit\",\"replay_policy\":\"instant\",\"max_ack_pending\":{unacked_max}}}}}"
    );
    let mut create_steps = Nats { has_stream: true }.create_topic(topic);
    let create = format!("$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.w");
    create_steps.push(jetstream_request(&create, &consumer));
    let worker = |worker| {
        let inbox = format!("w{worker}");
        let subscribe = nats_step(&format!("SUB {inbox} 5"));
        let puller: Box<dyn QueueWorker> = Box::new(JetStreamPuller {
            inbox,
            credit: pool.credit,
            free_credit: pool.credit,
            ack_subject: None,
        });
        (vec![subscribe], puller)
    };
    QueueSetup { create_steps, workers: (0..pool.workers).map(worker).collect() }
}

/// Requests a batch whenever half of its credit is free.
struct JetStreamPuller {
    inbox: String,
    credit: u64,
    /// Tasks that may be requested.
    free_credit: u64,
    /// Subject of the acknowledgement for the message with the payload in the next line.
    ack_subject: Option<Vec<u8>>,
}

impl QueueWorker for JetStreamPuller {
    fn request_tasks(&mut self, unrequested: u64, output: &mut Vec<u8>) -> u64 {
        let batch = self.free_credit.min(unrequested);
        if batch == 0 || self.free_credit < self.credit.div_ceil(2) {
            return 0;
        }
        self.free_credit -= batch;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.w {}", self.inbox);
        output.extend(nats_publish(&subject, batch.to_string().as_bytes()));
        batch
    }

    fn handle_line<'a>(&mut self, line: &'a [u8], output: &mut Vec<u8>) -> Result<WorkerEvent<'a>> {
        if let Some(subject) = self.ack_subject.take() {
            // An empty message acknowledges. It has no answer.
            output.extend_from_slice(b"PUB ");
            output.extend_from_slice(&subject);
            output.extend_from_slice(b" 0\r\n\r\n");
            self.free_credit += 1;
            return Ok(WorkerEvent::UnconfirmedTask(line));
        }
        if line.starts_with(b"MSG ") {
            // `MSG <subject> <subscription> <reply> <bytes>`
            ensure!(word_at(line, 4).is_some(), "a message without a reply subject");
            self.ack_subject = word_at(line, 3).map(<[u8]>::to_vec);
        } else if line == b"PING" {
            output.extend_from_slice(b"PONG\r\n");
        } else {
            return unexpected(line);
        }
        Ok(WorkerEvent::Ignored)
    }
}

/// The consumer group of all Redis runs.
const GROUP: &str = "g";

/// A consumer group of the stream, which reads and acknowledges in batches. Acknowledged entries
/// stay in the stream, as with [`jetstream`].
pub(crate) fn redis_streams(topic: &str, pool: WorkerPool) -> QueueSetup {
    let create =
        resp(&[b"XGROUP", b"CREATE", topic.as_bytes(), GROUP.as_bytes(), b"$", b"MKSTREAM"]);
    let worker = |worker: usize| {
        let consumer: Box<dyn QueueWorker> =
            Box::new(RedisConsumer::new(topic, worker, pool.credit));
        (Vec::new(), consumer)
    };
    QueueSetup {
        create_steps: vec![SetupStep::new(create, "+OK")],
        workers: (0..pool.workers).map(worker).collect(),
    }
}

/// Reads all entries that are there, and acknowledges them with one command before the next read.
struct RedisConsumer {
    topic: String,
    /// Waits for an entry, and reads as many as the credit allows.
    read: Vec<u8>,
    is_reading: bool,
    next_line: ResponseLine,
    /// Entries of this answer that are still incomplete.
    entries: u64,
    /// Ids of the received entries, as words of a command.
    ids: Vec<u8>,
    ids_count: usize,
}

/// The next line of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseLine {
    /// The first one.
    Begin,
    /// This number of lines until the number of entries: one stream, a pair, the name of the
    /// stream.
    Stream(u8),
    /// This line of an entry: a pair, the id after its length, a pair, the field, and its value.
    Entry(u8),
}

/// Lines of an entry with content.
const ID_LINE: u8 = 2;
const PAYLOAD_LINE: u8 = 7;

impl RedisConsumer {
    fn new(topic: &str, worker: usize, credit: u64) -> Self {
        let (name, count) = (format!("w{worker}"), credit.to_string());
        let read = resp(&[
            b"XREADGROUP",
            b"GROUP",
            GROUP.as_bytes(),
            name.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"BLOCK",
            b"0",
            b"STREAMS",
            topic.as_bytes(),
            b">",
        ]);
        Self {
            topic: topic.to_owned(),
            read,
            is_reading: false,
            next_line: ResponseLine::Begin,
            entries: 0,
            ids: Vec::new(),
            ids_count: 0,
        }
    }

    /// Acknowledges all entries of this answer.
    fn acknowledge(&mut self, output: &mut Vec<u8>) {
        let (topic, words) = (&self.topic, self.ids_count + 3);
        let head = format!(
            "*{words}\r\n$4\r\nXACK\r\n${}\r\n{topic}\r\n${}\r\n{GROUP}\r\n",
            topic.len(),
            GROUP.len()
        );
        output.extend_from_slice(head.as_bytes());
        output.append(&mut self.ids);
        self.ids_count = 0;
        self.is_reading = false;
    }
}

impl QueueWorker for RedisConsumer {
    /// A read that finds nothing is answered when an entry arrives, so it counts as no request.
    fn request_tasks(&mut self, _: u64, output: &mut Vec<u8>) -> u64 {
        if !self.is_reading {
            output.extend_from_slice(&self.read);
            self.is_reading = true;
        }
        0
    }

    fn handle_line<'a>(&mut self, line: &'a [u8], output: &mut Vec<u8>) -> Result<WorkerEvent<'a>> {
        match self.next_line {
            ResponseLine::Begin => match line.split_first() {
                Some((b':', acked)) => {
                    return Ok(WorkerEvent::Acked(
                        parse_number(acked).context("XACK did not return a number")?,
                    ));
                }
                Some((b'*', b"1")) => self.next_line = ResponseLine::Stream(3),
                _ => return unexpected(line),
            },
            ResponseLine::Stream(0) => {
                let count =
                    line.strip_prefix(b"*").and_then(parse_number).filter(|&count| count > 0);
                self.entries = count.context("the answer to XREADGROUP has no entries")?;
                self.next_line = ResponseLine::Entry(0);
            }
            ResponseLine::Stream(lines) => self.next_line = ResponseLine::Stream(lines - 1),
            ResponseLine::Entry(PAYLOAD_LINE) => {
                self.entries -= 1;
                self.next_line =
                    if self.entries > 0 { ResponseLine::Entry(0) } else { ResponseLine::Begin };
                if self.entries == 0 {
                    self.acknowledge(output);
                }
                return Ok(WorkerEvent::Task(line));
            }
            ResponseLine::Entry(at) => {
                if at == ID_LINE {
                    self.ids.extend_from_slice(format!("${}\r\n", line.len()).as_bytes());
                    self.ids.extend_from_slice(line);
                    self.ids.extend_from_slice(b"\r\n");
                    self.ids_count += 1;
                }
                self.next_line = ResponseLine::Entry(at + 1);
            }
        }
        Ok(WorkerEvent::Ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREW: WorkerPool = WorkerPool { workers: 2, credit: 4 };

    /// The output of the first worker, and how it handled the lines.
    fn first_worker(
        setup: QueueSetup,
        unrequested: u64,
        lines: &str,
    ) -> (u64, String, Vec<String>) {
        let (_, mut worker) = setup.workers.into_iter().next().unwrap();
        let mut output = Vec::new();
        let requested = worker.request_tasks(unrequested, &mut output);
        let describe = |event: WorkerEvent<'_>| match event {
            WorkerEvent::Ignored => None,
            WorkerEvent::Task(payload) => Some(String::from_utf8_lossy(payload).into_owned()),
            WorkerEvent::UnconfirmedTask(payload) => {
                Some(format!("{}, acked", String::from_utf8_lossy(payload)))
            }
            WorkerEvent::Acked(count) => Some(format!("acked {count}")),
        };
        let handle =
            |line: &str| describe(worker.handle_line(line.as_bytes(), &mut output).unwrap());
        let events = lines.lines().filter_map(handle).collect();
        (requested, String::from_utf8(output).unwrap(), events)
    }

    #[test]
    fn jetstream_is_pulled_in_batches_and_acknowledged_by_an_empty_message() {
        let lines = "MSG t 5 $JS.ACK.BENCH.w.1.7.9.1.0 3\r\nabc\r\nPING\r\n";
        let (requested, output, events) = first_worker(jetstream("t", CREW), 100, lines);
        assert_eq!((requested, events), (4, vec!["abc, acked".to_owned()]));
        assert_eq!(
            output,
            "PUB $JS.API.CONSUMER.MSG.NEXT.BENCH.w w0 1\r\n4\r\n\
             PUB $JS.ACK.BENCH.w.1.7.9.1.0 0\r\n\r\nPONG\r\n"
        );
    }

    #[test]
    fn jetstream_is_pulled_again_when_half_of_the_credit_is_free() {
        let mut puller = JetStreamPuller {
            inbox: "w0".to_owned(),
            credit: 5,
            free_credit: 2,
            ack_subject: None,
        };
        assert_eq!(puller.request_tasks(100, &mut Vec::new()), 0);
        puller.free_credit = 3;
        assert_eq!(puller.request_tasks(0, &mut Vec::new()), 0, "nothing is there");
        assert_eq!(puller.request_tasks(2, &mut Vec::new()), 2);
        assert_eq!(puller.free_credit, 1);
    }

    #[test]
    fn redis_entries_are_acknowledged_once_per_answer() {
        let entry = |id: &str, payload: &str| {
            format!("*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nd\r\n${}\r\n{payload}\r\n", payload.len())
        };
        let (one, two) = (entry("1-0", "abc"), entry("2-0", ":de"));
        let lines = format!("*1\r\n*2\r\n$1\r\nt\r\n*2\r\n{one}{two}:2\r\n");
        let (requested, output, events) = first_worker(redis_streams("t", CREW), 100, &lines);
        assert_eq!((requested, events), (0, ["abc", ":de", "acked 2"].map(str::to_owned).to_vec()));
        let read: [&[u8]; 11] = [
            b"XREADGROUP",
            b"GROUP",
            b"g",
            b"w0",
            b"COUNT",
            b"4",
            b"BLOCK",
            b"0",
            b"STREAMS",
            b"t",
            b">",
        ];
        let ack = resp(&[b"XACK", b"t", b"g", b"1-0", b"2-0"]);
        assert_eq!(output.as_bytes(), [resp(&read), ack].concat());
    }

    #[test]
    fn redis_is_read_again_after_an_acknowledgement() {
        let mut consumer = RedisConsumer::new("t", 0, 4);
        let mut output = Vec::new();
        consumer.request_tasks(0, &mut output);
        let length = output.len();
        consumer.request_tasks(0, &mut output);
        assert_eq!(output.len(), length, "it is waiting for an answer");
        consumer.acknowledge(&mut output);
        output.clear();
        consumer.request_tasks(0, &mut output);
        assert_eq!(output.len(), length);
    }

    #[test]
    fn unexpected_lines_are_errors() {
        let workers = [jetstream("t", CREW).workers, redis_streams("t", CREW).workers];
        for (_, mut worker) in workers.into_iter().flatten() {
            let error = worker.handle_line(b"-ERR no", &mut Vec::new()).unwrap_err().to_string();
            assert_eq!(error, "unexpected line for a worker: -ERR no");
        }
    }
}
