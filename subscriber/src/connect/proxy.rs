//! An HTTP proxy: `CONNECT` for what is encrypted, the whole URL in the request for what is not.

use std::net::IpAddr;
use std::str::FromStr;

use data_encoding::BASE64;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

use crate::config::PROXY_HEAD_BYTES_MAX;
use crate::outcome::{Failure, Reason};

/// Where all requests go through.
#[derive(Clone)]
pub struct Proxy {
    host: String,
    address: Option<IpAddr>,
    port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<HeaderValue>,
}

/// The text names no proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no proxy: {what}; give http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
pub struct ProxyError {
    /// What is wrong with it. The text itself may hold a password.
    pub what: &'static str,
}

impl Proxy {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// `http://HOST:PORT`, without the password.
    pub fn url(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }

    /// What requests that it forwards carry as `Proxy-Authorization`.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Asks for a tunnel. Reads exactly the head of the answer: what follows is the target's.
    pub(super) async fn tunnel(
        &self,
        stream: &mut TcpStream,
        host: &str,
        port: u16,
    ) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Reason::Proxy, format!("proxy: {text}"));
        let mut request =
            format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
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
            // One at a time, once per connection: nothing of the tunnel may be read here.
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
        let url = Url::parse(text).map_err(|_| error("this is no URL"))?;
        if url.scheme() != "http" {
            return Err(error("only http proxies are known"));
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(error("nothing may follow its port"));
        }
        let host = url.host_str().ok_or_else(|| error("it has no host"))?;
        let decoded = |text: &str| {
            percent_decoded(text).ok_or_else(|| error("its password has a broken %-escape"))
        };
        let authorization = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => {
                let mut plain = decoded(user)?;
                plain.push(b':');
                plain.extend(decoded(password.unwrap_or_default())?);
                let value = HeaderValue::from_str(&format!("Basic {}", BASE64.encode(&plain)));
                let mut value = value.expect("base64 is plain ASCII");
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self {
            address: host.trim_matches(['[', ']']).parse().ok(),
            host: host.to_owned(),
            port: url.port_or_known_default().ok_or_else(|| error("it has no port"))?,
            authorization,
        })
    }
}

/// Without the password.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Proxy({}:{})", self.host, self.port)
    }
}

/// `None`: some `%` does not begin an escape.
fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let decoded: Vec<_> = percent_decode_str(text).collect();
    let percent_signs = memchr::memchr_iter(b'%', text.as_bytes()).count();
    // Each escape is two bytes longer than what it stands for.
    (text.len() - decoded.len() == 2 * percent_signs).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_with_its_password_which_is_not_shown() {
        let proxy: Proxy = "http://user:p%40ss@proxy.example:3128".parse().unwrap();
        assert_eq!((proxy.host(), proxy.port(), proxy.address()), ("proxy.example", 3128, None));
        assert_eq!(proxy.authorization().unwrap(), "Basic dXNlcjpwQHNz");
        assert_eq!(format!("{proxy:?}"), "Proxy(proxy.example:3128)");
        let proxy: Proxy = "http://[::1]".parse().unwrap();
        assert_eq!((proxy.port(), proxy.address()), (80, Some("::1".parse().unwrap())));
        assert!(proxy.authorization().is_none());
        for text in ["proxy:3128", "socks5://h:1", "http://", "http://h/path", "http://u%zz@h"] {
            assert!(text.parse::<Proxy>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_broken_escape_in_a_password_is_rejected() {
        assert_eq!(percent_decoded("%25%41a%fF"), Some(b"%Aa\xff".to_vec()));
        for text in ["%", "%4", "%%41", "%4%41", "%zz", "%+1", "a%41%"] {
            assert_eq!(percent_decoded(text), None, "{text}");
        }
    }
}
