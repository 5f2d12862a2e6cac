//! A simulation of browsers that crash, hang, grow and do not start. It checks rules that must hold
//! in every case.

use super::*;

const SEEDS: u64 = 2_000;

/// Inputs of one simulation until it stops.
const STEPS: usize = 400;

/// The actual state of the simulated browsers, to compare with that of the pool.
struct World {
    pool: Pool,
    config: PoolConfig,
    random: Rng,
    now: Duration,
    browsers: BTreeMap<BrowserId, Process>,
    /// Pages without an answer.
    waiting: BTreeSet<PageId>,
    /// Pages that run, with the time when each ends.
    running: BTreeMap<PageId, (BrowserId, Duration)>,
    next_page: u64,
    answered: u64,
    /// When a page last waited or ran.
    busy_until: Duration,
    /// Whether browsers start, and whether they obey an order to close.
    starts: bool,
    closes: bool,
    is_stopping: bool,
    /// Browsers that exited before it was stopped.
    exits: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Process {
    has_started: bool,
    /// When it starts or exits next.
    acts_at: Option<Duration>,
    exits: bool,
    has_stuck: bool,
    has_drained: bool,
    was_killed: bool,
    bytes: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let browsers = random.usize(1..=3);
        let config = PoolConfig {
            slots: random.usize(browsers..=8),
            browsers,
            pages_max: random.u32(1..=20),
            age_max: Duration::from_secs(random.u64(10..=300)),
            browser_bytes_max: 1 << 30,
            total_bytes_max: random.u64(1..=4) << 30,
            close_max: Duration::from_secs(5),
        };
        Self {
            pool: Pool::new(config.clone(), seed),
            config,
            random,
            now: Duration::from_secs(1),
            browsers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            next_page: 1,
            answered: 0,
            busy_until: Duration::ZERO,
            starts: true,
            closes: true,
            is_stopping: false,
            exits: 0,
        }
    }

