use proptest::prelude::*;

use super::interface::Observation::{ClosedAfterWrite, Created, Found, MovedIn};
use super::next_step::{MOVE_DELAY, OPEN_DELAY_MAX, UNCLOSED_QUIET_TIME};
use super::*;

const SETTLE: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(2);

fn rules() -> TrackerConfig {
    TrackerConfig { settle: SETTLE, batch_end: None, once: false, retry: RETRY, files_max: 1_000 }
}

fn name(text: &str) -> RelativePath {
    Arc::from(text.as_bytes())
}

fn stamp(n: u64) -> FileStamp {
    FileStamp { inode: n, size: n, modified_s: 7, modified_ns: 0 }
}

/// A tracker with its clock.
struct Harness {
    tracker: Tracker,
    now: Instant,
}

impl Harness {
    #[expect(clippy::disallowed_methods, reason = "a test needs a first instant")]
    fn new(rules: TrackerConfig) -> Self {
        Self { tracker: Tracker::new(rules, [], 0, 0), now: Instant::now() }
    }

    fn handle(&mut self, input: TrackerInput) -> Vec<TrackerOutput> {
        self.tracker.handle(input, self.now);
        std::iter::from_fn(|| self.tracker.poll()).collect()
    }

    /// A process begins to write a file.
    fn begin(&mut self, text: &str, n: u64) {
        self.handle(TrackerInput::Observed(Created, name(text), stamp(n)));
        self.handle(TrackerInput::Opened(name(text)));
    }

    /// A file that no process has open is renamed into place.
    #[track_caller]
    fn place(&mut self, text: &str, n: u64) -> Vec<TrackerOutput> {
        assert_eq!(self.handle(TrackerInput::Observed(MovedIn, name(text), stamp(n))), []);
        self.now += MOVE_DELAY;
        assert_eq!(self.handle(TrackerInput::Tick), [look(text, false)]);
        self.handle(TrackerInput::Inspected(name(text), Some(stamp(n))))
    }

    /// The time until the next deadline.
    fn left(&self) -> Option<Duration> {
        self.tracker.deadline().map(|deadline| deadline - self.now)
    }

    /// Advances to the next deadline.
    #[track_caller]
    fn wait(&mut self) -> (Duration, Vec<TrackerOutput>) {
        let deadline = self.tracker.deadline().expect("something is due");
        let waited = deadline - self.now;
        self.now = deadline;
        (waited, self.handle(TrackerInput::Tick))
    }
}

fn look(text: &str, is_closed: bool) -> TrackerOutput {
    TrackerOutput::Inspect { name: name(text), is_closed }
}

fn file(number: u64, text: &str, n: u64) -> TrackerOutput {
    TrackerOutput::Publish(number, FileEvent::File(name(text), stamp(n)))
}

#[test]
fn a_renamed_file_is_published_soon_and_again_only_when_replaced() {
    let mut harness = Harness::new(rules());
    assert_eq!(harness.place("a", 1), [file(1, "a", 1)]);
    assert_eq!(harness.handle(TrackerInput::Observed(MovedIn, name("a"), stamp(1))), []);
    assert_eq!(
        harness.handle(TrackerInput::Confirmed(1)),
        [TrackerOutput::Save(name("a"), stamp(1))]
    );
    assert_eq!(harness.handle(TrackerInput::Observed(Found, name("a"), stamp(1))), []);
    assert_eq!(harness.place("a", 2), [file(2, "a", 2)]);
    assert_eq!(harness.tracker.deadline(), None);
}

#[test]
fn a_closed_file_is_published_after_the_settle_time() {
    let mut harness = Harness::new(rules());
    assert_eq!(harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("a"), stamp(1))), []);
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", true)]));
    assert_eq!(harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(2)))), []);
    // Closing it again without a change does not restart the settle time.
    harness.now += SETTLE / 2;
    assert_eq!(harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("a"), stamp(2))), []);
    assert_eq!(harness.wait(), (SETTLE / 2, vec![look("a", true)]));
    assert_eq!(
        harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(2)))),
        [file(1, "a", 2)]
    );
}

