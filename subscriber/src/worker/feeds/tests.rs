use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidings_documents::feed;

use super::*;

/// Everything published and stored, in order.
#[derive(Default)]
struct Fake {
    done: Mutex<Vec<String>>,
    states: Mutex<HashMap<String, Bytes>>,
    /// Publishing fails from then on.
    fails_after: Option<usize>,
    /// Loading and storing fail.
    forgets: AtomicBool,
}

impl EventPublisher for Fake {
    async fn publish(&self, topic: &'static str, payload: String) -> Result<(), String> {
        let mut done = self.done.lock();
        if self.fails_after.is_some_and(|after| done.len() >= after) {
            return Err("the broker is gone".to_owned());
        }
        done.push(format!("{topic} {payload}"));
        Ok(())
    }
}

impl FeedStates for Fake {
    async fn load(&self, feed: &str) -> Result<Option<Bytes>, String> {
        self.works()?;
        Ok(self.states.lock().get(feed).cloned())
    }

    async fn store(&self, feed: &str, state: Bytes) -> Result<(), String> {
        self.works()?;
        self.done.lock().push("stored".to_owned());
        self.states.lock().insert(feed.to_owned(), state);
        Ok(())
    }
}

impl Fake {
    fn works(&self) -> Result<(), String> {
        if self.forgets.load(Ordering::Relaxed) { Err("no disk".to_owned()) } else { Ok(()) }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.done.lock())
    }

    /// A task whose answer is a redirect, `permanent` or not.
    async fn redirects(&self, task: &str, permanent: Option<&str>) {
        let url = CanonicalUrl::parse(task.split(' ').next().unwrap()).unwrap();
        let watch = FeedCheck::of(&url, &Payload::parse(task), self).await.unwrap().unwrap();
        watch.record_redirect(permanent, self).await.unwrap();
    }

    async fn look(&self, task: &str, answer: FeedResponse<'_>) -> Result<FeedTaskOutcome, String> {
        let url = CanonicalUrl::parse(task.split(' ').next().unwrap()).unwrap();
        let watch = FeedCheck::of(&url, &Payload::parse(task), self)
            .await?
            .expect("the task is for a feed");
        let looking = watch.process(answer, Duration::ZERO, 1_800_000_000_000, self, self);
        is_send(looking).await
    }
}

/// The futures of a check must be `Send`.
fn is_send<T: Send>(future: T) -> T {
    future
}

const TASK: &str = "http://a.example/f every=1h feed=10m-1d prio=5 id=x";

fn items(ids: &[&str]) -> Feed {
    let mut items = String::new();
    for id in ids {
        write!(items, "<item><guid>{id}</guid><link>/p?{id}</link></item>").unwrap();
    }
    feed::parse(
        format!("<rss><channel>{items}</channel></rss>").as_bytes(),
        None,
        Some("http://a.example/f"),
    )
}

/// An answer without named links or headers.
static NOTHING: NamedLinks = NamedLinks { feeds: Vec::new(), hubs: Vec::new(), own: None };
static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

fn document(feed: &Feed) -> FeedResponse<'_> {
    let validators = Validators { etag: Some("\"1\""), last_modified: None };
    FeedResponse::Document { feed, headers: &NO_HEADERS, named: &NOTHING, validators }
}

fn page_with<'a>(page: &'a Feed, named: &'a NamedLinks) -> FeedResponse<'a> {
    FeedResponse::Document {
        feed: page,
        headers: &NO_HEADERS,
        named,
        validators: Validators::default(),
    }
}

/// A page that names this feed.
fn naming(feed: &str) -> NamedLinks {
    NamedLinks { feeds: vec![feed.into()], ..NamedLinks::default() }
}

