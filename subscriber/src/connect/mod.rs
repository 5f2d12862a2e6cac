//! Connections: the one way out for every byte that is not for the broker.
//!
//! A name is resolved, its addresses are judged, and a connection is made to one of the very
//! addresses that were judged, so a name that resolves otherwise a moment later gains nothing. A
//! host that is written as an address is judged likewise. Every request goes this way, each hop of
//! a redirect too, since each is a request of its own.
//!
//! Behind a proxy ([`Proxy`]) it is the proxy that resolves and connects. Its own address is the
//! operator's choice and not judged. Of the target, addresses are judged always; names if they
//! resolve here, too, and are left to the proxy if they do not. A proxy that resolves names
//! otherwise than this machine has to keep its own rules.

#![expect(clippy::disallowed_methods, reason = "connections are bounded in time here")]

mod dial;
mod limit;
mod proxy;
mod resolve;
mod stream;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use self::dial::dial;
use self::limit::AddressLimits;
pub use self::limit::Permit;
pub use self::proxy::{Proxy, ProxyError};
use self::resolve::Resolver;
pub use self::resolve::{Lookup, SystemLookup};
pub use self::stream::Stream;
use self::tls::Tls;
pub use self::tls::system_roots;
use crate::address::AllowPrivate;
use crate::config::CrawlerConfig;
use crate::outcome::{Failure, Reason};

/// Makes connections.
#[derive(Debug)]
pub struct Connector {
    allow_private: AllowPrivate,
    resolver: Resolver,
    tls: Tls,
    proxy: Option<Proxy>,
    limits: Option<AddressLimits>,
    /// For all of it but waiting for a permit.
    timeout: Duration,
}

/// Who is to be connected to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A name, or an address; one of IPv6 in its brackets.
    host: &'a str,
    /// The host if it is an address.
    address: Option<IpAddr>,
    port: u16,
    tls: bool,
}

/// Stands, and has carried nothing yet.
#[derive(Debug)]
pub struct Connection {
    /// The bytes, after TLS.
    pub stream: Stream,
    /// Who is at its other end; `None` behind a proxy.
    pub remote: Option<SocketAddr>,
    /// What the handshake agreed on.
    pub protocol: Protocol,
    /// Of the limit per address; the request holds it until it is over.
    pub permit: Option<Permit>,
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Also where nothing was agreed on.
    Http1,
    /// By ALPN.
    Http2,
}

impl<'a> Target<'a> {
    /// The server of a URL.
    pub fn of(url: &'a CanonicalUrl<'_>) -> Self {
        let (host, address) = (url.host(), url.address());
        Self { host, address, port: url.port(), tls: url.scheme() == "https" }
    }
}

impl Connector {
    /// With the system's resolver and certificates.
    pub fn new(config: &CrawlerConfig) -> Result<Self, ProxyError> {
        Self::with(config, Arc::new(SystemLookup), system_roots())
    }

    /// With another resolver and other certificates.
    pub fn with(
        config: &CrawlerConfig,
        lookup: Arc<dyn Lookup>,
        roots: rustls::RootCertStore,
    ) -> Result<Self, ProxyError> {
        Ok(Self {
            allow_private: config.allow_private.clone(),
            resolver: Resolver::new(lookup),
            tls: Tls::new(roots),
            proxy: config.proxy.as_deref().map(str::parse).transpose()?,
            limits: config.per_address.map(AddressLimits::new),
            timeout: config.connect_timeout,
        })
    }

    /// The proxy that all of this goes through.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// How TLS is spoken, for a client that makes its own connections.
    pub fn tls_config(&self) -> rustls::ClientConfig {
        self.tls.config()
    }

    /// The time that a connection may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Checks a target before a request is sent to it: an address is checked as it is, a name by the addresses that
    /// it resolves to. Behind a proxy a name that does not resolve here passes.
    pub async fn check(&self, target: &Target<'_>) -> Result<(), Failure> {
        let mut until = Instant::now() + self.timeout;
        match self.judged(target, &mut until).await {
            Err(failure) if self.proxy.is_none() || failure.reason != Reason::Dns => Err(failure),
            _ => Ok(()),
        }
    }

