use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{FeedEntry, FeedKind};
use super::known_items::FEED_SEEN_MAX;
use super::*;
use crate::tracking::TrackingParams;

const URL: &str = "http://a.example/f";
const MINUTE: u64 = 60_000;
const START: u64 = 1_800_000_000_000;

fn settings() -> FeedSettings {
    "10m-1d".parse().unwrap()
}

fn entry(id: &str, link: &str) -> FeedEntry {
    FeedEntry { id: id.to_owned(), link: Some(link.to_owned()), ..FeedEntry::default() }
}

fn feed(entries: Vec<FeedEntry>) -> Feed {
    Feed { kind: Some(FeedKind::Rss), entries, ..Feed::default() }
}

/// A feed with these ids, each with its own link.
fn feed_of(ids: impl IntoIterator<Item = u32>) -> Feed {
    feed(ids.into_iter().map(|id| entry(&format!("i{id}"), &format!("/{id}"))).collect())
}

fn new() -> WatchedFeed {
    WatchedFeed::new(Duration::from_hours(1), settings())
}

impl WatchedFeed {
    fn reads(&mut self, feed: &Feed, now: u64) -> CheckResult {
        self.check(
            URL,
            settings(),
            CheckOutcome::Feed(feed, Validators::default()),
            Duration::ZERO,
            now,
        )
    }

    fn sees(&mut self, outcome: CheckOutcome<'_>, rest: Duration) -> Duration {
        self.check(URL, settings(), outcome, rest, START).next
    }
}

fn ids(checked: &CheckResult) -> Vec<&str> {
    checked.new.iter().map(|item| item.id.as_str()).collect()
}

#[test]
fn settings_round_trip() {
    for text in ["10m-1d", "1s-1s", "250ms-2h,new-only"] {
        assert_eq!(text.parse::<FeedSettings>().unwrap().to_string(), text);
    }
    for text in
        ["", "10m", "1d-10m", "0-1d", "10m-1d,", "10m-1d,all", "-", "10m-1d,new-only,x", "a-b"]
    {
        assert_eq!(text.parse::<FeedSettings>(), Err(FeedSettingsError), "{text}");
    }
}

#[test]
fn existing_items_are_published_unless_new_only_is_set() {
    let mut watched = new();
    // In the order of publication.
    assert_eq!(ids(&watched.reads(&feed_of([2, 1]), START)), ["i1", "i2"]);
    assert!(watched.reads(&feed_of([2, 1]), START).new.is_empty());

    let settings: FeedSettings = "10m-1d,new-only".parse().unwrap();
    let mut watched = new();
    let mut fetch = |ids: &[u32]| {
        let feed = feed_of(ids.iter().copied());
        let outcome = CheckOutcome::Feed(&feed, Validators::default());
        watched.check(URL, settings, outcome, Duration::ZERO, START).new.len()
    };
    assert_eq!((fetch(&[2, 1]), fetch(&[3, 2, 1])), (0, 1));
}

#[test]
fn an_edited_item_is_the_same_and_two_links_with_one_id_are_two() {
    let mut watched = new();
    watched.reads(&feed(vec![entry("a", "/1")]), START);
    // The link was corrected.
    assert!(watched.reads(&feed(vec![entry("a", "/2")]), START).new.is_empty());
    // All items have the first id, so only the links distinguish them.
    let found = watched.reads(&feed(vec![entry("a", "/3"), entry("a", "/2")]), START);
    assert_eq!(found.new.iter().map(|item| item.link.as_deref()).collect::<Vec<_>>(), [Some("/3")]);
    let same = watched.reads(&feed(vec![entry("a", "/3"), entry("a", "/3")]), START);
    assert!(same.new.is_empty());
}

#[test]
fn an_item_is_the_same_under_http_and_https_and_with_any_tracking_parameters() {
    let items = |entries: &[(&str, &str)]| {
        let entries = entries.iter().map(|(id, link)| entry(id, link));
        let mut feed = feed(entries.collect());
        feed.strip_tracking(&TrackingParams::default());
        feed
    };
    let mut watched = new();
    let feed = items(&[("http://a.example/1", "http://a.example/1"), ("x", "https://a.example/2")]);
    assert_eq!(watched.reads(&feed, START).new.len(), 2);
    for same in [
        &[("https://a.example/1", "https://a.example/1"), ("x", "http://a.example/2")][..],
        &[("http://a.example/1", "https://a.example/1")],
        &[("http://a.example/1?utm_id=7", "http://a.example/1?utm_source=rss&utm_id=7")],
        // Both in one feed, with one id for all items.
        &[("x", "http://a.example/2"), ("x", "https://a.example/2")],
    ] {
        assert!(watched.reads(&items(same), START).new.is_empty(), "{same:?}");
        let delivered = watched.known.clone().add_delivered(&items(same).entries);
        assert!(delivered.is_empty(), "{same:?}");
    }
    let twice = items(&[("y", "http://a.example/3"), ("y", "https://a.example/3")]);
    assert_eq!(watched.reads(&twice, START).new.len(), 1);
}

