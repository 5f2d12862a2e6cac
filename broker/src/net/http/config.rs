//! Settings and limits of the HTTP listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::embedded_handlers::EmbeddedHandler;
use super::hooks::Hook;

/// The default port of HTTP.
pub const HTTP_PORT: u16 = 12346;

/// Settings of the HTTP listener: its address, its host names, and the limits of requests.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address to listen on. With port 0 the system chooses a free one. Default `127.0.0.1:12346`.
    pub listen: SocketAddr,
    /// Names that a `Host` header may contain. Addresses and `localhost` are always allowed. A page
    /// that points its own name at this machine (DNS rebinding) sends another name and is rejected.
    pub allowed_hosts: Vec<String>,
    /// Bytes of a body. Default 4 MiB; a longer one is rejected (413).
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being received. Default 64 MiB; further bodies wait, up to the
    /// timeout of a body.
    pub bodies_bytes_max: usize,
    /// Bytes of the bodies of webhooks and embedded handlers that are being received; their senders
    /// are not verified yet. Default 16 MiB. If a body needs memory and there is none, the oldest
    /// bodies are rejected (408), but none that is younger than one second.
    pub unverified_bodies_bytes_max: usize,
    /// Bytes of pages of events that are being sent. Default 64 MiB; further requests wait.
    pub pages_bytes_max: usize,
    /// Bytes of the head of a request. Default 64 KiB, at least 8 KiB; a longer one is rejected
    /// (431).
    pub head_bytes_max: usize,
    /// Bytes of a head if clients must log in, in place of `head_bytes_max`. Default 5 KiB, because
    /// the head is in memory before the client is identified; later heads of the connection may have
    /// 8 KiB.
    pub anonymous_head_bytes_max: usize,
    /// Milliseconds that a head may take, and that a connection may stay open between two requests.
    /// Default 30,000; then the connection is closed.
    pub head_timeout_ms: u64,
    /// Milliseconds without a byte of a body. Default 10,000; then the request is rejected (408).
    pub body_idle_timeout_ms: u64,
    /// Milliseconds that a whole body may take. Default 120,000; then the request is rejected
    /// (408).
    pub body_timeout_ms: u64,
    /// The same for a body of a webhook or embedded handler. Default 10,000.
    pub unverified_body_timeout_ms: u64,
    /// Milliseconds in which a client reads nothing of a response. Default 30,000; then the
    /// connection is closed. A client of an event stream connects again and resumes.
    pub write_timeout_ms: u64,
    /// Milliseconds without an event after which a stream sends a keep-alive. Default 15,000.
    pub keep_alive_interval_ms: u64,
    /// The maximum of `wait=`, in milliseconds. Default 300,000.
    pub wait_ms_max: u64,
    /// Milliseconds that a publish waits while its topic applies back-pressure. Default 10,000;
    /// then it is rejected (503).
    pub backpressure_timeout_ms: u64,
    /// Milliseconds that a request waits until the change that it made to a topic or group is
    /// durable. Default 10,000; then the response (503) is that the outcome is not known yet.
    pub command_timeout_ms: u64,
    /// Webhooks; their names are unique.
    pub hooks: Vec<Hook>,
    /// Events per minute that all webhooks together may publish. Default 6,000, which is as much as
    /// a polite crawler fetches from a hundred hosts. Webhooks beyond it are rejected (429).
    pub hook_events_per_minute: u32,
    /// Handlers of other parts of the process. No path has two handlers.
    pub embedded_handlers: Vec<Arc<dyn EmbeddedHandler>>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT)),
            allowed_hosts: Vec::new(),
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 64 << 20,
            unverified_bodies_bytes_max: 16 << 20,
            pages_bytes_max: 64 << 20,
            head_bytes_max: 64 << 10,
            anonymous_head_bytes_max: 5 << 10,
            head_timeout_ms: 30_000,
            body_idle_timeout_ms: 10_000,
            body_timeout_ms: 120_000,
            unverified_body_timeout_ms: 10_000,
            write_timeout_ms: 30_000,
            keep_alive_interval_ms: 15_000,
            wait_ms_max: 300_000,
            backpressure_timeout_ms: 10_000,
            command_timeout_ms: 10_000,
            hooks: Vec::new(),
            hook_events_per_minute: 6_000,
            embedded_handlers: Vec::new(),
        }
    }
}
