//! Tokens that expire, and the address of the dashboard with one.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::access::audit::wait_for_record;
use crate::access::tokens::{broker, create_token};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::ports::free_address;
use crate::support::process::{Process, run_tidings, tidings_command};
use crate::support::wait::wait_until;

fn bearer(token: &str) -> [String; 2] {
    ["--header".to_owned(), format!("Authorization: Bearer {token}")]
}

fn status(http: &HttpClient, token: &str, method: &str, path: &str) -> u16 {
    http.request(method, path, &bearer(token).each_ref().map(String::as_str)).status
}

// PROTOCOL: S18
#[test]
#[ignore = "needs foreign programs"]
fn an_expired_token_ends_connections_and_logs_in_no_more() {
    let (server, [_]) = broker([("op", &["all"])], &["--audit", "audit.log"]);
    let (folder, http) = (server.folder.path(), HttpClient::new(&server));
    let create = ["token", "create", "guest", "--allow", "sub:*", "--allow", "monitor"];
    // Long enough to connect on a slow machine.
    let created = run_tidings(folder, &[&create[..], &["--expires", "10s"]].concat());
    let token = created.expect_code(0).stdout()[0].clone();
    wait_until("the token", || (status(&http, &token, "GET", "/stats") == 200).then_some(()));
    let stream = http.stream("/topics/news/events", &bearer(&token).each_ref().map(String::as_str));
    let mut subscriber = LineConnection::connect(server.address);
    assert!(subscriber.read_line().starts_with("Connected."));
    assert!(subscriber.request(&format!("HELLO token={token}")).starts_with("+OK tidings"));
    subscriber.request_ok("SUB news");
    let list = || run_tidings(folder, &["token", "ls"]).expect_code(0).stdout()[1].clone();
    assert!(list().contains(" expires=20"), "{}", list());
    run_tidings(folder, &create).expect_code(1).expect_stderr("guest exists already");

    assert!(subscriber.read_line().starts_with("-ERR revoked"));
    subscriber.expect_closed();
    stream.finish();
    wait_for_record(
        &folder.join("audit.log"),
        &[("what", "principal"), ("name", "guest"), ("change", "expired")],
    );
    assert_eq!(status(&http, &token, "GET", "/stats"), 401);
    assert!(list().contains(" expired=20"), "{}", list());
    // A restart does not know it either.
    let server = server.restart("TERM", &["broker"]);
    assert_eq!(status(&HttpClient::new(&server), &token, "GET", "/stats"), 401);
    let set = ["token", "set", "guest", "--allow", "monitor"];
    run_tidings(server.folder.path(), &set)
        .expect_code(1)
        .expect_stderr("guest has expired; say until when with --expires");
    run_tidings(server.folder.path(), &[&set[..], &["--expires", "1h"]].concat()).expect_code(0);
    let http = HttpClient::new(&server);
    wait_until("the token", || (status(&http, &token, "GET", "/stats") == 200).then_some(()));
    run_tidings(server.folder.path(), &["token", "revoke", "guest", "--yes"]).expect_code(0);
    // Its name is free, and other principals do not expire.
    run_tidings(server.folder.path(), &create).expect_code(0);
}

#[test]
fn a_time_of_expiry_must_be_in_the_future() {
    let folder = TempDir::new().unwrap();
    let create = ["token", "create", "a", "--allow", "all", "--expires"];
    for (expires, expected) in [
        ("0", "is not in the future"),
        ("2001-01-31T00:00Z", "is not in the future"),
        ("soon", "expected a duration such as 12h, or a time such as 2026-12-01T00:00Z"),
    ] {
        let refused = run_tidings(folder.path(), &[&create[..], &[expires]].concat());
        refused.expect_code(2).expect_stderr(expected);
    }
    let created = run_tidings(folder.path(), &[&create[..], &["9000-01-31T00:00Z"]].concat());
    created.expect_code(0);
    let listed = run_tidings(folder.path(), &["token", "ls"]).expect_code(0).stdout();
    assert!(listed[0].ends_with(" expires=9000-01-31T00:00:00Z"), "{listed:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn the_address_of_the_dashboard_has_a_token_that_expires() {
    let (server, [_]) = broker([("op", &["all"])], &[]);
    let (folder, http) = (server.folder.path(), HttpClient::new(&server));
    let dashboard = |flags: &[&str]| {
        let flags = [&["dashboard", "--http", http.authority()], flags].concat();
        let printed = run_tidings(folder, &flags).expect_code(0).stdout();
        let [address] = &printed[..] else { panic!("{printed:?}") };
        let (page, token) = address.split_once("#token=").unwrap();
        assert_eq!(page, format!("{}/", http.base_url));
        token.to_owned()
    };
    let token = dashboard(&[]);
    wait_until("the token", || (status(&http, &token, "GET", "/stats") == 200).then_some(()));
    assert_eq!(status(&http, &token, "DELETE", "/groups/crawlers"), 403);
    let me = http.request("GET", "/me", &bearer(&token).each_ref().map(String::as_str)).json();
    let expires = me["expires"].as_str().unwrap();
    let listed = run_tidings(folder, &["token", "ls"]).expect_code(0).stdout();
    let (_, at) = listed[1].split_once(" expires=").unwrap();
    assert_eq!(expires.split('.').next(), at.split('.').next(), "to the millisecond");
    let admin = dashboard(&["--allow", "admin", "--expires", "1h"]);
    wait_until("the token", || (status(&http, &admin, "GET", "/stats") == 200).then_some(()));
    let listed = run_tidings(folder, &["token", "ls"]).expect_code(0).stdout();
    for (line, begin) in listed[1..]
        .iter()
        .zip(["dashboard-1 token allow=monitor ", "dashboard-2 token allow=admin "])
    {
        assert!(line.starts_with(begin) && line.contains(" expires="), "{listed:?}");
    }
}

#[test]
fn the_dashboard_is_opened_in_a_browser_without_a_token_where_none_is_needed() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("tidings-data")).unwrap();
    let program = folder.path().join("xdg-open");
    fs::write(&program, "#!/bin/sh\necho \"$@\" > opened\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let flags = ["dashboard", "--open", "--http", &address];
    let mut command = tidings_command(folder.path(), flags);
    let printed = Process::start(command.env("PATH", path)).finish().expect_code(0);
    assert_eq!(printed.stdout(), [format!("http://{address}/")]);
    assert!(printed.stderr().contains("this data directory requires no login"), "{printed:?}");
    let opened = fs::read_to_string(folder.path().join("opened")).unwrap();
    assert_eq!(opened, format!("http://{address}/\n"));
    assert!(!folder.path().join("tidings-data/access.toml").exists());
}

#[test]
fn the_dashboard_makes_no_token_where_no_broker_listens() {
    let folder = TempDir::new().unwrap();
    create_token(folder.path(), "op", &["all"]);
    let address = free_address().to_string();
    let refused = run_tidings(folder.path(), &["dashboard", "--http", &address]).expect_code(1);
    assert_eq!((refused.stdout().len(), refused.stderr().lines().count()), (0, 1), "{refused:?}");
    assert!(refused.stderr().contains("cannot connect to http://127.0.0.1:"), "{refused:?}");
    let listed = run_tidings(folder.path(), &["token", "ls"]).expect_code(0).stdout();
    assert_eq!(listed.len(), 1, "{listed:?}");
}
