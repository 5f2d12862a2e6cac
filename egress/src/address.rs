//! Decides which addresses may be requested: the protection against requests that a page, a
//! redirect or a DNS answer would send into a private network (SSRF).
//!
//! Only addresses of the public internet are allowed, unless `--allow-private` permits more. IPv6
//! forms that embed an IPv4 address are judged by that address. The list follows the IANA
//! special-purpose address registries (RFC 6890 and its updates), and refuses each of their blocks
//! as a whole: the few public parts contain nothing for a crawler. Pure:
//! [`connect`](crate::connect) resolves names, and connects only to addresses that were checked
//! here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use tidings_protocol::{IpNetwork, IpNetworkError};

/// Which addresses may be crawled in addition to the public internet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowPrivate {
    /// Nothing.
    #[default]
    None,
    /// Everything.
    All,
    /// The addresses in these networks.
    Nets(Vec<IpNetwork>),
}

/// The address may not be requested. Nothing was sent, and a retry fails the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {what}; start with --allow-private to crawl it")]
pub struct AddressRefused {
    /// The address as it would have been connected to.
    pub address: IpAddr,
    /// The kind of address with its article: `a loopback address`.
    pub what: &'static str,
}

impl AllowPrivate {
    /// Checks one address.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefused> {
        let carried = embedded_v4(address);
        let special = match (carried, address) {
            (Some(v4), _) | (None, IpAddr::V4(v4)) => special_block_v4(v4),
            (None, IpAddr::V6(v6)) => {
                special_block_v6(v6).or_else(|| special_block_v4(isatap_v4(v6)?))
            }
        };
        let Some(what) = special else { return Ok(()) };
        let listed = match self {
            Self::None => false,
            Self::All => true,
            Self::Nets(nets) => nets.iter().any(|net| {
                net.contains(address) || carried.is_some_and(|v4| net.contains(IpAddr::V4(v4)))
            }),
        };
        if listed { Ok(()) } else { Err(AddressRefused { address, what }) }
    }
}

impl FromStr for AllowPrivate {
    type Err = IpNetworkError;

    /// `all` (also `true`, `yes` and the empty text), `none` (also `false`, `no`), or networks
    /// separated by commas.
    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        match text.trim() {
            "" | "all" | "true" | "yes" => Ok(Self::All),
            "none" | "false" | "no" => Ok(Self::None),
            nets => nets
                .split(',')
                .map(|net| net.trim().parse())
                .collect::<Result<_, _>>()
                .map(Self::Nets),
        }
    }
}

impl fmt::Display for AllowPrivate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => out.write_str("none"),
            Self::All => out.write_str("all"),
            Self::Nets(nets) => {
                for (index, net) in nets.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(out, "{comma}{net}")?;
                }
                Ok(())
            }
        }
    }
}

/// Why an address does not belong to the public internet; `None` if it does.
fn special_block_v4(address: Ipv4Addr) -> Option<&'static str> {
    let what = match address.octets() {
        [0, ..] => "an unspecified address",
        [127, ..] => "a loopback address",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private address",
        [169, 254, ..] => "a link-local address",
        [100, 64..=127, ..] => "a shared (carrier NAT) address",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "a documentation address",
        [192, 0, 0, _] | [192, 88, 99, _] => "a protocol assignment",
        [198, 18..=19, ..] => "a benchmarking address",
        // That of Azure, which is a public address. Other clouds use link-local, private or shared
        // addresses.
        [168, 63, 129, 16] => "a cloud metadata address",
        [224..=239, ..] => "a multicast address",
        [255, 255, 255, 255] => "a broadcast address",
        [240..=255, ..] => "a reserved address",
        _ => return None,
    };
    Some(what)
}

/// See [`special_block_v4`].
fn special_block_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("an unspecified address");
    }
    if address.is_loopback() {
        return Some("a loopback address");
    }
    let what = match address.segments() {
        [0xfc00..=0xfdff, ..] => "a private (unique local) address",
        [0xfe80..=0xfebf, ..] => "a link-local address",
        [0xfec0..=0xfeff, ..] => "a private (site-local) address",
        [0xff00..=0xffff, ..] => "a multicast address",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "a documentation address",
        // A Teredo address embeds an address that the sender chose. The rest of the block has
        // nothing public either.
        [0x2001, 0..=0x1ff, ..] => "a protocol assignment",
        // Global unicast is 2000::/3 only, so far.
        [0x2000..=0x3fff, ..] => return None,
        _ => "a reserved address",
    };
    Some(what)
}

/// The IPv4 address that is embedded in a mapped, compatible, NAT64 or 6to4 address.
fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let [_, _, carried @ ..] = address.octets();
    let low = || {
        Ipv4Addr::from_bits(
            u32::try_from(address.to_bits() & 0xffff_ffff).expect("masked to 32 bits"),
        )
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(low()),
        // `::` and `::1` are addresses in their own right, not 0.0.0.0 and 0.0.0.1.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => Some(low()),
        [0x2002, ..] => Some(Ipv4Addr::new(carried[0], carried[1], carried[2], carried[3])),
        _ => None,
    }
}

