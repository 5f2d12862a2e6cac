//! Tests of how connections close, and of what arrives before.
#![expect(clippy::disallowed_methods, reason = "a client sends while another task reads")]

use std::io::Write;

use super::*;
use crate::access::AccessConfig;

#[tokio::test]
async fn a_rejected_connection_receives_the_error_even_while_it_sends() {
    let broker = start_broker(Limits { connections_max: 1, ..Limits::default() }).await;
    let _first = TestConnection::connect_greeted(&broker).await;
    // The test blocks the only thread, so all of this has arrived when the broker accepts.
    let mut second = std::net::TcpStream::connect(broker.local_addr()).unwrap();
    second.write_all(b"HELLO echo=x\nPUB a b\n").unwrap();
    second.set_nonblocking(true).unwrap();
    let mut second = TcpStream::from_std(second).unwrap();
    let mut received = String::new();
    let read = async { second.read_to_string(&mut received).await.map(drop).unwrap() };
    assert!(completes_within(TEST_LIMIT, read).await);
    assert!(received.starts_with("-ERR limit ") && received.lines().count() == 1, "{received}");
}

#[tokio::test]
async fn received_lines_are_published_even_if_the_sender_closes_without_reading() {
    let broker = start_broker(Limits { read_bytes: 1_024, ..Limits::default() }).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let sender = std::net::TcpStream::connect(broker.local_addr()).unwrap();
    let mut sender = {
        // The greeting has arrived and stays unread.
        sender.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(sender).unwrap();
        stream.readable().await.unwrap();
        stream.into_std().unwrap()
    };
    let lines: Vec<String> = (0..2_000).map(|n| format!("line {n}\n")).collect();
    let lines = lines.concat();
    sender.write_all(lines.as_bytes()).unwrap();
    sender.write_all(b"unfinished").unwrap();
    // There is output for it, so a write detects that it is gone.
    broker.shared.topics.default_topic().append(ConnId::BROKER, ["something"]).unwrap();
    drop(sender);
    receiver.expect("something\r\n").await;
    for n in 0..2_000 {
        receiver.expect(&format!("line {n}\r\n")).await;
    }
    let mut next = TestConnection::connect_greeted(&broker).await;
    next.send("next\n").await;
    receiver.expect("next\r\n").await;
}

// PROTOCOL: S15
#[tokio::test]
async fn a_slow_reader_receives_everything_before_the_close() {
    let limits =
        Limits { closing_timeout_ms: 1_000, tail_bytes_max: 32 << 20, ..Limits::default() };
    let broker = start_broker(limits).await;
    let big = broker.shared.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    for _ in 0..2_000 {
        big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
    }
    let mut slow = TestConnection::connect_client(&broker).await;
    slow.send("SUB big from=first\n").await;
    slow.write.shutdown().await.unwrap();
    let mut clock = TestConnection::connect_client(&broker).await;
    let start = clock.broker_clock_ms().await;
    slow.expect("+OK\r\n").await;
    for seq in 1..=2_000 {
        assert!(slow.next_line().await.starts_with(&format!("MSG big {seq} ")));
        // 2.5 seconds in total.
        while clock.broker_clock_ms().await < start + seq * 5 / 4 {}
    }
    assert_eq!(slow.read_until_closed().await, "");
}

#[tokio::test]
async fn a_client_that_does_not_read_during_close_is_cut_off() {
    let broker = start_broker(Limits { closing_timeout_ms: 50, ..Limits::default() }).await;
    let big = broker.shared.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    for _ in 0..1_500 {
        big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
    }
    let mut silent = TestConnection::connect_client(&broker).await;
    silent.send("SUB big from=first\nQUIT\n").await;
    let mut other = TestConnection::connect_client(&broker).await;
    other.request_until("STATS", "+ connections=1 ").await;
}

#[tokio::test]
async fn a_client_that_keeps_sending_receives_the_stop_error() {
    let broker = start_broker(Limits::default()).await;
    let client = TestConnection::connect_client(&broker).await;
    let TestConnection { mut read, mut write } = client;
    let sending = tokio::spawn(async move {
        while write.write_all("PUB a x\n".repeat(1_000).as_bytes()).await.is_ok() {}
    });
    let reading = tokio::spawn(async move {
        let (mut last, mut line) = (String::new(), String::new());
        while matches!(read.read_line(&mut line).await, Ok(1..)) {
            last = std::mem::take(&mut line);
        }
        last
    });
    while broker.shared.stats.events.value() < 10_000 {
        tokio::task::yield_now().await;
    }
    broker.stop().await;
    assert_eq!(reading.await.unwrap(), "-ERR closing the broker stops\r\n");
    sending.await.unwrap();
}

