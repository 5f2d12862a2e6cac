//! The remote end of a connection: its address, and what the connection itself tells about it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address of a remote end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerAddr {
    /// Network or loopback.
    Tcp(SocketAddr),
    /// Unix socket, with the credentials of the connecting process, from the kernel.
    Unix {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Process id, if the kernel knows it.
        pid: Option<i32>,
    },
}

/// What the connection itself tells about its remote end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteInfo {
    pub(crate) peer: PeerAddr,
    /// The name in its client certificate, which an authority that the broker trusts has signed.
    pub(crate) certificate: Option<Box<str>>,
    pub(crate) is_encrypted: bool,
}

impl RemoteInfo {
    /// The remote end of a connection without TLS.
    pub(crate) fn unencrypted(peer: PeerAddr) -> Self {
        Self { peer, certificate: None, is_encrypted: false }
    }
}

impl PeerAddr {
    pub(crate) fn is_unix(self) -> bool {
        matches!(self, Self::Unix { .. })
    }

    /// The IP address; loopback for a unix socket.
    pub(crate) fn ip(self) -> IpAddr {
        self.network_ip().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// The IP address; `None` for a unix socket.
    pub(crate) fn network_ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix { .. } => None,
        }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix { uid, pid: Some(pid), .. } => write!(out, "unix:uid={uid},pid={pid}"),
            Self::Unix { uid, pid: None, .. } => write!(out, "unix:uid={uid}"),
        }
    }
}

impl fmt::Display for RemoteInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(out)?;
        match &self.certificate {
            // The characters of the name were checked when the certificate was read.
            Some(name) => write!(out, " ({name})"),
            None => Ok(()),
        }
    }
}
