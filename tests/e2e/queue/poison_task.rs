//! A page kills every worker that takes it, among other tasks of that worker. It becomes a dead letter
//! and the others do not.

use std::collections::BTreeSet;

use crate::support::line_connection::LineConnection;
use crate::support::process::Server;

const GOOD: usize = 9;
const POISON: &str = "http://poison.example/";
/// After this number of losses the entry becomes a dead letter; this is the default.
const LOSSES_MAX: usize = 4;

#[test]
fn a_page_that_kills_its_workers_becomes_the_only_dead_letter() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("GROUP create team topics=t delay=0 lease=5s");
    client.request_ok("JOB open job group=team");
    let good = (0..GOOD).map(|host| format!("http://h{host}.example/"));
    for url in good.chain([POISON.to_owned()]) {
        client.request_ok(&format!("JOB add job url={url} group=team"));
    }
    client.request_ok("JOB close job group=team");
    for life in 0..LOSSES_MAX {
        let mut worker = LineConnection::connect_client(server.address);
        worker.request_ok("JOIN team credit=100");
        // The first two workers die with all tasks. Those that two workers have lost come one at a
        // time.
        let mut held = BTreeSet::new();
        loop {
            let line = worker.read_line();
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["TASK", _, _, _, url, ..] if life < 2 => {
                    held.insert(url.to_owned());
                    if held.len() > GOOD {
                        break;
                    }
                }
                ["TASK", _, _, _, POISON, ..] => break,
                ["TASK", id, ..] => worker.send(format!("ACK {id}\n")),
                _ => {}
            }
        }
    }
    let done = client.request("JOB wait job group=team");
    let counts = format!(" result=done completed={GOOD} redirects=0 failed=1 ");
    assert!(done.contains(&counts), "{done}");
    let shown = client.request("GROUP show team");
    let lost = 2 * GOOD + LOSSES_MAX;
    assert!(shown.contains(" dead=1 ") && shown.contains(&format!(" lost={lost} ")), "{shown}");
    assert_eq!(client.request("SUB dead-letter from=first"), "+OK");
    let dead = client.read_line();
    assert!(dead.starts_with(&format!("MSG dead-letter 1 {POISON} reason=max-losses ")), "{dead}");
    let losses = format!(" failures=0 losses={LOSSES_MAX} last=lost_with_its_member job=job ");
    assert!(dead.contains(&losses), "{dead}");
}
