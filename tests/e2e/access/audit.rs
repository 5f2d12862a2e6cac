//! The audit log (`--audit`), with nc and curl as clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidings_protocol::text::is_invisible;

use crate::http::openapi::{hook_config, send_hook};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::{run_nc, start_nc};
use crate::support::process::{Process, Server, run_tidings};
use crate::support::wait::wait_until;

/// All records. Each is one line of JSON without characters that act on a terminal.
#[track_caller]
fn read_records(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let record = |line: &str| -> Value {
        assert!(!line.contains(is_invisible), "{line:?}");
        let record: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
        assert!(
            record["time"].as_str().unwrap().ends_with('Z') && record["what"].is_string(),
            "{line}"
        );
        record
    };
    // `lines` would also accept `\r\n`.
    whole.split_terminator('\n').map(record).collect()
}

/// Waits for a record with these fields.
#[track_caller]
pub(crate) fn wait_for_record(file: &Path, fields: &[(&str, &str)]) -> Value {
    let is_so = |record: &Value| {
        fields.iter().all(|(key, value)| match &record[*key] {
            Value::String(text) => text == value,
            other => serde_json::from_str::<Value>(value).is_ok_and(|value| value == *other),
        })
    };
    wait_until(&format!("{fields:?}"), || read_records(file).into_iter().find(is_so))
}

/// A broker with an audit log and the principal `alice`, and her token.
#[track_caller]
fn broker(flags: &[&str]) -> (Server, String) {
    let folder = TempDir::new().unwrap();
    let words = ["token", "create", "alice", "--allow", "pub:news", "--allow", "sub:news"];
    let token = run_tidings(folder.path(), &words).expect_code(0).stdout().remove(0);
    let flags = [&["broker", "--audit", "audit.log"], flags].concat();
    (Server::start_in(folder, &flags, |_| ()), token)
}

