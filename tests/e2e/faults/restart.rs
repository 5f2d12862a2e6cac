//! Restarts of a broker: published events are kept, completed tasks are not repeated, and the wall
//! clock may change in between.

use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::Server;
use crate::support::topic_history::{ReceivedEvents, TopicHistory};
use crate::support::wall_clock::{WallClock, first_output_line, shift_clock};

#[test]
#[ignore = "needs foreign programs"]
fn waiting_urls_are_fetched_after_a_kill() {
    const PAGES: usize = 20;
    let origin = Origin::serve(Site { pages: 20, ..Site::default() });
    // Nearly all of them wait for the delay of their host.
    let up = Server::start_up(&["--allow-private", "--delay", "5s"]);
    let urls: Vec<_> = (0..PAGES).map(|n| origin.url(0, &format!("/p/{n}"))).collect();
    assert_eq!(run_nc(up.address, urls.join("\n")).last().unwrap(), FAREWELL);
    origin.wait_for_hits(1);
    // The group keeps its old delay unless the flag is given.
    let up = up.restart("KILL", &["up", "--allow-private", "--delay", "0"]);
    page_database::wait_for_rows(
        &up.data_dir(),
        "select url from pages where outcome = 'done'",
        PAGES,
    );
}

#[test]
fn a_clean_restart_leaves_no_gap_and_a_subscriber_resumes() {
    let mut server = Server::start_broker();
    let mut history = TopicHistory::new("t");
    for life in 0..5 {
        let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
        let first = 1 + life * 100;
        pipeline.send((0..99).map(|n| ("t".to_owned(), format!("p-{}", first + n))));
        for outcome in pipeline.read_all_outcomes() {
            history
                .record_confirmation(outcome.payload, outcome.result.expect("the disk has space"));
        }
        // A subscriber of an earlier life resumes here.
        let mut client = LineConnection::connect_client(server.address);
        client.request_ok(&format!("SUB t from={first}"));
        assert_eq!(client.read_line(), format!("MSG t {first} p-{first}"));
        let received = ReceivedEvents::read_all(server.address, "t", &format!("end-{life}"));
        assert!(received.gaps.is_empty(), "{:?}", received.gaps);
        assert_eq!(received.events.len(), usize::try_from(first).unwrap() + 99);
        history.check_contents(received);
        server = server.restart("TERM", &["broker"]);
    }
}

/// The time this many hours from now, in the form of `from=`.
fn timestamp(hours: i64) -> String {
    first_output_line("date", &["-u", "-d", &format!("{hours} hours"), "+%Y-%m-%dT%H:%M:%SZ"])
}

