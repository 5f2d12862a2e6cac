//! The rules of an origin: cached, stored over restarts, or fetched.

use tidings_protocol::CanonicalUrl;

use super::Crawler;
use super::record::unix_ms;
use super::robots_cache::{ROBOTS_FRESH, RobotsRecord, RobotsStep, StoredRobots};
use super::task::now;
use crate::fetch::Fetched;
use crate::robots::sitemaps;
use crate::worker::SITEMAPS_KIND;

impl Crawler {
    /// The key of an origin in `crawler.db`: rules are stored for each product token.
    fn state_key(&self, origin: &str) -> String {
        format!("{} {origin}", self.product_token)
    }

    /// What earlier runs have stored.
    pub(super) async fn load_stored_robots(&self, origin: &str) -> StoredRobots {
        let (state, key) = (&self.state, self.state_key(origin));
        let copy = state.load(RobotsRecord::COPY, &key);
        let (copy, outage) = tokio::join!(copy, state.load(RobotsRecord::OUTAGE, &key));
        StoredRobots { copy, outage }
    }

    /// Takes the answer to a request for the robots.txt of `page`. `requested` is the URL of the
    /// request, and the number of redirects before it.
    pub(super) fn process_robots(
        &self,
        page: &CanonicalUrl<'_>,
        requested: (&CanonicalUrl, u8),
        fetched: &Fetched,
        remembered: &StoredRobots,
    ) -> RobotsStep {
        let known = (self.product_token.as_str(), remembered.outage.as_ref());
        let mut cache = self.robots_cache.lock();
        let (step, remember) = cache.process_response(page, requested, fetched, known, now());
        drop(cache);
        // Rules of an older copy, which stay in force during an outage, are stored already.
        let was_read = remember.iter().any(|remember| remember.kind == RobotsRecord::COPY);
        if self.config.fetch.links.sitemaps && was_read {
            let sitemaps = sitemaps(&fetched.text, requested.0);
            let lines: Vec<_> = sitemaps.iter().map(CanonicalUrl::as_str).collect();
            let until = unix_ms() / 1000 + 2 * ROBOTS_FRESH.as_secs();
            self.state.store(SITEMAPS_KIND, page.origin(), lines.join("\n").into(), until);
        }
        let key = self.state_key(page.origin());
        for RobotsRecord { kind, value, expires_unix_s } in remember {
            self.state.store(kind, &key, value, expires_unix_s);
        }
        step
    }
}
