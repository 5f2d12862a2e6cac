//! The permission table, checked against the program over real connections. Every principal sends
//! every line and every request: before login, after login, after a change of its permissions, and
//! after its revocation. The test checks the responses and the published events.

mod lines;
mod routes;
#[path = "../../../../broker/src/access/tests/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use tempfile::TempDir;
use tidings_broker::access::{TokenHash, new_token};

use self::table::Grants;
use crate::access::tokens::create_token;
use crate::support::http_client::HttpClient;
use crate::support::pipelined_connection::{PipelinedConnection, connect_tcp_from};
use crate::support::process::Server;

/// At most this many mismatches are shown, because one mistake causes hundreds.
const MAX_SHOWN_ERRORS: usize = 20;

/// What a response says about permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// The action is permitted, whether it succeeds or not.
    Allowed,
    /// The client is logged in and lacks a permission.
    Denied,
    /// The client must log in first.
    Unauthenticated,
}

/// Counts decisions and keeps the wrong ones.
#[derive(Default)]
struct DecisionChecker {
    cases: AtomicUsize,
    mismatches: Mutex<Vec<String>>,
}

impl DecisionChecker {
    /// `label` describes the request and the client.
    fn check(&self, expected: Decision, actual: Decision, label: impl FnOnce() -> String) {
        self.cases.fetch_add(1, Ordering::Relaxed);
        if expected != actual {
            let text = format!("{}: {actual:?}, expected {expected:?}", label());
            self.mismatches.lock().unwrap().push(text);
        }
    }

    #[track_caller]
    fn finish(self, cases_min: usize) {
        let (cases, wrong) = (self.cases.into_inner(), self.mismatches.into_inner().unwrap());
        eprintln!("{cases} responses");
        let shown = wrong.iter().take(MAX_SHOWN_ERRORS).cloned().collect::<Vec<_>>().join("\n");
        assert!(wrong.is_empty(), "{} of {cases} decisions are wrong:\n{shown}", wrong.len());
        assert!(cases >= cases_min, "{cases}");
    }
}

/// A principal that the broker knows by its token.
struct TestPrincipal {
    /// Counts from 0.
    index: usize,
    name: String,
    token: String,
    permissions: Grants,
}

impl TestPrincipal {
    /// An address that only this principal uses, in one of several networks.
    fn source_address(&self, network: u8) -> Ipv4Addr {
        let [.., high, low] = (self.index + 1).to_be_bytes();
        Ipv4Addr::new(127, network, high, low)
    }

    fn config_entry(&self, permissions: &Grants) -> String {
        let hash = TokenHash::of(&tidings_protocol::Token::new(&self.token).unwrap());
        let Self { name, .. } = self;
        let Grants { allow, deny } = permissions;
        format!(
            "[[principal]]\nname = {name:?}\ntoken = \"{hash}\"\nallow = {allow:?}\ndeny = {deny:?}\n"
        )
    }
}

/// A broker with a principal for each combination of permissions, and one principal that may do
/// everything.
struct Fixture {
    server: Server,
    http: HttpClient,
    principals: Vec<TestPrincipal>,
    /// The token of the principal that may do everything.
    admin_token: String,
    /// The entry of that principal, with which `access.toml` begins.
    admin_entry: String,
    /// Principals that were added as a filler, so that each version of the file has another number
    /// of principals.
    filler_count: usize,
}

impl Fixture {
    fn start(flags: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let admin = create_token(folder.path(), "op", &["all"]);
        let file = folder.path().join("tidings-data/access.toml");
        let admin_entry = fs::read_to_string(&file).unwrap();
        let principal = |(index, permissions)| TestPrincipal {
            index,
            name: format!("principal-{index}"),
            token: new_token().secret().to_owned(),
            permissions,
        };
        let principals: Vec<_> = Grants::all().into_iter().enumerate().map(principal).collect();
        let entries =
            principals.iter().map(|principal| principal.config_entry(&principal.permissions));
        fs::write(&file, admin_entry.clone() + &entries.collect::<String>()).unwrap();
        let server = Server::start_in(folder, &[&["broker"], flags].concat(), |command| {
            // The broker logs when it has loaded the principals.
            command.env("TIDINGS_LOG", "tidings::services::principals=info");
        });
        let http = HttpClient::new(&server);
        Self { server, http, principals, admin_token: admin, admin_entry, filler_count: 0 }
    }

