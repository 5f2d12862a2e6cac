//! Compares a rendered page with the fetched one.

use std::collections::HashSet;

use tidings_documents::page::{PageContent, PageLink};
use tidings_protocol::{CanonicalUrl, UrlKey};

/// Less text than this does not count as content: it may be `Loading`, or an error.
const GAIN_CHARS_MIN: usize = 100;

/// What rendering has added to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Links to other pages of the same host that the fetched page does not have.
    pub links: usize,
    /// Whether it has twice as much text, or more.
    pub has_text: bool,
}

/// The text length and the links of a fetched page, kept until it was rendered: 16 bytes for each
/// link.
#[derive(Debug)]
pub struct FetchedForm {
    links: HashSet<UrlKey>,
    text_chars: usize,
}

impl FetchedForm {
    /// Of a page that was read with its signs.
    pub fn of(content: &PageContent) -> Self {
        let links = content.links.iter().map(|link| CanonicalUrl::key_of(&link.url)).collect();
        Self { links, text_chars: text_chars(content) }
    }

    /// What the rendered page adds. `url` is its URL.
    pub fn gain(&self, url: &CanonicalUrl<'_>, rendered: &PageContent) -> Gain {
        let is_new = |link: &&PageLink| {
            !link.nofollow
                && &*link.url != url.as_str()
                && !self.links.contains(&CanonicalUrl::key_of(&link.url))
                && CanonicalUrl::parse(&link.url)
                    .is_ok_and(|link| link.authority() == url.authority())
        };
        let chars = text_chars(rendered);
        Gain {
            links: rendered.links.iter().filter(is_new).count(),
            has_text: chars >= 2 * self.text_chars && chars >= self.text_chars + GAIN_CHARS_MIN,
        }
    }
}

fn text_chars(content: &PageContent) -> usize {
    content.signs.unwrap_or_default().text_chars
}

impl Gain {
    /// Whether it has added anything.
    pub fn is_some(self) -> bool {
        self.links > 0 || self.has_text
    }
}