#[test]
fn a_file_found_while_open_is_complete_when_it_is_closed() {
    let mut harness = Harness::new(rules());
    harness.handle(TrackerInput::ScanStarted);
    // The scan finds it first, and its creation is reported later.
    harness.handle(TrackerInput::Observed(Found, name("a"), stamp(1)));
    harness.handle(TrackerInput::ScanFinished(Vec::new()));
    harness.begin("a", 1);
    assert_eq!(harness.left(), Some(UNCLOSED_QUIET_TIME));
    harness.handle(TrackerInput::Observed(Found, name("a"), stamp(2)));
    assert_eq!(harness.left(), Some(UNCLOSED_QUIET_TIME));
    harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("a"), stamp(2)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", true)]));
    // After the next scan it is unknown whether close events were lost.
    harness.begin("b", 1);
    harness.handle(TrackerInput::ScanStarted);
    harness.handle(TrackerInput::Observed(Found, name("b"), stamp(1)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("b", false)]));
}

#[test]
fn a_linked_file_is_complete_after_the_settle_time() {
    let mut harness = Harness::new(rules());
    harness.handle(TrackerInput::Observed(Created, name("a"), stamp(1)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", false)]));
    assert_eq!(
        harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(1)))),
        [file(1, "a", 1)]
    );
    // Opening and closing for reading changes only the time.
    harness.begin("b", 1);
    harness.handle(TrackerInput::ClosedNoWrite(name("b")));
    assert_eq!(harness.wait(), (SETTLE, vec![look("b", false)]));
    // A settle time shorter than opening a file takes.
    let mut harness = Harness::new(TrackerConfig { settle: Duration::ZERO, ..rules() });
    harness.handle(TrackerInput::Observed(Created, name("a"), stamp(1)));
    assert_eq!(harness.left(), Some(OPEN_DELAY_MAX));
}

#[test]
fn a_file_that_is_never_closed_is_complete_after_a_long_quiet_time() {
    let mut harness = Harness::new(TrackerConfig { batch_end: Some(QUIET), ..rules() });
    harness.begin("a", 1);
    // A reader opens and closes it.
    harness.handle(TrackerInput::Opened(name("a")));
    harness.handle(TrackerInput::ClosedNoWrite(name("a")));
    assert_eq!(harness.wait(), (UNCLOSED_QUIET_TIME, vec![look("a", false)]));
    harness.handle(TrackerInput::Busy(name("a")));
    assert_eq!(harness.wait(), (UNCLOSED_QUIET_TIME, vec![look("a", false)]));
    assert_eq!(harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(2)))), []);
    assert_eq!(harness.wait(), (UNCLOSED_QUIET_TIME, vec![look("a", false)]));
    assert_eq!(
        harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(2)))),
        [file(1, "a", 2)]
    );
}

#[test]
fn a_file_open_for_writing_is_inspected_again() {
    let mut harness = Harness::new(rules());
    harness.handle(TrackerInput::Observed(Found, name("a"), stamp(1)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", false)]));
    assert_eq!(harness.handle(TrackerInput::Busy(name("a"))), []);
    assert_eq!(harness.wait(), (BUSY_RETRY, vec![look("a", false)]));
    harness.handle(TrackerInput::Busy(name("a")));
    // It waits no longer than until the close.
    harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("a"), stamp(1)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", true)]));
    assert_eq!(
        harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(1)))),
        [file(1, "a", 1)]
    );
}

#[test]
fn a_file_that_is_written_while_it_is_renamed_is_complete_when_it_is_closed() {
    let mut harness = Harness::new(rules());
    // A file that was created under this name is replaced.
    harness.begin("a", 1);
    harness.handle(TrackerInput::Observed(MovedIn, name("a"), stamp(2)));
    assert_eq!(harness.wait(), (MOVE_DELAY, vec![look("a", false)]));
    assert_eq!(harness.handle(TrackerInput::Busy(name("a"))), []);
    assert_eq!(harness.left(), Some(BUSY_RETRY));
    harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("a"), stamp(3)));
    assert_eq!(harness.wait(), (SETTLE, vec![look("a", true)]));
    let outputs = harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(3))));
    assert_eq!(outputs, [file(1, "a", 3)]);
}

