//! What is compared: the work, who does it, and what Tidings is to reach.

use std::path::Path;
use std::time::Duration;

use tidings_bench::connect::Connect;
use tidings_bench::fan::Fan;
use tidings_bench::idle::Idle;
use tidings_bench::latency::Latency;
use tidings_bench::publish::Publish;
use tidings_bench::queue::Queue;
use tidings_bench::replay::Replay;
use tidings_bench::stalled::Stalled;
use tidings_bench::wire::Sync;
use tidings_bench::{Figure, Target, Watch};

use crate::results::Row;
use crate::servers::Kind::{
    self, Beanstalkd, Blast, JetStream, Mosquitto, Naive, Nats, Redis, RedisStreams, Relay,
    Tidings, ZeroMq,
};

/// Names of figures, as the measurements give them.
pub(crate) const DELIVERIES: &str = "deliveries_per_second";
const TASKS: &str = "tasks_per_second";
const CPU_DELIVERIES: &str = "broker_cpu_us_per_1000_deliveries";
pub(crate) const GENERATOR: &str = "generator_cpus";
pub(crate) const PEAK: &str = "broker_peak_mib";

/// One line of the comparison.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Its name for `--only`.
    pub(crate) name: &'static str,
    /// What is done.
    pub(crate) title: &'static str,
    pub(crate) load: Load,
    /// When events of Tidings are confirmed.
    pub(crate) sync: Sync,
    /// In the order of their turns in a round.
    pub(crate) servers: &'static [Kind],
    /// What is shown of each server.
    pub(crate) shown: &'static [Shown],
    /// What Tidings is to reach.
    pub(crate) reach: &'static [Reach<Kind>],
}

/// The kind of a work, without the lengths, which are the same for all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    Fan {
        publishers: usize,
        subscribers: usize,
        window: u64,
    },
    /// Over sockets of ZeroMQ, those of Tidings, too: one publisher, who speaks to Tidings in
    /// lines.
    ZmqFan {
        subscribers: usize,
        window: u64,
    },
    Latency {
        subscribers: usize,
    },
    Idle,
    Publish {
        window: u64,
    },
    Queue {
        workers: usize,
        keys: u32,
    },
    Replay,
    Connect,
    Stalled,
}

/// A figure in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) key: &'static str,
    /// Behind the number.
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
    /// Whether it is shown in millions.
    pub(crate) millions: bool,
}

const fn millions(key: &'static str) -> Shown {
    Shown { key, unit: " M", digits: 2, millions: true }
}

pub(crate) const fn plain(key: &'static str, unit: &'static str, digits: usize) -> Shown {
    Shown { key, unit, digits, millions: false }
}

/// A bound on the ratio of Tidings to others, or on its figure alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach<K> {
    /// Its name where a work has several figures; else empty.
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) to: To<K>,
    pub(crate) bound: Bound,
}

/// What the figure is divided by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To<K> {
    /// The same figure of that server.
    Server(K),
    /// The same figure of the best of those that can be bought: all but the limits.
    BestPeer,
    /// Nothing.
    Itself,
}

/// What it has to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

pub(crate) const fn at_least<K: Copy>(key: &'static str, bound: f64, to: To<K>) -> Reach<K> {
    Reach { name: "", key, to, bound: Bound::AtLeast(bound) }
}

pub(crate) const fn at_most<K: Copy>(key: &'static str, bound: f64, to: To<K>) -> Reach<K> {
    Reach { name: "", key, to, bound: Bound::AtMost(bound) }
}

