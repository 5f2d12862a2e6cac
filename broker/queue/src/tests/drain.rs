//! Drained members, and the list of members.

use tidings_protocol::{Code, DAY_MS, ListRange, Outcome, RetryMode};

use super::bench::{A, B, Bench, Worker};
use super::repairs::{replayed, snapshot};
use crate::decide::membership::DRAINED_MAX;
use crate::moment::ClockStamp;
use crate::record::Decision;
use crate::{ConnId, GroupQuery, Input, Operation, Requester};

/// As `GROUP members` names [`A`] and [`B`].
const A_DIGITS: &str = "00000001";

impl Bench {
    fn set_drained(&mut self, member: &str, drained: bool) {
        let operation = Operation::Drain { member: member.into(), drained };
        self.feed(Input::Operate { requester: Worker(99).requester(), operation });
    }

    fn members(&mut self) -> Vec<String> {
        let query = GroupQuery::Members { range: ListRange::default(), with_addresses: true };
        self.feed(Input::Query { requester: Worker(99).requester(), query });
        self.answers.last().unwrap().as_ref().unwrap().lines.clone()
    }
}

fn bench() -> Bench {
    let mut bench = Bench::new(&[]);
    bench.configure(&[("delay", "0"), ("lease", "10s")]);
    bench
}

#[test]
fn drained_member_ends_what_it_has_and_others_take_its_keys() {
    let mut bench = bench();
    bench.join(A, 2);
    bench.publish("http://a.org/1");
    let held = bench.task();
    bench.set_drained(A_DIGITS, true);
    let state = "member=00000001 state=draining credit=2 held=1 name=worker-1";
    assert_eq!(bench.ok(), format!("crawlers {state} joined-ms=0 heard-ms=0"));
    bench.publish("http://b.org/");
    bench.assert_no_task("A is drained");
    bench.join(B, 2);
    assert_eq!(bench.tasks.pop().unwrap().0, ConnId(2));
    // The key was served by A before.
    bench.publish("http://a.org/2");
    bench.assert_no_task("a.org is busy");
    bench.ack(A, &held.id, Outcome::Done, &[]);
    assert_eq!(bench.tasks.pop().unwrap().0, ConnId(2));
    let members = bench.members();
    let drained = "00000001 state=drained credit=2 held=0 name=worker-1 done=1 ";
    assert!(members[0].starts_with(drained), "{members:?}");
    assert!(members[1].starts_with("00000002 state=active"), "{members:?}");
    bench.check_records();

    bench.set_drained("worker-1", false);
    bench.publish("http://c.org/");
    bench.publish("http://d.org/");
    let conns: Vec<_> = bench.tasks.iter().map(|(conn, _)| *conn).collect();
    assert_eq!(conns, [ConnId(1), ConnId(1)], "B holds two");
    bench.check_records();
}

#[test]
fn drained_member_stays_drained_when_it_reconnects() {
    let mut bench = bench();
    bench.join(A, 2);
    bench.set_drained(A_DIGITS, true);
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    assert_eq!(bench.members(), ["00000001 state=drained credit=0 held=0"]);
    bench.join_on(Requester { conn: ConnId(9), ..A.requester() }, 2, None);
    bench.publish("http://a.org/");
    bench.assert_no_task("still drained");
    bench.check_records();
    bench.set_drained(A_DIGITS, false);
    assert_eq!(bench.task().payload, "http://a.org/");
}

#[test]
fn next_request_of_a_task_does_not_wait_for_a_drained_member() {
    let mut bench = bench();
    bench.join(A, 2);
    let again = || RetryMode::OtherUrl { url: "http://x.org/robots.txt".into() };
    bench.publish("http://x.org/1");
    bench.publish("http://y.org/1");
    let [first, second] = [0, 1].map(|index: usize| bench.tasks[index].1.id.clone());
    bench.tasks.clear();
    bench.nack(A, &first, again());
    // It is given to A again, until A is drained.
    let first = bench.task();
    assert!(first.payload.ends_with(" again=http://x.org/robots.txt"), "{}", first.payload);
    bench.nack(A, &second, again());
    bench.set_drained(A_DIGITS, true);
    bench.nack(A, &first.id, again());
    bench.join(B, 2);
    let mut payloads: Vec<_> = bench.tasks.drain(..).map(|(_, task)| task.payload).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["http://x.org/1", "http://y.org/1"], "they begin again");
    bench.check_records();
}

