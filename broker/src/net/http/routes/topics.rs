//! Topics, and the webhooks that publish to them.

use tidings_protocol::status::{CursorStatus, TopicStatus};
use tidings_protocol::{CONDITIONS_MAX, PAYLOAD_BYTES_MAX, TopicSettings};

use super::super::openapi::Param;
use super::super::openapi::schema::{
    Schema, any, count, either, list, map, named, number, object, one_of, pattern, status, text,
    time,
};
use super::super::{hooks, long_poll, manage, publish, sse};
use super::params::{self, CONDITION, DURATION, WORD};
use super::{Route, delete, get, post, put};

/// Lines without other control characters.
const LINES: &str = "^[^\\x00-\\x09\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]+$";

pub(super) fn routes() -> Vec<Route> {
    let publish = "Publish events. The response comes when they are as safe as the topic \
                   promises. If one of them is invalid, none is published";
    let read = "Read events from a seq on; if there are none yet, wait for the next ones. If the \
                topic does not exist, the request waits for it";
    let stream = "Stream events as Server-Sent Events, without end: `id` is the seq, `data` the \
                  payload. An event of the type lag or gap names seqs that are left out, as \
                  {\"from\", \"to\"}. If the topic does not exist, the stream waits for it";
    let set = "Create a topic, or change its settings. Settings that are left out do not change";
    let key = "Key of a request that the client may repeat. A request with the same key and body \
               is done once. The broker remembers a key for a day, at most the newest 16,384. \
               After a restart of the broker the rule holds for events with a target, which get \
               an id made of the key";
    let key = Param::new("Idempotency-Key", pattern("^(\"[!#-~]{1,128}\"|[!#-~]{1,128})$"), key);
    let last = "Seq of the last event that the client received; overrides `from`";
    let last = Param::new("Last-Event-ID", pattern("^[0-9]{1,19}$"), last);
    let wait = "How long to wait for the first event; at most 5m. Default: 30s";
    vec![
        get("/topics", "listTopics", "List all topics")
            .ok("The topics", "Topics")
            .by(manage::topics),
        post("/topics/{topic}", "publish", publish)
            .part(params::topic())
            .header(key)
            .body(
                "One event per line, or JSON; up to 4 MiB",
                [
                    (
                        "text/plain",
                        pattern(LINES).about("One event per line; empty lines are ignored"),
                    ),
                    ("application/json", named("Events")),
                ],
            )
            .ok("The events are as safe as the topic promises", "Published")
            .refuses(&[409, 415, 422, 503, 507])
            .by(publish::publish),
        get("/topics/{topic}", "read", read)
            .part(params::topic())
            .query([
                from(),
                Param::new("limit", number(1, 10_000), "Largest number of events"),
                Param::new("wait", pattern(DURATION), wait),
            ])
            .query(filter())
            .ok("The events; the list may be empty", "Page")
            .refuses(&[409])
            .by(long_poll::read),
        put("/topics/{topic}", "putTopic", set)
            .part(params::topic())
            .json_body("The settings", "TopicSettings")
            .ok("The topic and its settings", "Topic")
            .refuses(&[409, 503, 507])
            .by(manage::put_topic),
        delete("/topics/{topic}", "deleteTopic", "Delete a topic with its events and cursors")
            .part(params::topic())
            .answer(204, "The topic is deleted", [])
            .refuses(&[404, 409, 503, 507])
            .by(manage::delete_topic),
        get("/topics/{topic}/state", "topicState", "Return a topic with its durable cursors")
            .part(params::topic())
            .ok("The topic and its cursors", "TopicWithCursors")
            .refuses(&[404])
            .by(manage::topic),
        get("/topics/{topic}/events", "stream", stream)
            .part(params::topic())
            .query([from()])
            .query(filter())
            .header(last)
            .answer(200, "The stream", [("text/event-stream", text())])
            .refuses(&[409])
            .by(sse::stream),
    ]
}

