use clap::Args;
use serde_json::{Value, json};
use tidings_documents::tracking::TrackingParams;
use tidings_protocol::{CanonicalUrl, StandardUrl, UrlError};

use super::{JsonQuery, optional_text, required_text};
use crate::flags::TrackingFlag;
use crate::terminal::failure::Failure;

/// The arguments of `tidings probe url`.
#[derive(Debug, Args)]
pub(crate) struct UrlArgs {
    /// A URL or a link; without it, JSON lines from standard input
    #[arg(value_name = "URL")]
    pub(super) what: Option<String>,

    /// The page that contains the link
    #[arg(value_name = "BASE")]
    base: Option<String>,

    #[command(flatten)]
    tracking: TrackingFlag,
}

struct ParsedUrl {
    standard: StandardUrl,
    /// The form that deduplication compares.
    key: Result<CanonicalUrl<'static>, UrlError>,
}

impl ParsedUrl {
    fn of(input: &str, base: Option<&str>, params: &TrackingParams) -> Result<Self, UrlError> {
        let standard = StandardUrl::parse(input, base)?;
        let key = CanonicalUrl::parse(&standard.href)
            .map(|url| params.strip(&url).unwrap_or_else(|| url.into_owned()));
        Ok(Self { standard, key })
    }
}

pub(super) fn answer(query: &JsonQuery, args: &UrlArgs) -> Result<Value, String> {
    let (input, base) = (required_text(query, "input")?, optional_text(query, "base")?);
    let mut answer = match ParsedUrl::of(input, base, &args.tracking.params) {
        Err(error) => {
            json!({ "href": null, "key": null, "host": null, "domain": null, "why": error.to_string() })
        }
        Ok(ParsedUrl { standard: StandardUrl { href, host, domain }, key }) => {
            let why = key.as_ref().err().map(UrlError::to_string);
            let key = key.ok().map(|url| url.to_string());
            json!({ "href": href, "key": key, "host": host, "domain": domain, "why": why })
        }
    };
    if let Some(members) = answer.as_object_mut()
        && members.get("why") == Some(&Value::Null)
    {
        members.remove("why");
    }
    Ok(answer)
}

pub(super) fn describe(what: &str, args: &UrlArgs) -> Result<String, Failure> {
    let reading = ParsedUrl::of(what, args.base.as_deref(), &args.tracking.params)
        .map_err(|error| Failure::failed(format!("{what}: {error}")))?;
    let StandardUrl { href, host, domain } = reading.standard;
    let key = match reading.key {
        Ok(url) => url.to_string(),
        Err(error) => format!("none: {error}"),
    };
    let none = || "none".to_owned();
    let (host, domain) = (host.unwrap_or_else(none), domain.unwrap_or_else(none));
    Ok(format!("url     {href}\nkey     {key}\nhost    {host}\ndomain  {domain}\n"))
}
