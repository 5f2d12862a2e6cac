//! Renders the page of a task in a browser, from the document that was fetched.

#![expect(clippy::disallowed_methods, reason = "measures how long a page takes")]

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_browser::process::{LaunchError, Launcher};
use tidings_browser::visit::{Answer, Fetch, Load, Page, PageError, Rendered, Request};
use tidings_browser::{Browsers, BrowsersTask};
use tidings_client::ReplyOutcome;
use tidings_documents::document::DocumentReader;
use tidings_documents::page::PageContent;
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{CanonicalUrl, KeyRest, Render, RetryMode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::page::run_blocking;
use super::parts::Parts;
use super::record::unix_ms;
use super::task::{TaskWork, failure_report, return_for_request, return_uncounted};
use crate::config::RenderConfig;
use crate::fetch::Fetched;
use crate::metrics::CrawlerMetrics;
use crate::render_auto::{AUTO_KIND, AutoRender, Decision, FetchedForm, Gain, StoredHost, Verdict};
use crate::rendered_page::{content_of, page_of, read_body};
use crate::report::{RenderReport, Rendering};

/// Pages in memory for each slot: one that is rendered, and one that waits or is being stored.
const PAGES_PER_SLOT: usize = 2;

/// How long a page waits for the next attempt when no browser starts.
const NO_BROWSER_NACK_AFTER: Duration = Duration::from_secs(30);

/// The browsers of a crawler.
#[derive(Debug)]
pub(super) struct Renderer {
    browsers: Browsers,
    config: RenderConfig,
    /// Decides which pages of `render=auto` are rendered.
    auto: Mutex<AutoRender>,
    /// Bounds the pages in memory. Others wait, with their document in a file if it is long.
    pages: Arc<Semaphore>,
    metrics: Arc<CrawlerMetrics>,
}

/// For a page without requests.
struct NoParts;

impl Fetch for NoParts {
    fn answer(&self, _request: Request) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(ready(Answer::Refused(String::new())))
    }
}

/// The result of rendering a page.
pub(super) struct RenderedPage {
    /// Its content; that of the fetched document, if it was not rendered.
    pub(super) content: PageContent,
    pub(super) rendering: Rendering,
    pub(super) report: RenderReport,
    /// Held until the page is stored.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

impl Renderer {
    /// Starts a browser; the others start when they are needed. Fails if none starts.
    pub(super) async fn start(
        config: RenderConfig,
        metrics: Arc<CrawlerMetrics>,
    ) -> Result<(Self, BrowsersTask), LaunchError> {
        let launcher = Launcher::new(config.launch.clone()).await?;
        let slots = config.browsers.pool.slots;
        let (browsers, task) = Browsers::new(launcher, config.browsers.clone(), fastrand::u64(..));
        metrics.set_browsers(browsers.status());
        let pages = Arc::new(Semaphore::new(PAGES_PER_SLOT * slots));
        let renderer = Self { browsers, config, auto: Mutex::default(), pages, metrics };
        renderer.try_browser().await?;
        Ok((renderer, task))
    }

    /// Renders an empty page, so that a browser that does not start is noticed at the start.
    async fn try_browser(&self) -> Result<(), LaunchError> {
        let page = Page {
            url: "http://page.invalid/".to_owned(),
            status: 200,
            headers: Vec::new(),
            body: Vec::new(),
            load: Load::default(),
            screenshot: false,
            pdf: false,
        };
        let rendered = self.browsers.render(page, Arc::new(NoParts)).await;
        if rendered == Err(PageError::Unavailable) {
            return Err(LaunchError::Browser(format!(
                "{} does not answer (see the warning above); on Debian and Ubuntu: apt install \
                 chromium-headless-shell",
                self.config.launch.program.display()
            )));
        }
        Ok(())
    }

    /// Whether a page is rendered if the broker's task does not say it.
    pub(super) fn rule(&self, url: &CanonicalUrl<'_>) -> Render {
        self.config.rule.of(url)
    }

    /// Closes the browsers.
    pub(super) async fn stop(&self) {
        self.browsers.stop().await;
    }

    async fn render(
        &self,
        page: &CanonicalUrl<'_>,
        fetched: &Fetched,
        parts: &Arc<Parts>,
    ) -> (Result<Rendered, PageError>, OwnedSemaphorePermit) {
        let _wanted = self.metrics.want_browser();
        let permit = Arc::clone(&self.pages).acquire_owned().await.expect("it is never closed");
        let RenderConfig { load, screenshot, pdf, .. } = self.config;
        let page = match page_of(page, fetched, load) {
            Ok(page) => Page { screenshot, pdf, ..page },
            Err(error) => return (Err(error), permit),
        };
        (self.browsers.render(page, Arc::clone(parts) as _).await, permit)
    }
}

impl TaskWork<'_> {
    /// Whether the page is rendered, here or by another member.
    pub(super) fn render_mode(&self) -> Render {
        let rule = || self.crawler.renderer.as_ref().map(|renderer| renderer.rule(&self.page));
        self.task.spec.render.or_else(rule).unwrap_or(Render::No)
    }

    /// Returns the task for a member with a browser if this crawler has none and the page looks
    /// empty. `false`: it was not returned.
    pub(super) async fn return_for_browser(&self, fetched: &Fetched, rest: KeyRest) -> bool {
        if self.crawler.renderer.is_some() || self.render_mode() != Render::Auto {
            return false;
        }
        let Ok(body) = read_body(fetched.body.as_ref()) else { return false };
        let signs = self.crawler.fetcher.signs(&self.page, &fetched.headers, &body);
        if !signs.is_some_and(|signs| matches!(Verdict::of(&signs), Verdict::Render(_))) {
            return false;
        }
        let nack = self.task.nack(RetryMode::NeedsRender, rest, None);
        matches!(self.crawler.reply(&[], &nack).await, ReplyOutcome::Applied(_))
    }

