//! Finds and ends the connections of a listening socket by means of the kernel.
//!
//! The library that accepts the connections has no handle for them. The kernel lists the
//! connections to a port with their unacknowledged bytes, and lets a process duplicate the
//! descriptors of its own sockets.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::Shutdown;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::zmq::limits::CONNECTIONS_MAX;

/// Least number of unacknowledged bytes of a slow reader.
const SLOW_READER_BYTES_MIN: u64 = 64 * 1024;

/// The connections to this address.
#[derive(Debug)]
pub(super) struct PeerConnections {
    pub(super) local_address: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerConnection {
    /// The kernel's number of the socket. Newer sockets have higher numbers.
    inode: u64,
    /// Bytes that were sent and not acknowledged.
    unacknowledged_bytes: u64,
}

impl PeerConnections {
    /// Connections with a peer that does not read: at least half as many bytes wait for it as for
    /// the slowest one. That one stands in for the limit of the kernel, which is not known.
    pub(super) fn slow_readers(&self) -> io::Result<Vec<PeerConnection>> {
        let mut peers = self.list()?;
        let max_bytes = peers.iter().map(|peer| peer.unacknowledged_bytes).max().unwrap_or(0);
        peers.retain(|peer| {
            peer.unacknowledged_bytes >= SLOW_READER_BYTES_MIN
                && peer.unacknowledged_bytes >= max_bytes / 2
        });
        Ok(peers)
    }

    /// Ends the newest connections above the limit. Returns their number.
    pub(super) fn disconnect_excess(&self) -> io::Result<u64> {
        let mut peers = self.list()?;
        peers.sort_unstable_by_key(|peer| peer.inode);
        let excess = peers.get(CONNECTIONS_MAX..).unwrap_or_default();
        Self::disconnect(excess)?;
        Ok(excess.len() as u64)
    }

    /// Ends connections and discards what waits for them.
    pub(super) fn disconnect(peers: &[PeerConnection]) -> io::Result<()> {
        if peers.is_empty() {
            return Ok(());
        }
        let descriptors = own_sockets()?;
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        for peer in peers {
            // The connection may have ended.
            let Some(&descriptor) = descriptors.get(&peer.inode) else { continue };
            let socket: OwnedFd = match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty())
            {
                Ok(socket) => socket,
                Err(rustix::io::Errno::BADF) => continue,
                Err(error) => return Err(error.into()),
            };
            // The error means that the connection has ended, which is the goal.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<PeerConnection>> {
        let mut peers = Vec::new();
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            let file = match fs::File::open(table) {
                Ok(file) => file,
                // The system does not support this IP version.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for line in BufReader::new(file).lines().skip(1) {
                peers.extend(parse_connection(&line?, self.local_address.port()));
            }
        }
        Ok(peers)
    }
}

/// Parses a line of the kernel's table. `None`: not an open connection to this port.
fn parse_connection(line: &str, port: u16) -> Option<PeerConnection> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (_, local) = fields.next()?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    let (unread, _) = fields.next()?.split_once(':')?;
    let inode = fields.nth(4)?.parse().ok()?;
    // Established, or closed only by the peer.
    let is_open = matches!(state, "01" | "08");
    if !is_open || u16::from_str_radix(local, 16).ok()? != port {
        return None;
    }
    Some(PeerConnection { inode, unacknowledged_bytes: u64::from_str_radix(unread, 16).ok()? })
}

/// The sockets of this process: inode and descriptor.
fn own_sockets() -> io::Result<HashMap<u64, i32>> {
    let mut sockets = HashMap::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let name = entry.file_name();
        let descriptor = name.to_str().and_then(|name| name.parse::<i32>().ok());
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let inode = target.to_str().and_then(|target| {
            target.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
        });
        sockets.extend(inode.zip(descriptor));
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn lines_of_the_kernel_table_are_parsed() {
        let line = "   7: 0100007F:303B 0100007F:D2A4 01 0003FF10:00000000 01:00000014 00000000     0        0 917 2 0 20 4 30 10 -1";
        assert_eq!(
            parse_connection(line, 12_347),
            Some(PeerConnection { inode: 917, unacknowledged_bytes: 0x3_ff10 })
        );
        assert_eq!(parse_connection(line, 12_348), None);
        assert_eq!(
            parse_connection(&line.replace(" 01 0003", " 0A 0003"), 12_347),
            None,
            "a listening socket"
        );
        assert_eq!(parse_connection("", 1), None);
    }

    #[test]
    fn slow_readers_are_disconnected_and_others_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peers = PeerConnections { local_address: listener.local_addr().unwrap() };
        let mut slow = TcpStream::connect(peers.local_address).unwrap();
        let mut to_slow = listener.accept().unwrap().0;
        let mut other = TcpStream::connect(peers.local_address).unwrap();
        let mut to_other = listener.accept().unwrap().0;
        assert_eq!(peers.slow_readers().unwrap(), []);
        to_slow.set_nonblocking(true).unwrap();
        while to_slow.write(&[0; 4096]).is_ok() {}
        let found = peers.slow_readers().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        PeerConnections::disconnect(&found).unwrap();
        // The peer reads what was sent before, and then the end.
        slow.read_to_end(&mut Vec::new()).unwrap();
        to_other.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
        assert_eq!(peers.disconnect_excess().unwrap(), 0);
    }
}
