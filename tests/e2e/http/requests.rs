//! HTTP with curl on one side and netcat on the other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::{run_nc, start_nc};
use crate::support::process::Server;
use crate::support::wait::wait_until;

// PROTOCOL: H1, H2, H4
#[test]
#[ignore = "needs foreign programs"]
fn events_posted_by_curl_reach_netcat_and_survive_a_restart() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let listener = start_nc(server.address, &[]);
    listener.wait_for_line_with("Connected.");
    let answer = http.post_lines("/topics/new-url", "http://a.example/\r\n\nhttp://b.example/ x=1");
    assert_eq!((answer.status, answer.json()["seqs"].clone()), (200, json!([1, 2])));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    listener.wait_for_line_with("http://a.example/");
    listener.wait_for_line_with("http://b.example/ x=1");
    let events = json!({ "events": ["some text", { "target": "/srv/a", "attributes": { "b": "1", "a": "2" } }] });
    let answer = http.send_json("POST", "/topics/log", &events.to_string());
    assert_eq!(answer.json(), json!({ "topic": "log", "seqs": [1, 2] }));

    let server = server.restart("KILL", &["broker"]);
    let http = HttpClient::new(&server);
    let page = http.get("/topics/log?from=first").json();
    assert_eq!(seqs_and_payloads(&page), [(1, "some text"), (2, "/srv/a a=2 b=1")]);
    // The kill may have left a gap. The first request reports it, the second waits for new events.
    let next = page["next"].as_u64().unwrap();
    let missed = http.get(&format!("/topics/log?from={next}&wait=100ms")).json();
    let next = missed["next"].as_u64().unwrap();
    let waiting = http.stream(&format!("/topics/log?from={next}&wait=60s"), &[]);
    wait_until("a reader", || (http.get("/topics/log/state").json()["readers"] == 1).then_some(()));
    run_nc(server.address, "PUB log by netcat\nQUIT\n");
    waiting.wait_for_line_with(r#""payload":"by netcat""#);
    waiting.finish().expect_code(0);
}

fn seqs_and_payloads(page: &Value) -> Vec<(u64, &str)> {
    let events = page["events"].as_array().unwrap().iter();
    events.map(|it| (it["seq"].as_u64().unwrap(), it["payload"].as_str().unwrap())).collect()
}

// PROTOCOL: H4, H5
#[test]
#[ignore = "needs foreign programs"]
fn all_events_of_a_read_from_the_disk_arrive_with_their_times() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    // Each is too large to be joined with the one before it.
    for name in ["a", "b", "c"] {
        let answer = http.post_lines("/topics/log", &format!("{}\n", name.repeat(100)).repeat(300));
        assert_eq!(answer.status, 200);
    }
    let before = http.get("/topics/log?from=first").json();
    assert_eq!((seqs_and_payloads(&before).len(), &before["next"]), (900, &json!(901)));
    // These are joined, whatever their times.
    let of_two_seconds = wait_until("events of two seconds", || {
        http.post_lines("/topics/times", "/x\n");
        let page = http.get("/topics/times?from=first").json();
        let events = page["events"].as_array().unwrap();
        (events[0]["time"] != events.last().unwrap()["time"]).then_some(page)
    });

    // The memory of a broker that has started is empty.
    let server = server.restart("TERM", &["broker"]);
    let http = HttpClient::new(&server);
    let after = http.get("/topics/log?from=first").json();
    assert_eq!(after, before);
    assert_eq!(http.get("/topics/times?from=first").json(), of_two_seconds);
    let stream = http.stream("/topics/log/events?from=first", &[]);
    stream.wait_for_line_with("id: 900");
    for seq in 1..900 {
        assert!(stream.has_printed(&format!("id: {seq}")), "{seq}");
    }
    let last = after["events"][899]["time"].as_str().unwrap();
    let from = http.get(&format!("/topics/log?from={last}")).json();
    assert_eq!(seqs_and_payloads(&from).last(), seqs_and_payloads(&after).last());
}

