//! Damage in a data directory: it is named, everything else goes on, and a damaged group is repaired.
//!
//! `TIDINGS_DAMAGE_FLIPS` and `TIDINGS_DAMAGE_SEED` choose how many bits are flipped one after the other, and which.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    http_disk::expect_everywhere,
    support::{
        http::{Answered, Http},
        origin::{Origin, Site},
        pages,
        process::{Server, at, json_at, run},
        seed::{number_from, seed_from},
        talk::{Talk, value},
        wait::until,
    },
};

const TASKS: usize = 20;
const VERIFY: [&str; 3] = ["verify", "--data", "tidings-data"];
const REPAIR: [&str; 5] = ["group", "repair", "thumbs", "--data", "tidings-data"];

/// Everything below a directory: when it was changed, and what is in it.
#[track_caller]
fn everything(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
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

/// Runs a reading command, has it change nothing below the data directory, and returns what it printed.
#[track_caller]
fn read_only(folder: &Path, arguments: &[&str], code: i32) -> String {
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

/// Flips one bit where a file has this text, and returns the file: the only one in the directory that has it.
#[track_caller]
fn flip(dir: &Path, text: &str) -> PathBuf {
    let mut flipped = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut bytes) = fs::read(&path) else { continue };
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

/// A folder whose data directory has a group `thumbs` with a damaged log, and one that is whole. Returns the damaged
/// file as well.
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
    assert_eq!(said[0], "thumbs: nothing of it was kept");
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

/// What HTTP answers where a group is damaged: part of the test in `http_openapi`, which knows what has to be
/// answered.
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

/// Every file below a directory that is of our own formats and is not empty.
fn own_files(dir: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| {
        path.extension().is_some_and(|it| it == "log") && fs::metadata(path).unwrap().len() > 0
    };
    everything(dir).into_keys().filter(|path| path.is_file()).filter(is_own).collect()
}

#[test]
fn a_flipped_bit_in_any_file_is_named() {
    let seed = seed_from("TIDINGS_DAMAGE_SEED");
    let flips = number_from("TIDINGS_DAMAGE_FLIPS").unwrap_or(40);
    eprintln!("TIDINGS_DAMAGE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    for command in
        ["TOPIC create t retain-age=20d", "GROUP create g topics=t key=none", "JOB open j"]
    {
        let answer = client.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    for n in 1..=50 {
        assert_eq!(client.ask(&format!("PUB t event-{n}")), format!("+OK {n} {n}"));
    }
    let Server { process, folder, .. } = server;
    process.finish_by("TERM").expect_code(0);
    read_only(folder.path(), &VERIFY, 0);

    let files = own_files(&folder.path().join("tidings-data"));
    assert!(files.len() >= 4, "{files:#?}");
    for n in 0..flips {
        let path = &files[random.usize(..files.len())];
        let whole = fs::read(path).unwrap();
        let (at, bit) = (random.usize(..whole.len()), random.u8(..8));
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        fs::write(path, bytes).unwrap();
        let what = format!("flip {n}: bit {bit} of byte {at} of {}", path.display());
        let verified = run(folder.path(), &VERIFY);
        let said = verified.stdout().join("\n");
        let name = path.file_name().unwrap().to_str().unwrap();
        // What is wrong with the last batch of a file may have come by a crash: that is told, and is no damage.
        let is_last = said.contains("as after a crash")
            || said.contains("the next start of a broker will say:");
        let is_told = verified.code == Some(1) || verified.code == Some(0) && is_last;
        assert!(is_told && said.contains(name), "{what}: {said}");
        fs::write(path, whole).unwrap();
    }
}
