//! Decides which browser takes which page, and when a browser is replaced.
//!
//! ```text
//! Starting ──▶ Ready ──▶ Draining ──▶ Closing ──▶ (removed)
//!    │           │ crash, or killed: Ended, until its pages have ended too
//!    └─ failed ──┴──────────────────────────────▶ (removed)
//! ```
//!
//! A browser grows with each page that it shows, so it is replaced after a number of pages, an age,
//! a size, or some crashes. It takes pages until its successor is ready, and only one browser is
//! replaced at a time. The limits vary at random, so that the browsers of many crawlers that start
//! together are not replaced together.
//!
//! Browsers without pages are closed after some minutes, and started again for the next page.
//!
//! Pure: time is an argument, as the duration since any fixed moment. Call [`Pool::handle`] with
//! one input, carry out what [`Pool::poll`] returns until it returns `None`, and then wait for the
//! next input or until [`Pool::deadline`], which is an [`Input::Tick`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fastrand::Rng;

/// The pause before a browser is started again, which doubles with each failure in a row.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_mins(1);

/// After this number of failures in a row, pages are refused instead of waiting for a start.
const FAILURES_MAX: u32 = 5;

/// A browser is replaced after this number of crashed pages.
const CRASHES_MAX: u32 = 3;

/// An estimate of the memory of a new browser, in bytes.
const NEW_BROWSER_BYTES: u64 = 200 << 20;

/// Browsers are closed after this time without a page.
const IDLE_MAX: Duration = Duration::from_mins(5);

/// How far a limit of one browser may be from the configured one, in percent.
const JITTER_PERCENT: u64 = 20;

/// The limits of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Pages at once, in all browsers. At least 1.
    pub slots: usize,
    /// Browsers that share the pages. At least 1. A crash costs the pages of one browser.
    pub browsers: usize,
    /// Pages of one browser until it is replaced.
    pub pages_max: u32,
    /// The age of one browser at which it is replaced.
    pub age_max: Duration,
    /// The memory of one browser at which it is replaced, in bytes.
    pub browser_bytes_max: u64,
    /// The memory of all browsers at which the largest is replaced, in bytes. A successor that
    /// exceeds it is started only when its predecessor has ended.
    pub total_bytes_max: u64,
    /// How long a browser may take to close before it is killed.
    pub close_max: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            slots: 6,
            browsers: 2,
            pages_max: 100,
            age_max: Duration::from_hours(1),
            browser_bytes_max: 1536 << 20,
            total_bytes_max: 4096 << 20,
            close_max: Duration::from_secs(5),
        }
    }
}

/// One browser process with its children. Numbers rise, and are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrowserId(pub u64);

/// One page that is rendered. The caller chooses the numbers; none is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

/// How a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEnd {
    /// Its context is closed; nothing of it is left in the browser.
    Closed,
    /// Its renderer crashed, and its context is closed.
    Crashed,
    /// Its context could not be closed in time, so part of it may still run.
    Stuck,
    /// Its browser does not answer any more.
    Lost,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A page is to be rendered. `Assign` or `Refuse` follows.
    Wanted(PageId),
    /// A page that was assigned has ended. Must follow each `Assign`, also when its browser ended.
    Ended(PageId, PageEnd),
    /// A browser takes pages.
    Started(BrowserId),
    /// No process of this browser is left. Must follow each `Start`.
    Exited(BrowserId),
    /// The memory of a browser, in bytes.
    Memory(BrowserId, u64),
    /// Refuse pages that wait, end those that run, and close all browsers.
    Stop,
    /// A deadline has passed.
    Tick,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Start a browser. `Started` and `Exited`, or `Exited` alone, follow.
    Start(BrowserId),
    /// Render the page in this browser.
    Assign(PageId, BrowserId),
    /// The page cannot be rendered, because no browser starts or the pool stops.
    Refuse(PageId),
    /// Ask the browser to end. It has no page.
    Close(BrowserId),
    /// Kill the browser.
    Kill(BrowserId),
}

/// The state of one browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not answer yet.
    Starting,
    /// It takes pages.
    Ready,
    /// It takes no more pages, and ends those that it has.
    Draining,
    /// It was ordered to close.
    Closing,
    /// It was killed or has exited, but not all of its pages and processes have ended.
    Ended,
}

/// Why a browser is replaced, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has shown its number of pages.
    Pages,
    /// It has reached its age.
    Age,
    /// It, or all browsers together, use too much memory.
    Memory,
    /// Its pages crash.
    Crashes,
    /// A page could not be closed.
    Stuck,
    /// No page was there for some time. It has no successor.
    Idle,
    /// It has ended by itself, or was killed because it did not answer.
    Lost,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Pages, Self::Age, Self::Memory, Self::Crashes, Self::Stuck, Self::Idle, Self::Lost];

    /// The word of a reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Age => "age",
            Self::Memory => "memory",
            Self::Crashes => "crashes",
            Self::Stuck => "stuck",
            Self::Idle => "idle",
            Self::Lost => "lost",
        }
    }
}

