//! Tests of clients that do not read, or that request more than they read.
#![expect(clippy::disallowed_methods, reason = "serves a connection")]

use std::fmt::Write as _;
use std::task::Waker;

use tidings_protocol::Command;
use tokio::net::TcpListener;

use super::*;
use crate::mailbox::ConnMessage;
use crate::quota::{Quantity, Quota, QuotaConfig};

/// A client that does not read and has more output than its socket accepts.
async fn stalled_client(broker: &Broker) -> TestConnection {
    let big = broker.shared.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    for _ in 0..1_200 {
        big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
    }
    let mut client = TestConnection::connect_client(broker).await;
    assert_eq!(client.request("SUB big from=first").await, "+OK\r\n");
    client
}

impl TestConnection {
    /// Reads the lines that are not events, up to the line `last`.
    async fn answers_up_to(&mut self, last: &str) -> Vec<String> {
        let mut answers = Vec::new();
        loop {
            let line = self.next_line().await;
            assert_ne!(line, "", "the connection was closed before {last}");
            if !line.starts_with("MSG ") {
                answers.push(line);
            }
            if answers.last().is_some_and(|line| line == last) {
                return answers;
            }
        }
    }
}

/// A connection that is not served yet, and its remote end.
async fn unserved_connection(broker: &Broker) -> (Connection, TestConnection) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (read, write) = client.into_split();
    let (stream, remote) = plain_stream(listener.accept().await.unwrap().0);
    let connection = new_connection(broker, stream, remote);
    (connection, TestConnection { read: BufReader::new(read), write })
}

