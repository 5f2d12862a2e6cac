//! Sends a signed message to a URL, and decides what the answer means for the task of the message.
//! For callbacks and pushes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use tidings_client::TaskEnd;
use tidings_egress::client::{OutgoingClient, OutgoingResponse};
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{CanonicalUrl, KeyRest, RetryMode, TRACEPARENT, partial_debug, trace_id};

use crate::receivers::Receivers;
use crate::system::unix_time;

/// Headers with id and time of a message, as the Standard Webhooks specification names them.
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);

/// Signs a message: returns the headers for its id, the time at which it is sent in seconds of Unix
/// time, and its body.
pub type Signer = Box<dyn Fn(&str, u64, &[u8]) -> HeaderMap + Send + Sync>;

/// Where a service takes the events from, and how it sends them.
pub struct Delivery {
    /// Address of the broker.
    pub broker: String,
    /// Sends the requests.
    pub outgoing: Arc<OutgoingClient>,
    /// Signs messages; without it they are sent unsigned.
    pub signer: Option<Signer>,
    /// Where refusals are counted.
    pub receivers: Arc<Receivers>,
}

partial_debug!(Delivery { broker });

/// Settings of the group if it does not exist. Ten attempts take an hour and a half, so the
/// callbacks of a server that is down overnight end as dead letters. The lease is the time until a
/// retry after a crash. No message can end the process, so a crash says nothing about those that
/// were in flight.
pub(crate) const GROUP_SETTINGS: &[(&str, &str)] =
    &[("lease", "10s"), ("max-attempts", "10"), ("max-losses", "100"), ("backoff", "10s")];

/// A message to a URL.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// What it is about, for the log.
    pub(crate) subject: &'a str,
    /// What the receiver receives, for the problems of the broker.
    pub(crate) receiver: &'a str,
    pub(crate) url: &'a CanonicalUrl<'static>,
    /// Of letters, digits, `-`, `_` and `/`. It is the same when the message is sent again.
    pub(crate) id: &'a str,
    pub(crate) content_type: HeaderValue,
    pub(crate) body: Bytes,
    /// The trace context of its event.
    pub(crate) traceparent: Option<&'a str>,
}

/// The result of sending a message once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// What it means for the task.
    pub(crate) end: TaskEnd,
    /// The status of the answer, if there was one.
    pub(crate) status: Option<StatusCode>,
    /// What it says about the receiver.
    pub(crate) receiver: Receiver,
    /// How long the receiver asks clients to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl Attempt {
    /// Why the message was not accepted.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.end {
            TaskEnd::Nack(_, _, reason) => reason.as_deref(),
            _ => None,
        }
    }
}

/// The state of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// It answered to the message.
    Works,
    /// The message failed, and others may fail as well: status 500 or 501.
    Fails,
    /// Its address is not allowed.
    IsForbidden,
    /// It did not answer, or not to this message in particular: a redirect, status 429, or from 502
    /// on.
    IsDown,
}

impl Delivery {
    /// Sends a message once.
    pub(crate) async fn send(&self, message: Message<'_>) -> Attempt {
        let Message { subject, receiver, url, id, content_type, body, traceparent } = message;
        let trace_id = traceparent.map(trace_id);
        let unix_s = unix_time().as_secs();
        let mut headers = match &self.signer {
            Some(sign) => sign(id, unix_s, &body),
            None => HeaderMap::new(),
        };
        let id_value = HeaderValue::from_str(id).expect("its characters are valid in a header");
        headers.insert(WEBHOOK_ID, id_value);
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_s));
        headers.insert(CONTENT_TYPE, content_type);
        if let Some(Ok(trace)) = traceparent.map(HeaderValue::from_str) {
            headers.insert(TRACEPARENT_HEADER, trace);
        }
        // Only the status and the headers of the response matter.
        let attempt = match self.outgoing.send(Method::POST, url, headers, body, 0).await {
            Ok(response) => attempt_of(&response, url),
            Err(Failure { reason, text }) => {
                let receiver = match reason {
                    Reason::Address => Receiver::IsForbidden,
                    _ => Receiver::IsDown,
                };
                let end = TaskEnd::failed(format!("{}: {text}", reason.as_str()));
                Attempt { end, status: None, receiver, retry_after: None }
            }
        };
        self.receivers.record(receiver, attempt.failure());
        if let Some(reason) = attempt.failure() {
            tracing::info!(subject, id, host = url.host(), trace_id, reason);
        } else {
            tracing::debug!(subject, id, host = url.host(), trace_id, end = ?attempt.end);
        }
        attempt
    }
}

