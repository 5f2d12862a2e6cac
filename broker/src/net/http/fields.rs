//! Objects in bodies: each field of a known name and type, and as the word of a command.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use tidings_protocol::LINE_BYTES_MAX;

use super::error::Refusal;
use super::input::word;

/// Fields of an object that are held. More than any object has that is taken, so that one of them
/// at least is unknown where there are more.
const FIELDS_MAX: usize = 64;

/// Texts that are held of all lists of an object. More than a line can have, and more than there
/// can be seeds.
const TEXTS_MAX: usize = LINE_BYTES_MAX / 2;

/// An object of a body, of which no field is given twice. It takes no more memory than one that is
/// as it has to be, whatever the body is made of.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) BTreeMap<String, Field>);

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Field {
    Text(String),
    Number(Number),
    Truth(bool),
    List(Texts),
    /// Something that no field is.
    Other,
}

/// A list of texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Texts {
    all: Vec<String>,
    /// There were more, which are not held.
    is_cut: bool,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let (mut fields, mut texts_max) = (BTreeMap::new(), TEXTS_MAX);
                while let Some(name) = map.next_key::<String>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("{name:.40?} is given twice")));
                    }
                    if fields.len() < FIELDS_MAX {
                        fields.insert(
                            name,
                            map.next_value_seed(Anything { texts_max: &mut texts_max })?,
                        );
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Fields(fields))
            }
        }

        from.deserialize_map(Object)
    }
}

