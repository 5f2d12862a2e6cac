use super::*;
use crate::scripted_broker::ScriptedBroker;

fn subscription() -> Subscription {
    Subscription::new("t".parse().unwrap())
}

fn event(seq: u64, payload: &str) -> SubscriberEvent {
    SubscriberEvent::Event { seq: Seq(seq), payload: payload.to_owned() }
}

async fn expect_events(subscriber: &mut Subscriber, events: Vec<SubscriberEvent>) {
    for event in events {
        assert_eq!(subscriber.next().await.unwrap(), event);
    }
}

async fn expect_loss(subscriber: &mut Subscriber) {
    let event = subscriber.next().await.unwrap();
    assert!(matches!(event, SubscriberEvent::Lost(_)), "{event:?}");
}

const GOES_ON: SubscriberEvent = SubscriberEvent::Subscribed { continues: true };

// PROTOCOL: D2
#[tokio::test]
async fn a_subscriber_resumes_behind_the_last_event() {
    let broker = ScriptedBroker::new().await;
    let mut subscriber = Subscriber::new(broker.connector(), subscription());
    let script = async {
        let mut first = broker.accept().await;
        first.expect("SUB t", "+OK").await;
        first.say("MSG t 41 one").await;
        first.say("GAP t 42 43").await;
        drop(first);
        let mut second = broker.accept().await;
        second.expect("SUB t from=44", "+OK").await;
        second.say("LAG t 44 50").await;
        drop(second);
        let mut third = broker.accept().await;
        third.expect("SUB t from=51", "+OK").await;
        third.say("MSG t 51 two").await;
        third
    };
    let events = async {
        let gap = SubscriberEvent::Gap { from: Seq(42), to: Seq(43) };
        expect_events(&mut subscriber, vec![GOES_ON, event(41, "one"), gap]).await;
        expect_loss(&mut subscriber).await;
        let lag = SubscriberEvent::Lag { from: Seq(44), to: Seq(50) };
        expect_events(&mut subscriber, vec![GOES_ON, lag]).await;
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![GOES_ON, event(51, "two")]).await;
    };
    tokio::join!(script, events);
}

// PROTOCOL: D8, K4
#[tokio::test]
async fn a_subscriber_and_its_cursor_go_on_behind_skipped_events() {
    for cursor in [None, Some("c".parse().unwrap())] {
        let broker = ScriptedBroker::new().await;
        let filter = AttributeFilter::parse(["k=a", "n!=3"]).unwrap();
        let is_durable = cursor.is_some();
        let subscription = Subscription { cursor, ..subscription().matching(filter) };
        let mut subscriber = Subscriber::new(broker.connector(), subscription);
        let script = async {
            let options = |words| if is_durable { words } else { "" };
            let mut first = broker.accept().await;
            let sub = format!("SUB t{} where=k=a where=n!=3", options(" as=c"));
            first.expect(&sub, "+OK").await;
            first.say("MSG t 41 /x k=a").await;
            first.say("SKIP t 90").await;
            if is_durable {
                first.expect("SEEN t 90", "+OK").await;
            }
            drop(first);
            let mut second = broker.accept().await;
            let options = options(" as=c takeover=yes");
            let sub = format!("SUB t from=91{options} where=k=a where=n!=3");
            second.expect(&sub, "+OK").await;
            second
        };
        let events = async {
            let skipped = SubscriberEvent::Skipped(Seq(90));
            expect_events(&mut subscriber, vec![GOES_ON, event(41, "/x k=a"), skipped]).await;
            subscriber.seen(Seq(90));
            if is_durable {
                expect_events(&mut subscriber, vec![SubscriberEvent::Seen(Seq(90))]).await;
            }
            expect_loss(&mut subscriber).await;
            expect_events(&mut subscriber, vec![GOES_ON]).await;
        };
        tokio::join!(script, events);
    }
}

#[tokio::test]
async fn a_loss_before_the_first_event_and_a_lost_topic_are_reported() {
    let broker = ScriptedBroker::new().await;
    let mut subscriber = Subscriber::new(broker.connector(), subscription());
    let script = async {
        broker.accept().await.expect("SUB t", "+OK").await;
        let mut second = broker.accept().await;
        second.expect("SUB t", "+OK").await;
        second.say("MSG t 9 one").await;
        drop(second);
        let mut third = broker.accept().await;
        third.expect("SUB t from=10", "-ERR conflict next is 2; from=first").await;
        third.expect("SUB t from=first", "+OK").await;
        third.say("MSG t 1 new").await;
        third
    };
    let events = async {
        let begins_again = || SubscriberEvent::Subscribed { continues: false };
        expect_events(&mut subscriber, vec![GOES_ON]).await;
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![begins_again(), event(9, "one")]).await;
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![begins_again(), event(1, "new")]).await;
    };
    tokio::join!(script, events);
}

