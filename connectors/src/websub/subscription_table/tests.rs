use tidings_documents::feed::FeedEntry;

use super::super::subscription::{HubMode, HubRequestOutcome, LeaseTerms};
use super::*;

const NOW: u64 = 1_700_000_000_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const LEASE_MS: u64 = 10 * DAY_MS;

fn open_table() -> (tempfile::TempDir, SubscriptionTable) {
    let directory = tempfile::tempdir().unwrap();
    let table = SubscriptionTable::open(&directory.path().join("websub.db")).unwrap();
    (directory, table)
}

fn report_hubs(table: &mut SubscriptionTable, feed: &str, hubs: &[&str], now_ms: u64) {
    let url = CanonicalUrl::parse(feed).unwrap();
    let hubs = Hubs { hubs: hubs.iter().map(ToString::to_string).collect(), ..Hubs::default() };
    let known = KnownItems::newest(&[FeedEntry { id: feed.into(), ..FeedEntry::default() }], 9);
    let watched = WatchedUrl { url: feed, kind: WatchedKind::Feed };
    table.update_hubs(&url, watched, &hubs, known, now_ms).unwrap();
}

fn verify_subscription(table: &mut SubscriptionTable, token: &str, now_ms: u64) {
    let topic = table.get(token).unwrap().feed.clone();
    let requested = std::time::Duration::from_millis(LEASE_MS);
    let verified = table.update(token, |subscription| {
        subscription.start_request(now_ms);
        subscription.verify(
            HubMode::Subscribe,
            &topic,
            LeaseTerms { requested, granted: None },
            now_ms,
        )
    });
    assert_eq!(verified.unwrap(), Some(Ok(())));
}

const FEED: &str = "http://a.example/f";
const HUB_A: &str = "http://a.example/hub";
const HUB_B: &str = "http://b.example/hub";

// PROTOCOL: V1
#[test]
fn a_feed_may_change_its_hub_once_a_day_and_the_old_subscription_is_cancelled() {
    let (_directory, mut table) = open_table();
    report_hubs(&mut table, FEED, &[HUB_A], NOW);
    let first = table.take_due(NOW, 9).remove(0);
    verify_subscription(&mut table, &first, NOW);
    table.request_finished(&first);
    report_hubs(&mut table, FEED, &[HUB_B], NOW + DAY_MS - 1);
    assert!(table.take_due(NOW + DAY_MS - 1, 9).is_empty(), "at most once a day");

    let now = NOW + DAY_MS;
    report_hubs(&mut table, FEED, &[HUB_B], now);
    let due = table.take_due(now, 9);
    assert_eq!(due.len(), 2);
    let requests = due.iter().map(|token| {
        let mode =
            table.update(token, |subscription| subscription.start_request(now)).unwrap().unwrap();
        (table.get(token).unwrap().endpoint.url().to_owned(), mode)
    });
    let mut requests: Vec<_> = requests.collect();
    requests.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        requests,
        [(HUB_A.to_owned(), HubMode::Unsubscribe), (HUB_B.to_owned(), HubMode::Subscribe)]
    );
    // Removing the old subscription keeps the new one.
    table.remove(&first).unwrap();
    report_hubs(&mut table, FEED, &[HUB_B], now + 1);
    assert_eq!(table.by_token.len(), 1);

    // An additional hub changes nothing yet.
    let (token, _) = table
        .by_token
        .iter()
        .next()
        .map(|(token, subscription)| (token.clone(), subscription.clone()))
        .unwrap();
    report_hubs(&mut table, FEED, &[HUB_A, HUB_B], now + DAY_MS);
    assert!(table.by_token.len() == 1 && !table.get(&token).unwrap().is_cancelled);
}

