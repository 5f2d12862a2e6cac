//! Templates of text with the parts of an event. Pure.

use std::str::FromStr;

use super::Event;

/// The longest template, in bytes.
const TEMPLATE_BYTES_MAX: usize = 4 << 10;

/// The part of a template that an error shows.
const SHOWN_CHARS_MAX: usize = 20;

/// A template, such as `{target} has changed: {attr.status}`.
///
/// A name in braces stands for a part of an event. Braces around anything with a quote, a colon or
/// other braces, and empty ones, stand for themselves, so a template can be JSON. All braces are in
/// pairs, because a single one is usually half of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// `{target}`: the URL or path; empty if the event is text.
    Target,
    /// `{payload}`: the whole event.
    Payload,
    /// `{id}`: `<topic>/<seq>`.
    Id,
    /// `{attr.NAME}`: an attribute; empty if the event lacks it.
    Attribute(String),
}

/// How values are written, so that an event cannot change the meaning of the text around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    Nothing,
    /// For a place between the quotes of a JSON string.
    Json,
    /// For Slack, where `<` begins links and mentions, and for chats that take its messages and
    /// understand `@all` and the like.
    Slack,
}

/// What is mentioned with `@` to notify all members of a chat, or all present ones.
const EVERYONE: [&str; 4] = ["all", "channel", "everyone", "here"];

/// Between `@` and the rest of a mention it makes the mention plain text. It is invisible.
const ZERO_WIDTH_SPACE: char = '\u{200b}';

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("expected 1 to {TEMPLATE_BYTES_MAX} bytes"));
        }
        check_pairs(text)?;
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            literal.push_str(before);
            let inside = behind[1..].split_once('}').map(|(inside, _)| inside);
            let is_name = |inside: &&str| !inside.is_empty() && !inside.contains(['{', '"', ':']);
            let Some(name) = inside.filter(is_name) else {
                literal.push('{');
                rest = &behind[1..];
                continue;
            };
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::parse(name)?);
            rest = &behind[name.len() + "{}".len()..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self(pieces))
    }
}

/// Rejects a brace without its counterpart.
fn check_pairs(text: &str) -> Result<(), String> {
    let mut open = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => open.push(at),
            '}' if open.pop().is_none() => return Err(unpaired(text, at, '{')),
            _ => (),
        }
    }
    open.pop().map_or(Ok(()), |at| Err(unpaired(text, at, '}')))
}

/// The error for the brace at this byte.
fn unpaired(text: &str, at: usize, counterpart: char) -> String {
    let shown: String = text[at..].chars().take(SHOWN_CHARS_MAX).collect();
    let character = text[..at].chars().count() + 1;
    format!(
        "the brace of {shown:?}, character {character}, has no {counterpart:?}; a name is written \
         as in {{target}}, and in a JSON string a single brace as \\u007b or \\u007d"
    )
}

impl Piece {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match (name, name.strip_prefix("attr.")) {
            ("target", _) => Self::Target,
            ("payload", _) => Self::Payload,
            ("id", _) => Self::Id,
            (_, Some(attribute)) if is_attribute(attribute) => {
                Self::Attribute(attribute.to_owned())
            }
            _ => {
                return Err(format!(
                    "{{{name}}} is unknown; the names are {{target}}, {{payload}}, {{id}} and \
                     {{attr.NAME}}"
                ));
            }
        })
    }
}

fn is_attribute(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

impl Default for Template {
    /// `{payload}`
    fn default() -> Self {
        Self(vec![Piece::Payload])
    }
}

impl Template {
    pub(super) fn render(&self, event: &Event, escape: Escape) -> String {
        let payload = event.payload();
        self.render_with(escape, |piece| match piece {
            Piece::Literal(literal) => literal,
            Piece::Target => payload.target().unwrap_or_default(),
            Piece::Payload => payload.text(),
            Piece::Id => &event.id,
            Piece::Attribute(name) => payload.attribute(name).unwrap_or_default(),
        })
    }

    /// With what `value` returns for each piece that is not a literal.
    fn render_with<'a>(&'a self, escape: Escape, value: impl Fn(&'a Piece) -> &'a str) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            let begin = text.len();
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                name => escape.push(value(name), &mut text),
            }
            if escape == Escape::Slack {
                break_mention_across(begin, &mut text);
            }
        }
        text
    }

    /// The reason why the text with values in it is not JSON.
    pub(super) fn check_json(&self) -> Result<(), serde_json::Error> {
        // Outside of a JSON string it is an error.
        let text = self.render_with(Escape::Json, |_| "\"\\");
        serde_json::from_str::<serde::de::IgnoredAny>(&text).map(drop)
    }
}

