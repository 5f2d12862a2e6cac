//! Commands that change groups, jobs and dead letters, and those that list or watch them.

use serde_json::{Value, json};

use crate::queue::groups::wait_for_waiting_entries;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_at, run_json_at, start_at, tidings_command};
use crate::support::terminal::start_on_terminal;
use crate::support::wait::wait_until;

/// A broker; its group has no delay and gives up after one failure.
#[track_caller]
fn start_server() -> Server {
    let server = Server::start_broker();
    run_at(&server, &["group", "set", "crawlers", "delay=0", "max-attempts=1"]).expect_code(0);
    server
}

/// A worker of the default group.
#[track_caller]
fn join_worker(server: &Server, credit: u32) -> LineConnection {
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok(&format!("JOIN crawlers credit={credit}"));
    worker
}

/// The id of the next task.
#[track_caller]
fn receive_task(worker: &mut LineConnection) -> String {
    let line = worker.read_line();
    assert!(line.starts_with("TASK "), "{line}");
    line.split(' ').nth(1).unwrap().to_owned()
}

#[track_caller]
fn publish_url(server: &Server, event: &str) {
    LineConnection::connect_client(server.address).request_ok(&format!("PUB new-url {event}"));
}

/// The entries of the group, from `tidings group tasks`.
#[track_caller]
fn list_tasks(server: &Server, flags: &[&str]) -> Vec<Value> {
    run_json_at(server, &[&["group", "tasks"], flags].concat())
}

#[test]
fn a_paused_group_releases_nothing_until_it_is_resumed() {
    let server = start_server();
    assert_eq!(run_at(&server, &["group", "pause"]).expect_code(0).stdout(), ["paused crawlers"]);
    let mut worker = join_worker(&server, 1);
    publish_url(&server, "http://a.example/");
    wait_for_waiting_entries(&server, 1);
    // If the group were not paused, the entry would be released: there is credit, and the host is
    // free.
    assert_eq!(list_tasks(&server, &["--state", "pending"]).len(), 1);
    assert_eq!(run_json_at(&server, &["group", "show"])[0]["paused"], json!("yes"));
    let listed = run_at(&server, &["group", "ls"]).expect_code(0).stdout();
    assert!(listed[1].ends_with(" paused"), "{listed:#?}");
    assert_eq!(run_at(&server, &["group", "resume"]).expect_code(0).stdout(), ["resumed crawlers"]);
    receive_task(&mut worker);
}

#[test]
fn a_group_is_purged_and_deleted() {
    let server = start_server();
    publish_url(&server, "http://a.example/");
    wait_for_waiting_entries(&server, 1);
    assert_eq!(list_tasks(&server, &[]).len(), 1);
    run_at(&server, &["group", "purge", "crawlers", "--yes"]).expect_code(0);
    assert!(list_tasks(&server, &[]).is_empty());
    run_at(&server, &["group", "create", "thumbs", "topics=file-ready", "key=none"]).expect_code(0);
    let deleted = run_at(&server, &["group", "delete", "thumbs", "--yes"]).expect_code(0);
    assert_eq!(deleted.stdout(), ["deleted thumbs"]);
    run_at(&server, &["group", "show", "thumbs"]).expect_code(1);
    run_at(&server, &["group", "delete", "crawlers", "--yes"]).expect_code(1);
}

#[test]
fn entries_are_listed_with_their_states() {
    let server = start_server();
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    let mut worker = join_worker(&server, 2);
    publish_url(&server, "http://a.example/held prio=3");
    let held = receive_task(&mut worker);
    publish_url(&server, "http://a.example/behind");
    publish_url(&server, "http://b.example/dead job=docs");
    let dead = receive_task(&mut worker);
    worker.request_ok(&format!("NACK {dead} reason=no_way"));
    let listed = list_tasks(&server, &[]);
    let listed: Vec<_> =
        listed.iter().map(|entry| [&entry["url"], &entry["state"], &entry["key"]]).collect();
    let (a, b) = (json!("a.example"), json!("b.example"));
    let expected = [
        [&json!("http://a.example/held"), &json!("processing"), &a],
        [&json!("http://a.example/behind"), &json!("pending"), &a],
        [&json!("http://b.example/dead"), &json!("dead"), &b],
    ];
    assert_eq!(listed, expected);
    let [of_job] = &list_tasks(&server, &["--job", "docs"])[..] else {
        panic!("expected one entry of the job")
    };
    assert_eq!((&of_job["pass"], &of_job["attempts"]), (&json!(1), &json!(1)));
    assert_eq!(list_tasks(&server, &["--key", "a.example", "--state", "processing"])[0]["prio"], 3);

    let text = run_at(&server, &["group", "tasks", "--limit", "2"]).expect_code(0);
    assert_eq!(text.stdout().len(), 3, "{text:#?}");
    assert!(text.stdout()[1].contains(" lease "), "{text:#?}");
    assert!(text.stderr().contains("2 of 3"), "{text:#?}");
    worker.request_ok(&format!("ACK {held}"));
}

