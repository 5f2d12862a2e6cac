//! Mistakes and questions of new users, and the messages that answer them.

use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at};

#[test]
fn stored_events_can_be_read_without_waiting_for_more() {
    let server = Server::start_broker();
    assert!(
        run_at(&server, &["sub", "t", "--from", "first", "--no-follow"])
            .expect_code(0)
            .stdout()
            .is_empty()
    );
    let mut publisher = LineConnection::connect_client(server.address);
    for event in ["one", "two"] {
        assert!(publisher.request(&format!("PUB t {event}")).starts_with("+OK"));
    }
    for arguments in [&["--from", "first", "--count", "5"][..], &["--from", "-2"], &["--from", "1"]]
    {
        let arguments = [&["sub", "t", "--no-follow"], arguments].concat();
        assert_eq!(run_at(&server, &arguments).expect_code(0).stdout(), ["one", "two"]);
    }
    let last = run_at(&server, &["sub", "t", "--from", "last", "--no-follow"]);
    assert_eq!(last.expect_code(0).stdout(), ["two"]);
    let beyond = run_at(&server, &["sub", "t", "--from", "3", "--no-follow"]);
    assert!(beyond.expect_code(0).stdout().is_empty());
    // A durable cursor stops there as well, and continues from there.
    for expected in [&["one", "two"][..], &[]] {
        let arguments = ["sub", "t", "--from", "first", "--as", "reader", "--no-follow"];
        assert_eq!(run_at(&server, &arguments).expect_code(0).stdout(), expected);
    }
    run_at(&server, &["sub", "t", "--no-follow"]).expect_code(2);
}

#[test]
fn reading_creates_no_group() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("PUB new-url http://a.example/").starts_with("+OK"));
    let empty = "+OK crawlers matched=0 listed=0";
    for (command, answer) in [
        ("GROUP show crawlers", "+OK crawlers paused=no members=0 waiting=0 processing=0 "),
        ("GROUP tasks crawlers state=dead", empty),
        ("GROUP keys crawlers", empty),
        ("GROUP schedules crawlers", empty),
        ("GROUP rules crawlers", empty),
        ("GROUP members crawlers", empty),
        ("GROUP watch crawlers", "-ERR unknown no group crawlers"),
        ("GROUP purge crawlers dry=yes", "+OK crawlers matched=0"),
        ("GROUP purge crawlers", "+OK crawlers paused=no "),
        ("GROUP resume crawlers", "+OK crawlers paused=no "),
        ("GROUP retry crawlers", "+OK crawlers retried=0"),
        ("GROUP drop crawlers", "+OK crawlers dropped=0"),
        ("GROUP unrule crawlers key=a.example", "-ERR unknown "),
        ("GROUP drain crawlers member=a", "-ERR unknown "),
        ("GROUP delete crawlers", "-ERR conflict group crawlers cannot be deleted"),
        ("JOB ls", "+OK crawlers jobs=0 listed=0"),
        ("JOB show docs", "-ERR unknown no job docs in group crawlers"),
        ("JOB wait docs", "-ERR unknown no job docs in group crawlers"),
        ("JOB watch docs", "-ERR unknown no job docs in group crawlers"),
        ("JOB add docs url=http://a.example/", "-ERR unknown no job docs in group crawlers"),
        ("JOB cancel docs", "-ERR unknown no job docs in group crawlers"),
        ("EXPLAIN a.example", "-ERR unknown nothing waits for a.example in group crawlers"),
        ("GROUP ls", "+OK groups=0"),
    ] {
        let response = client.request_lines(command).pop().unwrap();
        assert!(response.starts_with(answer), "{command}: {response}");
    }
    for arguments in [&["dead", "ls"][..], &["job", "ls"], &["host", "ls"], &["group", "keys"]] {
        run_at(&server, arguments).expect_code(0);
    }
    assert_eq!(client.request("GROUP ls"), "+OK groups=0");
    // What must take effect creates it.
    assert!(client.request("GROUP pause crawlers").contains(" paused=yes "));
    assert_eq!(client.request_lines("GROUP ls"), ["+ crawlers", "+OK groups=1"]);
}

#[test]
fn sub_names_a_topic_or_group_that_it_creates() {
    let server = Server::start_broker();
    for (topic, group) in [("a", None), ("b", Some("g"))] {
        let of_topic = ["sub", topic, "--from", "first", "--no-follow"];
        let of_group = ["sub", topic, "--group", "g", "--max-age", "1ms"];
        let arguments = if group.is_some() { &of_group[..] } else { &of_topic };
        let first = run_at(&server, arguments).expect_code(0).stderr();
        let again = run_at(&server, arguments).expect_code(0).stderr();
        let expected: Vec<_> = [Some(format!("topic {topic} is new"))]
            .into_iter()
            .chain([group.map(|group| format!("group {group} is new"))])
            .flatten()
            .collect();
        assert_eq!(first.lines().collect::<Vec<_>>(), expected);
        assert_eq!(again, "");
    }
    let spool = server.folder.path().join("spool").display().to_string();
    let signal = ["sub", "c", "--signal", "USR1", "--pid-file", "p", "--spool", &spool];
    let notes = run_at(&server, &[&signal[..], &["--max-age", "1ms"]].concat()).stderr();
    assert!(notes.contains("topic c is new"), "{notes}");
}

#[test]
fn hints_are_shell_commands() {
    let server = Server::start_broker();
    let stderr = run_at(&server, &["group", "show", "nix"]).expect_code(1).stderr();
    assert!(stderr.contains("create it with: tidings group create nix"), "{stderr}");
    assert!(!stderr.contains("GROUP"), "{stderr}");
}

#[test]
fn retried_dead_letters_are_not_counted_as_dead() {
    let server = Server::start_broker();
    run_at(&server, &["group", "set", "crawlers", "delay=0", "max-attempts=1"]).expect_code(0);
    let mut worker = LineConnection::connect_client(server.address);
    assert!(worker.request("PUB new-url http://a.example/").starts_with("+OK"));
    assert!(worker.request("JOIN crawlers credit=1").starts_with("+OK"));
    let task = worker.read_line();
    let id = task.split(' ').nth(1).unwrap();
    assert!(worker.request(&format!("NACK {id}")).starts_with("+OK"));
    let dead = || {
        let listed = run_at(&server, &["group", "ls"]).expect_code(0).stdout();
        listed[1].split_whitespace().nth(6).unwrap().to_owned()
    };
    assert_eq!(dead(), "1");
    run_at(&server, &["dead", "retry", "--all"]).expect_code(0);
    assert_eq!(dead(), "0");
}
