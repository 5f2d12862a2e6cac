//! Ctrl-C and SIGTERM: the first asks for a clean stop, the second does not wait for it.

#![expect(clippy::disallowed_methods, reason = "listening for signals is a task of its own")]

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// A token that is cancelled by the first SIGINT or SIGTERM. The second one ends the process at
/// once, with the exit code that a shell gives for it.
pub(crate) fn stop_on_signal() -> Result<CancellationToken, Failure> {
    stop_on_signal_or(|| ())
}

/// The same; `at_once` is done before the second one ends the process.
pub(crate) fn stop_on_signal_or(
    at_once: impl Fn() + Send + 'static,
) -> Result<CancellationToken, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let stop = CancellationToken::new();
    let first = stop.clone();
    tokio::spawn(async move {
        loop {
            let code = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            };
            if first.is_cancelled() {
                at_once();
                #[expect(clippy::exit, reason = "asked for twice: nothing is waited for")]
                std::process::exit(code);
            }
            first.cancel();
        }
    });
    Ok(stop)
}
