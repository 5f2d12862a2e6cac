#![expect(clippy::disallowed_methods, reason = "a request has a deadline")]

use std::time::Duration;

use serde_json::{Value, json};
use tidings_protocol::{CanonicalUrl, UrlError};
use tidings_subscriber::KeepBodies;
use tidings_subscriber::fetch::{FetchPurpose, FetchRequest, Fetched, Fetcher};
use tidings_subscriber::robots::{
    RobotsResponse, RobotsRules, display_line, product_token, sitemaps,
};
use tokio::time::Instant;

use super::flags::FetchFlags;
use super::{JsonQuery, bytes, required_text, shown, write_row};
use crate::terminal::failure::Failure;
use crate::terminal::output::{format_bytes as amount, plural};

/// The columns of the names in the text.
const NAME_WIDTH: usize = 12;

/// Reads `robots_b64` or `robots`, `agent` (a User-Agent, or only its product token), and `url` (or
/// its path and query).
pub(super) fn answer(query: &JsonQuery) -> Result<Value, String> {
    let robots = match (query.get("robots_b64"), query.get("robots")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => {
            return Err("`robots_b64` or `robots` is missing".to_owned());
        }
        (None | Some(Value::Null), _) => required_text(query, "robots")?.as_bytes().to_vec(),
        _ => bytes(query, "robots_b64")?,
    };
    let token = product_token(required_text(query, "agent")?);
    let url = required_text(query, "url")?;
    let url = parse_page_url(url).map_err(|error| format!("`url`: {error}"))?;
    let rules = RobotsRules::parse(&robots, token);
    let decision = rules.decide(url.path_and_query());
    let mut answer = json!({ "allowed": decision.allowed });
    if let Some(delay) = rules.crawl_delay() {
        answer["delay"] = json!(delay.as_secs_f64());
    }
    if let Some(line) = decision.line {
        answer["rule"] = json!(display_line(&robots, line));
    }
    Ok(answer)
}

/// Parses the URL of a page. The rules name neither a host nor a user, so a path is enough, and
/// user and password are ignored.
fn parse_page_url(url: &str) -> Result<CanonicalUrl<'static>, UrlError> {
    if url.starts_with('/') {
        return parse_page_url(&format!("http://localhost{url}"));
    }
    match CanonicalUrl::parse(url) {
        Err(UrlError::Credentials) => {
            let (scheme, rest) = url.split_once("://").ok_or(UrlError::Credentials)?;
            let host_end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
            let at = rest[..host_end].rfind('@').ok_or(UrlError::Credentials)?;
            let url = format!("{scheme}://{}", &rest[at + 1..]);
            CanonicalUrl::parse(&url).map(CanonicalUrl::into_owned)
        }
        page => page.map(CanonicalUrl::into_owned),
    }
}

/// Requests robots.txt as the crawler would, and prints the decision.
pub(super) async fn describe(what: &str, flags: &FetchFlags) -> Result<String, Failure> {
    let wrong = |error| Failure::Usage(format!("{}: {error}", shown(what)));
    let page = CanonicalUrl::parse(what).map_err(wrong)?;
    let config = flags.config();
    let fetcher = Fetcher::new(&config).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut text = String::new();
    let robots = fetch_robots(&fetcher, &page, config.request_timeout, |url, line| {
        write_row(&mut text, NAME_WIDTH, "robots.txt", &format!("{url} ({line})"));
    });
    match robots.await {
        Ok(robots) => write_decision(&mut text, &page, product_token(&config.agent), robots),
        Err(error) => write_row(&mut text, NAME_WIDTH, "allowed", &format!("no: {error}")),
    }
    Ok(text)
}

