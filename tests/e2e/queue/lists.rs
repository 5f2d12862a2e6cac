//! Lists in parts: over the line protocol, over HTTP, and as an export of the command line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::access::tokens::{broker, logged_in};
use crate::queue::groups::wait_for_waiting_entries;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::run_nc;
use crate::support::process::{
    Process, Server, run_at, run_json_at, start_at, started_by, tidings_command,
};
use crate::support::wait::wait_until;

/// A broker with this many waiting URLs, each of its own host.
#[track_caller]
fn server_with_urls(count: u64, attributes: &str) -> Server {
    let server = Server::start_broker();
    let urls = (0..count).fold(String::new(), |mut urls, n| {
        writeln!(urls, "http://h{n}.example/{}/{n}{attributes}", n % 10).unwrap();
        urls
    });
    let mut publisher = start_at(&server, &["pub", "new-url", "--quiet"]);
    publisher.write(urls);
    publisher.close_stdin();
    publisher.finish().expect_code(0);
    wait_for_waiting_entries(&server, count);
    server
}

/// The lines of a walk with `nc`, a connection for each part. `between` is called after each part.
#[track_caller]
fn walk(server: &Server, command: &str, limit: u32, mut between: impl FnMut()) -> Vec<String> {
    let (mut listed, mut after) = (Vec::new(), Some("0".to_owned()));
    while let Some(from) = after {
        let command = format!("{command} limit={limit} after={from}\nQUIT\n");
        let answer = run_nc(server.address, command);
        listed.extend(answer.iter().filter_map(|line| line.strip_prefix("+ ")).map(str::to_owned));
        let end = answer.iter().find(|line| line.contains(" listed=")).unwrap();
        assert!(!end.contains("matched="), "{end}");
        after = end.split(" next=").nth(1).map(str::to_owned);
        between();
    }
    listed
}

// PROTOCOL: G11, G12
#[test]
#[ignore = "needs foreign programs"]
fn nc_walks_over_each_list() {
    let server = server_with_urls(250, " every=1h");
    let mut client = LineConnection::connect_client(server.address);
    for n in 0..120 {
        client.request_ok(&format!("JOB open j{n}"));
    }
    let mut workers: Vec<_> =
        (0..3).map(|_| LineConnection::connect_client(server.address)).collect();
    for worker in &mut workers {
        worker.request_ok("JOIN crawlers credit=0");
    }
    for (command, count) in [
        ("GROUP tasks crawlers", 250),
        ("GROUP keys crawlers", 250),
        ("GROUP schedules crawlers", 250),
        ("JOB ls", 120),
        ("GROUP members crawlers", 3),
    ] {
        let listed = walk(&server, command, 99, || ());
        let different: BTreeSet<_> = listed.iter().map(|line| line.split(' ').next()).collect();
        assert_eq!((listed.len(), different.len()), (count, count), "{command}: {listed:?}");
    }
    for (command, count) in
        [("GROUP tasks crawlers match=/7/", 25), ("GROUP schedules crawlers match=http://h7", 11)]
    {
        assert_eq!(walk(&server, command, 99, || ()).len(), count);
    }
}

// PROTOCOL: G11
#[test]
#[ignore = "needs foreign programs"]
fn http_lists_have_parts() {
    let server = server_with_urls(250, " every=1h");
    let http = HttpClient::new(&server);
    for list in ["tasks", "keys", "schedules"] {
        let (mut listed, mut path) = (0, format!("/groups/crawlers/{list}?limit=100&after=0"));
        let mut parts = 0;
        loop {
            let answer = http.get(&path).json();
            listed += answer[list].as_array().unwrap().len();
            parts += 1;
            assert_eq!(answer["matched"], Value::Null);
            let Some(next) = answer["next"].as_u64() else { break };
            path = format!("/groups/crawlers/{list}?limit=100&after={next}");
        }
        assert_eq!((listed, parts), (250, 3), "{list}");
    }
    let some = http.get("/groups/crawlers/tasks?match=/3/&limit=0").json();
    assert_eq!(some["matched"], 25);
    assert_eq!(http.get("/jobs?state=done").json()["matched"], 0);
    assert_eq!(http.get("/groups/crawlers/tasks?match=x").status, 400);
}

