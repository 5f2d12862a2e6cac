//! `tidings topic`, the data directory, and a `tidings pub` that survives a restart of its broker.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_tidings, tidings_command,
};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};

/// Runs `tidings topic <arguments>` against this broker.
#[track_caller]
fn run_topic(server: &Server, arguments: &[&str]) -> ProcessOutput {
    run_at(server, &[&["topic"], arguments].concat())
}

/// The JSON objects that it prints, one on each line.
#[track_caller]
fn run_topic_json(server: &Server, arguments: &[&str], code: i32) -> Vec<Value> {
    let lines = run_topic(server, &[arguments, &["--json"]].concat()).expect_code(code).stdout();
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The only segment file of a topic.
fn segment_file(data: &Path, topic: &str) -> PathBuf {
    let files = fs::read_dir(data.join("topics").join(topic)).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// Flips a bit of the payload that contains this text.
#[track_caller]
fn flip_bit_of(path: &Path, text: &str) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|bytes| bytes == text.as_bytes()).unwrap();
    bytes[at] ^= 0x01;
    fs::write(path, bytes).unwrap();
}

// PROTOCOL: R7
#[test]
fn topics_and_their_settings_survive_a_restart() {
    let server = Server::start_broker();
    let created = run_topic(&server, &["create", "t", "retain-bytes=2m"]).expect_code(0);
    assert_eq!(created.stdout(), ["t sync=always retain-bytes=2m retain-age=30d"]);
    let again = run_topic(&server, &["create", "t"]).expect_code(1);
    assert!(again.stderr().contains("exists already"), "{}", again.stderr());
    run_topic(&server, &["set", "t", "retain-age=1d", "sync=interval"]).expect_code(0);
    run_topic(&server, &["create", "m", "sync=memory"]).expect_code(0);
    LineConnection::connect_client(server.address).request("PUB t one");

    let server = server.restart("TERM", &["broker"]);
    let shown = &run_topic_json(&server, &["show", "t"], 0)[0];
    for (key, value) in [
        ("topic", json!("t")),
        ("next", json!(2)),
        ("kept", json!(1)),
        ("sync", json!("interval")),
        ("retain-bytes", json!("2m")),
        ("retain-age", json!("1d")),
        ("state", json!("ok")),
        ("cursors", json!([])),
    ] {
        assert_eq!(shown[key], value, "{key} in {shown}");
    }
    let listed = run_topic_json(&server, &["ls"], 0);
    let listed: Vec<_> = listed.iter().map(|topic| (&topic["topic"], &topic["sync"])).collect();
    let (always, interval, memory) = (json!("always"), json!("interval"), json!("memory"));
    let names =
        ["dead-letter", "job-done", "m", "new-url", "page-ready", "t"].map(|name| json!(name));
    let syncs = [&always, &always, &memory, &always, &always, &interval];
    assert_eq!(listed, names.iter().zip(syncs).collect::<Vec<_>>());

    assert_eq!(
        run_topic(&server, &["delete", "t", "--yes"]).expect_code(0).stdout(),
        ["deleted t"]
    );
    run_topic(&server, &["show", "t"]).expect_code(1);
    let server = server.restart("KILL", &["broker"]);
    run_topic(&server, &["show", "t"]).expect_code(1);
    // The seqs of a deleted topic are not used again.
    let response = LineConnection::connect_client(server.address).request("PUB t two");
    assert_eq!(response, "+OK 2 1");
}

#[test]
fn broker_flags_are_the_defaults_of_topics() {
    let server = Server::start(&["broker", "--sync", "memory", "--retain-age", "2h"]);
    let shown = &run_topic_json(&server, &["show", "new-url"], 0)[0];
    assert_eq!((&shown["sync"], &shown["retain-age"]), (&json!("memory"), &json!("2h")));
    assert!(!server.data_dir().join("topics").exists());
}

#[test]
fn topic_commands_print_tables() {
    let server = Server::start_broker();
    LineConnection::connect_client(server.address).request("PUB t one");
    let listed = run_topic(&server, &["ls"]).expect_code(0).stdout();
    assert!(listed[0].starts_with("TOPIC ") && listed[0].ends_with(" STATE"), "{listed:#?}");
    let line = listed.iter().find(|line| line.starts_with("t ")).unwrap();
    assert!(line.ends_with("always  ok"), "{line}");
    let shown = run_topic(&server, &["show", "t"]).expect_code(0).stdout();
    assert!(shown.contains(&"  next          2".to_owned()), "{shown:#?}");
}

