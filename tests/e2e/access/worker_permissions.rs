//! Workers are trusted with their tasks only: what one tries that has the right `group:crawlers`
//! and nothing else, over the wire, and what comes of it.

use crate::access::tokens::{broker, logged_in};
use crate::support::http_client::HttpClient;
use crate::support::line_connection::{LineConnection, value};
use crate::support::process::Server;

/// A worker, and the one task that it holds.
struct Worker {
    talk: LineConnection,
    /// `<group>:<run>.<entry>.<attempt>`
    task: String,
    /// With which it could come back.
    member: String,
}

#[track_caller]
fn join_worker(server: &Server, token: &str, group: &str) -> Worker {
    let mut talk = LineConnection::connect(server.address);
    assert!(talk.read_line().starts_with("Connected."));
    let hello = talk.request(&format!("HELLO token={token}"));
    let member = value(&hello, "resume").to_owned();
    assert!(talk.request(&format!("JOIN {group}")).starts_with("+OK"));
    let held = talk.read_line().split(' ').nth(1).unwrap().to_owned();
    Worker { talk, task: held, member }
}

/// What a task is called that has other numbers, by so much each, than this one.
fn task_id_with_offset(task: &str, by: [u64; 3]) -> String {
    let (group, numbers) = task.split_once(':').unwrap();
    let numbers =
        numbers.split('.').zip(by).map(|(n, by)| (n.parse::<u64>().unwrap() + by).to_string());
    format!("{group}:{}", numbers.collect::<Vec<_>>().join("."))
}

/// Three workers with a task each, of two jobs and of another group, and who looks after them.
struct WorkerFixture {
    server: Server,
    operator: LineConnection,
    one: Worker,
    other: Worker,
    outsider: Worker,
    /// That of the first two.
    crawler_token: String,
}

impl WorkerFixture {
    #[track_caller]
    fn start() -> Self {
        let crawler: &[&str] = &["group:crawlers"];
        let known = [("op", &["all"][..]), ("crawler", crawler), ("hand", &["group:hands"])];
        let (server, [all, crawler_token, hand]) = broker(known, &[]);
        let mut operator = logged_in(&server, &all);
        for line in [
            "GROUP create crawlers delay=1h lease=1h",
            "GROUP create hands topics=work key=none lease=1h",
            "JOB open one scope=host",
            "JOB open other scope=host",
            "PUB work x",
            "PUB new-url http://one.example/ job=one",
        ] {
            let said = operator.request(line);
            assert!(said.starts_with("+OK"), "{line}: {said}");
        }
        let outsider = join_worker(&server, &hand, "hands");
        let one = join_worker(&server, &crawler_token, "crawlers");
        assert!(operator.request("PUB new-url http://other.example/ job=other").starts_with("+OK"));
        let other = join_worker(&server, &crawler_token, "crawlers");
        Self { server, operator, one, other, outsider, crawler_token }
    }

    /// What waits and is worked on in both groups, as its operator sees it.
    #[track_caller]
    fn list_tasks(&mut self) -> Vec<String> {
        let of = |group| self.operator.request_lines(&format!("GROUP tasks {group}"));
        let lines: Vec<_> = ["crawlers", "hands"].into_iter().flat_map(of).collect();
        // All but what is left of leases.
        let words = |line: &String| {
            let words = line.split(' ').filter(|word| !word.starts_with("lease-ms="));
            words.collect::<Vec<_>>().join(" ")
        };
        lines.iter().map(words).collect()
    }
}

#[test]
fn a_worker_cannot_answer_for_a_task_of_another_member() {
    let mut scene = WorkerFixture::start();
    let before = scene.list_tasks();
    let (own, others) = (scene.one.task.clone(), scene.other.task.clone());
    let mut strange: Vec<_> = [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1 << 40, 0]]
        .iter()
        .flat_map(|by| [task_id_with_offset(&own, *by), task_id_with_offset(&others, *by)])
        .collect();
    strange.push(others.clone());
    let mut tried = 0;
    for task in strange {
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
            let said = scene.one.talk.request(&format!("{verb} {task}{options}"));
            assert_eq!(said, format!("-ERR stale {task}"), "{verb}{options}");
            tried += 1;
        }
    }
    assert_eq!(tried, 81);
    // Of a group for which it may not work it hears that, whether there is such a task or not.
    let elsewhere = scene.outsider.task.clone();
    for task in [&elsewhere, &task_id_with_offset(&elsewhere, [0, 7, 0])] {
        for verb in ["ACK", "NACK", "TOUCH"] {
            let said = scene.one.talk.request(&format!("{verb} {task}"));
            assert!(said.starts_with("-ERR denied crawler may not work for hands"), "{said}");
        }
    }
    assert_eq!(scene.list_tasks(), before);
    // They are still those of their holders, who answer for them.
    for worker in [&mut scene.one, &mut scene.other, &mut scene.outsider] {
        let task = worker.task.clone();
        let said = worker.talk.request(&format!("TOUCH {task}"));
        assert_eq!(said, format!("+OK {task} lease=3600000"));
    }
}

