//! Tests of durable cursors: `SUB as=`, `SEEN`, `TOPIC forget`.

use std::path::Path;
use std::sync::Arc;

use tidings_log::SimulatedDisk;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use tidings_protocol::Sync;

use crate::audit::Audit;
use crate::clock::Clock;
use crate::groups::Groups;
use crate::net::{Shared, bind, listen, serve_lines};
use crate::topic::Topics;

async fn publish(client: &mut TestConnection, topic: &str, count: u64) {
    client.send(&format!("PUB {topic} x\n").repeat(usize::try_from(count).unwrap())).await;
    while !client.next_line().await.ends_with(&format!(" {count}\r\n")) {}
}

/// The first cursor line of `TOPIC show`, without the time of its last move.
async fn cursor_line(client: &mut TestConnection, topic: &str) -> String {
    let shown = client.request(&format!("TOPIC show {topic}")).await;
    let line = shown.lines().find_map(|line| line.strip_prefix("+ cursor ")).unwrap_or_default();
    line.split(" moved=").next().unwrap().to_owned()
}

#[track_caller]
fn assert_error(answer: &str, code: &str) {
    assert!(answer.starts_with(&format!("-ERR {code} ")), "{answer}");
}

// PROTOCOL: K1, K2
#[tokio::test]
async fn a_cursor_resumes_at_its_position_even_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start_broker_in(&dir, Limits::default()).await;
    publish(&mut TestConnection::connect_client(&running).await, "a", 5).await;
    let mut client = TestConnection::connect_client(&running).await;
    client.send("SUB a from=2 as=indexer\n").await;
    client.expect("+OK\r\nMSG a 2 x\r\nMSG a 3 x\r\nMSG a 4 x\r\nMSG a 5 x\r\n").await;
    assert_eq!(client.request("SEEN a 3").await, "+OK\r\n");
    assert_eq!(cursor_line(&mut client, "a").await, "indexer next=4 behind=2 held=yes");
    for restarts in [true, false] {
        if restarts {
            running.stop().await;
            running = start_broker_in(&dir, Limits::default()).await;
        } else {
            client.write.shutdown().await.unwrap();
            assert_eq!(client.read_until_closed().await, "");
        }
        client = TestConnection::connect_client(&running).await;
        assert_eq!(cursor_line(&mut client, "a").await, "indexer next=4 behind=2 held=no");
        // The stored position overrides `from`.
        client.send("SUB a from=1 as=indexer\n").await;
        client.expect("+OK\r\nMSG a 4 x\r\nMSG a 5 x\r\n").await;
    }
    running.stop().await;
}

// PROTOCOL: K2, K4
#[tokio::test]
async fn a_new_cursor_starts_at_the_next_event_and_only_seen_moves_it() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    publish(&mut client, "a", 3).await;
    assert_eq!(client.request("SUB a as=c").await, "+OK\r\n");
    client.send("PUB a y\n").await;
    client.expect("+OK 4 4\r\nMSG a 4 y\r\n").await;
    assert_eq!(cursor_line(&mut client, "a").await, "c next=4 behind=1 held=yes");
    assert_eq!(client.request("UNSUB a").await, "+OK\r\n");
    assert_eq!(cursor_line(&mut client, "a").await, "c next=4 behind=1 held=no");
    client.send("SUB a as=c\n").await;
    client.expect("+OK\r\nMSG a 4 y\r\n").await;
}

// PROTOCOL: K2
#[tokio::test]
async fn a_cursor_below_the_retained_events_receives_lag() {
    let limits = Limits { tail_bytes_max: 4096, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert_eq!(client.request("SUB a as=c").await, "+OK\r\n");
    assert_eq!(client.request("UNSUB a").await, "+OK\r\n");
    client.send(&format!("PUB a {}\n", "x".repeat(50_000)).repeat(4)).await;
    while client.next_line().await != "+OK 4 4\r\n" {}
    client.send("SUB a as=c\n").await;
    client.expect("+OK\r\n").await;
    let line = client.next_line().await;
    assert!(line.starts_with("LAG a 1 "), "{line:.40}");
}

// PROTOCOL: K4
#[tokio::test]
async fn seen_accepts_only_published_events_and_the_holder_of_the_cursor() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    publish(&mut client, "a", 3).await;
    assert_error(&client.request("SEEN a 1").await, "conflict");
    client.send("SUB a\n").await;
    client.expect("+OK\r\n").await;
    assert_error(&client.request("SEEN a 1").await, "conflict");
    assert_eq!(client.request("UNSUB a").await, "+OK\r\n");
    assert_eq!(client.request("SUB a as=c").await, "+OK\r\n");
    assert_error(&client.request("SUB a as=d").await, "exists");
    assert_error(&client.request("SUB b takeover=yes").await, "bad-argument");
    assert_error(&client.request("SEEN b 1").await, "conflict");
    assert_error(&client.request("SEEN a 4").await, "bad-argument");
    for (seen, next) in [(3, 4), (1, 4), (3, 4)] {
        assert_eq!(client.request(&format!("SEEN a {seen}")).await, "+OK\r\n");
        assert!(cursor_line(&mut client, "a").await.starts_with(&format!("c next={next} ")));
    }
    assert_eq!(client.request("UNSUB a").await, "+OK\r\n");
    assert_error(&client.request("SEEN a 3").await, "conflict");
}

