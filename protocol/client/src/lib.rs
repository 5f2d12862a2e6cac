//! The async client of a Tidings broker.
//!
//! A Rust program adds this crate to publish events, to read them, or to work on them as a member
//! of a group. The same crate is inside `tidings pub`, the crawler and the connectors.
//!
//! | type | does |
//! |---|---|
//! | [`Publisher`] | sends events, and keeps each until the broker has answered it |
//! | [`Subscriber`] | reads the events of a topic, with or without a durable cursor |
//! | [`Worker`] | takes tasks of a group, keeps their leases, and reports how they end |
//! | [`Connector`] | opens the connections of one of these, one after the other |
//! | [`Client`] | one connection, for every other command |
//!
//! # What happens when a connection is lost
//!
//! Publisher, subscriber and worker connect again and go on where they were: unanswered events and
//! replies are sent again, a subscription resumes, and a member keeps its tasks. A broker that owes
//! an answer and is silent for 20 s counts as lost. The pauses between attempts grow up to 5 s
//! ([`Backoff`]). `next` returns each loss and each failed attempt as a value, so that the program
//! can log it or give up. An error of `next` is final: the broker refuses the login, the address is
//! not that of a broker, or another connection has taken the place of this one
//! ([`Connector::is_final`]).
//!
//! The methods named `next` are cancel-safe: they may stand in `tokio::select!`. Nothing happens
//! while none of them is awaited.
//!
//! # Publish
//!
//! ```no_run
//! use tidings_client::{ClientError, ClientOptions, Connector, PublishEvent, Publisher};
//!
//! # async fn publish() -> Result<(), ClientError> {
//! let topic = "new-url".parse().expect("a valid name");
//! let connector = Connector::new("127.0.0.1:12345", ClientOptions::default());
//! // With ids, the broker stores an event once although it was sent again.
//! let mut publisher = Publisher::new(connector).with_ids();
//! for number in 1..=1_000 {
//!     while !publisher.has_room() {
//!         publisher.next().await?;
//!     }
//!     publisher.push(number, &topic, format!("https://example.org/{number}"));
//! }
//! while let Some(event) = publisher.flush().await? {
//!     match event {
//!         PublishEvent::Confirmed { number, seq } => println!("{number} is event {seq}"),
//!         PublishEvent::Refused { number, refusal } => println!("{number}: {refusal}"),
//!         other => println!("{other:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Subscribe
//!
//! ```no_run
//! use tidings_client::{
//!     ClientError, ClientOptions, Connector, Subscriber, SubscriberEvent, Subscription,
//! };
//!
//! # async fn subscribe() -> Result<(), ClientError> {
//! let topic = "new-url".parse().expect("a valid name");
//! let cursor = "indexer".parse().expect("a valid name");
//! let connector = Connector::new("127.0.0.1:12345", ClientOptions::default());
//! let mut subscriber =
//!     Subscriber::new(connector, Subscription::new(topic).with_cursor(cursor));
//! loop {
//!     match subscriber.next().await? {
//!         SubscriberEvent::Event { seq, payload } => {
//!             println!("{payload}");
//!             // It does not arrive again, in this process or the next one.
//!             subscriber.seen(seq);
//!         }
//!         SubscriberEvent::Lag { from, to } => println!("{from} to {to} are no longer kept"),
//!         other => println!("{other:?}"),
//!     }
//! }
//! # }
//! ```
//!
//! # Work
//!
//! ```no_run
//! use tidings_client::{
//!     CancellationToken, ClientOptions, Connector, TaskEnd, Worker, WorkerTask,
//! };
//!
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! let connector = Connector::new("127.0.0.1:12345", ClientOptions::default());
//! // Up to four tasks at once. Their leases are renewed while their futures run.
//! let worker = Worker::new(connector, "thumbs".parse()?, 4);
//! let handler = |task: WorkerTask| async move {
//!     match tokio::fs::metadata(&task.payload).await {
//!         Ok(_) => TaskEnd::done(),
//!         Err(_) => TaskEnd::failed("no_such_file".to_owned()),
//!     }
//! };
//! worker.run(handler, None, CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it may not know
//!
//! The broker, its files and its state machines: of this workspace its manifest names the protocol
//! alone.

mod backoff;
mod connection;
mod connector;
mod error;
mod group;
mod publisher;
#[cfg(test)]
mod scripted_broker;
mod subscriber;
mod worker;

pub use backoff::Backoff;
pub use connection::{
    Client, ClientOptions, ClientTls, CommandAnswer, Deliveries, Delivery, PendingAnswer,
    PendingConfirmation, Security, TokenSource, UNIX_PREFIX, connect, random_member_id,
};
pub use connector::{Connection, Connector};
pub use error::ClientError;
pub use group::GroupSetup;
pub use publisher::{PublishEvent, Publisher};
pub use subscriber::{Subscriber, SubscriberEvent, Subscription};
pub use tokio_util::sync::CancellationToken;
pub use worker::{
    ReplyOutcome, TASKS_MAX, TaskEnd, TaskHandler, TaskLease, Worker, WorkerError, WorkerEvent,
    WorkerLink, WorkerTask,
};
