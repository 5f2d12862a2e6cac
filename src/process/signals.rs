//! Ctrl-C and SIGTERM: the first requests a clean stop, the second ends the process at once.

#![expect(clippy::disallowed_methods, reason = "a task waits for signals")]

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::terminal::failure::Failure;

/// A token that the first SIGINT or SIGTERM cancels. The second signal ends the process at once,
/// with the usual exit code of that signal.
pub(crate) fn stop_on_signal() -> Result<CancellationToken, Failure> {
    stop_on_signal_with(|| ())
}

/// The same; calls `at_once` before the second signal ends the process.
pub(crate) fn stop_on_signal_with(
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
                #[expect(clippy::exit, reason = "the second signal does not wait")]
                std::process::exit(code);
            }
            first.cancel();
        }
    });
    Ok(stop)
}
