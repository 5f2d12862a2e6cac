//! What a request says: names in its path, parameters, bodies. Everything has a limit before it is
//! read, and what is not known is refused.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidings_protocol::{Code, ProtocolError, parse_ms};
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use super::body_memory::{BodyMemory, BodyReservation, MemoryPermit};
use super::config::HttpConfig;
use super::error::ErrorResponse;

/// Characters of what is said of a body that is not JSON as it should be.
const ERROR_CHARS_MAX: usize = 300;

/// The name in a path.
pub(super) struct PathName<T>(pub(super) T);

impl<S: Send + Sync, T: FromStr<Err = ProtocolError>> FromRequestParts<S> for PathName<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let utf8 =
            || ErrorResponse::new(StatusCode::BAD_REQUEST, "utf8", "the path is not valid UTF-8");
        let params = params.map_err(|_| utf8())?;
        let (_, name) = params.iter().next().expect("the route has a name in it");
        Ok(Self(name.parse()?))
    }
}

/// The parameters behind the `?`.
pub(super) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// All of them; refused unless each is `known` and given once, with a value that can stand in a
    /// line.
    pub(super) fn parse(uri: &Uri, known: &[&str]) -> Result<Self, ErrorResponse> {
        let mut params: Vec<(String, String)> = Vec::new();
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !known.contains(&&*key) {
                let there_are = match known {
                    [] => "there are none here".to_owned(),
                    known => format!("there are {}", known.join(", ")),
                };
                return Err(ErrorResponse::bad_request(format!(
                    "no parameter {}; {there_are}",
                    excerpt(&key)
                )));
            }
            if params.iter().any(|(given, _)| *given == key) {
                return Err(ErrorResponse::bad_request(format!("{key} is given twice")));
            }
            params.push((key.into_owned(), check_word(&value)?.to_owned()));
        }
        Ok(Self(params))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == key).map(|(_, value)| value.as_str())
    }

    /// As the settings of a command.
    pub(super) fn settings(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// How long to wait, at most so many ms: `wait=`.
    pub(super) fn wait(&self, default_ms: u64, max_ms: u64) -> Result<Duration, ErrorResponse> {
        let Some(wait) = self.get("wait") else { return Ok(Duration::from_millis(default_ms)) };
        let wait_ms = parse_ms(wait)
            .map_err(|error| ErrorResponse::bad_request(format!("wait={wait}: {error}")))?;
        Ok(Duration::from_millis(wait_ms.min(max_ms)))
    }

    /// A number in that range.
    pub(super) fn number(
        &self,
        key: &str,
        default: usize,
        max: usize,
    ) -> Result<usize, ErrorResponse> {
        let Some(text) = self.get(key) else { return Ok(default) };
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_plain && (1..=max).contains(number));
        number.ok_or_else(|| {
            ErrorResponse::bad_request(format!("{key}={text}: it is a number from 1 to {max}"))
        })
    }
}

/// A text that is to be one word of a line.
pub(super) fn check_word(text: &str) -> Result<&str, ErrorResponse> {
    let is_word = |c: char| !c.is_whitespace() && !c.is_control();
    if !text.is_empty() && text.chars().all(is_word) {
        return Ok(text);
    }
    let text = excerpt(text);
    Err(ErrorResponse::bad_request(format!(
        "{text} has to be one word, not empty, without control characters"
    )))
}

/// Somebody's text in an error: short, and on one line.
fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// The room for bodies, and how they are received.
#[derive(Debug)]
pub(super) struct BodyReceiver {
    config: Arc<HttpConfig>,
    memory: BodyMemory,
    /// What one may take in all.
    timeout: Duration,
}

/// A body, and its part of the room.
pub(super) struct ReceivedBody<'a> {
    pub(super) bytes: Bytes,
    _memory: Option<MemoryPermit<'a>>,
}

impl BodyReceiver {
    /// Those of who may send them.
    pub(super) fn new(config: Arc<HttpConfig>) -> Self {
        let memory = BodyMemory::new(config.bodies_bytes_max.max(config.body_bytes_max));
        let timeout = Duration::from_millis(config.body_timeout_ms);
        Self { config, memory, timeout }
    }

    /// Those that come before it is known from whom.
    pub(super) fn unverified(config: Arc<HttpConfig>) -> Self {
        let memory = BodyMemory::with_eviction(
            config.unverified_bodies_bytes_max.max(config.body_bytes_max),
        );
        let timeout = Duration::from_millis(config.unverified_body_timeout_ms);
        Self { config, memory, timeout }
    }

