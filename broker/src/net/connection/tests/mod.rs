//! Tests of connections over real sockets.

mod closing;
mod cursors;
mod doors;
mod filters;
mod groups;
mod pressure;
mod tls;
pub(in crate::net) mod tls_pair;

use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Connection;
use crate::access::Transport;
use crate::config::BrokerConfig;
use crate::limits::Limits;
use crate::mailbox::ConnId;
use crate::net::client_session::AdmittedConnection;
use crate::net::completes_within;
use crate::net::stream::SocketStream;
use crate::remote::RemoteInfo;
use crate::{Broker, StartError, TEST_LIMIT};

const FAREWELL: &str = "Received EOF.  Closing connection...\r\n";

async fn start_broker(limits: Limits) -> Broker {
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = BrokerConfig { listen, limits, ..BrokerConfig::default() };
    Broker::start(config).await.unwrap()
}

/// A broker with a data directory.
async fn start_broker_in(dir: &TempDir, limits: Limits) -> Broker {
    let (listen, data) = ("127.0.0.1:0".parse().unwrap(), Some(dir.path().to_owned()));
    Broker::start(BrokerConfig { listen, data, limits, ..BrokerConfig::default() }).await.unwrap()
}

/// Wraps a socket for a connection without TLS.
fn plain_stream(stream: TcpStream) -> (SocketStream, RemoteInfo) {
    let peer = crate::remote::PeerAddr::Tcp(stream.peer_addr().unwrap());
    (SocketStream::Plain(stream), RemoteInfo::unencrypted(peer))
}

/// A connection that is not served yet.
fn new_connection(broker: &Broker, stream: SocketStream, remote: RemoteInfo) -> Connection {
    let admitted = AdmittedConnection::admit(&broker.shared, remote.peer, Transport::Line);
    Connection::new(broker.shared.clone(), admitted.unwrap(), stream, remote)
}

/// The remote end of a connection: a client or a peer.
struct TestConnection {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl TestConnection {
    /// Connects without reading the greeting.
    async fn connect(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.local_addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, write) = stream.into_split();
        Self { read: BufReader::new(read), write }
    }

    /// Connects and reads the greeting.
    async fn connect_greeted(broker: &Broker) -> Self {
        let mut peer = Self::connect(broker).await;
        assert!(peer.next_line().await.starts_with("Connected.  (PID "));
        peer
    }

    /// Connects and becomes a client with `HELLO`.
    async fn connect_client(broker: &Broker) -> Self {
        let mut client = Self::connect_greeted(broker).await;
        client.send("HELLO echo=me\n").await;
        while !client.next_line().await.contains(" echo=me ") {}
        client
    }

