//! A connection to one browser over two pipes: calls with deadlines, and the events of each page.
//!
//! A port would give the browser to every user of the machine, and a socket needs a handshake that
//! differs between builds of Chromium.

#![expect(clippy::disallowed_methods, reason = "calls have deadlines, and tasks read and write")]

mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod message;

use std::collections::HashMap;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::frames::Frames;
pub(crate) use self::message::Event;
use self::message::{Message, decode, encode};

/// The longest message that is read. Rendered HTML of 8 Mi characters, each escaped as six bytes,
/// fits. A longer one is skipped, and the call that waits for it reaches its deadline.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Calls that wait for the pipe. There are many only if the browser does not read.
const CALLS_MAX: usize = 4096;

/// Events of one page that wait to be processed. If they exceed it, the page ends.
const EVENTS_MAX: usize = 4096;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The browser refuses it.
    #[error("{0}")]
    Refused(String),
    /// No answer in time.
    #[error("no answer to {0}")]
    Timeout(&'static str),
    /// The browser has ended.
    #[error("the browser has ended")]
    Closed,
}

/// A connection. It ends when the browser closes its pipe, or with its last clone.
#[derive(Clone)]
pub(crate) struct Connection {
    calls: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
    /// Held until drop, which ends the tasks.
    _tasks: Arc<JoinSet<()>>,
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    last_id: u64,
    answers: HashMap<u64, oneshot::Sender<Result<Value, String>>>,
    /// The pages, by the context that each has for itself.
    contexts: HashMap<String, mpsc::Sender<Event>>,
    /// The context of each session.
    sessions: HashMap<String, String>,
    is_closed: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection over these pipes.
    pub(crate) fn new(to_browser: PipeWriter, from_browser: PipeReader) -> io::Result<Self> {
        let mut writer = pipe::Sender::from_owned_fd(OwnedFd::from(to_browser))?;
        let mut reader = pipe::Receiver::from_owned_fd(OwnedFd::from(from_browser))?;
        let (calls, mut waiting) = mpsc::channel::<Vec<u8>>(CALLS_MAX);
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(call) = waiting.recv().await {
                if writer.write_all(&call).await.is_err() {
                    return;
                }
            }
        });
        let receiver = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut frames = Frames::new(MESSAGE_BYTES_MAX);
            let mut buffer = vec![0; 64 << 10];
            while let Ok(read @ 1..) = reader.read(&mut buffer).await {
                frames.read(&buffer[..read], |message| receiver.take(message));
            }
            receiver.close();
        });
        Ok(Self { calls, shared, _tasks: Arc::new(tasks) })
    }

    /// Whether the browser has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.0.lock().is_closed
    }

    /// Calls a method and waits for the answer. An empty session is the browser itself.
    pub(crate) async fn call(
        &self,
        session: &str,
        method: &'static str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, CallError> {
        let (sender, answer) = oneshot::channel();
        let id = self.shared.expect_answer(Some(sender))?;
        let _forget = Forget { shared: &self.shared, id };
        let call = async {
            let bytes = encode(id, session, method, params);
            self.calls.send(bytes).await.map_err(|_| CallError::Closed)?;
            answer.await.map_err(|_| CallError::Closed)?.map_err(CallError::Refused)
        };
        timeout(limit, call).await.unwrap_or(Err(CallError::Timeout(method)))
    }

    /// Calls a method without waiting for the answer.
    pub(crate) fn post(
        &self,
        session: &str,
        method: &'static str,
        params: Value,
    ) -> Result<(), CallError> {
        let id = self.shared.expect_answer(None)?;
        let bytes = encode(id, session, method, params);
        self.calls.try_send(bytes).map_err(|error| match error {
            TrySendError::Full(_) => CallError::Timeout(method),
            TrySendError::Closed(_) => CallError::Closed,
        })
    }

    /// Makes a context, which shares no cookies, cache or storage with another one, and returns its
    /// events: those of every page, frame and worker in it.
    pub(crate) async fn new_context(&self, limit: Duration) -> Result<Context, CallError> {
        let params = json!({ "disposeOnDetach": true });
        let answer = self.call("", "Target.createBrowserContext", params, limit).await?;
        let id = answer["browserContextId"].as_str().unwrap_or_default().to_owned();
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        self.shared.0.lock().contexts.insert(id.clone(), sender);
        Ok(Context { connection: self.clone(), id, events })
    }
}

/// The context of one page.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) connection: Connection,
    pub(crate) id: String,
    pub(crate) events: mpsc::Receiver<Event>,
}

impl Context {
    /// Ends the page and all that belongs to it.
    pub(crate) async fn close(self, limit: Duration) -> Result<(), CallError> {
        let params = json!({ "browserContextId": self.id });
        self.connection.call("", "Target.disposeBrowserContext", params, limit).await.map(drop)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut state = self.connection.shared.0.lock();
        state.contexts.remove(&self.id);
        state.sessions.retain(|_, context| *context != self.id);
    }
}

/// Removes a call when its caller no longer waits.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.0.lock().answers.remove(&self.id);
    }
}

impl Shared {
    fn expect_answer(
        &self,
        sender: Option<oneshot::Sender<Result<Value, String>>>,
    ) -> Result<u64, CallError> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(CallError::Closed);
        }
        state.last_id += 1;
        let id = state.last_id;
        if let Some(sender) = sender {
            state.answers.insert(id, sender);
        }
        Ok(id)
    }

    /// Gives a message to the call or session that waits for it.
    fn take(&self, bytes: &[u8]) {
        let Some(message) = decode(bytes) else { return };
        let mut state = self.0.lock();
        match message {
            Message::Answer(id, answer) => {
                if let Some(sender) = state.answers.remove(&id) {
                    // The caller may have given up at this moment.
                    let _ = sender.send(answer);
                }
            }
            Message::Event(event) => state.route(event),
        }
    }

    fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.answers.clear();
        state.contexts.clear();
    }
}

impl State {
    /// Gives an event to its page. A new session belongs to the page of the session that announces
    /// it. If the browser itself announces it, it belongs to the page of its context.
    fn route(&mut self, event: Event) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let context = match event.session.as_str() {
            "" => text(&event.params["targetInfo"]["browserContextId"]),
            session => self.sessions.get(session).cloned(),
        };
        let Some(context) = context else { return };
        let Some(page) = self.contexts.get(&context) else { return };
        match (event.name.as_str(), text(&event.params["sessionId"])) {
            ("Target.attachedToTarget", Some(session)) => {
                _ = self.sessions.insert(session, context.clone());
            }
            ("Target.detachedFromTarget", Some(session)) => _ = self.sessions.remove(&session),
            _ => {}
        }
        // Messages that scripts print may be lost, so they leave room for other events.
        let is_message = event.name.starts_with("Runtime.") || event.name.starts_with("Log.");
        if is_message && page.capacity() < EVENTS_MAX / 2 {
            return;
        }
        if page.try_send(event).is_err() {
            self.contexts.remove(&context);
        }
    }
}
