//! Queues of the peers: how their workers ask for tasks and acknowledge them.

use anyhow::{Context, bail, ensure};
use tidings_bench::wire::{
    Answers, Confirmed, Crew, Heard, Left, Step, Stream, Tasks, Until, Wire, Worker,
};

use crate::wires::{JetStream, STREAM, length, resp};

/// Words of a line, from its beginning.
fn word(line: &[u8], index: usize) -> Option<&[u8]> {
    line.split(|&byte| byte == b' ').nth(index)
}

fn number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

fn unexpected<T>(line: &[u8]) -> anyhow::Result<T> {
    bail!("the server tells a worker: {}", String::from_utf8_lossy(line))
}

/// A durable consumer of the stream that is pulled from, with an acknowledgement for each message.
/// What is acknowledged stays in the stream, which spares the server the work of removing it.
pub(crate) fn jetstream(topic: &str, crew: Crew) -> Tasks {
    let unacked_max = length(crew.workers) * crew.credit;
    let consumer = format!(
        "{{\"stream_name\":\"{STREAM}\",\"config\":{{\"durable_name\":\"w\",\"deliver_policy\":\"all\",\
         \"ack_policy\":\"explicit\",\"replay_policy\":\"instant\",\"max_ack_pending\":{unacked_max}}}}}"
    );
    let mut prepare = JetStream.prepare(topic);
    let create = format!("$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.w");
    prepare.push(JetStream::request(&create, &consumer));
    let worker = |worker| {
        let inbox = format!("w{worker}");
        let joining = Step::new(format!("SUB {inbox} 5\r\nPING\r\n"), Until::Line("PONG"));
        let puller: Box<dyn Worker> =
            Box::new(Puller { inbox, credit: crew.credit, free: crew.credit, ack: None });
        (vec![joining], puller)
    };
    Tasks {
        prepare,
        workers: (0..crew.workers).map(worker).collect(),
        left: Left {
            opening: vec![Step::new("SUB _INBOX.api 9\r\nPING\r\n", Until::Line("PONG"))],
            request: format!("PUB $JS.API.CONSUMER.INFO.{STREAM}.w _INBOX.api 0\r\n\r\n")
                .into_bytes(),
            marks: &["\"num_ack_pending\":", "\"num_pending\":"],
        },
    }
}

/// Asks for a batch each time that it has room for half of its credit.
struct Puller {
    inbox: String,
    credit: u64,
    /// Tasks that may be asked for.
    free: u64,
    /// Where the acknowledgement of the message goes of which the payload is the next line.
    ack: Option<Vec<u8>>,
}

impl Worker for Puller {
    fn ask(&mut self, unasked: u64, say: &mut Vec<u8>) -> u64 {
        let batch = self.free.min(unasked);
        if batch == 0 || self.free < self.credit.div_ceil(2) {
            return 0;
        }
        self.free -= batch;
        let (inbox, body) = (&self.inbox, batch.to_string());
        let request = format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.w {inbox} {}\r\n{body}\r\n",
            body.len()
        );
        say.extend_from_slice(request.as_bytes());
        batch
    }

    fn hear<'a>(&mut self, line: &'a [u8], say: &mut Vec<u8>) -> anyhow::Result<Heard<'a>> {
        if let Some(ack) = self.ack.take() {
            // An empty message acknowledges, and is not answered.
            say.extend_from_slice(b"PUB ");
            say.extend_from_slice(&ack);
            say.extend_from_slice(b" 0\r\n\r\n");
            self.free += 1;
            return Ok(Heard::LastTask(line));
        }
        if line.starts_with(b"MSG ") {
            // `MSG <subject> <subscription> <reply> <bytes>`
            ensure!(word(line, 4).is_some(), "a message that cannot be acknowledged");
            self.ack = word(line, 3).map(<[u8]>::to_vec);
        } else if line == b"PING" {
            say.extend_from_slice(b"PONG\r\n");
        } else {
            return unexpected(line);
        }
        Ok(Heard::Nothing)
    }
}

/// The consumer group of all Redis runs.
const GROUP: &str = "g";

