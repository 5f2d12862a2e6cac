//! The works of the comparison: the load, the servers that run it, and the goals of Tidings.

use std::path::Path;

use anyhow::Result;
use tidings_bench::connect::Connect;
use tidings_bench::idle::Idle;
use tidings_bench::latency::Latency;
use tidings_bench::replay::Replay;
use tidings_bench::stalled::Stalled;
use tidings_load::command::flags::RunFlags;
use tidings_load::command::protection::ProtectionFlags;
use tidings_load::command::{Benchmark, Outcome};
use tidings_load::fan::Fan;
use tidings_load::load::LoadSize;
use tidings_load::publish::Publish;
use tidings_load::queue::Queue;
use tidings_load::wire::Sync;
use tidings_load::{Progress, Target};

use crate::servers::ServerKind::{
    self, Beanstalkd, Blast, JetStream, Mosquitto, Naive, Nats, Redis, RedisStreams, Relay,
    Tidings, ZeroMq,
};

/// Keys of figures, as the measurements name them.
pub(crate) const DELIVERIES: &str = "deliveries_per_second";
const TASKS: &str = "tasks_per_second";
const CPU_DELIVERIES: &str = "broker_cpu_us_per_1000_deliveries";
pub(crate) const GENERATOR: &str = "generator_cpus";
pub(crate) const PEAK: &str = "broker_peak_mib";

/// One row of a comparison of the contestants `K` under the load `L`.
#[derive(Clone, Copy)]
pub(crate) struct Workload<K: 'static, L> {
    /// Its name for `--only`.
    pub(crate) name: &'static str,
    /// Its title in the table.
    pub(crate) title: &'static str,
    pub(crate) load: L,
    /// Contestants in the order of their turns in a round.
    pub(crate) contestants: &'static [K],
    /// Figures in the table, for each contestant.
    pub(crate) columns: &'static [Column],
    /// Goals of Tidings.
    pub(crate) goals: &'static [Goal<K>],
}

/// A work of brokers.
pub(crate) type BrokerWorkload = Workload<ServerKind, BrokerLoad>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BrokerLoad {
    pub(crate) kind: LoadKind,
    /// `sync=` of topics of Tidings.
    pub(crate) sync: Sync,
}

const fn always(kind: LoadKind) -> BrokerLoad {
    BrokerLoad { kind, sync: Sync::Always }
}

const fn in_memory(kind: LoadKind) -> BrokerLoad {
    BrokerLoad { kind, sync: Sync::Memory }
}

/// The kind of load. The durations are the same for all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadKind {
    Fan {
        publishers: u16,
        subscribers: u16,
        window: u64,
    },
    /// ZeroMQ subscribers, also of Tidings. One publisher, which uses the line protocol with
    /// Tidings.
    ZmqFan {
        subscribers: u16,
        window: u64,
    },
    Latency {
        subscribers: u16,
    },
    Idle,
    Publish {
        window: u64,
    },
    Queue {
        workers: u16,
        keys: u32,
    },
    Replay,
    Connect,
    Stalled,
}

/// A figure in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) key: &'static str,
    /// Text after the number.
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
    /// Whether it is shown in millions.
    pub(crate) is_in_millions: bool,
}

const fn millions(key: &'static str) -> Column {
    Column { key, unit: " M", digits: 2, is_in_millions: true }
}

pub(crate) const fn plain(key: &'static str, unit: &'static str, digits: usize) -> Column {
    Column { key, unit, digits, is_in_millions: false }
}

/// A bound on the ratio of Tidings to others, or on its figure alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Goal<K> {
    /// Its name if a work has several goals; else empty.
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) base: GoalBase<K>,
    pub(crate) bound: Bound,
}

/// The divisor of the figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GoalBase<K> {
    /// The same figure of this server.
    Server(K),
    /// The same figure of the best peer; the limits do not count.
    BestPeer,
    /// None: the figure counts alone.
    Absolute,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

pub(crate) const fn at_least<K: Copy>(key: &'static str, bound: f64, base: GoalBase<K>) -> Goal<K> {
    Goal { name: "", key, base, bound: Bound::AtLeast(bound) }
}

pub(crate) const fn at_most<K: Copy>(key: &'static str, bound: f64, base: GoalBase<K>) -> Goal<K> {
    Goal { name: "", key, base, bound: Bound::AtMost(bound) }
}

