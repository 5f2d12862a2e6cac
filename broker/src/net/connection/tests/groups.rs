//! Tests of groups and jobs over connections.

use std::path::Path;

use tidings_queue::GroupConfig;
use tokio::io::AsyncWriteExt;

use super::{TestConnection, start_broker, start_broker_in};
use crate::limits::Limits;
use crate::{Broker, BrokerConfig};

// PROTOCOL: A1
#[tokio::test]
async fn job_wait_does_not_block_commands_and_answers_keep_their_order() {
    let broker = start_broker(Limits::default()).await;
    let (mut waiter, mut other) = (
        TestConnection::connect_client(&broker).await,
        TestConnection::connect_client(&broker).await,
    );
    assert!(other.request("JOB open site").await.starts_with("+OK site "));
    waiter.send("JOB wait site\nPUB t x\nJOB wait site\nPING\n").await;
    // Commands behind the wait take effect at once.
    other.send("SUB t from=first\n").await;
    other.expect("+OK\r\nMSG t 1 x\r\n").await;
    assert!(other.request("JOB close site").await.starts_with("+OK site "));
    let result = waiter.next_line().await;
    assert!(result.starts_with("+OK site number=1 pass=1 result=done reason=empty "), "{result}");
    waiter.expect("+OK 1 1\r\n").await;
    waiter.expect(&result).await;
    assert!(waiter.next_line().await.starts_with("PONG "));
    assert_eq!(other.request("JOB wait site").await, result, "the pass is over");
    assert_eq!(other.request("JOB delete site").await, "+OK site\r\n");
    assert!(other.request("JOB wait site").await.starts_with("-ERR unknown "));
}

#[tokio::test]
async fn a_client_may_disconnect_during_job_wait() {
    let broker = start_broker(Limits::default()).await;
    let mut remaining = TestConnection::connect_client(&broker).await;
    let mut leaving = TestConnection::connect_client(&broker).await;
    assert!(leaving.request("JOB open site").await.starts_with("+OK site "));
    leaving.send("JOB wait site\nPUB t x\n").await;
    remaining.send("SUB t from=first\n").await;
    remaining.expect("+OK\r\nMSG t 1 x\r\n").await;
    drop(leaving);
    remaining.request_until("STATS", "connections=1 ").await;
    assert!(remaining.request("JOB close site").await.starts_with("+OK site "));
}

#[tokio::test]
async fn a_wait_ends_some_time_after_the_input() {
    let limits = Limits { closing_timeout_ms: 50, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut waiter = TestConnection::connect_client(&broker).await;
    assert!(waiter.request("JOB open site").await.starts_with("+OK site "));
    waiter.send("JOB wait site\nPUB t x\nPING\n").await;
    waiter.write.shutdown().await.unwrap();
    let answers = waiter.read_until_closed().await;
    let starts: Vec<_> = answers.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["-ERR", "+OK", "PONG"], "{answers}");
    assert!(answers.starts_with("-ERR conflict the input has ended "), "{answers}");
}

// PROTOCOL: G4
#[tokio::test]
async fn job_watch_reports_progress_and_the_end() {
    let broker = start_broker(Limits::default()).await;
    let (mut watcher, mut other) = (
        TestConnection::connect_client(&broker).await,
        TestConnection::connect_client(&broker).await,
    );
    assert!(other.request("JOB open site").await.starts_with("+OK site "));
    watcher.send("JOB watch site every=100ms\nPING\nJOB watch site\n").await;
    let line = watcher.next_line().await;
    assert!(line.starts_with("+ site number=1 pass=1 state=open pending=0 "), "{line}");
    assert!(line.contains(" found=0 opened=") && line.ends_with(" rate=0.0\r\n"), "{line}");
    assert!(other.request("JOB add site url=http://a.test/").await.starts_with("+OK site new=1 "));
    let line = watcher.next_line().await;
    assert!(line.contains(" found=1 opened="), "{line}");
    let mut worker = TestConnection::connect_client(&broker).await;
    assert!(worker.request("JOIN crawlers").await.starts_with("+OK"));
    let task = worker.next_line().await.split(' ').nth(1).unwrap().to_owned();
    assert!(worker.request(&format!("ACK {task}")).await.starts_with("+OK"));
    let mut line = watcher.next_line().await;
    while !line.contains(" completed=1 ") {
        line = watcher.next_line().await;
    }
    assert!(!line.ends_with(" rate=0.0\r\n"), "{line}");
    assert!(other.request("JOB close site").await.starts_with("+OK site "));
    while !line.starts_with("+OK ") {
        line = watcher.next_line().await;
    }
    assert!(line.starts_with("+OK site number=1 pass=1 result=done completed=1 "), "{line}");
    // Later commands are answered after the watch, and a second watch is rejected.
    assert!(watcher.next_line().await.starts_with("PONG "));
    assert!(watcher.next_line().await.starts_with("-ERR limit "));
    let repeated = watcher.request("JOB watch site").await;
    assert_eq!(repeated, line, "the pass is over");
}