#[tokio::test]
async fn new_items_are_announced_then_stored_and_then_known() {
    let fake = Fake::default();
    let feed = items(&["b c%", "a"]);
    let looked = fake.look(TASK, document(&feed)).await;
    assert_eq!(looked, Ok(FeedTaskOutcome::Feed { announced: 2 }));
    let done = fake.take();
    let begin = "post-ready http://a.example/p?a item=a source=http://a.example/f id=";
    let id = done[0].strip_prefix(begin).unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    assert!(done[1].starts_with("post-ready http://a.example/p?b%20c% item=b%20c%25 source="));
    assert_eq!(done[2..], ["stored"]);

    let url = CanonicalUrl::parse("http://a.example/f").unwrap();
    let watch = FeedCheck::of(&url, &Payload::parse(TASK), &fake).await.unwrap().unwrap();
    assert_eq!(watch.validators().etag, Some("\"1\""));
    assert_eq!(fake.look(TASK, document(&feed)).await, Ok(FeedTaskOutcome::Feed { announced: 0 }));
    let schedule = "new-url http://a.example/f every=90m was=1h feed=10m-1d";
    assert_eq!(fake.take(), ["stored", schedule]);
    // The next task carries the new interval; both are compared as texts.
    let task = TASK.replace("every=1h", "every=90m").replace("10m-", "600s-");
    assert_eq!(
        fake.look(&task, FeedResponse::NotModified).await,
        Ok(FeedTaskOutcome::Feed { announced: 0 })
    );
    assert!(fake.take()[1].contains(" every=135m was=90m feed=600s-1d"));
}

#[tokio::test]
async fn an_unconfirmed_item_is_announced_again_as_the_same_event() {
    let mut fake = Fake { fails_after: Some(1), ..Fake::default() };
    let feed = items(&["b", "a"]);
    assert!(fake.look(TASK, document(&feed)).await.is_err());
    let first = fake.take();
    fake.fails_after = None;
    assert_eq!(fake.look(TASK, document(&feed)).await, Ok(FeedTaskOutcome::Feed { announced: 2 }));
    assert_eq!(fake.take()[0], first[0]);
}

#[tokio::test]
async fn a_page_leads_to_its_feed_unless_it_was_a_feed_before() {
    let fake = Fake::default();
    let page = feed::parse(b"<html>", None, None);
    let named = naming("http://a.example/feed.xml");
    let answer = || page_with(&page, &named);
    assert_eq!(fake.look(TASK, answer()).await, Ok(FeedTaskOutcome::Elsewhere));
    let schedule = "new-url http://a.example/feed.xml every=1h was=0 feed=10m-1d prio=5 named=http://a.example/f";
    let end = "new-url http://a.example/f every=0 was=1h feed=10m-1d";
    assert_eq!(fake.take(), [schedule, end]);
    let daily = TASK.replace("every=1h", "every=06:00");
    assert_eq!(fake.look(&daily, answer()).await, Ok(FeedTaskOutcome::Elsewhere));
    assert_eq!(fake.take(), [schedule, end].map(|event| event.replace("=1h", "=06:00")));
    assert_eq!(
        fake.look(&TASK.replace(" every=1h", ""), answer()).await,
        Ok(FeedTaskOutcome::Elsewhere)
    );
    assert!(fake.take().is_empty());

    assert_eq!(
        fake.look(TASK, document(&items(&["a"]))).await,
        Ok(FeedTaskOutcome::Feed { announced: 1 })
    );
    fake.take();
    assert_eq!(fake.look(TASK, answer()).await, Ok(FeedTaskOutcome::Failed));
    assert_eq!(fake.take().len(), 2);

    let itself = naming("http://a.example/f");
    let answer = page_with(&page, &itself);
    assert!(Fake::default().look(TASK, answer).await.is_err());
}

#[tokio::test]
async fn a_named_page_is_not_followed_further() {
    let fake = Fake::default();
    let page = feed::parse(b"<html>", None, None);
    let named = naming("http://a.example/f");
    let answer = || page_with(&page, &named);
    let task = "http://a.example/g every=1h feed=10m-1d prio=5";
    assert_eq!(fake.look(task, answer()).await, Ok(FeedTaskOutcome::Elsewhere));
    // The broker releases the named page at once.
    let published = fake.take().swap_remove(0);
    let task = published.strip_prefix("new-url ").unwrap();
    let named = naming("http://a.example/g");
    let answer = || page_with(&page, &named);
    let hours = |hours| FeedTaskOutcome::Nothing { next: Some(Duration::from_hours(hours)) };
    assert_eq!(fake.look(task, answer()).await, Ok(hours(2)));
    assert_eq!(fake.take()[1], "new-url http://a.example/f every=2h was=1h feed=10m-1d");
    // The schedule keeps its other attributes.
    assert_eq!(fake.look(&task.replace("=1h", "=2h"), answer()).await, Ok(hours(4)));
}

