//! Decides whether a page may have a stored record, which must be read before its request.
//!
//! A look-up is cheap, but useless throughout a first crawl. So the pages of the first pass are not
//! looked up if the database had no records before it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::OnceCell;

use crate::pass::PassKey;

/// Which pages may have records in the database.
#[derive(Debug, Default)]
pub(super) struct RevisitIndex {
    /// The first pass, if there was no record before its first page. Each of its pages comes once.
    first: OnceCell<Option<PassKey>>,
    /// Pages outside of that pass may have records, so any page may have one.
    has_others: AtomicBool,
}

impl RevisitIndex {
    /// Whether a page of this pass (`None`: a page that was published without a job) may have a
    /// record. Assumes that this page will get one. `has_records`: whether the database has records
    /// now, for other crawlers may write to it; read for the first page only.
    pub(super) async fn may_have_record(
        &self,
        pass: Option<PassKey>,
        has_records: impl Future<Output = bool>,
    ) -> bool {
        let first = async { if has_records.await { None } else { pass } };
        let first = *self.first.get_or_init(|| first).await;
        if first.is_none() || first != pass {
            self.has_others.store(true, Ordering::Relaxed);
        }
        self.has_others.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn pass(number: u64) -> PassKey {
        PassKey::new(1, "1", number)
    }

    #[tokio::test]
    async fn the_first_pass_looks_nothing_up() {
        let earlier = RevisitIndex::default();
        let may_know =
            |number, has_records| earlier.may_have_record(Some(pass(number)), ready(has_records));
        assert!(!may_know(1, false).await);
        assert!(!may_know(1, true).await, "the records are those of the pass");
        assert!(may_know(2, true).await, "a second pass may meet pages of the first");
        assert!(may_know(1, true).await, "the first pass may meet pages of the second");
    }

    #[tokio::test]
    async fn stored_or_published_pages_are_looked_up() {
        let stored = RevisitIndex::default();
        assert!(stored.may_have_record(Some(pass(1)), ready(true)).await);
        let published = RevisitIndex::default();
        assert!(published.may_have_record(None, ready(false)).await);
        assert!(published.may_have_record(Some(pass(1)), ready(false)).await);
    }
}