// PROTOCOL: G4
#[tokio::test]
async fn group_watch_ends_with_the_group_or_the_connection() {
    let broker = start_broker(Limits::default()).await;
    let mut operator = TestConnection::connect_client(&broker).await;
    assert!(operator.request("GROUP create team topics=work").await.starts_with("+OK team "));
    let (mut remaining, mut leaving) = (
        TestConnection::connect_client(&broker).await,
        TestConnection::connect_client(&broker).await,
    );
    for watcher in [&mut remaining, &mut leaving] {
        watcher.send("GROUP watch team every=100ms\n").await;
        let line = watcher.next_line().await;
        assert!(line.starts_with("+ team paused=no members=0 "), "{line}");
    }
    leaving.send("QUIT\n").await;
    leaving.expect("+OK\r\n+OK\r\n").await;
    assert_eq!(leaving.read_until_closed().await, "");
    assert!(operator.request("GROUP pause team").await.starts_with("+OK team paused=yes "));
    assert!(remaining.next_line().await.starts_with("+ team paused=yes "));
    assert_eq!(operator.request("GROUP delete team").await, "+OK team\r\n");
    let mut line = remaining.next_line().await;
    while line.starts_with("+ ") {
        line = remaining.next_line().await;
    }
    assert!(line.starts_with("-ERR unknown "), "{line}");
    assert!(remaining.request("PING").await.starts_with("PONG "));
    // The connection can watch again.
    assert!(operator.request("GROUP create team topics=work").await.starts_with("+OK team "));
    remaining.send("GROUP watch team\n").await;
    assert!(remaining.next_line().await.starts_with("+ team "));
}

#[tokio::test]
async fn a_group_without_members_can_be_deleted_and_releases_its_topics() {
    let broker = start_broker(Limits::default()).await;
    let mut operator = TestConnection::connect_client(&broker).await;
    assert!(operator.request("GROUP create team topics=work").await.starts_with("+OK team "));
    assert!(operator.request("TOPIC delete work").await.starts_with("-ERR busy "));
    let mut member = TestConnection::connect_client(&broker).await;
    assert!(member.request("JOIN team").await.starts_with("+OK team "));
    assert!(operator.request("GROUP delete team").await.starts_with("-ERR conflict "));
    drop(member);
    operator.request_until("GROUP show team", " members=0 ").await;
    assert_eq!(operator.request("GROUP delete team").await, "+OK team\r\n");
    assert!(operator.request("GROUP show team").await.starts_with("-ERR unknown "));
    operator.request_until("TOPIC delete work", "+OK work").await;
    assert!(operator.request("GROUP create team").await.starts_with("+OK team paused=no "));
    assert!(operator.request("GROUP delete crawlers").await.starts_with("-ERR conflict "));
}

#[tokio::test]
async fn every_command_to_a_group_under_deletion_is_answered() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    for _ in 0..20 {
        assert!(client.request("GROUP create team").await.starts_with("+OK team "));
        // On two connections, so that neither command waits for the answer of the other.
        let mut member = TestConnection::connect_client(&broker).await;
        client.send("GROUP delete team\n").await;
        member.send("JOIN team\nJOB wait nothing group=team\n").await;
        let (deleted, joined) = (client.next_line().await, member.next_line().await);
        let waited = member.next_line().await;
        assert!(waited.starts_with("-ERR unknown "), "{waited}");
        if deleted.starts_with("+OK") {
            assert!(joined.starts_with("-ERR unknown "), "{joined}");
            continue;
        }
        assert!(joined.starts_with("+OK team "), "{deleted} {joined}");
        drop(member);
        client.request_until("GROUP delete team", "+OK team").await;
    }
}

