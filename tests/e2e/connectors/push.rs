//! Pushes of topics to URLs: formats, filters, batches, retries and limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::docs::pages::code_blocks;
use crate::support::callback_server::{CallbackRequest, CallbackServer};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_json_at, run_tidings, tidings_command,
};
use crate::support::wait::wait_until;

const SECRET: &str = "whsec_YSBzZWNyZXQgb2YgdGhlIGJyb2tlciBhbmQgaXRzIGZyaWVuZHM=";
pub(super) const BROKER: [&str; 4] =
    ["broker", "--config", "push.toml", "--allow-private=127.0.0.0/8"];

/// A `[[push]]` of the topic `t` with further keys. It is signed, unless they name a format.
pub(super) fn push_table(name: &str, url: &str, keys: &str) -> String {
    let format = if keys.contains("format") { "" } else { "format = 'standard-webhooks'\n" };
    let secret = if keys.contains("format") || keys.contains("secret-file") {
        ""
    } else {
        "secret-file = 'secret'\n"
    };
    format!("[[push]]\nname = '{name}'\ntopic = 't'\nurl = '{url}'\n{format}{secret}{keys}\n")
}

fn folder_with(config: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("push.toml"), config).unwrap();
    fs::write(folder.path().join("secret"), SECRET).unwrap();
    folder
}

/// A broker with this configuration that may send to loopback addresses.
#[track_caller]
pub(super) fn broker_with(config: &str) -> Server {
    Server::start_in(folder_with(config), &BROKER, |_| ())
}

/// The same with a group of the push `p` that retries at once.
#[track_caller]
pub(super) fn fast_broker_with(config: &str, settings: &str) -> Server {
    let server = broker_with(config);
    set_group(&server, "push-p", &format!("{FAST} {settings}"));
    server
}

pub(super) const FAST: &str = "lease=1s backoff=1ms";

/// Waits until the push has created its group, and changes it.
#[track_caller]
pub(super) fn set_group(server: &Server, group: &str, settings: &str) {
    let mut client = LineConnection::connect_client(server.address);
    let set = format!("GROUP set {group} {settings}");
    wait_until("the group", || client.request(set.trim_end()).starts_with("+OK").then_some(()));
}

#[track_caller]
pub(super) fn publish(server: &Server, payloads: &[&str]) {
    let mut client = LineConnection::connect_client(server.address);
    for payload in payloads {
        client.request_ok(&format!("PUB t {payload}"));
    }
}

/// Waits until the group shows this value.
#[track_caller]
pub(super) fn wait_for_group(server: &Server, group: &str, key: &str, value: u64) -> Value {
    wait_until(&format!("{key} of {group} to be {value}"), || {
        let shown = run_at(server, &["group", "show", group, "--json"]);
        let shown: Value = serde_json::from_str(shown.stdout().first()?).ok()?;
        (shown[key] == value).then_some(shown)
    })
}

/// The only dead letter of the push `p`.
#[track_caller]
pub(super) fn dead_letter(server: &Server) -> Value {
    wait_for_group(server, "push-p", "dead-kept", 1);
    let mut dead = run_json_at(server, &["dead", "ls", "--group", "push-p"]);
    assert_eq!(dead.len(), 1, "{dead:?}");
    dead.remove(0)
}

/// What the libraries of `push_messages.py` read in these requests.
#[track_caller]
fn read_by_libraries(requests: &[CallbackRequest]) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("target/venv/bin/python"));
    command.arg(root.join("tests/e2e/support/push_messages.py")).arg(SECRET);
    let mut process = Process::start(&mut command);
    for request in requests {
        process.write(format!("{}\n", request.to_json()));
    }
    let output = process.finish().expect_code(0);
    output.stdout().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The ids of the events in a request of the format `standard-webhooks`.
pub(super) fn event_ids(request: &CallbackRequest) -> Vec<String> {
    let body = request.json();
    let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
    body["events"].as_array().map_or_else(|| vec![id(&body)], |all| all.iter().map(id).collect())
}

pub(super) const PAGE: &str = "http://a.example/?q=1 outcome=done changed=yes";