#[test]
#[ignore = "needs foreign programs"]
fn dead_letters_are_retried_or_dropped() {
    let server = start_server();
    let mut worker = join_worker(&server, 1);
    for page in 1..=4 {
        publish_url(&server, &format!("http://a.example/{page}"));
        let task = receive_task(&mut worker);
        worker.request_ok(&format!("NACK {task} reason=no_way"));
    }
    let dead = run_json_at(&server, &["dead", "ls"]);
    let [first, second, ..] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((dead.len(), &first["reason"]), (4, &json!("max-attempts")));
    let text = run_at(&server, &["dead", "ls"]).expect_code(0).stdout();
    assert!(text[1].ends_with("http://a.example/1"), "{text:#?}");

    let (first, second) = (first["entry"].to_string(), second["entry"].to_string());
    let dropped = run_at(&server, &["dead", "drop", &first, &second]).expect_code(0);
    assert_eq!(dropped.stdout(), ["dropped 2"]);
    let mut drop = start_on_terminal(&server, &["dead", "drop", "--key", "a.example"]);
    drop.write("n\n");
    let asked = drop.finish().expect_code(1).stdout().join("\n");
    assert!(asked.contains("drop 2 dead letters of group crawlers? [y/N] "), "{asked}");
    let retried = run_at(&server, &["dead", "retry", "--key", "a.example"]).expect_code(0);
    assert_eq!(retried.stdout(), ["retried 2"]);
    for _ in 0..2 {
        let task = receive_task(&mut worker);
        worker.request_ok(&format!("ACK {task}"));
    }
    assert!(run_json_at(&server, &["dead", "ls"]).is_empty());
    assert_eq!(
        run_at(&server, &["dead", "drop", "--all", "--yes"]).expect_code(0).stdout(),
        ["dropped 0"]
    );
}

#[test]
fn seeds_are_read_from_arguments_and_standard_input() {
    let server = start_server();
    run_at(&server, &["job", "open", "docs", "max-depth=3", "max-per-host=9", "max-time=1h"])
        .expect_code(0);
    let (one, same) = ("http://a.example/1", "HTTP://A.example:80/1#top");
    let added = run_at(&server, &["job", "add", "docs", one, same, "--prio", "-5"]).expect_code(0);
    assert_eq!(added.stdout(), ["1 new, 1 known"]);
    assert_eq!(list_tasks(&server, &[])[0]["prio"], json!(-5));

    let mut adding = start_at(&server, &["job", "add", "docs"]);
    adding.write("http://a.example/2\n\nnonsense\n http://a.example/3 \r\nhttp://a.example/1");
    let output = adding.finish().expect_code(1);
    assert_eq!(output.stdout(), ["2 new, 1 known"]);
    assert!(output.stderr().contains("line 3 is skipped: nonsense is not a URL"), "{output:?}");
    assert!(output.stderr().contains("1 line skipped"), "{output:?}");

    run_at(&server, &["job", "add", "nobody", one]).expect_code(1).expect_stderr("nobody");
}

/// Opens a job with one page.
#[track_caller]
fn open_one_page_job(server: &Server) {
    run_at(server, &["job", "open", "docs"]).expect_code(0);
    run_at(server, &["job", "add", "docs", "http://a.example/"]).expect_code(0);
    run_at(server, &["job", "close", "docs"]).expect_code(0);
}

#[test]
fn job_wait_ends_with_the_pass_and_reports_its_result() {
    let server = start_server();
    let mut worker = join_worker(&server, 1);
    for (reply, code, line) in [
        ("ACK", 0, "done: 1 page, 0 failed"),
        ("ACK outcome=failed", 1, "done: 0 pages, 1 failed"),
        ("NACK", 1, "done: 0 pages, 1 failed"),
    ] {
        open_one_page_job(&server);
        let waiter = start_at(&server, &["job", "wait", "docs"]);
        let task = receive_task(&mut worker);
        let (verb, options) = reply.split_once(' ').unwrap_or((reply, ""));
        worker.request_ok(format!("{verb} {task} {options}").trim_end());
        let output = waiter.finish().expect_code(code);
        assert_eq!(output.stdout(), [line]);
        assert!(output.stderr().is_empty(), "{output:?}");
        // The job is done, so `wait` returns at once.
        let json = run_at(&server, &["job", "wait", "docs", "--json"]).expect_code(code).stdout();
        assert!(json[0].contains("\"result\":\"done\""), "{json:?}");
    }
    run_at(&server, &["job", "wait", "nobody"]).expect_code(1);
}

