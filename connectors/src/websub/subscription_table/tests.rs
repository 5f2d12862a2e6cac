use tidings_subscriber::feed::FeedEntry;

use super::super::subscription::{HubMode, HubRequestOutcome, LeaseTerms};
use super::*;

const NOW: u64 = 1_700_000_000_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const LEASE_MS: u64 = 10 * DAY_MS;

fn open_table() -> (tempfile::TempDir, SubscriptionTable) {
    let directory = tempfile::tempdir().unwrap();
    let book = SubscriptionTable::open(&directory.path().join("websub.db")).unwrap();
    (directory, book)
}

fn report_hubs(book: &mut SubscriptionTable, feed: &str, hubs: &[&str], now_ms: u64) {
    let url = CanonicalUrl::parse(feed).unwrap();
    let hubs = Hubs { hubs: hubs.iter().map(ToString::to_string).collect(), ..Hubs::default() };
    let known = KnownItems::newest(&[FeedEntry { id: feed.into(), ..FeedEntry::default() }], 9);
    let watched = WatchedUrl { url: feed, kind: WatchedKind::Feed };
    book.update_hubs(&url, watched, &hubs, known, now_ms).unwrap();
}

fn verify_subscription(book: &mut SubscriptionTable, token: &str, now_ms: u64) {
    let topic = book.get(token).unwrap().feed.clone();
    let asked = std::time::Duration::from_millis(LEASE_MS);
    let verified = book.update(token, |one| {
        one.start_request(now_ms);
        one.verify(
            HubMode::Subscribe,
            &topic,
            LeaseTerms { requested: asked, granted: None },
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
    let (_directory, mut book) = open_table();
    report_hubs(&mut book, FEED, &[HUB_A], NOW);
    let first = book.take_due(NOW, 9).remove(0);
    verify_subscription(&mut book, &first, NOW);
    book.request_finished(&first);
    report_hubs(&mut book, FEED, &[HUB_B], NOW + DAY_MS - 1);
    assert!(book.take_due(NOW + DAY_MS - 1, 9).is_empty(), "not more often than once a day");

    let now = NOW + DAY_MS;
    report_hubs(&mut book, FEED, &[HUB_B], now);
    let due = book.take_due(now, 9);
    assert_eq!(due.len(), 2);
    let wishes = due.iter().map(|token| {
        let wish = book.update(token, |one| one.start_request(now)).unwrap().unwrap();
        (book.get(token).unwrap().teller.url().to_owned(), wish)
    });
    let mut wishes: Vec<_> = wishes.collect();
    wishes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        wishes,
        [(HUB_A.to_owned(), HubMode::Unsubscribe), (HUB_B.to_owned(), HubMode::Subscribe)]
    );
    // The end of the old one is not that of the new one.
    book.remove(&first).unwrap();
    report_hubs(&mut book, FEED, &[HUB_B], now + 1);
    assert_eq!(book.by_token.len(), 1);

    // One that is named besides changes nothing for now.
    let (token, _) =
        book.by_token.iter().next().map(|(token, one)| (token.clone(), one.clone())).unwrap();
    report_hubs(&mut book, FEED, &[HUB_A, HUB_B], now + DAY_MS);
    assert!(book.by_token.len() == 1 && !book.get(&token).unwrap().is_cancelled());
}

#[test]
fn a_successor_has_its_own_callback_and_the_same_known_items() {
    let (directory, mut book) = open_table();
    report_hubs(&mut book, FEED, &[HUB_A, HUB_B], NOW);
    let first = book.take_due(NOW, 9).remove(0);
    assert!(!book.replace_with_successor(&first, NOW).unwrap(), "it was not asked yet");
    let known = book.known_items(&first).unwrap();
    book.update(&first, |one| {
        one.start_request(NOW);
        one.finish_request(HubRequestOutcome::Refused, NOW)
    })
    .unwrap();
    assert!(book.replace_with_successor(&first, NOW).unwrap());
    let second = book.take_due(NOW, 9).remove(0);
    for book in [book, SubscriptionTable::open(&directory.path().join("websub.db")).unwrap()] {
        assert!(book.get(&first).is_none() && !book.tokens().read().contains(&first));
        assert!(book.tokens().read().contains(&second));
        assert_eq!(book.get(&second).unwrap().teller.url(), HUB_B);
        assert_eq!((book.known_items(&second).unwrap(), book.by_token.len()), (known.clone(), 1));
        assert_eq!(book.by_feed[FEED], second);
    }
}

#[test]
fn a_full_table_spreads_its_renewals_over_time() {
    let (directory, mut book) = open_table();
    book.store.disable_sync();
    let feed = |n: usize| format!("http://a.example/feed-{n}.xml");
    for n in 0..=SUBSCRIPTIONS_MAX {
        report_hubs(&mut book, &feed(n), &[HUB_A], NOW);
    }
    assert_eq!(book.by_token.len(), SUBSCRIPTIONS_MAX);
    assert!(!book.by_feed.contains_key(&feed(SUBSCRIPTIONS_MAX)), "no room");
    assert_eq!(book.take_due(NOW, 16).len(), 16, "so many at a time");
    assert_eq!(book.take_due(NOW, 16).len(), 0);
    let tokens: Vec<_> = book.by_token.keys().cloned().collect();
    for token in &tokens {
        verify_subscription(&mut book, token, NOW);
        book.request_finished(token);
    }
    assert_eq!(book.pending_crawler_updates(NOW).len(), SUBSCRIPTIONS_MAX);
    // All began at once; each hour of the two days in which they are due has its share.
    let mut hours = [0; 48];
    for one in book.by_token.values() {
        let hour = (one.due_ms() - NOW - LEASE_MS * 3 / 5) / (60 * MINUTE_MS);
        hours[usize::try_from(hour).unwrap().min(47)] += 1;
    }
    let share = SUBSCRIPTIONS_MAX / hours.len();
    assert!(hours.iter().all(|hour| (share / 2..share * 2).contains(hour)), "{hours:?}");
    let path = directory.path().join("websub.db");
    let again = SubscriptionTable::open(&path).unwrap();
    assert_eq!(again.by_token, book.by_token);
}

#[test]
fn a_page_subscription_keeps_the_newest_version() {
    let (_directory, mut book) = open_table();
    let url = CanonicalUrl::parse(FEED).unwrap();
    let hubs = Hubs { hubs: vec![HUB_A.to_owned()], ..Hubs::default() };
    let mut versions = KnownItems::default();
    let mut version = |version| {
        versions.set_version(version);
        versions.clone()
    };
    let (first, second) = (version(1), version(2));
    let watched = WatchedUrl { url: FEED, kind: WatchedKind::Page };
    book.update_hubs(&url, watched, &hubs, first.clone(), NOW).unwrap();
    let token = book.take_due(NOW, 9).remove(0);
    assert_eq!(book.get(&token).unwrap().kind, WatchedKind::Page);
    book.add_known_items(&token, second.clone()).unwrap();
    // A crawler that has not seen the second one yet.
    book.update_hubs(&url, watched, &hubs, first, NOW).unwrap();
    assert_eq!(book.known_items(&token).unwrap(), second);
    let third = version(3);
    book.update_hubs(&url, watched, &hubs, third.clone(), NOW).unwrap();
    assert_eq!(book.known_items(&token).unwrap(), third);
}
