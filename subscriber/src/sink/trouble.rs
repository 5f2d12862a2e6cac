//! What cannot be written at present: said once to people, and to the worker, which asks for no tasks meanwhile.

use tokio::sync::watch;

use super::StoreError;

/// What is wrong with each of those who write.
#[derive(Clone, Debug)]
pub(crate) struct Troubles(watch::Sender<Vec<Option<StoreError>>>);

/// Where one of them says what is wrong.
#[derive(Debug)]
pub(crate) struct Place {
    all: Troubles,
    number: usize,
}

impl Default for Troubles {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

impl Troubles {
    /// For one more.
    pub(crate) fn place(&self) -> Place {
        let mut number = 0;
        self.0.send_modify(|troubles| {
            number = troubles.len();
            troubles.push(None);
        });
        Place { all: self.clone(), number }
    }

    /// Why nothing can be written.
    pub(super) fn first(&self) -> Option<StoreError> {
        self.0.borrow().iter().flatten().next().cloned()
    }

    /// Waits until there is trouble, or none any more, after there `was` some or none.
    pub(crate) async fn change(&self, was: bool) -> Option<StoreError> {
        let mut troubles = self.0.subscribe();
        let changed = troubles.wait_for(|troubles| troubles.iter().any(Option::is_some) != was);
        let troubles = changed.await.expect("the sender is in self");
        troubles.iter().flatten().next().cloned()
    }
}

impl Place {
    /// Says of `name` once that it fails, and once that it does no more.
    pub(crate) fn note(&self, name: &str, error: Option<&StoreError>) {
        let failed = self.all.0.borrow()[self.number].is_some();
        match error {
            // That is how a crawl into a pipe ends, and nobody is to wait for anything.
            Some(error) if error.closed => {}
            Some(error) if !failed => tracing::error!(
                "{name}: {}; pages wait, and no new ones are asked for, until it can be written again",
                error.text
            ),
            None if failed => tracing::info!("{name}: can be written again"),
            _ => return,
        }
        self.all.0.send_modify(|troubles| troubles[self.number] = error.cloned());
    }
}
