//! Limits of an address and of a principal, with netcat, curl and commands as clients.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_tidings};
use crate::support::wait::wait_until;

/// A broker that applies the limits to loopback addresses, too.
#[track_caller]
fn broker(limits: &[&str]) -> Server {
    broker_in(TempDir::new().unwrap(), limits)
}

#[track_caller]
fn broker_in(folder: TempDir, limits: &[&str]) -> Server {
    let limits = limits.iter().flat_map(|limit| ["--limit", limit]);
    let flags: Vec<_> = ["broker", "--limit-loopback"].into_iter().chain(limits).collect();
    Server::start_in(folder, &flags, |_| {})
}

#[track_caller]
fn connect(server: &Server) -> LineConnection {
    let mut connection = LineConnection::connect(server.address);
    let greeting = connection.read_line();
    assert!(greeting.starts_with("Connected."), "{greeting}");
    connection
}

fn start_nc(server: &Server) -> Process {
    Process::start(Command::new("nc").args(["127.0.0.1", &server.address.port().to_string()]))
}

#[test]
fn silent_clients_are_probed_after_a_minute() {
    let server = Server::start_broker();
    let line = LineConnection::connect_client(server.address);
    let http = HttpClient::new(&server).authority().parse().unwrap();
    let stream = TcpStream::connect::<SocketAddr>(http).unwrap();
    for port in [server.address.port(), http.port()] {
        let left = wait_until("a connection with a keepalive timer", || {
            let table = fs::read_to_string("/proc/net/tcp").unwrap();
            table.lines().skip(1).find_map(|line| {
                let fields: Vec<_> = line.split_ascii_whitespace().collect();
                // proc(5): the local address, the state (01: established), and the kind of the
                // timer (02: keepalive) with its time in hundredths of a second.
                let is_ours = fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "01";
                let left = fields[5].strip_prefix("02:").filter(|_| is_ours)?;
                Some(u32::from_str_radix(left, 16).unwrap())
            })
        });
        assert!(left <= 60 * 100, "{left}");
    }
    drop((line, stream));
}

// PROTOCOL: S19
#[test]
#[ignore = "needs foreign programs"]
fn connections_of_one_address_are_limited() {
    let server = broker(&["source.connections=2"]);
    let (first, second) = (connect(&server), connect(&server));
    let third = start_nc(&server);
    third.wait_for_line_with("-ERR limit the address 127.0.0.1 has reached its limit of 2 ");
    assert_eq!(third.finish().stdout().len(), 1, "one error line, then the end");
    let http = HttpClient::new(&server);
    assert!(http.try_request("GET", "/health", &[]).is_err(), "HTTP connections count, too");
    drop(first);
    wait_until("a free connection", || {
        let mut connection = LineConnection::connect(server.address);
        connection.read_line().starts_with("Connected.").then_some(())
    });
    drop(second);
}

// PROTOCOL: S19
#[test]
#[ignore = "needs foreign programs"]
fn a_fast_publisher_is_slowed_down_without_loss() {
    let server = broker(&["source.events=500", "source.connects=none"]);
    let mut subscriber = connect(&server);
    assert_eq!(subscriber.request("SUB new-url"), "+OK");
    let mut sender = start_nc(&server);
    // Events of three seconds at the rate limit: one second is in the burst, and two must be waited
    // for.
    for batch in 0..15 {
        for at in 0..100 {
            sender.write(format!("PUB new-url {batch} {at}\n"));
        }
    }
    for at in 0..1_500 {
        let line = subscriber.read_line();
        assert!(line.ends_with(&format!(" {} {}", at / 100, at % 100)), "{at}: {line}");
    }
    let http = HttpClient::new(&server);
    wait_until("a burst to be accepted at once", || {
        let got = http.post_lines("/topics/new-url", &"x\n".repeat(2_000));
        (got.status == 200).then_some(())
    });
    let got = http.post_lines("/topics/new-url", "x");
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")));
    let seconds: u64 = got.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=4).contains(&seconds), "{seconds}");
    assert_eq!(http.get("/topics").status, 200, "reading is still allowed");
}

/// A request without its body, for which the broker waits.
struct PendingRequest {
    stream: TcpStream,
    body: String,
}

