//! Damage in a data directory: it is named, everything else goes on, and a damaged group is
//! repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::disk::expect_everywhere;
use crate::support::http::{Answered, Http};
use crate::support::origin::{Origin, Site};
use crate::support::pages;
use crate::support::process::{Running, Server, at, json_at, run, tidings};
use crate::support::talk::{Talk, value};
use crate::support::wait::until;

const TASKS: usize = 20;
pub(crate) const VERIFY: [&str; 3] = ["verify", "--data", "tidings-data"];
const REPAIR: [&str; 5] = ["group", "repair", "thumbs", "--data", "tidings-data"];

/// Everything below a directory: when it was changed, and what is in it.
#[track_caller]
pub(crate) fn everything(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
    let mut all = BTreeMap::new();
    let mut places = vec![dir.to_owned()];
    while let Some(path) = places.pop() {
        let about = fs::metadata(&path).unwrap();
        let bytes = about.is_file().then(|| fs::read(&path).unwrap());
        if about.is_dir() {
            places.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path, (about.modified().unwrap(), bytes));
    }
    all
}

/// Runs a reading command, has it change nothing below the data directory, and returns what it
/// printed.
#[track_caller]
pub(crate) fn read_only(folder: &Path, arguments: &[&str], code: i32) -> String {
    let data = folder.join("tidings-data");
    let before = everything(&data);
    let finished = run(folder, arguments).expect_code(code);
    let after = everything(&data);
    let names = |all: &BTreeMap<PathBuf, _>| all.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&before), names(&after), "{arguments:?}");
    for (path, is) in after {
        assert!(before[&path] == is, "{arguments:?} changed {}", path.display());
    }
    finished.stdout().join("\n")
}

/// Flips one bit where a file has this text, and returns the file: the only one in the directory
/// that has it.
#[track_caller]
fn flip(dir: &Path, text: &str) -> PathBuf {
    let mut flipped = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut bytes) = fs::read(&path) else { continue };
        if path.ends_with("clean-stop") {
            continue;
        }
        let Some(at) = bytes.windows(text.len()).position(|it| it == text.as_bytes()) else {
            continue;
        };
        bytes[at] ^= 0x01;
        fs::write(&path, bytes).unwrap();
        flipped.push(path);
    }
    assert_eq!(flipped.len(), 1, "{flipped:?}");
    flipped.remove(0)
}

/// A folder whose data directory has a group `thumbs` with a damaged log, and one that is whole.
/// Returns the damaged file as well.
#[track_caller]
fn damaged() -> (TempDir, PathBuf) {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for group in ["thumbs", "other"] {
        let made = client.ask(&format!("GROUP create {group} topics=file-ready key=none"));
        assert!(made.starts_with("+OK"), "{made}");
    }
    for n in 1..=TASKS {
        assert_eq!(client.ask(&format!("PUB file-ready /srv/{n}.png")), format!("+OK {n} {n}"));
        // Each has a record of its own.
        until("a task", || {
            let shown = client.ask("GROUP show thumbs");
            (value(&shown, "waiting") == n.to_string()).then_some(())
        });
    }
    let data = server.data();
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    let file = flip(&data.join("groups/thumbs"), "/srv/10.png");
    (folder, file)
}

/// Takes this many tasks of a group.
#[track_caller]
fn take(server: &Server, group: &str, count: usize) {
    let mut worker = Talk::client(server.address);
    let joined = worker.ask(&format!("JOIN {group} credit={count}"));
    assert!(joined.starts_with("+OK"), "{joined}");
    let tasks: BTreeSet<_> = (0..count).map(|_| worker.line()).collect();
    assert!(tasks.len() == count && tasks.iter().all(|it| it.starts_with("TASK ")), "{tasks:#?}");
}

