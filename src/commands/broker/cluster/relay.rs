//! Connections that a standby passes to the leader, as they are.
//!
//! ```text
//!   client ──▶ standby ── preamble, then all bytes ──▶ leader
//! ```
//!
//! The preamble names the client, whose address decides what it may do without login. So it is signed
//! with a key that only brokers of the community have:
//!
//! | bytes | |
//! |---|---|
//! | 1 | length of the text |
//! | 1 to 255 | `line ADDRESS` or `http ADDRESS` |
//! | 32 | keyed BLAKE3 of the text |
//!
//! The leader answers one byte, [`TAKEN`]. Until then another try, perhaps at another leader, is without
//! effect. Neither end reads the bytes behind it: TLS is between client and leader.

#![expect(clippy::disallowed_methods, reason = "a connection has time limits")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_cluster::CommunityId;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

/// How long a client waits until a broker leads.
const NO_LEADER_MAX: Duration = Duration::from_secs(30);

/// How long a connection or a preamble may take.
const STEP_MAX: Duration = Duration::from_secs(5);

const AGAIN: Duration = Duration::from_millis(100);

/// Connections that are passed on at once.
const RELAYED_MAX: usize = 16_384;

/// Connections whose preamble is awaited.
const UNSIGNED_MAX: usize = 1_024;

const SIGNATURE_BYTES: usize = 32;

/// The broker of the leader has the connection.
const TAKEN: u8 = b'+';

/// What a client has connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Line,
    Http,
}

impl Service {
    const ALL: [Self; 2] = [Self::Line, Self::Http];

    fn as_str(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Http => "http",
        }
    }
}

/// The key of the preambles of a community.
#[derive(Clone, Copy)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn of(CommunityId(id): CommunityId) -> Self {
        Self(blake3::derive_key("tidings 2026-12 preambles of relayed connections", &id))
    }

    fn preamble(self, service: Service, client: SocketAddr) -> Vec<u8> {
        let text = format!("{} {client}", service.as_str());
        let length = u8::try_from(text.len()).expect("an address is short");
        let signature = blake3::keyed_hash(&self.0, text.as_bytes());
        [&[length], text.as_bytes(), signature.as_bytes()].concat()
    }

    /// What the text of a preamble says, if its signature is right.
    fn open(self, text: &[u8], signature: [u8; SIGNATURE_BYTES]) -> Option<(Service, SocketAddr)> {
        // Takes the same time for all wrong signatures.
        if blake3::keyed_hash(&self.0, text) != signature {
            return None;
        }
        let (service, client) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let service = Service::ALL.into_iter().find(|it| it.as_str() == service)?;
        Some((service, client.parse().ok()?))
    }
}

/// The address of the leader, if there is one.
pub(super) type LeaderAddress = watch::Receiver<Option<SocketAddr>>;

/// Passes the connections of a listener to the leader, for ever.
pub(super) async fn pass_on(
    listener: TcpListener,
    service: Service,
    key: Key,
    leader: LeaderAddress,
) {
    let free = Arc::new(Semaphore::new(RELAYED_MAX));
    loop {
        // What is too much waits in the queue of the kernel.
        let permit = Arc::clone(&free).acquire_owned().await;
        match listener.accept().await {
            Ok((client, address)) => {
                let (preamble, leader) = (key.preamble(service, address), leader.clone());
                tokio::spawn(async move {
                    if let Err(error) = pass(client, &preamble, leader).await {
                        tracing::debug!(%address, %error, "a relayed connection has ended");
                    }
                    drop(permit);
                });
            }
            Err(_) => sleep(AGAIN).await,
        }
    }
}

async fn pass(mut client: TcpStream, preamble: &[u8], mut leader: LeaderAddress) -> io::Result<()> {
    client.set_nodelay(true)?;
    let taken = async {
        loop {
            let Ok(Some(address)) = leader.wait_for(Option::is_some).await.map(|it| *it) else {
                return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
            };
            match timeout(STEP_MAX, hand_over(address, preamble)).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                // It has just died, or its machine has, or another one leads.
                Ok(Err(_)) | Err(_) => sleep(AGAIN).await,
            }
        }
    };
    let (mut stream, address) = timeout(NO_LEADER_MAX, taken).await??;
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut stream) => copied.map(drop),
        // The one before may be paused, and end nothing.
        _ = leader.wait_for(|other| other.is_some_and(|other| other != address)) => Ok(()),
    }
}

async fn hand_over(leader: SocketAddr, preamble: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(leader).await?;
    stream.set_nodelay(true)?;
    stream.write_all(preamble).await?;
    if stream.read_u8().await? == TAKEN {
        Ok(stream)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Where a leader takes connections: those for lines, and those for HTTP if it is on.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) lines: mpsc::Sender<(TcpStream, SocketAddr)>,
    pub(super) http: Option<mpsc::Sender<(TcpStream, SocketAddr)>>,
}

/// Takes connections from other brokers, for ever. Without an entry they are closed: this broker does
/// not lead.
pub(super) async fn take_in(listener: TcpListener, key: Key, entry: Arc<Mutex<Option<Entry>>>) {
    let free = Arc::new(Semaphore::new(UNSIGNED_MAX));
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        let Ok((stream, relay)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        let entry = Arc::clone(&entry);
        tokio::spawn(async move {
            let admitted = timeout(STEP_MAX, admit(stream, key)).await;
            drop(permit);
            let Ok(Ok((mut stream, service, client))) = admitted else {
                tracing::warn!(%relay, "a connection for brokers has no valid preamble");
                return;
            };
            let Some(Entry { lines, http }) = entry.lock().clone() else { return };
            let to = match service {
                Service::Line => Some(lines),
                Service::Http => http,
            };
            if let Some(to) = to
                && let Ok(place) = to.reserve().await
                && stream.write_u8(TAKEN).await.is_ok()
            {
                place.send((stream, client));
            }
        });
    }
}

async fn admit(mut stream: TcpStream, key: Key) -> io::Result<(TcpStream, Service, SocketAddr)> {
    let mut text = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut text).await?;
    let mut signature = [0; SIGNATURE_BYTES];
    stream.read_exact(&mut signature).await?;
    let (service, client) = key.open(&text, signature).ok_or(io::ErrorKind::PermissionDenied)?;
    Ok((stream, service, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_of_the_community_opens_a_preamble() {
        let key = Key::of(CommunityId([1; 16]));
        let client = "[2001:db8::1]:5".parse().unwrap();
        let bytes = key.preamble(Service::Http, client);
        let (text, signature) = bytes[1..].split_at(bytes[0].into());
        let mut signature: [u8; 32] = signature.try_into().unwrap();
        assert_eq!(key.open(text, signature), Some((Service::Http, client)));
        let other = Key::of(CommunityId([2; 16]));
        assert_eq!(other.open(text, signature), None);
        assert_eq!(key.open(b"line 127.0.0.1:5", signature), None);
        signature[31] ^= 1;
        assert_eq!(key.open(text, signature), None);
    }
}
