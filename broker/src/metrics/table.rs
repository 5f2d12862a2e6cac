//! The list of all metrics.

use tidings_metrics::{Metric, Samples};
use tidings_protocol::{Code, FailureReason, Verb};
use tidings_queue::queries::metrics::GroupMetrics;

use super::snapshot::{Connections, Snapshot, TopicMetrics};
use crate::access::Transport;
use crate::groups::{PublishedMetrics, StopReason};
use crate::stats::RequestCounts;
use crate::topic::Health;

/// The classes of HTTP statuses, as labels.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Why a topic may reject events, as labels.
const REFUSALS: [(&str, Health); 2] = [("full", Health::Full), ("sync-failed", Health::Failed)];

/// The states of jobs, as labels in the order of [`GroupMetrics::jobs`].
const JOB_STATES: [&str; 3] = ["open", "closed", "done"];

/// The label of a reason that is not in the list.
const OTHER_REASON: &str = "other";

const GROUP: &[&str] = &["group"];

const TOPIC: &[&str] = &["topic"];

/// What `GET /metrics` always shows.
pub(crate) static BROKER: &[Metric<Snapshot>] = &[
    // Connections.
    Metric::gauge("tidings_connections", &["way"], "Open connections.", |it, out| {
        each_way(it, out, |one| one.open);
    }),
    Metric::counter(
        "tidings_connections_opened_total",
        &["way"],
        "Connections that were accepted.",
        |it, out| each_way(it, out, |one| one.opened),
    ),
    Metric::counter(
        "tidings_connections_refused_total",
        &[],
        "Connections that were refused because there were too many.",
        |it, out| out.value(it.stats.rejected_connections.value()),
    ),
    Metric::counter(
        "tidings_logins_failed_total",
        &[],
        "Logins with a wrong token, or with one that is not allowed there.",
        |it, out| out.value(it.stats.failed_logins.value()),
    ),
    Metric::counter(
        "tidings_lines_total",
        &[],
        "Lines that were received, and HTTP requests.",
        |it, out| out.value(it.stats.lines.value()),
    ),
    Metric::counter(
        "tidings_refused_lines_total",
        &[],
        "Lines and HTTP requests that were refused or dropped.",
        |it, out| out.value(it.stats.refused_lines.value()),
    ),
    Metric::counter("tidings_commands_total", &["verb"], "Commands by their verb.", |it, out| {
        for (verb, count) in Verb::ALL.iter().zip(&it.stats.commands) {
            out.labelled(&[verb.as_str()], count.value());
        }
    }),
    Metric::counter(
        "tidings_refusals_total",
        &["code"],
        "Refusals of the line protocol by their code.",
        |it, out| {
            for (code, count) in Code::ALL.iter().zip(&it.stats.refusals) {
                out.labelled(&[code.as_str()], count.value());
            }
        },
    ),
    Metric::counter(
        "tidings_received_bytes_total",
        &[],
        "Bytes that were received over the line protocol.",
        |it, out| out.value(it.stats.bytes_in.value()),
    ),
    Metric::counter(
        "tidings_sent_bytes_total",
        &[],
        "Bytes that were sent over the line protocol.",
        |it, out| out.value(it.stats.bytes_out.value()),
    ),
    // HTTP, and what comes in by it.
    Metric::counter(
        "tidings_http_requests_total",
        &["class"],
        "HTTP requests by the class of the status of their response.",
        |it, out| {
            for (class, count) in CLASSES.iter().zip(&it.stats.responses) {
                out.labelled(&[class], count.value());
            }
        },
    ),
    Metric::histogram(
        "tidings_http_request_duration_seconds",
        &[],
        "Time from an HTTP request to the head of its response.",
        |it, out| out.durations(&[], it.stats.response_times.durations()),
    ),
    Metric::counter(
        "tidings_webhooks_total",
        &["what"],
        "Webhooks that were accepted, from unknown senders, or beyond a rate limit.",
        |it, out| each_request(&it.stats.webhooks, out),
    ),
    Metric::counter(
        "tidings_notices_total",
        &["what"],
        "Notices of hubs that were accepted, from unknown senders, or beyond a rate limit.",
        |it, out| each_request(&it.stats.receiver_requests, out),
    ),
    // Events.
    Metric::counter(
        "tidings_events_published_total",
        &[],
        "Events that clients published.",
        |it, out| out.value(it.stats.events.value()),
    ),
    Metric::counter(
        "tidings_events_delivered_total",
        &[],
        "Events that were handed to subscriptions of the line protocol.",
        |it, out| out.value(it.stats.delivered.value()),
    ),
    Metric::counter(
        "tidings_lag_notices_total",
        &[],
        "LAG notices: a subscriber missed events.",
        |it, out| out.value(it.stats.lags.value()),
    ),
    Metric::gauge("tidings_topics", &[], "Topics.", |it, out| {
        out.value(it.topics.len() as u64);
    }),
    Metric::gauge("tidings_topics_refusing", &["why"], "Topics that reject events.", |it, out| {
        for (why, health) in REFUSALS {
            let refusing = it.topics.iter().filter(|topic| topic.stats.health == health);
            out.labelled(&[why], refusing.count() as u64);
        }
    }),
    Metric::gauge(
        "tidings_readers",
        &[],
        "Subscriptions and groups that read a topic.",
        |it, out| out.value(sum_topics(it, |topic| topic.stats.readers as u64)),
    ),
    Metric::gauge(
        "tidings_unsafe_bytes",
        &[],
        "Bytes of events that wait to be written to the disk.",
        |it, out| out.value(sum_topics(it, |topic| topic.stats.waiting_bytes as u64)),
    ),
    Metric::gauge(
        "tidings_cursor_behind_events_max",
        &[],
        "Events that the durable cursor furthest behind has to read.",
        |it, out| {
            let behind = it.topics.iter().map(|topic| topic.cursor_behind_max);
            out.value(behind.max().unwrap_or(0));
        },
    ),
    Metric::gauge(
        "tidings_cursor_kept_events_min",
        &[],
        "Events that retention may delete before a durable cursor misses one, if one is behind.",
        |it, out| out.value(it.topics.iter().filter_map(|topic| topic.cursor_kept_min).min()),
    ),
    // Disk.
    Metric::histogram(
        "tidings_commit_duration_seconds",
        &[],
        "Time to write a batch to the disk, with the sync if it needs one.",
        |it, out| {
            if let Some(commits) = it.commits {
                out.durations(&[], commits);
            }
        },
    ),
    Metric::gauge("tidings_log_bytes", &["of"], "Bytes of the logs.", |it, out| {
        out.labelled(&["topics"], sum_topics(it, |topic| topic.stats.log_bytes));
        out.labelled(&["groups"], it.group_log_bytes);
    }),
    Metric::gauge(
        "tidings_disk_free_bytes",
        &[],
        "Bytes that are free on the disk of the data directory.",
        |it, out| out.value(it.disk.map(|disk| disk.free)),
    ),
    Metric::gauge(
        "tidings_disk_reserve_bytes",
        &[],
        "Free bytes below which events are rejected.",
        |it, out| out.value(it.disk.map(|disk| disk.reserve())),
    ),
    Metric::gauge(
        "tidings_damaged_groups",
        &[],
        "Groups with a damaged log, which reject work.",
        |it, out| out.value(it.damaged_groups.len() as u64),
    ),
    Metric::counter(
        "tidings_audit_lost_records_total",
        &[],
        "Audit records that were dropped because the disk was slow or full.",
        |it, out| out.value(it.audit_lost),
    ),
    Metric::gauge(
        "tidings_tls_certificate_not_after_seconds",
        &[],
        "When the certificate of the broker expires, in seconds since 1970.",
        |it, out| out.value(it.certificate_expiry_unix_s),
    ),
    // Groups.
    Metric::gauge(
        "tidings_group_waiting_entries",
        GROUP,
        "Entries that no worker holds.",
        |it, out| each_group(it, out, |group| group.waiting),
    ),
    Metric::gauge(
        "tidings_group_processing_entries",
        GROUP,
        "Entries that workers hold.",
        |it, out| each_group(it, out, |group| group.processing),
    ),
    Metric::gauge("tidings_group_dead_entries", GROUP, "Dead letters that are kept.", |it, out| {
        each_group(it, out, |group| group.dead_kept);
    }),
    Metric::gauge("tidings_group_scheduled_urls", GROUP, "URLs with a schedule.", |it, out| {
        each_group(it, out, |group| group.scheduled);
    }),
    Metric::gauge("tidings_group_members", GROUP, "Connected workers.", |it, out| {
        each_group(it, out, |group| group.members);
    }),
    Metric::gauge(
        "tidings_group_credit",
        GROUP,
        "Tasks that the workers may receive now.",
        |it, out| each_group(it, out, |group| group.credit),
    ),
    Metric::gauge("tidings_group_keys", GROUP, "Keys (hosts) in memory.", |it, out| {
        each_group(it, out, |group| group.keys);
    }),
    Metric::gauge(
        "tidings_group_keys_down",
        GROUP,
        "Keys (hosts) that do not answer and have entries waiting.",
        |it, out| each_group(it, out, |group| group.keys_down),
    ),
    Metric::gauge(
        "tidings_group_ready_keys",
        GROUP,
        "Keys (hosts) that only wait for a worker.",
        |it, out| each_group(it, out, |group| group.ready_keys),
    ),
    Metric::gauge(
        "tidings_group_starved_seconds",
        GROUP,
        "For how long a key has always been waiting for a worker.",
        |it, out| {
            each_published(it, |name, metrics| {
                let since = metrics.starved_since.unwrap_or(it.now);
                out.labelled(&[name], it.now.since(since) / 1000);
            });
        },
    ),
    Metric::gauge(
        "tidings_group_behind_events",
        GROUP,
        "Events of its topics that the group has not consumed.",
        |it, out| each_published(it, |name, metrics| out.labelled(&[name], metrics.behind)),
    ),
    Metric::gauge(
        "tidings_group_stopped",
        &["group", "why"],
        "1 while the group releases nothing for this reason.",
        |it, out| {
            each_published(it, |name, metrics| {
                for (why, count) in StopReason::ALL.iter().zip(metrics.stopped) {
                    out.labelled(&[name, why.as_str()], count);
                }
            });
        },
    ),
    Metric::counter(
        "tidings_group_answers_total",
        &["group", "outcome"],
        "Tasks that were acknowledged, attempts that failed, since the group was created.",
        |it, out| {
            each_published(it, |name, metrics| {
                out.labelled(&[name, "completed"], metrics.group.completed);
                out.labelled(&[name, "failed"], metrics.group.failed);
            });
        },
    ),
    Metric::counter(
        "tidings_group_leases_lost_total",
        GROUP,
        "Leases that ended without an answer, since the group was created.",
        |it, out| each_group(it, out, |group| group.lost),
    ),
    Metric::counter(
        "tidings_group_dead_total",
        GROUP,
        "Entries that were given up, since the group was created.",
        |it, out| each_group(it, out, |group| group.dead),
    ),
    Metric::counter(
        "tidings_group_failures_total",
        &["group", "reason"],
        "Reports of workers with a reason why there is no page; reasons that occurred.",
        |it, out| {
            let words = FailureReason::ALL.map(FailureReason::as_str);
            each_published(it, |name, metrics| {
                let reasons = words.into_iter().chain([OTHER_REASON]);
                for (reason, count) in reasons.zip(metrics.group.reasons) {
                    out.labelled(&[name, reason], Some(count).filter(|count| *count > 0));
                }
            });
        },
    ),
    Metric::counter(
        "tidings_group_responses_total",
        &["group", "class"],
        "HTTP responses that workers reported.",
        |it, out| {
            each_published(it, |name, metrics| {
                for (class, count) in CLASSES.iter().zip(metrics.group.classes) {
                    out.labelled(&[name, class], count);
                }
            });
        },
    ),
    Metric::histogram(
        "tidings_group_response_duration_seconds",
        GROUP,
        "Time of the requests that workers reported.",
        |it, out| {
            each_published(it, |name, metrics| out.durations(&[name], metrics.group.responses));
        },
    ),
    Metric::counter(
        "tidings_group_body_bytes_total",
        GROUP,
        "Bytes of the pages that workers reported.",
        |it, out| each_group(it, out, |group| group.body_bytes),
    ),
    Metric::gauge(
        "tidings_jobs",
        &["group", "state"],
        "Jobs that the group remembers.",
        |it, out| {
            each_published(it, |name, metrics| {
                for (state, count) in JOB_STATES.iter().zip(metrics.group.jobs) {
                    out.labelled(&[name, state], count);
                }
            });
        },
    ),
];

