//! HTTP and SOCKS5 proxies. An HTTP proxy receives `CONNECT` for encrypted requests, and the whole
//! URL for others.
//!
//! `CONNECT` is implemented here instead of with hyper-util's `Tunnel`, which accepts only status
//! 200 where any 2xx means success (RFC 9110 section 9.3.6), reports every refusal as
//! "unsuccessful" where operators need the proxy's status line, and drops bytes that arrive after
//! the head of the response.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::str::FromStr;
use std::task::{Context, Poll};

use data_encoding::BASE64;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_service::Service;
use url::Url;

use crate::failure::{Failure, Reason};

/// Limit of a proxy's answer to `CONNECT` in bytes.
const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;
/// User and password of a SOCKS5 proxy together. The protocol allows 255 bytes each; the library
/// holds all messages of a handshake in 262 bytes, with the host name, which has some dozens.
const SOCKS_CREDENTIALS_BYTES_MAX: usize = 128;

/// The default port of a SOCKS proxy.
const SOCKS_PORT: u16 = 1080;

/// The proxy for all requests.
#[derive(Clone)]
pub struct Proxy {
    pub(super) kind: ProxyKind,
    host: String,
    address: Option<IpAddr>,
    pub(super) port: u16,
    credentials: Option<Credentials>,
}

/// The protocol of a proxy, and the side that resolves names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// `http://`: the proxy resolves names.
    Http,
    /// `socks5://`: the proxy receives addresses.
    Socks5,
    /// `socks5h://`: the proxy resolves names, which are never resolved here.
    Socks5h,
}

#[derive(Clone)]
enum Credentials {
    /// The value of `Proxy-Authorization`.
    Http(HeaderValue),
    Socks {
        user: String,
        password: String,
    },
}

/// The text is not a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid proxy: {what}; expected http://HOST:PORT, socks5://HOST:PORT or socks5h://HOST:PORT, with USER:PASSWORD@ before HOST if \
     the proxy needs that"
)]
pub struct ProxyError {
    /// What is wrong. The text itself is not included, because it may contain a password.
    pub what: &'static str,
}

impl Proxy {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// `scheme://HOST:PORT`, without the password.
    pub fn url(&self) -> String {
        let scheme = match self.kind {
            ProxyKind::Http => "http",
            ProxyKind::Socks5 => "socks5",
            ProxyKind::Socks5h => "socks5h",
        };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    /// Whether the proxy tunnels connections to a server with or without TLS. If not, it forwards
    /// requests.
    pub fn needs_tunnel(&self, tls: bool) -> bool {
        tls || self.kind != ProxyKind::Http
    }

    /// The `Proxy-Authorization` header of requests that the proxy forwards.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        match &self.credentials {
            Some(Credentials::Http(authorization)) => Some(authorization),
            _ => None,
        }
    }

    /// User and password of a SOCKS proxy.
    pub fn socks_login(&self) -> Option<(&str, &str)> {
        match &self.credentials {
            Some(Credentials::Socks { user, password }) => Some((user, password)),
            _ => None,
        }
    }

    /// Turns a connection to this proxy into a tunnel. `host` is a name or an address, IPv6 in
    /// brackets.
    pub(super) async fn tunnel(
        &self,
        mut stream: TcpStream,
        host: &str,
        port: u16,
    ) -> Result<TcpStream, Failure> {
        if self.kind != ProxyKind::Http {
            return self.tunnel_by_socks(stream, host, port).await;
        }
        self.tunnel_by_connect(&mut stream, host, port).await?;
        Ok(stream)
    }

    async fn tunnel_by_socks(
        &self,
        stream: TcpStream,
        host: &str,
        port: u16,
    ) -> Result<TcpStream, Failure> {
        let failed = |text: String| Failure::new(Reason::Proxy, format!("proxy: {text}"));
        let target: Uri = format!("http://{host}:{port}/")
            .parse()
            .map_err(|_| failed(format!("it cannot connect to the host {host}")))?;
        let mut socks = SocksV5::new(Uri::default(), OpenConnection(Some(stream)));
        if let Some((user, password)) = self.socks_login() {
            socks = socks.with_auth(user.to_owned(), password.to_owned());
        }
        let connected = socks.call(target).await;
        connected.map(TokioIo::into_inner).map_err(|error| failed(error.to_string()))
    }

    /// Requests a tunnel by `CONNECT`. Reads exactly the head of the response: the next byte
    /// belongs to the target.
    async fn tunnel_by_connect(
        &self,
        stream: &mut TcpStream,
        host: &str,
        port: u16,
    ) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Reason::Proxy, format!("proxy: {text}"));
        let mut request =
            format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n").into_bytes();
        if let Some(authorization) = self.authorization() {
            request.extend_from_slice(b"proxy-authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request).await.map_err(|error| failed(error.to_string()))?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= PROXY_HEAD_BYTES_MAX {
                return Err(failed("its answer is too long".to_owned()));
            }
            // Byte by byte, once per connection: no byte of the tunnel may be read here.
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        let status = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        match status.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)) {
            Some([b'2', _, _]) => Ok(()),
            _ => Err(failed(status.escape_ascii().to_string().chars().take(80).collect())),
        }
    }
}

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let error = |what| ProxyError { what };
        let url = Url::parse(text).map_err(|_| error("it is not a URL"))?;
        let kind = match url.scheme() {
            "http" => ProxyKind::Http,
            "socks5" => ProxyKind::Socks5,
            "socks5h" => ProxyKind::Socks5h,
            _ => return Err(error("only http, socks5 and socks5h are supported")),
        };
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(error("nothing may follow its port"));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| error("it has no host"))?;
        let default = (kind != ProxyKind::Http).then_some(SOCKS_PORT);
        let port = url.port_or_known_default().or(default);
        Ok(Self {
            kind,
            address: host.trim_matches(['[', ']']).parse().ok(),
            host: host.to_owned(),
            port: port.ok_or_else(|| error("it has no port"))?,
            credentials: Credentials::of(kind, &url).map_err(error)?,
        })
    }
}

