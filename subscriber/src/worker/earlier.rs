//! Whether a page may be on record from before, so that its server can be asked whether it has changed.
//!
//! To look one up costs little and is for nothing throughout a first crawl. So the worker keeps in mind of what
//! the records are: of nothing yet, of the one pass that it works on, or of something else, too.

use crate::pass::PassKey;

/// Of what there may be records in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Earlier {
    /// Of nothing.
    Nothing,
    /// Of pages of this pass, each of which comes once.
    Pass(PassKey),
    /// Of anything.
    Anything,
}

impl Earlier {
    /// `has_records`: when the worker began.
    pub(super) fn new(has_records: bool) -> Self {
        if has_records { Self::Anything } else { Self::Nothing }
    }

    /// Whether a page of this pass (none: one that was announced) may be on record from before. There will be a
    /// record of this one.
    pub(super) fn may_know(&mut self, pass: Option<PassKey>) -> bool {
        match (*self, pass) {
            (Self::Nothing, Some(pass)) => {
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
    fn nothing_is_looked_up_in_the_first_pass_of_all() {
        let mut earlier = Earlier::new(false);
        let mut may_know = |number| earlier.may_know(Some(pass(number)));
        assert!(!may_know(1) && !may_know(1));
        assert!(may_know(2), "whose pages may be those of the first");
        assert!(may_know(1), "where records of the second may be, too");
    }

    #[test]
    fn what_was_there_before_or_announced_may_come_again() {
        assert!(Earlier::new(true).may_know(Some(pass(1))));
        let mut earlier = Earlier::new(false);
        assert!(earlier.may_know(None) && earlier.may_know(Some(pass(1))));
    }
}
