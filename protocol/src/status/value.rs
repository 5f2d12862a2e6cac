//! The values of fields, as words on the wire and in JSON.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::fields::{Field, JsonType};
use crate::wire::number;
use crate::{Seq, format_bytes, format_ms, parse_bytes, parse_ms};

/// A value that is one word of a line.
pub(crate) trait Value: Serialize + Sized {
    /// Its type in JSON.
    const JSON: JsonType;

    /// Whether it is always there.
    const REQUIRED: bool = true;

    /// Whether it is left out.
    fn is_absent(&self) -> bool {
        false
    }

    /// Appends the word.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Reads the word.
    fn read(word: &str) -> Option<Self>;
}

/// Describes a field. `about` is the text of its comment.
pub(crate) fn describe<V: Value>(key: &'static str, about: &'static str) -> Field {
    Field { key, json: V::JSON, required: V::REQUIRED, about: about.trim_ascii() }
}

pub(crate) fn write_field<V: Value>(
    value: &V,
    key: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if value.is_absent() {
        return Ok(());
    }
    f.write_str(" ")?;
    f.write_str(key)?;
    f.write_str("=")?;
    value.write(f)
}

/// Sets the value if the word can be read. Always true, so that it ends the search for a key.
pub(crate) fn set<V: Value>(value: &mut V, word: &str) -> bool {
    if let Some(read) = V::read(word) {
        *value = read;
    }
    true
}

pub(crate) fn serialize_field<V: Value, M: SerializeMap>(
    value: &V,
    key: &'static str,
    object: &mut M,
) -> Result<(), M::Error> {
    if value.is_absent() { Ok(()) } else { object.serialize_entry(key, value) }
}

impl<V: Value> Value for Option<V> {
    const JSON: JsonType = V::JSON;
    const REQUIRED: bool = false;

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |value| value.write(f))
    }

    fn read(word: &str) -> Option<Self> {
        V::read(word).map(Some)
    }
}

impl Value for String {
    const JSON: JsonType = JsonType::String;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }

    fn read(word: &str) -> Option<Self> {
        Some(word.to_owned())
    }
}

impl Value for Vec<String> {
    const JSON: JsonType = JsonType::Strings;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.join(","))
    }

    fn read(word: &str) -> Option<Self> {
        Some(word.split(',').map(str::to_owned).collect())
    }
}

impl Value for bool {
    const JSON: JsonType = JsonType::Boolean;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self { "yes" } else { "no" })
    }

    fn read(word: &str) -> Option<Self> {
        Some(word == "yes")
    }
}

impl Value for u64 {
    const JSON: JsonType = JsonType::Integer;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }

    fn read(word: &str) -> Option<Self> {
        number(word)
    }
}

impl Value for i16 {
    const JSON: JsonType = JsonType::Signed;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }

    fn read(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

/// A number in JSON.
impl Serialize for Seq {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Value for Seq {
    const JSON: JsonType = JsonType::Integer;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }

    fn read(word: &str) -> Option<Self> {
        number(word).map(Seq)
    }
}

/// A rate per second, in tenths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rate {
    /// Ten times the rate.
    pub tenths: u64,
}

impl Rate {
    /// The nearest tenth.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
    pub fn per_second(rate: f64) -> Self {
        Self { tenths: (rate * 10.0).round() as u64 }
    }

    /// The rate as a number.
    #[expect(clippy::cast_precision_loss, reason = "a rate is far below 2^52")]
    pub fn value(self) -> f64 {
        self.tenths as f64 / 10.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tenths / 10, self.tenths % 10)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl Value for Rate {
    const JSON: JsonType = JsonType::Number;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }

    fn read(word: &str) -> Option<Self> {
        word.parse().ok().map(Self::per_second)
    }
}

/// Defines a number that is a text with a unit, also in JSON.
macro_rules! with_unit {
    ($(#[$meta:meta])* $name:ident, $parse:expr, $format:path) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&$format(self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl Value for $name {
            const JSON: JsonType = JsonType::String;

            fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }

            fn read(word: &str) -> Option<Self> {
                $parse(word).map(Self)
            }
        }
    };
}

with_unit!(
    /// A duration in milliseconds, written as [`format_ms`] does.
    DurationMs,
    |word| parse_ms(word).ok(),
    format_ms
);
with_unit!(
    /// A number of bytes, written as [`format_bytes`] does.
    ByteSize,
    parse_bytes,
    format_bytes
);
