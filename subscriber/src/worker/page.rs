//! The request for a page, and what follows from its answer.

#![expect(clippy::disallowed_methods, reason = "says how long an answer took")]

use std::collections::HashSet;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tidings_protocol::{CanonicalUrl, Hold, Payload};
use tokio::time::Instant;

use super::Crawler;
use super::feeds::{Answer, Remembered, Watch};
use super::finish::finish;
use super::record::{judge, unix_ms};
use super::task::{Work, milliseconds, pace};
use crate::config::{FEED_READ_BYTES, SITEMAPS_KIND};
use crate::feed::{Feed, FeedReader, watch};
use crate::fetch::{Fetched, Request, Wanted};
use crate::outcome::{Failure, Reason};
use crate::page::{Content, Link};
use crate::report::{Keep, PageOutcome, PageRecord, Validators};
use crate::robots::Rules;
use crate::sink::Last;
use crate::spool::Spool;
use crate::traps::Trap;

impl Work<'_> {
    pub(super) async fn fetch_page(&self, rules: &Rules) {
        if let Err(trap) = self.may_be_asked() {
            let (page, none) = (self.page.as_str(), Fetched::default());
            let mut record = self.task.record(page, PageOutcome::Trap, none, None);
            record.is_trap(trap);
            return Box::pin(self.finish(record, None)).await;
        }
        let payload = Payload::parse(&self.task.payload);
        let watch = Box::pin(Watch::of(&self.page, &payload, &self.remembered())).await;
        let last = if watch.is_none() { self.last().await } else { None };
        let validators = match &watch {
            Some(watch) => Some(owned(watch.validators())),
            None => last.as_ref().map(|last| last.validators.clone()),
        };
        let wanted = self.crawler.sinks.keep();
        let keep = Keep { decoded: wanted.decoded || watch.is_some(), ..wanted };
        let (wanted, deadline) = (Wanted::Page, self.deadline);
        let validators = validators.as_ref();
        let started = Instant::now();
        let request = Request { url: &self.page, wanted, validators, keep, deadline };
        let Some(fetched) = self.request(&request).await else { return };
        let duration = started.elapsed();
        match watch {
            Some(watch) => Box::pin(self.look(watch, rules, fetched, duration)).await,
            None => self.take(last, rules, fetched, duration).await,
        }
    }

    /// An answer for a page.
    async fn take(
        &self,
        last: Option<Last>,
        rules: &Rules,
        mut fetched: Fetched,
        duration: Duration,
    ) {
        let (outcome, failure) = judge(&self.page, &mut fetched, last.is_some());
        let hold = hold(&fetched, rules);
        let (page, is_same) = (fetched.page.take(), fetched.status == Some(304));
        let mut record = self.record(outcome, fetched, failure, duration);
        let sitemaps = self.sitemaps(&record).await;
        let read = |record: &mut PageRecord| {
            if let (true, Some(last)) = (is_same, last) {
                record.take_over(last);
            } else if let Some(page) = page {
                self.keep(record, page.finish(&self.page));
            }
            // Of a page that has not changed they are known already.
            let is_new = |link: &Link| record.links.iter().all(|known| known.url != link.url);
            let sitemaps: Vec<_> = sitemaps.into_iter().filter(is_new).collect();
            record.links.splice(..0, sitemaps);
            record.report.links = record.links.len();
            if outcome == PageOutcome::Done
                && let Err(trap) = self.is_worth_following(record)
            {
                record.is_trap(trap);
            }
        };
        if outcome == PageOutcome::Redirect {
            self.strip_target(&mut record);
        }
        let record = Arc::new(record);
        finish(self.crawler, self.task, record, Some(hold), read, ready(Ok(()))).await;
    }

    /// An answer for a watched feed: what is new in it is announced before the task is answered.
    async fn look(
        &self,
        watch: Watch<'_>,
        rules: &Rules,
        mut fetched: Fetched,
        duration: Duration,
    ) {
        let (outcome, failure) = judge(&self.page, &mut fetched, true);
        let hold = hold(&fetched, rules);
        let rest = fetched.retry_after.unwrap_or_default().max(fresh_for(&fetched));
        let content = fetched.page.take().map(|page| page.finish(&self.page)).unwrap_or_default();
        let content_type = fetched.content_type.clone();
        let feed = fetched.body.as_ref().and_then(|body| {
            // Where links of it begin that are no whole URLs.
            read_feed(body, content_type.as_deref(), self.page.as_str())
        });
        let (status, validators) = (fetched.status, fetched.validators.clone());
        let mut record = self.record(outcome, fetched, failure, duration);
        if outcome == PageOutcome::Redirect {
            self.strip_target(&mut record);
        }
        let (named, feed) = (content.feeds.clone(), feed.unwrap_or_default());
        let answer = match (outcome, status) {
            (PageOutcome::Done, Some(304)) => Answer::NotModified,
            (PageOutcome::Done, _) => {
                let validators = watch::Validators {
                    etag: validators.etag.as_deref(),
                    last_modified: validators.last_modified.as_deref(),
                };
                Answer::Document { feed: &feed, named: &named, validators }
            }
            _ => Answer::Failed,
        };
        let is_final = !record.transient || record.is_final();
        let announce = async {
            let (broker, memory) = (&self.crawler.link, self.remembered());
            // A redirect is followed as a task of its own, with the same attributes.
            if is_final && outcome != PageOutcome::Redirect {
                watch.look(answer, rest, unix_ms(), broker, &memory).await?;
            }
            Ok(())
        };
        let read = |record: &mut PageRecord| self.keep(record, content);
        let record = Arc::new(record);
        finish(self.crawler, self.task, record, Some(hold), read, announce).await;
    }

    fn record(
        &self,
        outcome: PageOutcome,
        mut fetched: Fetched,
        failure: Option<Failure>,
        duration: Duration,
    ) -> PageRecord {
        let (mut outcome, mut failure) = (outcome, failure);
        // Who is given a path wants a file.
        if !self.crawler.sinks.keep().decoded {
            fetched.body = None;
        } else if let Some(Err(error)) = fetched.body.as_mut().map(|body| body.path().map(drop)) {
            outcome = PageOutcome::Retry;
            failure = Some(Failure::of(Reason::Storage, &error));
        }
        let mut record = self.task.record(self.page.as_str(), outcome, fetched, failure);
        record.report.duration = duration;
        record
    }

    /// What the page says. Its links lose what only tells who follows them.
    fn keep(&self, record: &mut PageRecord, content: Content) {
        record.noindex = content.is_noindex_at(record.fetched_unix_ms / 1000);
        record.report.title = content.title;
        record.report.error = content.cut.map(str::to_owned);
        record.canonical = content.canonical.map(String::from);
        record.links = strip(self.crawler, content.links);
        record.report.links = record.links.len();
    }

    /// The same of where a redirect leads, unless that is the page itself then.
    fn strip_target(&self, record: &mut PageRecord) {
        let Some(target) = &record.redirect else { return };
        let target = CanonicalUrl::parse(target).expect("it was joined from one");
        if let Some(stripped) = self.crawler.config.links.tracking.strip(&target)
            && stripped != self.page
        {
            record.redirect = Some(stripped.as_str().to_owned());
        }
    }

    /// What was stored of the page before, if there may be something: of an earlier pass, crawl or announcement.
    async fn last(&self) -> Option<Last> {
        let may_know = self.crawler.earlier.lock().may_know(self.task.pass());
        if !may_know || self.crawler.config.refetch {
            return None;
        }
        let last = self.crawler.sinks.last(self.page.as_str(), &self.task.page).await?;
        let Validators { etag, last_modified } = &last.validators;
        (etag.is_some() || last_modified.is_some()).then_some(last)
    }

    /// The sitemaps of its site, with a page where a crawl begins, if they are wanted.
    async fn sitemaps(&self, record: &PageRecord) -> Vec<Link> {
        let begins = record.depth == Some(0) && record.report.outcome == PageOutcome::Done;
        if !begins || !self.crawler.config.links.sitemaps {
            return Vec::new();
        }
        let key = super::verdicts::authority(&self.page);
        let lines = self.crawler.state.load(SITEMAPS_KIND, &key).await.unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        lines.lines().map(|line| Link { url: line.into(), nofollow: false }).collect()
    }

    fn remembered(&self) -> Remembered<'_> {
        Remembered { state: &self.crawler.state, now_unix_s: unix_ms() / 1000 }
    }

    /// Whether the URL is not one of endlessly many. A page that was announced is what somebody wants.
    fn may_be_asked(&self) -> Result<(), Trap> {
        let Some(pass) = self.task.pass() else { return Ok(()) };
        self.crawler.traps.lock().before(pass, &self.page, self.depth())
    }

    fn is_worth_following(&self, record: &PageRecord) -> Result<(), Trap> {
        let (Some(pass), Some(hash)) = (self.task.pass(), record.hash) else { return Ok(()) };
        self.crawler.traps.lock().after(pass, &self.page, self.depth(), hash.as_bytes())
    }

    fn depth(&self) -> u32 {
        let payload = Payload::parse(&self.task.payload);
        payload.attribute("depth").and_then(|depth| depth.parse().ok()).unwrap_or_default()
    }
}

