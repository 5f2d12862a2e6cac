//! The specification of a task: its payload, parsed once.

use tidings_egress::failure::Failure;
use tidings_protocol::{Payload, Render};

use crate::pass::{PassKey, ScopedPass};

/// The longest `item=` and `source=` of a page, in bytes; longer ones are cut.
const ANNOUNCED_BYTES_MAX: usize = 2048;

/// The URL of a task and the attributes that every task needs.
#[derive(Debug)]
pub(super) struct TaskSpec {
    /// The whole payload.
    text: String,
    /// Length of the URL at the start of `text`, in bytes.
    url_len: usize,
    /// The job that the page belongs to.
    pub(super) job: Option<Box<str>>,
    /// The pass of that job, from 1.
    pub(super) pass: Option<u64>,
    /// The key of that pass for this process, if the job has a number, and how far the job's scope
    /// had grown when the task was released.
    pub(super) scoped_pass: Option<ScopedPass>,
    /// Number of links from a seed of the job.
    pub(super) depth: Option<u64>,
    /// Redirects in a row that led to the page.
    pub(super) hops: u32,
    /// In a job, the URLs that they came from.
    pub(super) chain: Option<Box<str>>,
    /// `item=` of the event that announced the page.
    pub(super) item: Option<Box<str>>,
    /// `source=` of that event.
    pub(super) source: Option<Box<str>>,
    /// The trace context of that event.
    pub(super) traceparent: Option<Box<str>>,
    /// The URL to request instead of the page.
    pub(super) again: Option<Box<str>>,
    /// Whether this is the last attempt: `yes`, or `down` if the host does not answer.
    last: Option<Box<str>>,
    /// Whether the page is rendered, if its URL or its job says so.
    pub(super) render: Option<Render>,
}

impl TaskSpec {
    /// Parses the payload of a task that was released in this run of its group. Of several
    /// attributes with one key the first counts; a malformed value counts as missing.
    pub(super) fn parse(text: String, run: u64) -> Self {
        let payload = Payload::parse(&text);
        let url_len = payload.target().unwrap_or(&text).len();
        let (mut job, mut pass, mut number, mut scope) = (None, None, None, None);
        let (mut depth, mut again, mut last, mut render) = (None, None, None, None);
        let (mut item, mut source, mut hops, mut chain) = (None, None, None, None);
        let traceparent = payload.traceparent().map(Box::from);
        for (key, value) in payload.attributes() {
            let place = match key {
                "job" => &mut job,
                "pass" => &mut pass,
                "number" => &mut number,
                "scope" => &mut scope,
                "depth" => &mut depth,
                "hops" => &mut hops,
                "chain" => &mut chain,
                "item" => &mut item,
                "source" => &mut source,
                "again" => &mut again,
                "last" => &mut last,
                "render" => &mut render,
                _ => continue,
            };
            place.get_or_insert(value);
        }
        let count = |value: Option<&str>| value.and_then(|value| value.parse::<u64>().ok());
        let pass = count(pass);
        // A job name can be used again, a job number cannot.
        let key = number.zip(pass).map(|(number, pass)| PassKey::new(run, number, pass));
        let scope = count(scope).unwrap_or(0);
        Self {
            url_len,
            job: job.map(Box::from),
            pass,
            scoped_pass: key.map(|pass| ScopedPass { pass, scope }),
            depth: count(depth),
            hops: count(hops).and_then(|hops| u32::try_from(hops).ok()).unwrap_or(0),
            chain: chain.map(Box::from),
            item: announced(item),
            traceparent,
            source: announced(source),
            again: again.map(Box::from),
            last: last.map(Box::from),
            render: render.and_then(Render::from_word),
            text,
        }
    }

    /// The URL of the page, as the broker wrote it; the whole payload if it has no URL.
    pub(super) fn url(&self) -> &str {
        &self.text[..self.url_len]
    }

    /// Whether no other attempt follows this failure.
    pub(super) fn is_last(&self, failure: &Failure) -> bool {
        let last = self.last.as_deref();
        last == Some("yes") || last == Some("down") && failure.reason.is_unanswered()
    }

    /// The payload with all attributes.
    pub(super) fn payload(&self) -> Payload<'_> {
        Payload::parse(&self.text)
    }
}

fn announced(value: Option<&str>) -> Option<Box<str>> {
    value.map(|value| value[..value.floor_char_boundary(ANNOUNCED_BYTES_MAX)].into())
}

#[cfg(test)]
mod tests {
    use tidings_egress::failure::Reason;

    use super::*;

    fn read(text: &str) -> TaskSpec {
        TaskSpec::parse(text.to_owned(), 7)
    }

    fn failure(reason: Reason) -> Failure {
        Failure::new(reason, "")
    }

    #[test]
    fn the_first_of_two_equal_attributes_counts() {
        let order = read(
            "http://a.org/x job=docs number=3 pass=2 depth=4 scope=5 last=yes again=http://a.org/robots.txt pass=9",
        );
        assert_eq!(order.url(), "http://a.org/x");
        assert_eq!(
            (order.job.as_deref(), order.pass, order.depth),
            (Some("docs"), Some(2), Some(4))
        );
        let pass = PassKey::new(7, "3", 2);
        assert_eq!(order.scoped_pass, Some(ScopedPass { pass, scope: 5 }));
        assert_eq!(order.again.as_deref(), Some("http://a.org/robots.txt"));
        assert!(order.is_last(&failure(Reason::TryLater)));
        let last_try = read("http://a.org/x last=down");
        let is_last = [Reason::Connect, Reason::TryLater].map(|it| last_try.is_last(&failure(it)));
        assert_eq!(is_last, [true, false]);
    }

    #[test]
    fn a_long_source_is_cut_and_an_item_in_a_text_is_none() {
        let long = "ü".repeat(ANNOUNCED_BYTES_MAX);
        let order = read(&format!("http://a.org/ source={long} item=5 item=6"));
        assert_eq!(order.source.as_deref(), Some(&long[..ANNOUNCED_BYTES_MAX]));
        assert_eq!(order.item.as_deref(), Some("5"));
        assert_eq!(read("http://a.org/ is new item=5").item, None);
    }

    #[test]
    fn malformed_attributes_count_as_missing() {
        let order = read("http://a.org/ job=docs pass=2 depth=deep last=no");
        assert_eq!((order.scoped_pass, order.depth), (None, None));
        assert!(!order.is_last(&failure(Reason::Connect)));
        let order = read("no URL, job=docs");
        assert_eq!((order.url(), order.job.as_deref()), ("no URL, job=docs", None));
    }
}
