//! Handles the HTTP requests to the hub.

use std::net::IpAddr;

use bytes::Bytes;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_protocol::{CanonicalUrl, push_attribute};

use super::hub_request::{
    self, FORM_BYTES_MAX, HubRejection, HubRequest, HubResult, SubscriptionRequest,
};
use super::store::{RequestOutcome, RowId};
use super::{DELIVERY_QUEUE, Hub, HubQueue, VERIFICATION_QUEUE, host_of, now_unix_ms};

const FORM_CONTENT_TYPE: &str = "application/x-www-form-urlencoded";

/// Value of `Retry-After` with 503, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("60");

const UNAVAILABLE: HubRejection =
    HubRejection { status: 503, text: "the hub cannot store requests at the moment; retry later" };

/// Result while the outcome of a verification is unknown. Only rssCloud shows the text.
const VERIFICATION_STARTED: &str = "The verification has started.";

/// The paths of the hub, below the public URL.
pub const PATHS: [&str; 3] = ["/hub", "/hub/rsscloud", "/hub/ping"];

/// A response, and the rate limit that its request counts for.
#[derive(Debug)]
pub enum HubResponse {
    /// From a publisher; not limited.
    Trusted(Response<Bytes>),
    /// From any other client.
    Public(Response<Bytes>),
    /// Rejected. The reason is for the log, and the client does not get it.
    Rejected(&'static str),
}

/// What a request is about, as far as it is known before it is handled. It decides the rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubRequestClass {
    /// A publisher of the site; no limit.
    Publisher,
    /// An existing subscription with a verified callback, by its number. It has a limit of its own.
    ExistingSubscription(u64),
    /// A new subscription. The request is not signed, so it shares the limit of its source.
    NewSubscription,
    /// An invalid request.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseFormat {
    /// WebSub: a status, and a text for people.
    WebSub,
    /// rssCloud: a document with this root element, which states the result.
    RssCloud { root: &'static str, is_json: bool },
}

impl Hub {
    /// Classifies a request before it is handled. `client` is the address of the client, and `None`
    /// if a proxy is in between.
    pub async fn classify(
        &self,
        request: &Request<Bytes>,
        client: Option<IpAddr>,
    ) -> HubRequestClass {
        let (path, headers, body) = (request.uri().path(), request.headers(), request.body());
        let is_form_post = request.method() == Method::POST && is_form(headers);
        if !is_form_post || body.len() > FORM_BYTES_MAX {
            return HubRequestClass::Invalid;
        }
        let client_ip = client.map(|client| client.to_canonical());
        if path == "/hub/ping" || hub_request::is_publish(body) {
            let is_allowed = client_ip.is_some_and(|peer| self.is_publisher(peer));
            return if is_allowed { HubRequestClass::Publisher } else { HubRequestClass::Invalid };
        }
        let rules = &self.config.rules;
        let requests = match path {
            "/hub/rsscloud" => rules.parse_registration(body, client_ip).ok(),
            _ => match rules.parse_request(body) {
                Ok(HubRequest::Subscription(subscription)) => Some(vec![subscription]),
                Ok(HubRequest::Publish(_)) | Err(_) => None,
            },
        };
        let Some(requests) = requests else { return HubRequestClass::Invalid };
        // A read error is reported when the request is handled.
        let subscribed = self
            .with_store(move |store| store.existing_subscription(&requests))
            .await
            .ok()
            .flatten();
        subscribed.map_or(HubRequestClass::NewSubscription, |id| {
            HubRequestClass::ExistingSubscription(id.unsigned_abs())
        })
    }