fn hold(fetched: &Fetched, rules: &Rules) -> Hold {
    Hold { not_before_ms: fetched.retry_after.map(milliseconds), ..pace(rules) }
}

fn owned(validators: watch::Validators<'_>) -> Validators {
    Validators {
        etag: validators.etag.map(str::to_owned),
        last_modified: validators.last_modified.map(str::to_owned),
    }
}

fn strip(crawler: &Crawler, links: Vec<Link>) -> Vec<Link> {
    let tracking = &crawler.config.links.tracking;
    if links.iter().all(|link| tracking.strip_text(&link.url).is_none()) {
        return links;
    }
    let mut known = HashSet::new();
    let stripped = links.into_iter().map(|link| {
        let url = tracking.strip_text(&link.url);
        url.map_or_else(|| link.clone(), |url| Link { url: url.as_str().into(), ..link })
    });
    stripped.filter(|link| known.insert(link.url.clone())).collect()
}

/// `None` if it cannot be read back.
fn read_feed(body: &Spool, content_type: Option<&str>, base: &str) -> Option<Feed> {
    let mut reader = FeedReader::new(content_type);
    let mut bytes = body.read().ok()?;
    let mut chunk = vec![0; FEED_READ_BYTES];
    loop {
        match bytes.read(&mut chunk).ok()? {
            0 => return Some(reader.finish(Some(base))),
            n => reader.feed(&chunk[..n]),
        }
    }
}

/// How long the answer is fresh (RFC 9111 section 4.2.1, `max-age` alone).
fn fresh_for(fetched: &Fetched) -> Duration {
    let values = fetched.headers.get_all("cache-control").into_iter();
    let mut words =
        values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let age = words.find_map(|word| word.trim().strip_prefix("max-age="));
    Duration::from_secs(age.and_then(|age| age.trim_matches('"').parse().ok()).unwrap_or(0))
}
