//! Brokers and servers are killed and paused while clients publish. What was confirmed is in every
//! copy, once, and at the same place.
//!
//! A printed seed decides the faults. `TIDINGS_COMMUNITY_SEED` sets it, and `TIDINGS_COMMUNITY_FAULTS` the
//! number of faults.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::community::Community;
use crate::support::process::{Process, run_at, tidings_command};
use crate::support::seed::{number_from_env, seed_from_env};

/// Lines that are published between two faults, at each broker.
const LINES: usize = 200;

/// Longer than a leader may be silent.
const PAUSE: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Copy)]
enum Fault {
    KillLeader,
    KillStandby,
    PauseLeader,
    StopLeader,
    StepDown,
    KillServer,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::KillLeader,
        Self::KillStandby,
        Self::PauseLeader,
        Self::StopLeader,
        Self::StepDown,
        Self::KillServer,
    ];
}

#[test]
#[ignore = "needs foreign programs"]
fn what_is_confirmed_is_in_every_copy_once() {
    let seed = seed_from_env("TIDINGS_COMMUNITY_SEED");
    let faults = number_from_env("TIDINGS_COMMUNITY_FAULTS").unwrap_or(6);
    eprintln!("TIDINGS_COMMUNITY_SEED={seed} TIDINGS_COMMUNITY_FAULTS={faults}");
    let mut rng = Rng::with_seed(seed);
    let mut community = Community::start();
    let mut publishers: Vec<_> = (0..3).map(|at| publish(&community, at)).collect();
    let mut sent = 0;
    let mut next = Vec::new();
    for _ in 0..faults {
        for (at, publisher) in publishers.iter_mut().enumerate() {
            publisher.write(lines(at, sent).concat());
        }
        sent += LINES;
        if next.is_empty() {
            next = Fault::ALL.to_vec();
            rng.shuffle(&mut next);
        }
        let fault = next.pop().expect("it was filled");
        inject(&mut community, fault, &mut rng);
    }
    for publisher in publishers {
        publisher.finish().expect_code(0);
    }
    let copies: Vec<_> = community
        .into_own_brokers()
        .iter()
        .map(|broker| {
            ["t0", "t1", "t2"].map(|topic| {
                run_at(broker, &["sub", topic, "--from", "first", "--no-follow"])
                    .expect_code(0)
                    .stdout()
            })
        })
        .collect();
    for (at, copy) in copies.iter().enumerate() {
        for (topic, (found, expected)) in copy.iter().zip(&copies[0]).enumerate() {
            let counts = (found.len(), expected.len());
            assert!(
                found == expected,
                "t{topic} of n{at} differs from that of n0: {counts:?} lines"
            );
        }
    }
    for (at, found) in copies[0].iter().enumerate() {
        let sent = (0..sent / LINES).flat_map(|part| lines(at, part * LINES));
        let mut expected: Vec<_> = sent.map(|line| line.trim_end().to_owned()).collect();
        let mut found: Vec<_> =
            found.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        expected.sort();
        found.sort();
        assert!(
            found == expected,
            "topic t{at}: {} lines instead of {}",
            found.len(),
            expected.len()
        );
    }
}

/// Each of them has an id, so that it is stored once.
fn lines(at: usize, first: usize) -> Vec<String> {
    (first..first + LINES).map(|number| format!("http://h{at}.example/{number}\n")).collect()
}

/// A publisher that prefers one broker, and may use all.
#[track_caller]
fn publish(community: &Community, at: usize) -> Process {
    let topic = format!("t{at}");
    let addresses: Vec<_> =
        (at..at + 3).map(|at| community.brokers[at % 3].address.to_string()).collect();
    let words = ["pub", &topic, "--broker", &addresses.join(","), "--retry", "10m"];
    Process::start(&mut tidings_command(community.brokers[at].folder.path(), words))
}

/// Injects a fault, and waits until one broker leads and all run.
#[track_caller]
fn inject(community: &mut Community, fault: Fault, rng: &mut Rng) {
    let (leader, epoch) = community.leader();
    let other = (leader + 1 + rng.usize(..2)) % 3;
    let began = Instant::now();
    match fault {
        Fault::KillLeader => {
            community.end_broker(leader, "KILL");
            community.leader();
            community.start_broker(leader);
        }
        Fault::KillStandby => {
            community.end_broker(other, "KILL");
            community.start_broker(other);
        }
        Fault::PauseLeader => {
            community.signal(leader, "STOP");
            thread::sleep(PAUSE);
            community.signal(leader, "CONT");
        }
        Fault::StopLeader => {
            community.end_broker(leader, "TERM").expect_code(0);
            community.leader();
            community.start_broker(leader);
        }
        Fault::StepDown => {
            community.run(&["step-down", "east"]).expect_code(0);
        }
        Fault::KillServer => {
            let server = rng.usize(..3);
            community.servers.kill(server);
            thread::sleep(PAUSE);
            community.servers.start_one(server);
        }
    }
    let (_, later) = community.leader();
    eprintln!("{fault:?} of n{leader} in {epoch}: {later} after {:?}", began.elapsed());
}
