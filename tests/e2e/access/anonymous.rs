//! Costs and limits of clients before login, and of clients after a revocation.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use serde_json::json;

use crate::access::tokens::{broker, logged_in};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::pipelined_connection::{PipelinedConnection, connect_tcp_from};
use crate::support::process::{run_tidings, tidings_command};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

// PROTOCOL: H7
#[test]
#[ignore = "needs foreign programs"]
fn a_job_wait_over_http_ends_when_its_permission_is_revoked() {
    let (server, [operator_token, alice_token, bob_token]) =
        broker([("op", &["all"][..]), ("alice", &["job:docs"]), ("bob", &["monitor"])], &[]);
    let http = HttpClient::new(&server);
    logged_in(&server, &operator_token).request_ok("JOB open docs");
    let wait = |token: &str| {
        let bearer = format!("Authorization: Bearer {token}");
        let words = ["-H", &bearer, "-w", "\n%{http_code}\n"];
        http.stream("/jobs/docs?wait=5m", &words)
    };
    let (alice, bob) = (wait(&alice_token), wait(&bob_token));
    let mut operator = logged_in(&server, &operator_token);
    // Both requests wait when there are three connections: theirs and that of the operator.
    wait_until("both requests to wait", || {
        let response = operator.request_lines("STATS");
        response[0].starts_with("+ connections=3 ").then_some(())
    });
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    let output = alice.finish().expect_code(0).stdout();
    assert_eq!(output.last().unwrap(), "401", "{output:?}");
    assert!(output[0].contains("unauthenticated"), "{output:?}");
    // A change that keeps the permission does not end the request; a change that removes it does.
    run_tidings(folder, &["token", "set", "bob", "--allow", "job:*"]).expect_code(0);
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:*"]).expect_code(0);
    let output = bob.finish().expect_code(0).stdout();
    assert_eq!(output.last().unwrap(), "403", "{output:?}");
}

