//! The sockets, by the library that was built in.
//!
//! Both modules have the same three types with the same methods:
//!
//! | type | socket |
//! |---|---|
//! | `ZmqPublisher` | PUB, listens: `bind`, `address`, `send`, `flush_queues`, `tick`, `drain` |
//! | `ZmqPuller` | PULL, listens: `bind`, `address`, `receive`, `tick` |
//! | `ZmqSubscriber` | SUB, connects: `connect`, `receive`, `tick` |

#[cfg(feature = "libzmq")]
mod libzmq_sockets;
#[cfg(not(feature = "libzmq"))]
mod peers;
#[cfg(not(feature = "libzmq"))]
mod zeromq_sockets;

#[cfg(feature = "libzmq")]
pub(crate) use libzmq_sockets::{ZmqPublisher, ZmqPuller, ZmqSubscriber};
#[cfg(not(feature = "libzmq"))]
pub(crate) use zeromq_sockets::{ZmqPublisher, ZmqPuller, ZmqSubscriber};

/// The frames of a message.
#[cfg(feature = "libzmq")]
pub(crate) type Frames = Vec<Vec<u8>>;
/// The frames of a message.
#[cfg(not(feature = "libzmq"))]
pub(crate) type Frames = Vec<bytes::Bytes>;
