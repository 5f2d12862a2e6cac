//! Scope: which URLs belong to a job.

use std::collections::BTreeSet;

use tidings_protocol::{CanonicalUrl, ScopeRule};

/// A rule, with the hosts, domains or prefixes of the seeds so far (and of their redirects).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    rule: ScopeRule,
    admitted: BTreeSet<Box<str>>,
}

impl Scope {
    /// Creates a scope without seeds.
    pub fn new(rule: ScopeRule) -> Self {
        Self { rule, admitted: BTreeSet::new() }
    }

    /// Reports whether the seeds restrict the scope.
    pub fn has_rule(&self) -> bool {
        self.rule != ScopeRule::Any
    }

    /// Counts the hosts, domains or prefixes. The number only grows during a pass.
    pub fn extent(&self) -> usize {
        self.admitted.len()
    }

    /// Adds a seed, or the target of a seed's redirect.
    pub fn admit(&mut self, url: &CanonicalUrl) {
        let part = match self.rule {
            ScopeRule::Host => url.host(),
            ScopeRule::Domain => url.domain(),
            ScopeRule::Prefix => directory(url),
            ScopeRule::Any => return,
        };
        if !self.admitted.contains(part) {
            self.admitted.insert(part.into());
        }
    }

    /// Returns the same rule without seeds.
    pub(crate) fn without_parts(&self) -> Self {
        Self::new(self.rule)
    }

    /// Returns the hosts, domains or prefixes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.admitted.iter().map(|part| &**part)
    }

    /// Restores a host, domain or prefix from a snapshot.
    pub(crate) fn restore_part(&mut self, part: &str) {
        self.admitted.insert(part.into());
    }

    /// Reports whether a link to this URL belongs to the job.
    pub fn contains(&self, url: &CanonicalUrl) -> bool {
        match self.rule {
            ScopeRule::Host => self.admitted.contains(url.host()),
            ScopeRule::Domain => self.admitted.contains(url.domain()),
            ScopeRule::Prefix => self.contains_prefix_of(url.as_str()),
            ScopeRule::Any => true,
        }
    }

    /// Looks up the URL up to each of its slashes, so that the cost does not grow with the number
    /// of seeds.
    fn contains_prefix_of(&self, url: &str) -> bool {
        url.bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'/')
            .any(|(slash, _)| self.admitted.contains(&url[..=slash]))
    }
}

/// Returns a URL up to the last slash of its path.
fn directory<'a>(url: &'a CanonicalUrl<'_>) -> &'a str {
    let text = url.as_str();
    let path_end = text.find('?').unwrap_or(text.len());
    let slash = text[..path_end].rfind('/').expect("a canonical URL has a path");
    &text[..=slash]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> CanonicalUrl<'_> {
        CanonicalUrl::parse(text).unwrap()
    }

    #[track_caller]
    fn assert_scope(rule: ScopeRule, seed: &str, inside: &[&str], outside: &[&str]) {
        let mut scope = Scope::new(rule);
        scope.admit(&url(seed));
        for text in inside {
            assert!(scope.contains(&url(text)), "{text} belongs to {rule:?} of {seed}");
        }
        for text in outside {
            assert!(!scope.contains(&url(text)), "{text} does not belong to {rule:?} of {seed}");
        }
    }

    #[test]
    fn host_is_the_name_without_scheme_and_port() {
        assert_scope(
            ScopeRule::Host,
            "http://a.example.org/x",
            &["https://a.example.org/", "http://a.example.org:8080/y"],
            &["http://b.example.org/x", "http://example.org/"],
        );
    }

    #[test]
    fn domain_is_the_registrable_domain() {
        assert_scope(
            ScopeRule::Domain,
            "http://a.example.co.uk/x",
            &["http://b.example.co.uk/", "http://example.co.uk/"],
            &["http://other.co.uk/"],
        );
    }

    #[test]
    fn prefix_ends_at_the_last_slash_of_the_path() {
        assert_scope(
            ScopeRule::Prefix,
            "http://a.org/docs/index.html?x=/y/",
            &["http://a.org/docs/", "http://a.org/docs/deep/er.html"],
            &["http://a.org/", "http://a.org/docs2/", "https://a.org/docs/"],
        );
    }
}
