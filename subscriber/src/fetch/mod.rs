//! One request over HTTP, bounded in bytes and time whatever the server does.
//!
//! A body is never held: it is decoded, counted, hashed and read for links chunk by chunk. There
//! are three clocks: until the connection stands, for every silence, and for the whole request.
//! Redirects are not followed here; each hop is a request of its own, with its own permission.

#![expect(clippy::disallowed_methods, reason = "this is where requests are bounded in time")]

mod body;
mod failure;
mod guard;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response};
use tidings_protocol::CanonicalUrl;
use tokio::time::{Instant, sleep_until, timeout};

pub use self::failure::Failure;
use self::guard::GuardedResolver;
use crate::address::AllowPrivate;
use crate::config::{
    CrawlerConfig, HEADER_VALUE_BYTES_MAX, HTTP2_CONNECTION_WINDOW_BYTES,
    HTTP2_STREAM_WINDOW_BYTES, POOL_IDLE, RETRY_AFTER_MAX, ROBOTS_BYTES_MAX,
    UNWANTED_BODY_BYTES_MAX,
};
use crate::page::{PageOptions, PageReader, is_html};
use crate::robots::product_token;

/// Makes requests. Cheap to share; one pool of connections for all.
#[derive(Debug)]
pub struct Fetcher {
    client: Client,
    allow_private: AllowPrivate,
    connect_timeout: Duration,
    read_timeout: Duration,
    body_bytes_max: u64,
    reading: Arc<PageOptions>,
}

/// What came of a request, as far as it got.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Of the answer; `None` if none came.
    pub status: Option<u16>,
    /// As the server named it.
    pub content_type: Option<String>,
    /// Where a redirect leads, as the server wrote it.
    pub location: Option<String>,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
    /// Bytes of the body, decoded.
    pub bytes: u64,
    /// BLAKE3 of the decoded body of a page that was read to its end.
    pub hash: Option<blake3::Hash>,
    /// Has seen the whole page, if it is one and was read to its end.
    pub page: Option<PageReader>,
    /// The beginning of a robots.txt.
    pub text: Vec<u8>,
    /// Why there is no complete answer.
    pub failure: Option<Failure>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole body, read for links if it is a page.
    Page,
    /// The first 500 KiB as text.
    Robots,
}

impl Fetcher {
    /// Prepares a pool of connections. Fails if the agent cannot be sent as a header.
    pub fn new(config: &CrawlerConfig) -> Result<Self, reqwest::Error> {
        let build = |trust_nobody: bool| {
            let builder = client_builder(config);
            let builder = if trust_nobody { builder.tls_certs_only([]) } else { builder };
            builder.build()
        };
        let client = build(false).or_else(|error| {
            // A machine without certificate authorities can still crawl what is not encrypted.
            let client = build(true)?;
            let reason = failure::one_line(&error);
            tracing::warn!("https pages will fail until this system has CA certificates: {reason}");
            Ok::<_, reqwest::Error>(client)
        })?;
        Ok(Self {
            client,
            allow_private: config.allow_private.clone(),
            connect_timeout: config.connect_timeout,
            read_timeout: config.read_timeout,
            body_bytes_max: config.body_bytes_max,
            reading: Arc::new(PageOptions {
                token: product_token(&config.agent).into(),
                ..PageOptions::default()
            }),
        })
    }

    /// Makes one request and reads its answer; over at `deadline` at the latest. Dropping the
    /// future closes the connection and so ends the request.
    pub async fn fetch(
        &self,
        url: &CanonicalUrl<'_>,
        wanted: Wanted,
        deadline: Instant,
    ) -> Fetched {
        let mut fetched = Fetched::default();
        let started = Instant::now();
        let result = {
            let mut timer = pin!(sleep_until(deadline));
            let mut request = pin!(self.request(url, wanted, &mut fetched));
            poll_fn(|context| {
                // First of all, and by the clock: after a stall of this process the timer has not fired
                // yet when this is polled, and nothing may go on beyond the deadline.
                if timer.as_mut().poll(context).is_ready() || Instant::now() >= deadline {
                    let after = (deadline - started).as_millis();
                    let text = format!("not finished within {after} ms");
                    return Poll::Ready(Err(Failure::transient(text)));
                }
                request.as_mut().poll(context)
            })
            .await
        };
        // An answer of which nobody wants the body is complete without it, however it ended.
        let unwanted = fetched.status.is_some_and(|status| !(200..300).contains(&status));
        fetched.failure = result.err().filter(|_| !unwanted);
        fetched
    }

