//! Real browsers against an origin that records each request, a canary that must not be reached,
//! and `/proc`.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests panic to fail, and drive real processes on real clocks"
)]

mod many;
mod origin;
mod pages;
mod processes;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{hint, thread};

use serde_json::Value;

use crate::origin::{Canary, Origin};

const RENDER: &str = env!("CARGO_BIN_EXE_render");

/// Both ways to keep a browser from the network.
const ISOLATIONS: [&str; 2] = ["isolation=required", "isolation=off"];

/// Renders pages of the origin, and returns their results in the order of the paths.
fn render(origin: &Origin, flags: &[&str], paths: &[&str]) -> Vec<Value> {
    let urls: Vec<_> = paths.iter().map(|path| origin.url(path)).collect();
    let mut command = Command::new(RENDER);
    let output = command.args(flags).args(&urls).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(lines.len(), urls.len());
    let of = |url: &String| lines.iter().find(|line| line["page"] == **url).unwrap().clone();
    urls.iter().map(of).collect()
}

#[test]
fn scripts_frames_and_workers_make_a_page_from_one_document() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        let pages = render(&origin, &[isolation, "screenshot", "pdf"], &["/scripts", "/parts"]);
        let [scripts, parts] = &pages[..] else { unreachable!() };
        let links = [("/made", false), ("/in-shadow", true)];
        let links = links.map(|(path, nofollow)| serde_json::json!([origin.url(path), nofollow]));
        assert_eq!(scripts["links"], Value::from(links.to_vec()), "{scripts}");
        assert_eq!(scripts["title"], "made by a script");
        assert_eq!(scripts["url"], *origin.url("/pushed"));
        assert_eq!((&scripts["png"], &scripts["pdf"]), (&true.into(), &true.into()));
        assert_eq!(scripts["cut"], Value::Null);
        assert!(scripts["console"][0].as_str().unwrap().contains("thrown here"), "{scripts}");
        for part in ["frame", "other-site", "worker", "shared-worker", "service-worker"] {
            let html = parts["html"].as_str().unwrap();
            assert!(html.contains(&format!("[{part}]")), "no {part} in {parts:#}");
        }
        // Each was requested once, by this crate.
        for path in ["/scripts", "/parts", "/list.json", "/data/worker", "/data/other-site"] {
            assert_eq!(origin.requests(path), 1, "{path}: {:?}", origin.log());
        }
        assert_eq!(origin.requests("/picture.png"), 0, "an image was loaded");
        assert_eq!(origin.browser_requests(), Vec::<String>::new());
    }
}

#[test]
fn what_a_page_loads_when_it_is_printed_is_loaded_and_a_missing_file_has_a_reason() {
    let origin = Origin::new("");
    let paths = ["/printed", "/printed-frame", "/printed-never"];
    let pages = render(&origin, &["images", "pdf", "screenshot"], &paths);
    for (page, parts) in pages.iter().zip([&["below", "hidden", "at-printing"][..], &["frame"]]) {
        assert_eq!((&page["pdf"], &page["png"]), (&true.into(), &true.into()), "{page}");
        assert_eq!(page["image_errors"], serde_json::json!([]));
        for part in parts {
            let path = format!("/data/{part}");
            assert_eq!(origin.requests(&path), 1, "{path}: {page}");
            assert!(page["requests"].to_string().contains(&path), "{path}: {page}");
        }
    }
    assert_eq!((&pages[2]["pdf"], &pages[2]["png"]), (&Value::Null, &true.into()), "{}", pages[2]);
    assert_eq!(pages[2]["image_errors"], serde_json::json!(["pdf: not made within 8 s"]));
}

#[test]
fn timers_are_run_before_a_page_is_read_and_endless_ones_end() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        // The page settles before its time is over only if its clock is moved forward.
        let flags = [isolation, "settle-ms=600000", "time-ms=60000"];
        let late = &render(&origin, &flags, &["/late"])[0];
        assert!(late["html"].as_str().unwrap().contains("late: /made"), "{late}");
        assert_eq!(late["cut"], Value::Null);
        let flags = [isolation, "settle-ms=600000", "time-ms=10000"];
        let ticker = &render(&origin, &flags, &["/ticker"])[0];
        // On a busy machine, a page that never pauses is taken for hanging.
        let hangs = "the page hangs: its time is over";
        assert!(ticker["cut"] == "Time" || ticker["error"] == hangs, "{ticker}");
    }
}

