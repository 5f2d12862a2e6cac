//! What those cost and hold who have not logged in, or may not stay.

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
fn a_job_wait_over_http_ends_when_its_permission_is_revoked() {
    let (server, [all, hers, his]) =
        broker([("op", &["all"][..]), ("she", &["job:docs"]), ("he", &["monitor"])], &[]);
    let http = HttpClient::new(&server);
    assert!(logged_in(&server, &all).request("JOB open docs").starts_with("+OK"));
    let wait = |token: &str| {
        let bearer = format!("Authorization: Bearer {token}");
        let words = ["-H", &bearer, "-w", "\n%{http_code}\n"];
        http.stream("/jobs/docs?wait=5m", &words)
    };
    let (she, he) = (wait(&hers), wait(&his));
    let mut operator = logged_in(&server, &all);
    // Both wait: each is a connection beside that of the operator.
    wait_until("both wait", || {
        let said = operator.request_lines("STATS");
        said[0].starts_with("+ connections=3 ").then_some(())
    });
    let folder = server.folder.path();
    run_tidings(folder, &["token", "revoke", "she"]).expect_code(0);
    let said = she.finish().expect_code(0).stdout();
    assert_eq!(said.last().unwrap(), "401", "{said:?}");
    assert!(said[0].contains("unauthenticated"), "{said:?}");
    // What is changed and leaves this to somebody ends nothing; what takes it away does.
    run_tidings(folder, &["token", "set", "he", "--allow", "job:*"]).expect_code(0);
    run_tidings(folder, &["token", "set", "he", "--allow", "sub:*"]).expect_code(0);
    let said = he.finish().expect_code(0).stdout();
    assert_eq!(said.last().unwrap(), "403", "{said:?}");
}

// PROTOCOL: S17
#[test]
fn input_before_login_is_limited() {
    let (server, [token]) = broker([("she", &["pub:*"])], &[]);
    let long = "x".repeat(60_000);
    let mut stranger = LineConnection::connect(server.address);
    stranger.read_line();
    stranger.send(&long[..2_047]);
    stranger.send("\n");
    let said = stranger.read_line();
    assert!(said.starts_with("-ERR unauthenticated "), "the longest line that is read: {said}");
    // A first line that is longer may be anything, and is answered as little.
    let mut stranger = LineConnection::connect(server.address);
    stranger.read_line();
    stranger.send(&long);
    stranger.expect_closed();
    let mut stranger = LineConnection::connect(server.address);
    stranger.read_line();
    assert!(stranger.request("PING").starts_with("PONG "));
    stranger.send(&long);
    let said = stranger.read_to_end();
    assert!(said.len() == 1 && said[0].starts_with("-ERR too-long "), "{said:?}");
    // Whoever has logged in says what it has to say, also in one go with that.
    let mut she = LineConnection::connect(server.address);
    she.read_line();
    she.send(format!("HELLO token={token}\nPUB t {long}\n"));
    assert!(she.read_line().starts_with("+OK tidings"));
    assert_eq!(she.read_line(), "+OK 1 1");
    let http = HttpClient::new(&server);
    let head = |bytes: usize| format!("X: {}", &long[..bytes]);
    assert_eq!(http.request("GET", "/health", &["-H", &head(4_900)]).status, 200);
    assert_eq!(http.request("GET", "/health", &["-H", &head(7_000)]).status, 431);
    // Its answer arrives, whatever else was sent: closed over something unread, it might not.
    let mut wire = PipelinedConnection::new(connect_tcp_from(
        http.authority().parse().unwrap(),
        Ipv4Addr::LOCALHOST,
    ));
    wire.send(format!("GET /health HTTP/1.1\r\nX: {}", long.repeat(20)));
    assert_eq!(wire.read_head().map(|(status, _)| status), Some(431));
    // Many commands of a stranger are answered one after the other.
    let mut stranger = LineConnection::connect(server.address);
    stranger.read_line();
    stranger.send("SUB t\nPUB t x\nHELP\n".repeat(300));
    let mut refused = 0;
    while refused < 600 {
        refused += usize::from(stranger.read_line().starts_with("-ERR unauthenticated "));
    }
}

