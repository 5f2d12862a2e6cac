//! Flags for limits of sources and principals.

use clap::Args;
use tidings_broker::{Quantity, Quota, QuotaConfig};

use crate::flags::parse_bytes;

/// The limits of each source and each principal.
#[derive(Debug, Clone, Args)]
pub(crate) struct QuotaFlags {
    /// Change a limit, such as source.connections=64; may be repeated
    ///
    /// source limits each IP address, principal each name that logs in. The limits are connections,
    /// connects (per minute), events and bytes (per second), topics, cursors, subscriptions,
    /// groups, jobs, credit and parked (bytes that wait for the client). The value is a number,
    /// with k, m or g as unit, or none. The protocol lists the defaults and the effect of each.
    #[arg(long, value_name = "SUBJECT.QUANTITY=N", value_parser = parse_limit)]
    limit: Vec<QuotaLimit>,

    /// Apply source limits to loopback addresses too, for example behind a proxy without limits
    #[arg(long)]
    limit_loopback: bool,
}

/// One changed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QuotaLimit {
    subject: QuotaSubject,
    quantity: Quantity,
    max: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuotaSubject {
    Source,
    Principal,
}

fn parse_limit(text: &str) -> Result<QuotaLimit, String> {
    let wrong = || "expected SUBJECT.QUANTITY=N, such as source.connections=64".to_owned();
    let (name, max) = text.split_once('=').ok_or_else(wrong)?;
    let (subject, quantity) = name.split_once('.').ok_or_else(wrong)?;
    let subject = match subject {
        "source" => QuotaSubject::Source,
        "principal" => QuotaSubject::Principal,
        _ => return Err(format!("{subject}: expected source or principal")),
    };
    let quantity = quantity.parse::<Quantity>()?;
    let max = match max {
        "none" => u64::MAX,
        "0" if quantity.is_held() => 0,
        max => parse_bytes(max).map_err(|_| format!("{max}: expected 64, 10k, 16m or none"))?,
    };
    Ok(QuotaLimit { subject, quantity, max })
}

impl QuotaFlags {
    /// The limits with these changes.
    pub(crate) fn config(&self) -> QuotaConfig {
        let mut config =
            QuotaConfig { counts_loopback: self.limit_loopback, ..QuotaConfig::default() };
        for QuotaLimit { subject, quantity, max } in &self.limit {
            let quota: &mut Quota = match subject {
                QuotaSubject::Source => &mut config.source,
                QuotaSubject::Principal => &mut config.principal,
            };
            *quota = quota.clone().with(*quantity, *max);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_subject_and_a_quantity() {
        let limit = |text: &str| parse_limit(text);
        let connections = Quantity::Connections;
        let expected = QuotaLimit { subject: QuotaSubject::Source, quantity: connections, max: 64 };
        assert_eq!(limit("source.connections=64"), Ok(expected));
        let expected = QuotaLimit {
            subject: QuotaSubject::Principal,
            quantity: Quantity::Bytes,
            max: 16 << 20,
        };
        assert_eq!(limit("principal.bytes=16m"), Ok(expected));
        assert_eq!(limit("source.jobs=none").map(|limit| limit.max), Ok(u64::MAX));
        assert_eq!(limit("source.topics=0").map(|limit| limit.max), Ok(0));
        for wrong in
            ["", "source", "source.connections", "all.jobs=1", "source.x=1", "source.events=0"]
        {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
