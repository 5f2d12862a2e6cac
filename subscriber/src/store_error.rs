//! Errors of storage: a failing write is logged once, and the worker takes no new tasks until it
//! succeeds.

use std::time::Duration;

use tokio::sync::watch;

/// Pause between two retries of a failing sink, and of the spool's disk.
pub(crate) const STORE_RETRY: Duration = Duration::from_secs(1);

/// A page cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page cannot be stored: {text}")]
pub struct StoreError {
    /// The sink, and the error of the system.
    pub text: String,
    /// The output is closed finally: its reader has gone.
    pub closed: bool,
}

/// The current error of each writer.
#[derive(Clone, Debug)]
pub(crate) struct Troubles(watch::Sender<Vec<Option<StoreError>>>);

/// The slot of one writer.
#[derive(Debug)]
pub(crate) struct TroubleReporter {
    all: Troubles,
    number: usize,
}

impl Default for Troubles {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

impl Troubles {
    /// Adds a slot for another writer.
    pub(crate) fn reporter(&self) -> TroubleReporter {
        let mut number = 0;
        self.0.send_modify(|troubles| {
            number = troubles.len();
            troubles.push(None);
        });
        TroubleReporter { all: self.clone(), number }
    }

    /// An error of a writer, if any has one.
    pub(crate) fn first(&self) -> Option<StoreError> {
        self.0.borrow().iter().flatten().next().cloned()
    }

    /// Waits until there is trouble or none any more; `was` tells whether there was trouble before.
    pub(crate) async fn change(&self, was: bool) -> Option<StoreError> {
        let mut troubles = self.0.subscribe();
        let changed = troubles.wait_for(|troubles| troubles.iter().any(Option::is_some) != was);
        let troubles = changed.await.expect("the sender is in self");
        troubles.iter().flatten().next().cloned()
    }
}

impl TroubleReporter {
    /// Logs the first failure of `name`, and its recovery.
    pub(crate) fn report(&self, name: &str, error: Option<&StoreError>) {
        let failed = self.all.0.borrow()[self.number].is_some();
        match error {
            // The normal end of a crawl into a pipe: there is nothing to wait for.
            Some(error) if error.closed => {}
            Some(error) if !failed => tracing::error!(
                "{name}: {}; fetched pages wait and no new tasks are taken until it can be written again",
                error.text
            ),
            None if failed => tracing::info!("{name}: can be written again"),
            _ => return,
        }
        self.all.0.send_modify(|troubles| troubles[self.number] = error.cloned());
    }
}
