//! Which pages are rendered in a browser.

use std::fmt;
use std::str::FromStr;

use crate::canonical_url::CanonicalUrl;
use crate::error::{ProtocolError, bad_argument};
use crate::url_pattern::Patterns;

word_enum! {
    /// Whether a page is rendered.
    pub enum Render {
        /// It is not.
        No = "no",
        /// It is if it looks empty without its scripts.
        Auto = "auto",
        /// It is.
        Yes = "yes",
    }
}

/// Which pages of a job or a crawler are rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RenderRule {
    /// None.
    #[default]
    Never,
    /// Those that look empty without their scripts.
    Auto,
    /// All.
    Always,
    /// Those with a URL that matches.
    Matching(Patterns),
}

impl RenderRule {
    /// Whether the page of this URL is rendered.
    pub fn of(&self, url: &CanonicalUrl) -> Render {
        match self {
            Self::Auto => Render::Auto,
            Self::Always => Render::Yes,
            Self::Matching(patterns) if patterns.match_any(url) => Render::Yes,
            Self::Never | Self::Matching(_) => Render::No,
        }
    }
}

impl FromStr for RenderRule {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "never" => Ok(Self::Never),
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            _ if !text.starts_with(['/', '*', 'h']) => Err(bad_argument(format!(
                "{text:?}: expected never, auto, always, or patterns of URLs such as /app/*"
            ))),
            _ => text.parse().map(Self::Matching),
        }
    }
}

/// The rule as written.
impl fmt::Display for RenderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Auto => f.write_str("auto"),
            Self::Always => f.write_str("always"),
            Self::Matching(patterns) => patterns.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        let page: CanonicalUrl = "http://a.example/app/1".parse().unwrap();
        for (text, render) in [
            ("never", Render::No),
            ("auto", Render::Auto),
            ("always", Render::Yes),
            ("/app/*", Render::Yes),
            ("/shop/*,http://a.example/app/", Render::Yes),
            ("/shop/*", Render::No),
        ] {
            let rule: RenderRule = text.parse().unwrap();
            assert_eq!((rule.of(&page), rule.to_string()), (render, text.to_owned()));
        }
        for wrong in ["", "sometimes", "app/*", "always,/app/*"] {
            let error = wrong.parse::<RenderRule>().unwrap_err().text;
            assert!(error.contains("never, auto, always"), "{error}");
        }
    }
}