#[test]
fn a_feed_that_breaks_off_is_requested_in_full_next_time() {
    let mut watched = new();
    let validators = Validators { etag: Some("\"1\""), last_modified: None };
    for (end, kept) in [("", None), ("</channel></rss>", Some("\"1\""))] {
        let text = format!("<rss><channel><item><link>http://a.example/1</link></item>{end}");
        let feed = crate::feed::parse(text.as_bytes(), None, None);
        let outcome = CheckOutcome::Feed(&feed, validators);
        watched.check(URL, settings(), outcome, Duration::ZERO, START);
        assert_eq!(watched.validators().etag, kept);
    }
}

#[test]
fn the_interval_follows_the_rate_of_items() {
    let mut watched = new();
    let mut now = START;
    let mut last = Duration::ZERO;
    for id in 0..30 {
        last = watched.reads(&feed_of([id]), now).next;
        now += 40 * MINUTE;
    }
    assert_eq!(last, Duration::from_mins(20));
    // No more items arrive.
    let mut waits = Vec::new();
    for _ in 0..20 {
        waits.push(watched.sees(CheckOutcome::NotModified, Duration::ZERO));
    }
    assert_eq!(waits[..2], [Duration::from_mins(30), Duration::from_mins(45)]);
    assert_eq!(waits[19], Duration::from_hours(24));
    // A burst after a long silence halves the interval once.
    let next = watched.reads(&feed_of(100..200), now).next;
    assert_eq!(next, Duration::from_hours(12));
}

#[test]
fn failures_back_off_until_a_success() {
    let mut watched = new();
    let mut fail = |times: usize| {
        let waits = (0..times).map(|_| watched.sees(CheckOutcome::Failed, Duration::ZERO));
        waits.collect::<Vec<_>>()
    };
    assert_eq!(fail(3), [2, 4, 8].map(Duration::from_hours));
    assert_eq!(fail(100)[99], Duration::from_hours(24));
    assert_eq!(watched.reads(&feed_of([1]), START).next, Duration::from_hours(1));
}

#[test]
fn requested_intervals_are_respected() {
    let mut watched = new();
    let hints = PollHints { min_interval_s: Some(2 * 60 * 60), ..PollHints::default() };
    let asks = Feed { hints, ..feed_of([1]) };
    assert_eq!(watched.reads(&asks, START).next, Duration::from_hours(2));
    assert_eq!(
        watched.sees(CheckOutcome::NotModified, Duration::from_hours(5)),
        Duration::from_hours(5)
    );
    assert_eq!(
        watched.sees(CheckOutcome::Failed, Duration::from_hours(99)),
        Duration::from_hours(24)
    );
}

#[test]
fn excluded_hours_and_days_are_skipped() {
    // Tuesday, 2027-01-05, 10:20:00 UTC.
    let now = 1_799_144_400_000;
    let next = |skip_hours, skip_days| {
        let hints = PollHints { min_interval_s: None, skip_hours, skip_days };
        let mut watched = new();
        watched.reads(&Feed { hints, ..feed_of([1]) }, now).next
    };
    assert_eq!(next(1 << 11 | 1 << 12, 0), Duration::from_mins(2 * 60 + 40));
    assert_eq!(next(0, 1 << 1), Duration::from_mins(13 * 60 + 40));
    // All hours are excluded: the longest interval applies.
    assert_eq!(next(u32::MAX, 0), Duration::from_hours(24));
}

#[test]
fn an_interval_that_a_user_has_changed_applies() {
    let mut watched = new();
    watched.record_schedule(Duration::from_hours(3));
    watched.set_schedule(Duration::from_hours(3), settings());
    assert_eq!(watched.interval_ms, 60 * MINUTE);
    watched.set_schedule(Duration::from_mins(30), settings());
    assert_eq!(watched.interval_ms, 30 * MINUTE);
    watched.set_schedule(Duration::from_secs(1), settings());
    assert_eq!(watched.interval_ms, 10 * MINUTE);
}

#[test]
fn the_state_round_trips() {
    let mut watched = new();
    let long = "x".repeat(FEED_VALIDATOR_BYTES_MAX + 1);
    let feed = feed_of(0..3000);
    let validators = Validators { etag: Some("\"1\""), last_modified: Some(&long) };
    watched.check(URL, settings(), CheckOutcome::Feed(&feed, validators), Duration::ZERO, START);
    let bytes = watched.to_bytes();
    assert!(bytes.len() < 32 * 3000 + 500, "{}", bytes.len());
    let mut back = WatchedFeed::from_bytes(&bytes).unwrap();
    assert_eq!(back, watched);
    assert_eq!(back.validators(), Validators { etag: Some("\"1\""), last_modified: None });
    assert!(back.reads(&feed, START).new.is_empty());
    let text = String::from_utf8(bytes).unwrap();
    let other = text.replace("\"version\":1", "\"version\":2");
    let odd = [&other, "", "{}", "null", &text.replace("\"known\":\"", "\"known\":\"zé")];
    assert!(odd.iter().all(|text| WatchedFeed::from_bytes(text.as_bytes()).is_none()));
}

