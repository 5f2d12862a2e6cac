//! Those who watch how a job or a group goes: a line now and then, when something has changed.
//!
//! They are no part of the group, which is looked at from outside: at most so often as each of them
//! wants, and not at all while nothing changes.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use tidings_protocol::{JobName, encode_more};

use crate::clock::Moment;
use crate::group::{Asked, Group};
use crate::mailbox::{ConnId, Mailbox, Parcel};

/// The shortest time between two lines, in ms, unless told otherwise; and the range of that.
pub(super) const EVERY_MS: u64 = 1000;
pub(super) const EVERY_MS_MIN: u64 = 100;
pub(super) const EVERY_MS_MAX: u64 = 60 * 60 * 1000;

/// What speeds are averaged over, in ms.
const SPEED_MS: u64 = 5000;

/// Looks that are so close to each other, in ms, are taken together.
const GRAIN_MS: u64 = 100;

/// `JOB watch` or `GROUP watch`.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// Where lines go.
    pub(super) asked: Asked,
    /// Which job; none: the group.
    pub(super) job: Option<JobName>,
    /// The shortest time between two lines, in ms.
    pub(super) every_ms: u64,
}

/// Everybody who watches something of one group.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    /// A connection watches one thing at a time.
    list: BTreeMap<ConnId, Watcher>,
    /// Rises with everything that may have changed the group.
    changes: u64,
    /// When to look next: at those to whom there is something to say even if nothing changes, and at
    /// anybody. As of a number of changes.
    next: (Option<Moment>, Option<Moment>),
    planned: u64,
}

#[derive(Debug)]
struct Watcher {
    watch: Watch,
    mailbox: Mailbox,
    /// When to look next.
    next: Moment,
    /// The last line.
    said: String,
    speed: Speed,
    /// As of which change there is nothing to say.
    settled: Option<u64>,
}

/// Pages a second over the last few seconds.
#[derive(Debug, Default)]
struct Speed {
    /// How many there were when, oldest first: one that is old enough, and what is newer.
    samples: VecDeque<(Moment, u64)>,
}

impl Watchers {
    /// Somebody watches from here on, beginning with the next look.
    pub(super) fn add(&mut self, watch: Watch, mailbox: Mailbox, now: Moment) {
        let (conn, said, speed) = (watch.asked.conn, String::new(), Speed::default());
        let watcher = Watcher { watch, mailbox, next: now, said, speed, settled: None };
        self.list.insert(conn, watcher);
        self.plan();
    }

    /// Something may be another now.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    /// Somebody was answered: with the end of what they watched, if they did.
    pub(super) fn answered(&mut self, asked: &Asked) {
        if self.list.get(&asked.conn).is_some_and(|watcher| watcher.watch.asked == *asked) {
            self.gone(asked.conn);
        }
    }

    /// A connection ended.
    pub(super) fn gone(&mut self, conn: ConnId) {
        if self.list.remove(&conn).is_some() {
            self.plan();
        }
    }

    /// Nobody is told anything any more: who they were that watched the group. Those who watched a job
    /// wait for it as well, and are told as those who do.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Asked, Mailbox)> + use<> {
        let list = std::mem::take(self).list.into_values();
        let of_group = list.filter(|watcher| watcher.watch.job.is_none());
        of_group.map(|watcher| (watcher.watch.asked, watcher.mailbox))
    }

    /// When there is somebody to look for.
    pub(super) fn next_look(&self) -> Option<Moment> {
        if self.planned == self.changes { self.next.0 } else { self.next.1 }
    }

    /// Looks for everybody whose time it is, and hands over what there is to say.
    pub(super) fn look(
        &mut self,
        group: &Group,
        now: Moment,
        mut say: impl FnMut(&Mailbox, Parcel),
    ) {
        if self.next_look().is_none_or(|next| next > now) {
            return;
        }
        let changes = self.changes;
        let due = |watcher: &&mut Watcher| watcher.next <= now && watcher.settled != Some(changes);
        for watcher in self.list.values_mut().filter(due) {
            let every_ms = watcher.watch.every_ms;
            watcher.next = Moment((now + every_ms).0.next_multiple_of(GRAIN_MS));
            if let Some(line) = watcher.look(group, changes, now) {
                let mut bytes = BytesMut::new();
                encode_more(&line, &mut bytes);
                let (slot, line) = (watcher.watch.asked.slot, bytes.freeze());
                say(&watcher.mailbox, Parcel::Progress { slot, line });
            }
        }
        self.plan();
    }

    fn plan(&mut self) {
        let unsettled = |watcher: &&Watcher| watcher.settled != Some(self.changes);
        let next = self.list.values().filter(unsettled).map(|watcher| watcher.next).min();
        self.next = (next, self.list.values().map(|watcher| watcher.next).min());
        self.planned = self.changes;
    }
}

