use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use clap::Args;
use serde_json::{Value, json};
use tidings_protocol::CanonicalUrl;
use tokio::net::lookup_host;

use super::{JsonQuery, required_text};
use crate::flags::AllowPrivateFlag;
use crate::terminal::failure::Failure;

/// The arguments of `tidings probe address`.
#[derive(Debug, Args)]
pub(crate) struct AddressArgs {
    /// An IP address in any form that a URL allows, or a name; without it, JSON lines from standard
    /// input
    #[arg(value_name = "ADDRESS|NAME")]
    pub(super) what: Option<String>,

    #[command(flatten)]
    allow_private: AllowPrivateFlag,
}

pub(super) fn answer(query: &JsonQuery, args: &AddressArgs) -> Result<Value, String> {
    let what = required_text(query, "address")?;
    let address = parse_address(what).ok_or_else(|| "`address` is not an IP address".to_owned())?;
    Ok(match args.allow_private.networks.check(address) {
        Ok(()) => json!({ "forbidden": false }),
        Err(refused) => {
            json!({ "forbidden": true, "why": format!("{address} is {}", refused.what) })
        }
    })
}

pub(super) async fn describe(what: &str, args: &AddressArgs) -> Result<String, Failure> {
    let addresses = match parse_address(what) {
        Some(address) => vec![address],
        None => resolve(what).await?,
    };
    let mut out = String::new();
    for address in addresses {
        let verdict = match args.allow_private.networks.check(address) {
            Ok(()) => "may be fetched from".to_owned(),
            Err(refused) => format!("is {}: refused", refused.what),
        };
        writeln!(out, "{address} {verdict}").expect("a string takes everything");
    }
    Ok(out)
}

/// The addresses of a name, without duplicates.
async fn resolve(name: &str) -> Result<Vec<IpAddr>, Failure> {
    let found = lookup_host((name, 0)).await;
    let found =
        found.map_err(|error| Failure::failed(format!("cannot resolve {name}: {error}")))?;
    let mut addresses: Vec<IpAddr> = found.map(|socket| socket.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Parses an address: plain, in brackets, with a zone, or in any form of an IPv4 address in a URL
/// (`0x7f.1`, `2130706433`).
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let (without_zone, zone) = bare.split_once('%').unwrap_or((bare, "0"));
    if let Ok(address) = without_zone.parse::<Ipv6Addr>() {
        return (!zone.is_empty()).then_some(address.into());
    }
    if text.contains(['/', '\\', '?', '#', '@', ':', '[']) {
        return None;
    }
    CanonicalUrl::parse(&format!("http://{text}/")).ok()?.address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_parsed() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1"),
            (" 127.0.0.1. ", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("0x7f.1", "127.0.0.1"),
            ("0177.0.0.01", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("0X7F000001", "127.0.0.1"),
            ("１２７.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]", "fe80::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            assert_eq!(parse_address(text), Some(expected.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_addresses() {
        for text in [
            "",
            "localhost",
            "256.0.0.1",
            "1.2.3.4.5",
            "4294967296",
            "[127.0.0.1]",
            "[::1",
            "::1%",
            ":::",
            "1.2.3.4:80",
            "a@1.2.3.4",
            "1.2.3.4/8",
            "1.2.3.4?",
            "0x7g",
        ] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }
}