    async fn request(
        &self,
        url: &CanonicalUrl<'_>,
        wanted: Wanted,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        guard::check_host(&self.allow_private, url)?;
        let patience = self.connect_timeout + self.read_timeout;
        let sent = self.client.get(url.as_str()).send();
        let response = match timeout(patience, sent).await {
            Ok(sent) => sent.map_err(|error| Failure::of_request(&error))?,
            Err(_) => return Err(Failure::transient(format!("no answer within {patience:?}"))),
        };
        // Names were checked before; this is the address that was really asked.
        if let Some(remote) = response.remote_addr() {
            self.allow_private.check(remote.ip())?;
        }
        fetched.note_head(&response);
        match wanted {
            _ if !response.status().is_success() => {
                self.drain(response, fetched).await;
                Ok(())
            }
            Wanted::Page => self.read_page(url, response, fetched).await,
            Wanted::Robots => self.read_robots(response, fetched).await,
        }
    }

    async fn read_page(
        &self,
        url: &CanonicalUrl<'_>,
        response: Response,
        fetched: &mut Fetched,
    ) -> Result<(), Failure> {
        let headers =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        // Who says nothing forgot to say that it is a page, as wget has it.
        let is_page = fetched.content_type.as_deref().is_none_or(is_html);
        let mut reader = is_page.then(|| PageReader::new(url, headers, &self.reading));
        let mut hasher = blake3::Hasher::new();
        let mut body = body::open(response)?;
        body.refuse_over(self.body_bytes_max)?;
        while let Some(chunk) = body.next(self.read_timeout).await? {
            fetched.bytes += chunk.len() as u64;
            if fetched.bytes > self.body_bytes_max {
                return Err(body::over(self.body_bytes_max));
            }
            hasher.update(chunk);
            if let Some(reader) = &mut reader {
                reader.feed(chunk);
            }
        }
        fetched.hash = Some(hasher.finalize());
        fetched.page = reader;
        Ok(())
    }

    async fn read_robots(&self, response: Response, fetched: &mut Fetched) -> Result<(), Failure> {
        let mut body = body::open(response)?;
        while fetched.text.len() < ROBOTS_BYTES_MAX
            && let Some(chunk) = body.next(self.read_timeout).await?
        {
            fetched.text.extend_from_slice(chunk);
        }
        Ok(())
    }

    /// Reads what nobody wants, so that the connection can be used again. What goes wrong here
    /// costs the connection and nothing else.
    async fn drain(&self, response: Response, fetched: &mut Fetched) {
        let Ok(mut body) = body::open(response) else { return };
        while fetched.bytes < UNWANTED_BODY_BYTES_MAX
            && let Ok(Some(chunk)) = body.next(self.read_timeout).await
        {
            fetched.bytes += chunk.len() as u64;
        }
    }
}

impl Fetched {
    fn note_head(&mut self, response: &Response) {
        let headers = response.headers();
        self.status = Some(response.status().as_u16());
        self.content_type = text(headers, &header::CONTENT_TYPE).map(|mut value| {
            value.truncate(value.floor_char_boundary(HEADER_VALUE_BYTES_MAX));
            value
        });
        if response.status().is_redirection() {
            self.location = headers.get(header::LOCATION).and_then(location);
        }
        if matches!(response.status().as_u16(), 429 | 503) {
            let value = text(headers, &header::RETRY_AFTER);
            self.retry_after = value.and_then(|value| retry_after(&value, SystemTime::now()));
        }
    }
}

fn client_builder(config: &CrawlerConfig) -> reqwest::ClientBuilder {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::ACCEPT,
        HeaderValue::from_static("text/html,application/xhtml+xml,*/*;q=0.5"),
    );
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, br, zstd"));
    Client::builder()
        .user_agent(&config.agent)
        .default_headers(headers)
        .redirect(reqwest::redirect::Policy::none())
        // A second request would be one that the gate knows nothing of.
        .retry(reqwest::retry::never())
        .referer(false)
        // A proxy would resolve names behind the guard's back.
        .no_proxy()
        .dns_resolver(GuardedResolver::new(config.allow_private.clone()))
        .connect_timeout(config.connect_timeout)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(1)
        .http2_initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
}

/// Header values are bytes; what is no UTF-8 in them is replaced.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.as_bytes().trim_ascii();
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

/// Bytes beyond ASCII are escaped one by one, in whatever encoding they are: the server gets back
/// what it wrote.
fn location(value: &HeaderValue) -> Option<String> {
    let mut location = String::new();
    for &byte in value.as_bytes().trim_ascii() {
        if byte.is_ascii() {
            location.push(char::from(byte));
        } else {
            write!(location, "%{byte:02X}").expect("a String takes everything");
        }
    }
    (!location.is_empty()).then_some(location)
}

/// Seconds, or a date of HTTP; at most a day.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More than any number holds.
        Err(_) if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() => {
            RETRY_AFTER_MAX
        }
        // A date that has passed asks for nothing.
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?,
    };
    Some(wait.min(RETRY_AFTER_MAX))
}
