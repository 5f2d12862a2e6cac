//! Subscriptions and groups with `where=`: from netcat, by HTTP, and with `tidings sub`.

use std::fs;

use serde_json::json;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::nc::run_nc;
use crate::support::process::{Process, Server, run_at, run_json_at, tidings_command};
use crate::support::wait::wait_until;

/// Publishes events on `checks`, each with its number as target.
fn publish(server: &Server, first: u64, attributes: &[&str]) {
    let lines = (first..).zip(attributes).map(|(n, words)| format!("PUB checks /{n} {words}\n"));
    let mut client = LineConnection::connect_client(server.address);
    client.send(lines.collect::<String>());
    let last = first - 1 + attributes.len() as u64;
    while client.read_line() != format!("+OK {last} {}", attributes.len()) {}
}

fn start_sub(server: &Server, flags: &[&str]) -> Process {
    // Behind `--exec`, it would be an argument of the program.
    let address = server.address_text();
    let arguments = [&["sub", "checks", "--broker", &address], flags].concat();
    Process::start(&mut tidings_command(server.folder.path(), arguments))
}

/// Waits until the cursor is at this seq.
#[track_caller]
fn wait_for_cursor(server: &Server, next: u64) {
    let mut client = LineConnection::connect_client(server.address);
    wait_until("the cursor to advance", || {
        let shown = client.request_lines("TOPIC show checks");
        let is_there = |line: &&String| line.contains(&format!(" next={next} behind="));
        shown.iter().filter(|line| line.starts_with("+ cursor ")).find(is_there).map(drop)
    });
}

// PROTOCOL: C2, D7, D8
#[test]
#[ignore = "needs foreign programs"]
fn netcat_receives_matching_events_and_how_far_it_has_come() {
    let server = Server::start_broker();
    publish(&server, 1, &["state=ok", "state=bad code=1", "state=bad code=2", "code=2", ""]);
    let received = |sub: &str| {
        let lines = run_nc(server.address, format!("{sub}\nQUIT\n"));
        let deliveries = lines.into_iter().filter(|line| line.contains(" checks "));
        deliveries.collect::<Vec<_>>()
    };
    assert_eq!(
        received("SUB checks from=first where=state=bad where=code!=1"),
        ["MSG checks 3 /3 state=bad code=2", "SKIP checks 5"]
    );
    assert_eq!(
        received("SUB checks from=2 where=state!=bad"),
        ["MSG checks 4 /4 code=2", "MSG checks 5 /5 "]
    );
    assert_eq!(received("SUB checks from=first where=state=none"), ["SKIP checks 5"]);
    assert_eq!(received("SUB checks where=state=none"), [""; 0]);
    for filter in ["where=state", "where==bad", "where=a!b=c", &" where=a=b".repeat(9)] {
        let lines = run_nc(server.address, format!("SUB checks {filter}\nQUIT\n"));
        let error = "-ERR bad-argument where=";
        assert!(lines.iter().any(|line| line.starts_with(error)), "{filter}: {lines:?}");
    }
}

// PROTOCOL: H5, H6, H9
#[test]
#[ignore = "needs foreign programs"]
fn curl_receives_matching_events() {
    let server = Server::start_broker();
    publish(&server, 1, &["state=ok", "state=bad code=1", "state=bad code=2"]);
    let http = HttpClient::new(&server);
    let filter = "from=first&where=state=bad&where=code!%3D1";
    let page = http.get(&format!("/topics/checks?{filter}")).json();
    let [event] = &page["events"].as_array().unwrap()[..] else { panic!("{page}") };
    let expected = (&json!(3), &json!("/3 state=bad code=2"));
    assert_eq!((&event["seq"], &event["payload"]), expected);
    assert_eq!(page["next"], 4);
    let stream = http.stream(&format!("/topics/checks/events?{filter}"), &[]);
    stream.wait_for_line_with("data: /3 ");
    publish(&server, 4, &["state=bad code=1", "state=bad code=3"]);
    stream.wait_for_line_with("data: /5 ");
    assert!(!stream.has_printed("data: /1 ") && !stream.has_printed("code=1"));
    let long = "&where=a=b".repeat(9);
    for query in ["where=state", "where==bad", "where=a=b%20c", &long] {
        for path in ["/topics/checks", "/topics/checks/events"] {
            let answer = http.get(&format!("{path}?from=first&{query}"));
            assert_eq!(answer.status, 400, "{path} {query}");
            assert_eq!(answer.json()["code"], "bad-argument", "{path} {query}");
        }
    }
}

