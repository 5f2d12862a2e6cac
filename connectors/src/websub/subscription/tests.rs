use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_000_000;
const TOPIC: &str = "http://a.example/f";

fn new_subscription() -> Subscription {
    let teller = HubEndpoint::Hub { hub: "http://hub.example/".into(), topic: TOPIC.into() };
    Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW)
}

const fn lease(seconds: u64) -> LeaseTerms {
    let asked = Duration::from_hours(240);
    LeaseTerms { requested: asked, granted: Some(Duration::from_secs(seconds)) }
}

// PROTOCOL: V2, V3
#[test]
fn a_hub_may_verify_only_a_pending_request() {
    let mut one = new_subscription();
    let verify = |one: &mut Subscription, wish, now| one.verify(wish, TOPIC, lease(100), now);
    assert!(verify(&mut one, HubMode::Subscribe, NOW).is_err(), "nothing was asked");
    assert_eq!(one.start_request(NOW), HubMode::Subscribe);
    assert!(verify(&mut one, HubMode::Unsubscribe, NOW).is_err(), "the opposite");
    assert!(one.verify(HubMode::Subscribe, "http://b.example/", lease(9), NOW).is_err());
    assert!(
        verify(&mut one, HubMode::Subscribe, NOW + VERIFICATION_TIMEOUT_MS).is_err(),
        "too late"
    );
    assert_eq!(one.lease_end_ms(NOW), None);
    assert_eq!(verify(&mut one, HubMode::Subscribe, NOW + 1), Ok(()));
    assert_eq!(one.verify(HubMode::Subscribe, TOPIC, lease(9_999), NOW + 2), Ok(()), "again");
    assert_eq!(one.lease_end_ms(NOW + 100_000), Some(NOW + 100_001), "it is what it was");
    assert_eq!(one.lease_end_ms(NOW + 100_001), None, "it is over");
    assert!(verify(&mut one, HubMode::Subscribe, NOW + 100_001).is_err());
    // Before that it is asked for again.
    let due = one.due_ms() - NOW - 1;
    assert!((60_000..=80_000).contains(&due), "{due}");
}

#[test]
fn a_verification_may_come_before_the_response() {
    let mut one = new_subscription();
    one.start_request(NOW);
    one.verify(HubMode::Subscribe, TOPIC, lease(100), NOW).unwrap();
    for answer in
        [HubRequestOutcome::Accepted, HubRequestOutcome::Refused, HubRequestOutcome::Failed(None)]
    {
        let mut one = one.clone();
        assert!(!one.finish_request(answer, NOW + 1));
        assert!(one.lease_end_ms(NOW + 2).is_some(), "{answer:?}");
    }
}

// PROTOCOL: V2
#[test]
fn a_hub_that_does_not_answer_is_retried_with_backoff() {
    let mut one = new_subscription();
    let mut now = NOW;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        one.start_request(now);
        one.finish_request(HubRequestOutcome::Failed(None), now);
        pauses.push((one.due_ms() - now) / MINUTE_MS);
        now = one.due_ms();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360, 360]);
    one.start_request(now);
    one.finish_request(HubRequestOutcome::Failed(Some(Duration::from_secs(1_000_000))), now);
    assert_eq!(one.due_ms(), now + DAY_MS);
}

#[test]
fn a_cloud_accepts_or_refuses_at_once() {
    let teller = HubEndpoint::Cloud { register: "http://cloud.example/pleaseNotify".into() };
    let mut one = Subscription::new(TOPIC.into(), TOPIC.into(), teller, NOW);
    one.start_request(NOW);
    assert!(one.finish_request(HubRequestOutcome::Accepted, NOW));
    assert_eq!(one.lease_end_ms(NOW), Some(NOW + CLOUD_LEASE_MS));
    assert!(one.verify(HubMode::Subscribe, TOPIC, lease(0), NOW).is_err());
}

#[test]
fn a_cancelled_subscription_unsubscribes_and_accepts_no_deliveries() {
    let mut one = new_subscription();
    one.start_request(NOW);
    one.verify(HubMode::Subscribe, TOPIC, lease(1_000_000), NOW).unwrap();
    one.cancel(NOW + 1);
    assert_eq!(one.lease_end_ms(NOW + 2), None);
    assert_eq!((one.due_ms(), one.start_request(NOW + 2)), (NOW + 1, HubMode::Unsubscribe));
    assert!(!one.is_removable(NOW + 2));
    assert!(one.verify(HubMode::Subscribe, TOPIC, lease(0), NOW + 3).is_err());
    assert_eq!(one.verify(HubMode::Unsubscribe, TOPIC, lease(0), NOW + 3), Ok(()));
}

