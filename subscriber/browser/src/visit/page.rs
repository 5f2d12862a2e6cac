//! A page to render, the requests that it makes, and the result.

use std::pin::Pin;
use std::time::Duration;

/// A page to render: a document that was fetched already.
#[derive(Clone, Debug)]
pub struct Page {
    /// Where the document is from, after redirects.
    pub url: String,
    /// The status of the response.
    pub status: u16,
    /// The header fields of the response. Those of the connection and of an encoding are ignored.
    pub headers: Vec<(String, String)>,
    /// The document, decoded.
    pub body: Vec<u8>,
    /// Which optional parts are loaded.
    pub load: Load,
    /// Whether a PNG image of the page is taken.
    pub screenshot: bool,
    /// Whether the page is printed as PDF.
    pub pdf: bool,
}

/// Parts of a page that are loaded only if the caller wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Images.
    pub images: bool,
    /// Fonts.
    pub fonts: bool,
    /// Sound and video.
    pub media: bool,
}

/// The limits of one page.
#[derive(Clone, Debug)]
pub struct PageLimits {
    /// Requests that are made for it.
    pub requests_max: usize,
    /// Bytes of all bodies of their responses.
    pub bytes_max: u64,
    /// Bytes of one of them.
    pub part_bytes_max: u64,
    /// After this time, a page that still changes is read as it is.
    pub settle_max: Duration,
    /// After this time, the page fails.
    pub time_max: Duration,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self {
            requests_max: 100,
            bytes_max: 20 << 20,
            part_bytes_max: 5 << 20,
            settle_max: Duration::from_secs(15),
            time_max: Duration::from_secs(30),
        }
    }
}

/// A request of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// An http or https URL.
    pub url: String,
    /// `GET`, `HEAD`, or `OPTIONS` for a preflight.
    pub method: String,
    /// What it is for.
    pub kind: Kind,
    /// The header fields that the browser would send, without cookies, which it keeps for itself.
    pub headers: Vec<(String, String)>,
    /// The longest body that the page may still receive. A longer one is an [`Answer::Refused`].
    pub body_bytes_max: u64,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The document of a frame.
    Frame,
    /// A script.
    Script,
    /// A style sheet.
    Style,
    /// Data for a script, and anything else.
    Data,
    /// An image.
    Image,
    /// A font.
    Font,
    /// Sound, video or subtitles.
    Media,
    /// A report to a server, a prefetch, or a stream of events: never made.
    Unneeded,
}

impl Kind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Script => "script",
            Self::Style => "style",
            Self::Data => "data",
            Self::Image => "image",
            Self::Font => "font",
            Self::Media => "media",
            Self::Unneeded => "unneeded",
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A response. A redirect is followed by another request.
    Response {
        /// The status.
        status: u16,
        /// The header fields. Those of the connection and of an encoding are ignored.
        headers: Vec<(String, String)>,
        /// The body, decoded.
        body: Vec<u8>,
    },
    /// The request was not made, for this reason.
    Refused(String),
    /// The request failed, for this reason.
    Failed(String),
}

/// Makes the requests of one page. It checks the address and robots.txt, and waits until the host
/// may get a request. When a page ends, its futures are dropped and make no further requests.
pub trait Fetch: Send + Sync {
    /// Makes one request.
    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>>;
}

/// A rendered page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The HTML of its elements, with open shadow roots as templates.
    pub html: String,
    /// Its URL; scripts may have changed it within its origin.
    pub final_url: String,
    /// The title.
    pub title: String,
    /// The links in it, also in shadow roots.
    pub links: Vec<Link>,
    /// URLs that it tried to go to.
    pub opened: Vec<Opened>,
    /// Why the page was read while it still changed. `None` if it had settled.
    pub cut: Option<Cut>,
    /// Errors of its scripts, the first of them.
    pub console_errors: Vec<String>,
    /// Its requests in their order, the first of them.
    pub requests: Vec<RequestRecord>,
    /// The number of requests that are missing from that list.
    pub requests_unlisted: u64,
    /// Dialogs that were dismissed.
    pub dialogs: u32,
    /// A PNG image. `None` if it was not asked for, or could not be made.
    pub screenshot: Option<Vec<u8>>,
    /// A PDF file. `None` if it was not asked for, or could not be made.
    pub pdf: Option<Vec<u8>>,
    /// Those that could not be made, `screenshot` or `pdf`, each with the reason.
    pub image_errors: Vec<String>,
}

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// An absolute URL of any scheme.
    pub url: String,
    /// Whether the page asks not to follow it.
    pub is_nofollow: bool,
}

/// A URL that a page tried to go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The URL.
    pub url: String,
    /// How it tried that.
    pub how: How,
}

/// How a page tried to go to another URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// In its place, by a script or `<meta http-equiv=refresh>`.
    Navigation,
    /// In another window.
    Popup,
    /// As a file.
    Download,
}

impl How {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Navigation => "navigation",
            Self::Popup => "popup",
            Self::Download => "download",
        }
    }
}

/// Why a page was read while it still changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It changed or requested data until its time was over.
    Time,
    /// It showed one dialog after another.
    Dialogs,
}

/// One request of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The URL, which may be cut.
    pub url: String,
    /// What it was for.
    pub kind: Kind,
    /// Its result.
    pub result: RequestResult,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// The page ended first.
    Unanswered,
    /// A response with this status and this number of bytes in its body.
    Response(u16, u64),
    /// It was not made.
    Refused(String),
    /// It failed.
    Failed(String),
}

/// Why a page was not rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// No browser starts, or the pool has been stopped. Try later.
    #[error("no browser is available")]
    Unavailable,
    /// The browser ended, by its fault or that of another page. Try again.
    #[error("the browser has ended")]
    Lost,
    /// The page crashed its renderer, or used too much memory.
    #[error("the page crashed")]
    Crashed,
    /// The page did not answer in time.
    #[error("the page hangs: {0}")]
    Hung(String),
    /// The page caused more events than can be processed.
    #[error("the page causes too many events")]
    Flooded,
    /// The page left its document, or closed itself.
    #[error("the page has left its document for {0}")]
    Left(String),
    /// The rendered document is too large: what it has.
    #[error("the rendered page is too large: {0}")]
    Size(String),
    /// The browser rejects the page's URL or a call.
    #[error("the browser: {0}")]
    Browser(String),
}
