//! Callbacks of jobs: their content, signature, retries and limits.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::callback_server::{CallbackRequest, CallbackServer};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site};
use crate::support::ports::free_port;
use crate::support::process::{Process, Server, run_at, run_json_at, run_tidings, tidings_command};
use crate::support::wait::wait_until;

/// The first one is `a secret of the broker and its friends`.
const SECRETS: &str = "whsec_YSBzZWNyZXQgb2YgdGhlIGJyb2tlciBhbmQgaXRzIGZyaWVuZHM=\n\n\
                       YW4gb2xkZXIgc2VjcmV0IG9mIHRoZSBicm9rZXI=\n";

const LOOPBACK: &str = "--allow-private=127.0.0.0/8,::1";

/// Callbacks that the broker sends at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 64;

/// A group with a short backoff and a short lease, so that retries come at once.
const FAST_GROUP: &str = "GROUP create callbacks topics=job-done key=none lease=1s backoff=1ms";

/// A broker that may send callbacks to loopback addresses, with the fast group.
#[track_caller]
fn fast_broker(settings: &str) -> Server {
    let server = Server::start(&["broker", LOOPBACK]);
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok(&format!("{FAST_GROUP}{settings}"));
    server
}

/// Opens and closes a job without seeds, so that it is done at once.
#[track_caller]
fn complete_job(server: &Server, name: &str, callback: &str) {
    let mut client = LineConnection::connect_client(server.address);
    for command in [format!("JOB open {name} callback={callback}"), format!("JOB close {name}")] {
        client.request_ok(&command);
    }
}

/// Waits until the group shows this value.
#[track_caller]
fn wait_for_group(server: &Server, key: &str, value: u64) -> Value {
    wait_until(&format!("{key} to be {value}"), || {
        let shown = run_at(server, &["group", "show", "callbacks", "--json"]);
        let shown: Value = serde_json::from_str(shown.stdout().first()?).unwrap();
        (shown[key] == value).then_some(shown)
    })
}

/// The only dead letter of the group.
#[track_caller]
fn dead_letter(server: &Server) -> Value {
    wait_for_group(server, "dead-kept", 1);
    let mut dead = run_json_at(server, &["dead", "ls", "--group", "callbacks"]);
    assert_eq!(dead.len(), 1, "{dead:?}");
    dead.remove(0)
}

