//! How connections end, and what arrives before.
#![expect(clippy::disallowed_methods, reason = "somebody talks while it is listened to")]

use std::io::Write;

use super::*;

#[tokio::test]
async fn whoever_is_turned_away_is_told_so_also_in_the_middle_of_a_sentence() {
    let broker = broker(Limits { connections_max: 1, ..Limits::default() }).await;
    let _first = Peer::greeted(&broker).await;
    // The test holds the only thread: all of this is there when the connection is accepted.
    let mut second = std::net::TcpStream::connect(broker.local_addr()).unwrap();
    second.write_all(b"HELLO echo=x\nPUB a b\n").unwrap();
    second.set_nonblocking(true).unwrap();
    let mut second = TcpStream::from_std(second).unwrap();
    let mut heard = String::new();
    let read = async { second.read_to_string(&mut heard).await.map(drop).unwrap() };
    assert!(within(PATIENCE, read).await);
    assert!(heard.starts_with("-ERR limit ") && heard.lines().count() == 1, "{heard}");
}

#[tokio::test]
async fn what_has_arrived_counts_also_when_its_sender_closes_without_reading() {
    let broker = broker(Limits { read_bytes: 1_024, ..Limits::default() }).await;
    let mut listener = Peer::greeted(&broker).await;
    let hasty = std::net::TcpStream::connect(broker.local_addr()).unwrap();
    let mut hasty = {
        // Its greeting is there, and nobody reads it.
        hasty.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(hasty).unwrap();
        stream.readable().await.unwrap();
        stream.into_std().unwrap()
    };
    let lines: Vec<String> = (0..2_000).map(|n| format!("line {n}\n")).collect();
    let lines = lines.concat();
    hasty.write_all(lines.as_bytes()).unwrap();
    hasty.write_all(b"unfinished").unwrap();
    // Something waits for it, so the first write finds out that it is gone.
    broker.hub.topics.default_topic().append(ConnId::BROKER, ["something"]).unwrap();
    drop(hasty);
    listener.expect("something\r\n").await;
    for n in 0..2_000 {
        listener.expect(&format!("line {n}\r\n")).await;
    }
    let mut next = Peer::greeted(&broker).await;
    next.send("next\n").await;
    listener.expect("next\r\n").await;
}

// PROTOCOL: S15
#[tokio::test]
async fn whoever_reads_slowly_gets_everything_before_the_end() {
    let limits =
        Limits { closing_timeout_ms: 1_000, tail_bytes_max: 32 << 20, ..Limits::default() };
    let broker = broker(limits).await;
    let big = broker.hub.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    for _ in 0..2_000 {
        big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
    }
    let mut slow = Peer::client(&broker).await;
    slow.send("SUB big from=first\n").await;
    slow.write.shutdown().await.unwrap();
    let mut clock = Peer::client(&broker).await;
    let start = clock.clock_ms().await;
    slow.expect("+OK\r\n").await;
    for seq in 1..=2_000 {
        assert!(slow.line().await.starts_with(&format!("MSG big {seq} ")));
        // Two and a half seconds in all.
        while clock.clock_ms().await < start + seq * 5 / 4 {}
    }
    assert_eq!(slow.rest().await, "");
}

#[tokio::test]
async fn whoever_does_not_read_at_the_end_is_cut_off() {
    let broker = broker(Limits { closing_timeout_ms: 50, ..Limits::default() }).await;
    let big = broker.hub.topics.open(&"big".parse().unwrap()).unwrap();
    let payload = "x".repeat(10_000);
    for _ in 0..1_500 {
        big.append(ConnId::BROKER, [payload.as_str()]).unwrap();
    }
    let mut silent = Peer::client(&broker).await;
    silent.send("SUB big from=first\nQUIT\n").await;
    let mut other = Peer::client(&broker).await;
    other.ask_until("STATS", "+ connections=1 ").await;
}

