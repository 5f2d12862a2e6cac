//! The commands of the line protocol, sent without the client library.

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::process::Server;

#[test]
#[ignore = "needs foreign programs"]
fn netcat_runs_a_whole_session() {
    let server = Server::start_broker();
    let output = run_nc(
        server.address,
        "HELLO name=me echo=42\r\nPUB t hello world\nPUB t again\nPING\nSUB t from=first\nQUIT\n",
    );
    let [greeting, hello, rest @ ..] = &output[..] else { panic!("{output:#?}") };
    assert_eq!(greeting, "Connected.  (PID 1)");
    let words: Vec<_> = hello.split(' ').collect();
    assert_eq!(words[..2], ["+OK", "tidings"], "{hello}");
    for key in ["id=1", "clock=", "echo=42", "resume="] {
        assert!(words.iter().any(|word| word.starts_with(key)), "{key} in {hello}");
    }
    // Two confirmations, or one for both; then the responses in the order of the commands.
    let last_publish = rest.iter().rposition(|line| line.starts_with("+OK ")).unwrap();
    assert!(rest[..=last_publish].contains(&"+OK 2 2".to_owned()), "{output:#?}");
    let clock = rest.iter().position(|line| line.starts_with("PONG clock=")).unwrap();
    assert!(rest[clock..].iter().any(|line| line.starts_with("+OK")), "{output:#?}");
}

#[test]
fn every_verb_is_recognized() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let understood = [
        "PUB t payload",
        "SUB t",
        "UNSUB t",
        "JOIN crawlers credit=0",
        "GROUP ls",
        "JOB ls",
        "TOPIC ls",
        "PING",
        "STATS",
        "HELP",
    ];
    for command in understood {
        let response = client.request_lines(command);
        let last = response.last().unwrap();
        assert!(last.starts_with("+OK") || last.starts_with("PONG "), "{command}: {response:?}");
    }
    let id = "crawlers:1.1.1";
    for command in [format!("ACK {id}"), format!("NACK {id} after=1s"), format!("TOUCH {id}")] {
        let response = client.request(&command);
        assert!(response.starts_with("-ERR stale"), "{command}: {response}");
    }
    // LINK has no response: the next line is that of PING.
    client.send(format!("LINK {id} http://a.example/\n"));
    assert!(client.request("PING").starts_with("PONG clock="));
    let explained = client.request_lines("EXPLAIN http://a.example/");
    assert!(!explained[0].starts_with("-ERR unknown-command"), "{explained:?}");
    assert!(client.request("QUIT").starts_with("+OK"));
    client.expect_closed();
}

// PROTOCOL: S16
#[test]
fn a_token_is_accepted_when_access_control_is_off() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let response = client.request("HELLO token=secret");
    assert!(response.starts_with("+OK tidings "), "{response}");
}

// PROTOCOL: S14
#[test]
fn a_rejected_command_keeps_the_connection_open() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for command in [
        "NONSENSE",
        "pub t lower case",
        "PUB",
        "PUB bad/name x",
        "SUB t from=yesterday",
        "SUB t no-such-option=1",
        "JOIN crawlers credit=-1",
        "ACK nonsense",
        "JOB fly away",
        "GROUP set crawlers delay=soon",
    ] {
        let response = client.request(command);
        let code = response.strip_prefix("-ERR ").and_then(|rest| rest.split(' ').next());
        let code = code.unwrap_or_else(|| panic!("{command}: {response}"));
        let is_word = !code.is_empty() && code.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(is_word, "{command}: {response}");
        assert!(client.request("PING").starts_with("PONG "), "after {command}");
    }
}

#[test]
fn sixteen_unknown_commands_in_a_row_close_the_connection() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for _ in 0..15 {
        assert!(client.request("NONSENSE").starts_with("-ERR unknown-command"));
    }
    assert!(client.request("PING").starts_with("PONG "));
    client.send("NONSENSE\n".repeat(20));
    let responses = client.read_to_end();
    assert!((15..=17).contains(&responses.len()), "{responses:?}");
}

#[test]
fn http_headers_close_a_client_connection() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.send("Host: localhost:12345\r\nPUB t unheard\r\n");
    let responses = client.read_to_end();
    assert!(responses.iter().all(|response| response.starts_with("-ERR ")), "{responses:?}");
    let mut other = LineConnection::connect_client(server.address);
    assert_eq!(other.request("PUB t first"), "+OK 1 1");
}

// PROTOCOL: D4
#[test]
fn a_subscription_starts_at_the_requested_position() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for n in 1..=5 {
        assert_eq!(client.request(&format!("PUB t event {n}")), format!("+OK {n} {n}"));
    }
    let from = [("first", 1), ("last", 5), ("3", 3), ("-2", 4), ("2020-01-01T00:00:00Z", 1)];
    for (from, first) in from {
        let mut subscriber = LineConnection::connect_client(server.address);
        let response = subscriber.request(&format!("SUB t from={from}"));
        assert!(response.starts_with("+OK"), "{from}: {response}");
        for n in first..=5 {
            assert_eq!(subscriber.read_line(), format!("MSG t {n} event {n}"), "from={from}");
        }
    }
    let mut late = LineConnection::connect_client(server.address);
    assert!(late.request("SUB t").starts_with("+OK"));
    assert_eq!(client.request("PUB t event 6"), "+OK 6 6");
    assert_eq!(late.read_line(), "MSG t 6 event 6");
    assert!(late.request("UNSUB t").starts_with("+OK"));
    assert_eq!(client.request("PUB t event 7"), "+OK 7 7");
    assert!(late.request("PING").starts_with("PONG "));
}

