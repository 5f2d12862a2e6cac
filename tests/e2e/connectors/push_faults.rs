//! Pushes to receivers that are down, hang or reject, and brokers that are killed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::push::{
    BROKER, FAST, PAGE, broker_with, dead_letter, event_ids, fast_broker_with, publish, push_table,
    set_group, wait_for_group,
};
use crate::support::callback_server::{CallbackRequest, CallbackServer};
use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at};
use crate::support::seed::number_from_env;
use crate::support::wait::wait_until;

#[test]
#[ignore = "needs foreign programs"]
fn an_event_that_is_answered_503_for_ever_ends_as_a_dead_letter() {
    for batch in ["", "batch = '100ms'"] {
        let receiver = CallbackServer::start();
        // Waits of 250 ms, 500 ms and 1 s come before the fourth request.
        let keys = format!("retry-for = '1s'\n{batch}");
        let config = push_table("p", &receiver.url("503,503,503,503,503,204", "p"), &keys);
        let server = fast_broker_with(&config, "");
        publish(&server, &[PAGE]);
        let letter = dead_letter(&server);
        let key = (&letter["reason"], &letter["last"], &letter["key"]);
        assert_eq!(key, (&json!("retry-no"), &json!("HTTP_status_503"), &json!("t/1")));
        assert_eq!(receiver.requests_so_far().len(), 4, "{batch}");
        let retry = ["dead", "retry", "--key", "t/1", "--group", "push-p"];
        run_at(&server, &retry).expect_code(0);
        receiver.first_requests(5);
        dead_letter(&server);
        run_at(&server, &retry).expect_code(0);
        wait_for_group(&server, "push-p", "completed", 1);
        assert_eq!(receiver.requests_so_far().len(), 6, "{batch}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_receiver_that_accepts_nothing_is_logged_once_with_what_to_do_until_it_accepts() {
    let receiver = CallbackServer::start();
    let elsewhere = format!("HTTP status 302: a redirect to http://127.0.0.1:{}, ", receiver.port);
    let cases = [
        ("302,307,303", &*elsewhere, "; write the address that accepts a POST as `url` "),
        ("401,403", "HTTP status 401", "; check `url` and `secret-file` "),
        ("404,405", "HTTP status 404", "; check `url` "),
        ("422,400", "HTTP status 422", "; see the log of the receiver, and check `format` "),
        ("500,503", "HTTP status 500", "; see the log of the receiver; "),
    ];
    let name = |at: usize| format!("p{at}");
    let table = |(at, case): (usize, &(&str, &str, &str))| {
        push_table(&name(at), &receiver.url(&format!("{},204", case.0), &name(at)), "")
    };
    let server = broker_with(&cases.iter().enumerate().map(table).collect::<String>());
    for at in 0..cases.len() {
        set_group(&server, &format!("push-{}", name(at)), FAST);
    }
    publish(&server, &[PAGE]);
    for (at, (statuses, problem, advice)) in cases.into_iter().enumerate() {
        let group = format!("push-{}", name(at));
        wait_for_group(&server, &group, "completed", 1);
        let failed =
            format!("accepts events again; requests that failed: {}", statuses.split(',').count());
        server.process.wait_for_line(&failed, |line| {
            (line.contains(&failed) && line.contains(&group)).then_some(())
        });
        let mut lines = Vec::new();
        server.process.find_line(|line| {
            lines.extend(line.contains(&format!("group={group}")).then(|| line.to_owned()));
            None::<()>
        });
        assert_eq!(lines.len(), 2, "{lines:#?}");
        let begin = format!("the receiver does not accept events: {problem}");
        assert!(lines[0].contains(&begin) && lines[0].contains(advice), "{}", lines[0]);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_receiver_that_refuses_everything_is_a_warning_of_the_broker() {
    let receiver = CallbackServer::start();
    let server = broker_with(&push_table("a", &receiver.url("503", "a"), ""));
    set_group(&server, "push-a", FAST);
    publish(&server, &[PAGE]);
    wait_until("the receiver in the status", || {
        let status = run_at(&server, &["status"]).stdout().concat();
        let (_, refused) = status.split_once("The receiver of push-a has refused ")?;
        refused.contains(" requests: HTTP status 503.").then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn a_receiver_that_hangs_holds_back_no_other_push() {
    let receiver = CallbackServer::start();
    let config = push_table("p", &receiver.url("hang", "hang"), "")
        + &push_table("batch", &receiver.url("hang", "hang-too"), "batch = '100ms'")
        + &push_table("good", &receiver.url("204", "good"), "where = ['x=1']");
    let server = broker_with(&config);
    receiver_hangs(&server, &receiver);
    // More than the pushes that stand still hold in memory.
    let payloads: Vec<_> = (0..500).map(|number| format!("/{number} x={}", number % 2)).collect();
    publish(&server, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    let good = receiver.first_requests_to("good", 250);
    assert_eq!(good.iter().flat_map(event_ids).collect::<BTreeSet<_>>().len(), 250);
    let shown = wait_for_group(&server, "push-p", "processing", 200);
    assert_eq!((&shown["completed"], &shown["failed"]), (&json!(0), &json!(0)));
    assert_eq!(receiver.first_requests_to("hang", 4).len(), 4);
    let hanging = receiver.requests_so_far();
    let hanging = hanging.iter().filter(|request| request.path == "/hang/hang");
    assert_eq!(hanging.count(), 4, "at most four requests at once");
}

/// Publishes an event and waits until the receiver holds a request of both pushes.
#[track_caller]
fn receiver_hangs(server: &Server, receiver: &CallbackServer) {
    publish(server, &["/first x=0"]);
    receiver.first_requests_to("hang", 1);
    receiver.first_requests_to("hang-too", 1);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_receiver_that_is_down_costs_few_requests_and_no_event() {
    let receiver = CallbackServer::start();
    let port = receiver.port;
    let config = push_table("p", &receiver.url("204", "p"), "");
    drop(receiver);
    let server =
        fast_broker_with(&format!("log = 'tidings_connectors=info'\n{config}"), "max-attempts=1");
    let payloads: Vec<_> = (0..100).map(|number| format!("/{number}")).collect();
    publish(&server, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    // Four at once, and then twice as much time between them as before.
    wait_until("three pauses", || {
        let mut requests = 0;
        server.process.find_line(|line| {
            requests += u32::from(line.contains("reason=\"connect"));
            (requests > 12).then_some(())
        })
    });
    let receiver = CallbackServer::start_at(port);
    let requests = receiver.first_requests(100);
    let ids: BTreeSet<_> = requests.iter().flat_map(event_ids).collect();
    assert_eq!(ids.len(), 100);
    let line = server.process.wait_for_line_with("requests that failed: ");
    let (_, requests) = line.split_once("requests that failed: ").unwrap();
    let requests: u64 = requests.split(' ').next().unwrap().parse().unwrap();
    assert!((13..=60).contains(&requests), "{line}");
    let shown = wait_for_group(&server, "push-p", "completed", 100);
    assert_eq!((&shown["dead"], &shown["failed"]), (&json!(0), &json!(0)), "{shown}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_request_in_flight_at_a_stop_is_sent_after_the_restart() {
    for (signal, keys) in [("KILL", ""), ("TERM", ""), ("TERM", "batch = '100ms'")] {
        let receiver = CallbackServer::start();
        let config = push_table("p", &receiver.url("hang,204", "p"), keys);
        let server = fast_broker_with(&config, "max-attempts=1");
        publish(&server, &[PAGE]);
        receiver.first_requests(1);
        let server = server.restart(signal, &BROKER);
        let requests = receiver.first_requests(2);
        let ids = [0, 1].map(|at| requests[at].header("webhook-id").to_owned());
        assert_eq!(ids[0], ids[1], "{signal}");
        // An interrupted attempt does not count as failed.
        wait_for_group(&server, "push-p", "completed", 1);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn every_event_is_pushed_with_its_id_over_kills() {
    let kills = number_from_env("TIDINGS_PUSH_KILLS").unwrap_or(4);
    let receiver = CallbackServer::start();
    let config = push_table("p", &receiver.url("503,500,204", "single"), "")
        + &push_table("batch", &receiver.url("500,204", "batch"), "batch = '100ms'");
    let mut server = fast_broker_with(&config, "");
    set_group(&server, "push-batch", FAST);
    let mut published = BTreeMap::new();
    for kill in 0..=kills {
        let sent = receiver.requests_so_far().len();
        let mut client = LineConnection::connect_client(server.address);
        for number in 0..20 {
            let payload = format!("/{kill}/{number}");
            let answer = client.request(&format!("PUB t {payload}"));
            let seq = answer.split(' ').nth(1).unwrap().to_owned();
            published.insert(format!("t/{seq}"), payload);
        }
        if kill < kills {
            // Before the first request, or after some of them.
            receiver.first_requests(sent + usize::try_from(kill % 3).unwrap());
            server = server.restart("KILL", &BROKER);
        }
    }
    for name in ["single", "batch"] {
        let pushed = wait_until("all events", || {
            let requests = receiver.requests_so_far();
            let requests = requests.iter().filter(|request| request.path.ends_with(name));
            let events = requests.flat_map(events_of).collect::<BTreeSet<_>>();
            let ids: BTreeSet<_> = events.iter().map(|(id, _)| id).collect();
            (ids.len() == published.len()).then(|| events.clone())
        });
        let expected: BTreeSet<_> = published.clone().into_iter().collect();
        assert_eq!(pushed, expected, "an id names one event");
    }
    for group in ["push-p", "push-batch"] {
        let shown = wait_for_group(&server, group, "completed", published.len() as u64);
        assert_eq!((&shown["dead"], &shown["waiting"]), (&json!(0), &json!(0)), "{shown}");
    }
    eprintln!("{kills} kills, {} events", published.len());
}

/// Id and payload of the events in a request.
fn events_of(request: &CallbackRequest) -> Vec<(String, String)> {
    let body = request.json();
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    let event = |event: &Value| (text(event, "id"), text(event, "payload"));
    body["events"]
        .as_array()
        .map_or_else(|| vec![event(&body)], |all| all.iter().map(event).collect())
}
