//! `GET /live`: the newest states of a few subjects, as Server-Sent Events.
//!
//! ```text
//!  sampler of a subject ──GET, as the broker──▶ router
//!        │     once a second
//!        └──▶ event, encoded once ──▶ its streams, each at the speed of its client
//! ```
//!
//! A sampler starts with the first stream of its subject, and ends after the last. All streams
//! share what it reads, so their number costs the topics and groups nothing.
#![expect(clippy::disallowed_methods, reason = "samples are taken at intervals")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tidings_protocol::{Code, GroupName, JobName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::super::client::{ConnectedClient, StreamEnd};
use super::super::error::{ErrorResponse, HttpResult, bad_request};
use super::super::request_input::QueryParams;
use super::super::sse::{KEEP_ALIVE_COMMENT, RETRY_FIELD, event_stream};
use super::super::{HttpState, with_timeout};
use crate::access::{Action, Identity};

/// Subjects of a stream.
const SUBJECTS_MAX: usize = 8;

/// Streams of all clients.
const STREAMS_MAX: usize = 256;

/// Subjects of all streams, those included whose last stream has just ended.
const SAMPLERS_MAX: usize = STREAMS_MAX * SUBJECTS_MAX;

/// Seconds after which a client that is over one of these limits may try again.
const RETRY_AFTER_S: u32 = 10;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The same for keys, because a group compares up to 100,000 of them.
const KEYS_INTERVAL: Duration = Duration::from_secs(5);

/// Time without an event after which a stream sends a comment.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// What a stream can show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Stats,
    Ready,
    Topics,
    Groups,
    Jobs,
    Group(GroupName),
    Members(GroupName),
    Keys(GroupName),
    Job(JobName),
}

impl FromStr for Subject {
    type Err = ErrorResponse;

    fn from_str(text: &str) -> HttpResult<Self> {
        Ok(match text.split_once(':') {
            Some(("group", group)) => Self::Group(group.parse()?),
            Some(("members", group)) => Self::Members(group.parse()?),
            Some(("keys", group)) => Self::Keys(group.parse()?),
            Some(("job", job)) => Self::Job(job.parse()?),
            None if text == "stats" => Self::Stats,
            None if text == "ready" => Self::Ready,
            None if text == "topics" => Self::Topics,
            None if text == "groups" => Self::Groups,
            None if text == "jobs" => Self::Jobs,
            _ => {
                let text: String = text.chars().take(40).collect();
                return Err(bad_request(format!(
                    "on={text:?}: expected stats, ready, topics, groups, jobs, group:GROUP, \
                     members:GROUP, keys:GROUP or job:JOB"
                )));
            }
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stats => f.write_str("stats"),
            Self::Ready => f.write_str("ready"),
            Self::Topics => f.write_str("topics"),
            Self::Groups => f.write_str("groups"),
            Self::Jobs => f.write_str("jobs"),
            Self::Group(group) => write!(f, "group:{group}"),
            Self::Members(group) => write!(f, "members:{group}"),
            Self::Keys(group) => write!(f, "keys:{group}"),
            Self::Job(job) => write!(f, "job:{job}"),
        }
    }
}

impl Subject {
    /// The subjects of `on=`.
    fn parse_list(on: &str) -> HttpResult<Vec<Self>> {
        let mut subjects = Vec::new();
        for text in on.split(',') {
            let subject = text.parse()?;
            if subjects.contains(&subject) {
                return Err(bad_request(format!("on={on}: {subject} appears twice")));
            }
            subjects.push(subject);
            if subjects.len() > SUBJECTS_MAX {
                return Err(bad_request(format!("on=: more than {SUBJECTS_MAX} subjects")));
            }
        }
        Ok(subjects)
    }

    /// The request whose response is the state of the subject.
    fn path(&self) -> String {
        match self {
            Self::Stats | Self::Ready | Self::Topics | Self::Groups => format!("/{self}"),
            Self::Jobs => "/jobs?limit=100".to_owned(),
            Self::Group(group) => format!("/groups/{group}"),
            Self::Members(group) => format!("/groups/{group}/members?limit=1000"),
            Self::Keys(group) => format!("/groups/{group}/keys?limit=50"),
            Self::Job(job) => format!("/jobs/{job}"),
        }
    }