#[test]
fn a_change_in_flight_is_published_after_the_confirmation() {
    let mut harness = Harness::new(rules());
    harness.place("a", 1);
    assert_eq!(harness.place("a", 2), []);
    let outputs = harness.handle(TrackerInput::Confirmed(1));
    assert_eq!(outputs, [TrackerOutput::Save(name("a"), stamp(1)), file(2, "a", 2)]);
    // A file that is removed meanwhile is dropped from the store.
    assert_eq!(harness.handle(TrackerInput::Removed(name("a"))), []);
    let outputs = harness.handle(TrackerInput::Confirmed(2));
    assert_eq!(
        outputs,
        [TrackerOutput::Save(name("a"), stamp(2)), TrackerOutput::Forget(name("a"))]
    );
}

#[test]
fn a_refused_event_is_published_again_after_a_pause() {
    let mut harness = Harness::new(rules());
    harness.place("a", 1);
    assert_eq!(harness.handle(TrackerInput::Refused(1)), []);
    assert_eq!(harness.place("b", 2), []);
    let (waited, outputs) = harness.wait();
    assert_eq!((MOVE_DELAY + waited, outputs), (RETRY, vec![file(2, "a", 1), file(3, "b", 2)]));
}

#[test]
fn a_scan_removes_missing_files_except_below_unreadable_directories() {
    let mut harness = Harness::new(rules());
    for (number, file) in [(1, "a"), (2, "d/b"), (3, "e/c")] {
        harness.place(file, 1);
        harness.handle(TrackerInput::Confirmed(number));
    }
    harness.handle(TrackerInput::ScanStarted);
    harness.handle(TrackerInput::Observed(Found, name("e/c"), stamp(1)));
    assert_eq!(
        harness.handle(TrackerInput::ScanFinished(vec![name("d/")])),
        [TrackerOutput::Forget(name("a"))]
    );
    assert_eq!(
        harness.handle(TrackerInput::RemovedBelow(name("d/"))),
        [TrackerOutput::Forget(name("d/b"))]
    );
    assert_eq!(harness.tracker.published().count(), 1);
}

#[test]
fn a_batch_ends_when_no_file_is_open_or_changing() {
    let mut harness = Harness::new(TrackerConfig { batch_end: Some(QUIET), ..rules() });
    harness.handle(TrackerInput::ScanStarted);
    harness.handle(TrackerInput::ScanFinished(Vec::new()));
    assert_eq!(harness.tracker.deadline(), None, "there was nothing");
    harness.place("a", 1);
    harness.begin("b", 2);
    harness.handle(TrackerInput::Confirmed(1));
    assert_eq!(harness.left(), Some(UNCLOSED_QUIET_TIME), "b is open");
    harness.handle(TrackerInput::Observed(ClosedAfterWrite, name("b"), stamp(2)));
    harness.wait();
    harness.handle(TrackerInput::Inspected(name("b"), Some(stamp(2))));
    harness.handle(TrackerInput::Confirmed(2));
    let end = TrackerOutput::Publish(3, FileEvent::Batch { number: 0, files: 2 });
    assert_eq!(harness.wait(), (QUIET, vec![end]));
    assert_eq!(harness.handle(TrackerInput::Confirmed(3)), [TrackerOutput::BatchEnded(0)]);
    assert_eq!(harness.tracker.deadline(), None);
    assert_eq!(harness.tracker.batch(), (1, 0));
}

#[test]
fn a_batch_does_not_end_while_a_file_is_inspected() {
    let quick = SETTLE / 5;
    let mut harness = Harness::new(TrackerConfig { batch_end: Some(quick), ..rules() });
    harness.handle(TrackerInput::ScanStarted);
    harness.handle(TrackerInput::Observed(Found, name("a"), stamp(1)));
    harness.handle(TrackerInput::ScanFinished(Vec::new()));
    harness.place("b", 2);
    harness.handle(TrackerInput::Confirmed(1));
    let (waited, outputs) = harness.wait();
    assert_eq!((MOVE_DELAY + waited, outputs), (SETTLE, vec![look("a", false)]));
    assert_eq!(
        harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(1)))),
        [file(2, "a", 1)]
    );
    harness.handle(TrackerInput::Confirmed(2));
    let end = TrackerOutput::Publish(3, FileEvent::Batch { number: 0, files: 2 });
    assert_eq!(harness.wait(), (quick, vec![end]));
}

