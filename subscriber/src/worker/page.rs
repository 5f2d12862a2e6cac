//! Requests a page and handles the answer.

#![expect(clippy::disallowed_methods, reason = "measures requests, and parses on other threads")]

use std::collections::HashSet;
use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use tidings_documents::document::DocumentReader;
use tidings_documents::feed::{Feed, FeedReader, NO_FEED, watched_feed};
use tidings_documents::page::{PageContent, PageLink};
use tidings_documents::tracking::TrackingParams;
use tidings_egress::failure::{Failure, Reason};
use tidings_egress::http::Validators;
use tidings_protocol::{CanonicalUrl, KeyRest, REDIRECTS_MAX, Render, RetryMode, is_in_chain};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::feeds::{FeedCheck, FeedResponse, FeedTaskOutcome, NamedLinks, StoredFeedStates};
use super::finish::{TaskFailure, finish};
use super::record::{classify, unix_ms};
use super::rendering::is_page;
use super::task::{TaskWork, error_report, milliseconds, pace};
use crate::fetch::{FetchPurpose, FetchRequest, Fetched};
use crate::report::{KeepBodies, PageOutcome, PageRecord};
use crate::robots::RobotsRules;
use crate::sink::{EarlierRecord, LastRecord};
use crate::spool::Spool;
use crate::traps::{PageReading, Trap};
use crate::worker::SITEMAPS_KIND;

/// A page that may be rendered is requested in full unless its last record has this many links. One
/// with fewer may lack its content, and an answer without a document would not show that.
const CONDITIONAL_LINKS_MIN: usize = 10;
/// Bytes of a watched feed that are read at a time.
const FEED_READ_BYTES: usize = 64 * 1024;

