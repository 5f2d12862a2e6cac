//! A task as its worker reads it.

use tidings_protocol::{Render, TaskId};

use crate::TaskMessage;
use crate::moment::Moment;
use crate::tests::site::host_of;

/// The contents of a task line.
#[derive(Debug, Clone)]
pub(super) struct ReceivedTask {
    pub(super) id: TaskId,
    /// The page.
    pub(super) url: String,
    /// The job of the page.
    pub(super) job: Option<String>,
    /// Number of the job, and of the pass.
    pub(super) pass: Option<(u64, u64)>,
    /// Links from a seed to the page, without redirects.
    pub(super) depth: u32,
    /// The URL that must be requested instead, on behalf of the page.
    again: Option<String>,
    /// Whether the page is rendered, if the task says it.
    pub(super) render: Option<Render>,
    /// Release time and end of the lease, in true time.
    pub(super) at: Moment,
    pub(super) until: Moment,
    /// Whether its request has ended at the host.
    pub(super) has_ended: bool,
    /// Decision number of its release.
    pub(super) released: u64,
}

impl ReceivedTask {
    /// Reads a task that is sent at `now`; its release number and time are known.
    pub(super) fn read(task: TaskMessage, now: Moment, (released, at): (u64, Moment)) -> Self {
        let (mut job, mut depth, mut again, mut render) = (None, 0, None, None);
        let (mut number, mut pass) = (None, None);
        let mut words = task.payload.split(' ');
        let url = words.next().expect("split returns at least one part").to_owned();
        for word in words {
            match word.split_once('=') {
                Some(("job", name)) => job = Some(name.to_owned()),
                Some(("number", text)) => number = text.parse().ok(),
                Some(("pass", text)) => pass = text.parse().ok(),
                Some(("depth", text)) => depth = text.parse().expect("the number is valid"),
                Some(("again", url)) => again = Some(url.to_owned()),
                Some(("render", word)) => render = Render::from_word(word),
                _ => {}
            }
        }
        Self {
            id: task.id,
            url,
            job,
            pass: number.zip(pass),
            depth,
            again,
            render,
            at,
            until: now + task.lease_ms,
            has_ended: false,
            released,
        }
    }

    /// The URL that is requested now.
    pub(super) fn request(&self) -> &str {
        self.again.as_ref().unwrap_or(&self.url)
    }

    /// Whether only a member with a browser may receive it.
    pub(super) fn needs_render(&self) -> bool {
        self.render == Some(Render::Yes)
    }

    /// The host of that URL.
    pub(super) fn host(&self) -> String {
        host_of(self.request())
    }

    /// Whether it is the next request of a task that was begun.
    pub(super) fn is_next_request(&self) -> bool {
        self.again.is_some()
    }

    /// Whether the page itself must still be requested.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.request() != self.url
    }
}
