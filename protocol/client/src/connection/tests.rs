use std::future::poll_fn;

use tidings_protocol::status::AckStatus;
use tidings_protocol::{
    JobAction, JobCommand, KeyRest, Outcome, PAYLOAD_BYTES_MAX, TaskAction, TaskReply, field,
};
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// The broker's end of a connection, controlled by the test.
struct Broker {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl Broker {
    async fn hear(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).await.unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    async fn say(&mut self, lines: &str) {
        for line in lines.lines() {
            self.writer.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        }
    }

    async fn answer_hello(&mut self) {
        let hello = self.hear().await;
        let echo = field(&hello, "echo").expect("HELLO has an echo");
        let resume = MemberId(5);
        self.say(&format!("+OK tidings 0.1.0 id=1 clock=7 echo={echo} resume={resume} new=1"))
            .await;
    }
}

/// A connected client, and its broker.
async fn connected() -> (Client, Deliveries, Broker) {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let (reader, writer) = tokio::io::split(near);
    let (far_reader, far_writer) = tokio::io::split(far);
    let mut broker = Broker { reader: BufReader::new(far_reader), writer: far_writer };
    let (options, mut refusal) = (ClientOptions::default(), None);
    let (client, ()) = tokio::join!(
        handshake(reader, writer, &options, None, &mut refusal),
        broker.answer_hello()
    );
    let (client, deliveries) = client.expect("the broker answers HELLO");
    (client, deliveries, broker)
}

fn topic() -> TopicName {
    "t".parse().unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Code {
    match result {
        Err(ClientError::Refused(error)) => error.code,
        other => panic!("should be refused: {other:?}"),
    }
}

/// Whether the future is pending when it is polled once.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// A listener on a free port; the script receives its connection.
async fn listening<F>(script: impl FnOnce(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        script(stream).await;
    });
    address
}

// PROTOCOL: S6
#[tokio::test]
async fn everything_before_the_repeated_echo_is_discarded() {
    let address = listening(|stream| async {
        let mut stream = BufReader::new(stream);
        stream.write_all(b"Connected.  (PID 9)\r\nhttp://a/\r\n").await.unwrap();
        stream.write_all(b"+OK tidings 9 id=9 clock=9 echo=guess resume=x\r\n").await.unwrap();
        stream.write_all(b"-ERR denied said by a peer\r\n\xff\xfe\r\n+OK\r\n").await.unwrap();
        let mut hello = String::new();
        stream.read_line(&mut hello).await.unwrap();
        assert!(hello.starts_with("HELLO name=me echo="), "{hello}");
        let echo = field(hello.trim_end(), "echo").unwrap();
        let answer =
            format!("+OK tidings 0.1.0 id=3 clock=8 echo={echo} resume={}\r\n", MemberId(1));
        stream.write_all(answer.as_bytes()).await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "PING\n");
        stream.write_all(b"PONG clock=12\r\n").await.unwrap();
    })
    .await;
    let options = ClientOptions { name: Some("me".into()), ..ClientOptions::default() };
    let (client, _deliveries) = connect(&address, options).await.unwrap();
    assert_eq!((client.hello().id, client.hello().clock_ms), (3, 8));
    assert_eq!(client.hello().resume, MemberId(1));
    assert_eq!(client.ping().await, Ok(12));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn keepalive_detects_a_vanished_broker() {
    let address = listening(|stream| async {
        let mut stream = BufReader::new(stream);
        let mut hello = String::new();
        stream.read_line(&mut hello).await.unwrap();
        let echo = field(hello.trim_end(), "echo").unwrap();
        let resume = MemberId(1);
        let answer = format!("+OK tidings 0.1.0 id=3 clock=8 echo={echo} resume={resume}\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        future::pending::<()>().await;
    })
    .await;
    let _connection = connect(&address, ClientOptions::default()).await.unwrap();
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let ours = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let ours = ours.skip(1).find(|fields| fields[2].ends_with(&remote) && fields[3] == "01");
    // proc(5): the timer of the socket; 02 is that of keepalive.
    assert!(ours.unwrap()[5].starts_with("02:"));
}

#[tokio::test]
async fn a_refused_hello_is_reported_when_the_connection_ends() {
    let address = listening(|mut stream| async move {
        let _ = stream.write_all(b"Connected.  (PID 1)\r\n-ERR denied no token\r\n").await;
        // An orderly close, so the refusal must arrive.
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    assert_eq!(refused(connect(&address, ClientOptions::default()).await), Code::Denied);
}

// PROTOCOL: S6
#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_times_out() {
    let address = listening(|mut stream| async move {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let error = connect(&address, ClientOptions::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no Tidings broker answered at {address} within 5000 ms")
    );
}

#[tokio::test]
async fn a_refused_connection_is_reported_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = connect(&address, ClientOptions::default()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot connect to {address}: ")), "{error}");
}

#[tokio::test]
async fn an_unreadable_token_is_reported_without_a_broker() {
    let token = Some(TokenSource::File("/nowhere/token".into()));
    let security = Security { token, ..Security::default() };
    let options = ClientOptions { security, ..ClientOptions::default() };
    let error = connect("127.0.0.1:1", options).await.unwrap_err();
    assert!(matches!(&error, ClientError::Token(why) if why.contains("/nowhere/token")), "{error}");
}

// PROTOCOL: A3
#[tokio::test]
async fn one_confirmation_resolves_every_publish_up_to_it() {
    let (client, _deliveries, mut broker) = connected().await;
    let mut published = Vec::new();
    for n in 1..=3 {
        published.push(client.publish(&topic(), &format!("event {n}")).await.unwrap());
    }
    for n in 1..=3 {
        assert_eq!(broker.hear().await, format!("PUB t event {n}"));
    }
    broker.say("+OK 41 2").await;
    let last = published.pop().unwrap();
    for published in published {
        assert_eq!(published.await, Ok(Seq(41)));
    }
    broker.say("+OK 42 3").await;
    assert_eq!(last.await, Ok(Seq(42)));
}

#[tokio::test]
async fn a_folded_refusal_resolves_each_of_its_publishes_and_no_other() {
    let (client, _deliveries, mut broker) = connected().await;
    let mut published = Vec::new();
    for n in 1..=6 {
        published.push(client.publish(&topic(), &format!("event {n}")).await.unwrap());
    }
    broker.say("-ERR full n=2-3 no room\n-ERR limit n=5 too many\n+OK 9 6").await;
    let mut results = Vec::new();
    for published in published {
        results.push(published.await);
    }
    let refused = |code, text: &str| Err(ClientError::Refused(ProtocolError::new(code, text)));
    assert_eq!(
        results,
        [
            Ok(Seq(9)),
            refused(Code::Full, "no room"),
            refused(Code::Full, "no room"),
            Ok(Seq(9)),
            refused(Code::Limit, "too many"),
            Ok(Seq(9)),
        ]
    );
}

#[tokio::test]
async fn refusals_at_the_front_are_removed() {
    let (client, _deliveries, mut broker) = connected().await;
    let first = client.publish(&topic(), "a").await.unwrap();
    let second = client.publish(&topic(), "b").await.unwrap();
    broker.say("-ERR full n=1 x").await;
    assert_eq!(refused(first.await), Code::Full);
    broker.say("+OK 1 2").await;
    assert_eq!(second.await, Ok(Seq(1)));
    let third = client.publish(&topic(), "c").await.unwrap();
    broker.say("+OK 2 3").await;
    assert_eq!(third.await, Ok(Seq(2)));
}

// PROTOCOL: A8
#[tokio::test]
async fn everything_pending_fails_when_the_connection_ends() {
    let (client, mut deliveries, broker) = connected().await;
    let published = client.publish(&topic(), "a").await.unwrap();
    let answer = client.start_request(&[], &Command::Stats).await.unwrap();
    drop(broker);
    let closed = Err(ClientError::Closed("the broker closed it".into()));
    assert_eq!(published.await, closed.clone());
    assert_eq!(answer.await.map(|_| Seq(0)), closed);
    assert_eq!(deliveries.next().await, None);
    assert_eq!(Err(deliveries.reason()), closed);
    assert_eq!(client.ping().await.map(Seq), closed);
    assert_eq!(client.publish(&topic(), "b").await.map(|_| Seq(0)), closed);
}

#[tokio::test]
async fn the_broker_says_why_it_ends_a_connection() {
    let (client, mut deliveries, mut broker) = connected().await;
    let answer = client.start_request(&[], &Command::Ping).await.unwrap();
    broker.say("-ERR replaced by another connection").await;
    let ended = ClientError::Ended(ProtocolError::new(Code::Replaced, "by another connection"));
    assert_eq!(answer.await, Err(ended.clone()));
    assert_eq!(deliveries.next().await, None);
    assert_eq!(deliveries.reason(), ended);
}

// PROTOCOL: A1, A2
#[tokio::test]
async fn answers_come_in_the_order_of_the_commands_between_deliveries() {
    let (client, mut deliveries, mut broker) = connected().await;
    let stats = client.start_request(&[], &Command::Stats).await.unwrap();
    let help = client.start_request(&[], &Command::Help).await.unwrap();
    let again = client.start_request(&[], &Command::Help).await.unwrap();
    broker
        .say("+ topics=1\nMSG t 5 hello  you \nMSG t 6 x\n+ peers=2\n+OK all\n-ERR not-yet later\n+OK")
        .await;
    let more = vec!["topics=1".to_owned(), "peers=2".to_owned()];
    assert_eq!(stats.await, Ok(CommandAnswer { ok: "all".into(), more }));
    assert_eq!(refused(help.await), Code::NotYet);
    assert_eq!(again.await, Ok(CommandAnswer { ok: String::new(), more: vec![] }));
    let msg = |seq, payload: &str| {
        Some(Delivery::Msg { topic: topic(), seq: Seq(seq), payload: payload.to_owned() })
    };
    assert_eq!(deliveries.next().await, msg(5, "hello  you "));
    assert_eq!(deliveries.next().await, msg(6, "x"));
}

// PROTOCOL: E5
#[tokio::test]
async fn every_delivery_has_its_form() {
    let (_client, mut deliveries, mut broker) = connected().await;
    broker
        .say("TASK g:1.2.3 4 5 http://a/ job=b\nLAG t 1 9\nGAP u 2 3\n-ERR limit too many links")
        .await;
    let (id, payload) = ("g:1.2.3".parse().unwrap(), "http://a/ job=b".to_owned());
    let task = Delivery::Task { id, clock_ms: 4, lease_ms: 5, payload };
    assert_eq!(deliveries.next().await, Some(task));
    let lag = Delivery::Lag { topic: topic(), from: Seq(1), to: Seq(9) };
    assert_eq!(deliveries.next().await, Some(lag));
    let gap = Delivery::Gap { topic: "u".parse().unwrap(), from: Seq(2), to: Seq(3) };
    assert_eq!(deliveries.next().await, Some(gap));
    let notice = ProtocolError::new(Code::Limit, "too many links");
    assert_eq!(deliveries.next().await, Some(Delivery::Notice(notice)));
}

#[tokio::test]
async fn links_and_their_ack_are_sent_as_one_piece() {
    let (client, _deliveries, mut broker) = connected().await;
    let task: TaskId = "g:1.2.3".parse().unwrap();
    let link = |url| Command::Link { task: task.clone(), url, redirect: false, prio: None };
    let links = [link("http://a/"), link("http://b/\nQUIT"), link("http://c/")];
    let ack = Command::Reply(TaskReply {
        task: task.clone(),
        action: TaskAction::Ack(Outcome::Done),
        rest: KeyRest::default(),
        report: None,
    });
    let answer = client.start_request(&links, &ack).await.unwrap();
    let other = client.start_request(&[], &Command::Ping).await.unwrap();
    for line in ["LINK g:1.2.3 http://a/", "LINK g:1.2.3 http://c/", "ACK g:1.2.3", "PING"] {
        assert_eq!(broker.hear().await, line);
    }
    broker.say("+OK g:1.2.3 new=1 known=1 refused=0\nPONG clock=3").await;
    let ack = AckStatus { task: task.to_string(), new: 1, known: 1, refused: 0 };
    assert_eq!(AckStatus::parse(&answer.await.unwrap().ok), ack);
    assert_eq!(other.await.unwrap().ok, "clock=3");
}

#[tokio::test]
async fn no_text_becomes_another_line_or_option() {
    let (client, _deliveries, mut broker) = connected().await;
    assert_eq!(refused(client.publish(&topic(), "a\nQUIT").await), Code::Control);
    assert_eq!(refused(client.publish(&topic(), "").await), Code::BadArgument);
    let long = "x".repeat(PAYLOAD_BYTES_MAX + 1);
    assert_eq!(refused(client.publish(&topic(), &long).await), Code::TooLong);
    let explain = Command::Explain { what: "a b", group: None };
    assert_eq!(refused(client.request(&explain).await), Code::BadArgument);
    let task: TaskId = "g:1.2.3".parse().unwrap();
    let link = Command::Link { task, url: "http://a/ x=y", redirect: false, prio: None };
    assert_eq!(refused(client.send(&link).await), Code::BadArgument);
    let published = client.publish(&topic(), "b").await.unwrap();
    assert_eq!(broker.hear().await, "PUB t b", "none of the others was sent");
    broker.say("+OK 1 1").await;
    assert_eq!(published.await, Ok(Seq(1)));
}

#[tokio::test]
async fn publishing_waits_while_too_much_is_unconfirmed() {
    let (client, _deliveries, broker) = connected().await;
    let Broker { mut reader, mut writer } = broker;
    let reading = tokio::spawn(async move {
        // Reads everything, so only the window can make the client wait.
        tokio::io::copy(&mut reader, &mut tokio::io::sink()).await
    });
    let payload = "x".repeat(PAYLOAD_BYTES_MAX);
    let mut published = Vec::new();
    for _ in 0..driver::PUBLISH_WINDOW_BYTES / (PAYLOAD_BYTES_MAX + 200) {
        published.push(client.publish(&topic(), &payload).await.unwrap());
    }
    let topic = topic();
    let mut one_more = Box::pin(client.publish(&topic, &payload));
    assert!(is_pending(one_more.as_mut()).await, "the window is full");
    writer.write_all(b"+OK 1 1\r\n").await.unwrap();
    published.push(one_more.await.unwrap());
    let confirmation = format!("+OK 99 {}\r\n", published.len());
    writer.write_all(confirmation.as_bytes()).await.unwrap();
    for published in published {
        published.await.unwrap();
    }
    reading.abort();
}

#[tokio::test]
async fn a_waiting_publish_fails_when_the_connection_ends() {
    let (client, _deliveries, mut broker) = connected().await;
    let topic = topic();
    let payload = "x".repeat(PAYLOAD_BYTES_MAX);
    // The broker reads nothing: first the pipe and then the outgoing buffer are full.
    let waiting = async {
        loop {
            if let Err(error) = client.publish(&topic, &payload).await {
                break error;
            }
        }
    };
    let mut waiting = Box::pin(waiting);
    while !is_pending(waiting.as_mut()).await {}
    broker.say("-ERR closing the broker stops").await;
    let ended = ClientError::Ended(ProtocolError::new(Code::Closing, "the broker stops"));
    assert_eq!(waiting.await, ended);
}

#[tokio::test]
async fn answers_arrive_when_deliveries_are_not_taken() {
    let (client, deliveries, mut broker) = connected().await;
    drop(deliveries);
    let answer = client.start_request(&[], &Command::Ping).await.unwrap();
    let payload = "x".repeat(PAYLOAD_BYTES_MAX);
    for seq in 1..200 {
        broker.say(&format!("MSG t {seq} {payload}")).await;
    }
    broker.say("PONG clock=1").await;
    assert_eq!(answer.await.unwrap().ok, "clock=1");
}

#[tokio::test]
async fn a_dropped_client_sends_what_it_accepted() {
    let (client, deliveries, mut broker) = connected().await;
    let clone = client.clone();
    drop(client.publish(&topic(), "a").await.unwrap());
    drop(client);
    drop(clone.publish(&topic(), "b").await.unwrap());
    drop((clone, deliveries));
    assert_eq!(broker.hear().await, "PUB t a");
    assert_eq!(broker.hear().await, "PUB t b");
    assert_eq!(broker.hear().await, "", "the end of input");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_read_cannot_keep_a_dropped_connection() {
    let (client, mut deliveries, broker) = connected().await;
    let payload = "x".repeat(PAYLOAD_BYTES_MAX);
    for _ in 0..10 {
        drop(client.publish(&topic(), &payload).await.unwrap());
    }
    drop(client);
    assert_eq!(deliveries.next().await, None);
    assert_eq!(deliveries.reason(), ClientError::Closed("this client closed it".into()));
    drop(broker);
}

#[tokio::test(start_paused = true)]
async fn the_last_line_is_received_though_writing_fails() {
    let (client, mut deliveries, mut broker) = connected().await;
    broker.say("-ERR closing the broker stops").await;
    drop(broker);
    drop(client.start_request(&[], &Command::Ping).await);
    assert_eq!(deliveries.next().await, None);
    assert!(matches!(deliveries.reason(), ClientError::Ended(_)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_stays_open() {
    let (client, _deliveries, mut broker) = connected().await;
    tokio::time::advance(Duration::from_hours(7 * 24)).await;
    let answer = client.start_request(&[], &Command::Ping).await.unwrap();
    assert_eq!(broker.hear().await, "PING", "and nothing was sent before");
    broker.say("PONG clock=1").await;
    assert_eq!(answer.await.unwrap().ok, "clock=1");
}

#[tokio::test]
async fn an_answer_without_end_is_left() {
    let (client, mut deliveries, mut broker) = connected().await;
    let line = format!("+ {}\r\n", "x".repeat(PAYLOAD_BYTES_MAX));
    let script = async {
        for _ in 0..2 {
            // An answer of this length is usual, and does not count for the next one.
            for _ in 0..1_000 {
                broker.writer.write_all(line.as_bytes()).await.unwrap();
            }
            broker.say("+OK").await;
        }
        for _ in 0..2_000 {
            if broker.writer.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
        broker.say("+OK").await;
    };
    let answers = async {
        for _ in 0..2 {
            assert_eq!(client.request(&Command::Stats).await.unwrap().more.len(), 1_000);
        }
        client.request(&Command::Stats).await.unwrap_err()
    };
    let ((), error) = tokio::join!(script, answers);
    assert_eq!(error, ClientError::Protocol("an answer is too long".into()));
    assert_eq!(deliveries.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_broker_that_owes_an_answer_counts_as_lost() {
    let (client, mut deliveries, mut broker) = connected().await;
    let published = client.publish(&topic(), "a").await.unwrap();
    assert_eq!(broker.hear().await, "PUB t a");
    for _ in 0..1_000 {
        assert_eq!(broker.hear().await, "PING");
        broker.say("PONG clock=1").await;
    }
    assert_eq!(broker.hear().await, "PING");
    let lost = ClientError::Closed("the broker did not answer within 10 s".into());
    assert_eq!(published.await, Err(lost.clone()));
    assert_eq!(deliveries.next().await, None);
    assert_eq!(deliveries.reason(), lost);
    assert_eq!(broker.hear().await, "", "the end of input");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_waits_may_take_any_time() {
    let (client, _deliveries, mut broker) = connected().await;
    let wait = Command::Job(JobCommand::new(JobAction::Wait, "docs", Vec::new()));
    let waiting = client.start_request(&[], &wait).await.unwrap();
    let published = client.publish(&topic(), "a").await.unwrap();
    assert_eq!(broker.hear().await, "JOB wait docs");
    assert_eq!(broker.hear().await, "PUB t a");
    tokio::time::sleep(Duration::from_hours(7 * 24)).await;
    broker.say("+OK docs result=done\n+OK 1 1").await;
    waiting.await.unwrap();
    published.await.unwrap();
}

#[tokio::test]
async fn invalid_lines_end_the_connection() {
    for (line, text) in [
        ("hello", "it sent \"hello\""),
        ("+OK 1 1", "it confirmed publish 1, which was not sent"),
        ("+OK", "it answered without a command"),
        ("MSG a/b 1 x", "it sent \"MSG a/b 1 x\""),
        ("MSG t 1 \u{7}", "control byte"),
        ("LAG 1 2", "it sent"),
    ] {
        let (_client, mut deliveries, mut broker) = connected().await;
        broker.say(line).await;
        assert_eq!(deliveries.next().await, None);
        let reason = deliveries.reason();
        assert!(matches!(&reason, ClientError::Protocol(why) if why.contains(text)), "{reason}");
    }
}

// PROTOCOL: N4
#[test]
fn random_members_differ() {
    assert_ne!(random_member_id(), random_member_id());
    assert_ne!(random_member_id().0 >> 64, random_member_id().0 & u128::from(u64::MAX));
}

#[tokio::test]
async fn lines_before_a_watched_answer_are_delivered_at_once() {
    let (client, mut deliveries, mut broker) = connected().await;
    let listed = client.start_request(&[], &Command::Stats).await.unwrap();
    let watch = JobCommand::new(JobAction::Watch, "docs", Vec::new());
    let watching = client.watch(&Command::Job(watch)).await.unwrap();
    let ping = client.start_request(&[], &Command::Ping).await.unwrap();
    assert_eq!(broker.hear().await, "STATS");
    assert_eq!(broker.hear().await, "JOB watch docs");
    broker.say("+ of the list\n+OK list\n+ docs completed=1").await;
    assert_eq!(listed.await.unwrap().more, ["of the list"]);
    assert_eq!(deliveries.next().await, Some(Delivery::More("docs completed=1".into())));
    broker.say("+ docs completed=2\n+OK docs result=done\nPONG clock=1").await;
    assert_eq!(deliveries.next().await, Some(Delivery::More("docs completed=2".into())));
    assert_eq!(
        watching.await,
        Ok(CommandAnswer { ok: "docs result=done".into(), more: Vec::new() })
    );
    ping.await.unwrap();
}