#[test]
fn a_connection_uses_little_memory_before_login() {
    const FIRST: usize = 150;
    const CONNECTIONS: usize = 400;
    // The longest that is kept of each.
    let unfinished = "x".repeat(2_047);
    let head = format!("GET /topics HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(5_066));
    // Of a request that is whole but for its body fields cost most.
    let fields: Vec<_> = (0..95).map(|at| format!("x{at:02}: {}\r\n", "y".repeat(45))).collect();
    let fields = fields.concat();
    let request =
        format!("POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n{fields}\r\nx");
    for (what, is_http, text, bytes_max) in [
        ("lines", false, unfinished, 8 << 10),
        ("HTTP", true, head, 8 << 10),
        ("a request by HTTP", true, request, 64 << 10),
    ] {
        // A broker of its own: memory that others had would be used again.
        let (server, _) = broker([("she", &["all"])], &[]);
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
            let ask = format!("printf 'STATS\\nQUIT\\n' | nc -NU {}", socket.display());
            let said = nc.args(["-c", &ask]).output().unwrap();
            String::from_utf8(said.stdout).unwrap()
        };
        let is_read = |count: usize| {
            wait_until("all of it to be read", || {
                let stats = stats();
                let connections = stats.split("connections=").nth(1)?.split(' ').next()?;
                (connections.parse::<usize>().ok()? > count).then_some(())
            });
        };
        // What is made once for all of them.
        let first = open(FIRST);
        is_read(FIRST);
        let before = server.process.resident_memory_bytes();
        let more = open(CONNECTIONS);
        is_read(FIRST + CONNECTIONS);
        let each = (server.process.resident_memory_bytes() - before) / CONNECTIONS as u64;
        eprintln!("{what}: {each} bytes for each connection");
        assert!(each <= bytes_max, "{what}: {each} bytes for each connection");
        drop((first, more));
    }
}

#[test]
fn an_invalid_token_in_the_environment_is_rejected() {
    let (server, _) = broker([("she", &["all"])], &[]);
    let folder = server.folder.path();
    let words = ["topic", "ls", "--broker", &server.address_text()];
    let mut command = tidings_command(folder, words);
    let ended = command.env("TIDINGS_TOKEN", "two words").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("TIDINGS_TOKEN") && !said.contains("two words"), "{said}");
    // A file that is named goes before it.
    fs::write(folder.join("t"), "tdg_x").unwrap();
    let mut command = tidings_command(folder, [&words[..], &["--token-file", "t"]].concat());
    let ended = command.env("TIDINGS_TOKEN", "two words").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("no principal has this token"), "{said}");
}

/// Whoever watches from outside needs no token, and learns nothing but that.
#[test]
fn anonymous_clients_see_only_health_and_readiness() {
    let (server, [all]) = broker([("op", &["all"])], &[]);
    assert_eq!(logged_in(&server, &all).request("PUB secret x"), "+OK 1 1");
    let http = HttpClient::new(&server);
    let ready = json!({ "ready": true, "stops": false, "full": [], "sync-failed": [] });
    for (path, told) in [("/health", json!({ "status": "ok" })), ("/ready", ready)] {
        let got = http.get(path);
        assert_eq!((got.status, got.json()), (200, told), "{path}");
        for name in ["set-cookie", "www-authenticate", "server", "x-powered-by"] {
            assert_eq!(got.header(name), None, "{path}");
        }
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(http.request(method, path, &[]).status, 405, "{method} {path}");
        }
    }
}

#[test]
fn anonymous_clients_see_no_topic_names_when_the_disk_is_full() {
    let disk = SmallDisk::mount(24);
    let token = |name: &str, right: &str| {
        let words = ["token", "create", name, "--allow", right];
        format!("Authorization: Bearer {}", disk.run_tidings(&words).expect_code(0).stdout()[0])
    };
    let (hers, his) = (token("she", "pub:secret"), token("he", "monitor"));
    let server = disk.start_broker_with(&[]);
    let http = HttpClient::new(&server);
    let body = format!("{}\n", "x".repeat(50_000)).repeat(20);
    disk.fill_except(1 << 20);
    // Whatever still fits is taken.
    wait_until("a full disk", || {
        http.send_body("POST", "/topics/secret", "text/plain", &[&hers], &body);
        disk.fill_except(0);
        (http.get("/ready").status == 503).then_some(())
    });
    for (who, full) in
        [(None, json!([])), (Some(&hers), json!([])), (Some(&his), json!(["secret"]))]
    {
        let login = who.map_or(Vec::new(), |bearer| vec!["-H", bearer]);
        let got = http.request("GET", "/ready", &login);
        let told = json!({ "ready": false, "stops": false, "full": full, "sync-failed": [] });
        assert_eq!((got.status, got.json()), (503, told), "{who:?}");
        assert_eq!(http.request("GET", "/health", &login).status, 200, "{who:?}");
    }
}
