//! The worker in protocol/client/examples, beside a broker that is killed again and again.
//! `TIDINGS_WORKER_KILLS` sets the number of kills, and `TIDINGS_WORKER_SEED` their moments.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tidings_client::{ClientOptions, Connector, PublishEvent, Publisher};
use tokio::runtime::Runtime;

use crate::support::line_connection::LineConnection;
use crate::support::process::Server;
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

#[path = "../../../protocol/client/examples/worker.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod example;

/// Events that may wait for the worker.
const AHEAD_MAX: usize = 300;

/// What was confirmed to the publisher, and what the worker was given.
#[derive(Default)]
struct Progress {
    confirmed: HashSet<u64>,
    is_stopping: bool,
    given: HashSet<u64>,
    given_again: usize,
    losses: usize,
}

type SharedProgress = Arc<Mutex<Progress>>;

// PROTOCOL: T8, T9
#[test]
fn a_worker_of_ten_lines_outlives_kills_of_the_broker() {
    let kills = number_from_env("TIDINGS_WORKER_KILLS").unwrap_or(8);
    let seed = seed_from_env("TIDINGS_WORKER_SEED");
    eprintln!("TIDINGS_WORKER_SEED={seed} TIDINGS_WORKER_KILLS={kills}");
    let mut rng = Rng::with_seed(seed);
    let mut server = Server::start_broker();
    let address = server.address.to_string();
    LineConnection::connect_client(server.address)
        .request_ok("GROUP create prints topics=work key=none lease=5s");

    let progress = SharedProgress::default();
    let runtime = Runtime::new().unwrap();
    let worker = runtime.spawn(work(address.clone(), Arc::clone(&progress)));
    let publisher = runtime.spawn(publish(address, Arc::clone(&progress)));
    let counts = || {
        let progress = progress.lock().unwrap();
        (progress.confirmed.len(), progress.given.len())
    };
    let began = Instant::now();
    for kill in 0..kills {
        let (confirmed, given) = counts();
        wait_until("both go on", || {
            let now = counts();
            (now.0 > confirmed && now.1 > given).then_some(())
        });
        thread::sleep(Duration::from_millis(rng.u64(..400)));
        assert!(!worker.is_finished() && !publisher.is_finished(), "after {kill} kills");
        server = server.restart_at_same_address("KILL", &["broker"]);
    }
    let killed_for = began.elapsed();
    progress.lock().unwrap().is_stopping = true;
    let events = runtime.block_on(publisher).unwrap();
    wait_until("the worker was given everything", || {
        let progress = progress.lock().unwrap();
        progress.confirmed.is_subset(&progress.given).then_some(())
    });
    assert!(!worker.is_finished());
    let mut client = LineConnection::connect_client(server.address);
    wait_until("the group is empty", || {
        let group = client.request("GROUP show prints");
        let parts = [" waiting=0 ", " processing=0 ", " dead=0 ", " failed=0 "];
        parts.iter().all(|part| group.contains(part)).then_some(())
    });
    let progress = progress.lock().unwrap();
    assert_eq!(progress.confirmed.len() as u64, events, "each event is confirmed once");
    eprintln!(
        "{kills} kills in {killed_for:?}: {events} events confirmed, {} given, {} of them again; \
         the publisher lost {} connections and attempts",
        progress.given.len(),
        progress.given_again,
        progress.losses
    );
}

/// The example, until the test ends.
async fn work(address: String, progress: SharedProgress) {
    let store = move |event: String| {
        let number = event.split(' ').next().and_then(|path| path.strip_prefix("/event/"));
        let number = number.unwrap().parse().unwrap();
        let mut progress = progress.lock().unwrap();
        if !progress.given.insert(number) {
            progress.given_again += 1;
        }
    };
    let error = example::work(&address, "prints", store).await.unwrap_err().to_string();
    panic!("the worker has ended: {error}");
}

/// Publishes until the test stops it, at most a few hundred events before the worker. Returns how
/// many.
async fn publish(address: String, progress: SharedProgress) -> u64 {
    let topic = "work".parse().unwrap();
    let connector = Connector::new(address, ClientOptions::default());
    let mut publisher = Publisher::new(connector).with_ids();
    let mut number = 0;
    loop {
        let (takes_more, stops) = {
            let progress = progress.lock().unwrap();
            let ahead = progress.confirmed.len().saturating_sub(progress.given.len());
            (!progress.is_stopping && ahead + publisher.len() < AHEAD_MAX, progress.is_stopping)
        };
        if takes_more {
            number += 1;
            publisher.push(number, &topic, format!("/event/{number}"));
        } else if stops && publisher.is_empty() {
            return number;
        }
        let next = tokio::time::timeout(Duration::from_millis(1), publisher.next());
        let Ok(event) = next.await else { continue };
        let mut progress = progress.lock().unwrap();
        match event.expect("no loss is final") {
            PublishEvent::Confirmed { number, .. } => {
                assert!(progress.confirmed.insert(number), "{number} is confirmed twice");
            }
            PublishEvent::Refused { number, refusal }
            | PublishEvent::Deferred { number, refusal } => panic!("{number}: {refusal}"),
            PublishEvent::Lost(_) => progress.losses += 1,
            PublishEvent::Connected { doubtful } => assert_eq!(doubtful, 0, "events have ids"),
        }
    }
}
