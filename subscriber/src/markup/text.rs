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

/// A text of HTML without its tags, comments and scripts, references resolved.
pub(crate) fn plain_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    // What is not closed is no tag, and nothing is looked for twice that is not there.
    let open_end = html.len() - html.rfind('>').map_or(0, |at| at + 1);
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(used) = unseen(rest, rest.len() > open_end) {
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

/// How many bytes of HTML that begin with `<` are not seen; `None`: it is a sign like others. A tag is closed by some `>`
/// or by none.
fn unseen(html: &str, is_closed: bool) -> Option<usize> {
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
