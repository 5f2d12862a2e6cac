//! Renders one page in a context of its own.
//!
//! The browser asks for the document and gets the bytes that were fetched before. Every other
//! request of the page, its frames and its workers is paused, judged, and answered by the caller's
//! [`Fetch`]. What cannot be paused finds no network.
//!
//! A script may run without end, and a dialog blocks every other answer of its page. So calls have
//! deadlines, and events are processed while a call waits. Processing itself never waits, so a call
//! can be given up at any moment.

#![expect(clippy::disallowed_methods, reason = "a page has time limits")]

mod answer;
mod clock;
mod image;
mod page;
mod settle;
mod target;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::select;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::answer::{Decision, Gate};
use self::clock::Clock;
pub use self::page::{
    Answer, Cut, Fetch, How, Kind, Link, Load, Opened, Page, PageError, PageLimits, Rendered,
    Request, RequestRecord, RequestResult,
};
use self::settle::{AHEAD, Look, Settle, Step};
use crate::cdp::{CallError, Connection, Context, Event};
use crate::pool::PageEnd;

/// How long the browser may take to open a page.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// How long the browser may take to close a page.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// How often the page is observed.
const OBSERVE_EVERY: Duration = Duration::from_millis(75);

/// If a page answers later than this, it was running a script.
const BUSY: Duration = Duration::from_millis(150);

/// How long the first attempt to read the page may take; then its script is terminated. The next
/// attempts may take longer, because on a busy machine the browser is slow to terminate it.
const READ_MAX: Duration = Duration::from_secs(3);
const READ_ATTEMPTS: u32 = 3;

/// Requests of one page at once.
const IN_FLIGHT_MAX: usize = 6;

/// Dialogs until the page is read as it is.
const DIALOGS_MAX: u32 = 10;

/// Frames of other sites, and workers. More of them do not run.
const CHILDREN_MAX: usize = 20;

/// Other pages that a page opens. More of them are closed before their URLs are known.
const POPUPS_MAX: usize = 20;

/// Errors that are kept, and the bytes of each.
const CONSOLE_MAX: usize = 20;
const CONSOLE_BYTES_MAX: usize = 512;

/// Messages of scripts until no more are received. A page that prints without end would delay the
/// other pages of its browser.
const MESSAGES_MAX: usize = 500;

/// UTF-16 units of the rendered HTML.
const HTML_CHARS_MAX: usize = 8 << 20;
const ELEMENTS_MAX: usize = 500_000;
const LINKS_MAX: usize = 10_000;

/// How the browser refuses a call to a page that is closed.
const NO_SESSION: &str = "Session with given id not found";

/// The world in which the scripts of this crate run, where those of the page cannot change them.
const WORLD: &str = "tidings";

/// Renders a page, and closes everything that belongs to it. The page ends early when `gone` is
/// ready.
pub(crate) async fn render(
    connection: &Connection,
    page: &Page,
    limits: &PageLimits,
    fetch: Arc<dyn Fetch>,
    gone: impl Future<Output = ()>,
) -> (Result<Rendered, PageError>, PageEnd) {
    let context = match connection.new_context(OPEN_MAX).await {
        Ok(context) => context,
        Err(CallError::Closed) => return (Err(PageError::Lost), PageEnd::Lost),
        Err(error) => return (Err(failure(&error)), PageEnd::Stuck),
    };
    let mut visit = Visit::new(context, fetch);
    let rendered = select! {
        rendered = visit.run(page, limits) => rendered,
        () = sleep(limits.time_max) => Err(PageError::Hung("its time is over".to_owned())),
        () = gone => Err(PageError::Hung("it is not wanted any more".to_owned())),
    };
    // Requests of the page end here.
    drop(visit.answers);
    let end = match visit.context.close(CLOSE_MAX).await {
        Err(CallError::Timeout(_)) => PageEnd::Stuck,
        Err(CallError::Closed) => PageEnd::Lost,
        _ if rendered == Err(PageError::Crashed) => PageEnd::Crashed,
        _ => PageEnd::Closed,
    };
    (rendered, end)
}