impl TaskWork<'_> {
    pub(super) async fn fetch_page(&self, rules: &RobotsRules) {
        if let Err(trap) = self.check_url_trap() {
            let (page, none) = (self.page.as_str(), Fetched::default());
            let mut record = self.task.record(page, PageOutcome::Trap, none, None);
            record.mark_trap(trap);
            return Box::pin(self.finish(record, None)).await;
        }
        let payload = self.task.spec.payload();
        let watch = match Box::pin(FeedCheck::of(&self.page, &payload, &self.feed_states())).await {
            Ok(watch) => watch,
            Err(reason) => {
                let back = RetryMode::Counted { after_ms: None };
                let nack = self.task.nack(back, KeyRest::default(), Some(error_report(reason)));
                Box::pin(self.crawler.reply(&[], &nack)).await;
                return;
            }
        };
        let earlier = self.earlier_record().await;
        let last = earlier.newest().filter(|last| self.may_confirm(last));
        let validators = match &watch {
            Some(watch) => {
                let may_confirm = self.crawler.sinks.have_body_of(earlier.newest());
                may_confirm.then(|| owned_validators(watch.validators()))
            }
            None => last.map(|last| last.validators.clone()),
        };
        let wanted = self.crawler.sinks.keep();
        let may_render = watch.is_none() && self.render_mode() != Render::No;
        let decoded = wanted.decoded || watch.is_some() || may_render;
        let keep = KeepBodies { decoded, ..wanted };
        let (wanted, deadline) = (FetchPurpose::Page, self.deadline);
        let validators = validators.as_ref();
        let started = Instant::now();
        let request = FetchRequest { url: &self.page, purpose: wanted, validators, keep, deadline };
        let Some(fetched) = self.request(&request).await else { return };
        let duration = started.elapsed();
        if self.return_unless_kept(&fetched, rest_of(&fetched, rules)).await {
            return;
        }
        let is_conditional = validators.is_some();
        if let Some(watch) = watch {
            Box::pin(self.handle_feed((watch, earlier), rules, fetched, duration)).await;
        } else {
            let (earlier, then) = ((earlier, is_conditional), ready(Ok(())));
            self.handle_page(earlier, rules, fetched, duration, (None, then)).await;
        }
    }

    /// Handles the answer for a page. `is_conditional`: the request had the validators of the
    /// earlier record. `read`: the content, if it was parsed already. `then` runs before the task is
    /// answered.
    async fn handle_page(
        &self,
        (earlier, is_conditional): (EarlierRecord, bool),
        rules: &RobotsRules,
        mut fetched: Fetched,
        duration: Duration,
        (read, then): (Option<PageContent>, impl Future<Output = Result<(), TaskFailure>>),
    ) {
        let (outcome, failure) = classify(&self.page, &mut fetched, is_conditional);
        let mut hold = rest_of(&fetched, rules);
        if outcome == PageOutcome::Redirect && self.return_with_cookies(&fetched, hold).await {
            return;
        }
        let is_same = is_conditional && fetched.status == Some(304);
        let may_render = outcome == PageOutcome::Done
            && is_page(&mut fetched)
            && self.render_mode() != Render::No;
        if may_render && Box::pin(self.return_for_browser(&fetched, hold)).await {
            return;
        }
        let browsers = self.crawler.renderer.as_ref().filter(|_| may_render);
        let (page, mut content) = match fetched.page.take() {
            // Parsed before the host is freed: the host's next request waits for that.
            Some(page) if page.finish_may_block() => {
                (None, Some(finish_blocking(page, &self.page).await))
            }
            Some(page) if browsers.is_some() => (None, Some(page.finish(&self.page))),
            page => (page, read),
        };
        let browsers = match (browsers, &content) {
            (Some(browsers), Some(read)) if self.needs_browser(browsers, read).await => {
                Some(browsers)
            }
            _ => None,
        };
        let (mut rendered, mut _permit) = (None, None);
        if let (Some(browsers), Some(read)) = (browsers, content.take_if(|_| browsers.is_some())) {
            let render = Box::pin(self.render(browsers, &mut fetched, read));
            let Some(page) = render.await else { return };
            hold.not_before_ms = self.crawler.rest_of(&self.page).not_before_ms;
            content = Some(page.content);
            rendered = Some((page.rendering, page.report));
            _permit = page.permit;
        }
        // The memory permit is held until everything is stored.
        let _share = fetched.memory_permit.take();
        let cookies_changed = fetched.cookies_changed;
        let mut record = self.record(outcome, fetched, failure, duration);
        (record.rendering, record.report.render) = rendered.unzip();
        let sitemaps = self.sitemaps(&record).await;
        let read = |record: &mut PageRecord| {
            let mut words = None;
            let content = content.or_else(|| page.map(|page| page.finish(&self.page)));
            if let Some(content) = content.filter(|_| !is_same) {
                words = content.word_fingerprint;
                self.apply_content(record, content);
            }
            record.changed = earlier.change_of(record);
            if let (true, EarlierRecord::Newest(last)) = (is_same, earlier) {
                record.restore_unchanged(*last);
            }
            self.learn_sessions(record, words);
            prepend_links(sitemaps, &mut record.links);
            self.strip_sessions(record);
            record.report.links = record.links.len();
            if outcome == PageOutcome::Done
                && let Err(trap) = self.check_page_trap(record)
            {
                record.mark_trap(trap);
            }
        };
        self.settle_redirect(&mut record, cookies_changed);
        let record = Arc::new(record);
        finish(self.crawler, self.task, record, Some(hold), read, then).await;
    }

    /// Returns the task without counting an attempt if its page redirects to itself and has set
    /// cookies: such a site shows the page to clients that return them. `false`: it is another
    /// redirect, or the group allows this attempt no further request. Without a job, such a
    /// redirect is followed as a task of its own.
    async fn return_with_cookies(&self, fetched: &Fetched, hold: KeyRest) -> bool {
        let is_gate = fetched.cookies_changed
            && self.task.spec.job.is_some()
            && fetched.location.as_deref() == Some(self.page.as_str());
        is_gate && self.return_for_page(hold, None).await
    }

    /// Handles the answer for a watched feed: new items are announced before the task is answered.
    /// A document that is not a feed is a page of its job, if the task has one: what the check makes
    /// of it concerns the schedule.
    async fn handle_feed(
        &self,
        (watch, earlier): (FeedCheck<'_>, EarlierRecord),
        rules: &RobotsRules,
        mut fetched: Fetched,
        duration: Duration,
    ) {
        let tracking = self.crawler.config.fetch.links.tracking.clone();
        // The URL of the page is the base for relative links.
        let feed = tokio::select! {
            biased;
            feed = read_feed(&mut fetched, self.page.as_str(), tracking) => feed,
            () = self.crawler.abandon.cancelled() => {
                return self.return_for_request(&self.page, KeyRest::default()).await;
            }
        };
        let hold = rest_of(&fetched, rules);
        if self.return_unless_kept(&fetched, hold).await {
            return;
        }
        let rest = fetched.retry_after.unwrap_or_default().max(fresh_for(&fetched));
        let content = match fetched.page.take() {
            Some(page) => finish_blocking(page, &self.page).await,
            None => PageContent::default(),
        };
        let (status, validators) = (fetched.status, fetched.validators.clone());
        let cookies_changed = fetched.cookies_changed;
        let headers = fetched.headers.clone();
        let hubs = content.hubs.iter().map(ToString::to_string).collect();
        let named =
            NamedLinks { feeds: content.feeds.clone(), hubs, own: content.self_url.clone() };
        let validators = watched_feed::Validators {
            etag: validators.etag.as_deref(),
            last_modified: validators.last_modified.as_deref(),
        };
        let document =
            FeedResponse::Document { feed: &feed, headers: &headers, named: &named, validators };
        let is_document = fetched.failure.is_none() && matches!(status, Some(200..=299));
        if is_document && feed.kind.is_none() && self.task.spec.job.is_some() {
            let then = async { self.check_feed(watch, document, rest).await.map(drop) };
            let page =
                self.handle_page((earlier, false), rules, fetched, duration, (Some(content), then));
            return Box::pin(page).await;
        }
        let (outcome, failure) = classify(&self.page, &mut fetched, true);
        let _share = fetched.memory_permit.take();
        let mut record = self.record(outcome, fetched, failure, duration);
        self.settle_redirect(&mut record, cookies_changed);
        let outcome = record.report.outcome;
        let answer = match (outcome, status) {
            (PageOutcome::Done, Some(304)) => FeedResponse::NotModified,
            (PageOutcome::Done, _) => document,
            (PageOutcome::Failed, Some(410)) => FeedResponse::Gone,
            _ => FeedResponse::Failed,
        };
        let target = record.redirect.clone();
        let is_final = !record.is_transient || record.is_final();
        let announce = async {
            // A redirect is followed by a task of its own, with the same attributes.
            if outcome == PageOutcome::Redirect {
                let permanent = target.filter(|_| matches!(status, Some(301 | 308)));
                let recorded =
                    watch.record_redirect(permanent.as_deref(), &self.feed_states()).await;
                return recorded.map_err(|reason| TaskFailure::new(reason, true));
            }
            if !is_final {
                return Ok(());
            }
            match self.check_feed(watch, answer, rest).await? {
                // Due again at its scheduled time: until then an operator can read the reason at
                // the broker.
                FeedTaskOutcome::Nothing { next } => {
                    Err(TaskFailure { retry_after: next, ..TaskFailure::new(NO_FEED, true) })
                }
                _ => Ok(()),
            }
        };
        let read = |record: &mut PageRecord| {
            self.apply_content(record, content);
            record.changed = earlier.change_of(record);
            if let EarlierRecord::Newest(last) = earlier
                && status == Some(304)
            {
                record.restore_unchanged(*last);
            }
        };
        let record = Arc::new(record);
        Box::pin(finish(self.crawler, self.task, record, Some(hold), read, announce)).await;
    }

    async fn check_feed(
        &self,
        watch: FeedCheck<'_>,
        answer: FeedResponse<'_>,
        rest: Duration,
    ) -> Result<FeedTaskOutcome, TaskFailure> {
        let (broker, states) = (&self.crawler.broker, self.feed_states());
        let checked = watch.process(answer, rest, unix_ms(), broker, &states).await;
        checked.map_err(|reason| TaskFailure::new(reason, true))
    }

    fn record(
        &self,
        outcome: PageOutcome,
        mut fetched: Fetched,
        failure: Option<Failure>,
        duration: Duration,
    ) -> PageRecord {
        // The body of a watched feed has been read already.
        if !self.crawler.sinks.keep().decoded {
            fetched.body = None;
        }
        let mut record = self.task.record(self.page.as_str(), outcome, fetched, failure);
        record.report.duration = duration;
        record.original = self.crawler.sinks.original_of(&record);
        record
    }

    /// Fills the record from the page. Tracking parameters are removed from its links.
    fn apply_content(&self, record: &mut PageRecord, content: PageContent) {
        record.noindex = content.is_noindex_at(record.fetched_unix_ms / 1000);
        record.report.title = content.title;
        record.text_hash = content.text_hash;
        let cut = content.cut.map(str::to_owned);
        record.report.error = record.report.error.take().or(cut);
        record.canonical = content.canonical.map(String::from);
        let tracking = &self.crawler.config.fetch.links.tracking;
        record.links =
            strip_links(content.links, |url| Some(tracking.strip_text(url)?.as_str().into()));
        record.report.links = record.links.len();
    }

    /// Learns from a page which query parameters of its site are session ids.
    fn learn_sessions(&self, record: &PageRecord, words: Option<u64>) {
        let (PageOutcome::Done, Some(pass)) = (record.report.outcome, self.task.pass()) else {
            return;
        };
        let Some(hash) = record.content_hash() else { return };
        let title = record.report.title.as_deref();
        let reading = PageReading { body: hash.as_bytes(), title, words, links: &record.links };
        // An unchanged page has no current session ids.
        let reading = Some(&reading).filter(|_| record.report.status != Some(304));
        let found = self.crawler.traps.lock().learn_sessions(pass, &self.page, reading);
        for name in found {
            let site = self.page.authority();
            tracing::info!("{site}: parameter {name} is a session id and is removed from links");
        }
    }

    /// Removes known session ids from the links.
    fn strip_sessions(&self, record: &mut PageRecord) {
        let Some(pass) = self.task.pass() else { return };
        let traps = self.crawler.traps.lock();
        let links = std::mem::take(&mut record.links);
        record.links = strip_links(links, |url| Some(traps.without_session(pass, url)?.into()));
    }

    /// Prepares the target of a redirect, if the page has one. A redirect that cannot end is a
    /// failure. `cookies_changed`: the answer has set cookies.
    fn settle_redirect(&self, record: &mut PageRecord, cookies_changed: bool) {
        self.strip_target(record);
        let Some(target) = &record.redirect else { return };
        let spec = &self.task.spec;
        let is_circle = target == self.page.as_str()
            || spec
                .chain
                .as_deref()
                .is_some_and(|chain| self.is_circle(chain, target, cookies_changed));
        if is_circle && spec.job.is_some() {
            record.fail_redirect(format!("a circle of redirects, back to {target}"));
        } else if spec.hops >= REDIRECTS_MAX {
            let text = format!("more than {REDIRECTS_MAX} redirects, the next one to {target}");
            record.fail_redirect(text);
        }
    }

    /// Whether a redirect leads back to a URL of its chain, and new cookies cannot help. A page that
    /// was requested before in the chain has rejected the cookies, unless they were lost since.
    fn is_circle(&self, chain: &str, target: &str, cookies_changed: bool) -> bool {
        let has_cookies = |url: &CanonicalUrl<'_>| self.crawler.fetcher.has_cookies_for(url);
        let may_help = || {
            if is_in_chain(chain, self.page.url_key()) {
                self.crawler.config.fetch.cookies && !has_cookies(&self.page)
            } else {
                CanonicalUrl::parse(target).is_ok_and(|target| has_cookies(&target))
            }
        };
        is_in_chain(chain, CanonicalUrl::key_of(target)) && !cookies_changed && !may_help()
    }

    /// Removes tracking parameters and session ids from the target of a redirect, unless the result
    /// is the page itself.
    fn strip_target(&self, record: &mut PageRecord) {
        let Some(target) = &mut record.redirect else { return };
        if let Some(bare) = self.crawler.config.fetch.links.tracking.strip_text(target)
            && bare != self.page
        {
            *target = bare.as_str().to_owned();
        }
        if let Some(pass) = self.task.pass()
            && let Some(bare) = self.crawler.traps.lock().without_session(pass, target)
            && bare != self.page.as_str()
        {
            *target = bare;
        }
    }

    /// The newest record of the page from an earlier pass, crawl or publication.
    async fn earlier_record(&self) -> EarlierRecord {
        let (revisits, sinks) = (&self.crawler.revisits, &self.crawler.sinks);
        let may_exist = revisits.may_have_record(self.task.pass(), sinks.have_records()).await;
        sinks.earlier_record(self.page.as_str(), &self.task.page, may_exist).await
    }

    /// Whether an answer without a document may confirm this record.
    fn may_confirm(&self, last: &LastRecord) -> bool {
        // Scripts may show new content although the document has not changed.
        let mode = self.render_mode();
        if mode == Render::Yes || self.crawler.config.refetch || last.rendered_hash.is_some() {
            return false;
        }
        // It may have been stored by a crawler without a browser.
        let may_lack_content = mode == Render::Auto && last.links.len() < CONDITIONAL_LINKS_MIN;
        let is_complete = !may_lack_content && self.crawler.sinks.have_body_of(Some(last));
        is_complete && !last.validators.is_empty()
    }

    /// The sitemaps of the site, if enabled and if this page is a seed.
    async fn sitemaps(&self, record: &PageRecord) -> Vec<PageLink> {
        let begins = record.depth == Some(0) && record.report.outcome == PageOutcome::Done;
        if !begins || !self.crawler.config.fetch.links.sitemaps {
            return Vec::new();
        }
        let lines =
            self.crawler.state.load(SITEMAPS_KIND, self.page.origin()).await.unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        lines.lines().map(|line| PageLink { url: line.into(), nofollow: false }).collect()
    }

    fn feed_states(&self) -> StoredFeedStates<'_> {
        StoredFeedStates { state: &self.crawler.state, now_unix_s: unix_ms() / 1000 }
    }

    /// Whether the URL may be a trap. A page that was published without a job is never refused.
    fn check_url_trap(&self) -> Result<(), Trap> {
        let Some(pass) = self.task.pass() else { return Ok(()) };
        self.crawler.traps.lock().check_url(pass, &self.page, self.depth())
    }

    fn check_page_trap(&self, record: &PageRecord) -> Result<(), Trap> {
        let (Some(pass), Some(hash)) = (self.task.pass(), record.content_hash()) else {
            return Ok(());
        };
        self.crawler.traps.lock().check_page(pass, &self.page, self.depth(), hash.as_bytes())
    }

    fn depth(&self) -> u32 {
        self.task.spec.depth.and_then(|depth| u32::try_from(depth).ok()).unwrap_or_default()
    }
}

