//! Tasks that need a browser, with workers that are typed into `nc`.

use crate::support::line_connection::LineConnection;
use crate::support::nc::start_nc;
use crate::support::process::{Process, Server};
use crate::support::wait::wait_until;

/// A worker of the default group that joins with these options.
#[track_caller]
fn join_worker(server: &Server, options: &str) -> Process {
    let mut worker = start_nc(server.address, &[]);
    worker.write(format!("JOIN crawlers {options}\n"));
    worker.wait_for_line_with("+OK crawlers credit=");
    worker
}

/// The tasks of a worker, once the broker has answered everything that came before.
#[track_caller]
fn tasks_of(worker: &mut Process, pings: &mut usize) -> Vec<String> {
    worker.write("PING\n");
    *pings += 1;
    let mut lines = Vec::new();
    wait_until("the answer to a PING", || {
        lines.clear();
        let none: Option<()> = worker.find_line(|line| {
            lines.push(line.trim_end().to_owned());
            None
        });
        assert!(none.is_none());
        let answers = lines.iter().filter(|line| line.starts_with("PONG ")).count();
        (answers == *pings).then_some(())
    });
    lines.retain(|line| line.starts_with("TASK "));
    lines
}

/// The id of a task.
fn id_of(task: &str) -> &str {
    task.split(' ').nth(1).unwrap()
}

/// Checks what `EXPLAIN` says about a URL, and `GROUP show` about all of them.
#[track_caller]
fn expect_waits(client: &mut LineConnection, url: &str, because: &str, group: &str) {
    let why = client.request_lines(&format!("EXPLAIN {url}"));
    assert!(why[0].contains(&format!(" queued because={because}")), "{why:?}");
    let shown = client.request("GROUP show crawlers");
    assert!(shown.contains(&format!(" {group} waiting=")), "{shown}");
}

// PROTOCOL: T16
#[test]
#[ignore = "needs foreign programs"]
fn tasks_that_need_a_browser_wait_for_a_worker_that_has_one() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("GROUP set crawlers delay=0");
    let (mut plain, mut pings) = (join_worker(&server, "credit=9"), 0);
    client.request_ok("JOB open docs render=/app/*");
    client.request_ok("PUB new-url http://a.example/ render=yes");
    client.request_ok("JOB add docs url=http://b.example/app/1");
    client.request_ok("PUB new-url http://c.example/");
    plain.wait_for_line_with("http://c.example/");
    let held = tasks_of(&mut plain, &mut pings);
    assert_eq!(held.len(), 1, "{held:?}");
    let (a, b) = ("http://a.example/", "http://b.example/app/1");
    for url in [a, b] {
        let group = "render-members=0 render-waiting=2";
        expect_waits(&mut client, url, "no-render-member", group);
    }
    assert!(client.request("JOB show docs").ends_with(" render=/app/*"));

    let (mut renderer, mut renderer_pings) =
        (join_worker(&server, "can=render credit=9 render=1"), 0);
    let first = renderer.wait_for_line_with("TASK ");
    assert!(first.trim_end().ends_with(" render=yes"), "{first}");
    let held = tasks_of(&mut renderer, &mut renderer_pings);
    assert_eq!(held.len(), 1, "{held:?}");
    let other = if first.contains(a) { b } else { a };
    let group = "render-members=1 render-waiting=1";
    expect_waits(&mut client, other, "no-render-credit", group);
    renderer.write(format!("ACK {}\n", id_of(&first)));
    renderer.wait_for_line_with(other);
    drop(renderer);
    // Until the broker has noticed, the next task may be for this worker.
    wait_until("the end of the connection of the worker", || {
        (!client.request("GROUP show crawlers").contains(" render-members=1 ")).then_some(())
    });

    client.request_ok("PUB new-url http://d.example/ render=auto");
    let found = plain.wait_for_line_with("http://d.example/ render=auto");
    plain.write(format!("NACK {} need=render\n", id_of(&found)));
    plain.wait_for_line_with(&format!("+OK {}", id_of(&found)));
    let group = "render-members=0 render-waiting=1";
    expect_waits(&mut client, "http://d.example/", "no-render-member", group);

    let server = server.restart("KILL", &["broker"]);
    let (mut plain, mut pings) = (join_worker(&server, "credit=9"), 0);
    let held = tasks_of(&mut plain, &mut pings);
    assert!(held.is_empty(), "{held:?}");
    let renderer = join_worker(&server, "can=render");
    renderer.wait_for_line_with(" http://d.example/ render=yes");
}

#[test]
fn a_join_with_an_unknown_ability_is_refused() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for (join, text) in [
        ("JOIN crawlers can=fly", "the only word is render"),
        ("JOIN crawlers render=3", "needs can=render"),
        ("JOIN crawlers can=render render=10001", "render=10001"),
    ] {
        let answer = client.request(join);
        assert!(answer.starts_with("-ERR bad-argument ") && answer.contains(text), "{answer}");
    }
    let answer = client.request("JOIN crawlers credit=4 can=render");
    assert!(answer.starts_with("+OK crawlers credit=4 render=4 held=0 "), "{answer}");
}
