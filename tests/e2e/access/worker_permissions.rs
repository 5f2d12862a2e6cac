//! Workers are trusted with their tasks only: what one tries that has the right `group:crawlers`
//! and nothing else, over the wire, and what comes of it.

use crate::access::tokens::{broker, logged_in};
use crate::support::http::Http;
use crate::support::process::Server;
use crate::support::talk::{Talk, value};

/// A worker, and the one task that it holds.
struct Worker {
    talk: Talk,
    /// `<group>:<run>.<entry>.<attempt>`
    task: String,
    /// With which it could come back.
    member: String,
}

#[track_caller]
fn worker(server: &Server, token: &str, group: &str) -> Worker {
    let mut talk = Talk::unread(server.address);
    assert!(talk.line().starts_with("Connected."));
    let hello = talk.ask(&format!("HELLO token={token}"));
    let member = value(&hello, "resume").to_owned();
    assert!(talk.ask(&format!("JOIN {group}")).starts_with("+OK"));
    let held = talk.line().split(' ').nth(1).unwrap().to_owned();
    Worker { talk, task: held, member }
}

/// What a task is called that has other numbers, by so much each, than this one.
fn off(task: &str, by: [u64; 3]) -> String {
    let (group, numbers) = task.split_once(':').unwrap();
    let numbers =
        numbers.split('.').zip(by).map(|(n, by)| (n.parse::<u64>().unwrap() + by).to_string());
    format!("{group}:{}", numbers.collect::<Vec<_>>().join("."))
}

/// Three workers with a task each, of two jobs and of another group, and who looks after them.
struct Scene {
    server: Server,
    operator: Talk,
    one: Worker,
    other: Worker,
    elsewhere: Worker,
    /// That of the first two.
    token: String,
}

impl Scene {
    #[track_caller]
    fn set() -> Self {
        let crawler: &[&str] = &["group:crawlers"];
        let known = [("op", &["all"][..]), ("crawler", crawler), ("hand", &["group:hands"])];
        let (server, [all, token, hand]) = broker(known, &[]);
        let mut operator = logged_in(&server, &all);
        for line in [
            "GROUP create crawlers delay=1h lease=1h",
            "GROUP create hands topics=work key=none lease=1h",
            "JOB open one scope=host",
            "JOB open other scope=host",
            "PUB work x",
            "PUB new-url http://one.example/ job=one",
        ] {
            let said = operator.ask(line);
            assert!(said.starts_with("+OK"), "{line}: {said}");
        }
        let elsewhere = worker(&server, &hand, "hands");
        let one = worker(&server, &token, "crawlers");
        assert!(operator.ask("PUB new-url http://other.example/ job=other").starts_with("+OK"));
        let other = worker(&server, &token, "crawlers");
        Self { server, operator, one, other, elsewhere, token }
    }

    /// What waits and is worked on in both groups, as its operator sees it.
    #[track_caller]
    fn tasks(&mut self) -> Vec<String> {
        let of = |group| self.operator.ask_lines(&format!("GROUP tasks {group}"));
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
fn nobody_answers_for_a_task_that_another_one_holds() {
    let mut scene = Scene::set();
    let before = scene.tasks();
    let (own, others) = (scene.one.task.clone(), scene.other.task.clone());
    let mut strange: Vec<_> = [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1 << 40, 0]]
        .iter()
        .flat_map(|by| [off(&own, *by), off(&others, *by)])
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
            let said = scene.one.talk.ask(&format!("{verb} {task}{options}"));
            assert_eq!(said, format!("-ERR stale {task}"), "{verb}{options}");
            tried += 1;
        }
    }
    assert_eq!(tried, 81);
    // Of a group for which it may not work it hears that, whether there is such a task or not.
    let elsewhere = scene.elsewhere.task.clone();
    for task in [&elsewhere, &off(&elsewhere, [0, 7, 0])] {
        for verb in ["ACK", "NACK", "TOUCH"] {
            let said = scene.one.talk.ask(&format!("{verb} {task}"));
            assert!(said.starts_with("-ERR denied crawler may not work for hands"), "{said}");
        }
    }
    assert_eq!(scene.tasks(), before);
    // They are still those of their holders, who answer for them.
    for worker in [&mut scene.one, &mut scene.other, &mut scene.elsewhere] {
        let task = worker.task.clone();
        let said = worker.talk.ask(&format!("TOUCH {task}"));
        assert_eq!(said, format!("+OK {task} lease=3600000"));
    }
}

