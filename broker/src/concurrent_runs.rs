//! Threads that start at the same moment, for tests of shared state.

use std::sync::Barrier;
use std::thread;

/// Calls `act` in `threads` threads, each with its index, and returns their results in order.
pub(crate) fn run_concurrently<T: Send>(threads: usize, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    let (act, barrier) = (&act, &barrier);
    thread::scope(|scope| {
        let threads = (0..threads).map(|number| {
            scope.spawn(move || {
                barrier.wait();
                act(number)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a test thread ends")).collect()
    })
}
