//! Tests on real files, with the state after each step.

use tempfile::TempDir;
use tidings_database::CheckReport;

use super::subscription_requests::{REQUESTS_PER_HOST_MAX, REQUESTS_PER_SUBSCRIPTION_MAX};
use super::*;
use crate::hub::hub_request::{HubTopic, SubscriptionRequest};

const LIMITS: HubLimits = HubLimits {
    subscriptions_max: 3,
    pending_requests_max: 4,
    failed_deliveries_max: 2,
    failing_max: Duration::from_secs(100),
};
const TOPIC: &str = "https://blog.example/feed";

fn open_store() -> (TempDir, HubStore) {
    let folder = TempDir::new().unwrap();
    let store = HubStore::open(&folder.path().join("hub.db")).unwrap();
    (folder, store)
}

fn request(callback: u32, lease_s: Option<u64>) -> SubscriptionRequest {
    SubscriptionRequest {
        topic: HubTopic { url: TOPIC.parse().unwrap(), verbatim_url: TOPIC.to_owned() },
        callback: format!("https://reader.example/{callback}").parse().unwrap(),
        protocol: SubscriberProtocol::WebSub,
        lease: lease_s.map(Duration::from_secs),
        secret: Some(format!("secret {callback}")),
    }
}

#[track_caller]
fn insert_pending(store: &HubStore, request: &SubscriptionRequest) -> RowId {
    match store.insert_requests(std::slice::from_ref(request), &LIMITS, 0).unwrap()[..] {
        [RequestOutcome::Pending(id)] => id,
        ref other => panic!("{other:?}"),
    }
}

#[track_caller]
fn subscribe(store: &HubStore, callback: u32) -> RowId {
    assert_eq!(
        grant(store, insert_pending(store, &request(callback, Some(10))), 0),
        GrantOutcome::Applied
    );
    let sql = "SELECT id FROM subscriptions WHERE callback = ?1";
    let callback = format!("https://reader.example/{callback}");
    store.0.lock().query_row(sql, [callback], |row| row.get(0)).unwrap()
}

fn grant(store: &HubStore, id: RowId, now: UnixMs) -> GrantOutcome {
    store.grant(id, &LIMITS, now).unwrap()
}

fn put_body(store: &HubStore, body: &str) -> StoredVersion {
    store.put_content(TOPIC, Some(b"text/plain"), body.as_bytes()).unwrap().unwrap()
}