/// A consumer group of the stream, read and acknowledged in batches. What is acknowledged stays in
/// the stream, as that of [`jetstream`] does.
pub(crate) fn redis_streams(topic: &str, crew: Crew) -> Tasks {
    let create =
        resp(&[b"XGROUP", b"CREATE", topic.as_bytes(), GROUP.as_bytes(), b"$", b"MKSTREAM"]);
    let worker = |worker: usize| {
        let consumer: Box<dyn Worker> = Box::new(Consumer::new(topic, worker, crew.credit));
        (Vec::new(), consumer)
    };
    Tasks {
        prepare: vec![Step::new(create, Until::Line("+OK"))],
        workers: (0..crew.workers).map(worker).collect(),
        left: Left {
            opening: Vec::new(),
            request: resp(&[b"XPENDING", topic.as_bytes(), GROUP.as_bytes()]),
            marks: &[":"],
        },
    }
}

/// Reads as many entries as there are, and acknowledges them with one command before it reads
/// again.
struct Consumer {
    topic: String,
    /// Waits until there is something, and takes as much as the credit allows.
    read: Vec<u8>,
    is_asking: bool,
    place: Place,
    /// Entries of this answer that have not come as a whole.
    entries: u64,
    /// Identifiers of those that came, as words of a command.
    ids: Vec<u8>,
    ids_count: usize,
}

/// Which line of an answer comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The first one.
    Begin,
    /// So many until the number of entries: one stream, a pair, the name of the stream.
    Stream(u8),
    /// This one of an entry: a pair, the identifier behind its length, a pair, the field, and its
    /// value.
    Entry(u8),
}

/// Lines of an entry that are looked at.
const ID_LINE: u8 = 2;
const PAYLOAD_LINE: u8 = 7;

impl Consumer {
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
            is_asking: false,
            place: Place::Begin,
            entries: 0,
            ids: Vec::new(),
            ids_count: 0,
        }
    }

    /// Says that everything of this answer is done.
    fn acknowledge(&mut self, say: &mut Vec<u8>) {
        let (topic, words) = (&self.topic, self.ids_count + 3);
        let head = format!(
            "*{words}\r\n$4\r\nXACK\r\n${}\r\n{topic}\r\n${}\r\n{GROUP}\r\n",
            topic.len(),
            GROUP.len()
        );
        say.extend_from_slice(head.as_bytes());
        say.append(&mut self.ids);
        self.ids_count = 0;
        self.is_asking = false;
    }
}

impl Worker for Consumer {
    /// A read that finds nothing is answered when there is something again, so nobody counts what
    /// it asks for.
    fn ask(&mut self, _: u64, say: &mut Vec<u8>) -> u64 {
        if !self.is_asking {
            say.extend_from_slice(&self.read);
            self.is_asking = true;
        }
        0
    }

    fn hear<'a>(&mut self, line: &'a [u8], say: &mut Vec<u8>) -> anyhow::Result<Heard<'a>> {
        match self.place {
            Place::Begin => match line.split_first() {
                Some((b':', acked)) => {
                    return Ok(Heard::Acked(number(acked).context("no number of entries")?));
                }
                Some((b'*', b"1")) => self.place = Place::Stream(3),
                _ => return unexpected(line),
            },
            Place::Stream(0) => {
                let count = line.strip_prefix(b"*").and_then(number).filter(|&count| count > 0);
                self.entries = count.context("a stream without entries")?;
                self.place = Place::Entry(0);
            }
            Place::Stream(lines) => self.place = Place::Stream(lines - 1),
            Place::Entry(PAYLOAD_LINE) => {
                self.entries -= 1;
                self.place = if self.entries > 0 { Place::Entry(0) } else { Place::Begin };
                if self.entries == 0 {
                    self.acknowledge(say);
                }
                return Ok(Heard::Task(line));
            }
            Place::Entry(at) => {
                if at == ID_LINE {
                    self.ids.extend_from_slice(format!("${}\r\n", line.len()).as_bytes());
                    self.ids.extend_from_slice(line);
                    self.ids.extend_from_slice(b"\r\n");
                    self.ids_count += 1;
                }
                self.place = Place::Entry(at + 1);
            }
        }
        Ok(Heard::Nothing)
    }
}

/// beanstalkd, whose tubes are queues and nothing else.
pub(crate) struct Beanstalkd;