#[test]
fn a_successor_has_its_own_callback_and_the_same_known_items() {
    let (directory, mut table) = open_table();
    report_hubs(&mut table, FEED, &[HUB_A, HUB_B], NOW);
    let first = table.take_due(NOW, 9).remove(0);
    assert!(!table.replace_with_successor(&first, NOW).unwrap(), "no request was sent yet");
    let known = table.known_items(&first).unwrap();
    table
        .update(&first, |subscription| {
            subscription.start_request(NOW);
            subscription.finish_request(HubRequestOutcome::Refused, NOW)
        })
        .unwrap();
    assert!(table.replace_with_successor(&first, NOW).unwrap());
    let second = table.take_due(NOW, 9).remove(0);
    for table in [table, SubscriptionTable::open(&directory.path().join("websub.db")).unwrap()] {
        assert!(table.get(&first).is_none() && !table.tokens().read().contains(&first));
        assert!(table.tokens().read().contains(&second));
        assert_eq!(table.get(&second).unwrap().endpoint.url(), HUB_B);
        assert_eq!((table.known_items(&second).unwrap(), table.by_token.len()), (known.clone(), 1));
        assert_eq!(table.by_feed[FEED], second);
    }
}

#[test]
fn a_full_table_spreads_its_renewals_over_time() {
    let (directory, mut table) = open_table();
    table.store.disable_sync();
    let feed = |n: usize| format!("http://a.example/feed-{n}.xml");
    for n in 0..=SUBSCRIPTIONS_MAX {
        report_hubs(&mut table, &feed(n), &[HUB_A], NOW);
    }
    assert_eq!(table.by_token.len(), SUBSCRIPTIONS_MAX);
    assert!(!table.by_feed.contains_key(&feed(SUBSCRIPTIONS_MAX)), "the table is full");
    assert_eq!(table.take_due(NOW, 16).len(), 16, "at most 16 at a time");
    assert_eq!(table.take_due(NOW, 16).len(), 0);
    let tokens: Vec<_> = table.by_token.keys().cloned().collect();
    for token in &tokens {
        verify_subscription(&mut table, token, NOW);
        table.request_finished(token);
    }
    assert_eq!(table.pending_crawler_updates(NOW).len(), SUBSCRIPTIONS_MAX);
    // All began at the same time. Their renewals are spread over the hours of two days.
    let mut hours = [0; 48];
    for subscription in table.by_token.values() {
        let hour = (subscription.due_ms - NOW - LEASE_MS * 3 / 5) / (60 * MINUTE_MS);
        hours[usize::try_from(hour).unwrap().min(47)] += 1;
    }
    let share = SUBSCRIPTIONS_MAX / hours.len();
    assert!(hours.iter().all(|hour| (share / 2..share * 2).contains(hour)), "{hours:?}");
    let path = directory.path().join("websub.db");
    let reopened = SubscriptionTable::open(&path).unwrap();
    assert_eq!(reopened.by_token, table.by_token);
}

#[test]
fn a_page_subscription_keeps_the_newest_version() {
    let (_directory, mut table) = open_table();
    let url = CanonicalUrl::parse(FEED).unwrap();
    let hubs = Hubs { hubs: vec![HUB_A.to_owned()], ..Hubs::default() };
    let mut versions = KnownItems::default();
    let mut version = |version| {
        versions.set_version(version);
        versions.clone()
    };
    let (first, second) = (version(1), version(2));
    let watched = WatchedUrl { url: FEED, kind: WatchedKind::Page };
    table.update_hubs(&url, watched, &hubs, first.clone(), NOW).unwrap();
    let token = table.take_due(NOW, 9).remove(0);
    assert_eq!(table.get(&token).unwrap().kind, WatchedKind::Page);
    table.add_known_items(&token, second.clone()).unwrap();
    // A crawler that does not know the second version yet.
    table.update_hubs(&url, watched, &hubs, first, NOW).unwrap();
    assert_eq!(table.known_items(&token).unwrap(), second);
    let third = version(3);
    table.update_hubs(&url, watched, &hubs, third.clone(), NOW).unwrap();
    assert_eq!(table.known_items(&token).unwrap(), third);
}
