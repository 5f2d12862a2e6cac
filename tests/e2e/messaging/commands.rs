//! The commands, as somebody without our client sends them.

use crate::support::nc::nc_all;
use crate::support::process::Server;
use crate::support::talk::{FAREWELL, Talk};

#[test]
fn a_whole_session_with_netcat() {
    let server = Server::broker();
    let output = nc_all(
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
    // Two confirmations, or both folded into one; then the answers in the order of the commands.
    let last_publish = rest.iter().rposition(|line| line.starts_with("+OK ")).unwrap();
    assert!(rest[..=last_publish].contains(&"+OK 2 2".to_owned()), "{output:#?}");
    let clock = rest.iter().position(|line| line.starts_with("PONG clock=")).unwrap();
    assert!(rest[clock..].iter().any(|line| line.starts_with("+OK")), "{output:#?}");
}

#[test]
fn every_verb_is_known_from_the_first_version() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
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
        let answer = client.ask_lines(command);
        let last = answer.last().unwrap();
        assert!(last.starts_with("+OK") || last.starts_with("PONG "), "{command}: {answer:?}");
    }
    let id = "crawlers:1.1.1";
    for command in [format!("ACK {id}"), format!("NACK {id} after=1s"), format!("TOUCH {id}")] {
        let answer = client.ask(&command);
        assert!(answer.starts_with("-ERR stale"), "{command}: {answer}");
    }
    // LINK has no answer: the next line is that of PING.
    client.send(format!("LINK {id} http://a.example/\n"));
    assert!(client.ask("PING").starts_with("PONG clock="));
    let explained = client.ask_lines("EXPLAIN http://a.example/");
    assert!(!explained[0].starts_with("-ERR unknown-command"), "{explained:?}");
    assert!(client.ask("QUIT").starts_with("+OK"));
    client.expect_closed();
}

// PROTOCOL: S16
#[test]
fn a_token_is_as_good_as_none_where_nobody_needs_one() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    let answer = client.ask("HELLO token=secret");
    assert!(answer.starts_with("+OK tidings "), "{answer}");
}

// PROTOCOL: S14
#[test]
fn a_refused_command_leaves_the_connection_open() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
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
        let answer = client.ask(command);
        let code = answer.strip_prefix("-ERR ").and_then(|rest| rest.split(' ').next());
        let code = code.unwrap_or_else(|| panic!("{command}: {answer}"));
        let is_word = !code.is_empty() && code.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(is_word, "{command}: {answer}");
        assert!(client.ask("PING").starts_with("PONG "), "after {command}");
    }
}

#[test]
fn sixteen_lines_in_a_row_that_are_no_command_close() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for _ in 0..15 {
        assert!(client.ask("NONSENSE").starts_with("-ERR unknown-command"));
    }
    assert!(client.ask("PING").starts_with("PONG "));
    client.send("NONSENSE\n".repeat(20));
    let answers = client.lines_to_end();
    assert!((15..=17).contains(&answers.len()), "{answers:?}");
}

#[test]
fn a_client_that_sends_headers_is_closed() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.send("Host: localhost:12345\r\nPUB t unheard\r\n");
    let answers = client.lines_to_end();
    assert!(answers.iter().all(|answer| answer.starts_with("-ERR ")), "{answers:?}");
    let mut other = Talk::client(server.address);
    assert_eq!(other.ask("PUB t first"), "+OK 1 1");
}

// PROTOCOL: D4
#[test]
fn a_subscription_begins_where_it_is_told() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for n in 1..=5 {
        assert_eq!(client.ask(&format!("PUB t event {n}")), format!("+OK {n} {n}"));
    }
    let from = [("first", 1), ("last", 5), ("3", 3), ("-2", 4), ("2020-01-01T00:00:00Z", 1)];
    for (from, first) in from {
        let mut subscriber = Talk::client(server.address);
        let answer = subscriber.ask(&format!("SUB t from={from}"));
        assert!(answer.starts_with("+OK"), "{from}: {answer}");
        for n in first..=5 {
            assert_eq!(subscriber.line(), format!("MSG t {n} event {n}"), "from={from}");
        }
    }
    let mut late = Talk::client(server.address);
    assert!(late.ask("SUB t").starts_with("+OK"));
    assert_eq!(client.ask("PUB t event 6"), "+OK 6 6");
    assert_eq!(late.line(), "MSG t 6 event 6");
    assert!(late.ask("UNSUB t").starts_with("+OK"));
    assert_eq!(client.ask("PUB t event 7"), "+OK 7 7");
    assert!(late.ask("PING").starts_with("PONG "));
}

#[test]
fn confirmations_count_the_publishes_of_the_connection() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    let mut other = Talk::client(server.address);
    assert_eq!(other.ask("PUB t from another connection"), "+OK 1 1");
    client.send("PUB t x\n".repeat(1000));
    let mut confirmed = 0;
    while confirmed < 1000 {
        let answer = client.line();
        let numbers: Vec<u64> = answer.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
        assert_eq!(numbers[0], numbers[1] + 1, "{answer}");
        assert!(numbers[1] > confirmed, "{answer} after {confirmed}");
        confirmed = numbers[1];
    }
    assert_eq!(confirmed, 1000);
}