struct Visit {
    context: Context,
    fetch: Arc<dyn Fetch>,
    /// The session of the page. Empty until it is attached.
    session: String,
    /// The page's number, which is that of its main frame too.
    target: String,
    /// Set when the page is about to load.
    gate: Option<Gate>,
    waiting: VecDeque<Asked>,
    answers: JoinSet<(Asked, Answer)>,
    children: HashSet<String>,
    /// The sessions of other pages, and their numbers.
    popups: HashMap<String, String>,
    console_errors: Vec<String>,
    messages: usize,
    image_errors: Vec<String>,
    dialogs: u32,
    too_many_dialogs: Arc<Notify>,
    /// Requests of the page that were judged, and answers that it got.
    requests: u64,
    clock: Clock,
    /// A look at the page may show something new.
    has_news: bool,
}

/// A request that is paused until it is answered.
struct Asked {
    session: String,
    id: String,
    number: usize,
    request: Request,
}

/// What happens while a visit waits.
enum Next {
    Event(Event),
    Answer(Asked, Answer),
}

impl Visit {
    fn new(context: Context, fetch: Arc<dyn Fetch>) -> Self {
        Self {
            context,
            fetch,
            session: String::new(),
            target: String::new(),
            gate: None,
            waiting: VecDeque::new(),
            answers: JoinSet::new(),
            children: HashSet::new(),
            popups: HashMap::new(),
            console_errors: Vec::new(),
            messages: 0,
            image_errors: Vec::new(),
            dialogs: 0,
            too_many_dialogs: Arc::default(),
            requests: 0,
            clock: Clock::Real,
            has_news: false,
        }
    }

    async fn run(&mut self, page: &Page, limits: &PageLimits) -> Result<Rendered, PageError> {
        let started = Instant::now();
        self.open().await?;
        self.gate = Some(Gate::new(page, limits, &self.target));
        let answer = self.ask("Page.navigate", json!({ "url": page.url }), OPEN_MAX).await?;
        if let Some(error) = answer["errorText"].as_str() {
            return Err(PageError::Browser(format!("{error} for {}", page.url)));
        }
        let left = limits.settle_max.saturating_sub(started.elapsed());
        let too_many_dialogs = Arc::clone(&self.too_many_dialogs);
        let cut = select! {
            settled = self.wait_until_settled(limits.settle_max) => settled?,
            () = too_many_dialogs.notified() => Some(Cut::Dialogs),
            () = sleep(left) => Some(Cut::Time),
        };
        let read = self.read().await?;
        // Printing waits for what loads late. After an image was taken, Chromium no longer waits.
        let pdf = if page.pdf { self.print().await? } else { None };
        let screenshot = if page.screenshot { self.draw(&read).await? } else { None };
        let gate = self.gate.as_mut().expect("set above");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let links = read["links"].as_array().into_iter().flatten().map(|link| Link {
            url: text(&link[0]),
            is_nofollow: text(&link[1]).split_ascii_whitespace().any(is_nofollow),
        });
        Ok(Rendered {
            links: links.collect(),
            html: text(&read["html"]),
            final_url: text(&read["url"]),
            title: text(&read["title"]),
            opened: std::mem::take(&mut gate.opened),
            cut,
            console_errors: std::mem::take(&mut self.console_errors),
            requests: std::mem::take(&mut gate.records),
            requests_unlisted: gate.unlisted,
            dialogs: self.dialogs,
            screenshot,
            pdf,
            image_errors: std::mem::take(&mut self.image_errors),
        })
    }

    /// Opens an empty page, and prepares it.
    async fn open(&mut self) -> Result<(), PageError> {
        let connection = self.context.connection.clone();
        let context = self.context.id.clone();
        let deny = json!({ "behavior": "deny", "browserContextId": context });
        post(&connection, "", "Browser.setDownloadBehavior", deny)?;
        let params = json!({ "url": "about:blank", "browserContextId": context });
        let call = connection.call("", "Target.createTarget", params, OPEN_MAX);
        let created = call.await.map_err(|error| failure(&error))?;
        created["targetId"].as_str().unwrap_or_default().clone_into(&mut self.target);
        let attach = async {
            while self.session.is_empty() {
                let next = self.next().await?;
                self.process(next)?;
            }
            Ok(())
        };
        timeout(OPEN_MAX, attach).await.unwrap_or_else(|_| Err(PageError::Hung("open".to_owned())))
    }

