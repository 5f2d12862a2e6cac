//! When a broker tries to lead. Pure: time is an argument, in ms of a clock of this machine that never
//! goes back.
//!
//! | nobody leads since | it tries |
//! |---|---|
//! | the leader has left, or there was none yet | at once |
//! | the address of the leader answers nobody | after 2 s |
//! | nothing was heard of the leader | after 5 s |
//!
//! Those that could lead try one after the other, 0.2 s apart, in the order of their names. No rule here
//! makes a leader unique: the shared log does.

use std::collections::BTreeMap;

use crate::message::{Kind, Slot};

/// How often a broker says that it lives, in ms.
pub const HEARTBEAT_MS: u64 = 500;

const SILENT_MS: u64 = 5_000;
const UNREACHABLE_MS: u64 = 2_000;
const RANK_MS: u64 = 200;

/// After its start a broker listens for that long, to know the others.
const LISTEN_MS: u64 = 2 * HEARTBEAT_MS;

/// The time from one try to the next.
const TRY_MS: u64 = 1_000;

/// What one broker knows of the seat of the leader.
#[derive(Debug)]
pub struct Seat {
    name: String,
    started: u64,
    epoch: Slot,
    /// Since when nobody leads, as the log says.
    vacant: Option<u64>,
    /// The last sign of life of the leader.
    heard: u64,
    /// Since when nobody answers at the leader's address.
    unreachable: Option<u64>,
    tried: Option<u64>,
    /// When each other broker was heard of last.
    others: BTreeMap<String, u64>,
    leader: Option<String>,
}

impl Seat {
    /// The seat as a broker of that name knows it at its start.
    pub fn new(name: &str, now: u64) -> Self {
        Self {
            name: name.to_owned(),
            started: now,
            epoch: Slot(0),
            vacant: Some(now),
            heard: now,
            unreachable: None,
            tried: None,
            others: BTreeMap::new(),
            leader: None,
        }
    }

    /// A message that counts was read from the log, in the term of that epoch.
    pub fn read(&mut self, now: u64, kind: Kind, epoch: Slot) {
        match kind {
            Kind::Founded => {}
            Kind::Opened => {
                (self.epoch, self.vacant, self.unreachable, self.leader) =
                    (epoch, None, None, None);
            }
            Kind::Frames => self.unreachable = None,
            Kind::Left => self.vacant = Some(now),
        }
        self.heard = now;
    }

    /// Another broker has said that it lives, and in which epoch it leads if it does.
    pub fn heartbeat(&mut self, now: u64, name: &str, leads: Option<Slot>) {
        if name == self.name {
            return;
        }
        self.others.insert(name.to_owned(), now);
        // A deposed leader may not know it yet; one that has just opened may be ahead of this reader.
        if leads.is_some_and(|epoch| epoch >= self.epoch) {
            self.heard = now;
            self.leader = Some(name.to_owned());
        }
    }

    /// Whether somebody answers at the address of the leader.
    pub fn answers(&mut self, now: u64, is_answered: bool) {
        self.unreachable = if is_answered { None } else { self.unreachable.or(Some(now)) };
    }

    /// This broker has tried to lead.
    pub fn tried(&mut self, now: u64) {
        self.tried = Some(now);
    }

    /// When to try to lead, if nothing else is heard. Only a broker that has read the log to its end
    /// can succeed.
    pub fn due(&self, now: u64) -> u64 {
        let vacant = self.vacant.map(|since| since.max(self.started + LISTEN_MS));
        let unreachable = self.unreachable.map(|since| since + UNREACHABLE_MS);
        let first =
            [vacant, unreachable].into_iter().flatten().fold(self.heard + SILENT_MS, u64::min);
        let again = self.tried.map_or(0, |tried| tried + TRY_MS);
        (first + self.rank(now) * RANK_MS).max(again)
    }

