//! The log that the brokers of a community share: what is in it, which of it counts, and how a leader
//! writes it.
//!
//! ```text
//!   leader: commit ──▶ writer ──▶ ┌ slot ┬ slot ┬ slot ┬ ...   each filled once
//!                                 └──────┴──────┴──────┴
//!   every broker:                 read in order ──▶ validity ──▶ frames ──▶ its own logs
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `message` | a message and its bytes |
//! | `frame` | one change, as it stands in messages |
//! | `validity` | which messages count: a rule that all readers apply alike |
//! | `writer` | what a leader has in flight, sends again, and has committed |
//! | `heartbeat` | what brokers say of themselves, and their names |
//! | `seat` | when a broker tries to lead |
//! | `leader` | a broker that leads: its writer, and its own copy |
//! | `commits` | what a leader commits, between the threads that wait and the one that sends |
//! | `store` | the logs of a leader, as the broker sees them |
//! | `replica` | a broker's own copy: applies what counts to its data directory |
//! | `checkpoint` | how much of the shared log the copy holds |
//!
//! Three rules hold everywhere. The end of the log is known only by an acknowledged append, which is
//! conditional on its slot. An append without an answer may have happened. Readers decide which
//! messages count.
//!
//! The crate knows no clock, runtime, socket or engine, and not what a topic or a group is.

mod checkpoint;
mod commits;
mod frame;
mod heartbeat;
mod leader;
mod message;
mod mutants;
mod replica;
mod seat;
mod store;
mod validity;
mod writer;

#[cfg(test)]
mod tests;

pub use self::checkpoint::{Applied, Checkpoint, CheckpointError};
pub use self::commits::Commits;
pub use self::frame::{Frame, FrameError};
pub use self::heartbeat::{Heartbeat, Name};
pub use self::leader::{Candidacy, Leader, founding};
pub use self::message::{
    Chain, CommunityId, HEADER_BYTES, Kind, Message, MessageError, PAYLOAD_BYTES_MAX, Slot,
};
pub use self::replica::{Replica, ReplicaError};
pub use self::seat::{HEARTBEAT_MS, Seat};
pub use self::store::ReplicatedStore;
pub use self::validity::{LogFault, Position, Stamp, Verdict};
pub use self::writer::{Attempt, Ended, IN_FLIGHT_MAX, Ticket, Writer};
