//! Parses the header `Link` (RFC 8288).

use std::borrow::Cow;

/// A link of a header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderLink<'a> {
    pub(super) target: &'a str,
    pub(super) relations: Cow<'a, str>,
    /// The media type.
    pub(super) kind: Option<Cow<'a, str>>,
    /// It has an `anchor`: it is a link of another page.
    pub(super) has_anchor: bool,
}

/// The links of a value, up to the first syntax error (appendix B.2).
pub(super) fn parse_links(mut value: &str) -> impl Iterator<Item = HeaderLink<'_>> {
    std::iter::from_fn(move || {
        value = value.trim_start_matches([' ', '\t', ',']);
        let (target, rest) = value.strip_prefix('<')?.split_once('>')?;
        let mut link = HeaderLink { target, ..HeaderLink::default() };
        value = parameters(rest, &mut link);
        Some(link)
    })
}

/// Reads the parameters of a link; the first with each name counts. Returns the rest.
fn parameters<'a>(mut rest: &'a str, link: &mut HeaderLink<'a>) -> &'a str {
    let mut has_relations = false;
    loop {
        rest = rest.trim_start_matches(SPACE);
        let Some(parameter) = rest.strip_prefix(';') else {
            // Anything else here is skipped.
            return rest.find(',').map_or("", |comma| &rest[comma..]);
        };
        let parameter = parameter.trim_start_matches(SPACE);
        let end = parameter.find([' ', '\t', '=', ';', ',']).unwrap_or(parameter.len());
        let (name, after) = parameter.split_at(end);
        let (value, after) = match after.trim_start_matches(SPACE).strip_prefix('=') {
            Some(value) => parameter_value(value.trim_start_matches(SPACE)),
            None => (Cow::Borrowed(""), after),
        };
        rest = after;
        match name.to_ascii_lowercase().as_str() {
            "rel" if !has_relations => {
                has_relations = true;
                link.relations = value;
            }
            "type" if link.kind.is_none() => link.kind = Some(value),
            "anchor" => link.has_anchor = true,
            _ => {}
        }
    }
}

const SPACE: [char; 2] = [' ', '\t'];

/// A token or a quoted string, and the rest.
fn parameter_value(text: &str) -> (Cow<'_, str>, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',', ' ', '\t']).unwrap_or(text.len());
        return (Cow::Borrowed(&text[..end]), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (Cow::Owned(value), &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(c),
        }
    }
    (Cow::Owned(value), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_by_the_grammar() {
        let read = |value| {
            parse_links(value)
                .map(|it| {
                    let kind = it.kind.unwrap_or_default().into_owned();
                    (it.target, it.relations.into_owned(), kind, it.has_anchor)
                })
                .collect::<Vec<_>>()
        };
        let link = |target, rel: &str| (target, rel.to_owned(), String::new(), false);
        for (value, expected) in [
            ("", vec![]),
            ("</a>; rel=next", vec![link("/a", "next")]),
            (
                "</a>;rel=\"prev  next\" , <b,;c>; REL = last",
                vec![link("/a", "prev  next"), link("b,;c", "last")],
            ),
            (", ,</a> ;; rel=next; rel=prev;,", vec![link("/a", "next")]),
            ("</a>; title=\"x\\\", <no>; rel=y\"; rel=\"n\\ext\"", vec![link("/a", "next")]),
            ("</a>; rel, </b>; rel=", vec![link("/a", ""), link("/b", "")]),
            ("</a>; rel=next rubbish, </b>", vec![link("/a", "next"), link("/b", "")]),
            (
                "</a>; type=\"text/html\"; rel=up",
                vec![("/a", "up".to_owned(), "text/html".to_owned(), false)],
            ),
            ("</a>; anchor=\"/x\"; rel=up", vec![("/a", "up".to_owned(), String::new(), true)]),
            ("rubbish, </a>", vec![]),
            ("</a", vec![]),
            ("</a>; rel=\"unfinished", vec![link("/a", "unfinished")]),
            ("</a>; rel*=UTF-8''next; title=é", vec![link("/a", "")]),
        ] {
            assert_eq!(read(value), expected, "{value}");
        }
    }
}
