//! JSON objects in bodies: checks the name and type of each field and converts the fields to
//! settings of a command.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use tidings_protocol::settings::Setting;
use tidings_protocol::status::JsonType;
use tidings_protocol::{LINE_BYTES_MAX, Settings};

use super::error::{HttpResult, bad_request};
use super::request_input::check_word;

/// Fields of an object that are kept. No valid object has as many, so an object with more fields is
/// rejected for an unknown one.
const FIELDS_MAX: usize = 64;

/// Strings that are kept of all lists of an object together. It is more than a line can contain,
/// and more than the limit of seeds.
const STRINGS_MAX: usize = LINE_BYTES_MAX / 2;

/// A JSON object without repeated fields. No body makes it take more memory than the largest valid
/// object.
#[derive(Debug, Default)]
pub(super) struct JsonFields(pub(super) BTreeMap<String, JsonField>);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonField {
    Text(String),
    Number(Number),
    Bool(bool),
    List(StringList),
    Null,
    /// A value of a type that no field has.
    Other,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StringList {
    strings: Vec<String>,
    /// The list had more strings, which were dropped.
    is_truncated: bool,
}

impl<'de> Deserialize<'de> for JsonFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = JsonFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields, A::Error> {
                let (mut fields, mut strings_left) = (BTreeMap::new(), STRINGS_MAX);
                while let Some(name) = map.next_key::<String>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("field {name:.40?} appears twice")));
                    }
                    if fields.len() < FIELDS_MAX {
                        fields.insert(
                            name,
                            map.next_value_seed(FieldSeed { strings_left: &mut strings_left })?,
                        );
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(JsonFields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// Reads the value of a field. It keeps at most `strings_left` strings and lowers that number, so
/// that all fields of an object share one limit.
struct FieldSeed<'a> {
    strings_left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = JsonField;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonField, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = JsonField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<JsonField, E> {
        Ok(JsonField::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonField, E> {
        Ok(JsonField::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonField, E> {
        Ok(JsonField::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonField, E> {
        Ok(JsonField::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonField, E> {
        Ok(Number::from_f64(number).map_or(JsonField::Other, JsonField::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonField, E> {
        Ok(JsonField::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<JsonField, E> {
        Ok(JsonField::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonField, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonField::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<JsonField, A::Error> {
        let mut list = StringList::default();
        while let Some(value) =
            values.next_element_seed(FieldSeed { strings_left: &mut *self.strings_left })?
        {
            let JsonField::Text(text) = value else {
                drop(list);
                while values.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(JsonField::Other);
            };
            if *self.strings_left > 0 {
                *self.strings_left -= 1;
                list.strings.push(text);
            } else {
                list.is_truncated = true;
            }
        }
        Ok(JsonField::List(list))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldType {
    /// A string of one word.
    Text,
    /// A whole number.
    Number,
    /// True or false.
    Bool,
    /// Strings without commas.
    List,
    /// Strings, each of which is one setting.
    Words,
}

/// Names and types of the fields that an object may have.
pub(super) type ObjectSchema = [(&'static str, FieldType)];

/// The fields of these settings.
pub(super) fn setting_fields<S: Settings>() -> Vec<(&'static str, FieldType)> {
    let field = |setting: &Setting<S>| {
        let field_type = match setting.kind.json_type() {
            JsonType::Strings if setting.kind.repeats() => FieldType::Words,
            JsonType::Integer => FieldType::Number,
            JsonType::Boolean => FieldType::Bool,
            JsonType::Strings => FieldType::List,
            _ => FieldType::Text,
        };
        (setting.name, field_type)
    };
    S::ALL.iter().map(field).collect()
}

/// The fields of an object as settings of a command. Fails unless each field is in the schema and
/// has its type.
pub(super) fn to_settings(
    object: &BTreeMap<String, JsonField>,
    schema: &ObjectSchema,
) -> HttpResult<Vec<(&'static str, String)>> {
    let mut settings = Vec::new();
    for (name, value) in object {
        let (name, words) = to_setting(name, value, schema)?;
        settings.extend(words.into_iter().map(|word| (name, word)));
    }
    Ok(settings)
}

/// The settings of one field: several of a list of words.
fn to_setting(
    name: &str,
    value: &JsonField,
    schema: &ObjectSchema,
) -> HttpResult<(&'static str, Vec<String>)> {
    let Some((name, field_type)) = schema.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = schema.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        let message = format!("unknown field {name:.40?}; expected one of {known}");
        return Err(bad_request(message));
    };
    let words: Vec<_> = match (field_type, value) {
        (FieldType::Text, JsonField::Text(text)) => vec![text.clone()],
        (FieldType::Number, JsonField::Number(number)) => {
            whole_number(number).into_iter().collect()
        }
        (FieldType::Bool, JsonField::Bool(value)) => {
            vec![if *value { "yes" } else { "no" }.to_owned()]
        }
        (FieldType::List, JsonField::List(list)) => comma_list(list).into_iter().collect(),
        (FieldType::Words, JsonField::List(list)) if list.is_truncated => Vec::new(),
        (FieldType::Words, JsonField::List(list)) if list.strings.is_empty() => {
            vec!["none".to_owned()]
        }
        (FieldType::Words, JsonField::List(list)) => list.strings.clone(),
        _ => Vec::new(),
    };
    if words.is_empty() || words.iter().any(|word| check_word(word).is_err()) {
        let expected = match field_type {
            FieldType::Text => "a string of one word, not empty",
            FieldType::Number => "a whole number",
            FieldType::Bool => "true or false",
            FieldType::List => "a list of words without commas",
            FieldType::Words => "a list of words",
        };
        return Err(bad_request(format!("{name}: expected {expected}")));
    }
    Ok((name, words))
}

fn comma_list(list: &StringList) -> Option<String> {
    let is_valid = !list.is_truncated && list.strings.iter().all(|text| !text.contains(','));
    is_valid.then(|| list.strings.join(","))
}

/// A whole number in digits. In JSON it may also have a fraction of zero, as in `94.0`.
fn whole_number(value: &Number) -> Option<String> {
    /// 2^53: up to it, every whole number is exact.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let exact = value.as_u64().map(|n| n.to_string());
    let exact = exact.or_else(|| value.as_i64().map(|n| n.to_string()));
    let float = value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= EXACT_MAX);
    exact.or_else(|| float.map(|n| format!("{n:.0}")))
}

pub(super) fn as_pairs<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(key, value)| (*key, value.as_str())).collect()
}

/// Removes a field that is a list of words, and returns the words if the field exists. Fails if
/// there are more than `max` words.
pub(super) fn take_words(
    object: &mut BTreeMap<String, JsonField>,
    name: &str,
    max: usize,
) -> HttpResult<Option<Vec<String>>> {
    match object.remove(name) {
        None => Ok(None),
        Some(JsonField::List(list)) if list.strings.iter().all(|text| check_word(text).is_ok()) => {
            if list.is_truncated || list.strings.len() > max {
                return Err(bad_request(format!("{name}: at most {max} in one request")));
            }
            Ok(Some(list.strings))
        }
        Some(_) => Err(bad_request(format!("{name}: expected a list of words"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SCHEMA: [(&str, FieldType); 5] = [
        ("t", FieldType::Text),
        ("n", FieldType::Number),
        ("b", FieldType::Bool),
        ("l", FieldType::List),
        ("w", FieldType::Words),
    ];

    fn settings_text(value: &Value) -> Option<String> {
        let JsonFields(object) = serde_json::from_value(value.clone()).unwrap();
        let settings = to_settings(&object, &SCHEMA).ok()?;
        let words: Vec<_> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Some(words.join(" "))
    }

    // PROTOCOL: H9
    #[test]
    fn a_field_that_appears_twice_is_rejected() {
        let read =
            |text: &str| serde_json::from_str::<JsonFields>(text).map(|fields| fields.0.len());
        assert_eq!(read(r#"{"a":1,"b":{"a":2}}"#).ok(), Some(2));
        assert!(read(r#"{"a":1,"a":1}"#).unwrap_err().to_string().contains("twice"));
        assert!(read("[]").is_err());
    }

    // PROTOCOL: H9
    #[test]
    fn unknown_fields_and_wrong_types_are_rejected() {
        for (value, expected) in [
            (json!({ "t": "5s" }), "t=5s"),
            (json!({ "n": -7 }), "n=-7"),
            (json!({ "n": 94.0 }), "n=94"),
            (json!({ "n": u64::MAX }), "n=18446744073709551615"),
            (json!({ "b": true }), "b=yes"),
            (json!({ "l": ["a", "b"] }), "l=a,b"),
            (json!({ "w": ["a,b", "c=d"] }), "w=a,b w=c=d"),
            (json!({ "w": [] }), "w=none"),
            (json!({}), ""),
        ] {
            assert_eq!(settings_text(&value).as_deref(), Some(expected));
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
            json!({ "l": { "a": "b" } }),
            json!({ "l": vec!["a"; STRINGS_MAX + 1] }),
            json!({ "w": ["a b"] }),
            json!({ "w": "a" }),
            json!({ "x": 1 }),
        ] {
            assert_eq!(settings_text(&value), None, "{value}");
        }
    }

    #[test]
    fn fields_and_strings_beyond_the_limits_are_not_kept() {
        let read = |text: String| serde_json::from_str::<JsonFields>(&text).unwrap().0;
        let names: Vec<_> = (0..10_000).map(|at| format!("\"{at}\":0")).collect();
        assert_eq!(read(format!("{{{}}}", names.join(","))).len(), FIELDS_MAX);
        let value = |value: String| read(format!("{{\"x\":{value}}}")).remove("x").unwrap();
        for other in ["0", "{}", "[]", "null", "{\"\":[{}]}"] {
            let values = vec![other; 10_000].join(",");
            assert_eq!(value(format!("[{values}]")), JsonField::Other);
            assert_eq!(value(format!("[\"a\",{values}]")), JsonField::Other);
            assert_eq!(value(format!("{{\"a\":[{values}]}}")), JsonField::Other);
        }
        let JsonField::List(list) = value(format!("[{}]", vec!["\"\""; STRINGS_MAX + 1].join(",")))
        else {
            panic!("a list of strings is a list");
        };
        assert_eq!((list.strings.len(), list.is_truncated), (STRINGS_MAX, true));
    }

    /// A list of as many strings as are kept.
    fn longest_list() -> String {
        format!("[{}]", vec!["\"a\""; STRINGS_MAX].join(","))
    }

    #[test]
    fn all_lists_of_an_object_share_one_limit() {
        let lists: Vec<_> = (0..10).map(|at| format!("\"{at}\":{}", longest_list())).collect();
        let object =
            serde_json::from_str::<JsonFields>(&format!("{{{}}}", lists.join(","))).unwrap().0;
        let kept = |field: &JsonField| match field {
            JsonField::List(list) => (list.strings.len(), list.is_truncated),
            other => panic!("{other:?}"),
        };
        let all: Vec<_> = object.values().map(kept).collect();
        assert_eq!(all, [&[(STRINGS_MAX, false)][..], &[(0, true); 9]].concat());
        // Lists within a list share it too.
        let mut left = STRINGS_MAX;
        let nested = format!("[{}, {}]", longest_list().trim_matches(['[', ']']), longest_list());
        let mut reader = serde_json::Deserializer::from_str(&nested);
        let field = FieldSeed { strings_left: &mut left }.deserialize(&mut reader).unwrap();
        assert_eq!((field, left), (JsonField::Other, 0));
    }

    #[test]
    fn a_truncated_list_is_rejected() {
        let text = format!("{{\"l\":{},\"urls\":[\"b\"]}}", longest_list());
        let JsonFields(mut object) = serde_json::from_str(&text).unwrap();
        assert!(take_words(&mut object, "urls", 10).is_err());
        let JsonFields(mut object) = serde_json::from_str(r#"{"urls":["a","b"]}"#).unwrap();
        assert!(take_words(&mut object.clone(), "urls", 1).is_err());
        assert_eq!(take_words(&mut object, "urls", 2).unwrap().unwrap(), ["a", "b"]);
    }
}