// PROTOCOL: S17
#[test]
#[ignore = "needs foreign programs"]
fn input_before_login_is_limited() {
    let (server, [token]) = broker([("alice", &["pub:*"])], &[]);
    let long = "x".repeat(60_000);
    let mut anonymous = LineConnection::connect(server.address);
    anonymous.read_line();
    anonymous.send(&long[..2_048]);
    anonymous.send("\n");
    let response = anonymous.read_line();
    assert!(
        response.starts_with("-ERR unauthenticated "),
        "response to the longest permitted line: {response}"
    );
    // A longer first line may belong to any protocol, so the broker closes without an answer.
    let mut anonymous = LineConnection::connect(server.address);
    anonymous.read_line();
    anonymous.send(&long);
    anonymous.expect_closed();
    let mut anonymous = LineConnection::connect(server.address);
    anonymous.read_line();
    assert!(anonymous.request("PING").starts_with("PONG "));
    anonymous.send(&long);
    let response = anonymous.read_to_end();
    assert!(response.len() == 1 && response[0].starts_with("-ERR too-long "), "{response:?}");
    // A client that has logged in may send long lines, also in the same write as its `HELLO`.
    let mut alice = LineConnection::connect(server.address);
    alice.read_line();
    alice.send(format!("HELLO token={token}\nPUB t {long}\n"));
    assert!(alice.read_line().starts_with("+OK tidings"));
    assert_eq!(alice.read_line(), "+OK 1 1");
    let http = HttpClient::new(&server);
    let head = |bytes: usize| format!("X: {}", &long[..bytes]);
    assert_eq!(http.request("GET", "/health", &["-H", &head(4_900)]).status, 200);
    assert_eq!(http.request("GET", "/health", &["-H", &head(7_000)]).status, 431);
    // The response must arrive. If the broker closed the connection with unread input, it could be
    // lost.
    let mut wire = PipelinedConnection::new(connect_tcp_from(
        http.authority().parse().unwrap(),
        Ipv4Addr::LOCALHOST,
    ));
    wire.send(format!("GET /health HTTP/1.1\r\nX: {}", long.repeat(20)));
    assert_eq!(wire.read_head().map(|(status, _)| status), Some(431));
    // The broker answers many commands of an anonymous client one after the other.
    let mut anonymous = LineConnection::connect(server.address);
    anonymous.read_line();
    anonymous.send("SUB t\nPUB t x\nHELP\n".repeat(300));
    let mut refused = 0;
    while refused < 600 {
        refused += usize::from(anonymous.read_line().starts_with("-ERR unauthenticated "));
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_connection_uses_little_memory_before_login() {
    const WARM_UP_CONNECTIONS: usize = 150;
    const CONNECTIONS: usize = 400;
    // The longest input that the broker buffers for each connection.
    let unfinished = "x".repeat(2_048);
    let head = format!("GET /topics HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(5_066));
    // Of complete heads, many short fields use the most memory.
    let fields: Vec<_> = (0..95).map(|at| format!("x{at:02}: {}\r\n", "y".repeat(45))).collect();
    let fields = fields.concat();
    let request =
        format!("POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n{fields}\r\nx");
    for (input, is_http, text, bytes_max) in [
        ("lines", false, unfinished, 8 << 10),
        ("HTTP", true, head, 8 << 10),
        ("a request by HTTP", true, request, 64 << 10),
    ] {
        // Each case starts its own broker, which cannot reuse memory of the case before.
        let (server, _) = broker([("alice", &["all"])], &[]);
        let http = HttpClient::new(&server);
        let line = server.address.to_string();
        let address = if is_http { http.authority() } else { &line };
        let open = |count: usize| -> Vec<TcpStream> {
            let connect = |_| {
                let stream = TcpStream::connect(address).unwrap();
                std::io::Write::write_all(&mut &stream, text.as_bytes()).unwrap();
                stream
            };
            (0..count).map(connect).collect()
        };
        let stats = || {
            let socket = server.data_dir().join("broker.sock");
            let mut nc = Command::new("sh");
            let script = format!("printf 'STATS\\nQUIT\\n' | nc -NU {}", socket.display());
            let output = nc.args(["-c", &script]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let is_read = |count: usize| {
            wait_until("the broker to read all input", || {
                let stats = stats();
                let connections = stats.split("connections=").nth(1)?.split(' ').next()?;
                (connections.parse::<usize>().ok()? > count).then_some(())
            });
        };
        // The first connections pay for what the broker allocates once.
        let first = open(WARM_UP_CONNECTIONS);
        is_read(WARM_UP_CONNECTIONS);
        let before = server.process.resident_memory_bytes();
        let more = open(CONNECTIONS);
        is_read(WARM_UP_CONNECTIONS + CONNECTIONS);
        let each = (server.process.resident_memory_bytes() - before) / CONNECTIONS as u64;
        eprintln!("{input}: {each} bytes for each connection");
        assert!(each <= bytes_max, "{input}: {each} bytes for each connection");
        drop((first, more));
    }
}

#[test]
fn an_invalid_token_in_the_environment_is_rejected() {
    let (server, _) = broker([("alice", &["all"])], &[]);
    let folder = server.folder.path();
    let words = ["topic", "ls", "--broker", &server.address_text()];
    let mut command = tidings_command(folder, words);
    let ended = command.env("TIDINGS_TOKEN", "two words").output().unwrap();
    let output = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{output}");
    assert!(output.contains("TIDINGS_TOKEN") && !output.contains("two words"), "{output}");
    // A token file has precedence over the environment.
    fs::write(folder.join("t"), "tdg_x").unwrap();
    let mut command = tidings_command(folder, [&words[..], &["--token-file", "t"]].concat());
    let ended = command.env("TIDINGS_TOKEN", "two words").output().unwrap();
    let output = String::from_utf8_lossy(&ended.stderr);
    assert!(output.contains("no principal has this token"), "{output}");
}

/// Monitoring needs no token, and learns nothing else.
#[test]
#[ignore = "needs foreign programs"]
fn anonymous_clients_see_only_health_and_readiness() {
    let (server, [operator_token]) = broker([("op", &["all"])], &[]);
    assert_eq!(logged_in(&server, &operator_token).request("PUB secret x"), "+OK 1 1");
    let http = HttpClient::new(&server);
    let ready = json!({ "ready": true, "stops": false, "full": [], "sync-failed": [] });
    for (path, expected) in [("/health", json!({ "status": "ok" })), ("/ready", ready)] {
        let got = http.get(path);
        assert_eq!((got.status, got.json()), (200, expected), "{path}");
        for name in ["set-cookie", "www-authenticate", "server", "x-powered-by"] {
            assert_eq!(got.header(name), None, "{path}");
        }
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(http.request(method, path, &[]).status, 405, "{method} {path}");
        }
    }
    let refused = http.get("/topics");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"tidings\""));
}

#[test]
#[ignore = "needs foreign programs"]
fn anonymous_clients_see_no_topic_names_when_the_disk_is_full() {
    let disk = SmallDisk::mount(24);
    let token = |name: &str, right: &str| {
        let words = ["token", "create", name, "--allow", right];
        format!("Authorization: Bearer {}", disk.run_tidings(&words).expect_code(0).stdout()[0])
    };
    let (alice_token, bob_token) = (token("alice", "pub:secret"), token("bob", "monitor"));
    let server = disk.start_broker_with(&[]);
    let http = HttpClient::new(&server);
    let body = format!("{}\n", "x".repeat(50_000)).repeat(20);
    disk.fill_except(1 << 20);
    // The topic takes events until the disk is full.
    wait_until("a full disk", || {
        http.send_body("POST", "/topics/secret", "text/plain", &[&alice_token], &body);
        disk.fill_except(0);
        (http.get("/ready").status == 503).then_some(())
    });
    for (header, full) in
        [(None, json!([])), (Some(&alice_token), json!([])), (Some(&bob_token), json!(["secret"]))]
    {
        let login = header.map_or(Vec::new(), |bearer| vec!["-H", bearer]);
        let got = http.request("GET", "/ready", &login);
        let expected = json!({ "ready": false, "stops": false, "full": full, "sync-failed": [] });
        assert_eq!((got.status, got.json()), (503, expected), "{header:?}");
        assert_eq!(http.request("GET", "/health", &login).status, 200, "{header:?}");
    }
}
