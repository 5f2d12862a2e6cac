//! Objects in bodies: each field of a known name and type, and as the word of a command.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::Refusal;
use super::input::word;

/// An object of a body, of which no field is given twice.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Map<String, Value>);

/// An object of texts, of which none is given twice, in their order.
#[derive(Debug, Default)]
pub(super) struct Attributes(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut fields = Map::new();
        for (name, value) in from.deserialize_map(Once(PhantomData))? {
            fields.insert(name, value);
        }
        Ok(Self(fields))
    }
}

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Once(PhantomData)).map(Self)
    }
}

/// Reads an object of which no field is given twice.
struct Once<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Once<T> {
    type Value = Vec<(String, T)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut names) = (Vec::new(), HashSet::new());
        while let Some((name, value)) = map.next_entry::<String, T>()? {
            if !names.insert(name.clone()) {
                return Err(serde::de::Error::custom(format!("{name:.40?} is given twice")));
            }
            fields.push((name, value));
        }
        Ok(fields)
    }
}

/// What the value of a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text of one word.
    Text,
    /// A whole number.
    Number,
    /// True or false.
    Truth,
    /// Texts, none of them with a comma.
    List,
}

/// Names and types of the fields that there may be.
pub(super) type Known = [(&'static str, Kind)];

/// The fields of an object as settings of a command. Refused unless each is known and of its type.
pub(super) fn settings(
    object: &Map<String, Value>,
    known: &Known,
) -> Result<Vec<(&'static str, String)>, Refusal> {
    object.iter().map(|(name, value)| setting(name, value, known)).collect()
}

fn setting(name: &str, value: &Value, known: &Known) -> Result<(&'static str, String), Refusal> {
    let Some((name, kind)) = known.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        return Err(Refusal::bad(format!("no field {name:.40?}; there are {known}")));
    };
    let text = match (kind, value) {
        (Kind::Text, Value::String(text)) => Some(text.clone()),
        (Kind::Number, Value::Number(_)) => whole(value),
        (Kind::Truth, Value::Bool(truth)) => Some(if *truth { "yes" } else { "no" }.to_owned()),
        (Kind::List, Value::Array(values)) => list(values),
        _ => None,
    };
    let wanted = || {
        let kind = match kind {
            Kind::Text => "a text of one word, not empty",
            Kind::Number => "a whole number",
            Kind::Truth => "true or false",
            Kind::List => "a list of words, none of them with a comma",
        };
        Refusal::bad(format!("{name}: it is {kind}"))
    };
    let text = text.filter(|text| word(text).is_ok()).ok_or_else(wanted)?;
    Ok((name, text))
}

fn list(values: &[Value]) -> Option<String> {
    let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
    let texts = texts.filter(|texts| texts.iter().all(|text| !text.contains(',')))?;
    Some(texts.join(","))
}

/// A whole number in digits; JSON may also write it with a fraction of nothing.
fn whole(value: &Value) -> Option<String> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let exact = value.as_u64().map(|n| n.to_string());
    let exact = exact.or_else(|| value.as_i64().map(|n| n.to_string()));
    let float = value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= EXACT);
    exact.or_else(|| float.map(|n| format!("{n:.0}")))
}

/// The same, borrowed.
pub(super) fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(key, value)| (*key, value.as_str())).collect()
}

/// The texts of a field that is a list of words, if it is there; it is taken out.
pub(super) fn take_words(
    object: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<Vec<String>>, Refusal> {
    let Some(value) = object.remove(name) else { return Ok(None) };
    let texts = serde_json::from_value::<Vec<String>>(value);
    let texts = texts.ok().filter(|texts| texts.iter().all(|text| word(text).is_ok()));
    let wanted = || Refusal::bad(format!("{name}: it is a list of words"));
    texts.map(Some).ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KNOWN: [(&str, Kind); 4] =
        [("t", Kind::Text), ("n", Kind::Number), ("b", Kind::Truth), ("l", Kind::List)];

    fn one(value: &Value) -> Option<String> {
        let settings = settings(value.as_object().unwrap(), &KNOWN).ok()?;
        let words: Vec<_> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Some(words.join(" "))
    }

    #[test]
    fn no_field_is_given_twice() {
        let read = |text: &str| serde_json::from_str::<Fields>(text).map(|fields| fields.0.len());
        assert_eq!(read(r#"{"a":1,"b":{"a":2}}"#).ok(), Some(2));
        assert!(read(r#"{"a":1,"a":1}"#).unwrap_err().to_string().contains("twice"));
        assert!(read("[]").is_err());
    }

    #[test]
    fn a_field_is_what_it_has_to_be_and_nothing_else() {
        for (value, wanted) in [
            (json!({ "t": "5s" }), "t=5s"),
            (json!({ "n": -7 }), "n=-7"),
            (json!({ "n": 94.0 }), "n=94"),
            (json!({ "n": u64::MAX }), "n=18446744073709551615"),
            (json!({ "b": true }), "b=yes"),
            (json!({ "l": ["a", "b"] }), "l=a,b"),
            (json!({}), ""),
        ] {
            assert_eq!(one(&value).as_deref(), Some(wanted));
        }
        for value in [
            json!({ "t": 5 }),
            json!({ "t": "" }),
            json!({ "t": "a b=c" }),
            json!({ "t": "a\nPUB x y" }),
            json!({ "t": null }),
            json!({ "n": "5" }),
            json!({ "n": 5.5 }),
            json!({ "n": 1e300 }),
            json!({ "b": "yes" }),
            json!({ "l": "a" }),
            json!({ "l": [] }),
            json!({ "l": ["a,b"] }),
            json!({ "l": ["a", 1] }),
            json!({ "x": 1 }),
        ] {
            assert_eq!(one(&value), None, "{value}");
        }
    }
}
