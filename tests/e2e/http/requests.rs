//! HTTP as its users have it: curl on one side, netcat on the other, and the broker between them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::support::http::Http;
use crate::support::nc::{nc, nc_all};
use crate::support::process::Server;
use crate::support::talk::Talk;
use crate::support::wait::until;

// PROTOCOL: H1, H2, H4
#[test]
fn what_curl_posts_netcat_hears_and_a_restart_keeps() {
    let server = Server::broker();
    let http = Http::of(&server);
    let listener = nc(server.address, &[]);
    listener.line_with("Connected.");
    let answer = http.post("/topics/new-url", "http://a.example/\r\n\nhttp://b.example/ x=1");
    assert_eq!((answer.status, answer.json()["seqs"].clone()), (200, json!([1, 2])));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    listener.line_with("http://a.example/");
    listener.line_with("http://b.example/ x=1");
    let events = json!({ "events": ["some text", { "target": "/srv/a", "attributes": { "b": "1", "a": "2" } }] });
    let answer = http.send("POST", "/topics/log", &events.to_string());
    assert_eq!(answer.json(), json!({ "topic": "log", "seqs": [1, 2] }));

    let server = server.restart("KILL", &["broker"]);
    let http = Http::of(&server);
    let page = http.get("/topics/log?from=first").json();
    let events =
        json!([{ "seq": 1, "payload": "some text" }, { "seq": 2, "payload": "/srv/a a=2 b=1" }]);
    assert_eq!(page["events"], events);
    // What the kill may have left empty is told, and then what comes is waited for.
    let next = page["next"].as_u64().unwrap();
    let missed = http.get(&format!("/topics/log?from={next}&wait=100ms")).json();
    let next = missed["next"].as_u64().unwrap();
    let waiting = http.follow(&format!("/topics/log?from={next}&wait=60s"), &[]);
    until("a reader", || (http.get("/topics/log/state").json()["readers"] == 1).then_some(()));
    nc_all(server.address, "PUB log by netcat\nQUIT\n");
    waiting.line_with(r#""payload":"by netcat""#);
    waiting.finish().expect_code(0);
}

// PROTOCOL: H11
#[test]
fn a_client_that_ends_its_side_after_its_requests_is_answered() {
    let server = Server::broker();
    let http = Http::of(&server);
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
        let heard = nc_all(address, post("one"));
        assert_eq!(answers(&heard), 1, "round {round}: {heard:?}");
    }
    for round in 1..=20 {
        let heard = nc_all(address, post("two").repeat(3));
        assert_eq!(answers(&heard), 3, "pipelined, round {round}: {heard:?}");
    }
    // Longer than a socket takes at once, and slower than it is asked for.
    http.post("/topics/large", &format!("{}\n", "x".repeat(3_000)).repeat(300));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let heard = nc_all(address, get("/topics/large?from=first")).concat();
    assert_eq!(heard.matches("\"seq\":").count(), 300);
    let heard = nc_all(address, get("/topics/empty?wait=50ms"));
    assert_eq!(answers(&heard), 1, "a request that waits: {heard:?}");
    // A stream has no end of its own, so it ends with its client.
    nc_all(address, get("/topics/log/events"));
    assert_eq!(http.events("log").len(), 110);
}

/// JSON of 4 MiB, the most that a body has by default: the same value again and again, or as many
/// fields.
fn as_long_as_may_be(before: &str, value: &str, after: &str) -> String {
    let values = ((4 << 20) - before.len() - after.len()) / (value.len() + 1);
    format!("{before}{}{after}", vec![value; values].join(","))
}

fn fields_as_long_as_may_be(before: &str, after: &str) -> String {
    let fields: Vec<_> = (0..(3 << 20) / 11).map(|at| format!("\"{at:x}\":\"\"")).collect();
    format!("{before}{}{after}", fields.join(","))
}

/// Fields that are lists of 32,768 texts.
fn lists_as_long_as_may_be() -> String {
    let list = vec!["\"a\""; 32_768].join(",");
    let lists: Vec<_> = (0..31).map(|at| format!(",\"x{at}\":[{list}]")).collect();
    format!("{{\"job\":\"a\"{}}}", lists.concat())
}