/// The status of one browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrowserStatus {
    /// The browser.
    pub id: BrowserId,
    /// What it does.
    pub state: State,
    /// Pages that it renders.
    pub pages: usize,
    /// Pages that it takes until it is replaced.
    pub pages_left: u32,
    /// Its memory when it was measured last, in bytes.
    pub bytes: u64,
    /// Why it is, or will be, replaced.
    pub reason: Option<Reason>,
}

/// The state machine; see the module.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    random: Rng,
    browsers: BTreeMap<BrowserId, Browser>,
    next_id: u64,
    waiting: VecDeque<PageId>,
    replacement: Option<Replacement>,
    /// Browsers in a row that ended before they were given a page.
    failures: u32,
    /// No browser is started before this moment.
    retry_at: Option<Duration>,
    /// Browsers that have ended, in the order of [`Reason::ALL`].
    ended: [u64; Reason::ALL.len()],
    /// When a page last waited or was rendered.
    busy_until: Duration,
    is_stopped: bool,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Browser {
    state: State,
    has_exited: bool,
    pages: BTreeSet<PageId>,
    pages_total: u32,
    pages_max: u32,
    expires: Duration,
    bytes: u64,
    crashes: u32,
    reason: Option<Reason>,
    /// When a browser that closes is killed.
    kill_at: Option<Duration>,
}

/// The browser that has reached a limit and is being replaced, and its successor. `new` is `None`
/// if the old one must end first, because memory is short.
#[derive(Debug)]
struct Replacement {
    old: BrowserId,
    new: Option<BrowserId>,
}

impl Pool {
    /// A pool without browsers. The seed decides how far limits vary.
    pub fn new(config: PoolConfig, seed: u64) -> Self {
        Self {
            config,
            random: Rng::with_seed(seed),
            browsers: BTreeMap::new(),
            next_id: 1,
            waiting: VecDeque::new(),
            replacement: None,
            failures: 0,
            retry_at: None,
            ended: Default::default(),
            busy_until: Duration::ZERO,
            is_stopped: false,
            outputs: VecDeque::new(),
        }
    }

    /// Takes one input. `now` never goes back.
    pub fn handle(&mut self, input: Input, now: Duration) {
        self.retry_at = self.retry_at.filter(|at| now < *at);
        if self.is_busy() {
            self.busy_until = now;
        }
        match input {
            Input::Wanted(page) if self.is_stopped || self.is_unavailable() => {
                self.outputs.push_back(Output::Refuse(page));
            }
            Input::Wanted(page) => self.waiting.push_back(page),
            Input::Ended(page, end) => self.end_page(page, end),
            Input::Started(id) => self.become_ready(id),
            Input::Exited(id) => self.record_exit(id, now),
            Input::Memory(id, bytes) => {
                if let Some(browser) = self.browsers.get_mut(&id) {
                    browser.bytes = bytes;
                }
            }
            Input::Stop => self.stop(),
            Input::Tick => {}
        }
        self.judge(now);
        self.replace_one(now);
        self.start_for_waiting(now);
        self.assign();
        self.drain_idle(now);
        self.close(now);
    }

    /// What to do next. Call it after each input until it returns `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When an [`Input::Tick`] is due. May change with each input.
    pub fn deadline(&self) -> Option<Duration> {
        let of_browsers = self.browsers.values().filter_map(|browser| match browser.state {
            State::Ready => {
                let expires = browser.reason.is_none().then_some(browser.expires);
                expires.into_iter().chain(self.idle_at()).min()
            }
            State::Closing => browser.kill_at,
            _ => None,
        });
        of_browsers.chain(self.retry_at).min()
    }

    /// Whether the pool was stopped, and no browser or page is left.
    pub fn has_ended(&self) -> bool {
        self.is_stopped && self.browsers.is_empty()
    }

    /// How many browsers have ended, in the order of [`Reason::ALL`]; those that a stop ends do not
    /// count.
    pub fn ended(&self) -> [u64; Reason::ALL.len()] {
        self.ended
    }