#[test]
fn cursors_are_listed_and_forgotten() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request("PUB t one");
    client.request("PUB t two");
    assert_eq!(client.request("SUB t as=indexer from=first"), "+OK");
    assert_eq!(
        (client.read_line(), client.read_line()),
        ("MSG t 1 one".into(), "MSG t 2 two".into())
    );
    assert_eq!(client.request("SEEN t 1"), "+OK");
    let shown = &run_topic_json(&server, &["show", "t"], 0)[0]["cursors"][0];
    let found = ["name", "next", "behind", "held"].map(|key| shown[key].clone());
    assert_eq!(found, [json!("indexer"), json!(2), json!(1), json!("yes")]);
    let text = run_topic(&server, &["show", "t"]).expect_code(0).stdout();
    assert!(text.iter().any(|line| line.starts_with("indexer ")), "{text:#?}");

    run_topic(&server, &["forget", "t", "indexer", "--yes"]).expect_code(1);
    assert_eq!(client.request("UNSUB t"), "+OK");
    run_topic(&server, &["forget", "t", "indexer", "--yes"]).expect_code(0);
    assert_eq!(run_topic_json(&server, &["show", "t"], 0)[0]["cursors"], json!([]));
}

// PROTOCOL: R8, R9
#[test]
fn verify_finds_a_flipped_bit_with_and_without_a_broker() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for n in 1..=9 {
        // Each event is confirmed before the next, so it is a separate batch.
        assert_eq!(client.request(&format!("PUB t event-{n}")), format!("+OK {n} {n}"));
    }
    let verified = run_topic(&server, &["verify"]).expect_code(0).stdout();
    assert!(verified.iter().any(|line| line.starts_with("t: 1 file, 9 events, ")), "{verified:#?}");

    let data = server.data_dir();
    let offline = ["topic", "verify", "--data", "tidings-data"];
    let rejected = run_tidings(server.folder.path(), &offline).expect_code(1);
    let pid = format!("(pid {})", server.process.id());
    assert!(rejected.stderr().contains(&pid), "{}", rejected.stderr());

    let Server { process, folder, .. } = server;
    process.signal_and_finish("KILL");
    run_tidings(folder.path(), &offline).expect_code(0);
    flip_bit_of(&segment_file(&data, "t"), "event-4");
    let before = fs::read(segment_file(&data, "t")).unwrap();
    let found = run_tidings(folder.path(), &offline).expect_code(1).stdout().join("\n");
    for part in
        ["t: 1 file, 8 events, ", "event 4 cannot be read (1 of 9 in this file)", "the 8 other"]
    {
        assert!(found.contains(part), "{part} in {found}");
    }
    assert!(fs::read(segment_file(&data, "t")).unwrap() == before, "verify changed the file");

    let server = Server::start_in(folder, &["broker"], |_| ());
    let found = &run_topic_json(&server, &["verify", "t"], 1)[0];
    assert_eq!(found["damaged"], json!(true));
    assert_eq!(
        (&found["files"][0]["events"], &found["files"][0]["ranges"]),
        (&json!(8), &json!([[4, 4]]))
    );
    // The other events are served, and the missing one is reported.
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("SUB t from=3"), "+OK");
    let received = [(); 3].map(|()| client.read_line());
    assert_eq!(received, ["MSG t 3 event-3", "LAG t 4 4", "MSG t 5 event-5"]);
}

#[test]
fn a_data_directory_is_locked_by_one_broker() {
    let server = Server::start_broker();
    for command in ["broker", "up"] {
        let rejected =
            run_tidings(server.folder.path(), &[command, "--listen", "127.0.0.1:0"]).expect_code(1);
        let expected = format!(
            "tidings: ./tidings-data is in use by another tidings (pid {}); stop it or use --data \
             with another directory",
            server.process.id()
        );
        // With a low limit of open files, another line comes before this one.
        assert_eq!(rejected.stderr().lines().last(), Some(&*expected));
    }
    // A killed broker holds no lock.
    server.restart("KILL", &["broker"]);
}

/// Starts a broker on the port and data of one that has ended.
#[track_caller]
fn restart_broker(folder: &TempDir, address: &str) -> Process {
    let broker =
        Process::start(&mut tidings_command(folder.path(), ["broker", "--listen", address]));
    broker.wait_for_line_with("listening on ");
    broker
}