#[test]
fn once_publishes_existing_files_and_skips_changing_ones() {
    let mut harness = Harness::new(TrackerConfig { batch_end: Some(QUIET), once: true, ..rules() });
    harness.handle(TrackerInput::ScanStarted);
    for file in ["a", "b"] {
        harness.handle(TrackerInput::Observed(Found, name(file), stamp(1)));
    }
    harness.handle(TrackerInput::ScanFinished(Vec::new()));
    assert!(!harness.tracker.is_done());
    harness.wait();
    harness.handle(TrackerInput::Inspected(name("a"), Some(stamp(2))));
    harness.handle(TrackerInput::Inspected(name("b"), Some(stamp(1))));
    assert!(!harness.tracker.is_done());
    let end = TrackerOutput::Publish(2, FileEvent::Batch { number: 0, files: 1 });
    assert_eq!(
        harness.handle(TrackerInput::Confirmed(1)),
        [TrackerOutput::Save(name("b"), stamp(1)), end]
    );
    assert!(!harness.tracker.is_done());
    harness.handle(TrackerInput::Confirmed(2));
    assert!(harness.tracker.is_done());
    assert_eq!(harness.tracker.skipped(), 1);
}

#[test]
fn an_error_and_its_end_are_published_once() {
    let mut harness = Harness::new(rules());
    let trouble = |number, word| TrackerOutput::Publish(number, FileEvent::Error(name("d/"), word));
    assert_eq!(harness.handle(TrackerInput::ErrorChanged(name("d/"), None)), []);
    assert_eq!(
        harness.handle(TrackerInput::ErrorChanged(name("d/"), Some("denied"))),
        [trouble(1, "denied")]
    );
    assert_eq!(harness.handle(TrackerInput::ErrorChanged(name("d/"), Some("denied"))), []);
    assert_eq!(harness.handle(TrackerInput::Refused(1)), []);
    assert_eq!(harness.wait(), (RETRY, vec![trouble(2, "denied")]));
    assert_eq!(
        harness.handle(TrackerInput::ErrorChanged(name("d/"), None)),
        [trouble(3, NO_ERROR)]
    );
    assert_eq!(harness.handle(TrackerInput::Refused(3)), []);
    assert_eq!(harness.wait(), (RETRY, vec![trouble(4, NO_ERROR)]));
    assert_eq!(harness.handle(TrackerInput::ErrorChanged(name("d/"), None)), []);
}

#[test]
fn too_many_files_are_an_error() {
    let mut harness = Harness::new(TrackerConfig { files_max: 1, ..rules() });
    harness.place("a", 1);
    let many = TrackerOutput::Publish(2, FileEvent::Error(name(""), "too-many-files"));
    assert_eq!(harness.handle(TrackerInput::Observed(MovedIn, name("b"), stamp(1))), [many]);
    assert_eq!(harness.handle(TrackerInput::Observed(MovedIn, name("c"), stamp(1))), []);
    harness.handle(TrackerInput::ScanStarted);
    harness.handle(TrackerInput::Observed(Found, name("a"), stamp(1)));
    let over = TrackerOutput::Publish(3, FileEvent::Error(name(""), NO_ERROR));
    assert_eq!(harness.handle(TrackerInput::ScanFinished(Vec::new())), [over]);
}

#[test]
fn events_in_flight_are_limited() {
    let mut harness = Harness::new(TrackerConfig { files_max: 10_000, ..rules() });
    let mut begun = 0;
    for n in 0..3_000 {
        begun += harness.place(&n.to_string(), 1).len();
    }
    assert_eq!(begun, IN_FLIGHT_MAX);
    let next = harness.handle(TrackerInput::Confirmed(1));
    assert!(
        matches!(next[..], [TrackerOutput::Save(..), TrackerOutput::Publish(1_001, _)]),
        "{next:?}"
    );
}