/// What a response means for the task.
fn attempt_of(response: &OutgoingResponse, url: &CanonicalUrl<'_>) -> Attempt {
    let status = response.status;
    let attempt =
        |end, receiver, retry_after| Attempt { end, status: Some(status), receiver, retry_after };
    if status.is_success() {
        return attempt(TaskEnd::done(), Receiver::Works, None);
    }
    let mut reason = format!("HTTP status {}", status.as_u16());
    if let Some(target) = response.redirect(url) {
        // Its path may have a secret of the receiver, and dead letters are readable by others.
        let target = target.origin();
        reason = format!("{reason}: a redirect to {target}, which is not followed");
    }
    let retry_after = response.retry_after();
    let retry = match status {
        StatusCode::GONE => RetryMode::Never,
        _ => RetryMode::Counted { after_ms: None },
    };
    // In addition to the group's own backoff, which does not wait for `Retry-After`.
    let not_before_ms = retry_after.and_then(|wait| wait.as_millis().try_into().ok());
    let rest = KeyRest { not_before_ms, ..KeyRest::default() };
    let receiver = match status.as_u16() {
        500 | 501 => Receiver::Fails,
        300..=399 | 429 | 502.. => Receiver::IsDown,
        _ => Receiver::Works,
    };
    attempt(TaskEnd::Nack(retry, rest, Some(reason)), receiver, retry_after)
}

/// The id of a message from names of Tidings: a dot separates the parts of the text that is signed,
/// so the id has none. The replacement is unique for each name.
pub(crate) fn id_without_dots(name: &str) -> String {
    name.replace('_', "__").replace('.', "_d")
}

#[cfg(test)]
mod tests {
    use hyper::header::{LOCATION, RETRY_AFTER};

    use super::*;

    fn attempt(status: u16, headers: &[(HeaderName, &'static str)]) -> Attempt {
        let headers = headers.iter().cloned();
        let response = OutgoingResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect(),
            body: Bytes::new(),
            is_complete: true,
        };
        attempt_of(&response, &CanonicalUrl::parse("http://a.example/done").unwrap())
    }

    // PROTOCOL: F4
    #[test]
    fn a_response_ends_the_task_or_gives_a_reason_to_retry() {
        for status in [200, 204] {
            assert_eq!(attempt(status, &[(RETRY_AFTER, "7")]).end, TaskEnd::done(), "{status}");
        }
        for (status, headers, not_before_ms, reason) in [
            (500, &[(RETRY_AFTER, "7")][..], None, "HTTP status 500"),
            (404, &[], None, "HTTP status 404"),
            (410, &[(RETRY_AFTER, "7")], None, "HTTP status 410"),
            (503, &[(RETRY_AFTER, "7")], Some(7_000), "HTTP status 503"),
            (429, &[(RETRY_AFTER, "99999999")], Some(86_400_000), "HTTP status 429"),
            (503, &[(RETRY_AFTER, "soon")], None, "HTTP status 503"),
            (501, &[], None, "HTTP status 501"),
            (502, &[], None, "HTTP status 502"),
            (521, &[], None, "HTTP status 521"),
            (
                307,
                &[(LOCATION, "/x")],
                None,
                "HTTP status 307: a redirect to http://a.example, which is not followed",
            ),
            (304, &[(LOCATION, "/x")], None, "HTTP status 304"),
        ] {
            let rest = KeyRest { not_before_ms, pace_ms: None };
            let retry = match status {
                410 => RetryMode::Never,
                _ => RetryMode::Counted { after_ms: None },
            };
            let Attempt { end, receiver, .. } = attempt(status, headers);
            assert_eq!(end, TaskEnd::Nack(retry, rest, Some(reason.to_owned())), "{status}");
            let expected = match status {
                500 | 501 => Receiver::Fails,
                304 | 307 | 429 | 502 | 503 | 521 => Receiver::IsDown,
                _ => Receiver::Works,
            };
            assert_eq!(receiver, expected, "{status}");
        }
    }

    #[test]
    fn ids_have_no_dots_and_are_unique() {
        let names = ["a.b/1", "a_b/1", "a_db/1", "a__b/1", "a_.b/1", "a._b/1"];
        let ids: std::collections::BTreeSet<_> =
            names.iter().map(|name| id_without_dots(name)).collect();
        assert_eq!(ids.len(), names.len());
        assert!(ids.iter().all(|id| !id.contains('.')));
    }
}
