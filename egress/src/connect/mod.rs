//! Makes all connections except those to the broker.
//!
//! A name is resolved, its addresses are checked, and the connection goes to one of these checked
//! addresses. So a name that resolves differently a moment later gains nothing. A host that is
//! written as an address is checked likewise. Each hop of a redirect is a request of its own, and
//! takes the same way.
//!
//! Behind a proxy ([`Proxy`]) the proxy connects. Its own address is the operator's choice and is
//! not checked. Which checks apply to the target depends on the side that resolves names:
//!
//! | proxy | address | name |
//! |---|---|---|
//! | `http://` | is checked | is checked if it resolves here, too; otherwise the proxy receives it unchecked |
//! | `socks5://` | is checked | is resolved here and checked; the proxy receives an allowed address |
//! | `socks5h://` | is checked | is not resolved here, and only `localhost` is checked; the proxy receives the name |
//!
//! A proxy that resolves names must enforce its own rules.

#![expect(clippy::disallowed_methods, reason = "connections have a time limit")]

mod address_limits;
mod dial;
mod proxy;
mod resolve;
mod tls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidings_protocol::{CanonicalUrl, with_defaults};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use self::address_limits::AddressLimits;
pub use self::address_limits::AddressPermit;
use self::dial::dial;
use self::proxy::ProxyKind;
pub use self::proxy::{Proxy, ProxyError};
use self::resolve::Resolver;
pub use self::resolve::{Lookup, SystemLookup};
use self::tls::TlsClient;
pub use self::tls::{client_config, system_roots};
use crate::address::AllowPrivate;
use crate::failure::{Failure, Reason};

/// Makes connections.
#[derive(Debug)]
pub struct Connector {
    allow_private: AllowPrivate,
    resolver: Resolver,
    tls: TlsClient,
    proxy: Option<Proxy>,
    address_limits: Option<AddressLimits>,
    /// Limit for everything except waiting for a permit.
    timeout: Duration,
}

/// The server to connect to.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTarget<'a> {
    /// A name, or an address; IPv6 in brackets.
    host: &'a str,
    /// The host, if it is an address.
    address: Option<IpAddr>,
    port: u16,
    tls: bool,
}

/// The byte stream of a connection, without or with TLS. TLS is boxed because it is large.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A new connection that has not carried any HTTP yet.
#[derive(Debug)]
pub struct Connection {
    /// The byte stream, inside TLS if that is used.
    pub stream: Stream,
    /// The address of the server; `None` behind a proxy.
    pub remote: Option<SocketAddr>,
    /// The protocol that the handshake negotiated.
    pub protocol: HttpProtocol,
    /// The permit for the address; the request keeps it until its end.
    pub permit: Option<AddressPermit>,
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpProtocol {
    /// HTTP/1.1, also where nothing was negotiated.
    Http1,
    /// Negotiated by ALPN.
    Http2,
}

impl<'a> ConnectTarget<'a> {
    /// The server of a URL.
    pub fn of(url: &'a CanonicalUrl<'_>) -> Self {
        let (host, address) = (url.host(), url.address());
        Self { host, address, port: url.port(), tls: url.scheme() == "https" }
    }
}

with_defaults! {
    /// Which connections may be made, and how.
    #[derive(Clone, Debug)]
    pub struct ConnectConfig {
        /// Addresses outside the public internet that may be crawled anyway. Default: none.
        pub allow_private: AllowPrivate = AllowPrivate::None,
        /// Time limit for a connection, name resolution and TLS included. Default: 10 s.
        pub timeout: Duration = Duration::from_secs(10),
        /// The proxy for all requests: `http://[user:password@]host:port`. Default: none.
        pub proxy: Option<String> = None,
        /// Requests at once to one address, under any host name. Default: no limit.
        pub per_address: Option<u32> = None,
    }
}

impl Connector {
    /// With the resolver and the certificates of the system.
    pub fn new(config: &ConnectConfig) -> Result<Self, ProxyError> {
        Self::with(config, Arc::new(SystemLookup), system_roots())
    }

    /// With this resolver and these certificates.
    pub fn with(
        config: &ConnectConfig,
        lookup: Arc<dyn Lookup>,
        roots: rustls::RootCertStore,
    ) -> Result<Self, ProxyError> {
        Ok(Self {
            allow_private: config.allow_private.clone(),
            resolver: Resolver::new(lookup),
            tls: TlsClient::new(roots),
            proxy: config.proxy.as_deref().map(str::parse).transpose()?,
            address_limits: config.per_address.map(AddressLimits::new),
            timeout: config.timeout,
        })
    }

    /// The proxy for all connections.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The TLS settings, for a client that makes its own connections.
    pub fn tls_config(&self) -> rustls::ClientConfig {
        self.tls.config()
    }

    /// Time limit of a connection.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Checks a target before a request: an address directly, a name by the addresses that it
    /// resolves to. Behind a proxy that resolves names, fewer checks are possible; see the module.
    pub async fn check(&self, target: &ConnectTarget<'_>) -> Result<(), Failure> {
        let mut until = Instant::now() + self.timeout;
        self.check_target(target, &mut until).await.map(drop)
    }

    /// Resolves a name for a client that makes its own connections. Returns allowed addresses only.
    /// The name of the proxy is not checked.
    pub async fn resolve(&self, name: &str) -> Result<Vec<SocketAddr>, Failure> {
        let mut until = Instant::now() + self.timeout;
        let is_proxy = |proxy: &Proxy| {
            proxy.kind != ProxyKind::Socks5 || proxy.host().eq_ignore_ascii_case(name)
        };
        if self.proxy.as_ref().is_some_and(is_proxy) {
            let found = self.resolver.resolve(name, &mut until).await?;
            return Ok(found.iter().map(|address| SocketAddr::new(*address, 0)).collect());
        }
        let target = ConnectTarget { host: name, address: None, port: 0, tls: false };
        self.resolve_allowed(&target, &mut until).await
    }

