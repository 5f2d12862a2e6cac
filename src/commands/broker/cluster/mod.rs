//! A broker that is one of several, on machines of their own.
//!
//! ```text
//!   clients ──▶ standby ──relay──▶ leader ──▶ shared log (NATS) ──▶ copy of every broker
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `node` | a broker that follows the log, or leads |
//! | `term` | the time for which it leads |
//! | `status` | what it says of itself; its checkpoints |
//! | `relay` | connections that a standby passes to the leader |

mod node;
mod relay;
mod status;
mod term;

pub(super) use self::node::{ClusterFlags, run};
