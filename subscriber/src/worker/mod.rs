//! The tasks, and the connection to the broker.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::CrawlerConfig;
use crate::report::PageReport;
use crate::sink::sqlite::OpenError;

/// Why a crawler could not begin, or had to end by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrawlError {
    /// `pages.db` cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// Crawls until `stop`.
pub async fn run(
    config: CrawlerConfig,
    reports: mpsc::Sender<PageReport>,
    stop: CancellationToken,
) -> Result<(), CrawlError> {
    let _ = (config, reports);
    stop.cancelled().await;
    Ok(())
}