    fn interval(&self) -> Duration {
        if matches!(self, Self::Keys(_)) { KEYS_INTERVAL } else { INTERVAL }
    }

    fn action(&self) -> Action<'_> {
        match self {
            Self::Group(group) | Self::Members(group) | Self::Keys(group) => {
                Action::ViewGroup(group.as_str())
            }
            Self::Job(job) => Action::ViewJob(job.as_str()),
            _ => Action::Monitor,
        }
    }

    /// The event with the state of the subject, as a route returned it, or with the reason why there
    /// is none. `None` if the next sample may have it.
    fn event(&self, status: StatusCode, body: &[u8]) -> Option<Bytes> {
        let body = body.trim_ascii_end();
        // A broker that is not ready says so with an error status.
        if status.is_success() || *self == Self::Ready {
            return Some(
                [format!("event: {self}\ndata: ").as_bytes(), body, b"\n\n"].concat().into(),
            );
        }
        let kind = match status {
            StatusCode::NOT_FOUND => "gone",
            StatusCode::TOO_MANY_REQUESTS => return None,
            _ => "failed",
        };
        let mut error: Map<String, Value> = serde_json::from_slice(body).ok()?;
        error.insert("on".to_owned(), self.to_string().into());
        Some(format!("event: {kind}\ndata: {}\n\n", Value::Object(error)).into())
    }
}

/// All streams, and the samplers that they share.
#[derive(Debug)]
pub(in super::super) struct Live {
    http: Arc<HttpState>,
    /// The routes that samplers read.
    routes: Router,
    tasks: TaskTracker,
    /// The newest event of each subject, empty before its first sample.
    samplers: Mutex<HashMap<Subject, watch::Sender<Bytes>>>,
    streams: Arc<Semaphore>,
}

impl Live {
    /// `tasks` owns the samplers, which end with the broker.
    pub(in super::super) fn new(http: Arc<HttpState>, routes: Router, tasks: TaskTracker) -> Self {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { http, routes, tasks, samplers: Mutex::default(), streams }
    }

    /// `GET /live`
    pub(in super::super) fn stream(
        self: &Arc<Self>,
        client: &Arc<ConnectedClient>,
        params: &QueryParams,
    ) -> HttpResult<Response> {
        client.check_action(Action::Monitor)?;
        let subjects = Subject::parse_list(params.get("on").unwrap_or_default())?;
        let shown = subjects.clone();
        let check = move |identity: &Identity| {
            identity.check_action(Action::Monitor)?;
            shown.iter().try_for_each(|subject| identity.check_action(subject.action()))
        };
        let end = client.begin_stream(None, check, self.http.stop.clone())?;
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_| limit_reached("streams", STREAMS_MAX))?;
        let updates = subjects.iter().map(|subject| self.subscribe(subject));
        let stream = LiveStream {
            updates: updates.collect::<HttpResult<_>>()?,
            http: Arc::clone(&self.http),
            has_begun: false,
            end,
            memory: None,
            _place: place,
        };
        Ok(event_stream(LiveBody(Box::pin(stream.next()))))
    }

    /// The newest event of a subject and all later ones. Starts its sampler if there is none.
    fn subscribe(self: &Arc<Self>, subject: &Subject) -> HttpResult<watch::Receiver<Bytes>> {
        let mut samplers = self.samplers.lock();
        if let Some(newest) = samplers.get(subject) {
            let mut updates = newest.subscribe();
            if !updates.borrow().is_empty() {
                updates.mark_changed();
            }
            return Ok(updates);
        }
        if samplers.len() >= SAMPLERS_MAX {
            return Err(limit_reached("subjects", SAMPLERS_MAX));
        }
        let (newest, updates) = watch::channel(Bytes::new());
        samplers.insert(subject.clone(), newest.clone());
        self.tasks.spawn(Arc::clone(self).run_sampler(subject.clone(), newest));
        Ok(updates)
    }

    /// Takes samples until the subject has no more streams. It ends only when the next sample is
    /// due, so a client that connects again and again causes no more samples than a stream.
    async fn run_sampler(self: Arc<Self>, subject: Subject, newest: watch::Sender<Bytes>) {
        let command_timeout = Duration::from_millis(self.http.config.command_timeout_ms);
        let shared = Arc::clone(&self.http.shared);
        let client = Arc::new(ConnectedClient::internal(shared, command_timeout));
        let sample_until_unused = async {
            while !self.remove_unused(&subject, &newest) {
                // A disk that hangs must not keep a sampler that has no more streams.
                let sample = with_timeout(command_timeout, self.sample(&subject, &client)).await;
                if let Some(event) = sample.flatten() {
                    newest.send_if_modified(|last| {
                        let is_new = *last != event;
                        *last = event;
                        is_new
                    });
                }
                tokio::time::sleep(subject.interval()).await;
            }
        };
        self.http.stop.run_until_cancelled(sample_until_unused).await;
    }

    /// Removes the sampler of a subject without streams, and returns whether it did.
    fn remove_unused(&self, subject: &Subject, newest: &watch::Sender<Bytes>) -> bool {
        // Streams are added under the same lock.
        let mut samplers = self.samplers.lock();
        let is_unused = newest.receiver_count() == 0;
        if is_unused {
            samplers.remove(subject);
        }
        is_unused
    }

    async fn sample(&self, subject: &Subject, client: &Arc<ConnectedClient>) -> Option<Bytes> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = subject.path().parse().expect("a name is a valid part of a path");
        request.extensions_mut().insert(Arc::clone(client));
        let Ok(response) = self.routes.clone().call(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.ok()?;
        subject.event(status, &body)
    }
}

