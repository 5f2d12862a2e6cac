//! Decides about each request of a page, and keeps the list of them. Pure.

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::page::{
    Answer, How, Kind, Load, Opened, Page, PageLimits, Request, RequestRecord, RequestResult,
};

/// Refused requests in the list. A page may cause any number of them.
const REFUSED_MAX: usize = 200;

/// URLs that a page tried to go to.
const OPENED_MAX: usize = 100;

/// The bytes of a URL in a list.
const URL_BYTES_MAX: usize = 2048;

/// Header fields that describe the connection to the server, or how the body was encoded.
const DROPPED_FIELDS: [&str; 9] = [
    "alt-svc",
    "connection",
    "content-encoding",
    "content-length",
    "keep-alive",
    "strict-transport-security",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What to do with a request that is paused.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// Call this method of the session.
    Reply(&'static str, Value),
    /// Make the request with this number when its turn comes, and then [`Gate::answer`].
    Ask(usize, Request),
}

/// The requests of one page.
#[derive(Debug)]
pub(super) struct Gate {
    limits: PageLimits,
    load: Load,
    /// The document and its URL, until the browser asks for it.
    document: Option<(String, Answer)>,
    /// The main frame.
    frame: String,
    asked: usize,
    bytes: u64,
    pub(super) records: Vec<RequestRecord>,
    pub(super) unlisted: u64,
    pub(super) opened: Vec<Opened>,
}

impl Gate {
    pub(super) fn new(page: &Page, limits: &PageLimits, frame: &str) -> Self {
        let headers = page.headers.clone();
        let answer = Answer::Response { status: page.status, headers, body: page.body.clone() };
        Self {
            limits: limits.clone(),
            load: page.load,
            document: Some((page.url.clone(), answer)),
            frame: frame.to_owned(),
            asked: 0,
            bytes: 0,
            records: Vec::new(),
            unlisted: 0,
            opened: Vec::new(),
        }
    }

    /// Judges a request, as `Fetch.requestPaused` describes it.
    pub(super) fn judge(&mut self, paused: &Value) -> Decision {
        let id = paused["requestId"].as_str().unwrap_or_default();
        let url = paused["request"]["url"].as_str().unwrap_or_default();
        let method = paused["request"]["method"].as_str().unwrap_or_default();
        let headers = fields(&paused["request"]["headers"]);
        // A prefetch has the type of what it prefetches, and a stream of events that of data.
        let is_unneeded = headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("sec-purpose")
                || name.eq_ignore_ascii_case("accept") && value == "text/event-stream"
        });
        let kind = if is_unneeded { Kind::Unneeded } else { kind_of(&paused["resourceType"]) };
        if kind == Kind::Frame && paused["frameId"] == *self.frame {
            if let Some((_, document)) = self.document.take_if(|(of, _)| is_same_document(of, url))
            {
                return reply(id, &document);
            }
            self.open(url, How::Navigation);
            // The browser stays where it is.
            return reply(id, &Answer::Response { status: 204, headers: vec![], body: vec![] });
        }
        if url.starts_with("data:") || url.starts_with("blob:") {
            return Decision::Reply("Fetch.continueRequest", json!({ "requestId": id }));
        }
        if let Some(reason) = self.refusal(url, method, kind) {
            self.list(url, kind, RequestResult::Refused(reason.to_owned()));
            return reply(id, &Answer::Refused(String::new()));
        }
        self.asked += 1;
        let number = self.list(url, kind, RequestResult::Unanswered);
        let (url, method) = (url.to_owned(), method.to_owned());
        let body_bytes_max = self.part_bytes_max();
        Decision::Ask(number, Request { url, method, kind, headers, body_bytes_max })
    }

    /// Takes the answer to a request that was made, and returns what to call.
    pub(super) fn answer(
        &mut self,
        number: usize,
        id: &str,
        answer: &Answer,
    ) -> (&'static str, Value) {
        let result = match answer {
            Answer::Response { status, body, .. } => {
                self.bytes += body.len() as u64;
                RequestResult::Response(*status, body.len() as u64)
            }
            Answer::Refused(reason) => RequestResult::Refused(reason.clone()),
            Answer::Failed(reason) => RequestResult::Failed(reason.clone()),
        };
        if let Some(record) = self.records.get_mut(number) {
            record.result = result;
        }
        call(id, answer)
    }

    /// Notes a URL that the page tried to go to.
    pub(super) fn open(&mut self, url: &str, how: How) {
        let opened = Opened { url: cut(url), how };
        if self.opened.len() < OPENED_MAX && !self.opened.contains(&opened) {
            self.opened.push(opened);
        }
    }

    fn refusal(&self, url: &str, method: &str, kind: Kind) -> Option<&'static str> {
        let Load { images, fonts, media } = self.load;
        let is_loaded = match kind {
            Kind::Image => images,
            Kind::Font => fonts,
            Kind::Media => media,
            Kind::Unneeded => false,
            Kind::Frame | Kind::Script | Kind::Style | Kind::Data => true,
        };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            Some("scheme")
        } else if !is_loaded {
            Some("kind")
        } else if !["GET", "HEAD", "OPTIONS"].contains(&method) {
            Some("method")
        } else if self.asked >= self.limits.requests_max {
            Some("too many requests")
        } else if self.part_bytes_max() == 0 {
            Some("too many bytes")
        } else {
            None
        }
    }

    /// The bytes that one more response may have. Less remains for later requests.
    pub(super) fn part_bytes_max(&self) -> u64 {
        let left = self.limits.bytes_max.saturating_sub(self.bytes);
        left.min(self.limits.part_bytes_max)
    }

    /// Adds a request to the list, and returns its number. One that is not listed has a number too.
    fn list(&mut self, url: &str, kind: Kind, result: RequestResult) -> usize {
        let number = self.records.len();
        if number >= self.limits.requests_max + REFUSED_MAX {
            self.unlisted += 1;
            return usize::MAX;
        }
        self.records.push(RequestRecord { url: cut(url), kind, result });
        number
    }
}