fn has_body(store: &HubStore) -> bool {
    let sql = "SELECT body IS NOT NULL FROM topics";
    store.0.lock().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn all_rows_survive_a_restart() {
    let (folder, store) = open_store();
    let id = subscribe(&store, 1);
    let pending = insert_pending(&store, &request(2, Some(10)));
    put_body(&store, "one");
    let member = store.member_id().unwrap();
    drop(store);
    let store = HubStore::open(&folder.path().join("hub.db")).unwrap();
    assert_eq!(store.member_id().unwrap(), member);
    assert_eq!(store.pending_request(pending).unwrap(), Some(request(2, Some(10))));
    let due = store.due_delivery(id, 0).unwrap().unwrap();
    assert!(due.secret.as_deref() == Some("secret 1"));
    assert_eq!(store.content(due.topic_id).unwrap().unwrap().body, "one");
}

#[test]
fn changed_rows_have_digests() {
    let (folder, store) = open_store();
    let path = folder.path().join("hub.db");
    let id = subscribe(&store, 1);
    let stored = put_body(&store, "one");
    store.mark_in_flight(&[id], stored, 5).unwrap();
    store.mark_delivered(id, stored.version).unwrap();
    insert_pending(&store, &request(2, Some(10)));
    drop(store);
    let check = || tidings_database::check(&path, Some(&SCHEMA)).unwrap();
    assert_eq!(check(), CheckReport::default());
    let other = Connection::open(&path).unwrap();
    other.execute_batch("UPDATE subscriptions SET secret = 'hushed'").unwrap();
    let checked = check();
    assert!(checked.problems[0].starts_with("row 1 of subscriptions: "), "{checked:?}");
    assert!(!format!("{checked:?}").contains("hushed"), "no secret is shown");
}

#[test]
fn a_file_of_another_version_is_refused() {
    let (folder, store) = open_store();
    store.0.lock().pragma_update(None, "user_version", SCHEMA.version + 1).unwrap();
    drop(store);
    let error = HubStore::open(&folder.path().join("hub.db")).unwrap_err();
    assert!(error.contains("its schema version is 2"), "{error}");
}

// PROTOCOL: B2
#[test]
fn the_later_of_two_requests_wins_in_either_order_of_verification() {
    let (_folder, store) = open_store();
    let (first, second) =
        (insert_pending(&store, &request(1, Some(10))), insert_pending(&store, &request(1, None)));
    assert_eq!(grant(&store, second, 0), GrantOutcome::Applied);
    assert_eq!(grant(&store, first, 0), GrantOutcome::Superseded);
    assert!(!store.has_subscribers(TOPIC, 0).unwrap());

    let (first, second) =
        (insert_pending(&store, &request(1, Some(10))), insert_pending(&store, &request(1, None)));
    assert_eq!(grant(&store, first, 0), GrantOutcome::Applied);
    assert!(store.has_subscribers(TOPIC, 0).unwrap());
    assert_eq!(grant(&store, second, 0), GrantOutcome::Applied);
    assert!(!store.has_subscribers(TOPIC, 0).unwrap());
}

#[test]
fn an_unverified_request_changes_nothing() {
    let (_folder, store) = open_store();
    let subscribed = subscribe(&store, 1);
    let unverified = insert_pending(&store, &request(1, None));
    store.remove_request(unverified).unwrap();
    assert_eq!(grant(&store, unverified, 0), GrantOutcome::Superseded);
    put_body(&store, "one");
    assert!(store.due_delivery(subscribed, 0).unwrap().is_some());
}

// PROTOCOL: B3
#[test]
fn a_renewal_replaces_the_lease_and_the_secret() {
    let (_folder, store) = open_store();
    let id = subscribe(&store, 1);
    let renewed = SubscriptionRequest { secret: None, ..request(1, Some(20)) };
    assert_eq!(grant(&store, insert_pending(&store, &renewed), 5_000), GrantOutcome::Applied);
    put_body(&store, "one");
    assert_eq!(store.due_delivery(id, 24_999).unwrap().unwrap().secret, None);
    assert!(store.due_delivery(id, 25_000).unwrap().is_none(), "the lease has expired");
}

#[test]
fn subscriptions_and_pending_requests_are_limited() {
    let (_folder, store) = open_store();
    let insert = |request: &SubscriptionRequest| {
        store.insert_requests(std::slice::from_ref(request), &LIMITS, 0).unwrap()
    };
    assert_eq!(insert(&request(9, None)), [RequestOutcome::NotSubscribed]);
    for callback in 1..=3 {
        subscribe(&store, callback);
    }
    assert_eq!(insert(&request(4, Some(1))), [RequestOutcome::Full]);
    // A subscriber can renew and end its subscription, up to a limit.
    for _ in 0..REQUESTS_PER_SUBSCRIPTION_MAX {
        insert_pending(&store, &request(1, Some(1)));
    }
    assert_eq!(insert(&request(1, Some(1))), [RequestOutcome::Full]);
    insert_pending(&store, &request(2, None));
    insert_pending(&store, &request(3, Some(1)));
}

#[test]
fn a_lowered_limit_applies_to_pending_requests() {
    let (_folder, store) = open_store();
    subscribe(&store, 1);
    let (renewal, second) = (
        insert_pending(&store, &request(1, Some(9))),
        insert_pending(&store, &request(2, Some(9))),
    );
    let fewer = HubLimits { subscriptions_max: 1, ..LIMITS };
    assert_eq!(store.grant(second, &fewer, 0).unwrap(), GrantOutcome::Full);
    assert_eq!(store.pending_request(second).unwrap(), None, "it is not verified again");
    assert_eq!(store.grant(renewal, &fewer, 0).unwrap(), GrantOutcome::Applied);
    assert_eq!(
        store.counts().unwrap(),
        HubCounts { topics: 1, subscribers: 1, pending_requests: 0 }
    );
    let end = insert_pending(&store, &request(1, None));
    assert_eq!(store.grant(end, &fewer, 0).unwrap(), GrantOutcome::Applied);
    let third = insert_pending(&store, &request(3, Some(9)));
    assert_eq!(store.counts().unwrap().pending_requests, 1);
    assert_eq!(
        store.grant(third, &fewer, 0).unwrap(),
        GrantOutcome::Applied,
        "one subscription has ended"
    );
}

#[test]
fn pending_requests_of_one_host_are_limited() {
    let (_folder, store) = open_store();
    let limits = HubLimits { subscriptions_max: 1_000, pending_requests_max: 1_000, ..LIMITS };
    let insert = |request: &SubscriptionRequest| {
        store.insert_requests(std::slice::from_ref(request), &limits, 0).unwrap().remove(0)
    };
    let outcomes = (0..200).map(|callback| insert(&request(callback, Some(1))));
    let pending = outcomes.filter(|outcome| matches!(outcome, RequestOutcome::Pending(_))).count();
    assert_eq!(pending as u64, REQUESTS_PER_HOST_MAX);
    let other = SubscriptionRequest {
        callback: "https://other.example/".parse().unwrap(),
        ..request(0, Some(1))
    };
    assert!(matches!(insert(&other), RequestOutcome::Pending(_)));
}

#[test]
fn a_delivery_is_in_flight_once_and_missed_content_is_sent_again() {
    let (_folder, store) = open_store();
    let id = subscribe(&store, 1);
    assert_eq!(
        grant(&store, insert_pending(&store, &request(1, Some(1_000_000))), 0),
        GrantOutcome::Applied
    );
    let recipients = |stored, now| {
        let recipients = store.next_recipients(stored, 0, 10, now).unwrap();
        recipients.into_iter().map(|(id, _, begun)| (id, begun)).collect::<Vec<_>>()
    };
    let first = put_body(&store, "one");
    assert_eq!(recipients(first, 0), [(id, 0)]);
    store.mark_in_flight(&[id], first, 0).unwrap();
    assert_eq!(recipients(first, 1), []);
    let second = put_body(&store, "two");
    assert_eq!(recipients(second, 1), [], "the delivery in flight sends the newest content");
    // The delivery fails.
    store.record_failure(id, false, &LIMITS, 0).unwrap();
    assert_eq!(recipients(second, 1), [], "it is retried");
    store.record_failure(id, true, &LIMITS, 0).unwrap();
    assert_eq!(recipients(second, 1), [(id, 1)]);
    store.mark_in_flight(&[id], second, 0).unwrap();
    assert_eq!(recipients(second, IN_FLIGHT_MS_MAX), [(id, 2)], "it counts as lost");
    // Recorded late: the delivery has succeeded by then.
    store.mark_delivered(id, second.version).unwrap();
    store.mark_in_flight(&[id], second, 0).unwrap();
    let third = put_body(&store, "three");
    assert_eq!(recipients(third, 1), [(id, 2)]);
}

#[test]
fn several_requests_are_stored_together_or_not_at_all() {
    let (_folder, store) = open_store();
    let requests: Vec<_> = (1..=4).map(|callback| request(callback, Some(10))).collect();
    assert_eq!(store.insert_requests(&requests, &LIMITS, 0).unwrap(), [RequestOutcome::Full]);
    let sql = "SELECT count(*) FROM wishes";
    let count: i64 = store.0.lock().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 0);
}

