//! What is answered to those who ask the hub.

use std::net::IpAddr;

use bytes::Bytes;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tidings_broker::{Asker, is_forwarded};
use tidings_protocol::{CanonicalUrl, push_attribute};

use super::request::{self, FORM_BYTES_MAX, Refused, Request as Asked, Wish};
use super::store::{Heard, Id};
use super::{ASKING, Hub, SENDING, Work, host_of, unix_ms};

const FORM: &str = "application/x-www-form-urlencoded";

/// Seconds after which it may be otherwise.
const LATER: HeaderValue = HeaderValue::from_static("60");

/// What is said while nobody knows more.
const HEARD: &str = "It is heard; who registers is asked now whether it wants that.";

/// The paths of the hub, below the public URL.
pub const PATHS: [&str; 3] = ["/hub", "/hub/rsscloud", "/hub/ping"];

/// What they are, as `paths` of `OpenAPI` in JSON.
pub const DESCRIPTION: &str = include_str!("openapi.json");

/// What is said of a request, and what it counts for.
#[derive(Debug)]
pub enum Answer {
    /// It is a publisher's.
    Known(Response<Bytes>),
    /// Anybody may ask this.
    Anybody(Response<Bytes>),
    /// It is nobody's business. Why is for the log.
    Nobody(&'static str),
}

/// In which form an answer is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Of WebSub: a status, and a text for people.
    WebSub,
    /// Of rssCloud: a document that says whether it is so, with this name.
    Cloud { name: &'static str, is_json: bool },
}

impl Hub {
    /// Whose request it is. A wish is nobody's, as it is not signed, but for one about a
    /// subscription that there is: whoever sends it names a callback that has shown to want it.
    pub async fn recognize(&self, request: &Request<Bytes>, peer: IpAddr) -> Asker {
        let (path, headers, body) = (request.uri().path(), request.headers(), request.body());
        let is_sound = request.method() == Method::POST && is_form(headers);
        if !is_sound || body.len() > FORM_BYTES_MAX {
            return Asker::Nobody;
        }
        let direct = direct(headers, peer);
        if path == "/hub/ping" || request::is_publish(body) {
            let may = direct.is_some_and(|peer| self.is_publisher(peer));
            return if may { Asker::Known } else { Asker::Nobody };
        }
        let rules = &self.config.rules;
        let wishes = match path {
            "/hub/rsscloud" => rules.register(body, direct),
            _ => match rules.read(body) {
                Ok(Asked::Subscriber(wish)) => Ok(vec![wish]),
                Ok(Asked::Publish(_)) => return Asker::Nobody,
                Err(refused) => Err(refused),
            },
        };
        let Ok(wishes) = wishes else { return Asker::Nobody };
        // A disk that cannot be read says so to who wishes.
        let subscribed = self.ask(move |store| store.subscribed(&wishes)).await.ok().flatten();
        subscribed.map_or(Asker::Anybody, |id| Asker::Of(id.unsigned_abs()))
    }

    /// Answers a request for one of [`PATHS`], whose body is whole.
    pub async fn answer(&self, request: Request<Bytes>, peer: IpAddr) -> Answer {
        let path = request.uri().path();
        let is_json = request.headers().get_all(ACCEPT).iter().any(is_json);
        let dialect = match path {
            "/hub/rsscloud" => Dialect::Cloud { name: "notifyResult", is_json },
            "/hub/ping" => Dialect::Cloud { name: "result", is_json },
            _ => Dialect::WebSub,
        };
        if request.method() != Method::POST {
            let text = "this is a hub of WebSub and rssCloud: ask with POST";
            let mut response = dialect.refuse(Refused { status: 405, text });
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return Answer::Anybody(response);
        }
        if !is_form(request.headers()) {
            let text = "the body has to be a form: application/x-www-form-urlencoded";
            return Answer::Anybody(dialect.refuse(Refused { status: 415, text }));
        }
        if request.body().len() > FORM_BYTES_MAX {
            let text = "the form is too long";
            return Answer::Anybody(dialect.refuse(Refused { status: 413, text }));
        }
        let (rules, body, headers) = (&self.config.rules, request.body(), request.headers());
        let direct = direct(headers, peer);
        let is_ping = path == "/hub/ping" || request::is_publish(body);
        if is_ping && !direct.is_some_and(|peer| self.is_publisher(peer)) {
            return Answer::Nobody("it says that something has changed, and may not");
        }
        let done = match path {
            "/hub/ping" => match rules.ping(body) {
                Ok(topics) => self.look(topics).await,
                Err(refused) => Err(refused),
            },
            "/hub/rsscloud" => match rules.register(body, direct) {
                Ok(wishes) => self.register(wishes).await,
                Err(refused) => Err(refused),
            },
            _ => match rules.read(body) {
                Ok(Asked::Subscriber(wish)) => self.subscribe(wish).await,
                Ok(Asked::Publish(topics)) => self.look(topics).await,
                Err(refused) => Err(refused),
            },
        };
        let response =
            done.map_or_else(|refused| dialect.refuse(refused), |text| dialect.accept(text));
        if is_ping { Answer::Known(response) } else { Answer::Anybody(response) }
    }

    fn is_publisher(&self, peer: IpAddr) -> bool {
        self.config.publishers.iter().any(|net| net.contains(peer))
    }

