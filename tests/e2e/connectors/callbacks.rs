//! Callbacks of jobs: what a server hears when a job is done, how often, and how it knows that it
//! is true.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::Http;
use crate::support::nc::nc_all;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server, at, json_at, run, tidings};
use crate::support::receiver::{Receiver, Told};
use crate::support::talk::Talk;
use crate::support::wait::until;

/// The first one is `a secret of the broker and its friends`.
const SECRETS: &str = "whsec_YSBzZWNyZXQgb2YgdGhlIGJyb2tlciBhbmQgaXRzIGZyaWVuZHM=\n\n\
                       YW4gb2xkZXIgc2VjcmV0IG9mIHRoZSBicm9rZXI=\n";

const LOOPBACK: &str = "--allow-private=127.0.0.0/8,::1";

/// Requests that there are at once.
const AT_ONCE: usize = 64;

/// What makes a second attempt come at once, and the tasks of who was killed come back soon.
const QUICK: &str = "GROUP create callbacks topics=job-done key=none lease=1s backoff=1ms";

/// A broker that may ask loopback, with a quick group.
#[track_caller]
fn quick(settings: &str) -> Server {
    let server = Server::start(&["broker", LOOPBACK]);
    let mut client = Talk::client(server.address);
    let answer = client.ask(&format!("{QUICK}{settings}"));
    assert!(answer.starts_with("+OK"), "{answer}");
    server
}

