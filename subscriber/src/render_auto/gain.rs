//! Compares a rendered page with the fetched one.

use std::collections::HashSet;

use tidings_documents::page::{PageContent, PageLink};
use tidings_protocol::CanonicalUrl;

/// Less text is no content: `Loading`, or an error.
const GAIN_CHARS_MIN: usize = 100;

/// What rendering has added to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Links to other pages of the same host that the fetched page does not have.
    pub links: usize,
    /// Whether it has twice as much text, or more.
    pub has_text: bool,
}

impl Gain {
    /// Compares both forms of the page at `url`, which were read with their signs.
    pub fn between(url: &CanonicalUrl<'_>, fetched: &PageContent, rendered: &PageContent) -> Self {
        let known: HashSet<_> = fetched.links.iter().map(|link| &*link.url).collect();
        let is_new = |link: &&PageLink| {
            !link.nofollow
                && &*link.url != url.as_str()
                && !known.contains(&*link.url)
                && CanonicalUrl::parse(&link.url)
                    .is_ok_and(|link| link.authority() == url.authority())
        };
        let links = rendered.links.iter().filter(is_new).count();
        let chars = |content: &PageContent| content.signs.unwrap_or_default().text_chars;
        let (before, after) = (chars(fetched), chars(rendered));
        Self { links, has_text: after >= 2 * before && after >= before + GAIN_CHARS_MIN }
    }

    /// Whether it has added anything.
    pub fn is_some(self) -> bool {
        self.links > 0 || self.has_text
    }
}
