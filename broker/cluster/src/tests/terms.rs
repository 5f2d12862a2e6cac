//! Three brokers that lead in turn, each with a real data directory on a simulated disk. In the end all
//! hold the same, and everything that was confirmed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use tidings_log::{
    Disk, Journal, JournalContents, LogError, LogId, LogPiece, LogPlan, Retention, SegmentStore,
    SimulatedDisk, Store, TopicLog, read_lines,
};
use tidings_protocol::Seq;

use super::copies::Keys;
use crate::mutants;
use crate::{
    Attempt, Candidacy, Commits, CommunityId, Ended, Leader, Replica, ReplicatedStore, Slot, Stamp,
    founding,
};

const COMMUNITY: CommunityId = CommunityId([9; 16]);

const PAYLOAD_MAX: usize = 200;

const PLAN: LogPlan = LogPlan { first: Seq(1), kept_bytes: 8 * 700 };

/// What happened in a run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) confirmed: usize,
    pub(super) refused: usize,
    pub(super) cuts: usize,
    pub(super) left: usize,
}

/// What a thread of the broker does. Returns the line that it has appended.
type Work = Box<dyn FnOnce(&mut dyn Journal) -> Result<Option<Confirmed>, LogError> + Send>;

/// A line that a caller was told is safe.
struct Confirmed {
    log: String,
    seq: u64,
    line: String,
}

struct Broker {
    disk: SimulatedDisk,
    role: Option<Role>,
}

enum Role {
    Standby(Box<Replica>),
    Leader(Box<Leading>),
}

struct Leading {
    leader: Leader,
    commits: Arc<Commits>,
    store: ReplicatedStore,
    logs: BTreeMap<LogId, Arc<dyn TopicLog>>,
    journal: Box<dyn Journal>,
}

/// The engine, and what may happen to a message.
struct Engine {
    rng: Rng,
    slots: Vec<Bytes>,
}

impl Engine {
    /// Appends a message if its slot is the next one, and says whether the answer has arrived.
    fn append(&mut self, attempt: &Attempt) -> bool {
        let arrives = self.rng.u32(..10) > 0;
        let fits = attempt.slot.0 == self.slots.len() as u64 + 1;
        if arrives && fits {
            self.slots.push(attempt.bytes.clone());
        }
        arrives && fits && self.rng.u32(..10) > 0
    }

    fn get(&self, slot: Slot) -> Option<&Bytes> {
        self.slots.get(usize::try_from(slot.0 - 1).unwrap())
    }
}

