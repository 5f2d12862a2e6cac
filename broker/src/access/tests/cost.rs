//! The cost of a check: no allocation, and a few hundredths of a microsecond.

use std::hint::black_box;
use std::time::{Duration, Instant};

use allocation_counter::measure;

use super::*;

/// Principals with permissions as operators write them.
const PRINCIPALS: [(&str, &[&str], &[&str]); 7] = [
    ("everything", &["all"], &[]),
    ("anyone-but-admin", &["all"], &["admin"]),
    ("producer", &["pub:new-url"], &[]),
    ("reader", &["sub:*"], &[]),
    ("crawler", &["group:crawlers", "pub:new-*", "sub:new-*", "job:*"], &[]),
    ("blog", &["pub:new-url", "job:blog-*", "url:https://a.example/blog/"], &[]),
    (
        "long-list",
        &[
            "sub:a-*",
            "sub:b-*",
            "sub:c-*",
            "sub:d-*",
            "pub:a-*",
            "pub:b-*",
            "pub:c-*",
            "job:*",
            "group:*",
            "monitor",
            "every",
            "prio",
            "pub:new-url",
            "sub:new-url",
        ],
        &["sub:secret-*", "pub:secret-*", "hub"],
    ),
];

/// One command of each kind, as clients send them.
const LINES: [&str; 15] = [
    "HELLO name=x",
    "PING",
    "STATS",
    "SUB new-url",
    "SEEN new-url 7",
    "UNSUB new-url",
    "JOIN crawlers credit=5",
    "LINK crawlers:1.2.3 https://a.example/",
    "ACK crawlers:1.2.3 outcome=done",
    "NACK crawlers:1.2.3 after=1s",
    "TOUCH crawlers:1.2.3",
    "GROUP show crawlers",
    "JOB open blog-1 depth=2",
    "JOB add blog-1 url=https://a.example/blog/new prio=3",
    "TOPIC show new-url",
];

/// Events as they are published: bare, with attributes, and text.
const EVENTS: [&str; 4] = [
    "https://a.example/blog/2026/11/a-page-with-a-name-of-some-length.html",
    "https://a.example/blog/new?id=7 title=A_page lang=en changed=2026-11-23T07:00:00Z",
    "https://a.example/blog/new every=1h prio=9",
    "The quick brown fox jumps over the lazy dog, and nobody knows why it does so at this time of the day.",
];

/// The identity of each principal, in a broker that knows all of them.
fn identities() -> (Access, Vec<(&'static str, Identity)>) {
    let principals = PRINCIPALS.iter().map(|(name, allow, deny)| {
        known(name, name, PermissionSet::new(parse_permissions(allow), parse_permissions(deny)))
    });
    let access = broker(Some(principals.collect()));
    let pass = |name: &str| access.log_in(Transport::Line, &token(name), None, Moment(0)).unwrap();
    let passes = PRINCIPALS.iter().map(|(name, ..)| (*name, pass(name))).collect();
    (access, passes)
}

#[test]
fn checks_do_not_allocate() {
    let (access, passes) = identities();
    let mut allowed = 0;
    for (name, pass) in &passes {
        for line in LINES {
            let command = Command::parse(line).unwrap();
            let mut is_ok = false;
            let took = measure(|| is_ok = pass.check_command(&command).is_ok());
            allowed += u32::from(is_ok);
            // A denial is a text, which has to be written anyway.
            assert!(!is_ok || took.count_total == 0, "{name}: {line}: {took:?}");
        }
        for event in EVENTS {
            let mut is_ok = false;
            let took = measure(|| {
                is_ok = access.is_unlimited(pass, "new-url");
                is_ok |= access.check_publish(pass, "new-url", event).is_ok();
            });
            allowed += u32::from(is_ok);
            assert!(!is_ok || took.count_total == 0, "{name}: {event}: {took:?}");
        }
    }
    assert!(allowed > 60, "only {allowed} allowed");
    assert_eq!(measure(|| drop(black_box(Box::new(1)))).count_total, 1, "allocations are counted");
}

/// The median over several rounds, in nanoseconds for each check.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn nanoseconds(mut ask: impl FnMut()) -> f64 {
    const QUESTIONS: u32 = 10_000;
    let mut rounds: Vec<Duration> = (0..31)
        .map(|_| {
            let began = Instant::now();
            (0..QUESTIONS).for_each(|_| ask());
            began.elapsed()
        })
        .collect();
    rounds.sort_unstable();
    rounds[rounds.len() / 2].as_nanos() as f64 / f64::from(QUESTIONS)
}

#[test]
#[ignore = "a benchmark: run with --release --ignored --nocapture"]
#[expect(clippy::print_stdout, reason = "prints a table")]
fn time_of_a_check() {
    let (access, passes) = identities();
    let mut slowest = (0.0, String::new());
    for (name, pass) in &passes {
        let mut took = Vec::new();
        for line in LINES {
            let command = Command::parse(line).unwrap();
            if pass.check_command(&command).is_ok() {
                let each = nanoseconds(|| {
                    _ = black_box(black_box(pass).check_command(black_box(&command)));
                });
                took.push((each, line));
            }
        }
        for event in EVENTS {
            if access.check_publish(pass, "new-url", event).is_ok() {
                let ask = || access.check_publish(black_box(pass), "new-url", black_box(event));
                took.push((nanoseconds(|| _ = black_box(ask())), event));
            }
        }
        took.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let ((median, _), (most, line)) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{name:<24} median {median:5.1} ns, most {most:5.1} ns: {line}");
        if most > slowest.0 {
            slowest = (most, format!("{name}: {line}"));
        }
    }
    println!("slowest {:.1} ns: {}", slowest.0, slowest.1);
}
