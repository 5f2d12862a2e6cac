//! Every connection to a server of others: for the crawler, callbacks, hubs and probes.
//!
//! A name is resolved, each address is checked when the connection is made, and the connection goes
//! to a checked address, directly or through the proxy of the operator, with TLS if the URL says
//! so.
//!
//! | module | what it does |
//! |---|---|
//! | [`address`] | decides which addresses may be requested |
//! | [`connect`] | resolves, checks, connects, and secures connections with TLS |
//! | [`http`] | sends `GET` requests for documents, one connection a host, and decodes bodies |
//! | [`client`] | sends all other requests, such as callbacks |
//! | [`memory_budget`] | the memory that all requests share |
//! | [`failure`] | the reasons for a failure |
//!
//! This crate knows no topic, group, page or job. Of the crates of this workspace it depends on
//! `tidings-protocol` only, without its client, for canonical URLs and networks; `.ci/run` checks
//! this. No other crate opens a connection to a server of others, so no request can skip the check
//! of its address: `tests/e2e/docs/connections.rs` lists the files that open connections.

pub mod address;
pub mod client;
pub mod connect;
pub mod failure;
pub mod http;
pub mod memory_budget;
mod retry_after;

pub use address::AllowPrivate;
pub use failure::{Failure, Reason};
pub use retry_after::retry_after;
