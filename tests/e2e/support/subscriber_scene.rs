//! A feed that nginx serves from a file, a hub that is a script, a broker that watches the feed,
//! and what the hub verifies and delivers, which curl does in its place.

use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use super::history::Heard;
use super::http::{Got, Http};
use super::nginx::Nginx;
use super::openssl::hmac;
use super::process::{Server, at};
use super::receiver::{Receiver, Told};
use super::talk::{Talk, value};
use super::wait::until;

/// Everybody who has a part.
pub(crate) struct Scene {
    pub(crate) nginx: Nginx,
    pub(crate) hub: Receiver,
    pub(crate) server: Server,
    pub(crate) http: Http,
    pub(crate) flags: Vec<String>,
}

/// How the feed names who tells of it.
pub(crate) enum Named {
    InHead,
    InFeed,
    ByPage,
    /// There is no feed: it is the page that has a hub.
    Page,
    Cloud,
    /// Hubs that answer like this, and then a cloud.
    Several(&'static [&'static str]),
}

pub(crate) fn feed(items: &[&str], more: &str) -> String {
    let items = items
        .iter()
        .map(|item| format!("<item><guid>{item}</guid><link>/posts/{item}</link></item>"));
    let items: String = items.collect();
    format!(
        "<rss version=\"2.0\" xmlns:atom=\"http://www.w3.org/2005/Atom\"><channel><title>News</title>{more}{items}\
         </channel></rss>"
    )
}

/// A page that has a hub, and no feed. What a reader of it does not see is another thing each time.
pub(crate) fn page(hub: &str, text: &str) -> String {
    static NONCE: AtomicUsize = AtomicUsize::new(0);
    let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
    format!(
        "<!doctype html><html><head><title>Page</title><base href=\"/base/\"><meta name=csrf content={nonce}>\
         <link rel=\"me hub\" href=\"{hub}\"><link rel=self href=\"/\"></head><body><p>{text}</p>\
         <script>nonce = {nonce}</script></body></html>"
    )
}