#[tokio::test]
async fn an_event_of_one_groups_job_is_an_ordinary_event_in_another() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert!(client.request("SUB dead-letter").await.starts_with("+OK"));
    assert!(client.request("GROUP create other topics=new-url").await.starts_with("+OK other "));
    assert!(client.request("JOIN crawlers").await.starts_with("+OK crawlers "));
    assert!(client.request("JOIN other").await.starts_with("+OK other "));
    // Both commands at once, without waiting for an answer.
    client.send("JOB open docs group=other\nPUB new-url http://a.org/ job=docs\n").await;
    assert!(client.next_line().await.starts_with("+OK docs "));
    let mut lines = [client.next_line().await, client.next_line().await, client.next_line().await];
    lines.sort();
    assert_eq!(lines[0], "+OK 1 1\r\n");
    assert!(lines[1].starts_with("TASK crawlers:") && !lines[1].contains("job="), "{lines:?}");
    assert!(lines[2].starts_with("TASK other:") && lines[2].contains(" job=docs "), "{lines:?}");
    client.send("PUB new-url http://a.org/ job=nobodys\n").await;
    let mut lines = [client.next_line().await, client.next_line().await, client.next_line().await];
    lines.sort();
    assert!(lines[1].contains(" reason=unknown-job group="), "{lines:?}");
    assert!(lines[2].contains(" reason=unknown-job group="), "{lines:?}");
    // A name that a group rejected, or of a group that does not exist, is not a job.
    assert!(client.request("GROUP create texts key=none").await.starts_with("+OK texts "));
    for command in ["JOB open blog group=texts", "JOB open blog group=nowhere"] {
        assert!(client.request(command).await.starts_with("-ERR "));
    }
    client.send("PUB new-url http://a.org/ job=blog\n").await;
    let mut lines = [client.next_line().await, client.next_line().await, client.next_line().await];
    lines.sort();
    assert!(lines[2].contains(" reason=unknown-job group="), "{lines:?}");
}

// PROTOCOL: C3
#[tokio::test]
async fn actions_validate_their_arguments() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert!(client.request("JOB open site").await.starts_with("+OK "));
    assert_eq!(
        client.request("JOB add site url=http://a.org/x?y=z").await,
        "+OK site new=1 known=0\r\n"
    );
    assert!(client.request("JOB pause site").await.contains(" state=paused "));
    let tasks = client.request("GROUP tasks crawlers job=site").await;
    assert!(tasks.starts_with("+ 1 state=pending key=a.org job=site pass=1 "), "{tasks}");
    assert!(
        tasks.ends_with(" http://a.org/x?y=z\r\n+OK crawlers matched=1 listed=1\r\n"),
        "{tasks}"
    );
    assert!(client.request("GROUP purge crawlers").await.contains(" waiting=0 "));
    assert_eq!(client.request("GROUP retry crawlers").await, "+OK crawlers retried=0\r\n");
    assert_eq!(client.request("GROUP drop crawlers key=a.org").await, "+OK crawlers dropped=0\r\n");
    for (wrong, code) in [
        ("JOB add site", "bad-argument"),
        ("JOB add site url=http://a.org/ prio=x", "bad-argument"),
        ("JOB add site url=http://a.org/ after=soon", "bad-argument"),
        ("JOB add site url=http://a.org/ colour=red", "bad-argument"),
        ("JOB pause site url=http://a.org/", "bad-argument"),
        ("JOB pause", "bad-argument"),
        ("JOB delete site", "conflict"),
        ("EXPLAIN a.org group=nowhere", "unknown"),
        ("EXPLAIN b.org group=crawlers", "unknown"),
        ("JOB watch site every=99ms", "bad-argument"),
        ("JOB watch site colour=red", "bad-argument"),
        ("JOB watch nothing", "unknown"),
        ("JOB watch", "bad-argument"),
        ("JOB ls site", "bad-argument"),
        ("TOPIC ls new-url", "bad-argument"),
        ("GROUP ls crawlers", "bad-argument"),
        ("GROUP ls state=dead", "bad-argument"),
        ("GROUP set crawlers", "bad-argument"),
        ("GROUP pause crawlers hard=yes", "bad-argument"),
        ("GROUP retry crawlers state=dead", "bad-argument"),
        ("GROUP tasks crawlers state=gone", "bad-argument"),
        ("GROUP tasks crawlers job=nothing", "unknown"),
        ("GROUP pause nowhere", "unknown"),
        ("GROUP watch crawlers group=crawlers", "bad-argument"),
        ("GROUP watch crawlers every=2h", "bad-argument"),
        ("GROUP watch nowhere", "unknown"),
    ] {
        let answer = client.request(wrong).await;
        assert!(answer.starts_with(&format!("-ERR {code} ")), "{wrong}: {answer}");
    }
}

