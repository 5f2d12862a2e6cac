//! Addresses as they are typed, and the file in a data directory that holds the address of its
//! running broker.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use tidings_client::{Security, UNIX_PREFIX};
use tidings_protocol::{CanonicalUrl, PORT};

/// The file in the data directory that holds the address of a running `tidings up`.
const FILE: &str = "broker.addr";

/// Where to listen: `HOST:PORT`, or a port alone, which is on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) SocketAddr);

/// The URL of a path of a broker's HTTP, at HOST:PORT, a port, or the URL of the broker.
pub(crate) fn parse_http_url(text: &str, path: &str) -> Result<CanonicalUrl<'static>, String> {
    let expected = "expected HOST:PORT, a port, or the URL of a broker";
    let base = match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        Ok(port) => format!("http://127.0.0.1:{port}/"),
        Err(_) if text.contains("://") => format!("{}/", text.trim_end_matches('/')),
        Err(_) => format!("http://{text}/"),
    };
    let url = CanonicalUrl::parse(&base).map_err(|_| expected)?;
    url.join(path).map_err(|_| expected.to_owned())
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self(address));
        }
        if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
            return Ok(Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
        found.map(Self).ok_or_else(|| match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() && is_host_name(host) => {
                format!(
                    "{host} has no address; write one of this machine, such as 127.0.0.1:{PORT}"
                )
            }
            _ => expected_address(text),
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The address of a broker and the security of connections to it: `HOST:PORT`, a host alone (the
/// default port), a port alone (on this machine), or `unix:PATH`. The host is resolved when
/// connecting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerAddress {
    text: String,
    security: Security,
}

impl BrokerAddress {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The encryption of connections, and the credentials that they present.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// The same address with this security. Connections to a unix socket are never encrypted.
    pub(crate) fn with_security(self, mut security: Security) -> Self {
        security.tls.take_if(|_| self.text.starts_with(UNIX_PREFIX));
        Self { security, ..self }
    }

    /// The address of a unix socket.
    pub(crate) fn unix(path: &Path) -> Self {
        Self::plain(format!("{UNIX_PREFIX}{}", path.display()))
    }

    fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), security: Security::default() }
    }
}

impl FromStr for BrokerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.strip_prefix(UNIX_PREFIX).is_some_and(|path| !path.is_empty())
            || text.parse::<SocketAddr>().is_ok()
        {
            return Ok(Self::plain(text));
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self::plain(SocketAddr::new(ip, PORT).to_string()));
        }
        if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            return Ok(Self::plain(format!("127.0.0.1:{port}")));
        }
        let (host, port) =
            text.rsplit_once(':').map_or((text, Ok(PORT)), |(host, port)| (host, port.parse()));
        match port {
            Ok(port) if is_host_name(host) => Ok(Self::plain(format!("{host}:{port}"))),
            _ => Err(expected_address(text)),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && text.chars().all(is_plain)
}

/// The error for a text that cannot be read as an address.
fn expected_address(text: &str) -> String {
    let port = text.rsplit(':').next().unwrap_or_default();
    if port.parse::<u64>().is_ok_and(|port| port > u16::MAX.into()) {
        return format!("the port {port} is larger than {}", u16::MAX);
    }
    format!("write HOST:PORT, such as 127.0.0.1:{PORT}")
}

impl From<SocketAddr> for BrokerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::plain(address.to_string())
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The file with the address of the running broker. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the address into the data directory, completely or not at all.
    pub(crate) fn write(data: &Path, address: &BrokerAddress) -> io::Result<Self> {
        let path = data.join(FILE);
        let fresh = data.join(format!("{FILE}.new"));
        std::fs::write(&fresh, format!("{address}\n"))?;
        std::fs::rename(fresh, &path)?;
        Ok(Self(path))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A file that stays behind is recognised: no broker answers at its address.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The address that a broker wrote into this data directory. After a crash the file stays, so only
/// an answer from that address proves that the broker runs.
pub(crate) fn read_address_file(data: &Path) -> Option<BrokerAddress> {
    std::fs::read_to_string(data.join(FILE)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_takes_an_address_or_a_port() {
        let shown = |text: &str| text.parse::<Listen>().map(|listen| listen.to_string());
        assert_eq!(shown("0.0.0.0:7").unwrap(), "0.0.0.0:7");
        assert_eq!(shown("[::1]:7").unwrap(), "[::1]:7");
        assert_eq!(shown("7").unwrap(), "127.0.0.1:7");
        assert_eq!(shown(":7").unwrap(), "127.0.0.1:7");
        for (wrong, reason) in [
            ("", "write HOST:PORT"),
            ("127.0.0.1", "write HOST:PORT"),
            ("127.0.0.1:70000", "the port 70000 is larger than 65535"),
            ("::1", "write HOST:PORT"),
            ("a b:1", "write HOST:PORT"),
            ("nowhere.invalid:1", "nowhere.invalid has no address"),
        ] {
            let error = shown(wrong).unwrap_err();
            assert!(error.starts_with(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_broker_may_lack_port_or_host() {
        let shown = |text: &str| text.parse::<BrokerAddress>().map(|address| address.to_string());
        assert_eq!(shown("broker.example:7").unwrap(), "broker.example:7");
        assert_eq!(shown("broker.example").unwrap(), "broker.example:12345");
        assert_eq!(shown("10.0.0.1").unwrap(), "10.0.0.1:12345");
        assert_eq!(shown("::1").unwrap(), "[::1]:12345");
        assert_eq!(shown("[::1]:7").unwrap(), "[::1]:7");
        assert_eq!(shown("7").unwrap(), "127.0.0.1:7");
        assert_eq!(shown("unix:/run/a b").unwrap(), "unix:/run/a b");
        for wrong in ["", ":", "unix:", "a b", "host:port", "host:70000", "http://host:7"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_note_goes_with_the_broker() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(read_address_file(data.path()), None);
        let address: BrokerAddress = "127.0.0.1:7".parse().unwrap();
        let announced = AddressFile::write(data.path(), &address).unwrap();
        assert_eq!(read_address_file(data.path()), Some(address));
        drop(announced);
        assert_eq!(read_address_file(data.path()), None);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }
}
