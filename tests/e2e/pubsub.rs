//! `tidings pub` and `tidings sub`: what pipes carry, and what is said when the broker goes.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    thread,
};

use tempfile::TempDir;

use crate::support::{
    process::{Running, Server, run, tidings},
    talk::Talk,
};

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
    assert_eq!(shell.stdout_lines(1), ["1"]);
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
    for part in ["line 2", "line 3", "line 4", "2 confirmed", "3 refused"] {
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
    let mut publisher =
        Running::start(&mut tidings(folder.path(), ["pub", "t", "--broker", &server.text()]));
    for n in 1..=100 {
        publisher.write(format!("line {n}\n"));
        assert_eq!(listener.line(), format!("MSG t {n} line {n}"));
    }
    server.process.finish_by("KILL");
    publisher.write("never to arrive\n".repeat(100));
    let ended = publisher.finish().expect_code(1);
    let confirmed = confirmed(&ended.stderr());
    // The last confirmation may have been lost with the broker; those of lines that came before were read since.
    assert!((1..=100).contains(&confirmed), "{}", ended.stderr());
}

/// The number before the word `confirmed`.
#[track_caller]
fn confirmed(text: &str) -> u64 {
    let words: Vec<_> = text.split([' ', ';', ',']).collect();
    let at = words.iter().position(|word| *word == "confirmed");
    let number = at.and_then(|at| words[at - 1].parse().ok());
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
    let ended = run(folder.path(), &["pub", "t", "1", "2", "3", "4", "5", "--broker", &address]);
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
