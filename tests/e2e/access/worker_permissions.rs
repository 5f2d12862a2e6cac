//! The requests of a worker that has only the permission `group:crawlers`, and their results. A
//! worker may change only its own tasks.

use crate::access::tokens::{broker, logged_in};
use crate::support::line_connection::{LineConnection, value};
use crate::support::process::Server;

/// A worker and its one task.
struct Worker {
    connection: LineConnection,
    /// `<group>:<run>.<entry>.<attempt>`
    task: String,
    /// The id for `HELLO resume=`.
    member: String,
}

#[track_caller]
fn join_worker(server: &Server, token: &str, group: &str) -> Worker {
    let mut connection = LineConnection::connect(server.address);
    assert!(connection.read_line().starts_with("Connected."));
    let hello = connection.request(&format!("HELLO token={token}"));
    let member = value(&hello, "resume").to_owned();
    connection.request_ok(&format!("JOIN {group}"));
    let task = connection.read_line().split(' ').nth(1).unwrap().to_owned();
    Worker { connection, task, member }
}

/// The task id with its three numbers raised by `by`.
fn task_id_with_offset(task: &str, by: [u64; 3]) -> String {
    let (group, numbers) = task.split_once(':').unwrap();
    let numbers =
        numbers.split('.').zip(by).map(|(n, by)| (n.parse::<u64>().unwrap() + by).to_string());
    format!("{group}:{}", numbers.collect::<Vec<_>>().join("."))
}

/// Three workers with one task each: two of the crawlers, in different jobs, and one of another
/// group.
struct WorkerFixture {
    server: Server,
    operator: LineConnection,
    one: Worker,
    other: Worker,
    outsider: Worker,
    /// The token of the two crawlers.
    crawler_token: String,
}

impl WorkerFixture {
    #[track_caller]
    fn start() -> Self {
        let crawler: &[&str] = &["group:crawlers"];
        let principals = [("op", &["all"][..]), ("crawler", crawler), ("hand", &["group:hands"])];
        let (server, [all, crawler_token, hand]) = broker(principals, &[]);
        let mut operator = logged_in(&server, &all);
        for line in [
            "GROUP create crawlers delay=1h lease=1h",
            "GROUP create hands topics=work key=none lease=1h",
            "JOB open one scope=host",
            "JOB open other scope=host",
            "PUB work x",
            "PUB new-url http://one.example/ job=one",
        ] {
            operator.request_ok(line);
        }
        let outsider = join_worker(&server, &hand, "hands");
        let one = join_worker(&server, &crawler_token, "crawlers");
        operator.request_ok("PUB new-url http://other.example/ job=other");
        let other = join_worker(&server, &crawler_token, "crawlers");
        Self { server, operator, one, other, outsider, crawler_token }
    }

    /// The waiting and leased entries of both groups, as the operator sees them.
    #[track_caller]
    fn list_tasks(&mut self) -> Vec<String> {
        let of = |group| self.operator.request_lines(&format!("GROUP tasks {group}"));
        let lines: Vec<_> = ["crawlers", "hands"].into_iter().flat_map(of).collect();
        let is_time = |word: &str| word.starts_with("lease-ms=") || word.starts_with("held-ms=");
        let words = |line: &String| {
            line.split(' ').filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
        };
        lines.iter().map(words).collect()
    }
}

#[test]
fn a_worker_cannot_answer_for_a_task_of_another_member() {
    let mut fixture = WorkerFixture::start();
    let before = fixture.list_tasks();
    let (own, others) = (fixture.one.task.clone(), fixture.other.task.clone());
    let mut foreign: Vec<_> = [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1 << 40, 0]]
        .iter()
        .flat_map(|by| [task_id_with_offset(&own, *by), task_id_with_offset(&others, *by)])
        .collect();
    foreign.push(others.clone());
    let mut tried = 0;
    for task in foreign {
        for (verb, options) in [
            ("ACK", ""),
            ("ACK", " outcome=failed"),
            ("ACK", " not-before=1d pace=5m"),
            ("NACK", ""),
            ("NACK", " count=no"),
            ("NACK", " after=0 reason=x"),
            ("NACK", " again=http://one.example/robots.txt"),
            ("TOUCH", ""),
            ("TOUCH", " over=yes pace=0"),
        ] {
            let response = fixture.one.connection.request(&format!("{verb} {task}{options}"));
            assert_eq!(response, format!("-ERR stale {task}"), "{verb}{options}");
            tried += 1;
        }
    }
    assert_eq!(tried, 81);
    // For a group without permission the answer is the same, whether the task exists or not.
    let outsider_task = fixture.outsider.task.clone();
    for task in [&outsider_task, &task_id_with_offset(&outsider_task, [0, 7, 0])] {
        for verb in ["ACK", "NACK", "TOUCH"] {
            let response = fixture.one.connection.request(&format!("{verb} {task}"));
            assert!(
                response.starts_with("-ERR denied crawler may not work for hands"),
                "{response}"
            );
        }
    }
    assert_eq!(fixture.list_tasks(), before);
    // The tasks still belong to their members, which can answer for them.
    for worker in [&mut fixture.one, &mut fixture.other, &mut fixture.outsider] {
        let task = worker.task.clone();
        let response = worker.connection.request(&format!("TOUCH {task}"));
        assert_eq!(response, format!("+OK {task} lease=3600000"));
    }
}

