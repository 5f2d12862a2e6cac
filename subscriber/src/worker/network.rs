//! Notices that this machine has lost its network, so that no page fails for that.
//!
//! A host that does not answer is mostly down itself. But if none of the servers that answered last
//! can be reached any more either, the network is away. Then the crawler returns its tasks without
//! counting an attempt, and takes no others until one of those servers can be reached.

#![expect(clippy::disallowed_methods, reason = "measures time, and connects to servers")]

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tidings_protocol::partial_debug;
use tokio::net::TcpStream;
use tokio::sync::{Mutex as Lock, watch};
use tokio::time::{Instant, sleep, timeout};

/// Servers that must be away at once. Fewer may be down at the same time by chance.
const SERVERS: usize = 3;
/// Time limit for a connection to one of them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The wait before the network is tried again. It doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// After this time, the servers count as down: the groups give up hosts that do not answer, so that
/// each job ends.
const AWAY_MAX: Duration = Duration::from_hours(3);

/// Reports whether a server can be reached.
type Reach = Box<dyn Fn(SocketAddr) -> BoxFuture<'static, bool> + Send + Sync>;

/// Whether the network of this machine is away.
pub(super) struct NetworkWatch {
    reach: Reach,
    servers: Mutex<KnownServers>,
    /// One task at a time tries the servers.
    check: Lock<()>,
    away: watch::Sender<bool>,
}

/// The servers that answered last.
#[derive(Debug, Default)]
struct KnownServers {
    /// Different addresses, the newest last; `<= SERVERS`.
    newest: VecDeque<SocketAddr>,
    /// When the last answer arrived, or one of them was reached.
    reached_at: Option<Instant>,
}

partial_debug!(NetworkWatch { servers });

impl Default for NetworkWatch {
    fn default() -> Self {
        Self::new(Box::new(|server| is_reachable(server).boxed()))
    }
}

impl NetworkWatch {
    fn new(reach: Reach) -> Self {
        Self {
            reach,
            servers: Mutex::default(),
            check: Lock::default(),
            away: watch::Sender::default(),
        }
    }

    /// A server has answered a request.
    pub(super) fn answered_by(&self, server: SocketAddr) {
        let mut servers = self.servers.lock();
        servers.reached_at = Some(Instant::now());
        if servers.newest.back() == Some(&server) {
            return;
        }
        servers.newest.retain(|other| other.ip() != server.ip());
        servers.newest.push_back(server);
        if servers.newest.len() > SERVERS {
            servers.newest.pop_front();
        }
    }

    /// Whether a request that began at `began` got no answer because the network is away.
    pub(super) async fn is_away(&self, began: Instant) -> bool {
        let _check = self.check.lock().await;
        if *self.away.borrow() {
            return true;
        }
        let servers = {
            let servers = self.servers.lock();
            if servers.reached_at.is_some_and(|at| at >= began) {
                return false;
            }
            servers.newest.clone()
        };
        if servers.len() < SERVERS || self.reaches_any(&servers).await {
            return false;
        }
        tracing::warn!(
            "the network of this machine is away: none of the last {SERVERS} servers can be reached; \
             no page is fetched until one can"
        );
        self.away.send_replace(true);
        true
    }

    async fn reaches_any(&self, servers: &VecDeque<SocketAddr>) -> bool {
        let reached = servers.iter().map(|server| (self.reach)(*server));
        let mut reached = reached.collect::<FuturesUnordered<_>>();
        while let Some(is_reached) = reached.next().await {
            if is_reached {
                self.servers.lock().reached_at = Some(Instant::now());
                return true;
            }
        }
        false
    }

    /// Waits until the network is away if `was_away` is false, or else until it is back or has been
    /// away for too long.
    pub(super) async fn change(&self, was_away: bool) {
        if !was_away {
            // The sender is part of `self`.
            let _ = self.away.subscribe().wait_for(|is_away| *is_away).await;
            return;
        }
        let (since, mut wait) = (Instant::now(), RETRY_MIN);
        let servers = self.servers.lock().newest.clone();
        loop {
            sleep(wait).await;
            if self.reaches_any(&servers).await {
                tracing::warn!("the network of this machine is back");
                break;
            }
            if since.elapsed() >= AWAY_MAX {
                tracing::warn!("the network of this machine was away for too long; pages fail now");
                self.servers.lock().newest.clear();
                break;
            }
            wait = (wait * 2).min(RETRY_MAX);
        }
        self.away.send_replace(false);
    }
}

/// Whether a server can be reached. One that refuses the connection has answered.
async fn is_reachable(server: SocketAddr) -> bool {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(server)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset)
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn server(number: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number], 80))
    }

    /// After answers of these servers, of which some can be reached after a while.
    fn watch_after(answers: &[u8], reachable: Option<u8>, after: Duration) -> NetworkWatch {
        let start = Instant::now();
        let is_reached = move |at| start.elapsed() >= after && reachable.map(server) == Some(at);
        let watch = NetworkWatch::new(Box::new(move |at| ready(is_reached(at)).boxed()));
        for number in answers {
            watch.answered_by(server(*number));
        }
        watch
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_is_away_if_none_of_the_last_servers_can_be_reached() {
        for (answers, reachable, expected) in [
            (vec![], None, false),
            (vec![1, 2, 1, 2], None, false),
            (vec![1, 2, 3], None, true),
            (vec![1, 2, 3], Some(2), false),
            (vec![1, 2, 3, 4], Some(1), true),
        ] {
            let watch = watch_after(&answers, reachable, Duration::ZERO);
            // A request that began before the last answer says nothing.
            assert!(!watch.is_away(Instant::now()).await);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(watch.is_away(Instant::now()).await, expected, "{answers:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_is_back_when_a_server_can_be_reached_or_after_hours() {
        for back_after in [Duration::from_mins(10), AWAY_MAX * 2] {
            let (watch, start) = (watch_after(&[1, 2, 3], Some(2), back_after), Instant::now());
            sleep(Duration::from_secs(1)).await;
            assert!(watch.is_away(Instant::now()).await);
            watch.change(false).await;
            watch.change(true).await;
            let end = back_after.min(AWAY_MAX);
            assert!(start.elapsed() >= end && start.elapsed() <= end + 2 * RETRY_MAX);
            sleep(Duration::from_secs(1)).await;
            assert!(!watch.is_away(Instant::now()).await);
        }
    }
}
