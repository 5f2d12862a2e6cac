//! The table of who may do what, held against the program: every line and every request, by
//! everybody with every right, over real connections, before somebody logs in, after that, when
//! rights were changed and when they were taken away. What counts is what is answered, and what was
//! published nevertheless.

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

use self::table::Given;
use crate::access::tokens::create_token;
use crate::support::http_client::HttpClient;
use crate::support::pipelined_connection::{PipelinedConnection, connect_tcp_from};
use crate::support::process::Server;

/// Wrong answers that are told; one mistake makes hundreds.
const MAX_SHOWN_ERRORS: usize = 20;

/// What an answer says of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// It may be done, whatever comes of it.
    Allowed,
    /// Whoever asks is known, and may not.
    Denied,
    /// Whoever asks has to log in first.
    Unauthenticated,
}

/// Counts answers, and keeps those that are wrong.
#[derive(Default)]
struct DecisionChecker {
    cases: AtomicUsize,
    mismatches: Mutex<Vec<String>>,
}

impl DecisionChecker {
    /// `said` is what was asked, and by whom.
    fn check(&self, wanted: Decision, heard: Decision, said: impl FnOnce() -> String) {
        self.cases.fetch_add(1, Ordering::Relaxed);
        if wanted != heard {
            let text = format!("{}: {heard:?}, and {wanted:?} is right", said());
            self.mismatches.lock().unwrap().push(text);
        }
    }

    #[track_caller]
    fn finish(self, cases_min: usize) {
        let (cases, wrong) = (self.cases.into_inner(), self.mismatches.into_inner().unwrap());
        eprintln!("{cases} answers");
        let shown = wrong.iter().take(MAX_SHOWN_ERRORS).cloned().collect::<Vec<_>>().join("\n");
        assert!(wrong.is_empty(), "{} of {cases} are wrong:\n{shown}", wrong.len());
        assert!(cases >= cases_min, "{cases}");
    }
}

/// Somebody whom the broker knows.
struct TestPrincipal {
    /// Counts from 0.
    index: usize,
    name: String,
    token: String,
    permissions: Given,
}

impl TestPrincipal {
    /// An address that only this one comes from, of several networks.
    fn source_address(&self, network: u8) -> Ipv4Addr {
        let [.., high, low] = (self.index + 1).to_be_bytes();
        Ipv4Addr::new(127, network, high, low)
    }

    fn config_entry(&self, given: &Given) -> String {
        let hash = TokenHash::of(&tidings_protocol::Token::new(&self.token).unwrap());
        let Self { name, .. } = self;
        let Given { allow, deny } = given;
        format!(
            "[[principal]]\nname = {name:?}\ntoken = \"{hash}\"\nallow = {allow:?}\ndeny = {deny:?}\n"
        )
    }
}

/// A broker that knows somebody with every combination of rights, and somebody who may do
/// everything.
struct Fixture {
    server: Server,
    http: HttpClient,
    principals: Vec<TestPrincipal>,
    /// The token of whoever may do everything.
    admin_token: String,
    /// What `access.toml` begins with: that one.
    admin_entry: String,
    /// How many others were added, so that each version of the file has another number of
    /// principals.
    filler_count: usize,
}

impl Fixture {
    fn start(flags: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let admin = create_token(folder.path(), "op", &["all"]);
        let file = folder.path().join("tidings-data/access.toml");
        let admin_entry = fs::read_to_string(&file).unwrap();
        let known = |(index, given)| TestPrincipal {
            index,
            name: format!("she-{index}"),
            token: new_token().secret().to_owned(),
            permissions: given,
        };
        let principals: Vec<_> = Given::all().into_iter().enumerate().map(known).collect();
        let entries = principals.iter().map(|known| known.config_entry(&known.permissions));
        fs::write(&file, admin_entry.clone() + &entries.collect::<String>()).unwrap();
        let server = Server::start_in(folder, &[&["broker"], flags].concat(), |command| {
            // It tells when it has taken over who is known.
            command.env("TIDINGS_LOG", "tidings::principals=info");
        });
        let http = HttpClient::new(&server);
        Self { server, http, principals, admin_token: admin, admin_entry, filler_count: 0 }
    }

