//! Addresses as they are typed, and the file in a data directory that holds the address of its
//! running broker.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use tidings_client::{Security, UNIX_PREFIX};
use tidings_protocol::{CanonicalUrl, PORT};

use crate::flags::DATA_DEFAULT;
use crate::flags::own_file::{is_own_directory, read_own};

/// The file in the data directory that holds the address of a running `tidings up`.
pub(crate) const ADDRESS_FILE: &str = "broker.addr";

/// The time limit of a connection that shows whether a broker of this machine runs.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Where to listen: `HOST:PORT`, or a port alone, which is on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) SocketAddr);

/// The address of an HTTP listener, or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenHttp {
    Off,
    At(Listen),
}

impl FromStr for ListenHttp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

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
/// default port), a port alone (on this machine), several of these with commas between them, or
/// `unix:PATH`. The host is resolved when connecting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerAddress {
    text: String,
    security: Security,
    /// Whether nobody named it: it is that of [`DATA_DEFAULT`].
    is_found: bool,
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

    /// The broker that a command without any other address uses: that of a `tidings up` in this
    /// folder, or the one on the default port.
    pub(crate) fn nearby() -> Self {
        let found = Self::find_in(Path::new(DATA_DEFAULT)).filter(Self::is_listening);
        found.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)).into())
    }

    /// The address in a data directory that only this user or root can change: it gets the token of
    /// the command.
    fn find_in(data: &Path) -> Option<Self> {
        let text = is_own_directory(data).then(|| read_own(&data.join(ADDRESS_FILE)).ok()?)??;
        Some(Self { is_found: true, ..parse_address_file(&text)? })
    }

    /// Whether something listens there. After a crash the file of a broker stays.
    fn is_listening(&self) -> bool {
        match self.text.strip_prefix(UNIX_PREFIX) {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => self.text.parse().is_ok_and(|address: SocketAddr| {
                TcpStream::connect_timeout(&address, CONNECT_MAX).is_ok()
            }),
        }
    }

    /// Where it was found, for the message of a failure; empty if it was named.
    pub(crate) fn origin(&self) -> String {
        if self.is_found {
            format!(" (found in {DATA_DEFAULT}/{ADDRESS_FILE})")
        } else {
            String::new()
        }
    }

    fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), security: Security::default(), is_found: false }
    }
}

impl FromStr for BrokerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(',') && !text.starts_with(UNIX_PREFIX) {
            let addresses = text.split(',').map(|one| one.parse::<Self>().map(|one| one.text));
            return Ok(Self::plain(addresses.collect::<Result<Vec<_>, _>>()?.join(",")));
        }
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
    /// Writes the address into the data directory, completely or not at all. A second line has the
    /// address of its HTTP, if it has one.
    pub(crate) fn write(
        data: &Path,
        address: &BrokerAddress,
        http: Option<&str>,
    ) -> io::Result<Self> {
        let path = data.join(ADDRESS_FILE);
        let fresh = data.join(format!("{ADDRESS_FILE}.new"));
        let http = http.map(|http| format!("{http}\n")).unwrap_or_default();
        // Clients trust no file that others could write.
        let mut file = OpenOptions::new();
        file.write(true).create(true).truncate(true).mode(0o644);
        file.open(&fresh)?.write_all(format!("{address}\n{http}").as_bytes())?;
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
    parse_address_file(&std::fs::read_to_string(data.join(ADDRESS_FILE)).ok()?)
}

fn parse_address_file(text: &str) -> Option<BrokerAddress> {
    text.lines().next()?.parse().ok()
}

/// The URL of the HTTP of the broker that wrote its address into this data directory.
pub(crate) fn read_http_url(data: &Path) -> Option<CanonicalUrl<'static>> {
    let text = std::fs::read_to_string(data.join(ADDRESS_FILE)).ok()?;
    text.lines().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

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
        assert_eq!(shown("n1,n2:7,::1").unwrap(), "n1:12345,n2:7,[::1]:12345");
        for wrong in ["", ":", "unix:", "a b", "host:port", "host:70000", "http://host:7", "a,,b"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_file_that_others_cannot_change_names_a_broker() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let address: BrokerAddress = "127.0.0.1:7".parse().unwrap();
        let _announced = AddressFile::write(&data, &address, None).unwrap();
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let file = data.join(ADDRESS_FILE);
        for (of_folder, of_file, is_found) in [
            (0o700, 0o644, true),
            (0o755, 0o600, true),
            (0o720, 0o644, false),
            (0o702, 0o644, false),
            (0o700, 0o664, false),
            (0o700, 0o646, false),
        ] {
            allow(&data, of_folder);
            allow(&file, of_file);
            let found = BrokerAddress::find_in(&data);
            assert_eq!(found.is_some(), is_found, "{of_folder:o} {of_file:o}");
        }
        allow(&data, 0o700);
        allow(&file, 0o644);
        let link = folder.path().join("link");
        symlink(&data, &link).unwrap();
        assert_eq!(BrokerAddress::find_in(&link), None, "others may have made it");
        if rustix::process::geteuid().is_root() {
            assert!(BrokerAddress::find_in(&data).is_some());
            for path in [&file, &data] {
                chown(path, Some(1), None).unwrap();
                assert_eq!(BrokerAddress::find_in(&data), None, "{} of another", path.display());
                chown(path, Some(0), None).unwrap();
            }
        }
    }

    #[test]
    fn the_note_goes_with_the_broker() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(read_address_file(data.path()), None);
        let address: BrokerAddress = "127.0.0.1:7".parse().unwrap();
        let http = "http://127.0.0.1:8/";
        let announced = AddressFile::write(data.path(), &address, Some(http)).unwrap();
        assert_eq!(read_address_file(data.path()), Some(address));
        assert_eq!(read_http_url(data.path()).unwrap().as_str(), http);
        drop(announced);
        assert_eq!(read_address_file(data.path()), None);
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0);
    }
}