/// A job without a seed: it is done at once.
#[track_caller]
fn job(server: &Server, name: &str, callback: &str) {
    let mut client = Talk::client(server.address);
    for command in [format!("JOB open {name} callback={callback}"), format!("JOB close {name}")] {
        let answer = client.ask(&command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
}

/// The group, when it has come to that.
#[track_caller]
fn until_group(server: &Server, key: &str, value: u64) -> Value {
    until(&format!("{key} to be {value}"), || {
        let shown = at(server, &["group", "show", "callbacks", "--json"]);
        let shown: Value = serde_json::from_str(shown.stdout().first()?).unwrap();
        (shown[key] == value).then_some(shown)
    })
}

/// The only dead letter of the group.
#[track_caller]
fn dead(server: &Server) -> Value {
    until_group(server, "dead-kept", 1);
    let mut dead = json_at(server, &["dead", "ls", "--group", "callbacks"]);
    assert_eq!(dead.len(), 1, "{dead:?}");
    dead.remove(0)
}

/// What `openssl` makes of the secret, which is not in Base64, for what a request says.
#[track_caller]
fn signature(secret: &str, told: &Told) -> String {
    let (id, time) = (told.header("webhook-id"), told.header("webhook-timestamp"));
    let script = "openssl dgst -sha256 -hmac \"$0\" -binary | openssl base64 -A";
    let mut shell = Command::new("sh")
        .args(["-c", script, secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    write!(shell.stdin.take().unwrap(), "{id}.{time}.{}", told.body).unwrap();
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success());
    format!("v1,{}", String::from_utf8(output.stdout).unwrap())
}

// PROTOCOL: F1, F2, F3
#[test]
fn the_end_of_each_pass_is_told_once_and_signed_with_all_secrets() {
    let (origin, receiver) = (Origin::serve(Site::default()), Receiver::start());
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("secrets"), SECRETS).unwrap();
    let words = ["up", LOOPBACK, "--callback-secret-file", "secrets"];
    let server = Server::start_in(folder, &words, |_| ());
    let http = Http::of(&server);
    // Nobody is told of others, before and after.
    let silent = json!({ "job": "silent", "urls": [], "close": true }).to_string();
    assert_eq!(http.send("POST", "/jobs", &silent).status, 200);
    for pass in 1..=2 {
        let opened = json!({
            "job": "docs", "urls": [origin.url(0, "/p/0")], "max-pages": 1, "close": true,
            "callback": receiver.url("204", "docs"),
        });
        assert_eq!(http.send("POST", "/jobs", &opened.to_string()).status, 200);
        receiver.told(pass);
    }
    job(&server, "last", &receiver.url("204", "last"));
    let told = receiver.told(3);
    let paths: Vec<_> = told.iter().map(|told| &*told.path).collect();
    assert_eq!(paths, ["/204/docs", "/204/docs", "/204/last"]);
    until_group(&server, "completed", 4);

    let events = nc_all(server.address, "HELLO\nSUB job-done from=first\n");
    let event = events.iter().find(|event| event.contains(" docs number=2 pass=2 "));
    let (_, words) = event.and_then(|event| event.split_once(" docs ")).expect("it is done");
    let mut expected = json!({ "type": "job-done", "job": "docs" });
    for (key, value) in words.split(' ').filter_map(|word| word.split_once('=')) {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        expected[key] = if is_number { json!(value.parse::<u64>().unwrap()) } else { json!(value) };
    }
    assert_eq!(told[1].json(), expected);
    assert_eq!((&expected["pass"], &expected["completed"]), (&json!(2), &json!(1)), "{expected}");
    assert_eq!(told[0].json()["pass"], 1);
    assert_ne!(told[0].header("webhook-id"), told[1].header("webhook-id"));
    let serial = expected["serial"].as_str().unwrap().replace('.', "-");
    assert_eq!(told[1].header("webhook-id"), format!("crawlers-{serial}"));
    assert_eq!(told[1].header("content-type"), "application/json");
    assert!(told[1].header("user-agent").starts_with("tidings"), "{told:?}");

    for told in &told {
        let secrets = ["a secret of the broker and its friends", "an older secret of the broker"];
        let signatures = secrets.map(|secret| signature(secret, told)).join(" ");
        assert_eq!(told.header("webhook-signature"), signatures);
        let signed = ["webhook-id", "webhook-timestamp"]
            .map(|name| format!("--with-header={name}: {}", told.header(name)));
        let mut probe = Running::start(&mut tidings(
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
        probe.write(&told.body);
        let printed = probe.finish().expect_code(0).stdout();
        assert!(printed[0].starts_with("valid: "), "{printed:?}");
    }
}

#[test]
fn a_broker_without_callbacks_has_no_group_and_no_connection_for_them() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for command in ["JOB open docs", "JOB close docs", "JOB wait docs"] {
        assert!(client.ask(command).starts_with("+OK docs "), "{command}");
    }
    assert_eq!(client.ask_lines("GROUP ls"), ["+ crawlers", "+OK groups=1"]);
    let server = server.restart("INT", &["broker"]);
    assert_eq!(Talk::greeted(server.address).1, 1);
}

// PROTOCOL: F6
#[test]
fn the_first_callback_creates_the_group_with_its_settings() {
    let (server, receiver) = (Server::start(&["broker", LOOPBACK]), Receiver::start());
    job(&server, "docs", &receiver.url("204", "docs"));
    receiver.told(1);
    let mut client = Talk::client(server.address);
    let shown = client.ask("GROUP show callbacks");
    for setting in
        ["topics=job-done", "key=none", "lease=10s", "max-attempts=10", "backoff=10s", "members=1"]
    {
        assert!(shown.split(' ').any(|word| word == setting), "{setting}: {shown}");
    }
    assert!(client.ask("GROUP delete callbacks").starts_with("-ERR conflict "));
}

// PROTOCOL: F2, F4
#[test]
fn who_is_refused_tries_again_as_the_same_and_not_before_it_was_told_to() {
    let (server, receiver) = (quick(" max-attempts=5"), Receiver::start());
    job(&server, "docs", &receiver.url("500,503:1,302,204", "docs"));
    let told = receiver.told(4);
    until_group(&server, "completed", 1);
    for again in &told[1..] {
        assert_eq!(again.header("webhook-id"), told[0].header("webhook-id"));
        assert_eq!((&again.body, &*again.path), (&told[0].body, "/500,503:1,302,204/docs"));
        assert!(!again.has_header("webhook-signature"), "there is no secret");
    }
    assert!(told[2].at - told[1].at >= 1.0, "{told:?}");
    assert_eq!(receiver.told_so_far().len(), 4, "a redirect is not followed");
}

// PROTOCOL: F6
#[test]
fn who_always_refuses_is_a_dead_letter_that_can_be_sent_back() {
    let (server, receiver) = (quick(" max-attempts=2"), Receiver::start());
    job(&server, "docs", &receiver.url("500,302,204", "docs"));
    let letter = dead(&server);
    let elsewhere = format!(
        "HTTP_status_302:_a_redirect_to_http://127.0.0.1:{}/204/elsewhere,_which_is_not_followed",
        receiver.port
    );
    assert_eq!((&letter["reason"], &letter["last"]), (&json!("max-attempts"), &json!(elsewhere)));
    at(&server, &["dead", "retry", "--all", "--group", "callbacks"]).expect_code(0);
    let told = receiver.told(3);
    assert_eq!(told[2].header("webhook-id"), told[0].header("webhook-id"));
    until_group(&server, "completed", 1);
}

// PROTOCOL: F4
#[test]
fn who_is_gone_is_asked_no_more() {
    let (server, receiver) = (quick(""), Receiver::start());
    job(&server, "docs", &receiver.url("410", "docs"));
    let group = until_group(&server, "failed", 1);
    assert_eq!((&group["dead"], &group["waiting"]), (&json!(0), &json!(0)), "{group}");
    assert_eq!(receiver.told(1).len(), receiver.told_so_far().len());
}

// PROTOCOL: F5
#[test]
fn who_must_not_be_asked_is_not_and_that_is_said() {
    let (server, receiver) = (Server::broker(), Receiver::start());
    let answer = Talk::client(server.address).ask(&format!("{QUICK} max-attempts=2"));
    assert!(answer.starts_with("+OK"), "{answer}");
    job(&server, "docs", &receiver.url("204", "docs"));
    let said = server.process.line_with("callbacks to addresses that are not allowed");
    assert!(said.contains("of job docs: 127.0.0.1: 127.0.0.1 is a loopback address"), "{said}");
    let last = "address:_127.0.0.1_is_a_loopback_address;_start_with_--allow-private_to_crawl_it";
    assert_eq!(dead(&server)["last"], last);
    assert!(receiver.told_so_far().is_empty());
    // Until somebody allows it.
    let server = server.restart("INT", &["broker", LOOPBACK]);
    at(&server, &["dead", "retry", "--all", "--group", "callbacks"]).expect_code(0);
    receiver.told(1);
    until_group(&server, "completed", 1);
}

// PROTOCOL: F7
#[test]
fn who_does_not_answer_keeps_nobody_waiting() {
    let (server, receiver) = (quick(""), Receiver::start());
    for number in 0..AT_ONCE + 6 {
        job(&server, &format!("hang-{number}"), &receiver.url("hang", "hang"));
    }
    receiver.told_of("hang", 1);
    job(&server, "docs", &format!("http://localhost:{}/204/docs", receiver.port));
    receiver.told_of("docs", 1);
    // Otherwise it would have had to wait for them.
    let told = receiver.told_so_far();
    assert!(told.iter().filter(|told| told.path == "/hang/hang").count() < AT_ONCE);
    until_group(&server, "completed", 1);
}

#[test]
fn a_group_that_is_fed_by_something_else_is_left_alone_and_that_is_said() {
    let (server, receiver) = (Server::start(&["broker", LOOPBACK]), Receiver::start());
    let mut client = Talk::client(server.address);
    let answer = client.ask("GROUP create callbacks topics=job-done");
    assert!(answer.starts_with("-ERR bad-argument "), "{answer}");
    let answer = client.ask("GROUP create callbacks topics=mine key=none");
    assert!(answer.starts_with("+OK"), "{answer}");
    job(&server, "docs", &receiver.url("204", "docs"));
    let said = server.process.line_with("callbacks are not delivered");
    let (_, remedy) = said.rsplit_once(": tidings ").expect("the message ends with a command");
    let words: Vec<_> = remedy.trim_end().split(' ').collect();
    assert_eq!(words, ["group", "set", "callbacks", "topics=mine,job-done"]);
    assert!(client.ask("GROUP show callbacks").contains(" members=0 "));
    at(&server, &words).expect_code(0);
    assert_eq!(receiver.told(1)[0].path, "/204/docs");
}

// PROTOCOL: F2
#[test]
fn what_is_on_its_way_when_the_broker_ends_is_told_by_the_next_one() {
    for signal in ["KILL", "INT"] {
        let (server, receiver) = (quick(" max-attempts=1"), Receiver::start());
        job(&server, "docs", &receiver.url("hang,204", "docs"));
        receiver.told(1);
        let server = server.restart(signal, &["broker", LOOPBACK]);
        let told = receiver.told(2);
        assert_eq!(told[0].header("webhook-id"), told[1].header("webhook-id"), "{signal}");
        // Broken off is not failed.
        until_group(&server, "completed", 1);
    }
}

#[test]
fn a_broker_that_is_killed_as_soon_as_a_job_is_done_tells_it_later() {
    let receiver = Receiver::start();
    let mut server = Server::start(&["broker", LOOPBACK]);
    for round in 1..=3 {
        let name = format!("job-{round}");
        // The end is announced by whichever of the two comes to it.
        job(&server, &name, &receiver.url("204", &name));
        server = server.restart("KILL", &["broker", LOOPBACK]);
        receiver.told_of(&name, 1);
        until("nothing to wait", || {
            let shown = Talk::client(server.address).ask("GROUP show callbacks");
            shown.contains(" waiting=0 processing=0 ").then_some(())
        });
    }
    for round in 1..=3 {
        let told = receiver.told_of(&format!("job-{round}"), 1);
        let ids: std::collections::BTreeSet<_> =
            told.iter().map(|told| told.header("webhook-id")).collect();
        assert_eq!(ids.len(), 1, "{told:?}");
    }
}

// PROTOCOL: C9, F6
#[test]
fn an_event_that_is_no_end_of_a_job_is_told_nobody() {
    let (server, receiver) = (quick(""), Receiver::start());
    let url = receiver.url("204", "forged");
    let mut client = Talk::client(server.address);
    let end = format!("docs number=1 callback={url} group=crawlers serial=1.1");
    assert!(
        client
            .ask(&format!("PUB job-done {end}"))
            .starts_with("-ERR denied n=1 callback= on job-done")
    );
    let forged = Http::of(&server).ask("POST", "/topics/job-done", &["--data-binary", &end]);
    assert_eq!(forged.status, 403, "{forged:?}");
    assert_eq!(client.ask("PUB job-done docs number=1 group=crawlers"), "+OK 1 2");
    job(&server, "docs", &receiver.url("204", "docs"));
    assert_eq!(receiver.told(1)[0].path, "/204/docs");
    let state = until_group(&server, "completed", 2);
    assert_eq!((&state["failed"], &state["waiting"]), (&0.into(), &0.into()));
    assert_eq!(receiver.told_so_far().len(), 1);
}

// PROTOCOL: F3
#[test]
fn the_callback_of_one_broker_is_a_webhook_of_another() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("secret"), SECRETS.lines().next().unwrap()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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
    let http = Http::of(&hooked);
    let secrets = hooked.folder.path().join("secrets");
    let words = ["broker", LOOPBACK, "--callback-secret-file", secrets.to_str().unwrap()];
    let server = Server::start(&words);
    let url = format!("{}/hooks/jobs", http.base);
    job(&server, "docs", &url);
    let page = http.get("/topics/done-elsewhere?from=first&wait=30s").json();
    let payload = page["events"][0]["payload"].as_str().unwrap();
    assert!(payload.starts_with(&format!("{url} id=jobs-")), "{payload}");
    until_group(&server, "completed", 1);
    assert_eq!(http.get("/stats").json()["hooks"]["taken"], 1);
}

#[test]
fn a_file_without_a_secret_is_refused() {
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
        let ended = run(folder.path(), &words).expect_code(2);
        let error = format!("--callback-secret-file: {error}");
        assert!(ended.stderr().contains(&error), "{}", ended.stderr());
    }
}

#[test]
fn a_callback_to_a_host_that_only_has_pages_is_refused_when_it_is_given() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    let answer = client.ask("JOB open docs callback=https://x.xn--pokxncvks/done");
    let said = "-ERR bad-argument callback=: the host x.xn--pokxncvks has an xn-- label";
    assert!(answer.starts_with(said), "{answer}");
    // Its pages are another matter.
    assert!(client.ask("PUB new-url https://x.xn--pokxncvks/page").starts_with("+OK"));
    assert!(client.ask("JOB open docs callback=https://xn--bcher-kva.example/").starts_with("+OK"));
}