#[test]
fn what_a_body_is_made_of_does_not_make_it_larger_in_memory() {
    let server = Server::broker();
    let http = Http::of(&server);
    let before = server.process.peak_memory_bytes();
    let events = |event| as_long_as_may_be("{\"events\":[", event, "]}");
    let job = |value| as_long_as_may_be("{\"job\":\"a\",\"urls\":[", value, "]}");
    let attributes = ("{\"events\":[{\"target\":\"/a\",\"attributes\":{", "}}]}");
    for (path, body, status, said) in [
        ("/topics/x", events("{\"data\":\"\"}"), 400, "unknown field `data`"),
        ("/topics/x", events("\"\""), 413, "more than 100000 events"),
        ("/topics/x", events("\"a\""), 413, "more than 100000 events"),
        ("/topics/x", events("{\"target\":\"/a\"}"), 413, "more than 100000 events"),
        ("/topics/x", events("[]"), 400, "invalid type: sequence"),
        (
            "/topics/x",
            as_long_as_may_be("{\"events\":[{\"target\":[", "0", "]}]}"),
            400,
            "invalid type: sequence",
        ),
        ("/topics/x", fields_as_long_as_may_be(attributes.0, attributes.1), 400, "of a payload"),
        ("/jobs", job("0"), 400, "urls: it is a list of words"),
        ("/jobs", job("{\"\":0}"), 400, "urls: it is a list of words"),
        ("/jobs", job("\"\""), 400, "urls: it is a list of words"),
        ("/jobs", job("\"http://a.example/\""), 400, "urls: at most 10000 in one request"),
        ("/jobs", as_long_as_may_be("{\"job\":\"a\",\"x\":[", "{\"\":0}", "]}"), 400, "no field"),
        ("/jobs", lists_as_long_as_may_be(), 400, "no field"),
        ("/jobs", fields_as_long_as_may_be("{\"job\":\"a\",", "}"), 400, "no field"),
    ] {
        let answer = http.send("POST", path, &body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(said), "{said}: {}", answer.body);
        // The body itself, twice while the room for it grows, and what of it may be kept; and what
        // was freed of one before by another thread, whose memory the allocator keeps apart.
        let grown = (server.process.peak_memory_bytes() - before) >> 20;
        assert!(grown < 24, "{said}: {grown} MiB more");
    }
    assert_eq!(http.get("/topics/x/state").status, 404, "nothing was published");
}

