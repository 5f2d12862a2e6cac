//! Callbacks of jobs: a job that was opened with `callback=` sends a message to that URL when a
//! pass is done.
//!
//! The `job-done` events that name a callback are fed to a group. So each callback waits, is
//! retried and ends as a dead letter like any other entry. A message is a POST of JSON
//! ([`Ending`]). Every attempt carries the same id, and is signed if a key is configured.

#![expect(
    clippy::disallowed_methods,
    reason = "messages carry the time at which they are sent, and reconnecting waits"
)]

pub(crate) mod ending;
mod hosts;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use tidings_protocol::client::{self, ClientError, ClientOptions};
use tidings_protocol::{
    CALLBACK_GROUP, CanonicalUrl, GroupName, Hold, JOB_DONE_TOPIC, Outcome, Return, TopicName,
};
use tidings_subscriber::outcome::{Failure, Reason};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use self::ending::{Ending, EndingError};
use self::hosts::Hosts;
use crate::complaints::Complaints;
use crate::outgoing::{Answered, Outgoing};
use crate::worker::{self, End, Handler, Task, WorkerConfig, WorkerError};

/// The label that the broker shows for this client.
const NAME: &str = "tidings-callbacks";

/// Settings of the group if it does not exist. Ten attempts take an hour and a half, so the
/// callbacks of a server that is down overnight end as dead letters. The lease is the time until a
/// retry after a crash.
const SETTINGS: &[(&str, &str)] = &[("lease", "10s"), ("max-attempts", "10"), ("backoff", "10s")];

/// Concurrent requests.
const CREDIT: u32 = 64;

/// Pause between attempts to create the group.
const AGAIN: Duration = Duration::from_secs(5);

/// Headers with id and time of a message, as the Standard Webhooks specification names them.
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// Signs a message: returns the headers for its id, the time at which it is sent in seconds of Unix
/// time, and its body.
pub type Sign = Box<dyn Fn(&str, u64, &[u8]) -> HeaderMap + Send + Sync>;

/// Where the worker takes callbacks from, and how it sends them.
pub struct Config {
    /// Address of the broker.
    pub broker: String,
    /// Sends the requests.
    pub outgoing: Outgoing,
    /// Signs messages; without it they are sent unsigned.
    pub sign: Option<Sign>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("broker", &self.broker).finish_non_exhaustive()
    }
}

/// Sends callbacks until `stop` is cancelled, and then returns unfinished tasks to the group. After
/// an error it connects to the broker again.
pub async fn run(config: Config, stop: CancellationToken) {
    let caller = Caller(Arc::new(Inner {
        config,
        stop: stop.clone(),
        hosts: Hosts::default(),
        forbidden: Mutex::new(Complaints::new("callbacks to addresses that are not allowed")),
    }));
    let mut logged = None;
    loop {
        let Err(error_text) = caller.work_until_stopped().await else { return };
        let error_text = error_text.to_string();
        if logged.as_ref() != Some(&error_text) {
            tracing::warn!("callbacks are not delivered, trying again: {error_text}");
            logged = Some(error_text);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(AGAIN) => {}
        }
    }
}

#[derive(Clone)]
struct Caller(Arc<Inner>);

struct Inner {
    config: Config,
    stop: CancellationToken,
    hosts: Hosts,
    forbidden: Mutex<Complaints>,
}

impl Caller {
    async fn work_until_stopped(&self) -> Result<(), worker::PrepareError> {
        let broker = &self.0.config.broker;
        let group: GroupName = CALLBACK_GROUP.parse().expect("the constant is a valid name");
        let topic: TopicName = JOB_DONE_TOPIC.parse().expect("the constant is a valid name");
        let options = ClientOptions { name: Some(NAME.to_owned()), ..ClientOptions::default() };
        let connected = client::connect(broker, options).await?;
        worker::prepare(&connected.0, &group, &topic, "none", SETTINGS).await?;
        let config =
            WorkerConfig { broker: broker.clone(), name: NAME, group, credit: CREDIT, count: None };
        match worker::run(config, connected, self.clone(), self.0.stop.clone()).await {
            Ok(()) => Ok(()),
            Err(WorkerError::Broker(error)) => Err(error.into()),
            Err(WorkerError::Handler(never)) => match never {},
        }
    }