    async fn send(&mut self, text: &str) {
        self.write.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next line with its line end; empty at the end of the stream.
    async fn next_line(&mut self) -> String {
        let mut line = String::new();
        let read = async { self.read.read_line(&mut line).await.map(drop).unwrap() };
        assert!(completes_within(TEST_LIMIT, read).await, "no line arrived");
        line
    }

    #[track_caller]
    fn expect(&mut self, lines: &str) -> impl Future<Output = ()> {
        let location = std::panic::Location::caller();
        async move {
            for line in lines.split_inclusive('\n') {
                assert_eq!(self.next_line().await, line, "expected at {location}");
            }
        }
    }

    /// Reads until the broker closes the connection.
    async fn read_until_closed(&mut self) -> String {
        let mut rest = String::new();
        let read = async { self.read.read_to_string(&mut rest).await.map(drop).unwrap() };
        assert!(completes_within(TEST_LIMIT, read).await, "the connection was not closed");
        rest
    }

    /// The time of the broker's clock.
    async fn broker_clock_ms(&mut self) -> u64 {
        let pong = self.request("PING").await;
        pong.trim_end().strip_prefix("PONG clock=").unwrap().parse().unwrap()
    }

    /// Repeats a command until its answer contains `part`.
    async fn request_until(&mut self, command: &str, part: &str) {
        let polling = async { while !self.request(command).await.contains(part) {} };
        assert!(completes_within(TEST_LIMIT, polling).await, "{command} never answered {part:?}");
    }

    async fn request(&mut self, command: &str) -> String {
        self.send(&format!("{command}\n")).await;
        let mut answer = String::new();
        loop {
            let line = self.next_line().await;
            answer.push_str(&line);
            if !line.starts_with("+ ") {
                return answer;
            }
        }
    }
}

// PROTOCOL: L1, S7, S8
#[tokio::test]
async fn peers_receive_the_lines_of_others_but_not_their_own() {
    let broker = start_broker(Limits::default()).await;
    let mut a = TestConnection::connect(&broker).await;
    a.expect("Connected.  (PID 1)\r\n").await;
    let mut b = TestConnection::connect(&broker).await;
    b.expect("Connected.  (PID 2)\r\n").await;
    a.send("hello world\nquit it\n\n\r\nPUB x y\r\n").await;
    b.expect("hello world\r\nquit it\r\nPUB x y\r\n").await;
    b.send("answer\n").await;
    a.expect("answer\r\n").await;
    a.send("Quit\r\n").await;
    assert_eq!(a.read_until_closed().await, "", "neither an echo nor a farewell");
    b.send("eXit").await;
    b.send("\n").await;
    assert_eq!(b.read_until_closed().await, "");
}

#[tokio::test]
async fn lines_may_arrive_in_any_fragments() {
    let broker = start_broker(Limits::default()).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let mut sender = TestConnection::connect_greeted(&broker).await;
    let text = "one\r\ntwo\n\nthr\u{e9}e\r\n";
    for byte in text.as_bytes() {
        sender.write.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    receiver.expect("one\r\ntwo\r\nthr\u{e9}e\r\n").await;
}

// PROTOCOL: L4, S10
#[tokio::test]
async fn end_of_input_is_confirmed_by_a_farewell() {
    let broker = start_broker(Limits::default()).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let mut sender = TestConnection::connect_greeted(&broker).await;
    sender.send("first\nlast without an end").await;
    sender.write.shutdown().await.unwrap();
    assert_eq!(sender.read_until_closed().await, FAREWELL);
    let stats = TestConnection::connect_client(&broker).await.request("STATS").await;
    assert!(stats.contains(" lines=3 "), "two lines and HELLO: {stats}");
    receiver.expect("first\r\nlast without an end\r\n").await;

    let mut silent = TestConnection::connect_greeted(&broker).await;
    silent.write.shutdown().await.unwrap();
    assert_eq!(silent.read_until_closed().await, FAREWELL);

    let mut invalid = TestConnection::connect_greeted(&broker).await;
    invalid.send("third\nno\u{1}event\n").await;
    invalid.write.shutdown().await.unwrap();
    assert_eq!(invalid.read_until_closed().await, "", "one of the lines is no event");
    receiver.expect("third\r\n").await;
}

// PROTOCOL: S10
#[tokio::test]
async fn ctrl_d_closes_after_pending_output() {
    let broker = start_broker(Limits::default()).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let mut sender = TestConnection::connect_greeted(&broker).await;
    receiver.send("from the other\n").await;
    sender.expect("from the other\r\n").await;
    sender.send("a\x04b\n\x04never\n").await;
    // 0x04 is forbidden within a line; as the first byte of a line it ends the input.
    assert_eq!(sender.read_until_closed().await, "");
    let mut sender = TestConnection::connect_greeted(&broker).await;
    sender.send("a\n\x04never\n").await;
    assert_eq!(sender.read_until_closed().await, FAREWELL);
    receiver.expect("a\r\n").await;
    receiver.send("QUIT\n").await;
}

// PROTOCOL: L4
#[tokio::test]
async fn a_reset_drops_the_partial_line_and_affects_no_other_connection() {
    let broker = start_broker(Limits::default()).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let mut sender = TestConnection::connect_greeted(&broker).await;
    sender.send("whole\nunfinished").await;
    receiver.expect("whole\r\n").await;
    let stream = sender.read.into_inner().reunite(sender.write).unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    let mut next = TestConnection::connect_greeted(&broker).await;
    next.send("next\n").await;
    receiver.expect("next\r\n").await;
}

// PROTOCOL: S2, S3, S7
#[tokio::test]
async fn the_first_line_decides_between_client_and_peer() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_greeted(&broker).await;
    let mut peer = TestConnection::connect_greeted(&broker).await;
    // The client has sent nothing yet, so it receives events as a peer does.
    peer.send("x\n").await;
    client.expect("x\r\n").await;
    client.send("PING\n").await;
    assert!(client.next_line().await.starts_with("PONG clock="));
    peer.send("y\n").await;
    client.send("SUB new-url from=1\n").await;
    client.expect("+OK\r\nMSG new-url 1 x\r\nMSG new-url 2 y\r\n").await;
    client.send("PUB new-url by a client\n").await;
    peer.expect("by a client\r\n").await;
    client.expect("+OK 3 1\r\nMSG new-url 3 by a client\r\n").await;
}

#[tokio::test]
async fn hello_returns_version_number_clock_echo_and_member_id() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_greeted(&broker).await;
    let answer = client.request("HELLO name=test echo=abc").await;
    let text = answer.strip_prefix("+OK ").unwrap();
    let hello = tidings_protocol::HelloAnswer::parse(text.trim_end()).unwrap();
    assert_eq!((hello.id, hello.echo.as_deref()), (1, Some("abc")));
    assert_eq!(hello.version, env!("CARGO_PKG_VERSION"));
    assert_ne!(hello.resume.0, 0);
    let second = client.request("HELLO").await;
    assert!(second.contains(&hello.resume.to_string()), "the member id is unchanged");
    let with_token = client.request("HELLO token=secret").await;
    assert!(with_token.starts_with("+OK "), "a broker without principals ignores a token");
}