impl<K: Copy> Goal<K> {
    pub(crate) const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

const FAN: &[Column] = &[millions(DELIVERIES), plain(CPU_DELIVERIES, " us", 0)];

/// All works, in the order of the table.
pub(crate) const WORKLOADS: &[BrokerWorkload] = &[
    Workload {
        name: "fan-out-100",
        title: "1 publisher, 100 subscribers, deliveries/s, window 10,000 (CPU per 1,000)",
        load: always(LoadKind::Fan { publishers: 1, subscribers: 100, window: 10_000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Naive, Relay, Blast],
        columns: FAN,
        goals: &[
            at_least(DELIVERIES, 3.0, GoalBase::Server(Nats)),
            at_least(DELIVERIES, 0.8, GoalBase::Server(Relay)),
        ],
    },
    Workload {
        name: "fan-out-1000",
        title: "1 publisher, 1,000 subscribers, window 1,000",
        load: always(LoadKind::Fan { publishers: 1, subscribers: 1000, window: 1000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay, Blast],
        columns: FAN,
        goals: &[
            at_least(DELIVERIES, 5.0, GoalBase::BestPeer),
            at_least(DELIVERIES, 0.8, GoalBase::Server(Relay)),
        ],
    },
    Workload {
        name: "zmq-fan-out-100",
        title: "1 publisher, 100 subscribers of ZeroMQ (`--zmq-pub`), window 10,000, in memory",
        load: in_memory(LoadKind::ZmqFan { subscribers: 100, window: 10_000 }),
        contestants: &[Tidings, ZeroMq],
        // The process that sends is not that of the broker.
        columns: &[millions(DELIVERIES)],
        goals: &[at_least(DELIVERIES, 0.5, GoalBase::Server(ZeroMq))],
    },
    Workload {
        name: "fan-out-1",
        title: "1 publisher, 1 subscriber, window 10,000, in memory",
        load: in_memory(LoadKind::Fan { publishers: 1, subscribers: 1, window: 10_000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        columns: FAN,
        goals: &[
            at_least(DELIVERIES, 2.0, GoalBase::Server(Nats)),
            at_least(DELIVERIES, 1.5, GoalBase::BestPeer),
        ],
    },
    Workload {
        name: "fan-out-10",
        title: "1 publisher, 10 subscribers, window 10,000, in memory",
        load: in_memory(LoadKind::Fan { publishers: 1, subscribers: 10, window: 10_000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        columns: FAN,
        goals: &[at_least(DELIVERIES, 2.0, GoalBase::Server(Nats))],
    },
    Workload {
        name: "fan-in-10",
        title: "10 publishers, 1 subscriber, window 10,000, in memory",
        load: in_memory(LoadKind::Fan { publishers: 10, subscribers: 1, window: 10_000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        columns: FAN,
        goals: &[at_least(DELIVERIES, 1.5, GoalBase::BestPeer)],
    },
    Workload {
        name: "fan-in-100",
        title: "100 publishers, 1 subscriber, window 10,000, in memory",
        load: in_memory(LoadKind::Fan { publishers: 100, subscribers: 1, window: 10_000 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        columns: FAN,
        goals: &[at_least(DELIVERIES, 1.5, GoalBase::BestPeer)],
    },
    Workload {
        name: "latency",
        title: "1,000 events/s to 100 subscribers, p50 / p99 / p99.9 (CPU per delivery)",
        load: always(LoadKind::Latency { subscribers: 100 }),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto, Relay],
        columns: &[
            plain("p50_us", " us", 0),
            plain("p99_us", " us", 0),
            plain("p999_us", " us", 0),
            plain("broker_cpu_us_per_delivery", " us", 2),
        ],
        goals: &[
            at_most("p50_us", 1.0, GoalBase::Server(Relay)).named("p50"),
            at_most("p99_us", 1.0, GoalBase::Server(Relay)).named("p99"),
            at_most("broker_cpu_us_per_delivery", 1.0, GoalBase::Server(Relay)).named("CPU"),
        ],
    },
    Workload {
        name: "idle",
        title: "10,000 idle subscribers: memory of each; one event to all, last one (CPU)",
        load: always(LoadKind::Idle),
        contestants: &[Tidings, Mosquitto, Redis, Nats, ZeroMq, Relay],
        columns: &[
            plain("kib_per_subscriber", " KiB", 2),
            plain("to_all_ms", " ms", 0),
            plain("broker_cpu_ms_per_event", " ms", 0),
        ],
        goals: &[
            at_most("kib_per_subscriber", 1.5, GoalBase::Absolute).named("KiB"),
            at_most("to_all_ms", 1.1, GoalBase::Server(Relay)).named("last one"),
            at_most("broker_cpu_ms_per_event", 1.1, GoalBase::Server(Relay)).named("CPU"),
        ],
    },
    Workload {
        name: "stalled",
        title: "one of ten subscribers stops reading: the others' rate before and after",
        load: always(LoadKind::Stalled),
        contestants: &[Tidings, Nats, Redis, ZeroMq, Mosquitto],
        columns: &[
            millions("others_before_per_second"),
            millions("others_after_per_second"),
            plain("broker_grown_mib", " MiB more", 0),
        ],
        goals: &[at_least("others_kept", 0.98, GoalBase::Absolute).named("rate kept")],
    },
    Workload {
        name: "connect",
        title: "connect, subscribe, close, cycles/s",
        load: always(LoadKind::Connect),
        contestants: &[Tidings, Redis, Mosquitto, Nats, Relay],
        columns: &[plain("cycles_per_second", "", 0)],
        goals: &[at_least("cycles_per_second", 1.0, GoalBase::Server(Redis))],
    },
    Workload {
        name: "publish",
        title: "confirmed publishes/s, window 1,000",
        load: always(LoadKind::Publish { window: 1000 }),
        contestants: &[Tidings, RedisStreams, JetStream],
        columns: &[
            millions("confirmed_per_second"),
            plain("part_of_bare_loop", " of a bare loop", 2),
        ],
        goals: &[
            at_least("confirmed_per_second", 1e6, GoalBase::Absolute),
            at_least("part_of_bare_loop", 0.5, GoalBase::Absolute).named("of a bare loop"),
        ],
    },
    Workload {
        name: "queue",
        title: "tasks over 10,000 keys published, released to 4 workers and acknowledged, tasks/s \
                (CPU per task)",
        load: always(LoadKind::Queue { workers: 4, keys: 10_000 }),
        contestants: &[Tidings, RedisStreams, JetStream, Beanstalkd],
        columns: &[plain(TASKS, "", 0), plain("broker_cpu_us_per_task", " us", 1)],
        goals: &[at_least(TASKS, 1.0, GoalBase::Server(RedisStreams))],
    },
    Workload {
        name: "replay",
        title: "replay of 1 M stored events to one subscriber, events/s",
        load: always(LoadKind::Replay),
        contestants: &[Tidings, RedisStreams, JetStream],
        columns: &[millions("replayed_per_second")],
        goals: &[at_least("replayed_per_second", 1e7, GoalBase::Absolute)],
    },
];

/// Durations and amounts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLengths {
    pub(crate) length: RunFlags,
    pub(crate) idle_subscribers: u16,
    pub(crate) replayed: u64,
}

impl LoadKind {
    /// Number of subscribers.
    pub(crate) const fn subscribers(self) -> u16 {
        match self {
            Self::Fan { subscribers, .. }
            | Self::ZmqFan { subscribers, .. }
            | Self::Latency { subscribers } => subscribers,
            _ => 0,
        }
    }

    /// Runs the load once. The bare loop runs beside Tidings only, if that is on disk: once per
    /// round is enough.
    pub(crate) fn measure(
        self,
        target: Target<'_>,
        kind: ServerKind,
        lengths: RunLengths,
        disk: Option<&Path>,
        progress: Progress<'_>,
    ) -> Result<Outcome> {
        let RunLengths { length, .. } = lengths;
        let fan = |publishers, subscribers, window| Fan {
            size: LoadSize { publishers, subscribers, window },
            length,
        };
        match self {
            Self::Fan { publishers, subscribers, window } => {
                let publishers = if kind == Blast { 0 } else { publishers };
                fan(publishers, subscribers, window).measure(target, progress).map(Outcome::from)
            }
            Self::ZmqFan { subscribers, window } => {
                fan(1, subscribers, window).measure(target, progress).map(Outcome::from)
            }
            Self::Latency { subscribers } => {
                let length = RunFlags { seconds: length.seconds * 2, ..length };
                Latency { rate: 1000, subscribers, length }.measure(target, progress)
            }
            Self::Idle => {
                let (subscribers, guard) = (lengths.idle_subscribers, ProtectionFlags::default());
                Idle { subscribers, events: 5, guard }.measure(target, progress)
            }
            Self::Publish { window } => {
                let bare_loop = disk.filter(|_| kind == Tidings);
                let publish = Publish { publishers: 1, window, length };
                publish.measure_beside_loop(target, bare_loop, progress)
            }
            Self::Queue { workers, keys } => {
                let (credit, window) = (1000, 20_000);
                Queue { workers, keys, credit, window, length }.measure(target, progress)
            }
            Self::Replay => Replay { events: lengths.replayed, runs: 1 }.measure(target, progress),
            Self::Connect => Connect { length }.measure(target, progress),
            Self::Stalled => {
                let size = LoadSize { publishers: 1, subscribers: 10, window: 10_000 };
                let RunFlags { seconds, warm_up, .. } = length;
                Stalled { size, seconds, warm_up }.measure(target, progress)
            }
        }
    }
}
