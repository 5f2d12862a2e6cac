//! Values in a record's line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use tidings_protocol::{
    DEAD_LETTER_TOPIC, DEAD_REASONS, GroupSettings, JOB_DONE_TOPIC, JobName, JobSettings, MemberId,
    Outcome, PAGE_READY_TOPIC, Seq, Settings, TopicName, UrlKey,
};

use crate::entry::Key;
use crate::frontier::lane::Lane;
use crate::moment::Moment;

/// Most items for which memory is reserved before they are read.
const RESERVED_MAX: usize = 512;

/// The fields of a line that are not read yet.
pub(super) struct LineFields<'a>(pub(super) Option<&'a str>);

impl<'a> Iterator for LineFields<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        let Some(end) = memchr::memchr(b'\t', rest.as_bytes()) else { return self.0.take() };
        self.0 = Some(&rest[end + 1..]);
        Some(&rest[..end])
    }
}

/// A value of one or more fields.
pub(super) trait LineValue: Sized {
    /// Stands for an optional value that is missing.
    const NONE: &'static str = "-";

    /// Stands before an optional value. If the value is one field, no TAB separates the two.
    const SOME: &'static str = "+\t";

    /// Appends the fields to a line, with a TAB after each.
    fn write(&self, line: &mut String);

    /// Reads the fields. Returns `None` if one is missing or invalid. Implementations are `inline`:
    /// otherwise short records take 20 % longer.
    fn read(fields: &mut LineFields<'_>) -> Option<Self>;
}

/// Implements [`LineValue`] for structs: the fields, in the order of the line.
///
/// - `as` is followed by two functions: from the field to the value in the line, and back.
/// - `=` is followed by a function that creates the struct from the first values.
macro_rules! structs {
    ($($type:ident {
        $($field:ident $(as ($to:expr, $from:expr))?),*
    })*) => {$(
        impl LineValue for $type {
            fn write(&self, line: &mut String) {
                $(structs!(@write self.$field, line $(, $to)?);)*
            }

            #[inline]
            fn read(fields: &mut LineFields<'_>) -> Option<Self> {
                $(let $field = LineValue::read(fields)?; $(let $field = $from($field);)?)*
                Some(Self { $($field),* })
            }
        }
    )*};

    ($($type:ident = $new:path[$($first:ident),*] { $($field:ident),* })*) => {$(
        impl LineValue for $type {
            fn write(&self, line: &mut String) {
                $(self.$first.write(line);)*
                $(self.$field.write(line);)*
            }

            #[inline]
            fn read(fields: &mut LineFields<'_>) -> Option<Self> {
                $(let $first = LineValue::read(fields)?;)*
                let mut new = Option::<Self>::from($new($($first),*))?;
                $(new.$field = LineValue::read(fields)?;)*
                Some(new)
            }
        }
    )*};

    (@write $field:expr, $line:ident) => { $field.write($line) };
    (@write $field:expr, $line:ident, $to:expr) => { $to(&$field).write($line) };
}

/// Implements [`LineValue`] for an enum: the first word of each variant, and its fields in the
/// order of the line.
macro_rules! variants {
    ($type:ident { $(
        $word:literal => $variant:ident
            $(($value:ident))?
            $({ $($field:ident),* })?,
    )* }) => {
        impl LineValue for $type {
            // The same as a list of at most one item.
            const NONE: &'static str = "0";
            const SOME: &'static str = "1\t";

            fn write(&self, line: &mut String) {
                match self {$(
                    Self::$variant { $(0: $value)? $($($field),*)? } => {
                        line.push_str(concat!($word, "\t"));
                        $($value.write(line);)?
                        $($($field.write(line);)*)?
                    }
                )*}
            }

            #[inline]
            fn read(fields: &mut LineFields<'_>) -> Option<Self> {
                Some(match fields.next()? {
                    $($word => {
                        $(let $value = LineValue::read(fields)?;)?
                        $($(let $field = LineValue::read(fields)?;)*)?
                        Self::$variant { $(0: $value)? $($($field),*)? }
                    })*
                    _ => return None,
                })
            }
        }
    };
}

pub(super) use structs;
pub(super) use variants;

/// Implements [`LineValue`] for values of one field: how it is written and parsed.
macro_rules! fields {
    ($($type:ty { |$value:ident, $line:ident| $write:expr, |$field:ident| $parse:expr })*) => {$(
        impl LineValue for $type {
            const SOME: &'static str = "+";

            fn write(&self, $line: &mut String) {
                let $value = self;
                $write;
                $line.push('\t');
            }

            #[inline]
            fn read(fields: &mut LineFields<'_>) -> Option<Self> {
                let $field = fields.next()?;
                $parse
            }
        }
    )*};
}

// Most fields are numbers, and `Display` would take half of the time of a record.
macro_rules! numbers {
    ($($number:ty),*) => {$(fields! { $number {
        |number, line| line.push_str(itoa::Buffer::new().format(*number)),
        |field| field.parse().ok()
    } })*};
}

macro_rules! texts {
    ($($text:ty),*) => {$(fields! { $text {
        |text, line| escape(text, line),
        |field| unescaped(field).map(Into::into)
    } })*};
}

macro_rules! names {
    ($($name:ty),*) => {$(fields! { $name {
        |name, line| line.push_str(name.as_str()),
        |field| field.parse().ok()
    } })*};
}

macro_rules! wrapped_numbers {
    ($($wrapper:ident),*) => {$(fields! { $wrapper {
        |wrapper, line| line.push_str(itoa::Buffer::new().format(wrapper.0)),
        |field| field.parse().ok().map($wrapper)
    } })*};
}

numbers!(u8, i16, i64, u32, u64, u128, usize);
texts!(Box<str>, Arc<str>, Key, String);
names!(TopicName, JobName);
wrapped_numbers!(Moment, Seq, UrlKey);

fields! {
    bool {
        |flag, line| line.push(if *flag { '1' } else { '0' }),
        |field| match field {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
    MemberId {
        |member, line| HEXLOWER.encode_append(&member.0.to_be_bytes(), line),
        |field| field.parse().ok()
    }
    Outcome {
        |outcome, line| line.push_str(outcome.as_str()),
        |field| Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == field)
    }
    GroupSettings {
        |settings, line| escape(&settings.to_string(), line),
        |field| GroupSettings::parse(settings(&unescaped(field)?)?).ok()
    }
    JobSettings {
        |settings, line| escape(&settings.to_string(), line),
        |field| JobSettings::parse(settings(&unescaped(field)?)?).ok()
    }
    Lane {
        |lane, line| match lane {
            Lane::Announced => line.push('a'),
            Lane::Job(number) => line.push_str(itoa::Buffer::new().format(*number)),
        },
        |field| match field {
            "a" => Some(Lane::Announced),
            number => number.parse().ok().map(Lane::Job),
        }
    }
    // A topic of the group itself, or the reason of a dead letter.
    &'static str {
        |word, line| line.push_str(word),
        |field| {
            let topics = [JOB_DONE_TOPIC, DEAD_LETTER_TOPIC, PAGE_READY_TOPIC];
            let words = topics.into_iter().chain(DEAD_REASONS);
            words.into_iter().find(|word| *word == field)
        }
    }
}

/// Parses `name=value` words.
fn settings(words: &str) -> Option<Vec<(&str, &str)>> {
    let words = words.split(' ').filter(|word| !word.is_empty());
    words.map(|word| word.split_once('=')).collect()
}

fn escape(text: &str, line: &mut String) {
    let mut rest = text;
    while let Some(at) = memchr::memchr2(b'\t', b'\\', rest.as_bytes()) {
        line.push_str(&rest[..at]);
        line.push_str(if rest.as_bytes()[at] == b'\t' { "\\t" } else { "\\\\" });
        rest = &rest[at + 1..];
    }
    line.push_str(rest);
}

fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return Some(text.into());
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        plain.push(match (char, char == '\\') {
            (char, false) => char,
            (_, true) => match chars.next()? {
                't' => '\t',
                '\\' => '\\',
                _ => return None,
            },
        });
    }
    Some(plain.into())
}