#[test]
fn a_refused_publish_is_named_and_counted() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.send("PUB t one\nPUB bad/topic x\nPUB t \u{1}\nPUB t four\nPING\n");
    let lines: Vec<_> =
        std::iter::from_fn(|| Some(client.line()).filter(|line| !line.starts_with("PONG ")))
            .collect();
    assert_eq!(lines.first().unwrap(), "+OK 1 1", "{lines:?}");
    assert_eq!(lines.last().unwrap(), "+OK 2 4", "{lines:?}");
    let refused: Vec<_> = lines.iter().filter(|line| line.starts_with("-ERR ")).collect();
    assert_eq!(refused.len(), 2, "{lines:?}");
    assert!(refused[0].contains(" n=2 ") && refused[1].contains(" n=3 "), "{lines:?}");
}

#[test]
fn the_last_command_may_lack_its_line_end() {
    let server = Server::broker();
    let output = nc_all(server.address, "PUB t as printf sends it");
    assert!(output.contains(&"+OK 1 1".to_owned()), "{output:?}");
    assert_ne!(output.last().unwrap(), "Connected.  (PID 1)");
    let mut client = Talk::client(server.address);
    assert!(client.ask("SUB t from=first").starts_with("+OK"));
    assert_eq!(client.line(), "MSG t 1 as printf sends it");
}

// PROTOCOL: L5
#[test]
fn ctrl_d_ends_a_client_too() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.send(b"PING\n\x04");
    let lines = client.lines_to_end();
    assert!(lines[0].starts_with("PONG "), "{lines:?}");
    assert!(lines.len() == 1 || lines[1..] == [FAREWELL], "{lines:?}");
}

#[test]
fn a_crawler_by_hand_works_through_a_job() {
    let server = Server::broker();
    let mut watcher = Talk::client(server.address);
    assert!(watcher.ask("SUB job-done from=first").starts_with("+OK"));
    let mut boss = Talk::client(server.address);
    for command in [
        "GROUP create crawlers delay=0",
        "JOB open j scope=host depth=1",
        "PUB new-url http://a.example/ job=j",
        "JOB close j",
    ] {
        let answer = boss.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }

    let mut worker = Talk::client(server.address);
    assert!(worker.ask("JOIN crawlers credit=1").starts_with("+OK"));
    let first = Task::read(&mut worker);
    assert_eq!(first.url, "http://a.example/");
    let id = &first.id;
    worker.send(format!("LINK {id} http://a.example/child\n"));
    worker.send(format!("LINK {id} http://a.example/child#again\n"));
    worker.send(format!("LINK {id} http://b.example/out-of-scope\n"));
    let answer = worker.ask(&format!("ACK {id}"));
    assert!(answer.starts_with(&format!("+OK {id} new=1 ")), "{answer}");

    let second = Task::read(&mut worker);
    assert_eq!(second.url, "http://a.example/child");
    assert!(worker.ask(&format!("ACK {id}")).starts_with("-ERR stale"));
    let id = &second.id;
    worker.send(format!("LINK {id} http://a.example/too/deep\n"));
    let answer = worker.ask(&format!("ACK {id}"));
    assert!(answer.starts_with(&format!("+OK {id} new=0 ")), "{answer}");

    let done = watcher.line();
    assert!(done.starts_with("MSG job-done 1 j "), "{done}");
    for count in ["completed=2", "failed=0", "result=done"] {
        assert!(done.split(' ').any(|word| word == count), "{count} in {done}");
    }
    // Once: the next event of the topic is this one.
    assert_eq!(boss.ask("PUB job-done no more"), "+OK 2 2");
    assert_eq!(watcher.line(), "MSG job-done 2 no more");
}

// PROTOCOL: C5, T9
#[test]
fn a_member_that_comes_back_gets_its_task_again() {
    let server = Server::broker();
    let mut boss = Talk::client(server.address);
    assert!(boss.ask("PUB new-url http://a.example/").starts_with("+OK"));
    let identity = "0123456789abcdef0123456789abcdef";
    let hello = format!("HELLO echo=x resume={identity}");
    let mut before = Talk::peer(server.address);
    assert!(before.ask(&hello).starts_with("+OK"));
    assert!(before.ask("JOIN crawlers credit=1").starts_with("+OK"));
    let task = Task::read(&mut before);

    let mut after = Talk::peer(server.address);
    assert!(after.ask(&hello).starts_with("+OK"));
    assert!(before.line().starts_with("-ERR replaced"));
    before.expect_closed();
    assert!(after.ask("JOIN crawlers credit=1").starts_with("+OK"));
    assert_eq!(Task::read(&mut after).id, task.id);
    assert!(after.ask(&format!("ACK {}", task.id)).starts_with("+OK"));
}

/// A `TASK <id> <clock> <lease> <url> ..` line.
struct Task {
    id: String,
    url: String,
}

impl Task {
    #[track_caller]
    fn read(worker: &mut Talk) -> Self {
        let line = worker.line();
        let words: Vec<_> = line.split(' ').collect();
        assert!(words[0] == "TASK" && words.len() >= 5, "{line}");
        Self { id: words[1].to_owned(), url: words[4].to_owned() }
    }
}