#[test]
fn confirmations_count_the_publishes_of_the_connection() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let mut other = LineConnection::connect_client(server.address);
    assert_eq!(other.request("PUB t from another connection"), "+OK 1 1");
    client.send("PUB t x\n".repeat(1000));
    let mut confirmed = 0;
    while confirmed < 1000 {
        let response = client.read_line();
        let numbers: Vec<u64> = response.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
        assert_eq!(numbers[0], numbers[1] + 1, "{response}");
        assert!(numbers[1] > confirmed, "{response} after {confirmed}");
        confirmed = numbers[1];
    }
    assert_eq!(confirmed, 1000);
}

#[test]
fn a_rejected_publish_is_numbered_and_counted() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.send("PUB t one\nPUB bad/topic x\nPUB t \u{1}\nPUB t four\nPING\n");
    let lines: Vec<_> =
        std::iter::from_fn(|| Some(client.read_line()).filter(|line| !line.starts_with("PONG ")))
            .collect();
    assert_eq!(lines.first().unwrap(), "+OK 1 1", "{lines:?}");
    assert_eq!(lines.last().unwrap(), "+OK 2 4", "{lines:?}");
    let rejected: Vec<_> = lines.iter().filter(|line| line.starts_with("-ERR ")).collect();
    assert_eq!(rejected.len(), 2, "{lines:?}");
    assert!(rejected[0].contains(" n=2 ") && rejected[1].contains(" n=3 "), "{lines:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn the_last_command_needs_no_line_ending() {
    let server = Server::start_broker();
    let output = run_nc(server.address, "PUB t as printf sends it");
    assert!(output.contains(&"+OK 1 1".to_owned()), "{output:?}");
    assert_ne!(output.last().unwrap(), "Connected.  (PID 1)");
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("SUB t from=first").starts_with("+OK"));
    assert_eq!(client.read_line(), "MSG t 1 as printf sends it");
}

// PROTOCOL: L5
#[test]
fn ctrl_d_closes_a_client_connection() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.send(b"PING\n\x04");
    let lines = client.read_to_end();
    assert!(lines[0].starts_with("PONG "), "{lines:?}");
    assert!(lines.len() == 1 || lines[1..] == [FAREWELL], "{lines:?}");
}

#[test]
fn a_hand_written_crawler_completes_a_job() {
    let server = Server::start_broker();
    let mut watcher = LineConnection::connect_client(server.address);
    assert!(watcher.request("SUB job-done from=first").starts_with("+OK"));
    let mut operator = LineConnection::connect_client(server.address);
    for command in [
        "GROUP create crawlers delay=0",
        "JOB open j scope=host depth=1",
        "PUB new-url http://a.example/ job=j",
        "JOB close j",
    ] {
        let response = operator.request(command);
        assert!(response.starts_with("+OK"), "{command}: {response}");
    }

    let mut worker = LineConnection::connect_client(server.address);
    assert!(worker.request("JOIN crawlers credit=1").starts_with("+OK"));
    let first = Task::read(&mut worker);
    assert_eq!(first.url, "http://a.example/");
    let id = &first.id;
    worker.send(format!("LINK {id} http://a.example/child\n"));
    worker.send(format!("LINK {id} http://a.example/child#again\n"));
    worker.send(format!("LINK {id} http://b.example/out-of-scope\n"));
    let response = worker.request(&format!("ACK {id}"));
    assert!(response.starts_with(&format!("+OK {id} new=1 ")), "{response}");

    let second = Task::read(&mut worker);
    assert_eq!(second.url, "http://a.example/child");
    assert!(worker.request(&format!("ACK {id}")).starts_with("-ERR stale"));
    let id = &second.id;
    worker.send(format!("LINK {id} http://a.example/too/deep\n"));
    let response = worker.request(&format!("ACK {id}"));
    assert!(response.starts_with(&format!("+OK {id} new=0 ")), "{response}");

    let done = watcher.read_line();
    assert!(done.starts_with("MSG job-done 1 j "), "{done}");
    for count in ["completed=2", "failed=0", "result=done"] {
        assert!(done.split(' ').any(|word| word == count), "{count} in {done}");
    }
    // Published once: the next event of the topic is this one.
    assert_eq!(operator.request("PUB job-done no more"), "+OK 2 2");
    assert_eq!(watcher.read_line(), "MSG job-done 2 no more");
}

// PROTOCOL: C5, T9
#[test]
fn a_reconnecting_member_receives_its_task_again() {
    let server = Server::start_broker();
    let mut operator = LineConnection::connect_client(server.address);
    assert!(operator.request("PUB new-url http://a.example/").starts_with("+OK"));
    let identity = "0123456789abcdef0123456789abcdef";
    let hello = format!("HELLO echo=x resume={identity}");
    let mut before = LineConnection::connect_peer(server.address);
    assert!(before.request(&hello).starts_with("+OK"));
    assert!(before.request("JOIN crawlers credit=1").starts_with("+OK"));
    let task = Task::read(&mut before);

    let mut after = LineConnection::connect_peer(server.address);
    assert!(after.request(&hello).starts_with("+OK"));
    assert!(before.read_line().starts_with("-ERR replaced"));
    before.expect_closed();
    assert!(after.request("JOIN crawlers credit=1").starts_with("+OK"));
    assert_eq!(Task::read(&mut after).id, task.id);
    assert!(after.request(&format!("ACK {}", task.id)).starts_with("+OK"));
}

/// A `TASK <id> <clock> <lease> <url> ..` line.
struct Task {
    id: String,
    url: String,
}

impl Task {
    #[track_caller]
    fn read(worker: &mut LineConnection) -> Self {
        let line = worker.read_line();
        let words: Vec<_> = line.split(' ').collect();
        assert!(words[0] == "TASK" && words.len() >= 5, "{line}");
        Self { id: words[1].to_owned(), url: words[4].to_owned() }
    }
}
