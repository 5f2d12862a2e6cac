//! What is answered to those who ask the hub.

use std::net::IpAddr;

use bytes::Bytes;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_broker::{RequestClass, is_forwarded};
use tidings_protocol::{CanonicalUrl, push_attribute};

use super::hub_request::{
    self, FORM_BYTES_MAX, HubRejection, HubRequest as Asked, SubscriptionRequest,
};
use super::store::{RequestOutcome, RowId};
use super::{DELIVERY_QUEUE, Hub, HubQueue, VERIFICATION_QUEUE, host_of, now_unix_ms};

const FORM_CONTENT_TYPE: &str = "application/x-www-form-urlencoded";

/// Seconds after which it may be otherwise.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("60");

/// What is said while nobody knows more.
const VERIFICATION_STARTED: &str = "It is heard; who registers is asked now whether it wants that.";

/// The paths of the hub, below the public URL.
pub const PATHS: [&str; 3] = ["/hub", "/hub/rsscloud", "/hub/ping"];

/// What they are, as `paths` of `OpenAPI` in JSON.
pub const OPENAPI_PATHS: &str = include_str!("openapi.json");

/// What is said of a request, and what it counts for.
#[derive(Debug)]
pub enum HubResponse {
    /// It is a publisher's.
    Trusted(Response<Bytes>),
    /// Anybody may ask this.
    Public(Response<Bytes>),
    /// It is nobody's business. Why is for the log.
    Rejected(&'static str),
}

/// In which form an answer is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseFormat {
    /// Of WebSub: a status, and a text for people.
    WebSub,
    /// Of rssCloud: a document that says whether it is so, with this name.
    RssCloud { name: &'static str, is_json: bool },
}

impl Hub {
    /// Whose request it is. A wish is nobody's, as it is not signed, but for one about a
    /// subscription that there is: whoever sends it names a callback that has shown to want it.
    pub async fn classify(&self, request: &Request<Bytes>, peer: IpAddr) -> RequestClass {
        let (path, headers, body) = (request.uri().path(), request.headers(), request.body());
        let is_sound = request.method() == Method::POST && is_form(headers);
        if !is_sound || body.len() > FORM_BYTES_MAX {
            return RequestClass::Unwanted;
        }
        let direct = direct_peer(headers, peer);
        if path == "/hub/ping" || hub_request::is_publish(body) {
            let may = direct.is_some_and(|peer| self.is_publisher(peer));
            return if may { RequestClass::Verified } else { RequestClass::Unwanted };
        }
        let rules = &self.config.rules;
        let wishes = match path {
            "/hub/rsscloud" => rules.parse_registration(body, direct),
            _ => match rules.parse_request(body) {
                Ok(Asked::Subscription(wish)) => Ok(vec![wish]),
                Ok(Asked::Publish(_)) => return RequestClass::Unwanted,
                Err(refused) => Err(refused),
            },
        };
        let Ok(wishes) = wishes else { return RequestClass::Unwanted };
        // A disk that cannot be read says so to who wishes.
        let subscribed =
            self.with_store(move |store| store.existing_subscription(&wishes)).await.ok().flatten();
        subscribed.map_or(RequestClass::Anonymous, |id| RequestClass::Resource(id.unsigned_abs()))
    }

    /// Answers a request for one of [`PATHS`], whose body is whole.
    pub async fn handle(&self, request: Request<Bytes>, peer: IpAddr) -> HubResponse {
        let path = request.uri().path();
        let is_json = request.headers().get_all(ACCEPT).iter().any(accepts_json);
        let dialect = match path {
            "/hub/rsscloud" => ResponseFormat::RssCloud { name: "notifyResult", is_json },
            "/hub/ping" => ResponseFormat::RssCloud { name: "result", is_json },
            _ => ResponseFormat::WebSub,
        };
        if request.method() != Method::POST {
            let text = "this is a hub of WebSub and rssCloud: ask with POST";
            let mut response = dialect.rejection(HubRejection { status: 405, text });
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return HubResponse::Public(response);
        }
        if !is_form(request.headers()) {
            let text = "the body has to be a form: application/x-www-form-urlencoded";
            return HubResponse::Public(dialect.rejection(HubRejection { status: 415, text }));
        }
        if request.body().len() > FORM_BYTES_MAX {
            let text = "the form is too long";
            return HubResponse::Public(dialect.rejection(HubRejection { status: 413, text }));
        }
        let (rules, body, headers) = (&self.config.rules, request.body(), request.headers());
        let direct = direct_peer(headers, peer);
        let is_ping = path == "/hub/ping" || hub_request::is_publish(body);
        if is_ping && !direct.is_some_and(|peer| self.is_publisher(peer)) {
            return HubResponse::Rejected("it says that something has changed, and may not");
        }
        let done = match path {
            "/hub/ping" => match rules.parse_ping(body) {
                Ok(topics) => self.enqueue_fetches(topics).await,
                Err(refused) => Err(refused),
            },
            "/hub/rsscloud" => match rules.parse_registration(body, direct) {
                Ok(wishes) => self.register(wishes).await,
                Err(refused) => Err(refused),
            },
            _ => match rules.parse_request(body) {
                Ok(Asked::Subscription(wish)) => self.subscribe(wish).await,
                Ok(Asked::Publish(topics)) => self.enqueue_fetches(topics).await,
                Err(refused) => Err(refused),
            },
        };
        let response =
            done.map_or_else(|refused| dialect.rejection(refused), |text| dialect.success(text));
        if is_ping { HubResponse::Trusted(response) } else { HubResponse::Public(response) }
    }