#[test]
fn content_is_distributed_once_and_kept_until_all_subscribers_have_it() {
    let (_folder, store) = open_store();
    let (first, second) = (subscribe(&store, 1), subscribe(&store, 2));
    let stored = put_body(&store, "one");
    assert_eq!((stored.version, stored.is_enqueued), (1, false));
    let ids = |after| -> Vec<RowId> {
        let recipients = store.next_recipients(stored, after, 10, 0).unwrap();
        recipients.into_iter().map(|(id, ..)| id).collect()
    };
    assert_eq!(ids(0), [first, second]);
    assert_eq!(ids(first), [second]);
    store.mark_enqueued(stored).unwrap();
    let again = put_body(&store, "one");
    assert_eq!((again.version, again.is_enqueued), (1, true));
    store.mark_delivered(first, 1).unwrap();
    assert!(store.due_delivery(first, 0).unwrap().is_none());
    assert!(has_body(&store));
    store.mark_delivered(second, 1).unwrap();
    assert!(!has_body(&store));
    assert_eq!(put_body(&store, "two").version, 2);
    assert_eq!(put_body(&store, "one").version, 3, "earlier content is a change, too");
}

#[test]
fn a_new_subscriber_does_not_receive_earlier_content() {
    let (_folder, store) = open_store();
    subscribe(&store, 1);
    let stored = put_body(&store, "one");
    let later = subscribe(&store, 2);
    assert!(store.due_delivery(later, 0).unwrap().is_none());
    assert_eq!(store.next_recipients(stored, 0, 10, 0).unwrap().len(), 1);
}