/// The signature that `openssl` computes with the decoded secret over a request.
#[track_caller]
fn expected_signature(secret: &str, request: &CallbackRequest) -> String {
    let (id, time) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let script = "openssl dgst -sha256 -hmac \"$0\" -binary | openssl base64 -A";
    let mut shell = Command::new("sh")
        .args(["-c", script, secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    write!(shell.stdin.take().unwrap(), "{id}.{time}.{}", request.body).unwrap();
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success());
    format!("v1,{}", String::from_utf8(output.stdout).unwrap())
}

// PROTOCOL: P6
#[test]
#[ignore = "needs foreign programs"]
fn the_trace_context_of_a_job_is_a_header_of_its_callback_and_of_pushes() {
    let receiver = CallbackServer::start();
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.toml");
    let push = receiver.url("204", "push");
    let push =
        format!("[[push]]\nname = 'p'\ntopic = 'job-done'\nurl = '{push}'\nformat = 'text'\n");
    fs::write(&config, push).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let words = ["--log-json", "--log", "debug", "broker", LOOPBACK];
    let server = Server::start(&[&words[..], &config].concat());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let url = receiver.url("204", "traced");
    let body = json!({ "job": "traced", "close": true, "callback": url }).to_string();
    let header = format!("traceparent: {trace}");
    let json = ["--header", "content-type: application/json", "--header", &header];
    let words = [&json[..], &["--data-binary", &body]].concat();
    let answer = HttpClient::new(&server).request("POST", "/jobs", &words);
    assert!(answer.status < 300, "{answer:?}");
    complete_job(&server, "other", &receiver.url("204", "other"));
    let requests = receiver.first_requests(4);
    let sent = |path: &str, begin: &str| {
        let is_it = |r: &&CallbackRequest| r.path.ends_with(path) && r.body.starts_with(begin);
        requests.iter().find(is_it).unwrap()
    };
    assert_eq!(sent("/traced", "{").json()["traceparent"], trace);
    for traced in [sent("/traced", "{"), sent("/push", "traced ")] {
        assert_eq!(traced.header("traceparent"), trace);
    }
    for other in [sent("/other", "{"), sent("/push", "other ")] {
        assert!(!other.has_header("traceparent"), "{other:?}");
    }
    let line = server.process.wait_for_line_with("\"subject\":\"job traced\"");
    let trace_id = "\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\"";
    assert!(line.contains(trace_id), "{line}");
}

// PROTOCOL: F1, F2, F3
#[test]
#[ignore = "needs foreign programs"]
fn each_pass_sends_one_callback_signed_with_all_secrets() {
    let (origin, receiver) = (Origin::serve(Site::default()), CallbackServer::start());
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("secrets"), SECRETS).unwrap();
    let words = ["up", LOOPBACK, "--callback-secret-file", "secrets"];
    let server = Server::start_in(folder, &words, |_| ());
    let http = HttpClient::new(&server);
    // A job without a callback causes no request.
    let silent = json!({ "job": "silent", "urls": [], "close": true }).to_string();
    assert_eq!(http.send_json("POST", "/jobs", &silent).status, 200);
    for pass in 1..=2 {
        let opened = json!({
            "job": "docs", "urls": [origin.url(0, "/p/0")], "max-pages": 1, "close": true,
            "callback": receiver.url("204", "docs"),
        });
        assert_eq!(http.send_json("POST", "/jobs", &opened.to_string()).status, 200);
        receiver.first_requests(pass);
    }
    complete_job(&server, "last", &receiver.url("204", "last"));
    let requests = receiver.first_requests(3);
    let paths: Vec<_> = requests.iter().map(|request| &*request.path).collect();
    assert_eq!(paths, ["/204/docs", "/204/docs", "/204/last"]);
    wait_for_group(&server, "completed", 4);

    let events = run_nc(server.address, "HELLO\nSUB job-done from=first\n");
    let event = events.iter().find(|event| event.contains(" docs number=2 pass=2 "));
    let (_, words) =
        event.and_then(|event| event.split_once(" docs ")).expect("the event of the job");
    let mut expected = json!({ "type": "job-done", "job": "docs" });
    for (key, value) in words.split(' ').filter_map(|word| word.split_once('=')) {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        expected[key] = if is_number { json!(value.parse::<u64>().unwrap()) } else { json!(value) };
    }
    assert_eq!(requests[1].json(), expected);
    assert_eq!((&expected["pass"], &expected["completed"]), (&json!(2), &json!(1)), "{expected}");
    assert_eq!(requests[0].json()["pass"], 1);
    assert_ne!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    let serial = expected["serial"].as_str().unwrap().replace('.', "-");
    assert_eq!(requests[1].header("webhook-id"), format!("crawlers-{serial}"));
    assert_eq!(requests[1].header("content-type"), "application/json");
    assert!(requests[1].header("user-agent").starts_with("tidings"), "{requests:?}");

    for request in &requests {
        let secrets = ["a secret of the broker and its friends", "an older secret of the broker"];
        let signatures = secrets.map(|secret| expected_signature(secret, request)).join(" ");
        assert_eq!(request.header("webhook-signature"), signatures);
        let signed = ["webhook-id", "webhook-timestamp"]
            .map(|name| format!("--with-header={name}: {}", request.header(name)));
        let mut probe = Process::start(&mut tidings_command(
            server.folder.path(),
            [
                "probe",
                "signature",
                "--scheme",
                "standard-webhooks",
                "--key-file",
                "secrets",
                &signed[0],
                &signed[1],
                &signatures,
            ],
        ));
        probe.write(&request.body);
        let printed = probe.finish().expect_code(0).stdout();
        assert!(printed[0].starts_with("valid: "), "{printed:?}");
    }
}

#[test]
fn without_callbacks_there_is_no_group_and_no_connection() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for command in ["JOB open docs", "JOB close docs", "JOB wait docs"] {
        assert!(client.request(command).starts_with("+OK docs "), "{command}");
    }
    assert_eq!(client.request_lines("GROUP ls"), ["+ crawlers", "+OK groups=1"]);
    let server = server.restart("INT", &["broker"]);
    assert_eq!(LineConnection::connect_with_number(server.address).1, 1);
}

// PROTOCOL: F6
#[test]
#[ignore = "needs foreign programs"]
fn the_first_callback_creates_the_group_with_its_settings() {
    let (server, receiver) = (Server::start(&["broker", LOOPBACK]), CallbackServer::start());
    complete_job(&server, "docs", &receiver.url("204", "docs"));
    receiver.first_requests(1);
    let mut client = LineConnection::connect_client(server.address);
    let shown = client.request("GROUP show callbacks");
    for setting in
        ["topics=job-done", "key=none", "lease=10s", "max-attempts=10", "backoff=10s", "members=1"]
    {
        assert!(shown.split(' ').any(|word| word == setting), "{setting}: {shown}");
    }
    assert!(client.request("GROUP delete callbacks").starts_with("-ERR conflict "));
}

