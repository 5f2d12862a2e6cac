//! `tidings pub` and `tidings sub`: what pipes carry, and what is said when the broker goes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use tempfile::TempDir;

use crate::support::process::{Running, Server, run, tidings};
use crate::support::talk::Talk;
use crate::support::wait::until;

#[test]
fn arguments_are_events() {
    let server = Server::broker();
    let folder = server.folder.path();
    let published = run(folder, &["pub", "t", "one", "two words", "--broker", &server.text()]);
    assert!(published.expect_code(0).stderr().contains("2 confirmed"));
    let seen =
        run(folder, &["sub", "t", "--from", "first", "--count", "2", "--broker", &server.text()]);
    assert_eq!(seen.expect_code(0).stdout(), ["one", "two words"]);
}

#[test]
fn lines_of_standard_input_arrive_in_order_and_are_counted() {
    let server = Server::broker();
    let folder = server.folder.path();
    let count = "20000";
    let sub = ["sub", "t", "--from", "first", "--count", count, "--broker", &server.text()];
    let subscriber = Running::start(&mut tidings(folder, sub));
    let mut publisher =
        Running::start(&mut tidings(folder, ["pub", "t", "--broker", &server.text()]));
    let lines: Vec<_> = (0..20_000).map(|n| format!("line {n} of many")).collect();
    publisher.write(lines.join("\n"));
    let ended = publisher.finish().expect_code(0);
    assert!(ended.stderr().contains("20,000 confirmed"), "{}", ended.stderr());
    assert!(subscriber.finish().expect_code(0).stdout() == lines, "the lines differ");
}

#[test]
fn json_has_number_payload_and_attributes() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    client.ask("PUB t text with \"quotes\"");
    client.ask("PUB t http://a.example/ job=j colour=blue");
    let sub = ["sub", "t", "--json", "--from", "first", "--count", "2", "--broker", &server.text()];
    let lines = run(server.folder.path(), &sub).expect_code(0).stdout();
    let events: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["seq"], 1);
    assert_eq!(events[0]["topic"], "t");
    assert_eq!(events[0]["payload"], "text with \"quotes\"");
    assert_eq!(events[1]["payload"], "http://a.example/ job=j colour=blue");
    assert_eq!(events[1]["attributes"]["colour"], "blue");
}

#[test]
fn a_reader_that_leaves_ends_sub_quietly() {
    let server = Server::broker();
    let binary = env!("CARGO_BIN_EXE_tidings");
    let mut client = Talk::client(server.address);
    for n in 1..=1000 {
        client.ask(&format!("PUB t {n}"));
    }
    let line = format!(
        "'{binary}' sub t --from first --broker {} 2>&1 | head -n 1; echo ${{PIPESTATUS[0]}}",
        server.text()
    );
    let shell = Running::start(std::process::Command::new("bash").args(["-c", &line]));
    // `head` is gone after its first line, which `sub` notices with the next thing it writes.
    assert_eq!(shell.stdout_lines(1)[0], "1");
    client.ask("PUB t one more, so that there is a next thing");
    assert_eq!(shell.finish().expect_code(0).stdout(), ["1", "0"]);
}

#[test]
fn refused_lines_are_named_and_the_others_are_published() {
    let server = Server::broker();
    let mut publisher = Running::start(&mut tidings(
        server.folder.path(),
        ["pub", "t", "--broker", &server.text()],
    ));
    publisher.write(b"good\nbad \x01 control\n\xff not UTF-8\n");
    publisher.write(["x".repeat(100_000).as_bytes(), b"\nlast\n"].concat());
    let ended = publisher.finish().expect_code(1);
    let stderr = ended.stderr();
    for part in ["line 2", "line 3", "line 4", "2 confirmed", "3 rejected"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    let mut client = Talk::client(server.address);
    assert!(client.ask("SUB t from=first").starts_with("+OK"));
    assert_eq!(client.line(), "MSG t 1 good");
    assert_eq!(client.line(), "MSG t 2 last");
}

#[test]
fn a_broker_killed_in_the_middle_fails_the_publisher_who_says_how_much_was_confirmed() {
    let server = Server::broker();
    let folder = TempDir::new().unwrap();
    let mut listener = Talk::client(server.address);
    assert!(listener.ask("SUB t").starts_with("+OK"));
    let mut publisher = Running::start(&mut tidings(
        folder.path(),
        ["pub", "t", "--retry", "0", "--broker", &server.text()],
    ));
    for n in 1..=100 {
        publisher.write(format!("line {n}\n"));
        assert_eq!(listener.line(), format!("MSG t {n} line {n}"));
    }
    server.process.finish_by("KILL");
    publisher.write("never to arrive\n".repeat(100));
    let ended = publisher.finish().expect_code(1);
    let confirmed = confirmed(&ended.stderr());
    // The last confirmation may have been lost with the broker; those of lines that came before
    // were read since.
    assert!((1..=100).contains(&confirmed), "{}", ended.stderr());
}

/// The number before the word `confirmed`.
#[track_caller]
fn confirmed(text: &str) -> u64 {
    let words: Vec<_> = text.split([' ', ';', ',']).collect();
    let pairs = words.windows(2).filter(|pair| pair[1] == "confirmed");
    let number = pairs.filter_map(|pair| pair[0].parse().ok()).next_back();
    number.unwrap_or_else(|| panic!("nothing is said of confirmations: {text}"))
}

#[test]
fn what_a_broker_confirmed_before_it_closed_is_counted_exactly() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // A broker that confirms three of the publishes it is sent, and goes.
    let broker = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let answer = |text: String| (&stream).write_all(text.as_bytes()).unwrap();
        answer("Connected.  (PID 1)\r\n".to_owned());
        let hello = lines.next().unwrap().unwrap();
        let echo = hello.split(' ').find(|word| word.starts_with("echo=")).unwrap();
        let resume = "0".repeat(32);
        answer(format!("+OK tidings 0.1.0 id=1 clock=1 {echo} resume={resume}\r\n"));
        for _ in 0..5 {
            assert!(lines.next().unwrap().unwrap().starts_with("PUB t "));
        }
        answer("+OK 3 3\r\n".to_owned());
    });
    let folder = TempDir::new().unwrap();
    let ended = run(
        folder.path(),
        &["pub", "t", "1", "2", "3", "4", "5", "--retry", "0", "--broker", &address],
    );
    broker.join().unwrap();
    let ended = ended.expect_code(1);
    assert_eq!(confirmed(&ended.stderr()), 3, "{}", ended.stderr());
    assert!(ended.stderr().contains("line 4"), "{}", ended.stderr());
}