// PROTOCOL: H11
#[test]
#[ignore = "needs foreign programs"]
fn a_half_closed_client_receives_its_responses() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let address = http.authority().parse().unwrap();
    let post = |body: &str| {
        format!(
            "POST /topics/log HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let answers =
        |lines: &[String]| lines.iter().filter(|line| line.contains("HTTP/1.1 200")).count();
    for round in 1..=50 {
        let received = run_nc(address, post("one"));
        assert_eq!(answers(&received), 1, "round {round}: {received:?}");
    }
    for round in 1..=20 {
        let received = run_nc(address, post("two").repeat(3));
        assert_eq!(answers(&received), 3, "pipelined, round {round}: {received:?}");
    }
    // A response longer than a socket buffer, for a client that reads slowly.
    http.post_lines("/topics/large", &format!("{}\n", "x".repeat(3_000)).repeat(300));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let received = run_nc(address, get("/topics/large?from=first")).concat();
    assert_eq!(received.matches("\"seq\":").count(), 300);
    let received = run_nc(address, get("/topics/empty?wait=50ms"));
    assert_eq!(answers(&received), 1, "a request that waits: {received:?}");
    // A stream has no end of its own, so it ends with its client.
    run_nc(address, get("/topics/log/events"));
    assert_eq!(http.events("log").len(), 110);
}

/// JSON of 4 MiB, the default limit of a body: the same value repeated.
fn longest_json_list(before: &str, value: &str, after: &str) -> String {
    let values = ((4 << 20) - before.len() - after.len()) / (value.len() + 1);
    format!("{before}{}{after}", vec![value; values].join(","))
}

fn longest_json_fields(before: &str, after: &str) -> String {
    let fields: Vec<_> = (0..(3 << 20) / 11).map(|at| format!("\"{at:x}\":\"\"")).collect();
    format!("{before}{}{after}", fields.join(","))
}

/// Fields that are lists of 32,768 strings.
fn longest_json_lists() -> String {
    let list = vec!["\"a\""; 32_768].join(",");
    let lists: Vec<_> = (0..31).map(|at| format!(",\"x{at}\":[{list}]")).collect();
    format!("{{\"job\":\"a\"{}}}", lists.concat())
}

#[test]
#[ignore = "needs foreign programs"]
fn a_parsed_body_uses_little_more_memory_than_its_bytes() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let before = server.process.peak_memory_bytes();
    let events = |event| longest_json_list("{\"events\":[", event, "]}");
    let job = |value| longest_json_list("{\"job\":\"a\",\"urls\":[", value, "]}");
    let attributes = ("{\"events\":[{\"target\":\"/a\",\"attributes\":{", "}}]}");
    for (path, body, status, message) in [
        ("/topics/x", events("{\"data\":\"\"}"), 400, "unknown field `data`"),
        ("/topics/x", events("\"\""), 413, "more than 100000 events"),
        ("/topics/x", events("\"a\""), 413, "more than 100000 events"),
        ("/topics/x", events("{\"target\":\"/a\"}"), 413, "more than 100000 events"),
        ("/topics/x", events("[]"), 400, "invalid type: sequence"),
        (
            "/topics/x",
            longest_json_list("{\"events\":[{\"target\":[", "0", "]}]}"),
            400,
            "invalid type: sequence",
        ),
        ("/topics/x", longest_json_fields(attributes.0, attributes.1), 400, "of a payload"),
        ("/jobs", job("0"), 400, "urls: expected a list of words"),
        ("/jobs", job("{\"\":0}"), 400, "urls: expected a list of words"),
        ("/jobs", job("\"\""), 400, "urls: expected a list of words"),
        ("/jobs", job("\"http://a.example/\""), 400, "urls: at most 10000 in one request"),
        (
            "/jobs",
            longest_json_list("{\"job\":\"a\",\"x\":[", "{\"\":0}", "]}"),
            400,
            "unknown field",
        ),
        ("/jobs", "{\"job\":\"a\",\"x\":1}".to_owned(), 400, "job, urls, close"),
        ("/jobs", longest_json_lists(), 400, "unknown field"),
        ("/jobs", longest_json_fields("{\"job\":\"a\",", "}"), 400, "unknown field"),
    ] {
        let answer = http.send_json("POST", path, &body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(message), "{message}: {}", answer.body);
        // The body itself, twice while its buffer grows, and what the parser keeps of it. Memory
        // that another thread has freed may count as well, because the allocator keeps it apart.
        let grown = (server.process.peak_memory_bytes() - before) >> 20;
        assert!(grown < 24, "{message}: {grown} MiB more");
    }
    assert_eq!(http.get("/topics/x/state").status, 404, "nothing was published");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_response_has_security_headers() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let evil = ["-H", "Origin: http://evil.example"];
    let answers = [
        http.get("/health"),
        http.get("/openapi.json"),
        http.get("/no/such/thing"),
        http.request("GET", "/topics", &evil),
        http.post_lines("/topics/new-url", "http://a.example/"),
        http.post_lines("/hooks/nobody", "x"),
    ];
    for answer in answers {
        for (name, value) in [
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{}: {}", answer.status, answer.body);
        }
    }
}