/// An action in the directory, or a fault of the watcher.
#[derive(Debug, Clone)]
enum Action {
    /// Begins to write, or continues.
    Write(usize),
    Close(usize),
    /// Writes elsewhere and renames into place, at times before the file is closed.
    Place(usize, bool),
    /// Writes elsewhere and links into place.
    Link(usize),
    Delete(usize),
    /// Milliseconds pass.
    Wait(u64),
    /// The kernel's queue overflows: no event arrives until the next scan.
    Overflow,
    Scan,
    /// The broker answers the oldest event.
    Confirm,
    Refuse,
    /// The watcher is killed and started again.
    Kill,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..4_usize).prop_map(Action::Write),
        4 => (0..4_usize).prop_map(Action::Close),
        3 => (0..4_usize, any::<bool>()).prop_map(|(n, is_open)| Action::Place(n, is_open)),
        2 => (0..4_usize).prop_map(Action::Link),
        2 => (0..4_usize).prop_map(Action::Delete),
        5 => (0..900_u64).prop_map(Action::Wait),
        1 => Just(Action::Overflow),
        1 => Just(Action::Scan),
        5 => Just(Action::Confirm),
        1 => Just(Action::Refuse),
        1 => Just(Action::Kill),
    ];
    proptest::collection::vec(action, 0..80)
}

#[derive(Debug, Clone, Copy)]
struct File {
    stamp: FileStamp,
    changed: Instant,
    is_open: bool,
    was_placed: bool,
}

/// A directory, a broker, and a watcher between them.
struct World {
    harness: Harness,
    files: BTreeMap<RelativePath, File>,
    stamps: u64,
    /// No events arrive.
    misses_events: bool,
    unanswered: VecDeque<(u64, RelativePath, FileStamp)>,
    /// How often the broker has stored each file.
    published: BTreeMap<(RelativePath, u64), u32>,
    remembered: BTreeMap<RelativePath, FileStamp>,
}

impl World {
    fn new() -> Self {
        let harness = Harness::new(rules());
        let (files, unanswered, published) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        let mut world = Self {
            harness,
            files,
            stamps: 0,
            misses_events: false,
            unanswered,
            published,
            remembered: BTreeMap::new(),
        };
        world.scan();
        world
    }

    fn notify(&mut self, input: TrackerInput) {
        if !self.misses_events {
            self.handle(input);
        }
    }

    fn handle(&mut self, input: TrackerInput) {
        let outputs = self.harness.handle(input);
        for output in outputs {
            match output {
                TrackerOutput::Inspect { name, is_closed } => {
                    let found = self.files.get(&name);
                    let is_open = found.is_some_and(|file| file.is_open);
                    let found = found.map(|file| file.stamp);
                    let is_busy = is_open && !is_closed;
                    self.handle(if is_busy {
                        TrackerInput::Busy(name)
                    } else {
                        TrackerInput::Inspected(name, found)
                    });
                }
                TrackerOutput::Publish(number, FileEvent::File(name, stamp)) => {
                    self.check(&name, stamp);
                    self.unanswered.push_back((number, name, stamp));
                }
                TrackerOutput::Publish(_, other) => panic!("{other:?}"),
                TrackerOutput::Save(name, stamp) => {
                    self.remembered.insert(name, stamp);
                }
                TrackerOutput::Forget(name) => {
                    self.remembered.remove(&name);
                }
                TrackerOutput::BatchEnded(_) => unreachable!(),
            }
        }
    }

    /// Only complete files are published, as far as that can be observed: the file is unchanged, or
    /// it has changed since it was inspected.
    fn check(&self, name: &RelativePath, stamp: FileStamp) {
        if let Some(file) = self.files.get(name).filter(|file| file.stamp == stamp) {
            let settled = self.harness.now - file.changed >= SETTLE;
            assert!(file.was_placed || settled, "{name:?} is published too early");
            assert!(!file.is_open, "{name:?} is open");
        }
    }

    fn scan(&mut self) {
        self.misses_events = false;
        self.handle(TrackerInput::ScanStarted);
        for (name, file) in self.files.clone() {
            self.handle(TrackerInput::Observed(Found, name, file.stamp));
        }
        self.handle(TrackerInput::ScanFinished(Vec::new()));
    }

