//! Resolves links by joining texts, where the result is certain.

use std::borrow::Cow;

use super::parts::UrlParts;
use super::{CanonicalUrl, UrlError, check_length, trim_blanks};

impl CanonicalUrl<'_> {
    /// Like [`CanonicalUrl::join`], into a text that can be reused for the next link. A relative
    /// link is joined without a parser if the result passes the fast check for canonical form, as
    /// it does for nearly all links; a page has many.
    pub fn join_into<'t>(
        &self,
        link: &str,
        text: &'t mut String,
    ) -> Result<CanonicalUrl<'t>, UrlError> {
        let link = check_length(trim_blanks(link))?;
        self.join_text(link, text);
        let parts = if let Some(parts) = UrlParts::parse_plain(text) {
            parts
        } else {
            let joined = self.join(link)?;
            text.clear();
            text.push_str(joined.as_str());
            joined.parts
        };
        check_length(text)?;
        Ok(CanonicalUrl { text: Cow::Borrowed(text), parts })
    }

    /// Writes the target of the link if that passes the fast check. Otherwise the written text is
    /// wrong, and fails the check, too.
    fn join_text(&self, link: &str, text: &mut String) {
        let link = link.split_once('#').map_or(link, |(link, _fragment)| link);
        let before = match link.as_bytes() {
            [b'/', b'/', ..] => self.parts.host_start - "//".len(),
            [b'/', ..] => self.parts.path_start,
            [] => self.as_str().len(),
            [b'?', ..] => self.parts.path_end,
            _ if is_absolute(link) => 0,
            _ => self.parts.path_start + self.path().rfind('/').map_or(0, |slash| slash + 1),
        };
        text.clear();
        text.push_str(self.part(0, before));
        let link =
            if before > self.parts.path_start { self.resolve_dots(link, text) } else { link };
        text.push_str(link);
    }

    /// Removes the `./` and `../` at the beginning of a link, and the matching segments at the end
    /// of a text that ends with `/`. Dots that remain anywhere fail the fast check.
    fn resolve_dots<'l>(&self, mut link: &'l str, text: &mut String) -> &'l str {
        loop {
            if let Some(rest) = link.strip_prefix("./") {
                link = rest;
            } else if let Some(rest) = link.strip_prefix("../") {
                let path = text.get(self.parts.path_start..).unwrap_or_default();
                let above = path.strip_suffix('/').and_then(|path| path.rsplit_once('/'));
                let (above, segment) = above.unwrap_or_default();
                if is_drive_letter(segment) {
                    return link;
                }
                link = rest;
                text.truncate(self.parts.path_start + above.len() + 1);
            } else {
                return link;
            }
        }
    }
}

/// Whether a segment looks like a Windows drive letter. The `url` crate goes up past none, although
/// the standard says so only for the URLs of files.
fn is_drive_letter(segment: &str) -> bool {
    matches!(segment.as_bytes(), [letter, b':' | b'|'] if letter.is_ascii_alphabetic())
}

/// Whether a link begins with a scheme, or may begin with one.
fn is_absolute(link: &str) -> bool {
    let colon = link.bytes().find(|byte| matches!(byte, b':' | b'/' | b'?'));
    colon == Some(b':')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(page: &str, link: &str) {
        let page = CanonicalUrl::parse(page).unwrap();
        let mut text = "left over".to_owned();
        let quick = page.join_into(link, &mut text);
        assert_eq!(quick, page.join(link), "{link:?} at {page}");
    }

    const PAGES: [&str; 9] = [
        "http://a.example/",
        "https://a.example:8080/dir/page?query/with?slash",
        "http://a.example/dir/sub//page",
        "http://127.0.0.1/a/b/c/",
        "http://[::1]/x",
        "http://a.example/%C3%A9/d%20e/'/f",
        "http://xn--bcher-kva.example/?q",
        "http://a.example/c:/b/",
        "http://a.example/a/c:/",
    ];

    #[test]
    fn links_are_joined_as_the_parser_does() {
        for page in PAGES {
            for link in [
                "",
                "#x",
                "?",
                "?q=1#x",
                "/",
                "/x",
                "/x/../y",
                "//",
                "//b.example",
                "//b.example/x",
                "///x",
                "x",
                "x/y?z",
                "./x",
                "./",
                "../",
                "..",
                ".",
                "../x",
                "../../x",
                "../../../../../x",
                "./.././x",
                "../x/../y",
                "../?q",
                "../#x",
                "x:y",
                "x/y:z",
                "?x:y",
                "12:30",
                "http:x",
                "http:/x",
                "http://",
                "http://b.example",
                "HTTP://B.example/X",
                "https://b.example/x#y",
                "mailto:x@y",
                "javascript:x",
                "\\x",
                "/\\b.example",
                "x\\y",
                "x y",
                " x ",
                "x\ny",
                "/é",
                "?é",
                "%2e%2e/x",
                "/%2E./x",
                "/.x",
                "x/.y",
                "..x/y",
                "/x%41",
                "//b.example:80/",
                "//u@b.example/",
                "/a'b",
                "?a'b",
                "a b#",
                "\u{a0}x",
            ] {
                check(page, link);
            }
            check(page, &"x".repeat(crate::canonical_url::URL_BYTES_MAX));
            check(page, &"x".repeat(crate::canonical_url::URL_BYTES_MAX - page.len()));
        }
    }

    proptest! {
        #[test]
        fn any_link_is_joined_as_the_parser_does(
            page in prop::sample::select(PAGES.as_slice()),
            link in prop_oneof![
                "(\\.?\\./|/|//|[a-z?#:.%@2eE' \\\\é-]|http:|https://){0,12}",
                "(\\.\\./|\\./){0,4}[a-z/.]{0,8}(\\?[a-z=&/']{0,4})?(#[a-z]{0,2})?",
            ],
        ) {
            check(page, &link);
        }
    }
}