    fn is_publisher(&self, peer: IpAddr) -> bool {
        self.config.publisher_networks.iter().any(|net| net.contains(peer))
    }

    /// Sees to it that topics are looked at.
    async fn enqueue_fetches(
        &self,
        topics: Vec<CanonicalUrl<'static>>,
    ) -> Result<&'static str, HubRejection> {
        let events: Vec<_> = topics
            .iter()
            .map(|topic| {
                let mut event = topic.to_string();
                push_attribute(&mut event, "host", topic.host());
                push_attribute(&mut event, "fetch", "yes");
                event
            })
            .collect();
        self.publish(&DELIVERY_QUEUE, &events).await?;
        Ok("It is heard, and looked at now.")
    }

    /// Sees to it that whoever wishes something is asked whether that is so.
    async fn subscribe(&self, wish: SubscriptionRequest) -> Result<&'static str, HubRejection> {
        let noted = self.store_requests(vec![wish]).await?;
        self.enqueue_verifications(&noted).await?;
        Ok(VERIFICATION_STARTED)
    }

    /// The same of rssCloud, where the answer says whether it is so, if that is known soon.
    async fn register(
        &self,
        wishes: Vec<SubscriptionRequest>,
    ) -> Result<&'static str, HubRejection> {
        let noted = self.store_requests(wishes).await?;
        let outcomes =
            self.verification_waiters.wait_for(noted.iter().map(|(id, _)| *id).collect());
        self.enqueue_verifications(&noted).await?;
        let Some(outcomes) = outcomes else { return Ok(VERIFICATION_STARTED) };
        match outcomes.all_granted().await {
            Some(true) => Ok("It is registered."),
            Some(false) => {
                Err(hub_request::bad_request("the callback did not take what it was asked"))
            }
            None => Ok(VERIFICATION_STARTED),
        }
    }

    /// Keeps wishes: their numbers, and the hosts that are to be asked.
    async fn store_requests(
        &self,
        wishes: Vec<SubscriptionRequest>,
    ) -> Result<Vec<(RowId, String)>, HubRejection> {
        let hosts: Vec<_> = wishes.iter().map(|wish| host_of(wish.callback.as_str())).collect();
        let bounds = self.config.limits;
        let heard = self
            .with_store(move |store| store.insert_requests(&wishes, &bounds, now_unix_ms()))
            .await;
        let heard = heard.map_err(|error| {
            tracing::error!(%error, "hub.db");
            HubRejection { status: 503, text: "nothing can be stored at the moment" }
        })?;
        let mut noted = Vec::new();
        for (heard, host) in heard.into_iter().zip(hosts) {
            match heard {
                RequestOutcome::Pending(id) => noted.push((id, host)),
                RequestOutcome::NotSubscribed => {}
                RequestOutcome::Full => {
                    self.logs.rejected_subscribers.lock().add(
                        1,
                        "it has as many as it takes, or too many who were not verified yet",
                    );
                    return Err(HubRejection {
                        status: 503,
                        text: "there is no room for more at the moment",
                    });
                }
            }
        }
        Ok(noted)
    }

    async fn enqueue_verifications(&self, noted: &[(RowId, String)]) -> Result<(), HubRejection> {
        let event = |(id, host): &(RowId, String)| {
            let mut event = self.own_url("verify", *id);
            push_attribute(&mut event, "host", host);
            push_attribute(&mut event, "verify", &id.to_string());
            event
        };
        let events: Vec<_> = noted.iter().map(event).collect();
        let published = self.publish(&VERIFICATION_QUEUE, &events).await;
        if published.is_err() {
            // Whoever is told that it was not heard wishes it again: what nobody asks about would
            // only stand in its way.
            let ids: Vec<RowId> = noted.iter().map(|(id, _)| *id).collect();
            let forgotten = self
                .with_store(move |store| ids.iter().try_for_each(|id| store.remove_request(*id)));
            if let Err(error) = forgotten.await {
                tracing::error!(%error, "hub.db");
            }
        }
        published
    }

    async fn publish(&self, work: &HubQueue, events: &[String]) -> Result<(), HubRejection> {
        self.publisher.publish(&work.topic(), events).await.map_err(|error| {
            tracing::error!(%error, "an event of the hub could not be published");
            HubRejection { status: 503, text: "nothing can be stored at the moment" }
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
        let status = StatusCode::from_u16(status).expect("it is one of HTTP");
        let mut response = match self {
            Self::WebSub => text_response(status, "text/plain", format!("{text}\n")),
            Self::RssCloud { .. } => self.rsscloud_document(status, false, text),
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }

    /// The text has nothing in it that XML or JSON would have to escape.
    fn rsscloud_document(self, status: StatusCode, success: bool, text: &str) -> Response<Bytes> {
        let Self::RssCloud { name, is_json } = self else {
            unreachable!("others have no documents")
        };
        if is_json {
            let json = format!("{{\"success\":{success},\"msg\":\"{text}\"}}\n");
            return text_response(status, "application/json", json);
        }
        let xml =
            format!("<?xml version=\"1.0\"?>\n<{name} success=\"{success}\" msg=\"{text}\"/>\n");
        text_response(status, "text/xml", xml)
    }
}

fn text_response(status: StatusCode, content_type: &'static str, text: String) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Who asks, if nobody stands between.
fn direct_peer(headers: &HeaderMap, peer: IpAddr) -> Option<IpAddr> {
    Some(peer.to_canonical()).filter(|_| !is_forwarded(headers))
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM_CONTENT_TYPE)
}

fn accepts_json(accept: &HeaderValue) -> bool {
    accept.to_str().is_ok_and(|accept| accept.contains("json"))
}