fn limit_reached(what: &str, max: usize) -> ErrorResponse {
    let message = format!("the limit of {max} {what} of /live is reached; try again later");
    let response = ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, Code::Limit.as_str(), message);
    response.with_retry_after(RETRY_AFTER_S)
}

/// The stream of one client.
struct LiveStream {
    http: Arc<HttpState>,
    /// The subject that was sent last is the last one.
    updates: Vec<watch::Receiver<Bytes>>,
    has_begun: bool,
    end: StreamEnd,
    /// For the event that was sent last. Until the client has read most of it, the connection asks
    /// for no further one.
    memory: Option<OwnedSemaphorePermit>,
    _place: OwnedSemaphorePermit,
}

impl LiveStream {
    /// Waits for the next bytes to send; `None` at the end. A subject that has changed several
    /// times since is sent once.
    async fn next(mut self) -> (Option<Bytes>, Self) {
        self.memory = None;
        if !std::mem::replace(&mut self.has_begun, true) {
            return (Some(RETRY_FIELD), self);
        }
        let bytes = tokio::select! {
            biased;
            () = &mut self.end => None,
            at = any_changed(&mut self.updates) => self.newest(at).await,
            () = tokio::time::sleep(SILENCE_MAX) => Some(KEEP_ALIVE_COMMENT),
        };
        (bytes, self)
    }

    /// The newest event of the subject at this index, as soon as there is memory to send it.
    async fn newest(&mut self, at: usize) -> Option<Bytes> {
        // Otherwise a subject that changes fast would prevent the others.
        self.updates.rotate_left(at + 1);
        let updates = self.updates.last_mut()?;
        let bytes = updates.borrow().len();
        self.memory = tokio::select! {
            () = &mut self.end => return None,
            memory = self.http.reserve_page(bytes) => Some(memory),
            () = tokio::time::sleep(SILENCE_MAX) => {
                // It is sent later.
                updates.mark_changed();
                return Some(KEEP_ALIVE_COMMENT);
            }
        };
        Some(updates.borrow_and_update().clone())
    }
}