// PROTOCOL: C5
#[tokio::test]
async fn a_resumed_member_replaces_its_old_connection() {
    let broker = start_broker(Limits::default()).await;
    let member = "000102030405060708090a0b0c0d0e0f";
    let hello = format!("HELLO resume={member}");
    let mut old = TestConnection::connect_greeted(&broker).await;
    assert!(old.request(&hello).await.contains(member));
    let mut new = TestConnection::connect_greeted(&broker).await;
    assert!(new.request(&hello).await.contains(member));
    assert!(old.read_until_closed().await.starts_with("-ERR replaced "));
    assert!(new.request("PING").await.starts_with("PONG"));
}

// PROTOCOL: A3, A4
#[tokio::test]
async fn publishes_of_one_read_are_answered_by_one_line() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    client.send(&"PUB a x\n".repeat(500)).await;
    let mut lines = 0;
    loop {
        lines += 1;
        let line = client.next_line().await;
        if line == "+OK 500 500\r\n" {
            break;
        }
        assert!(line.starts_with("+OK "), "{line}");
    }
    assert!(lines < 50, "{lines} lines for 500 publishes");
    client.send("PUB b y\nPUB .. z\nPUB .. z\nPUB a w\nPING\n").await;
    client.expect("+OK 1 501\r\n").await;
    assert!(client.next_line().await.starts_with("-ERR bad-name n=502-503 "));
    client.expect("+OK 501 504\r\n").await;
    assert!(client.next_line().await.starts_with("PONG "));
}

// PROTOCOL: A1, D3
#[tokio::test]
async fn answers_keep_the_order_of_commands_and_precede_events() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    client.send("PUB t a\nSUB t from=first\nSUB t\nUNSUB t\nUNSUB t\nSUB t from=-1\nNO\n").await;
    client.expect("+OK 1 1\r\n+OK\r\n").await;
    assert!(client.next_line().await.starts_with("-ERR exists "));
    client.expect("+OK\r\n").await;
    assert!(client.next_line().await.starts_with("-ERR unknown "));
    client.expect("+OK\r\n").await;
    assert!(client.next_line().await.starts_with("-ERR unknown-command "));
    client.expect("MSG t 1 a\r\n").await;
}