    /// Gives each principal the permissions that `permissions` returns, or removes it from the
    /// file. Returns when the change applies to all connections.
    fn replace_permissions(&mut self, permissions: impl Fn(&TestPrincipal) -> Option<Grants>) {
        let entry = |principal: &TestPrincipal| {
            permissions(principal).map(|permissions| principal.config_entry(&permissions))
        };
        let entries: Vec<_> = self.principals.iter().filter_map(entry).collect();
        let file = self.server.data_dir().join("access.toml");
        // The broker reads the second version only after it has applied the first.
        for _ in 0..2 {
            self.filler_count += 1;
            let others = (0..self.filler_count).map(|n| {
                let permissions = Grants::default();
                let token = new_token().secret().to_owned();
                TestPrincipal {
                    index: n,
                    name: format!("other-{n}"),
                    token,
                    permissions: permissions.clone(),
                }
                .config_entry(&permissions)
            });
            let text = self.admin_entry.clone() + &entries.concat() + &others.collect::<String>();
            let fresh = file.with_extension("new");
            fs::write(&fresh, text).unwrap();
            fs::rename(&fresh, &file).unwrap();
            let count = entries.len() + self.filler_count + 1;
            self.server.process.wait_for_line_with(&format!("has changed principals={count}"));
        }
    }

    /// Runs `work` for each principal, on 16 threads.
    fn for_each_principal<T: Send>(
        &self,
        state: &mut [T],
        work: impl Fn(&TestPrincipal, &mut T) + Sync,
    ) {
        let queue = Mutex::new(self.principals.iter().zip(state));
        let work_on = || {
            loop {
                let next = queue.lock().unwrap().next();
                let Some((principal, state)) = next else { return };
                work(principal, state);
            }
        };
        thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(work_on))));
    }

    /// A response to the principal that may do everything.
    #[track_caller]
    fn get(&self, path: &str) -> serde_json::Value {
        let bearer = format!("Authorization: Bearer {}", self.admin_token);
        let got = self.http.request("GET", path, &["-H", &bearer]);
        assert_eq!(got.status, 200, "{path}: {}", got.body);
        got.json()
    }

    /// The cases with this prefix in the events of all topics.
    fn published_cases(&self, prefix: &str) -> BTreeSet<String> {
        let mut cases = BTreeSet::new();
        for topic in self.get("/topics")["topics"].as_array().unwrap() {
            let (topic, mut next) = (topic["topic"].as_str().unwrap(), 1);
            loop {
                let page = self.get(&format!("/topics/{topic}?from={next}&limit=10000&wait=0s"));
                let events = page["events"].as_array().unwrap();
                let case = |event: &serde_json::Value| {
                    let case = event["payload"].as_str()?.split_once(" case=")?.1.to_owned();
                    case.starts_with(prefix).then_some(case)
                };
                cases.extend(events.iter().filter_map(case));
                if events.is_empty() {
                    break;
                }
                next = page["next"].as_u64().unwrap();
            }
        }
        cases
    }

    /// Checks that the allowed cases with this prefix were published, and no others.
    fn check_published(
        &self,
        prefix: &str,
        allowed: &Mutex<BTreeSet<String>>,
        checker: &DecisionChecker,
    ) {
        let (published, allowed) = (self.published_cases(prefix), allowed.lock().unwrap());
        checker.cases.fetch_add(published.len(), Ordering::Relaxed);
        let mut wrong = checker.mismatches.lock().unwrap();
        let unexpected = published.difference(&allowed);
        wrong.extend(unexpected.map(|case| format!("{case}: published without permission")));
        let missing = allowed.difference(&published);
        wrong.extend(missing.map(|case| format!("{case}: allowed and not published")));
    }

    /// Checks that no client has created what the rows name.
    #[track_caller]
    fn expect_nothing_created(&self) {
        for path in ["/topics", "/groups", "/jobs"] {
            let there = self.get(path).to_string();
            assert!(!there.contains("docs-1"), "{path}: {there}");
        }
    }

    fn connect_line(&self, principal: &TestPrincipal, network: u8) -> PipelinedConnection {
        read_greeting(PipelinedConnection::new(connect_tcp_from(
            self.server.address,
            principal.source_address(network),
        )))
    }

    fn connect_http(&self, principal: &TestPrincipal, network: u8) -> PipelinedConnection {
        let address = self.http.authority().parse().unwrap();
        PipelinedConnection::new(connect_tcp_from(address, principal.source_address(network)))
    }
}

/// Reads the greeting.
#[track_caller]
fn read_greeting(mut wire: PipelinedConnection) -> PipelinedConnection {
    assert!(wire.read_line().is_some_and(|line| line.starts_with("Connected.")));
    wire
}