// PROTOCOL: K3
#[tokio::test]
async fn a_cursor_belongs_to_one_connection_until_it_ends_or_is_taken_over() {
    let broker = start_broker(Limits::default()).await;
    let mut first = TestConnection::connect_client(&broker).await;
    let mut second = TestConnection::connect_client(&broker).await;
    publish(&mut first, "a", 3).await;
    assert_eq!(first.request("SUB a as=c").await, "+OK\r\n");
    assert_error(&second.request("SUB a as=c").await, "busy");
    assert_error(&second.request("TOPIC forget a cursor=c").await, "busy");
    assert_eq!(
        second.request("SUB b as=c").await,
        "+OK\r\n",
        "cursors of different topics are independent"
    );
    assert_eq!(first.request("SEEN a 1").await, "+OK\r\n");
    assert_eq!(second.request("SUB a as=c takeover=yes").await, "+OK\r\n");
    assert_error(&first.read_until_closed().await, "replaced");
    assert_eq!(second.request("SEEN a 3").await, "+OK\r\n");
    second.send("QUIT\n").await;
    assert_eq!(second.read_until_closed().await, "+OK\r\n");
    let mut third = TestConnection::connect_client(&broker).await;
    assert_eq!(third.request("SUB a as=c").await, "+OK\r\n", "the cursor is free after the close");
    assert_eq!(third.request("SUB b as=c").await, "+OK\r\n");
}

// PROTOCOL: K7
#[tokio::test]
async fn a_cursor_can_be_forgotten() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert_error(&client.request("TOPIC forget a").await, "bad-argument");
    assert_error(&client.request("TOPIC forget cursor=c").await, "bad-argument");
    assert_error(&client.request("TOPIC forget a cursor=..").await, "bad-name");
    assert_error(&client.request("TOPIC forget a cursor=c").await, "unknown");
    client.send("SUB a as=c\nUNSUB a\nTOPIC forget a cursor=c\n").await;
    client.expect("+OK\r\n+OK\r\n+OK\r\n").await;
    publish(&mut client, "a", 2).await;
    client.send("SUB a as=c from=2\n").await;
    client.expect("+OK\r\nMSG a 2 x\r\n").await;
}

#[tokio::test]
async fn a_cursor_over_the_limit_leaves_no_subscription() {
    let broker = start_broker(Limits { cursors_max: 1, ..Limits::default() }).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert_eq!(client.request("SUB a as=c").await, "+OK\r\n");
    assert_error(&client.request("SUB b as=c").await, "limit");
    assert_error(&client.request("UNSUB b").await, "unknown");
    assert_error(&client.request("SEEN b 1").await, "conflict");
    assert_eq!(client.request("PUB b x").await, "+OK 1 1\r\n");
    assert_eq!(client.request("PING").await.split(' ').next(), Some("PONG"), "no MSG arrived");
    client.send("SUB b from=1\n").await;
    client.expect("+OK\r\nMSG b 1 x\r\n").await;
}

#[tokio::test]
async fn cursor_answers_keep_the_order_of_commands() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_broker_in(&dir, Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    publish(&mut client, "a", 1).await;
    client.send("SUB a as=c\nPING\nPUB a y\nSEEN a 2\nSEEN a 9\nUNSUB a\nSEEN a 1\nPING\n").await;
    let mut answers = Vec::new();
    while answers.len() < 8 {
        let line = client.next_line().await;
        if !line.starts_with("MSG ") {
            answers.push(line.trim_end().chars().take(9).collect::<String>());
        }
    }
    let expected = ["+OK", "PONG", "+OK 2 2", "+OK", "-ERR bad-", "+OK", "-ERR conf", "PONG"];
    for (answer, expected) in answers.iter().zip(expected) {
        assert!(answer.starts_with(expected), "{answers:?}");
    }
    assert_eq!(cursor_line(&mut client, "a").await, "c next=3 behind=0 held=no");
    broker.stop().await;
}

