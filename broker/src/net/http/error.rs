//! Error responses: a status, a code for programs and a message for people.

use std::convert::Infallible;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tidings_protocol::{Code, ProtocolError, Verb};

use super::json_objects::JsonResponse;
use crate::stats::RequestCounts;

/// The response to a rejected request, with the body `{"code": .., "message": ..}`. The request has
/// changed nothing, unless the code says otherwise.
#[derive(Debug)]
pub(super) struct ErrorResponse {
    status: StatusCode,
    /// A code of the line protocol, or one that only HTTP has.
    code: &'static str,
    message: String,
    /// Seconds after which the client may try again.
    retry_after_s: Option<u32>,
}

/// The request is invalid (400).
pub(super) fn bad_request(message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, Code::BadArgument.as_str(), message)
}

/// What a request returns, or the response to its rejection.
pub(super) type HttpResult<T> = Result<T, ErrorResponse>;

impl ErrorResponse {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after_s: None }
    }

    /// The text for people.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Adds `Retry-After`: the same request may succeed after `seconds`.
    pub(super) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl RequestCounts {
    /// Counts a request that exceeds a rate limit, and returns its response (429). `subject` names
    /// the limited thing in the plural; the client may try again after `wait_ms`.
    pub(super) fn too_many_requests(&self, wait_ms: u64, subject: &str) -> ErrorResponse {
        self.limited.add(1);
        let seconds = u32::try_from(wait_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        let message = format!("too many {subject}; try again in {seconds} s");
        let response =
            ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, Code::Limit.as_str(), message);
        response.with_retry_after(seconds)
    }
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Busy | Code::Exists | Code::Conflict | Code::Stale => StatusCode::CONFLICT,
        Code::Limit => StatusCode::TOO_MANY_REQUESTS,
        Code::Full => StatusCode::INSUFFICIENT_STORAGE,
        Code::NotDurable | Code::Closing | Code::Idle => StatusCode::SERVICE_UNAVAILABLE,
        Code::Denied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::NotYet => StatusCode::NOT_IMPLEMENTED,
        Code::Moved => StatusCode::MISDIRECTED_REQUEST,
        Code::BadArgument
        | Code::BadName
        | Code::Control
        | Code::TooLong
        | Code::Utf8
        | Code::UnknownCommand => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<ProtocolError> for ErrorResponse {
    fn from(error: ProtocolError) -> Self {
        Self::new(status_of(error.code), error.code.as_str(), without_command(&error.text))
    }
}

/// A message without a hint that is a command of the line protocol.
fn without_command(text: &str) -> &str {
    let hint = text.split_once("; ").filter(|(_, hint)| Verb::of(hint.as_bytes()).is_some());
    hint.map_or(text, |(problem, _)| problem)
}

/// For text in a path, which may be anything.
impl From<Infallible> for ErrorResponse {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message });
        let mut response = (self.status, JsonResponse(body)).into_response();
        if matches!(self.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The connection cannot be reused, because the rest of the body stays unread.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"tidings\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
