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
