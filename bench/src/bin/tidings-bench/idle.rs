//! Memory of subscribers that receive nothing.

#![expect(clippy::disallowed_methods, reason = "a benchmark sleeps")]

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tidings_load::figure::to_f64;
use tidings_load::poller::Poller;
use tidings_load::{Figure, Progress, Target};

/// After many connections, the broker may free memory during this pause before it is measured.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Measures the memory that a broker needs for each of these subscribers.
pub(crate) fn measure(
    target: Target<'_>,
    subscribers: u16,
    progress: Progress<'_>,
) -> Result<Vec<Figure>> {
    let server = target.server.context("memory is measured on this machine")?;
    target.create_topic()?;
    // One publisher and one subscriber come first, so that the memory that a broker allocates once
    // does not count for the others.
    let _publisher = target.publisher(&target.payload(), 1)?;
    let _first = target.subscriber()?;
    let empty = server.resident_bytes()?;
    let _others = target.subscribers(&Poller::new()?, subscribers, progress)?;
    thread::sleep(SETTLE_TIME);
    let used = server.resident_bytes()?.saturating_sub(empty);
    let each = to_f64(used) / 1024.0 / f64::from(subscribers);
    Ok(vec![Figure::new("kib_per_subscriber", "KiB per subscriber", 2).with_runs([each])])
}
