//! Callbacks of jobs: a job that was opened with `callback=` sends a message to that URL when a
//! pass is done.
//!
//! The `job-done` events that name a callback are fed to a group. So each callback waits, is
//! retried and ends as a dead letter like any other entry. A message is a POST of JSON
//! ([`Callback`]). Every attempt carries the same id, and is signed if a key is configured.

pub(crate) mod callback;
mod host_limits;

use std::convert::Infallible;

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use tidings_client::{
    ClientError, ClientOptions, Connector, GroupSetup, TaskEnd, TaskHandler, Worker, WorkerTask,
};
use tidings_egress::client::{OutgoingClient, OutgoingResponse};
use tidings_egress::failure::{Failure, Reason};
use tidings_protocol::{
    CALLBACK_GROUP, CanonicalUrl, GroupName, JOB_DONE_TOPIC, KeyRest, RetryMode, TopicName,
    partial_debug,
};
use tokio_util::sync::CancellationToken;

pub use self::callback::{Callback, CallbackError};
use self::host_limits::HostLimits;
use crate::rate_limited_log::RateLimitedLog;
use crate::system::unix_time;

/// The label that the broker shows for this client.
const NAME: &str = "tidings-callbacks";

/// Settings of the group if it does not exist. Ten attempts take an hour and a half, so the
/// callbacks of a server that is down overnight end as dead letters. The lease is the time until a
/// retry after a crash.
const GROUP_SETTINGS: &[(&str, &str)] =
    &[("lease", "10s"), ("max-attempts", "10"), ("backoff", "10s")];

const CREDIT: u32 = 64;

/// Headers with id and time of a message, as the Standard Webhooks specification names them.
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// Signs a message: returns the headers for its id, the time at which it is sent in seconds of Unix
/// time, and its body.
pub type Signer = Box<dyn Fn(&str, u64, &[u8]) -> HeaderMap + Send + Sync>;

/// Where the worker takes callbacks from, and how it sends them.
pub struct CallbackConfig {
    /// Address of the broker.
    pub broker: String,
    /// Sends the requests.
    pub outgoing: OutgoingClient,
    /// Signs messages; without it they are sent unsigned.
    pub signer: Option<Signer>,
}

partial_debug!(CallbackConfig { broker });

/// Sends callbacks until `stop` is cancelled, and then returns unfinished tasks to the group. After
/// an error it connects to the broker again.
pub async fn run(config: CallbackConfig, stop: CancellationToken) {
    let group: GroupName = CALLBACK_GROUP.parse().expect("the constant is a valid name");
    let topic: TopicName = JOB_DONE_TOPIC.parse().expect("the constant is a valid name");
    let setup = GroupSetup { group: group.clone(), topic, key: "none", settings: GROUP_SETTINGS };
    let options = ClientOptions { name: Some(NAME.to_owned()), ..ClientOptions::default() };
    let connector = Connector::new(&config.broker, options).persistent().with_group(setup);
    let handler = CallbackHandler {
        config,
        stop: stop.clone(),
        host_limits: HostLimits::default(),
        forbidden_log: Mutex::new(RateLimitedLog::new(
            "callbacks to addresses that are not allowed",
        )),
    };
    if let Err(error) = Worker::new(connector, group, CREDIT).run(handler, None, stop).await {
        tracing::error!("callbacks are not delivered any more: {error}");
    }
}

struct CallbackHandler {
    config: CallbackConfig,
    stop: CancellationToken,
    host_limits: HostLimits,
    forbidden_log: Mutex<RateLimitedLog>,
}

impl CallbackHandler {
    async fn send(&self, ending: &Callback) -> TaskEnd {
        let Self { config, forbidden_log, .. } = self;
        let Callback { id, url, body, job } = ending;
        let unix_s = unix_time().as_secs();
        let mut headers = match &config.signer {
            Some(sign) => sign(id, unix_s, body),
            None => HeaderMap::new(),
        };
        headers.insert(
            WEBHOOK_ID,
            HeaderValue::from_str(id).expect("letters, digits, - and _ are valid in a header"),
        );
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_s));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Only the status and the headers of the response matter.
        let sent = config.outgoing.send(Method::POST, url, headers, body.clone(), 0).await;
        let end = match &sent {
            Ok(answered) => end_of_response(answered, url),
            Err(Failure { reason: reason @ Reason::Address, text }) => {
                forbidden_log.lock().add(1, format_args!("of job {job}: {}: {text}", url.host()));
                TaskEnd::failed(format!("{}: {text}", reason.as_str()))
            }
            Err(Failure { reason, text }) => {
                TaskEnd::failed(format!("{}: {text}", reason.as_str()))
            }
        };
        if let TaskEnd::Nack(_, _, Some(reason)) = &end {
            tracing::info!(%job, id, host = url.host(), reason);
        } else {
            tracing::debug!(%job, id, host = url.host(), ?end);
        }
        end
    }
}

