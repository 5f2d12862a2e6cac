//! Parses values of attributes: lists of words, the target of a refresh, the candidates of a
//! `srcset`.

/// Whether a list of words, such as `rel`, contains this one.
pub(super) fn has_word(list: &str, word: &str) -> bool {
    list.split(|c: char| c.is_ascii_whitespace()).any(|it| it.eq_ignore_ascii_case(word))
}

/// Relations of a link to a page for readers.
const PAGE_RELATIONS: &[&str] = &[
    "alternate",
    "author",
    "canonical",
    "contents",
    "copyright",
    "first",
    "glossary",
    "help",
    "home",
    "index",
    "last",
    "license",
    "next",
    "prev",
    "previous",
    "search",
    "start",
    "toc",
    "top",
    "up",
];

/// Whether a link with these relations leads to a page for readers, and not to a style sheet, an
/// icon or the like.
pub(super) fn is_page_relation(relations: &str) -> bool {
    PAGE_RELATIONS.iter().any(|relation| has_word(relations, relation))
        && !has_word(relations, "stylesheet")
}

/// The media type without parameters, also if a blank or a comma precedes them, as in browsers.
pub fn essence(content_type: &str) -> &str {
    content_type.trim().split([';', ',', ' ', '\t']).next().unwrap_or_default()
}

/// Whether a `Content-Type` names a type. Otherwise the document counts as one without a type (MIME
/// Sniffing standard, section 7).
pub fn is_media_type(content_type: &str) -> bool {
    let essence = essence(content_type);
    let is_unknown =
        ["*/*", "unknown/unknown", "application/unknown"].contains(&&*essence.to_ascii_lowercase());
    let is_token = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !name.is_empty() && name.bytes().all(is_part)
    };
    let names = essence.split_once('/');
    !is_unknown && names.is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}

/// Whether a media type is that of a feed.
pub(super) fn is_feed(content_type: &str) -> bool {
    let kind = essence(content_type);
    ["application/rss+xml", "application/atom+xml", "application/feed+json"]
        .iter()
        .any(|feed| kind.eq_ignore_ascii_case(feed))
}

/// The target of a `<meta http-equiv=refresh>`, or of the header `Refresh`, such as `5; url='there'` (HTML standard, 4.2.5.3);
/// `None` if it is invalid, or the page itself.
pub(super) fn refresh_target(content: &str) -> Option<&str> {
    let is_space = |c: char| c.is_ascii_whitespace();
    let content = content.trim_start_matches(is_space);
    let rest = content.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    if rest.len() == content.len() || !rest.starts_with([';', ',', ' ', '\t', '\n', '\r', '\x0c']) {
        return None;
    }
    let rest = rest.trim_start_matches(is_space);
    let rest = rest.strip_prefix([';', ',']).unwrap_or(rest).trim_start_matches(is_space);
    let named = rest
        .get(..3)
        .filter(|name| name.eq_ignore_ascii_case("url"))
        .and_then(|_| rest[3..].trim_start_matches(is_space).strip_prefix('='));
    let target = named.map_or(rest, |target| target.trim_start_matches(is_space));
    let target = match target.chars().next()? {
        quote @ ('"' | '\'') => target[1..].split(quote).next()?,
        _ => target,
    };
    Some(target)
}

/// The URLs of a `srcset` (HTML standard, 4.8.4.3.6), with any descriptors.
pub(super) fn srcset(mut list: &str) -> impl Iterator<Item = &str> {
    let is_space = |c: char| c.is_ascii_whitespace();
    std::iter::from_fn(move || {
        list = list.trim_start_matches(|c: char| is_space(c) || c == ',');
        if list.is_empty() {
            return None;
        }
        let (url, rest) = list.split_at(list.find(is_space).unwrap_or(list.len()));
        let bare = url.trim_end_matches(',');
        list = if bare.len() < url.len() { rest } else { after_descriptors(rest) };
        Some(bare)
    })
}

/// The text after the comma that ends the descriptors of a candidate. Commas in parentheses do not
/// end them.
fn after_descriptors(rest: &str) -> &str {
    let mut is_in_parentheses = false;
    let end = rest.find(|c| {
        match c {
            '(' => is_in_parentheses = true,
            ')' => is_in_parentheses = false,
            _ => {}
        }
        c == ',' && !is_in_parentheses
    });
    end.map_or("", |end| &rest[end + 1..])
}
