//! What texts of feeds and sitemaps mean.

use std::borrow::Cow;

use tidings_protocol::CanonicalUrl;

/// The text with each run of white space and control characters as one blank, and none at its ends; cut after
/// so many bytes, at a character.
pub(crate) fn fold(text: &str, bytes_max: usize) -> String {
    let mut folded = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if folded.len() > bytes_max {
            break;
        }
        if !word.is_empty() {
            if !folded.is_empty() {
                folded.push(' ');
            }
            folded.push_str(word);
        }
    }
    folded.truncate(folded.floor_char_boundary(bytes_max));
    folded.truncate(folded.trim_end().len());
    folded
}

/// A text of HTML without its tags, references resolved.
pub(crate) fn plain_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_tag = rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || "/!?".contains(c));
        match rest.find('>').filter(|_| is_tag) {
            Some(end) => rest = &rest[end + 1..],
            None => {
                text.push('<');
                rest = &rest[1..];
                if is_tag {
                    // No other one ends either.
                    break;
                }
            }
        }
    }
    text.push_str(rest);
    match htmlize::unescape(text.as_str()) {
        Cow::Borrowed(_) => text,
        Cow::Owned(text) => text,
    }
}

/// The `http` or `https` URL that a reference means, made absolute with the first of these bases that helps; as it is
/// written, where it is absolute already.
pub(crate) fn absolute(reference: &str, bases: &[Option<&str>]) -> Option<String> {
    let reference: Cow<'_, str> = match reference.trim() {
        text if text.contains(['\t', '\r', '\n']) => text.replace(['\t', '\r', '\n'], "").into(),
        text => text.into(),
    };
    if reference.is_empty() {
        return None;
    }
    if let Ok(url) = CanonicalUrl::parse(&reference) {
        let is_one_word = !reference.contains(|c: char| c.is_whitespace() || c.is_control());
        let has_slashes = reference.contains("://");
        return Some(if is_one_word && has_slashes {
            reference.into_owned()
        } else {
            url.as_str().to_owned()
        });
    }
    let base = bases.iter().flatten().find_map(|base| CanonicalUrl::parse(base).ok())?;
    base.join(&reference).ok().map(|url| url.as_str().to_owned())
}