/// What a response means for the task.
fn end_of_response(answered: &OutgoingResponse, url: &CanonicalUrl<'_>) -> TaskEnd {
    let status = answered.status;
    if status.is_success() {
        return TaskEnd::done();
    }
    if status == StatusCode::GONE {
        return TaskEnd::given_up();
    }
    let mut reason = format!("HTTP status {}", status.as_u16());
    if let Some(target) = answered.redirect(url) {
        reason = format!("{reason}: a redirect to {target}, which is not followed");
    }
    // In addition to the group's own backoff, which does not wait for `Retry-After`.
    let not_before_ms = answered.retry_after().and_then(|wait| wait.as_millis().try_into().ok());
    let hold = KeyRest { not_before_ms, ..KeyRest::default() };
    TaskEnd::Nack(RetryMode::Counted { after_ms: None }, hold, Some(reason))
}

impl TaskHandler for CallbackHandler {
    type Error = Infallible;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        let ending = match Callback::parse(&task.payload) {
            Ok(Some(ending)) => ending,
            Ok(None) => return Ok(TaskEnd::done()),
            Err(error) => {
                tracing::info!(task = %task.id, %error);
                return Ok(TaskEnd::given_up());
            }
        };
        let _turn = match self.host_limits.acquire(ending.url.host()) {
            Ok(turn) => turn,
            Err(busy_ms) => return Ok(TaskEnd::postponed(busy_ms)),
        };
        Ok(tokio::select! {
            biased;
            () = self.stop.cancelled() => TaskEnd::Interrupted,
            () = lost.cancelled() => TaskEnd::not_started(),
            end = self.send(&ending) => end,
        })
    }

    fn disconnected(&self, error: &ClientError) {
        tracing::warn!("callbacks are not delivered, trying again: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, headers: &[(HeaderName, &'static str)]) -> TaskEnd {
        let headers = headers.iter().cloned();
        let answered = OutgoingResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect(),
            body: bytes::Bytes::new(),
            is_complete: true,
        };
        end_of_response(&answered, &CanonicalUrl::parse("http://a.example/done").unwrap())
    }

    // PROTOCOL: F4
    #[test]
    fn a_response_ends_the_task_or_gives_a_reason_to_retry() {
        use hyper::header::{LOCATION, RETRY_AFTER};
        let gone = TaskEnd::given_up();
        for (status, end) in [(200, TaskEnd::done()), (204, TaskEnd::done()), (410, gone)] {
            assert_eq!(answered(status, &[(RETRY_AFTER, "7")]), end, "{status}");
        }
        for (status, headers, not_before_ms, reason) in [
            (500, &[(RETRY_AFTER, "7")][..], None, "HTTP status 500"),
            (404, &[], None, "HTTP status 404"),
            (503, &[(RETRY_AFTER, "7")], Some(7_000), "HTTP status 503"),
            (429, &[(RETRY_AFTER, "99999999")], Some(86_400_000), "HTTP status 429"),
            (503, &[(RETRY_AFTER, "soon")], None, "HTTP status 503"),
            (
                307,
                &[(LOCATION, "/x")],
                None,
                "HTTP status 307: a redirect to http://a.example/x, which is not followed",
            ),
            (304, &[(LOCATION, "/x")], None, "HTTP status 304"),
        ] {
            let hold = KeyRest { not_before_ms, pace_ms: None };
            let back = RetryMode::Counted { after_ms: None };
            let end = TaskEnd::Nack(back, hold, Some(reason.to_owned()));
            assert_eq!(answered(status, headers), end, "{status}");
        }
    }
}