    /// How many living brokers that do not lead come before this one.
    fn rank(&self, now: u64) -> u64 {
        let is_alive = |heard: u64| heard + SILENT_MS > now;
        let before = self.others.range(..self.name.clone());
        let before =
            before.filter(|(name, heard)| is_alive(**heard) && self.leader.as_ref() != Some(*name));
        before.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use tidings_log::simulation::seeds;

    use super::*;

    /// A network with three brokers and the log, in which nothing takes longer than 300 ms.
    struct World {
        rng: Rng,
        now: u64,
        brokers: Vec<Broker>,
        /// What arrives, at which time, at whom.
        under_way: Vec<(u64, usize, News)>,
        /// The epochs of the log.
        slots: u64,
        /// Each term: when it began, and who led.
        terms: Vec<(u64, usize)>,
    }

    struct Broker {
        /// When it reads the newest message of the log, which it reads in order.
        reads_at: u64,
        seat: Seat,
        leads: Option<Slot>,
        is_alive: bool,
    }

    #[derive(Clone)]
    enum News {
        Heartbeat(String, Option<Slot>),
        Read(Kind, Slot),
        /// The answer to an attempt that succeeded.
        Leads(Slot),
    }

    impl World {
        fn new(seed: u64) -> Self {
            let mut rng = Rng::with_seed(seed);
            let name = |number| format!("n{number}");
            let brokers = (0..3)
                .map(|number| Broker {
                    reads_at: 0,
                    seat: Seat::new(&name(number), rng.u64(0..1_000)),
                    leads: None,
                    is_alive: true,
                })
                .collect();
            Self { rng, now: 1_000, brokers, under_way: Vec::new(), slots: 1, terms: Vec::new() }
        }

        fn say(&mut self, to: usize, news: News) {
            let at = self.now + self.rng.u64(1..300);
            self.under_way.push((at, to, news));
        }

        /// A message is in the log.
        fn log(&mut self, kind: Kind, epoch: Slot) {
            for to in 0..3 {
                let at = (self.now + self.rng.u64(1..300)).max(self.brokers[to].reads_at);
                self.brokers[to].reads_at = at;
                self.under_way.push((at, to, News::Read(kind, epoch)));
            }
        }

        fn step(&mut self) {
            self.now += 50;
            let due = self.under_way.extract_if(.., |(at, ..)| *at <= self.now);
            for (_, to, news) in due.collect::<Vec<_>>() {
                let broker = &mut self.brokers[to];
                match news {
                    News::Heartbeat(name, leads) => broker.seat.heartbeat(self.now, &name, leads),
                    News::Read(kind, epoch) => {
                        broker.seat.read(self.now, kind, epoch);
                        broker.leads = broker.leads.filter(|own| *own >= epoch);
                    }
                    News::Leads(epoch) => broker.leads = Some(epoch),
                }
            }
            for at in 0..3 {
                if !self.brokers[at].is_alive {
                    continue;
                }
                if self.now.is_multiple_of(HEARTBEAT_MS) {
                    let news = News::Heartbeat(format!("n{at}"), self.brokers[at].leads);
                    for to in (0..3).filter(|to| *to != at) {
                        // Some are lost.
                        if self.rng.u32(..10) > 0 {
                            self.say(to, news.clone());
                        }
                    }
                }
                let broker = &mut self.brokers[at];
                if broker.leads.is_none() && broker.seat.due(self.now) <= self.now {
                    broker.seat.tried(self.now);
                    // It knows the newest epoch, or its attempt is refused.
                    if broker.seat.epoch.0 + 1 == self.slots || self.slots == 1 {
                        self.open(at);
                    }
                }
            }
        }

        fn open(&mut self, at: usize) {
            let epoch = Slot(self.slots);
            self.slots += 1;
            self.terms.push((self.now, at));
            self.say(at, News::Leads(epoch));
            self.log(Kind::Opened, epoch);
        }

        fn run_until(&mut self, end: u64) {
            while self.now < end {
                self.step();
            }
        }
    }

    #[test]
    fn a_leader_that_lives_keeps_its_seat_and_a_dead_one_is_replaced() {
        for seed in seeds("SEAT", 100) {
            let mut world = World::new(seed);
            world.run_until(5_000);
            let problem = |what: &str| format!("{what}; again with TIDINGS_SEAT_SEED={seed}");
            assert_eq!(world.terms.len(), 1, "{}", problem("the first leader"));
            world.run_until(600_000);
            assert_eq!(world.terms.len(), 1, "{}", problem("nobody had a reason"));
            let leader = world.terms[0].1;
            let leaves = world.rng.bool();
            if leaves {
                world.brokers[leader].leads = None;
                world.log(Kind::Left, Slot(1));
            } else {
                world.brokers[leader].is_alive = false;
            }
            let (began, limit) = (world.now, if leaves { 1_000 } else { 6_500 });
            world.run_until(began + 60_000);
            let terms = &world.terms[1..];
            assert_eq!(terms.len(), 1, "{} {terms:?}", problem("one takes over"));
            assert!(terms[0].0 <= began + limit, "{} {terms:?}", problem("it takes too long"));
        }
    }

    #[test]
    fn an_address_that_answers_nobody_is_a_reason_after_two_seconds() {
        let mut seat = Seat::new("b", 0);
        seat.read(1_000, Kind::Opened, Slot(2));
        seat.heartbeat(1_000, "a", Some(Slot(2)));
        assert_eq!(seat.due(1_000), 6_000);
        seat.answers(1_100, false);
        seat.answers(1_900, false);
        assert_eq!(seat.due(2_000), 3_100);
        seat.answers(2_500, true);
        assert_eq!(seat.due(2_500), 6_000);
        // Those that are alive and come before it try first; the leader and itself are none of them.
        seat.heartbeat(2_600, "aa", None);
        seat.heartbeat(2_600, "c", None);
        seat.heartbeat(2_600, "b", Some(Slot(9)));
        assert_eq!(seat.due(2_600), 6_200);
        seat.tried(6_200);
        assert_eq!(seat.due(6_200), 7_200);
        // A deposed leader that does not know it yet says nothing about the seat.
        seat.read(6_300, Kind::Opened, Slot(7));
        seat.heartbeat(9_000, "a", Some(Slot(2)));
        assert_eq!(seat.due(9_000), 11_300 + RANK_MS);
    }
}
