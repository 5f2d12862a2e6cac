//! IP networks in CIDR form.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An IP network in CIDR form, such as `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    base: IpAddr,
    /// `<= 32` or `<= 128`, by the family of `base`.
    prefix_bits: u8,
}

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
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let error = || IpNetworkError { text: text.to_owned() };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let base: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if base.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits {
            None => bits_max,
            Some(bits) => bits.parse().map_err(|_| error())?,
        };
        if prefix_bits > bits_max {
            return Err(error());
        }
        Ok(Self { base, prefix_bits })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.base, self.prefix_bits)
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
