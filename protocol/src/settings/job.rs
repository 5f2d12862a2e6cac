//! The settings of jobs.

use super::{Kind, Settings, URL_PATTERN, settings};
use crate::error::{ProtocolError, bad_argument};
use crate::url_pattern::{PATTERNS_MAX, Patterns, admits};
use crate::{CanonicalUrl, DURATION_MS_MAX, RenderRule};

const PATTERNS: Kind =
    Kind::List { range: "patterns with commas", pattern: URL_PATTERN, max: PATTERNS_MAX };

settings! {
    /// The settings of a job: `JOB open`. They hold for the pass, and some can be
    /// [changed](JobSettings::changed_in_pass) meanwhile. Durations are in milliseconds.
    JobSettings of "a job" {
        /// The links that belong to it: those on the host of a seed, on its domain, those that
        /// begin like a seed up to its last slash, all.
        scope: ScopeRule = ScopeRule::Host => "scope": Kind::OneOf(&ScopeRule::WORDS),
        /// Links between a seed and a page.
        depth_max: Option<u32> = None => "max-depth" | "depth": Kind::Number(0, u32::MAX as u64),
        /// Completed pages.
        pages_max: Option<u64> = None => "max-pages": Kind::Number(1, u64::MAX),
        /// Completed pages of each key of the group.
        host_pages_max: Option<u64> = None => "max-per-host": Kind::Number(1, u64::MAX),
        /// How long the pass releases entries, from its opening.
        time_ms_max: Option<u64> = None => "max-time": Kind::Duration(1, DURATION_MS_MAX),
        /// Nothing of it is released before it is closed and the seeds published by then are taken.
        hold: bool = false => "hold": Kind::YesNo,
        /// Of the links within the scope, those that match one of the patterns belong to it.
        /// Patterns have the syntax of robots.txt and match path and query, or the whole URL if they
        /// begin with http.
        include: Patterns = Patterns::default() => "include": PATTERNS,
        /// Links that match one of the patterns do not belong to it.
        exclude: Patterns = Patterns::default() => "exclude": PATTERNS,
        /// Which of its pages are rendered.
        render: Option<RenderRule> = None => "render": Kind::Text {
            range: "never, auto, always, or patterns with commas",
            pattern: "^(never|auto|always|(/|\\*|http)[^\\s\\x00-\\x1f\\x7f-\\x9f]*)$",
        },
        /// Gets a POST when the pass is done.
        callback: Option<Box<str>> = None => "callback": Kind::Url(2_048),
        /// Is part of the event on `job-done`.
        traceparent: Option<Box<str>> = None => "traceparent": Kind::Traceparent,
    }
}

impl JobSettings {
    /// The settings that can change while the job runs.
    pub const CHANGEABLE: [&'static str; 6] =
        ["include", "exclude", "max-depth", "max-pages", "max-per-host", "max-time"];

    /// These settings after a change of the job while it runs: for each setting a value, or `none`
    /// to remove it.
    pub fn changed_in_pass<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ProtocolError> {
        let mut new = self.clone();
        for (name, value) in changes {
            let setting = Self::setting(name)?;
            if !Self::CHANGEABLE.contains(&setting.name) {
                let changeable = Self::CHANGEABLE.join(", ");
                return Err(bad_argument(format!(
                    "{name}={value}: of a job that runs, only {changeable} can change"
                )));
            }
            if value == "none" {
                new.reset(setting);
            } else {
                new = new.changed([(name, value)])?;
            }
        }
        Ok(new)
    }

    /// Whether the patterns admit a link to this URL.
    pub fn admits(&self, url: &CanonicalUrl) -> bool {
        admits(&self.include, &self.exclude, url)
    }

    /// Rejects a callback to which no request can be sent. Not part of the parser, which also
    /// reads records.
    pub fn check_callback(&self) -> Result<(), ProtocolError> {
        let callback = self.callback.as_deref().and_then(|url| CanonicalUrl::parse(url).ok());
        let check = callback.map_or(Ok(()), |url| url.check_callable());
        check.map_err(|error| bad_argument(format!("callback=: {error}")))
    }
}

word_enum! {
    /// Which links belong to a job.
    #[derive(Default)]
    pub enum ScopeRule {
        /// Those to the hosts of its seeds, on any port.
        #[default]
        Host = "host",
        /// Those to the registrable domains of its seeds.
        Domain = "domain",
        /// Those that begin like a seed, up to the seed's last slash.
        Prefix = "prefix",
        /// All.
        Any = "any",
    }
}
