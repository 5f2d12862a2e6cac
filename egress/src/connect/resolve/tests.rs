//! Tests with a resolver that answers after a set delay, in paused time.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;

/// Answers after `delay` with one address that counts its lookups; `x.none` never resolves.
#[derive(Debug, Default)]
struct Fake {
    delay: Duration,
    begun: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug)]
struct Handle(Arc<Fake>);

impl Lookup for Handle {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            let number = fake.begun.fetch_add(1, SeqCst);
            fake.most.fetch_max(fake.running.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(fake.delay).await;
            fake.running.fetch_sub(1, SeqCst);
            if name == "x.none" {
                return Err(io::Error::new(io::ErrorKind::NotFound, "no such name"));
            }
            Ok(vec![IpAddr::from([9, 9, 9, u8::try_from(number % 256).unwrap()])])
        })
    }
}

fn resolver(delay: Duration) -> (Resolver, Arc<Fake>) {
    let fake = Arc::new(Fake { delay, ..Fake::default() });
    (Resolver::new(Arc::new(Handle(Arc::clone(&fake)))), fake)
}

/// Resolves with twice the time limit of a lookup.
async fn resolve(resolver: &Resolver, name: &str) -> LookupResult {
    resolver.resolve(name, &mut (Instant::now() + 2 * DNS_TIMEOUT)).await
}

#[tokio::test(start_paused = true)]
async fn concurrent_lookups_of_a_name_are_one_and_its_answer_is_cached() {
    let (resolver, fake) = resolver(Duration::from_millis(10));
    let answers = join_all((0..100).map(|_| resolve(&resolver, "a.example"))).await;
    assert!(answers.iter().all(|answer| *answer == answers[0] && answer.is_ok()));
    assert_eq!(fake.begun.load(SeqCst), 1);
    tokio::time::advance(DNS_FRESH.checked_sub(Duration::from_millis(20)).unwrap()).await;
    assert_eq!(resolve(&resolver, "a.example").await, answers[0]);
    tokio::time::advance(Duration::from_millis(20)).await;
    assert_ne!(resolve(&resolver, "a.example").await, answers[0]);
    assert_eq!(fake.begun.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_lookup_is_cached_for_a_short_time() {
    let (resolver, fake) = resolver(Duration::ZERO);
    for _ in 0..3 {
        let failure = resolve(&resolver, "x.none").await.unwrap_err();
        assert_eq!((failure.reason, &*failure.text), (Reason::Dns, "no such name"));
    }
    assert_eq!(fake.begun.load(SeqCst), 1);
    tokio::time::advance(DNS_FRESH_FAILURE).await;
    resolve(&resolver, "x.none").await.unwrap_err();
    assert_eq!(fake.begun.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_lookups_are_limited() {
    let (resolver, fake) = resolver(Duration::from_millis(1));
    let names: Vec<_> = (0..10 * DNS_LOOKUPS_MAX).map(|n| format!("n{n}.example")).collect();
    let answers = join_all(names.iter().map(|name| resolve(&resolver, name))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(fake.most.load(SeqCst), DNS_LOOKUPS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_times_out_and_its_queue_is_dropped() {
    let (resolver, fake) = resolver(DNS_TIMEOUT * 4);
    let names: Vec<_> = (0..3 * DNS_LOOKUPS_MAX).map(|n| format!("n{n}.example")).collect();
    let answers = join_all(names.iter().map(|name| resolve(&resolver, name))).await;
    for (number, answer) in answers.into_iter().enumerate() {
        let failure = answer.unwrap_err();
        // Lookups that did not begin have no result.
        let begun = number < DNS_LOOKUPS_MAX;
        let expected = if begun { Reason::Dns } else { Reason::Busy };
        assert_eq!(failure.reason, expected, "{failure}");
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Lookups that began cannot be cancelled; the others are dropped.
    assert_eq!(resolver.0.names.lock().len(), DNS_LOOKUPS_MAX);
    assert_eq!(fake.begun.load(SeqCst), DNS_LOOKUPS_MAX);
    // A late answer is cached nonetheless.
    tokio::time::sleep(DNS_TIMEOUT * 4).await;
    assert!(resolve(&resolver, "n0.example").now_or_never().is_some_and(|answer| answer.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_names_are_evicted() {
    let (resolver, _) = resolver(Duration::ZERO);
    {
        let mut names = resolver.0.names.lock();
        for number in 0..2 * DNS_CACHE_MAX {
            let cached = CachedName::Resolved {
                answer: Ok(Arc::new([])),
                until: Instant::now() + DNS_FRESH,
            };
            cache_name(&mut names, format!("n{number}"), cached);
            assert!(names.len() <= DNS_CACHE_MAX);
        }
        assert!(!names.contains_key("n0"));
    }
    let newest = format!("n{}", 2 * DNS_CACHE_MAX - 1);
    assert!(resolve(&resolver, &newest).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_begins_with_the_lookup() {
    let (resolver, _) = resolver(DNS_TIMEOUT.checked_sub(Duration::from_secs(1)).unwrap());
    let names: Vec<_> = (0..2 * DNS_LOOKUPS_MAX).map(|n| format!("n{n}.example")).collect();
    let pending = names.iter().map(async |name| {
        let until = Instant::now() + 2 * DNS_TIMEOUT;
        let mut extended = until;
        (resolver.resolve(name, &mut extended).await, extended - until)
    });
    let answers = join_all(pending).await;
    assert!(answers.iter().all(|(answer, _)| answer.is_ok()));
    let waited = answers.iter().filter(|(_, waited)| !waited.is_zero()).count();
    assert_eq!(waited, DNS_LOOKUPS_MAX);
}
