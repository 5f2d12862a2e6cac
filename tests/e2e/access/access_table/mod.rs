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
use crate::access::tokens::token;
use crate::support::http::Http;
use crate::support::process::Server;
use crate::support::wire::{Wire, tcp_from};

/// Wrong answers that are told; one mistake makes hundreds.
const SHOWN: usize = 20;

/// What an answer says of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It may be done, whatever comes of it.
    Allowed,
    /// Whoever asks is known, and may not.
    Denied,
    /// Whoever asks has to log in first.
    Unauthenticated,
}

/// Counts answers, and keeps those that are wrong.
#[derive(Default)]
struct Judge {
    cases: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Judge {
    /// `said` is what was asked, and by whom.
    fn expect(&self, wanted: Verdict, heard: Verdict, said: impl FnOnce() -> String) {
        self.cases.fetch_add(1, Ordering::Relaxed);
        if wanted != heard {
            let text = format!("{}: {heard:?}, and {wanted:?} is right", said());
            self.wrong.lock().unwrap().push(text);
        }
    }

    #[track_caller]
    fn conclude(self, cases_min: usize) {
        let (cases, wrong) = (self.cases.into_inner(), self.wrong.into_inner().unwrap());
        eprintln!("{cases} answers");
        let shown = wrong.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
        assert!(wrong.is_empty(), "{} of {cases} are wrong:\n{shown}", wrong.len());
        assert!(cases >= cases_min, "{cases}");
    }
}

/// Somebody whom the broker knows.
struct Known {
    /// Counts from 0.
    index: usize,
    name: String,
    token: String,
    given: Given,
}

impl Known {
    /// An address that only this one comes from, of several networks.
    fn address(&self, network: u8) -> Ipv4Addr {
        let [.., high, low] = (self.index + 1).to_be_bytes();
        Ipv4Addr::new(127, network, high, low)
    }

    fn entry(&self, given: &Given) -> String {
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
struct Scene {
    server: Server,
    http: Http,
    known: Vec<Known>,
    /// The token of whoever may do everything.
    token: String,
    /// What `access.toml` begins with: that one.
    head: String,
    /// How many others were added, so that each version of the file has another number of
    /// principals.
    others: usize,
}

impl Scene {
    fn set(flags: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let admin = token(folder.path(), "op", &["all"]);
        let file = folder.path().join("tidings-data/access.toml");
        let head = fs::read_to_string(&file).unwrap();
        let known = |(index, given)| Known {
            index,
            name: format!("she-{index}"),
            token: new_token().secret().to_owned(),
            given,
        };
        let known: Vec<_> = Given::all().into_iter().enumerate().map(known).collect();
        let entries = known.iter().map(|known| known.entry(&known.given));
        fs::write(&file, head.clone() + &entries.collect::<String>()).unwrap();
        let server = Server::start_in(folder, &[&["broker"], flags].concat(), |command| {
            // It tells when it has taken over who is known.
            command.env("TIDINGS_LOG", "tidings::principals=info");
        });
        let http = Http::of(&server);
        Self { server, http, known, token: admin, head, others: 0 }
    }

    /// Everybody is given what `given` says, or is not known any more. It is so for all connections
    /// from here on.
    fn change(&mut self, given: impl Fn(&Known) -> Option<Given>) {
        let entry = |known: &Known| given(known).map(|given| known.entry(&given));
        let entries: Vec<_> = self.known.iter().filter_map(entry).collect();
        let file = self.server.data().join("access.toml");
        // When the second version is read the first has been taken over.
        for _ in 0..2 {
            self.others += 1;
            let others = (0..self.others).map(|n| {
                let rights = Given::default();
                let token = new_token().secret().to_owned();
                Known { index: n, name: format!("other-{n}"), token, given: rights.clone() }
                    .entry(&rights)
            });
            let text = self.head.clone() + &entries.concat() + &others.collect::<String>();
            let fresh = file.with_extension("new");
            fs::write(&fresh, text).unwrap();
            fs::rename(&fresh, &file).unwrap();
            let count = entries.len() + self.others + 1;
            self.server.process.line_with(&format!("has changed principals={count}"));
        }
    }

    /// Does it for everybody, for some at a time.
    fn each<T: Send>(&self, state: &mut [T], work: impl Fn(&Known, &mut T) + Sync) {
        let queue = Mutex::new(self.known.iter().zip(state));
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
        let bearer = format!("Authorization: Bearer {}", self.token);
        let got = self.http.ask("GET", path, &["-H", &bearer]);
        assert_eq!(got.status, 200, "{path}: {}", got.body);
        got.json()
    }

    /// The cases among what was published to any topic, of those that begin so.
    fn published(&self, start: &str) -> BTreeSet<String> {
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
    fn judge_published(&self, start: &str, allowed: &Mutex<BTreeSet<String>>, judge: &Judge) {
        let (published, allowed) = (self.published(start), allowed.lock().unwrap());
        judge.cases.fetch_add(published.len(), Ordering::Relaxed);
        let mut wrong = judge.wrong.lock().unwrap();
        let beyond = published.difference(&allowed);
        wrong.extend(beyond.map(|case| format!("{case}: it was published, and it may not be")));
        let missing = allowed.difference(&published);
        wrong.extend(missing.map(|case| format!("{case}: it was to be published, and is nowhere")));
    }

    /// Nothing of what the rows name was made by anybody.
    #[track_caller]
    fn expect_untouched(&self) {
        for path in ["/topics", "/groups", "/jobs"] {
            let there = self.get(path).to_string();
            assert!(!there.contains("docs-1"), "{path}: {there}");
        }
    }

    fn line(&self, known: &Known, network: u8) -> Wire {
        greeted(Wire::over(tcp_from(self.server.address, known.address(network))))
    }

    fn request(&self, known: &Known, network: u8) -> Wire {
        let address = self.http.authority().parse().unwrap();
        Wire::over(tcp_from(address, known.address(network)))
    }
}

/// Has read the greeting.
#[track_caller]
fn greeted(mut wire: Wire) -> Wire {
    assert!(wire.line().is_some_and(|line| line.starts_with("Connected.")));
    wire
}
