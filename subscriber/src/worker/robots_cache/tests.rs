use tidings_egress::failure::{Failure, Reason};

use super::*;
use crate::robots::ROBOTS_HOPS_MAX;

fn url(text: &str) -> CanonicalUrl<'static> {
    text.parse().unwrap()
}

fn answer(status: u16, text: &str) -> Fetched {
    Fetched { status: Some(status), text: text.into(), ..Fetched::default() }
}

fn conclude(verdicts: &mut RobotsCache, fetched: &Fetched, now: Instant) -> RobotsStep {
    conclude_at(verdicts, fetched, None, at(now, 0)).0
}

/// The answer to the request for the robots.txt of `http://a.example`.
fn conclude_at(
    verdicts: &mut RobotsCache,
    fetched: &Fetched,
    outage: Option<&Bytes>,
    now: ClockReading,
) -> (RobotsStep, Vec<RobotsRecord>) {
    let asked = url("http://a.example/robots.txt");
    verdicts.process_response(
        &url("http://a.example/x"),
        (&asked, 0),
        fetched,
        ("bot", outage),
        now,
    )
}

fn at(instant: Instant, unix_s: u64) -> ClockReading {
    ClockReading { instant, unix_s }
}

fn allows(step: &RobotsStep) -> Option<bool> {
    match step {
        RobotsStep::Known(rules) => Some(rules.allows("/x")),
        _ => None,
    }
}

#[test]
fn rules_are_fresh_for_a_day_and_their_own_authority() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    let step = conclude(&mut verdicts, &answer(200, "User-agent: *\nDisallow: /x"), now);
    assert_eq!(allows(&step), Some(false));
    let just_before = now + ROBOTS_FRESH.checked_sub(Duration::from_millis(1)).unwrap();
    assert!(verdicts.fresh(&url("http://a.example/y"), just_before).is_some());
    assert!(verdicts.fresh(&url("http://a.example/y"), now + ROBOTS_FRESH).is_none());
    for other in ["https://a.example/", "http://a.example:81/", "http://b.example/"] {
        assert!(verdicts.fresh(&url(other), now).is_none(), "{other}");
    }
}

#[test]
fn a_missing_file_allows_all_and_an_unreachable_one_nothing() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    let refused =
        Fetched { failure: Some(Failure::new(Reason::BadHttp, "garbage")), ..Fetched::default() };
    for (fetched, expected) in
        [(&answer(500, ""), true), (&answer(429, ""), true), (&refused, false)]
    {
        let RobotsStep::Unreachable(failure) = conclude(&mut verdicts, fetched, now) else {
            panic!("the rules are unknown")
        };
        assert_eq!(failure.is_transient(), expected);
    }
    assert!(verdicts.fresh(&url("http://a.example/"), now).is_none());
    assert_eq!(allows(&conclude(&mut verdicts, &answer(404, ""), now)), Some(true));
}

#[test]
fn the_retry_pause_does_not_grow_with_the_outage() {
    let (mut verdicts, start) = (RobotsCache::default(), Instant::now());
    let (page, began) = (url("http://a.example/x"), 1_000 * DAY_S);
    for after_s in [0, 1, 9, 100, DAY_S] {
        let now = at(start + Duration::from_secs(after_s), began + after_s);
        let outage = RobotsRecord::outage(began, began);
        let stored = Some(&outage.value).filter(|_| after_s != 9);
        let (step, _) = conclude_at(&mut verdicts, &answer(503, ""), stored, now);
        let RobotsStep::Unreachable(failure) = step else { panic!("{step:?}") };
        let before = now.instant + ROBOTS_OUTAGE_PAUSE - Duration::from_millis(1);
        for url in [&page, &url("http://a.example/y")] {
            assert_eq!(verdicts.outage(url, before), Some(failure.clone()));
        }
        assert_eq!(verdicts.outage(&page, now.instant + ROBOTS_OUTAGE_PAUSE), None);
        assert_eq!(verdicts.outage(&url("https://a.example/x"), now.instant), None);
    }
    let now = start + Duration::from_secs(DAY_S);
    conclude(&mut verdicts, &answer(404, ""), now);
    assert_eq!(verdicts.outage(&page, now), None);
}

#[test]
fn an_old_copy_serves_while_there_is_no_new_one() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    conclude(&mut verdicts, &answer(200, "User-agent: *\nDisallow: /x"), now);
    let later = now + ROBOTS_FRESH;
    assert_eq!(allows(&conclude(&mut verdicts, &answer(503, ""), later)), Some(false));
    assert!(verdicts.fresh(&url("http://a.example/"), later).is_some());
    assert!(verdicts.fresh(&url("http://a.example/"), later + ROBOTS_STALE_EXTENSION).is_none());
}

