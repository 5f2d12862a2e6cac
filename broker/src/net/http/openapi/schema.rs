//! JSON schemas. A schema is built by the functions here and the methods of [`Schema`].

use serde_json::{Value, json};
use tidings_protocol::status::{Field, JsonType};

/// The largest number that every JSON reader keeps exactly.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// The schema of a JSON value.
#[derive(Debug, Clone)]
#[must_use]
pub struct Schema(Value);

/// Any string.
pub fn text() -> Schema {
    Schema(json!({ "type": "string" }))
}

/// A string that matches a regular expression.
pub fn pattern(pattern: &str) -> Schema {
    text().with("pattern", pattern)
}

/// One of these strings.
pub fn one_of(words: &[&str]) -> Schema {
    text().with("enum", words)
}

/// An RFC 3339 time.
pub fn time() -> Schema {
    text().with("format", "date-time")
}

/// `true` or `false`.
pub fn flag() -> Schema {
    Schema(json!({ "type": "boolean" }))
}

/// A whole number from `min` to `max`.
pub fn number(min: i64, max: u64) -> Schema {
    Schema(json!({ "type": "integer", "minimum": min, "maximum": max }))
}

/// A whole number that is not negative, in an answer.
pub fn count() -> Schema {
    number(0, EXACT_MAX)
}

/// A list.
pub fn list(items: Schema) -> Schema {
    Schema(json!({ "type": "array" })).with("items", items)
}

/// An object whose keys have no fixed names.
pub fn map(values: Schema) -> Schema {
    Schema(json!({ "type": "object" })).with("additionalProperties", values)
}

/// An object without fields yet. It has no others than those that are added.
pub fn object() -> Schema {
    Schema(json!({ "type": "object", "additionalProperties": false }))
}

/// Any JSON value.
pub fn any() -> Schema {
    Schema(json!({}))
}

/// A schema of the components.
pub fn named(name: &str) -> Schema {
    Schema(json!({ "$ref": format!("#/components/schemas/{name}") }))
}

/// Exactly one of these.
pub fn either<const N: usize>(schemas: [Schema; N]) -> Schema {
    Schema(json!({ "oneOf": schemas.map(|Schema(schema)| schema).to_vec() }))
}

/// A number, or `null`.
pub fn number_or_null() -> Schema {
    Schema(json!({ "type": ["number", "null"] }))
}

/// An object with the fields of a status.
pub fn status(fields: Vec<Field>) -> Schema {
    fields.into_iter().fold(object(), |object, Field { key, json, required, about }| {
        let value = match json {
            JsonType::String => text(),
            JsonType::OneOf(words) => one_of(words),
            JsonType::Integer => count(),
            JsonType::Signed => Schema(json!({ "type": "integer" })),
            JsonType::Number => Schema(json!({ "type": "number", "minimum": 0 })),
            JsonType::Boolean => flag(),
            JsonType::Strings => list(text()),
        };
        object.add(key, value, about.trim_end_matches('.'), required)
    })
}

impl Schema {
    /// With another keyword of JSON Schema.
    pub fn with(mut self, keyword: &str, value: impl Into<Value>) -> Self {
        self.0[keyword] = value.into();
        self
    }

    /// With a description, unless it is empty.
    pub fn about(self, text: &str) -> Self {
        if text.is_empty() { self } else { self.with("description", text) }
    }

    /// Or `null`.
    pub fn or_null(mut self) -> Self {
        let kind = self.0["type"].take();
        self.with("type", json!([kind, "null"]))
    }

    /// With a field that is always there.
    pub fn field(self, key: &str, value: Schema, about: &str) -> Self {
        self.add(key, value, about, true)
    }

    /// With a field that may be left out.
    pub fn option(self, key: &str, value: Schema, about: &str) -> Self {
        self.add(key, value, about, false)
    }

    /// Without a field.
    pub fn without(mut self, key: &str) -> Self {
        if let Some(fields) = self.0["properties"].as_object_mut() {
            fields.remove(key);
        }
        if let Some(required) = self.0["required"].as_array_mut() {
            required.retain(|name| name != key);
        }
        self
    }

    fn add(mut self, key: &str, value: Schema, about: &str, is_required: bool) -> Self {
        self.0["properties"][key] = value.about(about).0;
        if is_required {
            let required = self.0.as_object_mut().expect("a schema is an object");
            let required = required.entry("required").or_insert_with(|| json!([]));
            required.as_array_mut().expect("it is a list").push(key.into());
        }
        self
    }
}

impl From<Schema> for Value {
    fn from(Schema(value): Schema) -> Self {
        value
    }
}
