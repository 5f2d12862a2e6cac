//! The dashboard: the page at `/`, and its files from `broker/dashboard/`, which are in the binary.
//! Clients without permissions get them, too, because the page is where a person logs in.

pub(super) mod live;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::HttpState;
use super::error::{ErrorResponse, HttpResult};

/// The page; `{{files}}` stands for the folder of its files.
const PAGE: &str = include_str!("../../../../dashboard/index.html");

macro_rules! files {
    ($($name:literal,)*) => {
        &[$(($name, include_bytes!(concat!("../../../../dashboard/", $name)))),*]
    };
}

/// Name and content of each file except the page.
const FILES: &[(&str, &[u8])] = files![
    "actions.js",
    "announce.js",
    "ask.js",
    "choice.js",
    "crawl.js",
    "dashboard.css",
    "dom.js",
    "event-dialog.js",
    "events.js",
    "failures.js",
    "format.js",
    "hosts.js",
    "icon.svg",
    "job-forms.js",
    "list.js",
    "live.js",
    "main.js",
    "members.js",
    "metrics.js",
    "outcomes.js",
    "pages/crawlers.js",
    "pages/dead.js",
    "pages/first-steps.js",
    "pages/group.js",
    "pages/groups.js",
    "pages/host.js",
    "pages/job.js",
    "pages/jobs.js",
    "pages/overview.js",
    "pages/results.js",
    "pages/schedules.js",
    "pages/system.js",
    "pages/topic.js",
    "pages/topics.js",
    "plot.js",
    "result.js",
    "results.js",
    "rules.js",
    "search.js",
    "session.js",
    "sparkline.js",
    "table.js",
    "tail.js",
    "topic-settings.js",
    "uplot/LICENSE",
    "uplot/VERSION",
    "uplot/uPlot.iife.min.js",
    "uplot/uPlot.min.css",
    "waiting.js",
    "words.js",
];

/// The page may load files of this server and run their scripts. No text becomes markup or code in
/// it, and no other page can embed it.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

const SAME_ORIGIN: HeaderValue = HeaderValue::from_static("same-origin");

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The page with the paths of its files, and the hash in these paths.
#[derive(Debug)]
pub(super) struct Dashboard {
    page: Bytes,
    hash: String,
}

impl Dashboard {
    pub(super) fn new() -> Self {
        let mut hasher = Xxh3::new();
        for (name, content) in [("", PAGE.as_bytes())].iter().chain(FILES) {
            for part in [name.as_bytes(), content] {
                hasher.update(&part.len().to_le_bytes());
                hasher.update(part);
            }
        }
        let hash = format!("{:016x}", hasher.digest());
        let page = PAGE.replace("{{files}}", &format!("dashboard/{hash}")).into();
        Self { page, hash }
    }

    pub(super) fn page(&self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, content_type("index.html")),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (OPENER_POLICY, SAME_ORIGIN),
            (RESOURCE_POLICY, SAME_ORIGIN),
        ];
        (headers, self.page.clone()).into_response()
    }
}

/// `GET /dashboard/{hash}/{file}`: the path of another version does not exist, so a file is never
/// of another version than the page that loads it.
pub(super) async fn file(State(http): State<Arc<HttpState>>, uri: Uri) -> HttpResult<Response> {
    let path = http.dashboard.as_ref().and_then(|dashboard| {
        uri.path().strip_prefix("/dashboard/")?.strip_prefix(&*dashboard.hash)?.strip_prefix('/')
    });
    let file = FILES.iter().find(|(name, _)| path == Some(name));
    let (name, content) = file.ok_or_else(|| {
        let message = "no such file in this version of the dashboard; reload the page";
        ErrorResponse::new(StatusCode::NOT_FOUND, "unknown", message)
    })?;
    let immutable = HeaderValue::from_static("public, max-age=31536000, immutable");
    let headers = [
        (header::CONTENT_TYPE, content_type(name)),
        (header::CACHE_CONTROL, immutable),
        (RESOURCE_POLICY, SAME_ORIGIN),
    ];
    Ok((headers, *content).into_response())
}

fn content_type(name: &str) -> HeaderValue {
    HeaderValue::from_static(match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    })
}

/// Whether the client prefers HTML over JSON. One that accepts both alike, such as curl with
/// `*/*`, does not.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<_> = values.flat_map(|value| value.split(',')).collect();
    quality(&ranges, "text", "html") > quality(&ranges, "application", "json")
}

/// The quality of a media type in the ranges of `Accept`, from 0 to 1. The most specific range
/// decides.
fn quality(ranges: &[&str], kind: &str, subtype: &str) -> f32 {
    let of_range = |range: &&str| {
        let mut parts = range.split(';').map(str::trim);
        let (range_kind, range_subtype) = parts.next()?.split_once('/')?;
        let specificity = match (range_kind, range_subtype) {
            ("*", "*") => 0,
            (_, "*") if range_kind.eq_ignore_ascii_case(kind) => 1,
            _ if range_kind.eq_ignore_ascii_case(kind)
                && range_subtype.eq_ignore_ascii_case(subtype) =>
            {
                2
            }
            _ => return None,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        Some((specificity, weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))))
    };
    let best = ranges.iter().filter_map(of_range).max_by_key(|(specificity, _)| *specificity);
    best.map_or(0.0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn add_names(folder: &Path, prefix: &str, names: &mut BTreeSet<String>) {
        for entry in folder.read_dir().unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                add_names(&entry.path(), &format!("{name}/"), names);
            } else {
                names.insert(name);
            }
        }
    }

    #[test]
    fn the_list_has_every_file_of_the_folder_once() {
        let mut names = BTreeSet::new();
        add_names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard"), "", &mut names);
        let listed: Vec<_> =
            ["index.html"].into_iter().chain(FILES.iter().map(|it| it.0)).collect();
        assert_eq!(
            names.iter().map(String::as_str).collect::<BTreeSet<_>>(),
            listed.iter().copied().collect()
        );
        assert_eq!(names.len(), listed.len());
    }

    #[test]
    fn html_must_be_preferred() {
        let accepts = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::ACCEPT, HeaderValue::from_static(value));
            }
            prefers_html(&headers)
        };
        for html in [
            &["text/html"][..],
            // Chromium and Firefox.
            &["text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"],
            &["TEXT/HTML; level=1; Q=0.5 , application/json;q=0.4"],
            &["text/*"],
            &["application/json;q=0.1", "text/html;q=0.2"],
            &["*/*, application/json;q=0"],
        ] {
            assert!(accepts(html), "{html:?}");
        }
        for json in [
            &[][..],
            &["*/*"],
            &["text/html;q=0"],
            &["text/html;q=0, */*"],
            &["text/html, application/json"],
            &["text/html;q=0.5, */*"],
            &["text/*;q=0.9, application/*"],
            &["text/html;q=x"],
            &["text/html;q=NaN"],
            &["text/htmlx, text"],
            &[",;q=1,/"],
        ] {
            assert!(!accepts(json), "{json:?}");
        }
    }
}