impl Escape {
    fn push(self, value: &str, text: &mut String) {
        match self {
            Self::Nothing => text.push_str(value),
            Self::Json => {
                let quoted = serde_json::Value::from(value).to_string();
                text.push_str(&quoted[1..quoted.len() - 1]);
            }
            Self::Slack => {
                for (at, c) in value.char_indices() {
                    let behind = &value[at + c.len_utf8()..];
                    match c {
                        // That `<` is of the template.
                        '!' | '@' if text.ends_with('<') => text.extend([ZERO_WIDTH_SPACE, c]),
                        '<' => text.push_str("&lt;"),
                        '>' => text.push_str("&gt;"),
                        // The other chats show `&amp;` as it is.
                        '&' if is_entity(behind) => text.push_str("&amp;"),
                        '@' if text.ends_with("&lt;") || is_everyone(behind) => {
                            text.extend(['@', ZERO_WIDTH_SPACE]);
                        }
                        c => text.push(c),
                    }
                }
            }
        }
    }
}

/// Makes a mention of everyone plain text if it begins before `border`, where the last piece of the
/// text begins, and ends behind it. One within a literal is the intention of the template.
fn break_mention_across(border: usize, text: &mut String) {
    let Some(at) = text[..border].rfind('@') else { return };
    let behind = at + '@'.len_utf8();
    if is_everyone(&text[behind..]) && !is_everyone(&text[behind..border]) {
        text.insert(behind, ZERO_WIDTH_SPACE);
    }
}

/// Whether Slack reads `&` with this text behind it as another character.
fn is_entity(text: &str) -> bool {
    ["amp;", "lt;", "gt;"].iter().any(|entity| text.starts_with(entity))
}

