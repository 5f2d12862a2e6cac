//! The three kinds of sockets that are used, by whichever library was built in.
//!
//! Both have the same three types, with the same methods:
//!
//! | type | |
//! |---|---|
//! | `ZmqPublisher` | a PUB socket that listens: `bind`, `address`, `send`, `turn`, `tend`, `drain` |
//! | `ZmqPuller` | a PULL socket that listens: `bind`, `address`, `receive`, `tend` |
//! | `ZmqSubscriber` | a SUB socket that connects: `connect`, `receive`, `tend` |

#[cfg(feature = "libzmq")]
mod by_libzmq;
#[cfg(not(feature = "libzmq"))]
mod peers;
#[cfg(not(feature = "libzmq"))]
mod zeromq_sockets;

#[cfg(feature = "libzmq")]
pub(crate) use by_libzmq::{Publisher, Puller, Subscriber};
#[cfg(not(feature = "libzmq"))]
pub(crate) use zeromq_sockets::{ZmqPublisher, ZmqPuller, ZmqSubscriber};

/// A message: its frames.
#[cfg(feature = "libzmq")]
pub(crate) type Frames = Vec<Vec<u8>>;
/// A message: its frames.
#[cfg(not(feature = "libzmq"))]
pub(crate) type Frames = Vec<bytes::Bytes>;