impl<K: Copy> Reach<K> {
    pub(crate) const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

const FAN: &[Shown] = &[millions(DELIVERIES), plain(CPU_DELIVERIES, " us", 0)];

/// Everything, in the order of the table.
pub(crate) const WORKS: &[Work] = &[
    Work {
        name: "fan-out-100",
        title: "1 publisher, 100 subscribers, deliveries/s, window 10,000 (CPU per 1,000)",
        load: Load::Fan { publishers: 1, subscribers: 100, window: 10_000 },
        sync: Sync::Always,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Naive, Relay, Blast],
        shown: FAN,
        reach: &[
            at_least(DELIVERIES, 3.0, To::Server(Nats)),
            at_least(DELIVERIES, 0.8, To::Server(Relay)),
        ],
    },
    Work {
        name: "fan-out-1000",
        title: "1 publisher, 1,000 subscribers, window 1,000",
        load: Load::Fan { publishers: 1, subscribers: 1000, window: 1000 },
        sync: Sync::Always,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay, Blast],
        shown: FAN,
        reach: &[
            at_least(DELIVERIES, 5.0, To::BestPeer),
            at_least(DELIVERIES, 0.8, To::Server(Relay)),
        ],
    },
    Work {
        name: "zmq-fan-out-100",
        title: "1 publisher, 100 subscribers of ZeroMQ (`--zmq-pub`), window 10,000",
        load: Load::ZmqFan { subscribers: 100, window: 10_000 },
        sync: Sync::Memory,
        servers: &[Tidings, ZeroMq],
        // The broker is not the process that sends.
        shown: &[millions(DELIVERIES)],
        reach: &[at_least(DELIVERIES, 0.5, To::Server(ZeroMq))],
    },
    Work {
        name: "fan-out-1",
        title: "1 publisher, 1 subscriber, window 10,000",
        load: Load::Fan { publishers: 1, subscribers: 1, window: 10_000 },
        sync: Sync::Memory,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        shown: FAN,
        reach: &[
            at_least(DELIVERIES, 2.0, To::Server(Nats)),
            at_least(DELIVERIES, 1.5, To::BestPeer),
        ],
    },
    Work {
        name: "fan-out-10",
        title: "1 publisher, 10 subscribers, window 10,000",
        load: Load::Fan { publishers: 1, subscribers: 10, window: 10_000 },
        sync: Sync::Memory,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        shown: FAN,
        reach: &[at_least(DELIVERIES, 2.0, To::Server(Nats))],
    },
    Work {
        name: "fan-in-10",
        title: "10 publishers, 1 subscriber, window 10,000",
        load: Load::Fan { publishers: 10, subscribers: 1, window: 10_000 },
        sync: Sync::Memory,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        shown: FAN,
        reach: &[at_least(DELIVERIES, 1.5, To::BestPeer)],
    },
    Work {
        name: "fan-in-100",
        title: "100 publishers, 1 subscriber, window 10,000",
        load: Load::Fan { publishers: 100, subscribers: 1, window: 10_000 },
        sync: Sync::Memory,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        shown: FAN,
        reach: &[at_least(DELIVERIES, 1.5, To::BestPeer)],
    },
    Work {
        name: "latency",
        title: "1,000 events/s to 100 subscribers, p50 / p99 / p99.9 (CPU per delivery)",
        load: Load::Latency { subscribers: 100 },
        sync: Sync::Always,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        shown: &[
            plain("p50_us", " us", 0),
            plain("p99_us", " us", 0),
            plain("p999_us", " us", 0),
            plain("broker_cpu_us_per_delivery", " us", 2),
        ],
        reach: &[
            at_most("p50_us", 1.0, To::Server(Relay)).named("p50"),
            at_most("p99_us", 1.0, To::Server(Relay)).named("p99"),
            at_most("broker_cpu_us_per_delivery", 1.0, To::Server(Relay)).named("CPU"),
        ],
    },
    Work {
        name: "idle",
        title: "10,000 idle subscribers: memory of each; one event to all, last one (CPU)",
        load: Load::Idle,
        sync: Sync::Always,
        servers: &[Tidings, Mosquitto, Redis, Nats, ZeroMq, Relay],
        shown: &[
            plain("kib_per_subscriber", " KiB", 2),
            plain("to_all_ms", " ms", 0),
            plain("broker_cpu_ms_per_event", " ms", 0),
        ],
        reach: &[
            at_most("kib_per_subscriber", 1.5, To::Itself).named("KiB"),
            at_most("to_all_ms", 1.1, To::Server(Relay)).named("last one"),
            at_most("broker_cpu_ms_per_event", 1.1, To::Server(Relay)).named("CPU"),
        ],
    },
    Work {
        name: "stalled",
        title: "one of ten subscribers stops reading: the others' rate before and after",
        load: Load::Stalled,
        sync: Sync::Always,
        servers: &[Tidings, Nats, Redis, ZeroMq, Mosquitto],
        shown: &[
            millions("others_before_per_second"),
            millions("others_after_per_second"),
            plain("broker_grown_mib", " MiB more", 0),
        ],
        reach: &[at_least("others_kept", 0.98, To::Itself).named("rate kept")],
    },
    Work {
        name: "connect",
        title: "connect, subscribe, close, cycles/s",
        load: Load::Connect,
        sync: Sync::Always,
        servers: &[Tidings, Redis, Mosquitto, Nats, Relay],
        shown: &[plain("cycles_per_second", "", 0)],
        reach: &[at_least("cycles_per_second", 1.0, To::Server(Redis))],
    },
    Work {
        name: "publish",
        title: "confirmed publishes/s, window 1,000",
        load: Load::Publish { window: 1000 },
        sync: Sync::Always,
        servers: &[Tidings, RedisStreams, JetStream],
        shown: &[
            millions("confirmed_per_second"),
            plain("part_of_bare_loop", " of a bare loop", 2),
        ],
        reach: &[
            at_least("confirmed_per_second", 1e6, To::Itself),
            at_least("part_of_bare_loop", 0.5, To::Itself).named("of a bare loop"),
        ],
    },
    Work {
        name: "queue",
        title: "tasks over 10,000 keys published, released to 4 workers and acknowledged, tasks/s \
                (CPU per task)",
        load: Load::Queue { workers: 4, keys: 10_000 },
        sync: Sync::Always,
        servers: &[Tidings, RedisStreams, JetStream, Beanstalkd],
        shown: &[plain(TASKS, "", 0), plain("broker_cpu_us_per_task", " us", 1)],
        reach: &[at_least(TASKS, 1.0, To::Server(RedisStreams))],
    },
    Work {
        name: "replay",
        title: "replay of 1 M stored events to one subscriber, events/s",
        load: Load::Replay,
        sync: Sync::Always,
        servers: &[Tidings, RedisStreams, JetStream],
        shown: &[millions("replayed_per_second")],
        reach: &[at_least("replayed_per_second", 1e7, To::Itself)],
    },
];

