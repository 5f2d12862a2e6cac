//! Callbacks of jobs: a job that was opened with `callback=` sends a message to that URL when a
//! pass is done.
//!
//! The `job-done` events that name a callback are fed to a group. So each callback waits, is
//! retried and ends as a dead letter like any other entry. A message is a POST of JSON
//! ([`Callback`]). Every attempt carries the same id, and is signed if a key is configured.

pub(crate) mod callback;
mod host_limits;

use std::convert::Infallible;

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use tidings_client::{
    ClientError, ClientOptions, Connector, GroupSetup, TaskEnd, TaskHandler, Worker, WorkerTask,
};
use tidings_protocol::{AttributeFilter, CALLBACK_GROUP, GroupName, JOB_DONE_TOPIC, TopicName};
use tokio_util::sync::CancellationToken;

pub use self::callback::{Callback, CallbackError};
use self::host_limits::HostLimits;
use crate::delivery::{Delivery, GROUP_SETTINGS, Message};
use crate::rate_limited_log::RateLimitedLog;

/// The label that the broker shows for this client.
const NAME: &str = "tidings-callbacks";

const CREDIT: u32 = 64;

/// Sends callbacks until `stop` is cancelled, and then returns unfinished tasks to the group. After
/// an error it connects to the broker again.
pub async fn run(delivery: Delivery, stop: CancellationToken) {
    let group: GroupName = CALLBACK_GROUP.parse().expect("the constant is a valid name");
    let topic: TopicName = JOB_DONE_TOPIC.parse().expect("the constant is a valid name");
    let setup = GroupSetup {
        group: group.clone(),
        topic,
        key: "none",
        is_exclusive: false,
        filter: AttributeFilter::default(),
        settings: GROUP_SETTINGS,
    };
    let options = ClientOptions { name: Some(NAME.to_owned()), ..ClientOptions::default() };
    let connector = Connector::new(&delivery.broker, options).persistent().with_group(setup);
    let handler = CallbackHandler {
        delivery,
        refused_log: Mutex::new(RateLimitedLog::new("callbacks that were not accepted")),
        stop: stop.clone(),
        host_limits: HostLimits::default(),
    };
    if let Err(error) = Worker::new(connector, group, CREDIT).run(handler, None, stop).await {
        tracing::error!("callbacks are not delivered any more: {error}");
    }
}

struct CallbackHandler {
    delivery: Delivery,
    refused_log: Mutex<RateLimitedLog>,
    stop: CancellationToken,
    host_limits: HostLimits,
}

impl CallbackHandler {
    async fn send(&self, Callback { id, url, body, job, traceparent }: Callback) -> TaskEnd {
        let host = url.host();
        let message = Message {
            subject: &format!("job {job}"),
            receiver: &format!("callbacks at {host}"),
            url: &url,
            id: &id,
            content_type: HeaderValue::from_static("application/json"),
            body,
            traceparent: traceparent.as_deref(),
        };
        let attempt = self.delivery.send(message).await;
        if let Some(reason) = attempt.failure() {
            self.refused_log.lock().add(1, format_args!("of job {job} at {host}: {reason}"));
        }
        attempt.end
    }
}

impl TaskHandler for CallbackHandler {
    type Error = Infallible;

    async fn handle(
        &self,
        task: &WorkerTask,
        lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        let callback = match Callback::parse(&task.payload) {
            Ok(Some(callback)) => callback,
            Ok(None) => return Ok(TaskEnd::done()),
            Err(error) => {
                tracing::info!(task = %task.id, %error);
                return Ok(TaskEnd::given_up());
            }
        };
        let _turn = match self.host_limits.acquire(callback.url.host()) {
            Ok(turn) => turn,
            Err(busy_ms) => return Ok(TaskEnd::postponed(busy_ms)),
        };
        Ok(tokio::select! {
            biased;
            () = self.stop.cancelled() => TaskEnd::Interrupted,
            () = lost.cancelled() => TaskEnd::not_started(),
            end = self.send(callback) => end,
        })
    }

    fn disconnected(&self, error: &ClientError) {
        tracing::warn!("callbacks are not delivered, trying again: {error}");
    }
}