#[tokio::test]
async fn a_client_that_only_managed_may_still_resume_a_member() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    client.request("JOB ls").await;
    client.request("GROUP ls").await;
    client.request("EXPLAIN http://a/").await;
    let hello = "HELLO resume=000102030405060708090a0b0c0d0e0f";
    assert!(client.request(hello).await.starts_with("+OK "));
    client.request("JOIN crawlers").await;
    let other = client.request("HELLO resume=ff0102030405060708090a0b0c0d0e0f").await;
    assert!(other.starts_with("-ERR conflict "), "{other}");
}

// PROTOCOL: C6
#[tokio::test]
async fn links_stay_with_a_task_whose_nack_is_rejected() {
    let broker = start_broker(Limits::default()).await;
    let mut worker = TestConnection::connect_client(&broker).await;
    worker.request("JOB open j scope=any").await;
    worker.request("PUB new-url http://127.0.0.1:9/ job=j").await;
    worker.request("JOIN crawlers credit=1").await;
    for number in 0.. {
        let task = worker.next_line().await;
        let id = task.split(' ').nth(1).unwrap().to_owned();
        worker.send(&format!("LINK {id} http://127.0.0.1:9/{number}\n")).await;
        let nack = worker.request(&format!("NACK {id} again=http://127.0.0.1:9/robots.txt")).await;
        if nack.starts_with("-ERR limit ") {
            let ack = worker.request(&format!("ACK {id}")).await;
            assert_eq!(ack, format!("+OK {id} new=1 known=0 refused=0\r\n"));
            return;
        }
        assert_eq!(nack, format!("+OK {id}\r\n"));
    }
}

// PROTOCOL: C6
#[tokio::test]
async fn links_are_dropped_on_nack_and_when_the_connection_ends() {
    let broker = start_broker(Limits::default()).await;
    let hello = "HELLO resume=000102030405060708090a0b0c0d0e0f";
    let id = |task: String| task.split(' ').nth(1).unwrap().to_owned();
    let mut worker = TestConnection::connect_client(&broker).await;
    worker.request(hello).await;
    worker.request("JOB open j scope=any").await;
    worker.request("PUB new-url http://127.0.0.1:9/ job=j").await;
    worker.request("JOIN crawlers credit=1").await;
    let first = id(worker.next_line().await);
    worker.send(&format!("LINK {first} http://127.0.0.1:9/first\n")).await;
    let nack = worker.request(&format!("NACK {first} count=no")).await;
    assert_eq!(nack, format!("+OK {first}\r\n"));
    let second = id(worker.next_line().await);
    worker.send(&format!("LINK {second} http://127.0.0.1:9/second\n")).await;
    // When the broker answers this, it has read the link.
    worker.request("PING").await;
    let mut resumed = TestConnection::connect_client(&broker).await;
    resumed.request(hello).await;
    resumed.request("JOIN crawlers credit=1").await;
    assert_eq!(id(resumed.next_line().await), second);
    let ack = resumed.request(&format!("ACK {second}")).await;
    assert_eq!(ack, format!("+OK {second} new=0 known=0 refused=0\r\n"));
}

// PROTOCOL: C8
#[tokio::test]
async fn a_malformed_link_counts_as_refused_for_its_own_task() {
    let broker = start_broker(Limits::default()).await;
    let mut worker = TestConnection::connect_client(&broker).await;
    worker.request("GROUP create g topics=t key=none").await;
    worker.request("JOIN g credit=2").await;
    worker.request("PUB t one").await;
    let one = worker.next_line().await.split(' ').nth(1).unwrap().to_owned();
    worker.request("PUB t two").await;
    let two = worker.next_line().await.split(' ').nth(1).unwrap().to_owned();
    worker
        .send(&format!("LINK {one} http://a/ colour=red\nLINK {one} http://a/\x01\nLINK\n"))
        .await;
    let ack = worker.request(&format!("ACK {two}")).await;
    assert_eq!(ack, format!("+OK {two} new=0 known=0 refused=0\r\n"));
    let ack = worker.request(&format!("ACK {one}")).await;
    assert_eq!(ack, format!("+OK {one} new=0 known=0 refused=2\r\n"));
}

