//! Settings of groups, jobs and topics. Each is declared once, by `settings!`.
//!
//! From the declaration follow the parser with its refusals, the words that show the settings, their
//! fields in a status and its JSON, the schema in the `OpenAPI` description, and the help text. A test
//! compares it with the tables of the specification.

use std::fmt;

use serde::ser::SerializeMap;

use crate::error::{ProtocolError, bad_argument};
use crate::status::fields::FieldSet;
use crate::status::{Field, JsonType};

mod group;
mod job;
mod kind;
#[cfg(test)]
mod tests;
mod topic;
mod value;

pub use self::group::{GroupSettings, KeyKind};
pub use self::job::{JobSettings, ScopeRule};
use self::kind::URL_PATTERN;
pub use self::kind::{Kind, NAME, URL, URL_PATTERNS};
pub use self::topic::{Sync, TopicSettings};

/// A setting, as declared.
#[derive(Debug)]
pub struct Setting<S> {
    /// Its name on the wire and in JSON.
    pub name: &'static str,
    /// Other names by which it can be set.
    pub aliases: &'static [&'static str],
    /// The values that it may have.
    pub kind: Kind,
    /// What it is, in a sentence.
    pub about: &'static str,
    set: fn(&mut S, &Setting<S>, &str) -> Result<(), ProtocolError>,
    words: fn(&S, &Kind) -> Vec<String>,
    reset: fn(&mut S),
}

impl<S> Setting<S> {
    /// Its values in `settings`, as they are set; none if it is left out.
    pub fn words(&self, settings: &S) -> Vec<String> {
        (self.words)(settings, &self.kind)
    }
}

/// The settings of a thing: a struct that `settings!` defines.
pub trait Settings: Clone + Default + PartialEq + 'static {
    /// What has them.
    const OF: &'static str;
    /// All of them, in the order in which they are shown.
    const ALL: &'static [Setting<Self>];

    /// The setting of this name, or a refusal that lists all.
    fn setting(name: &str) -> Result<&'static Setting<Self>, ProtocolError> {
        let has_name =
            |setting: &&Setting<Self>| setting.name == name || setting.aliases.contains(&name);
        Self::ALL.iter().find(has_name).ok_or_else(|| {
            let names = Self::names();
            bad_argument(format!("{} has no setting {name}; the settings are {names}", Self::OF))
        })
    }

    /// The names, with commas.
    fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|setting| setting.name).collect();
        names.join(", ")
    }

    /// Settings from `name=value` words, with defaults for the others.
    fn parse<'a>(
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        Self::default().changed(words)
    }

    /// These settings after a change by `name=value` words, each checked alone.
    fn changed<'a>(
        &self,
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let (mut new, mut given) = (self.clone(), Vec::new());
        for (name, value) in words {
            let setting = Self::setting(name)?;
            if !given.contains(&setting.name) {
                given.push(setting.name);
                (setting.reset)(&mut new);
            } else if !setting.kind.repeats() {
                return Err(bad_argument(format!("{name}= is given twice")));
            }
            (setting.set)(&mut new, setting, value)?;
        }
        Ok(new)
    }

    /// Sets a setting to its default.
    fn reset(&mut self, setting: &Setting<Self>) {
        (setting.reset)(self);
    }
}

/// As fields of a status.
impl<S: Settings> FieldSet for S {
    fn describe(fields: &mut Vec<Field>) {
        let default = S::default();
        fields.extend(S::ALL.iter().map(|setting| Field {
            key: setting.name,
            json: setting.kind.json_type(),
            required: !setting.words(&default).is_empty(),
            about: setting.about,
        }));
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        S::ALL.iter().try_for_each(|setting| {
            let mut words = setting.words(self).into_iter();
            words.try_for_each(|word| write!(f, " {}={word}", setting.name))
        })
    }

    fn set(&mut self, key: &str, value: &str) -> bool {
        let Ok(setting) = S::setting(key) else { return false };
        // A peer of another version may have other values.
        let _ = (setting.set)(self, setting, value);
        true
    }

    fn serialize_into<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        for setting in S::ALL {
            let words = setting.words(self);
            let Some(word) = words.first() else { continue };
            object.serialize_key(setting.name)?;
            match setting.kind.json_type() {
                JsonType::Integer => object.serialize_value(&word.parse::<u64>().ok())?,
                JsonType::Strings => object.serialize_value(&setting.kind.split(&words))?,
                JsonType::Boolean => object.serialize_value(&(word == "yes"))?,
                _ => object.serialize_value(word)?,
            }
        }
        Ok(())
    }
}

/// Defines a struct of settings and implements [`Settings`] for it. A setting is one row: its
/// sentence, field, type, default, name, perhaps another name, and [`Kind`].
///
/// ```ignore
/// settings! {
///     /// The settings of a lamp.
///     LampSettings of "a lamp" {
///         /// The power, in watts.
///         watts: u32 = 60 => "watts": Kind::Number(1, 100),
///     }
/// }
/// ```
///
/// defines
///
/// ```ignore
/// /// The settings of a lamp.
/// #[derive(Debug, Clone, PartialEq, Eq)]
/// pub struct LampSettings {
///     /// The power, in watts.
///     pub watts: u32,
/// }
///
/// impl Settings for LampSettings {
///     const OF: &'static str = "a lamp";
///     const ALL: &'static [Setting<Self>] = &[Setting {
///         name: "watts",
///         aliases: &[],
///         kind: Kind::Number(1, 100),
///         about: "The power, in watts.",
///         set: |settings, setting, value| settings.watts.set(setting.name, &setting.kind, value),
///         words: |settings, kind| settings.watts.words(kind),
///         reset: |settings| settings.watts = 60,
///     }];
/// }
/// ```
///
/// and `Default` and `Display`: `LampSettings::default().to_string()` is `watts=60`.
macro_rules! settings {
    ($(#[$meta:meta])* $name:ident of $of:literal {
        $($(#[doc = $doc:literal])*
        $field:ident: $type:ty = $default:expr => $setting:literal $(| $alias:literal)?: $kind:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl crate::settings::Settings for $name {
            const OF: &'static str = $of;
            const ALL: &'static [crate::settings::Setting<Self>] = &[
                $(crate::settings::Setting {
                    name: $setting,
                    aliases: &[$($alias)?],
                    kind: $kind,
                    about: concat!($($doc),*).trim_ascii(),
                    set: |settings, setting, value| {
                        let field = &mut settings.$field;
                        crate::settings::value::Value::set(field, setting.name, &setting.kind, value)
                    },
                    words: |settings, kind| {
                        crate::settings::value::Value::words(&settings.$field, kind)
                    },
                    reset: |settings| settings.$field = $default,
                },)*
            ];
        }

        /// The `name=value` words that set them.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let words = std::fmt::from_fn(|f| crate::status::fields::FieldSet::write(self, f));
                f.write_str(words.to_string().trim_start())
            }
        }
    };
}
pub(crate) use settings;
