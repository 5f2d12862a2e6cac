//! The services of a server and a crawler: the flags of each, and how they become configuration,
//! connections and running parts.

pub(crate) mod access;
pub(crate) mod browser;
pub(crate) mod callbacks;
pub(crate) mod companions;
pub(crate) mod contact;
pub(crate) mod crawler_flags;
pub(crate) mod crawler_http;
pub(crate) mod hooks;
#[cfg(feature = "hub")]
pub(crate) mod hub;
#[cfg(feature = "hub")]
pub(crate) mod hub_operations;
pub(crate) mod identity;
#[cfg(feature = "cluster")]
pub(crate) mod nats;
pub(crate) mod operations;
pub(crate) mod optional;
pub(crate) mod outgoing;
pub(crate) mod principals;
pub(crate) mod public_url;
pub(crate) mod push;
pub(crate) mod quotas;
pub(crate) mod server_flags;
pub(crate) mod sinks;
pub(crate) mod tls;
pub(crate) mod traps;
pub(crate) mod websub;
#[cfg(feature = "_zmq")]
pub(crate) mod zmq;