    /// Resolves a name for a client that makes its own connections, to allowed addresses only. Behind a proxy the
    /// only such name is the proxy's, which is not checked.
    pub async fn resolve(&self, name: &str) -> Result<Vec<SocketAddr>, Failure> {
        let mut until = Instant::now() + self.timeout;
        if self.proxy.is_some() {
            let found = self.resolver.resolve(name, &mut until).await?;
            return Ok(found.iter().map(|address| SocketAddr::new(*address, 0)).collect());
        }
        let target = Target { host: name, address: None, port: 0, tls: false };
        self.judged(&target, &mut until).await
    }

    /// Checks the address at the other end of a connection that a client has made itself. Behind a proxy it is the
    /// proxy's, which is not checked.
    pub fn check_connected(&self, address: IpAddr) -> Result<(), Failure> {
        if self.proxy.is_some() {
            return Ok(());
        }
        Ok(self.allow_private.check(address)?)
    }

    /// Waits until another request to this address may begin, as long as the connect timeout. `None`
    /// if there is no limit.
    pub async fn permit(&self, address: IpAddr) -> Result<Option<Permit>, Failure> {
        let Some(limits) = &self.limits else { return Ok(None) };
        timeout(self.timeout, limits.permit(address)).await.map(Some).map_err(|_| {
            let text = format!("other requests to {address} took longer than {:?}", self.timeout);
            Failure::new(Reason::Busy, text)
        })
    }

    /// Resolves, judges and connects, as long as the connect timeout; as long again it may wait for other look-ups, and
    /// for a permit. Dropping the future ends it.
    pub async fn connect(&self, target: &Target<'_>) -> Result<Connection, Failure> {
        let mut until = Instant::now() + self.timeout;
        let addresses = self.addresses(target, &mut until).await?;
        let is_limited = self.limits.is_some() && self.proxy.is_none();
        let mut permit = None;
        if is_limited {
            let waits_from = Instant::now();
            // The first one answers unless it is down.
            permit = self.permit(addresses[0].ip()).await?;
            until += waits_from.elapsed();
        }
        let dialed = timeout_at(until, dial(&addresses)).await.map_err(|_| self.late())?;
        let (stream, address) = dialed
            .map_err(|error| Failure::of(Reason::Connect, &error).within("cannot connect: "))?;
        if is_limited && address.ip() != addresses[0].ip() {
            // Given back first: who waits for another one holds none.
            drop(permit.take());
            let waits_from = Instant::now();
            permit = self.permit(address.ip()).await?;
            until += waits_from.elapsed();
        }
        let established = timeout_at(until, self.establish(target, stream)).await;
        let (stream, protocol) = established.map_err(|_| self.late())??;
        let remote = self.proxy.is_none().then_some(address);
        Ok(Connection { stream, remote, protocol, permit })
    }

    /// Where to connect to: never empty, and everything in it may be asked.
    async fn addresses(
        &self,
        target: &Target<'_>,
        until: &mut Instant,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let judged = self.judged(target, until).await;
        let Some(proxy) = &self.proxy else { return judged };
        // What does not resolve here is left to the proxy.
        if let Err(failure) = judged
            && failure.reason != Reason::Dns
        {
            return Err(failure);
        }
        let found = match proxy.address() {
            Some(address) => vec![address],
            None => self.resolver.resolve(proxy.host(), until).await?.to_vec(),
        };
        Ok(found.into_iter().map(|address| SocketAddr::new(address, proxy.port())).collect())
    }

    async fn judged(
        &self,
        target: &Target<'_>,
        until: &mut Instant,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let port = target.port;
        if let Some(address) = target.address {
            self.allow_private.check(address)?;
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut refused = None;
        let mut allowed = Vec::new();
        for &address in &*self.resolver.resolve(target.host, until).await? {
            match self.allow_private.check(address) {
                Ok(()) => allowed.push(SocketAddr::new(address, port)),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(refused) if allowed.is_empty() => Err(refused.into()),
            _ => Ok(allowed),
        }
    }

    async fn establish(
        &self,
        target: &Target<'_>,
        mut stream: TcpStream,
    ) -> Result<(Stream, Protocol), Failure> {
        // Requests are one write each; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        if !target.tls {
            return Ok((Stream::Plain(stream), Protocol::Http1));
        }
        if let Some(proxy) = &self.proxy {
            proxy.tunnel(&mut stream, target.host, target.port).await?;
        }
        self.tls.handshake(target.host, stream).await
    }

    fn late(&self) -> Failure {
        Failure::new(Reason::ConnectTimeout, format!("no connection within {:?}", self.timeout))
    }
}