// PROTOCOL: N4
#[test]
fn a_worker_can_resume_only_its_own_membership() {
    let mut fixture = WorkerFixture::start();
    // The listed id of a member is only the beginning of its resume id, and resumes nothing.
    let listed = fixture.one.connection.request_lines("GROUP tasks crawlers state=processing");
    let other = listed.iter().find(|line| line.contains("http://other.example/")).unwrap();
    let seen = value(other, "member").to_owned();
    assert!(fixture.other.member.starts_with(&seen) && seen.len() == 8, "{seen}");
    assert!(!listed.concat().contains(&fixture.other.member));
    for guess in [format!("{seen}{:024}", 0), "0".repeat(32)] {
        let mut connection = logged_in(&fixture.server, &fixture.crawler_token);
        connection.request_ok(&format!("HELLO resume={guess}"));
        let response = connection.request("JOIN crawlers credit=0");
        assert!(response.starts_with("+OK crawlers credit=0 held=0 "), "{response}");
        let response = connection.request(&format!("ACK {}", fixture.other.task));
        assert!(response.starts_with("-ERR stale "), "{response}");
    }
    // A client without permission cannot become a member, even with the resume id of a worker.
    let mut anonymous = LineConnection::connect(fixture.server.address);
    anonymous.read_line();
    anonymous.send(format!("HELLO resume={}\n", fixture.one.member));
    assert!(anonymous.read_line().starts_with("+OK"));
    for line in ["JOIN crawlers".to_owned(), format!("ACK {}", fixture.one.task)] {
        let response = anonymous.request(&line);
        assert!(response.starts_with("-ERR unauthenticated "), "{line}: {response}");
    }
    assert!(fixture.list_tasks().iter().any(|line| line.contains("http://one.example/")));
}

#[test]
fn links_stay_in_the_job_and_scope_of_their_task() {
    let mut fixture = WorkerFixture::start();
    let (own, others) = (fixture.one.task.clone(), fixture.other.task.clone());
    // Links that are staged for a task of another member have no effect.
    fixture.one.connection.send(format!("LINK {others} http://other.example/planted\n"));
    fixture
        .one
        .connection
        .send(format!("LINK {} http://one.example/planted\n", fixture.outsider.task));
    for (url, options) in [
        ("http://one.example/child", ""),
        ("http://one.example/urgent", " prio=1000"),
        // Outside of the job: a host of the other job, a third party, no host, no HTTP URL.
        ("http://other.example/child", ""),
        ("http://evil.example/", ""),
        ("http://evil.example/", " prio=1000"),
        ("file:///etc/passwd", ""),
        ("javascript:alert(1)", ""),
        ("one.example/child", ""),
        // A page has one response, so it has at most one redirect.
        ("http://one.example/moved", " kind=redirect"),
        ("http://evil.example/1", " kind=redirect"),
        ("http://evil.example/2", " kind=redirect"),
    ] {
        fixture.one.connection.send(format!("LINK {own} {url}{options}\n"));
    }
    let response = fixture.one.connection.request(&format!("ACK {own}"));
    assert_eq!(response, format!("+OK {own} new=3 known=0 refused=8"));
    let response = fixture.other.connection.request(&format!("ACK {others}"));
    assert_eq!(response, format!("+OK {others} new=0 known=0 refused=0"));
    let tasks = fixture.list_tasks();
    let waiting: Vec<_> = tasks.iter().filter(|line| line.contains("http://")).collect();
    let mut found: Vec<_> = waiting.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    found.sort_unstable();
    let expected =
        ["http://one.example/child", "http://one.example/moved", "http://one.example/urgent"];
    assert_eq!(found, expected);
    for line in waiting {
        // The priority is ignored: `prio` needs a permission of its own.
        assert!(line.contains(" job=one pass=1 ") && line.contains(" prio=0 "), "{line}");
    }
}

#[test]
fn a_page_outside_of_a_job_adds_no_links() {
    let (server, [all, token]) =
        broker([("op", &["all"][..]), ("crawler", &["group:crawlers"])], &[]);
    let mut operator = logged_in(&server, &all);
    operator.request_ok("PUB new-url http://one.example/");
    let Worker { mut connection, task, .. } = join_worker(&server, &token, "crawlers");
    connection
        .send(format!("LINK {task} http://one.example/child\nLINK {task} http://evil.example/\n"));
    assert_eq!(
        connection.request(&format!("ACK {task}")),
        format!("+OK {task} new=0 known=0 refused=2")
    );
}

#[test]
fn a_worker_can_lengthen_a_delay_and_never_shorten_it() {
    let mut fixture = WorkerFixture::start();
    let own = fixture.one.task.clone();
    fixture.one.connection.request_ok(&format!("TOUCH {own} over=yes pace=0 not-before=0"));
    fixture.one.connection.send(format!("LINK {own} http://one.example/child\n"));
    fixture.one.connection.request_ok(&format!("ACK {own} pace=0 not-before=0"));
    let mut free_in_ms = |host: &str| {
        let response = fixture.operator.request_lines("GROUP keys crawlers");
        let line = response.iter().find(|line| line.starts_with(&format!("+ {host} "))).unwrap();
        value(line, "left-ms").parse::<u64>().unwrap()
    };
    // Of an hour. The test takes less than half of it.
    assert!(free_in_ms("one.example") > 1_800_000);
    // A longer delay has a limit: one day.
    let task = fixture.other.task.clone();
    fixture.other.connection.send(format!("LINK {task} http://other.example/child\n"));
    fixture.other.connection.request_ok(&format!("ACK {task} not-before=365d"));
    let rest_ms = free_in_ms("other.example");
    assert!((80_000_000..=86_400_001).contains(&rest_ms), "{rest_ms}");
}