#[tokio::test]
async fn a_time_of_day_is_not_adjusted() {
    for task in ["http://a.example/f every=06:00 feed=10m-1d", "http://a.example/f feed=10m-1d"] {
        let fake = Fake::default();
        assert_eq!(fake.look(task, FeedResponse::Failed).await, Ok(FeedTaskOutcome::Failed));
        assert_eq!(fake.take(), ["stored"], "{task}");
    }
}

#[tokio::test]
async fn a_moved_feed_keeps_the_schedule_of_its_old_url() {
    let fake = Fake::default();
    let moved = "kind=redirect hops=1 schedule=http://a.example/old every=1h feed=10m-1d";
    let task = format!("http://a.example/f {moved}");
    let feed = items(&["a"]);
    assert_eq!(fake.look(&task, document(&feed)).await, Ok(FeedTaskOutcome::Feed { announced: 1 }));
    assert!(fake.take()[0].contains(" source=http://a.example/f "));
    assert_eq!(
        fake.look(&task, FeedResponse::NotModified).await,
        Ok(FeedTaskOutcome::Feed { announced: 0 })
    );
    let schedule = "new-url http://a.example/old every=90m was=1h feed=10m-1d";
    assert_eq!(fake.take(), ["stored", schedule]);

    let page = feed::parse(b"<html>", None, None);
    let named = naming("http://a.example/feed.xml");
    let answer = page_with(&page, &named);
    let task = format!("http://a.example/ {moved}");
    assert_eq!(fake.look(&task, answer).await, Ok(FeedTaskOutcome::Elsewhere));
    let begin =
        "new-url http://a.example/feed.xml every=1h was=0 feed=10m-1d named=http://a.example/old";
    let end = "new-url http://a.example/old every=0 was=1h feed=10m-1d";
    assert_eq!(fake.take(), [begin, end]);
}

#[tokio::test]
async fn a_permanent_redirect_moves_the_schedule_when_a_feed_was_read_there() {
    let of = |url: &str| {
        format!(
            "{url} kind=redirect hops=1 prio=5 schedule=http://a.example/f every=1h feed=10m-1d"
        )
    };
    let (b, c) = ("http://b.example/f", "http://c.example/f");
    let at_b = &*of(b);
    let page = feed::parse(b"<html>", None, None);
    let feed = items(&["a"]);
    // The last permanent target in a row, and whether a feed is read in the end.
    for (hops, answer, place) in [
        (&[(TASK, Some(b))][..], &feed, Some(b)),
        (&[(TASK, Some(b)), (at_b, Some(c))], &feed, Some(c)),
        (&[(TASK, Some(b)), (at_b, None)], &feed, Some(b)),
        (&[(TASK, None), (at_b, Some(c))], &feed, None),
        (&[(TASK, Some(b)), (TASK, None), (at_b, Some(c))], &feed, None),
        (&[(TASK, Some(b)), (at_b, Some(c))], &page, None),
    ] {
        let fake = Fake::default();
        let known = fake.look(TASK, document(&items(&["a"]))).await;
        assert_eq!(known, Ok(FeedTaskOutcome::Feed { announced: 1 }));
        for (task, permanent) in hops {
            fake.redirects(task, *permanent).await;
        }
        fake.take();
        // The items of the old URL are known.
        let looked = fake.look(&of(c), document(answer)).await.unwrap();
        assert_ne!(looked, FeedTaskOutcome::Feed { announced: 1 });
        let moved: Vec<_> =
            fake.take().into_iter().filter(|event| event.starts_with("new-url ")).collect();
        let Some(place) = place else {
            assert!(!moved.iter().any(|event| event.contains(" every=0 ")), "{moved:?}");
            continue;
        };
        let new = format!("new-url {place} every=90m was=0 feed=10m-1d prio=5 after=90m");
        assert_eq!(moved, [new, "new-url http://a.example/f every=0 was=1h feed=10m-1d".into()]);
    }
}