    /// Observes the page until it has settled. Its clock is moved forward by no more than
    /// `ahead_max`.
    async fn wait_until_settled(&mut self, ahead_max: Duration) -> Result<Option<Cut>, PageError> {
        let started = Instant::now();
        let mut settle = Settle::default();
        let mut ahead = Duration::ZERO;
        let mut world = None;
        loop {
            let asked = Instant::now();
            let (changes, is_loaded) = self.observe(&mut world).await?;
            let is_busy = asked.elapsed() > BUSY;
            let look = Look {
                now: started.elapsed(),
                changes: changes.wrapping_add(self.requests),
                is_loaded,
                is_active: is_busy || self.is_asking(),
                is_running: self.clock == Clock::Running,
                has_others: !self.children.is_empty(),
            };
            match settle.observe(look) {
                Step::Settled => return Ok(None),
                Step::RunAhead if ahead >= ahead_max => return Ok(Some(Cut::Time)),
                Step::RunAhead => {
                    ahead += AHEAD;
                    self.run_ahead(AHEAD)?;
                    self.pause_until_news(OBSERVE_EVERY).await?;
                }
                Step::Pace => self.pace().await?,
                Step::Wait => self.pause_until_news(OBSERVE_EVERY).await?,
            }
        }
    }

    /// How often the document has changed, and whether it is loaded.
    async fn observe(&mut self, world: &mut Option<u64>) -> Result<(u64, bool), PageError> {
        // A page answers only when its script pauses.
        let limit = Duration::from_hours(1);
        let context = match *world {
            Some(context) => context,
            None => *world.insert(self.new_world(limit).await?),
        };
        let expression = include_str!("observe.js");
        let script =
            json!({ "expression": expression, "contextId": context, "returnByValue": true });
        match self.ask("Runtime.evaluate", script, limit).await {
            Ok(answer) => {
                let value = &answer["result"]["value"];
                Ok((value[0].as_u64().unwrap_or(0), value[1] == true))
            }
            // The document was replaced, by a script that opened it again.
            Err(PageError::Browser(_)) => {
                *world = None;
                Ok((u64::MAX, false))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the page waits for an answer.
    fn is_asking(&self) -> bool {
        !self.answers.is_empty() || !self.waiting.is_empty()
    }

    /// Reads the page. Its script is terminated if it does not pause.
    async fn read(&mut self) -> Result<Value, PageError> {
        let script = include_str!("read.js").trim_end();
        let expression = format!("{script}({HTML_CHARS_MAX}, {ELEMENTS_MAX}, {LINKS_MAX})");
        let mut last = None;
        let mut attempts = 0;
        while attempts < READ_ATTEMPTS {
            let dialogs = self.dialogs;
            match self.try_read(&expression, READ_MAX * (attempts + 1)).await {
                Ok(read) => return check_document(read),
                // Its script has been terminated, and shows dialogs until it ends.
                Err(PageError::Hung(_)) if self.dialogs > dialogs.max(DIALOGS_MAX) => continue,
                Err(error @ (PageError::Hung(_) | PageError::Browser(_))) => last = Some(error),
                Err(error) => return Err(error),
            }
            attempts += 1;
            let connection = self.context.connection.clone();
            post(&connection, &self.session, "Runtime.terminateExecution", json!({}))?;
        }
        Err(last.expect("there was an attempt"))
    }

    async fn try_read(&mut self, expression: &str, limit: Duration) -> Result<Value, PageError> {
        let context = self.new_world(limit).await?;
        let script =
            json!({ "expression": expression, "contextId": context, "returnByValue": true });
        let mut answer = self.ask("Runtime.evaluate", script, limit).await?;
        match answer["exceptionDetails"]["text"].as_str() {
            Some(error) => Err(PageError::Browser(error.to_owned())),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// The world of this crate's scripts in the document that is there now.
    async fn new_world(&mut self, limit: Duration) -> Result<u64, PageError> {
        let params = json!({ "frameId": self.target, "worldName": WORLD });
        let answer = self.ask("Page.createIsolatedWorld", params, limit).await?;
        Ok(answer["executionContextId"].as_u64().unwrap_or(0))
    }

    /// Asks the page, and processes events until it answers.
    async fn ask(
        &mut self,
        method: &'static str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, PageError> {
        let connection = self.context.connection.clone();
        let session = self.session.clone();
        let mut call = std::pin::pin!(connection.call(&session, method, params, limit));
        loop {
            let next = select! {
                answer = &mut call => return answer.map_err(|error| failure(&error)),
                next = self.next() => next?,
            };
            self.process(next)?;
        }
    }

    /// Processes events for this time, or until a look at the page may show something new.
    async fn pause_until_news(&mut self, time: Duration) -> Result<(), PageError> {
        let mut over = std::pin::pin!(sleep(time));
        self.has_news = false;
        while !self.has_news {
            let next = select! {
                () = &mut over => return Ok(()),
                next = self.next() => next?,
            };
            self.process(next)?;
        }
        Ok(())
    }

    /// Waits for an event or an answer. Safe to cancel.
    async fn next(&mut self) -> Result<Next, PageError> {
        select! {
            event = self.context.events.recv() => match event {
                Some(event) => Ok(Next::Event(event)),
                None if self.context.connection.is_closed() => Err(PageError::Lost),
                None => Err(PageError::Flooded),
            },
            Some(answer) = self.answers.join_next() => {
                let (asked, answer) = answer.expect("a request does not panic");
                Ok(Next::Answer(asked, answer))
            }
        }
    }

    fn process(&mut self, next: Next) -> Result<(), PageError> {
        match next {
            Next::Event(event) => self.process_event(&event)?,
            Next::Answer(asked, answer) => {
                let gate = self.gate.as_mut().expect("a page that asks is loading");
                let (method, params) = gate.answer(asked.number, &asked.id, &answer);
                post(&self.context.connection, &asked.session, method, params)?;
                self.requests += 1;
                self.has_news |= !self.is_asking();
            }
        }
        self.make_requests();
        Ok(())
    }

    fn make_requests(&mut self) {
        while self.answers.len() < IN_FLIGHT_MAX {
            let Some(mut asked) = self.waiting.pop_front() else { return };
            let gate = self.gate.as_ref().expect("a page that asks is loading");
            asked.request.body_bytes_max = gate.part_bytes_max();
            let fetch = Arc::clone(&self.fetch);
            self.answers.spawn(async move {
                let answer = match asked.request.body_bytes_max {
                    0 => Answer::Refused("too many bytes".to_owned()),
                    _ => fetch.answer(asked.request.clone()).await,
                };
                (asked, answer)
            });
        }
    }

    fn process_event(&mut self, event: &Event) -> Result<(), PageError> {
        let params = &event.params;
        match event.name.as_str() {
            "Target.attachedToTarget" => self.attach(params)?,
            "Target.detachedFromTarget" if params["sessionId"] == *self.session => {
                return Err(closed_itself());
            }
            "Inspector.targetCrashed" if event.session == self.session => {
                return Err(PageError::Crashed);
            }
            "Fetch.requestPaused" => {
                self.requests += 1;
                self.judge(event)?;
            }
            "Page.loadEventFired" => self.has_news = true,
            "Emulation.virtualTimeBudgetExpired" => {
                self.clock = Clock::Standing;
                self.has_news = true;
            }
            "Page.javascriptDialogOpening" => {
                self.dialogs += 1;
                if self.dialogs == DIALOGS_MAX {
                    self.too_many_dialogs.notify_one();
                    // V8 ends the script only when it checks for this, after some 500 more dialogs.
                    let end = "Runtime.terminateExecution";
                    post(&self.context.connection, &event.session, end, json!({}))?;
                }
                // This dialog asks whether to leave the page.
                let accept = json!({ "accept": params["type"] == "beforeunload" });
                post(
                    &self.context.connection,
                    &event.session,
                    "Page.handleJavaScriptDialog",
                    accept,
                )?;
            }
            "Page.downloadWillBegin" => {
                let url = params["url"].as_str().unwrap_or_default();
                self.gate.iter_mut().for_each(|gate| gate.open(url, How::Download));
            }
            name if name.starts_with("Runtime.") || name.starts_with("Log.") => {
                self.keep_message(name, params)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Keeps an error. After a number of messages, the page sends no more.
    fn keep_message(&mut self, name: &str, params: &Value) -> Result<(), PageError> {
        self.messages += 1;
        if self.messages == MESSAGES_MAX {
            for method in ["Runtime.disable", "Log.disable"] {
                post(&self.context.connection, &self.session, method, json!({}))?;
            }
        }
        if let Some(mut error) = target::console_error(name, params)
            && self.console_errors.len() < CONSOLE_MAX
        {
            error.truncate(error.floor_char_boundary(CONSOLE_BYTES_MAX));
            self.console_errors.push(error);
        }
        Ok(())
    }

    /// Prepares the page, a frame or a worker. A window that the page has opened runs only until
    /// its first request.
    fn attach(&mut self, params: &Value) -> Result<(), PageError> {
        let connection = &self.context.connection;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (session, id) = (text(&params["sessionId"]), text(&params["targetInfo"]["targetId"]));
        let is_page = params["targetInfo"]["type"] == "page";
        if is_page && id != self.target {
            if self.popups.len() >= POPUPS_MAX {
                return post(connection, "", "Target.closeTarget", json!({ "targetId": id }));
            }
            for (method, params) in target::preparation(false) {
                post(connection, &session, method, params)?;
            }
            self.popups.insert(session, id);
            return Ok(());
        }
        if is_page && !self.session.is_empty() {
            return Ok(());
        }
        // A worker may be announced to the browser and to its page; one session is enough to
        // answer.
        if !is_page && self.children.contains(&id) {
            let go = "Runtime.runIfWaitingForDebugger";
            return post(connection, &session, go, json!({}));
        }
        if !is_page && self.children.len() >= CHILDREN_MAX {
            return Ok(());
        }
        for (method, params) in target::preparation(is_page) {
            post(connection, &session, method, params)?;
        }
        if is_page {
            self.session = session;
        } else {
            self.children.insert(id);
        }
        Ok(())
    }

    fn judge(&mut self, event: &Event) -> Result<(), PageError> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        if let Some(popup) = self.popups.get(&event.session) {
            gate.open(event.params["request"]["url"].as_str().unwrap_or_default(), How::Popup);
            let close = json!({ "targetId": popup });
            return post(&self.context.connection, "", "Target.closeTarget", close);
        }
        match gate.judge(&event.params) {
            Decision::Reply(method, params) => {
                post(&self.context.connection, &event.session, method, params)
            }
            Decision::Ask(number, request) => {
                let id = event.params["requestId"].as_str().unwrap_or_default().to_owned();
                let session = event.session.clone();
                self.waiting.push_back(Asked { session, id, number, request });
                Ok(())
            }
        }
    }
}

/// Checks that what was read is the page's own document, and is not too large.
fn check_document(read: Value) -> Result<Value, PageError> {
    if let Some(excess) = read["excess"].as_str() {
        return Err(PageError::Size(excess.to_owned()));
    }
    let url = read["url"].as_str().unwrap_or_default();
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(PageError::Left(url.to_owned()));
    }
    Ok(read)
}

fn closed_itself() -> PageError {
    PageError::Left("nothing: it has closed itself".to_owned())
}

fn is_nofollow(word: &str) -> bool {
    word.eq_ignore_ascii_case("nofollow")
}

fn post(
    connection: &Connection,
    session: &str,
    method: &'static str,
    params: Value,
) -> Result<(), PageError> {
    connection.post(session, method, params).map_err(|error| failure(&error))
}

fn failure(error: &CallError) -> PageError {
    match error {
        CallError::Closed => PageError::Lost,
        CallError::Timeout(_) => PageError::Hung(error.to_string()),
        CallError::Refused(text) if text.starts_with(NO_SESSION) => closed_itself(),
        CallError::Refused(text) => PageError::Browser(text.clone()),
    }
}
