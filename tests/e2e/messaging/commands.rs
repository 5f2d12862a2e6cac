//! Sessions of the line protocol, without the client library. `broker/src/net/connection/tests` has the rules
//! for single commands.

use crate::support::line_connection::LineConnection;
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
        subscriber.request_ok(&format!("SUB t from={from}"));
        for n in first..=5 {
            assert_eq!(subscriber.read_line(), format!("MSG t {n} event {n}"), "from={from}");
        }
    }
    let mut late = LineConnection::connect_client(server.address);
    late.request_ok("SUB t");
    assert_eq!(client.request("PUB t event 6"), "+OK 6 6");
    assert_eq!(late.read_line(), "MSG t 6 event 6");
    late.request_ok("UNSUB t");
    assert_eq!(client.request("PUB t event 7"), "+OK 7 7");
    assert!(late.request("PING").starts_with("PONG "));
}

#[test]
fn a_hand_written_crawler_completes_a_job() {
    let server = Server::start_broker();
    let mut watcher = LineConnection::connect_client(server.address);
    watcher.request_ok("SUB job-done from=first");
    let mut operator = LineConnection::connect_client(server.address);
    for command in [
        "GROUP create crawlers delay=0",
        "JOB open j scope=host depth=1",
        "PUB new-url http://a.example/ job=j",
        "JOB close j",
    ] {
        operator.request_ok(command);
    }

    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN crawlers credit=1");
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
