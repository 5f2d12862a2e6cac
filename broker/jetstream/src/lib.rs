//! The log that the brokers of a community share, as a stream of NATS JetStream.
//!
//! | module | what it is |
//! |---|---|
//! | `stream` | the stream: conditional appends, reading, its end |
//! | `send` | a leader that sends what it commits |
//!
//! No other crate knows the engine. What counts is decided by `tidings-cluster`.

mod send;
mod stream;
#[cfg(test)]
mod tests;

pub use self::send::send;
pub use self::stream::{Answer, ConnectError, JetStream, ReadError, Reader};
