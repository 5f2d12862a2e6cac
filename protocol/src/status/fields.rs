//! The list of the fields of a status, and what follows from it.

use std::fmt;

use serde::ser::SerializeMap;

/// A field of a status, for descriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its key, on the wire and in JSON.
    pub key: &'static str,
    /// The type of its value in JSON.
    pub json: JsonType,
    /// Whether every status has it.
    pub required: bool,
    /// What it is, in a sentence; empty for the first word of a line.
    pub about: &'static str,
}

/// The type of a value in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// A string.
    String,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A whole number that is not negative.
    Integer,
    /// A whole number that may be negative.
    Signed,
    /// A number that may have a fraction.
    Number,
    /// `true` or `false`; `yes` or `no` on the wire.
    Boolean,
    /// A list of strings; separated by commas on the wire.
    Strings,
}

/// Fields that stand in a line as ` key=value`, in a fixed order.
pub(crate) trait FieldSet {
    /// Appends the descriptions.
    fn describe(fields: &mut Vec<Field>);

    /// Appends the words.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Sets a field; `false` if none has this key. A value that cannot be read changes nothing.
    fn set(&mut self, key: &str, value: &str) -> bool;

    /// Adds the fields to an object.
    fn serialize_into<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error>;
}

/// Defines a struct of fields. A field with a key is one value; its comment also describes it in the
/// `OpenAPI` document. A field without a key is a struct of fields, which stand at its place.
macro_rules! fields {
    (
        $(#[$meta:meta])*
        $name:ident $(($head:ident: $head_type:ty))? {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty $(= $key:literal)?,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $(
                /// What it is about: the first word of the line.
                pub $head: $head_type,
            )?
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl crate::status::fields::FieldSet for $name {
            fn describe(fields: &mut Vec<crate::status::Field>) {
                $(fields!(@describe $type, fields, concat!($($doc),*) $(, $key)?);)*
            }

            fn write(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $(fields!(@write self.$field, f $(, $key)?)?;)*
                Ok(())
            }

            fn set(&mut self, key: &str, value: &str) -> bool {
                $(fields!(@set self.$field, key, value $(, $key)?))||*
            }

            fn serialize_into<M: serde::ser::SerializeMap>(
                &self,
                object: &mut M,
            ) -> Result<(), M::Error> {
                $(fields!(@serialize self.$field, object $(, $key)?)?;)*
                Ok(())
            }
        }
    };

    (@describe $type:ty, $fields:ident, $about:expr, $key:literal) => {
        $fields.push(crate::status::value::describe::<$type>($key, $about))
    };
    (@describe $type:ty, $fields:ident, $about:expr) => {
        <$type as crate::status::fields::FieldSet>::describe($fields)
    };
    (@write $field:expr, $f:ident, $key:literal) => {
        crate::status::value::write_field(&$field, $key, $f)
    };
    (@write $field:expr, $f:ident) => {
        crate::status::fields::FieldSet::write(&$field, $f)
    };
    (@set $field:expr, $name:ident, $value:ident, $key:literal) => {
        $name == $key && crate::status::value::set(&mut $field, $value)
    };
    (@set $field:expr, $name:ident, $value:ident) => {
        crate::status::fields::FieldSet::set(&mut $field, $name, $value)
    };
    (@serialize $field:expr, $object:ident, $key:literal) => {
        crate::status::value::serialize_field(&$field, $key, $object)
    };
    (@serialize $field:expr, $object:ident) => {
        crate::status::fields::FieldSet::serialize_into(&$field, $object)
    };
}

/// Defines a status: the first word of its line, which is also a field of its JSON object, and
/// fields as in [`fields!`].
macro_rules! status {
    ($(#[$meta:meta])* $name:ident($head:ident: $head_type:ty) { $($fields:tt)* }) => {
        fields! { $(#[$meta])* $name($head: $head_type) { $($fields)* } }

        impl $name {
            /// Its fields in JSON.
            pub fn fields() -> Vec<crate::status::Field> {
                let head = crate::status::value::describe::<$head_type>(stringify!($head), "");
                let mut fields = vec![head];
                <Self as crate::status::fields::FieldSet>::describe(&mut fields);
                fields
            }

            /// Reads `<name> key=value ..`. Unknown keys are ignored, and the default stands for
            /// what is missing or cannot be read.
            pub fn parse(line: &str) -> Self {
                let (head, rest) = crate::wire::first_word(line);
                let mut status = Self::default();
                crate::status::value::set(&mut status.$head, head);
                for (key, value) in crate::wire::words(rest).filter_map(|word| word.split_once('=')) {
                    crate::status::fields::FieldSet::set(&mut status, key, value);
                }
                status
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::status::value::Value::write(&self.$head, f)?;
                crate::status::fields::FieldSet::write(self, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut object = serializer.serialize_map(None)?;
                object.serialize_entry(stringify!($head), &self.$head)?;
                crate::status::fields::FieldSet::serialize_into(self, &mut object)?;
                object.end()
            }
        }
    };
}

/// Defines the words of a field. Each status has one of them.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $word:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $name {
            $($(#[$doc])* $word,)*
            /// Missing, or a word that this version does not know. Never sent.
            #[default]
            Unknown,
        }

        impl $name {
            /// The words, as they are sent.
            pub const WORDS: &'static [&'static str] = &[$($text),*];

            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)*
                    Self::Unknown => "unknown",
                }
            }

            /// What a word means; `None` if it is not one of [`WORDS`](Self::WORDS).
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($text => Some(Self::$word),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl crate::status::value::Value for $name {
            const JSON: crate::status::JsonType = crate::status::JsonType::OneOf(Self::WORDS);

            fn write(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }

            fn read(word: &str) -> Option<Self> {
                Self::from_word(word)
            }
        }
    };
}