// PROTOCOL: N4
#[test]
fn a_worker_can_resume_only_its_own_membership() {
    let mut scene = WorkerFixture::start();
    // What everybody sees of a member who may see the group is not what it comes back with.
    let listed = scene.one.talk.request_lines("GROUP tasks crawlers state=processing");
    let other = listed.iter().find(|line| line.contains("http://other.example/")).unwrap();
    let seen = value(other, "member").to_owned();
    assert!(scene.other.member.starts_with(&seen) && seen.len() == 8, "{seen}");
    assert!(!listed.concat().contains(&scene.other.member));
    for guess in [format!("{seen}{:024}", 0), "0".repeat(32)] {
        let mut talk = logged_in(&scene.server, &scene.crawler_token);
        assert!(talk.request(&format!("HELLO resume={guess}")).starts_with("+OK"));
        let said = talk.request("JOIN crawlers credit=0");
        assert!(said.starts_with("+OK crawlers credit=0 held=0 "), "{said}");
        let said = talk.request(&format!("ACK {}", scene.other.task));
        assert!(said.starts_with("-ERR stale "), "{said}");
    }
    // Who has no right to work is nobody's member, also with what a worker comes back with.
    let mut stranger = LineConnection::connect(scene.server.address);
    stranger.read_line();
    stranger.send(format!("HELLO resume={}\n", scene.one.member));
    assert!(stranger.read_line().starts_with("+OK"));
    for line in ["JOIN crawlers".to_owned(), format!("ACK {}", scene.one.task)] {
        let said = stranger.request(&line);
        assert!(said.starts_with("-ERR unauthenticated "), "{line}: {said}");
    }
    assert!(scene.list_tasks().iter().any(|line| line.contains("http://one.example/")));
}

#[test]
fn links_stay_in_the_job_and_scope_of_their_task() {
    let mut scene = WorkerFixture::start();
    let (own, others) = (scene.one.task.clone(), scene.other.task.clone());
    // What is staged for a task of somebody else is nothing to anybody.
    scene.one.talk.send(format!("LINK {others} http://other.example/planted\n"));
    scene.one.talk.send(format!("LINK {} http://one.example/planted\n", scene.outsider.task));
    for (url, options) in [
        ("http://one.example/child", ""),
        ("http://one.example/urgent", " prio=1000"),
        // Outside of the job: of the other one's host, of a third party, of no host, of something
        // else.
        ("http://other.example/child", ""),
        ("http://evil.example/", ""),
        ("http://evil.example/", " prio=1000"),
        ("file:///etc/passwd", ""),
        ("javascript:alert(1)", ""),
        ("one.example/child", ""),
        // A page has one answer, so there is one redirect.
        ("http://one.example/moved", " kind=redirect"),
        ("http://evil.example/1", " kind=redirect"),
        ("http://evil.example/2", " kind=redirect"),
    ] {
        scene.one.talk.send(format!("LINK {own} {url}{options}\n"));
    }
    let said = scene.one.talk.request(&format!("ACK {own}"));
    assert_eq!(said, format!("+OK {own} new=3 known=0 refused=8"));
    let said = scene.other.talk.request(&format!("ACK {others}"));
    assert_eq!(said, format!("+OK {others} new=0 known=0 refused=0"));
    let tasks = scene.list_tasks();
    let waiting: Vec<_> = tasks.iter().filter(|line| line.contains("http://")).collect();
    let mut found: Vec<_> = waiting.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    found.sort_unstable();
    let expected =
        ["http://one.example/child", "http://one.example/moved", "http://one.example/urgent"];
    assert_eq!(found, expected);
    for line in waiting {
        // Before others is nobody who may not be: `prio` is a right of its own.
        assert!(line.contains(" job=one pass=1 ") && line.contains(" prio=0 "), "{line}");
    }
}

#[test]
fn a_page_outside_of_a_job_adds_no_links() {
    let (server, [all, token]) =
        broker([("op", &["all"][..]), ("crawler", &["group:crawlers"])], &[]);
    let mut operator = logged_in(&server, &all);
    assert!(operator.request("PUB new-url http://one.example/").starts_with("+OK"));
    let Worker { mut talk, task: held, .. } = join_worker(&server, &token, "crawlers");
    talk.send(format!("LINK {held} http://one.example/child\nLINK {held} http://evil.example/\n"));
    assert_eq!(talk.request(&format!("ACK {held}")), format!("+OK {held} new=0 known=0 refused=2"));
}