    /// Checks the remote address of a connection that a client has made itself. Behind a proxy that
    /// address is the proxy's, which is not checked.
    pub fn check_connected(&self, address: IpAddr) -> Result<(), Failure> {
        if self.proxy.is_some() {
            return Ok(());
        }
        Ok(self.allow_private.check(address)?)
    }

    /// Waits until another request to this address may begin, up to the connect timeout. `None`
    /// without a limit.
    pub async fn permit(&self, address: IpAddr) -> Result<Option<AddressPermit>, Failure> {
        let Some(limits) = &self.address_limits else { return Ok(None) };
        timeout(self.timeout, limits.permit(address)).await.map(Some).map_err(|_| {
            let text = format!("other requests to {address} took longer than {:?}", self.timeout);
            Failure::new(Reason::Busy, text)
        })
    }

    /// Like `permit`, and extends `until` by the time of waiting.
    async fn permit_extending(
        &self,
        address: IpAddr,
        until: &mut Instant,
    ) -> Result<Option<AddressPermit>, Failure> {
        let waiting_since = Instant::now();
        let permit = self.permit(address).await?;
        *until += waiting_since.elapsed();
        Ok(permit)
    }

    /// Resolves, checks and connects within the connect timeout. Waiting for other lookups and for
    /// a permit extends it, each by at most the same time. Dropping the future cancels the
    /// connection.
    pub async fn connect(&self, target: &ConnectTarget<'_>) -> Result<Connection, Failure> {
        let mut until = Instant::now() + self.timeout;
        let addresses = self.check_target(target, &mut until).await?;
        if let Some(proxy) = &self.proxy {
            return self.connect_through(proxy, target, &addresses, until).await;
        }
        // The first address answers unless it is down.
        let mut permit = self.permit_extending(addresses[0].ip(), &mut until).await?;
        let (stream, address) = timeout_at(until, connect_any(&addresses))
            .await
            .map_err(|_| self.connect_timeout_failure())??;
        if permit.is_some() && address.ip() != addresses[0].ip() {
            // The old permit is dropped first, so that no request holds one while it waits for
            // another.
            drop(permit.take());
            permit = self.permit_extending(address.ip(), &mut until).await?;
        }
        let secured = timeout_at(until, self.secure(target, stream)).await;
        let (stream, protocol) = secured.map_err(|_| self.connect_timeout_failure())??;
        Ok(Connection { stream, remote: Some(address), protocol, permit })
    }

    /// Connects through a proxy. A proxy that receives addresses is tried with one after the other,
    /// until one works.
    async fn connect_through(
        &self,
        proxy: &Proxy,
        target: &ConnectTarget<'_>,
        addresses: &[SocketAddr],
        mut until: Instant,
    ) -> Result<Connection, Failure> {
        let found = match proxy.address() {
            Some(address) => vec![address],
            None => self.resolver.resolve(proxy.host(), &mut until).await?.to_vec(),
        };
        let with_port = |address| SocketAddr::new(address, proxy.port);
        let proxy_addresses: Vec<_> = found.into_iter().map(with_port).collect();
        let hosts = match proxy.kind {
            ProxyKind::Socks5 => addresses.iter().map(|address| url_host(address.ip())).collect(),
            ProxyKind::Http | ProxyKind::Socks5h => vec![target.host.to_owned()],
        };
        let connecting = async {
            let mut failure = None;
            for host in hosts {
                let mut stream = connect_any(&proxy_addresses).await?.0;
                if proxy.needs_tunnel(target.tls) {
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
        let (stream, protocol) =
            timeout_at(until, connecting).await.map_err(|_| self.connect_timeout_failure())??;
        Ok(Connection { stream, remote: None, protocol, permit: None })
    }

    /// The allowed addresses of a target. Empty only if the proxy resolves the name.
    async fn check_target(
        &self,
        target: &ConnectTarget<'_>,
        until: &mut Instant,
    ) -> Result<Vec<SocketAddr>, Failure> {
        match self.proxy.as_ref().map(|proxy| proxy.kind) {
            Some(ProxyKind::Socks5h) if target.address.is_none() => {
                if is_localhost(target.host) {
                    self.allow_private.check(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
                }
                Ok(Vec::new())
            }
            Some(ProxyKind::Http) => match self.resolve_allowed(target, until).await {
                // The proxy may be able to resolve a name that does not resolve here.
                Err(failure) if failure.reason == Reason::Dns => Ok(Vec::new()),
                judged => judged,
            },
            _ => self.resolve_allowed(target, until).await,
        }
    }

    async fn resolve_allowed(
        &self,
        target: &ConnectTarget<'_>,
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
        target: &ConnectTarget<'_>,
        stream: TcpStream,
    ) -> Result<(Stream, HttpProtocol), Failure> {
        if !target.tls {
            return Ok((Stream::Left(stream), HttpProtocol::Http1));
        }
        self.tls.handshake(target.host, stream).await
    }

    fn connect_timeout_failure(&self) -> Failure {
        Failure::new(Reason::ConnectTimeout, format!("no connection within {:?}", self.timeout))
    }
}

/// Connects to one of these addresses.
async fn connect_any(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Failure> {
    let dialed = dial(addresses).await;
    let (stream, address) = dialed
        .map_err(|error| Failure::of(Reason::Connect, &error).with_context("cannot connect: "))?;
    // A request is a single write; waiting for more data would only delay it.
    let _ = stream.set_nodelay(true);
    Ok((stream, address))
}

/// The address as the host of a URL.
fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Whether the name means the machine that resolves it (RFC 6761 section 6.3).
fn is_localhost(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}
