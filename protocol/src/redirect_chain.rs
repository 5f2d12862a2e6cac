//! The redirects that led to a page. The task of a redirect's target says how many there were
//! (`hops=`), and in a job also which URLs they came from (`chain=`): a job fetches no URL twice, so
//! a circle of redirects ends there before their number is reached. It goes on only if a worker has
//! new cookies.

use crate::UrlKey;

/// Redirects that are followed in a row.
pub const REDIRECTS_MAX: u32 = 10;

/// Adds the URL that redirects to a chain: the value of `chain=` for its target.
pub fn extend_chain(chain: Option<&str>, url: UrlKey) -> String {
    let link = link(url);
    chain.map_or_else(|| link.clone(), |chain| format!("{chain},{link}"))
}

/// Whether a URL is part of a chain.
pub fn is_in_chain(chain: &str, url: UrlKey) -> bool {
    chain.split(',').any(|known| known == link(url))
}

fn link(url: UrlKey) -> String {
    format!("{:016x}", url.fingerprint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CanonicalUrl;

    #[test]
    fn each_url_of_a_chain_is_found() {
        let [a, b, c] =
            ["http://a.org/", "http://b.org/", "http://c.org/"].map(CanonicalUrl::key_of);
        let chain = extend_chain(Some(&extend_chain(None, a)), b);
        assert_eq!([a, b, c].map(|url| is_in_chain(&chain, url)), [true, true, false]);
    }
}