/// Requests the robots.txt of a page as the crawler would. `see` gets each URL, and the result of
/// its request in words. Returns the last URL, and the text, which is empty if there is none.
pub(super) async fn fetch_robots(
    fetcher: &Fetcher,
    page: &CanonicalUrl<'_>,
    timeout: Duration,
    mut see: impl FnMut(&CanonicalUrl<'_>, &str),
) -> Result<(CanonicalUrl<'static>, Vec<u8>), String> {
    let mut url = page.join("/robots.txt").map_err(|error| error.to_string())?;
    let mut hops = 0;
    loop {
        let deadline = Instant::now() + timeout;
        let (purpose, validators, keep) = (FetchPurpose::Robots, None, KeepBodies::default());
        let request = FetchRequest { url: &url, purpose, validators, keep, deadline };
        let response = fetcher.fetch(&request).await;
        let answer = response.robots_response(&url, hops);
        see(&url, &describe_response(&response, &answer));
        (url, hops) = match answer {
            RobotsResponse::Text(text) => return Ok((url, text.to_vec())),
            RobotsResponse::Missing => return Ok((url, Vec::new())),
            RobotsResponse::Redirect(target) => (target, hops + 1),
            RobotsResponse::Unreachable(failure) => {
                let is_transient = failure.is_transient();
                let then = if is_transient {
                    "the crawler tries again later"
                } else {
                    "this is permanent"
                };
                return Err(format!("robots.txt could not be read: {failure}; {then}"));
            }
        };
    }
}

/// The result of one request in words.
fn describe_response(fetched: &Fetched, answer: &RobotsResponse<'_>) -> String {
    let status = fetched.status.map(|status| format!("HTTP {status}"));
    let status = status.unwrap_or_else(|| "no answer".to_owned());
    match answer {
        RobotsResponse::Text(text) => format!("{status}, {}", amount(text.len() as u64)),
        RobotsResponse::Missing => format!("{status}: no robots.txt"),
        RobotsResponse::Redirect(_) => format!("{status}: redirect"),
        RobotsResponse::Unreachable(_) => status,
    }
}

fn write_decision(
    text: &mut String,
    page: &CanonicalUrl<'_>,
    token: &str,
    (robots_url, robots): (CanonicalUrl<'_>, Vec<u8>),
) {
    let rules = RobotsRules::parse(&robots, token);
    let decision = rules.decide(page.path_and_query());
    let why = match decision.line {
        Some(line) => format!("by the line `{}`", display_line(&robots, line)),
        None => "no line matches".to_owned(),
    };
    let allowed = if decision.allowed { "yes" } else { "no" };
    write_row(text, NAME_WIDTH, "allowed", &format!("{allowed}, for {token}: {why}"));
    if let Some(delay) = rules.crawl_delay() {
        write_row(text, NAME_WIDTH, "crawl-delay", &format!("{} s", delay.as_secs_f64()));
    }
    let sitemaps = sitemaps(&robots, &robots_url);
    if !sitemaps.is_empty() {
        write_row(text, NAME_WIDTH, "sitemaps", &plural(sitemaps.len() as u64, "sitemap"));
    }
    for sitemap in sitemaps {
        write_row(text, NAME_WIDTH, "", sitemap.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_query(question: Value) -> Result<Value, String> {
        let Value::Object(query) = question else { panic!("questions are objects") };
        answer(&query)
    }

    #[test]
    fn an_answer_has_the_rule_and_the_delay() {
        let robots = "User-agent: tidings\nDisallow: /x # no\nCrawl-delay: 2.5";
        let url = "https://a.example/x?y#z";
        for agent in ["tidings", "Tidings/0.1 (+http://x)"] {
            assert_eq!(
                answer_query(json!({ "robots": robots, "agent": agent, "url": url })).unwrap(),
                json!({ "allowed": false, "delay": 2.5, "rule": "Disallow: /x" })
            );
        }
        let robots_b64 = "VXNlci1hZ2VudDogKgpEaXNhbGxvdzogL/8";
        assert_eq!(
            answer_query(json!({ "robots_b64": robots_b64, "agent": "x", "url": "/%ff" })).unwrap(),
            json!({ "allowed": false, "rule": "Disallow: /\u{fffd}" })
        );
        let robots = "User-agent: *\nDisallow: /x@y";
        for url in ["http://a:b@c@d.example/x@y", "http://a@d.example/x@y"] {
            let answer =
                answer_query(json!({ "robots": robots, "agent": "x", "url": url })).unwrap();
            assert_eq!(answer["allowed"], json!(false), "{url}");
        }
        let nothing = answer_query(json!({ "robots": "", "agent": "", "url": "http://a.example" }));
        assert_eq!(nothing.unwrap(), json!({ "allowed": true }));
    }

    #[test]
    fn a_wrong_query_is_rejected_with_the_reason() {
        for (question, error) in [
            (json!({ "agent": "a", "url": "/" }), "`robots_b64` or `robots` is missing"),
            (json!({ "robots": "", "url": "/" }), "`agent` is missing"),
            (json!({ "robots": "", "agent": "a" }), "`url` is missing"),
            (json!({ "robots": 5, "agent": "a", "url": "/" }), "`robots` is not a string"),
            (json!({ "robots_b64": "%", "agent": "a", "url": "/" }), "`robots_b64` is not Base64"),
            (json!({ "robots": "", "agent": "a", "url": "nonsense" }), "`url`: not a URL"),
            (
                json!({ "robots": "", "agent": "a", "url": "ftp://a/" }),
                "`url`: only http and https",
            ),
        ] {
            let found = answer_query(question).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