#[test]
fn every_answer_tells_a_browser_that_it_is_no_page() {
    let server = Server::broker();
    let http = Http::of(&server);
    let evil = ["-H", "Origin: http://evil.example"];
    let answers = [
        http.get("/health"),
        http.get("/openapi.json"),
        http.get("/no/such/thing"),
        http.ask("GET", "/topics", &evil),
        http.post("/topics/new-url", "http://a.example/"),
        http.post("/hooks/nobody", "x"),
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
fn a_bad_event_publishes_nothing_of_its_body() {
    let server = Server::broker();
    let http = Http::of(&server);
    let long = "x".repeat(61_441);
    for (body, status, code) in [
        ("good\nbad\u{7}", 400, "control"),
        ("good\nbad\rbad", 400, "control"),
        ("good\n\u{85}", 400, "control"),
        (&*format!("good\n{long}"), 400, "too-long"),
        ("\n\r\n", 400, "bad-argument"),
        ("", 400, "bad-argument"),
    ] {
        let answer = http.post("/topics/log", body);
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
        let answer = http.send("POST", "/topics/log", body);
        assert_eq!(answer.status, 400, "{body:.60}");
    }
    let binary = http.ask("POST", "/topics/log", &["--data-binary", "@/proc/self/exe"]);
    assert_eq!(binary.status, 400, "{}", binary.body);
    assert_eq!(http.get("/topics/log?from=first&wait=0").json()["events"], json!([]));
}

// PROTOCOL: H3
#[test]
fn a_request_that_is_sent_again_is_done_once() {
    let server = Server::broker();
    let http = Http::of(&server);
    let again = |http: &Http, body: &str| {
        let header = ["--header", "Idempotency-Key: order-7", "--data-binary", body];
        let answer = http.ask("POST", "/topics/orders", &header);
        (answer.status, answer.json()["seqs"].clone())
    };
    let body = "/orders/7\njust text";
    assert_eq!(again(&http, body), (200, json!([1, 2])));
    assert_eq!(again(&http, body), (200, json!([1, 2])));
    assert_eq!(again(&http, "/orders/8").0, 422);
    let page = http.get("/topics/orders?from=first").json();
    assert_eq!(page["events"][0]["payload"], "/orders/7 id=order-7-1");
    assert_eq!(page["next"], 3);

    // Over a restart it is the ids that know, for what can carry one.
    let server = server.restart("TERM", &["broker"]);
    let http = Http::of(&server);
    let (status, seqs) = again(&http, body);
    assert_eq!((status, &seqs[0]), (200, &json!(1)));
}

// PROTOCOL: H5, H6
#[test]
fn a_stream_goes_on_where_it_was() {
    let server = Server::broker();
    let http = Http::of(&server);
    let stream = http.follow("/topics/log/events?from=first", &[]);
    stream.line_with("retry: 1000");
    http.post("/topics/log", "one\ntwo");
    let lines = stream.stdout_lines(7);
    assert_eq!(lines[1..], ["id: 1", "data: one", "", "id: 2", "data: two", ""]);
    drop(stream);
    http.post("/topics/log", "http://a.example/posts/3\nhttp://b.example/4 x=1");

    let last = ["--header", "Last-Event-ID: 2"];
    let stream = http.follow("/topics/log/events?from=first", &last);
    let lines = stream.stdout_lines(4);
    assert_eq!(lines[1..4], ["id: 3", "data: http://a.example/posts/3", ""]);
    let filtered = http.follow("/topics/log/events?from=first&host=b.example", &[]);
    assert_eq!(filtered.stdout_lines(3)[1..3], ["id: 4", "data: http://b.example/4 x=1"]);
    let prefix = "/topics/log/events?from=first&prefix=http://a.example/posts/";
    assert_eq!(
        http.follow(prefix, &[]).stdout_lines(3)[1..3],
        ["id: 3", "data: http://a.example/posts/3"]
    );
    // Somebody else's numbers are not taken for ours.
    let answer = http.ask("GET", "/topics/log/events", &["--header", "Last-Event-ID: 99"]);
    assert_eq!((answer.status, &answer.json()["code"]), (409, &json!("conflict")));

    // A stop of the broker ends streams, so that their readers come back.
    let began = std::time::Instant::now();
    server.process.finish_by("TERM").expect_code(0);
    stream.finish();
    assert!(began.elapsed() < Duration::from_secs(10));
}

// PROTOCOL: H4, H5
#[test]
fn a_stream_tells_what_it_leaves_out() {
    let server = Server::broker();
    let http = Http::of(&server);
    http.send("PUT", "/topics/short", r#"{"sync":"memory"}"#);
    let line = "x".repeat(60_000);
    for _ in 0..8 {
        http.post("/topics/short", &[line.as_str(); 60].join("\n"));
    }
    let stream = http.follow("/topics/short/events?from=1", &["--max-time", "20"]);
    stream.line_with("event: lag");
    let data = stream.line("what is gone", |line| line.strip_prefix("data: {").map(str::to_owned));
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
fn an_orchestrator_waits_for_a_job_without_polling() {
    let server = Server::broker();
    let http = Http::of(&server);
    let job =
        json!({ "job": "docs", "urls": ["http://a.example/", "http://b.example/"], "close": true });
    let opened = http.send("POST", "/jobs", &job.to_string()).json();
    assert_eq!((&opened["state"], &opened["found"]), (&json!("closed"), &json!(2)));
    let seeds = r#"{"urls":["http://a.example/","http://c.example/"],"prio":7}"#;
    let seeded = http.send("POST", "/jobs/docs/urls", seeds).json();
    assert_eq!(seeded, json!({ "job": "docs", "new": 1, "known": 1 }));
    let never = http.send("POST", "/jobs/docs/urls", r#"{"urls":[],"after":"0*"}"#);
    assert_eq!((never.status, &never.json()["code"]), (400, &json!("bad-argument")));
    let not_yet = http.get("/jobs/docs?wait=50ms").json();
    assert_eq!((&not_yet["state"], &not_yet["queued"]), (&json!("closed"), &json!(3)));

    let waiting = http.follow("/jobs/docs?wait=60s", &[]);
    let mut worker = Talk::client(server.address);
    worker.ask("JOIN crawlers credit=3");
    let tasks = [worker.line(), worker.line(), worker.line()];
    for task in tasks {
        let id = task.split(' ').nth(1).unwrap();
        assert!(worker.ask(&format!("ACK {id}")).starts_with("+OK"));
    }
    let done = waiting.line("the end", |line| Some(line.to_owned()));
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["state"], &done["completed"]), (&json!("done"), &json!(3)));
    assert_eq!(http.ask("DELETE", "/jobs/docs", &[]).status, 204);
    assert_eq!(http.get("/jobs/docs").status, 404);
}

// PROTOCOL: H8
#[test]
fn nothing_of_somebody_elses_page_gets_in() {
    let server = Server::broker();
    let http = Http::of(&server);
    let simple = ["--header", "content-type: text/plain", "--data-binary", "http://a.example/"];
    for forged in [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Host: evil.example",
    ] {
        let arguments = [&["--header", forged], simple.as_slice()].concat();
        assert_eq!(http.ask("POST", "/topics/new-url", &arguments).status, 403, "{forged}");
        assert_eq!(http.ask("GET", "/topics", &["--header", forged]).status, 403, "{forged}");
    }
    let own = format!("Origin: {}", http.base);
    let arguments = [&["--header", own.as_str()], simple.as_slice()].concat();
    let answer = http.ask("POST", "/topics/new-url", &arguments);
    assert_eq!(answer.json()["seqs"], json!([1]), "nothing came before it");
    assert_eq!(answer.header("access-control-allow-origin"), None);

    let named = Server::start(&["broker", "--http-host", "tidings.example"]);
    let http = Http::of(&named);
    let host = ["--header", "Host: tidings.example"];
    assert_eq!(http.ask("GET", "/topics", &host).status, 200);
}

// PROTOCOL: C9
#[test]
fn an_attribute_with_power_needs_a_grant() {
    let server = Server::start(&["broker", "--grant", "http=prio"]);
    let http = Http::of(&server);
    assert_eq!(http.post("/topics/new-url", "http://a.example/ prio=5").status, 200);
    let refused = http.post("/topics/new-url", "http://a.example/\nhttp://b.example/ every=1h");
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("denied")));
    assert!(refused.body.contains("event 2"), "{}", refused.body);
    let lines = nc_all(
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

/// Bytes that are not HTTP, or too much of it, or too little.
#[test]
fn whoever_cannot_be_understood_is_told_so_and_closed() {
    let server = Server::broker();
    let http = Http::of(&server);
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(http.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        // It may be closed before all of it was sent.
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
        let answer = say(bytes);
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{:?}: {answer}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)]));
    }
    let topics = http.get("/topics").json();
    let names: Vec<_> = topics["topics"].as_array().unwrap().iter().map(|it| &it["next"]).collect();
    assert!(names.iter().all(|next| **next == json!(1)), "nothing was published: {topics}");
}

