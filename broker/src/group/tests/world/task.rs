//! A task as its worker reads it.

use tidings_protocol::TaskId;

use crate::clock::Moment;
use crate::group::Task;
use crate::group::tests::site::host_of;

/// What a task line says.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) id: TaskId,
    /// The page.
    pub(super) url: String,
    /// Whose it is.
    pub(super) job: Option<String>,
    /// Links from a seed of that, without those that redirect.
    pub(super) depth: u32,
    /// What is to be requested instead, for it.
    again: Option<String>,
    /// When it was released, and the end of its lease, in true time.
    pub(super) at: Moment,
    pub(super) until: Moment,
    /// Its request has ended at the host.
    pub(super) has_ended: bool,
    /// The place of its release in the order of things.
    pub(super) released: u64,
}

impl Told {
    /// Reads a task that leaves the group at `now`, of which this is known.
    pub(super) fn read(task: Task, now: Moment, (released, at): (u64, Moment)) -> Self {
        let (mut job, mut depth, mut again) = (None, 0, None);
        let mut words = task.payload.split(' ');
        let url = words.next().expect("split gives one part at least").to_owned();
        for word in words {
            match word.split_once('=') {
                Some(("job", name)) => job = Some(name.to_owned()),
                Some(("depth", text)) => depth = text.parse().expect("it is a number"),
                Some(("again", url)) => again = Some(url.to_owned()),
                _ => {}
            }
        }
        Self {
            id: task.id,
            url,
            job,
            depth,
            again,
            at,
            until: now + task.lease_ms,
            has_ended: false,
            released,
        }
    }

    /// What is requested now.
    pub(super) fn request(&self) -> &str {
        self.again.as_ref().unwrap_or(&self.url)
    }

    /// The host of that.
    pub(super) fn host(&self) -> String {
        host_of(self.request())
    }

    /// It is the next request of a task that was begun.
    pub(super) fn goes_on(&self) -> bool {
        self.again.is_some()
    }

    /// The page itself is still to be requested.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.request() != self.url
    }
}