#[test]
fn job_wait_fails_for_a_cancelled_job() {
    let server = start_server();
    open_one_page_job(&server);
    let waiter = start_at(&server, &["job", "wait", "docs"]);
    run_at(&server, &["job", "cancel", "docs", "--yes"]).expect_code(0);
    let output = waiter.finish().expect_code(1);
    assert_eq!(output.stdout(), ["cancelled: 0 pages, 0 failed, 1 cancelled"]);
}

#[test]
fn job_wait_can_be_interrupted() {
    let server = Server::start(&["broker", "--log-lines"]);
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    let waiter = start_at(&server, &["job", "wait", "docs"]);
    server.process.wait_for_line_with("JOB wait docs");
    waiter.signal_and_finish("INT").expect_code(130).expect_stderr("job docs continues");
    assert_eq!(run_json_at(&server, &["job", "show", "docs"])[0]["state"], json!("open"));
}

#[test]
fn job_wait_survives_a_broker_restart() {
    let server = Server::start(&["broker", "--log-lines"]);
    let address = server.address_text();
    open_one_page_job(&server);
    let waiter = start_at(&server, &["job", "wait", "docs"]);
    server.process.wait_for_line_with("JOB wait docs");
    let Server { process, folder, address: same } = server;
    process.signal_and_finish("KILL");
    let again =
        Process::start(&mut tidings_command(folder.path(), ["broker", "--listen", &address]));
    again.wait_for_line_with("listening on ");
    let mut worker = LineConnection::connect_client(same);
    worker.request_ok("JOIN crawlers credit=1");
    let task = receive_task(&mut worker);
    worker.request_ok(&format!("ACK {task}"));
    assert_eq!(waiter.finish().expect_code(0).stdout(), ["done: 1 page, 0 failed"]);
}

#[test]
fn a_job_is_paused_resumed_and_deleted() {
    let server = start_server();
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    let paused = run_at(&server, &["job", "pause", "docs"]).expect_code(0);
    assert_eq!(paused.stdout(), ["docs: pass 1, paused"]);
    run_at(&server, &["job", "add", "docs", "http://a.example/"]).expect_code(0);
    let mut worker = join_worker(&server, 1);
    // Entries outside of the job are not held back.
    publish_url(&server, "http://a.example/other");
    let other = receive_task(&mut worker);
    worker.request_ok(&format!("ACK {other}"));
    assert_eq!(list_tasks(&server, &["--state", "pending", "--job", "docs"]).len(), 1);
    run_at(&server, &["job", "resume", "docs"]).expect_code(0);
    let task = receive_task(&mut worker);
    run_at(&server, &["job", "close", "docs"]).expect_code(0);
    run_at(&server, &["job", "delete", "docs", "--yes"]).expect_code(1);
    worker.request_ok(&format!("ACK {task}"));
    run_at(&server, &["job", "wait", "docs"]).expect_code(0);
    assert_eq!(
        run_at(&server, &["job", "delete", "docs", "--yes"]).expect_code(0).stdout(),
        ["deleted docs"]
    );
    run_at(&server, &["job", "show", "docs"]).expect_code(1);
}

#[test]
fn job_watch_shows_progress_and_result() {
    let server = start_server();
    let mut worker = join_worker(&server, 1);
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    let watch = ["job", "watch", "docs", "--every", "100ms"];
    let text_watch = start_at(&server, &watch);
    let json_watch = start_at(&server, &[&watch[..], &["--json"]].concat());
    text_watch.wait_for_line_with("0 completed, 0 waiting, 0 processing, 0 failed, 0.0 pages/s");
    json_watch.wait_for_line_with("\"state\":\"open\"");
    run_at(&server, &["job", "add", "docs", "http://a.example/1"]).expect_code(0);
    let task = receive_task(&mut worker);
    text_watch.wait_for_line_with("1 processing");
    worker.request_ok(&format!("ACK {task}"));
    text_watch.wait_for_line_with("1 completed");
    run_at(&server, &["job", "close", "docs"]).expect_code(0);
    assert_eq!(
        text_watch.finish().expect_code(0).stdout().pop().unwrap(),
        "done: 1 page, 0 failed"
    );
    let lines = json_watch.finish().expect_code(0).stdout();
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["job"] == "docs"), "{lines:#?}");
    assert_eq!(lines[0]["rate"], json!(0.0));
    assert_eq!(lines.last().unwrap()["result"], json!("done"));
    // Each line differs from the one before.
    assert!(lines.windows(2).all(|two| two[0] != two[1]), "{lines:#?}");
    let over = run_at(&server, &["job", "watch", "docs"]).expect_code(0);
    assert_eq!(over.stdout(), ["done: 1 page, 0 failed"]);
    run_at(&server, &["job", "watch", "nobody"]).expect_code(1).expect_stderr("no job nobody");
}