/// Total size of the files of a directory.
fn bytes_in(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn a_group_log_is_compacted_and_a_restart_reads_it() {
    const LOG_BYTES: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let start = async || {
        let limits = Limits { group_log_bytes: LOG_BYTES, ..Limits::default() };
        let group = GroupConfig { finished_jobs_max: 10, ..GroupConfig::default() };
        let (listen, data) = ("127.0.0.1:0".parse().unwrap(), Some(dir.path().to_owned()));
        let config = BrokerConfig { listen, data, limits, group, ..BrokerConfig::default() };
        Broker::start(config).await.unwrap()
    };
    let broker = start().await;
    let mut client = TestConnection::connect_client(&broker).await;
    for job in 0..500 {
        assert!(client.request(&format!("JOB open j{job}")).await.starts_with("+OK"));
        client.request(&format!("PUB new-url http://h{job}.test/ job=j{job}")).await;
        assert!(client.request(&format!("JOB close j{job}")).await.starts_with("+OK"));
        if job % 2 == 0 {
            assert!(client.request(&format!("JOB cancel j{job}")).await.starts_with("+OK"));
            assert!(client.request(&format!("JOB wait j{job}")).await.starts_with("+OK"));
        }
    }
    let (mut before, group) = (client.request("JOB ls").await, dir.path().join("groups/crawlers"));
    // The clock of a group may lose some ms in a restart, which times of its jobs then gain.
    let untimed = |jobs: &str| {
        let jobs = jobs.lines().map(|job| job.split(" opened=").next().map(str::to_owned));
        jobs.collect::<Vec<_>>()
    };
    broker.stop().await;
    // 250 entries and jobs, three times, and the preallocated space.
    assert!(bytes_in(&group) < 5 * LOG_BYTES, "{} bytes", bytes_in(&group));
    for _ in 0..3 {
        let broker = start().await;
        let mut client = TestConnection::connect_client(&broker).await;
        let after = client.request("JOB ls").await;
        assert_eq!(untimed(&after), untimed(&before));
        assert!(client.request("JOB open another").await.contains(" pass="));
        before = client.request("JOB ls").await;
        broker.stop().await;
    }
}

#[tokio::test]
async fn actions_of_an_operator_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_broker_in(&dir, Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    for command in [
        "GROUP create crawlers delay=0 max-attempts=1",
        "GROUP create other",
        "JOB open theirs group=other",
        "PUB new-url http://a.test/ every=1h",
    ] {
        assert!(client.request(command).await.starts_with("+OK "), "{command}");
    }
    let mut worker = TestConnection::connect_client(&broker).await;
    assert!(worker.request("JOIN crawlers").await.starts_with("+OK "));
    let task = worker.next_line().await;
    let id = task.split(' ').nth(1).unwrap();
    assert!(worker.request(&format!("NACK {id}")).await.starts_with("+OK "));
    for command in [
        "GROUP pause crawlers",
        "JOB open site max-per-host=1",
        "JOB pause site",
        "JOB add site url=http://b.test/",
    ] {
        assert!(client.request(command).await.starts_with("+OK "), "{command}");
    }
    let dead = client.request("GROUP tasks crawlers state=dead").await;
    assert!(dead.starts_with("+ 1 state=dead key=a.test "), "{dead}");
    broker.stop().await;

    let broker = start_broker_in(&dir, Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    let shown = client.request("GROUP show crawlers").await;
    for part in [" paused=yes ", " waiting=1 ", " dead-kept=1 scheduled=1 "] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(client.request("GROUP tasks crawlers state=dead").await, dead);
    assert!(client.request("EXPLAIN http://a.test/").await.contains(" every=1h due-in="));
    assert!(client.request("GROUP resume crawlers").await.contains(" paused=no "));
    let mut worker = TestConnection::connect_client(&broker).await;
    assert!(worker.request("JOIN crawlers").await.starts_with("+OK "));
    // The paused job is still paused, and the other group still has its job.
    assert!(client.request("JOB show site").await.contains(" state=paused pending=1 "));
    assert!(client.request("PUB new-url http://c.test/ job=theirs").await.starts_with("+OK "));
    assert!(worker.next_line().await.ends_with(" http://c.test/ last=yes\r\n"));
}

#[tokio::test]
async fn the_next_pass_of_a_job_at_its_page_limit_works_after_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    // Every start takes a snapshot, from which the next start reads.
    let limits = Limits { group_log_bytes: 1, ..Limits::default() };
    for pass in 1..=3 {
        let broker = start_broker_in(&dir, limits.clone()).await;
        let mut client = TestConnection::connect_client(&broker).await;
        assert!(
            client.request("JOB open site max-pages=1").await.contains(&format!(" pass={pass} "))
        );
        client.request("JOB add site url=http://127.0.0.1/").await;
        client.request("JOB close site").await;
        let mut worker = TestConnection::connect_client(&broker).await;
        worker.send("JOIN crawlers\n").await;
        let mut line = worker.next_line().await;
        while !line.starts_with("TASK ") {
            line = worker.next_line().await;
        }
        let task = line.split(' ').nth(1).unwrap().to_owned();
        assert!(worker.request(&format!("ACK {task}")).await.starts_with("+OK "));
        assert!(client.request("JOB wait site").await.contains(" completed=1 "));
        broker.stop().await;
    }
}
