//! Checks that every announced URL is fetched afterwards.

use std::collections::BTreeMap;

use super::promises::{CheckResult, Promise};
use super::steering::PageSelection;
use crate::tests::site::{host_number, is_on_never_list};

/// Announced URLs that are not fetched yet, with the decision number of the announcement.
#[derive(Debug, Default)]
pub(super) struct AnnouncementCheck(BTreeMap<String, u64>);

impl AnnouncementCheck {
    /// The group has consumed an announcement.
    pub(super) fn promise(&mut self, url: &str, order: u64) {
        if !is_on_never_list(url) {
            self.0.insert(url.to_owned(), order);
        }
    }

    /// The group knows the end of a task with this release number. A fetch that began before the
    /// announcement may have missed the news.
    pub(super) fn ended(&mut self, url: &str, released: u64) {
        if self.0.get(url).is_some_and(|promised| released > *promised) {
            self.0.remove(url);
        }
    }

    /// The publisher was informed that the URL will not be fetched.
    pub(super) fn given_up(&mut self, url: &str) {
        self.0.remove(url);
    }

    /// A host may be blocked.
    pub(super) fn block(&mut self, host: u64) {
        self.0.retain(|url, _| host_number(url) != host);
    }

    /// What waited of these pages was dropped.
    pub(super) fn purge(&mut self, pages: &PageSelection) {
        self.0.retain(|url, _| !pages.has(url));
    }

    /// Whether a fetch of the URL is still owed.
    pub(super) fn owes(&self, url: &str) -> bool {
        self.0.contains_key(url)
    }

    /// URLs that must still be fetched.
    pub(super) fn owed(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Checks that everything was fetched.
    pub(super) fn check_end(&self) -> CheckResult {
        Promise::NoTaskLost.holds(self.0.is_empty(), || {
            format!("announced but not fetched since: {:?}", self.0.keys())
        })
    }
}
