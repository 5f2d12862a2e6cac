use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_000_000;
const TOPIC: &str = "http://a.example/f";

fn new_subscription() -> Subscription {
    let endpoint = HubEndpoint::WebSub { hub: "http://hub.example/".into(), topic: TOPIC.into() };
    Subscription::new(TOPIC.into(), TOPIC.into(), endpoint, NOW)
}

const fn lease(seconds: u64) -> LeaseTerms {
    let requested = Duration::from_hours(240);
    LeaseTerms { requested, granted: Some(Duration::from_secs(seconds)) }
}

// PROTOCOL: V2, V3
#[test]
fn a_hub_may_verify_only_a_pending_request() {
    let mut subscription = new_subscription();
    let verify = |subscription: &mut Subscription, mode, now| {
        subscription.verify(mode, TOPIC, lease(100), now)
    };
    assert!(verify(&mut subscription, HubMode::Subscribe, NOW).is_err(), "no request is pending");
    assert_eq!(subscription.start_request(NOW), HubMode::Subscribe);
    assert!(verify(&mut subscription, HubMode::Unsubscribe, NOW).is_err(), "another mode");
    assert!(subscription.verify(HubMode::Subscribe, "http://b.example/", lease(9), NOW).is_err());
    assert!(
        verify(&mut subscription, HubMode::Subscribe, NOW + VERIFICATION_TIMEOUT_MS).is_err(),
        "too late"
    );
    assert_eq!(subscription.lease_end_ms(NOW), None);
    assert_eq!(verify(&mut subscription, HubMode::Subscribe, NOW + 1), Ok(()));
    assert_eq!(
        subscription.verify(HubMode::Subscribe, TOPIC, lease(9_999), NOW + 2),
        Ok(()),
        "again"
    );
    assert_eq!(
        subscription.lease_end_ms(NOW + 100_000),
        Some(NOW + 100_001),
        "the lease is unchanged"
    );
    assert_eq!(subscription.lease_end_ms(NOW + 100_001), None, "the lease is over");
    assert!(verify(&mut subscription, HubMode::Subscribe, NOW + 100_001).is_err());
    // It is renewed before that.
    let due = subscription.due_ms - NOW - 1;
    assert!((60_000..=80_000).contains(&due), "{due}");
}

#[test]
fn a_verification_may_come_before_the_response() {
    let mut subscription = new_subscription();
    subscription.start_request(NOW);
    subscription.verify(HubMode::Subscribe, TOPIC, lease(100), NOW).unwrap();
    for outcome in
        [HubRequestOutcome::Accepted, HubRequestOutcome::Refused, HubRequestOutcome::Failed(None)]
    {
        let mut subscription = subscription.clone();
        assert!(!subscription.finish_request(outcome, NOW + 1));
        assert!(subscription.lease_end_ms(NOW + 2).is_some(), "{outcome:?}");
    }
}

// PROTOCOL: V2
#[test]
fn a_hub_that_does_not_answer_is_retried_with_backoff() {
    let mut subscription = new_subscription();
    let mut now = NOW;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        subscription.start_request(now);
        subscription.finish_request(HubRequestOutcome::Failed(None), now);
        pauses.push((subscription.due_ms - now) / MINUTE_MS);
        now = subscription.due_ms;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360, 360]);
    subscription.start_request(now);
    subscription
        .finish_request(HubRequestOutcome::Failed(Some(Duration::from_secs(1_000_000))), now);
    assert_eq!(subscription.due_ms, now + DAY_MS);
}

#[test]
fn a_cloud_accepts_or_refuses_at_once() {
    let endpoint = HubEndpoint::RssCloud { register: "http://cloud.example/pleaseNotify".into() };
    let mut subscription = Subscription::new(TOPIC.into(), TOPIC.into(), endpoint, NOW);
    subscription.start_request(NOW);
    assert!(subscription.finish_request(HubRequestOutcome::Accepted, NOW));
    assert_eq!(subscription.lease_end_ms(NOW), Some(NOW + CLOUD_LEASE_MS));
    assert!(subscription.verify(HubMode::Subscribe, TOPIC, lease(0), NOW).is_err());
}

