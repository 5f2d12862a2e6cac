//! What is known of robots.txt: the rules of each authority for a day, and how far a walk through
//! redirects has come. Pure; bounded.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use tidings_protocol::CanonicalUrl;
use tokio::time::Instant;

use crate::config::{
    ROBOTS_CACHE_BYTES_MAX, ROBOTS_CACHE_MAX, ROBOTS_FRESH, ROBOTS_HOPS_MAX,
    ROBOTS_STALE_EXTENSION, ROBOTS_WALKS_MAX,
};
use crate::fetch::Fetched;
use crate::outcome::Failure;
use crate::robots::{Availability, Rules};

/// One entry of the group, whatever the attempt.
pub(super) type Entry = (u64, u64);

/// Rules by authority, and walks by entry. The oldest go first when there are too many.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    rules: IndexMap<String, Verdict>,
    /// Of all `rules`; `<= ROBOTS_CACHE_BYTES_MAX`, or there is only one.
    rules_bytes: usize,
    walks: IndexMap<Entry, Walk>,
}

#[derive(Debug)]
struct Verdict {
    rules: Arc<Rules>,
    fresh_until: Instant,
}

/// A robots.txt that was redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// Where the next hop leads.
    pub(super) target: CanonicalUrl<'static>,
    /// Redirects so far, `target` included; `<= ROBOTS_HOPS_MAX`.
    pub(super) hops: u8,
}

/// What one robots.txt request brought.
#[derive(Debug)]
pub(super) enum Step {
    /// The rules are known now.
    Known(Arc<Rules>),
    /// The file is said to be elsewhere: the next request is for that.
    Elsewhere(Walk),
    /// It cannot be had, so nothing of this authority may be asked for.
    Unknown(Failure),
}

/// A robots.txt holds for one scheme, host and port.
fn authority(url: &CanonicalUrl) -> String {
    format!("{}://{}", url.scheme(), url.authority())
}

impl Verdicts {
    /// The rules for a page, if they are fresh.
    pub(super) fn fresh(&self, page: &CanonicalUrl, now: Instant) -> Option<Arc<Rules>> {
        let verdict = self.rules.get(&authority(page))?;
        (now < verdict.fresh_until).then(|| Arc::clone(&verdict.rules))
    }

    /// The hop that an entry waits for, if `target` is where it leads.
    pub(super) fn walk(&mut self, entry: Entry, target: &CanonicalUrl) -> Option<Walk> {
        self.walks.swap_remove(&entry).filter(|walk| walk.target == *target)
    }

    /// Draws the conclusion from a robots.txt request that was made for `page`, `hops` redirects
    /// after the first one (RFC 9309 section 2.3.1).
    pub(super) fn conclude(
        &mut self,
        page: &CanonicalUrl,
        entry: Entry,
        (asked, hops): (&CanonicalUrl, u8),
        fetched: &Fetched,
        token: &str,
        now: Instant,
    ) -> Step {
        if let Some(failure) = &fetched.failure {
            return self.unreachable(page, failure.clone(), now);
        }
        let status = fetched.status.unwrap_or_default();
        if (300..400).contains(&status)
            && hops < ROBOTS_HOPS_MAX
            && let Some(location) = &fetched.location
            && let Ok(target) = CanonicalUrl::join(asked, location)
        {
            let walk = Walk { target, hops: hops + 1 };
            keep(&mut self.walks, entry, walk.clone(), ROBOTS_WALKS_MAX);
            return Step::Elsewhere(walk);
        }
        let rules = match Availability::of_status(status) {
            Availability::Readable => Rules::parse(&fetched.text, token),
            Availability::Unavailable => Rules::default(),
            Availability::Unreachable => {
                return self.unreachable(page, Failure::of_status(status), now);
            }
        };
        self.know(page, Arc::new(rules), ROBOTS_FRESH, now)
    }

    fn know(
        &mut self,
        page: &CanonicalUrl,
        rules: Arc<Rules>,
        fresh: Duration,
        now: Instant,
    ) -> Step {
        let verdict = Verdict { rules: Arc::clone(&rules), fresh_until: now + fresh };
        self.rules_bytes += rules.memory_bytes();
        let bytes_of = |verdict: &Verdict| verdict.rules.memory_bytes();
        let dropped = keep(&mut self.rules, authority(page), verdict, ROBOTS_CACHE_MAX);
        self.rules_bytes -= dropped.iter().map(bytes_of).sum::<usize>();
        while self.rules_bytes > ROBOTS_CACHE_BYTES_MAX && self.rules.len() > 1 {
            // Many at once, since what is left moves up.
            let dropped = self.rules.drain(..self.rules.len().div_ceil(10));
            self.rules_bytes -= dropped.map(|(_, verdict)| bytes_of(&verdict)).sum::<usize>();
        }
        Step::Known(rules)
    }

    /// An older copy is better than none.
    fn unreachable(&mut self, page: &CanonicalUrl, failure: Failure, now: Instant) -> Step {
        match self.rules.get(&authority(page)).map(|verdict| Arc::clone(&verdict.rules)) {
            Some(rules) => self.know(page, rules, ROBOTS_STALE_EXTENSION, now),
            None => Step::Unknown(failure.within("robots.txt: ")),
        }
    }
}