impl Credentials {
    /// The credentials in a URL. The error says what is wrong with them.
    fn of(kind: ProxyKind, url: &Url) -> Result<Option<Self>, &'static str> {
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        if user.is_empty() && url.password().is_none() {
            return Ok(None);
        }
        let decoded = |text| percent_decoded(text).ok_or("its password has a broken %-escape");
        let (mut user, password) = (decoded(user)?, decoded(password)?);
        if kind == ProxyKind::Http {
            user.push(b':');
            user.extend(password);
            let value = HeaderValue::from_str(&format!("Basic {}", BASE64.encode(&user)));
            let mut value = value.expect("base64 is plain ASCII");
            value.set_sensitive(true);
            return Ok(Some(Self::Http(value)));
        }
        if user.len() + password.len() > SOCKS_CREDENTIALS_BYTES_MAX {
            return Err("user and password are longer than 128 bytes together");
        }
        let text = |bytes| String::from_utf8(bytes).map_err(|_| "its password is not UTF-8");
        Ok(Some(Self::Socks { user: text(user)?, password: text(password)? }))
    }
}

/// An existing connection to a proxy, as the connector that `SocksV5` needs.
struct OpenConnection(Option<TcpStream>);

impl Service<Uri> for OpenConnection {
    type Response = TokioIo<TcpStream>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(Ok(TokioIo::new(self.0.take().expect("the connector is called once"))))
    }
}

/// Without the password.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Proxy({})", self.url())
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let decoded: Vec<_> = percent_decode_str(text).collect();
    let percent_signs = memchr::memchr_iter(b'%', text.as_bytes()).count();
    // Each escape is two bytes longer than the byte that it encodes.
    (text.len() - decoded.len() == 2 * percent_signs).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_proxy_is_parsed_and_its_password_is_not_shown() {
        let proxy: Proxy = "http://user:p%40ss@proxy.example:3128".parse().unwrap();
        assert_eq!((proxy.host(), proxy.port, proxy.address()), ("proxy.example", 3128, None));
        assert_eq!(proxy.authorization().unwrap(), "Basic dXNlcjpwQHNz");
        assert_eq!(format!("{proxy:?}"), "Proxy(http://proxy.example:3128)");
        let proxy: Proxy = "http://[::1]".parse().unwrap();
        assert_eq!((proxy.port, proxy.address()), (80, Some("::1".parse().unwrap())));
        assert!(proxy.authorization().is_none());
        for text in
            ["proxy:3128", "socks4://h:1", "http://", "http://h/path", "http://u%zz@h", "socks5://"]
        {
            assert!(text.parse::<Proxy>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_socks_proxy_is_parsed_and_its_password_is_not_shown() {
        let proxy: Proxy = "socks5://us%3Aer:p%40ss%25@proxy.example".parse().unwrap();
        assert_eq!((proxy.kind, proxy.port), (ProxyKind::Socks5, 1080));
        assert_eq!(proxy.socks_login(), Some(("us:er", "p@ss%")));
        assert!(
            proxy.authorization().is_none()
                && proxy.needs_tunnel(false)
                && proxy.needs_tunnel(true)
        );
        assert_eq!(format!("{proxy:?}"), "Proxy(socks5://proxy.example:1080)");
        let proxy: Proxy = "socks5h://[::1]:9050".parse().unwrap();
        assert_eq!(
            (proxy.kind, proxy.address()),
            (ProxyKind::Socks5h, Some("::1".parse().unwrap()))
        );
        assert_eq!((proxy.url().as_str(), proxy.socks_login()), ("socks5h://[::1]:9050", None));
        let long = format!("socks5://user:{}@h", "hush".repeat(40));
        let error = long.parse::<Proxy>().unwrap_err().to_string();
        assert!(error.contains("128 bytes") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn a_broken_escape_in_a_password_is_rejected() {
        assert_eq!(percent_decoded("%25%41a%fF"), Some(b"%Aa\xff".to_vec()));
        for text in ["%", "%4", "%%41", "%4%41", "%zz", "%+1", "a%41%"] {
            assert_eq!(percent_decoded(text), None, "{text}");
        }
    }
}
