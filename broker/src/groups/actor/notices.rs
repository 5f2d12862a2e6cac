//! Logs what an operator should know of the group.

use tidings_queue::Notice;

use super::GroupActor;

impl GroupActor {
    pub(super) fn log_notice(&self, notice: &Notice) {
        let group = self.group.name();
        match notice {
            Notice::AbandonedJobClosed(job) => {
                tracing::info!(%group, %job, "closed a job that was left open without seeds");
            }
            Notice::FetchSkipped(url) => {
                tracing::warn!(%group, %url, "the group is full: skipped a scheduled fetch");
            }
            Notice::LeaseExpired { entry, member } => {
                tracing::info!(%group, entry, ?member, "a lease expired");
            }
        }
    }
}
