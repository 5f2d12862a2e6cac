use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_000_000;
const TOPIC: &str = "http://a.example/f";

fn new() -> Subscription {
    let teller = Teller::Hub { hub: "http://hub.example/".into(), topic: TOPIC.into() };
    Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW)
}

const fn lease(seconds: u64) -> Lease {
    let asked = Duration::from_hours(240);
    Lease { asked, granted: Some(Duration::from_secs(seconds)) }
}

// PROTOCOL: V2, V3
#[test]
fn only_what_was_asked_for_is_verified() {
    let mut one = new();
    let verify = |one: &mut Subscription, wish, now| one.verify(wish, TOPIC, lease(100), now);
    assert!(verify(&mut one, Wish::Subscribe, NOW).is_err(), "nothing was asked");
    assert_eq!(one.ask(NOW), Wish::Subscribe);
    assert!(verify(&mut one, Wish::Unsubscribe, NOW).is_err(), "the opposite");
    assert!(one.verify(Wish::Subscribe, "http://b.example/", lease(9), NOW).is_err());
    assert!(verify(&mut one, Wish::Subscribe, NOW + VERIFIED_WITHIN_MS).is_err(), "too late");
    assert_eq!(one.told_until_ms(NOW), None);
    assert_eq!(verify(&mut one, Wish::Subscribe, NOW + 1), Ok(()));
    assert_eq!(one.verify(Wish::Subscribe, TOPIC, lease(9_999), NOW + 2), Ok(()), "again");
    assert_eq!(one.told_until_ms(NOW + 100_000), Some(NOW + 100_001), "it is what it was");
    assert_eq!(one.told_until_ms(NOW + 100_001), None, "it is over");
    assert!(verify(&mut one, Wish::Subscribe, NOW + 100_001).is_err());
    // Before that it is asked for again.
    let due = one.due_ms() - NOW - 1;
    assert!((60_000..=80_000).contains(&due), "{due}");
}

#[test]
fn a_verification_may_come_before_the_answer() {
    let mut one = new();
    one.ask(NOW);
    one.verify(Wish::Subscribe, TOPIC, lease(100), NOW).unwrap();
    for answer in [Asked::Accepted, Asked::Refused, Asked::Failed(None)] {
        let mut one = one.clone();
        assert!(!one.was_asked(answer, NOW + 1));
        assert!(one.told_until_ms(NOW + 2).is_some(), "{answer:?}");
    }
}

// PROTOCOL: V2
#[test]
fn who_is_silent_is_asked_again_more_and_more_seldom() {
    let mut one = new();
    let mut now = NOW;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        one.ask(now);
        one.was_asked(Asked::Failed(None), now);
        pauses.push((one.due_ms() - now) / MINUTE_MS);
        now = one.due_ms();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360, 360]);
    one.ask(now);
    one.was_asked(Asked::Failed(Some(Duration::from_secs(1_000_000))), now);
    assert_eq!(one.due_ms(), now + DAY_MS);
}

#[test]
fn a_cloud_says_yes_or_no_at_once() {
    let teller = Teller::Cloud { register: "http://cloud.example/pleaseNotify".into() };
    let mut one = Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW);
    one.ask(NOW);
    assert!(one.was_asked(Asked::Accepted, NOW));
    assert_eq!(one.told_until_ms(NOW), Some(NOW + CLOUD_LEASE_MS));
    assert!(one.verify(Wish::Subscribe, TOPIC, lease(0), NOW).is_err());
}

#[test]
fn what_nobody_wants_is_left_and_brings_nothing_more() {
    let mut one = new();
    one.ask(NOW);
    one.verify(Wish::Subscribe, TOPIC, lease(1_000_000), NOW).unwrap();
    one.leave(NOW + 1);
    assert_eq!(one.told_until_ms(NOW + 2), None);
    assert_eq!((one.due_ms(), one.ask(NOW + 2)), (NOW + 1, Wish::Unsubscribe));
    assert!(!one.is_hopeless(NOW + 2));
    assert!(one.verify(Wish::Subscribe, TOPIC, lease(0), NOW + 3).is_err());
    assert_eq!(one.verify(Wish::Unsubscribe, TOPIC, lease(0), NOW + 3), Ok(()));
}

/// Of a feed that names two hubs, and a server of `rssCloud`.
fn of_three() -> Subscription {
    let feed = CanonicalUrl::parse(TOPIC).unwrap();
    let hubs = Hubs {
        hubs: vec!["http://hub.example/".into(), "http://b.example/".into()],
        topic: None,
        cloud: Some("http://cloud.example/".into()),
    };
    let mut one = new();
    one.is_named_with(Teller::all(&feed, &hubs), NOW);
    one
}

