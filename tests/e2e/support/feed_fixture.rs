//! A fixture for WebSub and rssCloud subscriptions: nginx serves a feed from a file, a script is
//! the hub, a broker watches the feed, and curl sends what the hub would send.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use super::callback_server::{CallbackRequest, CallbackServer};
use super::http_client::{HttpClient, HttpResponse};
use super::line_connection::{LineConnection, value};
use super::nginx::Nginx;
use super::openssl::hmac;
use super::ports::free_port;
use super::process::{Server, run_at};
use super::topic_history::ReceivedEvents;
use super::wait::wait_until;

/// The programs and files of one test.
pub(crate) struct FeedFixture {
    pub(crate) nginx: Nginx,
    pub(crate) hub: CallbackServer,
    pub(crate) server: Server,
    pub(crate) http: HttpClient,
    pub(crate) flags: Vec<String>,
}

/// Where the feed names its hub.
pub(crate) enum HubLink {
    Header,
    Feed,
    FeedPage,
    /// The page itself names the hub; the site has no feed.
    PageWithoutFeed,
    Cloud,
    /// The feed names hubs that respond with these statuses, and an rssCloud server after them.
    SeveralHubs(&'static [&'static str]),
}

pub(crate) fn rss_feed(items: &[&str], more: &str) -> String {
    let items = items
        .iter()
        .map(|item| format!("<item><guid>{item}</guid><link>/posts/{item}</link></item>"));
    let items: String = items.collect();
    format!(
        "<rss version=\"2.0\" xmlns:atom=\"http://www.w3.org/2005/Atom\"><channel><title>News</title>{more}{items}\
         </channel></rss>"
    )
}

/// A page that names a hub and has no feed. Its invisible parts change with each call.
pub(crate) fn html_page(hub: &str, text: &str) -> String {
    static NONCE: AtomicUsize = AtomicUsize::new(0);
    let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
    format!(
        "<!doctype html><html><head><title>Page</title><base href=\"/base/\"><meta name=csrf content={nonce}>\
         <link rel=\"me hub\" href=\"{hub}\"><link rel=self href=\"/\"></head><body><p>{text}</p>\
         <script>nonce = {nonce}</script></body></html>"
    )
}