    fn wait(&mut self, time: Duration) {
        let until = self.harness.now + time;
        while let Some(deadline) = self.harness.tracker.deadline().filter(|at| *at <= until) {
            self.harness.now = self.harness.now.max(deadline);
            self.handle(TrackerInput::Tick);
        }
        self.harness.now = until;
    }

    fn confirm(&mut self) -> bool {
        let Some((number, name, stamp)) = self.unanswered.pop_front() else { return false };
        *self.published.entry((name, stamp.inode)).or_default() += 1;
        self.handle(TrackerInput::Confirmed(number));
        true
    }

    fn change(&mut self, name: &RelativePath, is_open: bool, was_placed: bool) -> FileStamp {
        self.stamps += 1;
        let stamp = stamp(self.stamps);
        let file = File { stamp, changed: self.harness.now, is_open, was_placed };
        self.files.insert(Arc::clone(name), file);
        stamp
    }

    fn apply(&mut self, action: &Action) {
        let name_of = |n: &usize| name(&n.to_string());
        match action {
            Action::Write(n) => {
                let name = name_of(n);
                let is_new = !self.files.contains_key(&name);
                let stamp = self.change(&name, true, false);
                if is_new {
                    self.notify(TrackerInput::Observed(Created, Arc::clone(&name), stamp));
                    self.notify(TrackerInput::Opened(name));
                }
            }
            Action::Close(n) => {
                let name = name_of(n);
                if let Some(file) = self.files.get_mut(&name).filter(|file| file.is_open) {
                    file.is_open = false;
                    let stamp = file.stamp;
                    self.notify(TrackerInput::Observed(ClosedAfterWrite, name, stamp));
                }
            }
            Action::Place(n, is_open) => {
                let name = name_of(n);
                let stamp = self.change(&name, *is_open, true);
                self.notify(TrackerInput::Observed(MovedIn, name, stamp));
            }
            Action::Link(n) => {
                let name = name_of(n);
                if !self.files.contains_key(&name) {
                    let stamp = self.change(&name, false, false);
                    self.notify(TrackerInput::Observed(Created, name, stamp));
                }
            }
            Action::Delete(n) => {
                if self.files.remove(&name_of(n)).is_some() {
                    self.notify(TrackerInput::Removed(name_of(n)));
                }
            }
            Action::Wait(ms) => self.wait(Duration::from_millis(*ms)),
            Action::Overflow => self.misses_events = true,
            Action::Scan => self.scan(),
            Action::Confirm => {
                self.confirm();
            }
            Action::Refuse => {
                if let Some((number, ..)) = self.unanswered.pop_front() {
                    self.handle(TrackerInput::Refused(number));
                }
            }
            Action::Kill => {
                // The broker keeps an event once, whether or not the confirmation arrived.
                for (_, name, stamp) in self.unanswered.drain(..).step_by(2) {
                    self.published.entry((name, stamp.inode)).or_insert(1);
                }
                let told = self.remembered.clone();
                self.harness.tracker = Tracker::new(rules(), told, 0, 0);
                self.scan();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_complete_file_is_published_once_without_a_crash(actions in actions()) {
        let mut world = World::new();
        for action in &actions {
            world.apply(action);
        }
        // All writers close their files, and a scan finds what was missed.
        for n in 0..4 {
            world.apply(&Action::Close(n));
        }
        if world.misses_events {
            world.scan();
        }
        for _ in 0..100 {
            world.wait(Duration::from_secs(6));
            while world.confirm() {}
        }
        prop_assert!(world.harness.tracker.is_idle());
        prop_assert_eq!(world.harness.tracker.deadline(), None);
        let is_there: BTreeMap<_, _> =
            world.files.iter().map(|(name, file)| (Arc::clone(name), file.stamp)).collect();
        for (name, stamp) in &is_there {
            prop_assert!(world.published.contains_key(&(Arc::clone(name), stamp.inode)), "{:?}", name);
        }
        prop_assert_eq!(&world.remembered, &is_there);
        if !actions.iter().any(|action| matches!(action, Action::Kill)) {
            prop_assert!(world.published.values().all(|times| *times == 1), "{:?}", world.published);
        }
    }
}