fn rest_of(fetched: &Fetched, rules: &RobotsRules) -> KeyRest {
    KeyRest { not_before_ms: fetched.retry_after.map(milliseconds), ..pace(rules) }
}

fn owned_validators(validators: watched_feed::Validators<'_>) -> Validators {
    Validators {
        etag: validators.etag.map(str::to_owned),
        last_modified: validators.last_modified.map(str::to_owned),
    }
}

/// Replaces each link by the result of `left`, if there is one, and merges links that are equal
/// then.
fn strip_links(links: Vec<PageLink>, left: impl Fn(&str) -> Option<Box<str>>) -> Vec<PageLink> {
    if links.iter().all(|link| left(&link.url).is_none()) {
        return links;
    }
    let mut stripped: IndexMap<Box<str>, bool> = IndexMap::with_capacity(links.len());
    for PageLink { url, nofollow } in links {
        // Merged links are followed if one of them may be.
        let url = left(&url).unwrap_or(url);
        stripped.entry(url).and_modify(|all| *all &= nofollow).or_insert(nofollow);
    }
    stripped.into_iter().map(|(url, nofollow)| PageLink { url, nofollow }).collect()
}

/// Runs slow work on a blocking thread, so that other tasks are not delayed.
pub(super) async fn run_blocking<T: Send + Default + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The process is exiting.
            Err(_) => T::default(),
        },
    }
}