#[test]
#[ignore = "needs foreign programs"]
fn standard_webhooks_are_verified_by_another_library() {
    let receiver = CallbackServer::start();
    let single = push_table("single", &receiver.url("204", "single"), "");
    let batch = push_table("batch", &receiver.url("204", "batch"), "batch = '100ms'");
    let server = broker_with(&(single + &batch));
    publish(&server, &[PAGE]);
    let mut requests = receiver.first_requests_to("single", 1);
    requests.extend(receiver.first_requests_to("batch", 1));
    let page = json!({
        "id": "t/1", "payload": PAGE, "target": "http://a.example/?q=1",
        "attributes": { "outcome": "done", "changed": "yes" },
    });
    let mut body = page.clone();
    body["type"] = "t".into();
    let batch = json!({ "type": "t", "events": [page] });
    assert_eq!(read_by_libraries(&requests), [body, batch]);
    assert_eq!(requests[0].header("webhook-id"), "t/1");
    assert!(requests[1].header("webhook-id").starts_with("batch-"), "{requests:?}");
    assert_eq!(requests[0].header("content-type"), "application/json");
    publish(&server, &["some \"text\""]);
    let requests = receiver.first_requests_to("single", 2);
    let text = json!({ "type": "t", "id": "t/2", "payload": "some \"text\"" });
    assert_eq!(read_by_libraries(&requests[1..]), [text]);
}

#[test]
#[ignore = "needs foreign programs"]
fn cloud_events_are_read_by_another_library() {
    let receiver = CallbackServer::start();
    let keys = "format = 'cloudevents'\nsecret-file = 'secret'";
    let single = push_table("single", &receiver.url("204", "single"), keys);
    let keys = format!("{keys}\nbatch = '100ms'");
    let batch = push_table("batch", &receiver.url("204", "batch"), &keys);
    let public = "public-url = 'https://tidings.example/t/'\n";
    let server = broker_with(&format!("{public}{single}{batch}"));
    publish(&server, &[PAGE]);
    let mut requests = receiver.first_requests_to("single", 1);
    requests.extend(receiver.first_requests_to("batch", 1));
    let page = json!({
        "specversion": "1.0", "type": "tidings.t", "source": "https://tidings.example/t/",
        "id": "t/1", "subject": "http://a.example/?q=1", "time": null, "datacontenttype": "application/json",
        "data": {
            "payload": PAGE, "target": "http://a.example/?q=1",
            "attributes": { "outcome": "done", "changed": "yes" },
        },
    });
    assert_eq!(read_by_libraries(&requests), [page.clone(), json!([page])]);
}

