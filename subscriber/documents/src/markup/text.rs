//! Texts and references in feeds and sitemaps.

use std::borrow::Cow;

use tidings_protocol::CanonicalUrl;

/// Bytes of the relative references of one document that are joined, each with its base: a tenth of
/// a second, when each is parsed. Honest documents of `SITEMAP_URLS_MAX` entries stay below this.
pub(crate) const JOINED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The text of HTML without tags, comments and scripts, with references resolved.
pub(crate) fn plain_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    // An unclosed `<` is not a tag, so its end is searched only once.
    let open_end = html.len() - html.rfind('>').map_or(0, |at| at + 1);
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(used) = invisible_bytes(rest, rest.len() > open_end) {
            rest = &rest[used..];
        } else {
            text.push('<');
            rest = &rest[1..];
        }
    }
    text.push_str(rest);
    match htmlize::unescape(text.as_str()) {
        Cow::Borrowed(_) => text,
        Cow::Owned(text) => text,
    }
}

/// The length of a tag, comment or script at the beginning of `html`, which begins with `<`.
/// `None`: the `<` is text. `is_closed`: there is a `>` after it.
fn invisible_bytes(html: &str, is_closed: bool) -> Option<usize> {
    let until = |from: usize, end: &str| {
        html[from..].find(end).map_or(html.len(), |at| from + at + end.len())
    };
    if html.starts_with("<!--") {
        return Some(until(4, "-->"));
    }
    let is_tag = html[1..].starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
    if !is_tag || !is_closed {
        return None;
    }
    let end = html.find('>')? + 1;
    for name in ["script", "style"] {
        let begins = html.get(1..=name.len()).is_some_and(|tag| tag.eq_ignore_ascii_case(name));
        if begins && !html[1 + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let end = until(end, "</");
            return Some(until(end, ">"));
        }
    }
    Some(end)
}

/// Resolves references and counts the cost: a relative reference also reads its base, which may be
/// a thousand times longer.
#[derive(Debug, Default)]
pub(crate) struct ReferenceResolver {
    /// Bytes of relative references and their bases.
    bytes: usize,
}

impl ReferenceResolver {
    /// The limit was reached, and further relative references are not resolved.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes > JOINED_BYTES_MAX
    }

    /// The absolute `http` or `https` URL of a reference; as written if it is absolute.
    pub(crate) fn absolute(
        &mut self,
        reference: &str,
        base: Option<&CanonicalUrl<'_>>,
    ) -> Option<String> {
        let reference = strip_line_breaks(reference)?;
        if let Some(text) = absolute_url(&reference) {
            return Some(text);
        }
        self.join(&reference, base?).map(|url| url.as_str().to_owned())
    }

    /// Like [`absolute`](Self::absolute), as a URL.
    pub(crate) fn url(
        &mut self,
        reference: &str,
        base: Option<&CanonicalUrl<'_>>,
    ) -> Option<CanonicalUrl<'static>> {
        let reference = strip_line_breaks(reference)?;
        if let Ok(url) = CanonicalUrl::parse(&reference) {
            return Some(url.into_owned());
        }
        self.join(&reference, base?)
    }

    fn join(&mut self, reference: &str, base: &CanonicalUrl<'_>) -> Option<CanonicalUrl<'static>> {
        self.bytes += base.as_str().len() + reference.len();
        if self.is_exhausted() {
            return None;
        }
        let mut text = String::new();
        base.join_into(reference, &mut text).ok().map(CanonicalUrl::into_owned)
    }
}

/// An absolute `http` or `https` URL, as written if that is one word.
pub(crate) fn absolute_url(reference: &str) -> Option<String> {
    let url = CanonicalUrl::parse(reference).ok()?;
    let is_one_word = !reference.contains(|c: char| c.is_whitespace() || c.is_control());
    let text = if is_one_word && reference.contains("://") { reference } else { url.as_str() };
    Some(text.to_owned())
}

/// `None` if nothing is left.
fn strip_line_breaks(reference: &str) -> Option<Cow<'_, str>> {
    let reference: Cow<'_, str> = match reference.trim() {
        text if text.contains(['\t', '\r', '\n']) => text.replace(['\t', '\r', '\n'], "").into(),
        text => text.into(),
    };
    (!reference.is_empty()).then_some(reference)
}