// PROTOCOL: A6
#[tokio::test]
async fn a_publisher_to_several_topics_that_never_reads_does_not_deadlock() {
    let limits = Limits { unanswered_max: 64, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut publisher = stalled_client(&broker).await;
    let sent = async {
        for _ in 0..20 {
            publisher.send(&"PUB a 0123456789\nPUB b 0123456789\n".repeat(10_000)).await;
        }
    };
    assert!(completes_within(TEST_LIMIT, sent).await, "the broker stopped reading");
    publisher.answers_up_to("+OK 200000 400000\r\n").await;
}

#[tokio::test]
async fn a_publisher_that_never_reads_may_share_its_topic() {
    let limits = Limits { unanswered_max: 64, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut publisher = stalled_client(&broker).await;
    let mut other = TestConnection::connect_client(&broker).await;
    for _ in 0..1_000 {
        let sent = async { publisher.send("PUB a x\n").await };
        assert!(completes_within(TEST_LIMIT, sent).await);
        other.request("PUB a y").await;
    }
    other.request_until("TOPIC show a", " next=2001 ").await;
}

#[tokio::test]
async fn a_publisher_resumes_after_reading_its_errors() {
    let limits = Limits { unanswered_max: 64, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut publisher = stalled_client(&broker).await;
    publisher.send(&"PUB a x\nPUB .. x\n".repeat(1_000)).await;
    let answers = publisher.answers_up_to("+OK 1000 1999\r\n").await;
    assert_eq!(answers.len(), 1_999);
    assert!(publisher.next_line().await.starts_with("-ERR bad-name n=2000 "));
}

// PROTOCOL: D3
#[tokio::test]
async fn a_task_is_never_sent_before_the_answer_to_its_join() {
    let broker = start_broker(Limits::default()).await;
    let mut other = TestConnection::connect_client(&broker).await;
    other.request("PUB new-url http://127.0.0.1:9/").await;
    let (mut connection, mut worker) = unserved_connection(&broker).await;
    // A slow answer, for example of another group.
    let slow = connection.answers.reserve();
    let mailbox = connection.mailbox.clone();
    tokio::spawn(connection.run());
    worker.send("JOIN crawlers credit=1\n").await;
    other.request_until("GROUP show crawlers", " processing=1 ").await;
    // The connection has the task, and its task has run.
    other.request("PING").await;
    mailbox.send(ConnMessage::Answer { slot: slow, answer: Ok("slow".to_owned().into()) });
    assert!(worker.next_line().await.starts_with("Connected. "));
    worker.expect("+OK slow\r\n").await;
    assert!(worker.next_line().await.starts_with("+OK crawlers credit=1 held=0 since="));
    assert!(worker.next_line().await.starts_with("TASK crawlers:"));
}

#[tokio::test]
async fn long_answers_are_produced_one_at_a_time() {
    let broker = start_broker(Limits::default()).await;
    let (mut connection, _client) = unserved_connection(&broker).await;
    let waker = Waker::noop();
    for command in ["JOB ls", "GROUP show crawlers", "EXPLAIN a"] {
        assert!(!connection.is_congested());
        connection.handle_command(Command::parse(command).unwrap(), waker);
        assert!(connection.is_congested(), "{command}");
        let answered = async {
            while connection.is_congested() {
                connection.process_mailbox(waker);
                tokio::task::yield_now().await;
            }
        };
        assert!(completes_within(TEST_LIMIT, answered).await, "{command}");
    }
    // This command is rejected at once.
    connection.handle_command(Command::parse("GROUP show nothing").unwrap(), waker);
    assert!(!connection.is_congested());
}

#[tokio::test]
async fn long_answers_to_a_client_that_does_not_read_are_bounded_and_sent_later() {
    let broker = start_broker(Limits { answer_bytes_max: 10_000, ..Limits::default() }).await;
    let mut client = stalled_client(&broker).await;
    let mut other = TestConnection::connect_client(&broker).await;
    for job in 0..100 {
        other.request(&format!("JOB open j{job}")).await;
    }
    let before = broker.shared.stats.lines.value();
    client.send(&format!("{}PUB a end\n", "JOB ls\n".repeat(1_000))).await;
    // After some time the broker has read as many commands as it accepts.
    for _ in 0..1_000 {
        other.request("PING").await;
    }
    let processed = broker.shared.stats.lines.value() - before - 1_000;
    assert!(processed < 10, "{processed} answers are buffered for a client that does not read");
    let answers = client.answers_up_to("+OK 1 1\r\n").await;
    assert_eq!(answers.iter().filter(|line| line.starts_with("+OK ")).count(), 1_001);
}

#[tokio::test]
async fn tasks_do_not_pile_up_for_a_member_that_does_not_read() {
    let limits = Limits { task_bytes_max: 100_000, stalled_ms: 50, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut worker = stalled_client(&broker).await;
    let mut other = TestConnection::connect_client(&broker).await;
    other.request("GROUP create g topics=work key=none").await;
    assert!(other.request("TOPIC show big").await.contains(" readers=1 "));
    worker.send("JOIN g credit=10000\n").await;
    let payload = "x".repeat(1_000);
    for _ in 0..200 {
        other.request(&format!("PUB work {payload}")).await;
    }
    // The broker closes the connection when the topic has no readers.
    other.request_until("TOPIC show big", " readers=0 ").await;
    let rest = worker.read_until_closed().await;
    let last = rest.lines().last().unwrap();
    assert!(last.starts_with("-ERR timeout "), "{last}");
}

#[tokio::test]
async fn a_member_that_reads_may_receive_any_number_of_tasks() {
    let limits = Limits { task_bytes_max: 10_000, stalled_ms: 5_000, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut worker = TestConnection::connect_client(&broker).await;
    worker.request("GROUP create g topics=work key=none").await;
    let payload = "x".repeat(1_000);
    for _ in 0..1_000 {
        worker.request(&format!("PUB work {payload}")).await;
    }
    worker.request("JOIN g credit=10000").await;
    for _ in 0..1_000 {
        assert!(worker.next_line().await.starts_with("TASK g:"));
    }
}

#[tokio::test]
async fn a_busy_subscription_does_not_starve_the_others() {
    let broker = start_broker(Limits::default()).await;
    let hot = broker.shared.topics.open(&"hot".parse().unwrap()).unwrap();
    // Each batch is a piece of its own: more pieces than one write holds, and few bytes.
    for _ in 0..10_000 {
        hot.append(ConnId::BROKER, ["x"]).unwrap();
    }
    let cold = broker.shared.topics.open(&"cold".parse().unwrap()).unwrap();
    cold.append(ConnId::BROKER, ["y"]).unwrap();
    let mut client = TestConnection::connect_client(&broker).await;
    client.send("SUB hot from=first\nSUB cold from=first\n").await;
    let mut before = 0;
    loop {
        let line = client.next_line().await;
        if line.starts_with("MSG cold ") {
            break;
        }
        before += 1;
    }
    assert!(before < 1_000, "{before} lines were sent before the other topic");
}

// PROTOCOL: L10
#[tokio::test]
async fn a_pause_of_the_broker_does_not_time_out_a_partial_line() {
    let limits = Limits { partial_line_timeout_ms: 500, unanswered_max: 2, ..Limits::default() };
    let broker = start_broker(limits).await;
    let (mut connection, mut client) = unserved_connection(&broker).await;
    let slow = connection.answers.reserve();
    let mailbox = connection.mailbox.clone();
    tokio::spawn(connection.run());
    // The first PING is the second pending answer. The rest has to wait.
    client.send("PING\nPING\nPUB a begun").await;
    let mut clock = TestConnection::connect_client(&broker).await;
    let start = clock.broker_clock_ms().await;
    while clock.broker_clock_ms().await < start + 600 {}
    mailbox.send(ConnMessage::Answer { slot: slow, answer: Ok("slow".to_owned().into()) });
    assert!(client.next_line().await.starts_with("Connected. "));
    client.expect("+OK slow\r\n").await;
    assert!(client.next_line().await.starts_with("PONG "));
    assert!(client.next_line().await.starts_with("PONG "));
    client.send(" and ended\n").await;
    client.expect("+OK 1 1\r\n").await;
}

// PROTOCOL: L10
#[tokio::test]
async fn a_line_that_arrives_slowly_does_not_time_out() {
    let broker = start_broker(Limits { partial_line_timeout_ms: 3_000, ..Limits::default() }).await;
    let (mut client, mut clock) = (
        TestConnection::connect_client(&broker).await,
        TestConnection::connect_client(&broker).await,
    );
    // Each pause is far below the limit, and their sum is above it.
    for piece in ["P", "UB", " a", " begun"] {
        client.send(piece).await;
        let start = clock.broker_clock_ms().await;
        while clock.broker_clock_ms().await < start + 1_000 {}
    }
    client.send(" and ended\n").await;
    client.expect("+OK 1 1\r\n").await;
}

#[tokio::test]
async fn a_raised_rate_limit_resumes_a_paused_client() {
    let rate = |per_second| QuotaConfig {
        source: Quota::UNLIMITED.with(Quantity::Events, per_second),
        counts_loopback: true,
        ..QuotaConfig::default()
    };
    let config_with = |quotas| BrokerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        quotas,
        ..BrokerConfig::default()
    };
    let broker = Broker::start(config_with(rate(1))).await.unwrap();
    let mut client = TestConnection::connect_client(&broker).await;
    client.send(&"PUB a x\n".repeat(600)).await;
    while !client.next_line().await.ends_with(" 600\r\n") {}
    // At one event a second the client would be read again after ten minutes.
    broker.shared.reload(&config_with(rate(u64::MAX)).connections());
    assert_eq!(client.request("PUB a y").await, "+OK 601 601\r\n");
}

/// Confirmed events reach the groups: a publisher that is faster than a group has to wait.
#[tokio::test]
async fn a_flood_of_seeds_reaches_its_job_without_loss() {
    const SEEDS: usize = 50_000;
    let limits = Limits { tail_bytes_max: 256 << 10, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut client = TestConnection::connect_client(&broker).await;
    assert!(client.request("JOB open flood scope=any").await.starts_with("+OK flood "));
    let mut flood = String::new();
    for seed in 0..SEEDS {
        let _ = writeln!(flood, "PUB new-url http://127.0.0.1/{seed} job=flood\r");
    }
    client.send(&flood).await;
    let topic = broker.shared.topics.default_topic();
    let mut bytes_max = 0;
    while !client.next_line().await.ends_with(&format!(" {SEEDS}\r\n")) {
        bytes_max = bytes_max.max(topic.stats().bytes);
    }
    assert!(
        bytes_max < 1 << 20,
        "{bytes_max} bytes are in the tail, so the publisher did not wait"
    );
    loop {
        let shown = client.request("JOB show flood").await;
        if shown.contains(&format!(" found={SEEDS} ")) {
            break;
        }
    }
}