// PROTOCOL: H2
#[test]
#[ignore = "needs foreign programs"]
fn an_invalid_event_rejects_the_whole_body() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let long = "x".repeat(61_441);
    for (body, status, code) in [
        ("good\nbad\u{7}", 400, "control"),
        ("good\nbad\rbad", 400, "control"),
        ("good\n\u{85}", 400, "control"),
        (&*format!("good\n{long}"), 400, "too-long"),
        ("\n\r\n", 400, "bad-argument"),
        ("", 400, "bad-argument"),
    ] {
        let answer = http.post_lines("/topics/log", body);
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{body:.40?}");
    }
    for body in [
        r#"{"events":["good","a\nPUB log forged"]}"#,
        r#"{"events":["good",{"target":"/a","attributes":{"b":"c\nd"}}]}"#,
        r#"{"events":["good",{"target":"/a b=c"}]}"#,
        r#"{"events":["good"],"more":1}"#,
        r#"{"events":["good"]"#,
        "[]",
        &format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
    ] {
        let answer = http.send_json("POST", "/topics/log", body);
        assert_eq!(answer.status, 400, "{body:.60}");
    }
    let binary = http.request("POST", "/topics/log", &["--data-binary", "@/proc/self/exe"]);
    assert_eq!(binary.status, 400, "{}", binary.body);
    assert_eq!(http.get("/topics/log?from=first&wait=0").json()["events"], json!([]));
}

// PROTOCOL: H3
#[test]
#[ignore = "needs foreign programs"]
fn a_repeated_request_is_processed_once() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let repeat = |http: &HttpClient, body: &str| {
        let header = ["--header", "Idempotency-Key: order-7", "--data-binary", body];
        let answer = http.request("POST", "/topics/orders", &header);
        (answer.status, answer.json()["seqs"].clone())
    };
    let body = "/orders/7\njust text";
    assert_eq!(repeat(&http, body), (200, json!([1, 2])));
    assert_eq!(repeat(&http, body), (200, json!([1, 2])));
    assert_eq!(repeat(&http, "/orders/8").0, 422);
    let page = http.get("/topics/orders?from=first").json();
    assert_eq!(page["events"][0]["payload"], "/orders/7 id=order-7-1");
    assert_eq!(page["next"], 3);

    // After a restart, events with an id are recognized by it.
    let server = server.restart("TERM", &["broker"]);
    let http = HttpClient::new(&server);
    let (status, seqs) = repeat(&http, body);
    assert_eq!((status, &seqs[0]), (200, &json!(1)));
}

// PROTOCOL: H5, H6
#[test]
#[ignore = "needs foreign programs"]
fn a_stream_resumes_after_the_last_event_id() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let stream = http.stream("/topics/log/events?from=first", &[]);
    stream.wait_for_line_with("retry: 1000");
    http.post_lines("/topics/log", "one\ntwo");
    let lines = stream.wait_for_stdout_lines(7);
    assert_eq!(lines[1..], ["id: 1", "data: one", "", "id: 2", "data: two", ""]);
    drop(stream);
    http.post_lines("/topics/log", "http://a.example/posts/3\nhttp://b.example/4 x=1");

    let last = ["--header", "Last-Event-ID: 2"];
    let stream = http.stream("/topics/log/events?from=first", &last);
    let lines = stream.wait_for_stdout_lines(4);
    assert_eq!(lines[1..4], ["id: 3", "data: http://a.example/posts/3", ""]);
    let filtered = http.stream("/topics/log/events?from=first&host=b.example", &[]);
    assert_eq!(filtered.wait_for_stdout_lines(3)[1..3], ["id: 4", "data: http://b.example/4 x=1"]);
    let prefix = "/topics/log/events?from=first&prefix=http://a.example/posts/";
    assert_eq!(
        http.stream(prefix, &[]).wait_for_stdout_lines(3)[1..3],
        ["id: 3", "data: http://a.example/posts/3"]
    );
    // A seq beyond the end of the topic is rejected.
    let answer = http.request("GET", "/topics/log/events", &["--header", "Last-Event-ID: 99"]);
    assert_eq!((answer.status, &answer.json()["code"]), (409, &json!("conflict")));

    // A stop of the broker ends streams, so that clients reconnect.
    server.process.signal_and_finish("TERM").expect_code(0);
    stream.finish();
}