    fn give(&mut self, input: Input) {
        if !self.waiting.is_empty() || !self.running.is_empty() {
            self.busy_until = self.now;
        }
        self.pool.handle(input, self.now);
        while let Some(output) = self.pool.poll() {
            self.carry_out(output);
        }
        self.check_drained();
        self.check();
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Start(id) => {
                let exits = !self.starts || self.random.u32(0..20) == 0;
                let acts_at = Some(self.now + Duration::from_millis(self.random.u64(100..2_000)));
                let process = Process {
                    has_started: false,
                    acts_at,
                    exits,
                    has_stuck: false,
                    has_drained: false,
                    was_killed: false,
                    bytes: 0,
                };
                assert!(self.browsers.insert(id, process).is_none(), "{id:?} starts twice");
            }
            Output::Assign(page, id) => {
                assert!(self.waiting.remove(&page), "{page:?} did not wait");
                let process = &self.browsers[&id];
                assert!(process.has_started && !process.was_killed, "{id:?} takes no page");
                let end = self.now + Duration::from_millis(self.random.u64(100..30_000));
                self.running.insert(page, (id, end));
            }
            Output::Refuse(page) => {
                assert!(self.waiting.remove(&page), "{page:?} did not wait");
                assert!(self.is_stopping || !self.starts || self.pool.failures >= FAILURES_MAX);
                self.answered += 1;
            }
            Output::Close(id) => {
                assert!(
                    self.running.values().all(|(browser, _)| *browser != id),
                    "{id:?} has pages"
                );
                let takes = Duration::from_millis(self.random.u64(10..4_000));
                let process = self.browsers.get_mut(&id).expect("it lives");
                process.exits = true;
                process.acts_at = self.closes.then_some(self.now + takes);
            }
            Output::Kill(id) => {
                let process = self.browsers.get_mut(&id).expect("it lives");
                assert!(!process.was_killed, "{id:?} is killed twice");
                process.was_killed = true;
                process.exits = true;
                process.acts_at = Some(self.now + Duration::from_millis(50));
            }
        }
    }

    /// A browser that has reached a limit takes pages until its successor is ready, unless memory
    /// is short.
    fn check_drained(&mut self) {
        let bytes = self.browsers.values().map(|process| process.bytes).sum::<u64>();
        let is_short = bytes + NEW_BROWSER_BYTES > self.config.total_bytes_max;
        for BrowserStatus { id, state, reason, .. } in self.pool.browsers() {
            let Some(process) = self.browsers.get_mut(&id) else { continue };
            let drains = matches!(state, State::Draining | State::Closing);
            if !drains || process.has_drained {
                continue;
            }
            process.has_drained = true;
            let has_stuck = process.has_stuck;
            match self.pool.replacement.as_ref().filter(|it| it.old == id).map(|it| it.new) {
                _ if has_stuck || self.is_stopping => {}
                _ if reason == Some(Reason::Idle) => {
                    assert!(self.now >= self.busy_until + IDLE_MAX, "{id:?} goes early");
                }
                Some(Some(new)) => assert!(self.browsers[&new].has_started, "{id:?} goes first"),
                Some(None) => assert!(is_short, "{id:?} goes without need"),
                None => panic!("{id:?} goes without a reason"),
            }
        }
    }

    fn check(&self) {
        assert!(self.running.len() <= self.config.slots, "too many pages");
        assert!(self.browsers.len() <= 2 * self.config.browsers, "too many browsers");
        let states: Vec<_> = self.pool.browsers().collect();
        let places = self.config.slots.div_ceil(self.config.browsers);
        assert!(states.iter().all(|it| it.pages <= places), "too many pages in one browser");
        let by_choice = states.iter().filter(|it| {
            let by_choice = ![Some(Reason::Stuck), Some(Reason::Idle)].contains(&it.reason);
            matches!(it.state, State::Draining | State::Closing) && by_choice
        });
        assert!(self.is_stopping || by_choice.count() <= 1, "two are drained by choice");
        // No page waits while a browser has a free place.
        let free = states.iter().any(|it| it.state == State::Ready && it.pages < places);
        let full = self.running.len() == self.config.slots;
        assert!(self.waiting.is_empty() || full || !free, "a page waits beside a free place");
        assert_eq!(self.waiting.len(), self.pool.waiting.len());
        assert_eq!(self.pool.ended().iter().sum::<u64>(), self.exits);
        // If pages wait, a browser or a deadline will change something.
        let can_change = !self.browsers.is_empty() || self.pool.deadline().is_some();
        assert!(self.waiting.is_empty() || can_change, "pages wait for nothing");
        for status in states {
            let process = self.browsers.get(&status.id);
            let is_dying = status.state == State::Ended && process.is_some();
            let crashed = process.is_some_and(|it| it.exits);
            assert!(!is_dying || crashed, "{status:?} ended, but its process goes on");
        }
    }

    fn want(&mut self) {
        let page = PageId(self.next_page);
        self.next_page += 1;
        self.waiting.insert(page);
        self.give(Input::Wanted(page));
    }

    fn end_page(&mut self, page: PageId, end: PageEnd) {
        let (browser, _) = self.running.remove(&page).expect("it runs");
        if let Some(process) = self.browsers.get_mut(&browser) {
            process.has_stuck |= end == PageEnd::Stuck;
        }
        self.answered += 1;
        self.busy_until = self.now;
        self.give(Input::Ended(page, end));
    }

    /// A browser ends, and then its pages end.
    fn exit(&mut self, id: BrowserId) {
        self.browsers.remove(&id).expect("it lives");
        self.exits += u64::from(!self.is_stopping);
        self.give(Input::Exited(id));
        let lost: Vec<_> =
            self.running.iter().filter(|(_, (it, _))| *it == id).map(|(page, _)| *page).collect();
        for page in lost {
            let ends = [PageEnd::Closed, PageEnd::Stuck, PageEnd::Lost];
            let end = *self.random.choice(&ends).expect("two ends");
            self.end_page(page, end);
        }
    }

    /// Moves the time to the next moment at which anything happens, by at most `step`.
    fn advance(&mut self, step: Duration) {
        let of_browsers = self.browsers.values().filter_map(|process| process.acts_at);
        let of_pages = self.running.values().map(|(_, end)| *end);
        let next = of_browsers.chain(of_pages).chain(self.pool.deadline()).min();
        self.now = next.unwrap_or(self.now + step).clamp(self.now, self.now + step);
        let ended = self.running.iter().find(|(_, (_, end))| *end <= self.now);
        if let Some((&page, _)) = ended {
            let end = match self.random.u32(0..100) {
                0..3 => PageEnd::Stuck,
                3..8 => PageEnd::Crashed,
                8..10 => PageEnd::Lost,
                _ => PageEnd::Closed,
            };
            return self.end_page(page, end);
        }
        let acting =
            self.browsers.iter().find(|(_, it)| it.acts_at.is_some_and(|at| at <= self.now));
        if let Some((&id, process)) = acting {
            if process.exits {
                return self.exit(id);
            }
            let process = self.browsers.get_mut(&id).expect("found above");
            process.acts_at = None;
            process.has_started = true;
            return self.give(Input::Started(id));
        }
        if self.pool.deadline().is_some_and(|at| at <= self.now) {
            self.give(Input::Tick);
            let again = self.pool.deadline();
            assert!(again.is_none_or(|at| at > self.now), "a deadline that has passed stays");
        }
    }

    fn act(&mut self) {
        let living: Vec<_> = self.browsers.keys().copied().collect();
        match self.random.u32(0..100) {
            0..25 => self.want(),
            25..28 => {
                if let Some(id) = self.random.choice(&living) {
                    self.exit(*id);
                }
            }
            28..36 => {
                if let Some(id) = self.random.choice(&living).copied() {
                    let bytes = self.random.u64(100 << 20..1200 << 20);
                    self.browsers.get_mut(&id).expect("it lives").bytes = bytes;
                    self.give(Input::Memory(id, bytes));
                }
            }
            36 => self.starts = self.random.bool(),
            37 => self.closes = self.random.bool(),
            38 => (0..50).for_each(|_| self.advance(Duration::from_secs(20))),
            _ => self.advance(Duration::from_secs(20)),
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the output must contain the seed")]
fn whatever_browsers_do_each_page_is_answered_once_within_the_limits() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.act();
        }
        // Everything works again: each page gets its turn.
        world.starts = true;
        world.closes = true;
        while !world.waiting.is_empty() || !world.running.is_empty() {
            world.advance(Duration::from_mins(1));
        }
        assert_eq!(world.answered, world.next_page - 1);
        // Without pages, all are closed.
        let end = world.now + 2 * IDLE_MAX;
        while !world.browsers.is_empty() {
            assert!(world.now < end, "idle browsers stay");
            world.advance(Duration::from_mins(1));
        }
        // Browsers do not obey the order to close: all are killed.
        world.closes = false;
        world.want();
        world.is_stopping = true;
        world.give(Input::Stop);
        while !world.pool.has_ended() {
            world.advance(Duration::from_mins(1));
        }
        assert!(world.browsers.is_empty() && world.running.is_empty());
        assert_eq!(world.answered, world.next_page - 1);
    }
}

