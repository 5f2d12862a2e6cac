//! Decides whether a page may have a stored record, which must be read before its request.
//!
//! A look-up is cheap, but useless throughout a first crawl. So the worker remembers which records
//! the database may have: none, those of the current pass only, or any.

use crate::pass::PassKey;

/// Which pages may have records in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RevisitIndex {
    /// Pages: none.
    Empty,
    /// Pages of this pass only; each comes once.
    Pass(PassKey),
    /// Any pages.
    Anything,
}

impl RevisitIndex {
    /// `has_records`: whether the database had records when the worker started.
    pub(super) fn new(has_records: bool) -> Self {
        if has_records { Self::Anything } else { Self::Empty }
    }

    /// Whether a page of this pass (`None`: a page that was published without a job) may have a
    /// record. Assumes that this page will get one.
    pub(super) fn may_have_record(&mut self, pass: Option<PassKey>) -> bool {
        match (*self, pass) {
            (Self::Empty, Some(pass)) => {
                *self = Self::Pass(pass);
                false
            }
            (Self::Pass(known), Some(pass)) if known == pass => false,
            _ => {
                *self = Self::Anything;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(number: u64) -> PassKey {
        PassKey::new(1, "1", number)
    }

    #[test]
    fn the_first_pass_looks_nothing_up() {
        let mut earlier = RevisitIndex::new(false);
        let mut may_know = |number| earlier.may_have_record(Some(pass(number)));
        assert!(!may_know(1) && !may_know(1));
        assert!(may_know(2), "a second pass may meet pages of the first");
        assert!(may_know(1), "the first pass may meet pages of the second");
    }

    #[test]
    fn stored_or_published_pages_are_looked_up() {
        assert!(RevisitIndex::new(true).may_have_record(Some(pass(1))));
        let mut earlier = RevisitIndex::new(false);
        assert!(earlier.may_have_record(None) && earlier.may_have_record(Some(pass(1))));
    }
}