impl Watcher {
    /// What there is to say, if that is something else than the last time.
    fn look(&mut self, group: &Group, changes: u64, now: Moment) -> Option<String> {
        self.settled = Some(changes);
        let (text, completed) = group.progress(self.watch.job.as_ref())?;
        let span_ms = SPEED_MS.max(self.watch.every_ms + GRAIN_MS);
        let tenths = self.speed.at(now, completed, span_ms);
        if tenths > 0 {
            // It falls while nothing changes.
            self.settled = None;
        }
        let line = format!("{text} rate={}.{}", tenths / 10, tenths % 10);
        (line != self.said).then(|| {
            self.said.clone_from(&line);
            line
        })
    }
}

impl Speed {
    /// In tenths of a page a second, over so many ms, now that so many were completed.
    fn at(&mut self, now: Moment, completed: u64, span_ms: u64) -> u64 {
        self.samples.push_back((now, completed));
        let is_old = |(at, _): &(Moment, u64)| now.since(*at) >= span_ms;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        let (from, before) = self.samples[0];
        let new = completed.saturating_sub(before);
        // If there was nothing to look for, nothing was completed since the last look.
        new.saturating_mul(10_000).checked_div(now.since(from).min(span_ms)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use tidings_protocol::{Answers, MemberId};

    use super::*;
    use crate::group::{GroupConfig, Input, Operation};

    /// Looks, and returns what was said.
    fn look(watchers: &mut Watchers, group: &Group, now: u64) -> Vec<String> {
        let mut said = Vec::new();
        watchers.look(group, Moment(now), |_, parcel| {
            let Parcel::Progress { line, .. } = parcel else { panic!("{parcel:?}") };
            said.push(std::str::from_utf8(&line).unwrap().trim_end().to_owned());
        });
        said
    }

    // PROTOCOL: G4
    #[test]
    fn it_is_looked_when_something_has_changed_and_not_too_often() {
        let mut group = Group::new("g".parse().unwrap(), 1, GroupConfig::default(), 1);
        let asked = |conn| {
            let (conn, member) = (ConnId(conn), MemberId(u128::from(conn)));
            Asked { conn, member, slot: Answers::new().later() }
        };
        let mut watchers = Watchers::default();
        assert_eq!(watchers.next_look(), None);
        for (conn, every_ms) in [(1, 1000), (2, 5000)] {
            let watch = Watch { asked: asked(conn), job: None, every_ms };
            watchers.add(watch, Mailbox::new(), Moment(10));
        }
        assert_eq!(look(&mut watchers, &group, 10).len(), 2, "how it is at first");
        assert_eq!(watchers.next_look(), None, "nothing changes");
        watchers.changed();
        assert_eq!(watchers.next_look(), Some(Moment(1100)));
        assert!(look(&mut watchers, &group, 1099).is_empty());
        assert!(look(&mut watchers, &group, 1100).is_empty(), "nobody would see a difference");
        assert_eq!(watchers.next_look(), Some(Moment(5100)), "the other one was not looked for");
        group.handle(Input::Operate { asked: asked(3), what: Operation::Pause }, Moment(1200));
        watchers.changed();
        let said = look(&mut watchers, &group, 2100);
        assert!(said.len() == 1 && said[0].starts_with("+ g paused=yes "), "{said:?}");
        assert!(said[0].ends_with(" rate=0.0"), "{said:?}");
        assert_eq!(look(&mut watchers, &group, 9000).len(), 1);
        watchers.gone(ConnId(1));
        watchers.answered(&asked(2));
        watchers.changed();
        assert_eq!(watchers.next_look(), None, "nobody is left");
    }

    #[test]
    fn speed_is_that_of_the_last_seconds() {
        let mut speed = Speed::default();
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
        assert!(speed.samples.len() < 4, "what is long ago is forgotten");
    }
}