impl<T: LineValue> LineValue for Option<T> {
    fn write(&self, line: &mut String) {
        match self {
            Some(value) => {
                line.push_str(T::SOME);
                value.write(line);
            }
            None => line.extend([T::NONE, "\t"]),
        }
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        match fields.0?.strip_prefix(T::SOME) {
            Some(value) => {
                fields.0 = Some(value);
                T::read(fields).map(Some)
            }
            None => (fields.next()? == T::NONE).then_some(None),
        }
    }
}

impl<T: LineValue> LineValue for Box<T> {
    const NONE: &'static str = T::NONE;
    const SOME: &'static str = T::SOME;

    fn write(&self, line: &mut String) {
        (**self).write(line);
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        T::read(fields).map(Self::new)
    }
}

impl<T: LineValue> LineValue for Vec<T> {
    fn write(&self, line: &mut String) {
        self.len().write(line);
        for item in self {
            item.write(line);
        }
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        let length = usize::read(fields)?;
        // The length may be damaged, so little memory is reserved.
        let mut items = Self::with_capacity(length.min(RESERVED_MAX));
        for _ in 0..length {
            items.push(T::read(fields)?);
        }
        Some(items)
    }
}

/// As a list.
impl<T: LineValue, const LENGTH: usize> LineValue for [T; LENGTH] {
    fn write(&self, line: &mut String) {
        LENGTH.write(line);
        for item in self {
            item.write(line);
        }
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        Vec::read(fields)?.try_into().ok()
    }
}

/// As a list of keys and values.
impl<K: LineValue + Ord, V: LineValue> LineValue for BTreeMap<K, V> {
    fn write(&self, line: &mut String) {
        self.len().write(line);
        for (key, value) in self {
            key.write(line);
            value.write(line);
        }
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        (0..usize::read(fields)?).map(|_| Some((K::read(fields)?, V::read(fields)?))).collect()
    }
}

/// One field: two numbers with a dot between them.
impl<A: LineValue + FromStr, B: LineValue + FromStr> LineValue for (A, B) {
    const SOME: &'static str = "+";

    fn write(&self, line: &mut String) {
        self.0.write(line);
        line.pop();
        line.push('.');
        self.1.write(line);
    }

    #[inline]
    fn read(fields: &mut LineFields<'_>) -> Option<Self> {
        let (first, second) = fields.next()?.split_once('.')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    }
}