// PROTOCOL: V2
#[test]
fn who_says_no_is_followed_by_who_else_tells_and_the_last_by_the_first_after_a_day() {
    let (mut one, mut now, mut hosts) = (of_three(), NOW, Vec::new());
    for _ in 0..4 {
        now = now.max(one.due_ms());
        assert_eq!(one.successor(now), None, "it is its turn");
        one.ask(now);
        hosts.push((one.teller.host(), (now - NOW) / HOUR_MS));
        assert!(!one.was_asked(Asked::Refused, now));
        assert_eq!(one.due_ms(), now, "at once");
        let next = one.successor(now).unwrap();
        assert!(next.token != one.token && next.secret != one.secret, "it was told to a stranger");
        one = next;
    }
    let host = |host: &str, hours| (format!("{host}.example"), hours);
    assert_eq!(hosts, [host("hub", 0), host("b", 0), host("cloud", 0), host("hub", 24)]);
}

// PROTOCOL: V2
#[test]
fn who_does_not_answer_is_asked_some_times_before_somebody_else_is() {
    let (mut one, mut now, mut hosts) = (of_three(), NOW, Vec::new());
    for _ in 0..13 {
        one.ask(now);
        hosts.push((one.teller.host(), (now - NOW) / MINUTE_MS));
        // One of them agrees, and never verifies.
        let answer =
            if one.teller.host().starts_with('b') { Asked::Accepted } else { Asked::Failed(None) };
        one.was_asked(answer, now);
        now = one.due_ms();
        one = one.successor(now).unwrap_or(one);
        now = now.max(one.due_ms());
    }
    let of =
        |host: &str, minutes: [u64; 4]| minutes.map(|minute| (format!("{host}.example"), minute));
    let first = of("hub", [0, 1, 3, 7]);
    let (second, third) = (of("b", [7, 67, 127, 187]), of("cloud", [247, 248, 250, 254]));
    assert_eq!(hosts[..12], [first, second, third].concat());
    assert_eq!(hosts[12], ("hub.example".to_owned(), 254 + 6 * 60));
}

#[test]
fn nobody_else_is_asked_while_a_lease_holds() {
    let mut one = of_three();
    one.ask(NOW);
    one.verify(Wish::Subscribe, TOPIC, lease(3_600), NOW).unwrap();
    let renewed = one.due_ms();
    one.ask(renewed);
    one.was_asked(Asked::Refused, renewed);
    assert_eq!(one.successor(renewed), None);
    assert_eq!(one.due_ms(), NOW + HOUR_MS, "its end");
    assert_eq!(one.successor(NOW + HOUR_MS).unwrap().teller.host(), "b.example");
    // Unless the hub itself has ended it.
    one.deny(TOPIC, renewed + 1).unwrap();
    assert!(one.successor(renewed + 1).is_some());
    // And nobody is asked to take the place of what is to end.
    one.leave(renewed + 2);
    one.ask(renewed + 2);
    one.was_asked(Asked::Refused, renewed + 2);
    assert_eq!((one.successor(renewed + 3), one.due_ms()), (None, renewed + 2 + REFUSED_MS));
}

// PROTOCOL: V5
#[test]
fn who_has_not_told_everything_is_asked_once_a_day_and_relied_upon_when_it_tells() {
    let mut one = new();
    let asked = |one: &mut Subscription, now| {
        one.ask(now);
        one.was_asked(Asked::Accepted, now);
        one.verify(Wish::Subscribe, TOPIC, lease(1_000_000), now).unwrap();
    };
    one.was_silent(NOW);
    asked(&mut one, NOW);
    let until = NOW + 1_000_000_000;
    assert_eq!(one.untold_ms(NOW), Some(until));
    one.crawlers_know(until);

    let silent = NOW + HOUR_MS;
    one.was_silent(silent);
    assert_eq!(one.due_ms(), silent, "it may have lost us");
    asked(&mut one, silent);
    let renewed = one.due_ms();
    // Crawlers look as often as before by themselves, and an agreement is no proof.
    assert_eq!(one.untold_ms(silent), None);
    one.was_silent(silent + DAY_MS - 1);
    assert_eq!(one.due_ms(), renewed, "it was asked today");
    one.was_silent(silent + DAY_MS);
    assert_eq!(one.due_ms(), silent + DAY_MS);
    asked(&mut one, silent + DAY_MS);
    // Now it tells something, and is relied upon again.
    let until = one.told_until_ms(silent + DAY_MS).unwrap();
    one.has_told(until);
    assert_eq!(one.untold_ms(silent + DAY_MS), None);
    asked(&mut one, silent + DAY_MS + 1);
    assert_eq!(one.untold_ms(silent + DAY_MS + 1), Some(until + 1));
    // Who was asked just now need not be asked.
    one.ask(silent + 9 * DAY_MS);
    let due = one.due_ms();
    one.was_silent(silent + 9 * DAY_MS);
    assert_eq!(one.due_ms(), due);
}

