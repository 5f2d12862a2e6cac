//! Groups without keys: `after=`, `prio=` and `every=` have the same effect on text as on URLs.

use tidings_protocol::{DEAD_LETTER_TOPIC, Outcome, RetryMode};

use super::bench::{A, AnswerText, Bench, group_command};
use crate::{GroupQuery, Input, Operation};

const MINUTE_MS: u64 = 60_000;

// PROTOCOL: G3
#[test]
fn groups_of_every_key_know_times_and_priorities() {
    for (key, prefix) in [("none", [""; 3]), ("seq", ["new-url/1 ", "new-url/2 ", "new-url/5 "])] {
        let mut bench = Bench::new(&[("key", key), ("lease", "1h"), ("backoff", "0")]);
        bench.join(A, 10);
        let [first, second, third] = prefix;
        bench.publish("/later after=1m u=1");
        let backup = "/backup every=1m prio=3";
        bench.publish(backup);
        let backup = format!("{second}{backup}");
        let slow = bench.task();
        assert_eq!(slow.payload, backup);
        bench.wait(MINUTE_MS - 1);
        bench.assert_no_task("nothing is due yet");
        bench.wait(1);
        assert_eq!(bench.task().payload, format!("{first}/later after=1m u=1"));
        bench.wait(2 * MINUTE_MS);
        bench.assert_no_task("the task of the previous due time is not done");
        bench.ack(A, &slow.id, Outcome::Done, &[]);
        for is_dead in [false, true] {
            bench.wait(MINUTE_MS);
            let task = bench.task();
            assert_eq!(task.payload, backup);
            // A failed task is tried again, and a dead one does not end the schedule.
            let counted = RetryMode::Counted { after_ms: None };
            bench.nack(A, &task.id, if is_dead { RetryMode::Never } else { counted });
            if !is_dead {
                bench.wait(0);
                let again = bench.task();
                bench.ack(A, &again.id, Outcome::Done, &[]);
            }
        }
        // Another event of that target is a task of its own, and replaces nothing.
        bench.publish("/backup now=yes");
        let other = bench.task();
        assert!(other.payload.ends_with("/backup now=yes"), "{}", other.payload);
        bench.ack(A, &other.id, Outcome::Done, &[]);
        bench.publish("/backup every=6h was=5m");
        bench.feed(Input::Query {
            requester: A.requester(),
            query: GroupQuery::Schedules(group_command(&[]).schedule_query().unwrap()),
        });
        let AnswerText { lines, ok } = bench.answers.pop().unwrap().unwrap();
        assert_eq!(ok, "crawlers matched=1 listed=1");
        assert!(lines[0].starts_with("/backup every=1m "), "{lines:?}");
        bench.check_records();
        bench.wait(MINUTE_MS);
        assert_eq!(bench.task().payload, backup);
        // The last one may be dropped, and the schedule goes on.
        bench.join(A, 0);
        bench.publish("/backup every=2m prio=-1000");
        bench.feed(Input::Operate { requester: A.requester(), operation: Operation::Purge });
        bench.join(A, 10);
        bench.wait(2 * MINUTE_MS);
        assert_eq!(bench.task().payload, format!("{third}/backup every=2m prio=-1000"));
        bench.publish("/backup every=0");
        bench.wait(10 * MINUTE_MS);
        bench.assert_no_task("the schedule has ended");
        let long = format!("/{} every=1m", "x".repeat(9_000));
        for (event, reason) in [
            ("/a after=soon", "bad-after"),
            ("/a prio=high", "bad-prio"),
            ("/a every=25:00", "bad-every"),
            (&long, "payload-too-long"),
        ] {
            bench.publish(event);
            let (topic, letter) = bench.events.pop().unwrap();
            assert_eq!(topic, DEAD_LETTER_TOPIC);
            assert!(letter.starts_with(&format!("reason={reason} ")), "{letter}");
        }
        // Text has no attributes.
        bench.publish("see every=1m");
        assert!(bench.task().payload.ends_with("see every=1m"));
        bench.check_records();
    }
}
