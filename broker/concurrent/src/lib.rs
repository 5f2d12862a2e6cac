//! State that threads of the broker share without a common lock: watermarks that are read without
//! their lock, and wake-ups.
//!
//! | module | what it is |
//! |---|---|
//! | `watermarks` | the watermarks of a topic, and the tasks that wait for them |
//! | `progress` | the watermarks of a group's log |
//! | `mailbox` | the mailbox of one connection |
//! | `waiters` | a set of tasks that one event wakes; the tasks that wait for a new topic |
//! | `sync` | the atomics and the lock that these modules use |
//!
//! # Models
//!
//! With `--cfg loom`, `sync` uses the types of [loom](https://docs.rs/loom), and the tests are
//! models, each beside the type that it checks. loom runs a model in every order of its threads,
//! with every value that the memory orderings let a load return, and panics if all threads sleep.
//! `mutants` has faults that a model must find.
//!
//! ```text
//! RUSTFLAGS='--cfg loom' cargo test -p tidings-concurrent --target-dir target/loom
//! ```
//!
//! Loom and not shuttle, because correctness depends on `Acquire` and `Release`. Shuttle runs
//! programs as if every ordering were `SeqCst`, and chooses the order of threads at random. These
//! models are small enough for an exhaustive run.
//!
//! The crate has no runtime and does no IO, so the models build in seconds.

mod mailbox;
#[cfg(all(test, loom))]
mod model;
mod mutants;
mod progress;
mod sync;
mod waiters;
mod watermarks;

pub use self::mailbox::{Mailbox, MailboxContents};
pub use self::progress::LogProgress;
pub use self::sync::MutexGuard;
pub use self::waiters::{NewTopicWaiters, WaiterSlot, Waiters};
pub use self::watermarks::{Levels, Mark, MarkWait, Watermarked, Watermarks};
