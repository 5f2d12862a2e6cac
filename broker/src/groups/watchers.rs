//! Watchers of jobs and groups (`JOB watch`, `GROUP watch`): they receive a progress line when
//! something has changed.
//!
//! Watchers are not part of the group's state. They poll the group from outside, at most as often
//! as each requested, and never while nothing changes.

use std::collections::{BTreeMap, VecDeque};

use tidings_protocol::status::{Rate, Status};
use tidings_protocol::{GroupCommand, GroupName, JobCommand, JobName, ProtocolError};
use tidings_queue::{Group, Requester};

use crate::clock::Moment;
use crate::mailbox::{ConnId, ConnMessage, Mailbox};

/// Window over which the page rate is averaged, in ms.
const RATE_WINDOW_MS: u64 = 5000;

/// Polls closer together than this, in ms, happen at once.
const POLL_GRAIN_MS: u64 = 100;

/// `JOB watch` or `GROUP watch`.
#[derive(Debug, Clone)]
pub(super) struct WatchRequest {
    /// Where the progress lines and the final answer go.
    pub(super) asked: Requester,
    /// The job; `None` watches the group.
    pub(super) job: Option<JobName>,
    /// The shortest time between two lines, in ms.
    pub(super) every_ms: u64,
}

/// The group and the request of `GROUP watch`.
pub(super) fn group_watch(
    asked: Requester,
    manage: &GroupCommand<'_>,
) -> Result<(GroupName, WatchRequest), ProtocolError> {
    let (group, every_ms) = (manage.required_name()?, manage.every_ms()?);
    manage.allow_only(&["every"])?;
    Ok((group.parse()?, WatchRequest { asked, job: None, every_ms }))
}

/// The group and the request of `JOB watch`.
pub(super) fn job_watch(
    asked: Requester,
    manage: &JobCommand<'_>,
) -> Result<(GroupName, WatchRequest), ProtocolError> {
    let (job, every_ms) = (manage.required_name()?, manage.every_ms()?);
    manage.allow_only(&["group", "every"])?;
    let watch = WatchRequest { asked, job: Some(job.parse()?), every_ms };
    Ok((manage.group()?, watch))
}

/// All watchers of one group.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    /// At most one watcher for each connection.
    by_conn: BTreeMap<ConnId, Watcher>,
    /// Increases with every input that may have changed the group.
    changes: u64,
    /// Time of the next poll. The first applies while `changes` equals `planned`, and covers
    /// watchers that have something to report even without a change; the second covers all
    /// watchers.
    next: (Option<Moment>, Option<Moment>),
    planned: u64,
}

#[derive(Debug)]
struct Watcher {
    watch: WatchRequest,
    mailbox: Mailbox,
    /// Time of its next poll.
    next: Moment,
    /// The last line that was sent.
    last_status: Option<Status>,
    speed: PageRate,
    /// The value of `changes` at which it has nothing more to report.
    reported_change: Option<u64>,
}

/// Page rate over the last few seconds.
#[derive(Debug, Default)]
struct PageRate {
    /// Times and numbers of completed pages, oldest first. One sample is as old as the window, the
    /// others are newer.
    samples: VecDeque<(Moment, u64)>,
}

impl Watchers {
    /// Adds a watcher; its first line is sent at the next poll.
    pub(super) fn add(&mut self, watch: WatchRequest, mailbox: Mailbox, now: Moment) {
        let (conn, speed) = (watch.asked.conn, PageRate::default());
        let watcher =
            Watcher { watch, mailbox, next: now, last_status: None, speed, reported_change: None };
        self.by_conn.insert(conn, watcher);
        self.schedule_next();
    }

    /// Notes that the group may have changed.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    /// Removes the watcher if this answer ends its watch.
    pub(super) fn answered(&mut self, asked: &Requester) {
        if self.by_conn.get(&asked.conn).is_some_and(|watcher| watcher.watch.asked == *asked) {
            self.remove(asked.conn);
        }
    }

    /// A connection ended.
    pub(super) fn remove(&mut self, conn: ConnId) {
        if self.by_conn.remove(&conn).is_some() {
            self.schedule_next();
        }
    }

    /// Time of the next poll, if any watcher needs one.
    pub(super) fn next_poll(&self) -> Option<Moment> {
        if self.planned == self.changes { self.next.0 } else { self.next.1 }
    }

    /// Polls the group for each watcher that is due, and passes each new line to `say`.
    pub(super) fn poll(
        &mut self,
        group: &Group,
        now: Moment,
        mut say: impl FnMut(&Mailbox, ConnMessage),
    ) {
        if self.next_poll().is_none_or(|next| next > now) {
            return;
        }
        let changes = self.changes;
        let due = |watcher: &&mut Watcher| {
            watcher.next <= now && watcher.reported_change != Some(changes)
        };
        for watcher in self.by_conn.values_mut().filter(due) {
            let every_ms = watcher.watch.every_ms;
            watcher.next = Moment((now + every_ms).0.next_multiple_of(POLL_GRAIN_MS));
            if let Some(status) = watcher.poll(group, changes, now) {
                let slot = watcher.watch.asked.slot;
                say(&watcher.mailbox, ConnMessage::Progress { slot, status });
            }
        }
        self.schedule_next();
    }