#[test]
fn an_old_stored_state_is_read() {
    let stored = r#"{"version":1,"known":"e29aa8c7d1c3f194ba472af4d4c2464f","etag":null,"last_modified":null,
        "changed_unix_ms":1800000000000,"gap_ms":null,"interval_ms":600000,"scheduled_ms":null,"failures":0,"rest_s":null,
        "skip_hours":0,"skip_days":0}"#;
    let mut watched = WatchedFeed::from_bytes(stored.as_bytes()).unwrap();
    assert!(watched.reads(&feed_of([1]), START).new.is_empty());
}

#[test]
fn known_items_are_limited_but_never_those_of_the_feed() {
    let mut watched = new();
    for from in 0..100 {
        watched.reads(&feed_of((from * 100..from * 100 + 100).rev()), START);
        assert!(watched.known.0.len() <= FEED_SEEN_MAX);
    }
    // The oldest items were dropped.
    assert_eq!(watched.reads(&feed_of([0]), START).new.len(), 1);
    let many = feed_of(0..5000);
    watched.reads(&many, START);
    assert!(watched.reads(&many, START).new.is_empty());
}

/// The result of one fetch.
#[derive(Clone, Debug)]
enum Fetch {
    /// The feed contains these items.
    Items(BTreeSet<u32>),
    Same,
    Failed,
}

fn fetch() -> impl Strategy<Value = Fetch> {
    prop_oneof![
        4 => prop::collection::btree_set(0_u32..60, 0..20).prop_map(Fetch::Items),
        1 => Just(Fetch::Same),
        1 => Just(Fetch::Failed),
    ]
}

proptest! {
    #[test]
    fn every_item_is_published_once_and_the_interval_stays_within_bounds(
        fetches in prop::collection::vec((fetch(), 0_u64..3_000_000, 0_u64..200_000, 0_u64..u64::MAX), 1..60),
        min in 1_u64..100_000, more in 0_u64..100_000_000,
        hints in (prop::option::of(any::<u64>()), any::<u32>(), any::<u8>()),
        stored in any::<bool>(),
    ) {
        let bounds = FeedSettings::new(Duration::from_millis(min), Duration::from_millis(min + more), false).unwrap();
        let mut watched = WatchedFeed::new(Duration::from_hours(1), bounds);
        let (mut shown, mut announced, mut now) = (BTreeSet::new(), Vec::new(), START);
        for (fetch, wait, revision, rest) in fetches {
            now += wait;
            let feed = match &fetch {
                Fetch::Items(ids) => {
                    shown.extend(ids.iter().map(|id| format!("i{id}")));
                    let mut feed = feed_of(ids.iter().copied());
                    for entry in &mut feed.entries {
                        entry.updated = Some(revision.to_string());
                        entry.title = Some(revision.to_string());
                    }
                    let (min_interval_s, skip_hours, skip_days) = hints;
                    Feed { hints: PollHints { min_interval_s, skip_hours, skip_days }, ..feed }
                }
                _ => Feed::default(),
            };
            let outcome = match fetch {
                Fetch::Items(_) => CheckOutcome::Feed(&feed, Validators::default()),
                Fetch::Same => CheckOutcome::NotModified,
                Fetch::Failed => CheckOutcome::Failed,
            };
            let CheckResult { new, next, .. } = watched.check(URL, bounds, outcome, Duration::from_millis(rest), now);
            prop_assert!((min..=min + more).contains(&milliseconds(next)), "{next:?}");
            announced.extend(new.into_iter().map(|item| item.id));
            if stored {
                watched = WatchedFeed::from_bytes(&watched.to_bytes()).unwrap();
            }
        }
        announced.sort();
        prop_assert_eq!(announced, shown.into_iter().collect::<Vec<_>>());
    }
}

/// Fetches a watched page after this many hours.
fn visit(watched: &mut WatchedFeed, version: u64, hours: u64) -> Vec<String> {
    let outcome = CheckOutcome::Page(version, Validators::default());
    let now = START + hours * 60 * MINUTE;
    let CheckResult { new, .. } = watched.check(URL, settings(), outcome, Duration::ZERO, now);
    assert!(new.iter().all(|item| item.link.as_deref() == Some(URL)));
    new.into_iter().map(|item| item.id).collect()
}