#[test]
fn a_subscriber_is_dropped_after_repeated_failures() {
    let (_folder, store) = open_store();
    let id = subscribe(&store, 1);
    let failed = |is_last, now| store.record_failure(id, is_last, &LIMITS, now).unwrap();
    assert!(!failed(false, 0) && !failed(true, 0));
    store.mark_delivered(id, 0).unwrap();
    assert!(!failed(true, 0), "a delivery has succeeded in between");
    assert!(!failed(false, 0));
    assert!(failed(true, 0), "the second in a row");
    let id = subscribe(&store, 1);
    let many = HubLimits { failed_deliveries_max: 100, ..LIMITS };
    let failed = |is_last, now| store.record_failure(id, is_last, &many, now).unwrap();
    assert!(!failed(true, 0) && !failed(false, 200_000));
    assert!(!failed(true, 200_000), "two failures are too few, however far apart");
    assert!(!failed(false, 200_000));
    assert!(failed(true, 200_000), "three failures without a success for too long");
}

#[test]
fn expired_rows_are_removed() {
    let (_folder, store) = open_store();
    let gone = subscribe(&store, 1);
    let pending = insert_pending(&store, &request(2, Some(10)));
    put_body(&store, "one");
    assert_eq!(store.remove_expired(9_999).unwrap(), 0);
    assert_eq!(store.remove_expired(10_000).unwrap(), 1);
    assert!(store.due_delivery(gone, 0).unwrap().is_none());
    assert!(store.pending_request(pending).unwrap().is_some());
    store.remove_expired(REQUEST_MS_MAX).unwrap();
    assert!(store.pending_request(pending).unwrap().is_none());
    assert!(store.put_content(TOPIC, None, b"two").unwrap().is_none(), "the topic is gone");
    let id = subscribe(&store, 1);
    assert!(id > gone, "ids are never reused");
}

#[test]
fn only_the_owner_can_read_the_files() {
    let (folder, store) = open_store();
    subscribe(&store, 1);
    let mut files = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        files += 1;
    }
    assert_eq!(files, 3, "the database, its write-ahead log, and the index of that");
}

#[test]
fn a_subscription_after_an_expired_lease_skips_earlier_content() {
    let (_folder, store) = open_store();
    let id = subscribe(&store, 1);
    put_body(&store, "one");
    let renewed = insert_pending(&store, &request(1, Some(100)));
    assert_eq!(grant(&store, renewed, 9_999), GrantOutcome::Applied);
    assert!(store.due_delivery(id, 9_999).unwrap().is_some(), "a renewal in time loses nothing");
    let late = insert_pending(&store, &request(1, Some(100)));
    assert_eq!(grant(&store, late, 200_000), GrantOutcome::Applied);
    assert!(store.due_delivery(id, 200_000).unwrap().is_none());
}
