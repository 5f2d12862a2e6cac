//! Why a broker did not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::tls::TlsError;

/// Why a broker did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another process listens there. Stop it, or choose another address.
    #[error("{address} is in use by another process")]
    AddrInUse {
        /// The configured address.
        address: SocketAddr,
    },
    /// The system does not allow it: an address of another machine, or a port that needs
    /// privileges.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The unix socket cannot be opened, for another reason than [`Self::UnixInUse`].
    #[error("cannot listen on {}: {source}", path.display())]
    Unix {
        /// The configured path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process listens on the unix socket.
    #[error("{} is in use by another process", path.display())]
    UnixInUse {
        /// The configured path.
        path: PathBuf,
    },
    /// The certificate, its key or the client authorities cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The audit file cannot be opened.
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit {
        /// The configured path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process uses the data directory. Stop it, or choose another directory.
    #[error("{} is in use by another tidings{}", path.display(), with_pid(*pid))]
    DataInUse {
        /// The directory.
        path: PathBuf,
        /// The id of that process, if it is known.
        pid: Option<u32>,
    },
    /// The data directory cannot be created, opened or locked.
    #[error("cannot use the data directory {}: {source}", path.display())]
    Data {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl StartError {
    pub(crate) fn listening(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddrInUse { address },
            _ => Self::Listen { address, source },
        }
    }
}

fn with_pid(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}
