//! Mistakes and questions of new users, and the messages that answer them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_at, run_tidings, tidings_command};

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
        publisher.request_ok(&format!("PUB t {event}"));
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
fn commands_find_the_broker_of_their_folder() {
    let server = Server::start_up(&[]);
    let folder = server.folder.path();
    let read = || tidings_command(folder, ["sub", "t", "--from", "first", "--no-follow"]);
    let run = |command: &mut Command| Process::start(command).finish();
    run_tidings(folder, &["pub", "t", "one"]).expect_code(0);
    assert_eq!(run(&mut read()).expect_code(0).stdout(), ["one"]);
    run_tidings(folder, &["status"]).expect_code(0);
    let page = run_tidings(folder, &["dashboard"]).expect_code(0).stdout();
    assert_eq!(page, [format!("{}/", HttpClient::new(&server).base_url)]);

    // What is named has precedence.
    let other = Server::start_broker();
    let named = run(read().env("TIDINGS_BROKER", other.address_text())).expect_code(0);
    assert!(named.stdout().is_empty(), "{named:?}");
    let context = |words: &[&str]| run_tidings(folder, &[&["context"], words].concat());
    context(&["add", "else", "--broker", &other.address_text()]).expect_code(0);
    context(&["use", "else"]).expect_code(0);
    assert!(run(&mut read()).expect_code(0).stdout().is_empty());
    context(&["rm", "else"]).expect_code(0);

    // A folder in which others can write may name a broker that collects tokens.
    let mode = |mode| fs::set_permissions(server.data_dir(), Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    assert_ne!(run(&mut read()).stdout(), ["one"]);
    mode(0o700);
    assert_eq!(run(&mut read()).expect_code(0).stdout(), ["one"]);
    let file = server.data_dir().join("broker.addr");
    let before = fs::read_to_string(&file).unwrap();
    let http = HttpClient::new(&server).base_url.replace("http://", "");
    fs::write(&file, http).unwrap();
    let stderr = run(&mut read()).expect_code(1).stderr();
    assert!(stderr.contains(" (found in ./tidings-data/broker.addr)"), "{stderr}");

    fs::write(&file, before).unwrap();
    let Server { process, address, folder } = server;
    process.signal_and_finish("KILL");
    let stale = run_tidings(folder.path(), &["sub", "t", "--from", "first", "--no-follow"]);
    assert!(!stale.stderr().contains(&address.to_string()), "{stale:?}");
}

#[test]
fn reading_creates_no_group() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("PUB new-url http://a.example/");
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
#[ignore = "needs foreign programs"]
fn hints_are_shell_commands() {
    let server = Server::start_broker();
    let stderr = run_at(&server, &["group", "show", "nix"]).expect_code(1).stderr();
    assert!(stderr.contains("create it with: tidings group create nix"), "{stderr}");
    assert!(!stderr.contains("GROUP"), "{stderr}");
    run_at(&server, &["host", "clear", "a.example"])
        .expect_code(1)
        .expect_stderr("; list them with: tidings host ls --group crawlers");
    let http = HttpClient::new(&server);
    for path in ["/groups/nix", "/jobs/nix"] {
        let answer = http.get(path);
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("no ") && !message.contains(';'), "{message}");
    }
}

#[test]
fn a_flag_of_another_broker_is_rejected_with_its_name() {
    let server = Server::start_broker();
    let crawl = ["crawl", "http://a.example/", "--delay", "3s"];
    let delay = "; the broker sets the delay, with: tidings group set crawlers delay=DURATION";
    let stderr = run_at(&server, &crawl).expect_code(2).stderr();
    assert!(stderr.contains(" (found by --broker), ") && stderr.contains(delay), "{stderr}");
    let mut command = tidings_command(server.folder.path(), crawl);
    command.env("TIDINGS_BROKER", server.address_text());
    Process::start(&mut command)
        .finish()
        .expect_code(2)
        .expect_stderr(" (found by TIDINGS_BROKER), ");
}

#[test]
fn retried_dead_letters_are_not_counted_as_dead() {
    let server = Server::start_broker();
    run_at(&server, &["group", "set", "crawlers", "delay=0", "max-attempts=1"]).expect_code(0);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("PUB new-url http://a.example/");
    worker.request_ok("JOIN crawlers credit=1");
    let task = worker.read_line();
    let id = task.split(' ').nth(1).unwrap();
    worker.request_ok(&format!("NACK {id}"));
    let dead = || {
        let listed = run_at(&server, &["group", "ls"]).expect_code(0).stdout();
        listed[1].split_whitespace().nth(6).unwrap().to_owned()
    };
    assert_eq!(dead(), "1");
    run_at(&server, &["dead", "retry", "--all"]).expect_code(0);
    assert_eq!(dead(), "0");
}