#[test]
fn answers_of_frames_and_storage_are_waited_for() {
    let origin = Origin::new("");
    let paths: Vec<_> = (0..3)
        .flat_map(|run| pages::ANSWERS.iter().map(move |(path, _)| format!("{path}?{run}")))
        .collect();
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let mut missing = Vec::new();
    for busy_loops in [0, 2] {
        let running = Arc::new(());
        for _ in 0..busy_loops {
            let running = Arc::downgrade(&running);
            thread::spawn(move || {
                while running.strong_count() > 0 {
                    hint::spin_loop();
                }
            });
        }
        let pages = render(&origin, &["slots=2"], &paths);
        drop(running);
        for (page, path) in pages.iter().zip(&paths) {
            if !page["links"].to_string().contains("/shown") {
                missing.push(format!("{path} beside {busy_loops} loops: {page}"));
            }
        }
    }
    assert!(missing.is_empty(), "{} of {}: {missing:#?}", missing.len(), 2 * paths.len());
}

#[test]
fn pages_that_misbehave_cost_only_themselves() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        let flags = [isolation, "settle-ms=3000", "time-ms=30000"];
        // Of the pages that never pause one at a time: on two processors, several of them leave so
        // little time to the others that these are taken for hanging.
        let endless = render(&origin, &flags, &["/endless", "/away", "/blank"]);
        let ticker = render(&origin, &flags, &["/ticker", "/scripts"]);
        let flood = render(&origin, &flags, &["/flood", "/scripts"]);
        let dialogs = render(&origin, &flags, &["/dialogs", "/opens", "/closes"]);
        let ([endless, away, blank], [ticker, scripts], [flood, _], [dialogs, opens, closes]) =
            (&endless[..], &ticker[..], &flood[..], &dialogs[..])
        else {
            unreachable!()
        };
        let has =
            |page: &Value, text: &str| page["html"].as_str().is_some_and(|it| it.contains(text));
        assert!(has(dialogs, "before dialogs") && dialogs["cut"].is_string(), "{dialogs}");
        assert!(has(endless, "before the loop") && endless["cut"] == "Time", "{endless}");
        assert!(has(ticker, "tick") && ticker["cut"] == "Time", "{ticker}");
        assert!(has(away, "stays") && away["opened"][0][1] == *origin.url("/never"), "{away}");
        assert!(blank["error"].as_str().unwrap().contains("about:blank"), "{blank}");
        assert!(closes["error"].as_str().is_some_and(|it| it.contains("left")), "{closes}");
        assert!(has(opens, "stays"), "{opens}");
        let opened = opens["opened"].to_string();
        assert!(opened.contains("/never-popup") && opened.contains("/never-file"), "{opened}");
        assert!(has(flood, "flood") || flood["error"].is_string(), "{flood}");
        assert_eq!(scripts["links"].as_array().unwrap().len(), 2, "{scripts}");
        assert!(!origin.log().iter().any(|it| it.contains("/never")), "{:?}", origin.log());
        assert_eq!(origin.browser_requests(), Vec::<String>::new());
        // On a busy machine, the time of a page may be over before its dialogs are counted.
        let flags = [isolation, "settle-ms=600000", "time-ms=60000"];
        let dialogs = &render(&origin, &flags, &["/dialogs"])[0];
        assert_eq!(dialogs["cut"], "Dialogs", "{dialogs}");
    }
}

#[test]
fn a_page_that_takes_all_memory_ends_alone() {
    for isolation in ISOLATIONS {
        let origin = Origin::new("");
        let flags = [isolation, "settle-ms=60000", "time-ms=90000", "browsers=1"];
        let pages = render(&origin, &flags, &["/memory", "/slow", "/heap"]);
        assert_eq!(pages[0]["error"], "the page crashed", "{}", pages[0]);
        assert!(pages[1]["html"].as_str().is_some_and(|it| it.contains("done")), "{}", pages[1]);
        assert_eq!(pages[2]["error"], "the page crashed", "{}", pages[2]);
    }
}

#[test]
fn what_cannot_be_paused_reaches_no_host() {
    for isolation in ISOLATIONS {
        let canary = Canary::new();
        let origin = Origin::new(&canary.address.to_string());
        let page = &render(&origin, &[isolation, "settle-ms=5000"], &["/canary"])[0];
        assert!(page["html"].as_str().unwrap().contains("tried all"), "{page}");
        assert_eq!(canary.contacts(), Vec::<String>::new(), "{page:#}");
        assert_eq!(origin.browser_requests(), Vec::<String>::new());
    }
}

#[test]
fn a_page_sees_nothing_of_another_page() {
    let origin = Origin::new("");
    let pages = render(&origin, &["slots=1"], &["/count?1", "/count?2", "/count?3"]);
    for page in pages {
        let html = page["html"].as_str().unwrap();
        assert!(html.contains("visits: 1, cookie: 1"), "{page}");
    }
}

#[test]
fn browsers_are_replaced_without_losing_a_page() {
    let origin = Origin::new("");
    let paths: Vec<_> = (0..40).map(|number| format!("/plain?{number}")).collect();
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let pages = render(&origin, &["pages=4"], &paths);
    for (page, path) in pages.iter().zip(&paths) {
        assert!(page["html"].as_str().is_some_and(|it| it.contains("plain")), "{path}: {page}");
        assert_eq!(origin.requests(path), 1, "{path}");
    }
}