    /// Sees to it that topics are looked at.
    async fn look(&self, topics: Vec<CanonicalUrl<'static>>) -> Result<&'static str, Refused> {
        let events: Vec<_> = topics
            .iter()
            .map(|topic| {
                let mut event = topic.to_string();
                push_attribute(&mut event, "host", topic.host());
                push_attribute(&mut event, "fetch", "yes");
                event
            })
            .collect();
        self.publish(&SENDING, &events).await?;
        Ok("It is heard, and looked at now.")
    }

    /// Sees to it that whoever wishes something is asked whether that is so.
    async fn subscribe(&self, wish: Wish) -> Result<&'static str, Refused> {
        let noted = self.note(vec![wish]).await?;
        self.ask_about(&noted).await?;
        Ok(HEARD)
    }

    /// The same of rssCloud, where the answer says whether it is so, if that is known soon.
    async fn register(&self, wishes: Vec<Wish>) -> Result<&'static str, Refused> {
        let noted = self.note(wishes).await?;
        let outcomes = self.awaited.begin(noted.iter().map(|(id, _)| *id).collect());
        self.ask_about(&noted).await?;
        let Some(outcomes) = outcomes else { return Ok(HEARD) };
        match outcomes.all().await {
            Some(true) => Ok("It is registered."),
            Some(false) => Err(request::bad("the callback did not take what it was asked")),
            None => Ok(HEARD),
        }
    }

    /// Keeps wishes: their numbers, and the hosts that are to be asked.
    async fn note(&self, wishes: Vec<Wish>) -> Result<Vec<(Id, String)>, Refused> {
        let hosts: Vec<_> = wishes.iter().map(|wish| host_of(wish.callback.as_str())).collect();
        let bounds = self.config.bounds;
        let heard = self.ask(move |store| store.hear(&wishes, &bounds, unix_ms())).await;
        let heard = heard.map_err(|error| {
            tracing::error!(%error, "hub.db");
            Refused { status: 503, text: "nothing can be stored at the moment" }
        })?;
        let mut noted = Vec::new();
        for (heard, host) in heard.into_iter().zip(hosts) {
            match heard {
                Heard::Noted(id) => noted.push((id, host)),
                Heard::Nothing => {}
                Heard::Full => {
                    self.complaints.full.lock().add(
                        1,
                        "it has as many as it takes, or too many who were not verified yet",
                    );
                    return Err(Refused {
                        status: 503,
                        text: "there is no room for more at the moment",
                    });
                }
            }
        }
        Ok(noted)
    }

    async fn ask_about(&self, noted: &[(Id, String)]) -> Result<(), Refused> {
        let event = |(id, host): &(Id, String)| {
            let mut event = self.own("verify", *id);
            push_attribute(&mut event, "host", host);
            push_attribute(&mut event, "verify", &id.to_string());
            event
        };
        let events: Vec<_> = noted.iter().map(event).collect();
        let published = self.publish(&ASKING, &events).await;
        if published.is_err() {
            // Whoever is told that it was not heard wishes it again: what nobody asks about would
            // only stand in its way.
            let ids: Vec<Id> = noted.iter().map(|(id, _)| *id).collect();
            let forgotten = self.ask(move |store| ids.iter().try_for_each(|id| store.forget(*id)));
            if let Err(error) = forgotten.await {
                tracing::error!(%error, "hub.db");
            }
        }
        published
    }

    async fn publish(&self, work: &Work, events: &[String]) -> Result<(), Refused> {
        self.line.publish(&work.topic(), events).await.map_err(|error| {
            tracing::error!(%error, "an event of the hub could not be published");
            Refused { status: 503, text: "nothing can be stored at the moment" }
        })
    }
}

impl Dialect {
    fn accept(self, text: &str) -> Response<Bytes> {
        match self {
            Self::WebSub => response(StatusCode::ACCEPTED, "text/plain", "accepted\n".to_owned()),
            Self::Cloud { .. } => self.document(StatusCode::OK, true, text),
        }
    }

    fn refuse(self, Refused { status, text }: Refused) -> Response<Bytes> {
        let status = StatusCode::from_u16(status).expect("it is one of HTTP");
        let mut response = match self {
            Self::WebSub => response(status, "text/plain", format!("{text}\n")),
            Self::Cloud { .. } => self.document(status, false, text),
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, LATER);
        }
        response
    }

    /// The text has nothing in it that XML or JSON would have to escape.
    fn document(self, status: StatusCode, success: bool, text: &str) -> Response<Bytes> {
        let Self::Cloud { name, is_json } = self else { unreachable!("others have no documents") };
        if is_json {
            let json = format!("{{\"success\":{success},\"msg\":\"{text}\"}}\n");
            return response(status, "application/json", json);
        }
        let xml =
            format!("<?xml version=\"1.0\"?>\n<{name} success=\"{success}\" msg=\"{text}\"/>\n");
        response(status, "text/xml", xml)
    }
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Who asks, if nobody stands between.
fn direct(headers: &HeaderMap, peer: IpAddr) -> Option<IpAddr> {
    Some(peer.to_canonical()).filter(|_| !is_forwarded(headers))
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM)
}

fn is_json(accept: &HeaderValue) -> bool {
    accept.to_str().is_ok_and(|accept| accept.contains("json"))
}
