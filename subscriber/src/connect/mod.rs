//! Connections: the one way out for every byte that is not for the broker.
//!
//! A name is resolved, its addresses are judged, and a connection is made to one of the very
//! addresses that were judged, so a name that resolves otherwise a moment later gains nothing. A
//! host that is written as an address is judged likewise. Every request goes this way, each hop of
//! a redirect too, since each is a request of its own.
//!
//! Behind a proxy ([`Proxy`]) the proxy connects. Its own address is the operator's choice and not judged. What is judged of
//! the target depends on the side that resolves names:
//!
//! | proxy | an address | a name |
//! |---|---|---|
//! | `http://` | is judged | is judged if it resolves here, too; else it is left to the proxy, which receives the name |
//! | `socks5://` | is judged | is resolved here and judged; the proxy receives an allowed address |
//! | `socks5h://` | is judged | is not resolved here, and only `localhost` is judged; the proxy receives the name |
//!
//! A proxy that resolves names itself has to keep its own rules.

#![expect(clippy::disallowed_methods, reason = "connections are bounded in time here")]

mod dial;
mod limit;
mod proxy;
mod resolve;
mod stream;
mod tls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidings_protocol::CanonicalUrl;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use self::dial::dial;
use self::limit::AddressLimits;
pub use self::limit::Permit;
use self::proxy::Kind;
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
    /// it resolves to. Behind a proxy that resolves names less is checked: see the module.
    pub async fn check(&self, target: &Target<'_>) -> Result<(), Failure> {
        let mut until = Instant::now() + self.timeout;
        self.allowed(target, &mut until).await.map(drop)
    }

    /// Resolves a name for a client that makes its own connections, to allowed addresses only. The name of the proxy
    /// is not checked.
    pub async fn resolve(&self, name: &str) -> Result<Vec<SocketAddr>, Failure> {
        let mut until = Instant::now() + self.timeout;
        let is_proxy =
            |proxy: &Proxy| proxy.kind() != Kind::Socks5 || proxy.host().eq_ignore_ascii_case(name);
        if self.proxy.as_ref().is_some_and(is_proxy) {
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
        let addresses = self.allowed(target, &mut until).await?;
        if let Some(proxy) = &self.proxy {
            return self.connect_through(proxy, target, &addresses, until).await;
        }
        let mut permit = None;
        if self.limits.is_some() {
            let waits_from = Instant::now();
            // The first one answers unless it is down.
            permit = self.permit(addresses[0].ip()).await?;
            until += waits_from.elapsed();
        }
        let (stream, address) =
            timeout_at(until, reach(&addresses)).await.map_err(|_| self.late())??;
        if self.limits.is_some() && address.ip() != addresses[0].ip() {
            // Given back first: who waits for another one holds none.
            drop(permit.take());
            let waits_from = Instant::now();
            permit = self.permit(address.ip()).await?;
            until += waits_from.elapsed();
        }
        let secured = timeout_at(until, self.secure(target, stream)).await;
        let (stream, protocol) = secured.map_err(|_| self.late())??;
        Ok(Connection { stream, remote: Some(address), protocol, permit })
    }

    /// The same by a proxy. One that receives addresses is asked for one after the other, until it reaches one.
    async fn connect_through(
        &self,
        proxy: &Proxy,
        target: &Target<'_>,
        addresses: &[SocketAddr],
        mut until: Instant,
    ) -> Result<Connection, Failure> {
        let found = match proxy.address() {
            Some(address) => vec![address],
            None => self.resolver.resolve(proxy.host(), &mut until).await?.to_vec(),
        };
        let place = |address| SocketAddr::new(address, proxy.port());
        let places: Vec<_> = found.into_iter().map(place).collect();
        let hosts = match proxy.kind() {
            Kind::Socks5 => addresses.iter().map(|address| written(address.ip())).collect(),
            Kind::Http | Kind::Socks5h => vec![target.host.to_owned()],
        };
        let led = async {
            let mut failure = None;
            for host in hosts {
                let mut stream = reach(&places).await?.0;
                if proxy.tunnels(target.tls) {
                    match proxy.tunnel(stream, &host, target.port).await {
                        Ok(tunnel) => stream = tunnel,
                        Err(error) => {
                            failure = Some(error);
                            continue;
                        }
                    }
                }
                return self.secure(target, stream).await;
            }
            Err(failure.expect("a name has one address or more"))
        };
        let (stream, protocol) = timeout_at(until, led).await.map_err(|_| self.late())??;
        Ok(Connection { stream, remote: None, protocol, permit: None })
    }

    /// The addresses of a target that may be asked: never empty, unless it is left to the proxy to find some.
    async fn allowed(
        &self,
        target: &Target<'_>,
        until: &mut Instant,
    ) -> Result<Vec<SocketAddr>, Failure> {
        match self.proxy.as_ref().map(Proxy::kind) {
            Some(Kind::Socks5h) if target.address.is_none() => {
                if is_localhost(target.host) {
                    self.allow_private.check(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
                }
                Ok(Vec::new())
            }
            Some(Kind::Http) => match self.judged(target, until).await {
                // What does not resolve here is left to the proxy.
                Err(failure) if failure.reason == Reason::Dns => Ok(Vec::new()),
                judged => judged,
            },
            _ => self.judged(target, until).await,
        }
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

    async fn secure(
        &self,
        target: &Target<'_>,
        stream: TcpStream,
    ) -> Result<(Stream, Protocol), Failure> {
        if !target.tls {
            return Ok((Stream::Plain(stream), Protocol::Http1));
        }
        self.tls.handshake(target.host, stream).await
    }

    fn late(&self) -> Failure {
        Failure::new(Reason::ConnectTimeout, format!("no connection within {:?}", self.timeout))
    }
}

/// Connects to one of these addresses.
async fn reach(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Failure> {
    let dialed = dial(addresses).await;
    let (stream, address) =
        dialed.map_err(|error| Failure::of(Reason::Connect, &error).within("cannot connect: "))?;
    // Requests are one write each; waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    Ok((stream, address))
}

/// As the host of a URL.
fn written(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Whether the name leads to the machine that resolves it (RFC 6761 section 6.3).
fn is_localhost(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}
