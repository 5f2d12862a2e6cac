//! Sums of what workers reported about pages: of a group, and of the newest passes of jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use tidings_metrics::Durations;
use tidings_protocol::status::PageMetricsStatus;
use tidings_protocol::{FailureReason, TaskReport};

use crate::entry::PassId;

/// Passes of jobs with sums of their own. At the limit the one with the lowest number is removed.
const PASSES_MAX: usize = 1000;

/// The sums of a group. Decisions do not depend on them, so they are not recorded, and begin at 0
/// with each start of the broker.
#[derive(Debug, Default)]
pub(crate) struct PageMetrics {
    all: PageSums,
    /// The times of the requests.
    durations: Durations,
    reasons: [u64; FailureReason::ALL.len() + 1],
    passes: BTreeMap<PassId, PageSums>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PageSums {
    /// Answers with status 200 to 299, 300 to 399, 400 to 499 and 500 to 599.
    classes: [u64; 4],
    bytes: u64,
    /// The time of the requests in milliseconds, and how many have one.
    ms: (u64, u64),
}

impl PageMetrics {
    /// Adds a report about a page, which may belong to a pass.
    pub(crate) fn add(&mut self, report: &TaskReport, pass: Option<PassId>) {
        self.all.add(report);
        if let Some(ms) = report.ms {
            self.durations.observe(Duration::from_millis(ms));
        }
        if let Some(reason) = &report.reason {
            let known = FailureReason::from_word(reason).map(|reason| reason as usize);
            self.reasons[known.unwrap_or(FailureReason::ALL.len())] += 1;
        }
        if let Some(pass) = pass {
            self.passes.entry(pass).or_default().add(report);
            if self.passes.len() > PASSES_MAX {
                self.passes.pop_first();
            }
        }
    }

    /// The sums of the group.
    pub(crate) fn of_group(&self) -> PageMetricsStatus {
        self.all.status()
    }

    /// Answers with status 200 to 299, 300 to 399, 400 to 499 and 500 to 599, and their bytes.
    pub(crate) fn answers(&self) -> ([u64; 4], u64) {
        (self.all.classes, self.all.bytes)
    }

    /// The times of the requests.
    pub(crate) fn durations(&self) -> Durations {
        self.durations
    }

    /// How often each reason was reported, in the order of [`FailureReason::ALL`]; behind them, how
    /// often any other word.
    pub(crate) fn reasons(&self) -> [u64; FailureReason::ALL.len() + 1] {
        self.reasons
    }

    /// The sums of a pass.
    pub(crate) fn of_pass(&self, pass: PassId) -> PageMetricsStatus {
        self.passes.get(&pass).map(PageSums::status).unwrap_or_default()
    }
}

impl PageSums {
    fn add(&mut self, report: &TaskReport) {
        let class = report.status.and_then(|status| (status / 100).checked_sub(2));
        if let Some(count) = class.and_then(|class| self.classes.get_mut(usize::from(class))) {
            *count += 1;
        }
        self.bytes = self.bytes.saturating_add(report.bytes.unwrap_or(0));
        if let Some(ms) = report.ms {
            self.ms = (self.ms.0.saturating_add(ms), self.ms.1 + 1);
        }
    }

    fn status(&self) -> PageMetricsStatus {
        let [ok, redirects, refused, broken] =
            self.classes.map(|count| Some(count).filter(|count| *count > 0));
        PageMetricsStatus {
            ok,
            redirects,
            refused,
            broken,
            bytes: Some(self.bytes).filter(|bytes| *bytes > 0),
            ms: self.ms.0.checked_div(self.ms.1),
        }
    }
}
