//! The line that is printed for each page.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use tidings_subscriber::{PageOutcome, PageReport, RenderReport};

use crate::terminal::output::{format_bytes, plural, printable, time_or};

/// Longer titles and errors are cut. The limit of URLs is beyond useful lengths, so that a pipe can
/// rely on them.
const TITLE_CHARS_MAX: usize = 60;
const URL_CHARS_MAX: usize = 2000;
const ERROR_CHARS_MAX: usize = 300;

/// Status, bytes, time, links, URL and title, and the error if there is one. Columns are aligned
/// and separated by at least two spaces.
pub(crate) fn page_line(report: &PageReport) -> String {
    let mut line = match report.status {
        Some(status) => format!(
            "{status}  {:>7}  {:>7}  {:>4} {:<5}",
            format_bytes(report.bytes),
            milliseconds(report.duration),
            report.links,
            if report.links == 1 { "link" } else { "links" }
        ),
        // There was no response to measure.
        None => format!("---  {:>7}  {:>7}  {:>10}", "-", "-", "-"),
    };
    // Writing to a string cannot fail.
    let _ = write!(line, "  {}", printable(&report.url, URL_CHARS_MAX));
    let title = printable(report.title.as_deref().unwrap_or_default(), TITLE_CHARS_MAX);
    if !title.is_empty() {
        let _ = write!(line, "  \"{title}\"");
    }
    match &report.render {
        Some(RenderReport { error: Some(error), .. }) => {
            let _ = write!(line, "  (not rendered: {})", printable(error, ERROR_CHARS_MAX));
        }
        Some(render) => {
            let links = plural(render.gain.links as u64, "new link");
            let _ = write!(line, "  (rendered in {}: {links})", milliseconds(render.duration));
        }
        None => {}
    }
    let error = printable(report.error.as_deref().unwrap_or_default(), ERROR_CHARS_MAX);
    match (report.outcome, error.as_str()) {
        (PageOutcome::Done, "") => {}
        (PageOutcome::Done, left_out) => {
            let _ = write!(line, "  ({left_out})");
        }
        (outcome, "") => {
            let _ = write!(line, "  {outcome}");
        }
        (outcome, error) => {
            let _ = write!(line, "  {outcome}: {error}");
        }
    }
    line
}

/// The same as JSON, unchanged and with the names of the stored record: `reason` is a word of a
/// closed list (OUTCOMES.md of the crawler), and `error` is a text for people.
pub(crate) fn page_json(report: &PageReport) -> String {
    #[derive(Serialize)]
    struct Page<'a> {
        url: &'a str,
        status: Option<u16>,
        outcome: &'a str,
        reason: Option<&'a str>,
        error: Option<&'a str>,
        bytes: u64,
        wire_bytes: u64,
        ms: u64,
        title: Option<&'a str>,
        job: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        render: Option<Render<'a>>,
    }
    #[derive(Serialize)]
    struct Render<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
        ms: u64,
        requests: usize,
        links_fetched: usize,
        new_links: usize,
        more_text: bool,
    }
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let page = Page {
        url: &report.url,
        status: report.status,
        outcome: report.outcome.as_str(),
        reason: report.reason,
        error: report.error.as_deref(),
        bytes: report.bytes,
        wire_bytes: report.wire_bytes,
        ms: ms(report.duration),
        title: report.title.as_deref(),
        job: report.job.as_deref(),
        render: report.render.as_ref().map(|render| Render {
            error: render.error.as_deref(),
            ms: ms(render.duration),
            requests: render.requests,
            links_fetched: render.links_fetched,
            new_links: render.gain.links,
            more_text: render.gain.has_text,
        }),
    };
    serde_json::to_string(&page).expect("text and numbers always serialise")
}

fn milliseconds(duration: Duration) -> String {
    let exact = match duration.as_millis() {
        ms @ ..10_000 => format!("{ms} ms"),
        ms => format!("{} s", ms / 1000),
    };
    time_or(duration, exact)
}

#[cfg(test)]
mod tests {
    use tidings_subscriber::render_auto::Gain;

    use super::*;

    fn report() -> PageReport {
        PageReport {
            url: "http://a.example/".to_owned(),
            status: Some(200),
            outcome: PageOutcome::Done,
            reason: None,
            bytes: 1234,
            wire_bytes: 567,
            duration: Duration::from_millis(45),
            title: Some("A \u{1b}[31mtitle\n".to_owned()),
            links: 17,
            job: None,
            error: None,
            render: None,
        }
    }

    #[test]
    fn a_page_is_one_line_without_control_characters() {
        assert_eq!(
            page_line(&report()),
            "200   1.2 kB    45 ms    17 links  http://a.example/  \"A \\u{1b}[31mtitle\""
        );
    }

    #[test]
    fn without_a_response_the_line_shows_the_reason() {
        let error = Some("cannot connect:\r\nrefused".to_owned());
        let (status, title, outcome) = (None, None, PageOutcome::Retry);
        assert_eq!(
            page_line(&PageReport { status, title, outcome, error, ..report() }),
            "---        -        -           -  http://a.example/  retry: cannot connect: refused"
        );
    }

    #[test]
    fn a_page_line_ends_with_what_was_left_out() {
        let (title, error) = (Some(" ".to_owned()), Some("links beyond 16384".to_owned()));
        assert_eq!(
            page_line(&PageReport { title, error, ..report() }),
            "200   1.2 kB    45 ms    17 links  http://a.example/  (links beyond 16384)"
        );
    }

    #[test]
    fn a_page_line_says_whether_the_page_was_rendered() {
        let duration = Duration::from_millis(412);
        let gain = Gain { links: 1204, has_text: true };
        let render = RenderReport { error: None, duration, requests: 3, links_fetched: 0, gain };
        let failed = RenderReport { error: Some("the page crashed".to_owned()), ..render.clone() };
        for (render, end) in [
            (render, "(rendered in 412 ms: 1,204 new links)"),
            (failed, "(not rendered: the page crashed)"),
        ] {
            let line = page_line(&PageReport { render: Some(render), ..report() });
            assert!(line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn json_is_unchanged() {
        let expected = r#"{"url":"http://a.example/","status":200,"outcome":"done","reason":null,"error":null,"bytes":1234,"wire_bytes":567,"ms":45,"title":"A \u001b[31mtitle\n","job":null}"#;
        assert_eq!(page_json(&report()), expected);
        let error = Some("HTTP status 404".to_owned());
        let failed = page_json(&PageReport { reason: Some("status"), error, ..report() });
        assert!(failed.contains(r#""reason":"status","error":"HTTP status 404","#), "{failed}");
    }

    #[test]
    fn times_are_in_ms_or_s() {
        let shown =
            [0, 45, 9_999, 10_000, 61_000].map(|ms| milliseconds(Duration::from_millis(ms)));
        assert_eq!(shown, ["0 ms", "45 ms", "9999 ms", "10 s", "61 s"]);
    }
}