#[tokio::test]
async fn a_feed_that_is_gone_is_no_longer_watched() {
    let end = "new-url http://a.example/f every=0 was=1h feed=10m-1d";
    let moved = "http://b.example/f schedule=http://a.example/f every=1h feed=10m-1d";
    for (hop, task, ended) in [
        (None, TASK, true),
        (Some(Some("http://b.example/f")), moved, true),
        (Some(None), moved, false),
    ] {
        let fake = Fake::default();
        if let Some(permanent) = hop {
            fake.redirects(TASK, permanent).await;
        }
        assert_eq!(fake.look(task, FeedResponse::Gone).await, Ok(FeedTaskOutcome::Failed));
        assert_eq!(fake.take().iter().any(|event| event == end), ended, "{hop:?}");
    }
}

#[tokio::test]
async fn without_its_state_a_check_announces_and_stores_nothing() {
    let fake = Fake::default();
    let task = TASK.replace("feed=10m-1d", "feed=10m-1d,new-only");
    assert_eq!(
        fake.look(&task, document(&items(&["a"]))).await,
        Ok(FeedTaskOutcome::Feed { announced: 0 })
    );
    fake.take();
    let feed = items(&["b", "a"]);
    fake.forgets.store(true, Ordering::Relaxed);
    assert!(fake.look(&task, document(&feed)).await.is_err());
    assert!(fake.take().is_empty());
    fake.forgets.store(false, Ordering::Relaxed);
    assert_eq!(fake.look(&task, document(&feed)).await, Ok(FeedTaskOutcome::Feed { announced: 1 }));
}

#[tokio::test]
async fn items_without_a_link_are_stored_and_not_announced() {
    let fake = Fake::default();
    let feed = feed::parse(
        b"<rss><item><title>t</title></item><item><link>mailto:a@b.example</link></item></rss>",
        None,
        None,
    );
    assert_eq!(fake.look(TASK, document(&feed)).await, Ok(FeedTaskOutcome::Feed { announced: 0 }));
}

#[tokio::test]
async fn a_task_without_valid_feed_settings_is_a_page() {
    let url = CanonicalUrl::parse("http://a.example/").unwrap();
    for task in ["http://a.example/", "http://a.example/ feed=x", "http://a.example/ every=1h"] {
        let watch = FeedCheck::of(&url, &Payload::parse(task), &Fake::default()).await;
        assert!(watch.unwrap().is_none(), "{task}");
    }
}

#[tokio::test]
async fn feed_state_is_stored_in_crawler_db() {
    let directory = tempfile::tempdir().unwrap();
    let (state, _closing) = StateStore::open(directory.path());
    let states = StoredFeedStates { state: &state, now_unix_s: 4_000_000_000 };
    let fake = Fake::default();
    let url = CanonicalUrl::parse("http://a.example/f").unwrap();
    let feed = items(&["a"]);
    for announced in [1, 0] {
        let watch = FeedCheck::of(&url, &Payload::parse(TASK), &states).await.unwrap().unwrap();
        let looked = watch.process(document(&feed), Duration::ZERO, 0, &fake, &states).await;
        assert_eq!(looked, Ok(FeedTaskOutcome::Feed { announced }));
    }
}