#[test]
fn each_version_of_a_page_is_new_once_and_again_when_it_returns() {
    let mut watched = new();
    let versions = [1, 1, 2, 2, 1, 2].into_iter().zip(0..);
    let found: Vec<_> =
        versions.map(|(version, hour)| visit(&mut watched, version, hour)).collect();
    let counts: Vec<_> = found.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 0, 1, 0, 1, 1]);
    let all: BTreeSet<_> = found.concat().into_iter().collect();
    assert_eq!(all.len(), 4, "each version has its own id");
    // After storing and reading it is the same page.
    let mut watched = WatchedFeed::from_bytes(&watched.to_bytes()).unwrap();
    assert!(watched.is_page() && visit(&mut watched, 2, 9).is_empty());
    // Another process finds the same id for the version after the same one.
    let mut other = WatchedFeed::from_bytes(&watched.to_bytes()).unwrap();
    assert_eq!(visit(&mut watched, 3, 10), visit(&mut other, 3, 11));
}

#[test]
fn a_version_delivered_by_a_hub_is_known_at_the_next_fetch() {
    let mut watched = new();
    visit(&mut watched, 1, 0);
    let mut hub: KnownItems = String::from(watched.known().clone()).parse().unwrap();
    let delivered = [2, 3].map(|version| hub.set_version(version).unwrap());
    watched.set_announced(delivered[1].to_string().parse().unwrap());
    assert!(visit(&mut watched, 3, 1).is_empty());
    assert_eq!(*watched.known(), hub);
    // An older version than the delivered one is not new, and the delivered one keeps its id.
    let mut watched = new();
    visit(&mut watched, 1, 0);
    watched.set_announced(delivered[0]);
    assert!(visit(&mut watched, 1, 1).is_empty());
    assert_eq!(visit(&mut watched, 2, 2), [delivered[0].to_string()]);
    assert!(
        "0".repeat(31).parse::<ItemFingerprint>().is_err()
            && "0".repeat(64).parse::<ItemFingerprint>().is_err()
    );
}

// PROTOCOL: V8
#[test]
fn a_version_after_a_delivered_one_has_one_id_for_crawler_and_hub() {
    let mut watched = new();
    visit(&mut watched, 1, 0);
    let mut hub = watched.known().clone();
    // The page changes again before the check that follows the delivery of 2.
    watched.set_announced(hub.set_version(2).unwrap());
    let found = visit(&mut watched, 3, 1);
    // The hub delivers 3 before the subscriber knows what the crawler found, or afterwards.
    let mut early = hub.clone();
    let delivered = early.set_version(3).unwrap();
    assert_eq!(found, [delivered.to_string()]);
    hub.merge_version(watched.known().clone());
    assert_eq!(hub.set_version(3), None);
    early.merge_version(watched.known().clone());
    assert_eq!(early, hub);
    watched.set_announced(delivered);
    assert!(visit(&mut watched, 3, 2).is_empty());
    // A version that returns is new again, for both.
    let returned = hub.set_version(2).unwrap().to_string();
    assert_eq!(visit(&mut watched, 2, 3), [returned]);
}

#[test]
fn a_page_that_differs_in_each_response_is_not_published_endlessly() {
    let mut watched = new();
    let mut announced = visit(&mut watched, 0, 0);
    let (mut version, mut hub) = (0, KnownItems::default());
    // Each published version leads to a fetch.
    while let Some(item) = announced.pop() {
        hub = item.parse().unwrap();
        version += 1;
        assert!(version < 9);
        watched.set_announced(item.parse().unwrap());
        announced = visit(&mut watched, version, 0);
    }
    assert_eq!(version, 3);
    // If the hub delivers the version that was not published, it is new.
    hub.merge_version(watched.known().clone());
    assert!(hub.set_version(version).is_some());
    // While a hub announces changes it is relied on; without a hub, a version counts once the
    // content stays the same.
    watched.record_push(START + 600 * MINUTE);
    assert!(visit(&mut watched, 10, 1).is_empty());
    assert!(visit(&mut watched, 10, 2).is_empty());
    assert_eq!(visit(&mut watched, 11, 3).len(), 1);
}

#[test]
fn a_page_that_becomes_a_feed_starts_as_a_new_feed() {
    let mut watched = new();
    visit(&mut watched, 1, 0);
    let feed = feed_of([1, 2]);
    let outcome = || CheckOutcome::Feed(&feed, Validators::default());
    let check = |watched: &mut WatchedFeed, settings| {
        watched.check(URL, settings, outcome(), Duration::ZERO, START).new.len()
    };
    assert_eq!(check(&mut watched.clone(), "10m-1d,new-only".parse().unwrap()), 0);
    assert_eq!((check(&mut watched, settings()), watched.is_page()), (2, false));
}
