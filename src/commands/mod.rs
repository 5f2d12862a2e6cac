//! The subcommands. Each connects the parts and prints for people; the other crates make the
//! decisions. `tidings NAME` is in the module NAME, except `pub`, which is a keyword: it is in
//! [`publish`], and `sub` in [`subscribe`].

#[cfg(feature = "bench")]
pub(crate) mod bench;
#[cfg(feature = "_zmq")]
pub(crate) mod bridge;
pub(crate) mod broker;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod crawl;
pub(crate) mod dashboard;
pub(crate) mod dead;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod group;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod job;
pub(crate) mod man;
pub(crate) mod probe;
pub(crate) mod publish;
pub(crate) mod status;
pub(crate) mod subscribe;
pub(crate) mod token;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod topic;
pub(crate) mod up;
pub(crate) mod verify;
pub(crate) mod watch;
pub(crate) mod watch_feed;
#[cfg(feature = "_zmq")]
pub(crate) mod zmq;
