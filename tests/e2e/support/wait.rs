//! Waits for conditions, with a deadline that only a broken program misses.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. It is generous because machines are noisy and
/// the binary is a debug build; a shorter timeout would test the machine.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// Calls `poll` until it returns a value. For conditions that cannot be waited for otherwise, such
/// as a row in a file.
#[track_caller]
pub(crate) fn wait_until<T>(condition: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {WAIT_TIMEOUT:?} for {condition}");
        thread::sleep(Duration::from_millis(10));
    }
}