    /// Each browser, the oldest first.
    pub fn browsers(&self) -> impl Iterator<Item = BrowserStatus> + '_ {
        self.browsers.iter().map(|(id, browser)| BrowserStatus {
            id: *id,
            state: browser.state,
            pages: browser.pages.len(),
            pages_left: browser.pages_max.saturating_sub(browser.pages_total),
            bytes: browser.bytes,
            reason: browser.reason,
        })
    }

    fn become_ready(&mut self, id: BrowserId) {
        // A browser that was killed meanwhile does not become ready.
        if let Some(browser) = self.browsers.get_mut(&id).filter(|it| it.state == State::Starting) {
            browser.state = State::Ready;
        }
        if let Some(replacement) = &self.replacement
            && replacement.new == Some(id)
        {
            let old = replacement.old;
            self.drain(old);
        }
    }

    fn drain(&mut self, id: BrowserId) {
        if let Some(browser) = self.browsers.get_mut(&id).filter(|it| it.state == State::Ready) {
            browser.state = State::Draining;
        }
    }

    fn end_page(&mut self, page: PageId, end: PageEnd) {
        let with_page = |(_, browser): &(_, &mut Browser)| browser.pages.contains(&page);
        let (&id, browser) = self.browsers.iter_mut().find(with_page).expect("an assigned page");
        browser.pages.remove(&page);
        match end {
            PageEnd::Crashed => browser.crashes += 1,
            // The page may still use a processor and takes a place, so this does not wait for a
            // successor.
            PageEnd::Stuck => {
                browser.reason = Some(Reason::Stuck);
                self.drain(id);
            }
            PageEnd::Lost if browser.state != State::Ended => {
                browser.state = State::Ended;
                self.outputs.push_back(Output::Kill(id));
            }
            PageEnd::Closed | PageEnd::Lost => {}
        }
        self.remove_ended();
    }

    fn record_exit(&mut self, id: BrowserId, now: Duration) {
        let browser = self.browsers.get_mut(&id).expect("a browser exits once");
        let has_failed =
            matches!(browser.state, State::Starting | State::Ready) && browser.pages_total == 0;
        browser.state = State::Ended;
        browser.has_exited = true;
        browser.bytes = 0;
        if !self.is_stopped {
            self.ended[browser.reason.unwrap_or(Reason::Lost) as usize] += 1;
        }
        if has_failed {
            let pause = BACKOFF_MIN * 2_u32.pow(self.failures.min(6));
            self.retry_at = Some(now + pause.min(BACKOFF_MAX));
            self.failures += 1;
            if self.is_unavailable() {
                self.outputs.extend(self.waiting.drain(..).map(Output::Refuse));
            }
        }
        self.remove_ended();
    }

    fn remove_ended(&mut self) {
        self.browsers.retain(|_, browser| !browser.has_exited || !browser.pages.is_empty());
        let has_exited = |id| self.browsers.get(&id).is_none_or(|browser| browser.has_exited);
        // The replacement ends when the old browser has exited. If the new one fails before that,
        // the replacement begins again later.
        self.replacement.take_if(|Replacement { old, new }| {
            let keeps_old = self.browsers.get(old).is_some_and(|it| it.state == State::Ready);
            has_exited(*old) || keeps_old && new.is_some_and(has_exited)
        });
    }

    /// Whether no browser can be started at present, and none takes pages.
    fn is_unavailable(&self) -> bool {
        self.failures >= FAILURES_MAX && self.retry_at.is_some() && self.serving().next().is_none()
    }

    /// Browsers that take pages, or will after their start, except one that has a successor.
    fn serving(&self) -> impl Iterator<Item = &Browser> {
        let replaced = self.replacement.as_ref().map(|replacement| replacement.old);
        let serving = self.browsers.iter().filter(move |(id, browser)| {
            matches!(browser.state, State::Starting | State::Ready) && Some(**id) != replaced
        });
        serving.map(|(_, browser)| browser)
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        self.outputs.extend(self.waiting.drain(..).map(Output::Refuse));
        for (id, browser) in &mut self.browsers {
            match browser.state {
                State::Starting => {
                    browser.state = State::Ended;
                    self.outputs.push_back(Output::Kill(*id));
                }
                State::Ready => browser.state = State::Draining,
                State::Draining | State::Closing | State::Ended => {}
            }
        }
    }

    /// Marks the browsers that have reached a limit.
    fn judge(&mut self, now: Duration) {
        let is_short = self.bytes() > self.config.total_bytes_max;
        let ready = || self.browsers.iter().filter(|(_, it)| it.state == State::Ready);
        let largest = ready().max_by_key(|(_, browser)| browser.bytes).map(|(id, _)| *id);
        for (id, browser) in &mut self.browsers {
            if browser.state != State::Ready || browser.reason.is_some() {
                continue;
            }
            let is_large =
                browser.bytes > self.config.browser_bytes_max || is_short && largest == Some(*id);
            browser.reason = if is_large {
                Some(Reason::Memory)
            } else if browser.crashes >= CRASHES_MAX {
                Some(Reason::Crashes)
            } else if browser.pages_total >= browser.pages_max {
                Some(Reason::Pages)
            } else if now >= browser.expires {
                Some(Reason::Age)
            } else {
                None
            };
        }
    }

    /// Begins to replace a browser, unless another one is being replaced.
    fn replace_one(&mut self, now: Duration) {
        let is_due = |it: &Browser| it.state == State::Ready && it.reason.is_some();
        let due = self.browsers.iter().find(|(_, browser)| is_due(browser)).map(|(id, _)| *id);
        let Some(old) = due else { return };
        if self.replacement.is_some() || self.is_stopped || !self.can_start() {
            return;
        }
        let new = if self.bytes() + NEW_BROWSER_BYTES > self.config.total_bytes_max {
            self.drain(old);
            None
        } else {
            Some(self.start(now))
        };
        self.replacement = Some(Replacement { old, new });
    }

    /// Drains all browsers if none has had a page for some time.
    fn drain_idle(&mut self, now: Duration) {
        if self.is_busy() {
            self.busy_until = now;
        }
        let is_idle = self.idle_at().is_some_and(|at| at <= now);
        for browser in self.browsers.values_mut().filter(|it| is_idle && it.state == State::Ready) {
            browser.reason = Some(Reason::Idle);
            browser.state = State::Draining;
        }
    }

    /// Whether any page waits, or is rendered.
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.browsers.values().any(|it| !it.pages.is_empty())
    }

    /// When browsers are closed if no page is wanted.
    fn idle_at(&self) -> Option<Duration> {
        (!self.is_busy()).then_some(self.busy_until + IDLE_MAX)
    }

    /// Closes browsers without pages, and kills those that do not close.
    fn close(&mut self, now: Duration) {
        for (id, browser) in &mut self.browsers {
            if browser.state == State::Draining && browser.pages.is_empty() {
                browser.state = State::Closing;
                browser.kill_at = Some(now + self.config.close_max);
                self.outputs.push_back(Output::Close(*id));
            } else if browser.state == State::Closing && browser.kill_at.is_some_and(|at| at <= now)
            {
                browser.state = State::Ended;
                self.outputs.push_back(Output::Kill(*id));
            }
        }
    }

    fn start_for_waiting(&mut self, now: Duration) {
        loop {
            let taken = self.serving().map(|browser| browser.pages.len()).sum::<usize>();
            let started = self.serving().count();
            let free = (started * self.places()).saturating_sub(taken);
            if self.waiting.len() <= free || started >= self.config.browsers || !self.can_start() {
                return;
            }
            self.start(now);
        }
    }

    /// Whether another browser may be started. Browsers that do not exit count too, so that they
    /// cannot accumulate.
    fn can_start(&self) -> bool {
        self.retry_at.is_none() && self.browsers.len() < 2 * self.config.browsers.max(1)
    }

    fn start(&mut self, now: Duration) -> BrowserId {
        let id = BrowserId(self.next_id);
        self.next_id += 1;
        let range = 100 - JITTER_PERCENT..=100 + JITTER_PERCENT;
        let percent = self.random.u64(range);
        let pages_max = u64::from(self.config.pages_max) * percent / 100;
        let age_max = self.config.age_max * u32::try_from(percent).expect("a percentage") / 100;
        let browser = Browser {
            state: State::Starting,
            has_exited: false,
            pages: BTreeSet::new(),
            pages_total: 0,
            pages_max: u32::try_from(pages_max).unwrap_or(u32::MAX).max(1),
            expires: now + age_max,
            bytes: 0,
            crashes: 0,
            reason: None,
            kill_at: None,
        };
        self.browsers.insert(id, browser);
        self.outputs.push_back(Output::Start(id));
        id
    }

    /// Gives pages that wait to the browsers with the fewest pages. Those that are being replaced
    /// come last.
    fn assign(&mut self) {
        let places = self.places();
        let mut free = self.config.slots.max(1)
            - self.browsers.values().map(|browser| browser.pages.len()).sum::<usize>();
        while free > 0 && !self.waiting.is_empty() {
            let has_place = |it: &&mut Browser| it.state == State::Ready && it.pages.len() < places;
            let browsers = self.browsers.iter_mut().filter(|(_, browser)| has_place(browser));
            let first = browsers.min_by_key(|(_, it)| (it.reason.is_some(), it.pages.len()));
            let Some((&id, browser)) = first else { return };
            let page = self.waiting.pop_front().expect("one waits");
            browser.pages.insert(page);
            browser.pages_total += 1;
            self.failures = 0;
            free -= 1;
            self.outputs.push_back(Output::Assign(page, id));
        }
    }

    fn bytes(&self) -> u64 {
        self.browsers.values().map(|browser| browser.bytes).sum()
    }

    /// Pages of one browser at once.
    fn places(&self) -> usize {
        self.config.slots.div_ceil(self.config.browsers.max(1)).max(1)
    }
}