async fn finish_blocking(document: DocumentReader, url: &CanonicalUrl<'_>) -> PageContent {
    let url = url.clone().into_owned();
    run_blocking(move || document.finish(&url)).await
}

/// Puts links in front. Those that are in the list already (from an earlier fetch) keep their
/// place.
fn prepend_links(mut more: Vec<PageLink>, links: &mut Vec<PageLink>) {
    if !more.is_empty() {
        let known: HashSet<_> = links.iter().map(|link| &*link.url).collect();
        more.retain(|link| !known.contains(&*link.url));
        links.splice(..0, more);
    }
}

/// Reads the body as a feed. A body that cannot be read back is a storage failure.
async fn read_feed(fetched: &mut Fetched, base: &str, tracking: TrackingParams) -> Feed {
    let Some(body) = fetched.body.take() else { return Feed::default() };
    let (content_type, base) = (fetched.content_type.clone(), base.to_owned());
    let (body, feed) = run_blocking(move || {
        let mut feed = parse_feed(&body, content_type.as_deref(), &base);
        if let Ok(feed) = &mut feed {
            feed.strip_tracking(&tracking);
        }
        (Some(body), Some(feed))
    })
    .await;
    fetched.body = body;
    match feed {
        Some(Ok(feed)) => feed,
        Some(Err(error)) => {
            fetched.failure = Some(Failure::of(Reason::Storage, &error));
            Feed::default()
        }
        None => Feed::default(),
    }
}