#[tokio::test]
async fn a_stop_is_told_to_somebody_who_does_not_stop_talking() {
    let broker = broker(Limits::default()).await;
    let client = Peer::client(&broker).await;
    let Peer { mut read, mut write } = client;
    let talking = tokio::spawn(async move {
        while write.write_all("PUB a x\n".repeat(1_000).as_bytes()).await.is_ok() {}
    });
    let reading = tokio::spawn(async move {
        let (mut last, mut line) = (String::new(), String::new());
        while matches!(read.read_line(&mut line).await, Ok(1..)) {
            last = std::mem::take(&mut line);
        }
        last
    });
    while broker.hub.stats.events.value() < 10_000 {
        tokio::task::yield_now().await;
    }
    broker.stop().await;
    assert_eq!(reading.await.unwrap(), "-ERR closing the broker stops\r\n");
    talking.await.unwrap();
}

#[tokio::test]
async fn whoever_only_manages_may_still_come_back_as_a_member() {
    let broker = broker(Limits::default()).await;
    let mut client = Peer::client(&broker).await;
    client.ask("JOB ls").await;
    client.ask("GROUP ls").await;
    client.ask("EXPLAIN http://a/").await;
    let hello = "HELLO resume=000102030405060708090a0b0c0d0e0f";
    assert!(client.ask(hello).await.starts_with("+OK "));
    client.ask("JOIN crawlers").await;
    let other = client.ask("HELLO resume=ff0102030405060708090a0b0c0d0e0f").await;
    assert!(other.starts_with("-ERR conflict "), "{other}");
}

// PROTOCOL: C6
#[tokio::test]
async fn children_stay_with_a_task_that_stays() {
    let broker = broker(Limits::default()).await;
    let mut worker = Peer::client(&broker).await;
    worker.ask("JOB open j scope=any").await;
    worker.ask("PUB new-url http://127.0.0.1:9/ job=j").await;
    worker.ask("JOIN crawlers credit=1").await;
    for again in 0.. {
        let task = worker.line().await;
        let id = task.split(' ').nth(1).unwrap().to_owned();
        worker.send(&format!("LINK {id} http://127.0.0.1:9/{again}\n")).await;
        let nack = worker.ask(&format!("NACK {id} again=http://127.0.0.1:9/robots.txt")).await;
        if nack.starts_with("-ERR limit ") {
            let ack = worker.ask(&format!("ACK {id}")).await;
            assert_eq!(ack, format!("+OK {id} new=1 known=0 refused=0\r\n"));
            return;
        }
        assert_eq!(nack, format!("+OK {id}\r\n"));
    }
}

// PROTOCOL: C6
#[tokio::test]
async fn children_go_when_their_task_goes_back_and_when_the_connection_ends() {
    let broker = broker(Limits::default()).await;
    let hello = "HELLO resume=000102030405060708090a0b0c0d0e0f";
    let id = |task: String| task.split(' ').nth(1).unwrap().to_owned();
    let mut worker = Peer::client(&broker).await;
    worker.ask(hello).await;
    worker.ask("JOB open j scope=any").await;
    worker.ask("PUB new-url http://127.0.0.1:9/ job=j").await;
    worker.ask("JOIN crawlers credit=1").await;
    let first = id(worker.line().await);
    worker.send(&format!("LINK {first} http://127.0.0.1:9/first\n")).await;
    let nack = worker.ask(&format!("NACK {first} count=no")).await;
    assert_eq!(nack, format!("+OK {first}\r\n"));
    let second = id(worker.line().await);
    worker.send(&format!("LINK {second} http://127.0.0.1:9/second\n")).await;
    // The broker has read the link when it answers this.
    worker.ask("PING").await;
    let mut again = Peer::client(&broker).await;
    again.ask(hello).await;
    again.ask("JOIN crawlers credit=1").await;
    assert_eq!(id(again.line().await), second);
    let ack = again.ask(&format!("ACK {second}")).await;
    assert_eq!(ack, format!("+OK {second} new=0 known=0 refused=0\r\n"));
}

