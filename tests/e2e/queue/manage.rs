//! What can be done with groups, jobs and dead letters from the command line, beyond looking at
//! them.

use serde_json::{Value, json};

use crate::queue::groups::until_waiting;
use crate::support::process::{Running, Server, at, json_at, tidings};
use crate::support::talk::Talk;
use crate::support::wait::until;

/// A broker whose group gives up after one failure, and never rests.
#[track_caller]
fn server() -> Server {
    let server = Server::broker();
    at(&server, &["group", "set", "crawlers", "delay=0", "max-attempts=1"]).expect_code(0);
    server
}

/// A worker of the default group.
#[track_caller]
fn worker(server: &Server, credit: u32) -> Talk {
    let mut worker = Talk::client(server.address);
    let answer = worker.ask(&format!("JOIN crawlers credit={credit}"));
    assert!(answer.starts_with("+OK"), "{answer}");
    worker
}

/// The id of the task that comes next.
#[track_caller]
fn task(worker: &mut Talk) -> String {
    let line = worker.line();
    assert!(line.starts_with("TASK "), "{line}");
    line.split(' ').nth(1).unwrap().to_owned()
}

#[track_caller]
fn answer(worker: &mut Talk, command: &str) {
    let answer = worker.ask(command);
    assert!(answer.starts_with("+OK"), "{command}: {answer}");
}

#[track_caller]
fn publish(server: &Server, event: &str) {
    answer(&mut Talk::client(server.address), &format!("PUB new-url {event}"));
}

/// The entries of the group, as `tidings group tasks` has them.
#[track_caller]
fn tasks(server: &Server, flags: &[&str]) -> Vec<Value> {
    json_at(server, &[&["group", "tasks"], flags].concat())
}

#[test]
fn a_paused_group_releases_nothing_until_it_is_resumed() {
    let server = server();
    assert_eq!(at(&server, &["group", "pause"]).expect_code(0).stdout(), ["paused crawlers"]);
    let mut worker = worker(&server, 1);
    publish(&server, "http://a.example/");
    until_waiting(&server, 1);
    // It would have gone out with the event otherwise: there is credit, and the host is free.
    assert_eq!(tasks(&server, &["--state", "pending"]).len(), 1);
    assert_eq!(json_at(&server, &["group", "show"])[0]["paused"], json!("yes"));
    let listed = at(&server, &["group", "ls"]).expect_code(0).stdout();
    assert!(listed[1].ends_with(" paused"), "{listed:#?}");
    assert_eq!(at(&server, &["group", "resume"]).expect_code(0).stdout(), ["resumed crawlers"]);
    task(&mut worker);
}

#[test]
fn a_group_is_purged_and_deleted() {
    let server = server();
    publish(&server, "http://a.example/");
    until_waiting(&server, 1);
    assert_eq!(tasks(&server, &[]).len(), 1);
    at(&server, &["group", "purge", "crawlers"]).expect_code(0);
    assert!(tasks(&server, &[]).is_empty());
    at(&server, &["group", "create", "thumbs", "topics=file-ready", "key=none"]).expect_code(0);
    let gone = at(&server, &["group", "delete", "thumbs"]).expect_code(0);
    assert_eq!(gone.stdout(), ["deleted thumbs"]);
    at(&server, &["group", "show", "thumbs"]).expect_code(1);
    at(&server, &["group", "delete", "crawlers"]).expect_code(1);
}

#[test]
fn entries_are_listed_with_their_states() {
    let server = server();
    at(&server, &["job", "open", "docs"]).expect_code(0);
    let mut worker = worker(&server, 2);
    publish(&server, "http://a.example/held prio=3");
    let held = task(&mut worker);
    publish(&server, "http://a.example/behind");
    publish(&server, "http://b.example/dead job=docs");
    let dead = task(&mut worker);
    answer(&mut worker, &format!("NACK {dead} reason=no_way"));
    let listed = tasks(&server, &[]);
    let listed: Vec<_> =
        listed.iter().map(|entry| [&entry["text"], &entry["state"], &entry["key"]]).collect();
    let (a, b) = (json!("a.example"), json!("b.example"));
    let expected = [
        [&json!("http://a.example/held"), &json!("processing"), &a],
        [&json!("http://a.example/behind"), &json!("pending"), &a],
        [&json!("http://b.example/dead"), &json!("dead"), &b],
    ];
    assert_eq!(listed, expected);
    let [of_job] = &tasks(&server, &["--job", "docs"])[..] else { panic!("one is of the job") };
    assert_eq!((&of_job["pass"], &of_job["attempts"]), (&json!(1), &json!(1)));
    assert_eq!(tasks(&server, &["--key", "a.example", "--state", "processing"])[0]["prio"], 3);

    let people = at(&server, &["group", "tasks", "--limit", "2"]).expect_code(0);
    assert_eq!(people.stdout().len(), 3, "{people:#?}");
    assert!(people.stdout()[1].contains(" lease "), "{people:#?}");
    assert!(people.stderr().contains("2 of 3"), "{people:#?}");
    answer(&mut worker, &format!("ACK {held}"));
}