/// How long a worker may keep a job, in seconds.
const JOB_SECONDS: u64 = 60;

impl Wire for Beanstalkd {
    fn opening(&self) -> Vec<Step> {
        Vec::new()
    }

    /// Who watches a tube may reserve its jobs, which is what [`Reserver`] does; nothing comes
    /// unasked.
    fn subscribe(&self, topic: &str) -> Vec<Step> {
        vec![self.at_once(topic), Step::new("ignore default\r\n", Until::Line("WATCHING"))]
    }

    fn at_once(&self, topic: &str) -> Step {
        Step::new(format!("watch {topic}\r\n"), Until::Line("WATCHING"))
    }

    fn publish(&self, _: &str, payload: &[u8]) -> Vec<u8> {
        let head = format!("put 0 0 {JOB_SECONDS} {}\r\n", payload.len());
        [head.as_bytes(), payload, b"\r\n"].concat()
    }

    fn stream(&self, _: &str, payload_bytes: usize) -> Stream {
        let bytes = format!("RESERVED  {payload_bytes}\r\n\r\n").len() + payload_bytes;
        Stream::numbered(length(bytes))
    }

    fn confirmed(&self, topic: &str, payload: &[u8]) -> anyhow::Result<Confirmed> {
        Ok(Confirmed {
            opening: vec![Step::new(format!("use {topic}\r\n"), Until::Line("USING"))],
            message: self.publish(topic, payload),
            // `INSERTED <id>`
            answers: Answers::Lines(1),
        })
    }

    fn queue(&self, topic: &str, crew: Crew) -> anyhow::Result<Tasks> {
        let worker = |_| {
            let reserver: Box<dyn Worker> = Box::new(Reserver { free: crew.credit, job: None });
            (self.subscribe(topic), reserver)
        };
        Ok(Tasks {
            prepare: Vec::new(),
            workers: (0..crew.workers).map(worker).collect(),
            left: Left {
                opening: Vec::new(),
                request: format!("stats-tube {topic}\r\n").into_bytes(),
                marks: &["current-jobs-ready: ", "current-jobs-reserved: "],
            },
        })
    }
}

/// Reserves one job after the other, many commands at once. A `reserve` without a job to come would
/// keep those behind it waiting, so it asks only for what is there.
struct Reserver {
    /// Jobs that may be asked for.
    free: u64,
    /// The job of which the payload is the next line.
    job: Option<Vec<u8>>,
}

impl Worker for Reserver {
    fn ask(&mut self, unasked: u64, say: &mut Vec<u8>) -> u64 {
        let jobs = self.free.min(unasked);
        self.free -= jobs;
        for _ in 0..jobs {
            say.extend_from_slice(b"reserve\r\n");
        }
        jobs
    }

