//! The broker itself.

use super::super::openapi::schema::{
    Schema, any, count, flag, list, map, named, number, number_or_null, object, one_of, pattern,
    text, time,
};
use super::super::openapi::{Operation, Param};
use super::super::{history, system};
use super::{Route, get, params};
use crate::metrics::RANGES;

pub(super) fn routes() -> Vec<Route> {
    let index = "Name, version and line port of the broker; the dashboard for a client that \
                 prefers HTML";
    let config = "Where the broker listens and, for an administrator that has logged in, what its \
                  operator has set";
    let metrics = "All metrics for Prometheus: OpenMetrics if `Accept` names \
                   `application/openmetrics-text`, otherwise the text format 0.0.4";
    let history = "Metrics of the last 5 minutes, hour or day, for plots; kept in memory since \
                   the start";
    let of = "`stats` (the default), `topics` (the rate of events of each topic), \
              `group:<group>`, `topic:<topic>` or `job:<job>`";
    let subject = pattern("^(stats|topics|(group|topic|job):[A-Za-z0-9][A-Za-z0-9._-]{0,63})$");
    vec![
        get("/", "index", index)
            .answer(
                200,
                "Name and version",
                [("application/json", named("Index")), ("text/html", text())],
            )
            .by(system::index),
        get("/openapi.json", "openapi", "This OpenAPI document")
            .json(200, "The document", document())
            .by(system::openapi),
        get("/health", "health", "Whether the broker answers requests")
            .ok("The broker answers requests", "Health")
            .by(system::health),
        get("/ready", "ready", "Whether every topic accepts events")
            .ok("Every topic accepts events", "Ready")
            .json(503, "A topic does not accept events, or the broker is stopping", named("Ready"))
            .by(system::ready),
        get("/stats", "stats", "Counters since the start of the broker, and what is not well")
            .ok("The counters", "Stats")
            .by(system::stats),
        get("/me", "me", "As whom the broker knows the client, and what the client may do")
            .ok("Name and permissions", "Me")
            .by(system::me),
        get("/config", "config", config).ok("Listeners and settings", "Config").by(system::config),
        get("/metrics", "metrics", metrics)
            .query([Param::new("topics", one_of(&["yes"]), "`yes` adds metrics of each topic")])
            .answer(
                200,
                "The metrics",
                [("text/plain", text()), ("application/openmetrics-text", text())],
            )
            .by(system::metrics),
        get("/history", "history", history)
            .query([
                Param::new("of", subject, of),
                Param::new("range", ranges(), "Default: 5m"),
                params::of_group(),
            ])
            .ok("The metrics", "History")
            .refuses(&[404])
            .by(history::history),
    ]
}

/// The stream of live states. Its handler needs the other routes.
pub(super) fn live() -> Operation {
    let summary = "Stream the newest states of 1 to 8 subjects as Server-Sent Events, without \
                   end. An event has the name of its subject as its type, and the response of the \
                   request for that subject as its data. It comes when the state has changed, at \
                   most once a second; for keys every 5 s. An event of the type gone says that \
                   there is no such subject, as {\"on\", \"code\", \"message\"}; one of the type \
                   failed, why its state is unknown";
    let on = "The subjects, separated by commas: stats, ready, topics, groups, jobs (the first \
              100), group:GROUP, members:GROUP (the first 1,000), keys:GROUP (the first 50), \
              job:JOB";
    get("/live", "live", summary)
        .query([Param::new("on", pattern(params::WORD), on).required().example("stats")])
        .answer(200, "The stream", [("text/event-stream", text())])
}

fn ranges() -> Schema {
    one_of(&RANGES.map(|range| range.name))
}

/// The schema of the document itself.
fn document() -> Schema {
    let parts = || map(map(any()));
    let license = object().field("name", text(), "");
    let info = object()
        .field("title", text(), "")
        .field("version", text(), "")
        .field("license", license, "")
        .field("description", text(), "");
    let components = object()
        .field("schemas", parts(), "The components, by name")
        .field("responses", parts(), "The components, by name")
        .field("securitySchemes", parts(), "How a client says who it is, by name");
    object()
        .about("An OpenAPI 3.1 document")
        .field("openapi", text(), "")
        .field("info", info, "")
        .field("servers", list(map(text())), "Where the requests are, relative to this document")
        .field("security", list(map(list(text()))), "What requests need; each is one alternative")
        .field("paths", map(parts()), "The requests, by path and method")
        .field("components", components, "")
}

