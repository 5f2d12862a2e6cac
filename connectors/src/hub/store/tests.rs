//! On real files, as they are after each step.

use tempfile::TempDir;
use tidings_subscriber::database;

use super::wishes::{WISHES_OF_HOST, WISHES_OF_ONE};
use super::*;
use crate::hub::request::{Topic, Wish};

const BOUNDS: Bounds =
    Bounds { subscriptions: 3, wishes: 4, given_up: 2, failing: Duration::from_secs(100) };
const TOPIC: &str = "https://blog.example/feed";

fn store() -> (TempDir, Store) {
    let folder = TempDir::new().unwrap();
    let store = Store::open(&folder.path().join("hub.db")).unwrap();
    (folder, store)
}

fn wish(callback: u32, lease_s: Option<u64>) -> Wish {
    Wish {
        topic: Topic { url: TOPIC.parse().unwrap(), named: TOPIC.to_owned() },
        callback: format!("https://reader.example/{callback}").parse().unwrap(),
        kind: Kind::WebSub,
        lease: lease_s.map(Duration::from_secs),
        secret: Some(format!("secret {callback}")),
    }
}

#[track_caller]
fn noted(store: &Store, wish: &Wish) -> Id {
    match store.hear(std::slice::from_ref(wish), &BOUNDS, 0).unwrap()[..] {
        [Heard::Noted(id)] => id,
        ref other => panic!("{other:?}"),
    }
}

#[track_caller]
fn subscribe(store: &Store, callback: u32) -> Id {
    assert_eq!(grant(store, noted(store, &wish(callback, Some(10))), 0), Granted::Done);
    let sql = "SELECT id FROM subscriptions WHERE callback = ?1";
    let callback = format!("https://reader.example/{callback}");
    store.0.lock().query_row(sql, [callback], |row| row.get(0)).unwrap()
}

fn grant(store: &Store, id: Id, now: UnixMs) -> Granted {
    store.grant(id, &BOUNDS, now).unwrap()
}

fn put(store: &Store, body: &str) -> Stored {
    store.put(TOPIC, Some(b"text/plain"), body.as_bytes()).unwrap().unwrap()
}

fn has_body(store: &Store) -> bool {
    let sql = "SELECT body IS NOT NULL FROM topics";
    store.0.lock().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn everything_is_there_after_a_restart() {
    let (folder, store) = store();
    let id = subscribe(&store, 1);
    let wished = noted(&store, &wish(2, Some(10)));
    put(&store, "one");
    let member = store.member().unwrap();
    drop(store);
    let store = Store::open(&folder.path().join("hub.db")).unwrap();
    assert_eq!(store.member().unwrap(), member);
    assert_eq!(store.wish(wished).unwrap(), Some(wish(2, Some(10))));
    let due = store.due(id, 0).unwrap().unwrap();
    assert!(due.secret.as_deref() == Some("secret 1"));
    assert_eq!(store.content(due.topic).unwrap().unwrap().body, "one");
}

#[test]
fn a_file_of_the_first_version_goes_on_and_rows_that_change_have_digests() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("hub.db");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(CREATE).unwrap();
    old.execute_batch(&format!(
        "INSERT INTO own VALUES ('{}');
        INSERT INTO topics (url) VALUES ('{TOPIC}'), ('https://blog.example/other');
        PRAGMA user_version = 1",
        MemberId::random()
    ))
    .unwrap();
    drop(old);
    let store = Store::open(&path).unwrap();
    let id = subscribe(&store, 1);
    let stored = put(&store, "one");
    store.begun(&[id], stored, 5).unwrap();
    store.delivered(id, stored.version).unwrap();
    noted(&store, &wish(2, Some(10)));
    drop(store);
    // `own` and one topic are as they were.
    let checked = database::check(&path, Some(&SCHEMA)).unwrap();
    assert_eq!((checked.problems.len(), checked.notes.len()), (0, 2), "{checked:?}");
    drop(Store::open(&path).unwrap());
    let other = Connection::open(&path).unwrap();
    other.execute_batch("UPDATE subscriptions SET secret = 'hushed'").unwrap();
    let checked = database::check(&path, Some(&SCHEMA)).unwrap();
    assert!(checked.problems[0].starts_with("row 1 of subscriptions: "), "{checked:?}");
    assert!(!format!("{checked:?}").contains("hushed"), "no secret is shown");
}

#[test]
fn a_newer_file_is_refused_and_left_alone() {
    let (folder, store) = store();
    store.0.lock().pragma_update(None, "user_version", VERSION + 1).unwrap();
    drop(store);
    let error = Store::open(&folder.path().join("hub.db")).unwrap_err();
    assert!(error.contains("newer"), "{error}");
}