// PROTOCOL: C8
#[tokio::test]
async fn a_link_that_cannot_be_read_counts_for_its_own_task() {
    let broker = broker(Limits::default()).await;
    let mut worker = Peer::client(&broker).await;
    worker.ask("GROUP create g topics=t key=none").await;
    worker.ask("JOIN g credit=2").await;
    worker.ask("PUB t one").await;
    let one = worker.line().await.split(' ').nth(1).unwrap().to_owned();
    worker.ask("PUB t two").await;
    let two = worker.line().await.split(' ').nth(1).unwrap().to_owned();
    worker
        .send(&format!("LINK {one} http://a/ colour=red\nLINK {one} http://a/\x01\nLINK\n"))
        .await;
    let ack = worker.ask(&format!("ACK {two}")).await;
    assert_eq!(ack, format!("+OK {two} new=0 known=0 refused=0\r\n"));
    let ack = worker.ask(&format!("ACK {one}")).await;
    assert_eq!(ack, format!("+OK {one} new=0 known=0 refused=2\r\n"));
}

/// A broker that keeps events in a directory.
async fn durable(folder: &tempfile::TempDir, limits: Limits) -> Broker {
    let listen = "127.0.0.1:0".parse().unwrap();
    let data = Some(folder.path().to_owned());
    Broker::start(BrokerConfig { listen, data, limits, ..BrokerConfig::default() }).await.unwrap()
}

// PROTOCOL: S10
#[tokio::test]
async fn the_farewell_confirms_every_line_and_not_only_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let broker = durable(&folder, Limits::default()).await;
    let topic = broker.hub.topics.default_topic();
    let mut other = Peer::client(&broker).await;
    other.ask("PUB new-url first").await;
    topic.hold();
    let mut peer = Peer::greeted(&broker).await;
    peer.send("lost\n").await;
    other.ask_until("TOPIC show new-url", " next=3 ").await;
    topic.lose_held();
    peer.send("kept\n").await;
    other.ask_until("TOPIC show new-url", " next=4 ").await;
    peer.write.shutdown().await.unwrap();
    assert_eq!(peer.rest().await, "", "one of them was not kept");
    let mut peer = Peer::greeted(&broker).await;
    peer.send("another\n").await;
    peer.write.shutdown().await.unwrap();
    assert_eq!(peer.rest().await, FAREWELL);
    broker.stop().await;
}

// PROTOCOL: S10
#[tokio::test]
async fn a_stop_makes_no_farewell_of_what_the_disk_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let broker = durable(&folder, Limits::default()).await;
    let topic = broker.hub.topics.default_topic();
    let mut other = Peer::client(&broker).await;
    other.ask("PUB new-url first").await;
    topic.hold();
    let mut peer = Peer::greeted(&broker).await;
    peer.send("second\n").await;
    peer.write.shutdown().await.unwrap();
    other.ask_until("TOPIC show new-url", " next=3 ").await;
    // It is known to have ended when nobody hears it any more.
    other.ask_until("TOPIC show new-url", " readers=0 ").await;
    broker.stop().await;
    assert_eq!(peer.rest().await, "");
}

// PROTOCOL: S15
#[tokio::test]
async fn whoever_asks_and_ends_gets_what_is_on_the_disk_first() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { tail_bytes_max: 20_000, ..Limits::default() };
    let broker = durable(&folder, limits).await;
    let mut client = Peer::client(&broker).await;
    let line = format!("PUB t {}\n", "x".repeat(5_000));
    for _ in 0..200 {
        client.send(&line.repeat(10)).await;
    }
    while !client.line().await.ends_with(" 2000\r\n") {}
    client.send("SUB t from=first\n").await;
    client.write.shutdown().await.unwrap();
    let heard = client.rest().await;
    assert_eq!(heard.lines().count(), 2_001);
    broker.stop().await;
}