// PROTOCOL: F2, F4
#[test]
#[ignore = "needs foreign programs"]
fn a_rejected_callback_is_retried_with_its_id_after_retry_after() {
    let (server, receiver) = (fast_broker(" max-attempts=5"), CallbackServer::start());
    complete_job(&server, "docs", &receiver.url("500,503:1,302,204", "docs"));
    let requests = receiver.first_requests(4);
    wait_for_group(&server, "completed", 1);
    for again in &requests[1..] {
        assert_eq!(again.header("webhook-id"), requests[0].header("webhook-id"));
        assert_eq!((&again.body, &*again.path), (&requests[0].body, "/500,503:1,302,204/docs"));
        assert!(!again.has_header("webhook-signature"), "no secret is configured");
    }
    assert!(requests[2].received_at - requests[1].received_at >= 1.0, "{requests:?}");
    assert_eq!(receiver.requests_so_far().len(), 4, "a redirect is not followed");
}

// PROTOCOL: F5
#[test]
#[ignore = "needs foreign programs"]
fn a_callback_to_a_private_address_is_refused_and_logged() {
    let (server, receiver) = (Server::start_broker(), CallbackServer::start());
    LineConnection::connect_client(server.address)
        .request_ok(&format!("{FAST_GROUP} max-attempts=2"));
    complete_job(&server, "docs", &receiver.url("204", "docs"));
    let line = server.process.wait_for_line_with("callbacks that were not accepted");
    assert!(line.contains("of job docs at 127.0.0.1: address: 127.0.0.1 is a "), "{line}");
    let last = "address:_127.0.0.1_is_a_loopback_address;_start_with_--allow-private_to_crawl_it";
    assert_eq!(dead_letter(&server)["last"], last);
    assert!(receiver.requests_so_far().is_empty());
    // The operator allows the address, and the callback is sent.
    let server = server.restart("INT", &["broker", LOOPBACK]);
    run_at(&server, &["dead", "retry", "--all", "--group", "callbacks"]).expect_code(0);
    receiver.first_requests(1);
    wait_for_group(&server, "completed", 1);
}