    fn schedule_next(&mut self) {
        let unsettled = |watcher: &&Watcher| watcher.reported_change != Some(self.changes);
        let next = self.by_conn.values().filter(unsettled).map(|watcher| watcher.next).min();
        self.next = (next, self.by_conn.values().map(|watcher| watcher.next).min());
        self.planned = self.changes;
    }
}

impl Watcher {
    /// Returns a status if it differs from the last one.
    fn poll(&mut self, group: &Group, changes: u64, now: Moment) -> Option<Status> {
        self.reported_change = Some(changes);
        let job = self.watch.job.as_ref();
        let completed = group.view().completed(job)?;
        let span_ms = RATE_WINDOW_MS.max(self.watch.every_ms + POLL_GRAIN_MS);
        let tenths = self.speed.at(now, completed, span_ms);
        if tenths > 0 {
            // The rate falls even if nothing changes.
            self.reported_change = None;
        }
        let status = group.view().progress(job, Rate { tenths });
        if status == self.last_status {
            return None;
        }
        self.last_status.clone_from(&status);
        status
    }
}

impl PageRate {
    /// The rate in tenths of a page per second over `span_ms`, given `completed` pages at `now`.
    fn at(&mut self, now: Moment, completed: u64, span_ms: u64) -> u64 {
        self.samples.push_back((now, completed));
        let is_old = |(at, _): &(Moment, u64)| now.since(*at) >= span_ms;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        let (from, before) = self.samples[0];
        let new = completed.saturating_sub(before);
        // While polls pause nothing is completed, so a longer gap counts as the window.
        new.saturating_mul(10_000).checked_div(now.since(from).min(span_ms)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use tidings_protocol::{Answers, MemberId};
    use tidings_queue::{GroupConfig, Input, Operation};

    use super::*;

    /// Polls and returns the lines.
    fn look(watchers: &mut Watchers, group: &Group, now: u64) -> Vec<String> {
        let mut lines = Vec::new();
        watchers.poll(group, Moment(now), |_, parcel| {
            let ConnMessage::Progress { status, .. } = parcel else { panic!("{parcel:?}") };
            lines.push(status.to_string());
        });
        lines
    }

    // PROTOCOL: G4
    #[test]
    fn watchers_are_polled_after_changes_and_not_too_often() {
        let mut group = Group::new("g".parse().unwrap(), 1, GroupConfig::default(), 1);
        let asked = |conn| {
            let (conn, member) = (ConnId(conn), MemberId(u128::from(conn)));
            Requester { conn, member, slot: Answers::new().reserve() }
        };
        let mut watchers = Watchers::default();
        assert_eq!(watchers.next_poll(), None);
        for (conn, every_ms) in [(1, 1000), (2, 5000)] {
            let watch = WatchRequest { asked: asked(conn), job: None, every_ms };
            watchers.add(watch, Mailbox::new(), Moment(10));
        }
        assert_eq!(look(&mut watchers, &group, 10).len(), 2, "each watcher gets the first line");
        assert_eq!(watchers.next_poll(), None, "nothing changes");
        watchers.changed();
        assert_eq!(watchers.next_poll(), Some(Moment(1100)));
        assert!(look(&mut watchers, &group, 1099).is_empty());
        assert!(look(&mut watchers, &group, 1100).is_empty(), "the line would be the same");
        assert_eq!(watchers.next_poll(), Some(Moment(5100)), "the other watcher was not polled");
        group.handle(
            Input::Operate { requester: asked(3), operation: Operation::Pause },
            Moment(1200),
        );
        watchers.changed();
        let lines = look(&mut watchers, &group, 2100);
        assert!(lines.len() == 1 && lines[0].starts_with("g paused=yes "), "{lines:?}");
        assert!(lines[0].ends_with(" rate=0.0"), "{lines:?}");
        assert_eq!(look(&mut watchers, &group, 9000).len(), 1);
        watchers.remove(ConnId(1));
        watchers.answered(&asked(2));
        watchers.changed();
        assert_eq!(watchers.next_poll(), None, "no watcher is left");
    }

    #[test]
    fn rate_covers_the_last_seconds() {
        let mut speed = PageRate::default();
        for (ms, completed, tenths) in [
            (1000, 50, 0),
            (1000, 60, 0),
            (2000, 60, 100),
            (3000, 60, 50),
            (4500, 62, 34),
            (6000, 62, 4),
            (7000, 62, 4),
            (9500, 62, 0),
            (100_000, 63, 2),
            (101_000, 64, 4),
            (105_000, 68, 10),
        ] {
            assert_eq!(speed.at(Moment(ms), completed, 5000), tenths, "at {ms}");
        }
        assert!(speed.samples.len() < 4, "old samples are dropped");
    }
}