#[test]
fn group_watch_shows_counts_until_interrupted() {
    let server = start_server();
    let watch = ["group", "watch", "--every", "100ms"];
    let text_watch = start_at(&server, &watch);
    let json_watch = start_at(&server, &[&watch[..], &["--json"]].concat());
    text_watch.wait_for_line_with(
        "0 members, 0 waiting, 0 processing, 0 completed, 0 failed, 0 dead, 0.0/s",
    );
    json_watch.wait_for_line_with("\"waiting\":0");
    publish_url(&server, "http://a.example/1");
    text_watch.wait_for_line_with("0 members, 1 waiting, ");
    json_watch.wait_for_line_with("\"waiting\":1");
    let mut worker = join_worker(&server, 1);
    let task = receive_task(&mut worker);
    text_watch.wait_for_line_with("1 member, 0 waiting, 1 processing, ");
    worker.request_ok(&format!("ACK {task}"));
    json_watch.wait_for_line_with("\"completed\":1");
    text_watch.signal_and_finish("INT").expect_code(0);
    json_watch.signal_and_finish("TERM").expect_code(0);
    run_at(&server, &["group", "create", "team", "topics=work"]).expect_code(0);
    let watching = start_at(&server, &["group", "watch", "team"]);
    watching.wait_for_line_with("0 members");
    run_at(&server, &["group", "delete", "team", "--yes"]).expect_code(0);
    watching.finish().expect_code(1).expect_stderr("no group team");
}

#[test]
fn schedules_are_listed_by_next_due_time() {
    let server = start_server();
    let mut worker = join_worker(&server, 1);
    for event in ["http://a.example/1 every=2h", "http://a.example/2 every=1h prio=3"] {
        publish_url(&server, event);
        let task = receive_task(&mut worker);
        worker.request_ok(&format!("ACK {task}"));
    }
    publish_url(&server, "http://b.example/ every=06:00");
    receive_task(&mut worker);
    let text =
        run_at(&server, &["group", "schedules", "--key", "a.example"]).expect_code(0).stdout();
    assert!(text[0].starts_with("NEXT "), "{text:#?}");
    let row: Vec<_> = text[1].split_whitespace().collect();
    assert_eq!(row, ["in", "59", "min", "1h", "a.example", "3", "-", "http://a.example/2"]);
    assert!(text[2].ends_with(" http://a.example/1"), "{text:#?}");
    let all = run_json_at(&server, &["group", "schedules"]);
    let daily = all.iter().find(|one| one["url"] == "http://b.example/").unwrap();
    assert_eq!((&daily["every"], all.len()), (&json!("06:00"), 3));
    assert_eq!(daily["entry"], 3, "its URL is being fetched");
    run_at(&server, &["group", "schedules", "--limit", "1"]).expect_code(0).expect_stderr("1 of 3");
    publish_url(&server, "http://a.example/1 every=0");
    run_at(&server, &["group", "schedules", "--limit", "1001"]).expect_code(2);
    wait_until("the schedule to end", || {
        (run_json_at(&server, &["group", "schedules"]).len() == 2).then_some(())
    });
}

#[test]
fn keys_are_listed_by_remaining_time() {
    let server = start_server();
    run_at(&server, &["group", "set", "crawlers", "delay=1m"]).expect_code(0);
    run_at(&server, &["job", "open", "docs"]).expect_code(0);
    for event in ["http://a.example/1", "http://b.example/1", "http://b.example/2 job=docs"] {
        publish_url(&server, event);
    }
    let text = run_at(&server, &["group", "keys"]).expect_code(0).stdout();
    let rows: Vec<Vec<_>> = text.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KEY", "WAITING", "PROCESSING", "LEFT", "BECAUSE"]);
    assert_eq!(rows[1], ["b.example", "2", "0", "1m", "00s", "no-members"]);
    assert_eq!(rows[2], ["a.example", "1", "0", "0", "ms", "no-members"]);
    let of_job = run_json_at(&server, &["group", "keys", "--job", "docs"]);
    let expected = json!({
        "key": "b.example", "waiting": 2, "processing": 0, "left-ms": 60_000, "because": "no-members",
    });
    assert_eq!(of_job, [expected]);
    run_at(&server, &["group", "keys", "--limit", "1"]).expect_code(0).expect_stderr("1 of 2");
    run_at(&server, &["group", "keys", "--job", "other"]).expect_code(1);
}