impl PendingRequest {
    #[track_caller]
    fn start(http: &HttpClient, path: &str, body: String) -> Self {
        let address = http.base_url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let bytes = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {bytes}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = [0; 25];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"HTTP/1.1 100 Continue\r\n\r\n");
        Self { stream, body }
    }

    fn send_body(&mut self) -> String {
        self.stream.write_all(self.body.as_bytes()).unwrap();
        let mut response = String::new();
        self.stream.read_to_string(&mut response).unwrap();
        response
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn added_urls_count_as_events_and_rejected_bodies_as_bytes() {
    let server = broker(&["source.events=100", "source.bytes=20000", "source.connects=none"]);
    let http = HttpClient::new(&server);
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job": "docs"}"#).status, 200);
    let seeds = |first: usize| {
        let urls: Vec<_> = (first..first + 400).map(|n| format!("http://a.example/{n}")).collect();
        serde_json::json!({ "urls": urls }).to_string()
    };
    // A body may arrive late, and requests that arrive meanwhile use the same limit.
    let events = serde_json::json!({ "events": ["http://a.example/"] }).to_string();
    let pending = [("/jobs/docs/urls", seeds(400)), ("/topics/late", events)];
    let pending = pending.map(|(path, body)| PendingRequest::start(&http, path, body));
    assert_eq!(http.send_json("POST", "/jobs/docs/urls", &seeds(0)).status, 200);
    for mut pending in pending {
        let answer = pending.send_body();
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    }
    for (path, body) in
        [("/jobs/docs/urls", seeds(400)), ("/jobs", r#"{"job": "other"}"#.to_owned())]
    {
        let got = http.send_json("POST", path, &body);
        assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
    }
    assert_eq!(http.get("/jobs/other").status, 404, "the rejected job does not exist");
    let until_it_may_go_on = || {
        wait_until("the rate limit to recover", || {
            (http.post_lines("/topics/new-url", "http://a.example/").status == 200).then_some(())
        });
    };
    // The seeds of a new job count as well. The event before may have used the tokens of the next
    // 10 ms.
    let opened = seeds(800).replacen('{', r#"{"job": "seeded", "#, 1);
    wait_until("the job to be opened", || {
        until_it_may_go_on();
        (http.send_json("POST", "/jobs", &opened).status == 200).then_some(())
    });
    assert_eq!(http.post_lines("/topics/new-url", "http://a.example/").status, 429);
    until_it_may_go_on();
    // A rejected body counts, because the broker has read it. The event before may have used the
    // tokens, as above.
    let control = format!("\u{7}{}", "x".repeat(60_000));
    wait_until("a body to be rejected for its content", || {
        (http.post_lines("/topics/new-url", &control).status == 400).then_some(())
    });
    let got = http.post_lines("/topics/new-url", "http://a.example/");
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
}

// PROTOCOL: S19
#[test]
#[ignore = "needs foreign programs"]
fn limits_of_a_principal_cover_all_its_connections() {
    let folder = TempDir::new().unwrap();
    let token = |name| {
        let words = ["token", "create", name, "--allow", "pub:*", "--allow", "sub:*"];
        let rights = ["--allow", "group:*", "--allow", "job:*", "--allow", "admin"];
        let words: Vec<_> = words.into_iter().chain(rights).collect();
        run_tidings(folder.path(), &words).expect_code(0).stdout()[0].clone()
    };
    let (alice_token, bob_token) = (token("alice"), token("bob"));
    let kinds = ["topics", "subscriptions", "groups", "jobs", "credit"];
    let limits = kinds.map(|kind| format!("principal.{kind}=2"));
    let mut limits: Vec<_> = limits.iter().map(String::as_str).collect();
    limits.push("principal.connections=3");
    let server = broker_in(folder, &limits);
    let log_in = |token: &str| {
        let mut connection = connect(&server);
        let hello = connection.request(&format!("HELLO token={token}"));
        (connection, hello)
    };
    let (mut one, hello) = log_in(&alice_token);
    assert!(hello.starts_with("+OK"), "{hello}");
    let (mut two, _) = log_in(&alice_token);
    let (mut bob, _) = log_in(&bob_token);
    for (kind, allowed, rejected) in [
        ("topics", ["PUB t1 x", "TOPIC create t2"], ["PUB t3 x", "SUB t3"]),
        ("subscriptions", ["SUB new-url", "SUB t1"], ["SUB t2", "SUB dead-letter"]),
        ("groups", ["GROUP create g1", "GROUP create g2"], ["GROUP create g3", "GROUP create g4"]),
        ("jobs", ["JOB open j1", "JOB open j2"], ["JOB open j3", "JOB open j4 group=g1"]),
        ("credit", ["JOIN g1 credit=1", "JOIN g2 credit=1"], ["JOIN g1 credit=2", "JOIN crawlers"]),
    ] {
        // One connection uses what the other one is then denied.
        for (connection, line) in [&mut one, &mut two].into_iter().zip(allowed) {
            connection.request_ok(line);
        }
        for (connection, line) in [&mut two, &mut one].into_iter().zip(rejected) {
            let response = connection.request(line);
            assert!(
                response.starts_with("-ERR limit ")
                    && response.contains("alice has reached its limit of 2 "),
                "{line}: {response}"
            );
        }
        // Another principal has its own limits.
        let response = bob.request(rejected[0]);
        assert!(response.starts_with("+OK"), "{kind}: {}: {response}", rejected[0]);
    }
    // What has ended no longer counts.
    one.request_ok("JOB cancel j1");
    wait_until("the job to be done", || {
        two.request("JOB open j6").starts_with("+OK").then_some(())
    });
    assert_eq!(one.request("UNSUB new-url"), "+OK");
    assert_eq!(two.request("SUB dead-letter"), "+OK");
    let http = HttpClient::new(&server);
    let bearer = format!("Authorization: Bearer {alice_token}");
    let json = "Content-Type: application/json";
    let got = http.request("POST", "/jobs", &["-H", &bearer, "-H", json, "-d", r#"{"job":"j5"}"#]);
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
    // The connection that curl closed counts until the broker notices.
    let _three = wait_until("a third connection", || {
        let (connection, hello) = log_in(&alice_token);
        hello.starts_with("+OK").then_some(connection)
    });
    let (mut four, hello) = log_in(&alice_token);
    assert!(hello.starts_with("-ERR limit alice has reached its limit of 3 "), "{hello}");
    assert!(
        four.request("SUB new-url").starts_with("-ERR unauthenticated "),
        "the connection is still anonymous"
    );
}

#[test]
fn durable_cursors_are_limited_by_principal_and_address() {
    let folder = TempDir::new().unwrap();
    let token = |name| {
        let words = ["token", "create", name, "--allow", "sub:x", "--allow", "admin"];
        run_tidings(folder.path(), &words).expect_code(0).stdout()[0].clone()
    };
    let (alice_token, bob_token) = (token("alice"), token("bob"));
    let server = broker_in(folder, &["principal.cursors=20", "source.cursors=30"]);
    let log_in = |token: &str| {
        let mut connection = connect(&server);
        connection.request_ok(&format!("HELLO token={token}"));
        connection
    };
    // All cursors at once, each released before it is stored.
    let make = |connection: &mut LineConnection, cursor_prefix: &str, many: usize| {
        let lines = (0..many).map(|at| format!("SUB x as={cursor_prefix}-{at}\nUNSUB x\n"));
        connection.send(lines.collect::<String>());
        (0..many)
            .map(|_| [connection.read_line(), connection.read_line()])
            .map(|[response, _]| response)
            .collect::<Vec<_>>()
    };
    let count_created =
        |responses: &[String]| responses.iter().filter(|line| line.starts_with("+OK")).count();
    let mut alice = log_in(&alice_token);
    let responses = make(&mut alice, "alice", 200);
    assert_eq!(count_created(&responses), 20, "{responses:?}");
    assert!(
        responses[20].starts_with("-ERR limit alice has reached its limit of 20 durable cursors"),
        "{}",
        responses[20]
    );
    drop(alice);
    let mut alice = log_in(&alice_token);
    assert_eq!(count_created(&make(&mut alice, "again", 5)), 0, "a reconnect does not free them");
    alice.request_ok("SUB x as=alice-3");
    // Another principal has its own limit, but shares the limit of the address.
    let responses = make(&mut log_in(&bob_token), "bob", 15);
    assert_eq!(count_created(&responses), 10, "{responses:?}");
    assert!(
        responses[10]
            .starts_with("-ERR limit the address 127.0.0.1 has reached its limit of 30 durable"),
        "{}",
        responses[10]
    );
    assert_eq!(alice.request("UNSUB x"), "+OK");
    alice.request_ok("TOPIC forget x cursor=alice-0");
    assert_eq!(
        count_created(&make(&mut alice, "again", 5)),
        1,
        "a deleted cursor no longer counts"
    );
}

#[test]
fn parked_links_are_limited() {
    let server = broker(&["source.parked=64k"]);
    let mut worker = connect(&server);
    for at in 0..2_000 {
        worker.send(format!("LINK crawlers:1.{at}.1 http://a.example/{}\n", "x".repeat(100)));
    }
    let response = worker.read_line();
    assert!(
        response.starts_with(
            "-ERR limit the address 127.0.0.1 has reached its limit of 65536 bytes waiting"
        ),
        "{response}"
    );
    worker.expect_closed();
    connect(&server);
}