// PROTOCOL: N4
#[test]
fn a_worker_comes_back_as_itself_only() {
    let mut scene = Scene::set();
    // What everybody sees of a member who may see the group is not what it comes back with.
    let listed = scene.one.talk.ask_lines("GROUP tasks crawlers state=processing");
    let other = listed.iter().find(|line| line.contains("http://other.example/")).unwrap();
    let seen = value(other, "member").to_owned();
    assert!(scene.other.member.starts_with(&seen) && seen.len() == 8, "{seen}");
    assert!(!listed.concat().contains(&scene.other.member));
    for guess in [format!("{seen}{:024}", 0), "0".repeat(32)] {
        let mut talk = logged_in(&scene.server, &scene.token);
        assert!(talk.ask(&format!("HELLO resume={guess}")).starts_with("+OK"));
        let said = talk.ask("JOIN crawlers credit=0");
        assert!(said.starts_with("+OK crawlers credit=0 held=0 "), "{said}");
        let said = talk.ask(&format!("ACK {}", scene.other.task));
        assert!(said.starts_with("-ERR stale "), "{said}");
    }
    // Who has no right to work is nobody's member, also with what a worker comes back with.
    let mut stranger = Talk::unread(scene.server.address);
    stranger.line();
    stranger.send(format!("HELLO resume={}\n", scene.one.member));
    assert!(stranger.line().starts_with("+OK"));
    for line in ["JOIN crawlers".to_owned(), format!("ACK {}", scene.one.task)] {
        let said = stranger.ask(&line);
        assert!(said.starts_with("-ERR unauthenticated "), "{line}: {said}");
    }
    assert!(scene.tasks().iter().any(|line| line.contains("http://one.example/")));
}

#[test]
fn children_go_into_the_job_and_scope_of_their_task_and_no_further() {
    let mut scene = Scene::set();
    let (own, others) = (scene.one.task.clone(), scene.other.task.clone());
    // What is staged for a task of somebody else is nothing to anybody.
    scene.one.talk.send(format!("LINK {others} http://other.example/planted\n"));
    scene.one.talk.send(format!("LINK {} http://one.example/planted\n", scene.elsewhere.task));
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
    let said = scene.one.talk.ask(&format!("ACK {own}"));
    assert_eq!(said, format!("+OK {own} new=3 known=0 refused=8"));
    let said = scene.other.talk.ask(&format!("ACK {others}"));
    assert_eq!(said, format!("+OK {others} new=0 known=0 refused=0"));
    let tasks = scene.tasks();
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
fn a_page_that_was_announced_alone_has_no_children() {
    let (server, [all, token]) =
        broker([("op", &["all"][..]), ("crawler", &["group:crawlers"])], &[]);
    let mut operator = logged_in(&server, &all);
    assert!(operator.ask("PUB new-url http://one.example/").starts_with("+OK"));
    let Worker { mut talk, task: held, .. } = worker(&server, &token, "crawlers");
    talk.send(format!("LINK {held} http://one.example/child\nLINK {held} http://evil.example/\n"));
    assert_eq!(talk.ask(&format!("ACK {held}")), format!("+OK {held} new=0 known=0 refused=2"));
}

#[test]
fn a_host_rests_longer_if_a_worker_says_so_and_never_shorter() {
    let mut scene = Scene::set();
    let own = scene.one.task.clone();
    let said = scene.one.talk.ask(&format!("TOUCH {own} over=yes pace=0 not-before=0"));
    assert!(said.starts_with("+OK"), "{said}");
    scene.one.talk.send(format!("LINK {own} http://one.example/child\n"));
    let said = scene.one.talk.ask(&format!("ACK {own} pace=0 not-before=0"));
    assert!(said.starts_with("+OK"), "{said}");
    let mut free_in_ms = |host: &str| {
        let said = scene.operator.ask_lines("GROUP keys crawlers");
        let line = said.iter().find(|line| line.starts_with(&format!("+ {host} "))).unwrap();
        value(line, "left-ms").parse::<u64>().unwrap()
    };
    // Of an hour; the test takes no half of it.
    assert!(free_in_ms("one.example") > 1_800_000);
    // Longer, but not for ever: a day.
    let task = scene.other.task.clone();
    scene.other.talk.send(format!("LINK {task} http://other.example/child\n"));
    let said = scene.other.talk.ask(&format!("ACK {task} not-before=365d"));
    assert!(said.starts_with("+OK"), "{said}");
    let rest_ms = free_in_ms("other.example");
    assert!((80_000_000..=86_400_001).contains(&rest_ms), "{rest_ms}");
}

#[test]
fn a_worker_has_to_do_with_nothing_but_its_group() {
    let mut scene = Scene::set();
    let before = scene.tasks();
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
        let said = scene.one.talk.ask(line);
        assert!(said.starts_with("-ERR denied "), "{line}: {said}");
    }
    let http = Http::of(&scene.server);
    let bearer = format!("Authorization: Bearer {}", scene.token);
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
        let got = http.ask(method, path, &["-H", &bearer]);
        assert_eq!(got.status, 403, "{method} {path}: {}", got.body);
    }
    assert_eq!(scene.tasks(), before);
    // Its own group it sees.
    for line in ["GROUP show crawlers", "GROUP keys crawlers", "GROUP tasks crawlers state=dead"] {
        let said = scene.one.talk.ask_lines(line);
        assert!(said.last().unwrap().starts_with("+OK"), "{line}: {said:?}");
    }
}
