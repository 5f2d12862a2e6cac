//! What bounds the process that talks ZeroMQ, whatever its peers do.

use std::time::Duration;

/// All of its memory, as address space: who asks it for more, by a frame that claims to be huge or
/// by many of them, ends it, and it is started again. A process at work has a fraction of this.
pub const ADDRESS_SPACE_BYTES_MAX: u64 = 2 << 30;

/// Connections to each of the two sockets. What is more is cut off, the newest first.
pub(crate) const CONNECTIONS_MAX: usize = 1_000;

/// What waits for subscribers in memory. Beyond it those that do not read are cut off.
#[cfg(not(feature = "libzmq"))]
pub(crate) const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// What a message takes in the queue of one subscriber, besides the payload, which all queues
/// share.
#[cfg(not(feature = "libzmq"))]
pub(crate) const QUEUE_ENTRY_BYTES: u64 = 256;

/// How long a peer may take nothing of what waits for it. The kernel looks.
#[cfg(not(feature = "libzmq"))]
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that wait for one subscriber; libzmq drops what is more, and sometimes from half of it
/// on, as it learns late of what has left. (The queue of the `zeromq` crate has 100,000, which
/// cannot be changed.)
#[cfg(feature = "libzmq")]
pub(crate) const HIGH_WATER_MARK: i32 = 20_000;

/// Messages that were received and not taken yet.
#[cfg(feature = "libzmq")]
pub(crate) const RECEIVED_MAX: usize = 64;

/// Bytes of a frame: a payload and a little more, so that one that is a little too long is refused
/// by name.
#[cfg(feature = "libzmq")]
pub(crate) const FRAME_BYTES_MAX: i64 = 64 * 1024;

/// Bytes of events on their way to the broker that it has not confirmed. While it is full no
/// message is received, so senders wait. Less than what a client has room for, so handing an event
/// to one never waits.
pub(crate) const UNCONFIRMED_BYTES_MAX: usize = 512 * 1024;

/// What an event on its way takes besides its payload.
pub(crate) const EVENT_OVERHEAD_BYTES: usize = 128;

/// How often topics are listed, cursors moved and connections counted.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// How long those who were connected before have to come back before events that they missed are
/// sent: libzmq tries every 100 ms unless it was told otherwise.
pub(crate) const RECONNECT_GRACE: Duration = Duration::from_secs(1);

/// How long to wait before the broker is asked again, or somebody who could not be reached.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Topics of somebody else of which the last number is remembered.
pub(crate) const TRACKED_TOPICS_MAX: usize = 1_000;
