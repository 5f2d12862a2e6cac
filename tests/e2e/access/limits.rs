//! What one address and one principal may have, as netcat, curl and commands find it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_tidings};
use crate::support::wait::wait_until;

/// A broker that counts who comes from this machine as others.
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
    let mut talk = LineConnection::connect(server.address);
    let greeting = talk.read_line();
    assert!(greeting.starts_with("Connected."), "{greeting}");
    talk
}

fn start_nc(server: &Server) -> Process {
    Process::start(Command::new("nc").args(["127.0.0.1", &server.address.port().to_string()]))
}

// PROTOCOL: S19
#[test]
fn connections_of_one_address_are_limited() {
    let server = broker(&["source.connections=2"]);
    let (first, second) = (connect(&server), connect(&server));
    let third = start_nc(&server);
    third.wait_for_line_with("-ERR limit the address 127.0.0.1 has reached its limit of 2 ");
    assert_eq!(third.finish().stdout().len(), 1, "it is told that, and closed");
    let http = HttpClient::new(&server);
    assert!(http.try_request("GET", "/health", &[]).is_err(), "HTTP is counted with lines");
    drop(first);
    wait_until("there is room", || {
        let mut talk = LineConnection::connect(server.address);
        talk.read_line().starts_with("Connected.").then_some(())
    });
    drop(second);
}

#[test]
fn new_connections_are_rate_limited() {
    let server = broker(&["source.connects=8"]);
    // The first was the look whether it is there.
    let said: Vec<_> =
        (0..4).map(|_| LineConnection::connect(server.address).read_line()).collect();
    let refused = said.iter().filter(|line| {
        line.starts_with(
            "-ERR limit the address 127.0.0.1 has more than 8 new connections a minute",
        )
    });
    assert!((2..=4).contains(&refused.count()), "{said:?}");
}

// PROTOCOL: S19
#[test]
fn a_fast_publisher_is_slowed_down_without_loss() {
    let server = broker(&["source.events=500", "source.connects=none"]);
    let mut hears = connect(&server);
    assert_eq!(hears.request("SUB new-url"), "+OK");
    let mut sender = start_nc(&server);
    // Three seconds' worth: one ahead, and two that have to be waited for.
    for batch in 0..15 {
        for at in 0..100 {
            sender.write(format!("PUB new-url {batch} {at}\n"));
        }
    }
    for at in 0..1_500 {
        let line = hears.read_line();
        assert!(line.ends_with(&format!(" {} {}", at / 100, at % 100)), "{at}: {line}");
    }
    let http = HttpClient::new(&server);
    wait_until("what comes at once is taken at once", || {
        let got = http.post_lines("/topics/new-url", &"x\n".repeat(2_000));
        (got.status == 200).then_some(())
    });
    let got = http.post_lines("/topics/new-url", "x");
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")));
    let seconds: u64 = got.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=4).contains(&seconds), "{seconds}");
    assert_eq!(http.get("/topics").status, 200, "it may still look");
}

/// A request of which the broker awaits the body.
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
        let mut said = [0; 25];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
        Self { stream, body }
    }

    fn send_body(&mut self) -> String {
        self.stream.write_all(self.body.as_bytes()).unwrap();
        let mut said = String::new();
        self.stream.read_to_string(&mut said).unwrap();
        said
    }
}

