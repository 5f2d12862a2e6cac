//! The lines of `EXPLAIN` as sentences.

use tidings_protocol::format_ms;
use tidings_protocol::status::WaitReason;

use crate::client::manage::key_values;
use crate::terminal::output::{plural, with_units};

/// What the sentences need beside the line.
#[derive(Debug, Default)]
pub(super) struct Context<'a> {
    pub(super) group: &'a str,
    /// The delay of the group.
    pub(super) delay_ms: Option<u64>,
    /// The least time until the last waiting URL of the key may begin, in milliseconds.
    pub(super) left_ms: Option<u64>,
}

/// A line of `EXPLAIN`: a URL or key, a word for its state, and `key=value` words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Explained<'a> {
    line: &'a str,
    /// The URL or key.
    pub(super) subject: &'a str,
    /// Empty for a schedule and for the last line about a URL.
    pub(super) state: &'a str,
}

impl<'a> Explained<'a> {
    pub(super) fn parse(line: &'a str) -> Self {
        let mut words = line.split(' ');
        let (subject, state) = match (words.next().unwrap_or_default(), words.clone().next()) {
            (state @ "in-flight", Some(subject)) => (subject, state),
            (subject, _) => (subject, words.find(|word| !word.contains('=')).unwrap_or_default()),
        };
        Self { line, subject, state }
    }

