//! `tidings pub` and `tidings sub`: pipes, confirmations, lost brokers and durable cursors.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::ports::free_address;
use crate::support::process::{Process, Server, run_at, run_tidings, start_at, tidings_command};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};
use crate::support::wait::wait_until;

#[test]
fn arguments_are_published_as_events() {
    let server = Server::start_broker();
    let published = run_at(&server, &["pub", "t", "one", "two words"]);
    assert!(published.expect_code(0).stderr().contains("2 confirmed"));
    let output = run_at(&server, &["sub", "t", "--from", "first", "--count", "2"]);
    assert_eq!(output.expect_code(0).stdout(), ["one", "two words"]);
}

#[test]
fn lines_of_standard_input_arrive_in_order_and_are_counted() {
    let server = Server::start_broker();
    let subscriber = start_at(&server, &["sub", "t", "--from", "first", "--count", "20000"]);
    let mut publisher = start_at(&server, &["pub", "t"]);
    let lines: Vec<_> = (0..20_000).map(|n| format!("line {n} of many")).collect();
    publisher.write(lines.join("\n"));
    publisher.finish().expect_code(0).expect_stderr("20,000 confirmed");
    assert!(subscriber.finish().expect_code(0).stdout() == lines, "the received lines differ");
}

#[test]
fn json_output_has_seq_payload_and_attributes() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB t text with \"quotes\"");
    client.request("PUB t http://a.example/ job=j colour=blue");
    let sub = [
        "sub",
        "t",
        "--json",
        "--from",
        "first",
        "--count",
        "2",
        "--broker",
        &server.address_text(),
    ];
    let lines = run_tidings(server.folder.path(), &sub).expect_code(0).stdout();
    let events: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["seq"], 1);
    assert_eq!(events[0]["topic"], "t");
    assert_eq!(events[0]["payload"], "text with \"quotes\"");
    assert_eq!(events[1]["payload"], "http://a.example/ job=j colour=blue");
    assert_eq!(events[1]["attributes"]["colour"], "blue");
}

#[test]
fn a_closed_pipe_ends_sub_without_an_error() {
    let server = Server::start_broker();
    let binary = env!("CARGO_BIN_EXE_tidings");
    let mut client = LineConnection::connect_client(server.address);
    for n in 1..=1000 {
        client.request(&format!("PUB t {n}"));
    }
    let line = format!(
        "'{binary}' sub t --from first --broker {} 2>&1 | head -n 1; echo ${{PIPESTATUS[0]}}",
        server.address_text()
    );
    let shell = Process::start(std::process::Command::new("bash").args(["-c", &line]));
    // `head` ends after its first line; `sub` notices at its next write.
    assert_eq!(shell.wait_for_stdout_lines(1)[0], "1");
    client.request("PUB t one more, so that sub writes again");
    assert_eq!(shell.finish().expect_code(0).stdout(), ["1", "0"]);
}

#[test]
fn rejected_lines_are_reported_and_the_others_are_published() {
    let server = Server::start_broker();
    let mut publisher = start_at(&server, &["pub", "t"]);
    publisher.write(b"good\nbad \x01 control\n\xff not UTF-8\n");
    publisher.write(["x".repeat(100_000).as_bytes(), b"\nlast\n"].concat());
    let output = publisher.finish().expect_code(1);
    let stderr = output.stderr();
    for part in ["line 2", "line 3", "line 4", "2 confirmed", "3 rejected"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("SUB t from=first");
    assert_eq!(client.read_line(), "MSG t 1 good");
    assert_eq!(client.read_line(), "MSG t 2 last");
}

#[test]
fn a_killed_broker_fails_pub_with_the_confirmed_count() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_client(server.address);
    listener.request_ok("SUB t");
    let mut publisher = start_at(&server, &["pub", "t", "--retry", "0"]);
    for n in 1..=100 {
        publisher.write(format!("line {n}\n"));
        assert_eq!(listener.read_line(), format!("MSG t {n} line {n}"));
    }
    server.process.signal_and_finish("KILL");
    publisher.write("never to arrive\n".repeat(100));
    let output = publisher.finish().expect_code(1);
    let confirmed = confirmed_count(&output.stderr());
    // The last confirmation may have been lost with the broker; earlier confirmations were read
    // since.
    assert!((1..=100).contains(&confirmed), "{}", output.stderr());
}