#[test]
fn five_redirects_are_followed_and_a_sixth_means_no_file() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    let page = url("http://a.example/x");
    let redirect = Fetched {
        status: Some(301),
        location: Some("//b.example/robots.txt".to_owned()),
        ..Fetched::default()
    };
    let (mut asked, mut hops) = (url("http://a.example/robots.txt"), 0);
    for expected in 1..=ROBOTS_HOPS_MAX {
        let (step, remember) =
            verdicts.process_response(&page, (&asked, hops), &redirect, ("bot", None), at(now, 0));
        let RobotsStep::Redirected(walk) = step else { panic!("{step:?}") };
        assert_eq!((walk.target.as_str(), walk.hops), ("http://b.example/robots.txt", expected));
        assert_eq!(remember, []);
        // For any page of the authority.
        assert_eq!(verdicts.pending_redirect(&url("http://a.example/y"), now), Some(walk.clone()));
        assert_eq!(verdicts.pending_redirect(&url("https://a.example/y"), now), None);
        assert_eq!(verdicts.pending_redirect(&page, now + ROBOTS_REDIRECT_FRESH), None);
        (asked, hops) = (walk.target, walk.hops);
    }
    let (step, _) =
        verdicts.process_response(&page, (&asked, hops), &redirect, ("bot", None), at(now, 0));
    assert_eq!(allows(&step), Some(true));
    assert!(verdicts.fresh(&page, now).is_some());
    assert_eq!(verdicts.pending_redirect(&page, now), None);
    assert!(verdicts.fresh(&url("http://b.example/"), now).is_none());
}

#[test]
fn a_failed_redirect_starts_again() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    let away = Fetched { status: Some(302), location: Some("/r".to_owned()), ..Fetched::default() };
    assert!(matches!(conclude(&mut verdicts, &away, now), RobotsStep::Redirected(_)));
    assert!(matches!(conclude(&mut verdicts, &answer(503, ""), now), RobotsStep::Unreachable(_)));
    assert_eq!(verdicts.pending_redirect(&url("http://a.example/"), now), None);
}

const DAY_S: u64 = 24 * 60 * 60;

/// Restarts: what one process has stored is loaded by the next.
fn restart(remember: &[RobotsRecord], now: ClockReading) -> (RobotsCache, StoredRobots) {
    let find = |kind| {
        let found = remember.iter().rev().find(|remember| remember.kind == kind)?;
        (found.expires_unix_s > now.unix_s).then(|| found.value.clone())
    };
    let remembered =
        StoredRobots { copy: find(RobotsRecord::COPY), outage: find(RobotsRecord::OUTAGE) };
    let mut verdicts = RobotsCache::default();
    verdicts.restore(&url("http://a.example/x"), &remembered, now);
    (verdicts, remembered)
}

#[test]
fn a_copy_keeps_its_age_over_a_restart() {
    let (mut verdicts, start) = (RobotsCache::default(), Instant::now());
    let text = "User-agent: Bot\nDisallow: /x\nCrawl-delay: 2.5\nUser-agent: *\nDisallow: /";
    let began = 1_000 * DAY_S;
    let (_, stored) = conclude_at(&mut verdicts, &answer(200, text), None, at(start, began));
    let page = url("http://a.example/y");
    for (age_s, left_s) in [(0, DAY_S), (DAY_S - 1, 1), (DAY_S, 0), (50 * DAY_S, 0)] {
        let (verdicts, _) = restart(&stored, at(start, began + age_s));
        let rules = verdicts.fresh(&page, start);
        assert_eq!(rules.is_some(), left_s > 0, "{age_s}");
        if let Some(rules) = rules {
            assert_eq!((rules.allows("/x"), rules.allows("/y")), (false, true));
            assert_eq!(rules.crawl_delay(), Some(Duration::from_millis(2500)));
        }
        assert!(verdicts.fresh(&page, start + Duration::from_secs(left_s)).is_none());
    }
    // The clock was set back: the copy is known, its age is not.
    let (mut verdicts, _) = restart(&stored, at(start, began - 1));
    assert!(verdicts.fresh(&page, start).is_none());
    let (step, _) = conclude_at(&mut verdicts, &answer(500, ""), None, at(start, began - 1));
    assert_eq!(allows(&step), Some(false));
    // A newer copy in memory stays.
    let mut verdicts = RobotsCache::default();
    conclude_at(&mut verdicts, &answer(404, ""), None, at(start, began + 1));
    verdicts.restore(&page, &restart(&stored, at(start, began)).1, at(start, began + 2));
    assert!(verdicts.fresh(&page, start).unwrap().allows("/x"));
}

