//! Threads that start at the same moment, for tests of what they share.

use std::sync::Barrier;
use std::thread;

/// Calls `act` in so many threads, each with its number, and returns what they return, in the order of their numbers.
pub(crate) fn at_once<T: Send>(threads: usize, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
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
