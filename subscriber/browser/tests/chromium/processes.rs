//! When a process dies, no process of its browser is left, by `/proc`.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::origin::Origin;
use crate::{ISOLATIONS, RENDER};

/// The time that the documentation promises.
const GONE_MAX: Duration = Duration::from_secs(5);

/// A process: its number may be given to another one later, which starts at another time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    started: String,
    pub(crate) command: String,
}

fn processes() -> HashMap<u32, Process> {
    let read = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.replace('\0', " ");
        let parent = fields[1].parse().ok()?;
        Some((pid, Process { pid, parent, started: fields[19].to_owned(), command }))
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|it| it.file_name());
    names.filter_map(|name| read(name.to_str()?.parse().ok()?)).collect()
}

pub(crate) fn below(pid: u32) -> Vec<Process> {
    let all = processes();
    let is_below = |process: &&Process| {
        let parent = |it: &u32| all.get(it).map(|it| it.parent);
        std::iter::successors(Some(process.parent), parent).any(|it| it == pid)
    };
    all.values().filter(is_below).cloned().collect()
}

fn wait_until<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    loop {
        match check() {
            Ok(value) => return value,
            Err(state) => assert!(started.elapsed() < limit, "{what}: {state}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn wait_until_gone(gone: &[Process]) {
    wait_until("processes are left", GONE_MAX, || {
        let all = processes();
        let is_left = |it: &&Process| all.get(&it.pid).is_some_and(|now| now.started == it.started);
        let left: Vec<_> = gone.iter().filter(is_left).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    });
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// A crawler that renders a page which does not settle, and the processes of its browser.
fn start(origin: &Origin, flags: &[&str]) -> (Child, Vec<Process>) {
    let mut command = Command::new(RENDER);
    command.args(flags).arg(origin.url("/waits")).stdout(Stdio::piped());
    let crawler = command.spawn().unwrap();
    let pid = crawler.id();
    let found = wait_until("no renderer", Duration::from_secs(30), || {
        let found = below(pid);
        let is_renderer = |it: &&Process| it.command.contains("--type=renderer");
        let is_loading = origin.requests("/waits") > 0;
        if is_loading && found.iter().filter(is_renderer).count() > 1 {
            Ok(found)
        } else {
            Err(format!("{found:#?}"))
        }
    });
    (crawler, found)
}

/// The folder of the browser's files.
fn profile(processes: &[Process]) -> String {
    let words = processes.iter().flat_map(|it| it.command.split(' '));
    let mut profiles = words.filter_map(|word| word.strip_prefix("--user-data-dir="));
    profiles.next().unwrap().to_owned()
}

/// The process with this text in its command line, before the flags of the browser.
fn find<'a>(found: &'a [Process], part: &str) -> &'a Process {
    let is_part = |it: &&Process| {
        let command = it.command.split(" --headless").next().unwrap();
        command.contains(part) || it.command.starts_with(&part[1..])
    };
    found.iter().find(is_part).unwrap_or_else(|| panic!("{part}: {found:#?}"))
}

fn wait_until_removed(profile: &str) {
    wait_until("files are left", GONE_MAX, || {
        if fs::exists(profile).unwrap() { Err(profile.to_owned()) } else { Ok(()) }
    });
}

/// Waits for the end of the crawler, and checks that it read the page when the page's time was
/// over.
fn expect_page(mut crawler: Child, what: &str) {
    let mut line = String::new();
    BufReader::new(crawler.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let page: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(page["cut"], "Time", "{what}: {page}");
    assert!(crawler.wait().unwrap().success());
}

#[test]
fn a_killed_crawler_leaves_no_process_and_no_file() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        let (mut crawler, found) = start(&origin, &[isolation, "settle-ms=60000", "time-ms=60000"]);
        let profile = profile(&found);
        assert!(fs::exists(&profile).unwrap());
        kill(crawler.id());
        crawler.wait().unwrap();
        wait_until_gone(&found);
        assert!(!fs::exists(&profile).unwrap(), "{profile} is left");
    }
}

#[test]
fn a_crawler_that_is_killed_after_a_part_of_its_browser_leaves_no_process_and_no_file() {
    let supervisors = ["browser-sandbox namespaces", "browser-sandbox processes"];
    for (isolation, part) in ISOLATIONS.into_iter().zip(supervisors) {
        let origin = Origin::new("");
        let (mut crawler, found) = start(&origin, &[isolation, "settle-ms=60000", "time-ms=60000"]);
        kill(find(&found, part).pid);
        kill(crawler.id());
        crawler.wait().unwrap();
        wait_until_gone(&found);
        wait_until_removed(&profile(&found));
    }
}

#[test]
fn a_killed_part_of_a_browser_ends_the_browser_and_its_page_is_rendered_again() {
    // The process above the browser, and what is below it: PID 1 of the namespaces, and the
    // browser.
    let parts =
        ["browser-sandbox namespaces", "browser-sandbox init", "/chromium-headless-shell --user"];
    let without = ["browser-sandbox processes", "/chromium-headless-shell --user"];
    for (isolation, parts) in ISOLATIONS.into_iter().zip([&parts[..], &without]) {
        for part in parts {
            let origin = Origin::new("");
            let (crawler, found) = start(&origin, &[isolation, "settle-ms=3000"]);
            kill(find(&found, part).pid);
            let (starter, browser): (Vec<_>, _) = found
                .iter()
                .cloned()
                .partition(|it| it.command.contains("browser-sandbox starter"));
            wait_until_gone(&browser);
            wait_until_removed(&profile(&found));
            expect_page(crawler, part);
            wait_until_gone(&starter);
        }
    }
}

#[test]
fn browsers_do_not_need_what_started_them() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        let (crawler, found) = start(&origin, &[isolation, "settle-ms=3000"]);
        kill(find(&found, "browser-sandbox starter").pid);
        // The page is rendered in another browser, which another process starts.
        kill(find(&found, "/chromium-headless-shell --user").pid);
        expect_page(crawler, isolation);
        wait_until_gone(&found);
        wait_until_removed(&profile(&found));
    }
}
