//! What the HTTP listener is told, and its limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::embedded_handlers::EmbeddedHandler;
use super::hooks::Hook;

/// The port of HTTP.
pub const HTTP_PORT: u16 = 12346;

/// The HTTP listener: where it is, who may mean it, and the limits of those who do.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where to listen. Port 0 takes a free one. Default `127.0.0.1:12346`.
    pub listen: SocketAddr,
    /// Names, besides addresses and `localhost`, under which it is meant: what the `Host` header of
    /// a request says. A page whose name was made to lead here (DNS rebinding) has another one.
    pub allowed_hosts: Vec<String>,
    /// Bytes of a body. Default 4 MiB; a longer one is refused (413).
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being received. Default 64 MiB; whoever comes then waits, as
    /// long as a body may take.
    pub bodies_bytes_max: usize,
    /// Bytes of the bodies of webhooks and notices that are being received, before it is known from
    /// whom. Default 16 MiB; if others find no room those are refused (408) that have been at it
    /// longest, and for a second at least.
    pub unverified_bodies_bytes_max: usize,
    /// Bytes of pages of events that are on their way to who asked for them. Default 64 MiB;
    /// whoever asks then waits.
    pub pages_bytes_max: usize,
    /// Bytes of the head of a request. Default 64 KiB, at least 8 KiB; a longer one is refused
    /// (431).
    pub head_bytes_max: usize,
    /// The same where one has to log in. Default 5 KiB: it is held before anybody knows for whom.
    pub anonymous_head_bytes_max: usize,
    /// Milliseconds that a head may take, and a connection may stay open between two requests.
    /// Default 30,000; then it is closed.
    pub head_timeout_ms: u64,
    /// Milliseconds that a body may be silent. Default 10,000; then the request is refused (408).
    pub body_idle_timeout_ms: u64,
    /// Milliseconds that a body may take in all. Default 120,000, as above.
    pub body_timeout_ms: u64,
    /// The same of a body of which it is not known yet from whom it is. Default 10,000.
    pub unverified_body_timeout_ms: u64,
    /// Milliseconds that a response may be taken no byte of. Default 30,000; then the connection is
    /// closed. Who listens to events comes back, and goes on where it was.
    pub write_timeout_ms: u64,
    /// Milliseconds of silence after which a stream of events says that it is there. Default
    /// 15,000.
    pub keep_alive_interval_ms: u64,
    /// Milliseconds that a request may wait for something to happen: `wait=`. Default 300,000.
    pub wait_ms_max: u64,
    /// Milliseconds that a publish waits while its topic has no room in memory. Default 10,000;
    /// then it is refused (503).
    pub backpressure_timeout_ms: u64,
    /// Milliseconds that a request waits for what it asked of a topic or a group to be safe on the
    /// disk. Default 10,000; then it is answered (503) that this is not known yet.
    pub command_timeout_ms: u64,
    /// Webhooks that are received; their names differ.
    pub hooks: Vec<Hook>,
    /// Events a minute that all webhooks together may publish. Default 6,000: what a hundred hosts
    /// are asked for politely meanwhile. At it they are refused (429).
    pub hook_events_per_minute: u32,
    /// Who else answers requests; no path is that of two.
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