impl Scene {
    #[track_caller]
    pub(crate) fn start(named: &Named, more_flags: &[&str]) -> Self {
        let hub = Receiver::start();
        let at_hub = hub.url("202", "hub");
        let folder = TempDir::new().unwrap();
        let in_feed = |hub: &str| format!("<atom:link rel=\"hub\" href=\"{hub}\"/>");
        let cloud = format!(
            "<cloud domain=\"127.0.0.1\" port=\"{}\" path=\"/200/cloud\" registerProcedure=\"\" \
             protocol=\"http-post\"/>",
            hub.port
        );
        let (link, more) = match named {
            Named::InHead => (format!("add_header Link '<{at_hub}>; rel=\"hub\"';"), String::new()),
            Named::InFeed => (String::new(), in_feed(&at_hub)),
            Named::ByPage | Named::Page => (String::new(), String::new()),
            Named::Cloud => (String::new(), cloud),
            Named::Several(answers) => {
                let hubs = answers.iter().map(|answer| in_feed(&hub.url(answer, answer)));
                (String::new(), hubs.collect::<String>() + &cloud)
            }
        };
        fs::write(folder.path().join("feed.rss"), feed(&["old"], &more)).unwrap();
        let page = match named {
            Named::Page => page(&at_hub, "one"),
            _ => format!(
                "<!doctype html><link rel=hub href=\"{at_hub}\">\
                 <link rel=alternate type=application/rss+xml href=/feed.rss>"
            ),
        };
        fs::write(folder.path().join("index.html"), page).unwrap();
        let http =
            "types { application/rss+xml rss; text/html html; } log_format looks '$uri $status';";
        let root = folder.path().display().to_string();
        let site = format!("root {root}; access_log looks.log looks; etag on; {link}");
        let nginx = Nginx::start(folder, http, &site);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (listen, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
        let flags =
            ["up", "--quiet", "--allow-private", "--http", &listen, "--public-url", &public];
        let flags: Vec<_> = flags.iter().chain(more_flags).map(ToString::to_string).collect();
        let words: Vec<_> = flags.iter().map(String::as_str).collect();
        let server = Server::start(&words);
        let http = Http::of(&server);
        let scene = Self { nginx, hub, server, http, flags };
        let watched = match named {
            Named::ByPage | Named::Page => scene.nginx.url(),
            _ => scene.feed_url(),
        };
        let often = ["--every", "1s", "--min", "1s", "--max", "4s"];
        let words = [&["watch-feed", watched.as_str()][..], &often].concat();
        at(&scene.server, &words).expect_code(0);
        scene
    }

    pub(crate) fn feed_url(&self) -> String {
        format!("{}feed.rss", self.nginx.url())
    }

    /// The feed gets a new item; what names its hub stays.
    pub(crate) fn write(&self, items: &[&str]) {
        let path = self.nginx.folder.path().join("feed.rss");
        let before = fs::read_to_string(&path).unwrap();
        let more = before.split_once("</title>").unwrap().1.split_once("<item>").unwrap().0;
        fs::write(&path, feed(items, more)).unwrap();
    }

    /// The n-th request to the hub, from 0, as a form.
    #[track_caller]
    pub(crate) fn asked(&self, n: usize) -> Form {
        Form::of(&self.hub.told(n + 1)[n])
    }

    /// How often the feed is looked at now.
    pub(crate) fn every(&self) -> Option<String> {
        let mut talk = Talk::client(self.server.address);
        let lines = talk.ask_lines("GROUP schedules crawlers");
        let scheduled = lines.iter().find(|line| line.contains(" every="))?;
        Some(value(scheduled, "every").to_owned())
    }

    #[track_caller]
    pub(crate) fn is_looked_at_every(&self, every: &str) {
        until(every, || (self.every().as_deref() == Some(every)).then_some(()));
    }

    /// Looks of crawlers at the feed.
    pub(crate) fn looks(&self) -> usize {
        self.looks_at("/feed.rss")
    }

    pub(crate) fn looks_at(&self, path: &str) -> usize {
        let log = fs::read_to_string(self.nginx.folder.path().join("looks.log"));
        let log = log.unwrap_or_default();
        log.lines().filter(|line| line.split(' ').next() == Some(path)).count()
    }

    /// What people see of it.
    pub(crate) fn listed(&self) -> String {
        let words = ["watch-feed", "--list", "--data", "tidings-data"];
        at(&self.server, &words).expect_code(0).stdout().join("\n")
    }

    pub(crate) fn items(&self) -> Vec<String> {
        let heard = Heard::all_of(self.server.address, "post-ready", "end-of-items");
        let items = heard.events.into_iter().map(|(_, payload)| payload);
        items.filter(|payload| payload != "end-of-items").collect()
    }

    /// How often this was announced.
    pub(crate) fn announced(&self, item: &str) -> usize {
        let item = format!(" item={item} ");
        self.items().iter().filter(|payload| payload.contains(&item)).count()
    }

    pub(crate) fn refused(&self) -> Value {
        self.http.get("/stats").json()["notices"]["refused"].clone()
    }
}

/// What a form says, and where it leads.
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    pub(crate) fn of(told: &Told) -> Self {
        assert_eq!(told.header("content-type"), "application/x-www-form-urlencoded");
        let pairs = told.body.split('&').filter_map(|pair| pair.split_once('='));
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

    /// The path of the callback, with its slash.
    pub(crate) fn path(&self) -> String {
        let (_, path) = self.get("hub.callback").split_once("/websub/").unwrap();
        format!("/websub/{path}")
    }
}

/// What curl gets that verifies as a hub does.
pub(crate) fn verify(
    scene: &Scene,
    form: &Form,
    mode: &str,
    topic: &str,
    challenge: &str,
    lease: &str,
) -> Got {
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
    scene.http.ask("GET", &form.path(), &arguments)
}

pub(crate) fn confirm(scene: &Scene, form: &Form, lease: &str) {
    let topic = form.get("hub.topic");
    let got = verify(scene, form, form.get("hub.mode"), topic, "a+b c&d", lease);
    assert_eq!((got.status, got.body.as_str()), (200, "a+b c&d"));
    assert_eq!(got.header("content-type"), Some("text/plain; charset=utf-8"));
}

pub(crate) fn deliver(scene: &Scene, form: &Form, body: &str, signature: &str) -> Got {
    deliver_as(scene, form, "application/rss+xml", body, signature)
}

pub(crate) fn deliver_as(
    scene: &Scene,
    form: &Form,
    kind: &str,
    body: &str,
    signature: &str,
) -> Got {
    let signature = format!("X-Hub-Signature: {signature}");
    scene.http.with_body("POST", &form.path(), kind, &[&signature], body)
}

pub(crate) fn signed(form: &Form, body: &str) -> String {
    format!("sha256={}", hmac("sha256", form.get("hub.secret"), body))
}