    /// Everybody is given what `given` says, or is not known any more. It is so for all connections
    /// from here on.
    fn replace_permissions(&mut self, given: impl Fn(&TestPrincipal) -> Option<Given>) {
        let entry = |known: &TestPrincipal| given(known).map(|given| known.config_entry(&given));
        let entries: Vec<_> = self.principals.iter().filter_map(entry).collect();
        let file = self.server.data_dir().join("access.toml");
        // When the second version is read the first has been taken over.
        for _ in 0..2 {
            self.filler_count += 1;
            let others = (0..self.filler_count).map(|n| {
                let rights = Given::default();
                let token = new_token().secret().to_owned();
                TestPrincipal {
                    index: n,
                    name: format!("other-{n}"),
                    token,
                    permissions: rights.clone(),
                }
                .config_entry(&rights)
            });
            let text = self.admin_entry.clone() + &entries.concat() + &others.collect::<String>();
            let fresh = file.with_extension("new");
            fs::write(&fresh, text).unwrap();
            fs::rename(&fresh, &file).unwrap();
            let count = entries.len() + self.filler_count + 1;
            self.server.process.wait_for_line_with(&format!("has changed principals={count}"));
        }
    }

    /// Does it for everybody, for some at a time.
    fn for_each_principal<T: Send>(
        &self,
        state: &mut [T],
        work: impl Fn(&TestPrincipal, &mut T) + Sync,
    ) {
        let queue = Mutex::new(self.principals.iter().zip(state));
        let work_on = || {
            loop {
                let next = queue.lock().unwrap().next();
                let Some((known, state)) = next else { return };
                work(known, state);
            }
        };
        thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(work_on))));
    }

    /// What whoever may do everything gets.
    #[track_caller]
    fn get(&self, path: &str) -> serde_json::Value {
        let bearer = format!("Authorization: Bearer {}", self.admin_token);
        let got = self.http.request("GET", path, &["-H", &bearer]);
        assert_eq!(got.status, 200, "{path}: {}", got.body);
        got.json()
    }

    /// The cases among what was published to any topic, of those that begin so.
    fn published_cases(&self, start: &str) -> BTreeSet<String> {
        let mut cases = BTreeSet::new();
        for topic in self.get("/topics")["topics"].as_array().unwrap() {
            let (topic, mut next) = (topic["topic"].as_str().unwrap(), 1);
            loop {
                let page = self.get(&format!("/topics/{topic}?from={next}&limit=10000&wait=0s"));
                let events = page["events"].as_array().unwrap();
                let case = |event: &serde_json::Value| {
                    let case = event["payload"].as_str()?.split_once(" case=")?.1.to_owned();
                    case.starts_with(start).then_some(case)
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

    /// Of the cases that begin so, those that were allowed were published, and no others.
    fn check_published(
        &self,
        start: &str,
        allowed: &Mutex<BTreeSet<String>>,
        judge: &DecisionChecker,
    ) {
        let (published, allowed) = (self.published_cases(start), allowed.lock().unwrap());
        judge.cases.fetch_add(published.len(), Ordering::Relaxed);
        let mut wrong = judge.mismatches.lock().unwrap();
        let beyond = published.difference(&allowed);
        wrong.extend(beyond.map(|case| format!("{case}: it was published, and it may not be")));
        let missing = allowed.difference(&published);
        wrong.extend(missing.map(|case| format!("{case}: it was to be published, and is nowhere")));
    }

    /// Nothing of what the rows name was made by anybody.
    #[track_caller]
    fn expect_nothing_created(&self) {
        for path in ["/topics", "/groups", "/jobs"] {
            let there = self.get(path).to_string();
            assert!(!there.contains("docs-1"), "{path}: {there}");
        }
    }

    fn connect_line(&self, known: &TestPrincipal, network: u8) -> PipelinedConnection {
        read_greeting(PipelinedConnection::new(connect_tcp_from(
            self.server.address,
            known.source_address(network),
        )))
    }

    fn connect_http(&self, known: &TestPrincipal, network: u8) -> PipelinedConnection {
        let address = self.http.authority().parse().unwrap();
        PipelinedConnection::new(connect_tcp_from(address, known.source_address(network)))
    }
}

/// Has read the greeting.
#[track_caller]
fn read_greeting(mut wire: PipelinedConnection) -> PipelinedConnection {
    assert!(wire.read_line().is_some_and(|line| line.starts_with("Connected.")));
    wire
}