/// The seq of the first event that `SUB t from=<time>` delivers. Publishes `end` as the last event.
#[track_caller]
fn first_seq_since(server: &Server, hours: i64, end: &str) -> u64 {
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok(&format!("SUB t from={}", timestamp(hours)));
    LineConnection::connect_client(server.address).request_ok(&format!("PUB t {end}"));
    let line = client.read_line();
    let number = line.strip_prefix("MSG t ").and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
#[ignore = "needs foreign programs"]
fn a_wall_clock_set_between_runs_loses_nothing_and_keeps_times_ordered() {
    let history = Mutex::new(TopicHistory::new("t"));
    let mut server: Option<Server> = None;
    // Offsets of the wall clock in hours, one for each life. Retention is thirty days.
    for (life, hours) in (0..).zip([0, -240, 120, -24, 0]) {
        let arguments = ["broker"];
        let set = |command: &mut Command| shift_clock(command, &format!("{hours:+}h"));
        let started = match server.take() {
            None => Server::start_with(&arguments, set),
            Some(Server { process, folder, .. }) => {
                process.signal_and_finish("TERM").expect_code(0);
                Server::start_in(folder, &arguments, set)
            }
        };
        let mut pipeline = PipelinedPublisher::connect(started.address).unwrap();
        pipeline.send((0..10).map(|n| ("t".to_owned(), format!("p-{}", life * 10 + n))));
        for outcome in pipeline.read_all_outcomes() {
            let seq = outcome.result.expect("the disk has space");
            history.lock().unwrap().record_confirmation(outcome.payload, seq);
        }
        // The clock does not affect which events are kept.
        let received = ReceivedEvents::read_all(started.address, "t", &format!("end-{life}"));
        let next = received.events.len() as u64 + 1;
        history.lock().unwrap().check_contents(received);
        // A time after all events selects only new events; a time before them selects all.
        assert_eq!(first_seq_since(&started, 24 * 365, &format!("past-{life}")), next);
        assert_eq!(first_seq_since(&started, -24 * 365, &format!("whole-{life}")), 1);
        server = Some(started);
    }
    // The clock of the third life was ahead. Its 13 events and the later ones are therefore not
    // older than a time after the first two lives.
    let server = server.expect("a broker");
    assert_eq!(first_seq_since(&server, 24, "behind-0"), 2 * 13 + 1);
}

// PROTOCOL: N8
#[test]
#[ignore = "needs foreign programs"]
fn times_of_day_follow_the_wall_clock() {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    let server = Server::start_in(folder, &["broker"], |command| clock.apply_to(command));
    let time_of_day = first_output_line("date", &["-u", "-d", "3 hours", "+%H:%M"]);
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN crawlers credit=9");
    let mut client = LineConnection::connect_client(server.address);
    client.request(&format!("PUB new-url http://later.test/ after={time_of_day}"));
    client.request("PUB new-url http://span.test/ after=3h");
    client.request(&format!("PUB new-url http://daily.test/ every={time_of_day}"));
    let done = |worker: &mut LineConnection, urls: &[&str]| {
        let mut tasks: Vec<_> = urls.iter().map(|_| worker.read_line()).collect();
        let url_of = |task: &str| task.split(' ').nth(4).unwrap_or_default().to_owned();
        tasks.sort_by_key(|task| url_of(task));
        for (task, url) in tasks.iter().zip(urls) {
            assert!(task.starts_with("TASK ") && url_of(task) == *url, "{task}");
            let id = task.split(' ').nth(1).unwrap();
            worker.send(format!("ACK {id}\n"));
        }
        for _ in urls {
            let answer = worker.read_line();
            assert!(answer.starts_with("+OK "), "{answer}");
        }
    };
    done(&mut worker, &["http://daily.test/"]);
    clock.set_offset("+4h");
    done(&mut worker, &["http://daily.test/", "http://later.test/"]);
    // A wait of three hours does not depend on the wall clock.
    let waits = client.request_lines("EXPLAIN http://span.test/");
    assert!(waits[0].contains(" delayed because=later due-in=") && waits.len() == 2, "{waits:?}");
    let Server { process, folder, .. } = server;
    process.signal_and_finish("KILL");
    // The time of day passed while no broker ran.
    clock.set_offset("+28h");
    let server = Server::start_in(folder, &["broker"], |command| clock.apply_to(command));
    let mut worker = LineConnection::connect_client(server.address);
    worker.request_ok("JOIN crawlers credit=9");
    done(&mut worker, &["http://daily.test/"]);
    clock.set_offset("+52h");
    done(&mut worker, &["http://daily.test/"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_wall_clock_set_while_running_does_not_affect_events() {
    let folder = TempDir::new().unwrap();
    let clock = WallClock::new(folder.path());
    let arguments = ["broker", "--retain-age", "1h"];
    let server = Server::start_in(folder, &arguments, |command| clock.apply_to(command));
    let mut history = TopicHistory::new("t");
    for (at, offset) in (0..).zip(["+0", "-30d", "+30d", "+0"]) {
        clock.set_offset(offset);
        let mut pipeline = PipelinedPublisher::connect(server.address).unwrap();
        pipeline.send((0..10).map(|n| ("t".to_owned(), format!("p-{}", at * 10 + n))));
        for outcome in pipeline.read_all_outcomes() {
            history
                .record_confirmation(outcome.payload, outcome.result.expect("the disk has space"));
        }
        history.check_contents(ReceivedEvents::read_all(server.address, "t", &format!("end-{at}")));
        assert_eq!(first_seq_since(&server, -1, &format!("whole-{at}")), 1);
    }
}