    /// Sends one message, once.
    async fn tell(&self, ending: &Ending) -> End {
        let Inner { config, forbidden, .. } = &*self.0;
        let Ending { id, url, body, job } = ending;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_s = since_epoch.as_secs();
        let mut headers = match &config.sign {
            Some(sign) => sign(id, unix_s, body),
            None => HeaderMap::new(),
        };
        headers.insert(
            ID,
            HeaderValue::from_str(id).expect("letters, digits, - and _ are valid in a header"),
        );
        headers.insert(TIMESTAMP, HeaderValue::from(unix_s));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Only the status and the headers of the response matter.
        let sent = config.outgoing.send(Method::POST, url, headers, body.clone(), 0).await;
        let end = match &sent {
            Ok(answered) => judge(answered, url),
            Err(Failure { reason: reason @ Reason::Address, text }) => {
                forbidden.lock().add(1, format_args!("of job {job}: {}: {text}", url.host()));
                End::failed(format!("{}: {text}", reason.as_str()))
            }
            Err(Failure { reason, text }) => End::failed(format!("{}: {text}", reason.as_str())),
        };
        if let End::Back(_, _, Some(reason)) = &end {
            tracing::info!(%job, id, host = url.host(), reason);
        } else {
            tracing::debug!(%job, id, host = url.host(), ?end);
        }
        end
    }
}

/// What a response means for the task.
fn judge(answered: &Answered, url: &CanonicalUrl<'_>) -> End {
    let status = answered.status;
    if status.is_success() {
        return End::done();
    }
    if status == StatusCode::GONE {
        return End::Final(Outcome::Failed, Hold::default());
    }
    let mut reason = format!("HTTP status {}", status.as_u16());
    if let Some(target) = answered.redirect(url) {
        reason = format!("{reason}: a redirect to {target}, which is not followed");
    }
    // In addition to the group's own backoff, which does not wait for `Retry-After`.
    let not_before_ms = answered.retry_after().and_then(|wait| wait.as_millis().try_into().ok());
    let hold = Hold { not_before_ms, ..Hold::default() };
    End::Back(Return::Retry { after_ms: None }, hold, Some(reason))
}

impl Handler for Caller {
    type Error = Infallible;

    async fn work(&self, task: &Task, lost: &CancellationToken) -> Result<End, Infallible> {
        let ending = match Ending::parse(&task.payload) {
            Ok(Some(ending)) => ending,
            Ok(None) => return Ok(End::done()),
            Err(error) => {
                tracing::info!(task = %task.id, %error);
                return Ok(End::Final(Outcome::Failed, Hold::default()));
            }
        };
        let _turn = match self.0.hosts.turn(ending.url.host()) {
            Ok(turn) => turn,
            Err(busy_ms) => {
                let back = Return::Uncounted { after_ms: Some(busy_ms) };
                return Ok(End::Back(back, Hold::default(), None));
            }
        };
        Ok(tokio::select! {
            biased;
            () = self.0.stop.cancelled() => End::BrokenOff,
            () = lost.cancelled() => End::untouched(),
            end = self.tell(&ending) => end,
        })
    }

    fn disconnected(&self, error: &ClientError) {
        tracing::debug!(%error, "the connection for callbacks has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, headers: &[(HeaderName, &'static str)]) -> End {
        let headers = headers.iter().cloned();
        let answered = Answered {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect(),
            body: bytes::Bytes::new(),
            is_whole: true,
        };
        judge(&answered, &CanonicalUrl::parse("http://a.example/done").unwrap())
    }

    // PROTOCOL: F4
    #[test]
    fn a_response_ends_the_task_or_gives_a_reason_to_retry() {
        use hyper::header::{LOCATION, RETRY_AFTER};
        let gone = End::Final(Outcome::Failed, Hold::default());
        for (status, end) in [(200, End::done()), (204, End::done()), (410, gone)] {
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
            let hold = Hold { not_before_ms, pace_ms: None };
            let back = Return::Retry { after_ms: None };
            let end = End::Back(back, hold, Some(reason.to_owned()));
            assert_eq!(answered(status, headers), end, "{status}");
        }
    }
}
