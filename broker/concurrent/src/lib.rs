//! What threads of the broker share without holding one lock together: marks that are read without their lock, and
//! wake-ups.
//!
//! | module | what it is |
//! |---|---|
//! | `watermarks` | how far a topic has come, and the tasks that wait for that to change |
//! | `progress` | how far the log of a group is written and synced |
//! | `mailbox` | the way to the task of one connection |
//! | `waiters` | a set of tasks that one event wakes; the tasks that wait for a new topic |
//! | `sync` | the atomics and the lock of all of these |
//!
//! # Models
//!
//! With `--cfg loom`, `sync` names the types of [loom](https://docs.rs/loom), and the tests are models of these types,
//! each beside its type. loom runs a model in every order of its threads, with every value that the memory orderings
//! let a load return, and ends with a panic if all threads sleep. `mutants` has faults that a model must find.
//!
//! ```text
//! RUSTFLAGS='--cfg loom' cargo test -p tidings-concurrent --target-dir target/loom
//! ```
//!
//! Loom and not shuttle, because the promises rest on `Acquire` and `Release`: shuttle runs programs as if every
//! ordering were `SeqCst`, and draws the order of the threads by chance. The models are small enough to be run through.
//!
//! The crate has no runtime and does no IO; its manifest shows it. So the models are built in seconds.

mod mailbox;
#[cfg(all(test, loom))]
mod model;
mod mutants;
mod progress;
mod sync;
mod waiters;
mod watermarks;

pub use self::mailbox::{Mailbox, Taken};
pub use self::progress::Progress;
pub use self::sync::MutexGuard;
pub use self::waiters::{Arrivals, Place, Waiters};
pub use self::watermarks::{Levels, Mark, Wait, Watermarked, Watermarks};
