//! The input of a request: names in its path, parameters and bodies. All input has limits, and
//! unknown parameters are rejected.

use std::mem;
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
use tidings_protocol::{Code, parse_ms};
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use super::HttpState;
use super::body_memory::{BodyMemory, BodyReservation, MemoryPermit};
use super::client::ConnectedClient;
use super::config::HttpConfig;
use super::error::{ErrorResponse, HttpResult, bad_request};

/// The only parameter that may be repeated: the conditions of a filter.
pub(super) const REPEATABLE: &str = "where";

/// Characters of an error message about invalid JSON.
const ERROR_CHARS_MAX: usize = 300;

/// A request for the thing that its path names, without its body, as an extractor.
pub(super) struct NamedRequest<N> {
    pub(super) http: Arc<HttpState>,
    pub(super) client: Arc<ConnectedClient>,
    pub(super) name: N,
    /// A second name in the path, of a part of that thing.
    part: Option<String>,
    pub(super) params: QueryParams,
    known_params: KnownParams,
    pub(super) headers: HeaderMap,
}

impl<N> FromRequestParts<Arc<HttpState>> for NamedRequest<N>
where
    N: FromStr<Err: Into<ErrorResponse>>,
{
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<HttpState>) -> HttpResult<Self> {
        let names = RawPathParams::from_request_parts(parts, http).await;
        let utf8 =
            || ErrorResponse::new(StatusCode::BAD_REQUEST, "utf8", "the path is not valid UTF-8");
        let names = names.map_err(|_| utf8())?;
        let mut names = names.iter().map(|(_, text)| text);
        let name = names.next().expect("the route has a parameter");
        let client = parts.extensions.get().expect("every request has its client");
        let known_params = KnownParams::of(parts);
        Ok(Self {
            http: Arc::clone(http),
            client: Arc::clone(client),
            name: name.parse().map_err(N::Err::into)?,
            part: names.next().map(str::to_owned),
            params: QueryParams::parse(&parts.uri, &known_params.0)?,
            known_params,
            headers: mem::take(&mut parts.headers),
        })
    }
}

impl<N> NamedRequest<N> {
    /// The second name in the path, which is one word.
    pub(super) fn part(&self) -> HttpResult<&str> {
        check_word(self.part.as_deref().unwrap_or_default())
    }

    /// Checks that a request has no body. Options in a body would otherwise be ignored.
    pub(super) fn expect_no_body(&self, body: &Body) -> HttpResult<()> {
        if body.is_end_stream() {
            return Ok(());
        }
        let options = self.known_params.0.iter().map(|name| format!("{name}=.."));
        Err(bad_request(match options.collect::<Vec<_>>().join("&").as_str() {
            "" => "expected no body; there are no options here".to_owned(),
            options => format!("expected no body; options belong in the query: ?{options}"),
        }))
    }
}

