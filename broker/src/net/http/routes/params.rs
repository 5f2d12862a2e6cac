//! Patterns and parameters that several requests have.

use tidings_protocol::settings::{Kind, Setting};
pub(super) use tidings_protocol::settings::{NAME, URL, URL_PATTERNS};
use tidings_protocol::{CONDITIONS_MAX, Settings};

use super::super::openapi::Param;
use super::super::openapi::schema::{Schema, flag, list, number, one_of, pattern};

/// One word.
pub(super) const WORD: &str = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$";

/// A condition on an attribute of an event.
pub(super) const CONDITION: &str = "^[A-Za-z][A-Za-z0-9._-]*!?=[^\\s\\x00-\\x1f\\x7f-\\x9f]*$";

/// A duration.
pub(super) const DURATION: &str = "^(0|[0-9]+(ms|s|m|h|d))$";

/// A duration longer than 0.
pub(super) const TIME_SPAN: &str = "^[0-9]*[1-9][0-9]*(ms|s|m|h|d)$";

/// An object with those of the settings that `has` selects, each as `form` of its schema.
pub(super) fn settings<S: Settings>(
    object: Schema,
    has: impl Fn(&'static str) -> bool,
    form: impl Fn(Schema) -> Schema,
) -> Schema {
    S::ALL.iter().filter(|setting| has(setting.name)).fold(object, |object, setting| {
        let Setting { name, kind, about, .. } = setting;
        let (value, range) = match *kind {
            Kind::Number(min, max) => (number(min.cast_signed(), max), String::new()),
            Kind::Duration(min, _) => {
                (pattern(if min == 0 { DURATION } else { TIME_SPAN }), format!("; {kind}"))
            }
            Kind::DurationOrDefault(..) => {
                (pattern("^(default|0|[0-9]+(ms|s|m|h|d))$"), format!("; {kind}"))
            }
            Kind::Bytes(_) => (pattern("^[0-9]+[kmg]?$"), format!("; {kind}")),
            Kind::OneOf(words) => (one_of(words), String::new()),
            Kind::YesNo => (flag(), String::new()),
            Kind::Url(_) => (pattern(URL), format!("; {kind}")),
            Kind::Conditions => {
                (list(pattern(CONDITION)).with("maxItems", CONDITIONS_MAX), String::new())
            }
            Kind::Traceparent => (pattern(WORD), format!("; {kind}")),
            Kind::Text { pattern: text, .. } => (pattern(text), format!("; {kind}")),
            Kind::List { pattern: text, max, .. } => {
                let items = list(pattern(text)).with("minItems", 1).with("maxItems", max);
                (items, String::new())
            }
        };
        object.option(name, form(value), &format!("{}{range}", about.trim_end_matches('.')))
    })
}

pub(super) fn name() -> Schema {
    pattern(NAME)
}

pub(super) fn any_number() -> Schema {
    number(0, u64::MAX)
}

pub(super) fn topic() -> Param {
    Param::new("topic", name(), "Name of the topic").example("new-url")
}

pub(super) fn group() -> Param {
    Param::new("group", name(), "Name of the group").example("crawlers")
}

pub(super) fn job() -> Param {
    Param::new("job", name(), "Name of the job").example("docs")
}

/// The group of a job.
pub(super) fn of_group() -> Param {
    Param::new("group", name(), "Group of the job. Default: crawlers")
}

pub(super) fn entry() -> Param {
    Param::new("entry", number(1, u64::MAX), "Only the entry with this number")
}

pub(super) fn of_key() -> Param {
    Param::new("key", pattern(WORD), "Only entries of this key")
}

pub(super) fn of_job() -> Param {
    Param::new("job", name(), "Only entries of this job")
}

pub(super) fn matching() -> Param {
    let about = "Only those with a URL that one of these patterns matches; separated by commas";
    Param::new("match", pattern(URL_PATTERNS), about).example("/docs/*")
}

pub(super) fn dry() -> Param {
    let about = "yes: change nothing, and return how many would be changed. Default: no";
    Param::new("dry", one_of(&["yes", "no"]), about)
}

/// Where a change continues.
pub(super) fn behind() -> Param {
    let about = "Only entries behind this number: 0, then the `next` of the part before";
    Param::new("after", any_number(), about)
}

/// Where a list continues.
pub(super) fn after() -> Param {
    let about = "The part of the list behind this number, in the order of the numbers: 0, then the \
                 `next` of the part before";
    Param::new("after", any_number(), about)
}

pub(super) fn limit(default: u16) -> Param {
    let about = format!("Largest number of items in the list. Default: {default}");
    Param::new("limit", number(0, 1000), &about)
}