/// Runs some terms. The error names the seed.
pub(super) fn run(seed: u64) -> Result<Counts, String> {
    let problem = |what: String| format!("{what}; again with TIDINGS_TERM_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let founded = founding(COMMUNITY, Stamp::default()).bytes;
    let mut engine = Engine { rng: Rng::with_seed(seed ^ 1), slots: vec![founded] };
    let mut brokers: Vec<_> = (0..3)
        .map(|number| {
            let disk = SimulatedDisk::new(seed ^ number);
            Broker { role: Some(Role::Standby(Box::new(open(&disk)))), disk }
        })
        .collect();
    let (mut counts, mut confirmed) = (Counts::default(), Vec::new());
    for number in 0..40_u64 {
        let at = rng.usize(..3);
        let broker = &mut brokers[at];
        broker.role = Some(match broker.role.take().unwrap() {
            Role::Standby(_) if rng.u32(..5) == 0 => {
                counts.cuts += 1;
                broker.disk.cut_power();
                Role::Standby(Box::new(open(&broker.disk)))
            }
            Role::Standby(mut replica) => {
                follow(&mut replica, &engine).map_err(problem)?;
                if rng.bool() {
                    lead(replica, &mut engine, &broker.disk).map_err(problem)?
                } else {
                    Role::Standby(replica)
                }
            }
            Role::Leader(mut leading) => {
                for change in 0..rng.u32(1..6) {
                    let text = format!("{number}.{change}");
                    match leading.operate(&mut rng, &mut engine, &text) {
                        Ok(line) => confirmed.extend(line),
                        Err(_) => counts.refused += 1,
                    }
                }
                if rng.u32(..4) == 0 {
                    leading.leader.leave();
                    leading.pump(&mut engine);
                }
                match leading.leader.ended() {
                    None if rng.u32(..4) == 0 => {
                        counts.cuts += 1;
                        drop(leading);
                        broker.disk.cut_power();
                        Role::Standby(Box::new(open(&broker.disk)))
                    }
                    None => Role::Leader(leading),
                    Some(Ended::Fault(fault)) => return Err(problem(fault.to_string())),
                    Some(ended) => {
                        counts.left += usize::from(ended == Ended::Left);
                        leading.close();
                        Role::Standby(Box::new(open(&broker.disk)))
                    }
                }
            }
        });
    }
    counts.confirmed = confirmed.len();
    // A new broker reads everything; all others must have the same.
    let fresh = SimulatedDisk::new(seed);
    let mut replica = open(&fresh);
    follow(&mut replica, &engine).map_err(problem)?;
    replica.close().map_err(|error| problem(error.to_string()))?;
    let expected = dump(&fresh);
    for Confirmed { log, seq, line } in confirmed {
        let lines = &expected[&log];
        let copies = lines.values().filter(|it| **it == line).count();
        let is_trimmed = lines.keys().next().is_none_or(|first| seq < *first);
        if (copies, lines.get(&seq)) != (1, Some(&line)) && !(is_trimmed && copies == 0) {
            return Err(problem(format!(
                "{log} {seq} was confirmed, and is {:?}",
                lines.get(&seq)
            )));
        }
    }
    for (number, broker) in brokers.into_iter().enumerate() {
        match broker.role.unwrap() {
            Role::Standby(replica) => drop(replica),
            Role::Leader(leading) => leading.close(),
        }
        let mut replica = open(&broker.disk);
        follow(&mut replica, &engine).map_err(problem)?;
        replica.close().map_err(|error| problem(error.to_string()))?;
        let found = dump(&broker.disk);
        for (log, lines) in &expected {
            // Trimming removes whole segments, which differ between brokers.
            let firsts = [lines.keys().next(), found[log].keys().next()];
            let from = firsts.into_iter().flatten().max().copied().unwrap_or(0);
            if !lines.range(from..).eq(found[log].range(from..)) {
                let what = format!("{log} of broker {number} is {:?}, not {lines:?}", found[log]);
                return Err(problem(what));
            }
        }
    }
    Ok(counts)
}

fn open(disk: &SimulatedDisk) -> Replica {
    let (on, dir) = (Arc::new(disk.clone()), Path::new("data").to_owned());
    on.create_dir(&dir).unwrap();
    Replica::open(on, dir, COMMUNITY, Box::<Keys>::default(), 0).unwrap().0
}

fn follow(replica: &mut Replica, engine: &Engine) -> Result<(), String> {
    while let Some(bytes) = engine.get(replica.position().slot.next()) {
        let slot = replica.position().slot.next();
        replica.read(slot, bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Tries to lead. Without an answer there is no leader, even if the log says so.
fn lead(replica: Box<Replica>, engine: &mut Engine, disk: &SimulatedDisk) -> Result<Role, String> {
    let position = replica.position();
    let candidacy = Candidacy::new(COMMUNITY, position, Stamp::default(), "a broker");
    if !engine.append(&candidacy.attempt) {
        return Ok(Role::Standby(replica));
    }
    replica.close().map_err(|error| error.to_string())?;
    let replica = Arc::new(Mutex::new(open(disk)));
    let commits = Arc::new(Commits::new(|| {}));
    let leader =
        Leader::new(COMMUNITY, &candidacy, PAYLOAD_MAX, Arc::clone(&replica), Arc::clone(&commits));
    let leader = leader.map_err(|error| error.to_string())?;
    let store = ReplicatedStore::new(replica, Arc::clone(&commits));
    let mut logs = BTreeMap::new();
    let topics = ["a", "b"].map(|name| LogId::Topic(name.parse().unwrap()));
    for id in topics.into_iter().chain([LogId::Group("g".parse().unwrap())]) {
        let (log, found) = store.open(&id, PLAN, 0).map_err(|error| error.to_string())?;
        if found.next != log.bounds().end {
            return Err(format!("{id} goes on at {}, not at its end", found.next));
        }
        logs.insert(id, log);
    }
    let (journal, _) =
        store.open_journal(0, &mut Keys::default()).map_err(|error| error.to_string())?;
    Ok(Role::Leader(Box::new(Leading { leader, commits, store, logs, journal })))
}

impl Leading {
    /// Makes a change at random, as a thread of the broker would. Returns the line that it has appended.
    fn operate(
        &mut self,
        rng: &mut Rng,
        engine: &mut Engine,
        text: &str,
    ) -> Result<Option<Confirmed>, LogError> {
        let ids: Vec<_> = self.logs.keys().cloned().collect();
        let id = ids[rng.usize(..ids.len())].clone();
        let log = Arc::clone(&self.logs[&id]);
        let line = format!("{text} {}", "x".repeat(rng.usize(..400)));
        let work: Work = match rng.u32(..20) {
            0 => Box::new(move |_| {
                log.retain(&Retention {
                    bytes_max: 0,
                    oldest_unix_ms: None,
                    segments_max: 0,
                    keep_from: log.bounds().end,
                    removals_max: 1,
                })?;
                Ok(None)
            }),
            1..6 => Box::new(move |journal| {
                let records = [format!("key {}", line.len())];
                let appended = journal.append(&records, &Keys::default(), 0);
                appended.map(|()| None).map_err(|error| LogError::Broken(error.to_string()))
            }),
            _ => Box::new(move |_| {
                let first = log.bounds().end;
                let wire = Bytes::from(format!("{line}\n"));
                let piece = LogPiece { first, count: 1, unix_ms: 0, wire, identified: false };
                let next = Seq(first.0 + 1);
                log.append(&[piece], next, Seq(next.0 + 100))?;
                assert_eq!(log.sync()?.durable, next);
                Ok(Some(Confirmed { log: id.to_string(), seq: first.0, line }))
            }),
        };
        let mut journal = std::mem::replace(&mut self.journal, Box::new(NoJournal));
        let mutant = mutants::present();
        let done = thread::scope(|scope| {
            let working = scope.spawn(|| {
                mutants::set(mutant);
                work(&mut *journal)
            });
            while !working.is_finished() {
                self.pump(engine);
                thread::yield_now();
            }
            working.join().unwrap()
        });
        self.journal = journal;
        self.pump(engine);
        done
    }

    /// Sends and reads until nothing is left to do.
    fn pump(&mut self, engine: &mut Engine) {
        loop {
            if self.leader.ended().is_some() {
                self.commits.end("deposed");
                return self.commits.release();
            }
            if let Some(slot) = self.leader.read_from() {
                match engine.get(slot) {
                    Some(bytes) => self.leader.read(slot, bytes),
                    None => self.leader.read_to_end(),
                }
            } else if let Some(attempt) = self.leader.poll(Stamp::default()) {
                if engine.append(&attempt) {
                    self.leader.acknowledged(attempt.slot, attempt.round).unwrap();
                } else {
                    self.leader.unanswered(attempt.round);
                }
            } else {
                return;
            }
        }
    }

    fn close(self) {
        for log in self.logs.values() {
            log.close(log.bounds().end).unwrap();
        }
        self.store.close().unwrap();
    }
}

#[derive(Debug)]
struct NoJournal;

impl Journal for NoJournal {
    fn append(
        &mut self,
        _: &[String],
        _: &dyn JournalContents,
        _: i64,
    ) -> Result<(), tidings_log::JournalError> {
        unreachable!("another thread has the journal")
    }

    fn compact_if_due(&mut self, _: &dyn JournalContents, _: i64) {}

    fn close(&self) {}
}

/// All that a data directory holds: the lines of its logs, and the journal as a log of its own.
fn dump(disk: &SimulatedDisk) -> BTreeMap<String, BTreeMap<u64, String>> {
    let store = SegmentStore::new(Arc::new(disk.clone()), Path::new("data"));
    let mut found = BTreeMap::new();
    let topics = store.topics().unwrap().into_iter().map(LogId::Topic);
    for id in topics.chain(store.groups().unwrap().into_iter().map(LogId::Group)) {
        let log = store.open_read_only(&id).unwrap();
        let lines: &mut BTreeMap<_, _> = found.entry(id.to_string()).or_default();
        read_lines(&*log, log.bounds().first, |seq, line| {
            lines.insert(seq.0, line?.to_owned());
            Ok(())
        })
        .unwrap();
    }
    let mut keys = Keys::default();
    store.open_journal(0, &mut keys).unwrap();
    found.insert("catalog".to_owned(), (0..).zip(keys.snapshot()).collect());
    found
}