#[test]
#[ignore = "needs foreign programs"]
fn connections_logins_publishes_and_refusals_are_audited() {
    let (server, token) = broker(&[]);
    let file = server.folder.path().join("audit.log");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    wait_for_record(&file, &[("what", "started")]);
    let mut alice = start_nc(server.address, &[]);
    alice.write(format!(
        "HELLO token={token}\nHELLO token={token}\nPUB news one\nPUB news two\nPUB other x\nSUB other\nQUIT\n"
    ));
    alice.finish().expect_code(0);
    let connected = wait_for_record(
        &file,
        &[("what", "connected"), ("who", "strangers"), ("way", "line"), ("conn", "1")],
    );
    assert!(connected["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{connected}");
    for expected in [
        &[("what", "logged-in"), ("who", "alice"), ("conn", "1")][..],
        &[("what", "denied"), ("who", "alice"), ("topic", "other")],
        &[("what", "published"), ("who", "alice"), ("topic", "news"), ("events", "2")],
        &[("what", "left"), ("who", "alice"), ("conn", "1"), ("why", "left")],
    ] {
        wait_for_record(&file, expected);
    }
    let logins = read_records(&file).into_iter().filter(|record| record["what"] == "logged-in");
    assert_eq!(logins.count(), 1, "a login as the same principal is not audited again");
    run_nc(server.address, "HELLO token=tdg_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n");
    wait_for_record(
        &file,
        &[("what", "failed-login"), ("why", "no principal has this token"), ("conn", "2")],
    );
    run_nc(server.address, "GET / HTTP/1.1\n");
    wait_for_record(&file, &[("what", "refused"), ("way", "line"), ("conn", "3")]);

    let http = HttpClient::new(&server);
    let bearer = format!("Authorization: Bearer {token}");
    let with = ["--header", &bearer, "--data", "three"];
    assert_eq!(http.request("POST", "/topics/news", &with).status, 200);
    for expected in [
        &[("what", "logged-in"), ("who", "alice"), ("way", "http")][..],
        &[
            ("what", "published"),
            ("who", "alice"),
            ("way", "http"),
            ("topic", "news"),
            ("events", "1"),
        ],
    ] {
        wait_for_record(&file, expected);
    }
    assert_eq!(http.request("POST", "/topics/other", &with).status, 403);
    wait_for_record(
        &file,
        &[("what", "denied"), ("who", "alice"), ("way", "http"), ("topic", "other")],
    );
    assert_eq!(http.request("GET", "/topics", &[]).status, 401);
    wait_for_record(&file, &[("what", "denied"), ("who", "strangers"), ("way", "http")]);
    assert_eq!(http.request("GET", "/topics", &["--header", "Host: evil.example"]).status, 403);
    wait_for_record(&file, &[("what", "refused"), ("way", "http")]);
    let wrong = "Authorization: Bearer tdg_BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(http.request("GET", "/topics", &["--header", wrong]).status, 401);
    wait_for_record(&file, &[("what", "failed-login"), ("way", "http")]);

    // A subscriber is notified when its permission is revoked.
    let mut connection = LineConnection::connect(server.address);
    connection.read_line();
    connection.request_ok(&format!("HELLO token={token}"));
    assert_eq!(connection.request("SUB news"), "+OK");
    let folder = server.folder.path();
    run_tidings(folder, &["token", "create", "bob", "--allow", "all"]).expect_code(0);
    wait_for_record(&file, &[("what", "principal"), ("name", "bob"), ("change", "created")]);
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:x"]).expect_code(0);
    wait_for_record(&file, &[("what", "principal"), ("name", "bob"), ("change", "changed")]);
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    wait_for_record(&file, &[("what", "principal"), ("name", "alice"), ("change", "revoked")]);
    wait_for_record(&file, &[("what", "revoked"), ("who", "alice")]);

    // Log rotation moves the file away and sends SIGHUP.
    fs::rename(&file, file.with_extension("1")).unwrap();
    server.process.signal("HUP");
    wait_until("the new file", || file.exists().then_some(()));
    wait_for_record(&file, &[("what", "configuration-reloaded")]);
    let Server { process, folder: _folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    wait_for_record(&file, &[("what", "stopped")]);
    for file in [&file, &file.with_extension("1")] {
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains(&token[..12]) && !text.contains("AAAAAAA"), "{text}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn unix_users_are_audited_by_uid() {
    let folder = TempDir::new().unwrap();
    let flags = ["broker", "--audit", "-", "--unix", "unix.sock"];
    let server = Server::start_in(folder, &flags, |_| ());
    let mut typed =
        Process::start(Command::new("nc").arg("-NU").arg(server.folder.path().join("unix.sock")));
    typed.write("PUB news hello\n");
    typed.finish().expect_code(0);
    // The record is on standard error, next to the log.
    let audited = server.process.wait_for_line("a record", |line| {
        let record: Value = serde_json::from_str(line).ok()?;
        (record["what"] == "published").then_some(record)
    });
    assert!(audited["from"].as_str().unwrap().starts_with("unix:uid="), "{audited}");
    assert_eq!((audited["way"].as_str(), audited["topic"].as_str()), (Some("unix"), Some("news")));
}

#[test]
#[ignore = "needs foreign programs"]
fn administrative_changes_are_audited() {
    let folder = TempDir::new().unwrap();
    let rights = ["admin", "job:*", "sub:*"].iter().flat_map(|right| ["--allow", right]);
    let words: Vec<_> = ["token", "create", "boss"].into_iter().chain(rights).collect();
    let token = run_tidings(folder.path(), &words).expect_code(0).stdout().remove(0);
    let server = Server::start_in(folder, &["broker", "--audit", "audit.log"], |_| ());
    let file = server.folder.path().join("audit.log");
    let mut connection = LineConnection::connect(server.address);
    connection.read_line();
    connection.request_ok(&format!("HELLO token={token}"));
    for (line, change, name) in [
        ("TOPIC create news", "TOPIC create", "news"),
        ("GROUP create workers topics=news", "GROUP create", "workers"),
        ("JOB open docs", "JOB open", "docs"),
        ("TOPIC delete no-such-topic", "TOPIC delete", "no-such-topic"),
    ] {
        connection.request(line);
        let audited =
            wait_for_record(&file, &[("what", "changed"), ("change", change), ("name", name)]);
        assert_eq!(
            (&audited["who"], &audited["way"]),
            (&"boss".into(), &"line".into()),
            "{audited}"
        );
    }
    let http = HttpClient::new(&server);
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(http.request("POST", "/jobs/docs/cancel", &["-H", &bearer]).status, 200);
    let audited =
        wait_for_record(&file, &[("what", "changed"), ("change", "JOB cancel"), ("name", "docs")]);
    assert_eq!((&audited["who"], &audited["way"]), (&"boss".into(), &"http".into()), "{audited}");
    // Added URLs are summed, as events are.
    for n in 0..3 {
        assert!(
            connection
                .request(&format!("JOB add more url=http://a.example/{n}"))
                .starts_with("-ERR")
        );
    }
    connection.request("JOB open more");
    for n in 0..3 {
        connection.request_ok(&format!("JOB add more url=http://a.example/{n}"));
    }
    let seeds = r#"{"urls":["http://b.example/1","http://b.example/2"]}"#;
    let json = "Content-Type: application/json";
    let add = ["-H", &bearer, "-H", json, "--data", seeds];
    assert_eq!(http.request("POST", "/jobs/more/urls", &add).status, 200);
    for (transport, count) in [("line", 6), ("http", 2)] {
        wait_until(&format!("the URLs added over {transport}"), || {
            let added = read_records(&file).into_iter().filter(|record| {
                record["what"] == "added" && record["name"] == "more" && record["way"] == transport
            });
            let events = added.map(|record| {
                assert_eq!(record["who"], "boss", "{record}");
                record["events"].as_u64().unwrap()
            });
            (events.sum::<u64>() == count).then_some(())
        });
    }
    // Reading commands are not audited, and a denied command is.
    for line in ["TOPIC ls", "GROUP show workers", "JOB ls"] {
        assert!(connection.request(line).starts_with('+'), "{line}");
    }
    assert!(
        LineConnection::connect_client(server.address)
            .request("TOPIC delete news")
            .starts_with("-ERR")
    );
    wait_for_record(&file, &[("what", "denied")]);
    let changed = read_records(&file).into_iter().filter(|record| record["what"] == "changed");
    assert_eq!(changed.count(), 6);
}

#[test]
#[ignore = "needs foreign programs"]
fn rejected_hub_notices_are_audited() {
    let flags = ["--public-url", "http://127.0.0.1/", "--hub", "http://blog.example/"];
    let (_folder, config) = hook_config();
    let (server, _) = broker(&[&flags[..], &["--hub-rate", "2", "--config", &config]].concat());
    let file = server.folder.path().join("audit.log");
    let http = HttpClient::new(&server);
    assert_eq!(http.get("/websub/GUESSED").status, 404);
    let audited =
        wait_for_record(&file, &[("what", "refused"), ("why", "notice: this path was not issued")]);
    assert_eq!(
        (&audited["way"], &audited["who"]),
        (&"http".into(), &"strangers".into()),
        "{audited}"
    );
    assert!(audited["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{audited}");
    let ping = ["--header", "Via: 1.1 proxy", "--data", "hub.mode=publish&hub.url=x"];
    assert_eq!(http.request("POST", "/hub", &ping).status, 404);
    wait_until("the rate limit of hub notices", || {
        (http.request("POST", "/hub", &ping).status == 429).then_some(())
    });
    let why = "notice: a ping from an address outside --hub-publishers, or through a proxy";
    wait_for_record(&file, &[("what", "refused"), ("why", why)]);
    wait_for_record(&file, &[("what", "limit"), ("why", "too many requests from this address")]);
    let signed = json!({ "url": "http://a.example/1" }).to_string();
    assert_eq!(send_hook(&http, "application/json", &signed), 200);
    wait_for_record(
        &file,
        &[("what", "published"), ("who", "hook:h"), ("topic", "log"), ("events", "1")],
    );
    // The records of one source are limited.
    wait_until("the rate limit of webhooks", || {
        (send_hook(&http, "application/json", &signed) == 429).then_some(())
    });
    let why = "webhook: too many requests from this address";
    wait_for_record(&file, &[("what", "limit"), ("why", why)]);
    assert!(!fs::read_to_string(&file).unwrap().contains("GUESSED"));
}
