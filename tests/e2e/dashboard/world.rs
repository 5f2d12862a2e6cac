//! A broker with a crawler and an origin, and something to see on every page.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;

use serde_json::Value;
use tempfile::TempDir;

use crate::access::tokens::create_token;
use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, Site, full_response, html_response};
use crate::support::process::{ProcessOutput, Server, run_at};
use crate::support::wait::wait_until;

/// Pages that fail once, so that their URLs are dead letters.
const BROKEN: u32 = 5;

/// Names that are on the pages of clients that may see them, and nowhere else.
pub(super) const NAMES: [&str; 3] = ["harvest", "gazette", "almanac"];

pub(super) struct World {
    pub(super) server: Server,
    pub(super) origin: Origin,
    pub(super) http: HttpClient,
    /// The token of the principal `operator`, which may do everything.
    pub(super) operator: String,
}

impl World {
    /// Starts everything. Afterwards nothing moves but the clock.
    ///
    /// - The topic `harvest` has three events.
    /// - The job `gazette` is done; `almanac` is open and paused, with five URLs on one host.
    /// - Five URLs are dead letters. One URL has a schedule, and its host a rule.
    #[track_caller]
    pub(super) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let operator = create_token(folder.path(), "operator", &["all"]);
        fs::write(folder.path().join("operator.token"), &operator).unwrap();
        let failed = Mutex::new(BTreeSet::new());
        let site = Site { hosts: 3, pages: 7, ..Site::default() };
        let origin = Origin::serve_with(site, move |hit| {
            if hit.path == "/index" {
                let port = hit.header("Host")?.rsplit_once(':')?.1.to_owned();
                let link = |page| format!("<a href=http://{}:{port}/p/{page}>p</a>", Site::host(0));
                return Some(html_response(&(0..5).map(link).collect::<String>()));
            }
            let is_new =
                hit.path.starts_with("/broken/") && failed.lock().unwrap().insert(hit.path.clone());
            is_new.then(|| full_response("500 Internal Server Error", "", ""))
        });
        let flags = ["up", "--allow-private", "--delay", "10ms", "--audit", "audit.log"];
        let server = Server::start_in(folder, &flags, |command| {
            command.env("TIDINGS_LOG", "trace");
        });
        let world = Self { http: HttpClient::new(&server), server, origin, operator };
        world.fill();
        world
    }

    #[track_caller]
    fn fill(&self) {
        for text in ["first", "second", "third"] {
            self.run(&["pub", "harvest", text]);
        }
        self.run(&["group", "set", "crawlers", "max-attempts=1"]);
        self.run(&["job", "open", "gazette"]);
        let seeds = self.origin.seed_urls();
        let add: Vec<_> = seeds.iter().map(|url| &**url).collect();
        self.run(&[&["job", "add", "gazette"], &add[..]].concat());
        self.run(&["job", "close", "gazette"]);
        self.run(&["job", "wait", "gazette"]);
        for page in 0..BROKEN {
            self.run(&["pub", "new-url", &self.origin.url(1, &format!("/broken/{page}"))]);
        }
        self.run(&["host", "slow", "127.1.0.2", "--delay", "20ms", "--note", "asked-by-its-owner"]);
        self.run(&["pub", "new-url", &format!("{} every=2h", self.origin.url(2, "/p/6"))]);
        self.run(&["host", "pause", "127.1.0.1"]);
        self.run(&["job", "open", "almanac", "scope=any"]);
        self.run(&["job", "add", "almanac", &self.origin.url(1, "/index")]);
        wait_until("the links of the seed", || {
            let keys = self.json(&["group", "keys"]);
            keys.iter().any(|key| key["waiting"] == 5).then_some(())
        });
        self.run(&["job", "pause", "almanac"]);
        self.run(&["host", "clear", "127.1.0.1"]);
        wait_until("the dead letters and nothing under way", || {
            let group = &self.json(&["group", "show", "crawlers"])[0];
            (group["dead-kept"] == BROKEN && group["processing"] == 0 && group["scheduled"] == 1)
                .then_some(())
        });
    }

    /// Runs a command as the operator.
    #[track_caller]
    pub(super) fn run(&self, arguments: &[&str]) -> ProcessOutput {
        run_at(&self.server, &[arguments, &["--token-file", "operator.token"]].concat())
            .expect_code(0)
    }

    /// The objects that such a command prints with `--json`.
    #[track_caller]
    pub(super) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let lines = self.run(&[arguments, &["--json"]].concat()).stdout();
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The address of the page.
    pub(super) fn address(&self) -> String {
        format!("{}/", self.http.base_url)
    }
}