/// What `GET /metrics?topics=yes` adds. The number of topics has a limit of its own
/// ([`Limits::topics_max`](crate::Limits::topics_max)).
pub(crate) static TOPICS: &[Metric<Snapshot>] = &[
    Metric::counter(
        "tidings_topic_events_total",
        TOPIC,
        "Events of the topic, since it was created.",
        |it, out| each_topic(it, out, |topic| topic.stats.head.0 - 1),
    ),
    Metric::gauge("tidings_topic_log_bytes", TOPIC, "Bytes of the log.", |it, out| {
        each_topic(it, out, |topic| topic.stats.log_bytes);
    }),
    Metric::gauge(
        "tidings_topic_readers",
        TOPIC,
        "Subscriptions and groups that read the topic.",
        |it, out| each_topic(it, out, |topic| topic.stats.readers as u64),
    ),
    Metric::gauge(
        "tidings_topic_cursor_behind_events_max",
        TOPIC,
        "Events that its durable cursor furthest behind has to read.",
        |it, out| each_topic(it, out, |topic| topic.cursor_behind_max),
    ),
];

/// Topics that are listed at most.
const TOPICS_MAX: usize = 1_000;

fn each_way(it: &Snapshot, out: &mut Samples<'_>, count: fn(&Connections) -> u64) {
    // ZeroMQ is a program that connects to the line protocol.
    for one in it.connections.iter().filter(|one| one.transport != Transport::Zmq) {
        out.labelled(&[one.transport.as_str()], count(one));
    }
}

fn each_request(counts: &RequestCounts, out: &mut Samples<'_>) {
    let RequestCounts { accepted, refused, limited, .. } = counts;
    for (what, count) in [("taken", accepted), ("refused", refused), ("limited", limited)] {
        out.labelled(&[what], count.value());
    }
}

fn sum_topics(it: &Snapshot, count: fn(&TopicMetrics) -> u64) -> u64 {
    it.topics.iter().map(count).sum()
}

fn each_topic(it: &Snapshot, out: &mut Samples<'_>, count: fn(&TopicMetrics) -> u64) {
    for topic in it.topics.iter().take(TOPICS_MAX) {
        out.labelled(&[&topic.name], count(topic));
    }
}

fn each_published(it: &Snapshot, mut take: impl FnMut(&str, &PublishedMetrics)) {
    for (name, metrics) in &it.groups {
        take(name, metrics);
    }
}

fn each_group(it: &Snapshot, out: &mut Samples<'_>, count: fn(&GroupMetrics) -> u64) {
    each_published(it, |name, metrics| out.labelled(&[name], count(&metrics.group)));
}