    /// The `key=value` words behind the subject.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let behind = self.line.split_once(self.subject).map_or("", |(_, behind)| behind);
        key_values(behind)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.values().find(|(word, _)| *word == key).map(|(_, value)| value)
    }

    /// A value for people; `-` if the broker does not send it.
    fn shown(&self, key: &str) -> String {
        self.value(key).map_or_else(|| "-".to_owned(), |value| with_units(key, value))
    }

    fn count(&self, key: &str) -> u64 {
        self.value(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Whether the line only counts those before it.
    pub(super) fn is_count(&self) -> bool {
        self.state.is_empty() && self.value("entries").is_some()
    }

    /// The line as a sentence; `None` if this version does not know its form.
    pub(super) fn sentence(&self, context: &Context<'_>) -> Option<String> {
        let Self { subject, .. } = *self;
        let job = match (self.value("job"), self.value("pass")) {
            (Some(job), Some(pass)) => format!(" (job {job}, pass {pass})"),
            _ => String::new(),
        };
        let clause = match self.state {
            "" => {
                let every = self.value("every")?;
                format!("is scheduled with every={every}, next in {}", self.shown("due-in"))
            }
            "in-flight" => format!("is being fetched by worker {}", self.shown("member")),
            "processing" => {
                let is_over = self.value("request") == Some("over");
                let over = if is_over { ", which has ended its request" } else { "" };
                let (member, lease) = (self.shown("member"), self.shown("lease-ends-in"));
                format!("is being fetched by worker {member}{over}; its lease ends in {lease}")
            }
            "delayed" if self.value("because") == Some("later") => {
                format!("is due in {}", self.shown("due-in"))
            }
            "delayed" if self.count("failures") == 0 => {
                format!("is tried again in {}: its worker was lost", self.shown("due-in"))
            }
            "delayed" => format!(
                "is tried again in {} after {}, the last one: {}",
                self.shown("due-in"),
                plural(self.count("failures"), "failure"),
                self.shown("last"),
            ),
            "dead" => format!(
                "was given up: {}, the last failure: {}; tidings dead retry fetches it again",
                self.shown("because"),
                self.shown("last"),
            ),
            "free" => "is free".to_owned(),
            "blocked" => format!("is blocked by {}", self.rule(context)),
            "pending" | "queued" => self.reason(context),
            _ => return None,
        };
        Some(format!("{subject} {clause}{job}.{}", self.crowd(context)))
    }

    /// Why the subject waits.
    fn reason(&self, context: &Context<'_>) -> String {
        let word = self.value("because").unwrap_or("-");
        let Context { group, delay_ms, .. } = *context;
        // A URL waits for its key; a key waits itself.
        let gate = self.value("key").map(|key| format!("waits for {key}, which "));
        let gate = gate.unwrap_or_default();
        let rests =
            |cause: &str| format!("{gate}rests for {} more: {cause}", self.shown("free-in"));
        let reason = match WaitReason::from_word(word).unwrap_or_default() {
            WaitReason::InFlight => return format!("{gate}has a request in flight"),
            WaitReason::Delay => {
                return match delay_ms.map(format_ms) {
                    Some(delay) => rests(&format!("delay={delay} of group {group}")),
                    None => rests("the default delay between two requests"),
                };
            }
            WaitReason::Pace => return rests("the delay that its server asked for, in robots.txt"),
            WaitReason::NotBefore => return rests("its server asked for it, as by Retry-After"),
            WaitReason::Down => {
                let next = self.shown("free-in");
                return format!("{gate}does not answer, and is tried again in {next}");
            }
            WaitReason::Free => return "is free".to_owned(),
            WaitReason::Retry => "its last attempt failed".to_owned(),
            WaitReason::Later => "it is not due yet".to_owned(),
            WaitReason::Rule => return format!("{gate}is paused by {}", self.rule(context)),
            WaitReason::GroupPaused => format!("group {group} is paused"),
            WaitReason::JobPaused => "its job is paused".to_owned(),
            WaitReason::JobHeld => "its job has hold=yes, and begins when it is closed".to_owned(),
            WaitReason::Budget => {
                "its job has used up its budget, and waits for pages in flight".to_owned()
            }
            WaitReason::Job => "the jobs of its URLs release nothing at present".to_owned(),
            WaitReason::UnpublishedEvents => {
                format!("events of group {group} could not be published yet")
            }
            WaitReason::NoMembers => "no worker takes tasks".to_owned(),
            WaitReason::NoCredit => "no worker has room for another task".to_owned(),
            WaitReason::NoRenderMember => "no worker has a browser".to_owned(),
            WaitReason::NoRenderCredit => "all browsers of the workers are busy".to_owned(),
            // A word of a newer broker.
            WaitReason::Unknown => word.to_owned(),
        };
        format!("waits: {reason}")
    }

    /// The rule of an operator, with its end and its note.
    fn rule(&self, context: &Context<'_>) -> String {
        let end = self.value("ends-in").map(|_| format!("ends in {}", self.shown("ends-in")));
        let note = self.value("note").map(|note| format!("note: {note}"));
        let more: Vec<_> = end.into_iter().chain(note).collect();
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join("; ")) };
        format!("the rule {} of group {}{more}", self.shown("rule"), context.group)
    }

    /// How many wait for a key. Empty for a URL.
    fn crowd(&self, context: &Context<'_>) -> String {
        if self.value("waiting").is_none() {
            return String::new();
        }
        let waiting = self.count("waiting");
        let mut clauses = vec![match waiting {
            0 => "No URL waits for it".to_owned(),
            1 => "1 URL waits for it".to_owned(),
            _ => format!("{} wait for it", plural(waiting, "URL")),
        }];
        if let Some(left) = context.left_ms.filter(|left| *left > 0 && waiting > 0) {
            let last = if waiting == 1 { "it" } else { "the last of them" };
            let left = with_units("left-ms", &left.to_string());
            clauses.push(format!("{last} begins in {left} at the soonest"));
        }
        for (key, what) in [("delayed", "not due yet"), ("scheduled", "scheduled")] {
            let count = self.count(key);
            if count > 0 {
                clauses.push(format!("{what}: {}", plural(count, "URL")));
            }
        }
        format!(" {}.", clauses.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context<'static> {
        Context { group: "crawlers", delay_ms: Some(600_000), left_ms: Some(896_400_000) }
    }

    fn sentence(line: &str) -> String {
        Explained::parse(line).sentence(&context()).unwrap_or_else(|| panic!("{line}"))
    }

    #[test]
    fn a_key_and_a_url_are_sentences() {
        for (line, expected) in [
            (
                "127.0.0.1 waiting=1499 pending because=delay free-in=599185ms",
                "127.0.0.1 rests for 9m 59s more: delay=10m of group crawlers. 1,499 URLs wait for \
                 it; the last of them begins in 10d 09h at the soonest.",
            ),
            (
                "a.example waiting=1 delayed=2 scheduled=1 pending because=not-before free-in=20m",
                "a.example rests for 20m 00s more: its server asked for it, as by Retry-After. 1 URL waits for it; it \
                 begins in 10d 09h at the soonest; not due yet: 2 URLs; scheduled: 1 URL.",
            ),
            ("a.example waiting=0 free", "a.example is free. No URL waits for it."),
            (
                "a.example waiting=0 pending because=in-flight",
                "a.example has a request in flight. No URL waits for it.",
            ),
            (
                "http://a.example/?a=b key=a.example pending because=in-flight job=docs pass=2",
                "http://a.example/?a=b waits for a.example, which has a request in flight (job docs, \
                 pass 2).",
            ),
            (
                "http://a.example/ key=a.example queued because=no-credit",
                "http://a.example/ waits: no worker has room for another task.",
            ),
            (
                "http://a.example/ key=a.example pending because=solar-eclipse",
                "http://a.example/ waits: solar-eclipse.",
            ),
            (
                "http://a.example/ key=a.example processing member=5b0c6f1e lease-ends-in=59s \
                 request=over",
                "http://a.example/ is being fetched by worker 5b0c6f1e, which has ended its request; \
                 its lease ends in 59 s.",
            ),
            (
                "http://a.example/ key=a.example delayed because=retry due-in=2s failures=1 last=timeout",
                "http://a.example/ is tried again in 2.0 s after 1 failure, the last one: timeout.",
            ),
            (
                "http://a.example/ key=a.example delayed because=later due-in=2s failures=0 last=none",
                "http://a.example/ is due in 2.0 s.",
            ),
            (
                "http://a.example/ key=a.example delayed because=retry due-in=2s failures=0 last=none",
                "http://a.example/ is tried again in 2.0 s: its worker was lost.",
            ),
            (
                "http://a.example/ dead because=max-attempts last=status",
                "http://a.example/ was given up: max-attempts, the last failure: status; tidings dead \
                 retry fetches it again.",
            ),
            (
                "http://a.example/ every=30m due-in=90s",
                "http://a.example/ is scheduled with every=30m, next in 1m 30s.",
            ),
            (
                "in-flight http://a.example/ member=5b0c6f1e",
                "http://a.example/ is being fetched by worker 5b0c6f1e.",
            ),
        ] {
            assert_eq!(sentence(line), expected);
        }
    }

    #[test]
    fn a_rule_is_named_with_its_end_and_its_note() {
        let context = Context { left_ms: None, ..context() };
        for (line, expected) in [
            (
                "a.example waiting=0 blocked because=rule rule=*.example note=abuse-2381",
                "a.example is blocked by the rule *.example of group crawlers (note: abuse-2381). No \
                 URL waits for it.",
            ),
            (
                "http://a.example/ blocked because=rule rule=a.example",
                "http://a.example/ is blocked by the rule a.example of group crawlers.",
            ),
            (
                "a.example waiting=40 pending because=rule rule=a.example",
                "a.example is paused by the rule a.example of group crawlers. 40 URLs wait for it.",
            ),
            (
                "http://a.example/ key=a.example pending because=rule rule=*.example ends-in=2h \
                 note=disk job=docs pass=2",
                "http://a.example/ waits for a.example, which is paused by the rule *.example of \
                 group crawlers (ends in 2h 00m; note: disk) (job docs, pass 2).",
            ),
        ] {
            let sentence = Explained::parse(line).sentence(&context);
            assert_eq!(sentence.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_line_of_a_newer_broker_is_not_known() {
        let line = "http://a.example/ key=a.example teleported to=mars";
        assert_eq!(Explained::parse(line).sentence(&context()), None);
        assert!(Explained::parse("http://a.example/ entries=2").is_count());
    }
}