pub(super) fn schemas() -> Vec<(&'static str, Schema)> {
    let codes = one_of(&[
        "bad-argument",
        "bad-name",
        "too-long",
        "control",
        "utf8",
        "not-yet",
        "busy",
        "unknown",
        "exists",
        "conflict",
        "limit",
        "full",
        "sync-failed",
        "denied",
        "unauthenticated",
        "closing",
        "timeout",
        "method-not-allowed",
        "unsupported-type",
        "internal",
    ]);
    let refusal = object()
        .field(
            "code",
            codes,
            "For programs: a code of the line protocol, or one that only HTTP has",
        )
        .field("message", text(), "For people; the text may change");
    let index = object()
        .field("name", text(), "")
        .field("version", text(), "")
        .field("description", text(), "Path of the OpenAPI document")
        .field("port", number(1, 65535), "Port of the line protocol")
        .field("tls", flag(), "Whether the broker takes only encrypted connections");
    let ready = object()
        .field("ready", flag(), "Whether every topic accepts events")
        .field("stops", flag(), "Whether the broker is stopping")
        .field("full", list(text()), "Topics that cannot write because the disk is full")
        .field(
            "sync-failed",
            list(text()),
            "Topics that failed to write or sync; they accept no events until the broker restarts",
        );
    vec![
        ("Refusal", refusal),
        ("Index", index),
        ("Health", object().field("status", one_of(&["ok"]), "")),
        ("Ready", ready),
        ("Stats", stats()),
        ("Me", me()),
        ("Config", config()),
        ("History", history()),
    ]
}

fn counts(keys: &[&str]) -> Schema {
    keys.iter().fold(object(), |object, key| object.field(key, count(), ""))
}

fn stats() -> Schema {
    let problem = object()
        .field(
            "kind",
            one_of(&["bad", "warn"]),
            "Whether something does not work, or may stop working",
        )
        .field("text", text(), "The problem as a sentence")
        .field(
            "page",
            text(),
            "The page of the dashboard that shows more, such as groups/crawlers; empty if there is \
             none",
        );
    let requests = || counts(&["taken", "refused", "limited"]);
    counts(&[
        "connections",
        "connected",
        "turned-away",
        "lines",
        "events",
        "refused",
        "bytes-in",
        "clock",
    ])
    .about(
        "Counters since the start, over all transports. `clock` is in ms. `hub` shows current \
         numbers",
    )
    .field("problems", list(problem), "What is not well, the worst first")
    .field("hooks", requests(), "Requests of webhooks")
    .field(
        "notices",
        requests(),
        "Requests to callbacks for other hubs, and to the hub of this broker",
    )
    .option(
        "hub",
        counts(&["topics", "subscribers", "waiting"]),
        "Only with `--hub`: topics with subscribers, subscribers, and subscription requests that \
         are not verified yet",
    )
}

fn me() -> Schema {
    let can =
        object().field("monitor", flag(), "").field("admin", flag(), "").field("all", flag(), "");
    object()
        .field("name", text().or_null(), "The principal; null without a login")
        .field("known", flag(), "Whether the client has logged in")
        .field("way", text(), "The transport")
        .field("can", can, "")
        .field("permissions", list(text()).or_null(), "What is allowed; null if everything is")
        .field("denied", list(text()), "What is denied, which overrides what is allowed")
        .field("expires", time().or_null(), "When the token expires; null if it does not")
}

fn config() -> Schema {
    let listener = object()
        .field("way", one_of(&["line", "unix", "http"]), "")
        .field("address", text(), "Address and port, or the path of the unix socket")
        .field("tls", flag(), "Whether connections are encrypted");
    let setting = object()
        .field("key", text(), "The long name of the flag")
        .field(
            "value",
            text(),
            "The value in the notation of a configuration file, with secrets as HIDDEN",
        )
        .field(
            "origin",
            text(),
            "The command line, a variable in the environment, or file and line",
        );
    object().field("listens", list(listener), "The listeners of the broker").field(
        "settings",
        list(setting).or_null(),
        "The flags that do not have their defaults; null for a client that has not logged in or \
         that lacks the permission admin",
    )
}

fn history() -> Schema {
    let steps: Vec<_> = RANGES.iter().map(|range| range.step_s * 1_000).collect();
    object()
        .field("of", text(), "")
        .field("range", ranges(), "")
        .field(
            "step-ms",
            number(0, u64::MAX).with("enum", steps),
            "Time from one value of a column to the next",
        )
        .field(
            "columns",
            list(text()),
            "`time`, and the names of the metrics, or of the topics for `topics`; rates are per \
             second",
        )
        .field(
            "values",
            list(list(number_or_null())),
            "For each column its values, oldest first: of `time` seconds since 1970, of the others \
             a number, or null if it is unknown. All are empty if no metrics of this group, topic \
             or job are kept",
        )
}