// PROTOCOL: D7, D8, K4
#[test]
fn a_cursor_follows_the_filter_over_kills() {
    let server = Server::start_broker();
    let filter = ["--where", "state=bad", "--where", "code!=1"];
    let flags = [&["--as", "me", "--from", "first"], &filter[..]].concat();
    publish(&server, 1, &["state=ok", "state=bad code=2", "state=bad code=1", "state=ok"]);
    let killed = start_sub(&server, &flags);
    assert_eq!(killed.wait_for_stdout_lines(1), ["/2 state=bad code=2"]);
    // The events behind the last match were skipped, and count as seen.
    wait_for_cursor(&server, 5);
    publish(&server, 5, &["state=ok"]);
    wait_for_cursor(&server, 6);
    killed.signal_and_finish("KILL");

    let server = server.restart("KILL", &["broker"]);
    let mut client = LineConnection::connect_client(server.address);
    let answer = client.request("PUB checks /after state=bad");
    let after: u64 = answer.split(' ').nth(1).unwrap().parse().unwrap();
    client.request("PUB checks /last state=ok");
    let flags = [&flags[..], &["--no-follow", "--json"]].concat();
    let lines = start_sub(&server, &flags).finish().expect_code(0).stdout();
    let events: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The kill of the broker left a gap.
    let [gap, event] = &events[..] else { panic!("{lines:?}") };
    assert_eq!((&gap["skipped"], &gap["to"]), (&json!("gap"), &json!(after - 1)));
    assert_eq!((&event["seq"], &event["payload"]), (&json!(after), &json!("/after state=bad")));
    wait_for_cursor(&server, after + 2);
}