#[test]
fn after_a_month_of_outage_the_file_counts_as_missing() {
    let start = Instant::now();
    let (began, month_s) = (1_000 * DAY_S, ROBOTS_OUTAGE_LONG.as_secs());
    let (step, mut stored) =
        conclude_at(&mut RobotsCache::default(), &answer(503, ""), None, at(start, began));
    assert_eq!(allows(&step), None);
    // Each in a process of its own, which knows the stored values only.
    for (after_s, expected) in
        [(1, None), (month_s - 1, None), (month_s, Some(true)), (month_s + 59 * DAY_S, Some(true))]
    {
        let now = at(start, began + after_s);
        let (mut verdicts, remembered) = restart(&stored, now);
        let (step, remember) =
            conclude_at(&mut verdicts, &answer(503, ""), remembered.outage.as_ref(), now);
        assert_eq!(allows(&step), expected, "{after_s}");
        assert_eq!(verdicts.fresh(&url("http://a.example/"), start).is_some(), expected.is_some());
        stored = remember;
    }
    // The server is back, and the next outage is another one.
    let now = at(start, began + month_s);
    let (mut verdicts, remembered) = restart(&stored, now);
    let (step, remember) =
        conclude_at(&mut verdicts, &answer(200, ""), remembered.outage.as_ref(), now);
    assert_eq!(allows(&step), Some(true));
    let (_, remembered) = restart(&remember, now);
    assert!(remembered.outage.is_none() && remembered.copy.is_some());
}

#[test]
fn an_outage_from_the_future_begins_now_and_a_copy_is_used_through_a_long_one() {
    let start = Instant::now();
    let began = 1_000 * DAY_S;
    let text = answer(200, "User-agent: *\nDisallow: /x");
    let (_, mut stored) = conclude_at(&mut RobotsCache::default(), &text, None, at(start, began));
    let outage = RobotsRecord::outage(began + 100 * DAY_S, began);
    let (step, remember) = conclude_at(
        &mut RobotsCache::default(),
        &answer(503, ""),
        Some(&outage.value),
        at(start, began),
    );
    assert_eq!(allows(&step), None);
    assert_eq!(remember, [RobotsRecord::outage(began, began)]);
    stored.extend(remember);
    let now = at(start, began + 40 * DAY_S);
    let (mut verdicts, remembered) = restart(&stored, now);
    let (step, _) = conclude_at(&mut verdicts, &answer(503, ""), remembered.outage.as_ref(), now);
    assert_eq!(allows(&step), Some(false));
}

#[test]
fn a_malformed_stored_value_is_ignored() {
    let start = Instant::now();
    for value in
        ["", "1", "1 5", "2 5\n", "x 5\n", "1 x\n", "1 -5\n", "\n\n", "1 99999999999999999999\n"]
    {
        let copy = Some(Bytes::from(value));
        let remembered = StoredRobots { outage: copy.clone(), copy };
        let mut verdicts = RobotsCache::default();
        verdicts.restore(&url("http://a.example/x"), &remembered, at(start, 6));
        assert!(verdicts.rules.is_empty(), "{value:?}");
        let (step, _) = conclude_at(
            &mut verdicts,
            &answer(503, ""),
            remembered.outage.as_ref(),
            at(start, u64::MAX),
        );
        assert_eq!(allows(&step), None, "{value:?}");
    }
}

#[test]
fn huge_files_of_many_hosts_are_bounded_together() {
    let (mut verdicts, now) = (RobotsCache::default(), Instant::now());
    let lines: Vec<_> = (0..30_000).map(|number| format!("Disallow: /{number}\n")).collect();
    let text = format!("User-agent: *\n{}", lines.concat());
    let rules = Arc::new(RobotsRules::parse(text.as_bytes(), "bot"));
    let page = |host: usize| url(&format!("http://h{host}.example/"));
    let count = ROBOTS_CACHE_BYTES_MAX / rules.memory_bytes() * 2;
    for host in 0..count {
        verdicts.insert_rules(&page(host), Arc::clone(&rules), ROBOTS_FRESH, now);
        verdicts.insert_rules(&page(host), Arc::clone(&rules), ROBOTS_FRESH, now);
        assert_eq!(verdicts.rules_bytes, verdicts.rules.len() * rules.memory_bytes());
        assert!(verdicts.rules_bytes <= ROBOTS_CACHE_BYTES_MAX);
        assert!(verdicts.fresh(&page(host), now).is_some());
    }
    assert!(verdicts.fresh(&page(0), now).is_none() && verdicts.rules.len() > count / 4);
}

#[test]
fn the_oldest_are_evicted_first() {
    let mut map = IndexMap::new();
    for key in 0..25 {
        insert_bounded(&mut map, key, (), 20);
    }
    assert!(!map.contains_key(&0) && map.contains_key(&24) && map.len() <= 20);
}