/// Puts the newest at the end; drops the oldest tenth when there are too many. Gives what is not
/// kept any more.
fn keep<K: std::hash::Hash + Eq, V>(
    map: &mut IndexMap<K, V>,
    key: K,
    value: V,
    max: usize,
) -> Vec<V> {
    let mut dropped: Vec<V> = map.shift_remove(&key).into_iter().collect();
    if map.len() >= max {
        dropped.extend(map.drain(..max.div_ceil(10)).map(|(_, value)| value));
    }
    map.insert(key, value);
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Reason;

    fn url(text: &str) -> CanonicalUrl<'static> {
        text.parse().unwrap()
    }

    fn answer(status: u16, text: &str) -> Fetched {
        Fetched { status: Some(status), text: text.into(), ..Fetched::default() }
    }

    fn conclude(verdicts: &mut Verdicts, fetched: &Fetched, now: Instant) -> Step {
        let asked = url("http://a.example/robots.txt");
        verdicts.conclude(&url("http://a.example/x"), (1, 2), (&asked, 0), fetched, "bot", now)
    }

    fn allows(step: &Step) -> Option<bool> {
        match step {
            Step::Known(rules) => Some(rules.allows("/x")),
            _ => None,
        }
    }

    #[test]
    fn a_verdict_holds_for_a_day_and_its_own_authority() {
        let (mut verdicts, now) = (Verdicts::default(), Instant::now());
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
    fn missing_means_allowed_and_unreachable_means_not_now() {
        let (mut verdicts, now) = (Verdicts::default(), Instant::now());
        let refused =
            Fetched { failure: Some(Failure::new(Reason::BadHttp, "")), ..Fetched::default() };
        for (fetched, expected) in
            [(&answer(500, ""), true), (&answer(429, ""), true), (&refused, false)]
        {
            let Step::Unknown(failure) = conclude(&mut verdicts, fetched, now) else {
                panic!("nothing is known")
            };
            assert_eq!(failure.is_transient(), expected);
        }
        assert!(verdicts.fresh(&url("http://a.example/"), now).is_none());
        assert_eq!(allows(&conclude(&mut verdicts, &answer(404, ""), now)), Some(true));
    }

    #[test]
    fn an_old_copy_serves_while_there_is_no_new_one() {
        let (mut verdicts, now) = (Verdicts::default(), Instant::now());
        conclude(&mut verdicts, &answer(200, "User-agent: *\nDisallow: /x"), now);
        let later = now + ROBOTS_FRESH;
        assert_eq!(allows(&conclude(&mut verdicts, &answer(503, ""), later)), Some(false));
        assert!(verdicts.fresh(&url("http://a.example/"), later).is_some());
        assert!(
            verdicts.fresh(&url("http://a.example/"), later + ROBOTS_STALE_EXTENSION).is_none()
        );
    }

    #[test]
    fn five_redirects_are_followed_and_a_sixth_means_there_is_none() {
        let (mut verdicts, now) = (Verdicts::default(), Instant::now());
        let page = url("http://a.example/x");
        let redirect = Fetched {
            status: Some(301),
            location: Some("//b.example/robots.txt".to_owned()),
            ..Fetched::default()
        };
        let (mut asked, mut hops) = (url("http://a.example/robots.txt"), 0);
        for expected in 1..=ROBOTS_HOPS_MAX {
            let step = verdicts.conclude(&page, (1, 2), (&asked, hops), &redirect, "bot", now);
            let Step::Elsewhere(walk) = step else { panic!("{step:?}") };
            assert_eq!(
                (walk.target.as_str(), walk.hops),
                ("http://b.example/robots.txt", expected)
            );
            assert_eq!(verdicts.walk((1, 2), &walk.target), Some(walk.clone()));
            assert_eq!(verdicts.walk((1, 2), &walk.target), None);
            (asked, hops) = (walk.target, walk.hops);
        }
        let step = verdicts.conclude(&page, (1, 2), (&asked, hops), &redirect, "bot", now);
        assert_eq!(allows(&step), Some(true));
        assert!(verdicts.fresh(&page, now).is_some());
        assert!(verdicts.fresh(&url("http://b.example/"), now).is_none());
    }

    #[test]
    fn huge_files_of_many_hosts_are_bounded_together() {
        let (mut verdicts, now) = (Verdicts::default(), Instant::now());
        let text = format!("User-agent: *\n{}", "Disallow: /x\n".repeat(30_000));
        let rules = Arc::new(Rules::parse(text.as_bytes(), "bot"));
        let page = |host: usize| url(&format!("http://h{host}.example/"));
        let count = ROBOTS_CACHE_BYTES_MAX / rules.memory_bytes() * 2;
        for host in 0..count {
            verdicts.know(&page(host), Arc::clone(&rules), ROBOTS_FRESH, now);
            verdicts.know(&page(host), Arc::clone(&rules), ROBOTS_FRESH, now);
            assert_eq!(verdicts.rules_bytes, verdicts.rules.len() * rules.memory_bytes());
            assert!(verdicts.rules_bytes <= ROBOTS_CACHE_BYTES_MAX);
            assert!(verdicts.fresh(&page(host), now).is_some());
        }
        assert!(verdicts.fresh(&page(0), now).is_none() && verdicts.rules.len() > count / 4);
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut map = IndexMap::new();
        for key in 0..25 {
            keep(&mut map, key, (), 20);
        }
        assert!(!map.contains_key(&0) && map.contains_key(&24) && map.len() <= 20);
    }
}
