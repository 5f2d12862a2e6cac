use tidings_subscriber::feed::FeedEntry;

use super::super::subscription::{Asked, Lease, Wish};
use super::*;

const NOW: u64 = 1_700_000_000_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const LEASE_MS: u64 = 10 * DAY_MS;

fn open() -> (tempfile::TempDir, Book) {
    let directory = tempfile::tempdir().unwrap();
    let book = Book::open(&directory.path().join("websub.db")).unwrap();
    (directory, book)
}

fn found(book: &mut Book, feed: &str, hubs: &[&str], now_ms: u64) {
    let url = CanonicalUrl::parse(feed).unwrap();
    let hubs = Hubs { hubs: hubs.iter().map(ToString::to_string).collect(), ..Hubs::default() };
    let known = KnownItems::newest(&[FeedEntry { id: feed.into(), ..FeedEntry::default() }], 9);
    let watched = Watched { url: feed, kind: Kind::Feed };
    book.found(&url, watched, &hubs, known, now_ms).unwrap();
}

fn is_verified(book: &mut Book, token: &str, now_ms: u64) {
    let topic = book.get(token).unwrap().feed.clone();
    let asked = std::time::Duration::from_millis(LEASE_MS);
    let verified = book.change(token, |one| {
        one.ask(now_ms);
        one.verify(Wish::Subscribe, &topic, Lease { asked, granted: None }, now_ms)
    });
    assert_eq!(verified.unwrap(), Some(Ok(())));
}

const FEED: &str = "http://a.example/f";
const A: &str = "http://a.example/hub";
const B: &str = "http://b.example/hub";

// PROTOCOL: V1
#[test]
fn a_feed_that_changes_its_hub_is_followed_once_a_day_and_the_old_one_is_left() {
    let (_directory, mut book) = open();
    found(&mut book, FEED, &[A], NOW);
    let first = book.take_due(NOW, 9).remove(0);
    is_verified(&mut book, &first, NOW);
    book.was_asked(&first);
    found(&mut book, FEED, &[B], NOW + DAY_MS - 1);
    assert!(book.take_due(NOW + DAY_MS - 1, 9).is_empty(), "not more often than once a day");

    let now = NOW + DAY_MS;
    found(&mut book, FEED, &[B], now);
    let due = book.take_due(now, 9);
    assert_eq!(due.len(), 2);
    let wishes = due.iter().map(|token| {
        let wish = book.change(token, |one| one.ask(now)).unwrap().unwrap();
        (book.get(token).unwrap().teller.url().to_owned(), wish)
    });
    let mut wishes: Vec<_> = wishes.collect();
    wishes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(wishes, [(A.to_owned(), Wish::Unsubscribe), (B.to_owned(), Wish::Subscribe)]);
    // The end of the old one is not that of the new one.
    book.remove(&first).unwrap();
    found(&mut book, FEED, &[B], now + 1);
    assert_eq!(book.all.len(), 1);

    // One that is named besides changes nothing for now.
    let (token, _) =
        book.all.iter().next().map(|(token, one)| (token.clone(), one.clone())).unwrap();
    found(&mut book, FEED, &[A, B], now + DAY_MS);
    assert!(book.all.len() == 1 && !book.get(&token).unwrap().is_leaving());
}

#[test]
fn who_takes_the_place_of_another_has_a_callback_of_its_own_and_knows_the_same() {
    let (directory, mut book) = open();
    found(&mut book, FEED, &[A, B], NOW);
    let first = book.take_due(NOW, 9).remove(0);
    assert!(!book.go_on(&first, NOW).unwrap(), "it was not asked yet");
    let known = book.known(&first).unwrap();
    book.change(&first, |one| {
        one.ask(NOW);
        one.was_asked(Asked::Refused, NOW)
    })
    .unwrap();
    assert!(book.go_on(&first, NOW).unwrap());
    let second = book.take_due(NOW, 9).remove(0);
    for book in [book, Book::open(&directory.path().join("websub.db")).unwrap()] {
        assert!(book.get(&first).is_none() && !book.tokens().read().contains(&first));
        assert!(book.tokens().read().contains(&second));
        assert_eq!(book.get(&second).unwrap().teller.url(), B);
        assert_eq!((book.known(&second).unwrap(), book.all.len()), (known.clone(), 1));
        assert_eq!(book.by_feed[FEED], second);
    }
}

#[test]
fn as_many_as_there_may_be_are_asked_again_one_after_the_other() {
    let (directory, mut book) = open();
    book.store.hurry();
    let feed = |n: usize| format!("http://a.example/feed-{n}.xml");
    for n in 0..=SUBSCRIPTIONS_MAX {
        found(&mut book, &feed(n), &[A], NOW);
    }
    assert_eq!(book.all.len(), SUBSCRIPTIONS_MAX);
    assert!(!book.by_feed.contains_key(&feed(SUBSCRIPTIONS_MAX)), "no room");
    assert_eq!(book.take_due(NOW, 16).len(), 16, "so many at a time");
    assert_eq!(book.take_due(NOW, 16).len(), 0);
    let tokens: Vec<_> = book.all.keys().cloned().collect();
    for token in &tokens {
        is_verified(&mut book, token, NOW);
        book.was_asked(token);
    }
    assert_eq!(book.untold(NOW).len(), SUBSCRIPTIONS_MAX);
    // All began at once; each hour of the two days in which they are due has its share.
    let mut hours = [0; 48];
    for one in book.all.values() {
        let hour = (one.due_ms() - NOW - LEASE_MS * 3 / 5) / (60 * MINUTE_MS);
        hours[usize::try_from(hour).unwrap().min(47)] += 1;
    }
    let share = SUBSCRIPTIONS_MAX / hours.len();
    assert!(hours.iter().all(|hour| (share / 2..share * 2).contains(hour)), "{hours:?}");
    let path = directory.path().join("websub.db");
    let again = Book::open(&path).unwrap();
    assert_eq!(again.all, book.all);
}

#[test]
fn of_a_page_the_newest_version_is_known() {
    let (_directory, mut book) = open();
    let url = CanonicalUrl::parse(FEED).unwrap();
    let hubs = Hubs { hubs: vec![A.to_owned()], ..Hubs::default() };
    let mut versions = KnownItems::default();
    let mut version = |version| {
        versions.set_version(version);
        versions.clone()
    };
    let (first, second) = (version(1), version(2));
    let watched = Watched { url: FEED, kind: Kind::Page };
    book.found(&url, watched, &hubs, first.clone(), NOW).unwrap();
    let token = book.take_due(NOW, 9).remove(0);
    assert_eq!(book.get(&token).unwrap().kind, Kind::Page);
    book.learn(&token, second.clone()).unwrap();
    // A crawler that has not seen the second one yet.
    book.found(&url, watched, &hubs, first, NOW).unwrap();
    assert_eq!(book.known(&token).unwrap(), second);
    let third = version(3);
    book.found(&url, watched, &hubs, third.clone(), NOW).unwrap();
    assert_eq!(book.known(&token).unwrap(), third);
}
