//! A page that kills every worker that takes it, among 999 others in its hands: it ends as a dead
//! letter, none of the others does, and their hosts are closed for lease and delay and then go on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::origin::{Origin, Site};
use crate::support::process::{Finished, Running, Server};
use crate::support::talk::Talk;

/// As many as a crawler takes at a time.
const HOSTS: u16 = 1000;

const DELAY: Duration = Duration::from_millis(200);

/// Long enough for a thousand tasks to be taken before the first of them is lost.
const LEASE: Duration = Duration::from_secs(5);

/// After so many its entry is a dead letter, as is the default.
const LOSSES: usize = 4;

#[test]
fn a_page_that_kills_every_worker_is_given_up_and_takes_no_other_with_it() {
    let origin = Origin::serve(Site { hosts: HOSTS, ..Site::default() });
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    let (delay, lease) = (DELAY.as_millis(), LEASE.as_millis());
    client.ask(&format!("GROUP create crawlers delay={delay}ms lease={lease}ms"));
    client.ask("JOB open job");
    let poison = origin.url(HOSTS - 1, "/poison");
    for url in origin.seeds().iter().take(usize::from(HOSTS) - 1).chain([&poison]) {
        client.send(format!("PUB new-url {url} job=job\n"));
    }
    client.send("JOB close job\n");
    while !client.line().contains(" state=closed ") {}

    // The first two have everything in their hands. Those that come then are given one page at a
    // time that two others did not survive, however much they would take.
    let lives: Vec<Vec<Given>> = [usize::from(HOSTS), usize::from(HOSTS), 1, 1]
        .iter()
        .map(|hold| given(&worker(&server, *hold).finish()))
        .collect();
    assert_eq!(lives.len(), LOSSES);
    let last = worker(&server, 1);
    let done = client.ask("JOB wait job");
    let counts = format!(" result=done completed={} redirects=0 failed=1 ", HOSTS - 1);
    assert!(done.contains(&counts), "{done}");
    let last = given(&last.finish_by("KILL"));

    for held in &lives[..2] {
        assert_eq!(held.iter().map(|task| &task.url).collect::<BTreeSet<_>>().len(), 1000);
    }
    assert!(last.iter().all(|task| task.url != poison), "it is given to nobody any more");
    let mut before = BTreeMap::new();
    for Given { url, clock, lease } in lives.iter().flatten().chain(&last) {
        if let Some(free) = before.insert(url, clock + lease + DELAY.as_millis()) {
            assert!(free <= *clock, "{url} is given again at {clock}, and was free at {free}");
        }
    }
    let record = origin.record();
    record.expect_no_duplicates();
    record.expect_polite(DELAY);
    record.expect_none_under("/poison");
    assert_eq!(record.paths().len(), usize::from(HOSTS) - 1);
    expect_one_dead(&mut client, &poison);
}

/// Checks that this page is a dead letter, and that there is no other.
#[track_caller]
fn expect_one_dead(client: &mut Talk, url: &str) {
    let shown = client.ask("GROUP show crawlers");
    assert!(shown.contains(" waiting=0 processing=0 completed=999 failed=0 dead=1 "), "{shown}");
    let lost = 2 * usize::from(HOSTS) + LOSSES - 2;
    assert!(shown.contains(&format!(" lost={lost} ")), "{shown}");
    assert_eq!(client.ask("SUB dead-letter from=first"), "+OK");
    let letter = client.line();
    let about = format!("MSG dead-letter 1 {url} reason=max-losses ");
    let counts = format!(" failures=0 losses={LOSSES} last=lost_with_its_member job=job ");
    assert!(letter.starts_with(&about) && letter.contains(&counts), "{letter}");
    client.send("PUB dead-letter no-more\n");
    let lines: BTreeSet<_> = [client.line(), client.line()].into();
    assert!(lines.contains("MSG dead-letter 2 no-more"), "{lines:?}");
}

/// A task as a worker was given it, with the broker's clock and its lease in ms.
struct Given {
    url: String,
    clock: u128,
    lease: u128,
}

/// Starts a worker that begins when it holds so many tasks.
#[track_caller]
fn worker(server: &Server, hold: usize) -> Running {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/poisoned.py");
    let address = [server.address.ip().to_string(), server.address.port().to_string()];
    Running::start(Command::new("python3").arg(file).args(address).arg(hold.to_string()))
}

/// What a worker that was killed had been given.
#[track_caller]
fn given(ended: &Finished) -> Vec<Given> {
    assert!(ended.code.is_none(), "{ended:?}");
    let read = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        let [_, _, clock, lease, url, ..] = words[..] else { panic!("no task: {line}") };
        let (clock, lease) = (clock.parse().unwrap(), lease.parse().unwrap());
        Given { url: url.to_owned(), clock, lease }
    };
    ended.stdout().iter().map(read).collect()
}