    /// Receives a body whole. Refused if it is too long or too slow, if its content is of a type
    /// that is not among `types`, or not [as it is read](allow_form). Without a type it is what is
    /// expected.
    pub(super) async fn receive(
        &self,
        headers: &HeaderMap,
        body: Body,
        types: &[&str],
    ) -> Result<ReceivedBody<'_>, ErrorResponse> {
        check_content_type(headers, types)?;
        check_encoding(headers)?;
        self.receive_untyped(body).await
    }

    /// The same, whatever it is.
    pub(super) async fn receive_untyped(
        &self,
        body: Body,
    ) -> Result<ReceivedBody<'_>, ErrorResponse> {
        let max = self.config.body_bytes_max;
        if body.size_hint().exact().is_some_and(|bytes| bytes > max as u64) {
            return Err(body_too_long(max));
        }
        let end = CancellationToken::new();
        let part = self.memory.reservation(end.clone());
        let whole = super::with_timeout(self.timeout, self.collect(part, body, max));
        let whole = end.run_until_cancelled(whole).await.flatten();
        whole.unwrap_or_else(|| Err(body_timed_out()))
    }

    /// Takes room for what has come, and not for what was announced.
    async fn collect<'a>(
        &self,
        mut part: BodyReservation<'a>,
        mut body: Body,
        max: usize,
    ) -> Result<ReceivedBody<'a>, ErrorResponse> {
        let silence = Duration::from_millis(self.config.body_idle_timeout_ms);
        let (mut first, mut whole, mut bytes) = (Bytes::new(), BytesMut::new(), 0);
        loop {
            let frame =
                super::with_timeout(silence, body.frame()).await.ok_or_else(body_timed_out)?;
            let Some(frame) = frame else { break };
            let cut_off = |_| ErrorResponse::bad_request("the body was cut off");
            let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
            bytes += data.len();
            if bytes > max {
                return Err(body_too_long(max));
            }
            part.grow_to(bytes).await;
            // Nearly all of them come in one piece.
            if first.is_empty() && whole.is_empty() {
                first = data;
            } else {
                whole.extend_from_slice(&std::mem::take(&mut first));
                whole.extend_from_slice(&data);
            }
        }
        let bytes = if whole.is_empty() { first } else { whole.freeze() };
        Ok(ReceivedBody { bytes, _memory: part.into_permit() })
    }

    /// Receives a JSON object.
    pub(super) async fn receive_json<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<T, ErrorResponse> {
        let received = self.receive(headers, body, &["application/json"]).await?;
        parse_json(&received.bytes)
    }
}

/// Reads JSON; what is read of it is nested no deeper than its reader allows (128).
pub(super) fn parse_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ErrorResponse> {
    serde_json::from_slice(bytes).map_err(|error| {
        // It may name what somebody else has called a field.
        let text: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
        ErrorResponse::bad_request(format!("the body: {text}"))
    })
}

/// The type of the content, without its parameters and in lower case; none if none is said.
pub(super) fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or("?");
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn check_content_type(headers: &HeaderMap, types: &[&str]) -> Result<(), ErrorResponse> {
    let Some(given) = content_type(headers) else { return Ok(()) };
    if types.contains(&given.as_str()) {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let message = format!(
        "Content-Type {} is not supported here; send {}",
        excerpt(&given),
        types.join(" or ")
    );
    Err(ErrorResponse::new(status, "unsupported-type", message))
}

/// Bodies are read as UTF-8, and as they come: one that says that it is something else would be
/// taken for what it is not, and is refused.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let codings = codings.flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let mut codings = codings.map(str::trim).filter(|coding| !coding.is_empty());
    if let Some(coding) = codings.find(|coding| !coding.eq_ignore_ascii_case("identity")) {
        let message = format!(
            "Content-Encoding {} is not supported; send the body without it",
            excerpt(coding)
        );
        return Err(ErrorResponse::new(status, "unsupported-type", message));
    }
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let params = kind.to_str().unwrap_or_default().split(';').skip(1);
    let mut params = params.filter_map(|param| param.split_once('='));
    let Some((_, charset)) = params.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
    else {
        return Ok(());
    };
    let charset = charset.trim().trim_matches('"');
    // Every text of ASCII is one of UTF-8; and this is how some spell that.
    if ["utf-8", "us-ascii", "utf8"].iter().any(|known| known.eq_ignore_ascii_case(charset)) {
        return Ok(());
    }
    let message =
        format!("a body in the charset {} is not taken; send it as UTF-8", excerpt(charset));
    Err(ErrorResponse::new(status, "unsupported-type", message))
}

fn body_too_long(max: usize) -> ErrorResponse {
    let message = format!("the body is longer than {max} bytes; send it in several requests");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLong.as_str(), message)
}