#[test]
fn no_broker_is_one_line_that_says_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let folder = TempDir::new().unwrap();
    for command in [&["pub", "t", "x"][..], &["sub", "t"]] {
        let failed = run(folder.path(), &[command, &["--broker", &free]].concat()).expect_code(1);
        let stderr = failed.stderr();
        assert!(stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(&free) && stderr.contains("--broker"), "{stderr}");
    }
}

#[test]
fn sub_says_when_the_broker_goes_and_where_to_resume() {
    let server = Server::broker();
    let folder = TempDir::new().unwrap();
    let subscriber = Running::start(&mut tidings(
        folder.path(),
        ["sub", "t", "--from", "first", "--broker", &server.text()],
    ));
    Talk::client(server.address).ask("PUB t one");
    assert_eq!(subscriber.stdout_lines(1), ["one"]);
    server.process.finish_by("TERM").expect_code(0);
    let ended = subscriber.finish().expect_code(1);
    assert!(ended.stderr().contains("--from 2"), "{}", ended.stderr());
}

/// Waits until the cursor `me` on `t` is shown like this.
#[track_caller]
fn until_cursor(server: &Server, like: &str) {
    let mut client = Talk::client(server.address);
    until("the cursor to get there", || {
        let shown = client.ask_lines("TOPIC show t");
        let me = shown.iter().find(|line| line.starts_with("+ cursor me "))?;
        me.contains(like).then_some(())
    });
}

#[test]
fn a_sub_that_is_killed_resumes_behind_what_it_has_printed() {
    let server = Server::broker();
    let broker = server.text();
    let sub = |flags: &[&str]| {
        let words = [&["sub", "t", "--as", "me", "--broker", &broker], flags].concat();
        Running::start(&mut tidings(server.folder.path(), words))
    };
    let mut client = Talk::client(server.address);
    for n in 1..=3 {
        client.ask(&format!("PUB t {n}"));
    }
    let killed = sub(&["--from", "first"]);
    assert_eq!(killed.stdout_lines(3), ["1", "2", "3"]);
    until_cursor(&server, " next=4 behind=0 held=yes ");
    killed.finish_by("KILL");
    until_cursor(&server, " next=4 behind=0 held=no ");
    for n in 4..=6 {
        client.ask(&format!("PUB t {n}"));
    }
    // `--from` is for a new cursor.
    let resumed = sub(&["--from", "first", "--count", "2"]).finish().expect_code(0);
    assert_eq!(resumed.stdout(), ["4", "5"]);
    // Whoever ended well has given the cursor back.
    assert_eq!(sub(&["--count", "1"]).finish().expect_code(0).stdout(), ["6"]);
}

#[test]
fn a_cursor_keeps_up_with_events_that_stream_in_and_survives_the_broker() {
    let server = Server::broker();
    let count = 20_000;
    let mut publisher = Running::start(&mut tidings(
        server.folder.path(),
        ["pub", "t", "--quiet", "--broker", &server.text()],
    ));
    let lines: Vec<_> = (1..=count).map(|n| n.to_string()).collect();
    publisher.write(lines.join("\n"));
    publisher.finish().expect_code(0);
    let sub = |server: &Server, from: u64, to: u64| {
        let count = (to - from + 1).to_string();
        let words = ["sub", "t", "--as", "me", "--from", "first", "--count", &count];
        let printed =
            run(server.folder.path(), &[&words[..], &["--broker", &server.text()]].concat());
        let numbers = (from..=to).map(|n| n.to_string());
        assert!(printed.expect_code(0).stdout().into_iter().eq(numbers), "{from} to {to}");
    };
    sub(&server, 1, count / 2);
    let server = server.restart("KILL", &["broker"]);
    sub(&server, count / 2 + 1, count);
}

#[test]
fn a_cursor_is_one_subscribers_until_another_takes_it_over() {
    let server = Server::broker();
    let broker = server.text();
    let words = ["sub", "t", "--as", "me", "--broker", &broker];
    let first = Running::start(&mut tidings(server.folder.path(), words));
    let mut client = Talk::client(server.address);
    client.ask("PUB t one");
    until_cursor(&server, " held=yes ");
    let second = run(server.folder.path(), &words).expect_code(1);
    assert!(second.stderr().contains("uses cursor me"), "{}", second.stderr());
    let takes = [&words[..], &["--takeover"]].concat();
    let third = Running::start(&mut tidings(server.folder.path(), takes));
    let ended = first.finish().expect_code(1).stderr();
    assert!(ended.contains("resume with --as me"), "{ended}");
    client.ask("PUB t two");
    third.line_with("two");
    let stopped = third.finish_by("TERM").expect_code(0);
    assert_eq!(stopped.stdout().last().unwrap(), "two");
}