impl FeedFixture {
    #[track_caller]
    pub(crate) fn start(named: &HubLink, more_flags: &[&str]) -> Self {
        let hub = CallbackServer::start();
        let at_hub = hub.url("202", "hub");
        let folder = TempDir::new().unwrap();
        let in_feed = |hub: &str| format!("<atom:link rel=\"hub\" href=\"{hub}\"/>");
        let cloud = format!(
            "<cloud domain=\"127.0.0.1\" port=\"{}\" path=\"/200/cloud\" registerProcedure=\"\" \
             protocol=\"http-post\"/>",
            hub.port
        );
        let (link, more) = match named {
            HubLink::Header => {
                (format!("add_header Link '<{at_hub}>; rel=\"hub\"';"), String::new())
            }
            HubLink::Feed => (String::new(), in_feed(&at_hub)),
            HubLink::FeedPage | HubLink::PageWithoutFeed => (String::new(), String::new()),
            HubLink::Cloud => (String::new(), cloud),
            HubLink::SeveralHubs(statuses) => {
                let hubs = statuses.iter().map(|status| in_feed(&hub.url(status, status)));
                (String::new(), hubs.collect::<String>() + &cloud)
            }
        };
        fs::write(folder.path().join("feed.rss"), rss_feed(&["old"], &more)).unwrap();
        let page = match named {
            HubLink::PageWithoutFeed => html_page(&at_hub, "one"),
            _ => format!(
                "<!doctype html><link rel=hub href=\"{at_hub}\">\
                 <link rel=alternate type=application/rss+xml href=/feed.rss>"
            ),
        };
        fs::write(folder.path().join("index.html"), page).unwrap();
        let http =
            "types { application/rss+xml rss; text/html html; } log_format polls '$uri $status';";
        let root = folder.path().display().to_string();
        let site = format!("root {root}; access_log polls.log polls; etag on; {link}");
        let nginx = Nginx::start(folder, http, &site);
        let port = free_port();
        let (listen, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
        let flags =
            ["up", "--quiet", "--allow-private", "--http", &listen, "--public-url", &public];
        let flags: Vec<_> = flags.iter().chain(more_flags).map(ToString::to_string).collect();
        let arguments: Vec<_> = flags.iter().map(String::as_str).collect();
        let server = Server::start(&arguments);
        let http = HttpClient::new(&server);
        let fixture = Self { nginx, hub, server, http, flags };
        match named {
            // The tests of pages decide when a poll may come between their deliveries.
            HubLink::PageWithoutFeed => fixture.watch(&fixture.nginx.url(), "1h"),
            HubLink::FeedPage => fixture.watch(&fixture.nginx.url(), "4s"),
            _ => fixture.watch(&fixture.feed_url(), "4s"),
        }
        fixture
    }

    /// Watches the URL; `longest` is the poll interval while a hub delivers.
    #[track_caller]
    pub(crate) fn watch(&self, url: &str, longest: &str) {
        let words = ["watch-feed", url, "--every", "1s", "--min", "1s", "--max", longest];
        run_at(&self.server, &words).expect_code(0);
    }

    pub(crate) fn feed_url(&self) -> String {
        format!("{}feed.rss", self.nginx.url())
    }

    /// Writes the feed with these items; the part that names the hub stays.
    pub(crate) fn write_items(&self, items: &[&str]) {
        let path = self.nginx.folder.path().join("feed.rss");
        let before = fs::read_to_string(&path).unwrap();
        let more = before.split_once("</title>").unwrap().1.split_once("<item>").unwrap().0;
        fs::write(&path, rss_feed(items, more)).unwrap();
    }

    /// The n-th request to the hub, counted from 0, as form fields.
    #[track_caller]
    pub(crate) fn hub_request(&self, n: usize) -> FormFields {
        FormFields::parse(&self.hub.first_requests(n + 1)[n])
    }

    /// The current poll interval of the feed.
    pub(crate) fn poll_interval(&self) -> Option<String> {
        let mut client = LineConnection::connect_client(self.server.address);
        let lines = client.request_lines("GROUP schedules crawlers");
        let scheduled = lines.iter().find(|line| line.contains(" every="))?;
        Some(value(scheduled, "every").to_owned())
    }

    #[track_caller]
    pub(crate) fn wait_for_poll_interval(&self, every: &str) {
        wait_until(every, || (self.poll_interval().as_deref() == Some(every)).then_some(()));
    }

    /// How often crawlers have requested the feed.
    pub(crate) fn poll_count(&self) -> usize {
        self.request_count("/feed.rss")
    }

    pub(crate) fn request_count(&self, path: &str) -> usize {
        let log = fs::read_to_string(self.nginx.folder.path().join("polls.log"));
        let log = log.unwrap_or_default();
        log.lines().filter(|line| line.split(' ').next() == Some(path)).count()
    }

    /// The output of `tidings watch-feed --list`.
    pub(crate) fn watch_list(&self) -> String {
        let arguments = ["watch-feed", "--list", "--data", "tidings-data"];
        run_at(&self.server, &arguments).expect_code(0).stdout().join("\n")
    }

    pub(crate) fn published_items(&self) -> Vec<String> {
        let received = ReceivedEvents::read_all(self.server.address, "post-ready", "end-of-items");
        let items = received.events.into_iter().map(|(_, payload)| payload);
        items.filter(|payload| payload != "end-of-items").collect()
    }

    /// How often this item was published.
    pub(crate) fn published_count(&self, item: &str) -> usize {
        let item = format!(" item={item} ");
        self.published_items().iter().filter(|payload| payload.contains(&item)).count()
    }

    pub(crate) fn rejected_notices(&self) -> Value {
        self.http.get("/stats").json()["notices"]["refused"].clone()
    }
}

/// The decoded fields of a form.
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    pub(crate) fn parse(request: &CallbackRequest) -> Self {
        assert_eq!(request.header("content-type"), "application/x-www-form-urlencoded");
        let pairs = request.body.split('&').filter_map(|pair| pair.split_once('='));
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            let mut parts = text.split('%');
            let mut decoded = parts.next().unwrap().to_owned();
            for part in parts {
                decoded.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
                decoded.push_str(&part[2..]);
            }
            decoded
        };
        Self(pairs.map(|(key, value)| (decoded(key), decoded(value))).collect())
    }

    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> &str {
        let found = self.0.iter().find(|(name, _)| name == key);
        &found.unwrap_or_else(|| panic!("no {key}: {:?}", self.0)).1
    }

    /// The path of the callback, with its leading slash.
    pub(crate) fn callback_path(&self) -> String {
        let (_, path) = self.get("hub.callback").split_once("/websub/").unwrap();
        format!("/websub/{path}")
    }
}

/// Sends the verification request of a hub and returns the response.
pub(crate) fn send_verification(
    fixture: &FeedFixture,
    form: &FormFields,
    mode: &str,
    topic: &str,
    challenge: &str,
    lease: &str,
) -> HttpResponse {
    let pairs = [
        format!("hub.mode={mode}"),
        format!("hub.topic={topic}"),
        format!("hub.challenge={challenge}"),
        format!("hub.lease_seconds={lease}"),
    ];
    let mut arguments = vec!["--get"];
    for pair in &pairs {
        arguments.extend(["--data-urlencode", pair]);
    }
    fixture.http.request("GET", &form.callback_path(), &arguments)
}

pub(crate) fn confirm_subscription(fixture: &FeedFixture, form: &FormFields, lease: &str) {
    let topic = form.get("hub.topic");
    let got = send_verification(fixture, form, form.get("hub.mode"), topic, "a+b c&d", lease);
    assert_eq!((got.status, got.body.as_str()), (200, "a+b c&d"));
    assert_eq!(got.header("content-type"), Some("text/plain; charset=utf-8"));
}

pub(crate) fn deliver(
    fixture: &FeedFixture,
    form: &FormFields,
    body: &str,
    signature: &str,
) -> HttpResponse {
    deliver_with_type(fixture, form, "application/rss+xml", body, signature)
}

pub(crate) fn deliver_with_type(
    fixture: &FeedFixture,
    form: &FormFields,
    kind: &str,
    body: &str,
    signature: &str,
) -> HttpResponse {
    let signature = format!("X-Hub-Signature: {signature}");
    fixture.http.send_body("POST", &form.callback_path(), kind, &[&signature], body)
}

pub(crate) fn body_signature(form: &FormFields, body: &str) -> String {
    format!("sha256={}", hmac("sha256", form.get("hub.secret"), body))
}
