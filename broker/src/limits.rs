//! The limits of a broker: connections, topics and groups.
//!
//! Other limits stand in the module that they bound: of one source or principal in `quota`, of HTTP
//! requests in `net::http`, of a group in `tidings_queue::config`, of the wire in the protocol
//! crate. `docs/protocol/limits.md` lists all limits that a peer can reach.

use tidings_protocol::with_defaults;

with_defaults! {
    /// The limits of connections, topics and groups: unit, default, and what happens at the limit.
    #[derive(Debug, Clone)]
    pub struct Limits {
        /// Groups. Default 1,000. One more is refused (`-ERR limit`). Lowered at the start if the
        /// process may not have as many file descriptors.
        pub groups_max: usize = 1_000,
        /// Bytes by which a group's log grows, at least, before it is rewritten to what the group
        /// contains. Default 64 MiB, which takes less than a second to read at a start.
        pub group_log_bytes: u64 = 64 << 20,
        /// Connections at once. Default 16,384: an idle one costs about a kibibyte here and the
        /// kernel's buffers. One more is closed with `-ERR limit`. Lowered at the start if the
        /// process may not have as many file descriptors.
        pub connections_max: usize = 16_384,
        /// Milliseconds that a TLS handshake may take. Default 10,000. Then the connection is
        /// closed; it counts as one from its beginning.
        pub handshake_timeout_ms: u64 = 10_000,
        /// Milliseconds that a connection may be silent in the middle of a line. Default 30,000,
        /// which is longer than a person hesitates with telnet in character mode. Then the
        /// connection is closed (`-ERR timeout`).
        pub partial_line_timeout_ms: u64 = 30_000,
        /// Milliseconds of silence after which the system probes whether the machine of a client is
        /// still there, as `tidings` does in the other direction. Default 60,000. If it does not
        /// answer for as long again, the connection ends, with everything that it holds.
        pub keepalive_ms: u64 = 60_000,
        /// Milliseconds that a client which may only log in has to do so. Default 10,000. Then the
        /// connection is closed (`-ERR timeout`).
        pub login_timeout_ms: u64 = 10_000,
        /// Bytes of an unfinished line of a client that may only log in, and thus the most that one
        /// read of it returns. Default 2,048; a `HELLO` has some hundred. A longer line closes the
        /// connection (`-ERR too-long`). Such a client has one answer at a time, so it costs a few
        /// kibibytes in all.
        pub anonymous_bytes_max: usize = 2 << 10,
        /// Milliseconds without progress after which a connection that ends is cut off, with output
        /// still pending. Default 5,000.
        pub closing_timeout_ms: u64 = 5_000,
        /// Milliseconds that a closed connection waits for the client to close, too. Without this
        /// wait, unread input of the client would turn the last answer into a reset. Default 500.
        pub linger_ms: u64 = 500,
        /// Milliseconds in which all connections have to end when the broker stops. Default 250, so
        /// that a crawler and a broker in one process stop one after the other within a second.
        pub stop_ms: u64 = 250,
        /// Milliseconds after which a reader that takes nothing no longer pins the memory of the
        /// event it is in the middle of, and is closed if tasks pile up (`task_bytes_max`). Default
        /// 1,000; unpinning copies one line.
        pub stalled_ms: u64 = 1_000,

        /// Bytes that the kernel buffers while the client has no room for them. Default 131,072.
        /// Without this limit it takes megabytes for a client that does not read, and a thousand
        /// such clients use up the memory for all sockets of the machine.
        pub unsent_bytes: u32 = 128 << 10,
        /// Bytes that one read of a socket returns at most, which is about the size of a batch.
        /// Default 65,536, range 1,024 up. A worker thread has one such buffer, a connection none.
        pub read_bytes: usize = 64 << 10,
        /// Bytes of events that a connection takes from the tail at once. Default 262,144, enough
        /// to fill a socket. Range 1 up; one batch is always taken.
        pub deliver_bytes: usize = 256 << 10,
        /// Commands of one connection without a sent answer. Default 4,096, more than the largest
        /// useful credit or publish window (confirmed publishes fold and count as one). At the
        /// limit, the connection is not read until half of the answers have been sent.
        pub unanswered_max: usize = 4_096,
        /// Bytes of answers that wait for the socket, except confirmations. Default 262,144. At the
        /// limit, the connection is not read until answers have been sent. It is also not read
        /// while the answer to a `GROUP`, `JOB` or `EXPLAIN` is pending, so one long answer may
        /// exceed the limit.
        pub answer_bytes_max: usize = 256 << 10,
        /// Bytes of tasks that wait for a socket which takes nothing. Default 16 MiB. A connection
        /// that exceeds it for `stalled_ms` is ended (`-ERR timeout`): its leases expire unread,
        /// and their lines would pile up.
        pub task_bytes_max: usize = 16 << 20,

        /// Topics. Default 1,000, range 3 up, the fixed ones included. One more is refused
        /// (`-ERR limit`). Lowered like `groups_max`.
        pub topics_max: usize = 1_000,
        /// Bytes of one topic's tail in memory. Default 16 MiB. The oldest batches are evicted; a
        /// reader that needs them reads them from the disk, or receives `LAG` if they are not
        /// there.
        pub tail_bytes_max: usize = 16 << 20,
        /// Bytes of all tails together. Default 64 MiB. The longest tail gives up a quarter, and
        /// the rest of it is copied into no more memory than it needs.
        pub all_tails_bytes_max: usize = 64 << 20,
        /// Bytes of one topic's events that are not synced yet. Default 8 MiB, half a tail. At the
        /// limit, its publishers are not read until some events are synced.
        pub unsynced_bytes_max: usize = 8 << 20,
        /// Bytes of events on their way from the disk to all readers that lag. Default 16 MiB, at
        /// least 512 KiB. At the limit, the next reader waits.
        pub cold_read_bytes_max: usize = 16 << 20,
        /// Subscriptions of one connection. Default 1,000. One more is refused (`-ERR limit`).
        pub subscriptions_max: usize = 1_000,
        /// Durable cursors on all topics together. Default 10,000: a few megabytes of memory and
        /// disk. One more is refused (`-ERR limit`).
        pub cursors_max: usize = 10_000,
        /// Milliseconds after which a durable cursor is deleted that no client held or moved.
        /// Default 30 days, as long as events are kept by default.
        pub cursor_idle_ms: u64 = 30 * 24 * 60 * 60 * 1_000,
        /// Deleted topics that keep their next seq, so that no seq is reused. Default 10,000. At
        /// the limit, no further topic can be deleted (`-ERR limit`).
        pub deleted_topics_max: usize = 10_000,

        /// Children staged for one task. Default 65,536; a sitemap has 50,000 at most. More are
        /// counted and reported with the answer. Their memory is bounded by `staged_bytes_max`.
        pub staged_links_max: usize = 65_536,
        /// Bytes staged on one connection for all its tasks. Default 16 MiB. At the limit, the
        /// children of the oldest task are evicted, counted, and reported with its answer.
        pub staged_bytes_max: usize = 16 << 20,
    }
}