/// The names of the parameters that a route declares, as an extension of its requests.
#[derive(Debug, Clone)]
pub(super) struct KnownParams(pub(super) Arc<[&'static str]>);

impl KnownParams {
    fn of(parts: &Parts) -> Self {
        parts.extensions.get().cloned().expect("every route declares its parameters")
    }
}

/// The parameters of a request, as an extractor.
pub(super) struct QueryParams(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for QueryParams {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> HttpResult<Self> {
        Self::parse(&parts.uri, &KnownParams::of(parts).0)
    }
}

impl QueryParams {
    /// Parses all parameters. Fails unless each is `known`, appears once (except [`REPEATABLE`]),
    /// and has a value of one word.
    pub(super) fn parse(uri: &Uri, known: &[&str]) -> HttpResult<Self> {
        let mut params: Vec<(String, String)> = Vec::new();
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !known.contains(&&*key) {
                let expected = match known {
                    [] => "there are no parameters here".to_owned(),
                    known => format!("expected one of {}", known.join(", ")),
                };
                let text = format!("unknown parameter {}; {expected}", excerpt(&key));
                return Err(bad_request(text));
            }
            if key != REPEATABLE && params.iter().any(|(earlier, _)| *earlier == key) {
                return Err(bad_request(format!("parameter {key} appears twice")));
            }
            params.push((key.into_owned(), check_word(&value)?.to_owned()));
        }
        Ok(Self(params))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may be repeated.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn settings(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// The value of `wait=`, at most `max_ms`.
    pub(super) fn wait(&self, default_ms: u64, max_ms: u64) -> HttpResult<Duration> {
        let Some(wait) = self.get("wait") else { return Ok(Duration::from_millis(default_ms)) };
        let wait_ms =
            parse_ms(wait).map_err(|error| bad_request(format!("wait={wait}: {error}")))?;
        Ok(Duration::from_millis(wait_ms.min(max_ms)))
    }

    /// The value of `key` as a number from 1 to `max`.
    pub(super) fn number(&self, key: &str, default: usize, max: usize) -> HttpResult<usize> {
        let Some(text) = self.get(key) else { return Ok(default) };
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_plain && (1..=max).contains(number));
        number
            .ok_or_else(|| bad_request(format!("{key}={text}: expected a number from 1 to {max}")))
    }
}

/// Checks that a text is one word of a line.
pub(super) fn check_word(text: &str) -> HttpResult<&str> {
    let is_word = |c: char| !c.is_whitespace() && !c.is_control();
    if !text.is_empty() && text.chars().all(is_word) {
        return Ok(text);
    }
    let text = excerpt(text);
    Err(bad_request(format!("{text}: expected one word, not empty, without control characters")))
}

/// The first characters of a client's text for an error message, quoted on one line.
fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    format!("{start:?}")
}

/// Receives bodies, with a memory budget and timeouts.
#[derive(Debug)]
pub(super) struct BodyReceiver {
    config: Arc<HttpConfig>,
    memory: BodyMemory,
    /// Time limit of a whole body.
    timeout: Duration,
}

/// A complete body, and its memory.
pub(super) struct ReceivedBody<'a> {
    pub(super) bytes: Bytes,
    _memory: Option<MemoryPermit<'a>>,
}

impl BodyReceiver {
    /// For bodies of clients that may send them.
    pub(super) fn new(config: Arc<HttpConfig>) -> Self {
        let memory = BodyMemory::new(config.bodies_bytes_max.max(config.body_bytes_max));
        let timeout = Duration::from_millis(config.body_timeout_ms);
        Self { config, memory, timeout }
    }

    /// For bodies of senders that are verified only afterwards; slow bodies can be evicted.
    pub(super) fn unverified(config: Arc<HttpConfig>) -> Self {
        let memory = BodyMemory::with_eviction(
            config.unverified_bodies_bytes_max.max(config.body_bytes_max),
        );
        let timeout = Duration::from_millis(config.unverified_body_timeout_ms);
        Self { config, memory, timeout }
    }

    /// Receives a complete body. Fails if it is too long or too slow, if its `Content-Type` is not
    /// one of `types`, or if its [encoding](check_encoding) is not supported. A body without a
    /// `Content-Type` is accepted.
    pub(super) async fn receive(
        &self,
        headers: &HeaderMap,
        body: Body,
        types: &[&str],
    ) -> HttpResult<ReceivedBody<'_>> {
        check_content_type(headers, types)?;
        check_encoding(headers)?;
        self.receive_untyped(body).await
    }

    /// Receives a complete body of any type and encoding.
    pub(super) async fn receive_untyped(&self, body: Body) -> HttpResult<ReceivedBody<'_>> {
        let max = self.config.body_bytes_max;
        if body.size_hint().exact().is_some_and(|bytes| bytes > max as u64) {
            return Err(body_too_long(max));
        }
        let evicted = CancellationToken::new();
        let reservation = self.memory.reservation(evicted.clone());
        let received = super::with_timeout(self.timeout, self.collect(reservation, body, max));
        let received = evicted.run_until_cancelled(received).await.flatten();
        received.unwrap_or_else(|| Err(body_timed_out()))
    }

    /// Collects the frames of a body. Memory is reserved for received bytes, not for the announced
    /// length.
    async fn collect<'a>(
        &self,
        mut reservation: BodyReservation<'a>,
        mut body: Body,
        max: usize,
    ) -> HttpResult<ReceivedBody<'a>> {
        let idle_timeout = Duration::from_millis(self.config.body_idle_timeout_ms);
        let (mut first, mut joined, mut bytes) = (Bytes::new(), BytesMut::new(), 0);
        loop {
            let frame =
                super::with_timeout(idle_timeout, body.frame()).await.ok_or_else(body_timed_out)?;
            let Some(frame) = frame else { break };
            let cut_off = |_| bad_request("the body is incomplete");
            let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
            bytes += data.len();
            if bytes > max {
                return Err(body_too_long(max));
            }
            reservation.grow_to(bytes).await;
            // Nearly all bodies have one frame, which is not copied.
            if first.is_empty() && joined.is_empty() {
                first = data;
            } else {
                joined.extend_from_slice(&mem::take(&mut first));
                joined.extend_from_slice(&data);
            }
        }
        let bytes = if joined.is_empty() { first } else { joined.freeze() };
        Ok(ReceivedBody { bytes, _memory: reservation.into_permit() })
    }

    pub(super) async fn receive_json<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> HttpResult<T> {
        let received = self.receive(headers, body, &["application/json"]).await?;
        parse_json(&received.bytes)
    }
}

/// Parses JSON. Nesting has the limit of `serde_json`, which is 128.
pub(super) fn parse_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> HttpResult<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        // The error may contain the name of a field, which can be long.
        let text: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
        bad_request(format!("the body: {text}"))
    })
}

