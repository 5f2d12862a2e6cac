//! Threads that connect, create and end at the same time: no limit is exceeded, and no account
//! exists twice.

use super::*;
use crate::concurrent_runs::run_concurrently;

const THREADS: usize = 8;

/// The number of threads that succeeded.
fn count<T, E>(results: &[Result<T, E>]) -> u64 {
    results.iter().filter(|result| result.is_ok()).count() as u64
}

#[test]
fn connections_from_a_new_address_share_one_account() {
    let quotas = quotas(small_quota(), Quota::UNLIMITED);
    for number in 0..2_000_u32 {
        let from = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        let held = run_concurrently(THREADS, |_| quotas.begin_connection(Some(from), Moment(0)));
        assert_eq!(count(&held), MAX);
    }
    quotas.tick(&|_| false, Moment(0));
    assert!(quotas.sources.is_empty());
}

#[test]
fn connections_of_a_new_principal_share_one_account() {
    let quotas = quotas(Quota::UNLIMITED, small_quota());
    for number in 0..2_000 {
        let name = format!("p{number}");
        let held = run_concurrently(THREADS, |_| {
            let mut held = None;
            quotas.assign_principal(&mut held, Some(&name)).map(|()| held)
        });
        assert_eq!(count(&held), MAX);
    }
    quotas.tick(&|_| false, Moment(0));
    assert!(quotas.principals.is_empty());
}

/// The address of the `number`th connection of a thread.
fn of_thread(thread: usize, number: u32) -> IpAddr {
    let thread = u32::try_from(thread).expect("there are few threads");
    IpAddr::from((0x0a00_0000 + (thread << 16) + number).to_be_bytes())
}

#[test]
fn remembered_addresses_are_bounded_while_many_are_added() {
    const REMEMBERED_MAX: usize = 64;
    // Each address has a debt for its connection, and holds nothing when that has ended.
    let mut quotas = quotas(Quota::UNLIMITED.with(Quantity::Connects, 60), Quota::UNLIMITED);
    quotas.sources_max = REMEMBERED_MAX;
    run_concurrently(THREADS, |thread| {
        for number in 0..5_000 {
            if thread == 0 {
                quotas.tick(&|_| false, Moment(0));
            }
            let held = quotas.begin_connection(Some(of_thread(thread, number)), Moment(0)).unwrap();
            let alone = quotas.source_insert.lock();
            assert!(quotas.sources.len() <= REMEMBERED_MAX);
            drop((alone, held));
        }
    });
}

#[test]
fn an_account_is_not_evicted_between_its_lookup_and_its_first_connection() {
    let mut quotas = quotas(small_quota(), Quota::UNLIMITED);
    quotas.sources_max = 4;
    let source = Source::from(address(1));
    let account = quotas.source_account(source, Moment(0));
    for number in 0..100 {
        drop(quotas.begin_connection(Some(of_thread(1, number)), Moment(0)).unwrap());
        assert!(quotas.sources.len() <= 4);
    }
    quotas.tick(&|_| false, Moment(0));
    assert!(Arc::ptr_eq(&account, &quotas.source_account(source, Moment(0))));
}

#[test]
fn a_created_thing_counts_before_it_exists() {
    for _ in 0..500 {
        let quotas = quotas(small_quota(), Quota::UNLIMITED);
        let existing = Mutex::new(HashSet::new());
        let exists = |made: &Created| existing.lock().contains(made);
        run_concurrently(2, |thread| {
            for number in 0..20 {
                if thread == 0 {
                    quotas.tick(&exists, Moment(0));
                    continue;
                }
                let held = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
                if held.as_ref().is_some_and(|held| held.create(&topic(number), &exists).is_ok()) {
                    std::thread::yield_now();
                    existing.lock().insert(topic(number));
                }
            }
        });
        assert_eq!(existing.lock().len() as u64, MAX);
    }
}