#[test]
fn what_was_given_up_is_sent_back_or_forgotten() {
    let server = server();
    let mut worker = worker(&server, 1);
    for page in 1..=4 {
        publish(&server, &format!("http://a.example/{page}"));
        let task = task(&mut worker);
        answer(&mut worker, &format!("NACK {task} reason=no_way"));
    }
    let dead = json_at(&server, &["dead", "ls"]);
    let [first, second, ..] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((dead.len(), &first["reason"]), (4, &json!("max-attempts")));
    let people = at(&server, &["dead", "ls"]).expect_code(0).stdout();
    assert!(people[1].ends_with("http://a.example/1"), "{people:#?}");

    let (first, second) = (first["entry"].to_string(), second["entry"].to_string());
    let dropped = at(&server, &["dead", "drop", &first, &second]).expect_code(0);
    assert_eq!(dropped.stdout(), ["dropped 2"]);
    let retried = at(&server, &["dead", "retry", "--key", "a.example"]).expect_code(0);
    assert_eq!(retried.stdout(), ["retried 2"]);
    for _ in 0..2 {
        let task = task(&mut worker);
        answer(&mut worker, &format!("ACK {task}"));
    }
    assert!(json_at(&server, &["dead", "ls"]).is_empty());
    assert_eq!(at(&server, &["dead", "drop", "--all"]).expect_code(0).stdout(), ["dropped 0"]);
}

#[test]
fn seeds_come_from_arguments_and_from_standard_input() {
    let server = server();
    at(&server, &["job", "open", "docs", "max-depth=3", "max-per-host=9", "max-time=1h"])
        .expect_code(0);
    let (one, same) = ("http://a.example/1", "HTTP://A.example:80/1#top");
    let added = at(&server, &["job", "add", "docs", one, same, "--prio", "-5"]).expect_code(0);
    assert_eq!(added.stdout(), ["1 new, 1 known"]);
    assert_eq!(tasks(&server, &[])[0]["prio"], json!(-5));

    let words = ["job", "add", "docs", "--broker", &server.text()];
    let mut adding = Running::start(&mut tidings(server.folder.path(), words));
    adding.write("http://a.example/2\n\nnonsense\n http://a.example/3 \r\nhttp://a.example/1");
    let ended = adding.finish().expect_code(1);
    assert_eq!(ended.stdout(), ["2 new, 1 known"]);
    assert!(ended.stderr().contains("line 3 is skipped: nonsense is not a URL"), "{ended:?}");
    assert!(ended.stderr().contains("1 line skipped"), "{ended:?}");

    let unknown = at(&server, &["job", "add", "nobody", one]).expect_code(1);
    assert!(unknown.stderr().contains("nobody"), "{}", unknown.stderr());
}

/// A job of one page.
#[track_caller]
fn job_of_one(server: &Server) {
    at(server, &["job", "open", "docs"]).expect_code(0);
    at(server, &["job", "add", "docs", "http://a.example/"]).expect_code(0);
    at(server, &["job", "close", "docs"]).expect_code(0);
}

#[test]
fn waiting_ends_with_the_pass_and_says_how_it_went() {
    let server = server();
    let mut worker = worker(&server, 1);
    let wait = ["job", "wait", "docs", "--broker", &server.text()];
    for (said, code, line) in [
        ("ACK", 0, "done: 1 page, 0 failed"),
        ("ACK outcome=failed", 1, "done: 0 pages, 1 failed"),
        ("NACK", 1, "done: 0 pages, 1 failed"),
    ] {
        job_of_one(&server);
        let waiting = Running::start(&mut tidings(server.folder.path(), wait));
        let task = task(&mut worker);
        let (verb, options) = said.split_once(' ').unwrap_or((said, ""));
        answer(&mut worker, format!("{verb} {task} {options}").trim_end());
        let ended = waiting.finish().expect_code(code);
        assert_eq!(ended.stdout(), [line]);
        assert!(ended.stderr().is_empty(), "{ended:?}");
        // It is over: answered at once.
        let told = at(&server, &["job", "wait", "docs", "--json"]).expect_code(code).stdout();
        assert!(told[0].contains("\"result\":\"done\""), "{told:?}");
    }
    at(&server, &["job", "wait", "nobody"]).expect_code(1);
}

