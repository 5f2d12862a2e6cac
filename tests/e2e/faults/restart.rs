//! A broker that ends and comes back: what was published is there, what was done is not done again,
//! and the time of day may have been set in between.

use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

use crate::support::clock::{WallClock, output, set_clock};
use crate::support::history::{Heard, History};
use crate::support::nc::nc_all;
use crate::support::origin::{Origin, Site};
use crate::support::pages;
use crate::support::process::Server;
use crate::support::publisher::Pipeline;
use crate::support::talk::{FAREWELL, Talk};

#[test]
fn what_nobody_fetched_yet_is_fetched_by_who_comes_later_once() {
    let origin = Origin::serve(Site { pages: 3, ..Site::default() });
    let broker = Server::broker();
    let data = broker.data();
    let url = origin.url(0, "/p/0");
    assert_eq!(nc_all(broker.address, &url).last().unwrap(), FAREWELL);

    let up = broker.restart("TERM", &["up", "--allow-private"]);
    pages::wait_for_rows(&data, "select url from pages where outcome = 'done'", 1);
    // Two events that end in order: when the second page is there, a second fetch of the first
    // would be, too.
    let up = up.restart("TERM", &["up", "--allow-private"]);
    nc_all(up.address, origin.url(0, "/p/1"));
    pages::wait_for_rows(&data, "select url from pages where outcome = 'done'", 2);
    up.process.finish_by("TERM").expect_code(0);
    assert_eq!(origin.record().paths(), ["/p/0", "/p/1"]);
}

#[test]
fn what_was_waiting_when_a_broker_was_killed_is_fetched_after_it() {
    const PAGES: usize = 20;
    let origin = Origin::serve(Site { pages: 20, ..Site::default() });
    // Nearly all of them wait for their host.
    let up = Server::up(&["--allow-private", "--delay", "5s"]);
    let urls: Vec<_> = (0..PAGES).map(|n| origin.url(0, &format!("/p/{n}"))).collect();
    assert_eq!(nc_all(up.address, urls.join("\n")).last().unwrap(), FAREWELL);
    origin.wait_for_hits(1);
    // The delay of before is remembered, unless it is given again.
    let up = up.restart("KILL", &["up", "--allow-private", "--delay", "0"]);
    pages::wait_for_rows(&up.data(), "select url from pages where outcome = 'done'", PAGES);
}

#[test]
fn a_clean_restart_leaves_no_gap_and_a_subscriber_goes_on() {
    let mut server = Server::broker();
    let mut history = History::of("t");
    for life in 0..5 {
        let mut pipeline = Pipeline::connect(server.address).unwrap();
        let first = 1 + life * 100;
        pipeline.send((0..99).map(|n| ("t".to_owned(), format!("p-{}", first + n))));
        for outcome in pipeline.all_answers() {
            history.confirm(outcome.payload, outcome.fate.expect("there is room"));
        }
        // Where a subscriber of an earlier life was.
        let mut client = Talk::client(server.address);
        assert!(client.ask(&format!("SUB t from={first}")).starts_with("+OK"));
        assert_eq!(client.line(), format!("MSG t {first} p-{first}"));
        let heard = Heard::all_of(server.address, "t", &format!("end-{life}"));
        assert!(heard.gaps.is_empty(), "{:?}", heard.gaps);
        assert_eq!(heard.events.len(), usize::try_from(first).unwrap() + 99);
        history.check(heard);
        server = server.restart("TERM", &["broker"]);
    }
}

/// A time so many hours from now, as `from=` takes it.
fn time(hours: i64) -> String {
    output("date", &["-u", "-d", &format!("{hours} hours"), "+%Y-%m-%dT%H:%M:%SZ"])
}

