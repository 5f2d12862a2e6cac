//! Settings and limits of the HTTP listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidings_protocol::with_defaults;

use super::embedded_handlers::EmbeddedHandler;
use super::hooks::Hook;

/// The default port of HTTP.
pub const HTTP_PORT: u16 = 12346;

with_defaults! {
    /// Settings of the HTTP listener: its address, its host names, and the limits of requests.
    #[derive(Debug, Clone)]
    pub struct HttpConfig {
        /// Address to listen on. With port 0 the system chooses a free one. Default
        /// `127.0.0.1:12346`.
        pub listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT)),
        /// Names that a `Host` header may contain. Addresses and `localhost` are always allowed. A
        /// page that points its own name at this machine (DNS rebinding) sends another name and is
        /// rejected.
        pub allowed_hosts: Vec<String> = Vec::new(),
        /// Bytes of a body. Default 4 MiB; a longer one is rejected (413).
        pub body_bytes_max: usize = 4 << 20,
        /// Bytes of all bodies that are being received. Default 64 MiB; further bodies wait, up to
        /// the timeout of a body.
        pub bodies_bytes_max: usize = 64 << 20,
        /// Bytes of the bodies of webhooks and embedded handlers that are being received; their
        /// senders are not verified yet. Default 16 MiB. If a body needs memory and there is none,
        /// the oldest bodies are rejected (408), but none that is younger than one second.
        pub unverified_bodies_bytes_max: usize = 16 << 20,
        /// Bytes of pages of events that are being sent. Default 64 MiB; further requests wait.
        pub pages_bytes_max: usize = 64 << 20,
        /// Bytes of the head of a request. Default 64 KiB, at least 8 KiB; a longer one is rejected
        /// (431).
        pub head_bytes_max: usize = 64 << 10,
        /// Bytes of a head if clients must log in, in place of `head_bytes_max`. Default 5 KiB,
        /// because the head is in memory before the client is identified; later heads of the
        /// connection may have 8 KiB.
        pub anonymous_head_bytes_max: usize = 5 << 10,
        /// Milliseconds that a head may take, and that a connection may stay open between two
        /// requests. Default 30,000; then the connection is closed.
        pub head_timeout_ms: u64 = 30_000,
        /// Milliseconds without a byte of a body. Default 10,000; then the request is rejected
        /// (408).
        pub body_idle_timeout_ms: u64 = 10_000,
        /// Milliseconds that a whole body may take. Default 120,000; then the request is rejected
        /// (408).
        pub body_timeout_ms: u64 = 120_000,
        /// The same for a body of a webhook or embedded handler. Default 10,000.
        pub unverified_body_timeout_ms: u64 = 10_000,
        /// Milliseconds in which a client reads nothing of a response. Default 30,000; then the
        /// connection is closed. A client of an event stream connects again and resumes.
        pub write_timeout_ms: u64 = 30_000,
        /// Milliseconds without an event after which a stream sends a keep-alive. Default 15,000.
        pub keep_alive_interval_ms: u64 = 15_000,
        /// The maximum of `wait=`, in milliseconds. Default 300,000.
        pub wait_ms_max: u64 = 300_000,
        /// Milliseconds that a publish waits while its topic applies back-pressure. Default 10,000;
        /// then it is rejected (503).
        pub backpressure_timeout_ms: u64 = 10_000,
        /// Milliseconds that a request waits until the change that it made to a topic or group is
        /// durable. Default 10,000; then the response (503) is that the outcome is not known yet.
        pub command_timeout_ms: u64 = 10_000,
        /// Whether browsers get the dashboard at `/`.
        pub dashboard: bool = true,
        /// Webhooks; their names are unique.
        pub hooks: Vec<Hook> = Vec::new(),
        /// Events per minute that all webhooks together may publish. Default 6,000, which is as
        /// much as a polite crawler fetches from a hundred hosts. Webhooks beyond it are rejected
        /// (429).
        pub hook_events_per_minute: u32 = 6_000,
        /// Handlers of other parts of the process. No path has two handlers.
        pub embedded_handlers: Vec<Arc<dyn EmbeddedHandler>> = Vec::new(),
    }
}
