//! Macros that define a type from one list.

/// Defines an enum of words from one list, with the words in both directions.
///
/// ```
/// tidings_protocol::word_enum! {
///     /// The state of a lamp.
///     pub enum Lamp {
///         /// It shines.
///         On = "on",
///         /// It is dark.
///         Off = "off",
///     }
/// }
/// assert_eq!(Lamp::from_word("on"), Some(Lamp::On));
/// assert_eq!(Lamp::ALL.map(Lamp::as_str), ["on", "off"]);
/// ```
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $word:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_meta])* $value,)*
        }

        impl $name {
            /// All values, in the order of their definition.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];

            /// Their words.
            pub const WORDS: [&'static str; [$($word),*].len()] = [$($word),*];

            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }

            /// The value of a word; `None` if it is not one of them.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$value),)*
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Defines a struct and its `Default`: the default of a field stands behind its type.
///
/// ```
/// tidings_protocol::with_defaults! {
///     /// The limits of a lamp.
///     #[derive(Debug)]
///     pub struct LampLimits {
///         /// Watts.
///         pub watts_max: u32 = 60,
///     }
/// }
/// assert_eq!(LampLimits::default().watts_max, 60);
/// ```
#[macro_export]
macro_rules! with_defaults {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty = $value:expr,)*
    }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $value,)* }
            }
        }
    };
}

/// Implements `Debug` for a struct with these fields. Its other fields are secret or have no
/// `Debug`.
///
/// ```
/// struct Login {
///     name: &'static str,
///     password: &'static str,
/// }
/// tidings_protocol::partial_debug!(Login { name });
/// let login = Login { name: "alice", password: "secret" };
/// assert_eq!(format!("{login:?}"), "Login { name: \"alice\", .. }");
/// ```
#[macro_export]
macro_rules! partial_debug {
    ($name:ident { $($field:ident),* }) => {
        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}