fn kind_of(resource_type: &Value) -> Kind {
    match resource_type.as_str().unwrap_or_default() {
        "Document" => Kind::Frame,
        "Stylesheet" => Kind::Style,
        "Script" => Kind::Script,
        "Image" => Kind::Image,
        "Font" => Kind::Font,
        "Media" | "TextTrack" => Kind::Media,
        "Ping" | "CSPViolationReport" | "Prefetch" | "EventSource" => Kind::Unneeded,
        _ => Kind::Data,
    }
}

/// A browser may change `http` to `https`, and requests a URL without its fragment.
fn is_same_document(one: &str, other: &str) -> bool {
    let plain = |url: &str| {
        let url = url.split('#').next().unwrap_or_default();
        url.split_once("://").map_or(url, |(_, rest)| rest).to_owned()
    };
    plain(one) == plain(other)
}

fn fields(headers: &Value) -> Vec<(String, String)> {
    let fields = headers.as_object().into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

fn reply(id: &str, answer: &Answer) -> Decision {
    let (method, params) = call(id, answer);
    Decision::Reply(method, params)
}

/// The call that gives an answer to the browser.
fn call(id: &str, answer: &Answer) -> (&'static str, Value) {
    let error_reason = match answer {
        Answer::Response { status, headers, body } => {
            let is_kept = |name: &str| !DROPPED_FIELDS.contains(&&*name.to_ascii_lowercase());
            let headers = headers.iter().filter(|(name, _)| is_kept(name));
            let headers = headers.map(|(name, value)| json!({ "name": name, "value": value }));
            let params = json!({
                "requestId": id,
                "responseCode": status,
                "responseHeaders": headers.collect::<Vec<_>>(),
                "body": BASE64.encode(body),
            });
            return ("Fetch.fulfillRequest", params);
        }
        Answer::Refused(_) => "BlockedByClient",
        Answer::Failed(_) => "Failed",
    };
    ("Fetch.failRequest", json!({ "requestId": id, "errorReason": error_reason }))
}

fn cut(url: &str) -> String {
    url[..url.floor_char_boundary(URL_BYTES_MAX)].to_owned()
}