/// Reads the value of a field, of which not more than so many texts are held: there are fewer for
/// the next one then.
struct Anything<'a> {
    texts_max: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Anything<'_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Field, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Anything<'_> {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Field, E> {
        Ok(Field::Truth(truth))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field, E> {
        Ok(Field::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field, E> {
        Ok(Field::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Field, E> {
        Ok(Number::from_f64(number).map_or(Field::Other, Field::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Field, E> {
        Ok(Field::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Field, A::Error> {
        let mut texts = Texts::default();
        while let Some(value) =
            values.next_element_seed(Anything { texts_max: &mut *self.texts_max })?
        {
            let Field::Text(text) = value else {
                drop(texts);
                while values.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Field::Other);
            };
            if *self.texts_max > 0 {
                *self.texts_max -= 1;
                texts.all.push(text);
            } else {
                texts.is_cut = true;
            }
        }
        Ok(Field::List(texts))
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
    object: &BTreeMap<String, Field>,
    known: &Known,
) -> Result<Vec<(&'static str, String)>, Refusal> {
    object.iter().map(|(name, value)| setting(name, value, known)).collect()
}

fn setting(name: &str, value: &Field, known: &Known) -> Result<(&'static str, String), Refusal> {
    let Some((name, kind)) = known.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        return Err(Refusal::bad(format!("no field {name:.40?}; there are {known}")));
    };
    let text = match (kind, value) {
        (Kind::Text, Field::Text(text)) => Some(text.clone()),
        (Kind::Number, Field::Number(number)) => whole(number),
        (Kind::Truth, Field::Truth(truth)) => Some(if *truth { "yes" } else { "no" }.to_owned()),
        (Kind::List, Field::List(texts)) => list(texts),
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

fn list(texts: &Texts) -> Option<String> {
    let fits = !texts.is_cut && texts.all.iter().all(|text| !text.contains(','));
    fits.then(|| texts.all.join(","))
}

/// A whole number in digits; JSON may also write it with a fraction of nothing.
fn whole(value: &Number) -> Option<String> {
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

/// The texts of a field that is a list of words, if it is there; it is taken out. Refused if they
/// are more than `max`.
pub(super) fn take_words(
    object: &mut BTreeMap<String, Field>,
    name: &str,
    max: usize,
) -> Result<Option<Vec<String>>, Refusal> {
    match object.remove(name) {
        None => Ok(None),
        Some(Field::List(texts)) if texts.all.iter().all(|text| word(text).is_ok()) => {
            if texts.is_cut || texts.all.len() > max {
                return Err(Refusal::bad(format!("{name}: at most {max} in one request")));
            }
            Ok(Some(texts.all))
        }
        Some(_) => Err(Refusal::bad(format!("{name}: it is a list of words"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KNOWN: [(&str, Kind); 4] =
        [("t", Kind::Text), ("n", Kind::Number), ("b", Kind::Truth), ("l", Kind::List)];

    fn one(value: &Value) -> Option<String> {
        let Fields(object) = serde_json::from_value(value.clone()).unwrap();
        let settings = settings(&object, &KNOWN).ok()?;
        let words: Vec<_> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Some(words.join(" "))
    }

    // PROTOCOL: H9
    #[test]
    fn no_field_is_given_twice() {
        let read = |text: &str| serde_json::from_str::<Fields>(text).map(|fields| fields.0.len());
        assert_eq!(read(r#"{"a":1,"b":{"a":2}}"#).ok(), Some(2));
        assert!(read(r#"{"a":1,"a":1}"#).unwrap_err().to_string().contains("twice"));
        assert!(read("[]").is_err());
    }

    // PROTOCOL: H9
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
            json!({ "l": { "a": "b" } }),
            json!({ "l": vec!["a"; TEXTS_MAX + 1] }),
            json!({ "x": 1 }),
        ] {
            assert_eq!(one(&value), None, "{value}");
        }
    }

    #[test]
    fn no_more_is_held_than_an_object_may_have() {
        let read = |text: String| serde_json::from_str::<Fields>(&text).unwrap().0;
        let names: Vec<_> = (0..10_000).map(|at| format!("\"{at}\":0")).collect();
        assert_eq!(read(format!("{{{}}}", names.join(","))).len(), FIELDS_MAX);
        let value = |value: String| read(format!("{{\"x\":{value}}}")).remove("x").unwrap();
        for other in ["0", "{}", "[]", "null", "{\"\":[{}]}"] {
            let values = vec![other; 10_000].join(",");
            assert_eq!(value(format!("[{values}]")), Field::Other);
            assert_eq!(value(format!("[\"a\",{values}]")), Field::Other);
            assert_eq!(value(format!("{{\"a\":[{values}]}}")), Field::Other);
        }
        let Field::List(texts) = value(format!("[{}]", vec!["\"\""; TEXTS_MAX + 1].join(",")))
        else {
            panic!("they are texts");
        };
        assert_eq!((texts.all.len(), texts.is_cut), (TEXTS_MAX, true));
    }

    /// As many texts as a list has room for.
    fn list() -> String {
        format!("[{}]", vec!["\"a\""; TEXTS_MAX].join(","))
    }

    #[test]
    fn all_lists_of_an_object_have_room_for_as_many_texts_as_one() {
        let lists: Vec<_> = (0..10).map(|at| format!("\"{at}\":{}", list())).collect();
        let object = serde_json::from_str::<Fields>(&format!("{{{}}}", lists.join(","))).unwrap().0;
        let held = |field: &Field| match field {
            Field::List(texts) => (texts.all.len(), texts.is_cut),
            other => panic!("{other:?}"),
        };
        let all: Vec<_> = object.values().map(held).collect();
        assert_eq!(all, [&[(TEXTS_MAX, false)][..], &[(0, true); 9]].concat());
        // Also of those that are within another.
        let mut left = TEXTS_MAX;
        let nested = format!("[{}, {}]", list().trim_matches(['[', ']']), list());
        let mut reader = serde_json::Deserializer::from_str(&nested);
        let field = Anything { texts_max: &mut left }.deserialize(&mut reader).unwrap();
        assert_eq!((field, left), (Field::Other, 0));
    }

    #[test]
    fn a_list_for_which_another_one_left_no_room_is_refused() {
        let text = format!("{{\"l\":{},\"urls\":[\"b\"]}}", list());
        let Fields(mut object) = serde_json::from_str(&text).unwrap();
        assert!(take_words(&mut object, "urls", 10).is_err());
        let Fields(mut object) = serde_json::from_str(r#"{"urls":["a","b"]}"#).unwrap();
        assert!(take_words(&mut object.clone(), "urls", 1).is_err());
        assert_eq!(take_words(&mut object, "urls", 2).unwrap().unwrap(), ["a", "b"]);
    }
}
