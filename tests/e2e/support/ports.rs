//! Ports for servers that are started later, or again at the same address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range of outgoing connections (from 32768 on, ip(7)), so that none of the many
/// connections of other tests takes the port before a server listens, or while it is restarted.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 that is free now, and that this test run returns only once.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Test runs that share a machine begin at different ports.
    let start = process::id().wrapping_mul(997);
    loop {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(taken < COUNT, "no port is free from {FIRST} on");
        let offset = start.wrapping_add(taken.into()) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// 127.0.0.1 with a [`free_port`].
pub(crate) fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}