// PROTOCOL: V1
#[tokio::test]
async fn the_hubs_of_a_feed_are_announced_with_its_known_items() {
    let fake = Fake::default();
    let mut feed = items(&["a"]);
    fake.look(TASK, document(&feed)).await.unwrap();
    assert!(!fake.take().iter().any(|event| event.starts_with("hub-found")));

    // Hubs in the head count more than those in the text, and both more than those of a page
    // before.
    let named = ["https://hub.example/", "https://second.example/", "https://hub.example/"];
    feed.hubs = named.map(str::to_owned).into();
    feed.self_url = Some("http://a.example/own".into());
    let told = async |task: &str, feed: &Feed, headers: &HeaderMap| {
        let validators = Validators::default();
        let answer = FeedResponse::Document { feed, headers, named: &NOTHING, validators };
        fake.look(task, answer).await.unwrap();
        let event = fake
            .take()
            .into_iter()
            .find_map(|event| event.strip_prefix("hub-found ").map(str::to_owned));
        event::parse_hub_event(&event.unwrap()).unwrap().1
    };
    let hubs = told(TASK, &feed, &NO_HEADERS).await;
    assert_eq!(hubs.hubs, ["https://hub.example/", "https://second.example/"]);
    assert_eq!(hubs.topic.as_deref(), Some("http://a.example/own"));
    let mut headers = HeaderMap::new();
    let link = "<https://head.example/>; rel=\"hub\", </f?self>; rel=self, </hub>; rel=hub";
    headers.insert("link", link.parse().unwrap());
    let hubs = told(TASK, &feed, &headers).await;
    assert_eq!(hubs.hubs, ["https://head.example/", "http://a.example/hub"]);
    assert_eq!(hubs.topic.as_deref(), Some("http://a.example/f?self"));
    feed.hubs.clear();
    let hubs = told(&format!("{TASK} hub=https://page.example/"), &feed, &NO_HEADERS).await;
    assert_eq!(hubs.hubs, ["https://page.example/"]);
}

/// An HTML page with this text.
fn html(text: &str) -> Feed {
    feed::parse(format!("<html><body>{text}").as_bytes(), Some("text/html"), None)
}

#[tokio::test]
async fn the_versions_of_a_page_with_a_hub_and_no_feed_are_announced() {
    let fake = Fake::default();
    let named = NamedLinks {
        hubs: vec!["https://hub.example/".into(), "https://b.example/".into()],
        own: Some("http://own.example/%7Ex".into()),
        ..NamedLinks::default()
    };
    let (one, two) = (html("one"), html("two"));
    assert_eq!(
        fake.look(TASK, page_with(&one, &named)).await,
        Ok(FeedTaskOutcome::Feed { announced: 1 })
    );
    let done = fake.take();
    let begin = "post-ready http://a.example/f item=";
    let item = &done[0].strip_prefix(begin).unwrap()[..32];
    assert!(done[0].contains(&format!("{item} source=http://a.example/f id=")), "{}", done[0]);
    let found = done[1].strip_prefix("hub-found ").unwrap();
    let (page, hubs, known) = event::parse_hub_event(found).unwrap();
    assert_eq!((page.as_str(), hubs.hubs), ("http://a.example/f", named.hubs.clone()));
    assert_eq!(hubs.topic.as_deref(), Some("http://own.example/%7Ex"));
    assert_eq!(String::from(known), item);
    assert_eq!(Payload::parse(found).attribute(event::PAGE), Some("yes"));
    assert_eq!(done[2..], ["stored"]);

    // The check after its own announcement, and one by the schedule.
    let follows = format!("{TASK} item={item} source=http://a.example/f");
    for task in [&follows, TASK] {
        let looked = fake.look(task, page_with(&one, &named)).await;
        assert_eq!(looked, Ok(FeedTaskOutcome::Feed { announced: 0 }));
    }
    assert_eq!(
        fake.look(TASK, page_with(&two, &named)).await,
        Ok(FeedTaskOutcome::Feed { announced: 1 })
    );
    fake.take();
    // The hub is gone: the page is checked as before. A `BrokerLink` header counts more than the
    // text.
    assert_eq!(
        fake.look(TASK, page_with(&one, &NOTHING)).await,
        Ok(FeedTaskOutcome::Feed { announced: 1 })
    );
    assert!(!fake.take().iter().any(|event| event.starts_with("hub-found")));
    let mut headers = HeaderMap::new();
    headers.insert("link", "</hub>; rel=\"x hub\", <s>; rel=self".parse().unwrap());
    let validators = Validators::default();
    let answer =
        FeedResponse::Document { feed: &one, headers: &headers, named: &named, validators };
    fake.look(TASK, answer).await.unwrap();
    let found = &fake.take()[0];
    assert!(found.contains(" hub=http://a.example/hub topic=http://a.example/s known="), "{found}");
}