#[test]
fn a_cancelled_job_has_not_gone_well() {
    let server = server();
    job_of_one(&server);
    let words = ["job", "wait", "docs", "--broker", &server.text()];
    let waiting = Running::start(&mut tidings(server.folder.path(), words));
    at(&server, &["job", "cancel", "docs"]).expect_code(0);
    let ended = waiting.finish().expect_code(1);
    assert_eq!(ended.stdout(), ["cancelled: 0 pages, 0 failed, 1 cancelled"]);
}

#[test]
fn who_waits_can_be_interrupted() {
    let server = Server::start(&["broker", "--log-lines"]);
    at(&server, &["job", "open", "docs"]).expect_code(0);
    let words = ["job", "wait", "docs", "--broker", &server.text()];
    let waiting = Running::start(&mut tidings(server.folder.path(), words));
    server.process.line_with("JOB wait docs");
    let ended = waiting.finish_by("INT").expect_code(130);
    assert!(ended.stderr().contains("job docs continues"), "{ended:?}");
    assert_eq!(json_at(&server, &["job", "show", "docs"])[0]["state"], json!("open"));
}

#[test]
fn who_waits_outlives_the_broker() {
    let server = Server::start(&["broker", "--log-lines"]);
    let address = server.text();
    job_of_one(&server);
    let words = ["job", "wait", "docs", "--broker", &address];
    let waiting = Running::start(&mut tidings(server.folder.path(), words));
    server.process.line_with("JOB wait docs");
    let Server { process, folder, address: same } = server;
    process.finish_by("KILL");
    let again = Running::start(&mut tidings(folder.path(), ["broker", "--listen", &address]));
    again.line_with("listening on ");
    let mut worker = Talk::client(same);
    assert!(worker.ask("JOIN crawlers credit=1").starts_with("+OK"));
    let task = task(&mut worker);
    answer(&mut worker, &format!("ACK {task}"));
    assert_eq!(waiting.finish().expect_code(0).stdout(), ["done: 1 page, 0 failed"]);
}

#[test]
fn a_job_is_paused_resumed_and_forgotten() {
    let server = server();
    at(&server, &["job", "open", "docs"]).expect_code(0);
    let paused = at(&server, &["job", "pause", "docs"]).expect_code(0);
    assert_eq!(paused.stdout(), ["docs: pass 1, paused"]);
    at(&server, &["job", "add", "docs", "http://a.example/"]).expect_code(0);
    let mut worker = worker(&server, 1);
    // What is not of the job passes it.
    publish(&server, "http://a.example/other");
    let other = task(&mut worker);
    answer(&mut worker, &format!("ACK {other}"));
    assert_eq!(tasks(&server, &["--state", "pending", "--job", "docs"]).len(), 1);
    at(&server, &["job", "resume", "docs"]).expect_code(0);
    let task = task(&mut worker);
    at(&server, &["job", "close", "docs"]).expect_code(0);
    at(&server, &["job", "delete", "docs"]).expect_code(1);
    answer(&mut worker, &format!("ACK {task}"));
    at(&server, &["job", "wait", "docs"]).expect_code(0);
    assert_eq!(at(&server, &["job", "delete", "docs"]).expect_code(0).stdout(), ["deleted docs"]);
    at(&server, &["job", "show", "docs"]).expect_code(1);
}

/// Begins something that takes its time.
#[track_caller]
fn start(server: &Server, words: &[&str]) -> Running {
    let mut command = tidings(server.folder.path(), words);
    Running::start(command.args(["--broker", &server.text()]))
}

#[test]
fn watching_a_job_shows_how_it_goes_and_how_it_went() {
    let server = server();
    let mut worker = worker(&server, 1);
    at(&server, &["job", "open", "docs"]).expect_code(0);
    let watch = ["job", "watch", "docs", "--every", "100ms"];
    let people = start(&server, &watch);
    let programs = start(&server, &[&watch[..], &["--json"]].concat());
    people.line_with("0 completed, 0 waiting, 0 processing, 0 failed, 0.0 pages/s");
    programs.line_with("\"state\":\"open\"");
    at(&server, &["job", "add", "docs", "http://a.example/1"]).expect_code(0);
    let task = task(&mut worker);
    people.line_with("1 processing");
    answer(&mut worker, &format!("ACK {task}"));
    people.line_with("1 completed");
    at(&server, &["job", "close", "docs"]).expect_code(0);
    assert_eq!(people.finish().expect_code(0).stdout().pop().unwrap(), "done: 1 page, 0 failed");
    let lines = programs.finish().expect_code(0).stdout();
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["job"] == "docs"), "{lines:#?}");
    assert_eq!(lines[0]["rate"], json!(0.0));
    assert_eq!(lines.last().unwrap()["result"], json!("done"));
    // Every line says something new.
    assert!(lines.windows(2).all(|two| two[0] != two[1]), "{lines:#?}");
    let over = at(&server, &["job", "watch", "docs"]).expect_code(0);
    assert_eq!(over.stdout(), ["done: 1 page, 0 failed"]);
    let unknown = at(&server, &["job", "watch", "nobody"]).expect_code(1);
    assert!(unknown.stderr().contains("no job nobody"), "{}", unknown.stderr());
}