/// The number of the first event that `SUB t from=<time>` brings; the last one is `end`.
#[track_caller]
fn first_since(server: &Server, hours: i64, end: &str) -> u64 {
    let mut client = Talk::client(server.address);
    assert!(client.ask(&format!("SUB t from={}", time(hours))).starts_with("+OK"));
    assert!(Talk::client(server.address).ask(&format!("PUB t {end}")).starts_with("+OK"));
    let line = client.line();
    let number = line.strip_prefix("MSG t ").and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn a_wall_clock_that_is_set_back_and_forth_loses_nothing_and_keeps_the_order_of_times() {
    let history = Mutex::new(History::of("t"));
    let mut server: Option<Server> = None;
    // Hours by which the clock is off, in one life after the other; retention is thirty days.
    for (life, hours) in (0..).zip([0, -240, 120, -24, 0]) {
        let arguments = ["broker"];
        let set = |command: &mut Command| set_clock(command, &format!("{hours:+}h"));
        let started = match server.take() {
            None => Server::start_with(&arguments, set),
            Some(Server { process, folder, .. }) => {
                process.finish_by("TERM").expect_code(0);
                Server::start_in(folder, &arguments, set)
            }
        };
        let mut pipeline = Pipeline::connect(started.address).unwrap();
        pipeline.send((0..10).map(|n| ("t".to_owned(), format!("p-{}", life * 10 + n))));
        for outcome in pipeline.all_answers() {
            let seq = outcome.fate.expect("there is room");
            history.lock().unwrap().confirm(outcome.payload, seq);
        }
        // Everything is there, whatever time it is.
        let heard = Heard::all_of(started.address, "t", &format!("end-{life}"));
        let next = heard.events.len() as u64 + 1;
        history.lock().unwrap().check(heard);
        // What is newer than everything is only what comes, and what is older than everything is
        // all.
        assert_eq!(first_since(&started, 24 * 365, &format!("past-{life}")), next);
        assert_eq!(first_since(&started, -24 * 365, &format!("whole-{life}")), 1);
        server = Some(started);
    }
    // The third life was ahead: its 13 events, and what came later, are not older than a time
    // behind the first two lives.
    let server = server.expect("a broker");
    assert_eq!(first_since(&server, 24, "behind-0"), 2 * 13 + 1);
}

// PROTOCOL: N8
#[test]
fn a_time_of_day_is_that_of_a_wall_clock_also_when_that_is_set_and_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    let server = Server::start_in(folder, &["broker"], |command| clock.rule(command));
    let time_of_day = output("date", &["-u", "-d", "3 hours", "+%H:%M"]);
    let mut worker = Talk::client(server.address);
    assert!(worker.ask("JOIN crawlers credit=9").starts_with("+OK"));
    let mut client = Talk::client(server.address);
    client.ask(&format!("PUB new-url http://later.test/ after={time_of_day}"));
    client.ask("PUB new-url http://span.test/ after=3h");
    client.ask(&format!("PUB new-url http://daily.test/ every={time_of_day}"));
    let done = |worker: &mut Talk, urls: &[&str]| {
        let mut tasks: Vec<_> = urls.iter().map(|_| worker.line()).collect();
        let url_of = |task: &str| task.split(' ').nth(4).unwrap_or_default().to_owned();
        tasks.sort_by_key(|task| url_of(task));
        for (task, url) in tasks.iter().zip(urls) {
            assert!(task.starts_with("TASK ") && url_of(task) == *url, "{task}");
            let id = task.split(' ').nth(1).unwrap();
            worker.send(format!("ACK {id}\n"));
        }
        for _ in urls {
            let answer = worker.line();
            assert!(answer.starts_with("+OK "), "{answer}");
        }
    };
    done(&mut worker, &["http://daily.test/"]);
    clock.set("+4h");
    done(&mut worker, &["http://daily.test/", "http://later.test/"]);
    // What waits for three hours waits for three hours.
    let waits = client.ask_lines("EXPLAIN http://span.test/");
    assert!(waits[0].contains(" delayed due-in=") && waits.len() == 2, "{waits:?}");
    let Server { process, folder, .. } = server;
    process.finish_by("KILL");
    // The time of day has passed while no broker ran.
    clock.set("+28h");
    let server = Server::start_in(folder, &["broker"], |command| clock.rule(command));
    let mut worker = Talk::client(server.address);
    assert!(worker.ask("JOIN crawlers credit=9").starts_with("+OK"));
    done(&mut worker, &["http://daily.test/"]);
    clock.set("+52h");
    done(&mut worker, &["http://daily.test/"]);
}

#[test]
fn a_wall_clock_that_is_set_while_the_broker_runs_changes_nothing_about_events() {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    let arguments = ["broker", "--retain-age", "1h"];
    let server = Server::start_in(folder, &arguments, |command| clock.rule(command));
    let mut history = History::of("t");
    for (at, offset) in (0..).zip(["+0", "-30d", "+30d", "+0"]) {
        clock.set(offset);
        let mut pipeline = Pipeline::connect(server.address).unwrap();
        pipeline.send((0..10).map(|n| ("t".to_owned(), format!("p-{}", at * 10 + n))));
        for outcome in pipeline.all_answers() {
            history.confirm(outcome.payload, outcome.fate.expect("there is room"));
        }
        history.check(Heard::all_of(server.address, "t", &format!("end-{at}")));
        assert_eq!(first_since(&server, -1, &format!("whole-{at}")), 1);
    }
}