// PROTOCOL: K5
#[tokio::test]
async fn a_command_sees_the_cursors_of_earlier_commands() {
    let disk = SimulatedDisk::new(1);
    let broker = broker_on_disk(&disk);
    let mut client = TestConnection::connect_client(&broker).await;
    publish(&mut client, "a", 3).await;
    disk.stall_syncs(Path::new("data"));
    let lines = "SUB a from=3 as=c\nTOPIC show a\nSEEN a 3\nUNSUB a\nTOPIC show a\n\
                 SUB a from=1 as=c\nUNSUB a\nTOPIC forget a cursor=c\nTOPIC show a\nPING\n";
    client.send(lines).await;
    let mut other = TestConnection::connect_client(&broker).await;
    other.request_until("TOPIC show a", "readers=1").await;
    disk.resume_syncs();
    let mut received = Vec::new();
    while received.last().is_none_or(|line: &String| !line.starts_with("PONG ")) {
        received.push(client.next_line().await);
    }
    received.retain(|line| line != "MSG a 3 x\r\n");
    let expected = [
        "+OK\r",
        "+ cursor c next=3 behind=1 held=yes ",
        "+OK a ",
        "+OK\r",
        "+OK\r",
        "+ cursor c next=4 behind=0 held=no ",
        "+OK a ",
        "+OK\r",
        "+OK\r",
        "+OK\r",
        "+OK a ",
        "PONG ",
    ];
    assert_eq!(received.len(), expected.len(), "{received:#?}");
    for (line, begins) in received.iter().zip(expected) {
        assert!(line.starts_with(begins), "{begins}: {received:#?}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_cursor_beyond_its_topic_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let running = start_broker_in(&dir, Limits::default()).await;
    let mut client = TestConnection::connect_client(&running).await;
    publish(&mut client, "a", 5).await;
    client.send("SUB a as=c\nSEEN a 5\n").await;
    client.expect("+OK\r\n+OK\r\n").await;
    running.stop().await;
    std::fs::remove_dir_all(dir.path().join("topics/a")).unwrap();
    let running = start_broker_in(&dir, Limits::default()).await;
    let mut client = TestConnection::connect_client(&running).await;
    let answer = client.request("SUB a as=c").await;
    assert_error(&answer, "conflict");
    assert!(answer.contains("TOPIC forget a cursor=c"), "{answer}");
    assert_eq!(client.request("TOPIC forget a cursor=c").await, "+OK\r\n");
    assert_eq!(client.request("SUB a as=c").await, "+OK\r\n");
    running.stop().await;
}

/// A broker on a simulated disk.
fn broker_on_disk(disk: &SimulatedDisk) -> Broker {
    let topics = Topics::simulated(disk, &Limits::default(), Sync::Always).unwrap();
    let (listener, local_addr) =
        listen(bind("127.0.0.1:0".parse().unwrap()).unwrap(), None, &Limits::default()).unwrap();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let (config, clock) = (BrokerConfig::default(), Clock::new());
    let (groups_max, member) = (config.limits.groups_max, config.embedded_member);
    let group = config.group.clone();
    let groups =
        Groups::new(Arc::clone(&topics), group, groups_max, member, clock, stop.clone(), None);
    let shared = Shared::new(config.connections(), clock, topics, groups, (None, Audit::default()));
    serve_lines(listener, Arc::clone(&shared), stop.clone(), &tasks);
    let listening = stop.child_token();
    Broker {
        local_addr,
        http: None,
        shared,
        stop,
        listening,
        tasks,
        socket_file: None,
        _data: None,
        store: None,
    }
}

// PROTOCOL: D6, K5
#[tokio::test]
async fn no_stored_cursor_is_ahead_of_the_durable_events() {
    let disk = SimulatedDisk::new(1);
    let broker = broker_on_disk(&disk);
    let mut client = TestConnection::connect_client(&broker).await;
    let mut other = TestConnection::connect_client(&broker).await;
    publish(&mut client, "a", 1).await;
    assert_eq!(client.request("SUB a from=1 as=old").await, "+OK\r\n");
    client.expect("MSG a 1 x\r\n").await;
    disk.stall_syncs(Path::new("data/topics"));
    other.send("PUB a y\n").await;
    client.expect("MSG a 2 y\r\n").await;
    client.send("SEEN a 1\nSEEN a 2\nPING\n").await;
    client.expect("+OK\r\n").await;
    let mut third = TestConnection::connect_client(&broker).await;
    assert_eq!(cursor_line(&mut third, "a").await, "old next=2 behind=1 held=yes");
    // A new cursor behind an event that is not durable is not stored yet either.
    third.send("SUB a as=new\n").await;
    let mut fourth = TestConnection::connect_client(&broker).await;
    assert_eq!(fourth.request("TOPIC show a").await.matches("+ cursor ").count(), 1);
    disk.resume_syncs();
    client.expect("+OK\r\n").await;
    assert!(client.next_line().await.starts_with("PONG "));
    third.expect("+OK\r\n").await;
    other.expect("+OK 2 1\r\n").await;
    let shown = fourth.request("TOPIC show a").await;
    assert!(shown.contains("+ cursor new next=3 behind=0 held=yes "), "{shown}");
    assert!(shown.contains("+ cursor old next=3 behind=0 held=yes "), "{shown}");
    broker.stop().await;
}
