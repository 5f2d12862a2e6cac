//! Many pages; some crash or never settle. The tests read the origin's record and `/proc`.
//! `TIDINGS_RENDER_PAGES` sets the number of pages.

#![allow(clippy::print_stdout, reason = "figures for the long run")]

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::RENDER;
use crate::origin::{Origin, SLOTS};
use crate::processes::{Process, below, wait_until_gone};

/// How often memory is measured.
const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// Pages from which on the memory of two halves of a run can be compared. A shorter run has too few
/// pages in each half for equal medians while other tests take the processors.
const COMPARED_PAGES_MIN: usize = 1000;

/// How much larger the median of the second half may be, because its pages are others.
const GROWTH_PERCENT_MAX: u64 = 30;
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// The memory of a process that no file backs, in bytes.
fn memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    (of("RssAnon:").unwrap_or(0) + of("RssShmem:").unwrap_or(0)) * 1024
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// The path of a page: one in 100 crashes, one changes and one waits without end. The parts of the
/// last pages are answered when each of these pages has a slot.
fn path(number: usize, count: usize) -> String {
    let page = match number % 100 {
        _ if number + SLOTS >= count => "/together",
        33 => "/crashes",
        55 => "/ticker",
        77 => "/waits",
        _ => "/counted",
    };
    format!("{page}?{number}")
}

/// What was seen of the crawler and its browsers while it ran.
#[derive(Default)]
struct Seen {
    own: Vec<u64>,
    browsers: Vec<u64>,
    processes: HashMap<u32, Process>,
}

impl Seen {
    fn look(&mut self, crawler: u32) {
        let below = below(crawler);
        self.own.push(memory(crawler));
        self.browsers.push(below.iter().map(|it| memory(it.pid)).sum());
        self.processes.extend(below.into_iter().map(|it| (it.pid, it)));
    }

    /// Checks that the second half of the run took no more memory than the first.
    fn expect_flat(&self) {
        for (what, values) in [("crawler", &self.own), ("browsers", &self.browsers)] {
            // The start is left out.
            let (first, second) = values[values.len() / 8..].split_at(values.len() * 7 / 16);
            let (first, second) = (median(first), median(second));
            println!("memory of the {what}: median {} KiB, then {} KiB", first >> 10, second >> 10);
            let most = first * (100 + GROWTH_PERCENT_MAX) / 100 + GROWTH_BYTES_MAX;
            assert!(second <= most, "{what}: {values:?}");
        }
    }
}

#[test]
fn pages_that_crash_or_never_settle_cost_no_other_page() {
    let count = std::env::var("TIDINGS_RENDER_PAGES").map_or(100, |it| it.parse().unwrap());
    let origin = Origin::new("");
    let mut command = Command::new(RENDER);
    command
        // Long enough for pages that crash or change beside other programs. A page that never
        // settles is read after the first.
        .args(["settle-ms=30000", "time-ms=90000", "pages=40"])
        .args((0..count).map(|it| origin.url(&path(it, count))));
    let started = Instant::now();
    let mut crawler = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(crawler.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || output.lines().try_for_each(|line| sender.send(line.unwrap())));
    let mut pages = HashMap::new();
    let mut seen = Seen::default();
    let mut look_at = Instant::now();
    loop {
        match lines.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let page: Value = serde_json::from_str(&line).unwrap();
                let url = page["page"].as_str().unwrap().to_owned();
                assert!(pages.insert(url, page).is_none(), "twice: {line}");
            }
            Err(RecvTimeoutError::Timeout) => {
                look_at = Instant::now() + MEASURE_EVERY;
                seen.look(crawler.id());
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    assert!(crawler.wait().unwrap().success());
    println!("{count} pages in {} ms", started.elapsed().as_millis());
    for number in 0..count {
        let path = path(number, count);
        let page = &pages[&origin.url(&path)];
        match path.split('?').next() {
            Some("/crashes") => assert_eq!(page["error"], "the page crashed", "{page}"),
            Some("/counted" | "/together") => {
                let html = page["html"].as_str().unwrap_or_else(|| panic!("{page}"));
                let is_whole = html.contains("counted: part") || html.contains("counted: together");
                assert!(is_whole && page["cut"].is_null(), "{page}");
            }
            _ => assert_eq!(page["cut"], "Time", "{page}"),
        }
        assert_eq!(origin.requests(&path), 1, "{path}");
    }
    let (parts, most) = origin.parts();
    let asked: BTreeSet<_> = parts.iter().collect();
    let counted = (0..count).map(|it| path(it, count));
    let counted = counted.filter(|it| it.starts_with("/counted") || it.starts_with("/together"));
    assert_eq!((asked.len(), parts.len()), (counted.count(), asked.len()), "asked for twice");
    assert_eq!(most, SLOTS, "pages at once");
    if count >= COMPARED_PAGES_MIN {
        seen.expect_flat();
    }
    let processes: Vec<_> = seen.processes.into_values().collect();
    wait_until_gone(&processes);
    let words = processes.iter().flat_map(|it| it.command.split(' '));
    for profile in words.filter_map(|word| word.strip_prefix("--user-data-dir=")) {
        assert!(!fs::exists(profile).unwrap(), "{profile} is left");
    }
}
