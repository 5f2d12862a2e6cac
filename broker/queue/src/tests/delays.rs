//! The delay between the requests of a key.

use tidings_protocol::{KeyRest, Outcome};

use super::bench::{A, Bench, NO_HOLD};

// PROTOCOL: T4
#[test]
fn key_has_one_task_and_the_delay_counts_from_its_end() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 10);
    bench.publish("http://a.org/1");
    bench.publish("http://a.org/2");
    bench.publish("http://b.org/1");
    assert_eq!(bench.tasks.len(), 2, "one task for each host");
    let first = bench.tasks.remove(0).1;
    bench.tasks.clear();
    bench.wait(5000);
    bench.assert_no_task("the host is busy until the task ends");
    bench.ack(A, &first.id, Outcome::Done, &[]);
    bench.wait(1000);
    bench.assert_no_task("the delay has not passed");
    bench.wait(1);
    assert_eq!(bench.task().payload, "http://a.org/2");
}

#[test]
fn delay_holds_despite_rounding_to_milliseconds() {
    // The answer came at 1000.9 ms and was recorded at 1000. The next request may begin at 2000.9,
    // recorded as 2000.
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/1");
    bench.publish("http://a.org/2");
    let first = bench.task();
    bench.ack(A, &first.id, Outcome::Done, &[]);
    assert_eq!(bench.group.deadline(), Some(bench.now + 1001));
}

// PROTOCOL: T4
#[test]
fn answer_without_a_request_causes_no_rest() {
    for outcome in [Outcome::Robots, Outcome::Scope, Outcome::Trap] {
        let mut bench = Bench::new(&[("delay", "1h")]);
        bench.join(A, 1);
        bench.publish("http://a.org/1");
        bench.publish("http://a.org/2");
        let first = bench.task();
        bench.ack(A, &first.id, outcome, &[]);
        let second = bench.task();
        bench.publish("http://a.org/3");
        bench.touch(A, &second.id, true, NO_HOLD);
        bench.ack(A, &second.id, outcome, &[]);
        bench.assert_no_task("a request was made, so the host rests");
    }
}

#[test]
fn loopback_has_no_delay_unless_one_is_set() {
    let mut bench = Bench::new(&[]);
    bench.join(A, 10);
    bench.publish("http://127.0.0.1:8000/1");
    bench.publish("http://127.0.0.1:8000/2");
    let first = bench.task();
    bench.ack(A, &first.id, Outcome::Done, &[]);
    assert_eq!(bench.task().payload, "http://127.0.0.1:8000/2");
}

// PROTOCOL: T4
#[test]
fn touch_over_starts_the_delay_and_keeps_the_lease() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 1);
    bench.publish("http://a.org/1");
    bench.publish("http://a.org/2");
    let first = bench.task();
    bench.touch(A, &first.id, true, NO_HOLD);
    bench.wait(2000);
    bench.assert_no_task("the only credit is still taken");
    bench.ack(A, &first.id, Outcome::Done, &[]);
    assert_eq!(bench.task().payload, "http://a.org/2", "the delay has run since the touch");
}

#[test]
fn worker_can_lengthen_the_rest_of_a_key() {
    let mut bench = Bench::new(&[("delay", "1s")]);
    bench.join(A, 10);
    for page in ["http://a.org/1", "http://a.org/2", "http://a.org/3"] {
        bench.publish(page);
    }
    let first = bench.task();
    let hold = KeyRest { not_before_ms: Some(10_000), pace_ms: Some(3000) };
    bench.touch(A, &first.id, true, hold);
    bench.wait(10_000);
    bench.assert_no_task("not before ten seconds");
    bench.wait(1);
    let second = bench.task();
    bench.touch(A, &second.id, true, KeyRest { not_before_ms: None, pace_ms: None });
    bench.wait(3000);
    bench.assert_no_task("the pace holds for later requests, too");
    bench.wait(1);
    bench.task();
}