#[test]
fn a_spool_receives_matching_events() {
    let server = Server::start_broker();
    publish(&server, 1, &["state=ok", "state=bad", "state=ok"]);
    let path = |name| server.folder.path().join(name).display().to_string();
    let (spool, pid_file) = (path("spool"), path("pid"));
    let flags = ["--from", "first", "--where", "state=bad", "--signal", "USR1"];
    let places = ["--spool", &spool, "--pid-file", &pid_file];
    let signaller = start_sub(&server, &[&flags[..], &places].concat());
    wait_for_cursor(&server, 4);
    let files = fs::read_dir(&spool).unwrap().map(|file| file.unwrap());
    let files = files.filter(|file| !file.file_name().as_encoded_bytes().starts_with(b"."));
    let lines: Vec<_> = files.map(|file| fs::read_to_string(file.path()).unwrap()).collect();
    assert_eq!(lines, ["/2\n"]);
    signaller.signal_and_finish("TERM").expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn no_follow_ends_before_later_matches() {
    let server = Server::start_broker();
    publish(&server, 1, &["state=bad", "state=ok"]);
    let flags = ["--from", "first", "--where", "state=bad", "--no-follow", "--exec", "echo", "{}"];
    let output = start_sub(&server, &flags).finish().expect_code(0);
    assert_eq!(output.stdout(), ["/1"]);
    let output = start_sub(&server, &["--from", "2", "--where", "state=bad", "--no-follow"]);
    assert_eq!(output.finish().expect_code(0).stdout(), [""; 0]);
}

#[test]
fn wrong_filters_are_usage_errors_in_one_line() {
    let server = Server::start_broker();
    let nine = ["--where", "a=b"].repeat(9);
    for (flags, text) in [
        (&["--where", "state"][..], "--where=\"state\" should be <key>=<value>"),
        (&["--where", "=bad"], "should be <key>=<value>"),
        (&["--where", "a=b c"], "a value without blanks"),
        (&nine, "--where= may be given at most 8 times"),
    ] {
        let output = run_at(&server, &[&["sub", "checks"], flags].concat()).expect_code(2);
        let stderr = output.stderr();
        assert!(stderr.contains(text) && stderr.trim_end().lines().count() == 1, "{stderr}");
    }
}

/// The line of the next task.
fn next_task(client: &mut LineConnection) -> String {
    loop {
        let line = client.read_line();
        if line.starts_with("TASK ") {
            return line;
        }
    }
}

// PROTOCOL: G20
#[test]
#[ignore = "needs foreign programs"]
fn netcat_works_on_the_events_of_a_group_with_conditions() {
    let server = Server::start(&["broker"]);
    let create = "GROUP create g topics=checks key=none where=state=bad where=code!=1\nQUIT\n";
    let created = run_nc(server.address, create);
    assert!(
        created.iter().any(|line| line.ends_with(" where=state=bad where=code!=1")),
        "{created:?}"
    );
    publish(&server, 1, &["state=ok", "state=bad code=1", "state=bad code=2", "code=2"]);
    let server = server.restart("KILL", &["broker"]);
    let mut client = LineConnection::connect_client(server.address);
    assert!(client.request("JOIN g credit=9").starts_with("+OK"));
    let task = next_task(&mut client);
    assert!(task.ends_with(" /3 state=bad code=2"), "{task}");
    let id = task.split(' ').nth(1).unwrap();
    assert!(client.request(&format!("ACK {id}")).starts_with("+OK"));
    let shown = client.request("GROUP show g");
    assert!(shown.contains(" waiting=0 processing=0 completed=1 "), "{shown}");

    for (wrong, expected) in [
        ("where=state", "should be <key>=<value>"),
        (&*["where=a=b"; 9].join(" "), "at most 8 times"),
        ("lease=1s lease=2s", "given twice"),
    ] {
        let refused = client.request(&format!("GROUP set g {wrong}"));
        assert!(
            refused.starts_with("-ERR bad-argument ") && refused.contains(expected),
            "{refused}"
        );
    }
    let http = HttpClient::new(&server);
    let put = |value: &str| http.send_json("PUT", "/groups/g", &format!("{{\"where\":{value}}}"));
    assert_eq!(put(r#"["state=a,b"]"#).json()["where"], json!(["state=a,b"]));
    assert_eq!(put(r#""state=a""#).status, 400);
    // The crash may have skipped seqs.
    run_at(&server, &["pub", "checks", "/5 state=bad", "/6 state=a,b"]).expect_code(0);
    assert!(next_task(&mut client).contains(" /6 state=a,b"));
    assert!(put("[]").json()["where"].is_null());
    run_at(&server, &["pub", "checks", "/7 state=ok"]).expect_code(0);
    assert!(next_task(&mut client).contains(" /7 state=ok"));
}

#[test]
#[ignore = "needs foreign programs"]
fn sub_creates_a_group_with_conditions_and_keeps_those_of_others() {
    let server = Server::start_broker();
    publish(&server, 1, &["state=ok", "state=bad", "state=ok", "state=bad"]);
    let sub =
        |flags: &[&str]| start_sub(&server, &[&["--group", "g", "--count", "1"], flags].concat());
    for (number, flags) in [(2, &["--where", "state=bad"][..]), (4, &[])] {
        let output = sub(flags).finish().expect_code(0);
        assert_eq!(output.stdout(), [format!("/{number} state=bad")]);
    }
    let refused = sub(&["--where", "state=ok"]).finish().expect_code(1);
    let remedy = "tidings group set g where=state=ok";
    assert!(refused.stderr().contains(remedy), "{}", refused.stderr());
    let set = run_at(&server, &["group", "set", "g", "where=a=b", "where=c!=d"]).expect_code(0);
    assert_eq!(set.stdout(), ["g where=a=b where=c!=d"]);
    let shown = run_json_at(&server, &["group", "show", "g"]);
    assert_eq!(shown[0]["where"], json!(["a=b", "c!=d"]));
}
