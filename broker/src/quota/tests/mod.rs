//! For any sequence of connections and actions, an account contains exactly what its connections
//! use, never exceeds its limits, and keeps its rates over any period.

mod at_once;

use std::collections::HashSet;
use std::net::IpAddr;

use proptest::prelude::*;

use super::usage::PAUSE_MS_MAX;
use super::*;

/// The limit of every held quantity in these tests.
const MAX: u64 = 5;

fn quotas(source: Quota, principal: Quota) -> Quotas {
    Quotas::new(&QuotaConfig { source, principal, counts_loopback: false })
}

fn small_quota() -> Quota {
    let held = Quantity::ALL.into_iter().filter(|quantity| quantity.is_held());
    held.fold(Quota::UNLIMITED, |quota, quantity| quota.with(quantity, MAX))
}

fn address(number: u8) -> IpAddr {
    [192, 0, 2, number].into()
}

fn topic(number: u8) -> Created {
    Created::Topic(format!("t{number}").parse().unwrap())
}

#[derive(Debug, Clone)]
enum Step {
    Connect(u8),
    LogIn(usize, Option<u8>),
    Set(usize, usize, u64),
    Credit(usize, u8, u32),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_u8).prop_map(Step::Connect),
        2 => (0..9_usize, prop::option::of(0..2_u8)).prop_map(|(at, who)| Step::LogIn(at, who)),
        4 => (0..9_usize, 0..3_usize, 0..=MAX + 1).prop_map(|(at, what, to)| Step::Set(at, what, to)),
        2 => (0..9_usize, 0..2_u8, 0..4_u32).prop_map(|(at, group, to)| Step::Credit(at, group, to)),
        2 => (0..9_usize).prop_map(Step::End),
    ]
}

/// A connection as the test sees it.
#[derive(Debug, Default)]
struct Model {
    source: u8,
    name: Option<u8>,
    amounts: [u64; 3],
    credits: [u64; 2],
}

const HELD: [Quantity; 3] =
    [Quantity::Subscriptions, Quantity::BufferedBytes, Quantity::Connections];

impl Model {
    fn has(&self, quantity: Quantity) -> u64 {
        match quantity {
            Quantity::Connections => 1,
            Quantity::Subscriptions => self.amounts[0],
            Quantity::BufferedBytes => self.amounts[1],
            Quantity::Credit => self.credits.iter().sum(),
            _ => 0,
        }
    }
}

proptest! {
    #[test]
    fn an_account_holds_the_sum_of_its_connections_within_its_limits(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let quotas = quotas(small_quota(), small_quota());
        let mut open: Vec<(Usage, Model)> = Vec::new();
        for step in steps {
            let sum = |open: &[(Usage, Model)], of: &dyn Fn(&Model) -> bool, quantity| -> u64 {
                open.iter().filter(|(_, model)| of(model)).map(|(_, model)| model.has(quantity)).sum()
            };
            // Whether this increase fits into the quotas of its source and its principal.
            let fits = |open: &[(Usage, Model)], at: usize, quantity, more: u64| {
                let model = &open[at].1;
                let of_source = sum(open, &|other| other.source == model.source, quantity);
                let of_name = sum(open, &|other| other.name == model.name, quantity);
                of_source + more <= MAX && (model.name.is_none() || of_name + more <= MAX)
            };
            match step {
                Step::Connect(from) => {
                    let connected = sum(&open, &|model| model.source == from, Quantity::Connections);
                    match quotas.begin_connection(Some(address(from)), Moment(0)) {
                        Ok(held) => {
                            prop_assert!(connected < MAX);
                            open.push((held, Model { source: from, ..Model::default() }));
                        }
                        Err(error) => {
                            prop_assert_eq!(error.code, Code::Limit);
                            prop_assert_eq!(connected, MAX);
                        }
                    }
                }
                Step::LogIn(at, who) if at < open.len() => {
                    let name = who.map(|who| format!("p{who}"));
                    let same = open[at].1.name == who;
                    let fits = who.is_none() || same || Quantity::ALL.into_iter().all(|quantity| {
                        let has = sum(&open, &|model| model.name == who, quantity);
                        has + open[at].1.has(quantity) <= MAX
                    });
                    let assigned = quotas.assign_principal(&mut open[at].0, name.as_deref());
                    prop_assert_eq!(assigned.is_ok(), fits);
                    if fits {
                        open[at].1.name = who;
                    }
                }
                Step::Set(at, what @ ..2, to) if at < open.len() => {
                    let quantity = HELD[what];
                    let before = open[at].1.amounts[what];
                    let fits = to <= before || fits(&open, at, quantity, to - before);
                    let set = open[at].0.as_mut().unwrap().set(quantity, to);
                    prop_assert_eq!(set.is_ok(), fits);
                    if fits {
                        open[at].1.amounts[what] = to;
                    }
                }
                Step::Credit(at, group, to) if at < open.len() => {
                    let before = open[at].1.credits[usize::from(group)];
                    let to_sum = u64::from(to);
                    let fits = to_sum <= before || fits(&open, at, Quantity::Credit, to_sum - before);
                    let name = format!("g{group}").parse().unwrap();
                    let set = open[at].0.as_mut().unwrap().set_credit(&name, to);
                    prop_assert_eq!(set.is_ok(), fits);
                    if fits {
                        open[at].1.credits[usize::from(group)] = to_sum;
                    }
                }
                Step::End(at) if at < open.len() => drop(open.swap_remove(at)),
                _ => {}
            }
        }
        open.clear();
        quotas.tick(&|_| false, Moment(0));
        prop_assert!(quotas.sources.is_empty(), "an ended connection uses nothing");
        prop_assert!(quotas.principals.is_empty());
    }

    #[test]
    fn no_period_exceeds_the_rate_by_more_than_a_second(
        per_second in 1..2_000_u64,
        batches in prop::collection::vec((0..2_000_u64, 1..3_000_u64), 1..100),
    ) {
        let quotas = quotas(Quota::UNLIMITED.with(Quantity::Events, per_second), Quota::UNLIMITED);
        let mut held = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
        let held = held.as_mut().unwrap();
        let (mut now, mut done) = (0, Vec::new());
        for (pause_ms, events) in batches {
            now += pause_ms;
            held.resume(Moment(now));
            while let Some(until) = held.paused_until() {
                let pause_ms = until.0 - std::mem::replace(&mut now, until.0);
                held.resume(until);
                let is_exact = held.paused_until().is_none() || pause_ms == PAUSE_MS_MAX;
                prop_assert!(is_exact, "the pause was exact, or at its limit");
            }
            held.count_published(events);
            held.charge(0, Moment(now));
            done.push((now, events));
        }
        for (first, (from, _)) in done.iter().enumerate() {
            let mut sum = 0;
            for (to, events) in &done[first..] {
                // The last batch is charged after it has arrived.
                let max = per_second + per_second * (to - from + 1) / 1_000 + done.len() as u64;
                prop_assert!(sum <= max, "{} by {} from {}", sum, to, from);
                sum += events;
            }
        }
    }
}

