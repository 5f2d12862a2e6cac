use tidings_protocol::PAYLOAD_BYTES_MAX;

use super::*;
use crate::scripted_broker::ScriptedBroker;

fn topic() -> TopicName {
    "t".parse().unwrap()
}

/// The next event in short.
async fn next(publisher: &mut Publisher) -> String {
    match publisher.next().await.unwrap() {
        PublishEvent::Connected { doubtful } => format!("connected, {doubtful} doubtful"),
        PublishEvent::Confirmed { number, .. } => format!("{number} confirmed"),
        PublishEvent::Refused { number, refusal } => format!("{number} refused {}", refusal.code),
        PublishEvent::Deferred { number, refusal } => format!("{number} deferred {}", refusal.code),
        PublishEvent::Lost(error) => format!("lost {error}"),
    }
}

// PROTOCOL: A8
#[tokio::test]
async fn what_was_not_confirmed_is_sent_again_in_order() {
    let broker = ScriptedBroker::new().await;
    let mut publisher = Publisher::new(broker.connector());
    for number in 1..=4 {
        publisher.push(number, &topic(), format!("/{number}"));
    }
    publisher.push(5, &topic(), "text");
    let script = async {
        let mut first = broker.accept().await;
        for number in 1..=4 {
            assert_eq!(first.hear().await, format!("PUB t /{number}"));
        }
        assert_eq!(first.hear().await, "PUB t text");
        first.say("-ERR denied n=2 no").await;
        first.say("+OK 41 3").await;
        drop(first);
        let mut second = broker.accept().await;
        for line in ["PUB t /4", "PUB t text"] {
            assert_eq!(second.hear().await, line);
        }
        second.say("+OK 43 2").await;
        second
    };
    let events = async {
        let mut events = Vec::new();
        while !publisher.is_empty() {
            events.push(next(&mut publisher).await);
        }
        events
    };
    let (_second, events) = tokio::join!(script, events);
    let events: Vec<_> = events.iter().map(String::as_str).collect();
    let lost = "lost the connection to the broker is gone: the broker closed it";
    assert_eq!(
        events,
        [
            "connected, 0 doubtful",
            "1 confirmed",
            "2 refused denied",
            "3 confirmed",
            lost,
            "connected, 2 doubtful",
            "4 confirmed",
            "5 confirmed"
        ]
    );
    assert!(publisher.flush().await.unwrap().is_none());
}

// PROTOCOL: A8
#[tokio::test]
async fn what_was_confirmed_before_a_loss_counts() {
    let broker = ScriptedBroker::new().await;
    let mut publisher = Publisher::new(broker.connector());
    publisher.push(1, &topic(), "/1");
    publisher.push(2, &topic(), "/2");
    let script = async {
        let mut first = broker.accept().await;
        assert_eq!(first.hear().await, "PUB t /1");
        assert_eq!(first.hear().await, "PUB t /2");
        first
    };
    let sent = async {
        assert_eq!(next(&mut publisher).await, "connected, 0 doubtful");
        tokio::select! {
            biased;
            event = publisher.next() => panic!("{event:?} before an answer"),
            () = future::ready(()) => {}
        }
    };
    let (mut first, ()) = tokio::join!(script, sent);
    first.say("+OK 41 1").await;
    drop(first);
    let client = publisher.connection.as_ref().unwrap().client.clone();
    assert!(client.ping().await.is_err(), "the connection has ended");
    // It cannot be sent any more, which must not hide the confirmation.
    publisher.push(3, &topic(), "/3");
    assert_eq!(next(&mut publisher).await, "1 confirmed");
    assert!(next(&mut publisher).await.starts_with("lost"));
    let script = async {
        let mut second = broker.accept().await;
        assert_eq!(second.hear().await, "PUB t /2");
        second.expect("PUB t /3", "+OK 43 2").await;
        second
    };
    let events = async {
        for event in ["connected, 1 doubtful", "2 confirmed", "3 confirmed"] {
            assert_eq!(next(&mut publisher).await, event);
        }
    };
    tokio::join!(script, events);
}