fn parse_feed(body: &Spool, content_type: Option<&str>, base: &str) -> io::Result<Feed> {
    let mut reader = FeedReader::new(content_type);
    let mut bytes = body.read()?;
    let mut chunk = vec![0; FEED_READ_BYTES];
    loop {
        match bytes.read(&mut chunk)? {
            0 => return Ok(reader.finish(Some(base))),
            n => reader.feed(&chunk[..n]),
        }
    }
}

/// For how long the answer is fresh (RFC 9111 section 4.2.1, `max-age` only).
fn fresh_for(fetched: &Fetched) -> Duration {
    let values = fetched.headers.get_all("cache-control").into_iter();
    let mut words =
        values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let age = words.find_map(|word| word.trim().strip_prefix("max-age="));
    Duration::from_secs(age.and_then(|age| age.trim_matches('"').parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_links_are_followed_if_one_of_them_may_be() {
        let link = |url: &str, nofollow| PageLink { url: url.into(), nofollow };
        let links = vec![
            link("http://a.example/x?utm_source=1", true),
            link("http://a.example/y?utm_source=1", true),
            link("http://a.example/x", false),
            link("http://a.example/y", true),
        ];
        let tracking = TrackingParams::default();
        let stripped = strip_links(links, |url| Some(tracking.strip_text(url)?.as_str().into()));
        let expected = [link("http://a.example/x", false), link("http://a.example/y", true)];
        assert_eq!(stripped, expected);
    }
}