/// The IPv4 address behind an ISATAP router (RFC 5214 section 6.1), for any prefix.
fn isatap_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => {
            let [.., a, b, c, d] = address.octets();
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(allow: &AllowPrivate, address: &str) -> Option<&'static str> {
        allow.check(address.parse().unwrap()).err().map(|refused| refused.what)
    }

    #[test]
    fn only_the_public_internet_is_allowed_by_default() {
        let table = [
            ("0.0.0.0", Some("an unspecified address")),
            ("0.1.2.3", Some("an unspecified address")),
            ("10.0.0.1", Some("a private address")),
            ("11.0.0.1", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some("a shared (carrier NAT) address")),
            ("100.127.255.255", Some("a shared (carrier NAT) address")),
            ("100.128.0.0", None),
            ("127.0.0.1", Some("a loopback address")),
            ("127.255.255.254", Some("a loopback address")),
            ("128.0.0.1", None),
            ("169.254.169.254", Some("a link-local address")),
            ("172.15.255.255", None),
            ("172.16.0.1", Some("a private address")),
            ("172.31.255.255", Some("a private address")),
            ("172.32.0.0", None),
            ("192.0.0.170", Some("a protocol assignment")),
            ("192.0.2.1", Some("a documentation address")),
            ("192.168.1.1", Some("a private address")),
            ("192.169.0.1", None),
            ("198.17.255.255", None),
            ("198.18.0.1", Some("a benchmarking address")),
            ("198.51.100.7", Some("a documentation address")),
            ("203.0.113.9", Some("a documentation address")),
            ("223.255.255.255", None),
            ("224.0.0.1", Some("a multicast address")),
            ("240.0.0.1", Some("a reserved address")),
            ("255.255.255.255", Some("a broadcast address")),
            ("93.184.216.34", None),
            ("100.100.100.200", Some("a shared (carrier NAT) address")),
            ("168.63.129.16", Some("a cloud metadata address")),
            ("192.0.0.192", Some("a protocol assignment")),
            ("::", Some("an unspecified address")),
            ("::1", Some("a loopback address")),
            ("::2", Some("a reserved address")),
            ("::ffff:127.0.0.1", Some("a loopback address")),
            ("::ffff:93.184.216.34", None),
            ("::127.0.0.1", Some("a loopback address")),
            ("64:ff9b::10.0.0.1", Some("a private address")),
            ("64:ff9b::93.184.216.34", None),
            ("64:ff9b:1::1", Some("a reserved address")),
            ("::ffff:0:10.0.0.1", Some("a reserved address")),
            ("2606:2800::5efe:10.0.0.1", Some("a private address")),
            ("2606:2800::200:5efe:127.0.0.1", Some("a loopback address")),
            ("2606:2800::5efe:93.184.216.34", None),
            ("fe80::5efe:93.184.216.34", Some("a link-local address")),
            ("fd00:ec2::254", Some("a private (unique local) address")),
            ("100::1", Some("a reserved address")),
            ("2001::1", Some("a protocol assignment")),
            ("2001:db8::1", Some("a documentation address")),
            ("2001:4860:4860::8888", None),
            ("2002:7f00:1::", Some("a loopback address")),
            ("2002:c0a8:101::1", Some("a private address")),
            ("2002:5db8:d822::1", None),
            ("2606:2800:220:1:248:1893:25c8:1946", None),
            ("3fff::1", Some("a documentation address")),
            ("5f00::1", Some("a reserved address")),
            ("fc00::1", Some("a private (unique local) address")),
            ("fdff::1", Some("a private (unique local) address")),
            ("fe80::1", Some("a link-local address")),
            ("fec0::1", Some("a private (site-local) address")),
            ("ff02::1", Some("a multicast address")),
        ];
        for (address, expected) in table {
            assert_eq!(refused(&AllowPrivate::None, address), expected, "{address}");
            assert_eq!(refused(&AllowPrivate::All, address), None, "{address}");
        }
    }

    #[test]
    fn only_listed_networks_are_allowed() {
        let allow: AllowPrivate = "127.0.0.0/8, 10.1.0.0/16,fd00::/8,::1".parse().unwrap();
        for address in ["127.9.9.9", "10.1.255.1", "fd12::1", "::1", "::ffff:127.0.0.1", "8.8.8.8"]
        {
            assert_eq!(refused(&allow, address), None, "{address}");
        }
        for address in ["10.2.0.1", "192.168.0.1", "fc00::1", "169.254.169.254", "::ffff:10.2.0.1"]
        {
            assert!(refused(&allow, address).is_some(), "{address}");
        }
        let everything: AllowPrivate = "0.0.0.0/0".parse().unwrap();
        assert_eq!(refused(&everything, "10.0.0.1"), None);
        assert!(refused(&everything, "::1").is_some());
    }

    #[test]
    fn flag_values_round_trip_and_invalid_ones_are_rejected() {
        for text in ["none", "all", "10.0.0.0/8,fd00::/8", "127.0.0.1/32"] {
            assert_eq!(text.parse::<AllowPrivate>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(AllowPrivate::All));
        for text in
            ["10.0.0.0/33", "::/129", "10/8", "10.0.0.0/", "10.0.0.0/8,", "host", "10.0.0.0/-1"]
        {
            let error = text.parse::<AllowPrivate>().unwrap_err();
            assert!(error.to_string().contains("is not a network"), "{text}");
        }
    }

    #[test]
    fn the_refusal_names_the_flag() {
        let refused = AllowPrivate::None.check(Ipv4Addr::LOCALHOST.into()).unwrap_err();
        let text = "127.0.0.1 is a loopback address; start with --allow-private to crawl it";
        assert_eq!(refused.to_string(), text);
    }
}