    /// Whether a page that was fetched is rendered.
    pub(super) async fn needs_browser(&self, browsers: &Renderer, content: &PageContent) -> bool {
        match (self.render_mode(), &content.signs) {
            (Render::Yes, _) => true,
            (Render::Auto, Some(signs)) if Verdict::of(signs) != Verdict::No => {
                if !browsers.auto.lock().knows(&self.page) {
                    let stored = self.crawler.state.load(AUTO_KIND, self.page.origin()).await;
                    browsers.auto.lock().restore(&self.page, stored.as_deref());
                }
                let decision = browsers.auto.lock().decide(&self.page, signs);
                matches!(decision, Decision::Render(_))
            }
            _ => false,
        }
    }

    /// Remembers what rendering has added to the page.
    fn learn_gain(&self, browsers: &Renderer, gain: Gain) {
        let learned = browsers.auto.lock().learn(&self.page, gain, unix_ms() / 1000);
        let StoredHost { value, expires_unix_s } = learned;
        self.crawler.state.store(AUTO_KIND, self.page.origin(), value, expires_unix_s);
    }

    /// Renders a page that was fetched. `None`: the task was returned instead.
    pub(super) async fn render(
        &self,
        browsers: &Renderer,
        fetched: &mut Fetched,
        mut content: PageContent,
    ) -> Option<RenderedPage> {
        let started = Instant::now();
        // The page may wait for long. Many links are dropped meanwhile, so that other pages with
        // many links can be read.
        let drops_links = fetched.memory_permit.take().is_some();
        let (form, links_fetched) = (FetchedForm::of(&content), content.links.len());
        if drops_links {
            content.links = Vec::new();
        }
        let own = self.page.clone().into_owned();
        let (crawler, task) = (Arc::clone(self.crawler), self.task.id.clone());
        let parts = Arc::new(Parts::new(crawler, task, own.clone(), self.held_until));
        let mut lease = self.task.lease.clone();
        let renewed = |until| *parts.held_until.lock() = until;
        let (result, permit) = tokio::select! {
            biased;
            (result, permit) = browsers.render(&own, fetched, &parts) => (result, Some(permit)),
            () = self.crawler.broker.keep(&self.task.id, &mut lease, self.held_until, renewed) => {
                (Err(PageError::Hung("the lease of its task has ended".to_owned())), None)
            }
            () = self.crawler.abandon.cancelled() => {
                Box::pin(self.return_for_request(&self.page, KeyRest::default())).await;
                return None;
            }
        };
        if result == Err(PageError::Unavailable) {
            tracing::warn!("no browser starts; {} is fetched again later", self.page);
            Box::pin(return_uncounted(self.crawler, self.task, Some(NO_BROWSER_NACK_AFTER))).await;
            return None;
        }
        let duration = started.elapsed();
        let (reader, headers) = (Arc::clone(&self.crawler.fetcher), fetched.headers.clone());
        let body = fetched.body.take();
        let read = run_blocking(move || {
            let (read, hash, gain) = match &result {
                Ok(rendered) => {
                    let hash = blake3::hash(rendered.html.as_bytes());
                    let read = content_of(&own, &headers, content, rendered, &reader);
                    let gain = form.gain(&own, &read);
                    (read, Some(hash), gain)
                }
                Err(_) if drops_links => {
                    let bytes = read_body(body.as_ref()).unwrap_or_default();
                    (reader.read_again(&own, &headers, &bytes), None, Gain::default())
                }
                Err(_) => (content, None, Gain::default()),
            };
            Some((read, hash, gain, result, body))
        });
        let (content, hash, gain, result, body) = read.await?;
        // Without a part that a rule forbids for now, a page may gain nothing.
        let is_complete = !parts.is_forbidden_by_rule.load(Ordering::Relaxed);
        if result.is_ok() && is_complete && self.render_mode() == Render::Auto {
            self.learn_gain(browsers, gain);
        }
        fetched.body = body;
        let requests = result.as_ref().map_or(0, |rendered| rendered.requests.len());
        let report = RenderReport {
            error: result.as_ref().err().map(ToString::to_string),
            duration,
            requests,
            links_fetched,
            gain,
        };
        let exchanges = std::mem::take(&mut *parts.exchanges.lock());
        let mut rendering = Rendering::new(result, hash, duration, exchanges);
        let (sinks, spools) = (&self.crawler.sinks, &self.crawler.spools);
        let kept = sinks.keep_rendering(&mut rendering, spools, &self.crawler.config.data);
        if let Err(error) = Box::pin(kept).await {
            let rest = self.crawler.rest_of(&self.page);
            let failure = failure_report(&Failure::of(Reason::Storage, &error));
            let url = self.page.as_str();
            let back = return_for_request(self.crawler, self.task, url, (rest, Some(failure)));
            Box::pin(back).await;
            return None;
        }
        Some(RenderedPage { content, rendering, report, permit })
    }
}

/// Whether a response is a page that a browser shows.
pub(super) fn is_page(fetched: &mut Fetched) -> bool {
    fetched.status != Some(304) && fetched.page.as_mut().is_some_and(DocumentReader::is_page)
}
