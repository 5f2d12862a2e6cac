//! What a person wants to have looked at: a URL, which is fetched as the crawler would, or a file.

#![expect(clippy::disallowed_methods, reason = "a request has a deadline")]

use tidings_protocol::CanonicalUrl;
use tidings_subscriber::fetch::{Fetched, Fetcher, Wanted};
use tokio::time::Instant;

use super::flags::FetchFlags;
use crate::failure::Failure;

/// Redirects that are followed for a person.
const HOPS_MAX: usize = 5;

/// What was found there.
#[derive(Debug)]
pub(super) struct Source {
    /// Where, after all redirects; a file has none.
    pub(super) url: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) bytes: Vec<u8>,
}

impl Source {
    /// Fetches a URL, or reads a file.
    pub(super) async fn open(what: &str, flags: &FetchFlags) -> Result<Self, Failure> {
        let is_url = what.starts_with("http://") || what.starts_with("https://");
        if is_url { Self::fetch(what, flags).await } else { Self::read(what) }
    }

    fn read(path: &str) -> Result<Self, Failure> {
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::failed(format!("cannot read {path}: {error}")))?;
        Ok(Self { url: None, content_type: None, bytes })
    }

    async fn fetch(what: &str, flags: &FetchFlags) -> Result<Self, Failure> {
        let parsed = CanonicalUrl::parse(what).map(CanonicalUrl::into_owned);
        let mut url = parsed.map_err(|error| Failure::Usage(format!("{what}: {error}")))?;
        let config = flags.config();
        let fetcher = Fetcher::new(&config).map_err(|error| Failure::failed(error.to_string()))?;
        for _ in 0..=HOPS_MAX {
            let deadline = Instant::now() + config.request_timeout;
            let fetched = fetcher.fetch(&url, Wanted::Robots, deadline).await;
            match Self::of(&url, fetched)? {
                Ok(source) => return Ok(source),
                Err(next) => url = next,
            }
        }
        Err(Failure::failed(format!("{what}: more than {HOPS_MAX} redirects")))
    }

    /// The answer, or where it leads.
    fn of(
        url: &CanonicalUrl<'_>,
        fetched: Fetched,
    ) -> Result<Result<Self, CanonicalUrl<'static>>, Failure> {
        if let Some(failure) = fetched.failure {
            return Err(Failure::failed(format!("{url}: {}", failure.text)));
        }
        match (fetched.status.unwrap_or_default(), fetched.location) {
            (200..=299, _) => Ok(Ok(Self {
                url: Some(url.as_str().to_owned()),
                content_type: fetched.content_type,
                bytes: fetched.text,
            })),
            (300..=399, Some(location)) => match url.join(&location) {
                Ok(next) => Ok(Err(next)),
                Err(error) => Err(Failure::failed(format!("{url}: redirect to nowhere: {error}"))),
            },
            (status, _) => Err(Failure::failed(format!("{url}: HTTP status {status}"))),
        }
    }
}