// PROTOCOL: H4, H5
#[test]
#[ignore = "needs foreign programs"]
fn a_stream_reports_lost_events() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    http.send_json("PUT", "/topics/short", r#"{"sync":"memory"}"#);
    let line = "x".repeat(60_000);
    for _ in 0..8 {
        http.post_lines("/topics/short", &[line.as_str(); 60].join("\n"));
    }
    let stream = http.stream("/topics/short/events?from=1", &["--max-time", "20"]);
    stream.wait_for_line_with("event: lag");
    let data = stream
        .wait_for_line("what is gone", |line| line.strip_prefix("data: {").map(str::to_owned));
    assert!(data.starts_with(r#""from":1,"to":"#), "{data}");
    let page = http.get("/topics/short?from=1&limit=1").json();
    assert_eq!(
        (&page["missed"][0]["kind"], &page["missed"][0]["from"]),
        (&json!("lag"), &json!(1))
    );
    assert_eq!(page["events"].as_array().unwrap().len(), 1);
}

// PROTOCOL: H7
#[test]
#[ignore = "needs foreign programs"]
fn an_orchestrator_waits_for_a_job_without_polling() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let mistake = json!({ "job": "docs", "urls": ["http://a.example/", "no-url"] }).to_string();
    let refused = http.send_json("POST", "/jobs", &mistake);
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("url=no-url: not a URL"), "{}", refused.body);
    assert_eq!(http.get("/jobs/docs").status, 404, "nothing was opened");
    let job =
        json!({ "job": "docs", "urls": ["http://a.example/", "http://b.example/"], "close": true });
    let opened = http.send_json("POST", "/jobs", &job.to_string()).json();
    assert_eq!((&opened["state"], &opened["found"]), (&json!("closed"), &json!(2)));
    let seeds = r#"{"urls":["http://a.example/","http://c.example/"],"prio":7}"#;
    let seeded = http.send_json("POST", "/jobs/docs/urls", seeds).json();
    assert_eq!(seeded, json!({ "job": "docs", "new": 1, "known": 1 }));
    let never = http.send_json("POST", "/jobs/docs/urls", r#"{"urls":[],"after":"0*"}"#);
    assert_eq!((never.status, &never.json()["code"]), (400, &json!("bad-argument")));
    let mistake = r#"{"urls":["http://d.example/","no-url"]}"#;
    assert_eq!(http.send_json("POST", "/jobs/docs/urls", mistake).status, 400);
    let not_yet = http.get("/jobs/docs?wait=50ms").json();
    assert_eq!((&not_yet["state"], &not_yet["queued"]), (&json!("closed"), &json!(3)));

    let waiting = http.stream("/jobs/docs?wait=60s", &[]);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request("JOIN crawlers credit=3");
    let tasks = [worker.read_line(), worker.read_line(), worker.read_line()];
    for task in tasks {
        let id = task.split(' ').nth(1).unwrap();
        worker.request_ok(&format!("ACK {id}"));
    }
    let done = waiting.wait_for_line("the end", |line| Some(line.to_owned()));
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["state"], &done["completed"]), (&json!("done"), &json!(3)));
    assert_eq!(http.request("DELETE", "/jobs/docs", &[]).status, 204);
    assert_eq!(http.get("/jobs/docs").status, 404);
}

// PROTOCOL: H8
#[test]
#[ignore = "needs foreign programs"]
fn cross_site_requests_are_rejected() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let simple = ["--header", "content-type: text/plain", "--data-binary", "http://a.example/"];
    for forged in [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Host: evil.example",
    ] {
        let arguments = [&["--header", forged], simple.as_slice()].concat();
        assert_eq!(http.request("POST", "/topics/new-url", &arguments).status, 403, "{forged}");
        assert_eq!(http.request("GET", "/topics", &["--header", forged]).status, 403, "{forged}");
    }
    let own = format!("Origin: {}", http.base_url);
    let arguments = [&["--header", own.as_str()], simple.as_slice()].concat();
    let answer = http.request("POST", "/topics/new-url", &arguments);
    assert_eq!(answer.json()["seqs"], json!([1]), "no event was published before it");
    assert_eq!(answer.header("access-control-allow-origin"), None);

    let named = Server::start(&["broker", "--http-host", "tidings.example"]);
    let http = HttpClient::new(&named);
    let host = ["--header", "Host: tidings.example"];
    assert_eq!(http.request("GET", "/topics", &host).status, 200);
}