#[test]
fn what_earlier_versions_have_kept_is_read() {
    let text = serde_json::to_value(of_three()).unwrap();
    let mut text = text.as_object().unwrap().clone();
    for field in ["tellers", "in_vain", "refused_ms", "is_silent", "silent_ms"] {
        text.remove(field).unwrap();
    }
    let mut one: Subscription = serde_json::from_value(text.into()).unwrap();
    one.ask(NOW);
    one.was_asked(Asked::Refused, NOW);
    assert_eq!((one.successor(NOW), one.due_ms()), (None, NOW + REFUSED_MS));
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Ask,
    Answer(Asked),
    Verify(Wish, u64),
    Deny,
    Leave,
    GoOn,
    Silent,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wish = prop_oneof![Just(Wish::Subscribe), Just(Wish::Unsubscribe)];
    let answer = prop_oneof![
        Just(Asked::Accepted),
        Just(Asked::Refused),
        (0..1_000_u64).prop_map(|s| Asked::Failed(Some(Duration::from_secs(s))))
    ];
    let step = prop_oneof![
        (0..3 * DAY_MS).prop_map(Step::Pass),
        Just(Step::Ask),
        answer.prop_map(Step::Answer),
        (wish, 0..100 * 86_400_u64).prop_map(|(wish, lease)| Step::Verify(wish, lease)),
        Just(Step::Deny),
        Just(Step::Leave),
        Just(Step::GoOn),
        Just(Step::Silent),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// Whatever hubs do: nothing is told that was not asked for and verified within its lease, and
    /// nobody who wants something waits longer than a lease, or a day, before they ask again.
    /// Nobody gives way who tells something, all have their turn, and who has said no is left alone
    /// for a day, as long as others are there.
    #[test]
    fn what_is_told_was_asked_for(steps in steps()) {
        let mut one = of_three();
        let (mut now, mut asked, mut until) = (NOW, None, 0);
        let mut hurried = 0;
        let mut refused = vec![None; one.tellers.len()];
        let turn = |one: &Subscription| one.tellers.iter().position(|it| *it == one.teller).unwrap();
        for step in steps {
            match step {
                Step::Pass(ms) => now += ms,
                Step::Ask => {
                    one.ask(now);
                    asked = Some(now);
                }
                Step::Answer(answer) => {
                    let had_asked = one.asked_until_ms.is_some();
                    if one.was_asked(answer, now) {
                        until = now + CLOUD_LEASE_MS;
                        asked = None;
                    }
                    if answer == Asked::Refused && had_asked {
                        refused[turn(&one)] = Some(now);
                    }
                    if answer != Asked::Accepted {
                        asked = None;
                    }
                }
                // They are heard from a hub alone.
                Step::Verify(..) | Step::Deny if matches!(one.teller, Teller::Cloud { .. }) => {
                    prop_assert!(one.verify(Wish::Subscribe, TOPIC, lease(9), now).is_err());
                    prop_assert!(one.deny(TOPIC, now).is_err());
                }
                Step::Verify(wish, seconds) => {
                    let was_told = one.told_until_ms(now).is_some();
                    let verified = one.verify(wish, TOPIC, lease(seconds), now);
                    let is_asked = asked.is_some_and(|was| now < was + VERIFIED_WITHIN_MS);
                    if !is_asked {
                        prop_assert_eq!(verified.is_ok(), was_told && wish == Wish::Subscribe);
                    } else if verified.is_ok() {
                        asked = None;
                        if wish == Wish::Subscribe {
                            until = now + (seconds * 1_000).clamp(LEASE_MS_MIN, LEASE_MS_MAX);
                        }
                    }
                }
                Step::Deny => {
                    one.deny(TOPIC, now).unwrap();
                    (until, asked) = (0, None);
                    refused[turn(&one)] = Some(now);
                }
                Step::Leave => one.leave(now),
                Step::Silent => {
                    let (due_ms, was_told) = (one.due_ms(), now < until && !one.is_leaving());
                    one.was_silent(now);
                    prop_assert!(!was_told || one.untold_ms(now).is_none(), "crawlers know best");
                    if one.due_ms() != due_ms {
                        prop_assert!(was_told && now >= hurried + SILENT_MS);
                        hurried = now;
                    }
                }
                Step::GoOn => {
                    let Some(next) = one.successor(now) else { continue };
                    prop_assert!(now >= until && !one.is_leaving());
                    prop_assert_eq!(turn(&next), (turn(&one) + 1) % one.tellers.len());
                    let again = refused[turn(&next)].map_or(0, |refused| refused + REFUSED_MS);
                    prop_assert!(next.due_ms() >= again.max(now));
                    one = next;
                    (until, asked) = (0, None);
                }
            }
            let told = one.told_until_ms(now).is_some();
            prop_assert_eq!(told, now < until && !one.is_leaving());
            prop_assert!(one.due_ms() <= now + LEASE_MS_MAX.max(REFUSED_MS));
        }
    }
}