    fn hear<'a>(&mut self, line: &'a [u8], say: &mut Vec<u8>) -> anyhow::Result<Heard<'a>> {
        if let Some(job) = self.job.take() {
            say.extend_from_slice(b"delete ");
            say.extend_from_slice(&job);
            say.extend_from_slice(b"\r\n");
            self.free += 1;
            return Ok(Heard::Task(line));
        }
        if line.starts_with(b"RESERVED ") {
            self.job = word(line, 1).map(<[u8]>::to_vec);
            Ok(Heard::Nothing)
        } else if line == b"DELETED" {
            Ok(Heard::Acked(1))
        } else {
            unexpected(line)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREW: Crew = Crew { workers: 2, credit: 4 };

    /// What the first worker says, and what it made of the lines.
    fn first_worker(tasks: Tasks, unasked: u64, lines: &str) -> (u64, String, Vec<String>) {
        let (_, mut worker) = tasks.workers.into_iter().next().unwrap();
        let mut said = Vec::new();
        let asked = worker.ask(unasked, &mut said);
        let shown = |heard: Heard<'_>| match heard {
            Heard::Nothing => None,
            Heard::Task(payload) => Some(String::from_utf8_lossy(payload).into_owned()),
            Heard::LastTask(payload) => {
                Some(format!("{}, acked", String::from_utf8_lossy(payload)))
            }
            Heard::Acked(count) => Some(format!("acked {count}")),
        };
        let hear = |line: &str| shown(worker.hear(line.as_bytes(), &mut said).unwrap());
        let heard = lines.lines().filter_map(hear).collect();
        (asked, String::from_utf8(said).unwrap(), heard)
    }

    #[test]
    fn jetstream_is_asked_for_batches_and_acknowledged_by_an_empty_message() {
        let lines = "MSG t 5 $JS.ACK.BENCH.w.1.7.9.1.0 3\r\nabc\r\nPING\r\n";
        let (asked, said, heard) = first_worker(jetstream("t", CREW), 100, lines);
        assert_eq!((asked, heard), (4, vec!["abc, acked".to_owned()]));
        assert_eq!(
            said,
            "PUB $JS.API.CONSUMER.MSG.NEXT.BENCH.w w0 1\r\n4\r\n\
             PUB $JS.ACK.BENCH.w.1.7.9.1.0 0\r\n\r\nPONG\r\n"
        );
    }

    #[test]
    fn jetstream_is_asked_again_when_half_of_the_credit_is_free() {
        let mut puller = Puller { inbox: "w0".to_owned(), credit: 5, free: 2, ack: None };
        assert_eq!(puller.ask(100, &mut Vec::new()), 0);
        puller.free = 3;
        assert_eq!(puller.ask(0, &mut Vec::new()), 0, "nothing is there");
        assert_eq!(puller.ask(2, &mut Vec::new()), 2);
        assert_eq!(puller.free, 1);
    }

    #[test]
    fn redis_is_acknowledged_once_an_answer() {
        let entry = |id: &str, payload: &str| {
            format!("*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nd\r\n${}\r\n{payload}\r\n", payload.len())
        };
        let (one, two) = (entry("1-0", "abc"), entry("2-0", ":de"));
        let lines = format!("*1\r\n*2\r\n$1\r\nt\r\n*2\r\n{one}{two}:2\r\n");
        let (asked, said, heard) = first_worker(redis_streams("t", CREW), 100, &lines);
        assert_eq!((asked, heard), (0, ["abc", ":de", "acked 2"].map(str::to_owned).to_vec()));
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
        assert_eq!(said.as_bytes(), [resp(&read), ack].concat());
    }

    #[test]
    fn redis_is_asked_again_after_an_acknowledgement() {
        let mut consumer = Consumer::new("t", 0, 4);
        let mut said = Vec::new();
        consumer.ask(0, &mut said);
        let once = said.len();
        consumer.ask(0, &mut said);
        assert_eq!(said.len(), once, "it is waiting for an answer");
        consumer.acknowledge(&mut said);
        said.clear();
        consumer.ask(0, &mut said);
        assert_eq!(said.len(), once);
    }

    #[test]
    fn beanstalkd_is_asked_for_no_more_than_there_is() {
        let tasks = Beanstalkd.queue("t", CREW).unwrap();
        let lines = "RESERVED 17 3\r\nabc\r\nDELETED\r\n";
        let (asked, said, heard) = first_worker(tasks, 3, lines);
        assert_eq!((asked, heard), (3, ["abc", "acked 1"].map(str::to_owned).to_vec()));
        assert_eq!(said, "reserve\r\nreserve\r\nreserve\r\ndelete 17\r\n");
        let (asked, ..) = first_worker(Beanstalkd.queue("t", CREW).unwrap(), 100, "");
        assert_eq!(asked, 4, "its credit");
    }

    #[test]
    fn what_is_no_part_of_the_conversation_is_told() {
        let workers = [
            jetstream("t", CREW).workers,
            redis_streams("t", CREW).workers,
            Beanstalkd.queue("t", CREW).unwrap().workers,
        ];
        for (_, mut worker) in workers.into_iter().flatten() {
            let told = worker.hear(b"-ERR no", &mut Vec::new()).unwrap_err().to_string();
            assert_eq!(told, "the server tells a worker: -ERR no");
        }
    }

    #[test]
    fn a_job_is_put_with_its_length() {
        assert_eq!(Beanstalkd.publish("t", b"ab"), b"put 0 0 60 2\r\nab\r\n");
        let reserved = b"RESERVED 7 2\r\nab\r\n".len();
        assert_eq!(Beanstalkd.stream("t", 2).bytes(1), length(reserved));
    }
}