/// Whether a chat may read `@` with this text behind it as a mention of all its members.
fn is_everyone(text: &str) -> bool {
    let begins_with =
        |word: &&str| text.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    EVERYONE.iter().any(begins_with)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn render(template: &str, payload: &str, escape: Escape) -> String {
        let event = Event { id: "t/7".to_owned(), payload: payload.to_owned() };
        template.parse::<Template>().unwrap().render(&event, escape)
    }

    #[test]
    fn names_stand_for_parts_of_the_event() {
        let page = "http://a.example/ status=404 status=200 reason=gone";
        for (template, payload, text) in [
            ("{target} is {attr.status}: {attr.reason}", page, "http://a.example/ is 404: gone"),
            ("{id}: {payload}", "some text", "t/7: some text"),
            ("[{target}{attr.status}]", "status=404 some text", "[]"),
            ("{attr.none}|{attr.a-b_c.d}", "/x a-b_c.d=1", "|1"),
            ("{payload}{payload}", "x", "xx"),
        ] {
            assert_eq!(render(template, payload, Escape::Nothing), text, "{template}");
        }
        let event = Event { id: "t/7".to_owned(), payload: page.to_owned() };
        assert_eq!(Template::default().render(&event, Escape::Nothing), page);
    }

    #[test]
    fn braces_without_a_name_stand_for_themselves() {
        for template in ["{}", "{\"a\": 1}", "{\"a\": {\"b\": {}}}", "p {color: red}"] {
            assert_eq!(render(template, "x", Escape::Nothing), template);
        }
        assert_eq!(render("{{target}}", "/x", Escape::Nothing), "{/x}");
    }

    #[test]
    fn a_brace_without_its_counterpart_is_an_error_with_its_place() {
        for (template, shown) in [
            ("{target has changed", "\"{target has changed\", character 1, has no '}'; "),
            ("ä {target} {payload", "\"{payload\", character 12, has no '}'; "),
            ("target} {id}", "\"} {id}\", character 7, has no '{'; "),
            ("{", "\"{\", character 1, has no '}'; "),
            ("{\"a\": \"{payload}\"", "\"{\\\"a\\\": "),
            ("{\"a\": \"{target\"}", "\"{\\\"a\\\": "),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert!(error.starts_with(&format!("the brace of {shown}")), "{template}: {error}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_known_ones() {
        for (template, name) in [
            ("{tartget}", "{tartget}"),
            ("a {target} {attr.} b", "{attr.}"),
            ("{Target}", "{Target}"),
            ("{attr}", "{attr}"),
            ("{seq.x}", "{seq.x}"),
            ("{ target }", "{ target }"),
            ("{tar get}", "{tar get}"),
            ("{attr.ä}", "{attr.ä}"),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert!(error.starts_with(&format!("{name} is unknown; ")), "{error}");
            assert!(error.ends_with("{target}, {payload}, {id} and {attr.NAME}"), "{error}");
        }
        for length in [0, TEMPLATE_BYTES_MAX + 1] {
            let error = "x".repeat(length).parse::<Template>().unwrap_err();
            assert_eq!(error, "expected 1 to 4096 bytes");
        }
    }

    #[test]
    fn values_are_not_templates() {
        let payload = "/{payload} a={target}";
        assert_eq!(
            render("{payload}|{attr.a}", payload, Escape::Nothing),
            "/{payload} a={target}|{target}"
        );
    }

    #[test]
    fn hostile_values_stay_values() {
        let hostile = "/\"}],\"x\":\\u0022\t\u{1}\u{2028}<!channel><http://b.example|a>&amp;";
        let text = render("{\"message\": \"{payload}\", \"n\": [1]}", hostile, Escape::Json);
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({ "message": hostile, "n": [1] })
        );
    }

    #[test]
    fn values_mention_nobody_in_any_chat_and_stay_readable() {
        for (value, text) in [
            ("/<!channel>", "/&lt;!channel&gt;"),
            ("@everyone, @Here!", "@\u{200b}everyone, @\u{200b}Here!"),
            ("@channel @all <@123>", "@\u{200b}channel @\u{200b}all &lt;@\u{200b}123&gt;"),
            ("http://a.example/?b=1&c=2&lt=3", "http://a.example/?b=1&c=2&lt=3"),
            ("&lt;b&amp;", "&amp;lt;b&amp;amp;"),
            ("ops@a.example and @é", "ops@a.example and @é"),
        ] {
            assert_eq!(render("{payload} @here", value, Escape::Slack), format!("{text} @here"));
        }
    }

    #[test]
    fn values_and_the_text_around_them_together_mention_nobody() {
        for (template, attributes, text) in [
            ("by @{attr.a}: {target}", "a=everyone", "by @\u{200b}everyone: /x"),
            ("by @{attr.a}: {target}", "a=ada", "by @ada: /x"),
            ("{attr.a}{attr.b}", "a=@ b=here", "@\u{200b}here"),
            ("{attr.a}{attr.b}{attr.c}", "a=@ b=He c=RE", "@\u{200b}HeRE"),
            ("{attr.a}here", "a=@", "@\u{200b}here"),
            ("@h{attr.a}", "a=ere", "@\u{200b}here"),
            ("@{attr.none}all", "a=1", "@\u{200b}all"),
            ("@here {attr.a} @all{attr.a}", "a=1", "@here 1 @all1"),
            ("<{attr.a}|link>", "a=!channel", "<\u{200b}!channel|link>"),
            ("<{attr.none}{attr.a}>", "a=@U1", "<\u{200b}@U1>"),
            (
                "<{attr.a}|link> <!here>",
                "a=http://a.example/@all",
                "<http://a.example/@\u{200b}all|link> <!here>",
            ),
            ("{attr.a}{attr.b}", "a=< b=@&1", "&lt;@\u{200b}&1"),
        ] {
            let payload = format!("/x {attributes}");
            assert_eq!(render(template, &payload, Escape::Slack), text, "{template} {attributes}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_one_json_string(value in ".{0,40}") {
            let text = render("{\"a\": \"<{payload}>\"}", &value, Escape::Json);
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, json!({ "a": format!("<{value}>") }));
        }

        #[test]
        fn any_value_is_without_markup_of_slack(value in ".{0,40}") {
            let text = render("{payload}", &value, Escape::Slack);
            prop_assert!(!text.contains(['<', '>']));
            let back = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
            prop_assert_eq!(back.replace(ZERO_WIDTH_SPACE, ""), value.replace(ZERO_WIDTH_SPACE, ""));
        }

        #[test]
        fn no_border_makes_a_mention(
            template in "(@|he|re|all|[{]attr[.][abc][}]){1,8}",
            values in proptest::array::uniform3("(@|he|RE|all|here)?"),
        ) {
            let [a, b, c] = values;
            let text = render(&template, &format!("/x a={a} b={b} c={c}"), Escape::Slack);
            let literals = template.split(['{', '}']).step_by(2);
            let mentions = |text: &str| {
                text.match_indices('@').filter(|(at, _)| is_everyone(&text[at + 1..])).count()
            };
            prop_assert_eq!(mentions(&text), literals.map(mentions).sum::<usize>());
        }

        #[test]
        fn every_template_is_read_or_refused(template in "[{}a-z.\" ]{1,30}") {
            if let Ok(template) = template.parse::<Template>() {
                let event = Event { id: "t/1".to_owned(), payload: "x".to_owned() };
                template.render(&event, Escape::Json);
            }
        }
    }
}