// PROTOCOL: B2
#[test]
fn of_two_wishes_for_the_same_the_later_one_wins_in_whatever_order_they_are_verified() {
    let (_folder, store) = store();
    let (first, second) = (noted(&store, &wish(1, Some(10))), noted(&store, &wish(1, None)));
    assert_eq!(grant(&store, second, 0), Granted::Done);
    assert_eq!(grant(&store, first, 0), Granted::Void);
    assert!(!store.has_subscribers(TOPIC, 0).unwrap());

    let (first, second) = (noted(&store, &wish(1, Some(10))), noted(&store, &wish(1, None)));
    assert_eq!(grant(&store, first, 0), Granted::Done);
    assert!(store.has_subscribers(TOPIC, 0).unwrap());
    assert_eq!(grant(&store, second, 0), Granted::Done);
    assert!(!store.has_subscribers(TOPIC, 0).unwrap());
}

#[test]
fn what_nobody_has_shown_to_want_changes_nothing() {
    let (_folder, store) = store();
    let subscribed = subscribe(&store, 1);
    let stranger = noted(&store, &wish(1, None));
    store.forget(stranger).unwrap();
    assert_eq!(grant(&store, stranger, 0), Granted::Void);
    put(&store, "one");
    assert!(store.due(subscribed, 0).unwrap().is_some());
}

// PROTOCOL: B3
#[test]
fn a_renewal_is_the_same_subscription_with_a_new_lease_and_secret() {
    let (_folder, store) = store();
    let id = subscribe(&store, 1);
    let renewed = Wish { secret: None, ..wish(1, Some(20)) };
    assert_eq!(grant(&store, noted(&store, &renewed), 5_000), Granted::Done);
    put(&store, "one");
    assert_eq!(store.due(id, 24_999).unwrap().unwrap().secret, None);
    assert!(store.due(id, 25_000).unwrap().is_none(), "its lease is over");
}

#[test]
fn there_is_a_bound_for_subscriptions_and_for_wishes() {
    let (_folder, store) = store();
    let hear = |wish: &Wish| store.hear(std::slice::from_ref(wish), &BOUNDS, 0).unwrap();
    assert_eq!(hear(&wish(9, None)), [Heard::Nothing]);
    for callback in 1..=3 {
        subscribe(&store, callback);
    }
    assert_eq!(hear(&wish(4, Some(1))), [Heard::Full]);
    // Who has a subscription renews and ends it, but not without end.
    for _ in 0..WISHES_OF_ONE {
        noted(&store, &wish(1, Some(1)));
    }
    assert_eq!(hear(&wish(1, Some(1))), [Heard::Full]);
    noted(&store, &wish(2, None));
    noted(&store, &wish(3, Some(1)));
}

#[test]
fn whoever_was_heard_when_there_was_more_room_is_not_taken_without_it() {
    let (_folder, store) = store();
    subscribe(&store, 1);
    let (renewal, second) = (noted(&store, &wish(1, Some(9))), noted(&store, &wish(2, Some(9))));
    let fewer = Bounds { subscriptions: 1, ..BOUNDS };
    assert_eq!(store.grant(second, &fewer, 0).unwrap(), Granted::Full);
    assert_eq!(store.wish(second).unwrap(), None, "it is not asked again");
    assert_eq!(store.grant(renewal, &fewer, 0).unwrap(), Granted::Done);
    assert_eq!(store.counts().unwrap(), Counts { topics: 1, subscribers: 1, waiting: 0 });
    let end = noted(&store, &wish(1, None));
    assert_eq!(store.grant(end, &fewer, 0).unwrap(), Granted::Done);
    let third = noted(&store, &wish(3, Some(9)));
    assert_eq!(store.counts().unwrap().waiting, 1);
    assert_eq!(store.grant(third, &fewer, 0).unwrap(), Granted::Done, "there is a place again");
}

#[test]
fn whoever_wishes_much_in_one_name_leaves_room_for_others() {
    let (_folder, store) = store();
    let bounds = Bounds { subscriptions: 1_000, wishes: 1_000, ..BOUNDS };
    let hear = |wish: &Wish| store.hear(std::slice::from_ref(wish), &bounds, 0).unwrap().remove(0);
    let heard = (0..200).map(|callback| hear(&wish(callback, Some(1))));
    let noted = heard.filter(|heard| matches!(heard, Heard::Noted(_))).count();
    assert_eq!(noted as u64, WISHES_OF_HOST);
    let other = Wish { callback: "https://other.example/".parse().unwrap(), ..wish(0, Some(1)) };
    assert!(matches!(hear(&other), Heard::Noted(_)));
}

#[test]
fn nothing_is_on_its_way_twice_and_who_missed_something_is_told_again() {
    let (_folder, store) = store();
    let id = subscribe(&store, 1);
    assert_eq!(grant(&store, noted(&store, &wish(1, Some(1_000_000))), 0), Granted::Done);
    let recipients = |stored, now| {
        let recipients = store.recipients(stored, 0, 10, now).unwrap();
        recipients.into_iter().map(|(id, _, begun)| (id, begun)).collect::<Vec<_>>()
    };
    let first = put(&store, "one");
    assert_eq!(recipients(first, 0), [(id, 0)]);
    store.begun(&[id], first, 0).unwrap();
    assert_eq!(recipients(first, 1), []);
    let second = put(&store, "two");
    assert_eq!(recipients(second, 1), [], "what is on its way is the newest when it gets there");
    // It comes to nothing.
    store.failed(id, false, &BOUNDS, 0).unwrap();
    assert_eq!(recipients(second, 1), [], "it is tried again");
    store.failed(id, true, &BOUNDS, 0).unwrap();
    assert_eq!(recipients(second, 1), [(id, 1)]);
    store.begun(&[id], second, 0).unwrap();
    assert_eq!(recipients(second, BEGUN_MS_MAX), [(id, 2)], "it was lost with its group, say");
    // Noted late: it has arrived by then.
    store.delivered(id, second.version).unwrap();
    store.begun(&[id], second, 0).unwrap();
    let third = put(&store, "three");
    assert_eq!(recipients(third, 1), [(id, 2)]);
}