#[test]
fn created_things_count_until_they_are_gone() {
    let quotas = quotas(small_quota(), Quota::UNLIMITED);
    let mut held = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
    let mut existing: HashSet<Created> = HashSet::new();
    let holding = held.as_mut().unwrap();
    for number in 0..5 {
        holding.create(&topic(number), &|made| existing.contains(made)).unwrap();
        existing.insert(topic(number));
    }
    let refused = holding.create(&topic(5), &|made| existing.contains(made)).unwrap_err();
    assert_eq!(refused.code, Code::Limit);
    holding.create(&topic(0), &|made| existing.contains(made)).expect("it exists already");
    let job = Created::Job("g".parse().unwrap(), "j".parse().unwrap());
    holding.create(&job, &|made| existing.contains(made)).expect("each kind has its own limit");
    drop(held);
    quotas.tick(&|made| existing.contains(made), Moment(0));
    let mut again = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
    let holding = again.as_mut().unwrap();
    assert!(
        holding.create(&topic(5), &|made| existing.contains(made)).is_err(),
        "also after a new connection"
    );
    existing.remove(&topic(3));
    holding.create(&topic(5), &|made| existing.contains(made)).expect("one is gone");
}

#[test]
fn new_connections_are_limited_per_minute() {
    let quotas = quotas(Quota::UNLIMITED.with(Quantity::Connects, 60), Quota::UNLIMITED);
    let connects = |from, at| quotas.begin_connection(Some(address(from)), Moment(at)).is_ok();
    assert_eq!((0..100).filter(|_| connects(1, 0)).count(), 15, "a quarter at once");
    assert!(connects(2, 0), "another address");
    assert_eq!((0..60).filter(|second| connects(1, second * 1_000 + 1_000)).count(), 60);
    quotas.tick(&|_| false, Moment(61_000));
    assert!(!quotas.sources.is_empty(), "the rate of the source is remembered");
    quotas.tick(&|_| false, Moment(200_000));
    assert!(quotas.sources.is_empty());
}