// PROTOCOL: F7
#[test]
#[ignore = "needs foreign programs"]
fn a_server_that_hangs_does_not_delay_other_callbacks() {
    let (server, receiver) = (fast_broker(""), CallbackServer::start());
    for number in 0..MAX_CONCURRENT_REQUESTS + 6 {
        complete_job(&server, &format!("hang-{number}"), &receiver.url("hang", "hang"));
    }
    receiver.first_requests_to("hang", 1);
    complete_job(&server, "docs", &format!("http://localhost:{}/204/docs", receiver.port));
    receiver.first_requests_to("docs", 1);
    // Otherwise it would have waited for the hanging ones.
    let requests = receiver.requests_so_far();
    assert!(
        requests.iter().filter(|request| request.path == "/hang/hang").count()
            < MAX_CONCURRENT_REQUESTS
    );
    wait_for_group(&server, "completed", 1);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_callback_group_with_other_topics_is_left_alone_and_reported() {
    let (server, receiver) = (Server::start(&["broker", LOOPBACK]), CallbackServer::start());
    let mut client = LineConnection::connect_client(server.address);
    let answer = client.request("GROUP create callbacks topics=job-done");
    assert!(answer.starts_with("-ERR bad-argument "), "{answer}");
    client.request_ok("GROUP create callbacks topics=mine key=none");
    complete_job(&server, "docs", &receiver.url("204", "docs"));
    let line = server.process.wait_for_line_with("callbacks are not delivered");
    let (_, remedy) = line.rsplit_once(": tidings ").expect("the message ends with a command");
    let words: Vec<_> = remedy.trim_end().split(' ').collect();
    assert_eq!(words, ["group", "set", "callbacks", "topics=mine,job-done"]);
    assert!(client.request("GROUP show callbacks").contains(" members=0 "));
    run_at(&server, &words).expect_code(0);
    assert_eq!(receiver.first_requests(1)[0].path, "/204/docs");
}

// PROTOCOL: F2
#[test]
#[ignore = "needs foreign programs"]
fn a_callback_in_flight_at_a_stop_is_sent_after_the_restart() {
    for signal in ["KILL", "INT"] {
        let (server, receiver) = (fast_broker(" max-attempts=1"), CallbackServer::start());
        complete_job(&server, "docs", &receiver.url("hang,204", "docs"));
        receiver.first_requests(1);
        let server = server.restart(signal, &["broker", LOOPBACK]);
        let requests = receiver.first_requests(2);
        assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"), "{signal}");
        // An interrupted attempt does not count as failed.
        wait_for_group(&server, "completed", 1);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_broker_killed_when_a_job_is_done_sends_its_callback_later() {
    let receiver = CallbackServer::start();
    let mut server = Server::start(&["broker", LOOPBACK]);
    for round in 1..=3 {
        let name = format!("job-{round}");
        // Either the killed broker or the next one announces the end of the job.
        complete_job(&server, &name, &receiver.url("204", &name));
        server = server.restart("KILL", &["broker", LOOPBACK]);
        receiver.first_requests_to(&name, 1);
        wait_until("an empty group", || {
            let shown =
                LineConnection::connect_client(server.address).request("GROUP show callbacks");
            shown.contains(" waiting=0 processing=0 ").then_some(())
        });
    }
    for round in 1..=3 {
        let requests = receiver.first_requests_to(&format!("job-{round}"), 1);
        let ids: std::collections::BTreeSet<_> =
            requests.iter().map(|request| request.header("webhook-id")).collect();
        assert_eq!(ids.len(), 1, "{requests:?}");
    }
}

// PROTOCOL: C9, F6
#[test]
#[ignore = "needs foreign programs"]
fn forged_job_done_events_send_no_callback() {
    let (server, receiver) = (fast_broker(""), CallbackServer::start());
    let url = receiver.url("204", "forged");
    let mut client = LineConnection::connect_client(server.address);
    let end = format!("docs number=1 callback={url} group=crawlers serial=1.1");
    assert!(
        client
            .request(&format!("PUB job-done {end}"))
            .starts_with("-ERR denied n=1 callback= on job-done")
    );
    let forged =
        HttpClient::new(&server).request("POST", "/topics/job-done", &["--data-binary", &end]);
    assert_eq!(forged.status, 403, "{forged:?}");
    assert_eq!(client.request("PUB job-done docs number=1 group=crawlers"), "+OK 1 2");
    complete_job(&server, "docs", &receiver.url("204", "docs"));
    assert_eq!(receiver.first_requests(1)[0].path, "/204/docs");
    let state = wait_for_group(&server, "completed", 2);
    assert_eq!((&state["failed"], &state["waiting"]), (&0.into(), &0.into()));
    assert_eq!(receiver.requests_so_far().len(), 1);
}

// PROTOCOL: F3
#[test]
#[ignore = "needs foreign programs"]
fn a_broker_accepts_callbacks_of_another_as_webhooks() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("secret"), SECRETS.lines().next().unwrap()).unwrap();
    let port = free_port();
    let config = format!(
        "http = {port}\n[[hook]]\nname = 'jobs'\nsecret-file = 'secret'\n\
         signature = 'standard-webhooks'\nurl = {{ pointer = '/callback' }}\n\
         prefixes = ['http://127.0.0.1:{port}/hooks/']\ntopic = 'done-elsewhere'\n"
    );
    fs::write(folder.path().join("hooks.toml"), config).unwrap();
    fs::write(folder.path().join("secrets"), SECRETS).unwrap();
    let words = ["broker", "--config", "hooks.toml"];
    let hooked = Server::start_in(folder, &words, |command| {
        command.env_remove("TIDINGS_HTTP");
    });
    let http = HttpClient::new(&hooked);
    let secrets = hooked.folder.path().join("secrets");
    let words = ["broker", LOOPBACK, "--callback-secret-file", secrets.to_str().unwrap()];
    let server = Server::start(&words);
    let url = format!("{}/hooks/jobs", http.base_url);
    complete_job(&server, "docs", &url);
    let page = http.get("/topics/done-elsewhere?from=first&wait=30s").json();
    let payload = page["events"][0]["payload"].as_str().unwrap();
    assert!(payload.starts_with(&format!("{url} id=jobs-")), "{payload}");
    wait_for_group(&server, "completed", 1);
    assert_eq!(http.get("/stats").json()["hooks"]["taken"], 1);
}

#[test]
fn an_invalid_secret_file_is_rejected() {
    let folder = TempDir::new().unwrap();
    for (text, error) in [
        (Some("whsec_*"), "line 1 of secrets is not a secret in Base64"),
        (Some("\nYQ==\n;"), "line 3 of secrets is not a secret in Base64"),
        (Some("\n"), "secrets contains no secret"),
        (None, "cannot read secrets: No such file"),
    ] {
        let file = folder.path().join("secrets");
        match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let words = ["broker", "--listen", "0", "--callback-secret-file", "secrets"];
        let ended = run_tidings(folder.path(), &words).expect_code(2);
        let error = format!("--callback-secret-file: {error}");
        assert!(ended.stderr().contains(&error), "{}", ended.stderr());
    }
}