#[test]
fn several_wishes_are_noted_together_or_not_at_all() {
    let (_folder, store) = store();
    let wishes: Vec<_> = (1..=4).map(|callback| wish(callback, Some(10))).collect();
    assert_eq!(store.hear(&wishes, &BOUNDS, 0).unwrap(), [Heard::Full]);
    let sql = "SELECT count(*) FROM wishes";
    let count: i64 = store.0.lock().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 0);
}

#[test]
fn a_content_is_distributed_once_and_kept_until_everybody_has_it() {
    let (_folder, store) = store();
    let (first, second) = (subscribe(&store, 1), subscribe(&store, 2));
    let stored = put(&store, "one");
    assert_eq!((stored.version, stored.is_announced), (1, false));
    let ids = |after| -> Vec<Id> {
        let recipients = store.recipients(stored, after, 10, 0).unwrap();
        recipients.into_iter().map(|(id, ..)| id).collect()
    };
    assert_eq!(ids(0), [first, second]);
    assert_eq!(ids(first), [second]);
    store.announced(stored).unwrap();
    let again = put(&store, "one");
    assert_eq!((again.version, again.is_announced), (1, true));
    store.delivered(first, 1).unwrap();
    assert!(store.due(first, 0).unwrap().is_none());
    assert!(has_body(&store));
    store.delivered(second, 1).unwrap();
    assert!(!has_body(&store));
    assert_eq!(put(&store, "two").version, 2);
    assert_eq!(put(&store, "one").version, 3, "what comes back is news, too");
}

#[test]
fn who_subscribes_later_is_not_told_what_was_before() {
    let (_folder, store) = store();
    subscribe(&store, 1);
    let stored = put(&store, "one");
    let later = subscribe(&store, 2);
    assert!(store.due(later, 0).unwrap().is_none());
    assert_eq!(store.recipients(stored, 0, 10, 0).unwrap().len(), 1);
}

#[test]
fn a_subscriber_is_dropped_when_its_deliveries_come_to_nothing() {
    let (_folder, store) = store();
    let id = subscribe(&store, 1);
    let failed = |is_last, now| store.failed(id, is_last, &BOUNDS, now).unwrap();
    assert!(!failed(false, 0) && !failed(true, 0));
    store.delivered(id, 0).unwrap();
    assert!(!failed(true, 0), "it has been well meanwhile");
    assert!(!failed(false, 0));
    assert!(failed(true, 0), "the second in a row");
    let id = subscribe(&store, 1);
    let many = Bounds { given_up: 100, ..BOUNDS };
    let failed = |is_last, now| store.failed(id, is_last, &many, now).unwrap();
    assert!(!failed(true, 0) && !failed(false, 200_000));
    assert!(!failed(true, 200_000), "two are no habit, however far apart");
    assert!(!failed(false, 200_000));
    assert!(failed(true, 200_000), "nothing has reached it for so long");
}

#[test]
fn what_has_ended_is_swept() {
    let (_folder, store) = store();
    let gone = subscribe(&store, 1);
    let wished = noted(&store, &wish(2, Some(10)));
    put(&store, "one");
    assert_eq!(store.sweep(9_999).unwrap(), 0);
    assert_eq!(store.sweep(10_000).unwrap(), 1);
    assert!(store.due(gone, 0).unwrap().is_none());
    assert!(store.wish(wished).unwrap().is_some());
    store.sweep(WISH_MS_MAX).unwrap();
    assert!(store.wish(wished).unwrap().is_none());
    assert!(store.put(TOPIC, None, b"two").unwrap().is_none(), "the topic is gone");
    let id = subscribe(&store, 1);
    assert!(id > gone, "ids are never given twice");
}

#[test]
fn only_the_owner_reads_secrets() {
    let (folder, store) = store();
    subscribe(&store, 1);
    let mut files = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        files += 1;
    }
    assert_eq!(files, 3, "the database, its log, and the index of that");
}

#[test]
fn who_comes_back_after_its_lease_begins_anew() {
    let (_folder, store) = store();
    let id = subscribe(&store, 1);
    put(&store, "one");
    let renewed = noted(&store, &wish(1, Some(100)));
    assert_eq!(grant(&store, renewed, 9_999), Granted::Done);
    assert!(store.due(id, 9_999).unwrap().is_some(), "in time, nothing is lost");
    let late = noted(&store, &wish(1, Some(100)));
    assert_eq!(grant(&store, late, 200_000), Granted::Done);
    assert!(store.due(id, 200_000).unwrap().is_none());
}