#[test]
fn a_changed_limit_applies_at_once_to_open_connections() {
    let quotas = quotas(small_quota(), small_quota());
    let mut held = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
    quotas.assign_principal(&mut held, Some("alice")).unwrap();
    let set = |held: &mut Usage, to| {
        held.as_mut().unwrap().set(Quantity::Subscriptions, to).map_err(|error| error.code)
    };
    set(&mut held, MAX).unwrap();
    let of = |max| small_quota().with(Quantity::Subscriptions, max);
    let change = |source, principal| {
        quotas.set_limits(&QuotaConfig { source, principal, counts_loopback: false });
    };
    change(of(MAX + 1), of(MAX + 2));
    set(&mut held, MAX + 1).unwrap();
    assert_eq!(set(&mut held, MAX + 2), Err(Code::Limit), "the limit of the source");
    change(Quota::UNLIMITED, of(MAX + 2));
    set(&mut held, MAX + 2).unwrap();
    assert_eq!(set(&mut held, MAX + 3), Err(Code::Limit), "the limit of the principal");
    // Below what is held: the connection keeps that, and gets no more until it has less.
    change(of(2), of(2));
    assert_eq!(set(&mut held, MAX + 3), Err(Code::Limit));
    // Another connection of the same source and principal may use what is left of other quantities.
    let mut newcomer = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
    quotas.assign_principal(&mut newcomer, Some("alice")).unwrap();
    assert_eq!(set(&mut newcomer, 1), Err(Code::Limit));
    newcomer.as_mut().unwrap().set(Quantity::BufferedBytes, MAX).unwrap();
    drop(newcomer);
    set(&mut held, 1).unwrap();
    set(&mut held, 2).unwrap();
    assert_eq!(set(&mut held, 3), Err(Code::Limit));
    // What was not counted when it began is not counted later, and what was counted is given back.
    change(Quota::UNLIMITED, Quota::UNLIMITED);
    let mut uncounted = quotas.begin_connection(Some(address(2)), Moment(0)).unwrap();
    change(small_quota(), small_quota());
    assert!(uncounted.is_none());
    quotas.assign_principal(&mut uncounted, Some("alice")).unwrap();
    drop((held, uncounted));
    quotas.tick(&|_| false, Moment(0));
    assert!(quotas.sources.is_empty() && quotas.principals.is_empty());
}

#[test]
fn a_debt_at_a_changed_rate_is_forgotten() {
    let of = |quantity| Quota::UNLIMITED.with(quantity, 1);
    let quotas = quotas(of(Quantity::Events), of(Quantity::Bytes));
    let change = |source, principal| {
        quotas.set_limits(&QuotaConfig { source, principal, counts_loopback: false });
    };
    let mut held = quotas.begin_connection(Some(address(1)), Moment(0)).unwrap();
    quotas.assign_principal(&mut held, Some("alice")).unwrap();
    let held = held.as_mut().unwrap();
    held.count_published(600);
    held.charge(300, Moment(0));
    assert_eq!(held.wait_ms(Moment(0)), 599_000, "the debt of the source");
    assert_eq!(held.paused_until(), Some(Moment(PAUSE_MS_MAX)), "then it is computed again");
    change(of(Quantity::Events).with(Quantity::Topics, 1), of(Quantity::Bytes));
    assert_eq!(held.wait_ms(Moment(0)), 599_000, "another limit has changed");
    change(Quota::UNLIMITED, of(Quantity::Bytes));
    assert_eq!(held.wait_ms(Moment(0)), 299_000, "the debt of the principal");
    change(Quota::UNLIMITED, Quota::UNLIMITED.with(Quantity::Bytes, 2));
    held.resume(Moment(PAUSE_MS_MAX));
    assert_eq!(held.paused_until(), None);
}

#[test]
fn a_raised_connection_rate_applies_at_once() {
    let quotas = quotas(Quota::UNLIMITED.with(Quantity::Connects, 1), Quota::UNLIMITED);
    let connects = || quotas.begin_connection(Some(address(1)), Moment(0)).is_ok();
    assert!(connects() && !connects());
    let source = Quota::UNLIMITED.with(Quantity::Connects, 60);
    quotas.set_limits(&QuotaConfig { source, principal: Quota::UNLIMITED, counts_loopback: false });
    assert!(connects());
}

#[test]
fn loopback_is_counted_only_if_configured() {
    let one = Quota::UNLIMITED.with(Quantity::Connections, 1);
    for (counts_loopback, second) in [(false, true), (true, false)] {
        let (source, principal) = (one.clone(), Quota::UNLIMITED);
        let quotas = Quotas::new(&QuotaConfig { source, principal, counts_loopback });
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let own = Some(own.parse().unwrap());
            let _first = quotas.begin_connection(own, Moment(0)).unwrap();
            assert_eq!(quotas.begin_connection(own, Moment(0)).is_ok(), second, "{own:?}");
        }
        assert!(
            quotas.begin_connection(None, Moment(0)).unwrap().is_none(),
            "a unix socket has no address"
        );
    }
}

#[test]
fn remembered_addresses_are_bounded() {
    let quotas = quotas(Quota::source_default(), Quota::principal_default());
    for number in 0..50_000_u32 {
        let from = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        drop(quotas.begin_connection(Some(from), Moment(0)).unwrap());
        assert!(quotas.sources.len() <= SOURCES_MAX);
    }
}
