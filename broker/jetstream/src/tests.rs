//! Leaders and copies on three real servers, which are killed.
#![expect(clippy::disallowed_methods, reason = "drives real servers on a real clock")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use tidings_broker::empty_catalog;
use tidings_cluster::{
    Candidacy, Commits, CommunityId, Ended, Leader, PAYLOAD_BYTES_MAX, Replica, ReplicatedStore,
    Stamp,
};
use tidings_log::{FileSystem, LogId, LogPiece, LogPlan, SegmentStore, Store, read_lines};
use tidings_protocol::Seq;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::{Answer, JetStream, Servers, send};

const COMMUNITY: CommunityId = CommunityId([4; 16]);

const LIMIT: Duration = Duration::from_mins(10);

/// So few that the next leader gets its turn: between its read and its attempt nobody may write.
const LINES: usize = 300;

const PLAN: LogPlan = LogPlan { first: Seq(1), kept_bytes: 1 << 30 };

/// Three servers that sync what they confirm.
struct Processes {
    program: PathBuf,
    dir: TempDir,
    addresses: Vec<String>,
    running: [Option<Child>; 3],
}

impl Processes {
    fn start() -> Self {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/nats-server");
        let dir = tempfile::tempdir().unwrap();
        // An address that no other process uses, so that a killed server finds its ports free.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, 100 + a % 64, b, c);
        let routes = [0, 1, 2].map(|number| format!("nats://{host}:{}", 6222 + number)).join(", ");
        for number in 0..3 {
            let store = dir.path().join(number.to_string());
            let config = format!(
                "server_name: n{number}\nlisten: {host}:{}\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: always }}\n\
                 cluster {{ name: three, listen: {host}:{}, routes: [{routes}] }}\n",
                4222 + number,
                6222 + number
            );
            std::fs::write(dir.path().join(format!("{number}.conf")), config).unwrap();
        }
        let addresses = (0..3).map(|number| format!("nats://{host}:{}", 4222 + number)).collect();
        let mut servers = Self { program, dir, addresses, running: [None, None, None] };
        (0..3).for_each(|number| servers.run(number));
        servers
    }

    fn run(&mut self, number: usize) {
        let log = std::fs::File::create(self.dir.path().join(format!("{number}.log"))).unwrap();
        let child = Command::new(&self.program)
            .arg("--config")
            .arg(self.dir.path().join(format!("{number}.conf")))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        self.running[number] = Some(child);
    }

    fn kill(&mut self, number: usize) {
        let mut child = self.running[number].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Asks again until there is an answer.
async fn until<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
    ask: impl Fn() -> F,
) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if began.elapsed() > LIMIT => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn stamp() -> Stamp {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    Stamp { moment: 0, unix_ms: i64::try_from(unix).unwrap() }
}

fn open(dir: &Path) -> Replica {
    let disk = Arc::new(FileSystem);
    Replica::open(disk, dir.to_owned(), COMMUNITY, empty_catalog(), 0).unwrap().0
}

/// Reads to the end, as far as that is known.
async fn follow(replica: &mut Replica, stream: &JetStream) {
    let last = until(|| stream.last()).await;
    while replica.position().slot < last {
        let mut reader = until(|| stream.read(replica.position().slot.next())).await;
        while replica.position().slot < last {
            // A reader that ends begins again.
            let Ok((slot, bytes)) = reader.next().await else { break };
            replica.read(slot, &bytes).unwrap();
        }
    }
}

/// A leader, and the task that sends for it.
struct Term {
    store: ReplicatedStore,
    sender: JoinHandle<Ended>,
    leaves: Arc<AtomicBool>,
    wake: Arc<Notify>,
}

impl Term {
    async fn begin(dir: &Path, stream: &JetStream) -> Self {
        let mut replica = open(dir);
        let candidacy = loop {
            follow(&mut replica, stream).await;
            let candidacy = Candidacy::new(COMMUNITY, replica.position(), stamp(), "a broker");
            // An attempt without an answer may be in the log. Then it is read, as a term of its own.
            if stream.send(&candidacy.attempt).await.await == Answer::Done {
                break candidacy;
            }
        };
        replica.close().unwrap();
        let replica = Arc::new(Mutex::new(open(dir)));
        let (wake, leaves) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let commits = {
            let wake = Arc::clone(&wake);
            Arc::new(Commits::new(move || wake.notify_one()))
        };
        let shared = (Arc::clone(&replica), Arc::clone(&commits));
        let mut leader =
            Leader::new(COMMUNITY, &candidacy, PAYLOAD_BYTES_MAX, shared.0, shared.1).unwrap();
        let store = ReplicatedStore::new(replica, Arc::clone(&commits));
        let sender = tokio::spawn({
            let (stream, wake, leaves) = (stream.clone(), Arc::clone(&wake), Arc::clone(&leaves));
            async move {
                let leaves = || leaves.load(Ordering::Acquire);
                let ended = send(&mut leader, &stream, &wake, leaves, stamp).await.unwrap();
                commits.end("another broker leads");
                commits.release();
                ended
            }
        });
        Self { store, sender, leaves, wake }
    }

