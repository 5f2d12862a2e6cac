//! Addresses of ZeroMQ sockets: `tcp://HOST:PORT`. Other transports are not supported.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const SCHEME: &str = "tcp://";

/// Address of a listening socket: `tcp://127.0.0.1:12347`, `tcp://[::1]:12347`, or `tcp://*:12347`
/// for all IPv4 addresses. Port 0 selects a free port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindEndpoint(pub SocketAddr);

impl FromStr for BindEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let syntax_error = || {
            "expected tcp://ADDRESS:PORT, such as tcp://127.0.0.1:12347 or tcp://*:12347".to_owned()
        };
        let host_and_port = text.strip_prefix(SCHEME).ok_or_else(syntax_error)?;
        if let Some(port) = host_and_port.strip_prefix("*:") {
            let port = port.parse().map_err(|_| syntax_error())?;
            return Ok(Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)));
        }
        host_and_port.parse().map(Self).map_err(|_| syntax_error())
    }
}

impl fmt::Display for BindEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.0)
    }
}

/// Address of a foreign socket: `tcp://HOST:PORT`. The host is resolved for each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectEndpoint(String);

impl ConnectEndpoint {
    /// The address in the form that the libraries take.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `HOST:PORT`.
    pub(crate) fn host_and_port(&self) -> &str {
        self.0.strip_prefix(SCHEME).unwrap_or(&self.0)
    }
}

impl FromStr for ConnectEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host_and_port =
            text.strip_prefix(SCHEME).and_then(|host_and_port| host_and_port.rsplit_once(':'));
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_host = |host: &str| {
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            match inner {
                Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
                None => !host.is_empty() && host.chars().all(is_host_char),
            }
        };
        match host_and_port {
            Some((host, port))
                if is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => Err("expected tcp://HOST:PORT, such as tcp://127.0.0.1:5556".to_owned()),
        }
    }
}

impl fmt::Display for ConnectEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_listens_at_an_address() {
        let parsed = |text: &str| text.parse::<BindEndpoint>().map(|bind| bind.to_string());
        assert_eq!(parsed("tcp://127.0.0.1:7").unwrap(), "tcp://127.0.0.1:7");
        assert_eq!(parsed("tcp://[::1]:0").unwrap(), "tcp://[::1]:0");
        assert_eq!(parsed("tcp://*:7").unwrap(), "tcp://0.0.0.0:7");
        for invalid in
            ["", "127.0.0.1:7", "ipc:///tmp/x", "tcp://", "tcp://*", "tcp://a:1", "tcp://*:70000"]
        {
            assert!(parsed(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_socket_connects_to_a_name_or_an_address() {
        for valid in ["tcp://a.example:5556", "tcp://127.0.0.1:1", "tcp://[::1]:65535"] {
            assert_eq!(valid.parse::<ConnectEndpoint>().unwrap().to_string(), valid);
        }
        for invalid in [
            "",
            "a.example:1",
            "tcp://a",
            "tcp://a:0",
            "tcp://:1",
            "tcp://a b:1",
            "tcp://[a]:1",
            "udp://a:1",
        ] {
            assert!(invalid.parse::<ConnectEndpoint>().is_err(), "{invalid}");
        }
    }
}
