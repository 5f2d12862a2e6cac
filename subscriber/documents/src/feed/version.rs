//! Identifies the versions of a watched page by a digest.
//!
//! For HTML the digest covers what a reader of the page sees (`crate::page`), for any other
//! document its bytes.

use crate::page::{PageReader, is_html};

/// The digest of a document while it is read. It does not depend on how the document is split.
#[derive(Debug)]
pub(super) enum VersionDigest {
    Html(Box<PageReader>),
    Bytes(Box<blake3::Hasher>),
}

impl VersionDigest {
    /// For a document with this `Content-Type` header.
    pub(super) fn new(content_type: Option<&str>) -> Self {
        match content_type.filter(|content_type| is_html(content_type)) {
            Some(html) => Self::Html(Box::new(PageReader::for_digest(html))),
            None => Self::Bytes(Box::default()),
        }
    }

    /// Reads the next decompressed bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Html(page) => page.feed(bytes),
            Self::Bytes(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// Ends the document.
    pub(super) fn finish(self) -> u64 {
        first_u64(match self {
            Self::Html(page) => page.version(),
            Self::Bytes(hasher) => hasher.finalize(),
        })
    }
}

/// The first 64 bits of a hash.
pub(super) fn first_u64(hash: blake3::Hash) -> u64 {
    u64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use crate::feed::{FeedReader, parse};

    fn version(kind: &str, text: &str) -> u64 {
        let whole = parse(text.as_bytes(), Some(kind), None);
        let mut reader = FeedReader::new(Some(kind));
        text.as_bytes().chunks(1).for_each(|byte| reader.feed(byte));
        assert_eq!(reader.finish(None), whole, "{text}");
        whole.version.expect("it is not a feed")
    }

    fn page(head: &str, body: &str) -> u64 {
        let text = format!("<!doctype html><html><head>{head}</head>\n<body>{body}</body></html>");
        version("text/html; charset=utf-8", &text)
    }

    #[test]
    fn a_page_has_a_new_version_when_its_visible_content_changes() {
        let (title, body) = ("<title>t</title>", "<p>é  b</p><a href=/x>c</a><img src=/1.png>");
        let first = page(title, body);
        let more = |more: &str| page(title, &format!("{more}{body}"));
        let same = [
            page("<title>t</title><meta name=csrf content=1>", body),
            page("<title> t\n</title><link rel=stylesheet href=/s?2>", body),
            page(title, &body.replace("é  b", "é\n b")),
            page(title, &body.replace("/x", "\" /x \" class=1")),
            more("<script src=/s?1>if (1<2) f('</p>')</script>"),
            more(
                "<!-- 5 ms --><style>p{}</style><textarea>x</textarea><input type=hidden value=2>",
            ),
            more(&format!("<img src=\"data:{}\">", "x".repeat(crate::page::TAG_BYTES_MAX))),
        ];
        assert_eq!(same, [first; 7]);
        for (was, is) in [("é  b", "éb"), ("/x", "/y"), ("/1.png", "/2.png"), (">c<", ">d<")] {
            assert_ne!(page(title, &body.replace(was, is)), first, "{is}");
            let script = "<script>if (1<2) f('</p>')</script>";
            assert_ne!(page(title, &(script.to_owned() + &body.replace(was, is))), first, "{is}");
        }
        assert_ne!(page("<title>u</title>", body), first);
    }

    #[test]
    fn all_bytes_of_other_documents_count() {
        assert_ne!(version("text/plain", "a b"), version("text/plain", "a  b"));
        assert_ne!(
            version("application/json", "{\"a\":1}"),
            version("application/json", "{\"a\":2}")
        );
        assert_ne!(version("image/png", "\u{1}"), version("image/png", "\u{2}"));
    }
}