/// The number before the word `confirmed`.
#[track_caller]
fn confirmed_count(text: &str) -> u64 {
    let words: Vec<_> = text.split([' ', ';', ',']).collect();
    let pairs = words.windows(2).filter(|pair| pair[1] == "confirmed");
    let number = pairs.filter_map(|pair| pair[0].parse().ok()).next_back();
    number.unwrap_or_else(|| panic!("no count of confirmations in {text}"))
}

#[test]
fn confirmations_before_a_close_are_counted_exactly() {
    // A broker that confirms three of the publishes it receives, and closes.
    let (address, broker) = start_scripted_broker(|listener| {
        let mut client = ScriptedConnection::accept(&listener);
        for _ in 0..5 {
            assert!(client.next().unwrap().starts_with("PUB t "));
        }
        client.send("+OK 3 3");
    });
    let folder = TempDir::new().unwrap();
    let output = run_tidings(
        folder.path(),
        &["pub", "t", "1", "2", "3", "4", "5", "--retry", "0", "--broker", &address],
    );
    broker.join().unwrap();
    let output = output.expect_code(1);
    assert_eq!(confirmed_count(&output.stderr()), 3, "{}", output.stderr());
    assert!(output.stderr().contains("line 4"), "{}", output.stderr());
}

#[test]
fn an_unreachable_broker_is_a_one_line_error() {
    let free = free_address().to_string();
    let folder = TempDir::new().unwrap();
    for command in [&["pub", "t", "x"][..], &["sub", "t"]] {
        let failed =
            run_tidings(folder.path(), &[command, &["--broker", &free]].concat()).expect_code(1);
        let stderr = failed.stderr();
        assert!(stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(&free) && stderr.contains("--broker"), "{stderr}");
    }
}

#[test]
fn sub_without_follow_reports_a_lost_broker_and_where_to_resume() {
    let (address, broker) = start_scripted_broker(|listener| {
        let mut client = ScriptedConnection::accept(&listener);
        let state = "+OK t next=3 first=1 kept=2";
        for (command, answer) in
            [("TOPIC show t", state), ("SUB t from=first", "+OK"), ("TOPIC show t", state)]
        {
            assert_eq!(client.next().unwrap(), command);
            client.send(answer);
        }
        client.send("MSG t 1 one");
    });
    let folder = TempDir::new().unwrap();
    let arguments = ["sub", "t", "--from", "first", "--no-follow", "--broker", &address];
    let output = run_tidings(folder.path(), &arguments).expect_code(1);
    assert_eq!(output.stdout(), ["one"]);
    assert!(output.stderr().contains("--from 2"), "{}", output.stderr());
    broker.join().unwrap();
}

/// Waits until `TOPIC show t` contains this text for the cursor `me`.
#[track_caller]
fn wait_for_cursor(server: &Server, like: &str) {
    let mut client = LineConnection::connect_client(server.address);
    wait_until("the cursor to advance", || {
        let shown = client.request_lines("TOPIC show t");
        let me = shown.iter().find(|line| line.starts_with("+ cursor me "))?;
        me.contains(like).then_some(())
    });
}

#[test]
fn a_killed_sub_resumes_after_its_last_printed_event() {
    let server = Server::start_broker();
    let broker = server.address_text();
    let sub = |flags: &[&str]| {
        let arguments = [&["sub", "t", "--as", "me", "--broker", &broker], flags].concat();
        Process::start(&mut tidings_command(server.folder.path(), arguments))
    };
    let mut client = LineConnection::connect_client(server.address);
    for n in 1..=3 {
        client.request(&format!("PUB t {n}"));
    }
    let killed = sub(&["--from", "first"]);
    assert_eq!(killed.wait_for_stdout_lines(3), ["1", "2", "3"]);
    wait_for_cursor(&server, " next=4 behind=0 held=yes ");
    killed.signal_and_finish("KILL");
    wait_for_cursor(&server, " next=4 behind=0 held=no ");
    for n in 4..=6 {
        client.request(&format!("PUB t {n}"));
    }
    // `--from` applies only to a new cursor.
    let resumed = sub(&["--from", "first", "--count", "2"]).finish().expect_code(0);
    assert_eq!(resumed.stdout(), ["4", "5"]);
    // The previous subscriber ended properly and released the cursor.
    assert_eq!(sub(&["--count", "1"]).finish().expect_code(0).stdout(), ["6"]);
}