/// How long and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) run: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) idle: usize,
    pub(crate) replayed: u64,
}

/// What a measurement gave.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Figure>,
    /// What is no number.
    pub(crate) word: Option<String>,
}

impl Work {
    /// Its line of the table.
    pub(crate) fn row(&self) -> Row<'static, Kind> {
        let sync = if self.sync == Sync::Memory { ", in memory" } else { "" };
        Row {
            title: format!("{}{sync}", self.title),
            contestants: self.servers,
            shown: self.shown,
            reach: self.reach,
        }
    }
}

impl Load {
    /// Connections that subscribe.
    pub(crate) const fn subscribers(self) -> usize {
        match self {
            Self::Fan { subscribers, .. }
            | Self::ZmqFan { subscribers, .. }
            | Self::Latency { subscribers } => subscribers,
            _ => 0,
        }
    }

    /// Does it once; the bare loop beside Tidings only, and where that is on disk: once a round is
    /// enough.
    pub(crate) fn measure(
        self,
        target: Target<'_>,
        kind: Kind,
        lengths: Lengths,
        disk: Option<&Path>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Outcome> {
        let Lengths { run, warm_up, .. } = lengths;
        let figures = match self {
            Self::Fan { publishers, subscribers, window } => {
                let publishers = if kind == Blast { 0 } else { publishers };
                Fan { publishers, subscribers, window, run, runs: 1, warm_up }
                    .measure(target, watch)?
            }
            Self::ZmqFan { subscribers, window } => {
                Fan { publishers: 1, subscribers, window, run, runs: 1, warm_up }
                    .measure(target, watch)?
            }
            Self::Latency { subscribers } => {
                let run = run * 2;
                Latency { rate: 1000, subscribers, run, runs: 1, warm_up }.measure(target, watch)?
            }
            Self::Idle => Idle { subscribers: lengths.idle, events: 5 }.measure(target, watch)?,
            Self::Publish { window } => {
                let bare_loop = disk.filter(|_| kind == Tidings);
                Publish { publishers: 1, window, run, runs: 1, warm_up, bare_loop }
                    .measure(target, watch)?
            }
            Self::Queue { workers, keys } => {
                let (credit, window) = (1000, 20_000);
                Queue { workers, keys, credit, window, run, runs: 1, warm_up }
                    .measure(target, watch)?
            }
            Self::Replay => Replay { events: lengths.replayed, runs: 1 }.measure(target, watch)?,
            Self::Connect => Connect { run, runs: 1 }.measure(target, watch)?,
            Self::Stalled => {
                let stalled =
                    Stalled { publishers: 1, subscribers: 10, window: 10_000, run, warm_up };
                let (figures, end) = stalled.measure(target, watch)?;
                return Ok(Outcome { figures, word: Some(end.as_str().to_owned()) });
            }
        };
        Ok(Outcome { figures, word: None })
    }
}