    /// Handles a request to one of [`PATHS`]. Its body must be complete. `client` is the address of
    /// the client, and `None` if a proxy is in between.
    pub async fn handle(&self, request: Request<Bytes>, client: Option<IpAddr>) -> HubResponse {
        let path = request.uri().path();
        let is_json = request.headers().get_all(ACCEPT).iter().any(accepts_json);
        let format = match path {
            "/hub/rsscloud" => ResponseFormat::RssCloud { root: "notifyResult", is_json },
            "/hub/ping" => ResponseFormat::RssCloud { root: "result", is_json },
            _ => ResponseFormat::WebSub,
        };
        if request.method() != Method::POST {
            let text = "this is a hub for WebSub and rssCloud; send a POST request";
            let mut response = format.rejection(HubRejection { status: 405, text });
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return HubResponse::Public(response);
        }
        if !is_form(request.headers()) {
            let text = "the body must be a form: application/x-www-form-urlencoded";
            return HubResponse::Public(format.rejection(HubRejection { status: 415, text }));
        }
        if request.body().len() > FORM_BYTES_MAX {
            let text = "the form is longer than 64 KiB";
            return HubResponse::Public(format.rejection(HubRejection { status: 413, text }));
        }
        let (rules, body) = (&self.config.rules, request.body());
        let client_ip = client.map(|client| client.to_canonical());
        let is_ping = path == "/hub/ping" || hub_request::is_publish(body);
        if is_ping && !client_ip.is_some_and(|peer| self.is_publisher(peer)) {
            return HubResponse::Rejected(
                "a ping from an address outside --hub-publishers, or through a proxy",
            );
        }
        let result = async {
            match path {
                "/hub/ping" => self.enqueue_fetches(rules.parse_ping(body)?).await,
                "/hub/rsscloud" => self.register(rules.parse_registration(body, client_ip)?).await,
                _ => match rules.parse_request(body)? {
                    HubRequest::Subscription(subscription) => self.subscribe(subscription).await,
                    HubRequest::Publish(topics) => self.enqueue_fetches(topics).await,
                },
            }
        };
        let response = match result.await {
            Ok(text) => format.success(text),
            Err(rejection) => format.rejection(rejection),
        };
        if is_ping { HubResponse::Trusted(response) } else { HubResponse::Public(response) }
    }

    fn is_publisher(&self, peer: IpAddr) -> bool {
        self.config.publisher_networks.iter().any(|net| net.contains(peer))
    }

    async fn enqueue_fetches(&self, topics: Vec<CanonicalUrl<'static>>) -> HubResult<&'static str> {
        let events: Vec<_> = topics
            .iter()
            .map(|topic| {
                let mut event = topic.to_string();
                push_attribute(&mut event, "host", topic.host());
                push_attribute(&mut event, "fetch", "yes");
                event
            })
            .collect();
        self.publish_or_reject(&DELIVERY_QUEUE, &events).await?;
        Ok("Topics with subscribers will be fetched.")
    }

    async fn subscribe(&self, request: SubscriptionRequest) -> HubResult<&'static str> {
        let pending = self.store_requests(vec![request]).await?;
        self.enqueue_verifications(&pending).await?;
        Ok(VERIFICATION_STARTED)
    }

    /// Stores a registration of rssCloud, starts its verifications, and waits for a moment: the
    /// response states the outcome if it is known by then.
    async fn register(&self, requests: Vec<SubscriptionRequest>) -> HubResult<&'static str> {
        let pending = self.store_requests(requests).await?;
        let outcomes =
            self.verification_waiters.wait_for(pending.iter().map(|(id, _)| *id).collect());
        self.enqueue_verifications(&pending).await?;
        let Some(outcomes) = outcomes else { return Ok(VERIFICATION_STARTED) };
        match outcomes.all_granted().await {
            Some(true) => Ok("The subscription is registered."),
            Some(false) => {
                Err(hub_request::bad_request("the callback did not confirm the subscription"))
            }
            None => Ok(VERIFICATION_STARTED),
        }
    }