// PROTOCOL: S10
#[tokio::test]
async fn the_farewell_confirms_every_line_not_only_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let broker = start_broker_in(&folder, Limits::default()).await;
    let topic = broker.shared.topics.default_topic();
    let mut other = TestConnection::connect_client(&broker).await;
    other.request("PUB new-url first").await;
    topic.hold();
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("lost\n").await;
    other.request_until("TOPIC show new-url", " next=3 ").await;
    topic.lose_held();
    peer.send("kept\n").await;
    other.request_until("TOPIC show new-url", " next=4 ").await;
    peer.write.shutdown().await.unwrap();
    assert_eq!(peer.read_until_closed().await, "", "one line was lost");
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("another\n").await;
    peer.write.shutdown().await.unwrap();
    assert_eq!(peer.read_until_closed().await, FAREWELL);
    broker.stop().await;
}

// PROTOCOL: S10
#[tokio::test]
async fn a_stop_sends_no_farewell_for_lines_that_are_not_durable() {
    let folder = tempfile::tempdir().unwrap();
    let broker = start_broker_in(&folder, Limits::default()).await;
    let topic = broker.shared.topics.default_topic();
    let mut other = TestConnection::connect_client(&broker).await;
    other.request("PUB new-url first").await;
    topic.hold();
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("second\n").await;
    peer.write.shutdown().await.unwrap();
    other.request_until("TOPIC show new-url", " next=3 ").await;
    // When the topic has no readers, the broker has read the end of the peer's input.
    other.request_until("TOPIC show new-url", " readers=0 ").await;
    broker.stop().await;
    assert_eq!(peer.read_until_closed().await, "");
}

// PROTOCOL: S15
#[tokio::test]
async fn a_client_that_closes_its_side_first_receives_events_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { tail_bytes_max: 20_000, ..Limits::default() };
    let broker = start_broker_in(&folder, limits).await;
    let mut client = TestConnection::connect_client(&broker).await;
    let line = format!("PUB t {}\n", "x".repeat(5_000));
    for _ in 0..200 {
        client.send(&line.repeat(10)).await;
    }
    while !client.next_line().await.ends_with(" 2000\r\n") {}
    client.send("SUB t from=first\n").await;
    client.write.shutdown().await.unwrap();
    let received = client.read_until_closed().await;
    assert_eq!(received.lines().count(), 2_001);
    broker.stop().await;
}

// PROTOCOL: E3
#[tokio::test]
async fn a_stop_sends_pending_output_and_closes_all_connections() {
    let limits = Limits { stop_ms: 5_000, ..Limits::default() };
    let broker = start_broker(limits.clone()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    let mut peer = TestConnection::connect_greeted(&broker).await;
    assert_eq!(client.request("SUB new-url").await, "+OK\r\n");
    client.send("PUB new-url the last\n").await;
    peer.expect("the last\r\n").await;
    let address = broker.local_addr();
    let (bound, clock) = (limits.stop_ms, crate::clock::Clock::new());
    broker.stop().await;
    assert!(clock.now().0 < bound, "a connection was cut off");
    let mut rest: Vec<String> =
        client.read_until_closed().await.lines().map(str::to_owned).collect();
    assert_eq!(rest.pop().as_deref(), Some("-ERR closing the broker stops"));
    rest.sort();
    assert_eq!(rest, ["+OK 1 1", "MSG new-url 1 the last"]);
    assert_eq!(peer.read_until_closed().await, "");
    assert!(TcpStream::connect(address).await.is_err());
}

// PROTOCOL: S10
#[tokio::test]
async fn a_peer_whose_topic_cannot_be_created_gets_no_farewell() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let peer_topic = Some("chat".parse().unwrap());
    let access = AccessConfig { peer_topic, ..AccessConfig::default() };
    // The topics that always exist.
    let limits = Limits { topics_max: 4, ..Limits::default() };
    let config = BrokerConfig { listen, access, limits, ..BrokerConfig::default() };
    let broker = Broker::start(config).await.unwrap();
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("hello\n").await;
    peer.write.shutdown().await.unwrap();
    assert_eq!(peer.read_until_closed().await, "");
}