#[test]
fn a_damaged_group_refuses_work_and_everything_else_is_served() {
    let (folder, file) = damaged();
    let groups = everything(file.parent().unwrap());
    let server = Server::start_in(folder, &["broker"], |_| ());
    server.process.line_with("its log is damaged");

    let mut client = Talk::client(server.address);
    assert_eq!(client.ask("PUB file-ready /new.png"), "+OK 21 1");
    for command in
        ["JOIN thumbs", "GROUP pause thumbs", "GROUP create thumbs", "GROUP delete thumbs"]
    {
        let refused = client.ask(command);
        assert!(
            refused.starts_with("-ERR conflict the log of group thumbs is damaged (records ")
                && refused.contains("stop the broker, then: tidings group repair thumbs --data "),
            "{command}: {refused}"
        );
    }
    take(&server, "other", TASKS + 1);
    assert!(client.ask("GROUP create third topics=file-ready key=none").starts_with("+OK"));

    let listed = at(&server, &["group", "ls"]).expect_code(0).stdout();
    let state = |group: &str| {
        let line = listed.iter().find(|line| line.starts_with(group)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((state("thumbs"), state("other")), ("damaged".to_owned(), "ok".to_owned()));
    let shown = at(&server, &["group", "show", "thumbs"]).expect_code(0).stdout().join("\n");
    assert!(
        shown.contains("\nproblem records ") && shown.contains("\nremedy stop the "),
        "{shown}"
    );
    let shown = &json_at(&server, &["group", "show", "thumbs"])[0];
    assert!(shown["damaged"] == "yes" && shown["problem"].is_string(), "{shown}");

    let http = Http::of(&server);
    assert_eq!(http.get("/groups").json()["groups"], json!(["other", "third", "thumbs"]));
    let shown = http.get("/groups/thumbs").json();
    assert_eq!((&shown["damaged"], &shown["topics"]), (&json!(true), &json!(["file-ready"])));
    assert!(shown["problem"].is_string() && shown["remedy"].is_string(), "{shown}");
    assert_eq!(http.send("POST", "/groups/thumbs/pause", "").status, 409);

    server.process.finish_by("TERM").expect_code(0);
    assert!(everything(file.parent().unwrap()) == groups, "the broker changed the damaged log");
}

#[test]
fn a_damaged_group_is_named_repaired_and_serves_its_tasks_again() {
    let (folder, file) = damaged();
    let at = folder.path();
    let found = read_only(at, &VERIFY, 1);
    for part in [
        file.file_name().unwrap().to_str().unwrap(),
        "the next start refuses work for this group: record",
        "what to do: tidings group repair thumbs --data tidings-data",
        "group other: 1 file, ",
    ] {
        assert!(found.contains(part), "{part} in {found}");
    }

    let repaired = run(at, &REPAIR).expect_code(0).stdout();
    let number = |text: &str| {
        let line = repaired.iter().find(|line| line.contains(text));
        let word =
            line.and_then(|line| line.split_whitespace().find(|word| word.parse::<u64>().is_ok()));
        word.unwrap_or_else(|| panic!("{text} in {repaired:#?}")).parse::<u64>().unwrap()
    };
    assert!(number("restored from") >= 9 && number("cannot be read") >= 1, "{repaired:#?}");
    assert!(number("after that were dropped") >= 10, "{repaired:#?}");
    assert!(number("events taken from topics: ") >= 10, "{repaired:#?}");
    let aside = repaired.last().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(fs::read_dir(at.join(aside)).unwrap().count(), 1, "{repaired:#?}");

    read_only(at, &VERIFY, 0);
    let again = run(at, &REPAIR).expect_code(1).stderr();
    assert!(again.contains("there is nothing to repair"), "{again}");
    let server = Server::start_in(folder, &["broker"], |_| ());
    take(&server, "thumbs", TASKS);
}

#[test]
fn a_damaged_group_that_is_set_aside_can_be_created_again() {
    let (folder, _) = damaged();
    let set_aside = [&REPAIR[..], &["--set-aside"]].concat();
    let said = run(folder.path(), &set_aside).expect_code(0).stdout();
    assert_eq!(said[0], "thumbs: nothing was restored");
    read_only(folder.path(), &VERIFY, 0);
    let missing = run(folder.path(), &set_aside).expect_code(1).stderr();
    assert!(missing.contains("holds no group thumbs"), "{missing}");
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = Talk::client(server.address);
    assert!(client.ask("JOIN thumbs").starts_with("-ERR unknown"));
    assert!(client.ask("GROUP create thumbs topics=file-ready key=none").starts_with("+OK"));
}

#[test]
fn reading_commands_change_nothing_and_name_no_file_that_does_not_exist() {
    let (folder, file) = damaged();
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = Talk::client(server.address);
    assert!(client.ask("TOPIC set file-ready retain-age=20d").starts_with("+OK"));
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    let data = folder.path().join("tidings-data");
    flip(&data, "file-ready");
    let topics = ["topic", "verify", "--data", "tidings-data"];
    for command in [&VERIFY[..], &topics] {
        let found = read_only(folder.path(), command, 1);
        let name = file.file_name().unwrap().to_str().unwrap();
        for part in ["catalog.log: ", name] {
            assert!(found.contains(part), "{part} in {found}");
        }
        assert!(!found.contains("kept as"), "{found}");
    }
}

#[test]
fn a_damaged_database_is_named_and_nothing_is_left_beside_it() {
    let origin = Origin::serve(Site { pages: 30, ..Site::default() });
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    run(at, &["crawl", "--allow-private", &origin.url(0, "/p/0")]).expect_code(0);
    let data = at.join("tidings-data");
    let whole = read_only(at, &VERIFY, 0);
    for name in ["pages.db", "crawler.db"] {
        assert!(whole.contains(&format!("{name}: no damage found")), "{whole}");
        let path = data.join(name);
        let bytes = fs::read(&path).unwrap();
        // A leaf of a table or an index, and there the number of its cells.
        let page_bytes = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            1 => 1 << 16,
            size => usize::from(size),
        };
        let leaf =
            bytes.chunks(page_bytes).position(|page| matches!(page[0], 0x0a | 0x0d)).unwrap();
        // In the header: what must be 64 in every database.
        for place in [21, leaf * page_bytes + 4] {
            let mut changed = bytes.clone();
            changed[place] ^= 0x01;
            fs::write(&path, changed).unwrap();
            let found = read_only(at, &VERIFY, 1);
            assert!(found.contains(&format!("{name}: damaged")), "{place}: {found}");
        }
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(pages::query(&data, "select count(*) from pages").unwrap(), ["60"]);
}

/// What HTTP answers where a group is damaged: part of the test in `http_openapi`, which knows what
/// has to be answered.
pub(crate) fn refused(description: &Value) -> BTreeSet<Answered> {
    let server = Server::broker();
    let http = Http::of(&server);
    assert_eq!(http.send("POST", "/jobs", r#"{"job":"j"}"#).status, 200);
    for name in ["damaged", "next", "last"] {
        let seeds = json!({ "urls": [format!("http://a.example/{name}")] }).to_string();
        assert_eq!(http.send("POST", "/jobs/j/urls", &seeds).status, 200);
    }
    let data = server.data();
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    flip(&data.join("groups/crawlers"), "http://a.example/damaged");
    let server = Server::start_in(folder, &["broker"], |_| ());
    let http = Http::of(&server);
    assert_eq!(http.get("/groups/crawlers").status, 200);
    expect_everywhere(&http, description, 409);
    http.seen()
}

/// Flips a bit in the last byte of a file that is not zero.
#[track_caller]
pub(crate) fn flip_end(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last] ^= 0x04;
    fs::write(file, bytes).unwrap();
}

/// The newest file of a log.
#[track_caller]
fn newest(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|it| it == "log")).max().unwrap()
}

#[test]
fn damage_at_the_end_of_a_log_is_no_crash_after_an_orderly_stop() {
    // A stop that takes longer than its limit notes no ends, as a kill does. A busy machine may
    // need more than the default.
    let server = Server::start(&["broker", "--stop-timeout", "30s"]);
    let mut client = Talk::client(server.address);
    for command in ["TOPIC create t retain-age=20d", "GROUP create g topics=t key=none", "PUB t /1"]
    {
        let answer = client.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    until("a task", || (value(&client.ask("GROUP show g"), "waiting") == "1").then_some(()));
    let data = server.data();
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    let files = ["catalog.log", "topics/t", "groups/g"].map(|name| {
        let path = data.join(name);
        if path.is_dir() { newest(&path) } else { path }
    });
    read_only(folder.path(), &VERIFY, 0);
    for file in &files {
        let whole = fs::read(file).unwrap();
        flip_end(file);
        let found = read_only(folder.path(), &VERIFY, 1);
        let name = file.strip_prefix(folder.path()).unwrap().display().to_string();
        assert!(found.contains(&name), "{name} in {found}");
        assert!(!found.contains("as after a crash"), "{found}");
        fs::write(file, whole).unwrap();
    }
    read_only(folder.path(), &VERIFY, 0);

    // A start says so, and hides nothing from the next check. A group that has lost a record
    // refuses work.
    for file in &files {
        flip_end(file);
    }
    flip(&data.join("groups/g"), "taken\tt\t2");
    let server = Server::start_in(folder, &["broker"], |_| ());
    server.process.line_with("catalog.log: the file had ");
    server.process.line_with("the file was whole at the last orderly stop; no event is lost");
    server.process.line_with("its log is damaged");
    let mut client = Talk::client(server.address);
    assert_eq!(client.ask("PUB t /2"), "+OK 2 1", "no number is lost or given again");
    assert!(client.ask("JOIN g").starts_with("-ERR conflict "));
    // Also if it is killed: the damage is known at the next start.
    let Server { process, folder, .. } = server;
    process.finish_by("KILL");
    let found = read_only(folder.path(), &VERIFY, 1);
    for part in ["t: 2 files, ", "group g: ", "the next start refuses work for this group"] {
        assert!(found.contains(part), "{part} in {found}");
    }
    let kept =
        fs::read_dir(&data).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    assert!(kept.into_iter().any(|name| name.starts_with("catalog.log.damaged-")));
}

#[test]
fn a_torn_end_after_a_kill_is_no_damage() {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for command in ["GROUP create g topics=t key=none", "PUB t /1", "PUB t /2"] {
        let answer = client.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    let data = server.data();
    let Server { process, folder, .. } = server;
    process.finish_by("KILL");
    let found = read_only(folder.path(), &VERIFY, 0);
    assert!(found.contains("clean-stop: no damage found\n  it does not exist: "), "{found}");
    for file in [newest(&data.join("topics/t")), newest(&data.join("groups/g"))] {
        flip_end(&file);
    }
    let found = read_only(folder.path(), &VERIFY, 0);
    assert_eq!(found.matches("as after a crash").count(), 2, "{found}");
    let server = Server::start_in(folder, &["broker"], |_| ());
    take(&server, "g", 1);
}

#[test]
fn a_crawler_waits_until_its_damaged_group_is_repaired() {
    let origin = Origin::serve(Site { pages: 7, ..Site::default() });
    let up = Server::up(&["--allow-private"]);
    let mut client = Talk::client(up.address);
    let stored = |data: &Path, count| {
        pages::wait_for_rows(data, "select url from pages where outcome = 'done'", count)
    };
    let data = up.data();
    for page in 0..3 {
        assert!(
            client
                .ask(&format!("PUB new-url {}", origin.url(0, &format!("/p/{page}"))))
                .starts_with("+OK")
        );
        stored(&data, page + 1);
    }
    let Server { process, folder, .. } = up;
    process.finish_by("TERM").expect_code(0);
    flip(&data.join("groups/crawlers"), "/p/1");

    let up = Server::start_in(folder, &["up", "--allow-private"], |_| ());
    let said = up.process.line_with("refused: conflict: the log of group crawlers is damaged");
    assert!(said.contains("tidings group repair crawlers --data "), "{said}");
    let mut client = Talk::client(up.address);
    assert_eq!(client.ask("PUB other one"), "+OK 1 1");
    assert!(client.ask(&format!("PUB new-url {}", origin.url(0, "/p/5"))).starts_with("+OK"));
    let http = Http::of(&up);
    assert_eq!(http.get("/groups/crawlers").json()["damaged"], json!(true));
    assert_eq!(pages::query(&data, "select count(*) from pages").unwrap(), ["3"]);
    let Server { process, folder, .. } = up;
    process.finish_by("TERM").expect_code(0);

    run(folder.path(), &["group", "repair", "crawlers", "--data", "tidings-data"]).expect_code(0);
    let up = Server::start_in(folder, &["up", "--allow-private"], |_| ());
    // What was published meanwhile is fetched, and so is again what was done after the damage.
    until("the page", || {
        let sql = "select count(*) from pages where url like '%/p/5' and outcome = 'done'";
        (pages::query(&data, sql)? == ["1"]).then_some(())
    });
    up.process.finish_by("TERM").expect_code(0);
}

#[test]
fn a_remote_crawler_goes_on_when_its_group_is_repaired() {
    let origin = Origin::serve(Site { pages: 7, ..Site::default() });
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for page in 0..3 {
        let answer = client.ask(&format!("PUB new-url {}", origin.url(0, &format!("/p/{page}"))));
        assert!(answer.starts_with("+OK"), "{answer}");
        until("a task", || {
            let shown = client.ask("GROUP show crawlers");
            (shown.starts_with("+OK") && value(&shown, "waiting") == (page + 1).to_string())
                .then_some(())
        });
    }
    let (data, address) = (server.data(), server.text());
    let server = server.restart_here("TERM", &["broker"]);
    let Server { process, folder, address: at } = server;
    process.finish_by("TERM").expect_code(0);
    flip(&data.join("groups/crawlers"), "/p/1");
    let server = Server::start_here(at, folder, &["broker"]);
    let place = TempDir::new().unwrap();
    let words = ["crawl", "--broker", &address, "--allow-private", "--data", "."];
    let crawler = Running::start(&mut tidings(place.path(), words));
    crawler.line_with("refused: conflict: the log of group crawlers is damaged");
    let Server { process, folder, address: at } = server;
    process.finish_by("TERM").expect_code(0);
    run(folder.path(), &["group", "repair", "crawlers", "--data", "tidings-data"]).expect_code(0);
    let _server = Server::start_here(at, folder, &["broker"]);
    until("the pages", || {
        let sql = "select count(distinct url) from pages where outcome = 'done'";
        (pages::query(place.path(), sql)? == ["3"]).then_some(())
    });
    crawler.finish_by("TERM").expect_code(0);
}

#[test]
fn a_topic_keeps_its_events_for_a_damaged_group_beyond_its_retention() {
    const EVENTS: usize = 2_000;
    let (folder, _) = damaged();
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = Talk::client(server.address);
    for command in ["TOPIC set file-ready", "TOPIC create other"] {
        let answer = client.ask(&format!("{command} retain-bytes=1m sync=interval"));
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    // From the next start on files are as small as this retention wants them.
    let server = server.restart("TERM", &["broker"]);
    let mut client = Talk::client(server.address);
    let filler = "x".repeat(1_000);
    for n in 0..EVENTS {
        for topic in ["other", "file-ready"] {
            let answer = client.ask(&format!("PUB {topic} /late/{n}/{filler}"));
            assert!(answer.starts_with("+OK"), "{answer}");
        }
    }
    let bytes = |client: &mut Talk, topic: &str| {
        let shown = client.ask_lines(&format!("TOPIC show {topic}")).pop().unwrap();
        value(&shown, "log-bytes").parse::<usize>().unwrap()
    };
    // Both are looked at in the same round.
    let all_bytes = EVENTS * filler.len();
    until("retention", || {
        let is_written = bytes(&mut client, "file-ready") > all_bytes;
        (is_written && bytes(&mut client, "other") < all_bytes * 2 / 3).then_some(())
    });
    assert!(bytes(&mut client, "file-ready") > all_bytes);
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    run(folder.path(), &REPAIR).expect_code(0);
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = Talk::client(server.address);
    let all = (TASKS + EVENTS).to_string();
    until("all tasks", || {
        (value(&client.ask("GROUP show thumbs"), "waiting") == all).then_some(())
    });
}

#[test]
fn a_repair_that_was_cut_short_is_named_and_completed() {
    for by_start in [false, true] {
        let (folder, _) = damaged();
        let groups = folder.path().join("tidings-data/groups");
        run(folder.path(), &REPAIR).expect_code(0);
        // As before its last step.
        fs::rename(groups.join("thumbs"), groups.join("~thumbs~repair")).unwrap();
        let found = read_only(folder.path(), &VERIFY, 1);
        assert!(found.contains("group thumbs: ") && found.contains("was cut short"), "{found}");
        if !by_start {
            let said = run(folder.path(), &REPAIR).expect_code(0).stdout();
            assert!(said[1].contains("an earlier repair was interrupted"), "{said:#?}");
            read_only(folder.path(), &VERIFY, 0);
        }
        let server = Server::start_in(folder, &["broker"], |_| ());
        if by_start {
            server.process.line_with("its repair was cut short, and is complete now");
        }
        take(&server, "thumbs", TASKS);
    }
}
