//! Connects to one of several addresses. Each has a short head start over the next, so that an
//! unreachable family or machine costs little time (RFC 8305, without its measurements).

#![expect(clippy::disallowed_methods, reason = "a head start is measured by the clock")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Addresses of one name that are tried for one connection, both families together.
const DIAL_ADDRESSES_MAX: usize = 4;
/// How long one address may take before the next is tried in parallel (RFC 8305 section 5).
const DIAL_HEAD_START: Duration = Duration::from_millis(250);

/// The first connection that succeeds, or the last error.
pub(super) async fn dial(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    let mut waiting = interleave_families(addresses).into_iter();
    let mut dialing = FuturesUnordered::new();
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        dialing.extend(waiting.next().map(async |address| {
            TcpStream::connect(address).await.map(|stream| (stream, address))
        }));
        let ended = if waiting.len() == 0 {
            dialing.next().await
        } else {
            match timeout(DIAL_HEAD_START, dialing.next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        };
        match ended {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(failed)) => error = failed,
            None => return Err(error),
        }
    }
}

/// Alternates the address families, beginning with that of the first address. Within a family, the
/// order of the resolver stays.
fn interleave_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let of = |is_v4: bool| addresses.iter().filter(move |address| address.is_ipv4() == is_v4);
    let (mut first, mut second) = (of(first_is_v4), of(!first_is_v4));
    let alternating = addresses.iter().flat_map(|_| [first.next(), second.next()]);
    alternating.flatten().copied().take(DIAL_ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_alternate() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let addresses = ["[2001::1]:1", "[2001::2]:1", "[2001::3]:1", "1.1.1.1:1", "1.1.1.2:1"];
        let expected = ["[2001::1]:1", "1.1.1.1:1", "[2001::2]:1", "1.1.1.2:1"].map(parse);
        assert_eq!(interleave_families(&addresses.map(parse)), expected[..DIAL_ADDRESSES_MAX]);
        assert_eq!(interleave_families(&[parse("1.1.1.1:1")]), [parse("1.1.1.1:1")]);
    }
}