#[test]
fn watching_a_group_shows_how_it_does_until_interrupted() {
    let server = server();
    let watch = ["group", "watch", "--every", "100ms"];
    let people = start(&server, &watch);
    let programs = start(&server, &[&watch[..], &["--json"]].concat());
    people.line_with("0 members, 0 waiting, 0 processing, 0 completed, 0 failed, 0 dead, 0.0/s");
    programs.line_with("\"waiting\":0");
    publish(&server, "http://a.example/1");
    people.line_with("0 members, 1 waiting, ");
    programs.line_with("\"waiting\":1");
    let mut worker = worker(&server, 1);
    let task = task(&mut worker);
    people.line_with("1 members, 0 waiting, 1 processing, ");
    answer(&mut worker, &format!("ACK {task}"));
    programs.line_with("\"completed\":1");
    people.finish_by("INT").expect_code(0);
    programs.finish_by("TERM").expect_code(0);
    at(&server, &["group", "create", "team", "topics=work"]).expect_code(0);
    let watching = start(&server, &["group", "watch", "team"]);
    watching.line_with("0 members");
    at(&server, &["group", "delete", "team"]).expect_code(0);
    let ended = watching.finish().expect_code(1);
    assert!(ended.stderr().contains("no group team"), "{}", ended.stderr());
}

#[test]
fn schedules_are_listed_with_the_next_ones_first() {
    let server = server();
    let mut worker = worker(&server, 1);
    for event in ["http://a.example/1 every=2h", "http://a.example/2 every=1h prio=3"] {
        publish(&server, event);
        let task = task(&mut worker);
        answer(&mut worker, &format!("ACK {task}"));
    }
    publish(&server, "http://b.example/ every=06:00");
    task(&mut worker);
    let people = at(&server, &["group", "schedules", "--key", "a.example"]).expect_code(0).stdout();
    assert!(people[0].starts_with("NEXT "), "{people:#?}");
    let row: Vec<_> = people[1].split_whitespace().collect();
    assert_eq!(row, ["in", "59", "min", "1h", "a.example", "3", "-", "http://a.example/2"]);
    assert!(people[2].ends_with(" http://a.example/1"), "{people:#?}");
    let all = json_at(&server, &["group", "schedules"]);
    let daily = all.iter().find(|one| one["url"] == "http://b.example/").unwrap();
    assert_eq!((&daily["every"], all.len()), (&json!("06:00"), 3));
    assert_eq!(daily["entry"], 3, "it is just being looked at");
    let some = at(&server, &["group", "schedules", "--limit", "1"]).expect_code(0);
    assert!(some.stderr().contains("1 of 3"), "{some:?}");
    publish(&server, "http://a.example/1 every=0");
    at(&server, &["group", "schedules", "--limit", "1001"]).expect_code(2);
    until("the schedule to end", || {
        (json_at(&server, &["group", "schedules"]).len() == 2).then_some(())
    });
}

#[test]
fn keys_are_listed_with_those_that_take_longest_first() {
    let server = server();
    at(&server, &["group", "set", "crawlers", "delay=1m"]).expect_code(0);
    at(&server, &["job", "open", "docs"]).expect_code(0);
    for event in ["http://a.example/1", "http://b.example/1", "http://b.example/2 job=docs"] {
        publish(&server, event);
    }
    let people = at(&server, &["group", "keys"]).expect_code(0).stdout();
    let rows: Vec<Vec<_>> = people.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KEY", "WAITING", "PROCESSING", "LEFT"]);
    assert_eq!(rows[1], ["b.example", "2", "0", "1m", "00s"]);
    assert_eq!(rows[2], ["a.example", "1", "0", "0", "ms"]);
    let of_job = json_at(&server, &["group", "keys", "--job", "docs"]);
    let expected = json!({ "key": "b.example", "waiting": 2, "processing": 0, "left-ms": 60_000 });
    assert_eq!(of_job, [expected]);
    let some = at(&server, &["group", "keys", "--limit", "1"]).expect_code(0);
    assert!(some.stderr().contains("1 of 2"), "{some:?}");
    at(&server, &["group", "keys", "--job", "other"]).expect_code(1);
}
