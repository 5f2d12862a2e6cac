//! Waits for conditions. The time limit of the test is the only limit of its waits, so a wait fails
//! because of a broken program and not because of a busy machine.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test may take. On two idle cores the longest one takes a minute. The long forms of
/// `.ci/long` set `TIDINGS_TEST_SECONDS`.
static TEST_LIMIT: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = std::env::var("TIDINGS_TEST_SECONDS");
    Duration::from_secs(seconds.map_or(600, |seconds| seconds.parse().unwrap()))
});

thread_local! {
    /// The first wait of this thread. The harness runs each test in a thread of its own.
    static FIRST_WAIT: Instant = Instant::now();
}

/// The time that is left to this test, or to this thread of a test. Not zero, which sockets do not
/// accept as a timeout.
pub(crate) fn time_left() -> Duration {
    // With `--test-threads 1` all tests share the main thread.
    if thread::current().name() == Some("main") {
        return *TEST_LIMIT;
    }
    let used = FIRST_WAIT.with(Instant::elapsed);
    TEST_LIMIT.saturating_sub(used).max(Duration::from_millis(1))
}

/// Calls `poll` until it returns a value. For conditions that cannot be waited for otherwise, such
/// as a row in a file.
#[track_caller]
pub(crate) fn wait_until<T>(condition: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + time_left();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "still waiting for {condition} after {TEST_LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
