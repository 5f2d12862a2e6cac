//! The three kinds of sockets that are used, by whichever library was built in.
//!
//! Both have the same three types, with the same methods:
//!
//! | type | |
//! |---|---|
//! | `Publisher` | a PUB socket that listens: `bind`, `address`, `send`, `turn`, `tend`, `drain` |
//! | `Puller` | a PULL socket that listens: `bind`, `address`, `receive`, `tend` |
//! | `Subscriber` | a SUB socket that connects: `connect`, `receive`, `tend` |

#[cfg(feature = "libzmq")]
mod by_libzmq;
#[cfg(not(feature = "libzmq"))]
mod by_zeromq;
#[cfg(not(feature = "libzmq"))]
mod peers;

#[cfg(feature = "libzmq")]
pub(crate) use by_libzmq::{Publisher, Puller, Subscriber};
#[cfg(not(feature = "libzmq"))]
pub(crate) use by_zeromq::{Publisher, Puller, Subscriber};

/// A message: its frames.
#[cfg(feature = "libzmq")]
pub(crate) type Frames = Vec<Vec<u8>>;
/// A message: its frames.
#[cfg(not(feature = "libzmq"))]
pub(crate) type Frames = Vec<bytes::Bytes>;