/// The `Content-Type` without its parameters and in lower case, if there is one.
pub(super) fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or("?");
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn check_content_type(headers: &HeaderMap, types: &[&str]) -> HttpResult<()> {
    let Some(actual) = content_type(headers) else { return Ok(()) };
    if types.contains(&actual.as_str()) {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let (actual, types) = (excerpt(&actual), types.join(" or "));
    let message = format!("Content-Type {actual} is not supported here; send {types}");
    Err(ErrorResponse::new(status, "unsupported-type", message))
}

/// Checks that a body is neither compressed nor in a charset other than UTF-8, because the broker
/// converts no bodies.
pub(super) fn check_encoding(headers: &HeaderMap) -> HttpResult<()> {
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let codings = codings.flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let mut codings = codings.map(str::trim).filter(|coding| !coding.is_empty());
    if let Some(coding) = codings.find(|coding| !coding.eq_ignore_ascii_case("identity")) {
        let coding = excerpt(coding);
        let message =
            format!("Content-Encoding {coding} is not supported; send the body uncompressed");
        return Err(ErrorResponse::new(status, "unsupported-type", message));
    }
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let params = content_type.to_str().unwrap_or_default().split(';').skip(1);
    let mut params = params.filter_map(|param| param.split_once('='));
    let Some((_, charset)) = params.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
    else {
        return Ok(());
    };
    let charset = charset.trim().trim_matches('"');
    // ASCII is a subset of UTF-8; `utf8` is a common misspelling.
    if ["utf-8", "us-ascii", "utf8"].iter().any(|known| known.eq_ignore_ascii_case(charset)) {
        return Ok(());
    }
    let message = format!("charset {} is not supported; send the body as UTF-8", excerpt(charset));
    Err(ErrorResponse::new(status, "unsupported-type", message))
}

fn body_too_long(max: usize) -> ErrorResponse {
    let message = format!("the body is longer than {max} bytes; send it in several requests");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLong.as_str(), message)
}

fn body_timed_out() -> ErrorResponse {
    let message =
        "the body was not received in time; send it faster, or later if the broker is busy";
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

    fn params(query: &str) -> HttpResult<QueryParams> {
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
        for content_type in [
            "text/plain",
            "text/plain; charset=utf-8",
            "text/plain;x=y ; Charset=\"UTF-8\"",
            "application/json; charset=US-ASCII",
        ] {
            assert!(allowed(&[("content-type", content_type)]), "{content_type}");
            assert!(
                allowed(&[("content-type", content_type), ("content-encoding", "Identity")]),
                "{content_type}"
            );
            for coding in ["gzip", "identity, br", "\u{e9}"] {
                let headers = [("content-type", content_type), ("content-encoding", coding)];
                assert!(!allowed(&headers), "{headers:?}");
            }
        }
        assert!(!allowed(&[("content-encoding", "identity"), ("content-encoding", "deflate")]));
        for content_type in
            ["text/plain; charset=iso-8859-1", "a/b;charset=utf-16", "a/b; x=y; charset=\"\""]
        {
            assert!(!allowed(&[("content-type", content_type)]), "{content_type}");
        }
    }

    /// A body that arrives byte by byte.
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

    /// Receives a body of `bytes` bytes with `interval_ms` before each byte. The idle timeout is
    /// 100 ms, and the total timeout 1,000 ms.
    async fn receive_slowly(bytes: u32, interval_ms: u64) -> HttpResult<usize> {
        let config = HttpConfig {
            body_idle_timeout_ms: 100,
            body_timeout_ms: 1_000,
            ..HttpConfig::default()
        };
        let bodies = BodyReceiver::new(Arc::new(config));
        let interval = Duration::from_millis(interval_ms);
        let timer = Box::pin(sleep(interval));
        let body = Body::new(SlowBody { bytes_left: bytes, interval, timer });
        bodies.receive(&HeaderMap::new(), body, &[]).await.map(|received| received.bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_an_idle_timeout_and_a_total_timeout() {
        assert_eq!(receive_slowly(9, 90).await.unwrap(), 9);
        assert!(receive_slowly(1, 101).await.is_err(), "idle for too long");
        assert!(receive_slowly(12, 90).await.is_err(), "never idle, but too long in total");
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
        let is_received = async |bytes_left, interval_ms| {
            let interval = Duration::from_millis(interval_ms);
            let timer = Box::pin(sleep(interval));
            let body = Body::new(SlowBody { bytes_left, interval, timer });
            bodies.receive_untyped(body).await.is_ok()
        };
        let late = async {
            sleep(Duration::from_secs(2)).await;
            is_received(1, 0).await
        };
        let slow = || is_received(50, 90);
        let (first, second, third, fourth, last) =
            tokio::join!(slow(), slow(), slow(), slow(), late);
        let slow = [first, second, third, fourth];
        assert_eq!(slow.iter().filter(|is_received| !**is_received).count(), 1);
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