// PROTOCOL: A8, P5
#[test]
fn a_publisher_survives_a_broker_restart_without_duplicates() {
    let server = Server::start_broker();
    let address = server.address_text();
    let mut listener = LineConnection::connect_client(server.address);
    assert_eq!(listener.request("SUB t"), "+OK");
    let folder = TempDir::new().unwrap();
    let mut publisher =
        Process::start(&mut tidings_command(folder.path(), ["pub", "t", "--broker", &address]));
    let lines = |from: u32| (from..from + 2000).map(|n| format!("http://a.example/{n}\n"));
    publisher.write(lines(0).collect::<String>());
    // Some events were received, some are being written; they may be confirmed or not.
    while !listener.read_line().contains("http://a.example/1000 ") {}
    let Server { process, folder: data, .. } = server;
    process.signal_and_finish("KILL");
    publisher.write(lines(2000).collect::<String>());
    publisher.wait_for_line_with("unconfirmed, reconnecting for up to 30s");
    let broker = restart_broker(&data, &address);
    publisher.finish().expect_code(0).expect_stderr("4,000 confirmed");

    let mut client = LineConnection::connect_client(address.parse().unwrap());
    client.request("PUB t the end");
    assert_eq!(client.request("SUB t from=first"), "+OK");
    let mut stored = Vec::new();
    loop {
        let line = client.read_line();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["MSG", _, _, "the", "end"] => break,
            ["MSG", _, _, target, id] if id.starts_with("id=") => {
                stored.push(format!("{target}\n"));
            }
            ["GAP", ..] => {}
            _ => panic!("{line}"),
        }
    }
    let expected: Vec<_> = lines(0).chain(lines(2000)).collect();
    assert!(
        stored == expected,
        "{} of {} events are stored, or their order differs",
        stored.len(),
        expected.len()
    );
    drop(broker);
}

#[test]
fn a_publisher_stops_retrying_and_reports_confirmed_events() {
    let (address, _) = start_scripted_broker(|listener| {
        let mut client = ScriptedConnection::accept(&listener);
        // The client must not connect again.
        drop(listener);
        assert_eq!(client.by_ref().take(3).count(), 3);
        client.send("-ERR full n=2 no room\r\n+OK 1 1");
    });
    let folder = TempDir::new().unwrap();
    let arguments = ["pub", "t", "one", "two", "three", "--retry", "200ms", "--broker", &address];
    let output = run_tidings(folder.path(), &arguments).expect_code(1);
    let stderr = output.stderr();
    for part in ["1 event unconfirmed", "no connection within 200ms", "1 confirmed", "line 3 is"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn ids_are_added_only_for_retries() {
    let server = Server::start_broker();
    let address = server.address_text();
    let folder = server.folder.path();
    run_tidings(folder, &["pub", "t", "/a", "text", "--retry", "0", "--broker", &address])
        .expect_code(0);
    run_tidings(folder, &["pub", "t", "/a id=mine", "text", "/b", "--broker", &address])
        .expect_code(0);
    let arguments = ["sub", "t", "--from", "first", "--count", "5", "--broker", &address];
    let stored = run_tidings(folder, &arguments).expect_code(0).stdout();
    assert_eq!(stored[..4], ["/a", "text", "/a id=mine", "text"]);
    assert!(stored[4].starts_with("/b id=") && stored[4].ends_with("-3"), "{stored:?}");
}

#[test]
fn possible_duplicates_without_an_id_are_reported() {
    // This broker receives two events and closes without a response.
    let (address, _) = start_scripted_broker(|listener| {
        let client = ScriptedConnection::accept(&listener);
        drop(listener);
        assert_eq!(client.take(2).count(), 2);
    });
    let folder = TempDir::new().unwrap();
    let arguments = ["pub", "t", "just text", "/a/path", "--broker", &address];
    let publisher = Process::start(&mut tidings_command(folder.path(), arguments));
    publisher.wait_for_line_with("2 events unconfirmed");
    let _broker = restart_broker(&folder, &address);
    let notice = publisher.wait_for_line_with("reconnected");
    assert!(notice.contains("sending 2 events; 1 without an id may be stored twice"), "{notice}");
    publisher.finish().expect_code(0).expect_stderr("2 confirmed");
}

#[test]
fn a_stray_file_among_the_topics_is_ignored() {
    let server = Server::start_broker();
    run_topic(&server, &["create", "news"]).expect_code(0);
    let topics = server.data_dir().join("topics");
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    fs::write(topics.join("notes.txt"), "no topic").unwrap();
    let server = Server::start_in(folder, &["broker"], |_| ());
    let warning =
        server.process.wait_for_line_with("this is not the directory of a topic; it is ignored");
    assert!(warning.contains("notes.txt"), "{warning}");
    run_topic(&server, &["show", "news"]).expect_code(0);
    assert_eq!(fs::read_to_string(topics.join("notes.txt")).unwrap(), "no topic");
}
