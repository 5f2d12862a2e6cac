//! The sources that may send a webhook.

use std::net::IpAddr;

use tidings_protocol::IpNetwork;

/// The networks from which one webhook is accepted. Default: any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceFilter(Option<Vec<IpNetwork>>);

impl SourceFilter {
    /// Only these networks.
    pub fn only(nets: Vec<IpNetwork>) -> Self {
        Self(Some(nets))
    }

    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.as_ref().is_none_or(|nets| nets.iter().any(|net| net.contains(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_accepts_any_source_or_the_listed_networks() {
        let may = |senders: &SourceFilter, address: &str| senders.allows(address.parse().unwrap());
        assert!(may(&SourceFilter::default(), "192.0.2.1") && may(&SourceFilter::default(), "::1"));
        let only =
            SourceFilter::only(vec!["192.0.2.0/24".parse().unwrap(), "::1".parse().unwrap()]);
        for (address, expected) in [
            ("192.0.2.255", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.3.0", false),
            ("::1", true),
            ("::2", false),
        ] {
            assert_eq!(may(&only, address), expected, "{address}");
        }
        assert!(!may(&SourceFilter::only(Vec::new()), "192.0.2.1"));
    }
}
