//! The content of an event: one line of text, or a target with attributes.

use crate::wire::{first_word, is_word_char, words};

/// A payload with its target and attributes, which are all slices of it.
///
/// It has them only if its first word is a URL (`scheme://..`) or an absolute path (`/..`) and
/// *every* further word is `key=value` (`[P2]`); otherwise it is text. So a sentence that happens
/// to contain an `=` is never taken for instructions.
///
/// ```
/// use tidings_protocol::Payload;
///
/// let payload = Payload::parse("http://example.org/ job=docs prio=5");
/// assert_eq!(payload.target(), Some("http://example.org/"));
/// assert_eq!(payload.attribute("job"), Some("docs"));
/// assert_eq!(Payload::parse("http://example.org/ is up, x=1").target(), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    text: &'a str,
    /// The target, and the words behind it.
    parts: Option<(&'a str, &'a str)>,
}

impl<'a> Payload<'a> {
    /// Splits a payload into its parts. Never fails: without a target it is text. Linear, without
    /// allocation.
    pub fn parse(text: &'a str) -> Self {
        let (target, rest) = first_word(text);
        let has_parts = is_target(target) && words(rest).all(|word| attribute(word).is_some());
        Payload { text, parts: has_parts.then_some((target, rest)) }
    }

    /// The whole payload.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The URL or absolute path that the event is about, unless the payload is text.
    pub fn target(&self) -> Option<&'a str> {
        self.parts.map(|(target, _)| target)
    }

    /// The value of an attribute; the first one if there are several with this key.
    pub fn attribute(&self, key: &str) -> Option<&'a str> {
        self.attributes().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// All attributes in their order, known and unknown, also repeated ones.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let rest = self.parts.map_or("", |(_, rest)| rest);
        words(rest).filter_map(attribute)
    }
}

/// Appends ` key=value` to a payload under construction.
///
/// White space and control characters in the value become `_`, because a value is one word.
///
/// # Panics
/// If the key is not made of letters, digits, `-`, `_` and `.` with a letter first: keys are
/// constants of the program, or come from a payload.
pub fn push_attribute(payload: &mut String, key: &str, value: &str) {
    assert!(is_key(key), "{key:?} can be the key of an attribute");
    payload.push(' ');
    payload.push_str(key);
    payload.push('=');
    payload.extend(value.chars().map(|c| if is_word_char(c) { c } else { '_' }));
}

/// `scheme://` and at least one character more, or an absolute path.
fn is_target(word: &str) -> bool {
    if word.starts_with('/') {
        return true;
    }
    // A scheme has no colon, so the first one is its end.
    word.split_once(':').is_some_and(|(scheme, rest)| {
        rest.len() > "//".len()
            && rest.starts_with("//")
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    })
}

fn attribute(word: &str) -> Option<(&str, &str)> {
    let key = word.bytes().take_while(|byte| is_key_byte(*byte)).count();
    let (key, value) = word.split_at(key);
    Some((key, value.strip_prefix('=')?)).filter(|(key, _)| starts_key(key))
}

pub(crate) fn is_key(key: &str) -> bool {
    starts_key(key) && key.bytes().all(is_key_byte)
}

fn starts_key(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PROTOCOL: P2
    #[test]
    fn a_target_is_a_url_or_an_absolute_path() {
        for text in
            ["http://a/", "https://a/?x=y", "ftp://a", "a+b.c-1://x", "/", "/var/x.html", "//a/b"]
        {
            assert_eq!(Payload::parse(text).target(), Some(text));
        }
        for text in
            ["", "hello", "a/b", "http:/a", "http://", "://a", "1a://b", "x=1", "mailto:a@b"]
        {
            assert_eq!(Payload::parse(text).target(), None, "{text:?}");
        }
    }

    // PROTOCOL: P2
    #[test]
    fn one_word_that_is_not_an_attribute_makes_it_text() {
        for text in ["/a b", "/a x=1 b", "/a =1", "/a 1=1", "/a x=1 /b=2", "look /a x=1"] {
            let payload = Payload::parse(text);
            assert_eq!(payload.target(), None, "{text:?}");
            assert_eq!(payload.attribute("x"), None, "{text:?}");
            assert_eq!(payload.text(), text);
        }
    }

    // PROTOCOL: P2, P3
    #[test]
    fn attributes_are_carried_in_order_and_the_first_of_a_key_counts() {
        let payload = Payload::parse("  /a  x=1\tunknown-to.all_=a=b x=2 empty= ");
        assert_eq!(payload.target(), Some("/a"));
        assert_eq!(payload.attribute("x"), Some("1"));
        assert_eq!(payload.attribute("y"), None);
        let all: Vec<_> = payload.attributes().collect();
        assert_eq!(all, [("x", "1"), ("unknown-to.all_", "a=b"), ("x", "2"), ("empty", "")]);
    }

    proptest! {
        #[test]
        fn pushed_attributes_are_found(
            attributes in proptest::collection::vec(("[a-z][a-z0-9-]{0,8}", "[!-~ä]{0,12}"), 0..8),
        ) {
            let mut text = "http://example.org/".to_owned();
            for (key, value) in &attributes {
                push_attribute(&mut text, key, value);
            }
            let payload = Payload::parse(&text);
            prop_assert_eq!(payload.target(), Some("http://example.org/"));
            let found: Vec<_> =
                payload.attributes().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            prop_assert_eq!(found, attributes);
        }

        #[test]
        fn a_value_cannot_add_words(value in ".{0,40}") {
            let mut text = "/a".to_owned();
            push_attribute(&mut text, "x", &value);
            prop_assert!(crate::text::check(text.as_bytes()).is_ok());
            prop_assert_eq!(Payload::parse(&text).attributes().count(), 1);
        }
    }
}