/// Of a feed that names two hubs, and a server of `rssCloud`.
fn with_three_hubs() -> Subscription {
    let feed = CanonicalUrl::parse(TOPIC).unwrap();
    let hubs = Hubs {
        hubs: vec!["http://hub.example/".into(), "http://b.example/".into()],
        topic: None,
        cloud: Some("http://cloud.example/".into()),
    };
    let mut one = new_subscription();
    one.set_candidates(HubEndpoint::of_feed(&feed, &hubs), NOW);
    one
}

// PROTOCOL: V2
#[test]
fn a_refusal_moves_to_the_next_hub_and_from_the_last_to_the_first_after_a_day() {
    let (mut one, mut now, mut hosts) = (with_three_hubs(), NOW, Vec::new());
    for _ in 0..4 {
        now = now.max(one.due_ms());
        assert_eq!(one.successor(now), None, "it is its turn");
        one.start_request(now);
        hosts.push((one.teller.host(), (now - NOW) / HOUR_MS));
        assert!(!one.finish_request(HubRequestOutcome::Refused, now));
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
fn a_hub_that_does_not_answer_is_retried_before_the_next_hub_is_tried() {
    let (mut one, mut now, mut hosts) = (with_three_hubs(), NOW, Vec::new());
    for _ in 0..13 {
        one.start_request(now);
        hosts.push((one.teller.host(), (now - NOW) / MINUTE_MS));
        // One of them agrees, and never verifies.
        let answer = if one.teller.host().starts_with('b') {
            HubRequestOutcome::Accepted
        } else {
            HubRequestOutcome::Failed(None)
        };
        one.finish_request(answer, now);
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
fn no_other_hub_is_tried_during_a_lease() {
    let mut one = with_three_hubs();
    one.start_request(NOW);
    one.verify(HubMode::Subscribe, TOPIC, lease(3_600), NOW).unwrap();
    let renewed = one.due_ms();
    one.start_request(renewed);
    one.finish_request(HubRequestOutcome::Refused, renewed);
    assert_eq!(one.successor(renewed), None);
    assert_eq!(one.due_ms(), NOW + HOUR_MS, "its end");
    assert_eq!(one.successor(NOW + HOUR_MS).unwrap().teller.host(), "b.example");
    // Unless the hub itself has ended it.
    one.deny(TOPIC, renewed + 1).unwrap();
    assert!(one.successor(renewed + 1).is_some());
    // And nobody is asked to take the place of what is to end.
    one.cancel(renewed + 2);
    one.start_request(renewed + 2);
    one.finish_request(HubRequestOutcome::Refused, renewed + 2);
    assert_eq!((one.successor(renewed + 3), one.due_ms()), (None, renewed + 2 + REFUSAL_PAUSE_MS));
}

// PROTOCOL: V5
#[test]
fn a_silent_hub_is_renewed_once_a_day_and_trusted_again_after_a_delivery() {
    let mut one = new_subscription();
    let asked = |one: &mut Subscription, now| {
        one.start_request(now);
        one.finish_request(HubRequestOutcome::Accepted, now);
        one.verify(HubMode::Subscribe, TOPIC, lease(1_000_000), now).unwrap();
    };
    one.report_silent(NOW);
    asked(&mut one, NOW);
    let until = NOW + 1_000_000_000;
    assert_eq!(one.pending_crawler_update_ms(NOW), Some(until));
    one.record_crawlers_notified(until);

    let silent = NOW + HOUR_MS;
    one.report_silent(silent);
    assert_eq!(one.due_ms(), silent, "it may have lost us");
    asked(&mut one, silent);
    let renewed = one.due_ms();
    // Crawlers look as often as before by themselves, and an agreement is no proof.
    assert_eq!(one.pending_crawler_update_ms(silent), None);
    one.report_silent(silent + DAY_MS - 1);
    assert_eq!(one.due_ms(), renewed, "it was asked today");
    one.report_silent(silent + DAY_MS);
    assert_eq!(one.due_ms(), silent + DAY_MS);
    asked(&mut one, silent + DAY_MS);
    // Now it tells something, and is relied upon again.
    let until = one.lease_end_ms(silent + DAY_MS).unwrap();
    one.record_delivery(until);
    assert_eq!(one.pending_crawler_update_ms(silent + DAY_MS), None);
    asked(&mut one, silent + DAY_MS + 1);
    assert_eq!(one.pending_crawler_update_ms(silent + DAY_MS + 1), Some(until + 1));
    // Who was asked just now need not be asked.
    one.start_request(silent + 9 * DAY_MS);
    let due = one.due_ms();
    one.report_silent(silent + 9 * DAY_MS);
    assert_eq!(one.due_ms(), due);
}

#[test]
fn subscriptions_of_earlier_versions_are_readable() {
    let text = serde_json::to_value(with_three_hubs()).unwrap();
    let mut text = text.as_object().unwrap().clone();
    for field in ["tellers", "in_vain", "refused_ms", "is_silent", "silent_ms"] {
        text.remove(field).unwrap();
    }
    let mut one: Subscription = serde_json::from_value(text.into()).unwrap();
    one.start_request(NOW);
    one.finish_request(HubRequestOutcome::Refused, NOW);
    assert_eq!((one.successor(NOW), one.due_ms()), (None, NOW + REFUSAL_PAUSE_MS));
}

#[derive(Debug, Clone)]
enum HubStep {
    Pass(u64),
    Ask,
    Answer(HubRequestOutcome),
    Verify(HubMode, u64),
    Deny,
    Leave,
    GoOn,
    Silent,
}

fn steps() -> impl Strategy<Value = Vec<HubStep>> {
    let wish = prop_oneof![Just(HubMode::Subscribe), Just(HubMode::Unsubscribe)];
    let answer = prop_oneof![
        Just(HubRequestOutcome::Accepted),
        Just(HubRequestOutcome::Refused),
        (0..1_000_u64).prop_map(|s| HubRequestOutcome::Failed(Some(Duration::from_secs(s))))
    ];
    let step = prop_oneof![
        (0..3 * DAY_MS).prop_map(HubStep::Pass),
        Just(HubStep::Ask),
        answer.prop_map(HubStep::Answer),
        (wish, 0..100 * 86_400_u64).prop_map(|(wish, lease)| HubStep::Verify(wish, lease)),
        Just(HubStep::Deny),
        Just(HubStep::Leave),
        Just(HubStep::GoOn),
        Just(HubStep::Silent),
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
        let mut one = with_three_hubs();
        let (mut now, mut asked, mut until) = (NOW, None, 0);
        let mut hurried = 0;
        let mut refused = vec![None; one.tellers.len()];
        let turn = |one: &Subscription| one.tellers.iter().position(|it| *it == one.teller).unwrap();
        for step in steps {
            match step {
                HubStep::Pass(ms) => now += ms,
                HubStep::Ask => {
                    one.start_request(now);
                    asked = Some(now);
                }
                HubStep::Answer(answer) => {
                    let had_asked = one.asked_until_ms.is_some();
                    if one.finish_request(answer, now) {
                        until = now + CLOUD_LEASE_MS;
                        asked = None;
                    }
                    if answer == HubRequestOutcome::Refused && had_asked {
                        refused[turn(&one)] = Some(now);
                    }
                    if answer != HubRequestOutcome::Accepted {
                        asked = None;
                    }
                }
                // They are heard from a hub alone.
                HubStep::Verify(..) | HubStep::Deny if matches!(one.teller, HubEndpoint::Cloud { .. }) => {
                    prop_assert!(one.verify(HubMode::Subscribe, TOPIC, lease(9), now).is_err());
                    prop_assert!(one.deny(TOPIC, now).is_err());
                }
                HubStep::Verify(wish, seconds) => {
                    let was_told = one.lease_end_ms(now).is_some();
                    let verified = one.verify(wish, TOPIC, lease(seconds), now);
                    let is_asked = asked.is_some_and(|was| now < was + VERIFICATION_TIMEOUT_MS);
                    if !is_asked {
                        prop_assert_eq!(verified.is_ok(), was_told && wish == HubMode::Subscribe);
                    } else if verified.is_ok() {
                        asked = None;
                        if wish == HubMode::Subscribe {
                            until = now + (seconds * 1_000).clamp(LEASE_MS_MIN, LEASE_MS_MAX);
                        }
                    }
                }
                HubStep::Deny => {
                    one.deny(TOPIC, now).unwrap();
                    (until, asked) = (0, None);
                    refused[turn(&one)] = Some(now);
                }
                HubStep::Leave => one.cancel(now),
                HubStep::Silent => {
                    let (due_ms, was_told) = (one.due_ms(), now < until && !one.is_cancelled());
                    one.report_silent(now);
                    prop_assert!(!was_told || one.pending_crawler_update_ms(now).is_none(), "crawlers know best");
                    if one.due_ms() != due_ms {
                        prop_assert!(was_told && now >= hurried + SILENT_RENEWAL_INTERVAL_MS);
                        hurried = now;
                    }
                }
                HubStep::GoOn => {
                    let Some(next) = one.successor(now) else { continue };
                    prop_assert!(now >= until && !one.is_cancelled());
                    prop_assert_eq!(turn(&next), (turn(&one) + 1) % one.tellers.len());
                    let again = refused[turn(&next)].map_or(0, |refused| refused + REFUSAL_PAUSE_MS);
                    prop_assert!(next.due_ms() >= again.max(now));
                    one = next;
                    (until, asked) = (0, None);
                }
            }
            let told = one.lease_end_ms(now).is_some();
            prop_assert_eq!(told, now < until && !one.is_cancelled());
            prop_assert!(one.due_ms() <= now + LEASE_MS_MAX.max(REFUSAL_PAUSE_MS));
        }
    }
}