#[tokio::test]
async fn every_command_is_answered() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    for (command, answer) in [
        ("SEEN c 1", "-ERR conflict "),
        ("SUB c as=me", "+OK\r\n"),
        ("SEEN c 1", "-ERR bad-argument "),
        ("UNSUB c", "+OK\r\n"),
        ("UNSUB c", "-ERR unknown "),
        ("TOPIC forget c cursor=me", "+OK\r\n"),
        ("TOPIC create a retain-age=1d", "+OK a sync=memory retain-bytes=1g retain-age=1d"),
        ("TOPIC create a", "-ERR exists "),
        ("TOPIC create b sync=always", "-ERR conflict "),
        ("TOPIC create b sync=maybe", "-ERR bad-argument "),
        ("TOPIC create b colour=red", "-ERR bad-argument "),
        ("TOPIC show b", "-ERR unknown "),
        ("TOPIC show a", "+OK a next=1 first=1 kept=0 "),
        ("TOPIC set a", "-ERR bad-argument "),
        ("TOPIC set a sync=always", "-ERR conflict "),
        ("TOPIC set a retain-bytes=2m", "+OK a sync=memory retain-bytes=2m retain-age=1d"),
        ("TOPIC verify a", "+OK a files=0 bytes=0 events=0 lost=0 damaged=0"),
        ("TOPIC paint a", "-ERR bad-argument "),
        ("TOPIC ls", "+ a next=1 "),
        ("TOPIC delete a", "+OK a"),
        ("TOPIC delete a", "-ERR unknown "),
        ("TOPIC delete new-url", "-ERR conflict "),
        ("STATS", "+ connections=1 "),
        ("HELP", "+ Tidings"),
        ("JOB ls", "+OK"),
        ("JOB show nothing", "-ERR unknown "),
        ("GROUP show nothing", "-ERR unknown "),
        ("EXPLAIN http://example.org/", "-ERR unknown "),
        ("JOIN nothing", "-ERR unknown "),
        ("ACK crawlers:1.1.1", "-ERR "),
        ("NACK crawlers:1.1.1", "-ERR "),
        ("TOUCH crawlers:1.1.1", "-ERR "),
        ("PING", "PONG clock="),
        ("QUIT", "+OK\r\n"),
    ] {
        let received = client.request(command).await;
        assert!(received.starts_with(answer), "{command} -> {received}");
    }
    assert_eq!(client.read_until_closed().await, "");
}

#[tokio::test]
async fn a_task_goes_from_event_to_ack() {
    let broker = start_broker(Limits::default()).await;
    let mut worker = TestConnection::connect_client(&broker).await;
    worker.send("JOIN crawlers credit=1\n").await;
    assert!(worker.next_line().await.starts_with("+OK"));
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("http://127.0.0.1:8000/\n").await;
    let task = worker.next_line().await;
    let id = task.split(' ').nth(1).unwrap();
    assert!(task.starts_with("TASK crawlers:"), "{task}");
    assert!(task.contains(" http://127.0.0.1:8000/"), "{task}");
    let links = format!("LINK {id} http://127.0.0.1:8000/a\nLINK {id} nonsense\nACK {id}\n");
    worker.send(&links).await;
    assert!(worker.next_line().await.starts_with(&format!("+OK {id} new=0 ")));
    assert!(worker.request(&format!("ACK {id}")).await.starts_with(&format!("-ERR stale {id}")));
}

