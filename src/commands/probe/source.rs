//! The input of a probe: a URL, which is fetched as the crawler would, or a file.

#![expect(clippy::disallowed_methods, reason = "a request has a deadline")]

use tempfile::TempDir;
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::KeepBodies;
use tidings_subscriber::fetch::{FetchPurpose, FetchRequest, Fetched, Fetcher};
use tidings_subscriber::spool::Spools;
use tokio::time::Instant;

use super::flags::FetchFlags;
use crate::terminal::failure::Failure;

/// The limit of redirects.
const HOPS_MAX: usize = 5;
/// The prefix of the temporary directory.
const SPOOL: &str = "tidings-probe-";

/// The content and where it came from.
#[derive(Debug)]
pub(super) struct Source {
    /// The URL after all redirects; `None` for a file.
    pub(super) url: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) bytes: Vec<u8>,
}

impl Source {
    /// Fetches a URL or reads a file.
    pub(super) async fn open(what: &str, flags: &FetchFlags) -> Result<Self, Failure> {
        if is_url(what) { Self::fetch(what, flags).await } else { Self::read(what) }
    }

    /// Reads a file.
    pub(super) fn read(path: &str) -> Result<Self, Failure> {
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::failed(format!("cannot read {path}: {error}")))?;
        Ok(Self { url: None, content_type: None, bytes })
    }

    async fn fetch(what: &str, flags: &FetchFlags) -> Result<Self, Failure> {
        let FetchedPage { url, fetched, .. } = &fetch(what, flags).await?;
        let mut bytes = Vec::new();
        if let Some(body) = &fetched.body {
            body.read().and_then(|mut body| body.read_to_end(&mut bytes)).map_err(|error| {
                Failure::failed(format!("{url}: cannot read the stored body: {error}"))
            })?;
        }
        let (url, content_type) = (Some(url.as_str().to_owned()), fetched.content_type.clone());
        Ok(Self { url, content_type, bytes })
    }
}

/// Whether the argument is a URL.
pub(super) fn is_url(what: &str) -> bool {
    what.starts_with("http://") || what.starts_with("https://")
}

/// A response, and its URL after all redirects.
#[derive(Debug)]
pub(super) struct FetchedPage {
    pub(super) url: CanonicalUrl<'static>,
    pub(super) fetched: Fetched,
    /// Has fetched it, and counts the signs that a page needs its scripts.
    pub(super) fetcher: Fetcher,
    /// A private directory with a random name. It is dropped after the body that it contains.
    _directory: TempDir,
}

/// Fetches a URL as the crawler would, follows redirects, and keeps the body.
pub(super) async fn fetch(what: &str, flags: &FetchFlags) -> Result<FetchedPage, Failure> {
    let shown = super::shown(what);
    let wrong = |error| Failure::Usage(format!("{shown}: {error}"));
    let mut url = CanonicalUrl::parse(what).map_err(wrong)?.into_owned();
    let config = flags.config();
    let no_place = |error| Failure::failed(format!("cannot create a temporary directory: {error}"));
    let directory = tempfile::Builder::new().prefix(SPOOL).tempdir().map_err(no_place)?;
    let spools = Spools::open(directory.path()).map_err(no_place)?;
    let fetcher = Fetcher::new(&config).map_err(|error| Failure::failed(error.to_string()))?;
    let fetcher = fetcher.with_spools(spools).with_signs();
    for _ in 0..=HOPS_MAX {
        let deadline = Instant::now() + config.request_timeout;
        let keep = KeepBodies { decoded: true, ..KeepBodies::default() };
        let (wanted, validators) = (FetchPurpose::Page, None);
        let request = FetchRequest { url: &url, purpose: wanted, validators, keep, deadline };
        let answer = fetcher.fetch(&request).await;
        if let Some(failure) = answer.failure {
            return Err(Failure::failed(format!("{url}: {}", failure.text)));
        }
        match (answer.status.unwrap_or_default(), &answer.location) {
            (200..=299, _) => {
                return Ok(FetchedPage { url, fetched: answer, fetcher, _directory: directory });
            }
            (300..=399, Some(location)) => {
                url = url.join(location).map_err(|error| {
                    Failure::failed(format!("{url}: redirect to an invalid URL: {error}"))
                })?;
            }
            (status, _) => return Err(Failure::failed(format!("{url}: HTTP status {status}"))),
        }
    }
    Err(Failure::failed(format!("{shown}: more than {HOPS_MAX} redirects")))
}
