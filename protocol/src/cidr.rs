//! IP networks in CIDR form.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// An IP network in CIDR form, such as `10.0.0.0/8` or `fd00::/8`; an address is a network of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork(IpNet);

/// The text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a network; expected ADDRESS/BITS such as 10.0.0.0/8, or an address")]
pub struct IpNetworkError {
    /// The text.
    pub text: String,
}

impl IpNetwork {
    /// Whether the network contains the address. An IPv4 network never contains an IPv6 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        let network = text.parse().or_else(|_| address());
        network.map(Self).map_err(|_| IpNetworkError { text: text.to_owned() })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        for (net, address, expected) in [
            ("10.1.0.0/16", "10.1.255.1", true),
            ("10.1.0.0/16", "10.2.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "ffff::", true),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::", false),
        ] {
            let net: IpNetwork = net.parse().unwrap();
            assert_eq!(net.contains(address.parse().unwrap()), expected, "{net} {address}");
        }
    }

    #[test]
    fn invalid_networks_are_named() {
        for text in ["10.0.0.0/33", "::/129", "10/8", "10.0.0.0/", "", "host", "10.0.0.0/-1"] {
            assert!(
                text.parse::<IpNetwork>().unwrap_err().to_string().contains("is not a network")
            );
        }
        assert_eq!("::1".parse::<IpNetwork>().unwrap().to_string(), "::1/128");
    }
}