// PROTOCOL: S4, S12, E4
#[tokio::test]
async fn input_of_another_protocol_closes_the_connection_without_an_answer() {
    let broker = start_broker(Limits::default()).await;
    let mut receiver = TestConnection::connect_client(&broker).await;
    assert_eq!(receiver.request("SUB new-url").await, "+OK\r\n");
    for text in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nPUB new-url x\r\n",
        "BREW /pot HTTP/1.0\r\n\r\n",
        "\x16\x03\x01\x02\x00",
        "a\x01b\r\nPUB new-url x\r\n",
    ] {
        let mut connection = TestConnection::connect_greeted(&broker).await;
        connection.send(text).await;
        assert_eq!(connection.read_until_closed().await, "", "{text:?}");
    }
    let mut connection = TestConnection::connect_greeted(&broker).await;
    let endless = vec![b'x'; 70_000];
    let _ = connection.write.write_all(&endless).await;
    assert_eq!(connection.read_until_closed().await, "");
    let mut client = TestConnection::connect_client(&broker).await;
    client.send("Host: localhost\r\nPUB new-url x\r\n").await;
    assert!(client.read_until_closed().await.starts_with("-ERR header "));
    assert_eq!(receiver.request("PUB new-url 1").await, "+OK 1 1\r\n", "nothing was published");
}

// PROTOCOL: S13, E3
#[tokio::test]
async fn sixteen_unknown_commands_close_the_connection() {
    let broker = start_broker(Limits::default()).await;
    let mut client = TestConnection::connect_client(&broker).await;
    client.send(&"what is this\n".repeat(15)).await;
    for _ in 0..15 {
        assert!(client.next_line().await.starts_with("-ERR unknown-command "));
    }
    assert!(client.request("PING").await.starts_with("PONG"), "a command resets the count");
    client.send(&"what is this\n".repeat(20)).await;
    for _ in 0..15 {
        assert!(client.next_line().await.starts_with("-ERR unknown-command "));
    }
    let last = client.read_until_closed().await;
    assert!(last.starts_with("-ERR garbage ") && last.lines().count() == 1, "{last}");
}

// PROTOCOL: L10, E4
#[tokio::test]
async fn a_partial_line_times_out() {
    let broker = start_broker(Limits { partial_line_timeout_ms: 100, ..Limits::default() }).await;
    let mut client = TestConnection::connect_client(&broker).await;
    let mut receiver = TestConnection::connect_greeted(&broker).await;
    let mut peer = TestConnection::connect_greeted(&broker).await;
    peer.send("whole\nhal").await;
    client.send("PING\nPUB x ha").await;
    assert!(client.next_line().await.starts_with("PONG "));
    let last = client.read_until_closed().await;
    assert!(last.starts_with("-ERR timeout "), "{last}");
    assert_eq!(peer.read_until_closed().await, "");
    // A peer that sends nothing stays connected.
    receiver.expect("whole\r\n").await;
    let mut other = TestConnection::connect_greeted(&broker).await;
    other.send("later\n").await;
    receiver.expect("later\r\n").await;
}

