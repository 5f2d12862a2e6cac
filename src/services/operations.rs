//! The requests of embedded handlers but for the hub, for the router and the `OpenAPI` document of
//! the broker.

use hyper::Method;
use tidings_broker::openapi::schema::{any, map, text};
use tidings_broker::openapi::{Operation, Param};
use tidings_connectors::websub::CALLBACK_PATH;
use tidings_signature::identity::{DIRECTORY_MEDIA_TYPE, DIRECTORY_PATH};

/// The directory of the public keys.
pub(crate) fn of_directory() -> Vec<Operation> {
    let summary = "The public keys with which the crawler signs its requests";
    let keys = [(DIRECTORY_MEDIA_TYPE, map(any()))];
    vec![
        Operation::new(Method::GET, DIRECTORY_PATH, "signatureKeys", summary)
            .area("system")
            .public()
            .answer(200, "A JSON Web Key Set, signed with each of its keys", keys),
    ]
}

/// The callbacks for other hubs.
pub(crate) fn of_websub() -> Vec<Operation> {
    let verify = "A hub verifies a subscription that the broker requested. Only with --public-url";
    let distribute = "A hub delivers a signed notification; rssCloud sends the form `url=..`";
    let limit = "More than 60 requests a minute of this hub, of other senders, or for unknown \
                 callbacks; or more items than --hook-events allows; or too many wrong tokens; \
                 send the request again after `Retry-After`";
    let callback = |method, id, summary| {
        let unknown = "No hub has this callback, or the request does not match the subscription";
        let token =
            Param::new("token", text(), "Secret token of the callback; only the hub knows it");
        Operation::new(method, CALLBACK_PATH, id, summary)
            .area("websub")
            .part(token)
            .refusal(404, unknown)
    };
    let query = [
        ("hub.mode", "subscribe, unsubscribe or denied"),
        ("hub.topic", "URL of the feed"),
        ("hub.challenge", "Challenge, which the response returns"),
        ("hub.lease_seconds", "Lease of the subscription, in seconds"),
        ("url", "rssCloud: URL of the feed"),
        ("challenge", "rssCloud: challenge, which the response returns"),
    ];
    vec![
        callback(Method::GET, "verifyIntent", verify)
            .query(query.map(|(name, about)| Param::new(name, text(), about)))
            .answer(200, "The challenge, and nothing else", [("text/plain; charset=utf-8", text())])
            .answer(503, "The broker cannot store the verification at the moment", []),
        callback(Method::POST, "distributeContent", distribute)
            .body("The current feed, or its new items", [("*/*", any())])
            .answer(204, "New items are published, and the feed is checked", [])
            .refusal(429, limit)
            .answer(503, "The broker cannot publish at the moment; the hub should retry", []),
    ]
}