/// A refusal arrives also where nobody waits for it before everything is said.
#[test]
fn whoever_says_too_much_hears_that_it_was_too_much() {
    let server = Server::broker();
    let http = Http::of(&server);
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

/// Whoever only reads makes no topic; it hears the first event of one that comes into being.
// PROTOCOL: H4
#[test]
fn what_is_not_there_yet_is_waited_for() {
    let server = Server::broker();
    let http = Http::of(&server);
    let stream = http.follow("/topics/later/events", &[]);
    stream.line_with("retry: 1000");
    let page = http.follow("/topics/later?wait=60s", &[]);
    assert_eq!(http.get("/topics/never?wait=200ms").json()["next"], 1);
    assert_eq!(http.get("/topics/never?from=2").status, 409);
    assert_eq!(http.get("/topics/later/state").status, 404);
    http.post("/topics/later", "the first");
    stream.line_with("data: the first");
    page.line_with(r#""payload":"the first""#);
}

/// Whoever does not read what it asked for is let go, and comes back where it was.
#[test]
fn a_stream_that_is_not_read_costs_little_and_is_closed() {
    let server = Server::broker();
    let http = Http::of(&server);
    http.send("PUT", "/topics/log", "{}");
    let mut deaf: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(http.authority()).unwrap();
            stream
                .write_all(b"GET /topics/log/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    until("all streams", || (http.get("/topics/log/state").json()["readers"] == 50).then_some(()));
    let before = server.process.resident_memory_bytes();
    let body = format!("{}\n", "x".repeat(50_000)).repeat(60);
    for _ in 0..40 {
        assert_eq!(http.post("/topics/log", &body).status, 200);
    }
    let after = server.process.resident_memory_bytes();
    // 120 MB were published; each of the 50 may hold some 100 kB, and the topic its tail.
    assert!(after.saturating_sub(before) < 90_000_000, "{before} before, {after} after");
    // They are closed after some 30 s.
    until("the end of all streams", || {
        (http.get("/topics/log/state").json()["readers"] == 0).then_some(())
    });
    for stream in &mut deaf {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        assert!(bytes.starts_with(b"HTTP/1.1 200"));
    }
}
