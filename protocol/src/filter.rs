//! The filter of a subscription or group: conditions on the attributes of events.

use std::fmt;
use std::str::FromStr;

use crate::payload::is_key;
use crate::text::quote;
use crate::wire::is_word_char;
use crate::{Payload, ProtocolError, bad_argument};

/// The largest number of conditions of a filter.
pub const CONDITIONS_MAX: usize = 8;

/// A condition on an attribute: `<key>=<value>` or `<key>!=<value>` (`[D7]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    key: String,
    value: String,
    is_equal: bool,
}

impl Condition {
    /// Whether it holds for an event. The values are compared as they are written.
    fn holds(&self, payload: &Payload<'_>) -> bool {
        (payload.attribute(&self.key) == Some(&self.value)) == self.is_equal
    }
}

impl FromStr for Condition {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let parts = text.split_once('=').map(|(key, value)| match key.strip_suffix('!') {
            Some(key) => (key, value, false),
            None => (key, value, true),
        });
        parts
            .filter(|(key, value, _)| is_key(key) && value.chars().all(is_word_char))
            .map(|(key, value, is_equal)| Condition {
                key: key.to_owned(),
                value: value.to_owned(),
                is_equal,
            })
            .ok_or_else(|| {
                bad_argument(format!(
                    "where={} should be <key>=<value> or <key>!=<value>, with the key of an \
                     attribute and a value without blanks",
                    quote(text)
                ))
            })
    }
}

/// As in `where=`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.key, if self.is_equal { "=" } else { "!=" }, self.value)
    }
}

/// Conditions that must all hold, at most [`CONDITIONS_MAX`]. Without any, all events match.
///
/// ```
/// use tidings_protocol::AttributeFilter;
///
/// let filter = AttributeFilter::parse(["outcome=failed", "status!=404"])?;
/// assert!(filter.matches("http://example.org/ outcome=failed status=503"));
/// assert!(!filter.matches("http://example.org/ outcome=failed status=404"));
/// # Ok::<(), tidings_protocol::ProtocolError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttributeFilter(Vec<Condition>);

impl AttributeFilter {
    /// Reads the values of all `where=`.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Self, ProtocolError> {
        let mut filter = AttributeFilter::default();
        values.into_iter().try_for_each(|value| filter.push(value.parse()?))?;
        Ok(filter)
    }

    /// Adds a condition. Fails if there are [`CONDITIONS_MAX`] already.
    pub(crate) fn push(&mut self, condition: Condition) -> Result<(), ProtocolError> {
        if self.0.len() == CONDITIONS_MAX {
            return Err(bad_argument(format!(
                "where= may be given at most {CONDITIONS_MAX} times"
            )));
        }
        self.0.push(condition);
        Ok(())
    }

    /// Whether there are no conditions.
    pub fn matches_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all conditions hold for an event with this payload.
    pub fn matches(&self, payload: &str) -> bool {
        if self.matches_all() {
            return true;
        }
        let payload = Payload::parse(payload);
        self.0.iter().all(|condition| condition.holds(&payload))
    }

    /// The settings `where=` that set it; `none` if there are no conditions.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let words: Vec<_> =
            self.0.iter().map(|condition| ("where", condition.to_string())).collect();
        if words.is_empty() { vec![("where", "none".to_owned())] } else { words }
    }

    /// The conditions, in the order in which they were given.
    pub fn conditions(&self) -> &[Condition] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(conditions: &[&str], payload: &str) -> bool {
        AttributeFilter::parse(conditions.iter().copied()).unwrap().matches(payload)
    }

    // PROTOCOL: D7
    #[test]
    fn the_first_attribute_of_a_name_is_compared_as_it_is_written() {
        let payload = "/a outcome=failed status=404 outcome=done url=/b?x=y empty=";
        for (condition, holds) in [
            ("outcome=failed", true),
            ("outcome=done", false),
            ("outcome=Failed", false),
            ("outcome=fail", false),
            ("Outcome=failed", false),
            ("status=0404", false),
            ("url=/b?x=y", true),
            ("empty=", true),
            ("missing=", false),
            ("missing=x", false),
        ] {
            assert_eq!(matches(&[condition], payload), holds, "{condition}");
            let negated = condition.replacen('=', "!=", 1);
            assert_eq!(matches(&[&negated], payload), !holds, "{negated}");
        }
        assert!(matches(&["outcome=failed", "status!=200"], payload), "all hold");
        assert!(!matches(&["outcome=failed", "status!=404"], payload), "one does not");
        assert!(matches(&[], payload));
        assert!(!matches(&["x=1"], "a text with x=1"), "a text has no attributes");
        assert!(matches(&["x!=1"], "a text with x=1"));
    }

    // PROTOCOL: D7
    #[test]
    fn malformed_conditions_and_too_many_are_rejected() {
        for text in ["", "outcome", "=x", "!=x", "a b=c", "a=b c", "a=b\n", "1a=b", "a!!=b", "ä=b"]
        {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.text.contains("should be <key>=<value>"), "{text:?}: {error:?}");
        }
        assert_eq!(AttributeFilter::parse(["a=b"; 8]).unwrap().conditions().len(), 8);
        let error = AttributeFilter::parse(["a=b"; 9]).unwrap_err();
        assert_eq!(error, bad_argument("where= may be given at most 8 times"));
    }

    proptest! {
        #[test]
        fn conditions_are_written_as_they_are_read(
            text in "[a-z][a-z0-9._-]{0,9}!?=[!-~ä]{0,12}",
        ) {
            let condition: Condition = text.parse().unwrap();
            prop_assert_eq!(condition.to_string(), text);
        }

        #[test]
        fn a_condition_and_its_negation_never_agree(
            key in "[ab]",
            value in "[xy=]{0,2}",
            payload in "(/p|text)( [ab]=[xy=]{0,2}){0,3}( word)?",
        ) {
            let (is, is_not) = (format!("{key}={value}"), format!("{key}!={value}"));
            let first = Payload::parse(&payload).attribute(&key) == Some(&value);
            prop_assert_eq!(matches(&[&is], &payload), first);
            prop_assert_eq!(matches(&[&is_not], &payload), !first);
        }
    }
}