// PROTOCOL: S11, D1, D2, D5
#[tokio::test]
async fn a_stalled_reader_delays_no_other_client_and_receives_lag() {
    let limits = Limits { tail_bytes_max: 1 << 20, stalled_ms: 10, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut slow = TestConnection::connect_client(&broker).await;
    let mut slow_peer = TestConnection::connect_greeted(&broker).await;
    let mut fast = TestConnection::connect_client(&broker).await;
    assert_eq!(slow.request("SUB new-url").await, "+OK\r\n");
    assert_eq!(fast.request("SUB new-url").await, "+OK\r\n");
    let mut publisher = TestConnection::connect_client(&broker).await;
    let payload = "x".repeat(1_000);
    let total = 30_000;
    for seq in 1..=total {
        publisher.send(&format!("PUB new-url {seq} {payload}\n")).await;
        if seq % 100 == 0 {
            for expected in seq - 99..=seq {
                let line = fast.next_line().await;
                assert!(
                    line.starts_with(&format!("MSG new-url {expected} {expected} x")),
                    "{line}"
                );
            }
        }
    }
    // Now the slow connections read: whole lines in order, and a LAG for each hole.
    let mut next = 1;
    let mut lags = 0;
    while next <= total {
        let line = slow.next_line().await;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "LAG" {
            assert_eq!(words[2], next.to_string());
            next = words[3].parse::<u64>().unwrap() + 1;
            lags += 1;
        } else {
            let seq = next.to_string();
            assert_eq!(words, ["MSG", "new-url", &seq, &seq, &payload]);
            next += 1;
        }
    }
    assert!(lags >= 1);
    let (mut next, mut lags) = (1, 0);
    while next <= total {
        let line = slow_peer.next_line().await;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "LAG" {
            assert_eq!(words[1], next.to_string());
            next = words[2].parse::<u64>().unwrap() + 1;
            lags += 1;
        } else {
            assert_eq!(words, [&next.to_string(), &payload]);
            next += 1;
        }
    }
    assert!(lags >= 1);
}

// PROTOCOL: A6
#[tokio::test]
async fn a_publisher_that_never_reads_does_not_deadlock() {
    // Its answers are merged while they wait.
    let limits = Limits { unanswered_max: 8, answer_bytes_max: 1_000, ..Limits::default() };
    let broker = start_broker(limits).await;
    let mut publisher = TestConnection::connect_client(&broker).await;
    let lines = "PUB a 0123456789\n".repeat(10_000);
    for _ in 0..200 {
        let sent = async { publisher.send(&lines).await };
        assert!(completes_within(TEST_LIMIT, sent).await, "the broker stopped reading");
    }
    while publisher.next_line().await != "+OK 2000000 2000000\r\n" {}
}

#[tokio::test]
async fn unread_answers_pause_reading_from_the_client() {
    let broker = start_broker(Limits { answer_bytes_max: 10_000, ..Limits::default() }).await;
    let client = TestConnection::connect_client(&broker).await;
    let TestConnection { mut read, mut write } = client;
    // Commands are as long as their answers, so that few of them fill the sockets.
    let command = format!("UNSUB {}\n", "x".repeat(64));
    let (commands, mut sent_count) = (command.repeat(1_000), 0);
    // When the socket accepts no more for a while, the broker has stopped reading.
    while completes_within(Duration::from_millis(300), async {
        write.write_all(commands.as_bytes()).await.unwrap();
    })
    .await
    {
        sent_count += 1_000;
        assert!(sent_count < 1_000_000, "answers are buffered without a limit");
    }
    drop(write);
    let mut answer_count = 0;
    let reading = async {
        let mut line = String::new();
        while read.read_line(&mut line).await.unwrap() > 0 {
            answer_count += usize::from(line.starts_with("-ERR unknown "));
            line.clear();
        }
    };
    assert!(completes_within(TEST_LIMIT, reading).await);
    assert!(answer_count >= sent_count, "{answer_count} answers to at least {sent_count} commands");
}

// PROTOCOL: E4
#[tokio::test]
async fn a_connection_over_the_limit_receives_an_error() {
    let broker = start_broker(Limits { connections_max: 1, ..Limits::default() }).await;
    let mut first = TestConnection::connect_greeted(&broker).await;
    let mut second = TestConnection::connect(&broker).await;
    assert!(second.read_until_closed().await.starts_with("-ERR limit "));
    first.send("quit\n").await;
    assert_eq!(first.read_until_closed().await, "");
    drop(first);
    loop {
        let mut third = TestConnection::connect(&broker).await;
        if third.next_line().await == "Connected.  (PID 2)\r\n" {
            break;
        }
    }
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let running = start_broker(Limits::default()).await;
    let config = BrokerConfig { listen: running.local_addr(), ..BrokerConfig::default() };
    match Broker::start(config).await {
        Err(StartError::AddrInUse { address }) => assert_eq!(address, running.local_addr()),
        other => panic!("{other:?}"),
    }
}

/// There may be tens of thousands of connections. With its socket, mailbox and subscription, an
/// idle connection should use about one kibibyte.
#[tokio::test]
async fn an_idle_connection_is_small() {
    let broker = start_broker(Limits::default()).await;
    let stream = TcpStream::connect(broker.local_addr()).await.unwrap();
    let (stream, remote) = plain_stream(stream);
    let task = new_connection(&broker, stream, remote).run();
    assert!(size_of_val(&task) <= 512, "{}", size_of_val(&task));
}