#[test]
fn events_that_no_group_could_use_are_rejected_before_they_are_sent() {
    let server = Server::start_broker();
    for (event, problem) in [
        ("", "an event has at least one byte"),
        ("/a every=25:00", "every=25:00: a duration is"),
        ("/a every=1ms", "every=1ms: expected 0, or at least 100ms"),
        ("/a every=1h was=soon", "was=soon: a duration is"),
        ("http://a.example/ after=tomorrow", "after=tomorrow: a duration is"),
        ("/a prio=high", "prio=\"high\""),
    ] {
        let stderr = run_at(&server, &["pub", "t", event]).expect_code(1).stderr();
        assert!(stderr.contains(&format!("line 1 is rejected: {problem}")), "{stderr}");
        assert!(stderr.contains("0 confirmed, 1 rejected"), "{stderr}");
    }
    let events = ["/a every=23:59", "/a every=0 after=1d prio=-1", "every=25:00"];
    run_at(&server, &[&["pub", "t"], &events[..]].concat()).expect_code(0);
    let stored = run_at(&server, &["sub", "t", "--from", "first", "--no-follow"]).stdout();
    assert_eq!(stored.len(), 3, "{stored:?}");
}

#[test]
fn sub_continues_by_number_after_a_restart_of_the_broker() {
    for signal in ["KILL", "TERM"] {
        let server = Server::start_broker();
        let at = server.address_text();
        let mut client = LineConnection::connect_client(server.address);
        client.request("PUB quiet /1 n=2");
        let start = |topic: &str, flags: &[&str]| {
            let arguments = [&["sub", topic, "--broker", &at], flags].concat();
            Process::start(&mut tidings_command(server.folder.path(), arguments))
        };
        let print = ["--exec", "sh", "-c", "echo $EVENT_PAYLOAD"];
        let subscribers = [
            // Without an event between its start and the restart.
            ("quiet", start("quiet", &[])),
            ("t", start("t", &[])),
            ("t", start("t", &["--as", "a"])),
            ("t", start("t", &[&["--as", "b"], &print[..]].concat())),
            ("t", start("t", &print)),
            ("t", start("t", &["--where", "n=2", "--where", "x!=1"])),
        ];
        let wait_for_readers = |topic: &str, count: usize| {
            wait_until(&format!("{count} readers of {topic}"), || {
                let shown = run_at(&server, &["topic", "show", topic, "--json"]).stdout();
                let shown: Value = serde_json::from_str(shown.first()?).unwrap();
                (shown["readers"] == count).then_some(())
            });
        };
        wait_for_readers("t", 5);
        wait_for_readers("quiet", 1);
        client.request("PUB t /1 n=2");
        for (_, subscriber) in &subscribers[1..] {
            subscriber.wait_for_line_with("/1");
        }
        let server = server.restart_at_same_address(signal, &["broker"]);
        // Published before any subscriber is back, or after; none is left out, and none is repeated.
        let mut client = LineConnection::connect_client(server.address);
        for event in ["PUB t /2 n=2", "PUB quiet /2 n=2", "PUB t /3 n=2", "PUB quiet /3 n=2"] {
            client.request_ok(event);
        }
        for (topic, subscriber) in subscribers {
            subscriber.wait_for_line_with("/3");
            let output = subscriber.signal_and_finish("TERM").expect_code(0);
            let expected = ["/1 n=2", "/2 n=2", "/3 n=2"];
            let from = usize::from(topic == "quiet");
            assert_eq!(output.stdout(), expected[from..], "{}", output.stderr());
            assert!(output.stderr().contains("; reconnecting"), "{}", output.stderr());
        }
    }
}

#[test]
fn a_durable_cursor_has_one_subscriber_until_a_takeover() {
    let server = Server::start_broker();
    let broker = server.address_text();
    let arguments = ["sub", "t", "--as", "me", "--broker", &broker];
    let first = Process::start(&mut tidings_command(server.folder.path(), arguments));
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB t one");
    wait_for_cursor(&server, " held=yes ");
    run_tidings(server.folder.path(), &arguments).expect_code(1).expect_stderr("uses cursor me");
    let takes = [&arguments[..], &["--takeover"]].concat();
    let third = Process::start(&mut tidings_command(server.folder.path(), takes));
    first.finish().expect_code(1).expect_stderr("resume with --as me");
    client.request("PUB t two");
    third.wait_for_line_with("two");
    let stopped = third.signal_and_finish("TERM").expect_code(0);
    assert_eq!(stopped.stdout().last().unwrap(), "two");
}
