//! What a person wants to have looked at: a URL, which is fetched as the crawler would, or a file.

#![expect(clippy::disallowed_methods, reason = "a request has a deadline")]

use tempfile::TempDir;
use tidings_protocol::CanonicalUrl;
use tidings_subscriber::{
    Keep,
    fetch::{Fetched, Fetcher, Request, Wanted},
    spool::Spools,
};
use tokio::time::Instant;

use super::flags::FetchFlags;
use crate::{failure::Failure, output::printable};

/// Redirects that are followed for a person.
const HOPS_MAX: usize = 5;
/// Characters shown of what somebody asks about.
const SHOWN_CHARS_MAX: usize = 200;
/// How the name of a directory begins that is needed for a while.
const SPOOL: &str = "tidings-probe-";

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
        if is_url(what) { Self::fetch(what, flags).await } else { Self::read(what) }
    }

    fn read(path: &str) -> Result<Self, Failure> {
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::failed(format!("cannot read {path}: {error}")))?;
        Ok(Self { url: None, content_type: None, bytes })
    }

    async fn fetch(what: &str, flags: &FetchFlags) -> Result<Self, Failure> {
        let FetchedPage { url, fetched, .. } = &fetch(what, flags).await?;
        let mut bytes = Vec::new();
        if let Some(body) = &fetched.body {
            body.read().and_then(|mut body| body.read_to_end(&mut bytes)).map_err(|error| {
                Failure::failed(format!("{url}: its body cannot be read back: {error}"))
            })?;
        }
        let (url, content_type) = (Some(url.as_str().to_owned()), fetched.content_type.clone());
        Ok(Self { url, content_type, bytes })
    }
}

/// Whether it is to be fetched.
pub(super) fn is_url(what: &str) -> bool {
    what.starts_with("http://") || what.starts_with("https://")
}

/// An answer, and where it came from after all redirects.
#[derive(Debug)]
pub(super) struct FetchedPage {
    pub(super) url: CanonicalUrl<'static>,
    pub(super) fetched: Fetched,
    /// Nobody else's, with a name that nobody could foresee. It goes after the body that is in it.
    _directory: TempDir,
}

/// Fetches a URL as the crawler would, with what it redirects to, and keeps its body.
pub(super) async fn fetch(what: &str, flags: &FetchFlags) -> Result<FetchedPage, Failure> {
    let shown = printable(what, SHOWN_CHARS_MAX);
    let wrong = |error| Failure::Usage(format!("{shown}: {error}"));
    let mut url = CanonicalUrl::parse(what).map_err(wrong)?.into_owned();
    let config = flags.config();
    let no_place = |error| Failure::failed(format!("no place for a body: {error}"));
    let directory = tempfile::Builder::new().prefix(SPOOL).tempdir().map_err(no_place)?;
    let spools = Spools::open(directory.path()).map_err(no_place)?;
    let fetcher = Fetcher::new(&config).map_err(|error| Failure::failed(error.to_string()))?;
    let fetcher = fetcher.keeping(spools);
    for _ in 0..=HOPS_MAX {
        let deadline = Instant::now() + config.request_timeout;
        let keep = Keep { decoded: true, ..Keep::default() };
        let (wanted, validators) = (Wanted::Page, None);
        let request = Request { url: &url, wanted, validators, keep, deadline };
        let answer = fetcher.fetch(&request).await;
        if let Some(failure) = answer.failure {
            return Err(Failure::failed(format!("{url}: {}", failure.text)));
        }
        match (answer.status.unwrap_or_default(), &answer.location) {
            (200..=299, _) => {
                return Ok(FetchedPage { url, fetched: answer, _directory: directory });
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
