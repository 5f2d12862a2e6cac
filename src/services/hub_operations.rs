//! The requests of the hub, for the router and the `OpenAPI` document of the broker.

use hyper::Method;
use tidings_broker::openapi::Operation;
use tidings_broker::openapi::schema::{
    Schema, either, flag, map, named, object, one_of, pattern, text,
};
use tidings_connectors::hub::PATHS;

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// The hub of this broker.
pub(crate) fn operations() -> Vec<Operation> {
    let [ask_path, register_path, ping_path] = PATHS;
    let ask = "WebSub: subscribe, unsubscribe, or, from a publisher, report that a topic has \
               changed. Only with --hub";
    let accepted =
        "Accepted: the hub verifies the subscriber's intent, or fetches the changed feed";
    let registered = "Registered; or accepted, if the callback has not answered in time";
    let pinged = "Accepted; the hub fetches the feed if it has subscribers";
    let subscription = form()
        .field("hub.mode", one_of(&["subscribe", "unsubscribe", "publish"]), "")
        .option("hub.topic", text(), "URL of the feed, as the subscriber writes it")
        .option("hub.callback", text(), "URL that receives the notifications")
        .option("hub.secret", text().with("maxLength", 200), "")
        .option("hub.lease_seconds", pattern("^[0-9]+$"), "")
        .option("hub.url", text(), "With publish: URL of the feed that has changed");
    let registration = form()
        .field("port", text(), "")
        .field("path", text(), "")
        .field("url1", text(), "URL of a feed; also url2, ...")
        .option("protocol", text(), "")
        .option("domain", text(), "");
    let ping = form().field("url", text(), "URL of the feed");
    let walk_through = "The form of the rssCloud walk-through";
    vec![
        hub_operation(ask_path, "askHub", ask, &|| vec![("text/plain", text())])
            .body("Section 5 of WebSub", [(FORM, subscription)])
            .answer(202, accepted, [("text/plain", text())])
            .answer(
                413,
                "The form is too long",
                [("text/plain", text()), (JSON, named("Refusal"))],
            ),
        cloud_operation(
            register_path,
            "pleaseNotify",
            "rssCloud: register for feeds. Only with --hub",
        )
        .body(walk_through, [(FORM, registration)])
        .answer(200, registered, cloud_answer())
        .answer(413, "The form is too long", cloud_answer_or_refusal()),
        cloud_operation(
            ping_path,
            "pingCloud",
            "rssCloud: a publisher reports that a feed has changed. Only with --hub",
        )
        .body(walk_through, [(FORM, ping)])
        .answer(200, pinged, cloud_answer())
        .answer(413, "The form is too long", cloud_answer_or_refusal()),
    ]
}

/// A form, which may have further fields.
fn form() -> Schema {
    map(text())
}

/// A request to the hub. `answer` is the form of its own refusals.
fn hub_operation(
    path: &'static str,
    id: &str,
    summary: &str,
    answer: &dyn Fn() -> Vec<(&'static str, Schema)>,
) -> Operation {
    let unknown = "The hub does not have this topic, or the request is a ping from an address \
                   outside --hub-publishers or through a proxy";
    let invalid = "The form is invalid, or the hub does not support what it requests";
    let busy = "The hub cannot store the request at the moment, or has reached a limit; send it \
                again after `Retry-After`";
    Operation::new(Method::POST, path, id, summary)
        .area("hub")
        .answer(400, invalid, answer())
        .refusal(404, unknown)
        .answer(415, "The body is not a form", answer())
        .answer(503, busy, answer())
}

fn cloud_operation(path: &'static str, id: &str, summary: &str) -> Operation {
    hub_operation(path, id, summary, &cloud_answer)
}

/// rssCloud answers in XML, or in JSON on request.
fn cloud_answer() -> Vec<(&'static str, Schema)> {
    vec![("text/xml", text()), (JSON, cloud_result())]
}

fn cloud_answer_or_refusal() -> Vec<(&'static str, Schema)> {
    vec![("text/xml", text()), (JSON, either([cloud_result(), named("Refusal")]))]
}

fn cloud_result() -> Schema {
    object().field("success", flag(), "").field("msg", text(), "")
}
