//! Names and numbers that identify things on the wire.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use bytes::BufMut;
use smol_str::SmolStr;

use crate::text::quote;
use crate::wire::{number, put_number};
use crate::{Code, ProtocolError, bad_argument};

/// The longest name of a topic, group, job or cursor, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Whether a text can be a name: 1 to [`NAME_BYTES_MAX`] letters, digits, `.`, `_` or `-` of
/// ASCII, the first one a letter or digit (`[N1]`).
///
/// So a name needs no quoting in a shell, a URL or a file system, and is never `..`.
pub fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

/// The refusal of a text that is not a name; `what` says what it should name.
pub(crate) fn bad_name(what: &str, text: &str) -> ProtocolError {
    ProtocolError::new(
        Code::BadName,
        format!(
            "{} cannot be the name of a {what}: 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' \
             or '-', a letter or digit first",
            quote(text)
        ),
    )
}

macro_rules! names {
    ($($(#[$docs:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$docs])*
        ///
        /// Cheap to clone; up to 23 bytes need no memory elsewhere. See [`is_name`] for valid
        /// names.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(SmolStr);

        impl $name {
            /// Checks the text and copies it.
            pub fn new(text: &str) -> Result<Self, ProtocolError> {
                if is_name(text) { Ok($name(text.into())) } else { Err(bad_name($what, text)) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ProtocolError;

            fn from_str(text: &str) -> Result<Self, ProtocolError> {
                $name::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        // Hash and Eq are those of the text, as Borrow requires.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.0.as_str(), f)
            }
        }
    )*};
}

names! {
    /// The name of a topic: a numbered stream of one-line events.
    TopicName, "topic";
    /// The name of a group: a queue with keys and delays that members share.
    GroupName, "group";
    /// The name of a job: a counted crawl.
    JobName, "job";
    /// The name of a durable cursor on a topic.
    CursorName, "cursor";
}

/// The seq of an event in its topic: rising from 1, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Seq {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        number(text).filter(|seq| *seq > 0).map(Seq).ok_or_else(|| {
            let text = quote(text);
            bad_argument(format!("{text} is not a seq, which is a whole number from 1"))
        })
    }
}

/// The lease of one member on one task, as `<group>:<run>.<entry>.<attempt>` on the wire.
///
/// Each attempt has its own id, so a late answer is recognized as stale by its id alone, even after
/// a restart of the broker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The group that released the task.
    pub group: GroupName,
    /// The group's run: raised with every start of the group.
    pub run: u64,
    /// The entry's number within the group.
    pub entry: u64,
    /// Which release of the entry this is, from 1.
    pub attempt: u32,
}

impl TaskId {
    /// Appends its form on the wire.
    pub(crate) fn encode(&self, out: &mut impl BufMut) {
        out.put_slice(self.group.as_str().as_bytes());
        out.put_u8(b':');
        put_number(self.run, out);
        out.put_u8(b'.');
        put_number(self.entry, out);
        out.put_u8(b'.');
        put_number(self.attempt.into(), out);
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name, three numbers, and the separators.
        let mut text = [0; NAME_BYTES_MAX + 20 + 20 + 10 + 3];
        let mut rest = &mut text[..];
        self.encode(&mut rest);
        let unused = rest.len();
        let (text, _) = text.split_at(text.len() - unused);
        f.write_str(std::str::from_utf8(text).expect("names and numbers are ASCII"))
    }
}

impl FromStr for TaskId {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let parts = || {
            let (group, numbers) = text.split_once(':')?;
            let mut numbers = numbers.split('.');
            let id = TaskId {
                group: GroupName::new(group).ok()?,
                run: number(numbers.next()?)?,
                entry: number(numbers.next()?)?,
                attempt: number(numbers.next()?)?,
            };
            numbers.next().is_none().then_some(id)
        };
        parts().ok_or_else(|| {
            let text = quote(text);
            bad_argument(format!(
                "{text} is not the id of a task, which looks like crawlers:7.42.1"
            ))
        })
    }
}

/// The identity of a member over all its connections: 128 random bits, 32 hex digits on the wire.
///
/// A client that knows it can take over the member's tasks (`HELLO resume=`), so it must not be
/// logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u128);

impl MemberId {
    /// Its first eight digits. They tell members apart, and do not let a client act as the member.
    pub fn short(self) -> String {
        format!("{:08x}", self.first_digits())
    }

    /// The number that [`short`](Self::short) shows.
    pub fn first_digits(self) -> u32 {
        u32::try_from(self.0 >> 96).expect("32 of 128 bits are left")
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Shows the first eight digits only.
impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberId({}..)", self.short())
    }
}

impl FromStr for MemberId {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(MemberId);
        let wrong = || bad_argument("resume= should be the 32 hex digits from the answer to HELLO");
        id.ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PROTOCOL: N1
    #[test]
    fn names_have_an_edge_at_64_bytes() {
        assert!(is_name("a"));
        assert!(is_name("0.9_b-C"));
        assert!(is_name(&"x".repeat(64)));
        for text in ["", ".", "..", "-a", "_a", "a b", "a/b", "a:b", "a=b", "ä", &"x".repeat(65)] {
            assert!(!is_name(text), "{text:?}");
            assert_eq!(TopicName::new(text).unwrap_err().code, Code::BadName);
        }
    }

    // PROTOCOL: N3
    #[test]
    fn task_ids_are_read_as_they_are_written() {
        let id: TaskId = "crawlers:7.42.1".parse().unwrap();
        assert_eq!((id.group.as_str(), id.run, id.entry, id.attempt), ("crawlers", 7, 42, 1));
        assert_eq!(id.to_string(), "crawlers:7.42.1");
        for text in [
            "",
            "crawlers",
            "crawlers:",
            "crawlers:7.42",
            "crawlers:7.42.1.0",
            "crawlers:7.-4.1",
            "a b:7.42.1",
            "crawlers:7.42.4294967296",
            ":7.42.1",
        ] {
            assert_eq!(text.parse::<TaskId>().unwrap_err().code, Code::BadArgument, "{text:?}");
        }
    }

    // PROTOCOL: N4
    #[test]
    fn members_are_32_hex_digits() {
        let text = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(text.parse::<MemberId>().unwrap().to_string(), text);
        for text in
            ["", "0", "+00102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0f0"]
        {
            assert!(text.parse::<MemberId>().is_err(), "{text:?}");
        }
    }

    // PROTOCOL: N2
    #[test]
    fn event_numbers_begin_at_one() {
        assert_eq!("1".parse::<Seq>(), Ok(Seq(1)));
        for text in ["0", "", "-1", "18446744073709551616"] {
            assert!(text.parse::<Seq>().is_err(), "{text:?}");
        }
    }
}