#[test]
#[ignore = "needs foreign programs"]
fn templates_of_text_and_slack_keep_hostile_events_in_their_place() {
    let receiver = CallbackServer::start();
    let hostile = "http://a.example/?\"}<!channel>&q@here a=\\\"x";
    let mut config = String::new();
    for (name, keys) in [
        ("plain", "format = 'text'\ntemplate = '{id}: {target} {attr.a}{attr.b}'"),
        (
            "json",
            "format = 'text'\ncontent-type = 'application/json'\n\
             template = '{\"message\": \"{target}|{attr.a}\"}'",
        ),
        ("chat", "format = 'slack'\ntemplate = '*{target}*'"),
    ] {
        config += &push_table(name, &receiver.url("204", name), keys);
    }
    let server = broker_with(&config);
    publish(&server, &[hostile]);
    let request = |name| receiver.first_requests_to(name, 1).remove(0);
    let plain = request("plain");
    assert_eq!(plain.body, "t/1: http://a.example/?\"}<!channel>&q@here \\\"x");
    assert_eq!(plain.header("content-type"), "text/plain; charset=utf-8");
    let message = json!({ "message": "http://a.example/?\"}<!channel>&q@here|\\\"x" });
    assert_eq!(request("json").json(), message);
    let text = json!({ "text": "*http://a.example/?\"}&lt;!channel&gt;&q@\u{200b}here*" });
    assert_eq!(request("chat").json(), text);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_filter_excludes_events_from_its_push_alone() {
    let receiver = CallbackServer::start();
    let keys = "where = ['changed=yes', 'status!=304']";
    let config = push_table("some", &receiver.url("204", "some"), keys)
        + &push_table("all", &receiver.url("204", "all"), "");
    let server = broker_with(&config);
    let no = ["/a changed=no", "/b changed=yes status=304", "text changed=yes"];
    publish(&server, &no);
    publish(&server, &["/d changed=yes"]);
    let ids = |name, count| -> BTreeSet<_> {
        receiver.first_requests_to(name, count).iter().flat_map(event_ids).collect()
    };
    assert_eq!(ids("some", 1), ["t/4".to_owned()].into());
    assert_eq!(ids("all", 4).len(), 4);
    // The others were never tasks.
    let some = wait_for_group(&server, "push-some", "completed", 1);
    assert_eq!(
        (&some["waiting"], &some["where"]),
        (&json!(0), &json!(["changed=yes", "status!=304"]))
    );
    wait_for_group(&server, "push-all", "completed", 4);
    assert_eq!(receiver.requests_so_far().len(), 5);
    assert_eq!(HttpClient::new(&server).events("t").len(), 4);

    // Another filter replaces that of the group, and none removes it.
    let changed = |keys: &str, server: Server| {
        let config = push_table("some", &receiver.url("204", "some"), keys);
        fs::write(server.folder.path().join("push.toml"), config).unwrap();
        server.restart("TERM", &BROKER)
    };
    let server = changed("where = ['changed=no']", server);
    wait_until("the new filter", || {
        let shown = run_json_at(&server, &["group", "show", "push-some"]);
        (shown[0]["where"] == json!(["changed=no"])).then_some(())
    });
    publish(&server, &["/e changed=no", "/f changed=yes"]);
    wait_for_group(&server, "push-some", "completed", 2);
    let server = changed("", server);
    wait_until("no filter", || {
        run_json_at(&server, &["group", "show", "push-some"])[0]["where"].is_null().then_some(())
    });
    publish(&server, &["/g"]);
    wait_for_group(&server, "push-some", "completed", 3);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_full_batch_is_one_request_of_100_events_in_order() {
    let receiver = CallbackServer::start();
    let config = push_table("p", &receiver.url("204", "p"), "batch = '1h'");
    let server = broker_with(&config);
    let payloads: Vec<_> = (1..=250).map(|number| format!("event {number}")).collect();
    publish(&server, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    let requests = receiver.first_requests(2);
    wait_for_group(&server, "push-p", "completed", 200);
    let ids: Vec<Vec<_>> = requests.iter().map(event_ids).collect();
    for ids in &ids {
        let seqs: Vec<u64> = ids.iter().map(|id| id["t/".len()..].parse().unwrap()).collect();
        assert!(seqs.len() == 100 && seqs.is_sorted(), "{seqs:?}");
    }
    assert_eq!(ids.concat().into_iter().collect::<BTreeSet<_>>().len(), 200);
    assert_ne!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    wait_for_group(&server, "push-p", "processing", 50);
    assert_eq!(receiver.requests_so_far().len(), 2);
    // A stop does not wait for the hour. Events that come again do not wait for others.
    let server = server.restart("TERM", &BROKER);
    let shown = wait_for_group(&server, "push-p", "completed", 250);
    assert_eq!((&shown["lost"], &shown["failed"]), (&json!(0), &json!(0)), "{shown}");
    let ids = receiver.requests_so_far().iter().flat_map(event_ids).collect::<Vec<_>>();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (250, 250));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_rejected_event_is_retried_with_its_id_after_retry_after() {
    let receiver = CallbackServer::start();
    let config = push_table("p", &receiver.url("500,503:1,429:1,302,204", "p"), "");
    // Only 500 counts.
    let server = fast_broker_with(&config, "max-attempts=2");
    publish(&server, &[PAGE]);
    let requests = receiver.first_requests(5);
    wait_for_group(&server, "push-p", "completed", 1);
    for again in &requests[1..] {
        assert_eq!(again.header("webhook-id"), "t/1");
        assert_eq!(again.body, requests[0].body);
        assert!(again.has_header("webhook-signature"));
    }
    for waited in [2, 3] {
        let since = requests[waited].received_at - requests[waited - 1].received_at;
        assert!(since >= 1.0, "{waited}: {requests:?}");
    }
    assert_eq!(receiver.requests_so_far().len(), 5, "a redirect is not followed");
}

#[test]
#[ignore = "needs foreign programs"]
fn status_410_makes_a_dead_letter_that_can_be_retried() {
    let receiver = CallbackServer::start();
    let config = push_table("p", &receiver.url("410,204", "p"), "");
    let server = fast_broker_with(&config, "");
    publish(&server, &[PAGE]);
    let letter = dead_letter(&server);
    let key = (&letter["reason"], &letter["last"], &letter["key"]);
    assert_eq!(key, (&json!("retry-no"), &json!("HTTP_status_410"), &json!("t/1")));
    assert_eq!(receiver.requests_so_far().len(), 1);
    run_at(&server, &["dead", "retry", "--key", "t/1", "--group", "push-p"]).expect_code(0);
    let requests = receiver.first_requests(2);
    assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    wait_for_group(&server, "push-p", "completed", 1);
}

// PROTOCOL: P6
#[test]
#[ignore = "needs foreign programs"]
fn the_trace_context_of_an_event_is_a_header() {
    let receiver = CallbackServer::start();
    let config = push_table("single", &receiver.url("204", "single"), "")
        + &push_table("batch", &receiver.url("204", "batch"), "batch = '1s'");
    let server = broker_with(&config);
    for group in ["push-single", "push-batch"] {
        set_group(&server, group, FAST);
    }
    let traces = [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-11111111111111111111111111111111-2222222222222222-00",
    ];
    let header = |request: &CallbackRequest| {
        request.has_header("traceparent").then(|| request.header("traceparent").to_owned())
    };
    let mut expected = BTreeMap::new();
    // Two events of one trace, two traces, an event without one.
    for (number, events) in [[0, 0], [0, 1], [1, 2]].into_iter().enumerate() {
        let payload = |(at, trace): (usize, usize)| {
            let payload = format!("/{number}/{at}");
            match traces.get(trace) {
                Some(trace) => format!("{payload} traceparent={trace}"),
                None => payload,
            }
        };
        let payloads: Vec<_> = events.into_iter().enumerate().map(payload).collect();
        publish(&server, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
        let sent = receiver.first_requests_to("batch", number + 1);
        let batch = &sent[number];
        assert_eq!(event_ids(batch).len(), 2, "{batch:?}");
        assert_eq!(header(batch).as_deref(), [Some(traces[0]), None, None][number]);
        for (at, trace) in events.into_iter().enumerate() {
            let trace = traces.get(trace).map(|trace| (*trace).to_owned());
            expected.insert(format!("t/{}", 2 * number + at + 1), trace);
        }
    }
    let single = receiver.first_requests_to("single", 6);
    let single = single.iter().map(|request| (event_ids(request).remove(0), header(request)));
    assert_eq!(single.collect::<BTreeMap<_, _>>(), expected);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_redirect_into_the_network_is_not_followed_and_ends_as_a_dead_letter() {
    let receiver = CallbackServer::start();
    // Waits of 250 ms, 500 ms and 1 s come before the fourth request.
    let config = push_table("p", &receiver.url("308,307", "p"), "retry-for = '1s'");
    let server = fast_broker_with(&config, "max-attempts=2");
    publish(&server, &[PAGE]);
    let last = format!(
        "HTTP_status_307:_a_redirect_to_http://127.0.0.1:{},_which_is_not_followed",
        receiver.port
    );
    let letter = dead_letter(&server);
    assert_eq!((&letter["reason"], &letter["last"]), (&json!("retry-no"), &json!(last)));
    assert_eq!(receiver.requests_so_far().len(), 4);
}

#[test]
fn wrong_pushes_are_reported_with_their_place() {
    let url = "http://a.example/";
    let good = push_table("p", url, "");
    for (config, place, problem) in [
        (push_table("p", url, "format = 'xml'"), "13:1", "`format` is \"xml\""),
        (push_table("p", url, "format = 'text'\ntemplate = '{x}'"), "14:1", "{x} is unknown"),
        (push_table("p", url, "format = 'standard-webhooks'"), "13:1", "there is no secret"),
        (push_table("p", url, "where = 'x=1'"), "15:1", "`where`: invalid type: string"),
        (
            push_table("q", url, "").replace(&format!("url = '{url}'"), ""),
            "9:1",
            "missing field `url`",
        ),
        (push_table("q", url, "secret-file = 'short'"), "14:1", "a secret of 14 bytes"),
        (push_table("q", url, "secret-file = 'none'"), "14:1", "cannot read none"),
        (push_table("q", url, "format = 'cloudevents'"), "13:1", "needs --public-url"),
        ("[up]\npush = 'x'".to_owned(), "10:8", "expected a table: "),
        (good.clone(), "10:1", "two pushes have the name \"p\""),
    ] {
        let folder = folder_with(&format!("# one\n{good}{config}"));
        fs::write(folder.path().join("short"), "YSBzaG9ydCBzZWNyZXQ=").unwrap();
        let check = ["config", "check", "broker", "--config", "push.toml"];
        let output = run_tidings(folder.path(), &check).expect_code(2);
        let stderr = output.stderr();
        assert!(stderr.starts_with(&format!("push.toml:{place}: `push`: ")), "{stderr}");
        assert!(stderr.contains(problem), "{problem}: {stderr}");
        assert!(stderr.lines().count() == 1 && !stderr.contains("{\""), "{stderr}");
        let start = ["broker", "--listen", "0", "--config", "push.toml"];
        let output = run_tidings(folder.path(), &start).expect_code(2);
        let line = format!("tidings: {stderr}");
        assert!(output.stderr().ends_with(&line), "{line}: {}", output.stderr());
    }
    let folder = folder_with(&good);
    run_tidings(folder.path(), &["config", "check", "--config", "push.toml"]).expect_code(0);
}

#[test]
fn the_pushes_of_the_manual_are_valid() {
    let blocks = code_blocks("docs/push.md").into_iter().filter(|block| block.kind == "toml");
    let mut count = 0;
    for block in blocks {
        let config = block.lines.join("\n").replace("/etc/tidings/push.secret", "secret");
        let folder = folder_with(&config);
        run_tidings(folder.path(), &["config", "check", "--config", "push.toml"]).expect_code(0);
        count += config.matches("[[push]]").count();
    }
    assert_eq!(count, 4);
}

/// `tidings config check` of a broker with a public URL and these tables.
#[track_caller]
fn check_with_http(tables: &str) -> ProcessOutput {
    let http =
        "http = 12399\npublic-url = 'https://tidings.example/t/'\nhttp-host = ['b.example']\n";
    let folder = folder_with(&format!("{http}{tables}"));
    let words = ["config", "check", "broker", "--config", "push.toml"];
    let mut command = tidings_command(folder.path(), words);
    Process::start(command.env_remove("TIDINGS_HTTP")).finish()
}

#[test]
fn pushes_that_lead_back_to_their_topic_are_refused() {
    let push = |name: &str, from: &str, to: &str| {
        let url = format!("https://tidings.example/t/topics/{to}");
        push_table(name, &url, "").replace("'t'", &format!("'{from}'"))
    };
    let circle = push("p", "a", "b") + &push("q", "b", "c") + &push("r", "c", "a");
    // The crawler publishes the outcome.
    let crawl = push("p", "page-ready", "new-url");
    for (tables, problem) in [
        (circle, "`url` publishes on b, which leads to a again, for ever"),
        (crawl, "`url` publishes on new-url, which leads to page-ready again, for ever"),
    ] {
        check_with_http(&tables).expect_code(2).expect_stderr(problem);
    }
    let chain = push("p", "a", "b") + &push("q", "b", "c") + &push("r", "a", "c");
    check_with_http(&chain).expect_code(0);
}

#[test]
fn a_push_into_its_own_topic_is_refused() {
    let hook = "[[hook]]\nname = 'h'\ntopic = 't'\nsecret-file = 'secret'\nsignature = 'github'\n\
                url = { field = 'u' }\nprefixes = ['http://a.example/']\n";
    let check = |url: &str| check_with_http(&format!("{hook}{}", push_table("p", url, "")));
    for url in [
        "https://tidings.example/t/hooks/h",
        "https://tidings.example/t/hooks/h?x=y",
        "https://b.example/hooks/h",
        "http://127.0.0.1:12399/hooks/h",
        "http://localhost:12399/topics/t",
        "https://tidings.example/t/topics/t?wait=1s",
    ] {
        let stderr = check(url).expect_code(2).stderr();
        let problem = "`push`: the push \"p\": `url` publishes on t, which would be pushed again";
        assert!(
            stderr.starts_with("push.toml:14:1: ") && stderr.contains(problem),
            "{url}: {stderr}"
        );
    }
    for url in [
        "https://tidings.example/t/hooks/other",
        "https://tidings.example/t/topics/other",
        "http://127.0.0.1:12398/hooks/h",
        "https://c.example/hooks/h",
        "https://tidings.example/hooks/h/x",
    ] {
        check(url).expect_code(0);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_changed_push_takes_effect_at_the_next_start() {
    let receiver = CallbackServer::start();
    let server = broker_with(&push_table("p", &receiver.url("204", "old"), ""));
    let changed = push_table("p", &receiver.url("204", "new"), "");
    fs::write(server.folder.path().join("push.toml"), changed).unwrap();
    server.process.signal("HUP");
    server
        .process
        .wait_for_line_with("`push` changed in push.toml:1; takes effect at the next start");
    publish(&server, &[PAGE]);
    receiver.first_requests_to("old", 1);
    // If the response to an event has not been read at the stop, the event is sent again.
    wait_for_group(&server, "push-p", "completed", 1);
    let server = server.restart("TERM", &BROKER);
    publish(&server, &[PAGE]);
    assert_eq!(event_ids(&receiver.first_requests_to("new", 1)[0]), ["t/2"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_push_whose_group_is_another_one_takes_nothing_and_says_so() {
    let receiver = CallbackServer::start();
    let server = broker_with(&push_table("p", &receiver.url("500", "old"), ""));
    set_group(&server, "push-p", "max-attempts=100");
    publish(&server, &[PAGE]);
    let changed = push_table("p", &receiver.url("204", "new"), "").replace("'t'", "'u'");
    fs::write(server.folder.path().join("push.toml"), changed).unwrap();
    let server = server.restart("TERM", &BROKER);
    let line = server.process.wait_for_line_with("events are not pushed");
    let problem = "group push-p has topics=t key=seq, and not topics=u key=seq: use another name, \
                   or delete it with: tidings group delete push-p";
    assert!(line.contains(problem), "{line}");
    let shown = wait_for_group(&server, "push-p", "members", 0);
    assert_eq!((&shown["waiting"], &shown["dead"]), (&json!(1), &json!(0)), "{shown}");
    run_at(&server, &["group", "delete", "push-p", "--yes"]).expect_code(0);
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("PUB u /u");
    assert_eq!(event_ids(&receiver.first_requests_to("new", 1)[0]), ["u/1"]);
}

#[test]
fn config_show_hides_the_path_of_a_chat() {
    let folder = folder_with(&push_table("p", "https://a.example/hush", "format = 'slack'"));
    let show = ["config", "show", "broker", "--config", "push.toml"];
    let shown = run_tidings(folder.path(), &show).expect_code(0).stdout();
    let line = shown.iter().find(|line| line.contains("push = ")).unwrap();
    assert!(line.contains("https://a.example/HIDDEN") && !line.contains("hush"), "{line}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_push_to_an_address_inside_is_refused_in_every_notation() {
    let receiver = CallbackServer::start();
    let hosts =
        ["127.0.0.1", "2130706433", "[::ffff:7f00:1]", "127.0.0.1.", "localhost", "10.0.0.1"];
    let table = |(at, host): (usize, &&str)| {
        let url = format!("http://{host}:{}/204/inside", receiver.port);
        push_table(&format!("p{at}"), &url, "")
    };
    let config: String = hosts.iter().enumerate().map(table).collect();
    let server = Server::start_in(folder_with(&config), &BROKER[..3], |_| ());
    for at in 0..hosts.len() {
        set_group(&server, &format!("push-p{at}"), "max-attempts=1");
    }
    publish(&server, &["http://a.example/"]);
    for (at, host) in hosts.iter().enumerate() {
        let group = format!("push-p{at}");
        wait_for_group(&server, &group, "dead-kept", 1);
        let dead = run_json_at(&server, &["dead", "ls", "--group", &group]);
        assert!(dead[0]["last"].as_str().unwrap().starts_with("address:_"), "{host}: {dead:?}");
        let line = server.process.wait_for_line_with(&format!("group={group}"));
        assert!(line.contains("does not accept events: address: "), "{line}");
    }
    assert!(receiver.requests_so_far().is_empty());
}