// PROTOCOL: C9
#[test]
#[ignore = "needs foreign programs"]
fn a_privileged_attribute_needs_a_grant() {
    let server = Server::start(&["broker", "--grant", "http=prio"]);
    let http = HttpClient::new(&server);
    assert_eq!(http.post_lines("/topics/new-url", "http://a.example/ prio=5").status, 200);
    let refused =
        http.post_lines("/topics/new-url", "http://a.example/\nhttp://b.example/ every=1h");
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("denied")));
    assert!(refused.body.contains("event 2"), "{}", refused.body);
    let lines = run_nc(
        server.address,
        "PUB log /a every=1h\nHELLO via=zmq\nPUB log /a prio=1\nPUB log /b\nSUB log\n",
    );
    let answers: Vec<_> = lines.iter().filter(|line| !line.starts_with("+OK tidings")).collect();
    assert_eq!(
        answers[1..3],
        [
            "+OK 1 1",
            "-ERR denied n=2 prio= is not accepted over zmq; start the broker with --grant zmq=prio to allow it"
        ]
    );
    assert!(
        answers.iter().any(|line| line.starts_with("-ERR denied SUB is not available over")),
        "{lines:?}"
    );
}

/// Requests that are not HTTP, too large, or incomplete.
#[test]
#[ignore = "needs foreign programs"]
fn malformed_requests_are_rejected_and_closed() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(http.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        // The broker may close the connection before all is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    let long_line =
        [b"GET /".as_slice(), &vec![b'a'; 200_000], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    let long_head =
        [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 200_000], b"\r\n\r\n"].concat();
    let many = "X-A: b\r\n".repeat(1_000);
    for (bytes, statuses) in [
        (b"\x16\x03\x01\x00\xa5\x01\x00".as_slice(), ["400"].as_slice()),
        (b"PUB new-url http://a.example/\r\n\r\n", &["400"]),
        (b"http://a.example/\n\n", &["400"]),
        (b"\x00\xff\xfe\r\n\r\n", &["400"]),
        (&long_line, &["414", "431"]),
        (&long_head, &["431"]),
        (format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes(), &["431"]),
        (b"GET / HTTP/1.1\r\n\r\n", &["400"]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n", &["400"]),
        (b"POST /topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", &["413"]),
        (b"POST /topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzzz", &["400"]),
        (b"POST /topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzzz\r\n", &["400"]),
    ] {
        let answer = send(bytes);
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{:?}: {answer}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)]));
    }
    let topics = http.get("/topics").json();
    let names: Vec<_> = topics["topics"].as_array().unwrap().iter().map(|it| &it["next"]).collect();
    assert!(names.iter().all(|next| **next == json!(1)), "nothing was published: {topics}");
}

/// The error arrives even if the client sends the whole body before it reads.
#[test]
fn an_oversized_request_receives_its_error() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    for (length, status) in [(5 << 20, "413"), (1 << 20, "403")] {
        let mut stream = TcpStream::connect(http.authority()).unwrap();
        let host = if status == "403" { "evil.example" } else { "localhost" };
        let head =
            format!("POST /topics/a HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; length]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

/// A reader creates no topic. It receives the first event when the topic is created.
// PROTOCOL: H4
#[test]
#[ignore = "needs foreign programs"]
fn readers_can_wait_for_a_topic_that_does_not_exist() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let stream = http.stream("/topics/later/events", &[]);
    stream.wait_for_line_with("retry: 1000");
    let page = http.stream("/topics/later?wait=60s", &[]);
    assert_eq!(http.get("/topics/never?wait=200ms").json()["next"], 1);
    assert_eq!(http.get("/topics/never?from=2").status, 409);
    assert_eq!(http.get("/topics/later/state").status, 404);
    http.post_lines("/topics/later", "the first");
    stream.wait_for_line_with("data: the first");
    page.wait_for_line_with(r#""payload":"the first""#);
}

/// The broker closes a stream that its client does not read. The client can resume it.
#[test]
#[ignore = "needs foreign programs"]
fn a_stalled_stream_uses_little_memory_and_is_closed() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    http.send_json("PUT", "/topics/log", "{}");
    let mut stalled: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(http.authority()).unwrap();
            stream
                .write_all(b"GET /topics/log/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    wait_until("all streams", || {
        (http.get("/topics/log/state").json()["readers"] == 50).then_some(())
    });
    let before = server.process.resident_memory_bytes();
    let body = format!("{}\n", "x".repeat(50_000)).repeat(60);
    for _ in 0..40 {
        assert_eq!(http.post_lines("/topics/log", &body).status, 200);
    }
    let after = server.process.resident_memory_bytes();
    // 120 MB were published. Each of the 50 streams may hold some 100 kB, and the topic its tail.
    assert!(after.saturating_sub(before) < 90_000_000, "{before} before, {after} after");
    // The broker closes them after about 30 s.
    wait_until("the end of all streams", || {
        (http.get("/topics/log/state").json()["readers"] == 0).then_some(())
    });
    for stream in &mut stalled {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        assert!(bytes.starts_with(b"HTTP/1.1 200"));
    }
}
