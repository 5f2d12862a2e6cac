//! The log that the brokers of a community share, as a stream of NATS JetStream.
//!
//! | module | what it is |
//! |---|---|
//! | `engine` | the servers: what a community needs of them, and how it is made |
//! | `stream` | the stream: conditional appends, reading, its end |
//! | `bus` | what brokers say to one another, which is not stored |
//! | `send` | a leader that sends what it commits |
//!
//! No other crate knows the engine. What counts is decided by `tidings-cluster`.

mod bus;
mod engine;
mod send;
mod stream;
#[cfg(test)]
mod tests;

pub use self::bus::{Bus, Said};
pub use self::engine::{EngineError, Servers};
pub use self::send::send;
pub use self::stream::{Answer, JetStream, ReadError, Reader};
