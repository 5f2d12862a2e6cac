//! `GET /history`: figures of the last minutes.

use serde_json::{Value, json};

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::Server;
use crate::support::wait::wait_until;

/// The values of a column, without unknown ones.
#[track_caller]
fn column(history: &Value, name: &str) -> Vec<f64> {
    let columns = history["columns"].as_array().unwrap();
    let at = columns.iter().position(|column| column == name).unwrap();
    history["values"][at].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_history_agrees_with_what_was_published_and_done() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let history = |of: &str| http.get(&format!("/history?of={of}")).json();
    let last = |of: &str, name: &str| column(&history(of), name).last().copied();
    let wait_for = |of: &str, name: &str, value: &Value| {
        wait_until(&format!("{name}={value} of {of}"), || {
            (last(of, name) == value.as_f64()).then_some(())
        });
    };

    http.post_lines("/topics/log", "first");
    wait_for("topic:log", "published", &json!(0));
    http.post_lines("/topics/log", &"x\n".repeat(25));
    wait_until("a rate of the events", || {
        let rates = [history("topic:log"), history("stats")];
        rates
            .iter()
            .all(|rates| column(rates, "published").iter().any(|it| *it > 0.0))
            .then_some(())
    });
    wait_for("topic:log", "log-bytes", &http.get("/topics/log/state").json()["log-bytes"]);
    // Rates over the time that has passed; the events were published in one or two steps.
    for rate in column(&history("topic:log"), "published") {
        assert!((0.0..100.0).contains(&rate), "{rate}");
    }

    http.post_lines("/topics/other", "first");
    let is_listed =
        |topic: &str| history("topics")["columns"].as_array().unwrap().contains(&json!(topic));
    wait_until("figures of the other topic", || is_listed("other").then_some(()));
    let topics = history("topics");
    assert_eq!(topics["columns"][0], "time");
    assert!(column(&topics, "log").iter().any(|rate| *rate > 0.0), "{topics}");
    assert_eq!(http.request("DELETE", "/topics/other", &[]).status, 204);
    assert!(!is_listed("other"));

    let urls = ["http://a.example/", "http://a.example/2", "http://b.example/"];
    http.send_json("POST", "/jobs", &json!({ "job": "docs", "urls": urls }).to_string());
    let mut worker = LineConnection::connect_client(server.address);
    wait_for("group:crawlers", "waiting", &json!(3));
    wait_for("job:docs", "unfinished", &json!(3));
    let job = http.get("/jobs/docs").json();
    wait_for("job:docs", "queued", &job["queued"]);
    worker.request_ok("JOIN crawlers credit=1");
    wait_for("group:crawlers", "members", &json!(1));
    let task = worker.read_line();
    let id = task.split(' ').nth(1).unwrap();
    worker.request_ok(&format!("ACK {id} status=200 ms=250"));
    wait_for("job:docs", "completed", &json!(1));
    let group = wait_until("figures of the answer", || {
        let group = history("group:crawlers");
        let done = column(&group, "done").iter().any(|rate| *rate > 0.0);
        (done && !column(&group, "p50-ms").is_empty()).then_some(group)
    });
    assert!((100.0..=300.0).contains(&column(&group, "p50-ms")[0]), "{group}");
    assert_eq!(column(&group, "processing").last(), Some(&1.0), "the next task");

    let stats = http.get("/history?of=stats&range=24h").json();
    assert_eq!(
        (&stats["of"], &stats["range"], &stats["step-ms"]),
        (&json!("stats"), &json!("24h"), &json!(300_000))
    );
    let lengths: Vec<_> =
        stats["values"].as_array().unwrap().iter().map(|it| it.as_array().unwrap().len()).collect();
    assert_eq!(lengths, [288; 9]);
    assert!(column(&stats, "memory").last().unwrap() > &1e6, "{stats}");
    assert!(column(&stats, "connections").last().unwrap() >= &1.0, "{stats}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_history_of_what_does_not_exist_is_refused_as_the_thing_itself() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    for (query, expected) in [
        ("of=none", "expected stats, topics, group:<group>, topic:<topic> or job:<job>"),
        ("of=topic", "expected stats, topics, group:<group>, topic:<topic> or job:<job>"),
        ("of=stats&range=2h", "expected one of 5m, 1h, 24h"),
        ("of=topic:no%2Fname", "cannot be the name of a topic"),
        ("on=stats", "expected one of of, range, group"),
    ] {
        let refused = http.get(&format!("/history?{query}"));
        assert_eq!(refused.status, 400, "{query}: {}", refused.body);
        assert!(refused.body.contains(expected), "{query}: {}", refused.body);
    }
    for (of, path) in [
        ("topic:none", "/topics/none/state"),
        ("group:none", "/groups/none"),
        ("job:none", "/jobs/none"),
        ("job:none&group=none", "/jobs/none?group=none"),
    ] {
        let (history, thing) = (http.get(&format!("/history?of={of}")), http.get(path));
        assert_eq!(history.status, 404, "{of}: {}", history.body);
        assert_eq!(history.body, thing.body);
    }
    // The default group exists when it is needed.
    assert_eq!(http.get("/history?of=group:crawlers").status, 200);
}
