//! Limits of the ZeroMQ process, which peers cannot exceed.

use std::time::Duration;

/// Memory of the process, as address space. A peer that exceeds it, by one huge frame or by many
/// frames, ends the process, which is then restarted. In normal use it needs a fraction of this.
pub const ADDRESS_SPACE_BYTES_MAX: u64 = 2 << 30;

/// Connections to each of the two sockets. The newest ones above the limit are cut off.
pub(crate) const CONNECTIONS_MAX: usize = 1_000;

/// Bytes of messages that wait for subscribers. Above this, subscribers that do not read are cut
/// off.
#[cfg(not(feature = "libzmq"))]
pub(crate) const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// Overhead of a message in the queue of one subscriber. All queues share the payload.
#[cfg(not(feature = "libzmq"))]
pub(crate) const QUEUE_ENTRY_BYTES: u64 = 256;

/// The kernel closes a connection after its peer has acknowledged no data for this long.
#[cfg(not(feature = "libzmq"))]
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that wait for one subscriber. libzmq drops further ones, sometimes from half of this
/// number on, because it learns late which ones were sent. (The `zeromq` crate has a fixed queue of
/// 100,000 messages.)
#[cfg(feature = "libzmq")]
pub(crate) const HIGH_WATER_MARK: i32 = 20_000;

/// Received messages that are not processed yet.
#[cfg(feature = "libzmq")]
pub(crate) const RECEIVE_QUEUE_MAX: usize = 64;

/// Bytes of a frame. It is a little more than a payload, so that a payload slightly above the limit
/// is rejected with a reason.
#[cfg(feature = "libzmq")]
pub(crate) const FRAME_BYTES_MAX: i64 = 64 * 1024;

/// Bytes of events that the broker has not confirmed. At the limit no message is received, so
/// senders wait. A client buffers more than this, so handing an event to it never waits.
pub(crate) const UNCONFIRMED_BYTES_MAX: usize = 512 * 1024;

/// How often topics are listed, cursors moved and connections counted.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// How long a restarted process waits for subscribers to reconnect before it sends events that they
/// missed. libzmq reconnects every 100 ms by default.
pub(crate) const RECONNECT_GRACE: Duration = Duration::from_secs(1);

/// Wait before the next attempt to reach the broker or a foreign socket.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Limit of the foreign topics for which the last seq is remembered.
pub(crate) const TRACKED_TOPICS_MAX: usize = 1_000;