/// Runs a pool. Browsers start at once, and pages end at once.
fn render(pool: &mut Pool, pages: std::ops::Range<u64>, now: Duration) -> Vec<Output> {
    let mut done = Vec::new();
    for page in pages {
        pool.handle(Input::Wanted(PageId(page)), now);
        while let Some(output) = pool.poll() {
            done.push(output);
            match output {
                Output::Start(id) => pool.handle(Input::Started(id), now),
                Output::Assign(page, _) => pool.handle(Input::Ended(page, PageEnd::Closed), now),
                Output::Close(id) | Output::Kill(id) => pool.handle(Input::Exited(id), now),
                Output::Refuse(page) => panic!("{page:?} is refused"),
            }
        }
    }
    done
}

#[test]
fn a_browser_is_replaced_after_about_its_number_of_pages() {
    let config = PoolConfig { browsers: 1, ..PoolConfig::default() };
    let mut of_first = BTreeSet::new();
    for seed in 0..50 {
        let mut pool = Pool::new(config.clone(), seed);
        let done = render(&mut pool, 1..1_001, Duration::ZERO);
        let closed = done.iter().filter(|it| matches!(it, Output::Close(_))).count();
        assert!((8..=12).contains(&closed), "seed {seed}: {closed} were replaced");
        let is_of_first = |it: &&Output| matches!(it, Output::Assign(_, BrowserId(1)));
        of_first.insert(done.iter().filter(is_of_first).count());
        let start = done.iter().position(|it| *it == Output::Start(BrowserId(2)));
        let close = done.iter().position(|it| *it == Output::Close(BrowserId(1)));
        assert!(start < close, "seed {seed}: the successor starts first");
    }
    assert!(of_first.iter().all(|pages| (80..=120).contains(pages)), "{of_first:?}");
    assert!(of_first.len() > 10, "the limits vary: {of_first:?}");
}

#[test]
fn pages_are_refused_while_no_browser_starts_and_rendered_when_one_does() {
    let mut pool = Pool::new(PoolConfig::default(), 1);
    let mut now = Duration::ZERO;
    pool.handle(Input::Wanted(PageId(1)), now);
    let mut failures = 0;
    loop {
        match pool.poll() {
            Some(Output::Start(id)) => {
                failures += 1;
                pool.handle(Input::Exited(id), now);
            }
            Some(Output::Refuse(PageId(1))) => break,
            Some(other) => panic!("{other:?}"),
            None => {
                now = pool.deadline().expect("it is started again");
                pool.handle(Input::Tick, now);
            }
        }
    }
    assert_eq!((failures, now.as_secs()), (5, 1 + 2 + 4 + 8));
    pool.handle(Input::Wanted(PageId(2)), now);
    assert_eq!(pool.poll(), Some(Output::Refuse(PageId(2))));
    now = pool.deadline().expect("it is started again");
    let done = render(&mut pool, 3..4, now);
    assert!(matches!(done[..], [Output::Start(_), Output::Assign(PageId(3), _)]), "{done:?}");
}