#[test]
fn member_is_named_by_its_digits_or_by_a_name_that_only_it_has() {
    let mut bench = bench();
    bench.join(A, 1);
    bench.set_drained("worker-2", true);
    assert_eq!(bench.error_code(), Code::NotFound);
    bench.set_drained("0000000", true);
    assert_eq!(bench.error_code(), Code::NotFound);
    // B has the name of A.
    bench.join_on(Requester { conn: ConnId(1), ..B.requester() }, 1, None);
    bench.set_drained("worker-1", true);
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.set_drained(A_DIGITS, true);
    assert!(bench.ok().starts_with("crawlers member=00000001 state=drained "), "{}", bench.ok());
}

#[test]
fn members_are_listed_with_their_states() {
    let mut bench = bench();
    bench.join(A, 1);
    bench.join(B, 1);
    bench.publish("http://a.org/");
    bench.publish("http://b.org/");
    bench.wait(5_000);
    bench.feed(Input::Disconnected { conn: ConnId(2) });
    let listed = [
        "00000001 state=active credit=1 held=1 name=worker-1 joined-ms=5000 heard-ms=5000",
        "00000002 state=away credit=0 held=1",
    ];
    assert_eq!(bench.members(), listed);
    bench.wait(5_000);
    let silent = "00000001 state=silent credit=1 held=0 name=worker-1 lost=1";
    assert_eq!(bench.members(), [format!("{silent} joined-ms=10000 heard-ms=10000")]);
    bench.join(A, 1);
    let task = bench.tasks.pop().unwrap().1;
    bench.nack(A, &task.id, RetryMode::Counted { after_ms: None });
    let failed = "00000001 state=active credit=1 held=1 name=worker-1 failed=1 lost=1";
    assert_eq!(bench.members(), [format!("{failed} joined-ms=10000 heard-ms=0")]);
}

#[test]
fn drained_member_that_is_gone_for_long_makes_room_for_another() {
    let mut bench = bench();
    let limit = u64::try_from(DRAINED_MAX).unwrap();
    for worker in 1..=limit + 1 {
        bench.join(Worker(worker), 1);
    }
    for worker in 1..=limit {
        bench.set_drained(&format!("{worker:08x}"), true);
    }
    let last = format!("{:08x}", limit + 1);
    bench.feed(Input::Disconnected { conn: ConnId(5) });
    bench.wait(DAY_MS - 1);
    bench.set_drained(&last, true);
    assert_eq!(bench.error_code(), Code::Limit);
    bench.wait(1);
    bench.set_drained(&last, true);
    assert!(bench.ok().contains(" state=drained "), "{}", bench.ok());
    let member = Worker(5).requester().member;
    let forgotten = Decision::MemberDrained { member, drained: false };
    assert!(bench.records.iter().any(|record| record.decision == forgotten));
    bench.check_records();
}

#[test]
fn drained_member_is_not_gone_for_long_because_the_machine_was_off() {
    let mut bench = bench();
    bench.join(A, 1);
    bench.join(B, 1);
    bench.set_drained(A_DIGITS, true);
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.now = bench.now + 2 * DAY_MS;
    let stamp = ClockStamp { moment: bench.now, boot_id: 2, uptime_ms: 0, unix_ms: 0 };
    bench.feed(Input::Start { run: 8, since: 8, elapsed_unknown: true, stamp, local_member: None });
    bench.set_drained("worker-2", true);
    bench.join_on(Requester { conn: ConnId(9), ..A.requester() }, 1, None);
    bench.publish("http://a.org/");
    bench.assert_no_task("both are drained");
}

#[test]
fn a_drained_member_that_is_gone_does_not_keep_the_group() {
    let mut bench = bench();
    *bench.group.state.name_mut() = "others".parse().unwrap();
    bench.join(A, 1);
    bench.set_drained(A_DIGITS, true);
    bench.feed(Input::Operate {
        requester: B.requester(),
        operation: Operation::Delete { is_forced: false },
    });
    assert_eq!(bench.error_code(), Code::Conflict);
    bench.feed(Input::Disconnected { conn: ConnId(1) });
    bench.feed(Input::Operate {
        requester: B.requester(),
        operation: Operation::Delete { is_forced: false },
    });
    assert_eq!(bench.ok(), "others");
}

// PROTOCOL: G8
#[test]
fn a_resumed_member_joined_no_earlier_than_the_group_started() {
    let mut bench = bench();
    bench.join(A, 1);
    bench.publish("http://a.org/");
    bench.wait(5_000);
    let config = bench.group.state.config().clone();
    bench.group = replayed(&snapshot(&mut bench), false, config);
    let stamp = ClockStamp { moment: bench.now, boot_id: 1, uptime_ms: 0, unix_ms: 0 };
    bench.feed(Input::Start { run: 8, since: 8, elapsed_unknown: true, stamp, local_member: None });
    bench.wait(1_000);
    bench.join(A, 1);
    bench.wait(1_000);
    assert!(bench.members()[0].ends_with(" joined-ms=2000 heard-ms=1000"), "{:?}", bench.members());
}