pub(super) fn hook_routes() -> Vec<Route> {
    let receive = "Receive a webhook in the form of its sender. The configuration of the broker \
                   defines how the sender is verified, where the URLs are in the request, and \
                   which URLs the sender may announce";
    let done = "The events are as safe as the topic promises; a repeated request gets the same \
                answer";
    let refused = "The request has a URL that the sender may not announce, or too many; nothing \
                   is published";
    vec![
        post("/hooks/{name}", "receiveHook", receive)
            .part(Param::new("name", params::name(), "Name of the hook").example("h"))
            .body(
                "The body that the sender defines; up to 4 MiB",
                [
                    ("application/json", any().about("Any JSON")),
                    ("application/x-www-form-urlencoded", map(text()).about("Any fields")),
                ],
            )
            .ok(done, "Published")
            .refuses(&[404, 415, 503, 507])
            .refusal(422, refused)
            .by(hooks::receive),
    ]
}

fn from() -> Param {
    let about = "Where to begin: at the oldest event (first), at the newest (last), at a seq, n \
                 events before the end (-n), or at a time (RFC 3339). Default: new events only";
    let date_time = "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]+)?\
                     ([Zz]|[+-][0-9]{2}:[0-9]{2})";
    Param::new("from", pattern(&format!("^(first|last|-?[1-9][0-9]*|{date_time})$")), about)
}

/// Which events are returned.
fn filter() -> [Param; 3] {
    let conditions = "Return only events for which all these conditions hold: KEY=VALUE for the \
                      first attribute KEY, or KEY!=VALUE, which also holds without that attribute";
    [
        Param::new("host", pattern(WORD), "Return only events whose target is a URL on this host"),
        Param::new(
            "prefix",
            pattern(WORD),
            "Return only events whose target begins with this prefix",
        ),
        Param::new("where", list(pattern(CONDITION)).with("maxItems", CONDITIONS_MAX), conditions),
    ]
}

pub(super) fn schemas() -> Vec<(&'static str, Schema)> {
    let published = object().field("topic", text(), "").field(
        "seqs",
        list(seq()),
        "The seq of each event, in their order. An event whose id was published before has the seq \
         of the earlier one",
    );
    let settings = params::settings::<TopicSettings>(object(), |_| true, |schema| schema);
    let topic = || status(TopicStatus::fields());
    let cursors = list(status(CursorStatus::fields()));
    vec![
        ("Event", event()),
        ("EventParts", event_parts()),
        ("Events", object().field("events", list(named("Event")).with("minItems", 1), "")),
        ("Published", published),
        ("Page", page()),
        ("TopicSettings", settings),
        ("Topic", topic()),
        ("Topics", object().field("topics", list(named("Topic")), "")),
        ("TopicWithCursors", topic().field("cursors", cursors, "The durable cursors of the topic")),
    ]
}

fn seq() -> Schema {
    count().with("minimum", 1)
}

fn event() -> Schema {
    let line = pattern("^[^\\x00-\\x1f\\x7f-\\x9f]+$")
        .about("One line, up to 60 KiB, without control characters")
        .with("maxLength", PAYLOAD_BYTES_MAX);
    either([line, named("EventParts")]).about("An event: the text of its line, or its parts")
}

fn event_parts() -> Schema {
    let target =
        "^(/|[A-Za-z][A-Za-z0-9+.-]*://[^\\s\\x00-\\x1f\\x7f-\\x9f])[^\\s\\x00-\\x1f\\x7f-\\x9f]*$";
    let attributes = map(pattern("^[^\\s\\x00-\\x1f\\x7f-\\x9f]*$"))
        .with("propertyNames", pattern("^[A-Za-z][A-Za-z0-9._-]*$"));
    object().field("target", pattern(target), "A URL or an absolute path, as one word").option(
        "attributes",
        attributes,
        "A map; each name consists of letters, digits, -, _ and ., with a letter first, and \
             each value is one word",
    )
}

fn page() -> Schema {
    let event = object()
        .field("seq", seq(), "")
        .field("time", time(), "When the broker received it, to the second (RFC 3339)")
        .field("payload", text(), "");
    let missed = object()
        .field(
            "kind",
            one_of(&["lag", "gap"]),
            "lag: these events are gone; gap: these seqs are empty",
        )
        .field("from", count(), "")
        .field("to", count(), "");
    object()
        .field("topic", text(), "")
        .field("events", list(event), "")
        .field("missed", list(missed), "Seqs that are left out, both ends included")
        .field("next", seq(), "The `from` of the next request")
}
