//! The line that a person sees for each page.

use tidings_subscriber::PageReport;

use crate::output::{bytes, printable};

/// A title longer than this is cut. URLs are only cut where no real one is, so that a pipe can use
/// them.
const TITLE_CHARS_MAX: usize = 60;
const URL_CHARS_MAX: usize = 2000;
const ERROR_CHARS_MAX: usize = 300;

/// Status, bytes, time, links, URL and title; or what went wrong in place of the title.
pub(crate) fn page_line(report: &PageReport) -> String {
    let status = report.status.map_or_else(|| "---".to_owned(), |status| status.to_string());
    let mut line = format!(
        "{status}  {:>7}  {:>7}  {:>4} links  {}",
        bytes(report.bytes),
        milliseconds(report.duration),
        report.links,
        printable(&report.url, URL_CHARS_MAX),
    );
    if let Some(error) = &report.error {
        line.push_str("  ! ");
        line.push_str(&printable(error, ERROR_CHARS_MAX));
    } else if let Some(title) = &report.title {
        let title = printable(title, TITLE_CHARS_MAX);
        if !title.is_empty() {
            line.push_str("  \"");
            line.push_str(&title);
            line.push('"');
        }
    }
    line
}

fn milliseconds(duration: std::time::Duration) -> String {
    match duration.as_millis() {
        ms @ ..10_000 => format!("{ms} ms"),
        ms => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_for_people() {
        let shown =
            [0, 45, 9_999, 10_000, 61_000].map(|ms| milliseconds(Duration::from_millis(ms)));
        assert_eq!(shown, ["0 ms", "45 ms", "9999 ms", "10 s", "61 s"]);
    }
}