#[test]
fn a_cancelled_subscription_unsubscribes_and_accepts_no_deliveries() {
    let mut subscription = new_subscription();
    subscription.start_request(NOW);
    subscription.verify(HubMode::Subscribe, TOPIC, lease(1_000_000), NOW).unwrap();
    subscription.cancel(NOW + 1);
    assert_eq!(subscription.lease_end_ms(NOW + 2), None);
    assert_eq!(
        (subscription.due_ms, subscription.start_request(NOW + 2)),
        (NOW + 1, HubMode::Unsubscribe)
    );
    assert!(!subscription.is_removable(NOW + 2));
    assert!(subscription.verify(HubMode::Subscribe, TOPIC, lease(0), NOW + 3).is_err());
    assert_eq!(subscription.verify(HubMode::Unsubscribe, TOPIC, lease(0), NOW + 3), Ok(()));
}

/// A subscription to a feed that names two hubs and a server of `rssCloud`.
fn with_three_hubs() -> Subscription {
    let feed = CanonicalUrl::parse(TOPIC).unwrap();
    let hubs = Hubs {
        hubs: vec!["http://hub.example/".into(), "http://b.example/".into()],
        topic: None,
        cloud: Some("http://cloud.example/".into()),
    };
    let mut subscription = new_subscription();
    subscription.set_candidates(HubEndpoint::of_feed(&feed, &hubs), NOW);
    subscription
}

// PROTOCOL: V2
#[test]
fn a_refusal_moves_to_the_next_hub_and_from_the_last_to_the_first_after_a_day() {
    let (mut subscription, mut now, mut hosts) = (with_three_hubs(), NOW, Vec::new());
    for _ in 0..4 {
        now = now.max(subscription.due_ms);
        assert_eq!(subscription.successor(now), None, "the hub was not tried yet");
        subscription.start_request(now);
        hosts.push((subscription.endpoint.host(), (now - NOW) / HOUR_MS));
        assert!(!subscription.finish_request(HubRequestOutcome::Refused, now));
        assert_eq!(subscription.due_ms, now, "the next hub is due at once");
        let next = subscription.successor(now).unwrap();
        assert!(
            next.token != subscription.token && next.secret != subscription.secret,
            "the previous hub has the old ones"
        );
        subscription = next;
    }
    let host = |host: &str, hours| (format!("{host}.example"), hours);
    assert_eq!(hosts, [host("hub", 0), host("b", 0), host("cloud", 0), host("hub", 24)]);
}

