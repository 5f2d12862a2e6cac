//! The public URL of this broker.

use std::fmt;
use std::str::FromStr;

use tidings_protocol::CanonicalUrl;

/// A URL that ends in a slash; the paths of the HTTP listener are below it.
#[derive(Debug, Clone)]
pub(crate) struct PublicUrl(CanonicalUrl<'static>);

impl PublicUrl {
    pub(crate) fn host(&self) -> &str {
        self.0.host()
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let slash = if text.ends_with('/') { "" } else { "/" };
        let url = CanonicalUrl::parse(&format!("{text}{slash}"))
            .map_err(|error| error.to_string())?
            .into_owned();
        if url.path_and_query().contains('?') {
            return Err("expected no query, as in https://blog.example/tidings/".to_owned());
        }
        Ok(Self(url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_ends_in_a_slash_and_has_no_query() {
        for (text, url) in [
            ("https://blog.example", "https://blog.example/"),
            ("http://127.0.0.1:12346/", "http://127.0.0.1:12346/"),
            ("https://Blog.example/tidings", "https://blog.example/tidings/"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().unwrap().to_string(), url);
        }
        for text in ["blog.example", "ftp://blog.example/", "https://blog.example/?a=b"] {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
    }
}