    async fn end(self) -> Ended {
        self.leaves.store(true, Ordering::Release);
        self.wake.notify_one();
        self.sender.await.unwrap()
    }
}

/// Appends lines to a topic, until one is refused. Returns those that are confirmed, with their seqs.
fn publish(store: &ReplicatedStore, topic: &LogId, term: usize) -> Vec<(Seq, String)> {
    let (log, _) = store.open(topic, PLAN, 0).unwrap();
    let mut confirmed = Vec::new();
    for number in 0..LINES {
        let (first, line) = (log.bounds().end, format!("{term} {number}"));
        let wire = Bytes::from(format!("{line}\n"));
        let piece = LogPiece { first, count: 1, unix_ms: 0, wire, identified: false };
        let next = Seq(first.0 + 1);
        if log.append(&[piece], next, next).is_err() {
            break;
        }
        confirmed.push((first, line));
    }
    log.close(log.bounds().end).unwrap();
    confirmed
}

fn lines(dir: &Path, topic: &LogId) -> BTreeMap<Seq, String> {
    let store = SegmentStore::new(Arc::new(FileSystem), dir);
    let log = store.open_read_only(topic).unwrap();
    let mut found = BTreeMap::new();
    read_lines(&*log, Seq(1), |seq, line| {
        found.insert(seq, line?.to_owned());
        Ok(())
    })
    .unwrap();
    found
}

#[test]
#[ignore = "needs foreign programs"]
fn nothing_confirmed_is_lost_when_servers_are_killed_and_leaders_deposed() {
    let runtime = Runtime::new().unwrap();
    let mut servers = Processes::start();
    let (addresses, name) = (servers.addresses.clone(), "east".parse().unwrap());
    let engine = Servers { addresses, credentials: None, authorities: None };
    let stream = runtime.block_on(until(|| JetStream::connect(&engine, &name)));
    let create = |id| runtime.block_on(until(|| stream.create(id, 1 << 30, stamp())));
    assert!(create(COMMUNITY));
    assert!(!create(CommunityId([5; 16])), "it exists");
    assert_eq!(runtime.block_on(stream.community()).unwrap(), COMMUNITY);

    let dirs: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let topics = ["a", "b", "c"].map(|name| LogId::Topic(name.parse().unwrap()));
    let confirmed = Mutex::new(BTreeMap::<_, Vec<_>>::new());
    let mut term = runtime.block_on(Term::begin(dirs[0].path(), &stream));
    for number in 1..=6 {
        let next = thread::scope(|scope| {
            for topic in &topics {
                let (store, confirmed) = (&term.store, &confirmed);
                scope.spawn(move || {
                    let lines = publish(store, topic, number);
                    confirmed.lock().entry(topic).or_default().extend(lines);
                });
            }
            if number % 2 == 0 {
                servers.kill(number % 3);
            }
            // The next leader deposes this one while it writes.
            let next = runtime.block_on(Term::begin(dirs[number % 3].path(), &stream));
            if number % 2 == 0 {
                servers.run(number % 3);
            }
            next
        });
        let ended = runtime.block_on(term.end());
        assert!(matches!(ended, Ended::Deposed(_)), "{ended:?}");
        term = next;
    }
    assert_eq!(runtime.block_on(term.end()), Ended::Left);

    for dir in &dirs {
        let mut replica = open(dir.path());
        runtime.block_on(follow(&mut replica, &stream));
        replica.close().unwrap();
    }
    let mut count = 0;
    for (topic, confirmed) in confirmed.into_inner() {
        let found = lines(dirs[0].path(), topic);
        for dir in &dirs[1..] {
            assert_eq!(lines(dir.path(), topic), found, "{topic}");
        }
        for (seq, line) in confirmed {
            assert_eq!(found.get(&seq), Some(&line), "{topic} {seq} was confirmed");
            count += 1;
        }
    }
    assert!(count > 0, "nothing was confirmed, so this proves nothing");
}