    /// Stores requests. Returns the id and the callback's host of each that needs verification.
    async fn store_requests(
        &self,
        requests: Vec<SubscriptionRequest>,
    ) -> HubResult<Vec<(RowId, String)>> {
        let hosts: Vec<_> =
            requests.iter().map(|request| host_of(request.callback.as_str())).collect();
        let limits = self.config.limits;
        let outcomes = self
            .with_store(move |store| store.insert_requests(&requests, &limits, now_unix_ms()))
            .await;
        let outcomes = outcomes.map_err(|error| {
            tracing::error!(%error, "cannot access hub.db");
            UNAVAILABLE
        })?;
        let mut pending = Vec::new();
        for (outcome, host) in outcomes.into_iter().zip(hosts) {
            match outcome {
                RequestOutcome::Pending(id) => pending.push((id, host)),
                RequestOutcome::NotSubscribed => {}
                RequestOutcome::Full => {
                    self.logs
                        .rejected_subscribers
                        .lock()
                        .add(1, "too many subscriptions or pending requests");
                    return Err(HubRejection {
                        status: 503,
                        text: "too many subscriptions or pending requests; retry later",
                    });
                }
            }
        }
        Ok(pending)
    }

    async fn enqueue_verifications(&self, pending: &[(RowId, String)]) -> HubResult<()> {
        let event = |(id, host): &(RowId, String)| {
            let mut event = self.own_url("verify", *id);
            push_attribute(&mut event, "host", host);
            push_attribute(&mut event, "verify", &id.to_string());
            event
        };
        let events: Vec<_> = pending.iter().map(event).collect();
        let published = self.publish_or_reject(&VERIFICATION_QUEUE, &events).await;
        if published.is_err() {
            // The client gets an error and will send the request again. A request without an event
            // would only use up its limit.
            let ids: Vec<RowId> = pending.iter().map(|(id, _)| *id).collect();
            let removed = self
                .with_store(move |store| ids.iter().try_for_each(|id| store.remove_request(*id)));
            if let Err(error) = removed.await {
                tracing::error!(%error, "cannot access hub.db");
            }
        }
        published
    }

    async fn publish_or_reject(&self, queue: &HubQueue, events: &[String]) -> HubResult<()> {
        self.publish(queue, events).await.map_err(|error| {
            tracing::error!(%error, "the hub cannot publish an event");
            UNAVAILABLE
        })
    }
}

impl ResponseFormat {
    fn success(self, text: &str) -> Response<Bytes> {
        match self {
            Self::WebSub => {
                text_response(StatusCode::ACCEPTED, "text/plain", "accepted\n".to_owned())
            }
            Self::RssCloud { .. } => self.rsscloud_document(StatusCode::OK, true, text),
        }
    }

    fn rejection(self, HubRejection { status, text }: HubRejection) -> Response<Bytes> {
        let status = StatusCode::from_u16(status).expect("a rejection has a valid status");
        let mut response = match self {
            Self::WebSub => text_response(status, "text/plain", format!("{text}\n")),
            Self::RssCloud { .. } => self.rsscloud_document(status, false, text),
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }

    /// `text` must not contain anything that XML or JSON escapes.
    fn rsscloud_document(self, status: StatusCode, success: bool, text: &str) -> Response<Bytes> {
        let Self::RssCloud { root, is_json } = self else {
            unreachable!("only rssCloud has documents")
        };
        if is_json {
            let json = format!("{{\"success\":{success},\"msg\":\"{text}\"}}\n");
            return text_response(status, "application/json", json);
        }
        let xml =
            format!("<?xml version=\"1.0\"?>\n<{root} success=\"{success}\" msg=\"{text}\"/>\n");
        text_response(status, "text/xml", xml)
    }
}

fn text_response(status: StatusCode, content_type: &'static str, text: String) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn is_form(headers: &HeaderMap) -> bool {
    let content_type =
        headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .eq_ignore_ascii_case(FORM_CONTENT_TYPE)
}

fn accepts_json(accept: &HeaderValue) -> bool {
    accept.to_str().is_ok_and(|accept| accept.contains("json"))
}