#[test]
fn added_urls_count_as_events_and_rejected_bodies_as_bytes() {
    let server = broker(&["source.events=100", "source.bytes=20000", "source.connects=none"]);
    let http = HttpClient::new(&server);
    assert_eq!(http.send_json("POST", "/jobs", r#"{"job": "docs"}"#).status, 200);
    let seeds = |first: usize| {
        let urls: Vec<_> = (first..first + 400).map(|n| format!("http://a.example/{n}")).collect();
        serde_json::json!({ "urls": urls }).to_string()
    };
    // A body may take its time, and what comes beside it meanwhile counts.
    let events = serde_json::json!({ "events": ["http://a.example/"] }).to_string();
    let late = [("/jobs/docs/urls", seeds(400)), ("/topics/late", events)];
    let late = late.map(|(path, body)| PendingRequest::start(&http, path, body));
    assert_eq!(http.send_json("POST", "/jobs/docs/urls", &seeds(0)).status, 200);
    for mut late in late {
        let answer = late.send_body();
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    }
    for (path, body) in
        [("/jobs/docs/urls", seeds(400)), ("/jobs", r#"{"job": "other"}"#.to_owned())]
    {
        let got = http.send_json("POST", path, &body);
        assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
    }
    assert_eq!(http.get("/jobs/other").status, 404, "none was opened");
    let until_it_may_go_on = || {
        wait_until("it may go on", || {
            (http.post_lines("/topics/new-url", "http://a.example/").status == 200).then_some(())
        });
    };
    // So do those that a job begins with. The event before may have taken what there was, for 10
    // ms.
    let opened = seeds(800).replacen('{', r#"{"job": "seeded", "#, 1);
    wait_until("the job is opened", || {
        until_it_may_go_on();
        (http.send_json("POST", "/jobs", &opened).status == 200).then_some(())
    });
    assert_eq!(http.post_lines("/topics/new-url", "http://a.example/").status, 429);
    until_it_may_go_on();
    // What is refused was read all the same.
    // The event before may have taken what there was, as above.
    let control = format!("\u{7}{}", "x".repeat(60_000));
    wait_until("a body is refused for its content", || {
        (http.post_lines("/topics/new-url", &control).status == 400).then_some(())
    });
    let got = http.post_lines("/topics/new-url", "http://a.example/");
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
}

// PROTOCOL: S19
#[test]
fn limits_of_a_principal_cover_all_its_connections() {
    let folder = TempDir::new().unwrap();
    let token = |name| {
        let words = ["token", "create", name, "--allow", "pub:*", "--allow", "sub:*"];
        let rights = ["--allow", "group:*", "--allow", "job:*", "--allow", "admin"];
        let words: Vec<_> = words.into_iter().chain(rights).collect();
        run_tidings(folder.path(), &words).expect_code(0).stdout()[0].clone()
    };
    let (hers, his) = (token("she"), token("he"));
    let kinds = ["topics", "subscriptions", "groups", "jobs", "credit"];
    let limits = kinds.map(|kind| format!("principal.{kind}=2"));
    let mut limits: Vec<_> = limits.iter().map(String::as_str).collect();
    limits.push("principal.connections=3");
    let server = broker_in(folder, &limits);
    let log_in = |token: &str| {
        let mut talk = connect(&server);
        let hello = talk.request(&format!("HELLO token={token}"));
        (talk, hello)
    };
    let (mut one, hello) = log_in(&hers);
    assert!(hello.starts_with("+OK"), "{hello}");
    let (mut two, _) = log_in(&hers);
    let (mut he, _) = log_in(&his);
    for (kind, right, wrong) in [
        ("topics", ["PUB t1 x", "TOPIC create t2"], ["PUB t3 x", "SUB t3"]),
        ("subscriptions", ["SUB new-url", "SUB t1"], ["SUB t2", "SUB dead-letter"]),
        ("groups", ["GROUP create g1", "GROUP create g2"], ["GROUP create g3", "GROUP create g4"]),
        ("jobs", ["JOB open j1", "JOB open j2"], ["JOB open j3", "JOB open j4 group=g1"]),
        ("credit", ["JOIN g1 credit=1", "JOIN g2 credit=1"], ["JOIN g1 credit=2", "JOIN crawlers"]),
    ] {
        // One connection has what the other does not get.
        for (talk, line) in [&mut one, &mut two].into_iter().zip(right) {
            let said = talk.request(line);
            assert!(said.starts_with("+OK"), "{kind}: {line}: {said}");
        }
        for (talk, line) in [&mut two, &mut one].into_iter().zip(wrong) {
            let said = talk.request(line);
            assert!(
                said.starts_with("-ERR limit ") && said.contains("she has reached its limit of 2 "),
                "{line}: {said}"
            );
        }
        // Somebody else has an account of its own.
        let said = he.request(wrong[0]);
        assert!(said.starts_with("+OK"), "{kind}: {}: {said}", wrong[0]);
    }
    // What is gone counts no more.
    assert!(one.request("JOB cancel j1").starts_with("+OK"));
    wait_until("it is done", || two.request("JOB open j6").starts_with("+OK").then_some(()));
    assert_eq!(one.request("UNSUB new-url"), "+OK");
    assert_eq!(two.request("SUB dead-letter"), "+OK");
    let http = HttpClient::new(&server);
    let bearer = format!("Authorization: Bearer {hers}");
    let json = "Content-Type: application/json";
    let got = http.request("POST", "/jobs", &["-H", &bearer, "-H", json, "-d", r#"{"job":"j5"}"#]);
    assert_eq!((got.status, got.json()["code"].as_str()), (429, Some("limit")), "{}", got.body);
    // The connection that curl has closed counts until the broker sees that.
    let _three = wait_until("room for a third", || {
        let (talk, hello) = log_in(&hers);
        hello.starts_with("+OK").then_some(talk)
    });
    let (mut four, hello) = log_in(&hers);
    assert!(hello.starts_with("-ERR limit she has reached its limit of 3 "), "{hello}");
    assert!(four.request("SUB new-url").starts_with("-ERR unauthenticated "), "it is nobody still");
}

#[test]
fn durable_cursors_are_limited_by_principal_and_address() {
    let folder = TempDir::new().unwrap();
    let token = |name| {
        let words = ["token", "create", name, "--allow", "sub:x", "--allow", "admin"];
        run_tidings(folder.path(), &words).expect_code(0).stdout()[0].clone()
    };
    let (hers, his) = (token("she"), token("he"));
    let server = broker_in(folder, &["principal.cursors=20", "source.cursors=30"]);
    let log_in = |token: &str| {
        let mut talk = connect(&server);
        let hello = talk.request(&format!("HELLO token={token}"));
        assert!(hello.starts_with("+OK"), "{hello}");
        talk
    };
    // All at once, and given back before they are stored.
    let make = |talk: &mut LineConnection, who: &str, many: usize| {
        let lines = (0..many).map(|at| format!("SUB x as={who}-{at}\nUNSUB x\n"));
        talk.send(lines.collect::<String>());
        (0..many)
            .map(|_| [talk.read_line(), talk.read_line()])
            .map(|[said, _]| said)
            .collect::<Vec<_>>()
    };
    let made_of = |said: &[String]| said.iter().filter(|line| line.starts_with("+OK")).count();
    let mut she = log_in(&hers);
    let said = make(&mut she, "she", 200);
    assert_eq!(made_of(&said), 20, "{said:?}");
    assert!(
        said[20].starts_with("-ERR limit she has reached its limit of 20 durable cursors"),
        "{}",
        said[20]
    );
    drop(she);
    let mut she = log_in(&hers);
    assert_eq!(made_of(&make(&mut she, "again", 5)), 0, "whoever comes back has them still");
    assert!(she.request("SUB x as=she-3").starts_with("+OK"), "it is there");
    // Somebody else has an account of their own, and the address they share one.
    let said = make(&mut log_in(&his), "he", 15);
    assert_eq!(made_of(&said), 10, "{said:?}");
    assert!(
        said[10]
            .starts_with("-ERR limit the address 127.0.0.1 has reached its limit of 30 durable"),
        "{}",
        said[10]
    );
    assert_eq!(she.request("UNSUB x"), "+OK");
    assert!(she.request("TOPIC forget x cursor=she-0").starts_with("+OK"));
    assert_eq!(made_of(&make(&mut she, "again", 5)), 1, "what is forgotten counts no more");
}

#[test]
fn parked_links_are_limited() {
    let server = broker(&["source.parked=64k"]);
    let mut worker = connect(&server);
    for at in 0..2_000 {
        worker.send(format!("LINK crawlers:1.{at}.1 http://a.example/{}\n", "x".repeat(100)));
    }
    let said = worker.read_line();
    assert!(
        said.starts_with(
            "-ERR limit the address 127.0.0.1 has reached its limit of 65536 bytes waiting"
        ),
        "{said}"
    );
    worker.expect_closed();
    connect(&server);
}

#[test]
fn an_invalid_limit_is_a_usage_error() {
    let folder = TempDir::new().unwrap();
    for wrong in ["source.connections", "all.jobs=3", "source.friends=3", "source.events=0"] {
        let ended = run_tidings(folder.path(), &["broker", "--limit", wrong]).expect_code(2);
        assert!(ended.stderr().contains("--limit"), "{ended:?}");
    }
}