#[tokio::test]
async fn a_page_without_a_feed_or_a_hub_fails_unless_it_had_one_before() {
    let page = html("x");
    let hours = |hours| Ok(FeedTaskOutcome::Nothing { next: Some(Duration::from_hours(hours)) });
    let fake = Fake::default();
    assert_eq!(fake.look(TASK, page_with(&page, &NOTHING)).await, hours(2));
    let task = TASK.replace("=1h", "=2h");
    assert_eq!(fake.look(&task, page_with(&page, &NOTHING)).await, hours(4));
    let fake = Fake::default();
    fake.look(TASK, document(&items(&["a"]))).await.unwrap();
    assert_eq!(fake.look(TASK, page_with(&page, &NOTHING)).await, Ok(FeedTaskOutcome::Failed));
    // An error page that names a hub does not belong to the feed.
    let named = NamedLinks { hubs: vec!["https://hub.example/".into()], ..NamedLinks::default() };
    assert_eq!(fake.look(TASK, page_with(&page, &named)).await, Ok(FeedTaskOutcome::Failed));
}

#[tokio::test]
async fn a_page_passes_its_hub_to_the_feed_that_it_names() {
    let fake = Fake::default();
    let page = feed::parse(b"<html>", None, None);
    let mut named = naming("http://a.example/feed.xml");
    named.hubs.extend(["https://hub.example/".into(), "https://b.example/".into()]);
    fake.look(TASK, page_with(&page, &named)).await.unwrap();
    assert!(
        fake.take()[0].ends_with(
            " named=http://a.example/f hub=https://hub.example/ hub-2=https://b.example/"
        )
    );
}

// PROTOCOL: V5
#[tokio::test]
async fn a_feed_with_a_hub_is_checked_rarely_until_the_hub_proves_silent() {
    let fake = Fake::default();
    fake.look(TASK, document(&items(&["a"]))).await.unwrap();
    fake.take();
    // For many years.
    let told = format!("{TASK} pushed=9999999999999");
    fake.look(&told, document(&items(&["b", "a"]))).await.unwrap();
    let seldom = "new-url http://a.example/f every=1d was=1h feed=10m-1d";
    assert_eq!(fake.take().last().unwrap(), seldom);
    let task = TASK.replace("every=1h", "every=1d");
    fake.look(&task, FeedResponse::NotModified).await.unwrap();
    assert_eq!(fake.take(), ["stored"]);
    // This item was not reported by the hub.
    fake.look(&task, document(&items(&["c", "b", "a"]))).await.unwrap();
    let often = fake.take().pop().unwrap();
    assert!(often.starts_with("new-url http://a.example/f every=") && often.contains(" was=1d "));
    assert!(!often.contains("every=1d"), "{often}");
}

// PROTOCOL: V1, V5
#[tokio::test]
async fn a_hub_that_has_not_reported_items_is_marked_silent() {
    let fake = Fake::default();
    let found = async |task: &str, ids: &[&str]| {
        let mut feed = items(ids);
        feed.hubs = vec!["https://hub.example/".into()];
        fake.look(task, document(&feed)).await.unwrap();
        let done = fake.take();
        let event = done.iter().find(|event| event.starts_with("hub-found ")).unwrap();
        event.contains(" silent=yes ")
    };
    assert!(!found(TASK, &["a"]).await, "no hub was active");
    let told = format!("{TASK} pushed=9999999999999");
    assert!(!found(&told, &["b", "a"]).await, "the hub has reported it");
    assert!(!found(TASK, &["b", "a"]).await, "there was no new item");
    assert!(found(TASK, &["c", "b", "a"]).await);
    assert!(!found(TASK, &["d", "c", "b", "a"]).await, "no hub is active any more");
}