fn body_timed_out() -> ErrorResponse {
    let message =
        "the body was not received in time: it came too slowly, or others had all the room";
    ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, Code::Idle.as_str(), message)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;

    fn params(query: &str) -> Result<QueryParams, ErrorResponse> {
        QueryParams::parse(&format!("/x?{query}").parse().unwrap(), &["from", "wait"])
    }

    // PROTOCOL: H9
    #[test]
    fn each_parameter_is_known_and_appears_once() {
        assert_eq!(params("from=%31&wait=5s").unwrap().get("from"), Some("1"));
        assert!(params("").is_ok());
        for query in
            ["form=1", "from=1&from=1", "from=", "from", "from=a%0Ab", "from=a+b", "from=%07"]
        {
            assert!(params(query).is_err(), "{query}");
        }
    }

    // PROTOCOL: H10
    #[test]
    fn compressed_bodies_and_other_charsets_are_rejected() {
        let allowed = |headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name: header::HeaderName = name.parse().unwrap();
                map.append(name, value.parse().unwrap());
            }
            check_encoding(&map).is_ok()
        };
        for kind in [
            "text/plain",
            "text/plain; charset=utf-8",
            "text/plain;x=y ; Charset=\"UTF-8\"",
            "application/json; charset=US-ASCII",
        ] {
            assert!(allowed(&[("content-type", kind)]), "{kind}");
            assert!(allowed(&[("content-type", kind), ("content-encoding", "Identity")]), "{kind}");
            for coding in ["gzip", "identity, br", "\u{e9}"] {
                let headers = [("content-type", kind), ("content-encoding", coding)];
                assert!(!allowed(&headers), "{headers:?}");
            }
        }
        assert!(!allowed(&[("content-encoding", "identity"), ("content-encoding", "deflate")]));
        for kind in
            ["text/plain; charset=iso-8859-1", "a/b;charset=utf-16", "a/b; x=y; charset=\"\""]
        {
            assert!(!allowed(&[("content-type", kind)]), "{kind}");
        }
    }

    /// A body that comes byte by byte.
    struct SlowBody {
        bytes_left: u32,
        interval: Duration,
        timer: Pin<Box<Sleep>>,
    }

    impl HttpBody for SlowBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.bytes_left == 0 {
                return Poll::Ready(None);
            }
            ready!(self.timer.as_mut().poll(cx));
            self.bytes_left -= 1;
            self.timer = Box::pin(sleep(self.interval));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    /// What becomes of a body of so many bytes, with so many ms before each, where 100 ms of
    /// silence are allowed, and 1,000 ms in all.
    async fn receive_slowly(bytes: u32, each_ms: u64) -> Result<usize, ErrorResponse> {
        let config = HttpConfig {
            body_idle_timeout_ms: 100,
            body_timeout_ms: 1_000,
            ..HttpConfig::default()
        };
        let bodies = BodyReceiver::new(Arc::new(config));
        let each = Duration::from_millis(each_ms);
        let body =
            Body::new(SlowBody { bytes_left: bytes, interval: each, timer: Box::pin(sleep(each)) });
        bodies.receive(&HeaderMap::new(), body, &[]).await.map(|received| received.bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_an_idle_timeout_and_a_total_timeout() {
        assert_eq!(receive_slowly(9, 90).await.unwrap(), 9);
        assert!(receive_slowly(1, 101).await.is_err(), "silent for too long");
        assert!(receive_slowly(12, 90).await.is_err(), "never silent, and without an end");
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_four_slow_bodies_is_evicted_for_a_fifth() {
        let config = HttpConfig {
            body_bytes_max: 4 << 10,
            unverified_bodies_bytes_max: 4 << 10,
            body_idle_timeout_ms: 100,
            unverified_body_timeout_ms: 10_000,
            ..HttpConfig::default()
        };
        let bodies = BodyReceiver::unverified(Arc::new(config));
        let received = async |left, each_ms| {
            let each = Duration::from_millis(each_ms);
            let body = Body::new(SlowBody {
                bytes_left: left,
                interval: each,
                timer: Box::pin(sleep(each)),
            });
            bodies.receive_untyped(body).await.is_ok()
        };
        let late = async {
            sleep(Duration::from_secs(2)).await;
            received(1, 0).await
        };
        let slow = || received(50, 90);
        let (first, second, third, fourth, last) =
            tokio::join!(slow(), slow(), slow(), slow(), late);
        let slow = [first, second, third, fourth];
        assert_eq!(slow.iter().filter(|received| !**received).count(), 1);
        assert!(last);
    }

    #[test]
    fn times_and_numbers_are_within_their_range() {
        let wait = |query: &str| params(query).unwrap().wait(7, 1_000).ok();
        assert_eq!(wait(""), Some(Duration::from_millis(7)));
        assert_eq!(wait("wait=0"), Some(Duration::ZERO));
        assert_eq!(wait("wait=2h"), Some(Duration::from_secs(1)));
        assert_eq!(wait("wait=5"), None);
        let number = |query: &str| params(query).unwrap().number("from", 7, 10).ok();
        assert_eq!((number(""), number("from=10"), number("from=1")), (Some(7), Some(10), Some(1)));
        for query in ["from=0", "from=11", "from=-1", "from=1.0", "from=99999999999999999999"] {
            assert_eq!(number(query), None, "{query}");
        }
    }
}