// PROTOCOL: K3, K4
#[tokio::test]
async fn a_durable_cursor_is_moved_taken_over_and_released() {
    let broker = ScriptedBroker::new().await;
    let durable = subscription().from(StartAt::First).with_cursor("c".parse().unwrap());
    let mut subscriber = Subscriber::new(broker.connector(), durable);
    let script = async {
        let mut first = broker.accept().await;
        first.expect("SUB t from=first as=c", "+OK").await;
        first.say("MSG t 1 one").await;
        first.expect("SEEN t 1", "+OK").await;
        first.say("MSG t 2 two").await;
        assert_eq!(first.hear().await, "SEEN t 2");
        drop(first);
        let mut second = broker.accept().await;
        // Where the cursor is, in case the broker has lost it.
        second.expect("SUB t from=2 as=c takeover=yes", "+OK").await;
        second.say("MSG t 2 two").await;
        second.expect("SEEN t 2", "+OK").await;
        second.expect("UNSUB t", "+OK").await;
        second
    };
    let events = async {
        expect_events(&mut subscriber, vec![GOES_ON, event(1, "one")]).await;
        subscriber.seen(Seq(1));
        expect_events(&mut subscriber, vec![SubscriberEvent::Seen(Seq(1)), event(2, "two")]).await;
        subscriber.seen(Seq(2));
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![GOES_ON, event(2, "two")]).await;
        subscriber.seen(Seq(2));
        subscriber.close().await.unwrap();
    };
    tokio::join!(script, events);
}

// PROTOCOL: K2, K4
#[tokio::test]
async fn a_lost_cursor_is_created_where_it_was() {
    let broker = ScriptedBroker::new().await;
    let durable = subscription().with_cursor("c".parse().unwrap());
    let mut subscriber = Subscriber::new(broker.connector(), durable);
    let script = async {
        let mut first = broker.accept().await;
        first.expect("SUB t as=c", "+OK").await;
        first.say("LAG t 3 40").await;
        first.say("MSG t 41 one").await;
        drop(first);
        let mut second = broker.accept().await;
        second.expect("SUB t from=3 as=c takeover=yes", "+OK").await;
        second.say("MSG t 41 one").await;
        second.say("MSG t 42 two").await;
        second.expect("SEEN t 41", "-ERR conflict the cursor was removed").await;
        let mut third = broker.accept().await;
        third.expect("SUB t from=3 as=c takeover=yes", "+OK").await;
        third.say("MSG t 41 one").await;
        third.expect("SEEN t 41", "+OK").await;
        drop(third);
        let mut fourth = broker.accept().await;
        fourth.expect("SUB t from=42 as=c takeover=yes", "-ERR conflict next is 7").await;
        fourth.expect("SUB t from=first as=c takeover=yes", "+OK").await;
        fourth
    };
    let events = async {
        let lag = SubscriberEvent::Lag { from: Seq(3), to: Seq(40) };
        expect_events(&mut subscriber, vec![GOES_ON, lag, event(41, "one")]).await;
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![GOES_ON, event(41, "one"), event(42, "two")]).await;
        subscriber.seen(Seq(41));
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![GOES_ON, event(41, "one")]).await;
        subscriber.seen(Seq(41));
        expect_events(&mut subscriber, vec![SubscriberEvent::Seen(Seq(41))]).await;
        expect_loss(&mut subscriber).await;
        let begins_again = SubscriberEvent::Subscribed { continues: false };
        expect_events(&mut subscriber, vec![begins_again]).await;
    };
    tokio::join!(script, events);
}

#[tokio::test]
async fn a_cursor_that_was_taken_over_ends_a_subscriber() {
    let broker = ScriptedBroker::new().await;
    let durable = subscription().with_cursor("c".parse().unwrap());
    let mut subscriber = Subscriber::new(broker.connector(), durable);
    let script = async {
        let mut connection = broker.accept().await;
        connection.expect("SUB t as=c", "-ERR busy held").await;
        let mut connection = broker.accept().await;
        connection.expect("SUB t as=c", "+OK").await;
        connection.say("-ERR replaced another connection took the cursor over").await;
        connection
    };
    let events = async {
        let event = subscriber.next().await.unwrap();
        assert!(matches!(event, SubscriberEvent::Refused(_)), "{event:?}");
        expect_events(&mut subscriber, vec![GOES_ON]).await;
        for _ in 0..2 {
            assert!(matches!(subscriber.next().await, Err(ClientError::Ended(_))));
        }
    };
    tokio::join!(script, events);
}

#[tokio::test]
async fn a_cursor_whose_first_answer_was_lost_is_taken_over() {
    let broker = ScriptedBroker::new().await;
    let durable = subscription().with_cursor("c".parse().unwrap());
    let mut subscriber = Subscriber::new(broker.connector(), durable);
    let script = async {
        assert_eq!(broker.accept().await.hear().await, "SUB t as=c");
        let mut connection = broker.accept().await;
        connection.expect("SUB t as=c takeover=yes", "+OK").await;
        connection
    };
    let events = async {
        expect_loss(&mut subscriber).await;
        expect_events(&mut subscriber, vec![GOES_ON]).await;
    };
    tokio::join!(script, events);
}
