//! The async client of a Tidings broker: the line protocol over a socket.
//!
//! It may not know the broker, its files or any state machine: its manifest has the protocol alone.

mod backoff;
mod connection;
mod connector;
mod error;
mod publisher;
#[cfg(test)]
mod scripted_broker;
mod worker;

pub use backoff::Backoff;
pub use connection::{
    Client, ClientOptions, ClientTls, CommandAnswer, Deliveries, Delivery, PendingAnswer,
    PendingConfirmation, Security, TokenSource, UNIX_PREFIX, connect, random_member_id,
};
pub use connector::{Connection, Connector};
pub use error::ClientError;
pub use publisher::{PublishEvent, Publisher};
pub use tokio_util::sync::CancellationToken;
pub use worker::{
    EnsureGroupError, ReplyOutcome, TaskEnd, TaskHandler, TaskLease, Worker, WorkerError,
    WorkerEvent, WorkerLink, WorkerTask, ensure_group,
};