#[test]
fn all_entries_are_exported_as_json_lines() {
    let server = server_with_urls(20_000, "");
    let export = ["group", "tasks", "--all", "--json", "--broker", &server.address_text()];
    let export = tidings_command(server.folder.path(), export);
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", script]);
        Process::start(&mut started_by(shell, &export)).finish().expect_code(0).stdout()
    };
    assert_eq!(shell("set -o pipefail; \"$0\" \"$@\" | wc -l"), ["20000"]);
    // A reader that needs no more is no error.
    assert_eq!(shell("\"$0\" \"$@\" | head -3; exit ${PIPESTATUS[0]}").len(), 3);
    let of_path = run_json_at(&server, &["group", "tasks", "--all", "--match", "*/7777$"]);
    assert_eq!(of_path.len(), 1);
    assert_eq!(of_path[0]["url"], "http://h7777.example/7/7777");
    assert_eq!(run_json_at(&server, &["group", "keys", "--all"]).len(), 20_000);
    let table = run_at(&server, &["group", "tasks", "--limit", "2"]).expect_code(0);
    assert_eq!(table.stdout().len(), 3);
    assert!(table.stderr().contains("2 of 20,000 listed; "), "{}", table.stderr());

    // The pipe is full long before the end, so the signal comes in the middle.
    let mut export = tidings_command(server.folder.path(), export.get_args());
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(export.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let interrupt = format!("kill -INT {}", export.id());
    assert!(Command::new("sh").args(["-c", &interrupt]).status().unwrap().success());
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest.len() < 10_000, "{} lines after the signal", rest.len());
    assert!(rest.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    assert_eq!(export.wait().unwrap().code(), Some(130));
}

/// The address of a worker is shown to those who may read the state of the whole broker.
// PROTOCOL: G8
#[test]
#[ignore = "needs foreign programs"]
fn addresses_of_members_are_for_monitors() {
    let crawler: &[&str] = &["group:crawlers"];
    let principals = [("op", &["all"][..]), ("watcher", &["monitor"][..]), ("crawler", crawler)];
    let (server, [all, watcher, crawler]) = broker(principals, &[]);
    let mut worker = logged_in(&server, &crawler);
    worker.request_ok("JOIN crawlers credit=1");
    for (token, expected) in [(&all, true), (&watcher, true), (&crawler, false)] {
        let lines = logged_in(&server, token).request_lines("GROUP members crawlers");
        assert_eq!(lines[0].contains(" address=127.0.0.1:"), expected, "{lines:?}");
        assert!(lines[0].contains(" joined-ms="), "{lines:?}");
        let header = format!("Authorization: Bearer {token}");
        let http = HttpClient::new(&server);
        let listed = http.request("GET", "/groups/crawlers/members", &["--header", &header]);
        let address = &listed.json()["members"][0]["address"];
        assert_eq!(address.is_string(), expected, "{address}");
    }
}

// PROTOCOL: G8
#[test]
#[ignore = "needs foreign programs"]
fn members_are_listed_with_their_rate_and_when_they_were_heard() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let connect = || LineConnection::connect_client(server.address);
    let (mut worker, mut publisher) = (connect(), connect());
    worker.request_ok("JOIN crawlers credit=1");
    let mut pages = 0;
    let [listed, over_http] = wait_until("a rate", || {
        pages += 1;
        assert!(publisher.request(&format!("PUB new-url http://h{pages}.example/")).contains("OK"));
        let task = worker.read_line();
        let id = task.split(' ').nth(1).unwrap();
        worker.request_ok(&format!("ACK {id}"));
        let over_http = http.get("/groups/crawlers/members").json()["members"][0].take();
        let members = [run_json_at(&server, &["group", "members"]).remove(0), over_http];
        members.iter().all(|member| member["rate"].as_f64() > Some(0.0)).then_some(members)
    });
    for member in [listed, over_http] {
        assert_eq!(member["done"], pages, "{member}");
        // The first pages were done within a second, or later ones over more time.
        assert!(member["rate"].as_f64() <= Some(f64::from(pages)), "{member}");
        assert!(member["heard-ms"].is_u64(), "{member}");
    }
    let table = run_at(&server, &["group", "members"]).expect_code(0).stdout();
    let cells: Vec<Vec<_>> = table.iter().map(|line| line.split_whitespace().collect()).collect();
    let at = cells[0].iter().position(|heading| *heading == "RATE").unwrap();
    assert!(cells[1][at].parse::<f64>().is_ok(), "{table:?}");
    assert_eq!(cells[0][at + 1], "HEARD");
    assert!(
        cells[1][at + 1].parse::<u32>().is_ok() && cells[1].len() > cells[0].len(),
        "{table:?}"
    );
}
