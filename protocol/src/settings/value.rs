//! The types of settings.

use super::group::KeyKind;
use super::job::ScopeRule;
use super::kind::Kind;
use crate::command::{duration_within, whole_number};
use crate::error::{ProtocolError, bad_argument};
use crate::{
    AttributeFilter, CanonicalUrl, DEAD_LETTER_TOPIC, Patterns, RenderRule, Sync, TopicName,
    format_bytes, format_ms, is_traceparent, parse_bytes,
};

/// The value of `where=` without conditions. It is none, because it has no `=`.
const NO_CONDITIONS: &str = "none";

/// A value of a setting.
pub(super) trait Value: Sized {
    /// Reads a value of this kind, for the setting `name`.
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError>;

    /// The words that set it; none if it is left out.
    fn words(&self, kind: &Kind) -> Vec<String>;

    /// Sets it.
    fn set(&mut self, name: &str, kind: &Kind, text: &str) -> Result<(), ProtocolError> {
        *self = Self::read(name, kind, text)?;
        Ok(())
    }
}

pub(super) fn unexpected(name: &str, kind: &Kind, text: &str) -> ProtocolError {
    bad_argument(format!("{name}={text}: expected {kind}"))
}

impl Value for u64 {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        match *kind {
            Kind::Number(min, max) => whole_number(name, text, min, max),
            Kind::Duration(min, max) | Kind::DurationOrDefault(min, max) => {
                duration_within(name, text, min, max)
            }
            Kind::Bytes(min) => parse_bytes(text)
                .filter(|bytes| *bytes >= min)
                .ok_or_else(|| unexpected(name, kind, text)),
            _ => Err(unexpected(name, kind, text)),
        }
    }

    fn words(&self, kind: &Kind) -> Vec<String> {
        vec![match kind {
            Kind::Bytes(_) => format_bytes(*self),
            Kind::Duration(..) | Kind::DurationOrDefault(..) => format_ms(*self),
            _ => self.to_string(),
        }]
    }
}

impl Value for u32 {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        let number = <u64 as Value>::read(name, kind, text)?;
        number.try_into().map_err(|_| unexpected(name, kind, text))
    }

    fn words(&self, kind: &Kind) -> Vec<String> {
        u64::from(*self).words(kind)
    }
}

/// The first of two words is `true`.
impl Value for bool {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        match kind {
            Kind::OneOf([yes, no]) if [*yes, *no].contains(&text) => Ok(text == *yes),
            Kind::YesNo if ["yes", "no"].contains(&text) => Ok(text == "yes"),
            _ => Err(unexpected(name, kind, text)),
        }
    }

    fn words(&self, kind: &Kind) -> Vec<String> {
        match kind {
            Kind::OneOf([yes, no]) => vec![if *self { yes } else { no }.to_string()],
            _ => self.then(|| "yes".to_owned()).into_iter().collect(),
        }
    }
}

/// A URL in canonical form, or a trace context.
impl Value for Box<str> {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        match kind {
            Kind::Url(bytes_max) if text.len() <= *bytes_max => CanonicalUrl::parse(text)
                .map(|url| url.as_str().into())
                .map_err(|error| bad_argument(format!("{name}={text}: {error}"))),
            Kind::Traceparent if is_traceparent(text) => Ok(text.into()),
            _ => Err(unexpected(name, kind, text)),
        }
    }

    fn words(&self, _: &Kind) -> Vec<String> {
        vec![self.to_string()]
    }
}

/// `None` is `default` or left out.
impl<V: Value> Value for Option<V> {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        match kind {
            Kind::DurationOrDefault(..) if text == "default" => Ok(None),
            _ => V::read(name, kind, text).map(Some),
        }
    }

    fn words(&self, kind: &Kind) -> Vec<String> {
        match (self, kind) {
            (Some(value), _) => value.words(kind),
            (None, Kind::DurationOrDefault(..)) => vec!["default".to_owned()],
            (None, _) => Vec::new(),
        }
    }
}

/// Topics as a list.
pub(super) fn with_commas(topics: &[TopicName]) -> String {
    let names: Vec<_> = topics.iter().map(TopicName::as_str).collect();
    names.join(",")
}

/// Topics that feed a group.
impl Value for Vec<TopicName> {
    fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
        let mut topics = Vec::new();
        for topic in text.split(',') {
            let topic: TopicName = topic.parse()?;
            // A group's own dead letters could become dead letters again.
            if topic.as_str() == DEAD_LETTER_TOPIC {
                return Err(bad_argument(format!(
                    "{name}={topic}: groups publish on this topic, so it cannot feed one"
                )));
            }
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        match kind {
            Kind::List { max, .. } if topics.len() <= *max => Ok(topics),
            _ => Err(unexpected(name, kind, text)),
        }
    }

    fn words(&self, _: &Kind) -> Vec<String> {
        vec![with_commas(self)]
    }
}

/// A condition is added to those before it.
impl Value for AttributeFilter {
    fn read(_: &str, _: &Kind, text: &str) -> Result<Self, ProtocolError> {
        Self::parse([text])
    }

    fn words(&self, _: &Kind) -> Vec<String> {
        self.conditions().iter().map(ToString::to_string).collect()
    }

    fn set(&mut self, _: &str, _: &Kind, text: &str) -> Result<(), ProtocolError> {
        if text == NO_CONDITIONS {
            *self = Self::default();
            return Ok(());
        }
        self.push(text.parse()?)
    }
}

/// Types that are read and written as they are shown.
macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(_: &str, _: &Kind, text: &str) -> Result<Self, ProtocolError> {
                text.parse()
            }

            fn words(&self, _: &Kind) -> Vec<String> {
                let text = self.to_string();
                if text.is_empty() { Vec::new() } else { vec![text] }
            }
        }
    )*};
}

texts!(KeyKind, Patterns, RenderRule);

/// Types that `word_enum!` defines.
macro_rules! words {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(name: &str, kind: &Kind, text: &str) -> Result<Self, ProtocolError> {
                Self::from_word(text).ok_or_else(|| unexpected(name, kind, text))
            }

            fn words(&self, _: &Kind) -> Vec<String> {
                vec![self.to_string()]
            }
        }
    )*};
}

words!(ScopeRule, Sync);