/// The index of a subject that has changed since it was sent.
async fn any_changed(updates: &mut [watch::Receiver<Bytes>]) -> usize {
    let mut waiting: Vec<_> =
        updates.iter_mut().map(|updates| Box::pin(updates.changed())).collect();
    poll_fn(|cx| {
        let ready = waiting.iter_mut().position(|change| change.as_mut().poll(cx).is_ready());
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The body of a response with a stream, as the future of its next bytes.
struct LiveBody(Pin<Box<dyn Future<Output = (Option<Bytes>, LiveStream)> + Send>>);

impl HttpBody for LiveBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (bytes, stream) = ready!(self.0.as_mut().poll(cx));
        self.0 = Box::pin(stream.next());
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use tokio_util::sync::CancellationToken;

    use super::super::super::HttpConfig;
    use super::*;
    use crate::remote::{PeerAddr, RemoteInfo};
    use crate::{Broker, BrokerConfig};

    /// Streams of a broker whose `/stats` counts its requests, and is another text only for every
    /// third of them. All other routes are missing.
    fn live_of(broker: &Broker, requests: &Arc<AtomicUsize>) -> Arc<Live> {
        let (shared, stop) = (Arc::clone(&broker.shared), CancellationToken::new());
        let http = Arc::new(HttpState::new(shared, HttpConfig::default(), stop));
        let requests = Arc::clone(requests);
        let stats = async move || (requests.fetch_add(1, Ordering::Relaxed) / 3).to_string();
        let routes = Router::new().route("/stats", get(stats));
        let missing = async || (StatusCode::NOT_FOUND, r#"{"code":"unknown","message":"m"}"#);
        Arc::new(Live::new(http, routes.fallback(missing), TaskTracker::new()))
    }

    async fn start_broker() -> Broker {
        let listen = "127.0.0.1:0".parse().unwrap();
        Broker::start(BrokerConfig { listen, ..BrokerConfig::default() }).await.unwrap()
    }

    /// A stream of a client with all permissions.
    fn open(live: &Arc<Live>, on: &str) -> HttpResult<Response> {
        let shared = &live.http.shared;
        let remote = RemoteInfo::unencrypted(PeerAddr::Tcp("127.0.0.1:1".parse().unwrap()));
        let client = ConnectedClient::connected(shared, remote);
        let params = QueryParams::parse(&format!("/live?on={on}").parse().unwrap(), &["on"])?;
        live.stream(&Arc::new(client), &params)
    }

    /// The next bytes of a stream, without comments.
    async fn next_event(stream: &mut Response) -> String {
        loop {
            let frame = stream.body_mut().frame().await.unwrap().unwrap();
            let bytes = frame.into_data().unwrap();
            if ![RETRY_FIELD, KEEP_ALIVE_COMMENT].contains(&bytes) {
                return String::from_utf8(bytes.to_vec()).unwrap();
            }
        }
    }

    #[tokio::test]
    async fn two_hundred_streams_cause_the_requests_of_one() {
        let (broker, requests) = (start_broker().await, Arc::default());
        let live = live_of(&broker, &requests);
        tokio::time::pause();
        let mut streams: Vec<_> = (0..200).map(|_| open(&live, "stats,ready").unwrap()).collect();
        for expected in ["event: stats\ndata: 0\n\n", "event: stats\ndata: 1\n\n"] {
            for stream in &mut streams {
                let mut event = next_event(stream).await;
                if event.starts_with("event: ready") {
                    event = next_event(stream).await;
                }
                assert_eq!(event, expected);
            }
        }
        assert_eq!(requests.load(Ordering::Relaxed), 4, "one a second until the first change");
        assert_eq!(live.samplers.lock().len(), 2);
        drop(streams);
        live.tasks.close();
        live.tasks.wait().await;
        assert!(live.samplers.lock().is_empty());
        assert_eq!(live.streams.available_permits(), STREAMS_MAX);
        tokio::time::resume();
        broker.stop().await;
    }

    #[tokio::test]
    async fn a_client_that_connects_again_and_again_causes_no_more_samples() {
        let (broker, requests) = (start_broker().await, Arc::default());
        let live = live_of(&broker, &requests);
        tokio::time::pause();
        for _ in 0..100 {
            let mut stream = open(&live, "stats").unwrap();
            assert_eq!(next_event(&mut stream).await, "event: stats\ndata: 0\n\n");
            drop(stream);
            // A sampler that ended with its last stream would end here.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        tokio::time::resume();
        broker.stop().await;
    }

    #[tokio::test]
    async fn a_stream_that_waits_for_memory_sends_comments() {
        let broker = start_broker().await;
        let live = live_of(&broker, &Arc::default());
        let memory = Arc::clone(&live.http.page_memory);
        let all = u32::try_from(memory.available_permits()).unwrap();
        let all = memory.acquire_many_owned(all).await.unwrap();
        tokio::time::pause();
        let mut stream = open(&live, "stats").unwrap();
        for expected in [RETRY_FIELD, KEEP_ALIVE_COMMENT, KEEP_ALIVE_COMMENT] {
            let frame = stream.body_mut().frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), expected);
        }
        drop(all);
        assert!(next_event(&mut stream).await.starts_with("event: stats\n"));
        tokio::time::resume();
        broker.stop().await;
    }

    #[tokio::test]
    async fn a_slow_client_gets_the_newest_event_of_each_subject() {
        let broker = start_broker().await;
        let live = live_of(&broker, &Arc::default());
        let (jobs, topics) = (watch::Sender::new(Bytes::new()), watch::Sender::new(Bytes::new()));
        live.samplers.lock().insert(Subject::Jobs, jobs.clone());
        live.samplers.lock().insert(Subject::Topics, topics.clone());
        let mut stream = open(&live, "jobs,topics").unwrap();
        let free = live.http.page_memory.available_permits();
        for n in 0..9 {
            jobs.send_replace(Bytes::from(format!("jobs {n}")));
            topics.send_replace(Bytes::from(format!("topics {n}")));
        }
        assert_eq!(next_event(&mut stream).await, "jobs 8");
        assert_eq!(live.http.page_memory.available_permits(), free - 1);
        // A subject that changes at each time does not prevent the others.
        jobs.send_replace(Bytes::from_static(b"jobs 9"));
        assert_eq!(next_event(&mut stream).await, "topics 8");
        assert_eq!(next_event(&mut stream).await, "jobs 9");
        drop(stream);
        assert_eq!(live.http.page_memory.available_permits(), free);
        broker.stop().await;
    }

    #[tokio::test]
    async fn streams_and_subjects_have_limits() {
        let broker = start_broker().await;
        let live = live_of(&broker, &Arc::default());
        let streams: Vec<_> = (0..STREAMS_MAX).map(|_| open(&live, "stats").unwrap()).collect();
        let status = |on: &str| match open(&live, on) {
            Ok(response) => response.status(),
            Err(error) => axum::response::IntoResponse::into_response(error).status(),
        };
        assert_eq!(status("stats"), StatusCode::TOO_MANY_REQUESTS);
        drop(streams);
        assert_eq!(status("stats"), StatusCode::OK);
        let samplers = live.samplers.lock().len();
        for n in samplers..SAMPLERS_MAX {
            let subject = Subject::Job(format!("job-{n}").parse().unwrap());
            live.samplers.lock().insert(subject, watch::Sender::default());
        }
        assert_eq!(status("job:job-9"), StatusCode::OK);
        assert_eq!(status("job:another"), StatusCode::TOO_MANY_REQUESTS);
        broker.stop().await;
    }

    #[test]
    fn only_what_does_not_exist_is_gone() {
        let event = |subject: &str, status, body: &str| {
            let subject: Subject = subject.parse().unwrap();
            subject
                .event(status, body.as_bytes())
                .map(|event| String::from_utf8(event.into()).unwrap())
        };
        let error = r#"{"code":"unknown","message":"m"}"#;
        let gone =
            "event: gone\ndata: {\"code\":\"unknown\",\"message\":\"m\",\"on\":\"job:a\"}\n\n";
        assert_eq!(event("job:a", StatusCode::NOT_FOUND, error).as_deref(), Some(gone));
        let failed = gone.replace("gone", "failed");
        for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::INTERNAL_SERVER_ERROR] {
            assert_eq!(event("job:a", status, error).as_deref(), Some(failed.as_str()));
        }
        assert_eq!(event("job:a", StatusCode::TOO_MANY_REQUESTS, error), None);
        let state = Some("event: ready\ndata: {}\n\n");
        assert_eq!(event("ready", StatusCode::SERVICE_UNAVAILABLE, "{}\n").as_deref(), state);
    }

    #[test]
    fn subjects_are_parsed_and_written_alike() {
        let names = "stats,ready,topics,groups,jobs,group:a,members:a,keys:a";
        let subjects = Subject::parse_list(names).ok().unwrap();
        assert_eq!(subjects.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), names);
        let wrong = ["", "stats,", "stats,stats", "x", "stats:a", "group", "group:", "group:a/b"];
        let nine = format!("{names},job:a");
        for wrong in wrong.into_iter().chain([nine.as_str()]) {
            assert!(Subject::parse_list(wrong).is_err(), "{wrong}");
        }
    }
}