// PROTOCOL: V2
#[test]
fn a_hub_that_does_not_answer_is_retried_before_the_next_hub_is_tried() {
    let (mut subscription, mut now, mut hosts) = (with_three_hubs(), NOW, Vec::new());
    for _ in 0..13 {
        subscription.start_request(now);
        hosts.push((subscription.endpoint.host(), (now - NOW) / MINUTE_MS));
        // Hub b accepts, and never verifies.
        let outcome = if subscription.endpoint.host().starts_with('b') {
            HubRequestOutcome::Accepted
        } else {
            HubRequestOutcome::Failed(None)
        };
        subscription.finish_request(outcome, now);
        now = subscription.due_ms;
        subscription = subscription.successor(now).unwrap_or(subscription);
        now = now.max(subscription.due_ms);
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
    let mut subscription = with_three_hubs();
    subscription.start_request(NOW);
    subscription.verify(HubMode::Subscribe, TOPIC, lease(3_600), NOW).unwrap();
    let renewed = subscription.due_ms;
    subscription.start_request(renewed);
    subscription.finish_request(HubRequestOutcome::Refused, renewed);
    assert_eq!(subscription.successor(renewed), None);
    assert_eq!(subscription.due_ms, NOW + HOUR_MS, "the end of the lease");
    assert_eq!(subscription.successor(NOW + HOUR_MS).unwrap().endpoint.host(), "b.example");
    // Unless the hub itself ends the lease.
    subscription.deny(TOPIC, renewed + 1).unwrap();
    assert!(subscription.successor(renewed + 1).is_some());
    // A cancelled subscription has no successor.
    subscription.cancel(renewed + 2);
    subscription.start_request(renewed + 2);
    subscription.finish_request(HubRequestOutcome::Refused, renewed + 2);
    assert_eq!(
        (subscription.successor(renewed + 3), subscription.due_ms),
        (None, renewed + 2 + REFUSAL_PAUSE_MS)
    );
}

// PROTOCOL: V5
#[test]
fn a_silent_hub_is_renewed_once_a_day_and_trusted_again_after_a_delivery() {
    let mut subscription = new_subscription();
    let renew = |subscription: &mut Subscription, now| {
        subscription.start_request(now);
        subscription.finish_request(HubRequestOutcome::Accepted, now);
        subscription.verify(HubMode::Subscribe, TOPIC, lease(1_000_000), now).unwrap();
    };
    subscription.report_silent(NOW);
    renew(&mut subscription, NOW);
    let until = NOW + 1_000_000_000;
    assert_eq!(subscription.pending_crawler_update_ms(NOW), Some(until));
    subscription.record_crawlers_notified(until);

    let silent = NOW + HOUR_MS;
    subscription.report_silent(silent);
    assert_eq!(subscription.due_ms, silent, "the hub may have lost the subscription");
    renew(&mut subscription, silent);
    let renewed = subscription.due_ms;
    // Crawlers already poll as often as before, and a verification proves no delivery.
    assert_eq!(subscription.pending_crawler_update_ms(silent), None);
    subscription.report_silent(silent + DAY_MS - 1);
    assert_eq!(subscription.due_ms, renewed, "it was already renewed today");
    subscription.report_silent(silent + DAY_MS);
    assert_eq!(subscription.due_ms, silent + DAY_MS);
    renew(&mut subscription, silent + DAY_MS);
    // After a delivery the hub is trusted again.
    let until = subscription.lease_end_ms(silent + DAY_MS).unwrap();
    subscription.record_delivery(until);
    assert_eq!(subscription.pending_crawler_update_ms(silent + DAY_MS), None);
    renew(&mut subscription, silent + DAY_MS + 1);
    assert_eq!(subscription.pending_crawler_update_ms(silent + DAY_MS + 1), Some(until + 1));
    // A pending request is not repeated.
    subscription.start_request(silent + 9 * DAY_MS);
    let due = subscription.due_ms;
    subscription.report_silent(silent + 9 * DAY_MS);
    assert_eq!(subscription.due_ms, due);
}

#[derive(Debug, Clone)]
enum HubStep {
    Wait(u64),
    Request,
    Outcome(HubRequestOutcome),
    Verify(HubMode, u64),
    Deny,
    Cancel,
    ReplaceBySuccessor,
    ReportSilent,
}

fn steps() -> impl Strategy<Value = Vec<HubStep>> {
    let mode = prop_oneof![Just(HubMode::Subscribe), Just(HubMode::Unsubscribe)];
    let outcome = prop_oneof![
        Just(HubRequestOutcome::Accepted),
        Just(HubRequestOutcome::Refused),
        (0..1_000_u64).prop_map(|s| HubRequestOutcome::Failed(Some(Duration::from_secs(s))))
    ];
    let step = prop_oneof![
        (0..3 * DAY_MS).prop_map(HubStep::Wait),
        Just(HubStep::Request),
        outcome.prop_map(HubStep::Outcome),
        (mode, 0..100 * 86_400_u64).prop_map(|(mode, lease)| HubStep::Verify(mode, lease)),
        Just(HubStep::Deny),
        Just(HubStep::Cancel),
        Just(HubStep::ReplaceBySuccessor),
        Just(HubStep::ReportSilent),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// For any behaviour of hubs: only a requested and verified subscription is active, and only
    /// within its lease. The next request is due within a lease or a day. A hub with a lease is not
    /// replaced, all hubs are tried in turn, and a hub that refused gets no request for a day if
    /// there are others.
    #[test]
    fn only_requested_and_verified_subscriptions_are_active(steps in steps()) {
        let mut subscription = with_three_hubs();
        let (mut now, mut pending_since, mut until) = (NOW, None, 0);
        let mut last_early_renewal = 0;
        let mut refused = vec![None; subscription.candidates.len()];
        let position = |of: &Subscription| {
            of.candidates.iter().position(|candidate| *candidate == of.endpoint).unwrap()
        };
        for step in steps {
            match step {
                HubStep::Wait(ms) => now += ms,
                HubStep::Request => {
                    subscription.start_request(now);
                    pending_since = Some(now);
                }
                HubStep::Outcome(outcome) => {
                    let was_pending = subscription.pending_until_ms.is_some();
                    if subscription.finish_request(outcome, now) {
                        until = now + CLOUD_LEASE_MS;
                        pending_since = None;
                    }
                    if outcome == HubRequestOutcome::Refused && was_pending {
                        refused[position(&subscription)] = Some(now);
                    }
                    if outcome != HubRequestOutcome::Accepted {
                        pending_since = None;
                    }
                }
                // Only a hub of WebSub sends these.
                HubStep::Verify(..) | HubStep::Deny
                    if matches!(subscription.endpoint, HubEndpoint::RssCloud { .. }) =>
                {
                    let verified = subscription.verify(HubMode::Subscribe, TOPIC, lease(9), now);
                    prop_assert!(verified.is_err());
                    prop_assert!(subscription.deny(TOPIC, now).is_err());
                }
                HubStep::Verify(mode, seconds) => {
                    let was_active = subscription.lease_end_ms(now).is_some();
                    let verified = subscription.verify(mode, TOPIC, lease(seconds), now);
                    let is_pending =
                        pending_since.is_some_and(|since| now < since + VERIFICATION_TIMEOUT_MS);
                    if !is_pending {
                        prop_assert_eq!(verified.is_ok(), was_active && mode == HubMode::Subscribe);
                    } else if verified.is_ok() {
                        pending_since = None;
                        if mode == HubMode::Subscribe {
                            until = now + (seconds * 1_000).clamp(LEASE_MS_MIN, LEASE_MS_MAX);
                        }
                    }
                }
                HubStep::Deny => {
                    subscription.deny(TOPIC, now).unwrap();
                    (until, pending_since) = (0, None);
                    refused[position(&subscription)] = Some(now);
                }
                HubStep::Cancel => subscription.cancel(now),
                HubStep::ReportSilent => {
                    let due_ms = subscription.due_ms;
                    let was_active = now < until && !subscription.is_cancelled;
                    subscription.report_silent(now);
                    let update = subscription.pending_crawler_update_ms(now);
                    prop_assert!(!was_active || update.is_none(), "crawlers are up to date");
                    if subscription.due_ms != due_ms {
                        let earliest = last_early_renewal + SILENT_RENEWAL_INTERVAL_MS;
                        prop_assert!(was_active && now >= earliest);
                        last_early_renewal = now;
                    }
                }
                HubStep::ReplaceBySuccessor => {
                    let Some(next) = subscription.successor(now) else { continue };
                    prop_assert!(now >= until && !subscription.is_cancelled);
                    let following = position(&subscription) + 1;
                    prop_assert_eq!(position(&next), following % subscription.candidates.len());
                    let refused = refused[position(&next)];
                    let earliest = refused.map_or(0, |refused| refused + REFUSAL_PAUSE_MS);
                    prop_assert!(next.due_ms >= earliest.max(now));
                    subscription = next;
                    (until, pending_since) = (0, None);
                }
            }
            let is_active = subscription.lease_end_ms(now).is_some();
            prop_assert_eq!(is_active, now < until && !subscription.is_cancelled);
            prop_assert!(subscription.due_ms <= now + LEASE_MS_MAX.max(REFUSAL_PAUSE_MS));
        }
    }
}
