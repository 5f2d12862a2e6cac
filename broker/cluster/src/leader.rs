//! A broker that leads: what it commits goes to the shared log first, and then to its own copy.
//!
//! ```text
//!   store ──▶ commits ──▶ writer ──▶ shared log
//!     ▲                     │ committed
//!     └──── applied ◀── replica
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::commits::Commits;
use crate::message::{CommunityId, Kind, Message, Slot};
use crate::replica::{Replica, ReplicaError};
use crate::validity::{Position, Stamp};
use crate::writer::{Attempt, Ended, Ticket, Writer};

/// The first message of a log.
pub fn founding(community: CommunityId, stamp: Stamp) -> Attempt {
    let message = Position::default().next_message(Kind::Founded, stamp);
    Attempt { slot: message.slot, round: 0, bytes: message.encode(community) }
}

/// An attempt to lead. It has succeeded once the engine has acknowledged it.
#[derive(Debug)]
pub struct Candidacy {
    /// What to append.
    pub attempt: Attempt,
    /// Where the log is behind it.
    opened: Position,
}

impl Candidacy {
    /// The attempt of a broker that has applied everything before `position`. `name` tells its message
    /// from that of another candidate.
    pub fn new(community: CommunityId, position: Position, stamp: Stamp, name: &str) -> Self {
        let payload = Bytes::copy_from_slice(name.as_bytes());
        let message = Message { payload, ..position.next_message(Kind::Opened, stamp) };
        let bytes = message.encode(community);
        let mut opened = position;
        opened.take(&message, &bytes);
        Self { attempt: Attempt { slot: message.slot, round: 0, bytes }, opened }
    }
}

/// A leader. The calls are those of its [`Writer`], and block where they apply commits. After an error
/// it leads no longer.
#[derive(Debug)]
pub struct Leader {
    writer: Writer,
    replica: Arc<Mutex<Replica>>,
    commits: Arc<Commits>,
    /// What was taken and is not applied, oldest first.
    pending: VecDeque<Bytes>,
    applied: Ticket,
    unix_ms: i64,
}

impl Leader {
    /// The leader after a candidacy that was acknowledged, with messages of at most `payload_max` bytes
    /// and a header.
    pub fn new(
        community: CommunityId,
        candidacy: &Candidacy,
        payload_max: usize,
        replica: Arc<Mutex<Replica>>,
        commits: Arc<Commits>,
    ) -> Result<Self, ReplicaError> {
        replica.lock().lead(candidacy.opened)?;
        let writer = Writer::new(community, candidacy.opened, payload_max);
        let (pending, applied) = (VecDeque::new(), Ticket(0));
        Ok(Self { writer, replica, commits, pending, applied, unix_ms: 0 })
    }

    /// The next message to send.
    pub fn poll(&mut self, stamp: Stamp) -> Option<Attempt> {
        self.unix_ms = stamp.unix_ms;
        if !self.writer.is_leaving() {
            for commit in self.commits.take() {
                self.writer.submit(commit.clone());
                self.pending.push_back(commit);
            }
        }
        self.writer.poll(stamp)
    }

    /// The engine has appended the message of an attempt to its slot.
    pub fn acknowledged(&mut self, slot: Slot, round: u64) -> Result<(), ReplicaError> {
        self.writer.acknowledged(slot, round);
        let committed = self.writer.committed();
        if committed == self.applied {
            return Ok(());
        }
        let mut replica = self.replica.lock();
        while self.applied < committed {
            let commit = self.pending.pop_front().expect("each ticket is one of a commit");
            replica.apply(commit, self.unix_ms)?;
            self.applied.0 += 1;
        }
        replica.settled(self.writer.committed_at());
        drop(replica);
        self.commits.applied(self.applied);
        Ok(())
    }

    /// The engine has refused the message of an attempt, or has not answered.
    pub fn unanswered(&mut self, round: u64) {
        self.writer.unanswered(round);
    }

    /// The slot from which the log must be read, if it must.
    pub fn read_from(&self) -> Option<Slot> {
        self.writer.read_from()
    }

    /// Takes the message in that slot.
    pub fn read(&mut self, slot: Slot, bytes: &Bytes) {
        self.writer.read(slot, bytes);
    }

    /// Nothing is behind the slot that was read last, or seems to be.
    pub fn read_to_end(&mut self) {
        self.writer.read_to_end();
    }

    /// Leaves after everything that was taken. What waits is refused.
    pub fn leave(&mut self) {
        self.commits.end("this broker leads no longer");
        self.commits.release();
        self.writer.leave();
    }

    /// Why it leads no longer.
    pub fn ended(&self) -> Option<Ended> {
        self.writer.ended()
    }
}
