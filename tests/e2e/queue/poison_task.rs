//! A page kills every worker that takes it, among 999 other tasks of that worker. The page becomes
//! a dead letter and the others do not; their hosts wait for lease and delay and are then released.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, ProcessOutput, Server};

/// The number of tasks that a crawler takes at a time.
const HOSTS: u16 = 1000;

const DELAY: Duration = Duration::from_millis(200);

/// Long enough to take a thousand tasks before the first of them is lost.
const LEASE: Duration = Duration::from_secs(5);

/// After this number of losses the entry becomes a dead letter; this is the default.
const LOSSES_MAX: usize = 4;

#[test]
#[ignore = "needs foreign programs"]
fn a_page_that_kills_its_workers_becomes_the_only_dead_letter() {
    let origin = Origin::serve(Site { hosts: HOSTS, ..Site::default() });
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let (delay, lease) = (DELAY.as_millis(), LEASE.as_millis());
    client.request(&format!("GROUP create crawlers delay={delay}ms lease={lease}ms"));
    client.request("JOB open job");
    let poison = origin.url(HOSTS - 1, "/poison");
    for url in origin.seed_urls().iter().take(usize::from(HOSTS) - 1).chain([&poison]) {
        client.send(format!("PUB new-url {url} job=job\n"));
    }
    client.send("JOB close job\n");
    while !client.read_line().contains(" state=closed ") {}

    // The first two workers hold all tasks. Later ones get those that two workers have lost one at
    // a time, even with more credit.
    let lives: Vec<Vec<ReceivedTask>> = [usize::from(HOSTS), usize::from(HOSTS), 1, 1]
        .iter()
        .map(|hold| received_tasks(&start_worker(&server, *hold).finish()))
        .collect();
    assert_eq!(lives.len(), LOSSES_MAX);
    let last = start_worker(&server, 1);
    let done = client.request("JOB wait job");
    let counts = format!(" result=done completed={} redirects=0 failed=1 ", HOSTS - 1);
    assert!(done.contains(&counts), "{done}");
    let last = received_tasks(&last.signal_and_finish("KILL"));

    for held in &lives[..2] {
        assert_eq!(held.iter().map(|task| &task.url).collect::<BTreeSet<_>>().len(), 1000);
    }
    assert!(last.iter().all(|task| task.url != poison), "the poisoned page was released again");
    let mut before = BTreeMap::new();
    for ReceivedTask { url, clock, lease } in lives.iter().flatten().chain(&last) {
        if let Some(free) = before.insert(url, clock + lease + DELAY.as_millis()) {
            assert!(free <= *clock, "{url} was released at {clock}, before {free}");
        }
    }
    let requests = origin.request_log();
    requests.expect_no_duplicates();
    requests.expect_polite(DELAY);
    requests.expect_none_under("/poison");
    assert_eq!(requests.paths().len(), usize::from(HOSTS) - 1);
    expect_one_dead_letter(&mut client, &poison);
}

/// Checks that this page is the only dead letter.
#[track_caller]
fn expect_one_dead_letter(client: &mut LineConnection, url: &str) {
    let shown = client.request("GROUP show crawlers");
    assert!(shown.contains(" waiting=0 processing=0 completed=999 failed=0 dead=1 "), "{shown}");
    let lost = 2 * usize::from(HOSTS) + LOSSES_MAX - 2;
    assert!(shown.contains(&format!(" lost={lost} ")), "{shown}");
    assert_eq!(client.request("SUB dead-letter from=first"), "+OK");
    let dead_letter = client.read_line();
    let prefix = format!("MSG dead-letter 1 {url} reason=max-losses ");
    let counts = format!(" failures=0 losses={LOSSES_MAX} last=lost_with_its_member job=job ");
    assert!(dead_letter.starts_with(&prefix) && dead_letter.contains(&counts), "{dead_letter}");
    client.send("PUB dead-letter no-more\n");
    let lines: BTreeSet<_> = [client.read_line(), client.read_line()].into();
    assert!(lines.contains("MSG dead-letter 2 no-more"), "{lines:?}");
}

/// A task as a worker received it, with the broker's clock and its lease in ms.
struct ReceivedTask {
    url: String,
    clock: u128,
    lease: u128,
}

/// Starts a worker that begins when it holds `hold` tasks.
#[track_caller]
fn start_worker(server: &Server, hold: usize) -> Process {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/poisoned_worker.py");
    let address = [server.address.ip().to_string(), server.address.port().to_string()];
    Process::start(Command::new("python3").arg(file).args(address).arg(hold.to_string()))
}

/// The tasks that a killed worker had received.
#[track_caller]
fn received_tasks(output: &ProcessOutput) -> Vec<ReceivedTask> {
    assert!(output.code.is_none(), "{output:?}");
    let read = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        let [_, _, clock, lease, url, ..] = words[..] else { panic!("not a task: {line}") };
        let (clock, lease) = (clock.parse().unwrap(), lease.parse().unwrap());
        ReceivedTask { url: url.to_owned(), clock, lease }
    };
    output.stdout().iter().map(read).collect()
}