// PROTOCOL: P5
#[tokio::test]
async fn an_event_with_an_id_is_not_doubtful() {
    let broker = ScriptedBroker::new().await;
    let mut publisher = Publisher::new(broker.connector()).with_ids();
    publisher.push(1, &topic(), "/a");
    let script = async {
        let sent = broker.accept().await.hear().await;
        let mut second = broker.accept().await;
        assert_eq!(second.hear().await, sent, "the same id");
        second.say("+OK 1 1").await;
        second
    };
    let events = async {
        assert_eq!(next(&mut publisher).await, "connected, 0 doubtful");
        assert!(next(&mut publisher).await.starts_with("lost"));
        assert_eq!(next(&mut publisher).await, "connected, 0 doubtful");
        assert_eq!(next(&mut publisher).await, "1 confirmed");
    };
    tokio::join!(script, events);
}

#[tokio::test]
async fn events_are_refused_in_their_turn() {
    let broker = ScriptedBroker::new().await;
    let mut publisher = Publisher::new(broker.connector());
    publisher.push(1, &topic(), "/a");
    publisher.push_refused(2, &topic(), ProtocolError::new(Code::BadArgument, "no text"));
    publisher.push(3, &topic(), "x".repeat(PAYLOAD_BYTES_MAX + 1));
    let script = async {
        let mut connection = broker.accept().await;
        connection.expect("PUB t /a", "+OK 1 1").await;
        connection
    };
    let events = async {
        for event in
            ["connected, 0 doubtful", "1 confirmed", "2 refused bad-argument", "3 refused too-long"]
        {
            assert_eq!(next(&mut publisher).await, event);
        }
    };
    tokio::join!(script, events);
}

#[tokio::test]
async fn what_is_refused_for_now_is_sent_again_and_leaves_no_room() {
    let broker = ScriptedBroker::new().await;
    let mut publisher = Publisher::new(broker.connector()).retrying(Duration::from_millis(10));
    publisher.push(1, &topic(), "/a");
    publisher.push(2, &topic(), "/b");
    let script = async {
        let mut connection = broker.accept().await;
        assert_eq!(connection.hear().await, "PUB t /a");
        connection.expect("PUB t /b", "-ERR full n=1-2 no room").await;
        connection.expect("PUB t /a", "+OK 7 3").await;
        connection.expect("PUB t /b", "-ERR denied n=4 no").await;
        connection
    };
    let events = async {
        assert_eq!(next(&mut publisher).await, "connected, 0 doubtful");
        assert_eq!(next(&mut publisher).await, "1 deferred full");
        assert_eq!((publisher.has_room(), publisher.len()), (false, 2));
        assert_eq!(publisher.first_unanswered(), Some(1));
        for event in ["2 deferred full", "1 confirmed", "2 refused denied"] {
            assert_eq!(next(&mut publisher).await, event);
        }
        assert!(publisher.has_room() && publisher.is_empty());
    };
    tokio::join!(script, events);
}

#[tokio::test]
async fn a_refusal_of_the_login_ends_a_publisher_for_good() {
    let broker = ScriptedBroker::new().await;
    let connector = broker.connector();
    assert!(connector.is_final(&ClientError::Token("unreadable".to_owned())));
    let mut publisher = Publisher::new(connector);
    publisher.ended = Some(ClientError::Token("unreadable".to_owned()));
    for _ in 0..2 {
        assert!(matches!(publisher.next().await, Err(ClientError::Token(_))));
    }
}

#[test]
fn the_window_is_limited() {
    let connector = Connector::new("127.0.0.1:1", crate::ClientOptions::default());
    let mut publisher = Publisher::new(connector).with_window(1_000);
    let mut pushed = 0;
    while publisher.has_room() {
        pushed += 1;
        publisher.push(pushed, &topic(), "x");
    }
    assert!((5..10).contains(&pushed), "{pushed}");
}