#[test]
fn a_worker_can_lengthen_a_delay_and_never_shorten_it() {
    let mut scene = WorkerFixture::start();
    let own = scene.one.task.clone();
    let said = scene.one.talk.request(&format!("TOUCH {own} over=yes pace=0 not-before=0"));
    assert!(said.starts_with("+OK"), "{said}");
    scene.one.talk.send(format!("LINK {own} http://one.example/child\n"));
    let said = scene.one.talk.request(&format!("ACK {own} pace=0 not-before=0"));
    assert!(said.starts_with("+OK"), "{said}");
    let mut free_in_ms = |host: &str| {
        let said = scene.operator.request_lines("GROUP keys crawlers");
        let line = said.iter().find(|line| line.starts_with(&format!("+ {host} "))).unwrap();
        value(line, "left-ms").parse::<u64>().unwrap()
    };
    // Of an hour; the test takes no half of it.
    assert!(free_in_ms("one.example") > 1_800_000);
    // Longer, but not for ever: a day.
    let task = scene.other.task.clone();
    scene.other.talk.send(format!("LINK {task} http://other.example/child\n"));
    let said = scene.other.talk.request(&format!("ACK {task} not-before=365d"));
    assert!(said.starts_with("+OK"), "{said}");
    let rest_ms = free_in_ms("other.example");
    assert!((80_000_000..=86_400_001).contains(&rest_ms), "{rest_ms}");
}

#[test]
fn a_worker_has_access_only_to_its_group() {
    let mut scene = WorkerFixture::start();
    let before = scene.list_tasks();
    for line in [
        "JOIN hands",
        "JOIN none",
        "PUB new-url http://evil.example/",
        "PUB new-url http://evil.example/ job=one",
        "PUB job-done x",
        "PUB dead-letter x",
        "SUB new-url",
        "SUB dead-letter",
        "SUB job-done as=x",
        "SEEN new-url 1",
        "JOB open mine",
        "JOB add one url=http://one.example/x",
        "JOB show one",
        "JOB wait one",
        "JOB watch one",
        "JOB pause one",
        "JOB close one",
        "JOB cancel one",
        "JOB delete one",
        "JOB ls",
        "TOPIC ls",
        "TOPIC show new-url",
        "TOPIC create mine",
        "TOPIC set new-url retain-age=1h",
        "TOPIC delete work",
        "TOPIC verify new-url",
        "TOPIC forget new-url cursor=x",
        "GROUP ls",
        "GROUP show hands",
        "GROUP tasks hands",
        "GROUP watch hands",
        "GROUP create mine topics=new-url",
        "GROUP set crawlers delay=0",
        "GROUP pause crawlers",
        "GROUP resume crawlers",
        "GROUP purge crawlers",
        "GROUP retry crawlers",
        "GROUP drop crawlers",
        "GROUP delete crawlers",
        "EXPLAIN one.example",
        "STATS",
    ] {
        let said = scene.one.talk.request(line);
        assert!(said.starts_with("-ERR denied "), "{line}: {said}");
    }
    let http = HttpClient::new(&scene.server);
    let bearer = format!("Authorization: Bearer {}", scene.crawler_token);
    for (method, path) in [
        ("GET", "/topics"),
        ("GET", "/topics/new-url?wait=0"),
        ("GET", "/topics/new-url/events"),
        ("POST", "/topics/new-url"),
        ("DELETE", "/topics/work"),
        ("GET", "/groups"),
        ("GET", "/groups/hands"),
        ("POST", "/groups/crawlers/purge"),
        ("POST", "/groups/crawlers/pause"),
        ("DELETE", "/groups/crawlers"),
        ("GET", "/jobs"),
        ("GET", "/jobs/one"),
        ("GET", "/jobs/one?wait=5m"),
        ("POST", "/jobs/one/cancel"),
        ("DELETE", "/jobs/one"),
        ("GET", "/explain?what=one.example"),
        ("GET", "/stats"),
    ] {
        let got = http.request(method, path, &["-H", &bearer]);
        assert_eq!(got.status, 403, "{method} {path}: {}", got.body);
    }
    assert_eq!(scene.list_tasks(), before);
    // Its own group it sees.
    for line in ["GROUP show crawlers", "GROUP keys crawlers", "GROUP tasks crawlers state=dead"] {
        let said = scene.one.talk.request_lines(line);
        assert!(said.last().unwrap().starts_with("+OK"), "{line}: {said:?}");
    }
}
